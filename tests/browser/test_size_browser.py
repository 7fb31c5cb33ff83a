"""The Size screen in a real browser: choosing, bringing a model, links, keyboard, phones, themes, accessibility."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.browser.conftest import Open, numbers, settle, start_server, stop_server, violations

pytestmark = pytest.mark.browser

CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 32000,
}
REFUSED = {**CONFIG, "sliding_window_pattern": 6}


def number(page: Page, at: int) -> Locator:
    return numbers(page).nth(at)


def trio(page: Page) -> Locator:
    return page.locator(".st-key-trio_cards").get_by_test_id("stMetricValue")


def panel(page: Page) -> Locator:
    """The panel that is open."""
    return page.get_by_test_id("stPopoverBody")


def choose(page: Page, control: str, typed: str, option: str | None = None) -> None:
    """Choose in a searchable list by typing."""
    page.get_by_role("combobox", name=control).click()
    page.keyboard.type(typed)
    if option is None:
        page.keyboard.press("Enter")
    else:
        page.get_by_role("option", name=option).first.click()


def paste(page: Page, config: object) -> None:
    page.get_by_role("button", name="Your own model").click()
    box = page.get_by_label("A model's config.json")
    box.fill(json.dumps(config))
    box.press("Control+Enter")
    page.get_by_role("button", name="Size this model").click()


def wide(page: Page) -> int:
    """By how many pixels the page is wider than the window."""
    return page.evaluate("document.documentElement.scrollWidth - window.innerWidth")


def test_opens_on_an_answer_with_a_table_to_download(open_page: Open) -> None:
    page = open_page()
    expect(number(page, 0)).to_have_text("10 GiB")
    settle(page)
    assert page.title() == "KV Cache Explorer"
    chart = page.get_by_role("figure")
    assert "10 GiB at 32K" in (chart.first.get_attribute("aria-label") or "")
    page.get_by_text("Tables", exact=True).click()
    table = page.locator(".st-key-csv_contexts")
    with page.expect_download() as download:
        table.get_by_role("button", name="Download CSV").click()
    rows = Path(download.value.path()).read_text().splitlines()
    assert rows[0].startswith("tokens,")
    assert any(row.startswith("32768,10737418240,") for row in rows)


def test_nothing_is_advertised_over_the_title(open_page: Open) -> None:
    """Streamlit does so where it is not headless and finds a developer's tools; here its element is put in by hand."""
    page = open_page()
    shown = page.evaluate(
        """() => {
            const box = document.createElement('div');
            box.dataset.testid = 'stSkillsNudge';
            document.querySelector('[data-testid=stAppViewContainer]').append(box);
            return getComputedStyle(box).display;
        }"""
    )
    assert shown == "none"


def test_choosing_changes_the_numbers_and_the_address(open_page: Open) -> None:
    page = open_page()
    choose(page, "Model", "gemma 3 27b", "Gemma 3 27B")
    expect(number(page, 0)).to_have_text("2.91 GiB")
    choose(page, "Tokens", "131072")
    expect(number(page, 0)).to_have_text("10.41 GiB")
    expect(page.get_by_role("combobox", name="Tokens")).to_have_value("128K")
    choose(page, "Requests", "3")
    expect(number(page, 1)).to_have_text("31.22 GiB")
    choose(page, "Keys in", "fp8", "fp8")
    expect(number(page, 0)).to_have_text("5.2 GiB")
    for part in ("gemma-3-27b", "tokens=131072", "batch=3", "kv=fp8"):
        expect(page).to_have_url(re.compile(part))


@pytest.mark.smoke
def test_a_link_restores_the_exact_view(open_page: Open) -> None:
    page = open_page("?model=openai/whisper-large-v3&source=100")
    choose(page, "Tokens", "448")
    choose(page, "Values in", "int4", "int4")
    expect(page.get_by_role("heading", level=1)).to_contain_text("448 tokens")
    expect(page).to_have_url(re.compile("int4"))
    held = number(page, 0).inner_text()
    page.get_by_role("button", name="Copy link").click()
    link = panel(page).get_by_test_id("stCode").inner_text().strip()
    again = open_page(link)
    expect(number(again, 0)).to_have_text(held)
    expect(again.get_by_role("textbox", name="Source tokens")).to_have_value("100")
    expect(again.get_by_role("combobox", name="Tokens")).to_have_value("448")


@pytest.mark.smoke
def test_what_cannot_be_read_is_named_and_back_returns(open_page: Open) -> None:
    page = open_page()
    choose(page, "Tokens", "8K", "8K")
    expect(number(page, 0)).to_have_text("2.5 GiB")
    expect(page).to_have_url(re.compile("tokens=8192"))
    choose(page, "Tokens", "many")
    expect(page.get_by_test_id("stAlert")).to_contain_text("many")
    expect(number(page, 0)).to_have_text("2.5 GiB")
    page.go_back()
    expect(number(page, 0)).to_have_text("10 GiB")
    expect(page.get_by_role("combobox", name="Tokens")).to_have_value("32K")


def test_quick_changes_examples_and_comparisons(open_page: Open) -> None:
    page = open_page()
    for typed in ("8K", "16K", "64K", "128K"):
        choose(page, "Tokens", typed, typed)
    choose(page, "Requests", "10", "10")
    expect(number(page, 1)).to_have_text("400 GiB")
    page.get_by_role("button", name="Examples").click()
    page.get_by_text("Llama 3.3 70B, ten users at 32K: 100 GiB").click()
    expect(number(page, 1)).to_have_text("100 GiB")
    choose(page, "Compare with", "deepseek v3", "DeepSeek V3")
    settle(page)
    expect(page.locator(".js-plotly-plot").get_by_text("DeepSeek V3", exact=False).first).to_be_visible()
    expect(page.get_by_text("At 32,768 tokens: DeepSeek V3")).to_be_visible()


@pytest.mark.smoke
def test_upload(open_page: Open, tmp_path: Path) -> None:
    good, bad = tmp_path / "config.json", tmp_path / "other.json"
    good.write_text(json.dumps(CONFIG))
    bad.write_text("not a configuration")
    page = open_page()
    page.get_by_role("button", name="Your own model").click()
    page.get_by_role("tab", name="Upload").click()
    page.locator("input[type=file]").set_input_files(bad)
    expect(page.get_by_test_id("stAlert")).to_contain_text("other.json")
    expect(number(page, 0)).to_have_text("10 GiB")
    page.locator("input[type=file]").set_input_files(good)
    expect(number(page, 2)).to_have_text("128 KiB")
    expect(page.get_by_test_id("stAlert")).to_have_count(0)


def test_pasted_configuration_travels_in_the_link(open_page: Open) -> None:
    page = open_page()
    paste(page, CONFIG)
    expect(number(page, 2)).to_have_text("128 KiB")
    expect(page).to_have_url(re.compile("config="))
    again = open_page(page.url)
    expect(number(again, 2)).to_have_text("128 KiB")


def test_refused_configuration_and_its_bound(open_page: Open) -> None:
    page = open_page()
    paste(page, REFUSED)
    expect(page.get_by_test_id("stAlert")).to_contain_text("sliding_window_pattern")
    expect(number(page, 0)).to_have_text("10 GiB")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Answer with an upper bound").click()
    expect(number(page, 2)).to_have_text("512 KiB")
    expect(page.get_by_test_id("stAlert")).to_have_count(0)
    expect(page.get_by_text("an upper bound").first).to_be_visible()


def test_the_keyboard_reaches_the_controls(open_page: Open) -> None:
    page = open_page()
    reached = []
    for _ in range(24):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate("document.activeElement.getAttribute('aria-label') || document.activeElement.innerText || ''")
        )
    text = "\n".join(reached)
    places = [
        text.find(name) for name in ("Model", "Tokens", "Requests", "Keys in", "Values in", "Examples", "Your own")
    ]
    assert -1 not in places, text
    assert places == sorted(places)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_fits_every_window_and_is_accessible(open_page: Open, theme: str) -> None:
    compared = "google/gemma-3-27b-it,state-spaces/mamba-2.8b-hf"
    page = open_page(f"?model=deepseek-ai/DeepSeek-V4-Flash&compare={compared}", width=390, height=844, theme=theme)
    settle(page)
    box = number(page, 0).bounding_box()
    assert box["y"] + box["height"] < 844, "the answer is not on a phone's first screen"
    for width in (390, 1440, 1920):
        page.set_viewport_size({"width": width, "height": 1100})
        settle(page)
        assert wide(page) <= 0
        for place in (page.locator(".js-plotly-plot"), page.locator(".st-key-trio")):
            place_box = place.bounding_box()
            assert place_box["x"] + place_box["width"] <= width
        if width != 1440:
            assert violations(page) == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_complaints_panels_and_refusals_are_accessible(open_page: Open, theme: str) -> None:
    page = open_page("?model=openai/whisper-large-v3&tokens=x&compare=none&engine=sglang", theme=theme)
    expect(page.get_by_test_id("stAlert")).to_contain_text("tokens")
    expect(trio(page).last).to_have_text("no figure")
    paste(page, REFUSED)
    expect(page.get_by_test_id("stAlert")).to_contain_text("sliding_window_pattern")
    settle(page)
    assert violations(page) == []
    page.keyboard.press("Escape")
    page.get_by_text("Tables", exact=True).click()
    page.get_by_text("What was read").click()
    page.evaluate("window.scrollTo(0, 0)")
    page.get_by_role("button", name="Copy link").click()
    expect(panel(page).get_by_test_id("stCode")).to_be_visible()
    settle(page)
    assert violations(page) == []


def test_the_trio_follows_its_controls_and_its_link(open_page: Open) -> None:
    page = open_page("?model=google/gemma-3-27b-it&budget=40%20GiB")
    expect(trio(page)).to_have_text(["2.91 GiB", "17.98 GiB", "291,658 tokens"])
    expect(page.get_by_text("GPU KV cache size: 291,658 tokens, Maximum concurrency")).to_be_visible()
    page.get_by_role("radio", name="SGLang").click()
    expect(trio(page).nth(1)).to_have_text("62 GiB")
    choose(page, "Ranks (TP)", "4")
    expect(trio(page).nth(1)).to_have_text("15.5 GiB")
    choose(page, "GPU", "mi300x", "Instinct MI300X")
    for part in ("engine=sglang", "gpu=mi300x", "tp=4"):
        expect(page).to_have_url(re.compile(part))
    expect(trio(page)).to_have_text(["2.91 GiB", "no figure"])
    choose(page, "Ranks (TP)", "many")
    expect(page.get_by_test_id("stAlert")).to_contain_text("many")
    box = page.get_by_role("textbox", name="Cache memory per rank")
    box.fill("20 GiB")
    box.press("Enter")
    expect(page.get_by_role("textbox", name="I have for the cache")).to_have_value("20 GiB")
    expect(page).to_have_url(re.compile("budget=20%20GiB|budget=20\\+GiB"))
    again = open_page(page.url, width=390, height=844)
    expect(trio(again)).to_have_text(["2.91 GiB", "no figure"])
    expect(again.get_by_role("radio", name="SGLang")).to_be_checked()
    expect(again.get_by_role("combobox", name="Ranks (TP)")).to_have_value("4")
    assert wide(again) <= 0
    again.get_by_role("radio", name="transformers").click()
    expect(trio(again).last).to_have_text("no figure")
    expect(again.get_by_text("Its cache is not split over ranks", exact=False)).to_be_visible()
    expect(number(again, 0)).to_have_text("2.91 GiB")


def test_how_an_engine_stores_it_opens_and_downloads(open_page: Open) -> None:
    page = open_page("?model=google/gemma-3-27b-it&engine=llama.cpp")
    page.get_by_text("How llama.cpp stores it").click()
    expect(page.get_by_text("llama-server --model ./gemma-3-27b-it-BF16.gguf --ctx-size 131072")).to_be_visible()
    settle(page)
    assert violations(page) == []
    with page.expect_download() as download:
        page.locator(".st-key-csv_trio").get_by_role("button", name="Download CSV").click()
    rows = Path(download.value.path()).read_text().splitlines()
    assert rows[0].startswith("keeps,groups,layers in each,")
    assert any(row.startswith("sliding,1,52,") for row in rows)


def test_an_open_tab_survives_a_restart_of_the_server(browser: Browser) -> None:
    server, where = start_server()
    page = browser.new_page()
    try:
        page.goto(f"{where}/?tokens=8K")
        expect(number(page, 0)).to_have_text("2.5 GiB")
        connected = page.locator("[data-testid=stApp][data-test-connection-state=CONNECTED]")
        stop_server(server)
        expect(connected).to_have_count(0)
        server, _ = start_server(int(where.rsplit(":", 1)[1]))
        expect(connected).to_have_count(1, timeout=40_000)
        # The first change starts the new session, which opens on the view of the address; the next ones count.
        choose(page, "Requests", "10", "10")
        expect(page.get_by_role("combobox", name="Requests")).to_have_value("1")
        settle(page)
        choose(page, "Requests", "4", "4")
        expect(number(page, 1)).to_have_text("10 GiB")
        expect(number(page, 0)).to_have_text("2.5 GiB")
        expect(page.get_by_test_id("stException")).to_have_count(0)
    finally:
        page.close()
        stop_server(server)
