"""Plans worth seeing, as people ask for them: one click each; and what was asked in public, with its answer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import streamlit as st

from kvcore.evidence.questions import questions
from kvcore.scenario.concurrency import ConcurrencyOptions
from kvcore.scenario.scenario import Scenario
from pages.ui import state, widgets
from pages.ui.text import plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A question and the view that answers it."""

    title: str
    question: str
    scenario: Scenario
    options: ConcurrencyOptions


_K = 1024
EXAMPLES: dict[str, Example] = {
    "80-gb-7b": Example(
        title="A 7B model on one 80 GB card",
        question="How many conversations does one card serve?",
        scenario=Scenario(model="meta-llama/Llama-2-7b-hf", tokens=4 * _K),
        options=ConcurrencyOptions(count=1, users=20, prompt=2 * _K),
    ),
    "ten-at-32k": Example(
        title="Ten users at 32K on Llama 3.3 70B",
        question="Ten users at 32K take 100 GiB of cache. Which cards hold that beside the weights?",
        scenario=Scenario(tokens=32 * _K),
        options=ConcurrencyOptions(count=4, users=10),
    ),
    "two-4090": Example(
        title="Two consumer cards",
        question="Two cards have 48 GB. Why is so little left for the cache?",
        scenario=Scenario(model="Qwen/Qwen3-14B", tokens=16 * _K, gpu="rtx-4090"),
        options=ConcurrencyOptions(count=2, users=4),
    ),
    "deepseek": Example(
        title="DeepSeek V3 on 8 × H200",
        question="Every tensor-parallel rank holds a copy of the latent. What do other splits hold?",
        scenario=Scenario(model="deepseek-ai/DeepSeek-V3", tokens=32 * _K, gpu="h200-sxm"),
        options=ConcurrencyOptions(count=8, users=30),
    ),
    "too-long": Example(
        title="It does not fit",
        question="30 users at 128K on 4 × H100: how much is missing, and what makes it fit?",
        scenario=Scenario(tokens=128 * _K),
        options=ConcurrencyOptions(count=4, users=30),
    ),
    "thinking": Example(
        title="A model that thinks",
        question="Long reasoning fills the cache while it is generated. How many people can think at once?",
        scenario=Scenario(model="Qwen/Qwen3-32B", tokens=32 * _K),
        options=ConcurrencyOptions(count=4, users=40, prompt=2 * _K, thinking=16 * _K, answer=1 * _K, people=200),
    ),
    "from-a-log": Example(
        title="A cache size read off a log",
        question="The log says 12.5 GiB are available for the cache. How many requests is that?",
        scenario=Scenario(model="meta-llama/Llama-3.1-8B-Instruct", tokens=8 * _K),
        options=ConcurrencyOptions(count=1, users=10, have="12.5 GiB", prompt=4 * _K),
    ),
    "one-80-gb-shared": Example(
        title="A shared system prompt",
        question="All prompts begin with the same 4K tokens. What does keeping them once gain?",
        scenario=Scenario(tokens=16 * _K),
        options=ConcurrencyOptions(users=50, prompt=6 * _K, shared=4 * _K),
    ),
}


def title(name: str) -> str:
    """An example's name in the menu."""
    return EXAMPLES[name].title


def open_chosen() -> None:
    """Go to the example that was chosen in the menu."""
    _show(st.session_state["plan_examples"])


def _show(name: str) -> None:
    found = EXAMPLES.get(name)
    if found is not None:
        state.show_plan(found.scenario, found.options)
        widgets.note(found.title)


def section() -> None:
    """All examples as questions, each with a button that answers it."""
    st.subheader("What people ask", anchor=False)
    names = list(EXAMPLES)
    for start in range(0, len(names), 4):
        for column, name in zip(st.columns(4, gap="large"), names[start : start + 4], strict=False):
            one = EXAMPLES[name]
            with column:
                st.markdown(f"**{plain(one.title)}**\n\n{plain(one.question)}")
                st.button("Show this", key=f"example_{name}", type="tertiary", icon=":material/arrow_upward:",
                          on_click=_show, args=(name,), help=one.title)  # fmt: skip
    with st.expander(f"{len(questions())} questions from public threads, each with its answer"):
        st.markdown(_asked())


@cache
def _asked() -> str:
    """What was asked in public, in our words, with its source, its answer and the view that shows it."""
    return "\n\n".join(
        f"**{plain(one.question)}** {plain(one.answer)} [Show it]({one.address.removeprefix('/')})  \n"
        f":small[{plain(one.source)}, {plain(one.date)}]"
        for one in questions()
    )
