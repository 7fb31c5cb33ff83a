"""Size: what one model's cache holds for this many tokens and requests, how it grows, and how that is computed."""

from __future__ import annotations

import streamlit as st

from kvcore.errors import KVCoreError
from kvcore.formats import KVFormat
from kvcore.sizing import SizeResult, size
from pages.ui import shell, theme, widgets
from pages.ui.size import reserved, sections, words
from pages.ui.text import plain

chosen, scenario = shell.current()
model = chosen.model
colours = theme.palette()
source = scenario.source or None


def resolve() -> tuple[KVFormat, SizeResult]:
    """The format and the answer; a format that does not suit the model is named and replaced by the model's own."""
    notice = widgets.place("format")
    try:
        kv = model.resolve_format(scenario.kv)
        return kv, size(model, scenario.tokens, kv.name, scenario.batch, source)
    except KVCoreError as problem:
        notice.warning(f"{plain(str(problem))}. Shown with the model's own format.", icon=":material/info:")
        return model.resolve_format(), size(model, scenario.tokens, "auto", scenario.batch, source)


kv, result = resolve()
st.title(words.answer(plain(chosen.name), result), anchor=False)
st.caption(words.scenario_words(chosen, scenario, kv, result))
widgets.row(sections.big_numbers(chosen, scenario, kv, result))

with st.container(key="growth", gap="xsmall"):
    sections.growth(chosen, scenario, kv, colours)

with st.container(key="trio", gap="xsmall"):
    reserved.section(chosen, scenario, kv, result)
with st.container(key="layers", gap="xsmall"):
    sections.layers(model, scenario, kv, colours)
sections.how(model, kv, result, source)
left, right = st.columns(2, gap="large")
with left:
    sections.inverse(model, scenario, kv)
with right:
    sections.saving(model, scenario)
sections.read(chosen)
sections.tables(chosen, scenario, kv, result)
sections.notes()
