"""What a button changed: said over the page, because the answer stands at its top and the button may be far below."""

from __future__ import annotations

import streamlit as st

from pages.ui.plain import plain

# The title's place in the page, where the message leads to.
ANSWER = "answer"
_SAID = "plan_said"
# Of a longer text the browser shows the beginning only.
_LONGEST = 48


def note(what: str) -> None:
    """Remember what a button does, in its callback; `tell` says it with the answer."""
    if what:
        st.session_state[_SAID] = what


def tell(answer: str) -> None:
    """Say what was changed just now with the new answer, in few words; a browser reads it out as an alert."""
    what = st.session_state.pop(_SAID, "")
    if what:
        said = what if len(what) <= _LONGEST else f"{what[: _LONGEST - 1]}…"
        st.toast(
            f"**{plain(said)}** → {plain(answer)}  \n[↑ To the answer](#{ANSWER})", icon=":material/check:",
            duration="long",
        )  # fmt: skip
