"""The Concurrency screen's choices between the controls and the address; see `state`.

Each control's key is its parameter's name behind `plan_`; the format of the weights is one choice on two screens.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import streamlit as st

from kvcore.deployment import read_split
from kvcore.errors import KVCoreError
from kvcore.scenario.concurrency import AUTO, READERS, ConcurrencyOptions, usual_users
from kvcore.scenario.scenario import Scenario
from kvcore.units import format_tokens
from pages.ui.concurrency import words

_NAMES = tuple(field.name for field in fields(ConcurrencyOptions))
_TOKENS = ("prompt", "answer", "thinking", "shared")
# Numbers that are chosen from presets or typed, and shown as text, # with an example for who wrote something else.
TYPED = {"users": "30", "count": "8", "people": "300", **dict.fromkeys(_TOKENS, "2048, 4K or 0")}
# Numbers of which 0 stands for none that was named: their controls are empty then, and say what is taken instead.
UNNAMED = ("util", "batched", "seqs", "minute", "seconds")
_FOLLOWED = "plan_users_followed"


def key(name: str) -> str:
    """The key of the control of a choice."""
    return name if name == "weights" else f"plan_{name}"


KEYS = tuple(key(name) for name in _NAMES)


def is_set() -> bool:
    """Whether the controls hold anything yet."""
    return key("users") in st.session_state


def written(name: str, value: Any) -> Any:
    """A choice as its control holds it."""
    if name in _TOKENS:
        return format_tokens(value)
    if name in TYPED:
        return f"{value}"
    if name in UNNAMED and not value:
        return None
    return list(value) if isinstance(value, tuple) else value


def adopt(options: ConcurrencyOptions, scenario: Scenario) -> None:
    """Set every control to these choices."""
    state = st.session_state
    for name in _NAMES:
        state[key(name)] = written(name, getattr(options, name))
    state[key("users")] = str(options.requests(scenario))
    state[_FOLLOWED] = None if options.users else state[key("users")]


def follow(scenario: Scenario) -> None:
    """Where nobody named another number, users are as many as the scenario says, also after it changed elsewhere."""
    state = st.session_state
    if is_set() and state.get(_FOLLOWED) == state[key("users")]:
        state[key("users")] = state[_FOLLOWED] = str(usual_users(scenario))


def options(scenario: Scenario) -> ConcurrencyOptions:
    """What the controls say now; one that cannot be read keeps its last good value and leaves a sentence."""
    state = st.session_state
    good = state.setdefault("plan_good", {})
    plain = ConcurrencyOptions()
    for name in _NAMES:
        value = state.get(key(name))
        try:
            good[name] = read(name, value)
        except (KVCoreError, ValueError) as problem:
            state.setdefault("problems", []).append(words.ended(str(problem)))
            good.setdefault(name, getattr(plain, name))
    if good["users"] == usual_users(scenario):
        good["users"], state[_FOLLOWED] = 0, state.get(key("users"))
    else:
        state[_FOLLOWED] = None
    if good["split"] != AUTO and read_split(good["split"]).gpus != good["count"]:
        good["split"] = AUTO
    return ConcurrencyOptions(**good)


def read(name: str, value: Any) -> Any:
    """A control's value as the choice that it stands for, None as the default; UnitError for what cannot be read."""
    if value is None:
        return getattr(ConcurrencyOptions(), name)
    if isinstance(value, str):
        return READERS[name](value)
    if isinstance(value, list):
        return tuple(value)
    kind = type(getattr(ConcurrencyOptions(), name))
    return kind(value)
