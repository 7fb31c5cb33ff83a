"""What of a plan does not depend on the context or the number of users: made once, asked for every cell of a grid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction

from kvcore.errors import EngineError, KVCoreError, PlanError
from kvcore.model.model import Model
from kvcore.plan.deployment import Deployment
from kvcore.plan.ends import Ends
from kvcore.plan.fill import Fill, Filler, filler
from kvcore.plan.pools import Pool, pools
from kvcore.units import MAX_BATCH, MAX_TOKENS

_ENDS = ("low", "best", "high")
Refusal = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """Pools and their filler, or why there are none: `refused` with `reason` split, engine or weights.

    `limit` is the longest context that the model has, None where it states none.
    """

    model: Model
    deployment: Deployment
    pools: tuple[Pool, ...] = ()
    filler: Filler | None = None
    reason: str = ""
    refused: str = ""
    limit: int | None = None
    _filled: dict[tuple[int, str], Fill] = field(default_factory=dict, repr=False)

    def kv_bytes(self, end: str) -> tuple[int, ...]:
        """The pool of each stage at one end of the range."""
        return tuple(getattr(pool.kv_bytes, end) for pool in self.pools)

    def fills(self, context: int) -> Ends[Fill]:
        """What one replica holds in requests of that length; EngineError for what the engine refuses."""
        if self.filler is None:
            raise EngineError(self.refused)
        found: list[Fill] = []
        known: tuple[tuple[int, ...], Fill] | None = None
        for end in _ENDS:
            sizes = self.kv_bytes(end)
            if known is None or known[0] != sizes:
                known = (sizes, self.filler.fill(context, sizes))
            found.append(known[1])
        return Ends(low=found[0], best=found[1], high=found[2])

    def whole(self, fill: Fill) -> int:
        """Whole requests at once on all replicas; a request lives on one of them."""
        each = fill.requests
        if self.filler is not None and self.filler.sequences is not None:
            each = min(each, self.filler.sequences)
        return self.deployment.dp * each

    def requests(self, context: int) -> Ends[int]:
        """Whole requests of that length at once, 0 where it is beyond the model's limit or the engine refuses it."""
        none = Ends(low=0, best=0, high=0)
        if self.filler is None or not self.allows(context):
            return none
        if not self.filler.keeps_cache:
            return self.without_cache()
        try:
            return self.fills(context).map(self.whole)
        except EngineError:
            return none

    def without_cache(self) -> Ends[int]:
        """Requests at once of a model that keeps no cache: what the engine allows, wherever the weights fit."""
        most = MAX_BATCH if self.filler is None or self.filler.sequences is None else self.filler.sequences
        free = [min(self.kv_bytes(end)) for end in _ENDS]
        low, best, high = (self.deployment.dp * most if size >= 0 else 0 for size in free)
        return Ends(low=low, best=best, high=high)

    def allows(self, context: int) -> bool:
        """Whether the model can have a request of that length at all."""
        return context >= 1 and (self.limit is None or context <= self.limit)

    def longest(self, users: int = 1) -> Ends[int]:
        """The longest context of which so many requests fit, up to the model's limit; 0 where none does."""
        if self.filler is None:
            return Ends(low=0, best=0, high=0)
        ceiling = MAX_TOKENS if self.limit is None else self.limit
        if not self.filler.keeps_cache:
            return self.without_cache().map(lambda most: ceiling if most >= users else 0)
        found: dict[tuple[int, ...], int] = {}
        least = 0
        for end in _ENDS:
            sizes = self.kv_bytes(end)
            if sizes not in found:
                # More memory never holds less: what fits at one end is where the next one starts.
                found[sizes] = least = _bisect(self._holds(users, sizes), least, ceiling)
        low, best, high = (found[self.kv_bytes(end)] for end in _ENDS)
        return Ends(low=low, best=best, high=high)

    def _holds(self, users: int, sizes: tuple[int, ...]) -> Callable[[int], bool]:
        def holds(context: int) -> bool:
            if self.filler is None:
                return False
            try:
                return self.whole(self.filler.fill(context, sizes)) >= users
            except EngineError:
                return False

        return holds


def basis(model: Model, deployment: Deployment) -> Basis:
    """Never raises for what an engine or a split refuses, or for weights that are not known: the basis says so."""
    from kvcore.plan.splits import split_refusal

    limit = model.context_limit
    if refused := split_refusal(model, deployment):
        return Basis(model=model, deployment=deployment, reason="split", refused=refused, limit=limit)
    context = max(1, deployment.context if limit is None else min(deployment.context, limit))
    try:
        made = filler(model, deployment, context)
    except KVCoreError as refusal:
        return Basis(model=model, deployment=deployment, reason="engine", refused=str(refusal), limit=limit)
    try:
        found = pools(model, deployment)
    except PlanError as refusal:
        return Basis(model=model, deployment=deployment, reason="weights", refused=str(refusal), limit=limit)
    except KVCoreError as refusal:
        return Basis(model=model, deployment=deployment, reason="engine", refused=str(refusal), limit=limit)
    return Basis(model=model, deployment=deployment, pools=found, filler=made, limit=limit)


def concurrency(fill: Fill, replicas: int) -> Fraction:
    """Requests at once on all replicas as the engine counts them."""
    return fill.concurrency * replicas


def _bisect(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The largest context in low … high that holds, `low` being known to (0: none); holding never comes back."""
    if high <= low or holds(high):
        return max(low, high)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
