"""The Variants screen in a real browser: lessons, choosing, building, comparing, links, keyboard, themes, strangers."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest
from playwright.sync_api import Locator, Page, expect

from pages.ui.variants.lessons import LESSONS
from tests.browser.conftest import Open, numbers, settle, violations

pytestmark = pytest.mark.browser

CHARTS = ("ladder_chart", "curves", "against_chart", "trend_chart")

# Lesson: (One request, Per token, Against MHA) where its card is the point, and what its sentence and the title of
# its comparison say. By hand, with 2 bytes a number where nothing else is said:
#   mha-70b       80 layers × 64 heads × (128 + 128) × 2 B = 2,621,440 B; × 131,072 tokens
#   mqa-70b       the same with one head, 40,960 B, × 8,192; with 64 heads 2,621,440 × 8,192 = 20 GiB; 320 / 1,024 GiB
#   mha-13b       40 × 40 × 256 × 2 B = 800 KiB; × 16,384
#   latent        61 × (512 + 64) × 2 B = 70,272 B = 68.625 KiB; Llama 3.3 70B 80 × 8 × 256 × 2 B = 320 KiB: 4.66 times
#   latent-6-bit  60 × 576 × 6/8 B = 25,920 B against 95 × 8 × 256 × 2 B = 389,120 B of DeepSeek 67B: 93.34% less
#   kimi-k2       61 × 576 × 2 B, as DeepSeek-V3; × 131,072 = 8.58 GiB
#   window        32 × 8 × 256 × 2 B = 128 KiB; × the 4,096 tokens of its window, which is full: one more adds nothing
#   7b-growth     the same 128 KiB; × 65,536
#   qwen3-next    12 × 2 × 512 × 2 B = 24 KiB; × 32,768 = 768 MiB; 36 states of 32 × 128 × 128 × 2 B = 1 MiB and of
#                 8,192 × 3 × 2 B = 48 KiB: 37.6875 MiB
#   nemotron-h    10 × 8 × 256 × 2 B = 40 KiB; × 131,072 = 5 GiB; 54 states of 256 × 64 × 256 × 4 B = 16 MiB and of
#                 (16,384 + 2 × 8 × 256) × 3 × 2 B = 120 KiB: 870.33 MiB
#   gemma-3       16 × 256 × 2 B = 8 KiB a layer; × 10 layers = 80 KiB a token, × 131,072 = 10 GiB, × 52 layers × 1,024 = 416 MiB
Figures = tuple[tuple[str | None, str | None, str | None], tuple[str, ...], str]
FIGURES: dict[str, Figures] = {
    "mha-70b": (("320 GiB", "2.5 MiB", "the same"), ("2.5 MiB", "320 GiB", "As it ships it takes 40 GiB"), ""),
    "mqa-70b": (("320 MiB", "40 KiB", "÷64"), ("20 GiB", "0.31 GiB (320 MiB)", "64-fold"), ""),
    "mha-13b": (("12.5 GiB", "800 KiB", "the same"), ("6.25 GiB at 8K and 12.5 GiB at 16K",), ""),
    "latent": ((None, "68.62 KiB", None), ("70,272 bytes a token",), "4.7× less"),
    "latent-6-bit": ((None, "25.31 KiB", None), ("93.3%",), ""),
    "kimi-k2": (("8.58 GiB", "68.62 KiB", None), ("70,272 bytes a token",), ""),
    "window": (("512 MiB", "0 B", None), ("512 MiB there and still 512 MiB at 32K",), ""),
    "7b-growth": (("8 GiB", "128 KiB", None), ("128 KiB a token: 1 GiB, 2 GiB, 4 GiB, 8 GiB at",), ""),
    "qwen3-next": (("805.69 MiB", "24 KiB", None), ("12 of 48 layers", "805.69 MiB", "37.69 MiB"), ""),
    "nemotron-h": (("5.85 GiB", "40 KiB", None), ("5.85 GiB", "870.33 MiB never grow"), ""),
    "gemma-3": (("10.41 GiB", "80 KiB", None), ("10.41 GiB at 128K",), ""),
}

FOCUSED = """(() => {
  const one = document.activeElement;
  if (one === document.body) return "";
  const key = /st-key-(\\S+)/.exec(one.closest("[class*=st-key-]")?.className || "");
  return `${key ? key[1] : ""}: ${one.getAttribute("aria-label") || one.innerText || ""}`;
})()"""
# Text as it is seen: the size that the style gives, times the scale at which the picture is drawn.
CHART_TEXTS = """figure => [...figure.querySelectorAll("svg text, svg tspan")]
  .filter(text => text.textContent.trim() && text.getClientRects().length)
  .map(text => {
    const at = text.getScreenCTM();
    const scale = Math.sqrt(Math.abs(at.a * at.d - at.b * at.c));
    return [text.textContent, scale * parseFloat(getComputedStyle(text).fontSize)];
  })"""
TABLE_TEXTS = """cells => cells.map(cell => [cell.innerText, parseFloat(getComputedStyle(cell).fontSize)])"""
# How much wider the page is than what shows it; the page scrolls inside the main part, not as a whole.
WIDER = """(() => {
  const main = document.querySelector("[data-testid=stMain]");
  return Math.max(document.documentElement.scrollWidth - window.innerWidth, main.scrollWidth - main.clientWidth);
})()"""


def title(page: Page) -> Locator:
    return page.get_by_role("heading", level=1)


def number(page: Page, at: int) -> Locator:
    return numbers(page).nth(at)


def alert(page: Page) -> Locator:
    """The sentences about what was not taken."""
    return page.get_by_test_id("stAlert")


def picture(page: Page) -> Locator:
    """The diagram of the heads, as a screen reader has it."""
    return page.locator(".st-key-heads").get_by_role("img")


def panel(page: Page) -> Locator:
    """The panel that is open."""
    return page.get_by_test_id("stPopoverBody")


def pill(page: Page, name: str) -> Locator:
    return page.locator(".st-key-design").get_by_role("radio", name=name, exact=True)


def holds(page: Page, **parts: str) -> None:
    """Wait until the address has exactly these parameters."""

    def same(url: str) -> bool:
        return dict(parse_qsl(urlsplit(url).query)) == parts

    page.wait_for_url(same, wait_until="commit")


def drawn(page: Page) -> None:
    """Wait until all charts of the screen are there."""
    for name in CHARTS:
        expect(page.locator(f".st-key-{name} .js-plotly-plot .main-svg").first).to_be_visible()
    settle(page)


def tab_to(page: Page, wanted: str, limit: int = 90) -> None:
    """Press Tab until the focus is on what has this text; fail where it does not come there."""
    seen = []
    for _ in range(limit):
        page.keyboard.press("Tab")
        seen.append(page.evaluate(FOCUSED))
        if wanted in seen[-1]:
            return
    pytest.fail(f"Tab does not reach {wanted!r}: {seen}")


def test_every_lesson_opens_from_its_link_on_its_figure(open_page: Open, address: str) -> None:
    assert FIGURES.keys() == LESSONS.keys()
    page = None
    for name, (cards, sentences, compared) in FIGURES.items():
        lesson = LESSONS[name]
        link = f"variants?{urlencode(lesson.scenario.to_query() | lesson.options.to_query())}"
        if page is None:
            page = open_page(link)
        else:
            page.goto(f"{address}/{link}")
        # What the lesson says stands in its box; below, the page lists the sentences of all lessons.
        expect(alert(page)).to_have_count(1)
        expect(alert(page)).to_contain_text(lesson.title)
        for words in sentences:
            expect(alert(page)).to_contain_text(words)
        for at, value in enumerate(cards):
            if value is not None:
                expect(number(page, at)).to_have_text(value)
        if compared:
            expect(page.locator(".st-key-against").get_by_role("heading")).to_contain_text(compared)
        if name == "qwen3-next":
            expect(picture(page)).to_have_attribute("aria-label", re.compile("in 12 of 48 layers"))
        # The last of the page: all above it was drawn without an exception.
        expect(page.locator(".st-key-lesson_gemma-3")).to_be_visible()
        expect(page.get_by_test_id("stException")).to_have_count(0)


def test_lessons_are_one_click_away_and_the_address_holds_them(open_page: Open) -> None:
    page = open_page("variants")
    expect(number(page, 0)).to_have_text("10 GiB")
    # A click while the page still arrives can be lost on a busy machine.
    settle(page)
    page.get_by_role("button", name="Lessons").click()
    page.get_by_role("menuitem", name="From MHA to MQA").click()
    expect(number(page, 0)).to_have_text("320 MiB")
    expect(pill(page, "MQA")).to_be_checked()
    holds(page, tokens="8192", designs="mha,gqa:32,gqa:16,gqa:8,gqa:4,gqa:2,mqa", design="mqa")
    settle(page)
    page.locator(".st-key-lesson_gemma-3").get_by_role("button").click()
    expect(number(page, 0)).to_have_text("10.41 GiB")
    # The button stands far below the answer: what it did is said over the page, with the way to it.
    toast = page.get_by_test_id("stToast")
    expect(toast).to_contain_text("Five windows to one → Gemma 3 27B: 10.41 GiB")
    toast.get_by_role("link", name="To the answer").click()
    expect(title(page)).to_be_in_viewport()
    expect(title(page)).to_contain_text("Gemma 3 27B")
    expect(alert(page)).to_contain_text("Five windows to one")
    holds(
        page, model="google/gemma-3-27b-it", tokens="131072", compare="google/gemma-2-27b",
        designs="mha,gqa:16,sliding:1024/2,sliding:1024/3,sliding:1024/12,sliding:1024",
    )  # fmt: skip


def test_a_variant_changes_title_cards_picture_and_address_and_back_returns(open_page: Open) -> None:
    page = open_page("variants")
    expect(number(page, 0)).to_have_text("10 GiB")
    expect(picture(page)).to_have_attribute("aria-label", re.compile("groups of 8 share one of 8 KV heads"))
    settle(page)
    pill(page, "MQA").click()
    # 80 layers × 1 head × 256 × 2 B = 40 KiB, × 32,768 = 1.25 GiB: an eighth of 8 heads, a 64th of 64.
    expect(title(page)).to_have_text("Llama 3.3 70B as MQA would remember 8× less: 1.25 GiB instead of 10 GiB")
    for at, value in enumerate(("1.25 GiB", "40 KiB", "÷64")):
        expect(number(page, at)).to_have_text(value)
    expect(picture(page)).to_have_attribute("aria-label", re.compile("All 64 query heads share one KV head of 128"))
    expect(page.locator(".st-key-heads").get_by_role("heading")).to_contain_text("MQA")
    expect(page.locator(".kv-table tr.on").first).to_contain_text("1.25 GiB")
    holds(page, design="mqa")
    page.go_back()
    expect(title(page)).to_contain_text("remembers 8× less than with full multi-head attention: 10 GiB")
    expect(number(page, 2)).to_have_text("÷8")
    expect(pill(page, "GQA-8 (shipped)")).to_be_checked()
    expect(picture(page)).to_have_attribute("aria-label", re.compile("groups of 8 share one of 8 KV heads"))
    holds(page)


def test_turning_pages_keeps_the_view_and_back_returns_to_it(open_page: Open) -> None:
    page = open_page("variants?tokens=65536&design=mqa&gpu=mi300x")
    expect(numbers(page).first).to_have_text("2.5 GiB")
    page.get_by_role("link", name="Size").click()
    expect(numbers(page).first).to_have_text("20 GiB")
    expect(page).to_have_url(re.compile(r"/\?tokens=65536&gpu=mi300x$"))
    expect(page.get_by_role("combobox", name="GPU")).to_have_value(re.compile("MI300X"))
    page.go_back()
    expect(page).to_have_url(re.compile("/$"))
    settle(page)
    expect(numbers(page).first).to_have_text("20 GiB")
    page.get_by_role("link", name="Variants").click()
    expect(numbers(page).first).to_have_text("2.5 GiB")
    expect(page).to_have_url(re.compile(r"/variants\?tokens=65536&gpu=mi300x&design=mqa$"))
    expect(page.get_by_role("combobox", name="GPU", exact=True)).to_have_value(re.compile("MI300X"))


def test_a_built_variant_is_added_shown_and_linked_and_a_wrong_one_is_named(open_page: Open) -> None:
    page = open_page("variants")
    settle(page)
    page.get_by_role("button", name="Build one").click()
    panel(page).get_by_role("combobox", name="Build it with").click()
    page.get_by_role("option", name="latent", exact=True).click()
    for label, value in (("Latent width", "256"), ("Rotary width", "32")):
        panel(page).get_by_role("textbox", name=label).fill(value)
    panel(page).get_by_role("button", name="Add it").click()
    # 80 layers × (256 + 32) × 2 B = 46,080 B, × 32,768 = 1.406 GiB; 2,621,440 / 46,080 = 56.9.
    shown = ("1.41 GiB", "45 KiB", "÷56.9")
    for at, value in enumerate(shown):
        expect(number(page, at)).to_have_text(value)
    expect(pill(page, "MLA 256 + 32")).to_be_checked()
    usual = "mha,gqa:8,mla,mqa,sliding:4096,sliding:1024/6,share:2,hybrid:4:gdn,linear:mamba2,shipped@fp8,shipped@kivi2"
    holds(page, designs=f"{usual},mla:256+32", design="mla:256+32")
    page.keyboard.press("Escape")
    again = open_page(page.url)
    for at, value in enumerate(shown):
        expect(number(again, at)).to_have_text(value)
    expect(alert(again)).to_have_count(0)

    page.get_by_role("button", name="Choose variants").click()
    # What is drawn stands in the box, so that it can be taken out: the usual eleven and the one that was built.
    expect(panel(page).locator("[data-tag]")).to_have_count(12)
    typed = panel(page).get_by_role("combobox", name="Variants beside the shipped model")
    typed.fill("gqa:x")
    page.keyboard.press("Enter")
    expect(alert(page)).to_contain_text("'x' is not a whole number")
    expect(number(page, 0)).to_have_text("1.41 GiB")
    typed.fill("gqa:7")  # readable, but 7 does not divide 64
    page.keyboard.press("Enter")
    expect(
        page.get_by_text("GQA-7: variant gqa:7: the number of KV heads must divide the 64 query heads")
    ).to_be_visible()
    expect(alert(page)).to_have_count(0)
    expect(number(page, 0)).to_have_text("1.41 GiB")


def test_another_model_opposite(open_page: Open) -> None:
    page = open_page("variants")
    against = page.locator(".st-key-against")
    # While none is chosen: DeepSeek V3, 61 × 576 × 2 B = 68.6 KiB a token against 320 KiB.
    expect(against.get_by_role("heading")).to_contain_text("DeepSeek V3")
    expect(against.get_by_role("heading")).to_contain_text("4.7× more")
    settle(page)
    against.get_by_role("combobox", name="Against").click()
    page.keyboard.type("gemma 3 27b")
    page.get_by_role("option", name="Gemma 3 27B").first.click()
    page.keyboard.press("Escape")
    # At 32,768: 10 layers × 8 KiB × 32,768 = 2.5 GiB and 52 × 8 KiB × 1,024 = 416 MiB; 10 GiB is 3.44 times that.
    expect(
        against.get_by_text("Llama 3.3 70B holds 10 GiB against 2.91 GiB for Gemma 3 27B, 3.4× more")
    ).to_be_visible()
    expect(against.get_by_role("heading")).to_contain_text("Gemma 3 27B")
    # 62 layers × 8 KiB = 496 KiB a token while no window is full, and at this length the 10 full layers grow alone.
    row = against.get_by_role("row").filter(has_text="Gemma 3 27B")
    expect(row.get_by_role("cell")).to_have_text(["bf16", "496 KiBno window full; 80 KiB here", "2.91 GiB", "÷3.4"])
    figure = against.get_by_role("figure")
    expect(figure).to_have_attribute("aria-label", re.compile("Gemma 3 27B: .*2.91 GiB at 32K"))
    holds(page, compare="google/gemma-3-27b-it")


def test_the_gains_download_with_their_numbers(open_page: Open) -> None:
    page = open_page("variants")
    settle(page)
    with page.expect_download() as download:
        page.locator(".st-key-csv_gains").get_by_role("button", name="Download CSV").click()
    with Path(download.value.path()).open(newline="") as file:
        rows = {row["design"]: row for row in csv.DictReader(file)}
    assert {"shipped", "mha", "mla", "mqa", "sliding:4096", "shipped@fp8"} <= rows.keys()
    # 80 layers × (128 + 128) × 2 B = 40,960 B a KV head and token. A query head multiplies and adds once for each of
    # the 256 numbers of its KV head and token that are read: alone 512 operations on 512 bytes, as one of 64 heads to
    # one KV head 64 × 512. The new token's own key and value are written too: 32,769 tokens' bytes move in all.
    moved = 32_768 / 32_769
    names = ("tokens", "resident, bytes", "bytes a token while nothing is full", "factor against MHA",
             "factor against shipped", "read a decoded token, bytes", "operations a byte")  # fmt: skip
    by_hand = {
        "mha": (32_768, 64 * 40_960 * 32_768, 64 * 40_960, 1, 0.125, 64 * 40_960 * 32_768, moved),
        "mqa": (32_768, 40_960 * 32_768, 40_960, 64, 8, 40_960 * 32_768, 64 * moved),
    }
    for design, expected in by_hand.items():
        assert [float(rows[design][name]) for name in names] == pytest.approx(expected), design


def test_text_can_be_read_from_a_distance(open_page: Open) -> None:
    page = open_page("variants", width=1920, height=1080)
    drawn(page)
    figures = page.get_by_role("figure")
    expect(figures).to_have_count(len(CHARTS))
    for name in CHARTS:
        chart = page.locator(f".st-key-{name}")
        alternative = chart.get_by_role("figure").get_attribute("aria-label")
        assert alternative is not None, name
        assert len(alternative.split()) > 10, name
        texts = chart.locator(".js-plotly-plot").first.evaluate(CHART_TEXTS)
        assert len(texts) > 5, name
        assert [one for one in texts if one[1] < 14] == [], name
    page.get_by_text("Published results:").click()
    expect(page.get_by_role("region", name="Published results")).to_be_visible()
    cells = page.locator(".kv-table :is(th, td, small)").evaluate_all(TABLE_TEXTS)
    assert len(cells) > 100
    assert [one for one in cells if one[1] < 14] == []
    heads = page.locator(".st-key-heads p").evaluate_all(TABLE_TEXTS)
    assert heads
    assert [one for one in heads if one[1] < 14] == []


def test_the_keyboard_chooses_scrolls_and_opens(open_page: Open) -> None:
    page = open_page("variants", width=800)
    drawn(page)
    tab_to(page, "design: ")
    for _ in range(20):
        if page.evaluate(FOCUSED) == "design: MQA":
            break
        page.keyboard.press("ArrowRight")
    page.keyboard.press("Space")
    expect(number(page, 0)).to_have_text("1.25 GiB")
    expect(pill(page, "MQA")).to_be_checked()
    expect(pill(page, "MQA")).to_be_focused()
    holds(page, design="mqa")
    settle(page)
    for name in ("What each variant buys, in numbers", "What each way of remembering gives up"):
        tab_to(page, name)
        page.keyboard.press("ArrowRight")
        moved = page.get_by_role("region", name=name)
        page.wait_for_function("region => region.scrollLeft > 0", arg=moved.element_handle())
    # Each statement's sources are links, which lie between.
    tab_to(page, "At 32,768 tokens, one request", limit=200)
    tab_to(page, "lesson_mha-13b: ")
    page.keyboard.press("Enter")
    expect(title(page)).to_have_text("Llama 2 13B keeps keys and values for every head: 12.5 GiB")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_fits_every_window_and_is_accessible(open_page: Open, theme: str) -> None:
    compared = "google/gemma-3-27b-it,state-spaces/mamba-2.8b-hf"
    designs = "mha,gqa:7,gqa:8,mla,sliding:1024/6,share:2,hybrid:4:kda,linear:mamba2,shipped@fp8"
    link = f"variants?model=deepseek-ai/DeepSeek-V4-Flash&compare={compared}&designs={designs}&design=hybrid:4:kda"
    page = open_page(link, width=390, height=844, theme=theme)
    drawn(page)
    box = number(page, 0).bounding_box()
    assert box["y"] + box["height"] < 844, "the answer is not on a phone's first screen"
    for name in ("How it is computed", "Sources of these statements", "Published results:"):
        page.get_by_text(name).click()
    expect(page.get_by_role("region", name="Published results")).to_be_visible()
    for width in (390, 1440, 1920):
        page.set_viewport_size({"width": width, "height": 1100})
        drawn(page)
        assert page.evaluate(WIDER) <= 0, width
        for place in (
            *page.locator(".js-plotly-plot").all(),
            page.locator(".kv-heads"),
            *page.locator(".kv-scroll").all(),
        ):
            place_box = place.bounding_box()
            assert place_box["x"] >= 0
            assert place_box["x"] + place_box["width"] <= width
        assert violations(page) == [], width
    page.evaluate("document.querySelector('[data-testid=stMain]').scrollTo(0, 0)")
    for name in ("Choose variants", "Build one"):
        page.get_by_role("button", name=name).click()
        expect(panel(page)).to_be_visible()
        settle(page)
        assert violations(page) == [], name
        page.keyboard.press("Escape")
        expect(panel(page)).to_have_count(0)


def test_a_strangers_address_gives_sentences_and_a_page_that_works(open_page: Open) -> None:
    page = open_page("variants?designs=gqa:7,zzz&design=nonsense&gpus=x&weights=q&other=w&trend=t")
    wrong = {"designs": "zzz", "design": "nonsense", "gpus": "x", "weights": "q", "other": "w", "trend": "t"}
    for name, value in wrong.items():
        expect(alert(page)).to_contain_text(re.compile(rf"The address's {name} was not taken: .*'{value}'"))
    expect(number(page, 0)).to_have_text("10 GiB")
    holds(page)
    settle(page)
    pill(page, "MQA").click()
    expect(number(page, 0)).to_have_text("1.25 GiB")
    expect(alert(page)).to_have_count(0)
    holds(page, design="mqa")


@pytest.mark.parametrize(
    ("model", "said", "cards", "drawing"),
    [
        # 64 layers, each with a state of 5,120 × 16 and the last inputs of 5,120 channels, whatever the length; no heads.
        ("state-spaces/mamba-2.8b-hf", "has no query heads to build otherwise", {1: "0 B", 2: "–"}, "64"),
        # An encoder keeps nothing.
        ("allenai/longformer-base-4096", "keeps no cache", {0: "0 B", 1: "0 B", 2: "–"}, "Nothing is kept"),
        # 32 decoder layers × 2 × 1,280 × 2 B = 160 KiB a token, beside the source, 1,500 × 160 KiB.
        ("openai/whisper-large-v3", "Whisper Large v3", {1: "160 KiB"}, "20 query heads"),
    ],
)
def test_models_that_remember_otherwise_have_a_page_too(
    open_page: Open, model: str, said: str, cards: dict[int, str], drawing: str
) -> None:
    page = open_page(f"variants?model={model}")
    expect(title(page)).to_contain_text(re.compile(re.escape(said), re.IGNORECASE))
    for at, value in cards.items():
        expect(number(page, at)).to_have_text(value)
    expect(picture(page)).to_have_attribute("aria-label", re.compile(drawing))
    expect(page.locator(".st-key-lesson_gemma-3")).to_be_visible()
    settle(page)
