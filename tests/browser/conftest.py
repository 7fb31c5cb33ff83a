"""The real app in the system's Chromium: one server, one context, a fresh page a test, and what no test may see.

A page is a session of its own for the app. The context is shared because it keeps the scripts of the page, eight
megabytes that each new context would read and compile again; window and theme are set page by page.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Locator, Page, expect, sync_playwright

ROOT = Path(__file__).parents[2]
CHROMIUM = Path(os.environ.get("CHROMIUM", "/usr/bin/chromium"))
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
expect.set_options(timeout=30_000)
Open = Callable[..., Page]
# Streamlit's client looks for its server below the screen's own address first, where it answers 404.
PROBE = re.compile(r"/(variants|concurrency|live|accuracy)/_stcore/(health|host-config)")


def free_port() -> int:
    """A port of this machine that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_server(
    port: int | None = None, environment: Mapping[str, str] | None = None
) -> tuple[subprocess.Popen[bytes], str]:
    """`streamlit run app.py` on that port or a free one, ready to answer, and its address.

    `environment` is set for it beside that of the tests.
    """
    port = port or free_port()
    command = [
        sys.executable,
        "-m",
        "streamlit",
        "run",
        "app.py",
        "--server.headless",
        "true",
        "--server.port",
        str(port),
    ]
    server = subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, **(environment or {})}, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    address = f"http://127.0.0.1:{port}"
    for _ in range(300):
        try:
            with urllib.request.urlopen(f"{address}/_stcore/health", timeout=5) as answer:
                if answer.read() == b"ok":
                    return server, address
        except OSError:
            time.sleep(0.2)
    stop_server(server)
    raise RuntimeError("the app did not become healthy within a minute")


def stop_server(server: subprocess.Popen[bytes]) -> None:
    """End a server that was started here."""
    server.terminate()
    server.wait(timeout=20)


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    server, where = start_server()
    yield where
    stop_server(server)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if not CHROMIUM.exists():
        reason = f"{CHROMIUM} is not there: install Debian's chromium, or name another one in CHROMIUM"
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield launched
        launched.close()


@pytest.fixture(scope="session")
def context(browser: Browser) -> Iterator[BrowserContext]:
    shared = browser.new_context(reduced_motion="reduce")
    yield shared
    shared.close()


@pytest.fixture
def open_page(context: BrowserContext, address: str) -> Iterator[Open]:
    """Open an address of the app in a fresh page; afterwards nothing foreign was asked and nothing went wrong."""
    problems: list[str] = []
    pages = []

    def open_at(query: str = "", *, width: int = 1440, height: int = 1100, theme: str = "light") -> Page:
        page = context.new_page()
        pages.append(page)
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme="dark" if theme == "dark" else "light", reduced_motion="reduce")
        page.on("console", lambda message: is_error(message, address) and problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: is_foreign(request.url, address) and problems.append(request.url))
        page.goto(query if query.startswith("http") else f"{address}/{query}")
        expect(numbers(page).first).to_be_visible()
        return page

    yield open_at
    for page in pages:
        assert page.get_by_test_id("stException").count() == 0
        page.close()
    assert problems == []


def numbers(page: Page) -> Locator:
    """The big numbers of a screen."""
    return page.locator(".st-key-numbers").get_by_test_id("stMetricValue")


def is_error(message: ConsoleMessage, address: str) -> bool:
    """Whether the console tells of an error: any but the two probes that a screen's own address is opened with."""
    probed = PROBE.fullmatch(message.location["url"].removeprefix(address)) and "404" in message.text
    return message.type == "error" and not probed


def is_foreign(url: str, address: str) -> bool:
    """Whether a request leaves the app."""
    own = (address, address.replace("http", "ws", 1), "data:", "blob:")
    return not url.startswith(own)


def settle(page: Page) -> None:
    """Wait until the chart is drawn and the script is idle: before pictures and audits, never before an assertion."""
    page.locator(".js-plotly-plot .main-svg").first.wait_for()
    page.locator("[data-testid=stApp][data-test-script-state=notRunning]").wait_for()
    page.wait_for_timeout(400)
