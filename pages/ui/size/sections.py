"""The sections of the Size screen. Each asks kvcore for its figures and draws them."""

from __future__ import annotations

from collections import Counter
from functools import partial
from html import escape

import pandas as pd
import streamlit as st

from kvcore.engines.layout import Layout
from kvcore.formats import KVFormat
from kvcore.hardware.gpus import capacity_lines
from kvcore.model import Model
from kvcore.model.weight_formats import weights_bytes
from kvcore.scenario.scenario import MAX_COMPARED, Scenario
from kvcore.sizing import (
    CostStep,
    SizeResult,
    bytes_per_token,
    curve,
    max_tokens,
    projections,
    resident_bytes,
    token_steps,
)
from kvcore.units import GIB, format_bytes, parse_bytes
from pages.ui import models, state, theme
from pages.ui.lines import Line, growth_chart
from pages.ui.models import Chosen, Refusal
from pages.ui.size import claims, words
from pages.ui.size.words import LayerGroup
from pages.ui.text import plain
from pages.ui.theme import Palette, fill_style
from pages.ui.widgets import Card

CAPACITIES = (("rtx-4090", 1), ("h100-sxm", 1), ("mi300x", 1), ("h100-sxm", 8))


def big_numbers(chosen: Chosen, scenario: Scenario, kv: KVFormat, result: SizeResult) -> list[Card]:
    """The four figures of the screen."""
    model, known = chosen.model, words.knowledge(result.knowledge)
    per_token = size_of_next(result)
    one = result.resident_bytes // scenario.batch
    return [
        Card(label="One request", value=format_bytes(one), line=f"resident after {scenario.tokens:,} tokens, {known}"),
        Card(
            label="Whole batch",
            value=format_bytes(result.resident_bytes),
            line=f"resident, {words.plural(scenario.batch, 'request')}, {known}",
        ),
        Card(
            label="Per token",
            value=format_bytes(per_token),
            line=words.per_token_line(model, kv, scenario.tokens, known),
        ),
        share_card(model, result),
    ]


def size_of_next(result: SizeResult) -> int:
    """Bytes that one more token adds to one request."""
    return result.bytes_per_token // result.batch


def share_card(model: Model, result: SizeResult) -> Card:
    """The batch's cache against the weights in the format in which they are stored."""
    weights = weights_bytes(model)
    if weights is None:
        return Card(label="Of the weights", value="unknown", line="this family's parameters are not counted")
    share = result.resident_bytes / weights.bytes
    value = f"{share:.1%}" if share < 10 else f"{share:,.0f} ×"
    estimated = weights.knowledge == "estimated"
    line = f"of {'≈ ' if estimated else ''}{format_bytes(weights.bytes, 1)} weights in {plain(weights.format)}"
    why = (
        f"Counted from the configuration: {plain(weights.formula)}. Biases and image or audio towers are not counted."
        if estimated
        else f"Exact: {plain(weights.formula)}."
    )
    return Card(label="Of the weights", value=f"≈ {value}" if estimated else value, line=line, help=why)


def growth(chosen: Chosen, scenario: Scenario, kv: KVFormat, colours: theme.Palette) -> None:
    """The growth chart under its sentence, with the models to compare."""
    source = scenario.source or None
    title, compare = st.columns([3, 2], vertical_alignment="bottom", gap="medium")
    title.subheader(words.growth_sentence(chosen.model, scenario.tokens, kv, scenario.batch, source), anchor=False)
    options = [one for one in models.labels() if one != chosen.id]
    with compare:
        st.multiselect(
            "Compare with", options, key="compare", format_func=models.name_of, max_selections=MAX_COMPARED,
            placeholder="Compare with other models", label_visibility="collapsed", wrap=True,
        )  # fmt: skip
    lines = [Line(id=chosen.id, name=chosen.name, model=chosen.model, kv=kv, source=source)]
    lines += _compared(scenario, chosen.id)
    drawn = growth_chart(
        lines, tokens=scenario.tokens, batch=scenario.batch, capacities=capacity_lines(CAPACITIES), colours=colours
    )
    if drawn is None:
        st.info("Nothing to draw: none of these models keeps a cache.")
        return
    figure, alt = drawn
    st.plotly_chart(figure, theme=None, config=theme.chart_config("kv-cache-growth"), alt=alt, key="growth_chart")
    held = [resident_bytes(line.model, scenario.tokens, line.kv, scenario.batch, line.source) for line in lines]
    others = [(line.name, amount) for line, amount in zip(lines[1:], held[1:], strict=True)]
    st.caption(plain(words.compared(held[0], others, scenario.tokens)) + words.chart_caption(scenario))


def _compared(scenario: Scenario, main: str) -> list[Line]:
    lines = []
    for model_id in scenario.compare:
        found = models.from_catalogue(model_id)
        if model_id == main or isinstance(found, Refusal):
            continue
        kv = models.suited_format(found.model, scenario.kv)
        lines.append(Line(id=model_id, name=found.name, model=found.model, kv=kv))
    return lines


def layers(model: Model, scenario: Scenario, kv: KVFormat, colours: theme.Palette) -> None:
    """Where it sits: every layer by what it keeps."""
    rows = words.groups(model, scenario.tokens, kv, scenario.source or None)
    st.subheader(plain(words.where_sentence(model, rows)), anchor=False)
    st.html(strip(model, rows, colours))


def inverse(model: Model, scenario: Scenario, kv: KVFormat) -> None:
    """How many tokens fit into a given memory."""
    st.subheader("How many tokens fit", anchor=False)
    keep = st.session_state
    keep["budget_again"] = keep["budget"]
    st.text_input(
        "I have for the cache", key="budget_again", width=200, on_change=_take_budget,
        help="In all. Write 40 GiB (2³⁰ bytes) or 80 GB (10⁹ bytes).",
    )  # fmt: skip
    most = max_tokens(model, parse_bytes(scenario.budget), kv, scenario.batch, scenario.source or None)
    st.markdown(words.fits(most, scenario, model))


def _take_budget() -> None:
    """The field of the inverse is the same as the one beside the engine."""
    st.session_state["budget"] = st.session_state["budget_again"]


def saving(model: Model, scenario: Scenario) -> None:
    """What the cache saves in work, and why the first token is slow."""
    st.subheader("What it saves", anchor=False)
    st.markdown(words.saving(model, scenario.tokens, *projections(scenario.tokens)))


def how(model: Model, kv: KVFormat, result: SizeResult, source: int | None) -> None:
    """The formulas with the model's numbers."""
    with st.expander("How it is computed", expanded=True):
        text, terms = st.columns([2, 3], gap="large")
        text.markdown(claims.explained(model))
        with terms:
            for step in token_steps(model, kv, source):
                st.html(_factors(step))
            st.html(_sums(result))


def _sums(result: SizeResult) -> str:
    """The terms as lines; those that only repeat the line above are left out."""
    parts = [term for term in result.terms if not term.id]
    repeats = set() if len(parts) > 1 else {"request"}
    if result.batch == 1:
        repeats.add("batch")
    shown = [term for term in result.terms if term.id not in repeats]
    lines = "".join(f"<strong>{escape(term.name)}</strong><p>{escape(term.formula)}</p>" for term in shown)
    return f"<div class='kv-terms'>{lines}</div>"


def _factors(step: CostStep) -> str:
    """One product as boxes: each factor with its meaning below it."""
    boxes = "<b>×</b>".join(
        f"<span><strong>{escape(one.value)}</strong><small>{escape(one.what)}</small></span>" for one in step.factors
    )
    per = f"for every {step.per}" if step.per[0].isdigit() else f"a {step.per}"
    total = f"<span><strong>{step.bytes:,}</strong><small>bytes {per}</small></span>"
    limit = f"<p>for the last {step.limit:,} tokens at most</p>" if step.limit else ""
    return f"<div class='kv-product'>{boxes}<b>=</b>{total}</div>{limit}"


def read(chosen: Chosen) -> None:
    """What was read from the configuration, and where that is from."""
    reading = chosen.model.reading
    label = f"What was read: {words.plural(len(reading.keys_used), 'key')} used, {len(reading.keys_ignored)} ignored"
    with st.expander(label):
        st.markdown(plain(words.origin(chosen)))
        st.markdown("\n".join(f"- {plain(note)}" for note in reading.notes))
        rows = [(key, value, "stated") for key, value in reading.keys_used]
        rows += [(key, value, "default of the architecture") for key, value in reading.defaults_used]
        table = {name: [row[at] for row in rows] for at, name in enumerate(("key", "value", "how"))}
        st.dataframe(table, hide_index=True, height="content", alt="Keys that were used, with their values", key="keys")
        if reading.keys_ignored:
            listed = ", ".join(plain(key) for key in reading.keys_ignored)
            st.markdown(f"Ignored, because they do not change the cache: {listed}")


def tables(chosen: Chosen, scenario: Scenario, kv: KVFormat, result: SizeResult) -> None:
    """The figures as tables to download."""
    with st.expander("Tables"):
        contexts, per_layer = contexts_table(chosen.model, scenario, kv), layers_table(result)
        for name, frame, alt in (
            ("contexts", contexts, "Cache size at growing contexts"),
            ("layers", per_layer, "Cache size of each layer"),
        ):
            names = [str(column) for column in frame if str(column).endswith(("bytes", "tokens"))]
            counts = {column: st.column_config.NumberColumn(format="localized") for column in names}
            st.dataframe(frame, hide_index=True, alt=alt, column_config=counts, key=f"table_{name}")
            st.download_button(
                "Download CSV",
                partial(csv, frame),
                f"kv-cache-{name}.csv",
                "text/csv",
                key=f"csv_{name}",
                on_click="ignore",
                icon=":material/download:",
            )


def notes() -> None:
    """Figures that are often quoted, explained, each with a button that shows it."""
    st.subheader("Figures you may have heard", anchor=False)
    found = claims.figures()
    for start in range(0, len(found), 3):
        for column, (at, figure) in zip(
            st.columns(3, gap="large"), list(enumerate(found))[start : start + 3], strict=True
        ):
            with column:
                st.markdown(f"**{figure.title}**\n\n{figure.text}")
                st.button("Show this", key=f"heard_{at}", type="tertiary", icon=":material/arrow_upward:",
                          on_click=state.show, args=(figure.view,), help=figure.title)  # fmt: skip


def strip(model: Model, rows: tuple[LayerGroup, ...], colours: Palette) -> str:
    """HTML of the strip with its legend; colours, patterns and words say the same."""
    count = len(model.layers)
    width = f"clamp(8px, calc((100% - {2 * count}px) / {count}), 22px)"
    cells = "".join(
        f'<span class="kv-layer" style="width:{width}">{"".join(_box(memory.kind, colours) for memory in layer)}</span>'
        for layer in model.layers
    )
    words = escape(describe(model, rows))
    ends = f"<div class='kv-ends' aria-hidden='true'><span>layer 0</span><span>layer {count - 1}</span></div>"
    drawn = f"<div class='kv-strip' role='img' aria-label='{words}'>{cells}</div>{ends}"
    return f"<div style='max-width:{24 * count}px'>{drawn}</div>{_bar(rows, colours)}{_legend(rows, colours)}"


def _box(kind: str, colours: Palette, more: str = "") -> str:
    return f'<i style="{fill_style(kind, colours)}{more}"></i>'


def _bar(rows: tuple[LayerGroup, ...], colours: Palette) -> str:
    """Shares of the bytes side by side, where there is more than one."""
    holders = [row for row in rows if row.bytes]
    if len(holders) < 2:
        return ""
    total = sum(row.bytes for row in holders)
    boxes = "".join(_box(row.kind, colours, f"flex:{row.bytes / total:.4f} 1 0") for row in holders)
    words = ", ".join(f"{row.kind} {_percent(row.bytes / total)}" for row in holders)
    return f"<div class='kv-bar' role='img' aria-label='Share of the bytes: {escape(words)}'>{boxes}</div>"


def describe(model: Model, rows: tuple[LayerGroup, ...]) -> str:
    """The strip in words."""
    listed = "; ".join(f"{row.layers} {row.kind}" for row in rows)
    return f"{len(model.layers)} layers, first to last: {listed}"


def _percent(share: float) -> str:
    return "under 1%" if share < 0.005 else f"{share:.0%}"


def _legend(rows: tuple[LayerGroup, ...], colours: Palette) -> str:
    total = sum(row.bytes for row in rows)
    lines = []
    for row in rows:
        noun = "layer" if row.layers == 1 else "layers"
        share = f"{format_bytes(row.bytes)} · {_percent(row.bytes / total)}" if row.bytes else "nothing"
        what = f"<strong>{row.layers} {noun}</strong> {escape(row.words)}"
        lines.append(f"{_box(row.kind, colours)}<span>{what}</span><b>{share}</b>")
    return f'<div class="kv-keys">{"".join(lines)}</div>'


def contexts_table(model: Model, scenario: Scenario, kv: KVFormat) -> pd.DataFrame:
    """Bytes at growing contexts: for one request and for the batch."""
    marks = {2**n for n in range(10, 21)} | {scenario.tokens}
    if model.context_limit:
        marks.add(model.context_limit)
    tokens = sorted(marks)
    one = [int(value) for value in curve(model, tokens, kv, 1, scenario.source or None)]
    return pd.DataFrame(
        {
            "tokens": tokens,
            "one request, bytes": one,
            "one request, GiB": [value / GIB for value in one],
            "whole batch, GiB": [value * scenario.batch / GIB for value in one],
            "next token, bytes": [bytes_per_token(model, n, kv) for n in tokens],
        }
    )


def layers_table(result: SizeResult) -> pd.DataFrame:
    """Bytes of every memory of every layer, for the whole batch."""
    return pd.DataFrame(
        {
            "layer": [layer.index for layer in result.layers],
            "kind": [layer.kind for layer in result.layers],
            "resident, bytes": [layer.resident_bytes for layer in result.layers],
            "next token, bytes": [layer.bytes_per_token for layer in result.layers],
            "formula": [layer.formula for layer in result.layers],
        }
    )


def groups(layout: Layout) -> pd.DataFrame:
    """Groups of layers as an engine stores one request of the longest length on a rank; equal ones in one row."""
    counted = Counter(layout.groups)
    rows = list(counted)
    columns: dict[str, list[object]] = {
        "keeps": [row.kind for row in rows],
        "groups": list(counted.values()),
        "layers in each": [row.layers for row in rows],
        "page of a layer, bytes": [row.page_bytes for row in rows],
        "tokens a block": [row.block_size for row in rows],
        "blocks a request": [row.blocks_per_request for row in rows],
    }
    known = {name: cells for name, cells in columns.items() if any(cell is not None for cell in cells)}
    return pd.DataFrame(known)


def csv(frame: pd.DataFrame) -> bytes:
    """The table as a CSV file; a text that a spreadsheet would take for a formula has an apostrophe before it."""
    return frame.map(_no_formula).to_csv(index=False).encode()


def _no_formula(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value[:1] in tuple("=+-@\t\r") else value
