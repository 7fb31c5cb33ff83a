"""A screen of the app in Streamlit's own test runner, without a browser."""

from __future__ import annotations

from pathlib import Path

from streamlit.testing.v1 import AppTest

APP = str(Path(__file__).parents[2] / "app.py")


def open_screen(name: str, **query: str) -> AppTest:
    """The screen at an address, after one run without an exception."""
    # Before the first run a page is known by its file's name, which is the last part of its address too.
    at = AppTest.from_file(APP, default_timeout=60).switch_page(f"pages/{name}.py")
    for parameter, value in query.items():
        at.query_params[parameter] = value
    at.run()
    assert not at.exception, at.exception[0].stack_trace
    return at
