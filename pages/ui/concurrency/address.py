"""The Concurrency screen's choices between the controls and the address; see `screens`.

Each control's key is its parameter's name behind `plan_`; the format of the weights is one choice on two screens.
"""

from __future__ import annotations

from typing import Any

import streamlit as st

from kvcore.deployment import read_split
from kvcore.scenario.concurrency import AUTO, ConcurrencyOptions, usual_users
from kvcore.scenario.scenario import Scenario

_FOLLOWED = "plan_users_followed"


def key(name: str) -> str:
    """The key of the control of a choice."""
    return name if name == "weights" else f"plan_{name}"


def adopted(options: ConcurrencyOptions, scenario: Scenario) -> None:
    """Show as many users as are meant where none are named."""
    state = st.session_state
    state[key("users")] = str(options.requests(scenario))
    state[_FOLLOWED] = None if options.users else state[key("users")]


def follow(scenario: Scenario) -> None:
    """Where nobody named another number, users are as many as the scenario says, also after it changed elsewhere."""
    state = st.session_state
    if key("users") in state and state.get(_FOLLOWED) == state[key("users")]:
        state[key("users")] = state[_FOLLOWED] = str(usual_users(scenario))


def settled(values: dict[str, Any], scenario: Scenario) -> dict[str, Any]:
    """What was read of the controls: the usual number of users is none that was named, and a split is of these GPUs."""
    state = st.session_state
    values = dict(values)
    if values["users"] == usual_users(scenario):
        values["users"], state[_FOLLOWED] = 0, state.get(key("users"))
    else:
        state[_FOLLOWED] = None
    if values["split"] != AUTO and read_split(values["split"]).gpus != values["count"]:
        values["split"] = AUTO
    return values
