"""Changes of the hardware and what runs on it: the split, the number of GPUs, another GPU, another engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kvcore.deployment import Deployment
from kvcore.engines.registry import engine, engine_names, runs_on
from kvcore.hardware.gpus import Accelerator, accelerators
from kvcore.hardware.prices import cost_words
from kvcore.hardware.systems import MAX_GPUS
from kvcore.model.model import Model
from kvcore.planning.changes import Change
from kvcore.planning.shard_words import split_name, split_price
from kvcore.planning.shards import shards
from kvcore.units import GIB, plural

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
