"""The recorded cases of the Accuracy screen: big numbers, filters, chart, shares, reasons, table."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from kvcore.evidence.cases import PLANNED, PUBLISHED, RUN, Case, cases, summary, worst
from pages.ui import theme, widgets
from pages.ui.accuracy import words
from pages.ui.accuracy.chart import NAMED, scatter
from pages.ui.size import sections
from pages.ui.text import plain
from pages.ui.widgets import Card


def big_numbers(rows: tuple[Case, ...]) -> list[Card]:
    """The four figures of the screen: one a kind of evidence."""
    published, run, planned = (words.counted(rows, kind) for kind in (PUBLISHED, RUN, PLANNED))
    fork = words.counted(rows, PUBLISHED, fork=True)
    exact = sum(row.within(0) for row in published)
    two = sum(row.within(0.02) for row in published)
    engines = len({row.engine for row in published})
    return [
        _card("Published logs", published, 0.005,
              f"within 0.5%, of {engines} engines; {exact} exact, {two} within 2%"),
        _card("Really run on a CPU", run, 0, "exact: vLLM and llama.cpp, started for this, refusals included"),
        _card("Planned by vLLM’s code", planned, 0, "to the byte: requests, blocks and groups of layers"),
        _card("ik_llama.cpp, apart", fork, 0, "exact, but by selection: reports that did not match had been dropped"),
    ]  # fmt: skip


def _card(label: str, rows: list[Case], limit: float, line: str) -> Card:
    met = sum(row.within(limit) for row in rows)
    return Card(label=label, value=f"{met} of {len(rows)}", line=line)


@st.fragment
def records(model_type: str, model: str, colours: theme.Palette) -> None:
    """The cases that the filters leave, as chart, shares, reasons and table."""
    sentence = st.container()
    rows = _filtered(cases())
    sentence.subheader(words.records_sentence(rows), anchor=False)
    if not rows:
        st.info("No recorded case has all of these. Take one of the filters away.", icon=":material/info:")
        return
    far = list(worst(rows))
    left, right = st.columns([5, 4], gap="large")
    with left:
        _chart(rows, far, colours)
        _chosen(model_type, model)
    with right:
        _shares(rows)
        _reasons(far)
    _table(rows)


def _filtered(rows: tuple[Case, ...]) -> list[Case]:
    """The filters, and the rows that they leave."""
    with st.container(key="accuracy_filters"):
        engine, family, evidence, more = st.columns([3, 3, 3, 2], vertical_alignment="bottom")
    with more:
        everything = st.toggle(
            "Also not counted", key="acc_all",
            help="Published logs that do not state their model, or not all that a figure depends on. They are in no "
            "denominator.",
        )  # fmt: skip
    shown = [row for row in rows if row.counted or everything]
    picked = [
        _choice(engine, "Engine", "acc_engine", sorted({row.engine for row in rows}, key=words.engine), words.engine),
        _choice(family, "Family", "acc_family", sorted({row.family for row in rows}), words.family),
        _choice(evidence, "Evidence", "acc_evidence", words.evidence_order(rows), words.PLACES.__getitem__),
    ]
    return [
        row
        for row in shown
        if all(not chosen or one in chosen for one, chosen in zip((row.engine, row.family, row.evidence), picked,
                                                                  strict=True))
    ]  # fmt: skip


def _choice(column: DeltaGenerator, label: str, key: str, options: list[str], shown: Callable[[str], str]) -> list[str]:
    return column.multiselect(label, options, key=key, format_func=shown, placeholder="all")


def _chart(rows: list[Case], far: list[Case], colours: theme.Palette) -> None:
    drawn = scatter(rows, far, colours)
    if drawn is None:
        st.info("Nothing to draw: none of these cases has both a reported and a predicted figure.")
        return
    chart, alt = drawn
    st.plotly_chart(chart, theme=None, config=theme.chart_config("kv-cache-accuracy"), alt=alt, key="accuracy_chart")
    missing = sum(not (row.reported and row.predicted) for row in rows)
    left_out = f" Not drawn, but in the table: {missing} without one of the figures." if missing else ""
    st.caption(f"One mark a case. Filled: tokens, blocks or requests; hollow: bytes.{left_out}")


def _shares(rows: list[Case]) -> None:
    """How many come out, by evidence and engine."""
    found = summary(rows)
    if not found:
        return
    st.markdown("**How many come out exactly, and how many within a limit**")
    lines = [
        (
            f"{words.PLACES[one.evidence]}, {words.engine(one.engine)}{' (apart)' if one.apart else ''}",
            *map(str, (one.total, one.exact, one.within_half_percent, one.within_2_percent, one.within_5_percent)),
        )
        for one in found
    ]
    columns = (("engine", ""), *((name, "n") for name in ("cases", "exact", "0.5%", "2%", "5%")))
    st.html(widgets.table("How many come out exactly, and how many within a limit", columns, lines))


def _reasons(far: list[Case]) -> None:
    if not far:
        st.markdown("None of these is further away than 0.5%.")
        return
    st.markdown("**The furthest, and why**" if len(far) > 1 else "**The one that is further, and why**")
    for place, row in enumerate(far[:NAMED], 1):
        source = f"[{row.source}]({row.url})" if row.url else row.source
        version = f" {row.engine_version}" if row.engine_version else ""
        st.markdown(
            f"**{place}** {words.short(row.model)}, {words.engine(row.engine)}{version}: reported "
            f"{words.in_units(row.reported, row.unit)}, predicted {words.in_units(row.predicted, row.unit)} "
            f"(**{words.percent(row.difference or 0)}**). {row.note} {source}"
        )
    if len(far) > NAMED:
        st.caption(f"{len(far) - NAMED} more beyond 0.5% are in the table.")


def _chosen(model_type: str, model: str) -> None:
    """What the records say of the family of the scenario's model."""
    mine = [row for row in cases() if row.counted and row.family == model_type]
    whose = plain(f"{model} ({model_type})")
    if mine:
        met = sum(row.within(0.005) for row in mine)
        st.caption(f"Of the family of {whose}: {met} of {len(mine)} counted cases within 0.5%.")
    else:
        st.caption(f"No counted case is of the family of {whose}.")


def frame(rows: list[Case]) -> pd.DataFrame:
    """The cases as a table."""
    return pd.DataFrame(
        {
            "model": [row.model for row in rows],
            "family": [row.family for row in rows],
            "engine": [words.engine(row.engine) for row in rows],
            "version": [row.engine_version for row in rows],
            "evidence": [words.PLACES[row.evidence] for row in rows],
            "settings": [row.settings for row in rows],
            "compared": [row.compared for row in rows],
            "unit": [row.unit for row in rows],
            "reported": pd.Series([row.reported for row in rows], dtype="float64"),
            "predicted": pd.Series([row.predicted for row in rows], dtype="float64"),
            "difference": pd.Series([row.difference for row in rows], dtype="float64"),
            "beyond rounding": pd.Series([row.error for row in rows], dtype="float64"),
            "counted": [row.counted for row in rows],
            "note": [row.note for row in rows],
            "source": [row.source for row in rows],
            "link": [row.url or None for row in rows],
        }
    )


def _table(rows: list[Case]) -> None:
    with st.expander(f"Table of these {len(rows)} cases, with their sources"):
        made = frame(rows)
        config = st.column_config
        st.dataframe(
            made, hide_index=True, height=420, alt="Every case: reported, predicted, difference and source",
            key="accuracy_table",
            column_config={
                "reported": config.NumberColumn(format="localized"),
                "predicted": config.NumberColumn(format="localized"),
                "difference": config.NumberColumn(format="percent"),
                "beyond rounding": config.NumberColumn(
                    format="percent", help="What is left of the difference after the log's rounded memory: 0 is exact."
                ),
                "link": config.LinkColumn(display_text="open"),
            },
        )  # fmt: skip
        st.download_button(
            "Download CSV", lambda: sections.csv(made), "kv-cache-accuracy.csv", "text/csv", key="csv_accuracy",
            on_click="ignore", icon=":material/download:",
        )  # fmt: skip
