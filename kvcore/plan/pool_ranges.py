"""The pools of a deployment for any context, without asking for each where that changes nothing.

An engine's dummy run depends on the longest request only in places: below a few tokens, and in vLLM's older core.
Between such places the overheads rise with the context or stay, so where both ends of a range are equal, all are.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise

from kvcore.model.model import Model
from kvcore.plan.deployment import Deployment
from kvcore.plan.pools import Pool, pools
from kvcore.plan.rank_weights import RankWeights
from kvcore.units import MAX_TOKENS

# Below so many tokens a batch may be limited by the requests themselves.
SHORT = 64
# vLLM's older core ran its dummy run in chunks for contexts longer than this (engine/arg_utils.py), and whole below.
CHUNKED_ABOVE = 32_768
Range = tuple[int, int]


@dataclass(slots=True, kw_only=True)
class PoolRanges:
    """Asked by context; answers are kept. `longest` is the longest context that will be asked for."""

    model: Model
    deployment: Deployment
    loaded: tuple[RankWeights, ...]
    longest: int = MAX_TOKENS
    _known: dict[int, tuple[Pool, ...]] = field(default_factory=dict)
    _level: dict[Range, tuple[Pool, ...] | None] = field(default_factory=dict)

    def exactly(self, context: int) -> tuple[Pool, ...]:
        """The pools for this context; raises as kvcore.plan.pools.pools."""
        found = self._known.get(context)
        if found is None:
            own = self.deployment if context == self.deployment.context else replace(self.deployment, context=context)
            found = self._known[context] = pools(self.model, own, loaded=self.loaded)
        return found

    def at(self, context: int) -> tuple[Pool, ...]:
        """Pools with the same bytes as those for this context."""
        if self.deployment.kv_bytes is not None:
            return self.exactly(self.deployment.context)
        span = next((one for one in self.ranges if one[0] <= context <= one[1]), (context, context))
        if span not in self._level:
            first, last = self.exactly(span[0]), self.exactly(span[1])
            same = all(a.kv_bytes == b.kv_bytes for a, b in zip(first, last, strict=True))
            self._level[span] = first if same else None
        return self._level[span] or self.exactly(context)

    @property
    def ranges(self) -> tuple[Range, ...]:
        """Contexts within which the pool does not grow: in each, what fits at a length fits at every shorter one."""
        ends = sorted({0, min(SHORT - 1, self.longest), min(CHUNKED_ABOVE, self.longest), self.longest})
        return tuple((first + 1, last) for first, last in pairwise(ends))
