"""A stranger's words in a real browser: shown as they were typed, no image asked for, no link, no icon, no formula."""

from __future__ import annotations

import json
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Locator, Page, expect

from kvcore.scenario.scenario import encode_config
from tests.browser.conftest import Open

pytestmark = pytest.mark.browser

CONFIG = {
    "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 32000,
}  # fmt: skip
IMAGE = "![x](http://203.0.113.1/p.png)"
NAME = "<b>$a^2$</b> :material_home: www.example.org [x](//a.org)"
KEY = "`k` http://example.org/x a@example.org :red[y] :streamlit: -> ~~z~~"
# What markup would have made of it; the joiner that keeps addresses apart takes no room.
# A heading's own anchor is there whatever it says.
MADE = "a:not([href='#answer']), img, em, code, del, b, .katex, [role=img], .stMarkdownColoredText"


def shows(where: Locator, text: str) -> None:
    """`text` is there as it was typed, and nothing in it was understood."""
    expect(where).to_be_visible()
    assert text in where.inner_text().replace("\N{WORD JOINER}", "")
    assert where.locator(MADE).count() == 0


def markdown(page: Page, having: str) -> Locator:
    return page.get_by_test_id("stMarkdownContainer").filter(has_text=having).first


@pytest.mark.smoke
def test_an_address_full_of_marks(open_page: Open) -> None:
    page = open_page("?" + urlencode({"model": IMAGE, "budget": IMAGE, "compare": KEY}))
    alert = page.get_by_test_id("stAlert").get_by_test_id("stMarkdownContainer")
    shows(alert, IMAGE)
    shows(alert, KEY)
    page = open_page("variants?" + urlencode({"design": IMAGE, "gpus": "$1$"}))
    alert = page.get_by_test_id("stAlert").get_by_test_id("stMarkdownContainer")
    shows(alert, IMAGE)
    shows(alert, "'$1$'")


@pytest.mark.parametrize("screen", ["", "variants", "accuracy"])
def test_a_configuration_full_of_marks(open_page: Open, screen: str) -> None:
    packed = encode_config({**CONFIG, KEY: IMAGE})
    assert packed is not None
    page = open_page(f"{screen}?" + urlencode({"model": NAME, "config": packed}))
    if screen == "accuracy":
        shows(page.get_by_test_id("stCaptionContainer").filter(has_text="f the family of"), NAME)
        return
    shows(page.get_by_role("heading", level=1), NAME)
    chart = page.locator(".js-plotly-plot").last if screen else page.locator(".js-plotly-plot").first
    expect(chart.locator("svg a, svg [style*=bold]").filter(has_text="a^2")).to_have_count(0)
    if not screen:
        expect(chart.locator("svg .annotation").filter(has_text=NAME)).to_have_count(1)
        page.get_by_text("What was read").click()
        shows(markdown(page, "do not change the cache"), KEY)


def test_a_refused_configuration_full_of_marks(open_page: Open) -> None:
    page = open_page()
    page.get_by_role("button", name="Your own model").click()
    box = page.get_by_label("A model's config.json")
    box.fill(json.dumps({**CONFIG, "model_type": IMAGE, "_name_or_path": NAME}))
    box.press("Control+Enter")
    page.get_by_role("button", name="Size this model").click()
    shows(page.get_by_test_id("stAlert").get_by_test_id("stMarkdownContainer"), IMAGE)
