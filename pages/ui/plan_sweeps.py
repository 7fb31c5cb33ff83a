"""A curve for every lever: which one is drawn, its answer in a sentence, its price, its figures."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import streamlit as st

from kvcore.model import Model
from kvcore.plan.deployment import Deployment
from kvcore.plan.options import CONTEXT
from kvcore.plan.sweep import LEVERS, Point, sweep
from kvcore.plan.traffic import Traffic
from pages.ui import plan_state, theme, variant_more
from pages.ui import plan_words as words
from pages.ui.plain import plain
from pages.ui.plan_answers import Case
from pages.ui.plan_sweep_chart import Bar, bars_chart, curve_chart
from pages.ui.trio_words import ENGINES

_NAMES = {CONTEXT: "longest request, and changes beside it"} | {name: one.name for name, one in LEVERS.items()}
# What requests at once cannot be held against: other lengths, and caches of which most do not generate.
_OTHER_COUNT = ("prefix", "host")


@lru_cache(maxsize=64)
def _points(model: Model, wanted: Deployment, lever: str, traffic: Traffic | None, host: int) -> tuple[Point, ...]:
    return sweep(model, wanted, lever, traffic, host)


def chooser() -> str:
    """The lever that is drawn."""
    return st.selectbox(
        "Requests at once against", list(_NAMES), key=plan_state.key("lever"), format_func=lambda one: _NAMES[one],
        help="One lever over all its values, with all else as planned.", width=420, filter_mode="contains",
    )  # fmt: skip


def section(model: Model, case: Case, name: str, traffic: Traffic | None, colours: theme.Palette) -> None:
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
    variant_more.download(lambda: _lines(name, points), f"kv-cache-lever-{name}", "sweep")


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
    return ENGINES.get(one.name, one.name) if lever == "engine" else one.name


def _missing(case: Case, name: str, points: Sequence[Point]) -> str:
    engine = ENGINES[case.deployment.engine]
    if name == "prefix" and all(one.most is None for one in points):
        why = points[0].why if points else "a shared prefix cannot be longer than the prompt"
        return words.ended(f"The expected lengths below cannot be planned with: {why}")
    if name == "host":
        return f"{engine} keeps no caches of idle requests in CPU memory here: see “Caches of those who wait” below."
    if case.deployment.kv_bytes is not None and name == "share":
        return "The cache is as you said: a share of the memory changes nothing."
    if points:
        return f"There is only one value here: {_named(name, points[0])}."
    return f"{engine} has no such setting."


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
