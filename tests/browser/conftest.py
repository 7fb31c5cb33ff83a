"""The real app in the system's Chromium: one server for each test process, and errors that no test may see.

The browser and its contexts come from pytest-playwright: `--headed` shows it, `--tracing on` records every step, and a
failure leaves a screenshot in test-results/.
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
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import BrowserContext, ConsoleMessage, Locator, Page, expect

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
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21aa"]}
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
def base_url() -> None:
    """None: a page is opened at a whole address, as some tests have a server of their own."""


@pytest.fixture(scope="session")
def browser_type_launch_args(browser_type_launch_args: dict[str, Any]) -> dict[str, Any]:
    """The system's Chromium, not one that Playwright downloads."""
    if not CHROMIUM.exists():
        reason = f"{CHROMIUM} is not there: install Debian's chromium, or name another one in CHROMIUM"
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return {**browser_type_launch_args, "executable_path": CHROMIUM, "args": list(FLAGS)}


@pytest.fixture(scope="session")
def browser_context_args(browser_context_args: dict[str, Any]) -> dict[str, Any]:
    """Nothing moves, so that a picture is taken of what stays."""
    return {**browser_context_args, "reduced_motion": "reduce"}


@pytest.fixture
def open_page(context: BrowserContext, address: str) -> Iterator[Open]:
    """Open an address of the app in a fresh page; afterwards nothing foreign was asked and nothing went wrong."""
    problems: list[str] = []

    def open_at(query: str = "", *, width: int = 1440, height: int = 1100, theme: str = "light") -> Page:
        page = context.new_page()
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme="dark" if theme == "dark" else "light", reduced_motion="reduce")
        page.on("console", lambda message: is_error(message, address) and problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: is_foreign(request.url, address) and problems.append(request.url))
        page.goto(query if query.startswith("http") else f"{address}/{query}")
        expect(numbers(page).first).to_be_visible()
        return page

    yield open_at
    for page in context.pages:
        assert page.get_by_test_id("stException").count() == 0
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


def idle(page: Page) -> None:
    """Wait until the page's script is idle."""
    page.locator("[data-testid=stApp][data-test-script-state=notRunning]").wait_for()
    page.wait_for_timeout(400)


def settle(page: Page) -> None:
    """Wait until the chart is drawn and the script is idle: before pictures and audits, never before an assertion."""
    page.locator(".js-plotly-plot .main-svg").first.wait_for()
    idle(page)


def violations(page: Page) -> list[str]:
    """What axe finds against WCAG 2.1 AA: rule, element and reason."""
    found = Axe().run(page, options=RULES).response["violations"]
    return [f"{one['id']}: {node['target']} {node['failureSummary'][:200]}" for one in found for node in one["nodes"]]
