"""Three numbers for one model: what it remembers, what an engine sets aside, and what the engine's log will say."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from html import escape

import streamlit as st

from kvcore.deployment import Deployment
from kvcore.engines.registry import engine_names
from kvcore.engines.reserve import Reservation, reserve
from kvcore.errors import KVCoreError
from kvcore.formats import KVFormat
from kvcore.hardware.gpus import Accelerator, accelerator
from kvcore.model import Model
from kvcore.planning.launch import Command, launch
from kvcore.scenario.scenario import Scenario
from kvcore.sizing import SizeResult, resident_bytes
from kvcore.units import format_bytes, parse_bytes
from pages.ui import scenario as controls
from pages.ui import widgets
from pages.ui.models import Chosen
from pages.ui.size import words
from pages.ui.size import words as text
from pages.ui.text import plain
from pages.ui.widgets import Card

RANKS = ("1", "2", "4", "8", "16", "32", "64")


def section(chosen: Chosen, scenario: Scenario, kv: KVFormat, result: SizeResult) -> None:
    """The whole section; what an engine refuses is said in its sentence, and the rest stays."""
    reserved = _reserve(chosen, scenario, result, scenario.tp)
    one = result.resident_bytes // scenario.batch
    st.subheader(plain(text.headline(one, reserved, scenario.budget)), anchor=False)
    _controls()
    remark = text.too_large(parse_bytes(scenario.budget), accelerator(scenario.gpu))
    if remark:
        st.caption(remark)
    remembered = Card(
        label="Resident now",
        value=format_bytes(one),
        line=f"what the model must remember for a request of {scenario.tokens:,} tokens, "
        f"{words.knowledge(result.knowledge)}{_everywhere(scenario)}",
        rule="the layers’ own growth, as computed below",
    )
    if reserved.layout is None:
        widgets.row([remembered, _refusal(reserved)], key="trio_cards", widths=(1, 2))
        return
    aside, why = _aside(chosen, scenario, kv, reserved, result)
    widgets.row([remembered, aside, _reported(scenario, reserved)], key="trio_cards")
    _log(reserved)
    _stored(chosen, scenario, result, reserved, why)


def _reserve(chosen: Chosen, scenario: Scenario, result: SizeResult, ranks: int) -> Reservation:
    return reserve(
        chosen.model, scenario.engine, length=chosen.model.context_limit or max(1, scenario.tokens),
        kv_dtype=_asked(scenario, result), tp=ranks, gpu=accelerator(scenario.gpu),
        kv_bytes=parse_bytes(scenario.budget),
    )  # fmt: skip


def _asked(scenario: Scenario, result: SizeResult) -> str:
    """The cache format that the engine is asked for."""
    return result.kv_dtype if scenario.kv != "auto" else "auto"


def _everywhere(scenario: Scenario) -> str:
    return ", all ranks together" if scenario.tp > 1 else ""


def _controls() -> None:
    with st.container(key="trio_controls"):
        engine, gpu, ranks, memory = st.columns([5.4, 2.9, 1.3, 1.9], vertical_alignment="bottom")
    with engine:
        st.segmented_control(
            "Engine",
            engine_names(),
            key="engine",
            format_func=lambda name: text.ENGINES[name],
            required=True,
            width="stretch",
        )
    with gpu:
        widgets.pick(help_text="Engines take defaults from it, such as how many tokens may be in flight at once.")
    with ranks:
        controls.free(
            "tp", "Ranks (TP)", RANKS, "Tensor parallel: over how many GPUs each layer is split. Type any number."
        )
    with memory:
        st.text_input(
            "Cache memory per rank", key="budget",
            help="What is left for the cache on each rank, after weights and everything else. "
            "Write 40 GiB (2³⁰ bytes) or 80 GB (10⁹ bytes).",
        )  # fmt: skip


def _refusal(reserved: Reservation) -> Card:
    return Card(
        label=f"Reserved by {text.ENGINES[reserved.engine]}",
        value="no figure",
        line=plain(text.refusal(reserved)),
        rule=reserved.versions,
    )


def _aside(
    chosen: Chosen, scenario: Scenario, kv: KVFormat, reserved: Reservation, result: SizeResult
) -> tuple[Card, list[str]]:
    layout = reserved.layout
    if layout is None:
        raise ValueError("a refusal has no layout")
    held = resident_bytes(chosen.model, layout.max_model_len, kv, 1, scenario.source or None)
    limit = "its maximum length" if chosen.model.context_limit else "this length; it states no maximum"
    rank = "on each rank" if scenario.tp > 1 else "on the one rank"
    compared = text.beside_resident(layout.bytes_per_request, held, scenario.tp)
    alone = reserved if scenario.tp == 1 else _reserve(chosen, scenario, result, 1)
    why = text.reasons(chosen.model, reserved, scenario.tp, alone)
    card = Card(
        label=f"Reserved by {text.ENGINES[reserved.engine]}",
        value=format_bytes(layout.bytes_per_request),
        line=f"{rank} for a request of {layout.max_model_len:,} tokens, {limit}. {compared[:1].upper()}{compared[1:]}.",
        more=plain(" ".join(why[:2])),
        rule=reserved.versions,
    )
    return card, why


def _reported(scenario: Scenario, reserved: Reservation) -> Card:
    name, capacity = text.ENGINES[reserved.engine], reserved.capacity
    label = f"Reported by {name}"
    if capacity is None:
        return Card(label=label, value="no figure", line=plain(text.refusal(reserved)), rule=reserved.versions)
    if text.shortfall(reserved):
        said = plain(text.short_of(reserved, scenario.budget))
        return Card(label=label, value="does not start", line=said, rule=reserved.versions)
    line = f"with {plain(scenario.budget)} on each rank: {text.requests_at_once(reserved)}"
    if not capacity.log_lines:
        label, line = f"Room in {name}", f"{line}; it logs nothing about it"
    return Card(label=label, value=f"{capacity.kv_cache_size_tokens:,} tokens", line=line, rule=reserved.versions)


def _log(reserved: Reservation) -> None:
    """The lines that the engine will print."""
    lines = reserved.capacity.log_lines if reserved.capacity else ()
    if lines:
        with st.container(key="trio_log", gap="xsmall"):
            st.caption(f"What {text.ENGINES[reserved.engine]} will log:")
            st.code("\n".join(lines), language=None, wrap_lines=True)


def _stored(chosen: Chosen, scenario: Scenario, result: SizeResult, reserved: Reservation, why: list[str]) -> None:
    """How the engine stores it: why, groups, terms, command."""
    from pages.ui.concurrency import sections
    from pages.ui.size import sections as made

    layout = reserved.layout
    if layout is None:
        return
    with st.expander(f"How {text.ENGINES[reserved.engine]} stores it"):
        stored, computed = st.columns([3, 2], gap="large")
        with stored:
            st.markdown("\n".join(f"- {plain(one)}" for one in [*why, *_always(reserved)]))
            groups = made.groups(layout)
            counts = {str(name): st.column_config.NumberColumn(format="localized") for name in groups.columns[2:]}
            st.dataframe(
                groups, hide_index=True, column_config=counts, key="trio_groups",
                alt="Groups of layers as the engine stores them: pages, blocks and how many a request takes",
            )  # fmt: skip
            st.download_button(
                "Download CSV", lambda: made.csv(groups), f"kv-cache-{reserved.engine}.csv", "text/csv", key="csv_trio",
                on_click="ignore", icon=":material/download:",
            )  # fmt: skip
        computed.html(_terms(reserved))
        st.caption("The command that asks for it:")
        found = command(
            chosen.model, reserved.engine, layout.max_model_len, _asked(scenario, result), scenario.tp,
            accelerator(scenario.gpu), parse_bytes(scenario.budget),
        )  # fmt: skip
        sections.show(found)


def _terms(reserved: Reservation) -> str:
    """The terms of both figures; those that are the same several times stand once."""
    terms = [
        *(reserved.layout.terms if reserved.layout else ()),
        *(reserved.capacity.terms if reserved.capacity else ()),
    ]
    counted = Counter((term.name, term.formula) for term in terms)
    lines = "".join(
        f"<strong>{f'{count} × ' if count > 1 else ''}{escape(name)}</strong><p>{escape(formula)}</p>"
        for (name, formula), count in counted.items()
    )
    return f"<div class='kv-terms'>{lines}</div>"


def _always(reserved: Reservation) -> list[str]:
    notes = reserved.layout.notes if reserved.layout else ()
    return [f"Rules followed: {reserved.versions}.", *(note for note in notes if note.startswith("The rules of"))]


@lru_cache(maxsize=128)
def command(
    model: Model, engine: str, length: int, kv_dtype: str, tp: int, gpu: Accelerator, kv_bytes: int
) -> Command | str:
    """The launch command, or why there is none: the screen's figures are those of the engine's own defaults."""
    # llama.cpp's slots share one cache unless somebody says how many there are; a stated context keeps it so.
    options = (("ctx_size", length),) if engine == "llama.cpp" else ()
    try:
        return launch(
            model,
            Deployment(
                gpu=gpu, context=length, tp=tp, engine=engine, kv_dtype=kv_dtype, kv_bytes=kv_bytes, options=options
            ),
        )
    except KVCoreError as problem:
        return str(problem)
