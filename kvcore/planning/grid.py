"""Users × contexts at once: what depends on neither is worked out once, and each context needs one capacity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcore.deployment import Deployment
from kvcore.model.model import Model
from kvcore.planning.basis import Basis, basis
from kvcore.terms import Range

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Grid:
    """`most[i]` whole requests of `contexts[i]` tokens at once; `fits[u, i]` is about `users[u]` of them.

    2: they fit at the safe end; 1: only within the range; 0: they do not. `limits` are the engine's and the model's
    own bounds, in words.
    """

    contexts: tuple[int, ...]
    users: tuple[int, ...]
    most: tuple[Range[int], ...]
    fits: np.ndarray
    limits: tuple[str, ...]


def grid(model: Model, deployment: Deployment, contexts: Sequence[int], users: Sequence[int]) -> Grid:
    """The grid; each cell is what a plan of that context for so many users says. Refusals are cells that do not fit."""
    import numpy as np

    base = basis(model, deployment)
    most = tuple(base.requests(context) for context in contexts)
    counts = np.asarray(users, dtype=np.int64)[:, None]
    low = np.asarray([ends.low for ends in most], dtype=np.int64)
    high = np.asarray([ends.high for ends in most], dtype=np.int64)
    fits = (counts <= low).astype(np.int8) + (counts <= high).astype(np.int8)
    return Grid(contexts=tuple(contexts), users=tuple(users), most=most, fits=fits, limits=_limits(base))


def _limits(base: Basis) -> tuple[str, ...]:
    if base.refused:
        return (base.refused,)
    limits = []
    if base.limit is not None:
        limits.append(f"{base.model.name} takes at most {base.limit:,} tokens")
    if base.cache is not None and base.cache.sequences is not None:
        replicas, most = base.deployment.dp, base.cache.sequences
        each = f"{most:,}" if replicas == 1 else f"{most:,} × {replicas} replicas = {most * replicas:,}"
        limits.append(f"{base.cache.sequences_name}: {each} requests at once")
    return tuple(limits)
