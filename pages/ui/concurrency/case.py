"""What the Concurrency screen asks of kvcore, each question once: answers are kept by model and deployment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from kvcore.deployment import Deployment, Split, read_split
from kvcore.errors import KVCoreError
from kvcore.model import Model
from kvcore.planning.answers import first_split, least_utilization, longest_context
from kvcore.planning.people import batched_tokens
from kvcore.planning.plan import Plan, make_plan
from kvcore.planning.pools import usable_share
from kvcore.planning.splits import Shard, shards
from kvcore.planning.sweep import Grid, grid, sequences
from kvcore.scenario.concurrency import AUTO, ConcurrencyOptions, deployment
from kvcore.scenario.scenario import Scenario
from pages.ui.concurrency import grid as plan_grid

_KEPT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCase:
    """One plan of the screen: what was chosen, the split that it came to, and the answer.

    `problem` is a sentence about a choice that had to be replaced by its default, "" where there was none.
    """

    scenario: Scenario
    options: ConcurrencyOptions
    users: int
    split: Split
    deployment: Deployment
    plan: Plan
    problem: str = ""


def case(model: Model, scenario: Scenario, options: ConcurrencyOptions) -> PlanCase:
    """The plan for these choices; what an engine refuses is in the plan."""
    problem = ""
    try:
        deployment(scenario, options, Split())
    except KVCoreError as error:
        problem, options = str(error), replace(options, more=(), have="")
    split = choose(model, scenario, options)
    wanted = deployment(scenario, options, split)
    users = options.requests(scenario)
    return PlanCase(
        scenario=scenario, options=options, users=users, split=split, deployment=wanted,
        plan=planned(model, wanted, users), problem=problem,
    )  # fmt: skip


def choose(model: Model, scenario: Scenario, options: ConcurrencyOptions) -> Split:
    """The split that was named, else the first in which the users fit; see `first_split`."""
    if options.split != AUTO:
        return read_split(options.split)
    wanted = deployment(scenario, options, Split())
    found = [one for one in splits(model, scenario.engine, options.count) if not one.refused]
    if not found:
        return Split(tp=options.count)
    return _first(model, tuple(one.onto(wanted) for one in found), options.requests(scenario)).split


@lru_cache(maxsize=_KEPT)
def _first(model: Model, tried: tuple[Deployment, ...], users: int) -> Deployment:
    return first_split(model, tried, users)


@lru_cache(maxsize=_KEPT)
def splits(model: Model, engine: str, gpus: int) -> tuple[Shard, ...]:
    """Every split of that many GPUs that somebody would try, the valid ones first."""
    return shards(model, engine, gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnSettings:
    """What an engine takes where nobody names a number, as text: `0.92`; "" where that is not known."""

    util: str
    batched: str
    seqs: str


@lru_cache(maxsize=_KEPT)
def own_settings(model: Model, wanted: Deployment) -> OwnSettings:
    """The engine's own share of the memory, tokens of a step and most requests at once, for this deployment."""

    def said(name: str, ask: Callable[[Model, Deployment], float | None], show: str) -> str:
        nothing: dict[str, Any] = {name: None}
        try:
            value = ask(model, replace(wanted, **nothing))
        except KVCoreError:
            return ""
        return "" if value is None else f"{value:{show}}"

    return OwnSettings(
        util=said("utilization", usable_share, ".2f"),
        batched=said("max_num_batched_tokens", batched_tokens, ",d"),
        seqs=said("max_num_seqs", sequences, ",d"),
    )


@lru_cache(maxsize=4 * _KEPT)
def planned(model: Model, wanted: Deployment, users: int | None) -> Plan:
    """The plan for so many requests."""
    return make_plan(model, wanted, users)


@lru_cache(maxsize=_KEPT)
def longest_for(model: Model, wanted: Deployment, users: int) -> int:
    """The longest context that so many requests may each have at once, at the safe end."""
    return longest_context(model, wanted, users).low


@lru_cache(maxsize=_KEPT)
def least_share(model: Model, wanted: Deployment, users: int) -> float | None:
    """The smallest share of the GPUs' memory with which they fit; None where there is none."""
    return least_utilization(model, wanted, users)


@lru_cache(maxsize=_KEPT)
def cells(model: Model, wanted: Deployment, users: int) -> Grid:
    """Users × context around the plan."""
    columns = plan_grid.contexts(wanted.context, model.context_limit)
    top = grid(model, wanted, columns, (1,))
    within = [ends.high for at, ends in zip(top.contexts, top.most, strict=True) if at >= columns[0]]
    return grid(model, wanted, columns, plan_grid.users(users, max(within, default=1)))


def columns(model: Model, wanted: Deployment) -> tuple[int, ...]:
    """The contexts of the curves: every doubling and the places between, with the plan's own."""
    return tuple(sorted({*plan_grid.contexts(wanted.context, model.context_limit), wanted.context}))


@lru_cache(maxsize=4 * _KEPT)
def most(model: Model, wanted: Deployment, columns: tuple[int, ...]) -> tuple[Any, ...]:
    """Requests at once at each of these contexts, low to high."""
    return grid(model, wanted, columns, (1,)).most
