"""`python -m benchmarks.pages`: the server's work for one change on each page, beside an empty page of Streamlit.

Processor time of the thread that runs the script, so that other work on the machine counts little. The cards are drawn
first: their time is what a reader waits for an answer, the run's is when everything below is there too. The empty page
has as many plain controls as the page beside it, and nothing else.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from streamlit.runtime.scriptrunner.script_runner import ScriptRunner
from streamlit.testing.v1 import AppTest

from benchmarks.__main__ import APP, show
from pages.ui import widgets

LIMIT = 0.1
_CONTROLS = ("selectbox", "text_input", "number_input", "multiselect", "slider", "select_slider", "checkbox", "toggle",
             "button", "segmented_control", "pills", "text_area", "radio")  # fmt: skip
_MODELS = ("Qwen/Qwen3-14B", "google/gemma-3-27b-it", "openai/gpt-oss-120b", "deepseek-ai/DeepSeek-V3",
           "meta-llama/Llama-3.3-70B-Instruct")  # fmt: skip
_ENGINES = ("sglang", "tensorrt-llm", "llama.cpp", "ollama", "transformers", "vllm")
_GPUS = ("h200-sxm", "a100-sxm-80gb", "mi300x", "b200", "l40s", "h100-sxm")
_TOKENS = ("8K", "16K", "64K", "128K", "32K")
_SHARED = {
    "tokens": ("selectbox", "tokens", _TOKENS),
    "cache format": ("selectbox", "k_format", ("fp8", "q8_0", "auto")),
    "model": ("selectbox", "model", _MODELS),
}
# Kinds of change of each page: the control, its key, and values one after the other; none is one that was there before.
CHANGES: dict[str, dict[str, tuple[str, str, tuple[Any, ...]]]] = {
    "size": _SHARED | {"engine": ("segmented_control", "engine", _ENGINES), "GPU": ("selectbox", "gpu", _GPUS)},
    "variants": _SHARED,
    "concurrency": _SHARED
    | {
        "users": ("selectbox", "plan_users", ("10", "50", "100", "4", "250", "30")),
        "engine": ("segmented_control", "engine", _ENGINES),
        "GPU": ("selectbox", "gpu", _GPUS),
        "expected prompt": ("selectbox", "plan_prompt", ("512", "2K", "16K", "32K", "6K")),
    },
    "live": {"model": ("selectbox", "model", _MODELS), "requests": ("select_slider", "live_batch", (2, 4, 1))},
    "accuracy": {"starts not counted": ("toggle", "acc_all", (True, False))},
}
_PLAIN = """
import streamlit as st
for at in range({count}):
    st.selectbox(f"Control {{at}}", ["one", "two", "three"], key=f"control_{{at}}")
"""


class Clock:
    """Seconds of the last run of a script, and until its cards were drawn (0 where there are none)."""

    def __init__(self) -> None:
        self.began = self.run = self.answer = 0.0


@contextmanager
def clocked() -> Iterator[Clock]:
    """Watch the runs of scripts meanwhile."""
    clock, run_script, row = Clock(), ScriptRunner._run_script, widgets.row

    def timed(runner: ScriptRunner, data: Any) -> None:
        clock.began, clock.answer = time.thread_time(), 0.0
        try:
            run_script(runner, data)
        finally:
            clock.run = time.thread_time() - clock.began

    def drawn(*given: Any, **named: Any) -> None:
        row(*given, **named)
        clock.answer = clock.answer or time.thread_time() - clock.began

    ScriptRunner._run_script = timed  # type: ignore[method-assign]
    widgets.row = drawn
    try:
        yield clock
    finally:
        ScriptRunner._run_script = run_script  # type: ignore[method-assign]
        widgets.row = row


def again(app: AppTest) -> None:
    app.run()
    if app.exception:
        raise SystemExit(f"the page failed: {app.exception}")


def measured(app: AppTest, clock: Clock, change: Callable[[Any], object], values: tuple[Any, ...]) -> tuple[float, ...]:
    """The median of runs after the change to each of the values, the worst of them, and the median until the cards."""
    runs, answers = [], []
    for value in values:
        change(value)
        again(app)
        runs.append(clock.run)
        answers.append(clock.answer)
    return statistics.median(runs), max(runs), statistics.median(answers)


def empty(clock: Clock, count: int) -> float:
    """A page with so many plain controls, when one of them changes."""
    app = AppTest.from_string(_PLAIN.format(count=count), default_timeout=60)
    again(app)
    again(app)
    return measured(app, clock, lambda value: app.selectbox(key="control_0").set_value(value), ("two", "three", "one"))[
        0
    ]


def page(name: str, clock: Clock) -> None:
    app = AppTest.from_file(str(APP), default_timeout=60)
    again(app)
    app.switch_page(f"pages/{name}.py")
    again(app)
    again(app)
    count = sum(len(app.get(kind)) for kind in _CONTROLS)
    bare = empty(clock, count)
    show(f"an empty page of {count} controls", bare)
    lines = {"nothing changed": (lambda value: None, (0, 1, 2))} | {
        what: (partial(_set, app, kind, key), values) for what, (kind, key, values) in CHANGES[name].items()
    }
    for what, (change, values) in lines.items():
        middle, worst, answer = measured(app, clock, change, values)
        cards_at = f", cards after {answer * 1e3:.0f} ms" if answer else ""
        beside = f"; worst {worst * 1e3:.0f} ms{cards_at}; {middle / bare:.1f} × the empty page"
        show(f"{name.title()}: {what}", middle, LIMIT, beside)


def _set(app: AppTest, kind: str, key: str, value: Any) -> None:
    next(one for one in app.get(kind) if one.key == key).set_value(value)


if __name__ == "__main__":
    with clocked() as found:
        for screen in CHANGES:
            page(screen, found)
