"""The Live screen in a real browser with the real engine: a run, its stop, its queue, its death, strangers, records.

The server is one of its own, whose jobs are abandoned six seconds after their page was closed, so that nobody's
engine but this file's is stopped, starved or killed.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit
from xml.etree import ElementTree

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import BrowserContext, FilePayload, Locator, Page, expect

from kvcore.units import format_bytes

from .conftest import ROOT, Open, numbers, start_server, stop_server

pytestmark = pytest.mark.browser

RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21aa"]}
LEASE_SECONDS = 6
# An engine that starts reads its weights, and times a few steps, before it does the first job.
COLD_MS = 120_000
# SmolLM2 135M keeps 30 layers × 3 KV heads × (64 + 64) numbers × 2 B for each token, and reserves 256 tokens at once.
TOKEN_BYTES = 23_040
BLOCK_TOKENS = 256
PROMPT = "Why is the sea salty?"
SHORT = {"live_new": "8", "live_prompt": PROMPT}
# 64 tokens of running text, which no end of an answer stops, and recomputing each of 512 new ones: minutes of work.
LONG = {"live_new": "512", "live_length": "64"}
IMAGE = "![x](http://203.0.113.1/p.png)"
TAG = "<img src=x>"
MARKED = "Salt & <b>sea</b>"
KILLED = (
    "The engine was ended by SIGKILL, as happens when the machine runs out of memory. The next job starts a new one."
)

# How much wider the page is than what shows it; the page scrolls inside the main part, not as a whole.
WIDER = """(() => {
  const main = document.querySelector("[data-testid=stMain]");
  return Math.max(document.documentElement.scrollWidth - window.innerWidth, main.scrollWidth - main.clientWidth);
})()"""
# Each piece of text that is seen, with the size of its letters: in HTML, and in a drawing of plotly.
TEXTS = """places => places.flatMap(place => {
  const found = [], walker = document.createTreeWalker(place, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const box = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || box.closest("style") || !box.getClientRects().length) continue;
    if (getComputedStyle(box).visibility === "visible")
      found.push([walker.currentNode.textContent, parseFloat(getComputedStyle(box).fontSize)]);
  }
  return found;
})"""
# Texts of a drawing that reach beyond it.
CUT_TEXTS = """figures => figures.flatMap(figure => {
  const edge = figure.getBoundingClientRect();
  return [...figure.querySelectorAll("g.annotation, .legendtext, .textpoint")]
    .filter(one => one.getClientRects().length)
    .map(one => [one.textContent, one.getBoundingClientRect()])
    .filter(([, box]) => box.right > edge.right + 1 || box.left < edge.left - 1).map(([text]) => text);
})"""
DRAWN_TEXTS = """figures => figures.flatMap(figure => [...figure.querySelectorAll("svg text")]
  .filter(text => text.textContent.trim() && text.getClientRects().length)
  .map(text => [text.textContent, parseFloat(getComputedStyle(text).fontSize)]))"""

COUNT_RUNS = """(() => {
  window.runsSeen = 0;
  new MutationObserver(() => window.runsSeen++).observe(document.querySelector("[data-testid=stApp]"),
    {attributes: true, attributeFilter: ["data-test-script-state"]});
})()"""


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A server of this file's own, and its address."""
    started, where = start_server(environment={"KV_LIVE_LEASE_SECONDS": str(LEASE_SECONDS)})
    yield started, where
    stop_server(started)


@pytest.fixture(scope="module")
def address(server: tuple[subprocess.Popen[bytes], str]) -> str:
    """Where `open_page` opens pages: the server of this file, not the shared one."""
    return server[1]


def live(**parts: str) -> str:
    """A link to the screen."""
    return f"live?{urlencode(parts)}"


def engines(server: tuple[subprocess.Popen[bytes], str]) -> list[int]:
    """The ids of the server's engine processes: one, or none before the first job."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            # The name in brackets may hold spaces; the parent is the second field behind it.
            parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
            words = (place / "cmdline").read_text().split("\0")
        except (OSError, ValueError):
            continue
        if parent == server[0].pid and "kvcore.live.worker" in words:
            found.append(int(place.name))
    return found


def ticks(server: tuple[subprocess.Popen[bytes], str]) -> int:
    """The processor time that the engines have used, in hundredths of a second."""
    fields = [Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split() for one in engines(server)]
    return sum(int(one[11]) + int(one[12]) for one in fields)


def title(page: Page) -> Locator:
    return page.get_by_role("heading", level=1)


def number(page: Page, at: int) -> Locator:
    return numbers(page).nth(at)


def card(page: Page, at: int) -> Locator:
    """One of the four cards, with its line."""
    return page.locator(".st-key-numbers").get_by_test_id("stColumn").nth(at)


def button(page: Page, key: str) -> Locator:
    return page.locator(f".st-key-{key}").get_by_role("button")


def status(page: Page) -> Locator:
    """What goes on, or how it ended."""
    return page.locator(".kv-go").first


def alert(page: Page) -> Locator:
    return page.get_by_test_id("stAlert")


def answers(page: Page) -> Locator:
    """What the model wrote, turn by turn."""
    return page.locator(".st-key-live_answer .kv-say p.m")


def timeline(page: Page) -> Locator:
    """The finished time line."""
    return page.locator(".st-key-live_timeline").get_by_role("figure")


def recording(page: Page) -> Locator:
    """The lines that say what is a recording: of the run, of the probe, of the race."""
    return page.get_by_text("not here and now")


def idle(page: Page) -> None:
    """Wait until nothing is running in the page's script."""
    page.locator("[data-testid=stApp][data-test-script-state=notRunning]").wait_for()
    page.wait_for_timeout(400)


def run(page: Page) -> None:
    """Run the prompt alone, without the probe that follows a first run."""
    box = page.get_by_role("checkbox", name="Then the probe, the first time")
    if box.is_checked():
        page.locator(".st-key-live_probe_too label").click()
        expect(box).not_to_be_checked()
        idle(page)
    button(page, "live_run").click()


def done(page: Page) -> None:
    """Wait until a run has made all its tokens."""
    expect(status(page)).to_have_text("Done: all tokens made", timeout=COLD_MS)
    expect(button(page, "live_run")).to_be_enabled()


def begun(page: Page) -> None:
    """Wait until a run has made some tokens, and goes on."""
    expect(status(page)).to_contain_text("With the cache: token", timeout=COLD_MS)


def holds(page: Page, **parts: str) -> None:
    """Wait until the address has exactly these parameters."""

    def same(url: str) -> bool:
        return dict(parse_qsl(urlsplit(url).query)) == parts

    page.wait_for_url(same, wait_until="commit")


def violations(page: Page) -> list[str]:
    found = Axe().run(page, options=RULES).response["violations"]
    return [f"{one['id']}: {node['target']} {node['failureSummary'][:200]}" for one in found for node in one["nodes"]]


def fits(page: Page, width: int) -> None:
    """The page shows all of its width in a window of that many pixels."""
    page.set_viewport_size({"width": width, "height": 1100})
    idle(page)
    assert page.evaluate(WIDER) <= 0, width
    for place in page.locator(".js-plotly-plot, .kv-say").all():
        box = place.bounding_box()
        assert box["x"] >= 0, width
        assert box["x"] + box["width"] <= width
    assert page.locator(".js-plotly-plot").evaluate_all(CUT_TEXTS) == [], width


def readable(page: Page) -> None:
    """Text of the charts and of the answer can be read from a distance on a projector."""
    for place, read in ((".kv-say", TEXTS), (".js-plotly-plot", DRAWN_TEXTS)):
        texts = page.locator(place).evaluate_all(read)
        assert len(texts) >= 2, place
        assert [one for one in texts if one[1] < 14] == [], place


def unmarked(page: Page) -> None:
    """Nothing that was typed, linked or loaded has become an image or a link."""
    assert page.get_by_test_id("stMain").locator("img, a[href*='203.0.113.1']").count() == 0
    assert page.get_by_test_id("stException").count() == 0


def json_file(name: str, held: object) -> FilePayload:
    return {"name": name, "mimeType": "application/json", "buffer": json.dumps(held).encode()}


def test_opens_on_recordings_that_say_so_and_nothing_runs(
    open_page: Open, server: tuple[subprocess.Popen[bytes], str]
) -> None:
    before, used = engines(server), ticks(server)
    page = open_page("live")
    expect(title(page)).to_contain_text("The first token took")
    # The run, the probe and the race.
    expect(recording(page)).to_have_count(3)
    for at in range(4):
        expect(number(page, at)).to_have_text(re.compile(r"\d"))
    expect(answers(page)).not_to_be_empty()
    # The time line, times token by token, bytes, the probe and the race, each finished.
    expect(page.locator(".js-plotly-plot")).to_have_count(5)
    expect(button(page, "live_run")).to_be_enabled()
    idle(page)
    # A page that watches a job runs a part of its script four times a second.
    page.evaluate(COUNT_RUNS)
    page.wait_for_timeout(1200)
    assert page.evaluate("window.runsSeen") == 0
    assert button(page, "live_stop").count() == 0
    assert engines(server) == before
    assert ticks(server) - used < 50


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_fits_every_window_and_is_accessible(open_page: Open, theme: str) -> None:
    page = open_page("live", width=390, height=844, theme=theme)
    expect(page.locator(".js-plotly-plot")).to_have_count(5)
    for width in (390, 1440):
        fits(page, width)
        assert violations(page) == [], width
    fits(page, 1920)
    readable(page)


def test_a_run_from_a_link_and_the_next_turn(open_page: Open) -> None:
    page = open_page(live(**SHORT))
    expect(recording(page)).to_have_count(3)
    idle(page)
    run(page)
    expect(button(page, "live_stop")).to_be_visible()
    done(page)
    # What is left of the recordings are the probe's and the race's.
    expect(recording(page)).to_have_count(2)
    expect(page.locator(".kv-say p.u")).to_have_text([PROMPT])
    expect(answers(page)).to_have_text([re.compile(r"\w+ \w+")])
    for at in range(3):
        expect(number(page, at)).to_have_text(re.compile(r"^[\d.]+ (ms|s)$"))
    read = re.search(r"(\d+) prompt tokens read at once", card(page, 0).inner_text())
    assert read, card(page, 0).inner_text()
    prompt = int(read[1])
    # The last of the 8 new tokens is never read itself.
    held = prompt + 7
    expect(number(page, 3)).to_have_text(format_bytes(held * TOKEN_BYTES))
    reserved = format_bytes(BLOCK_TOKENS * TOKEN_BYTES)
    expect(card(page, 3)).to_contain_text(f"as predicted, to the byte; {reserved} reserved")
    expect(card(page, 1)).to_contain_text("median of 7")
    # Both bars begin with the same prompt and go on for the seven tokens after the first one.
    said = timeline(page).get_attribute("aria-label") or ""
    for name in ("with the cache", "without it, recomputed"):
        assert re.search(rf"{name}: prefill of {prompt} tokens [\d.]+ m?s, then 7 tokens of", said), said
    for name in ("With the cache", "Without it, recomputed"):
        expect(timeline(page).locator(".annotation").filter(has_text=name)).to_have_count(1)
    expect(page.locator(".st-key-live_held").get_by_role("heading")).to_contain_text("22.5 KiB a token")
    holds(page, **SHORT, live_probe_too="0")

    box = page.get_by_role("textbox", name="Go on with the conversation")
    box.fill("Say it in one sentence.")
    box.press("Enter")
    button(page, "live_on_go").click()
    kept = page.get_by_text("were in the cache already")
    expect(kept).to_contain_text(re.compile(rf"{held:,} of \d+ tokens were in the cache already"))
    done(page)
    expect(card(page, 0)).to_contain_text(f"new tokens read, {held:,} already in the cache")
    expect(page.locator(".kv-say p.u")).to_have_text([PROMPT, "Say it in one sentence."])
    expect(answers(page)).to_have_text([re.compile(r"\w+ \w+"), re.compile(r"\w+")])
    whole = re.search(r"(\d+) of (\d+) tokens", kept.inner_text())
    assert whole
    expect(number(page, 3)).to_have_text(format_bytes((int(whole[2]) + 7) * TOKEN_BYTES))
    expect(card(page, 3)).to_contain_text("as predicted, to the byte")
    holds(page, **SHORT, live_probe_too="0")


@pytest.mark.smoke
def test_text_streams_and_stop_ends_it(open_page: Open) -> None:
    page = open_page(live(**LONG))
    idle(page)
    run(page)
    grown = "before => document.querySelector('.kv-say p.m:last-of-type').innerText.length > before + 20"
    begun(page)
    lengths = []
    for _ in range(3):
        lengths.append(len(answers(page).last.inner_text()))
        page.wait_for_function(grown, arg=lengths[-1])
    begun(page)
    expect(card(page, 0)).to_contain_text("64 prompt tokens read at once")
    button(page, "live_stop").click()
    pressed = time.monotonic()
    expect(status(page)).to_have_text("Cancelled.", timeout=5_000)
    expect(button(page, "live_run")).to_be_enabled(timeout=5_000)
    assert time.monotonic() - pressed < 5
    assert len(answers(page).last.inner_text()) > lengths[-1]
    button(page, "live_run").click()
    begun(page)
    button(page, "live_stop").click()
    expect(status(page)).to_have_text("Cancelled.", timeout=5_000)


def test_a_second_page_waits_its_turn_and_a_closed_one_makes_room(
    open_page: Open, context: BrowserContext, address: str
) -> None:
    first = context.new_page()
    first.goto(f"{address}/{live(**LONG)}")
    expect(numbers(first).first).to_be_visible()
    idle(first)
    run(first)
    begun(first)
    second = open_page(live(**SHORT, live_again="0"))
    idle(second)
    run(second)
    expect(status(second)).to_have_text("In the queue: 1 job before yours")
    # As long as its page is open, the first one keeps the machine.
    second.wait_for_timeout(1000 * (LEASE_SECONDS + 1))
    expect(status(second)).to_have_text("In the queue: 1 job before yours")
    expect(first.get_by_test_id("stException")).to_have_count(0)
    first.close()
    expect(status(second)).to_have_text("Done: all tokens made", timeout=1000 * (LEASE_SECONDS + 16))
    expect(number(second, 2)).to_have_text("…")


def test_a_killed_engine_is_a_sentence_and_the_next_run_works(
    open_page: Open, server: tuple[subprocess.Popen[bytes], str]
) -> None:
    page = open_page(live(**LONG))
    idle(page)
    run(page)
    begun(page)
    (engine,) = engines(server)
    os.kill(engine, signal.SIGKILL)
    expect(alert(page)).to_have_text(re.compile(re.escape(KILLED)))
    expect(button(page, "live_run")).to_be_enabled()
    page.goto(page.url.split("?")[0] + f"?{urlencode(SHORT)}")
    idle(page)
    run(page)
    done(page)
    expect(alert(page)).to_have_count(0)
    (another,) = engines(server)
    assert another != engine


def test_another_screen_answers_while_a_run_goes_on(open_page: Open) -> None:
    page = open_page(live(**LONG))
    idle(page)
    run(page)
    begun(page)
    size = open_page("")
    expect(number(size, 0)).to_have_text("10 GiB")
    size.get_by_role("combobox", name="Tokens").click()
    size.keyboard.type("8K")
    size.get_by_role("option", name="8K").first.click()
    # 80 layers × 8 KV heads × 256 × 2 B × 8,192 tokens.
    expect(number(size, 0)).to_have_text("2.5 GiB")
    # The run has gone on meanwhile and can still be stopped.
    expect(button(page, "live_stop")).to_be_enabled()
    expect(status(page)).to_contain_text(re.compile(r"token \d+$"))
    button(page, "live_stop").click()
    expect(status(page)).to_have_text("Cancelled.", timeout=5_000)


def test_a_run_is_kept_exported_and_loaded_as_a_recording(open_page: Open, tmp_path: Path) -> None:
    prompt = f"{IMAGE}{TAG}"
    page = open_page(live(live_prompt=prompt, live_new="8", live_again="0"))
    idle(page)
    run(page)
    done(page)
    expect(page.locator(".kv-say p.u")).to_have_text([prompt])
    name = page.get_by_role("textbox", name="Name")
    name.fill(MARKED)
    name.press("Enter")
    button(page, "live_keep").click()
    table = page.get_by_role("region", name="Kept runs")
    expect(table.locator("tbody tr")).to_have_count(1)
    expect(table).to_contain_text(MARKED)
    idle(page)
    cards = numbers(page).all_inner_texts()
    written = answers(page).all_inner_texts()
    with page.expect_download() as download:
        button(page, "live_json").click()
    file = tmp_path / download.value.suggested_filename
    download.value.save_as(file)
    held = json.loads(file.read_text())
    assert (held["name"], held["prompt"], held["summary"]["new_tokens"]) == (MARKED, prompt, 8)

    again = open_page("live")
    expect(recording(again)).to_have_count(3)
    again.get_by_text("Load a run", exact=True).click()
    again.locator("input[type=file]").set_input_files(file)
    expect(again.locator(".kv-say p.u")).to_have_text([prompt])
    expect(recording(again)).to_have_count(3)
    expect(numbers(again)).to_have_text(cards)
    expect(answers(again)).to_have_text(written)
    expect(again.get_by_role("region", name="Kept runs")).to_contain_text(MARKED)
    again.locator("input[type=file]").set_input_files(json_file("other.json", held | {"model": None}))
    expect(alert(again)).to_contain_text("other.json")
    expect(answers(again)).to_have_text(written)
    unmarked(again)


def test_a_strangers_address_gives_sentences_and_asks_nobody(open_page: Open, address: str) -> None:
    wrong = {"live_new": "9999", "live_kv": IMAGE, "live_batch": TAG, "live_attention": IMAGE, "live_again": "maybe"}
    page = open_page(live(**wrong, live_model="../../etc", live_prompt=IMAGE))
    for name in wrong:
        expect(alert(page)).to_contain_text(f"The address's {name} was not taken: ")
    expect(page.get_by_role("textbox", name="Prompt")).to_have_value(IMAGE)
    expect(page.get_by_role("combobox", name="Live model")).to_have_value("../../etc")
    expect(recording(page)).to_have_count(3)
    holds(page, live_model="../../etc", live_prompt=IMAGE)
    # A folder that is there but not offered, and what is no model at all.
    refused = {"/etc": "folders of this server are offered only where KV_LIVE_FOLDERS names them", TAG: TAG}
    for model, words in refused.items():
        page.goto(f"{address}/{live(live_model=model)}")
        expect(page.get_by_role("combobox", name="Live model")).to_have_value(model)
        idle(page)
        button(page, "live_run").click()
        expect(alert(page)).to_contain_text(words, timeout=COLD_MS)
        expect(button(page, "live_run")).to_be_enabled()
        unmarked(page)


def test_a_model_that_is_a_picture_is_a_sentence(open_page: Open) -> None:
    page = open_page(live(live_model=IMAGE))
    idle(page)
    button(page, "live_run").click()
    expect(alert(page)).to_contain_text("is neither a folder", timeout=COLD_MS)
    unmarked(page)
    # The joiner that keeps the address from becoming a link cannot be seen.
    assert IMAGE in alert(page).inner_text().replace("\N{WORD JOINER}", "")


def test_a_strangers_recording_is_shown_as_text(open_page: Open) -> None:
    record = json.loads((ROOT / "data" / "live" / "run.json").read_text())
    record |= {"name": IMAGE, "title": f"{IMAGE}{TAG}", "prompt": f"{IMAGE}{TAG}", "kv_format": IMAGE}
    record["machine"] |= {"device_name": IMAGE}
    record["events"] = [{"t": 0.0, "event": "note", "text": IMAGE}, *record["events"]]
    page = open_page("live")
    page.get_by_text("Load a run", exact=True).click()
    loaded = page.locator("input[type=file]")
    loaded.set_input_files(json_file("run.json", record))
    expect(page.locator(".kv-say p.u")).to_have_text([f"{IMAGE}{TAG}"])
    expect(recording(page)).to_have_count(3)
    idle(page)
    unmarked(page)


def test_a_chart_can_be_had_as_a_file(open_page: Open) -> None:
    page = open_page("live")
    idle(page)
    chart = page.locator(".st-key-live_probe_plot")
    chart.scroll_into_view_if_needed()
    chart.locator(".js-plotly-plot").hover()
    with page.expect_download() as started:
        chart.locator("[data-title='Download plot']").click()
    download = started.value
    assert download.suggested_filename == "kv-live-probe.svg"
    text = download.path().read_text("utf-8")
    written = [one.text for one in ElementTree.fromstring(text.encode()).iter("{http://www.w3.org/2000/svg}text")]
    # What is drawn can be told from the file alone.
    for name in ("with the cache", "without it, recomputed", "predicted", "tokens before the one that is made"):
        assert name in written
    assert "<script" not in text
    expect(numbers(page).first).to_be_visible()


def test_kept_runs_are_laid_side_by_side(open_page: Open) -> None:
    page = open_page("live")
    record = json.loads((ROOT / "data" / "live" / "run.json").read_text())
    page.get_by_text("Load a run", exact=True).click()
    loaded = page.locator("input[type=file]")
    loaded.set_input_files(json_file("run.json", record | {"name": TAG}))
    # A file that comes while the one before is being sent takes its place.
    expect(page.get_by_text("Keep or load another run to see both side by side.")).to_be_visible()
    idle(page)
    loaded.set_input_files(json_file("run.json", record | {"name": TAG}))
    expect(alert(page)).to_contain_text(f"A run called {TAG} is kept already, so this one is called {TAG} (2).")
    compared = page.locator(".st-key-live_compare")
    expect(compared.get_by_role("figure")).to_have_count(2)
    for name in (TAG, f"{TAG} (2)"):
        expect(compared.locator(".annotation").get_by_text(name, exact=True)).to_have_count(1)
    unmarked(page)
    button(page, "live_replace").click()
    expect(compared).to_have_count(0)
    expect(page.get_by_text("Keep or load another run to see both side by side.")).to_be_visible()


def test_a_strangers_race_is_shown_as_text(open_page: Open) -> None:
    record = json.loads((ROOT / "data" / "live" / "race.json").read_text())
    names = {one["variant"] for one in record["events"] if one["event"] == "probe"}
    changed = {name: f"{name.upper()} {IMAGE.replace('http:', '')}{TAG}" for name in names}
    record["events"] = [
        one | {"variant": changed[one["variant"]]} if "variant" in one else one for one in record["events"]
    ]
    page = open_page("live")
    page.get_by_text("Load a run", exact=True).click()
    page.locator("input[type=file]").set_input_files(json_file("race.json", record))
    # The chart of the recording before stands beside the new one for a moment.
    expect(page.locator(".st-key-live_race_plot .legend").filter(has_text="203.0.113.1")).to_have_count(1)
    expect(page.locator(".st-key-live_race_plot")).to_have_count(1)
    idle(page)
    unmarked(page)
