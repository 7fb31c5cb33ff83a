"""What of a plan does not depend on the context or the number of users: made once, asked for every cell of a grid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Literal

from kvcore.deployment import Deployment
from kvcore.engines.base import CachePool, Fill
from kvcore.engines.layout import Layout
from kvcore.engines.registry import engine, newer_note, not_followed
from kvcore.errors import EngineError, KVCoreError, PlanError, UnitError
from kvcore.formats import kv_format
from kvcore.model.model import Model
from kvcore.model.weight_formats import weight_format
from kvcore.planning.pools import Pool, PoolRanges, Sizes, by_stage, check_known, loaded_weights, usable_share
from kvcore.planning.splits import check
from kvcore.planning.splits import notes as shard_notes
from kvcore.ranks.speculation import notes as speculation_notes
from kvcore.ranks.speculation import refused as not_speculated
from kvcore.terms import End, Range, Term
from kvcore.units import MAX_BATCH, MAX_TOKENS, format_bytes, plural

NONE = Range.exactly(0)
# A guess is mostly off by less than a block; beyond that, steps grow fast.
_FIRST_STEP, _WIDER = 32, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRequests:
    """What all replicas hold of one length, in figures alone: whole requests, and as the engine counts them.

    `concurrency` is None where the model keeps no cache or has no request of that length. `by_sequences`: a number of
    requests that the engine allows binds at the safe end, and not the memory.
    """

    requests: Range[int]
    concurrency: Range[Fraction] | None = None
    by_sequences: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """The memory of each GPU and the cache that fills it, or why there is none.

    `refused` says so, with the `reason` split, engine or weights.

    `limit` is the longest context that the model has, None where it states none.
    """

    model: Model
    deployment: Deployment
    cache: CachePool | None = None
    by_context: PoolRanges | None = None
    reason: str = ""
    refused: str = ""
    limit: int | None = None

    @property
    def pools(self) -> tuple[Pool, ...]:
        """The pools for the deployment's context with their terms in words, made when they are asked for."""
        return () if self.by_context is None else self.by_context.pools

    def fills(self, context: int) -> Range[Fill]:
        """What one replica holds in requests of that length; EngineError for what the engine refuses."""
        if self.cache is None or self.by_context is None:
            raise EngineError(self.refused)
        cache = self.cache
        return self.by_context.at(context).map(lambda pools: cache.fill(context, pools))

    def whole(self, fill: Fill) -> int:
        """Whole requests at once on all replicas; a request lives on one of them."""
        return self._on_all(fill.requests)

    def _on_all(self, each: int) -> int:
        if self.cache is not None and self.cache.sequences is not None:
            each = min(each, self.cache.sequences)
        return self.deployment.dp * each

    def requests(self, context: int) -> Range[int]:
        """Whole requests of that length at once, 0 where it is beyond the model's limit or the engine refuses it."""
        if self.cache is None or self.by_context is None or not self.allows(context):
            return NONE
        if not self.cache.keeps_cache:
            return self.without_cache(context)
        cache, pools = self.cache, self.by_context.at(context)
        try:
            return pools.map(lambda size: self._on_all(cache.count(context, size)))
        except EngineError:
            return NONE

    def held(self, context: int) -> HeldRequests:
        """The figures of a plan for requests of that length, without its words."""
        if self.cache is None or self.by_context is None or not self.allows(context):
            return HeldRequests(requests=NONE)
        most, none_left = self.cache.sequences, min(self.by_context.at(context).low) <= 0
        if not self.cache.keeps_cache:
            return HeldRequests(requests=self.without_cache(context), by_sequences=most is not None and not none_left)
        try:
            fills = self.fills(context)
        except EngineError:
            return HeldRequests(requests=NONE)
        bound = fills.low.by_sequences or (most is not None and fills.low.requests >= most)
        return HeldRequests(
            requests=fills.map(self.whole),
            concurrency=fills.map(lambda fill: fill.concurrency * self.deployment.dp),
            by_sequences=bound and not none_left,
        )

    def without_cache(self, context: int) -> Range[int]:
        """Requests at once of a model that keeps no cache: what the engine allows, wherever the weights fit."""
        if self.by_context is None:
            return NONE
        most = MAX_BATCH if self.cache is None or self.cache.sequences is None else self.cache.sequences
        return self.by_context.at(context).map(lambda size: self.deployment.dp * most if min(size) >= 0 else 0)

    def allows(self, context: int) -> bool:
        """Whether the model can have a request of that length at all."""
        return 1 <= context <= self.ceiling

    @property
    def ceiling(self) -> int:
        """The longest request that is thought of: the model's limit, else what can be typed."""
        return MAX_TOKENS if self.limit is None else self.limit

    def longest(self, users: int = 1) -> Range[int]:
        """The longest context of which so many requests fit, up to the model's limit; 0 where none does."""
        if self.cache is None:
            return NONE
        low = self._longest(users, "low", 0)
        best = self._longest(users, "best", low)
        return Range(low=low, best=best, high=self._longest(users, "high", best))

    def _longest(self, users: int, end: End, least: int) -> int:
        """At one end of the range; `least` is known to fit. A pool never grows within one of the ranges."""
        if self.by_context is None or least == self.ceiling:
            return least
        for first, last in reversed(self.by_context.ranges):
            if last <= least:
                break
            low = max(first - 1, least)
            found = last_that_holds(
                lambda context: self._holds(context, users, end), low, last, lambda: self._guess(users, end)
            )
            if found >= first:
                return found
        return least

    def _guess(self, users: int, end: End) -> int:
        """Roughly the longest context: on the line through what is left over at the limit and at half of it."""
        if self.cache is None or self.by_context is None or not self.cache.keeps_cache or self.ceiling < 2:
            return self.ceiling
        each, half = -(-users // self.deployment.dp), self.ceiling // 2
        try:
            far, near = (
                [room - each * size for room, size in zip(rooms, self.cache.request_bytes(context), strict=True)]
                for context in (self.ceiling, half)
                for rooms in (self.by_context.at(context).at(end),)
            )
        except EngineError:
            return half
        # Where the room that is left over at either comes to nothing.
        ends = (
            half + near[i] * (self.ceiling - half) // (near[i] - far[i]) for i in range(len(far)) if near[i] > far[i]
        )
        return min(ends, default=half)

    def _holds(self, context: int, users: int, end: End) -> bool:
        if self.cache is None or self.by_context is None:
            return False
        each, most = -(-users // self.deployment.dp), self.cache.sequences
        if most is not None and each > most:
            return False
        size = self.by_context.at(context).at(end)
        if not self.cache.keeps_cache:
            return min(size) >= 0
        try:
            return self.cache.holds(context, each, size)
        except EngineError:
            return False


@lru_cache(maxsize=256)
def basis(model: Model, deployment: Deployment) -> Basis:
    """What an engine or a split refuses and weights that are not known are said by the basis, not raised.

    The last ones that were asked for are kept: a screen asks the same deployment for its plan, its grid and its gains.
    Raises UnitError for the name of a format that is not known, which is no refusal but a wrong word.
    """
    limit = model.context_limit
    context = max(1, deployment.context if limit is None else min(deployment.context, limit))
    try:
        chosen = engine(deployment.engine)
        refused = not_followed(chosen.name, deployment.gpu) or not_speculated(model, deployment, chosen)
        if refused:
            return Basis(model=model, deployment=deployment, reason="engine", refused=refused, limit=limit)
        if refused := check(model, deployment):
            return Basis(model=model, deployment=deployment, reason="split", refused=refused, limit=limit)
        made = chosen.pool(model, deployment, context)
        settings = chosen.settings(model, deployment.at(context))
        loaded, share = loaded_weights(model, deployment), usable_share(model, deployment)
        check_known(model, deployment, loaded)
    except KVCoreError as refusal:
        if isinstance(refusal, UnitError) and not _known_formats(deployment):
            raise
        reason = "weights" if isinstance(refusal, PlanError) else "engine"
        return Basis(model=model, deployment=deployment, reason=reason, refused=str(refusal), limit=limit)
    ranges = PoolRanges(
        model=model, deployment=deployment.at(context), loaded=loaded, share=share, settings=settings,
        longest=limit or MAX_TOKENS,
    )  # fmt: skip
    return Basis(model=model, deployment=deployment, cache=made, by_context=ranges, limit=limit)


def _known_formats(deployment: Deployment) -> bool:
    """Whether both formats are names of formats, whoever may take them."""
    try:
        if deployment.kv_dtype.strip().lower() != "auto":
            kv_format(deployment.kv_dtype)
        if deployment.weight_format is not None:
            weight_format(deployment.weight_format)
    except UnitError:
        return False
    return True


def sizes(found: tuple[Pool, ...]) -> Sizes:
    """The bytes of each stage's pool at the safe end, at best guess and at the hopeful end."""
    return by_stage([pool.kv_bytes for pool in found])


def last_that_holds(holds: Callable[[int], bool], low: int, high: int, guess: Callable[[], int]) -> int:
    """The largest context above `low` up to `high` that holds, else `low`; what holds, holds below.

    Searched outwards from the guess, which is near for a cache that grows evenly, then by bisection.
    """
    if high <= low or holds(high):
        return max(low, high)
    step = _FIRST_STEP
    tried = min(max(guess(), low + 1), high - 1)
    if tried > low and holds(tried):
        low = tried
        while low + step < high and holds(low + step):
            low, step = low + step, step * _WIDER
        high = min(high, low + step)
    elif tried > low:
        high = tried
        while high - step > low and not holds(high - step):
            high, step = high - step, step * _WIDER
        low = max(low, high - step)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


Kind = Literal["engine", "split", "weights", "overheads", "cache", "sequences", "context limit", "nothing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """What keeps a plan from holding more, or from working at all."""

    kind: Kind
    sentence: str


def refusal(basis: Basis) -> Binding | None:
    """Why there is nothing to plan, whatever the context; None where there is."""
    if not basis.refused:
        return None
    kinds: dict[str, Kind] = {"split": "split", "engine": "engine", "weights": "weights"}
    return Binding(kind=kinds[basis.reason], sentence=_sentence(basis.refused))


def beyond_limit(basis: Basis) -> Binding | None:
    """Whether the context is longer than the model's."""
    context, limit = basis.deployment.context, basis.limit
    if limit is None or context <= limit:
        return None
    return Binding(
        kind="context limit",
        sentence=f"Requests of {context:,} tokens are longer than {basis.model.name} takes: its limit is {limit:,}.",
    )


def memory_gone(basis: Basis) -> Binding | None:
    """Whether nothing is left for a cache at the safe end: the weights alone, or what the engine takes beside them."""
    pool = min(basis.pools, key=lambda pool: pool.kv_bytes.low)
    if pool.kv_bytes.low > 0:
        return None
    where = f" of stage {pool.stage}" if len(basis.pools) > 1 else ""
    have = f"{format_bytes(pool.usable_bytes)} of {basis.deployment.gpu.name}{where}"
    weights = format_bytes(pool.weights_bytes)
    if pool.weights_bytes >= pool.usable_bytes:
        return Binding(kind="weights", sentence=f"The weights alone take {weights} of each GPU, more than the {have}.")
    over = format_bytes(pool.overheads.total.high)
    return Binding(
        kind="overheads",
        sentence=f"Weights ({weights}) and overheads (up to {over}) leave nothing of the {have} for a cache.",
    )


def beside_stated_pool(basis: Basis) -> tuple[str, ...]:
    """A note where weights and a stated pool are more than the GPU has: the plan counts with the pool all the same."""
    if basis.deployment.kv_bytes is None:
        return ()
    notes = []
    for pool in basis.pools:
        need = pool.weights_bytes + pool.kv_bytes.best
        if pool.weights_bytes and need > pool.total_bytes:
            where = f" of stage {pool.stage}" if len(basis.pools) > 1 else ""
            weights, stated = format_bytes(pool.weights_bytes), format_bytes(pool.kv_bytes.best)
            notes.append(
                f"The stated pool does not go with these weights on these GPUs: {weights} of weights on each{where} "
                f"and {stated} of cache are {format_bytes(need)}, and {basis.deployment.gpu.name} has "
                f"{format_bytes(pool.total_bytes)}. What is said here is about the pool alone."
            )
    return tuple(notes)


def running_out(basis: Basis, users: int | None, fills: Range[Fill] | None, requests: Range[int]) -> Binding:
    """What ends first as requests come: the cache, a number of sequences, or nothing."""
    cache = basis.cache
    most = None if cache is None else cache.sequences
    if cache is not None and most is not None and (fills is None or fills.low.requests >= most):
        return Binding(kind="sequences", sentence=_allowed(basis, cache, most, fills))
    if cache is not None and fills is not None and fills.low.by_sequences:
        text = f"{cache.sequences_name} is chosen by the engine and allows {plural(requests.low, 'request')} at once."
        return Binding(kind="sequences", sentence=text)
    if cache is None or fills is None:
        return Binding(kind="nothing", sentence=f"{basis.model.name} keeps no cache, so nothing runs out.")
    return Binding(kind="cache", sentence=_cache(basis, cache, users, requests))


def _allowed(basis: Basis, cache: CachePool, most: int, fills: Range[Fill] | None) -> str:
    replicas = basis.deployment.dp
    text = f"{cache.sequences_name} allows {plural(most, 'request')} at once"
    if replicas > 1:
        text += f" on each of {replicas} replicas"
    if fills is not None and fills.low.requests > most:
        text += f"; the cache would hold {fills.low.requests:,}"
    return f"{text}."


def _cache(basis: Basis, cache: CachePool, users: int | None, requests: Range[int]) -> str:
    context, replicas, held = basis.deployment.context, basis.deployment.dp, requests.low
    hope = f" At best guess it holds {requests.best:,}." if requests.best >= (users or 1) > held else ""
    stage = cache.tightest(context, sizes(basis.pools).low)
    one, left = cache.request_bytes(context)[stage], max(0, basis.pools[stage].kv_bytes.low)
    end = "" if basis.deployment.kv_bytes is not None else " at the safe end"
    where = "a GPU" if len(basis.pools) == 1 else f"a GPU of stage {stage}"
    if not held:
        text = (
            f"A request of {context:,} tokens takes {format_bytes(one)} of {where}, and {format_bytes(left)} are left"
        )
        text += f" for the cache{end}"
        return f"{text}.{hope}" if one > left else f"{text}, with which {basis.deployment.engine} does not start.{hope}"
    each = held // replicas
    text = f"{format_bytes(left)} of {where}{end} hold {plural(each, 'request')} of "
    text += f"{context:,} tokens, {format_bytes(one)} each"
    if cache.held_back and left // one > each:
        text += f" and {cache.held_back}"
    if replicas > 1:
        text += f"; {replicas} replicas hold {held:,}"
    if users is not None and users > held:
        return f"The cache is too small: {text}, and {users:,} are asked for.{hope}"
    return f"The cache runs out first: {text}."


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."


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


def starting(base: Basis, users: int | None = None) -> HeldRequests | None:
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
    newer = newer_note(base.deployment.engine, base.deployment.engine_version)
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
