"""What holds for all tests: they say what is right, not how long it took on a busy machine."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import settings

settings.register_profile("untimed", parent=settings(), deadline=None)
settings.load_profile("untimed")


def pytest_collection_modifyitems(items: Iterable[pytest.Item]) -> None:
    """Where two processes share the tests, one takes all that drive the browser, and a module stays in one process.

    Browser tests wait for a server and a page most of their time; a second browser beside them would only slow both.
    """
    for item in items:
        group = "browser" if item.nodeid.startswith("tests/browser/") else item.nodeid.partition("::")[0]
        item.add_marker(pytest.mark.xdist_group(group))
