"""Users × context on the screen: the heat map, two numbers that move the plan without a mouse, the same as a table."""

from __future__ import annotations

from typing import Any

import streamlit as st

from kvcore.model import Model
from kvcore.plan.grid import Grid
from kvcore.plan.sweep import sequences
from kvcore.terms import Range
from kvcore.units import MAX_BATCH, MAX_TOKENS, format_tokens
from pages.ui import html_table, plan_answers, plan_grid, plan_said, plan_state, theme, variant_more
from pages.ui import plan_words as words
from pages.ui.plain import plain
from pages.ui.plan_answers import Case
from pages.ui.words import plural

_TOKENS, _USERS = "cell_tokens", "cell_users"


def section(model: Model, case: Case, colours: theme.Palette) -> None:
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
    chart, alt = plan_grid.grid_chart(
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
        st.html(html_table.table("Requests at once by the longest request", columns, _table(case, found)))
        variant_more.download(lambda: rows(case, found), "kv-cache-concurrency", "cells")


def _place(case: Case) -> None:
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


def cell_words(case: Case) -> str:
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
    keep["tokens"], keep[plan_state.key("users")] = format_tokens(tokens), str(users)
    plan_said.note(f"{plural(users, 'request')} of {words.tokens(tokens)}")


def _table(case: Case, found: Grid) -> list[list[str]]:
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


def rows(case: Case, found: Grid) -> list[dict[str, object]]:
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
