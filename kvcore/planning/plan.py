"""One deployment planned: what is left for the cache, how many requests that holds, and what runs out first."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from kvcore.deployment import Deployment
from kvcore.engines.base import Fill, Layout
from kvcore.engines.registry import engine
from kvcore.errors import EngineError, UnitError
from kvcore.model.model import Model
from kvcore.planning.basis import NONE, Basis, Held, basis, sizes
from kvcore.planning.bindings import Binding, beside_stated_pool, beyond_limit, memory_gone, refusal, running_out
from kvcore.planning.pools import Pool
from kvcore.planning.shards import notes as shard_notes
from kvcore.planning.versions import newer_note
from kvcore.ranks.speculation import notes as speculation_notes
from kvcore.terms import Range, Term
from kvcore.units import MAX_BATCH

__all__ = ["Binding", "Plan", "make_plan", "plan_from", "starting"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a deployment holds. Memory is that of one GPU, tokens and requests those of all replicas together.

    `fits`: `users` requests of the deployment's context (one where None) fit at the safe end of every range.
    `kv_bytes` is the smallest pool of all stages. `concurrency` is as the engine counts it; `requests` are whole ones,
    also within the number of sequences that the engine allows. `longest` is the longest context of one request, and
    `request_bytes` what a request of the deployment's context takes on a GPU of each stage.
    Where the engine or the split is refused, `refused` says why and the figures are None.
    """

    model: Model
    deployment: Deployment
    users: int | None
    refused: str
    layout: Layout | None
    pools: tuple[Pool, ...]
    kv_bytes: Range[int] | None
    tokens: Range[int] | None
    concurrency: Range[Fraction] | None
    requests: Range[int] | None
    longest: Range[int] | None
    fits: bool
    binding: Binding
    terms: tuple[Term, ...]
    notes: tuple[str, ...]
    request_bytes: tuple[int, ...] = ()


def make_plan(model: Model, deployment: Deployment, users: int | None = None) -> Plan:
    """The plan for so many requests at once, one where None. What an engine refuses is an answer and not an error.

    Raises UnitError for a number of users that cannot be, or the name of a format that is not known.
    """
    if users is not None and not 1 <= users <= MAX_BATCH:
        raise UnitError(f"users: {users!r} is outside 1 … {MAX_BATCH:,}")
    return plan_from(basis(model, deployment), users)


def plan_from(base: Basis, users: int | None = None) -> Plan:
    """The plan of a basis that is already there."""
    refused = refusal(base)
    if refused is not None or base.cache is None:
        return _nothing(base, users, refused or Binding(kind="engine", sentence=base.refused), base.refused)
    beyond = beyond_limit(base)
    if beyond is not None:
        return _plan(base, users, beyond, requests=NONE, longest=base.longest())
    context = base.deployment.context
    if context < 1:
        return _nothing(base, users, Binding(kind="engine", sentence="A request has at least one token."), "no tokens")
    fills: Range[Fill] | None = None
    try:
        if base.cache.keeps_cache:
            fills = base.fills(context)
        requests = base.without_cache(context) if fills is None else fills.map(base.whole)
        layout = base.cache.layout(context, max(1, users or min(1, requests.low)))
    except EngineError as error:
        return _nothing(base, users, Binding(kind="engine", sentence=str(error)), str(error))
    binding = memory_gone(base) or running_out(base, users, fills, requests)
    return _plan(base, users, binding, requests=requests, longest=base.longest(), layout=layout, fills=fills)


def starting(base: Basis, users: int | None = None) -> Held | None:
    """The figures of `plan_from` without its words; None where that plan would be refused."""
    context = base.deployment.context
    if base.refused or base.cache is None or context < 1:
        return None
    held = base.held(context)
    try:
        if base.allows(context):
            base.cache.layout(context, max(1, users or min(1, held.requests.low)))
    except EngineError:
        return None
    return held


def _plan(
    base: Basis,
    users: int | None,
    binding: Binding,
    *,
    requests: Range[int],
    longest: Range[int],
    layout: Layout | None = None,
    fills: Range[Fill] | None = None,
) -> Plan:
    replicas = base.deployment.dp
    kv_bytes = sizes(base.pools).map(min)
    return Plan(
        model=base.model,
        deployment=base.deployment,
        users=users,
        refused="",
        layout=layout,
        pools=base.pools,
        kv_bytes=kv_bytes,
        tokens=None if fills is None else fills.map(lambda fill: fill.tokens * replicas),
        concurrency=None if fills is None else fills.map(lambda fill: fill.concurrency * replicas),
        requests=requests,
        longest=longest,
        fits=requests.low >= (users or 1),
        binding=binding,
        terms=_terms(base, layout, fills, requests),
        notes=_notes(base, layout, longest),
        request_bytes=base.cache.request_bytes(base.deployment.context) if base.cache and fills else (),
    )


def _nothing(base: Basis, users: int | None, binding: Binding, refused: str) -> Plan:
    return Plan(
        model=base.model,
        deployment=base.deployment,
        users=users,
        refused=refused,
        layout=None,
        pools=base.pools,
        kv_bytes=None,
        tokens=None,
        concurrency=None,
        requests=None,
        longest=None,
        fits=False,
        binding=binding,
        terms=tuple(term for pool in base.pools[:1] for term in pool.terms),
        notes=(),
    )


def _terms(base: Basis, layout: Layout | None, fills: Range[Fill] | None, requests: Range[int]) -> tuple[Term, ...]:
    terms: list[Term] = []
    for pool in base.pools:
        if len(base.pools) > 1:
            terms.append(
                Term(
                    name=f"stage {pool.stage}",
                    formula=f"{pool.gpus:,} {'GPU' if pool.gpus == 1 else 'GPUs'} with these layers",
                    value=pool.gpus,
                    unit="GPUs",
                )
            )
        terms += pool.terms
    if layout is not None:
        terms += layout.terms
    if fills is None or base.cache is None:
        return tuple(terms)
    terms += base.cache.terms(base.deployment.context, sizes(base.pools).low)
    replicas, most = base.deployment.dp, base.cache.sequences
    each = fills.low.requests if most is None else min(fills.low.requests, most)
    text = f"{fills.low.requests:,} a replica"
    if most is not None:
        text += f", {base.cache.sequences_name} allows {most:,}"
    text += f"; {each:,} × {replicas} replicas = {requests.low:,}" if replicas > 1 else f": {requests.low:,}"
    known: Literal["exact", "estimated"] = "estimated" if base.deployment.kv_bytes is None else "exact"
    terms.append(Term(name="requests at once", formula=text, value=requests.low, unit="requests", knowledge=known))
    return tuple(terms)


def _notes(base: Basis, layout: Layout | None, longest: Range[int]) -> tuple[str, ...]:
    newer = newer_note(base.deployment)
    notes: dict[str, None] = {newer: None} if newer else {}
    notes |= dict.fromkeys(f"{note}." for note in shard_notes(base.model, base.deployment))
    chosen = engine(base.deployment.engine)
    notes |= dict.fromkeys(speculation_notes(base.model, base.deployment, chosen))
    for pool in base.pools:
        notes |= dict.fromkeys(pool.overheads.notes)
    if layout is not None:
        notes |= dict.fromkeys(layout.notes)
    if base.limit is not None and longest.low == base.limit:
        notes[f"One request may be as long as the model takes: {base.limit:,} tokens, its limit."] = None
    notes |= dict.fromkeys(beside_stated_pool(base))
    notes |= dict.fromkeys(chosen.plan_notes)
    return tuple(notes)
