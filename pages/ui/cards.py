"""The big numbers: a label, a value with its unit, and one line that says what it is and how it is known."""

from __future__ import annotations

from dataclasses import dataclass

import streamlit as st


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One big number. `kind` says what sort of figure it is, `line` where it comes from."""

    label: str
    value: str
    line: str
    help: str = ""


def row(cards: list[Card]) -> None:
    """Draw at most four cards side by side; on a phone two by two."""
    with st.container(key="numbers"):
        columns = st.columns(len(cards), gap="small")
    for column, card in zip(columns, cards, strict=True):
        with column, st.container(border=True, height="stretch", gap="xsmall"):
            st.metric(card.label, card.value, help=card.help or None)
            st.caption(card.line)
