"""How fast a deployment could be at most: one token of a full batch, and one prompt, on one replica.

Bounds of the roofline, never predictions: no communication, no kernel that falls short of the rates.
"""

from __future__ import annotations

from kvcore.deployment import Deployment
from kvcore.formats import kv_format
from kvcore.model.model import Model
from kvcore.model.weight_formats import weights_bytes
from kvcore.ranks.memories import on_rank
from kvcore.timing import Bound, Work, bound, decode_cache_work, prefill_cache_work, weight_work

# Weights whose matrices are multiplied in their own format; others are unpacked and multiplied in 16 bits.
_MULTIPLIED_IN = {"fp8": "fp8", "int8": "int8", "nvfp4": "fp4"}


def prefill_bound(model: Model, deployment: Deployment, tokens: int, kv_dtype: str) -> Bound | None:
    """The least time in which one replica takes in `tokens` tokens of one request; None for an unknown shape.

    All GPUs of the replica are counted as working at once. Raises UnitError as prefill_cache_work does.
    """
    weights = weight_work(model, tokens, deployment.weight_format, logits=min(tokens, 1))
    if weights is None:
        return None
    work = weights.work + prefill_cache_work(model, tokens, kv_format(kv_dtype)).work
    return bound(work, deployment.gpu, deployment.replica_gpus, arithmetic_format(model, deployment))


def decode_bound(model: Model, deployment: Deployment, tokens: int, batch: int, kv_dtype: str) -> Bound | None:
    """The least time between two tokens of a request where each replica has `batch` requests of `tokens` tokens.

    The work of one tensor-parallel rank: its share of the weights, and its part of the cache with the heads that it
    holds a copy of. Pipeline stages work one after another, each on its part of the batch, so a token waits for all
    of them. Replicas whose attention is data-parallel inside one group share the weights. None for an unknown shape.
    """
    # Each stage has a part of the batch in hand, and a token passes all of the stages.
    together = -(-batch // deployment.pp)
    groups = deployment.dp if deployment.dp_attention else 1
    weights = weight_work(model, together * groups, deployment.weight_format)
    if weights is None:
        return None
    kv = kv_format(kv_dtype)
    cache = decode_cache_work(on_rank(model, deployment.tp), -(-tokens // deployment.dcp), kv).work
    work = _share(weights.work, deployment.tp * groups) + cache.times(together)
    return bound(work, deployment.gpu, 1, arithmetic_format(model, deployment))


def arithmetic_format(model: Model, deployment: Deployment) -> str:
    """The format in which matrices are multiplied: the weights' own where the GPU has a rate for it, else 16 bits."""
    stored = weights_bytes(model, deployment.weight_format)
    wanted = _MULTIPLIED_IN.get(stored.format if stored else "", "bf16")
    return wanted if wanted in deployment.gpu.dense_flops_per_s else "bf16"


def _share(work: Work, ranks: int) -> Work:
    return Work(
        read_bytes=-(-work.read_bytes // ranks),
        written_bytes=-(-work.written_bytes // ranks),
        operations=-(-work.operations // ranks),
    )


def seconds_text(seconds: float) -> str:
    """Seconds as people say them: `1.2 s`, `51 ms`, `25 µs`."""
    for size, name in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= size:
            return f"{seconds / size:.3g} {name}"
    return f"{seconds * 1e6:.3g} µs"
