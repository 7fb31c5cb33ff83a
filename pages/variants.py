"""Variants: one model, many ways to remember: what each would hold, how fast it could be read, what it gives up."""

from __future__ import annotations

import streamlit as st

from pages.ui import screens, shell, state, theme, widgets
from pages.ui.text import plain
from pages.ui.variants import controls, facts, lessons, lower, sections, words

chosen, scenario = shell.current()
options = screens.screen(state.VARIANTS).chosen(scenario)
colours = theme.palette()
place = facts.server(chosen, scenario, options)
shown, rung = sections.rungs(chosen, scenario, options)
found = facts.facts(shown, scenario, place)
mine = found[rung.design]
lesson = lessons.shown(scenario, options)

st.title(words.title(plain(chosen.name), shown, rung), anchor=widgets.ANSWER)
widgets.tell(words.answer(chosen.name, rung, scenario.batch))
st.caption(words.scenario_line(shown, scenario, rung))
lesson_notice = widgets.place("lesson")
if lesson is not None:
    lesson_notice.info(f"**{lessons.title(lesson)}.** {lessons.sentence(lesson)}", icon=":material/school:")
widgets.row(sections.big_numbers(mine, shown, scenario, place))
sections.sections()
controls.pick(shown, rung)
with st.container(key="ladder", gap="xsmall"):
    sections.ladder_and_diagram(shown, rung, scenario, colours)
with st.container(key="curves_section", gap="xsmall"):
    sections.curves(shown, rung, scenario, place, colours)

st.subheader("Gains", anchor="gains")
controls.server()
sections.gains(found, shown, rung, scenario, place)
lower.download(lambda: sections.gain_rows(found, scenario), "kv-cache-variants", "gains")
st.subheader(facts.title(mine, place), anchor="attention")
facts.numbers(mine, scenario, place)
lower.prices(found, shown, rung)
with st.container(key="against", gap="xsmall"):
    lower.against(chosen, scenario, options, colours)
with st.container(key="trend_section", gap="xsmall"):
    lower.trend(chosen, scenario, options)
lower.lessons()
