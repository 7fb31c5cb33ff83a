"""What transformers holds beside weights and cache: a prompt is computed at once."""

from __future__ import annotations

from kvcore.deployment import Deployment
from kvcore.engines.overheads import AddedOverheads, Estimate, added, driver, runtime, shape
from kvcore.engines.transformers.settings import TransformersSettings
from kvcore.model.model import Model
from kvcore.ranks.weights import RankWeights
from kvcore.terms import Range
from kvcore.units import GIB


def overheads(
    model: Model, deployment: Deployment, settings: TransformersSettings, weights: RankWeights, share: float
) -> AddedOverheads:
    """The peak of a prompt, the runtime, blocks of the allocator that are not full, and the driver's part."""
    made = shape(model, 1)
    tokens = deployment.context
    layer = tokens * (made.widest + 4 * made.hidden) * 2 / GIB
    logits = tokens * made.vocabulary * 6 / GIB
    activation = Estimate(
        name="activation peak",
        gib=Range(low=0.7 * layer, best=layer, high=2 * layer + logits),
        formula=f"a prompt of {tokens:,} tokens at once × ({made.widest:,} + 4 × {made.hidden:,}) × 2 B; "
        f"versions that keep the logits of all tokens take {made.vocabulary:,} × 6 B more for each",
    )
    slack = Estimate(
        name="allocator",
        gib=Range(low=0.0, best=0.02 * weights.bytes / GIB, high=0.06 * weights.bytes / GIB),
        formula="blocks of the caching allocator that are not full: 2 % of the weights",
    )
    return added((activation, runtime(model, deployment), slack, driver(deployment)))
