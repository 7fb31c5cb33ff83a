"""The sizes of a deployment's pools for any context, without asking for each where that changes nothing.

Overheads may depend on the longest request: a dummy run below a few tokens, compute buffers, vLLM's older core. Within
some ranges they rise with the context or stay, so where both ends of a range are equal, all of it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise

from kvcore.model.model import Model
from kvcore.plan.deployment import Deployment
from kvcore.plan.overhead_defaults import V0_CHUNKS_ABOVE, is_v0
from kvcore.plan.overheads import overheads
from kvcore.plan.pools import left_for_cache
from kvcore.plan.rank_weights import RankWeights
from kvcore.units import MAX_TOKENS

# Below so many tokens a batch may be limited by the requests themselves.
SHORT = 64
Range = tuple[int, int]
# Bytes of each stage's pool at the safe end, at best guess and at the hopeful end.
Sizes = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


@dataclass(slots=True, kw_only=True)
class PoolRanges:
    """Asked by context; answers are kept. `longest` is the longest context that will be asked for."""

    model: Model
    deployment: Deployment
    loaded: tuple[RankWeights, ...]
    share: float
    longest: int = MAX_TOKENS
    ranges: tuple[Range, ...] = ()
    """Contexts within which the pool does not grow: in each, what fits at a length fits at every shorter one."""
    _known: dict[int, Sizes] = field(default_factory=dict)
    _level: dict[Range, Sizes | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        ends = {0, min(SHORT - 1, self.longest), self.longest}
        if self.deployment.engine == "vllm" and is_v0(self.deployment):
            ends.add(min(V0_CHUNKS_ABOVE, self.longest))
        self.ranges = tuple((first + 1, last) for first, last in pairwise(sorted(ends)))

    def at(self, context: int) -> Sizes:
        """The sizes of the pools for this context."""
        if self.deployment.kv_bytes is not None:
            stages = (self.deployment.kv_bytes,) * max(self.deployment.pp, len(self.loaded))
            return stages, stages, stages
        span = next((one for one in self.ranges if context <= one[1]), (context, context))
        if span not in self._level:
            first, last = self._exactly(span[0]), self._exactly(span[1])
            self._level[span] = first if first == last else None
        return self._level[span] or self._exactly(context)

    def _exactly(self, context: int) -> Sizes:
        found = self._known.get(context)
        if found is None:
            own = replace(self.deployment, context=context)
            left = [
                left_for_cache(own, self.share, weights, overheads(self.model, own, weights)) for weights in self.loaded
            ]
            found = (
                tuple(one.low for one in left), tuple(one.best for one in left), tuple(one.high for one in left)
            )  # fmt: skip
            self._known[context] = found
        return found
