"""The sections of the Concurrency screen. Each asks kvcore for its figures and draws them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from html import escape
from typing import Any

import streamlit as st

from kvcore.deployment import Deployment
from kvcore.engines.command import Command
from kvcore.engines.registry import engine, engine_names, labels
from kvcore.errors import KVCoreError
from kvcore.hardware.prices import hourly
from kvcore.model import Model
from kvcore.planning.answers import Recommendation, recommend
from kvcore.planning.launch import launch
from kvcore.planning.plan import basis, beside_stated_pool
from kvcore.planning.splits import check
from kvcore.planning.sweep import Grid, sequences
from kvcore.scenario.concurrency import AUTO
from kvcore.terms import Range
from kvcore.units import GIB, MAX_BATCH, MAX_TOKENS, format_bytes, format_tokens
from pages.ui import state, theme, widgets
from pages.ui.concurrency import address, grid, words
from pages.ui.concurrency import case as plan_answers
from pages.ui.concurrency import memory as plan_memory
from pages.ui.concurrency.case import PlanCase
from pages.ui.size.words import plural
from pages.ui.text import plain
from pages.ui.variants import lower
from pages.ui.widgets import Card


def big_numbers(case: PlanCase) -> list[Card]:
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


def _requests_line(case: PlanCase) -> str:
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


def _longest_line(case: PlanCase) -> str:
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


def _pool_line(case: PlanCase) -> str:
    gpus = case.deployment.gpus
    each = "on the one GPU" if gpus == 1 else f"on each of {gpus:,} GPUs"
    if case.deployment.kv_bytes is not None:
        return f"{each}, as you said"
    tokens = case.plan.tokens
    held = "" if tokens is None else f"; {tokens.low:,} tokens in all at the safe end"
    least = plan_answers.least_share(case.plan.model, case.deployment, case.users) if case.plan.fits else None
    share = "" if least is None else f"; {plural(case.users, 'user')} need a share of {least:.2f} of the memory"
    return f"{each}, safe to hopeful end{held}{share}"


def rent(case: PlanCase) -> str:
    """What the GPUs cost an hour, in words; "" where no price is known."""
    found = hourly(case.deployment.gpu, case.deployment.gpus)
    if found is None:
        return ""
    return f"≈ ${found.typical:,.2f} an hour ({found.rental.tier}, offers up to {found.rental.newest})"


def memory(case: PlanCase, colours: theme.Palette) -> None:
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


def _stated(case: PlanCase) -> str:
    if case.deployment.kv_bytes is not None:
        return "The cache is as you said, so overheads are not estimated."
    return "Planning counts the hatched range as overhead."


def refusal(case: PlanCase) -> None:
    """Why there is no figure, or what was replaced."""
    notice = widgets.place("plan")
    if case.problem:
        notice.warning(f"{plain(case.problem)}. The engine’s own is taken instead.", icon=":material/info:")
    plan = case.plan
    if plan.refused:
        notice.error(plain(plan.binding.sentence), icon=":material/error:")
    for note in beside_stated_pool(basis(plan.model, case.deployment)):
        notice.warning(plain(note), icon=":material/warning:")


def how(case: PlanCase) -> None:
    """The terms of the plan, and what is to know about it."""
    with st.expander("How it is computed"):
        lines = "".join(
            f"<strong>{escape(term.name)}</strong> <small>{_known(term.knowledge)}</small><p>{escape(term.formula)}</p>"
            for term in dict.fromkeys(case.plan.terms)
        )
        st.html(f"<div class='kv-terms'>{lines}</div>")
        for note in case.plan.notes:
            st.caption(plain(note))
        lower.download(
            lambda: [
                {"term": term.name, "formula": term.formula, "value": term.value, "unit": term.unit,
                 "known": term.knowledge}
                for term in case.plan.terms
            ],
            "kv-cache-plan", "terms",
        )  # fmt: skip


def _known(knowledge: str) -> str:
    return {"exact": "exact", "estimated": "≈ estimated", "upper_bound": "at most", "measured": "measured"}[knowledge]


def go(case: PlanCase, changed: Any, users: int | None = None, what: str = "") -> None:
    """Apply a changed deployment: a button's callback; `what` it changes is said over the page."""
    from kvcore.scenario.concurrency import taken

    scenario, options = taken(case.scenario, case.options, changed, users)
    state.show_plan(scenario, options)
    widgets.note(what)


def gib(value: int) -> str:
    """Bytes in GiB with one digit, as logs print them."""
    return f"{value / GIB:,.1f} GiB" if value >= GIB else format_bytes(value, 1)


_TOKENS, _USERS = "cell_tokens", "cell_users"


def cells(model: Model, case: PlanCase, colours: theme.Palette) -> None:
    """Users × context, with a click or two numbers that move the plan."""
    if case.plan.requests is None:
        return
    found = plan_answers.cells(model, case.deployment, case.users)
    if not any(ends.high for ends in found.most):
        st.subheader("No request of any length fits", anchor=False)
        st.caption("There is no room for a cache here, however short the requests are: see above what would make some.")
        return
    half = plan_answers.most(model, case.deployment, (max(1, case.deployment.context // 2),))[0]
    st.subheader(words.grid_title(case.plan, half), anchor=False)
    most = sequences(model, case.deployment)
    chart, alt = grid.grid_chart(
        found, tokens=case.deployment.context, wanted=case.users, limit=model.context_limit,
        sequences=None if most is None else most * case.deployment.dp, colours=colours,
    )  # fmt: skip
    st.plotly_chart(
        chart, theme=None, config=theme.chart_config("kv-cache-users-context"), alt=alt, key="cells_chart",
        on_select=_clicked, selection_mode="points",
    )  # fmt: skip
    st.caption(
        "Blue: fits, stronger where less room is left. Amber: may fit, or not. Grey: does not fit. ○ the "
        "plan: click another cell to move it there, or type its place below. "
        + plain(f"Limits: {'; '.join(found.limits)}." if found.limits else "")
    )
    _place(case)
    with st.expander("The same as a table"):
        columns = (("longest request, tokens", ""), ("requests at once, safe end", "n"), ("best guess", "n"),
                   ("hopeful end", "n"), ("what is asked for", ""))  # fmt: skip
        st.html(widgets.table("Requests at once by the longest request", columns, _table(case, found)))
        lower.download(lambda: rows(case, found), "kv-cache-concurrency", "cells")


def _place(case: PlanCase) -> None:
    """The cell of the plan as two numbers, and what is said about it."""
    keep = st.session_state
    keep[_TOKENS], keep[_USERS] = case.deployment.context, case.users
    with st.container(key="cell_controls", horizontal=True, vertical_alignment="bottom", gap="small"):
        st.number_input(
            "Tokens of a request", 1, MAX_TOKENS, key=_TOKENS, step=1024, width=160, on_change=_typed,
            help="The column of the heat map. The same as Tokens at the top of the page.",
        )  # fmt: skip
        st.number_input(
            "Requests at once", 1, MAX_BATCH, key=_USERS, step=1, width=160, on_change=_typed,
            help="The row of the heat map. The same as Users at once at the top of the page.",
        )  # fmt: skip
        st.markdown(plain(cell_words(case)), width=420)


def cell_words(case: PlanCase) -> str:
    """What the heat map says of the plan's cell."""
    held, context = case.plan.requests, case.deployment.context
    asked = f"{plural(case.users, 'request')} of {words.tokens(context)}"
    if held is None:
        return ""
    said = f"{asked} {words.verdict(case.users, held)}"
    if case.users <= held.low:
        return f"{said}: {case.users / held.low:.0%} of the {held.low:,} that surely do."
    return f"{said}: {words.to(held)} do."


def _clicked() -> None:
    """Take the cell that was clicked."""
    keep = st.session_state
    points = keep["cells_chart"]["selection"]["points"] if "cells_chart" in keep else []
    data: Any = points[0].get("customdata") if points else None
    if data is None:
        return
    values = [data[name] for name in sorted(data)] if isinstance(data, dict) else list(data)
    _move(int(values[0]), int(values[1]))


def _typed() -> None:
    """Take the cell that was typed."""
    keep = st.session_state
    _move(int(keep[_TOKENS]), int(keep[_USERS]))


def _move(tokens: int, users: int) -> None:
    keep = st.session_state
    keep["tokens"], keep[address.key("users")] = format_tokens(tokens), str(users)
    widgets.note(f"{plural(users, 'request')} of {words.tokens(tokens)}")


def _table(case: PlanCase, found: Grid) -> list[list[str]]:
    """A row a doubling, and the plan's own context."""
    wanted = case.deployment.context
    shown = [
        (context, ends)
        for context, ends in zip(found.contexts, found.most, strict=True)
        if context == wanted or context & (context - 1) == 0 or context == found.contexts[-1]
    ]
    return [
        [f"{context:,}", f"{ends.low:,}", f"{ends.best:,}", f"{ends.high:,}", _fits(case.users, ends)]
        for context, ends in shown
    ]


def _fits(users: int, ends: Range[int]) -> str:
    return f"{users:,} {words.verdict(users, ends)}"


def rows(case: PlanCase, found: Grid) -> list[dict[str, object]]:
    """What fits at each context, for a file."""
    return [
        {
            "model": case.plan.model.name,
            "engine": case.deployment.engine,
            "GPU": case.deployment.gpu.id,
            "GPUs": case.deployment.gpus,
            "split": case.split.text,
            "longest request, tokens": context,
            "requests at once, safe end": ends.low,
            "requests at once, best guess": ends.best,
            "requests at once, hopeful end": ends.high,
        }
        for context, ends in zip(found.contexts, found.most, strict=True)
    ]


_SHOWN = 12
_ASKED = "plan_hardware_asked"


@lru_cache(maxsize=32)
def _found(model: Model, wanted: Deployment, users: int) -> tuple[Recommendation, ...]:
    return recommend(model, context=wanted.context, users=users, engine=wanted.engine, base=wanted)


def hardware(model: Model, case: PlanCase) -> None:
    """A heading that says what is asked, and the answer once somebody asked for it."""
    question = (model.name, case.deployment, case.users)
    who = f"{plural(case.users, 'request')} of {format_tokens(case.deployment.context)}"
    if st.session_state.get(_ASKED) != question:
        st.subheader(plain(f"Which hardware holds {who} for the least money?"), anchor=False)
        st.button(
            "Compare every GPU", key="hardware_go", icon=":material/search:", on_click=_ask, args=(question,),
            help="Every GPU of the catalogue, up to 16 of them, in every split that the engine can serve.",
        )  # fmt: skip
        return
    try:
        found = _found(model, case.deployment, case.users)
    except KVCoreError as problem:
        st.subheader(plain(f"Which hardware holds {who}?"), anchor=False)
        st.caption(plain(words.ended(str(problem))))
        return
    st.subheader(plain(_title(found, who)), anchor=False)
    if not found:
        st.caption("No GPU of the catalogue, up to 16 of them, holds so many at the safe end.")
        return
    columns = (("hardware", "w"), ("split", "w"), ("requests at once", "n"), ("$ an hour", "n"),
               ("$ an hour for each request", "n"))  # fmt: skip
    st.html(widgets.table("Hardware that holds the users", columns, [_row(one) for one in found[:_SHOWN]]))
    explained = words.glossary(
        (words.split_words(one.deployment) for one in found[:_SHOWN]), but=words.split_words(case.deployment)
    )
    if explained:
        st.caption(plain(explained))
    _apply(case, found)
    lower.download(lambda: [_line(one) for one in found], "kv-cache-hardware", "hardware")
    st.caption(
        f"{plural(len(found), 'kind')} of GPU hold them at the safe end; each with the fewest that do, the first "
        f"{min(_SHOWN, len(found))} shown. Prices are typical published offers for all GPUs, with their dates in the "
        "file; GPUs without a known price come last. How fast they answer is not weighed here."
    )


def _ask(question: object) -> None:
    st.session_state[_ASKED] = question


def _title(found: Sequence[Recommendation], who: str) -> str:
    if not found or found[0].usd_per_hour is None:
        return f"Hardware that holds {who}"
    first = found[0]
    return f"{_name(first)} hold {who} for ${found[0].usd_per_hour.typical:,.2f} an hour"


def _name(one: Recommendation) -> str:
    return f"{one.gpus} × {one.gpu.name}"


def _price(one: Recommendation) -> str:
    return "not known" if one.usd_per_hour is None else f"{one.usd_per_hour.typical:,.2f}"


def _row(one: Recommendation) -> list[str]:
    each = one.usd_per_hour_a_request
    return [
        _name(one), words.split_words(one.deployment), words.span(one.requests), _price(one),
        "not known" if each is None else f"{each:,.2f}",
    ]  # fmt: skip


def _line(one: Recommendation) -> dict[str, object]:
    price = one.usd_per_hour
    return {
        "gpu": one.gpu.name, "gpus": one.gpus, "split": words.split_words(one.deployment),
        "requests low": one.requests.low, "requests high": one.requests.high,
        "usd an hour": None if price is None else price.typical, "in words": one.sentence,
    }  # fmt: skip


def _apply(case: PlanCase, found: Sequence[Recommendation]) -> None:
    by_name = {_name(one): one for one in found}
    left, right = st.columns([5, 1.2], vertical_alignment="bottom")
    with left:
        name = st.selectbox("Plan with", list(by_name), key="hardware_any")
    if name in by_name:
        right.button(
            "Use it", key="hardware_use", on_click=go, width="stretch",
            args=(case, by_name[name].deployment, None, name),
        )  # fmt: skip


@lru_cache(maxsize=128)
def _command(model: Model, wanted: Deployment, users: int) -> Command | str:
    try:
        # Some engines make their slots for the users; others take requests as they come.
        return launch(model, wanted, users)
    except KVCoreError as problem:
        return str(problem)


@lru_cache(maxsize=128)
def _logged(model: Model, wanted: Deployment, kv_bytes: int) -> tuple[str, ...]:
    """What one replica would log about such a pool; nothing where the engine logs nothing or refuses."""
    try:
        chosen = engine(wanted.engine)
        return chosen.capacity(model, chosen.settings(model, wanted), kv_bytes).log_lines
    except KVCoreError:
        return ()


def _log(model: Model, case: PlanCase) -> None:
    """The lines to look for in the server's log, at the safe end and at best guess."""
    pool = case.plan.kv_bytes
    if pool is None or pool.low <= 0 or case.plan.requests is None or case.deployment.pp > 1:
        return
    lines = _logged(model, case.deployment, pool.best)
    if not lines:
        return
    least = _logged(model, case.deployment, pool.low)
    st.caption("It will log about this, at best guess" + (":" if least == lines else "; at the safe end, below it:"))
    st.code("\n".join(lines if least == lines else (*lines, "", *least)), language=None, wrap_lines=True)


@st.fragment
def commands(model: Model, case: PlanCase) -> None:
    """One tab an engine, the plan's own first; a command is made when its tab is opened, and nothing else then."""
    st.subheader("The command that starts it", anchor=False)
    mine = case.deployment.engine
    names = [mine, *(name for name in engine_names() if name != mine)]
    tabs = st.tabs([labels()[name] for name in names], key=f"launch_{mine}", on_change="rerun")
    for tab, name in zip(tabs, names, strict=True):
        if not tab.open:
            continue
        with tab:
            wanted = case.deployment if name == mine else _with(model, case, name)
            if name == mine and not case.plan.fits:
                lacks = "does not start" if case.plan.requests is None or not case.plan.requests.low else "is too small"
                st.caption(f"As planned it {lacks} for these users: see above what makes it fit.")
            show(_command(model, wanted, case.users))
            if name == mine:
                _log(model, case)
    st.caption(
        "Only what differs from the engine’s defaults, or what the plan relies on. Another engine holds another number."
    )


def _with(model: Model, case: PlanCase, name: str) -> Deployment:
    """The plan with another engine, in a split that it takes; this one's own options and version mean nothing to it."""
    wanted = replace(case.deployment, engine=name, engine_version=None, options=())
    if not check(model, wanted):
        return wanted
    split = plan_answers.choose(model, replace(case.scenario, engine=name), replace(case.options, split=AUTO))
    return replace(
        wanted, tp=split.tp, pp=split.pp, dp=split.dp, dcp=split.dcp, expert_parallel=split.expert_parallel,
        dp_attention=split.dp_attention,
    )  # fmt: skip


def show(found: Command | str) -> None:
    """The command with all that it needs, each part to be copied; or the sentence that says why there is none."""
    if isinstance(found, str):
        st.info(plain(found), icon=":material/info:")
        return
    st.code(found.text, language=None, wrap_lines=True)
    for file, content in found.files:
        st.caption(plain(f"{file}, which it reads:"))
        st.code(content, language=None, wrap_lines=True)
    for note in found.notes:
        st.caption(plain(note))
