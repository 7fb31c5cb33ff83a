"""A rough range of overheads, until overheads.py is there."""

from __future__ import annotations

from dataclasses import dataclass

from kvcore.model.model import Model
from kvcore.plan.deployment import Deployment
from kvcore.plan.ends import Ends, Overhead
from kvcore.plan.rank_weights import RankWeights
from kvcore.units import GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """What is neither weights nor cache."""

    parts: tuple[Overhead, ...]
    total: Ends[int]
    notes: tuple[str, ...]


def overheads(model: Model, deployment: Deployment, weights: RankWeights) -> Overheads:
    """A flat range."""
    total = Ends(low=GIB * 3 // 2, best=GIB * 5 // 2, high=4 * GIB)
    return Overheads(parts=(Overhead(name="overheads", bytes=total, formula="flat"),), total=total, notes=())
