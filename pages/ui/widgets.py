"""The big numbers: a label, a value with its unit, and one line that says what it is and how it is known."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from kvcore.hardware.gpus import Accelerator, accelerator, accelerators
from kvcore.units import format_bytes
from pages.ui.text import plain


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


def place(name: str) -> DeltaGenerator:
    """A container for notices that come and go; `name` is unique on the page."""
    return st.container(key=f"notice_{name}", gap="small")


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


_SHOWN = 4


def pick(after: Callable[[], None] | None = None, help_text: str | None = None) -> None:
    """Draw it; `after` is called when another GPU was chosen."""
    labels = {one.id: label(one) for one in accelerators()}
    # What is typed comes as it was typed and is read here: a browser's filter would take the nearest of the list.
    st.selectbox(
        "GPU", list(labels), key="gpu", format_func=lambda one: labels.get(one, one), help=help_text,
        accept_new_options=True, filter_mode="contains", on_change=_take, args=(after,),
    )  # fmt: skip


def label(gpu: Accelerator) -> str:
    """The name with its memory, which tells two of a name apart."""
    return f"{gpu.name} · {format_bytes(gpu.memory_bytes, 1)}"


def named(text: str) -> tuple[Accelerator, ...]:
    """The accelerators that a text can mean: one where it is clear, several where it is not, none where it is wrong.

    By id or name; else those that have all its words among theirs, of which one that ends so is meant (`4090` is no
    laptop's); else those whose name holds it when all blanks are left out.
    """
    asked, words = _joined(text), _words(text)
    if not words:
        return ()
    exact = [one for one in accelerators() if asked in (_joined(one.id), _joined(one.name), _joined(label(one)))]
    if exact:
        return tuple(exact[:1])
    found = [one for one in accelerators() if set(words) <= {*_words(label(one)), *_words(one.id)}]
    ends = [one for one in found if _words(one.name)[-len(words) :] == words]
    if len(ends) == 1:
        return tuple(ends)
    return tuple(found or [one for one in accelerators() if asked in _joined(one.name)])


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


def _joined(text: str) -> str:
    return "".join(_words(text))


def _take(after: Callable[[], None] | None) -> None:
    """Take what was chosen or typed; what is no GPU or several leaves the one before, with a sentence."""
    keep = st.session_state
    text, known = str(keep["gpu"]), {one.id for one in accelerators()}
    before = keep["scenario"].gpu if "scenario" in keep else ""
    if text not in known:
        found = named(text)
        if len(found) != 1:
            keep["gpu"] = before
            keep.setdefault("problems", []).append(_said(text[:40], found, before))
            return
        keep["gpu"] = found[0].id
    if after is not None and keep["gpu"] != before:
        after()


def _said(text: str, found: tuple[Accelerator, ...], before: str) -> str:
    stays = f"{accelerator(before).name} stays" if before else "The one before stays"
    if not found:
        return f"GPU: {text!r} is not in the list. {stays}."
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    names = ", ".join(label(one) for one in found[:_SHOWN])
    return f"GPU: {text!r} can be {names}{more}. {stays}: choose one of them."


@dataclass(frozen=True, slots=True, kw_only=True)
class Cited:
    """A cell with its sources below: (name, address) of each, the address empty where there is none to go to."""

    text: str
    sources: tuple[tuple[str, str], ...]


Cell = str | tuple[str, str] | Cited


def table(
    caption: str,
    columns: Sequence[tuple[str, str]],
    rows: Sequence[Sequence[Cell]],
    chosen: int | None = None,
) -> str:
    """HTML of a table that a keyboard can scroll where it is wider than its place.

    A column is (title, class: `n` numbers, `w` words, or empty). A cell is a text, (text, small text below it) or
    Cited; all are escaped. The first cell of a row names it.
    """
    head = "".join(
        f"<th scope='col' role='columnheader' class='{kind}'>{escape(title)}</th>" for title, kind in columns
    )
    body = []
    for at, row in enumerate(rows):
        placed = enumerate(zip(row, columns, strict=True))
        cells = "".join(_cell(cell, title, kind, first=not place) for place, (cell, (title, kind)) in placed)
        mark = " class='on'" if at == chosen else ""
        body.append(f"<tr role='row'{mark}>{cells}</tr>")
    name = escape(caption)
    return (
        f"<div class='kv-scroll' role='region' tabindex='0' aria-label='{name}'>"
        f"<table class='kv-table' role='table' aria-label='{name}'><thead role='rowgroup'><tr role='row'>{head}</tr>"
        f"</thead><tbody role='rowgroup'>{''.join(body)}</tbody></table></div>"
    )


def _cell(cell: Cell, title: str, kind: str, *, first: bool) -> str:
    """A cell, with the title that it has on a phone; one that is empty is left out there."""
    if isinstance(cell, Cited):
        text, small = cell.text, " · ".join(_source(name, address) for name, address in cell.sources)
    else:
        text, small = (cell, "") if isinstance(cell, str) else (cell[0], escape(cell[1]))
    inner = escape(text) + (f"<small>{small}</small>" if small else "")
    if first:
        return f"<th scope='row' role='rowheader' class='{kind}'>{inner}</th>"
    look = " ".join(one for one in (kind, "" if title else "bare", "" if inner else "none") if one)
    return f"<td role='cell' class='{look}' data-title='{escape(title)}'>{inner}</td>"


def _source(name: str, address: str) -> str:
    if not address.startswith("https://"):
        return escape(name)
    return f"<a href='{escape(address)}' target='_blank' rel='noopener'>{escape(name)}</a>"
