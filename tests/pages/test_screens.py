"""A screen is one row: another one needs a row and its choices, and has an address of its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from kvcore.scenario.fields import Choices, choice, one_of, switch, whole
from pages.ui import screens

APP = str(Path(__file__).parents[2] / "app.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToyOptions(Choices):
    toy_pages: int = choice(3, whole("pages", 1, 99), control=str)
    toy_ink: str = choice("blue", one_of("ink", ("blue", "red")))
    toy_bound: bool = choice(False, switch)


def toy() -> None:
    from pages.ui import screens, shell

    _, scenario = shell.current()
    st.text_input("Pages", key="toy_pages")
    st.selectbox("Ink", ("blue", "red"), key="toy_ink")
    st.checkbox("Bound", key="toy_bound")
    st.title(repr(screens.screen("toy").chosen(scenario)))


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> AppTest:
    row = screens.Screen(name="toy", title="Toy", options=ToyOptions, script=toy)
    monkeypatch.setattr(screens, "SCREENS", (row,))
    return AppTest.from_file(APP, default_timeout=60)


def shown(at: AppTest) -> str:
    at.run()
    assert not at.exception, at.exception[0].stack_trace
    return at.title[0].value


def address(at: AppTest) -> dict[str, str]:
    return {name: value[0] if isinstance(value, list) else value for name, value in at.query_params.items()}


def test_a_row_makes_a_screen_with_an_address(at: AppTest) -> None:
    wanted = ToyOptions(toy_pages=12, toy_ink="red", toy_bound=True)
    for name, text in wanted.to_query().items():
        at.query_params[name] = text
    assert shown(at) == repr(wanted)
    assert address(at) == wanted.to_query()
    at.text_input(key="toy_pages").set_value("7")
    at.selectbox(key="toy_ink").set_value("blue")
    assert shown(at) == repr(ToyOptions(toy_pages=7, toy_bound=True))
    assert address(at) == {"toy_pages": "7", "toy_bound": "1"}


def test_what_cannot_be_read_keeps_what_was(at: AppTest) -> None:
    at.query_params["toy_pages"] = "100"
    assert shown(at) == repr(ToyOptions())
    assert any("pages was not taken" in one.value for one in at.warning)
    at.text_input(key="toy_pages").set_value("5")
    shown(at)
    at.text_input(key="toy_pages").set_value("many")
    assert shown(at) == repr(ToyOptions(toy_pages=5))


def test_parameters_are_those_of_all_rows() -> None:
    names = screens.parameters()
    assert {"model", "designs", "count", "live_heat"} <= set(names)
    # The format of the weights is one choice on two screens.
    assert {name for name in names if names.count(name) > 1} == {"weights"}
