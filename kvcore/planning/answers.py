"""A plan asked backwards: how many users, which context, how many GPUs, which share of the memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvcore.deployment import Deployment
from kvcore.model.model import Model
from kvcore.planning.basis import basis
from kvcore.planning.gpu_counts import gpu_counts
from kvcore.planning.pools import has_share
from kvcore.planning.shards import shards
from kvcore.planning.split_search import Search
from kvcore.terms import Range

# So many GPUs are tried at most.
MOST_GPUS = 1024
# Splits that are tried before the best of them is taken; those behind are odd ones.
SPLITS_TRIED = 12
# The largest share that is tried: a driver always keeps something.
MOST_HUNDREDTHS = 99


def most_users(model: Model, deployment: Deployment, context: int) -> Range[int]:
    """Whole requests of `context` tokens at once on all replicas; 0 where none fits or the engine refuses."""
    return basis(model, replace(deployment, context=context)).requests(context)


def longest_context(model: Model, deployment: Deployment, users: int) -> Range[int]:
    """The longest context of which so many requests fit at once, up to the model's limit; 0 where none does."""
    return basis(model, deployment).longest(users)


def fits(model: Model, deployment: Deployment, users: int) -> bool:
    """Whether so many requests of the deployment's context fit at the safe end."""
    return basis(model, deployment).requests(deployment.context).low >= users


def first_split(model: Model, tried: Sequence[Deployment], users: int) -> Deployment:
    """Of valid splits of the same GPUs the first in which the users fit at the safe end, else the first that starts.

    `tried` is in the order of `shards`, tensor parallel first, and not empty: what most would choose comes first. No
    more than the first dozen are looked at; where none of them starts it is the very first.
    """
    starts: Deployment | None = None
    for one in tried[:SPLITS_TRIED]:
        held = basis(model, one).requests(one.context).low
        if held >= users:
            return one
        starts = one if starts is None and held else starts
    return tried[0] if starts is None else starts


def fewest_gpus(model: Model, deployment: Deployment, users: int, engine_splits: bool = True) -> Deployment | None:
    """The deployment with the fewest GPUs of its kind on which the users fit at the safe end; None where none does.

    Every number of a host of eight, then whole hosts (`gpu_counts`); of each every split that the engine can serve.
    The first split that holds nearly most is taken, where the pool was stated the one that holds most. Without
    `engine_splits` it is the deployment's own split, repeated as replicas.
    """
    if not engine_splits:
        return _fewest_replicas(model, deployment, users)
    counts = gpu_counts(MOST_GPUS)
    if deployment.kv_bytes is None:
        if model.context_limit is not None and deployment.context > model.context_limit:
            return None
        found = Search(model=model, asked=deployment, users=users, counts=counts).fewest(deployment.gpu)
        return None if found is None else found.deployment
    for gpus in counts:
        best: tuple[int, Deployment] | None = None
        for shard in shards(model, deployment.engine, gpus):
            if shard.refused:
                continue
            tried = shard.onto(deployment)
            held = basis(model, tried).requests(tried.context).low
            if held >= users and (best is None or held > best[0]):
                best = (held, tried)
        if best is not None:
            return best[1]
    return None


def _fewest_replicas(model: Model, deployment: Deployment, users: int) -> Deployment | None:
    one = replace(deployment, dp=1)
    held = basis(model, one).requests(one.context).low
    if not held:
        return None
    replicas = -(-users // held)
    return replace(one, dp=replicas) if replicas * one.replica_gpus <= MOST_GPUS else None


def least_utilization(model: Model, deployment: Deployment, users: int) -> float | None:
    """The smallest share of the memory, in hundredths, at which so many users fit at the safe end.

    None where none does, where the engine has no such share, and where the pool was stated.
    """
    if not has_share(deployment.engine) or deployment.kv_bytes is not None:
        return None

    def enough(hundredths: int) -> bool:
        return fits(model, replace(deployment, utilization=hundredths / 100), users)

    if not enough(MOST_HUNDREDTHS):
        return None
    low, high = 0, MOST_HUNDREDTHS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high / 100
