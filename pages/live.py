"""Live: a language model that runs on this machine: prefill against decode, cache against recompute, as measured."""

from __future__ import annotations

import streamlit as st

from pages.ui import shell, theme
from pages.ui.live import controls, jobs, machine, parts, replay, runs, words
from pages.ui.text import plain

chosen, scenario = shell.current()
colours = theme.palette()
st.session_state["live_chosen"] = chosen
jobs.begin(controls.DEFAULTS)
off = jobs.why_off()
for record in replay.shipped():
    if record.kind not in jobs.results() and not jobs.running():
        jobs.results()[record.kind] = replay.whole(record)
shown = jobs.results().get(jobs.RUN)

parts.style(colours)
st.title(words.title(shown), anchor=False)
controls.prompt_row(off)
controls.settings_row(chosen, off)
# What comes and goes has a place that stays: a fragment that moved would be asked for where it is no more.
with st.container(key="live_problem_place"):
    if problem := st.session_state.get("live_problem"):
        st.error(plain(problem), icon=":material/error:")
parts.board(off, colours)
with st.container(key="live_probe_section", gap="xsmall"):
    parts.probe(off, colours)
with st.container(key="live_race_section", gap="xsmall"):
    parts.race(off, colours)
runs.section(colours)
machine.section(off)
machine.how()
jobs.finish()
