"""One lever over all its values: how many requests fit at once at each, with all else as planned.

Levers with a number or an order are curves, the others bars; `sweep` says which. What a single change gains and costs
in words is what whatif.py says; here the same change is seen beside those that were not asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from kvcore.deployment import Deployment
from kvcore.engines.registry import engine, engine_names, runs_on
from kvcore.errors import KVCoreError
from kvcore.hardware.gpus import accelerators
from kvcore.model.model import Model
from kvcore.planning.answers import SPLITS_TRIED, most_users
from kvcore.planning.changes import other_engines, runs_4_bit
from kvcore.planning.offload import offload
from kvcore.planning.people import Traffic, batched_tokens, expected
from kvcore.planning.plan import Basis, basis
from kvcore.planning.pools import has_share, usable_share
from kvcore.planning.splits import shards, split_name
from kvcore.terms import Range
from kvcore.units import GIB, MAX_BATCH, format_tokens

if TYPE_CHECKING:
    import numpy as np


_STEPS = (512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536)
_SEQUENCES = tuple(2**n for n in range(13))
_SHARES = tuple(hundredths / 100 for hundredths in (50, 60, 70, 75, 80, 85, 90, 92, 95, 98))
_PREFIXES = tuple(1024 * n for n in (0, 1, 2, 4, 8, 16, 32, 64))
_HOST_GIB = (0, 64, 128, 256, 512, 1024, 2048)
_COUNTS = (1, 2, 4, 8, 16, 32)
_MOST_SPLITS = 12
# Accelerators whose memory differs by less stand for one size.
_ONE_SIZE = 8 * GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A value of a lever and whole requests at once with it, low to high.

    `most` is None, and `why` says why, where the engine or the model refuses the value. `now` marks the plan's own.
    `deployment` is the one with that value, None where the lever is not one of the server.
    """

    name: str
    most: Range[int] | None
    deployment: Deployment | None = None
    now: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepLever:
    """A lever: what it is called, in which unit its values are (""), whether they have an order, and its price."""

    name: str
    unit: str
    ordered: bool
    price: str
    counted: str = "requests at once"


LEVERS: Mapping[str, SweepLever] = MappingProxyType(
    {
        "cache": SweepLever(name="format of the cache", unit="", ordered=False,
                       price="Fewer bits cost quality, usually little at 8 bits and more below."),
        "weights": SweepLever(name="format of the weights", unit="", ordered=False,
                         price="Needs a checkpoint in that format, and costs some quality."),
        "split": SweepLever(name="split of the same GPUs", unit="", ordered=False,
                       price="More ranks in a layer exchange more over the link; stages and replicas exchange less, "
                       "and each replica loads all weights."),
        "gpus": SweepLever(name="number of GPUs", unit="GPUs", ordered=True,
                      price="Each GPU more costs rent, power and room."),
        "batched": SweepLever(name="most tokens in a step", unit="tokens in a step", ordered=True,
                         price="Fewer leave more memory for the cache; a long prompt then takes more steps, and its "
                         "first token comes later."),
        "seqs": SweepLever(name="most requests that the engine runs at once", unit="requests at once, each replica",
                      ordered=True,
                      price="Fewer keep tokens fast and leave memory unused; more let in what the memory holds, and "
                      "every request's tokens come slower."),
        "share": SweepLever(name="share of the GPU's memory", unit="of the memory", ordered=True,
                       price="The more the engine takes, the less is left for what nobody foresaw: it may end out of "
                       "memory."),
        "prefix": SweepLever(name="shared beginning of all prompts", unit="tokens shared", ordered=True,
                        price="What comes before the first difference must be the same token for token.",
                        counted="requests at once, at the expected length"),
        "host": SweepLever(name="CPU memory for caches of idle requests", unit="GiB of CPU memory", ordered=True,
                      price="No more generate at once; those that rest are brought back over the link, which takes "
                      "longer than finding them on the GPU.",
                      counted="caches kept, on the GPUs and in CPU memory"),
        "gpu": SweepLever(name="another GPU", unit="", ordered=False, price="Another machine to buy or to rent."),
        "engine": SweepLever(name="another engine", unit="", ordered=False,
                        price="Another server to learn and to run; its speed and its features differ."),
    }
)  # fmt: skip


def sweep(
    model: Model, deployment: Deployment, lever: str, traffic: Traffic | None = None, host_gib: int = 0
) -> tuple[Point, ...]:
    """Every value of a lever, the plan's own among them; empty where the engine does not have this lever.

    The context is the deployment's, except for `prefix`, which is about requests of the expected length and is empty
    without `traffic`. `host_gib` is the CPU memory for idle requests that is planned for each replica. Raises KeyError
    for a lever that is none of LEVERS.
    """
    LEVERS[lever]
    if lever == "prefix":
        return tuple(_prefixes(model, deployment, traffic)) if traffic is not None else ()
    if lever == "host":
        return tuple(_hosts(model, deployment, host_gib))
    return tuple(_point(model, name, now, wanted) for name, now, wanted in _VALUES[lever](model, deployment))


def _point(model: Model, name: str, now: bool, wanted: Deployment) -> Point:
    why = ""
    try:
        why = basis(model, wanted).refused
        most = None if why else most_users(model, wanted, wanted.context)
    except KVCoreError as problem:
        most, why = None, str(problem)
    return Point(name=name, most=most, deployment=wanted, now=now, why=why)


_Value = tuple[str, bool, Deployment]


def _formats(field: str, offered: str, own: str | None, model: Model, deployment: Deployment) -> Iterator[_Value]:
    """The engine's own choice, each format that it offers and the GPU runs, and the plan's own."""
    chosen = getattr(deployment, field)
    runs = [name for name in getattr(engine(deployment.engine), offered) if runs_4_bit(name, deployment.gpu)]
    names = dict.fromkeys([own, *runs, chosen])
    for name in names:
        change: dict[str, Any] = {field: name}
        yield name or "as stored", name == chosen, replace(deployment, **change)


def _splits(model: Model, deployment: Deployment) -> Iterator[_Value]:
    found = [one.onto(deployment) for one in shards(model, deployment.engine, deployment.gpus) if not one.refused]
    if deployment not in found:
        found.insert(0, deployment)
    shown = found[:_MOST_SPLITS]
    if deployment not in shown:
        shown[-1] = deployment
    for one in shown:
        yield split_name(one), one == deployment, one


def _counts(model: Model, deployment: Deployment) -> Iterator[_Value]:
    """The plan, and each other number of GPUs in the split that holds most of those that are tried first.

    Any other split could hold fewer on more GPUs, which says nothing about the GPUs.
    """
    for count in sorted({*_COUNTS, deployment.gpus}):
        if count == deployment.gpus:
            yield f"{count:,}", True, deployment
            continue
        found = [one.onto(deployment) for one in shards(model, deployment.engine, count) if not one.refused]
        if found:
            best = max(found[:SPLITS_TRIED], key=lambda one: most_users(model, one, one.context).low)
            yield f"{count:,}", False, best


def _numbers(
    field: str, values: Sequence[float], own: Callable[[Model, Deployment], float | None], show: Callable[[float], str],
    model: Model, deployment: Deployment,
) -> Iterator[_Value]:  # fmt: skip
    try:
        now = own(model, deployment)
    except KVCoreError:
        return
    if now is None:
        return
    for value in sorted({*values, now}):
        change: dict[str, Any] = {} if value == now else {field: value}
        yield show(value), value == now, replace(deployment, **change)


def _batched(model: Model, deployment: Deployment) -> float | None:
    return batched_tokens(model, deployment) if engine(deployment.engine).step_memory else None


def sequences(model: Model, deployment: Deployment) -> int | None:
    """The most requests that the engine runs at once on a replica as deployed; None where it has no such number."""
    cache = basis(model, deployment).cache
    return None if cache is None else cache.sequences


def _share(model: Model, deployment: Deployment) -> float | None:
    """None where the engine has no share, or the pool was stated and a share changes nothing."""
    if not has_share(deployment.engine) or deployment.kv_bytes is not None:
        return None
    return round(usable_share(model, deployment), 4)


def _whole(value: float) -> str:
    return f"{value:,.0f}"


def _gpus(model: Model, deployment: Deployment) -> Iterator[_Value]:
    """GPUs of the same make, one of each size of memory, all that the engine runs on."""
    mine = deployment.gpu
    sizes = {mine.memory_bytes // _ONE_SIZE: mine}
    for gpu in sorted(accelerators(), key=lambda one: (one.reported_bytes is None, -one.bandwidth_bytes_per_s)):
        if gpu.vendor == mine.vendor and gpu.unified_memory == mine.unified_memory and runs_on(deployment.engine, gpu):
            sizes.setdefault(gpu.memory_bytes // _ONE_SIZE, gpu)
    for gpu in sorted(sizes.values(), key=lambda one: one.memory_bytes):
        yield gpu.name, gpu is mine, replace(deployment, gpu=gpu)


def _engines(model: Model, deployment: Deployment) -> Iterator[_Value]:
    others = {one.name: one.deployment for one in other_engines(deployment)}
    for name in engine_names():
        if name == deployment.engine:
            yield name, True, deployment
        elif name in others:
            yield name, False, others[name]


_VALUES: Mapping[str, Callable[[Model, Deployment], Iterator[_Value]]] = MappingProxyType(
    {
        "cache": partial(_formats, "kv_dtype", "cache_formats", "auto"),
        "weights": partial(_formats, "weight_format", "weight_formats", None),
        "split": _splits,
        "gpus": _counts,
        "batched": partial(
            _numbers, "max_num_batched_tokens", _STEPS, _batched, lambda value: format_tokens(int(value))
        ),
        "seqs": partial(_numbers, "max_num_seqs", _SEQUENCES, sequences, _whole),
        "share": partial(_numbers, "utilization", _SHARES, _share, lambda value: f"{value:g}"),
        "gpu": _gpus,
        "engine": _engines,
    }
)


def _prefixes(model: Model, deployment: Deployment, traffic: Traffic) -> Iterator[Point]:
    """Requests at their expected peak that hold a beginning in common."""
    now = traffic.shared_prefix_tokens
    for shared in sorted({*(one for one in _PREFIXES if one <= traffic.prompt_tokens), now}):
        name = format_tokens(shared)
        try:
            found = expected(model, deployment, replace(traffic, shared_prefix_tokens=shared))
        except KVCoreError as problem:
            yield Point(name=name, most=None, now=shared == now, why=str(problem))
            continue
        yield Point(name=name, most=found.peak.requests, now=shared == now)


def _hosts(model: Model, deployment: Deployment, planned: int) -> Iterator[Point]:
    """Caches that are kept on the GPUs and in so much CPU memory of each replica's hosts."""
    try:
        moved = offload(model, deployment)
        held = most_users(model, deployment, deployment.context)
    except KVCoreError:
        return
    for gib in sorted({*_HOST_GIB, planned}):
        more = min(MAX_BATCH, deployment.dp * moved.idle_requests(gib * GIB))
        yield Point(name=f"{gib:,}", most=held + more, now=gib == planned)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Grid:
    """`most[i]` whole requests of `contexts[i]` tokens at once; `fits[u, i]` is about `users[u]` of them.

    2: they fit at the safe end; 1: only within the range; 0: they do not. `limits` are the engine's and the model's
    own bounds, in words.
    """

    contexts: tuple[int, ...]
    users: tuple[int, ...]
    most: tuple[Range[int], ...]
    fits: np.ndarray
    limits: tuple[str, ...]


def grid(model: Model, deployment: Deployment, contexts: Sequence[int], users: Sequence[int]) -> Grid:
    """The grid; each cell is what a plan of that context for so many users says. Refusals are cells that do not fit."""
    import numpy as np

    base = basis(model, deployment)
    most = tuple(base.requests(context) for context in contexts)
    counts = np.asarray(users, dtype=np.int64)[:, None]
    low = np.asarray([ends.low for ends in most], dtype=np.int64)
    high = np.asarray([ends.high for ends in most], dtype=np.int64)
    fits = (counts <= low).astype(np.int8) + (counts <= high).astype(np.int8)
    return Grid(contexts=tuple(contexts), users=tuple(users), most=most, fits=fits, limits=_limits(base))


def _limits(base: Basis) -> tuple[str, ...]:
    if base.refused:
        return (base.refused,)
    limits = []
    if base.limit is not None:
        limits.append(f"{base.model.name} takes at most {base.limit:,} tokens")
    if base.cache is not None and base.cache.sequences is not None:
        replicas, most = base.deployment.dp, base.cache.sequences
        each = f"{most:,}" if replicas == 1 else f"{most:,} × {replicas} replicas = {most * replicas:,}"
        limits.append(f"{base.cache.sequences_name}: {each} requests at once")
    return tuple(limits)
