"""The commands that start each engine as the plan has it."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import streamlit as st

from kvcore.engines.command import Command
from kvcore.engines.registry import NAMES, engine
from kvcore.errors import KVCoreError
from kvcore.model import Model
from kvcore.plan.deployment import Deployment
from kvcore.plan.launch import launch
from kvcore.plan.options import AUTO
from kvcore.plan.shards import check
from pages.ui import launch_shown, plan_answers
from pages.ui.plan_answers import Case
from pages.ui.trio_words import ENGINES


@lru_cache(maxsize=128)
def _command(model: Model, wanted: Deployment, users: int) -> Command | str:
    try:
        # Slots of llama.cpp and Ollama are made for the users; other engines take requests as they come.
        return launch(model, wanted, users)
    except KVCoreError as problem:
        return str(problem)


@lru_cache(maxsize=128)
def _logged(model: Model, wanted: Deployment, kv_bytes: int) -> tuple[str, ...]:
    """What one replica would log about such a pool; nothing where the engine logs nothing or refuses."""
    try:
        return engine(wanted.engine).capacity(model, wanted.settings(model), kv_bytes).log_lines
    except KVCoreError:
        return ()


def _log(model: Model, case: Case) -> None:
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
def commands(model: Model, case: Case) -> None:
    """One tab an engine, the plan's own first; a command is made when its tab is opened, and nothing else then."""
    st.subheader("The command that starts it", anchor=False)
    mine = case.deployment.engine
    names = [mine, *(name for name in NAMES if name != mine)]
    tabs = st.tabs([ENGINES[name] for name in names], key=f"launch_{mine}", on_change="rerun")
    for tab, name in zip(tabs, names, strict=True):
        if not tab.open:
            continue
        with tab:
            wanted = case.deployment if name == mine else _with(model, case, name)
            if name == mine and not case.plan.fits:
                lacks = "does not start" if case.plan.requests is None or not case.plan.requests.low else "is too small"
                st.caption(f"As planned it {lacks} for these users: see above what makes it fit.")
            launch_shown.show(_command(model, wanted, case.users))
            if name == mine:
                _log(model, case)
    st.caption(
        "Only what differs from the engine’s defaults, or what the plan relies on. Another engine holds another number."
    )


def _with(model: Model, case: Case, name: str) -> Deployment:
    """The plan with another engine, in a split that it takes; this one's own options and version mean nothing to it."""
    wanted = replace(case.deployment, engine=name, engine_version=None, options=())
    if not check(model, wanted):
        return wanted
    split = plan_answers.choose(model, replace(case.scenario, engine=name), replace(case.options, split=AUTO))
    return replace(
        wanted, tp=split.tp, pp=split.pp, dp=split.dp, dcp=split.dcp, expert_parallel=split.expert_parallel,
        dp_attention=split.dp_attention,
    )  # fmt: skip
