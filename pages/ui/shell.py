"""What surrounds every screen: page set-up, navigation, and the scenario that all screens share."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from kvcore.scenario.scenario import Scenario
from pages.ui import scenario as controls
from pages.ui import screens, state, theme
from pages.ui.models import Chosen

ROOT = Path(__file__).parents[2]
_INSIDE = "inside_shell"


def run() -> None:
    """Run the app: the shell, and in it the screen that the address names."""
    st.set_page_config(
        page_title="KV Cache Explorer",
        page_icon=str(ROOT / "static" / "icon.png"),
        layout="wide",
        menu_items={"about": "What a language model's memory of the conversation costs. What you enter stays here."},
    )
    pages = [
        st.Page(one.script or screens.PAGES / f"{one.name}.py", title=one.title, url_path=one.name, default=at == 0)
        for at, one in enumerate(screens.SCREENS)
    ]
    page = st.navigation(pages, position="top")
    st.logo(str(ROOT / "static" / f"logo-{theme.name()}.svg"), size="medium")
    theme.layout()
    # The first screen's path is empty.
    state.begin(page.url_path or screens.SCREENS[0].name)
    chosen, scenario = controls.scenario_row()
    st.session_state[_INSIDE] = (chosen, scenario)
    try:
        page.run()
    finally:
        st.session_state[_INSIDE] = None
    state.finish(scenario)


def current() -> tuple[Chosen, Scenario]:
    """The model and the scenario, for a screen; call it first.

    Streamlit takes the files of a folder called pages for pages of their own until the app's navigation has run once
    in the process, and would open one without its shell. Then the shell is run from here, and the screen in it.
    """
    inside: tuple[Chosen, Scenario] | None = st.session_state.get(_INSIDE)
    if inside is None:
        run()
        st.stop()
    return inside
