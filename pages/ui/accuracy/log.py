"""Your own log: pasted or uploaded, what it says beside what we predict, and the way to the other screens.

A text is read where it arrives and not kept: the session holds what was read from it.
"""

from __future__ import annotations

from dataclasses import replace

import streamlit as st

from kvcore.evidence.runs import recordings
from kvcore.logs import Explanation, LogFigure, LogReading, explain_all, read_log, scenario_of
from kvcore.logs.reading import logging_engines
from kvcore.scenario.scenario import Scenario
from kvcore.sources import catalogue
from pages.ui import models, state, widgets
from pages.ui.accuracy import words
from pages.ui.scenario import UPLOAD_MB
from pages.ui.text import plain

EXAMPLE, EXAMPLE_MODEL = "gemma3-27b-text-bs16-mnbt2048", "google/gemma-3-27b-it"
AS_NAMED = "as named"
_PLACEHOLDER = "INFO … Available KV cache memory: 53.61 GiB\nINFO … GPU KV cache size: 401,456 tokens, …"


@st.fragment
def section(now: Scenario) -> None:
    """The part of the page; `now` is the scenario, of which a log replaces model, tokens and format."""
    st.subheader("Your own log: what did your engine say, and what do we predict?", anchor=False)
    with st.container(key="own_log", gap="small"):
        _inputs()
    keep = st.session_state
    if keep.get("log_problem"):
        st.error(keep["log_problem"], icon=":material/error:")
    readings: tuple[LogReading, ...] = keep.get("log_readings", ())
    if readings:
        _answer(readings, now)


def _inputs() -> None:
    paste, upload = st.tabs(["Paste", "Upload"])
    with paste:
        st.text_area(
            "Start-up log", key="log_text", height=150, placeholder=_PLACEHOLDER, on_change=_pasted,
            help=f"{logging_engines()}, with time stamps, colours and other lines as they are. Several start-ups may "
            "be in one text.",
        )  # fmt: skip
        with st.container(horizontal=True, gap="small", vertical_alignment="center"):
            st.button("Compare this log", key="log_go", on_click=_pasted, type="primary")
            st.button("Show an example", key="log_example", on_click=_example, icon=":material/school:")
            if st.session_state.get("log_readings"):
                st.button("Clear", key="log_clear", on_click=_clear, type="tertiary")
    with upload:
        st.file_uploader(
            "Log file (.txt or .log)", key="log_file", type=["txt", "log"], max_upload_size=UPLOAD_MB,
            on_change=_uploaded,
        )  # fmt: skip
        st.caption(f"Up to {UPLOAD_MB} MB. It is read in memory and not kept.")
    st.caption(
        "Nothing that you paste or upload leaves the machine that runs this page, and none of it is put into the "
        "address."
    )


def _pasted() -> None:
    take(str(st.session_state.get("log_text") or ""))


def _uploaded() -> None:
    file = st.session_state.get("log_file")
    if file is not None:
        take(file.getvalue().decode("utf-8", "replace"))


def take(text: str) -> None:
    """Read a text; what is recognised replaces the last one, and what is not becomes a sentence."""
    keep = st.session_state
    readings = read_log(text)
    keep["log_readings"] = readings
    keep["log_problem"] = "" if readings else _problem(text)
    keep["log_model"], keep["log_place"] = AS_NAMED, 0


def _problem(text: str) -> str:
    if not text.strip():
        return "There is nothing to compare: paste a log."
    return (
        f"No line of {logging_engines()} was recognised. Paste the start-up log from the engine's first line to the "
        "line with its KV cache size."
    )


def _example() -> None:
    """A log that was recorded for the tests: Gemma 3 27B on a CPU."""
    keep = st.session_state
    record = next(one for one in recordings() if one.name == EXAMPLE)
    keep["log_text"] = "\n".join(record.log_lines)
    take(keep["log_text"])
    keep["log_model"] = EXAMPLE_MODEL


def _clear() -> None:
    take("")
    st.session_state["log_text"] = st.session_state["log_problem"] = ""


def _answer(readings: tuple[LogReading, ...], now: Scenario) -> None:
    place, wanted = _choices(readings)
    (one,) = explain_all((readings[place],), None if wanted == AS_NAMED else wanted)
    entry = catalogue.find(one.model.name) if one.model else None
    name = entry.display_name if entry else ""
    st.markdown(f"#### {plain(words.verdict(one, name))}")
    left, right = st.columns([2, 3], gap="large")
    with left:
        _recognised(one, name)
        _carry(one, name, now)
    with right:
        _figures(one)


def _choices(readings: tuple[LogReading, ...]) -> tuple[int, str]:
    """Which start-up of the text, and for which model."""
    keep = st.session_state
    first, second = st.columns(2, vertical_alignment="bottom")
    place = 0
    if len(readings) > 1:
        with first:
            keep.setdefault("log_place", 0)
            place = st.selectbox(
                f"Start-up: {len(readings)} are in this text", range(len(readings)), key="log_place",
                format_func=lambda at: words.start_up(readings[at], at),
            )  # fmt: skip
    stated = readings[place].model
    named = f"as the log says: {words.short(stated)}" if stated else "not named in this log: choose one"
    labels = models.labels()
    keep.setdefault("log_model", AS_NAMED)
    with second if len(readings) > 1 else first:
        wanted = st.selectbox(
            "Model of the log", [AS_NAMED, *labels], key="log_model",
            format_func=lambda name: named if name == AS_NAMED else labels.get(name, name),
        )  # fmt: skip
    return place, wanted


def _recognised(one: Explanation, name: str) -> None:
    rows = words.recognised(one.reading, name)
    st.html(words.listed(rows))
    unread = one.reading.unread_lines
    noun = "line says" if unread == 1 else "lines say"
    with st.expander(f"{unread:,} other {noun} nothing that is used"):
        st.code("\n".join(one.reading.unread_samples) or "none", language=None, wrap_lines=True)


def _figures(one: Explanation) -> None:
    """Reported beside predicted, and the reasons."""
    if one.figures:
        columns = (("LogFigure", ""), ("Reported", "n"), ("Predicted", "n"), ("Difference", "n"))
        st.html(widgets.table("Reported beside predicted", columns, [_row(figure) for figure in one.figures]))
    else:
        st.markdown("The log states no figure that can be compared: it ends before the line with the cache's size.")
    if one.refused:
        st.warning(plain(one.refused[0].upper() + one.refused[1:]), icon=":material/info:")
        return
    alone, shared = words.reasons(one.figures)
    st.markdown("**Why**")
    lines = [f"- {plain(name)}: {plain(text)}" for name, text in alone]
    lines += [f"- {plain(text)}" for text in (*shared, *one.notes)]
    st.markdown("\n".join(lines))


def _row(figure: LogFigure) -> tuple[str, ...]:
    values = (words.value(figure, figure.reported), words.value(figure, figure.predicted))
    return (words.figure(figure.name), *values, words.difference(figure))


def _carry(one: Explanation, name: str, now: Scenario) -> None:
    """The button that takes model, length and format to the Size screen."""
    if one.model is None:
        st.caption("Choose the model to carry this start-up to the other screens.")
        return
    found = scenario_of(one.reading, one.model, one.model.name)
    scenario = replace(now, model=found.model, config=found.config, tokens=found.tokens, kv=found.kv, bound=False)
    carried = plain(f"{name}, {found.tokens:,} tokens, cache format {found.kv}")
    if st.button("Open it on the Size screen", key="log_carry", on_click=state.show, args=(scenario,),
                 icon=":material/arrow_forward:"):  # fmt: skip
        st.switch_page("pages/size.py")
    st.caption(f"Carries {carried}. The rest of your scenario stays.")
