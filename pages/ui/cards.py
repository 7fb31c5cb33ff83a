"""The big numbers: a label, a value with its unit, and one line that says what it is and how it is known."""

from __future__ import annotations

from dataclasses import dataclass

import streamlit as st


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One big number. `line` says what sort of figure it is, `more` why it is so, `rule` whose rule it follows."""

    label: str
    value: str
    line: str
    help: str = ""
    more: str = ""
    rule: str = ""


def row(cards: list[Card], key: str = "numbers", widths: tuple[float, ...] | None = None) -> None:
    """Draw at most four cards side by side; on a phone `numbers` stand two by two, others below each other."""
    with st.container(key=key):
        columns = st.columns(widths or len(cards), gap="small")
    for column, card in zip(columns, cards, strict=True):
        with column, st.container(border=True, height="stretch", gap="xsmall"):
            st.metric(card.label, card.value, help=card.help or None)
            st.caption(card.line)
            if card.more:
                st.caption(card.more)
            if card.rule:
                st.caption(f"Rule: {card.rule}")
