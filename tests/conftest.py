"""What holds for all tests: they check values, not times; the slow ones run when asked for."""

from __future__ import annotations

import pytest
from hypothesis import settings

settings.register_profile("untimed", parent=settings(), deadline=None)
settings.load_profile("untimed")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--slow`."""
    parser.addoption("--slow", action="store_true", help="run the tests marked slow, and only those")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests marked slow with `--slow`, and all others without it: together they are the whole."""
    chosen: dict[bool, list[pytest.Item]] = {True: [], False: []}
    for item in items:
        chosen[is_slow(item) == config.getoption("slow")].append(item)
    config.hook.pytest_deselected(items=chosen[False])
    items[:] = chosen[True]


def is_slow(item: pytest.Item) -> bool:
    """Whether a test is marked slow, or drives the browser and is not marked as one of the smoke tests."""
    marked = {mark.name for mark in item.iter_markers()}
    return "slow" in marked or ("browser" in marked and "smoke" not in marked)
