"""The changes that somebody would try on a deployment, one at a time, each with its price in words.

Whether a change helps, or is even possible, is for a plan to say (whatif.py, remedies.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from kvcore.engines.registry import NAMES
from kvcore.errors import KVCoreError
from kvcore.hardware import Accelerator, accelerators
from kvcore.model.model import Model
from kvcore.plan.deployment import Deployment
from kvcore.plan.hourly import cost_words
from kvcore.plan.pools import has_share, usable_share
from kvcore.plan.quality_words import cache_quality
from kvcore.plan.shard_words import split_name, split_price
from kvcore.plan.shards import shards
from kvcore.plan.sharing import SLOTS, batched_tokens
from kvcore.units import GIB
from kvcore.weight_formats import WEIGHT_FORMATS, weight_format, weights_bytes

Kind = Literal[
    "cache format", "weight format", "split", "context", "batched tokens", "sequences", "graphs", "speculation",
    "prefix", "offload", "utilization", "GPU", "more GPUs", "engine", "users",
]  # fmt: skip

# Cache formats that each engine offers beside the model's 16 bits, the mildest first.
CACHE_FORMATS = {
    "vllm": ("fp8", "nvfp4", "turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc"),
    "sglang": ("fp8", "nvfp4"),
    "tensorrt-llm": ("fp8", "nvfp4"),
    "llama.cpp": ("q8_0", "q8_0/q4_0", "q4_0"),
    "ollama": ("q8_0", "q4_0"),
    "transformers": (),
}
# Weight formats that each engine serves.
WEIGHTS = {
    "vllm": ("fp8", "awq", "nvfp4"),
    "sglang": ("fp8", "awq", "nvfp4"),
    "tensorrt-llm": ("fp8", "awq", "nvfp4"),
    "llama.cpp": ("q8_0", "q6_k", "q4_k"),
    "ollama": ("q8_0", "q6_k", "q4_k"),
    "transformers": ("int8", "int4"),
}
# Vendors whose accelerators an engine runs on in these rules.
VENDORS = {
    "vllm": ("NVIDIA", "AMD", "Intel"),
    "sglang": ("NVIDIA", "AMD"),
    "tensorrt-llm": ("NVIDIA",),
    "transformers": ("NVIDIA", "AMD", "Intel", "Apple"),
    "llama.cpp": ("NVIDIA", "AMD", "Intel", "Apple"),
    "ollama": ("NVIDIA", "AMD", "Apple"),
}
# 4-bit floats are multiplied and unpacked by Blackwell (compute capability 10 and later).
_BLACKWELL, _ADA = 10.0, 8.9
MOST_UTILIZATION = 0.95
_FEW_TOKENS, _FEWER_TOKENS = 2048, 512
# GPUs whose memories differ by less are of one size.
_ONE_SIZE = 8 * GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change: the deployment after it, in words, and its price in words."""

    kind: Kind
    name: str
    change: str
    deployment: Deployment
    price: str


def changes(model: Model, deployment: Deployment) -> tuple[Change, ...]:
    """All changes of the deployment alone; those that its engine refuses are still among them.

    Where the pool was stated, only those that leave its size alone.
    """
    found = [*cache_formats(model, deployment), *shorter(deployment), *replicas(deployment)]
    if deployment.kv_bytes is None:
        found += [
            *weight_formats(model, deployment),
            *utilization(model, deployment),
            *step_options(model, deployment),
            *splits(model, deployment, deployment.gpus),
            *splits(model, deployment, 2 * deployment.gpus),
            *other_gpus(deployment),
            *other_engines(deployment),
        ]
    return tuple(found)


def cache_formats(model: Model, deployment: Deployment) -> Iterator[Change]:
    """Smaller formats of the cache."""
    for name in CACHE_FORMATS.get(deployment.engine, ()):
        if name == deployment.kv_dtype or not _runs_4_bit(name, deployment.gpu):
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
    for name in WEIGHTS.get(deployment.engine, ()):
        if weight_format(name).bits >= bits or not _runs_4_bit(name, deployment.gpu):
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
    if deployment.engine not in (*SLOTS, "transformers"):
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
            deployment=replace(deployment, speculative_tokens=0),
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


def replicas(deployment: Deployment) -> Iterator[Change]:
    """Twice as many GPUs as two replicas."""
    after = replace(deployment, dp=2 * deployment.dp)
    yield Change(
        kind="more GPUs",
        name=f"{after.dp} replicas",
        change=f"Twice the GPUs, as {after.dp} replicas",
        deployment=after,
        price=_sentence(cost_words(deployment, after), "Each replica loads all weights, and a prefix cached in one is "
                        "not in the other"),
    )  # fmt: skip


def splits(model: Model, deployment: Deployment, gpus: int) -> Iterator[Change]:
    """Every other valid split over so many GPUs."""
    for shard in shards(model, deployment.engine, gpus):
        if shard.refused:
            continue
        after = shard.onto(deployment)
        more = gpus != deployment.gpus
        if after == deployment or (more and after == replace(deployment, dp=2 * deployment.dp)):
            continue
        name = split_name(after)
        yield Change(
            kind="more GPUs" if more else "split",
            name=f"{gpus} GPUs: {name}" if more else name,
            change=f"{'Twice the GPUs, split' if more else 'Split the same GPUs'} as {name}",
            deployment=after,
            price=_sentence(cost_words(deployment, after), *split_price(deployment, after), *shard.notes),
        )


def more_gpus_to(deployment: Deployment, after: Deployment) -> Change:
    """Another number of the same GPUs, split in a given way."""
    name = f"{after.gpus:,} {'GPU' if after.gpus == 1 else 'GPUs'}: {split_name(after)}"
    return Change(
        kind="more GPUs",
        name=name,
        change=f"{after.gpus:,} GPUs instead of {deployment.gpus:,}, split as {split_name(after)}",
        deployment=after,
        price=_sentence(cost_words(deployment, after), *split_price(deployment, after)),
    )


def other_gpus(deployment: Deployment, sizes: int = 2) -> Iterator[Change]:
    """The next sizes of memory of the same make and form."""
    for gpu in larger_gpus(deployment.gpu, sizes):
        after = replace(deployment, gpu=gpu)
        yield Change(
            kind="GPU",
            name=gpu.name,
            change=f"{gpu.name} instead of {deployment.gpu.name}",
            deployment=after,
            price=_sentence(cost_words(deployment, after)),
        )


def other_engines(deployment: Deployment) -> Iterator[Change]:
    """Other engines for the same GPUs, each with its own defaults."""
    for name in NAMES:
        if name == deployment.engine or not runs_on(name, deployment.gpu):
            continue
        formats = CACHE_FORMATS[name]
        same = deployment.kv_dtype if deployment.kv_dtype in formats else "auto"
        # Slots live on GPUs that divide the layers.
        tp, pp = (1, deployment.replica_gpus) if name in SLOTS else (deployment.tp, deployment.pp)
        price = "Another server to learn and to run; its speed and its features differ."
        if same != deployment.kv_dtype:
            price += f" It has no {deployment.kv_dtype} cache: this is with its own default."
        yield Change(
            kind="engine",
            name=name,
            change=f"Serve with {name} instead of {deployment.engine}",
            deployment=replace(
                deployment, engine=name, engine_version=None, options=(), kv_dtype=same, utilization=None,
                max_num_batched_tokens=None, max_num_seqs=None, tp=tp, pp=pp,
            ),
            price=price,
        )  # fmt: skip


def larger_gpus(gpu: Accelerator, most: int = 2) -> tuple[Accelerator, ...]:
    """Accelerators of the same vendor and form with more memory, the next sizes first, one of each size."""
    form = _form(gpu)
    larger = [
        other
        for other in accelerators()
        if other.vendor == gpu.vendor and _form(other) == form and other.memory_bytes > 1.1 * gpu.memory_bytes
        and (other.release_year or 0) >= (gpu.release_year or 0) and other.unified_memory == gpu.unified_memory
    ]  # fmt: skip
    by_size: dict[int, Accelerator] = {}
    # Of one size the one whose memory a driver reported, and of these the fastest.
    for other in sorted(larger, key=lambda one: (one.reported_bytes is None, -one.bandwidth_bytes_per_s)):
        by_size.setdefault(other.memory_bytes // _ONE_SIZE, other)
    return tuple(sorted(by_size.values(), key=lambda one: one.memory_bytes))[:most]


def runs_on(engine: str, gpu: Accelerator) -> bool:
    """Whether an engine runs on accelerators of that vendor; one that was typed in is taken as one of NVIDIA's."""
    return gpu.vendor == "custom" or (gpu.vendor in VENDORS.get(engine, ()) and gpu.form != "CPU socket")


def _form(gpu: Accelerator) -> str:
    return gpu.form.split()[0].rstrip("0123456789")


def _capability(gpu: Accelerator) -> float:
    try:
        return float(gpu.compute_capability or 0)
    except ValueError:
        return 0.0


def _runs_4_bit(name: str, gpu: Accelerator) -> bool:
    return name != "nvfp4" or _capability(gpu) >= _BLACKWELL


def _sentence(*parts: str) -> str:
    return " ".join(part[:1].upper() + part[1:].rstrip(".") + "." for part in parts if part)
