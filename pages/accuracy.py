"""Accuracy: what engines said and what we predict for them, case by case, and the same for a log that you bring."""

from __future__ import annotations

import streamlit as st

from kvcore.evidence.cases import cases
from pages.ui import shell, theme, widgets
from pages.ui.accuracy import log, sections, words

chosen, scenario = shell.current()
rows = cases()

st.title(words.headline(rows), anchor=False)
st.caption(words.explained())
widgets.row(sections.big_numbers(rows))
sections.records(chosen.model.model_type, chosen.name, theme.palette())
log.section(scenario)
