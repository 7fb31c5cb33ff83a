"""People against requests: expected lengths, three ways to admit them, three ways to run, and caches that wait."""

from __future__ import annotations

from functools import lru_cache

import streamlit as st

from kvcore.deployment import Deployment
from kvcore.engines.registry import labels
from kvcore.errors import KVCoreError
from kvcore.model import Model
from kvcore.planning.offload import Offload, host_memory_text, offload
from kvcore.planning.people import Active, Expected, Fit, Preset, Traffic, active_requests, expected, presets
from kvcore.scenario.concurrency import ConcurrencyOptions
from kvcore.units import GIB, format_bytes
from pages.ui import scenario, widgets
from pages.ui.concurrency import address, sections, words
from pages.ui.concurrency.case import PlanCase
from pages.ui.size.words import plural
from pages.ui.text import plain
from pages.ui.widgets import Card

PROMPTS = ("512", "2K", "6K", "16K", "32K", "100K")
ANSWERS = ("256", "512", "1K", "2K", "4K")
THINKING = ("0", "2K", "8K", "16K", "32K")
SHARED = ("0", "1K", "2K", "4K", "8K")
PEOPLE = ("10", "50", "100", "300", "1000", "5000")
key = address.key


def traffic_of(options: ConcurrencyOptions) -> Traffic:
    """The traffic that was chosen; UnitError for what cannot be."""
    by_rate = bool(options.minute and options.seconds)
    return Traffic(
        prompt_tokens=options.prompt,
        answer_tokens=options.answer,
        thinking_tokens=options.thinking,
        shared_prefix_tokens=options.shared,
        people=options.people,
        active_share=options.active / 100,
        requests_per_minute=options.minute if by_rate else None,
        seconds_a_request=float(options.seconds) if by_rate else None,
    )


@lru_cache(maxsize=64)
def _expected(model: Model, wanted: Deployment, traffic: Traffic) -> Expected:
    return expected(model, wanted, traffic)


@lru_cache(maxsize=64)
def _presets(model: Model, wanted: Deployment, traffic: Traffic) -> tuple[Preset, ...]:
    return presets(model, wanted, traffic)


def people(model: Model, case: PlanCase) -> None:
    """Expected lengths and people, and what fits when requests are counted as they are expected."""
    heading = st.empty()
    _controls()
    try:
        traffic = traffic_of(case.options)
        active = active_requests(traffic)
    except KVCoreError as problem:
        heading.subheader("People, and requests as long as expected", anchor=False)
        st.warning(plain(words.ended(str(problem))), icon=":material/info:")
        return
    try:
        found = _expected(model, case.deployment, traffic)
    except KVCoreError as problem:
        heading.subheader(plain(active.sentence.rstrip(".")), anchor=False)
        st.caption(plain(words.ended(f"How many fit is not known: {problem}")))
        return
    heading.subheader(plain(_title(traffic, active, found)), anchor=False)
    columns = (("counted as", "w"), ("tokens", "n"), ("requests at once", "n"), ("people on average", "n"),
               ("people, 99 of 100 moments", "n"), ("your people", ""))  # fmt: skip
    cells = [_row(one, traffic.people) for one in found.fits]
    st.html(widgets.table("What fits, by how long a request is counted", columns, cells))
    notes = [active.sentence, *found.notes]
    st.caption(plain(" ".join(notes)))
    _ways(model, case, traffic)


def _title(traffic: Traffic, active: Active, found: Expected) -> str:
    best = next((one for one in found.fits if one.fits), None)
    maybe = next((one for one in found.fits if one.people_nearly_always.high >= traffic.people), None)
    who = "1 person" if traffic.people == 1 else f"{traffic.people:,} people"
    keep = f"{who} keep{'s' if traffic.people == 1 else ''} {words.times(float(active.mean))} requests busy"
    if best is None and maybe is not None:
        return f"{keep}, {active.nearly_always:,} in the busiest moments: they {words.MAY_FIT}, {_HOW[maybe.name]}"
    if best is None:
        return f"{keep}, {active.nearly_always:,} in the busiest moments: too many, however they are counted"
    return f"{keep}, {active.nearly_always:,} in the busiest moments: they fit, {_HOW[best.name]}"


_HOW = {
    "worst case": "even if each grows to the limit",
    "expected peak": "if none grows beyond what is expected",
    "steady state": "but only in steady state",
}
_NAMES = {
    "worst case": ("worst case", "every request may grow to the limit"),
    "expected peak": ("expected end", "every request grows to its expected end"),
    "steady state": ("steady state", "requests of all ages, beside a chunk in prefill"),
}


def _row(one: Fit, people: int) -> list[str | tuple[str, str]]:
    shared = ""
    if one.own_tokens != one.tokens:
        shared = f"{one.own_tokens:,} {'of its own' if one.own_tokens < one.tokens else 'set aside'}"
    return [
        _NAMES[one.name],
        (f"{one.tokens:,}", shared),
        words.span(one.requests),
        words.span(one.people),
        words.span(one.people_nearly_always),
        words.verdict(people, one.people_nearly_always),
    ]


def _controls() -> None:
    with st.container(key="people_controls", gap="xsmall"):
        first = st.columns([1.2, 1.2, 1.2, 1.3, 1.2, 1.2, 1.2, 1.2], vertical_alignment="bottom")
        with first[0]:
            scenario.free(key("prompt"), "Prompt", PROMPTS, "Tokens that come in with a request, expected.")
        with first[1]:
            scenario.free(
                key("thinking"), "Thinking", THINKING, "Tokens of reasoning before the answer; they are cached too."
            )
        with first[2]:
            scenario.free(key("answer"), "Answer", ANSWERS, "Tokens of the answer, expected.")
        with first[3]:
            scenario.free(key("shared"), "Shared prefix", SHARED, "Of the prompt, what all requests begin with.")
        with first[4]:
            scenario.free(key("people"), "People", PEOPLE, "All who use it, most of them reading or away.")
        with first[5]:
            st.number_input(
                "Active, %", 1, 100, key=key("active"), help="Share of people who wait for an answer at a moment."
            )
        with first[6]:
            st.number_input(
                "Asks a minute", 0.01, 10_000.0, None, key=key("minute"), step=0.1, format="%.2f",
                placeholder="not set",
                help="Requests of one person. With the seconds of an answer it takes the place of the active share.",
            )  # fmt: skip
        with first[7]:
            st.number_input(
                "Seconds each", 1, 10**6, None, key=key("seconds"), step=5, placeholder="not set",
                help="How long a request lives. Empty: not known.",
            )  # fmt: skip


# What a request is counted as in each.
_COUNTED = {"latency": "the longest", "balanced": "as long as expected", "throughput": "held on average"}
_WAYS = {"latency": "For latency", "balanced": "Balanced", "throughput": "For throughput"}


def _ways(model: Model, case: PlanCase, traffic: Traffic) -> None:
    """The three presets with what each buys and risks."""
    try:
        found = _presets(model, case.deployment, traffic)
    except KVCoreError as problem:
        st.caption(plain(words.ended(f"Ways to run it: {problem}")))
        return
    first, last = found[0], found[-1]
    st.markdown(f"#### {plain(_ways_title(first, last))}")
    with st.container(key="ways"):
        columns = st.columns(len(found), gap="small")
    for column, one in zip(columns, found, strict=True):
        with column, st.container(border=True, height="stretch", gap="xsmall"):
            st.metric(_WAYS[one.kind], f"{one.requests:,} at once")
            st.caption(plain(f"of {words.tokens(one.tokens)}, {_COUNTED[one.kind]}"))
            st.markdown(_facts(one))
            st.caption(plain(one.trade))
            st.button(
                "Use this", key=f"way_{one.kind}", on_click=sections.go, icon=":material/check:",
                args=(case, one.deployment, None, f"{_WAYS[one.kind]}: {one.requests:,} of {words.tokens(one.tokens)}"),
                disabled=not one.changes, help=plain("; ".join(one.changes)) or "It runs so already.",
            )  # fmt: skip


def _ways_title(first: Preset, last: Preset) -> str:
    if last.requests <= first.requests or not first.requests:
        return "Three ways to run it"
    return f"Filling the pool lets {last.requests:,} in at once, keeping every cache resident {first.requests:,}"


def _facts(one: Preset) -> str:
    speed, step = one.tokens_per_s_at_most, one.step
    parts = []
    if one.oversubscription is not None:
        # Settings of its own: as many at the longest as these settings hold, and not as those of another card do.
        parts.append(f"**{words.times(one.oversubscription)}×** the {one.worst:,} that fit at the longest with it")
    if step is not None and speed is not None:
        parts.append(f"≤ **{speed:,.0f}** tokens/s in all, ≥ **{words.seconds(step.seconds_at_least)}** a token")
    parts.append(
        "nothing is evicted" if one.full_chance < 0.005 else f"≈ **{one.full_chance:.0%}** of the time the pool is full"
    )
    if one.full_chance >= 0.005 and one.again is not None:
        parts.append(f"an evicted request costs ≥ **{words.seconds(one.again.seconds_at_least)}** again")
    return "\n".join(f"- {part}" for part in parts)


@lru_cache(maxsize=64)
def _offload(model: Model, wanted: Deployment) -> Offload:
    return offload(model, wanted)


def waiting(model: Model, case: PlanCase) -> None:
    """Caches of idle requests in host memory: bring back or compute again."""
    try:
        found = _offload(model, case.deployment)
    except KVCoreError as problem:
        st.subheader("Caches of those who wait", anchor=False)
        st.caption(plain(words.ended(f"Nowhere to keep them: {problem}")))
        return
    if not found.request_bytes:
        st.subheader("Caches of those who wait: there are none", anchor=False)
        return
    st.subheader(plain(_waiting_title(found)), anchor=False)
    with st.container(key="waiting_cards"):
        st.number_input(
            "CPU memory for caches, GiB", 0, 10**6, key=key("host"), step=64, width=240,
            help="In all, of the hosts of one replica. It keeps requests that rest; the GPUs hold no more at once.",
        )  # fmt: skip
        shown = [
            Card(
                label="Bring it back",
                value=words.seconds(found.back_seconds),
                line=plain(
                    f"{format_bytes(found.rank_bytes)} to each GPU over {found.link.name}, "
                    f"{found.link.speed_knowledge} rate"
                ),
            ),
            Card(
                label="Compute it again",
                value="not known"
                if found.recompute is None else f"≥ {words.seconds(found.recompute.seconds_at_least)}",
                line="its shape is not known" if found.recompute is None
                else f"prefill of {found.tokens:,} tokens at best; {found.recompute.binds} binds",
            ),
            _tier(found, case.options.host),
        ]  # fmt: skip
        widgets.row(shown, key="waiting")
    st.caption(plain(f"{found.pool_sentence} In {labels()[case.deployment.engine]}: {found.switch}."))


def _waiting_title(found: Offload) -> str:
    times, tokens = found.times_faster_at_least, words.tokens(found.tokens)
    if times is None:
        return f"Bringing {tokens} back from CPU memory takes {words.seconds(found.back_seconds)}"
    if times >= 1:
        return (
            f"Bringing {tokens} back from CPU memory is at least {words.times(times)}× faster than computing them again"
        )
    return f"Bringing {tokens} back from CPU memory may be no faster than computing them again"


def _tier(found: Offload, host: int) -> Card:
    if not host:
        each = format_bytes(found.request_bytes)
        return Card(
            label="Kept in CPU memory", value="none yet", line=f"each of {found.tokens:,} tokens takes {each} there"
        )
    many = found.idle_requests(host * GIB)
    return Card(
        label="Kept in CPU memory", value=plural(many, "request"), line=plain(host_memory_text(found, host * GIB))
    )
