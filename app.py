"""KV Cache Explorer: `streamlit run app.py`. Page set-up, navigation, and the scenario that all screens share."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from pages.ui import controls, state, theme

HERE = Path(__file__).parent

st.set_page_config(
    page_title="KV Cache Explorer",
    page_icon=str(HERE / "static" / "icon.png"),
    layout="wide",
    menu_items={
        "about": "What a language model's memory of the conversation costs. Nothing you enter leaves this app."
    },
)
page = st.navigation(
    [
        st.Page("pages/size.py", title="Size", default=True),
    ],
    position="top",
)
st.logo(str(HERE / "static" / f"logo-{theme.name()}.svg"), size="medium")
theme.layout()
state.begin(page.url_path)
chosen, scenario = controls.scenario_row()
st.session_state["chosen"], st.session_state["scenario"] = chosen, scenario
page.run()
state.finish(scenario)
