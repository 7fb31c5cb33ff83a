"""The screens, one row each: navigation, the address's parameters and what a session keeps are made from these."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import streamlit as st

from kvcore.errors import KVCoreError
from kvcore.scenario.concurrency import ConcurrencyOptions
from kvcore.scenario.fields import Choices, choices
from kvcore.scenario.live import LiveOptions
from kvcore.scenario.scenario import Scenario
from kvcore.scenario.variants import VariantOptions
from pages.ui.concurrency import address

PAGES = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """A screen of that name in the address; `script` draws it, by default the file of its name.

    `options` are its choices beside the scenario's, each held by the control of that `key`. `adopted` follows where
    the controls were set to choices, `settled` changes what was read of them. A screen that stands `apart` keeps what
    its controls hold by itself, in the session's `shadow` while another screen is open.
    """

    name: str
    title: str
    options: type[Choices] | None = None
    key: Callable[[str], str] = str
    adopted: Callable[[Any, Scenario], None] | None = None
    settled: Callable[[dict[str, Any], Scenario], dict[str, Any]] | None = None
    shadow: str = ""
    script: Path | Callable[[], None] | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of the controls of its choices."""
        return () if self.options is None else tuple(map(self.key, choices(self.options)))

    def is_set(self) -> bool:
        """Whether its controls hold anything, or are none of ours to set while another screen is open."""
        return bool(self.shadow) or self.keys[0] in st.session_state

    def adopt(self, options: Choices, scenario: Scenario) -> None:
        """Set every control to these choices."""
        st.session_state.update({self.key(name): value for name, value in options.controls().items()})
        if self.adopted is not None:
            self.adopted(options, scenario)

    def chosen(self, scenario: Scenario) -> Choices | None:
        """What its controls say now; one that cannot be read keeps its last good value and leaves a sentence."""
        if self.options is None:
            return None
        state = st.session_state
        before = state.get(self.shadow, {}) if self.shadow else {}
        values = {}
        for name, row in choices(self.options).items():
            key = self.key(name)
            values[name] = last_good(key, row.read_control, state.get(key, before.get(key)), row.default)
        return self.options(**(values if self.settled is None else self.settled(values, scenario)))


def last_good(key: str, read: Callable[[Any], Any], value: Any, default: Any) -> Any:
    """A control's value, read; where it cannot be, what it was before, and a sentence for this run."""
    good = st.session_state.setdefault("good", {})
    try:
        good[key] = read(value)
    except (KVCoreError, ValueError) as problem:
        said = str(problem)
        st.session_state.setdefault("problems", []).append(said if said.endswith((".", "!", "?")) else f"{said}.")
    return good.get(key, default)


# In the order of the navigation; the first is where an address without a screen leads.
SCREENS = (
    Screen(name="size", title="Size"),
    Screen(name="variants", title="Variants", options=VariantOptions),
    Screen(name="concurrency", title="Concurrency", options=ConcurrencyOptions, key=address.key,
           adopted=address.adopted, settled=address.settled),
    Screen(name="live", title="Live", options=LiveOptions, shadow="live_shadow"),
    Screen(name="accuracy", title="Accuracy"),
)  # fmt: skip


def screen(name: str) -> Screen:
    """The screen of that name."""
    return next(one for one in SCREENS if one.name == name)


def parameters() -> tuple[str, ...]:
    """Every parameter that an address of any screen may have."""
    return tuple(name for of in (Scenario, *(one.options for one in SCREENS)) if of is not None for name in choices(of))
