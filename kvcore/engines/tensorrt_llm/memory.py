"""What TensorRT-LLM holds beside weights and cache: its share is of what is free after a dummy run."""

from __future__ import annotations

from kvcore.deployment import Deployment
from kvcore.engines.overheads import AddedOverheads, Estimate, added, driver, has_ranks, runtime, shape
from kvcore.engines.tensorrt_llm.settings import MAX_BATCH_SIZE, MAX_NUM_TOKENS, TensorRtLlmSettings
from kvcore.model.model import Model
from kvcore.ranks.weights import RankWeights
from kvcore.terms import Range
from kvcore.units import GIB

# Shares of a GPU's memory that TensorRT-LLM takes beside these parts for a mixture over several ranks; what for is not
# known. Kimi K2.5 in NVFP4 on eight B300: 13.5 GiB beside the weights, of which the parts explain about 3 and at most
# 9.3 (data/field/memory_tensorrt.jsonl).
_MIXTURE = Range(low=0.0, best=0.02, high=0.05)


def overheads(
    model: Model, deployment: Deployment, settings: TensorRtLlmSettings, weights: RankWeights, share: float
) -> AddedOverheads:
    """The dummy run's peak, the runtime, the driver's part, and what a mixture over several ranks takes beside."""
    made = shape(model, deployment.tp)
    tokens = deployment.max_num_batched_tokens or MAX_NUM_TOKENS
    seqs = min(tokens, deployment.max_num_seqs or MAX_BATCH_SIZE)
    layer = tokens * (made.widest + 2 * made.hidden) * 2 / GIB
    logits = seqs * made.vocabulary * 4 / GIB
    text = f"{tokens:,} tokens × ({made.widest:,} + 2 × {made.hidden:,}) × 2 B; {seqs:,} × {made.vocabulary:,} × 4 B"
    activation = Estimate(
        name="activation peak",
        gib=Range(low=0.5 * layer, best=max(layer, logits), high=2 * layer + 2 * logits + 1),
        formula=f"the larger of {text}",
    )
    note = "The share is of what is free after a dummy run: an estimate of the dummy run decides."
    parts = [activation, runtime(model, deployment), driver(deployment)]
    if model.experts is not None and has_ranks(model, deployment):
        total = deployment.gpu.memory_bytes / GIB
        parts.append(
            Estimate(
                name="workspaces",
                gib=_MIXTURE * total,
                formula=f"{_MIXTURE.best:.0%} of {total:.2f} GiB for a mixture over several ranks, by one log",
            )
        )
    return added(parts, (note,))
