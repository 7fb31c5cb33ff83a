"""The sections of the Concurrency screen. Each asks kvcore for its figures and draws them."""

from __future__ import annotations

from html import escape
from typing import Any

import streamlit as st

from kvcore.plan.basis import basis
from kvcore.plan.bindings import beside_stated_pool
from kvcore.plan.hourly import hourly
from kvcore.terms import Range
from kvcore.units import GIB, MAX_TOKENS, format_bytes
from pages.ui import notices, plan_answers, plan_memory, plan_said, state, theme, variant_more
from pages.ui import plan_words as words
from pages.ui.cards import Card
from pages.ui.plain import plain
from pages.ui.plan_answers import Case
from pages.ui.words import plural


def big_numbers(case: Case) -> list[Card]:
    """The four figures of the screen."""
    plan, context = case.plan, case.deployment.context
    label, tokens = "Requests at once", f"of {words.tokens(context)} each"
    binds = Card(label="What binds", value=words.BINDS[plan.binding.kind], line=plain(plan.binding.sentence))
    if plan.requests is None or plan.longest is None or plan.kv_bytes is None:
        nothing = "no figure"
        return [
            Card(label=label, value=nothing, line="as chosen it is refused"),
            Card(label="Longest request", value=nothing, line="as chosen it is refused"),
            Card(label="Cache pool", value=nothing, line="as chosen it is refused"),
            binds,
        ]
    return [
        Card(
            label=label,
            value=words.span(plan.requests),
            line=f"{tokens}; {_requests_line(case)}",
            help="How many are all at their full length at the same moment. The first figure is the safe end, with "
            "which planning goes; the second is the hopeful end of the range of overheads.",
        ),
        Card(label="Longest request", value=_longest(plan.longest), line=_longest_line(case)),
        Card(
            label="Cache pool",
            value=words.span_bytes(plan.kv_bytes),
            line=_pool_line(case),
            help="What is left on each GPU after weights and overheads. The overheads are a range, fitted on what "
            "engines logged, so this is one too.",
        ),
        binds,
    ]


def _requests_line(case: Case) -> str:
    plan = case.plan
    if plan.requests is None:
        return ""
    replicas = f" on {case.deployment.dp} replicas" if case.deployment.dp > 1 else ""
    best = f"best guess {plan.requests.best:,}{replicas}" if not plan.requests.is_one else f"all ends agree{replicas}"
    said = f"{best}; {plural(case.users, 'user')} {words.verdict(case.users, plan.requests)}"
    if plan.fits:
        return f"{said} at the safe end" if not plan.requests.is_one else said
    if plan.requests.high >= case.users:
        return f"{said}: {'at best guess' if plan.requests.best >= case.users else 'at the hopeful end only'}"
    return said


def _longest(longest: Range[int]) -> str:
    return "any length" if longest.low >= MAX_TOKENS else words.span(longest)


def _longest_line(case: Case) -> str:
    longest, limit = case.plan.longest, case.plan.model.context_limit
    if longest is None:
        return ""
    if longest.low >= MAX_TOKENS:
        return "what it keeps never grows"
    together = plan_answers.longest_for(case.plan.model, case.deployment, case.users)
    all_of_them = f"; {together:,} for each of {case.users:,} at once" if case.users > 1 and together else ""
    if limit and longest.low == limit:
        return f"tokens, alone: the model’s own limit{all_of_them}"
    return f"tokens, alone on a replica, with the memory that is left{all_of_them}"


def _pool_line(case: Case) -> str:
    gpus = case.deployment.gpus
    each = "on the one GPU" if gpus == 1 else f"on each of {gpus:,} GPUs"
    if case.deployment.kv_bytes is not None:
        return f"{each}, as you said"
    tokens = case.plan.tokens
    held = "" if tokens is None else f"; {tokens.low:,} tokens in all at the safe end"
    least = plan_answers.least_share(case.plan.model, case.deployment, case.users) if case.plan.fits else None
    share = "" if least is None else f"; {plural(case.users, 'user')} need a share of {least:.2f} of the memory"
    return f"{each}, safe to hopeful end{held}{share}"


def rent(case: Case) -> str:
    """What the GPUs cost an hour, in words; "" where no price is known."""
    found = hourly(case.deployment.gpu, case.deployment.gpus)
    if found is None:
        return ""
    return f"≈ ${found.typical:,.2f} an hour ({found.rental.tier}, offers up to {found.rental.newest})"


def memory(case: Case, colours: theme.Palette) -> None:
    """Where each GPU's memory goes."""
    plan = case.plan
    if not plan.pools:
        return
    found = plan_memory.shares(plan)
    worst = max(found, key=lambda share: (share.missing, share.used))
    st.subheader(words.memory_title(plan, worst.missing, worst.used), anchor=False)
    chart, alt = plan_memory.memory_chart(found, plan.pools[0].total_bytes, colours)
    config = theme.chart_config("kv-cache-gpu-memory")
    st.plotly_chart(chart, theme=None, config=config, alt=alt, key="memory_chart")
    st.html(plan_memory.legend(found, colours))
    each = "each GPU" if len(found) == 1 else "each GPU of a group"
    st.caption(f"To scale, {each}; the line is the end of its memory as the driver reports it. {_stated(case)}")


def _stated(case: Case) -> str:
    if case.deployment.kv_bytes is not None:
        return "The cache is as you said, so overheads are not estimated."
    return "Planning counts the hatched range as overhead."


def refusal(case: Case) -> None:
    """Why there is no figure, or what was replaced."""
    notice = notices.place("plan")
    if case.problem:
        notice.warning(f"{plain(case.problem)}. The engine’s own is taken instead.", icon=":material/info:")
    plan = case.plan
    if plan.refused:
        notice.error(plain(plan.binding.sentence), icon=":material/error:")
    for note in beside_stated_pool(basis(plan.model, case.deployment)):
        notice.warning(plain(note), icon=":material/warning:")


def how(case: Case) -> None:
    """The terms of the plan, and what is to know about it."""
    with st.expander("How it is computed"):
        lines = "".join(
            f"<strong>{escape(term.name)}</strong> <small>{_known(term.knowledge)}</small><p>{escape(term.formula)}</p>"
            for term in dict.fromkeys(case.plan.terms)
        )
        st.html(f"<div class='kv-terms'>{lines}</div>")
        for note in case.plan.notes:
            st.caption(plain(note))
        variant_more.download(
            lambda: [
                {"term": term.name, "formula": term.formula, "value": term.value, "unit": term.unit,
                 "known": term.knowledge}
                for term in case.plan.terms
            ],
            "kv-cache-plan", "terms",
        )  # fmt: skip


def _known(knowledge: str) -> str:
    return {"exact": "exact", "estimated": "≈ estimated", "upper_bound": "at most", "measured": "measured"}[knowledge]


def go(case: Case, changed: Any, users: int | None = None, what: str = "") -> None:
    """Apply a changed deployment: a button's callback; `what` it changes is said over the page."""
    from kvcore.plan.options import taken

    scenario, options = taken(case.scenario, case.options, changed, users)
    state.show_plan(scenario, options)
    plan_said.note(what)


def gib(value: int) -> str:
    """Bytes in GiB with one digit, as logs print them."""
    return f"{value / GIB:,.1f} GiB" if value >= GIB else format_bytes(value, 1)
