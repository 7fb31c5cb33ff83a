"""Accuracy: what engines said and what we predict for them, case by case, and the same for a log that you bring."""

from __future__ import annotations

import streamlit as st

from kvcore.recorded import cases
from pages.ui import accuracy_log, cards, shell, theme
from pages.ui import accuracy_parts as parts
from pages.ui import accuracy_words as words

chosen, scenario = shell.current()
rows = cases()

st.title(words.headline(rows), anchor=False)
st.caption(words.explained())
cards.row(parts.big_numbers(rows))
parts.records(chosen.model.model_type, chosen.name, theme.palette())
accuracy_log.section(scenario)
