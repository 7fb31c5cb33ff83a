"""What holds for all tests: they say what is right, not how long it took; and how two processes share them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

settings.register_profile("untimed", parent=settings(), deadline=None)
settings.load_profile("untimed")


class OneBrowser(LoadScopeScheduling):
    """A module stays in one process, and one process takes all modules that drive the browser.

    Those wait for a server and a page most of their time; a second browser beside them would only slow both.
    """

    def _split_scope(self, nodeid: str) -> str:
        return "browser" if nodeid.startswith("tests/browser/") else nodeid.partition("::")[0]


@pytest.hookimpl
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OneBrowser:
    """How tests are dealt out where there are several processes."""
    return OneBrowser(config, log)
