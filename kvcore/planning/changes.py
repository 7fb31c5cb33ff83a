"""The changes that somebody would try on a deployment, one at a time, each with its price in words.

Whether a change helps, or is even possible, is for a plan to say (whatif.py, remedies.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from kvcore.deployment import Deployment
from kvcore.engines.registry import engine
from kvcore.errors import KVCoreError
from kvcore.hardware.gpus import Accelerator
from kvcore.model.model import Model
from kvcore.model.weight_formats import WEIGHT_FORMATS, weight_format, weights_bytes
from kvcore.planning.pools import has_share, usable_share
from kvcore.planning.quality_words import cache_quality
from kvcore.planning.sharing import batched_tokens

Kind = Literal[
    "cache format", "weight format", "split", "context", "batched tokens", "sequences", "graphs", "speculation",
    "prefix", "offload", "utilization", "GPU", "more GPUs", "engine", "users",
]  # fmt: skip

# 4-bit floats are multiplied and unpacked by Blackwell (compute capability 10 and later).
_BLACKWELL, _ADA = 10.0, 8.9
MOST_UTILIZATION = 0.95
_FEW_TOKENS, _FEWER_TOKENS = 2048, 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change: the deployment after it, in words, and its price in words."""

    kind: Kind
    name: str
    change: str
    deployment: Deployment
    price: str


def cache_formats(model: Model, deployment: Deployment) -> Iterator[Change]:
    """Smaller formats of the cache."""
    for name in engine(deployment.engine).cache_formats:
        if name == deployment.kv_dtype or not runs_4_bit(name, deployment.gpu):
            continue
        yield Change(
            kind="cache format",
            name=f"{name} cache",
            change=f"Keep the cache in {name}",
            deployment=replace(deployment, kv_dtype=name),
            price=cache_quality(model.name, name) or "Quality: no published result is kept here.",
        )


def weight_formats(model: Model, deployment: Deployment) -> Iterator[Change]:
    """Smaller formats of the weights."""
    stored = weights_bytes(model, deployment.weight_format)
    if stored is None:
        return
    bits = WEIGHT_FORMATS[stored.format].bits if stored.format in WEIGHT_FORMATS else 16.0
    for name in engine(deployment.engine).weight_formats:
        if weight_format(name).bits >= bits or not runs_4_bit(name, deployment.gpu):
            continue
        price = "Needs a checkpoint in that format, and costs some quality: no published result is kept here."
        if name == "fp8" and _capability(deployment.gpu) < _ADA:
            price += " This GPU has no fp8 arithmetic: the weights are unpacked as they are read."
        yield Change(
            kind="weight format",
            name=f"{name} weights",
            change=f"Load the weights in {name} ({weight_format(name).label})",
            deployment=replace(deployment, weight_format=name),
            price=price,
        )


def utilization(model: Model, deployment: Deployment) -> Iterator[Change]:
    """A larger share of the memory."""
    if not has_share(deployment.engine):
        return
    try:
        share = usable_share(model, deployment)
    except KVCoreError:
        return
    if share < MOST_UTILIZATION:
        yield utilization_to(deployment, MOST_UTILIZATION, share)


def utilization_to(deployment: Deployment, share: float, before: float) -> Change:
    """A given share of the memory."""
    return Change(
        kind="utilization",
        name=f"utilisation {share:.2f}",
        change=f"Let the engine have {share:.0%} of each GPU instead of {before:.0%}",
        deployment=replace(deployment, utilization=round(share, 4)),
        price="Less is left to the system: what was not foreseen (another process, longer prompts of images) may end "
        "the server out of memory.",
    )


def step_options(model: Model, deployment: Deployment) -> Iterator[Change]:
    """Smaller working memory: fewer tokens a step, no graphs, no speculation."""
    try:
        now = batched_tokens(model, deployment)
    except KVCoreError:
        return
    if engine(deployment.engine).step_memory:
        fewer = _FEW_TOKENS if now > _FEW_TOKENS else _FEWER_TOKENS
        if fewer < now:
            yield Change(
                kind="batched tokens",
                name=f"{fewer:,} tokens a step",
                change=f"max_num_batched_tokens {fewer:,} instead of {now:,}: less memory for activations",
                deployment=replace(deployment, max_num_batched_tokens=fewer),
                price=f"A prompt of {now:,} tokens takes {-(-now // fewer)} steps instead of one: its first token "
                "comes later, the others' tokens are held up less.",
            )
        if not deployment.enforce_eager:
            yield Change(
                kind="graphs",
                name="no CUDA graphs",
                change="Capture no CUDA graphs",
                deployment=replace(deployment, enforce_eager=True),
                price="Each decoding step is launched kernel by kernel: tokens come slower, most of all in small "
                "batches.",
            )
    if deployment.speculative_tokens:
        yield Change(
            kind="speculation",
            name="no speculation",
            change="Propose no tokens ahead",
            deployment=replace(deployment, speculative_tokens=0, draft=None),
            price="One token a step again: a request's tokens come slower.",
        )


def shorter(deployment: Deployment) -> Iterator[Change]:
    """Half the longest request."""
    half = deployment.context // 2
    if half >= 1:
        yield context_to(deployment, half)


def context_to(deployment: Deployment, context: int, why: str = "") -> Change:
    """A cap on the length of a request."""
    return Change(
        kind="context",
        name=f"context {context:,}",
        change=f"max_model_len {context:,} instead of {deployment.context:,}{why}",
        deployment=replace(deployment, context=context),
        price="Longer requests are refused, or their answers cut.",
    )


def _capability(gpu: Accelerator) -> float:
    try:
        return float(gpu.compute_capability or 0)
    except ValueError:
        return 0.0


def runs_4_bit(name: str, gpu: Accelerator) -> bool:
    """Whether the GPU runs that format; only 4-bit floats ask for a generation."""
    return name != "nvfp4" or _capability(gpu) >= _BLACKWELL
