"""The Accuracy screen in a real browser: opening, filtering, bringing a log, themes, phones, accessibility."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Open, settle, violations

pytestmark = pytest.mark.browser

FOCUSED = """(() => {
  const one = document.activeElement;
  return one === document.body ? "" : one.getAttribute("aria-label") || one.innerText || "";
})()"""
LOG = """INFO [core.py:58] Initializing a V1 LLM engine (v0.9.1) with config: model='meta-llama/Llama-3.1-8B-Instruct', dtype=torch.bfloat16, max_seq_len=8192, tensor_parallel_size=1
INFO [gpu_worker.py:227] Available KV cache memory: 10.00 GiB
INFO [kv_cache_utils.py:715] GPU KV cache size: 81,920 tokens
INFO [kv_cache_utils.py:719] Maximum concurrency for 8,192 tokens per request: 10.00x
"""


def accuracy(open_page: Open, *, width: int = 1440, theme: str = "light") -> Page:
    """The screen, opened from its own address, and then made as wide as asked."""
    page = open_page("accuracy", theme=theme)
    expect(page.get_by_role("heading", level=1)).to_contain_text("published start-up logs")
    expect(page.get_by_test_id("stMetricValue").nth(2)).to_have_text("218 of 218")
    page.set_viewport_size({"width": width, "height": 1100})
    return page


def wide(page: Page) -> int:
    return page.evaluate("document.documentElement.scrollWidth - window.innerWidth")


def test_opens_on_the_shares_and_names_the_worst(open_page: Open) -> None:
    page = accuracy(open_page)
    settle(page)
    chart = page.locator(".st-key-accuracy_chart")
    expect(chart.get_by_text("DeepSeek-R1-Distill-Qwen-14B", exact=False).first).to_be_visible()
    assert "both axes logarithmic" in (page.get_by_role("figure").first.get_attribute("aria-label") or "")
    expect(page.get_by_text("rank with the least memory").first).to_be_visible()


def test_a_filter_changes_the_chart_and_not_the_title(open_page: Open) -> None:
    page = accuracy(open_page)
    title = page.get_by_role("heading", level=1).inner_text()
    page.get_by_role("combobox", name="Engine").click()
    page.get_by_role("option", name="SGLang").click()
    page.keyboard.press("Escape")
    expect(page.get_by_role("heading", name="All 6 cases are exact")).to_be_visible()
    assert page.get_by_role("heading", level=1).inner_text() == title


@pytest.mark.smoke
def test_a_pasted_log_shows_its_figures_and_stays_out_of_the_address(open_page: Open) -> None:
    page = accuracy(open_page)
    page.get_by_role("textbox", name="Start-up log").fill(LOG)
    page.get_by_role("textbox", name="Start-up log").press("Control+Enter")
    expect(page.get_by_text("both figures agree")).to_be_visible()
    row = page.get_by_role("row").filter(has_text="Token capacity")
    expect(row.get_by_role("cell").first).to_have_text("81,920")
    assert "81" not in page.url.partition("?")[2]
    page.get_by_role("button", name="Open it on the Size screen").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Llama 3.1 8B")
    expect(page.get_by_role("heading", level=1)).to_contain_text("8,192 tokens")


@pytest.mark.parametrize("content", [LOG, "nothing of an engine"])
def test_upload(open_page: Open, tmp_path: Path, content: str) -> None:
    file = tmp_path / "server.log"
    file.write_text(content)
    page = accuracy(open_page)
    page.locator(".st-key-own_log").get_by_role("tab", name="Upload").click()
    page.locator(".st-key-log_file input[type=file]").set_input_files(file)
    if content == LOG:
        expect(page.get_by_text("both figures agree")).to_be_visible()
    else:
        expect(page.get_by_test_id("stAlert")).to_contain_text("was recognised")


def test_the_cases_download_as_csv(open_page: Open) -> None:
    page = accuracy(open_page)
    page.get_by_text("Table of these").click()
    with page.expect_download() as download:
        page.get_by_role("button", name="Download CSV").click()
    rows = Path(download.value.path()).read_text().splitlines()
    assert rows[0].startswith("model,family,engine,")
    assert any("vllm/issues/13061" in row for row in rows)


def test_the_keyboard_reaches_filters_and_log(open_page: Open) -> None:
    page = accuracy(open_page)
    # A key that is pressed while parts of the page still come would pass over them.
    settle(page)
    reached = []
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.append(page.evaluate(FOCUSED))
    names = ("Engine", "Family", "Evidence", "Start-up log", "Compare this log", "Show an example")
    places = [
        next((at for at, text in enumerate(reached) if text.endswith(name) and not text.startswith("Help")), -1)
        for name in names
    ]
    assert -1 not in places, reached
    assert places == sorted(places)


@pytest.mark.parametrize(("theme", "width"), [("light", 390), ("dark", 1440)])
def test_fits_the_window(open_page: Open, theme: str, width: int) -> None:
    page = accuracy(open_page, width=width, theme=theme)
    page.get_by_role("button", name="Show an example").click()
    expect(page.get_by_text("both figures agree")).to_be_visible()
    settle(page)
    assert wide(page) <= 0
    for name in (".js-plotly-plot", ".kv-table", ".kv-read"):
        box = page.locator(name).first.bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= width


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_accessible(open_page: Open, theme: str) -> None:
    page = accuracy(open_page, theme=theme)
    page.get_by_role("button", name="Show an example").click()
    expect(page.get_by_text("both figures agree")).to_be_visible()
    page.get_by_text("Also not counted").click()
    expect(page.get_by_text("Not counted: ").first).to_be_visible()
    page.get_by_text("Table of these").click()
    settle(page)
    assert violations(page) == []
