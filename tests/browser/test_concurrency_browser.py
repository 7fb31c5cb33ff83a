"""The Concurrency screen in a real browser: the answer, a click in the grid, changes, two plans, links, access."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import Open, numbers, settle, violations

pytestmark = pytest.mark.browser

CHARTS = ("memory_chart", "cells_chart", "lever_curves")
WIDER = """(() => {
  const main = document.querySelector("[data-testid=stMain]");
  return Math.max(document.documentElement.scrollWidth - window.innerWidth, main.scrollWidth - main.clientWidth);
})()"""
CHART_TEXTS = """figure => [...figure.querySelectorAll("svg text, svg tspan")]
  .filter(text => text.textContent.trim() && text.getClientRects().length)
  .map(text => {
    const at = text.getScreenCTM();
    const scale = Math.sqrt(Math.abs(at.a * at.d - at.b * at.c));
    return [text.textContent, scale * parseFloat(getComputedStyle(text).fontSize)];
  })"""
SCROLLED = """tables => tables.filter(table => table.scrollWidth > table.clientWidth + 1)
  .map(table => table.getAttribute("aria-label"))"""
# Names beside the curves: those that leave the drawing, and pairs that touch each other.
CUT_NAMES = """figure => {
  const edge = figure.getBoundingClientRect();
  const boxes = [...figure.querySelectorAll("g.annotation")].map(one => one.getBoundingClientRect());
  const cut = boxes.filter(box => box.right > edge.right + 1 || box.left < edge.left - 1);
  const touching = boxes.filter((box, at) => boxes.some((other, place) => place > at
    && box.left < other.right && other.left < box.right && box.top < other.bottom - 1 && other.top < box.bottom - 1));
  return [boxes.length, cut.length, touching.length];
}"""
# Memory for the cache that nobody estimates: what follows from it is arithmetic. Llama 3.3 70B keeps 320 KiB a token,
# an eighth on each of 8 GPUs: 1.25 GiB for 32,768 tokens, 40 of which are in 51 GiB.
STATED = "have=51+GiB"


def title(page: Page) -> Locator:
    return page.get_by_role("heading", level=1)


def drawn(page: Page) -> None:
    """Wait until all charts of the screen are there."""
    for name in CHARTS:
        expect(page.locator(f".st-key-{name} .js-plotly-plot .main-svg").first).to_be_visible()
    settle(page)


def holds(page: Page, **parts: str) -> None:
    """Wait until the address has exactly these parameters."""
    page.wait_for_url(lambda url: dict(parse_qsl(urlsplit(url).query)) == parts, wait_until="commit")


def test_it_opens_on_an_answer_with_its_charts_and_a_command(open_page: Open) -> None:
    page = open_page("concurrency")
    expect(title(page)).to_contain_text("30 users fit: Llama 3.3 70B on 8 × H100 SXM5 80GB holds")
    expect(numbers(page)).to_have_count(4)
    expect(numbers(page).nth(1)).to_have_text("131,072")
    drawn(page)
    bar = page.locator(".st-key-memory_chart").get_by_role("figure")
    expect(bar).to_have_attribute("aria-label", re.compile("cache in use 37.5 GiB"))
    cells = page.locator(".st-key-cells_chart").get_by_role("figure")
    expect(cells).to_have_attribute("aria-label", re.compile("stands at 30 requests of 32,768 tokens"))
    expect(page.get_by_test_id("stCode").filter(has_text="vllm serve").first).to_be_visible()
    holds(page)


@pytest.mark.smoke
def test_a_click_in_the_grid_moves_the_plan_and_so_do_the_inputs(open_page: Open) -> None:
    page = open_page(f"concurrency?{STATED}")
    expect(numbers(page).first).to_have_text("40")
    drawn(page)
    chart = page.locator(".st-key-cells_chart .js-plotly-plot")
    chart.scroll_into_view_if_needed()
    # Where 8 requests of 4,096 tokens stand: both axes are exponents of two.
    place = chart.evaluate(
        """figure => {
          const {xaxis, yaxis} = figure._fullLayout, box = figure.getBoundingClientRect();
          return [box.left + xaxis._offset + xaxis.l2p(12), box.top + yaxis._offset + yaxis.l2p(3)];
        }"""
    )
    page.mouse.move(*place)
    page.mouse.click(*place)
    # 51 GiB / (4,096 × 40 KiB) = 326.
    expect(numbers(page).first).to_have_text("326")
    expect(title(page)).to_contain_text("8 users fit")
    holds(page, have="51 GiB", tokens="4096", users="8")
    users = page.get_by_role("combobox", name="Users at once")
    users.fill("327")
    page.keyboard.press("Enter")
    expect(title(page)).to_contain_text("327 requests of 4K do not fit")
    holds(page, have="51 GiB", tokens="4096", users="327")


def test_what_does_not_fit_is_mended_with_a_click_and_back_returns(open_page: Open) -> None:
    page = open_page("concurrency?tokens=131072&count=4")
    expect(title(page)).to_contain_text("30 requests of 128K do not fit")
    # 40 GiB a request, a quarter of it on each GPU.
    expect(page.get_by_role("heading", name="30 requests would take 300 GiB of each GPU")).to_be_visible()
    mend = page.locator(".st-key-mend_section")
    expect(mend.get_by_role("heading")).to_contain_text("are missing on each GPU")
    drawn(page)
    mend.get_by_role("button", name="Apply").first.click()
    expect(title(page)).to_contain_text(re.compile("fits?: "))
    expect(mend.get_by_role("heading")).to_have_count(0)
    page.go_back()
    expect(title(page)).to_contain_text("30 requests of 128K do not fit")


def test_a_change_is_applied_and_two_plans_stand_in_the_link(open_page: Open) -> None:
    page = open_page(f"concurrency?{STATED}")
    drawn(page)
    page.get_by_role("button", name="Keep as plan A").click()
    expect(page.get_by_role("heading", name="Plan B holds as much as plan A: 40 requests")).to_be_visible()
    settle(page)
    page.get_by_role("combobox", name="Keys in").click()
    page.keyboard.type("fp8")
    page.get_by_role("option", name="fp8").first.click()
    compared = page.get_by_role("heading", name="40 requests before, 81 now")
    expect(compared).to_be_visible()
    settle(page)
    again = open_page(page.url)
    expect(again.get_by_role("heading", name="40 requests before, 81 now")).to_be_visible()
    expect(again.get_by_role("region", name="Two plans side by side")).to_contain_text("plan A, kept")
    expect(again.get_by_text("was not taken")).to_have_count(0)


def test_systems_and_engines_are_chosen_beside_the_cards(open_page: Open) -> None:
    page = open_page("concurrency")
    drawn(page)
    page.get_by_role("combobox", name="System").click()
    page.keyboard.type("8 × H200")
    page.get_by_role("option", name="8 × H200 SXM", exact=True).click()
    expect(title(page)).to_contain_text("8 × H200 SXM 141GB")
    holds(page, gpu="h200-sxm")
    settle(page)
    page.get_by_role("radio", name="SGLang").click()
    holds(page, gpu="h200-sxm", engine="sglang")
    expect(page.get_by_role("tab").first).to_have_text("SGLang")
    expect(page.get_by_test_id("stCode").filter(has_text="sglang").first).to_be_visible()
    # A command is made when its tab is opened, by keyboard too.
    page.get_by_role("tab").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect(page.get_by_test_id("stCode").filter(has_text="vllm serve").first).to_be_visible()
    page.get_by_text("do not work here").click()
    expect(page.get_by_test_id("stExpander").filter(has_text="do not work here")).to_contain_text("DCP")


def test_engines_and_counts_change_again_and_again(open_page: Open) -> None:
    """The browser answers with the words of an option that it was shown, and those must not depend on the plan."""
    page = open_page("concurrency")
    drawn(page)
    for engine, name in (("llama.cpp", "llama.cpp"), ("SGLang", "sglang"), ("TensorRT-LLM", "tensorrt-llm")):
        page.get_by_role("radio", name=engine).click()
        holds(page, engine=name)
        settle(page)
        expect(page.get_by_test_id("stException")).to_have_count(0)
        expect(page.get_by_role("tab").first).to_have_text(engine)
    for count in ("4", "3", "8"):
        field = page.get_by_role("combobox", name="GPUs")
        field.click()
        field.press_sequentially(count)
        field.press("Enter")
        settle(page)
        expect(page.get_by_test_id("stException")).to_have_count(0)
        expect(page.get_by_text(f"{count} × H100 SXM5 80GB as").first).to_be_visible()


def test_the_grid_downloads_with_its_numbers(open_page: Open) -> None:
    page = open_page(f"concurrency?{STATED}")
    drawn(page)
    page.get_by_text("The same as a table").click()
    with page.expect_download() as download:
        page.locator(".st-key-csv_cells").get_by_role("button", name="Download CSV").click()
    with Path(download.value.path()).open(newline="") as file:
        rows = {int(row["longest request, tokens"]): row for row in csv.DictReader(file)}
    # 51 GiB over 40 KiB a token and GPU.
    by_hand = {tokens: 51 * 2**20 // (40 * tokens) for tokens in (4096, 32_768, 131_072)}
    assert {tokens: int(rows[tokens]["requests at once, safe end"]) for tokens in by_hand} == by_hand


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_fits_every_window_and_is_accessible(open_page: Open, theme: str) -> None:
    page = open_page("concurrency?users=60&split=tp4-pp2&kept=count%3D4", width=390, height=844, theme=theme)
    drawn(page)
    box = numbers(page).first.bounding_box()
    assert box is not None
    assert box["y"] + box["height"] < 844, "the answer is not on a phone's first screen"
    for name in ("How it is computed", "do not work here", "changes that help", "The same as a table"):
        page.get_by_text(name).click()
    settle(page)
    for width in (390, 1440, 1920):
        page.set_viewport_size({"width": width, "height": 1100})
        drawn(page)
        assert page.evaluate(WIDER) <= 0, width
        # On a phone rows of tables are cards; elsewhere there is room for the columns.
        assert page.locator(".kv-scroll").evaluate_all(SCROLLED) == [], width
        for place in (*page.locator(".js-plotly-plot").all(), *page.locator(".kv-scroll").all()):
            place_box = place.bounding_box()
            assert place_box is not None
            assert place_box["x"] >= 0
            assert place_box["x"] + place_box["width"] <= width
        for name in CHARTS:
            texts = page.locator(f".st-key-{name} .js-plotly-plot").first.evaluate(CHART_TEXTS)
            assert [one for one in texts if one[1] < 13] == [], (name, width)
        assert violations(page) == [], width
    page.evaluate("document.querySelector('[data-testid=stMain]').scrollTo(0, 0)")
    page.get_by_role("button", name="Engine settings").click()
    expect(page.get_by_test_id("stPopoverBody")).to_be_visible()
    settle(page)
    assert violations(page) == []


def test_a_strangers_address_gives_sentences_and_a_page_that_works(open_page: Open) -> None:
    page = open_page("concurrency?users=x&split=nonsense&have=much&kept=%5Bx%5D(//evil.org)&util=9")
    alert = page.get_by_test_id("stAlert").first
    for name in ("users", "split", "have", "util"):
        expect(alert).to_contain_text(f"The address's {name} was not taken")
    expect(title(page)).to_contain_text("30 users fit")


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("count=3&split=tp3", "cannot share Llama 3.3 70B as TP 3"),
        ("model=allenai/longformer-base-4096&tokens=4096", "weights take is not known"),
        ("engine=transformers&kv=q8_0", "transformers does not serve Llama 3.3 70B this way"),
    ],
)
def test_a_refusal_leaves_the_rest_of_the_page(open_page: Open, query: str, said: str) -> None:
    page = open_page(f"concurrency?{query}")
    expect(title(page)).to_contain_text(said)
    expect(page.get_by_role("alert").first).to_be_visible()
    expect(page.get_by_role("heading", name="What people ask")).to_be_visible()


@pytest.mark.parametrize("width", [390, 1440])
def test_names_of_curves_are_whole_and_apart(open_page: Open, width: int) -> None:
    deepseek = "model=deepseek-ai/DeepSeek-V3&gpu=h200-sxm&split=tp8"
    page = open_page(f"concurrency?{deepseek}", width=width, height=900)
    drawn(page)
    figure = page.locator(".st-key-lever_curves .js-plotly-plot").first
    assert figure.evaluate(CUT_NAMES) == [4, 0, 0]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("lever", ["split", "seqs"])
def test_a_lever_is_chosen_and_drawn_on_a_phone(open_page: Open, lever: str, theme: str) -> None:
    page = open_page(f"concurrency?lever={lever}", width=390, height=844, theme=theme)
    chart = page.locator(".st-key-lever_sweep")
    expect(chart.locator(".main-svg").first).to_be_visible()
    settle(page)
    assert page.evaluate(WIDER) <= 0
    assert chart.locator(".js-plotly-plot").evaluate(CUT_NAMES)[1:] == [0, 0]
    texts = chart.locator(".js-plotly-plot").evaluate(CHART_TEXTS)
    assert [one for one in texts if one[1] < 13] == []
    assert violations(page) == []


def test_a_click_far_below_is_answered_where_the_reader_is(open_page: Open) -> None:
    page = open_page("concurrency")
    drawn(page)
    page.get_by_role("button", name="Show this").nth(3).click()
    toast = page.get_by_test_id("stToast")
    expect(toast).to_contain_text("DeepSeek V3 on 8 × H200 →")
    expect(toast).to_contain_text(re.compile(r"at once, 30 (fit|may fit|do not fit)"))
    expect(toast.get_by_text("view more")).to_have_count(0)
    toast.get_by_role("link", name="To the answer").click()
    expect(title(page)).to_be_in_viewport()
    holds(page, model="deepseek-ai/DeepSeek-V3", gpu="h200-sxm")


def test_a_gpu_that_is_typed_is_that_one_or_none(open_page: Open) -> None:
    page = open_page("concurrency")
    drawn(page)
    box = page.get_by_role("combobox", name="GPU", exact=True)
    for text, said in (("H1O0", "is not in the list"), ("H100", "can be H100 PCIe 80GB")):
        box.click()
        box.fill(text)
        page.keyboard.press("Enter")
        expect(page.get_by_test_id("stAlert").first).to_contain_text(said)
        expect(box).to_have_value("H100 SXM5 80GB · 79.6 GiB")
        settle(page)
    box.click()
    box.fill("H20")
    page.keyboard.press("Enter")
    expect(title(page)).to_contain_text("8 × H20 96GB")
    expect(page.get_by_test_id("stAlert")).to_have_count(0)


def test_what_is_wrong_is_said_at_once_and_gone_when_it_is_mended(open_page: Open) -> None:
    page = open_page("concurrency")
    drawn(page)
    field = page.get_by_role("textbox", name="Cache I already have")
    field.fill("much")
    page.keyboard.press("Enter")
    expect(page.get_by_test_id("stAlert").first).to_contain_text("much")
    field.fill("20 GiB")
    page.keyboard.press("Enter")
    expect(numbers(page).nth(2)).to_have_text("20 GiB")
    expect(page.get_by_test_id("stAlert")).to_have_count(0)


def test_a_cell_is_chosen_without_a_mouse(open_page: Open) -> None:
    page = open_page(f"concurrency?{STATED}")
    drawn(page)
    page.get_by_role("spinbutton", name="Tokens of a request").focus()
    page.keyboard.press("ControlOrMeta+A")
    page.keyboard.type("4096")
    page.keyboard.press("Enter")
    # 51 GiB / (4,096 × 40 KiB) = 326.
    expect(numbers(page).first).to_have_text("326")
    expect(page.locator(".st-key-cell_controls")).to_contain_text("30 requests of 4K tokens fit: 9% of the 326")
    holds(page, have="51 GiB", tokens="4096")


def test_settings_that_are_left_to_the_engine_say_what_it_takes(open_page: Open) -> None:
    page = open_page("concurrency?util=0&seqs=0")
    drawn(page)
    expect(page.get_by_test_id("stAlert")).to_have_count(0)
    page.get_by_role("button", name="Engine settings").click()
    share = page.get_by_role("spinbutton", name="Share of the GPU")
    expect(share).to_have_value("")
    expect(share).to_have_attribute("placeholder", "auto: 0.92")
    seqs = page.get_by_role("spinbutton", name="Most requests at once")
    seqs.fill("5")
    page.keyboard.press("Enter")
    expect(numbers(page).first).to_have_text("5")
    holds(page, seqs="5")
