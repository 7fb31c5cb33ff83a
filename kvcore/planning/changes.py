"""What a smaller cache format was measured to cost, in one sentence out of data/levers.csv and data/quality.csv."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from kvcore.deployment import Deployment
from kvcore.engines.registry import engine, engine_names, runs_on
from kvcore.errors import KVCoreError, UnitError
from kvcore.formats import kv_format
from kvcore.hardware.gpus import Accelerator, accelerators
from kvcore.hardware.prices import cost_words
from kvcore.hardware.systems import MAX_GPUS
from kvcore.model.model import Model
from kvcore.model.weight_formats import WEIGHT_FORMATS, weight_format, weights_bytes
from kvcore.planning.people import batched_tokens
from kvcore.planning.pools import has_share, usable_share
from kvcore.planning.splits import shards, split_name, split_price
from kvcore.units import GIB, plural
from kvcore.variants.levers import QualityResult, lever, lever_of, results

# The word by which a comparison names a format, where it is not the format's own name.
_NAMED = {"nvfp4": "E2M1", "mxfp4": "E2M1", "fp8_ds_mla": "fp8", "fp8_per_token_head": "fp8"}


def cache_quality(model_name: str, format_name: str) -> str:
    """The published risk of a cache format and one result, of this model if there is one, else the worst.

    "" for a format of 16 bits or more.
    """
    try:
        found = lever_of("", format_name)
    except UnitError:
        return ""
    texts = _risks(format_name, found)
    example = _example(model_name, format_name, found)
    return " ".join([*texts, example] if example else texts)


def _risks(format_name: str, found: tuple[str, ...]) -> list[str]:
    """The risk of each lever; where keys and values are two of them, whose it is."""
    texts = [lever(id).quality_risk.text for id in found]
    if len(texts) < 2:
        return texts
    both = kv_format(format_name)
    of_keys = [id for id in found if both.k.name in lever(id).formats]
    if len(of_keys) != 1:
        return texts
    said = {id: text[:1].lower() + text[1:] for id, text in zip(found, texts, strict=True)}
    rest = " ".join(text for id, text in said.items() if id not in of_keys)
    return [f"For the keys, in {both.k.bits:g} bits: {said[of_keys[0]]}", f"For the values, in {both.v.bits:g}: {rest}"]


def _example(model_name: str, format_name: str, levers: tuple[str, ...]) -> str:
    word = _NAMED.get(format_name, format_name).lower()
    rows = [
        row
        for id in levers
        for row in results(id)
        if row.measures == "quality" and row.baseline is not None and re.search(rf"\b{re.escape(word)}\b", _words(row))
    ]
    if not rows:
        return ""
    own = [row for row in rows if _same(model_name, row.model)]
    row = max(own or rows, key=_harm)
    # The name of a model stays as it is written.
    other = "On a model that the source does not name" if row.model == "not stated" else row.model
    whose = "This model" if own else other
    return f"{whose}: {_result(row)} ({row.source})."


def _result(row: QualityResult) -> str:
    """A score against the one without it; of a change against none, how much higher."""
    rise = row.metric.removeprefix("increase of ")
    if rise != row.metric and row.baseline == 0:
        return f"{rise} {row.value:g} {row.unit} higher"
    return f"{row.metric} {row.value:g} instead of {row.baseline:g} {row.unit}"


def _words(row: QualityResult) -> str:
    return row.comparison.lower()


def _harm(row: QualityResult) -> tuple[bool, float]:
    """Scores of a task come before perplexities and divergences; among them the largest loss, in its own unit."""
    change = row.change or 0.0
    return row.unit == "%" and bool(row.baseline), -change if row.better == "higher" else change


def _same(name: str, other: str) -> bool:
    def plain(text: str) -> str:
        return re.sub(r"[^a-z0-9]", "", text.lower())

    return len(plain(other)) >= 6 and plain(other) in plain(name)


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


# GPUs whose memories differ by less are of one size.
_ONE_SIZE = 8 * GIB


def replicas(deployment: Deployment) -> Iterator[Change]:
    """Twice as many GPUs as two replicas; none where there are more than can be planned."""
    if 2 * deployment.gpus > MAX_GPUS:
        return
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
    """Every other valid split over so many GPUs; over more of them only where the pipeline grows no deeper.

    More stages hold a little more than replicas or ranks do, and leave every request as slow as before: nobody buys
    GPUs for that. None over more GPUs than can be planned.
    """
    if gpus > MAX_GPUS:
        return
    for shard in shards(model, deployment.engine, gpus):
        if shard.refused:
            continue
        after = shard.onto(deployment)
        more = gpus != deployment.gpus
        if after == deployment or (more and after == replace(deployment, dp=2 * deployment.dp)):
            continue
        if more and after.pp > deployment.pp:
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
    name = f"{plural(after.gpus, 'GPU')}: {split_name(after)}"
    return Change(
        kind="more GPUs",
        name=name,
        change=f"{plural(after.gpus, 'GPU')} instead of {deployment.gpus:,}, split as {split_name(after)}",
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
    for name in engine_names():
        if name == deployment.engine or not runs_on(name, deployment.gpu):
            continue
        chosen = engine(name)
        formats = chosen.cache_formats
        same = deployment.kv_dtype if deployment.kv_dtype in formats else "auto"
        # Slots live on GPUs that divide the layers.
        tp, pp = (1, deployment.replica_gpus) if chosen.slots else (deployment.tp, deployment.pp)
        price = "Another server to learn and to run; its speed and its features differ."
        if same != deployment.kv_dtype:
            price += f" It has no {deployment.kv_dtype} cache: this is with its own default."
        yield Change(
            kind="engine",
            name=name,
            change=engine_change(name, deployment.engine),
            deployment=replace(
                deployment, engine=name, engine_version=None, options=(), kv_dtype=same, utilization=None,
                max_num_batched_tokens=None, max_num_seqs=None, tp=tp, pp=pp,
            ),
            price=price,
        )  # fmt: skip


def engine_change(after: str, before: str) -> str:
    """Another engine in words; screens have other names for engines than answers do."""
    return f"Serve with {after} instead of {before}"


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


def _form(gpu: Accelerator) -> str:
    return gpu.form.split()[0].rstrip("0123456789")


def _sentence(*parts: str) -> str:
    return " ".join(part[:1].upper() + part[1:].rstrip(".") + "." for part in parts if part)
