"""What of a plan does not depend on the context or the number of users: made once, asked for every cell of a grid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from kvcore.deployment import Deployment
from kvcore.engines.base import CachePool, Fill
from kvcore.engines.registry import engine, not_followed
from kvcore.errors import EngineError, KVCoreError, PlanError, UnitError
from kvcore.formats import kv_format
from kvcore.model.model import Model
from kvcore.model.weight_formats import weight_format
from kvcore.planning.pool_ranges import PoolRanges, Sizes, by_stage
from kvcore.planning.pools import Pool, check_known, loaded_weights, usable_share
from kvcore.planning.shards import check
from kvcore.ranks.speculation import refused as not_speculated
from kvcore.terms import End, Range
from kvcore.units import MAX_BATCH, MAX_TOKENS

NONE = Range.exactly(0)
# A guess is mostly off by less than a block; beyond that, steps grow fast.
_FIRST_STEP, _WIDER = 32, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
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

    def held(self, context: int) -> Held:
        """The figures of a plan for requests of that length, without its words."""
        if self.cache is None or self.by_context is None or not self.allows(context):
            return Held(requests=NONE)
        most, none_left = self.cache.sequences, min(self.by_context.at(context).low) <= 0
        if not self.cache.keeps_cache:
            return Held(requests=self.without_cache(context), by_sequences=most is not None and not none_left)
        try:
            fills = self.fills(context)
        except EngineError:
            return Held(requests=NONE)
        bound = fills.low.by_sequences or (most is not None and fills.low.requests >= most)
        return Held(
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
        loaded, share = loaded_weights(model, deployment), usable_share(model, deployment)
        check_known(model, deployment, loaded)
    except KVCoreError as refusal:
        if isinstance(refusal, UnitError) and not _known_formats(deployment):
            raise
        reason = "weights" if isinstance(refusal, PlanError) else "engine"
        return Basis(model=model, deployment=deployment, reason=reason, refused=str(refusal), limit=limit)
    ranges = PoolRanges(
        model=model, deployment=deployment.at(context), loaded=loaded, share=share, longest=limit or MAX_TOKENS
    )
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
