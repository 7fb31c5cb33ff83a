"""If you change one thing: what each change gains and costs, its curve, and what would make a plan fit."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import lru_cache

import streamlit as st

from kvcore.deployment import Deployment
from kvcore.engines.registry import engine, labels
from kvcore.errors import KVCoreError
from kvcore.model import Model
from kvcore.planning.changes import MOST_UTILIZATION, Kind, engine_change
from kvcore.planning.people import Traffic
from kvcore.planning.pools import has_share, usable_share
from kvcore.planning.sweep import LEVERS, Point, sweep
from kvcore.planning.whatif import WhatIf, remedies, shortfall, whatifs
from kvcore.scenario.concurrency import CONTEXT, MAX_CURVES
from kvcore.units import format_bytes
from pages.ui import theme, widgets
from pages.ui.concurrency import address, people, sections, words
from pages.ui.concurrency import case as plan_answers
from pages.ui.concurrency.case import PlanCase
from pages.ui.concurrency.curves import PlanCurve, curves_chart
from pages.ui.concurrency.sweep_chart import Bar, bars_chart, curve_chart
from pages.ui.size.words import plural
from pages.ui.text import plain
from pages.ui.variants import lower

_SHOWN = 8
# Kinds of change that cost quality, which the least of them cost least.
_MILDEST = ("cache format", "weight format")
_BOUGHT = ("more GPUs", "GPU")
_DRAWN = 3
_ORDER = (
    "One change of each kind, of formats the mildest. First what needs no other GPUs, by its gain; then what has to be "
    "bought; last shorter requests, which are another question."
)


def slug(one: WhatIf) -> str:
    """A change's name for the address."""
    return re.sub(r"[^a-z0-9.+/×-]+", "-", one.name.lower()).strip("-")[:40]


@lru_cache(maxsize=64)
def _whatifs(model: Model, wanted: Deployment, traffic: Traffic | None) -> tuple[WhatIf, ...]:
    # A gain is the same for any number of users.
    return whatifs(model, wanted, traffic=traffic)


@lru_cache(maxsize=64)
def _remedies(model: Model, wanted: Deployment, users: int) -> tuple[WhatIf, ...]:
    return remedies(model, wanted, users)


def mend(model: Model, case: PlanCase) -> None:
    """What lacks, and the nearest changes that make the plan fit."""
    plan = case.plan
    if plan.fits:
        return
    found = _remedies(model, case.deployment, case.users)
    if plan.refused and not found:
        return
    st.subheader(plain(_mend_title(model, case, found)), anchor=False)
    if not found:
        st.caption("No single change of this GPU, split, format or engine makes it fit.")
        return
    # To serve fewer is to give up: last of what is shown.
    shown = sorted(found[:_SHOWN], key=lambda one: one.users is not None)
    explained = words.glossary([one.change for one in shown], but=words.split_words(case.deployment))
    if explained:
        st.caption(plain(explained))
    _rows(case, shown, "mend", with_gain=False)


def _mend_title(model: Model, case: PlanCase, found: Sequence[WhatIf]) -> str:
    if case.plan.refused:
        return "This would work" if len(found) == 1 else "Each of these would work"
    short = shortfall(model, case.deployment, case.users)
    lacks = f"{format_bytes(short.missing_bytes)} are missing on each GPU" if short else "It does not fit"
    if not found:
        return lacks
    return f"{lacks}: {'one change makes' if len(found) == 1 else 'each of these makes'} it fit"


def levers(model: Model, case: PlanCase, colours: theme.Palette) -> None:
    """What each single change gains, at what price, and a curve for every lever."""
    if case.plan.requests is None:
        return
    traffic, found = _lengths(case), []
    if case.plan.requests.high:
        found = [one for one in _whatifs(model, case.deployment, traffic) if one.kind != "offload"]
        _changes(case, found)
    _drawn(model, case, found, traffic, colours)


def _lengths(case: PlanCase) -> Traffic | None:
    """The expected lengths, for one person: how many there are changes no gain."""
    try:
        return replace(people.traffic_of(case.options), people=1, active_share=1.0)
    except KVCoreError:
        return None


def _changes(case: PlanCase, found: Sequence[WhatIf]) -> None:
    if not found:
        st.subheader("No single change lets in more", anchor=False)
        return
    top = _best(found)
    title = _title(top[0], found)
    st.subheader(plain(title), anchor=False)
    shown = top[:_SHOWN]
    explained = words.glossary([title, *(one.change for one in shown)], but=words.split_words(case.deployment))
    st.caption(plain(f"{_ORDER} {explained}".rstrip()))
    _rows(case, shown, "lever", with_gain=True)
    _all(case, found)


def _drawn(
    model: Model, case: PlanCase, found: Sequence[WhatIf], traffic: Traffic | None, colours: theme.Palette
) -> None:
    """One lever over all its values; against the longest request also what the changes would hold."""
    with st.container(key="sweep_section", gap="xsmall"):
        lever = chooser()
        if lever == CONTEXT:
            _curves(model, case, found, _best(found), colours)
        else:
            section(model, case, lever, traffic, colours)


def _best(found: Sequence[WhatIf]) -> list[WhatIf]:
    """One change of each kind, the largest gain first: of formats the mildest, of others the strongest."""
    first: dict[str, WhatIf] = {}
    for one in found:
        if one.kind in _MILDEST or one.kind not in first:
            first[one.kind] = one
    # What nobody has to buy comes first; shorter requests are another question than more of the same.
    return sorted(first.values(), key=lambda one: (one.kind == "context", one.kind in _BOUGHT, -(one.gain or math.inf)))


def change_words(case: PlanCase, one: WhatIf) -> str:
    """The change as the screen says it: engines as their makers call them."""
    if one.kind != "engine":
        return one.change
    return engine_change(labels()[one.deployment.engine], labels()[case.deployment.engine])


def _name(one: WhatIf) -> str:
    """The change in a word or two."""
    return labels()[one.deployment.engine] if one.kind == "engine" else one.name


def _title(one: WhatIf, found: Sequence[WhatIf]) -> str:
    """What the first row gains, in which sense it is first, and the largest gain of all where that is another's."""
    lead = "If you change one thing" if one.kind in (*_BOUGHT, "context") else "Without buying anything"
    said = f"{lead}: {_name(one)} {_much(one)}"
    most = max((other for other in found if other.kind != "context"), key=lambda other: other.gain or 0.0, default=one)
    if one.gain is None or words.factor(most.gain) == words.factor(one.gain) or (most.gain or 0.0) <= one.gain:
        return said
    return f"{said}, of all changes {_name(most)} the most: {words.factor(most.gain)}"


def _much(one: WhatIf) -> str:
    gain = words.factor(one.gain)
    if one.gain is None:
        return "lets in the first"
    return f"lets in {gain.lstrip('+')} {'more' if '%' in gain else 'as many'}"


def _rows(case: PlanCase, found: Sequence[WhatIf], prefix: str, *, with_gain: bool) -> None:
    """A change a line: what, how much, at what price, and a button that applies it."""
    with st.container(key=f"{prefix}_rows", gap="xsmall"):
        for at, one in enumerate(found):
            with st.container(key=f"{prefix}_row_{at}"):
                what, gain, price, button = st.columns([3.1, 1.7, 4.2, 1.2], vertical_alignment="center")
            what.markdown(f"**{plain(change_words(case, one))}**")
            gain.markdown(_gain(one, with_gain))
            price.caption(plain(one.price))
            if one.deployment == case.deployment and one.users in (None, case.users):
                # What is gained lies in the prompts and not in the server.
                continue
            said = change_words(case, one)
            button.button(
                "Apply", key=f"{prefix}_{at}", on_click=sections.go, width="stretch", help=plain(said),
                args=(case, one.deployment, one.users, said),
            )  # fmt: skip


def _gain(one: WhatIf, with_factor: bool) -> str:
    if one.kind == "prefix":
        return plain(one.gain_words)
    held = "" if one.requests is None else f"{words.span(one.requests)} at once"
    return f"**{words.factor(one.gain)}** · {held}" if with_factor else held


def _all(case: PlanCase, found: Sequence[WhatIf]) -> None:
    """Every change as a table, with a way to apply any."""
    with st.expander(f"All {plural(len(found), 'change')} that help, and their prices"):
        by_name = {slug(one): one for one in found}
        left, right = st.columns([5, 1.2], vertical_alignment="bottom")
        with left:
            name = st.selectbox(
                "Apply", list(by_name), key="lever_any", format_func=lambda one: change_words(case, by_name[one])
            )
        if name in by_name:
            right.button(
                "Apply it", key="lever_any_go", on_click=sections.go, width="stretch",
                args=(case, by_name[name].deployment, by_name[name].users, change_words(case, by_name[name])),
            )  # fmt: skip
        columns = (("change", "w"), ("requests at once", "n"), ("gain", "n"), ("price", "w"))
        cells = [
            [change_words(case, one), "" if one.requests is None else words.span(one.requests),
             words.factor(one.gain), one.price]
            for one in found
        ]  # fmt: skip
        st.html(widgets.table("Every change that helps", columns, cells))
        st.caption(plain(idle(case, {one.kind for one in found})))
        lower.download(
            lambda: [
                {"kind": one.kind, "change": one.change, "gain at the safe end": one.gain,
                 "gain at best guess": one.gain_best, "in words": one.gain_words, "price": one.price}
                for one in found
            ],
            "kv-cache-levers", "changes",
        )  # fmt: skip


def _curves(
    model: Model, case: PlanCase, found: Sequence[WhatIf], top: Sequence[WhatIf], colours: theme.Palette
) -> None:
    """A line for the plan and one for each of the changes that are picked."""
    by_name = {slug(one): one for one in found}
    chosen = _picked(by_name, top)
    columns = plan_answers.columns(model, case.deployment)
    lines = [PlanCurve(name="as planned", most=plan_answers.most(model, case.deployment, columns), main=True)]
    for name in chosen:
        one = by_name[name]
        lines.append(PlanCurve(name=_name(one), most=plan_answers.most(model, one.deployment, columns)))
    st.markdown(f"#### {plain(_curves_title(case, lines, columns))}")
    st.session_state["plan_picked"] = chosen
    names = {name: _name(one) for name, one in by_name.items()}
    st.multiselect(
        "Changes drawn beside the plan", list(by_name), key="plan_picked", on_change=_take_picked, wrap=True,
        max_selections=MAX_CURVES, format_func=lambda one: names.get(one, one), placeholder="Choose changes to draw",
    )  # fmt: skip
    made = curves_chart(lines, columns, tokens=case.deployment.context, users=case.users, colours=colours)
    if made is None:
        st.caption("Nothing to draw: nothing fits at any length.")
        return
    chart, alt = made
    config = theme.chart_config("kv-cache-levers")
    st.plotly_chart(chart, theme=None, config=config, alt=alt, key="lever_curves")
    st.caption(
        "Requests at once at the safe end, both axes logarithmic. ○ the plan. A flat part is the engine’s own limit."
    )


def _take_picked() -> None:
    st.session_state[address.key("curves")] = list(st.session_state["plan_picked"])


def _picked(by_name: dict[str, WhatIf], top: Sequence[WhatIf]) -> list[str]:
    """The changes that are drawn: those chosen, else the strongest of the first kinds."""
    asked = [one for one in st.session_state.get(address.key("curves"), ()) if one in by_name]
    usual = [slug(one) for one in top if one.kind != "context"]
    return asked or usual[:_DRAWN]


def _curves_title(case: PlanCase, lines: Sequence[PlanCurve], columns: Sequence[int]) -> str:
    if len(lines) < 2:
        return "Requests against context"
    context = case.deployment.context
    at = min(range(len(columns)), key=lambda place: abs(columns[place] - context))
    best = max(lines[1:], key=lambda line: line.most[at].low)
    held, more = lines[0].most[at].low, best.most[at].low
    return f"At {words.tokens(columns[at])} the plan holds {held:,}, with {best.name} it would hold {more:,}"


_STATED = "the cache is as you said"
_NOT_MORE = "what it would free holds no more requests"


def idle(case: PlanCase, gained: Collection[Kind]) -> str:
    """The levers that are not among those that gained something, with why, in one sentence."""
    said = [f"{name} ({why(case)})" for kind, name, why in _LEVERS if kind not in gained]
    return f"Tried as well, and lets in no more here: {'; '.join(said)}."


def _tokens(case: PlanCase) -> str:
    if not engine(case.deployment.engine).step_memory:
        return "what a step takes in leaves this engine's cache alone"
    return _STATED if case.deployment.kv_bytes is not None else _NOT_MORE


def _sequences(case: PlanCase) -> str:
    if case.plan.binding.kind == "sequences":
        return "it binds, and the cache holds no more either"
    return "the cache is full before that number is reached"


def _prefix(case: PlanCase) -> str:
    if not case.options.shared:
        return "no shared prefix is named under the expected lengths"
    return "requests of the expected length share too little, or the engine keeps no prefixes"


def _share(case: PlanCase) -> str:
    if not has_share(case.deployment.engine):
        return "the engine has no such share"
    if case.deployment.kv_bytes is not None:
        return _STATED
    return "it is taken already" if usable_share(case.plan.model, case.deployment) >= MOST_UTILIZATION else _NOT_MORE


def _graphs(case: PlanCase) -> str:
    if not engine(case.deployment.engine).step_memory:
        return "none are counted for this engine"
    if case.deployment.enforce_eager:
        return "none are captured"
    return _STATED if case.deployment.kv_bytes is not None else _NOT_MORE


def _offload(_: PlanCase) -> str:
    return "it keeps the caches of those who wait, and no more generate at once"


_LEVERS: tuple[tuple[Kind, str, Callable[[PlanCase], str]], ...] = (
    ("batched tokens", "fewer tokens a step", _tokens),
    ("sequences", "more requests by the engine's own limit", _sequences),
    ("prefix", "prefix sharing", _prefix),
    ("utilization", f"a share of {MOST_UTILIZATION:.2f} of the memory", _share),
    ("graphs", "no CUDA graphs", _graphs),
    ("offload", "offloading to CPU memory", _offload),
)


_NAMES = {CONTEXT: "longest request, and changes beside it"} | {name: one.name for name, one in LEVERS.items()}
# What requests at once cannot be held against: other lengths, and caches of which most do not generate.
_OTHER_COUNT = ("prefix", "host")


@lru_cache(maxsize=64)
def _points(model: Model, wanted: Deployment, lever: str, traffic: Traffic | None, host: int) -> tuple[Point, ...]:
    return sweep(model, wanted, lever, traffic, host)


def chooser() -> str:
    """The lever that is drawn."""
    return st.selectbox(
        "Requests at once against", list(_NAMES), key=address.key("lever"), format_func=lambda one: _NAMES[one],
        help="One lever over all its values, with all else as planned.", width=420, filter_mode="contains",
    )  # fmt: skip


def section(model: Model, case: PlanCase, name: str, traffic: Traffic | None, colours: theme.Palette) -> None:
    """The chart of one lever, or why there is none."""
    lever = LEVERS[name]
    points = _points(model, case.deployment, name, traffic, case.options.host)
    bars = [Bar(name=_named(name, one), most=one.most, now=one.now) for one in points if one.most is not None]
    if len(bars) < 2:
        st.caption(plain(_missing(case, name, points)))
        return
    st.markdown(f"#### {plain(title(name, bars))}")
    wanted = None if name in _OTHER_COUNT else case.users
    chart, alt = (
        curve_chart(bars, unit=lever.unit, counted=lever.counted, users=wanted, colours=colours)
        if lever.ordered
        else bars_chart(bars, counted=lever.counted, users=wanted, colours=colours)
    )
    config = theme.chart_config(f"kv-cache-lever-{name}")
    st.plotly_chart(chart, theme=None, config=config, alt=alt, key="lever_sweep")
    mark = "○ as planned, amber: the range up to the hopeful end." if lever.ordered else "Bold: as planned. Hatched: "
    mark += "" if lever.ordered else "the range up to the hopeful end."
    dashed = "" if wanted is None or lever.ordered else " Dashed: the users asked for."
    refused = [f"{_named(name, one)}: {one.why}" for one in points if one.most is None]
    left_out = f" Refused: {'; '.join(refused)}." if refused else ""
    st.caption(plain(f"{mark}{dashed} The price: {lever.price}{left_out}"))
    lower.download(lambda: _lines(name, points), f"kv-cache-lever-{name}", "sweep")


def title(name: str, bars: Sequence[Bar]) -> str:
    """The best value against the plan's own, or that there is none better."""
    best = max(bars, key=lambda one: (one.most.low, one.now))
    now = next((one for one in bars if one.now), None)
    lever, unit = LEVERS[name], LEVERS[name].unit
    head = f"{lever.name[:1].upper()}{lever.name[1:]}"
    if now is None:
        return f"{head}: up to {words.to(best.most)} with {best.name}"
    if best.most.low <= now.most.low:
        return f"{head}: none holds more than {now.name} as planned, which is {words.to(now.most)}"
    with_unit = f"{best.name} {unit}".rstrip() if lever.ordered else best.name
    return f"{head}: {words.to(now.most)} with {now.name} as planned, {words.to(best.most)} with {with_unit}"


def _named(lever: str, one: Point) -> str:
    if lever == "split" and one.deployment is not None:
        return words.split_words(one.deployment)
    return labels()[one.name] if lever == "engine" else one.name


def _missing(case: PlanCase, name: str, points: Sequence[Point]) -> str:
    label = labels()[case.deployment.engine]
    if name == "prefix" and all(one.most is None for one in points):
        why = points[0].why if points else "a shared prefix cannot be longer than the prompt"
        return words.ended(f"The expected lengths below cannot be planned with: {why}")
    if name == "host":
        return f"{label} keeps no caches of idle requests in CPU memory here: see “Caches of those who wait” below."
    if case.deployment.kv_bytes is not None and name == "share":
        return "The cache is as you said: a share of the memory changes nothing."
    if points:
        return f"There is only one value here: {_named(name, points[0])}."
    return f"{label} has no such setting."


def _lines(name: str, points: Sequence[Point]) -> list[dict[str, object]]:
    return [
        {
            "lever": LEVERS[name].name, "value": _named(name, one), "as planned": one.now,
            "safe end": None if one.most is None else one.most.low,
            "best guess": None if one.most is None else one.most.best,
            "hopeful end": None if one.most is None else one.most.high,
            "counted": LEVERS[name].counted, "refused": one.why,
        }
        for one in points
    ]  # fmt: skip
