"""The choice of a GPU, the same on every screen: a name that is typed is that GPU's or nobody's, never the nearest."""

from __future__ import annotations

import re
from collections.abc import Callable

import streamlit as st

from kvcore.hardware import Accelerator, accelerator, accelerators
from kvcore.units import format_bytes

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
