"""Concurrency: how many requests fit on these GPUs, what runs out first, and which change helps most."""

from __future__ import annotations

import streamlit as st

from pages.ui import screens, shell, state, theme, widgets
from pages.ui.concurrency import case as plan_answers
from pages.ui.concurrency import compare, controls, examples, people, sections, words
from pages.ui.concurrency import levers as plan_levers
from pages.ui.text import plain

chosen, scenario = shell.current()
model, colours = chosen.model, theme.palette()
case = plan_answers.case(model, scenario, screens.screen(state.CONCURRENCY).chosen(scenario))

st.title(words.title(plain(chosen.name), case.plan, case.users), anchor=widgets.ANSWER)
widgets.tell(words.answer(case.plan, case.users))
st.caption(words.scenario_line(case.plan, sections.rent(case)))
sections.refusal(case)
widgets.row(sections.big_numbers(case))
controls.place(model, case)
mend = st.container(key="mend_section", gap="xsmall")
with st.container(key="memory_section", gap="xsmall"):
    sections.memory(case, colours)
with st.container(key="cells_section", gap="xsmall"):
    sections.cells(model, case, colours)
levers = st.container(key="levers_section", gap="xsmall")
hardware = st.container(key="hardware_section", gap="xsmall")
with st.container(key="compare_section", gap="xsmall"):
    compare.section(chosen, case)
with st.container(key="launch_section", gap="xsmall"):
    sections.commands(model, case)
with st.container(key="people_section", gap="xsmall"):
    people.people(model, case)
with st.container(key="waiting_section", gap="xsmall"):
    people.waiting(model, case)
sections.how(case)
examples.section()
# What takes longest to work out is drawn last, into its place: dozens of plans, one a change.
with mend:
    plan_levers.mend(model, case)
with levers:
    plan_levers.levers(model, case, colours)
with hardware:
    sections.hardware(model, case)
