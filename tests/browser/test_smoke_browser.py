"""Every screen opens in a real browser without an error and passes an audit; the other smoke tests are marked so."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Open, idle, violations

pytestmark = [pytest.mark.browser, pytest.mark.smoke]


@pytest.mark.parametrize("screen", ["", "variants", "concurrency", "live", "accuracy"])
def test_a_screen_opens_and_is_accessible(open_page: Open, screen: str) -> None:
    page = open_page(screen)
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    idle(page)
    assert violations(page) == []
