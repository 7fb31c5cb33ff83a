"""The sizes of a deployment's pools for any context, without asking for each where that changes nothing.

Overheads may depend on the longest request: a dummy run below a few tokens, compute buffers, vLLM's older core. Within
some ranges they rise with the context or stay, so where two lengths of a range have equal pools, all between them have.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from kvcore.deployment import Deployment
from kvcore.engines.registry import engine
from kvcore.engines.vllm.settings import V0_CHUNKS_ABOVE
from kvcore.model.model import Model
from kvcore.planning.overhead_engines import BY_STAGE
from kvcore.planning.overheads import total_overheads
from kvcore.planning.pools import Pool, left_for_cache, pools
from kvcore.ranks.weights import RankWeights
from kvcore.terms import Range
from kvcore.units import MAX_TOKENS

# Below so many tokens a batch may be limited by the requests themselves.
SHORT = 64
Span = tuple[int, int]
# Bytes of each stage's pool.
Sizes = Range[tuple[int, ...]]


@dataclass(slots=True, kw_only=True)
class PoolRanges:
    """Asked by context; answers are kept. `longest` is the longest context that will be asked for."""

    model: Model
    deployment: Deployment
    loaded: tuple[RankWeights, ...]
    share: float
    longest: int = MAX_TOKENS
    ranges: tuple[Span, ...] = ()
    """Contexts within which the pool does not grow: in each, what fits at a length fits at every shorter one."""
    _pools: tuple[Pool, ...] | None = None
    _told: dict[int, Sizes] = field(default_factory=dict)
    _points: dict[Span, tuple[list[int], list[Sizes]]] = field(default_factory=dict)
    _alike: tuple[int, ...] = ()
    """For each stage the first of those whose overheads are the same."""

    def __post_init__(self) -> None:
        ends = {0, min(SHORT - 1, self.longest), self.longest}
        if self.deployment.engine == "vllm" and engine("vllm").settings(self.model, self.deployment).older_core:
            ends.add(min(V0_CHUNKS_ABOVE, self.longest))
        self.ranges = tuple((first + 1, last) for first, last in pairwise(sorted(ends)))
        first: dict[object, int] = {}
        self._alike = tuple(first.setdefault(self._kind(one), stage) for stage, one in enumerate(self.loaded))

    @property
    def pools(self) -> tuple[Pool, ...]:
        """The pools for the deployment's own context, with their terms."""
        if self._pools is None:
            self._pools = pools(self.model, self.deployment, loaded=self.loaded, share=self.share)
        return self._pools

    def _kind(self, weights: RankWeights) -> object:
        """What overheads see of a stage."""
        if self.deployment.engine not in BY_STAGE:
            return None
        ends = weights.stage == 0, weights.stage == len(self.loaded) - 1
        return ends, weights.bytes, weights.knowledge, weights.parts

    def at(self, context: int) -> Sizes:
        """The sizes of the pools for this context."""
        found = self._told.get(context)
        if found is None:
            found = self._told[context] = self._sizes(context)
        return found

    def _sizes(self, context: int) -> Sizes:
        if self.deployment.kv_bytes is not None:
            stages = (self.deployment.kv_bytes,) * max(self.deployment.pp, len(self.loaded))
            return Range.exactly(stages)
        span = next((one for one in self.ranges if context <= one[1]), (context, context))
        points = self._points.setdefault(span, ([], []))
        if points[0] and context not in points[0]:
            # More than one is asked for: the ends of the range may make all of it known.
            for end in span:
                self._exactly(end, *points)
            right = bisect_left(points[0], context)
            if points[0][right] != context and points[1][right - 1] == points[1][right]:
                return points[1][right]
        return self._exactly(context, *points)

    def _exactly(self, context: int, contexts: list[int], found: list[Sizes]) -> Sizes:
        """The sizes for this context, kept among the others of its range in the order of contexts."""
        place = bisect_left(contexts, context)
        if place == len(contexts) or contexts[place] != context:
            contexts.insert(place, context)
            found.insert(place, self._made(context))
        return found[place]

    def _made(self, context: int) -> Sizes:
        own = self.deployment.at(context)
        totals = {stage: total_overheads(self.model, own, self.loaded[stage], self.share) for stage in set(self._alike)}
        left = [
            left_for_cache(own, self.share, weights, totals[stage])
            for weights, stage in zip(self.loaded, self._alike, strict=True)
        ]
        return by_stage(left)


def by_stage(left: Sequence[Range[int]]) -> Sizes:
    """The range of all stages' pools together from that of each stage."""
    return Range(
        low=tuple(one.low for one in left), best=tuple(one.best for one in left), high=tuple(one.high for one in left)
    )
