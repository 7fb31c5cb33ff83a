"""The sections of the Size screen. Each asks kvcore for its figures and draws them."""

from __future__ import annotations

from functools import partial
from html import escape

import streamlit as st

from kvcore.explain import Step, token_steps
from kvcore.formats import KVFormat
from kvcore.hardware import capacity_lines
from kvcore.model import Model
from kvcore.scenario import MAX_COMPARED, Scenario
from kvcore.size import SizeResult, max_tokens, projections, resident_bytes
from kvcore.units import format_bytes, parse_bytes
from kvcore.weight_formats import weights_bytes
from pages.ui import heard, models, state, strip, theme, words
from pages.ui.cards import Card
from pages.ui.charts import Line, growth_chart
from pages.ui.models import Chosen, Refusal
from pages.ui.plain import plain

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
    st.html(strip.strip(model, rows, colours))


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
        text.markdown(heard.explained(model))
        with terms:
            for step in token_steps(model, kv, source):
                st.html(_factors(step))
            st.html(_sums(result))


def _sums(result: SizeResult) -> str:
    """The terms as lines; those that only repeat the line above are left out."""
    parts = [term for term in result.terms if term.name not in ("one request", "whole batch")]
    repeats = set() if len(parts) > 1 else {"one request"}
    if result.batch == 1:
        repeats.add("whole batch")
    shown = [term for term in result.terms if term.name not in repeats]
    lines = "".join(f"<strong>{escape(term.name)}</strong><p>{escape(term.formula)}</p>" for term in shown)
    return f"<div class='kv-terms'>{lines}</div>"


def _factors(step: Step) -> str:
    """One product as boxes: each factor with its meaning below it."""
    boxes = "<b>×</b>".join(
        f"<span><strong>{escape(one.value)}</strong><small>{escape(one.what)}</small></span>" for one in step.factors
    )
    per = f"for every {step.per}" if step.per[0].isdigit() else f"a {step.per}"
    total = f"<span><strong>{step.bytes:,}</strong><small>bytes {per}</small></span>"
    limit = f"<p>for the last {step.limit:,} tokens at most</p>" if step.limit else ""
    return f"{_FACTOR_STYLE}<div class='kv-product'>{boxes}<b>=</b>{total}</div>{limit}"


_FACTOR_STYLE = """<style>
.kv-product{display:flex;flex-wrap:wrap;gap:.35rem .6rem;align-items:flex-start;margin:.2rem 0}
.kv-product span{display:flex;flex-direction:column;align-items:center}
.kv-product strong{font-size:1.25rem;font-weight:600;font-variant-numeric:tabular-nums}
.kv-product small{font-size:.85rem}
.kv-product b{font-size:1.25rem;font-weight:400}
</style>"""


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
    from pages.ui import tables as made

    with st.expander("Tables"):
        contexts, per_layer = made.contexts(chosen.model, scenario, kv), made.layers(result)
        for name, frame, alt in (
            ("contexts", contexts, "Cache size at growing contexts"),
            ("layers", per_layer, "Cache size of each layer"),
        ):
            names = [str(column) for column in frame if str(column).endswith(("bytes", "tokens"))]
            counts = {column: st.column_config.NumberColumn(format="localized") for column in names}
            st.dataframe(frame, hide_index=True, alt=alt, column_config=counts, key=f"table_{name}")
            st.download_button(
                "Download CSV",
                partial(made.csv, frame),
                f"kv-cache-{name}.csv",
                "text/csv",
                key=f"csv_{name}",
                on_click="ignore",
                icon=":material/download:",
            )


def notes() -> None:
    """Figures that are often quoted, explained, each with a button that shows it."""
    st.subheader("Figures you may have heard", anchor=False)
    found = heard.figures()
    for start in range(0, len(found), 3):
        for column, (at, figure) in zip(
            st.columns(3, gap="large"), list(enumerate(found))[start : start + 3], strict=True
        ):
            with column:
                st.markdown(f"**{figure.title}**\n\n{figure.text}")
                st.button("Show this", key=f"heard_{at}", type="tertiary", icon=":material/arrow_upward:",
                          on_click=state.show, args=(figure.view,), help=figure.title)  # fmt: skip
