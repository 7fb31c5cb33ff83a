"""The Concurrency screen's choices between the controls and the address; see `state`.

Each control's key is its parameter's name behind `plan_`; the format of the weights is one choice on two screens.
"""

from __future__ import annotations

import streamlit as st

from kvcore.deployment import read_split
from kvcore.errors import KVCoreError
from kvcore.scenario.concurrency import AUTO, ConcurrencyOptions, usual_users
from kvcore.scenario.fields import choices
from kvcore.scenario.scenario import Scenario
from pages.ui.concurrency import words

_CHOICES = choices(ConcurrencyOptions)
_FOLLOWED = "plan_users_followed"


def key(name: str) -> str:
    """The key of the control of a choice."""
    return name if name == "weights" else f"plan_{name}"


KEYS = tuple(map(key, _CHOICES))


def is_set() -> bool:
    """Whether the controls hold anything yet."""
    return key("users") in st.session_state


def adopt(options: ConcurrencyOptions, scenario: Scenario) -> None:
    """Set every control to these choices."""
    state = st.session_state
    state.update({key(name): value for name, value in options.controls().items()})
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
    for name, row in _CHOICES.items():
        try:
            good[name] = row.read_control(state.get(key(name)))
        except (KVCoreError, ValueError) as problem:
            state.setdefault("problems", []).append(words.ended(str(problem)))
            good.setdefault(name, row.default)
    if good["users"] == usual_users(scenario):
        good["users"], state[_FOLLOWED] = 0, state.get(key("users"))
    else:
        state[_FOLLOWED] = None
    if good["split"] != AUTO and read_split(good["split"]).gpus != good["count"]:
        good["split"] = AUTO
    return ConcurrencyOptions(**good)
