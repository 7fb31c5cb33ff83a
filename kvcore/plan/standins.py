"""Rough weights and overheads, until rank_weights.py and overheads.py are there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kvcore.model.model import Model
from kvcore.plan.deployment import Deployment
from kvcore.plan.ends import Ends, Overhead
from kvcore.units import GIB
from kvcore.weight_formats import weights_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWeights:
    """Weights of the fullest rank of a stage."""

    stage: int
    bytes: int
    knowledge: Literal["exact", "estimated"]
    parts: tuple[tuple[str, int], ...]
    formula: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """What is neither weights nor cache."""

    parts: tuple[Overhead, ...]
    total: Ends[int]
    notes: tuple[str, ...]


def rank_weights(model: Model, deployment: Deployment) -> tuple[RankWeights, ...]:
    """An even split."""
    stored = weights_bytes(model, deployment.weight_format)
    if stored is None:
        return ()
    ranks = deployment.replica_gpus * (deployment.dp if deployment.expert_parallel else 1)
    each = -(-stored.bytes // ranks)
    text = f"{stored.bytes:,} B / {ranks} = {each:,} B"
    return tuple(
        RankWeights(stage=stage, bytes=each, knowledge="estimated", parts=(), formula=text)
        for stage in range(deployment.pp)
    )


def overheads(model: Model, deployment: Deployment, weights: RankWeights) -> Overheads:
    """A flat range."""
    total = Ends(low=GIB * 3 // 2, best=GIB * 5 // 2, high=4 * GIB)
    return Overheads(parts=(Overhead(name="overheads", bytes=total, formula="flat"),), total=total, notes=())
