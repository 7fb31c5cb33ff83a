"""Variants: one model, many ways to remember: what each would hold, how fast it could be read, what it gives up."""

from __future__ import annotations

import streamlit as st

from pages.ui import (
    cards,
    notices,
    plan_said,
    shell,
    state,
    theme,
    variant_attention,
    variant_controls,
    variant_facts,
    variant_lessons,
    variant_more,
)
from pages.ui import variant_parts as parts
from pages.ui import variant_words as words
from pages.ui.plain import plain

chosen, scenario = shell.current()
options = state.variant_options()
colours = theme.palette()
place = variant_facts.server(chosen, scenario, options)
shown, rung = parts.rungs(chosen, scenario, options)
found = variant_facts.facts(shown, scenario, place)
mine = found[rung.design]
lesson = variant_lessons.shown(scenario, options)

st.title(words.title(plain(chosen.name), shown, rung), anchor=plan_said.ANSWER)
plan_said.tell(words.answer(chosen.name, rung, scenario.batch))
st.caption(words.scenario_line(shown, scenario, rung))
lesson_notice = notices.place("lesson")
if lesson is not None:
    lesson_notice.info(
        f"**{variant_lessons.title(lesson)}.** {variant_lessons.sentence(lesson)}", icon=":material/school:"
    )
cards.row(parts.big_numbers(mine, shown, scenario, place))
parts.sections()
variant_controls.pick(shown, rung)
with st.container(key="ladder", gap="xsmall"):
    parts.ladder_and_diagram(shown, rung, scenario, colours)
with st.container(key="curves_section", gap="xsmall"):
    parts.curves(shown, rung, scenario, place, colours)

st.subheader("Gains", anchor="gains")
variant_controls.server()
parts.gains(found, shown, rung, scenario, place)
variant_more.download(lambda: parts.gain_rows(found, scenario), "kv-cache-variants", "gains")
st.subheader(variant_attention.title(mine, place), anchor="attention")
variant_attention.numbers(mine, scenario, place)
variant_more.prices(found, shown, rung)
with st.container(key="against", gap="xsmall"):
    variant_more.against(chosen, scenario, options, colours)
with st.container(key="trend_section", gap="xsmall"):
    variant_more.trend(chosen, scenario, options)
variant_more.lessons()
