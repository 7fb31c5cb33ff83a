"""Whether an engine can serve a model in a split, by shards.py where it is there."""

from __future__ import annotations

from kvcore.model.model import Model
from kvcore.plan.deployment import Deployment


def split_refusal(model: Model, deployment: Deployment) -> str:
    """The reason, "" where it can."""
    try:
        from kvcore.plan import shards
    except ImportError:
        return ""
    return shards.check(model, deployment)
