"""Where warnings and refusals appear.

Each has a place of its own, there whether it is empty or not. A sentence that pushed in between what is already on the
page would move all that follows by one; the browser would build those controls anew, and lose what is being typed.
"""

from __future__ import annotations

import streamlit as st
from streamlit.delta_generator import DeltaGenerator


def place(name: str) -> DeltaGenerator:
    """A container for notices that come and go; `name` is unique on the page."""
    return st.container(key=f"notice_{name}", gap="small")
