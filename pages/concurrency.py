"""Concurrency: how many requests fit on these GPUs, what runs out first, and which change helps most."""

from __future__ import annotations

import streamlit as st

from pages.ui import (
    cards,
    plan_answers,
    plan_cells,
    plan_compare,
    plan_controls,
    plan_examples,
    plan_hardware,
    plan_launch,
    plan_levers,
    plan_people,
    plan_said,
    plan_state,
    shell,
    theme,
)
from pages.ui import plan_parts as parts
from pages.ui import plan_words as words
from pages.ui.plain import plain

chosen, scenario = shell.current()
model, colours = chosen.model, theme.palette()
case = plan_answers.case(model, scenario, plan_state.options(scenario))

st.title(words.title(plain(chosen.name), case.plan, case.users), anchor=plan_said.ANSWER)
plan_said.tell(words.answer(case.plan, case.users))
st.caption(words.scenario_line(case.plan, parts.rent(case)))
parts.refusal(case)
cards.row(parts.big_numbers(case))
plan_controls.place(model, case)
mend = st.container(key="mend_section", gap="xsmall")
with st.container(key="memory_section", gap="xsmall"):
    parts.memory(case, colours)
with st.container(key="cells_section", gap="xsmall"):
    plan_cells.section(model, case, colours)
levers = st.container(key="levers_section", gap="xsmall")
hardware = st.container(key="hardware_section", gap="xsmall")
with st.container(key="compare_section", gap="xsmall"):
    plan_compare.section(chosen, case)
with st.container(key="launch_section", gap="xsmall"):
    plan_launch.commands(model, case)
with st.container(key="people_section", gap="xsmall"):
    plan_people.people(model, case)
with st.container(key="waiting_section", gap="xsmall"):
    plan_people.waiting(model, case)
parts.how(case)
plan_examples.section()
# What takes longest to work out is drawn last, into its place: dozens of plans, one a change.
with mend:
    plan_levers.mend(model, case)
with levers:
    plan_levers.levers(model, case, colours)
with hardware:
    plan_hardware.section(model, case)
