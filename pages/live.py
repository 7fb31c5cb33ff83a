"""Live: a language model that runs on this machine: prefill against decode, cache against recompute, as measured."""

from __future__ import annotations

import streamlit as st

from pages.ui import live_controls, live_machine, live_replay, live_runs, live_state, shell, theme
from pages.ui import live_parts as parts
from pages.ui import live_words as words
from pages.ui.text import plain

chosen, scenario = shell.current()
colours = theme.palette()
st.session_state["live_chosen"] = chosen
live_state.begin(live_controls.DEFAULTS)
off = live_state.why_off()
for record in live_replay.shipped():
    if record.kind not in live_state.results() and not live_state.running():
        live_state.results()[record.kind] = live_replay.whole(record)
shown = live_state.results().get(live_state.RUN)

parts.style(colours)
st.title(words.title(shown), anchor=False)
live_controls.prompt_row(off)
live_controls.settings_row(chosen, off)
# What comes and goes has a place that stays: a fragment that moved would be asked for where it is no more.
with st.container(key="live_problem_place"):
    if problem := st.session_state.get("live_problem"):
        st.error(plain(problem), icon=":material/error:")
parts.board(off, colours)
with st.container(key="live_probe_section", gap="xsmall"):
    parts.probe(off, colours)
with st.container(key="live_race_section", gap="xsmall"):
    parts.race(off, colours)
live_runs.section(colours)
live_machine.section(off)
live_machine.how()
live_state.finish()
