"""Two plans side by side: the one that was kept and the one that is chosen now."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache

import streamlit as st

from kvcore.engines.registry import labels
from kvcore.errors import KVCoreError
from kvcore.hardware.prices import hourly
from kvcore.scenario.concurrency import keep, kept
from kvcore.scenario.scenario import Scenario, decode_config
from kvcore.sources import files
from kvcore.units import format_tokens
from pages.ui import models, state, widgets
from pages.ui.concurrency import address, words
from pages.ui.concurrency import case as plan_answers
from pages.ui.concurrency.case import PlanCase
from pages.ui.models import Chosen, Refusal
from pages.ui.text import plain


def section(chosen: Chosen, case: PlanCase) -> None:
    """Keep this plan, or see the kept one beside it."""
    other = _kept(case)
    if other is None:
        st.subheader("Compare this plan with another", anchor=False)
        with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
            st.button(
                "Keep as plan A", key="keep_plan", on_click=_keep, args=(chosen, case), icon=":material/push_pin:"
            )
            st.caption("Then change anything: both plans stand side by side, also in the link.", width="content")
        return
    there, before = other
    st.subheader(plain(_title(before, case)), anchor=False)
    rows = _rows((there, before), (chosen, case))
    columns = (("", ""), ("plan A, kept", ""), ("plan B, this one", ""))
    st.html(widgets.table("Two plans side by side", columns, rows))
    with st.container(horizontal=True, gap="small"):
        st.button("Go to plan A", key="swap_plan", on_click=_swap, args=(chosen, case), icon=":material/swap_horiz:",
                  help="Plan A becomes the one on the screen, this one is kept.")  # fmt: skip
        st.button("Keep this instead", key="keep_plan", on_click=_keep, args=(chosen, case), icon=":material/push_pin:")
        st.button("Forget plan A", key="forget_plan", on_click=_forget, icon=":material/close:", type="tertiary")


def _keep(chosen: Chosen, case: PlanCase) -> None:
    try:
        if chosen.config is None:
            raise KVCoreError("Kept plans travel in the link, and this model's configuration is too large for one")
        st.session_state[address.key("kept")] = keep(case.scenario, case.options)
    except KVCoreError as problem:
        st.session_state.setdefault("problems", []).append(words.ended(str(problem)))


def _swap(chosen: Chosen, case: PlanCase) -> None:
    scenario, options = kept(case.options.kept)
    try:
        state.show_plan(scenario, replace(options, kept=keep(case.scenario, case.options), curves=case.options.curves,
                                          lever=case.options.lever))  # fmt: skip
        widgets.note("Plan A is on the screen now, the other one is kept")
    except KVCoreError as problem:
        st.session_state.setdefault("problems", []).append(words.ended(str(problem)))


def _forget() -> None:
    st.session_state[address.key("kept")] = ""


def _kept(case: PlanCase) -> tuple[Chosen, PlanCase] | None:
    if not case.options.kept:
        return None
    scenario, options = kept(case.options.kept)
    found = _model(scenario)
    if isinstance(found, Refusal):
        st.caption(plain(f"Plan A cannot be shown: {found.message}."))
        return None
    return found, plan_answers.case(found.model, scenario, options)


def _model(scenario: Scenario) -> Chosen | Refusal:
    if not scenario.config:
        return models.from_catalogue(scenario.model, scenario.bound)
    return _own(scenario.config, scenario.model, scenario.bound)


@lru_cache(maxsize=8)
def _own(config: str, name: str, bound: bool) -> Chosen | Refusal:
    try:
        loaded = files.from_json(json.dumps(decode_config(config)), name, upper_bound=bound)
    except KVCoreError as problem:
        return Refusal(name=name, message=str(problem))
    return models.from_own(loaded, name)


def _title(before: PlanCase, after: PlanCase) -> str:
    one, other = before.plan.requests, after.plan.requests
    if one is None or other is None:
        return "Two plans side by side"
    held = f"{words.span(one)} requests before, {words.span(other)} now"
    if not one.low or before.deployment.context != after.deployment.context:
        return f"Plan A against plan B: {held}"
    return (
        f"Plan B holds {words.factor(other.low / one.low)} what plan A holds: {held}"
        if other.low != one.low
        else (f"Plan B holds as much as plan A: {words.span(other)} requests")
    )


def _rent(case: PlanCase) -> str | tuple[str, str]:
    found = hourly(case.deployment.gpu, case.deployment.gpus)
    if found is None:
        return "no price is known"
    return (f"${found.typical:,.2f} an hour", f"{found.rental.tier}, offers up to {found.rental.newest}")


def _number(chosen: int | None, own: str) -> str | tuple[str, str]:
    """A setting that was chosen, else what the engine takes where that is known."""
    if chosen is not None:
        return f"{chosen:,}"
    return (own, "the engine’s own") if own else "the engine’s own"


def _asked(case: PlanCase) -> str:
    held = case.plan.requests
    return f"{case.users:,}: {'refused' if held is None else words.verdict(case.users, held)}"


def _rows(one: tuple[Chosen, PlanCase], other: tuple[Chosen, PlanCase]) -> list[list[str | tuple[str, str]]]:
    sides = [_side(*one), _side(*other)]
    return [[name, sides[0][name], sides[1][name]] for name in sides[0]]


def _side(chosen: Chosen, case: PlanCase) -> dict[str, str | tuple[str, str]]:
    plan, deployment = case.plan, case.deployment
    layout = plan.layout
    own = plan_answers.own_settings(plan.model, deployment)
    share = "the engine’s own" if deployment.utilization is None else f"{deployment.utilization:g}"
    return {
        "model": chosen.name,
        "GPUs": (words.place_words(plan), words.split_words(deployment)),
        "engine": (labels()[deployment.engine], f"share of the memory: {share}"),
        "tokens a step": _number(deployment.max_num_batched_tokens, own.batched),
        "most requests at once": _number(deployment.max_num_seqs, own.seqs),
        "weights": deployment.weight_format or plan.model.checkpoint_format or plan.model.model_dtype,
        "cache": layout.kv_dtype if layout else deployment.kv_dtype,
        "longest request": f"{format_tokens(deployment.context)} tokens",
        "requests at once": "refused" if plan.requests is None else words.span(plan.requests),
        "asked for": _asked(case),
        "rent": _rent(case),
        "cache pool of a GPU": "–" if plan.kv_bytes is None else words.span_bytes(plan.kv_bytes),
        "what binds": (words.BINDS[plan.binding.kind], plan.binding.sentence),
    }
