"""A launch command on a screen: its words, the files that it reads, and what has to be known about it."""

from __future__ import annotations

import streamlit as st

from kvcore.engines.command import Command
from pages.ui.plain import plain


def show(found: Command | str) -> None:
    """The command with all that it needs, each part to be copied; or the sentence that says why there is none."""
    if isinstance(found, str):
        st.info(plain(found), icon=":material/info:")
        return
    st.code(found.text, language=None, wrap_lines=True)
    for file, content in found.files:
        st.caption(plain(f"{file}, which it reads:"))
        st.code(content, language=None, wrap_lines=True)
    for note in found.notes:
        st.caption(plain(note))
