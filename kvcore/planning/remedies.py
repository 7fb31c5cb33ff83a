"""What to change when a plan does not fit: how much is missing, and the nearest changes that close the gap."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from itertools import combinations

from kvcore.deployment import Deployment
from kvcore.errors import KVCoreError
from kvcore.model.model import Model
from kvcore.planning.answers import least_utilization, longest_context
from kvcore.planning.basis import basis
from kvcore.planning.changes import (
    MOST_UTILIZATION,
    Change,
    cache_formats,
    context_to,
    step_options,
    utilization,
    utilization_to,
    weight_formats,
)
from kvcore.planning.gpu_counts import gpu_counts
from kvcore.planning.hardware_changes import more_gpus_to, other_engines, other_gpus, splits
from kvcore.planning.plan import Plan, make_plan, starting
from kvcore.planning.pools import usable_share
from kvcore.planning.recommend import recommend
from kvcore.planning.whatif import WhatIf, told
from kvcore.units import MIB, format_bytes, plural

MOST_PAIRS = 4
# So many of the same GPU are tried at most.
_MOST_GPUS = 128
# Sizes of memory of other GPUs that are tried, the next larger ones first.
_LARGER = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """Memory for the cache on the fullest GPU, at the safe end: what it must have, what it has, what is missing."""

    needed_bytes: int
    available_bytes: int
    missing_bytes: int
    sentence: str


def shortfall(model: Model, deployment: Deployment, users: int | None = None) -> Shortfall | None:
    """How much cache memory is missing on each GPU for so many requests (one where None).

    None where nothing is missing, or where memory is not what keeps it from fitting. Available bytes below 0 are what
    weights and overheads take beyond what the engine may have.
    """
    plan = make_plan(model, deployment, users)
    if plan.fits or plan.kv_bytes is None or plan.layout is None:
        return None
    needed = _least_pool(model, deployment, users, plan)
    if needed is None or needed <= plan.kv_bytes.low:
        return None
    have, wanted = plan.kv_bytes.low, users or 1
    verb = "needs" if wanted == 1 else "need"
    there = f"{format_bytes(have)} are there at the safe end"
    if have < 0:
        there = f"weights and overheads alone may take {format_bytes(-have)} more than there is"
    sentence = (
        f"{plural(wanted, 'request')} of {deployment.context:,} tokens {verb} {format_bytes(needed)} of cache on each "
        f"GPU, {there}: {format_bytes(needed - have)} are missing."
    )
    return Shortfall(needed_bytes=needed, available_bytes=have, missing_bytes=needed - have, sentence=sentence)


def _least_pool(model: Model, deployment: Deployment, users: int | None, plan: Plan) -> int | None:
    """The smallest pool on each GPU that holds them, to the byte; None where no pool does."""
    per_request = plan.layout.bytes_per_request if plan.layout is not None else MIB
    each = -(-(users or 1) // deployment.dp)
    low, high = 0, max(MIB, 2 * per_request * (each + 1))
    if not make_plan(model, replace(deployment, kv_bytes=high), users).fits:
        return None
    # What fills a pool of that size fills a smaller one by the same rules.
    base = basis(model, replace(deployment, kv_bytes=high))
    if base.cache is None or base.by_context is None or not base.cache.keeps_cache:
        return None
    stages = len(base.by_context.at(deployment.context).low)

    def enough(size: int) -> bool:
        return base.cache is not None and base.cache.holds(deployment.context, each, (size,) * stages)

    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def remedies(model: Model, deployment: Deployment, users: int | None = None) -> tuple[WhatIf, ...]:
    """The nearest changes after which it fits at the safe end, the smallest first; () where it fits already.

    Settings come before a shorter context or fewer users, these before smaller formats, and hardware comes last. Where
    no single change of settings or formats suffices on the same GPUs, pairs of them follow. Every one is planned and
    fits. Raises UnitError for users out of range.
    """
    before = make_plan(model, deployment, users)
    if before.fits:
        return ()
    found: list[WhatIf] = []
    kept = [*_settings(model, deployment, users, before), *_formats(model, deployment)]
    singles = [one for change in kept if (one := _fitting(model, before, change, users))]
    settings = [one for one in singles if one.kind not in ("cache format", "weight format", "split")]
    found += settings
    found += _demands(model, before, deployment, users)
    found += [one for one in singles if one not in settings]
    if not singles and deployment.kv_bytes is None:
        found += _pairs(model, before, kept, users)
    found += _hardware(model, before, deployment, users)
    return tuple(found)


def _settings(model: Model, deployment: Deployment, users: int | None, before: Plan) -> Iterator[Change]:
    """The least share of the memory that suffices (or the most there is, for a pair), smaller steps, more sequences."""
    if deployment.kv_bytes is not None:
        yield from _sequences(before, deployment, users)
        return
    least = least_utilization(model, deployment, users or 1) if not before.refused else None
    try:
        share = usable_share(model, deployment)
    except KVCoreError:
        share = 1.0
    if least is not None and share < least <= MOST_UTILIZATION:
        yield utilization_to(deployment, least, share)
    else:
        yield from utilization(model, deployment)
    yield from step_options(model, deployment)
    yield from _sequences(before, deployment, users)


def _sequences(before: Plan, deployment: Deployment, users: int | None) -> Iterator[Change]:
    if before.binding.kind != "sequences" or users is None:
        return
    each = -(-users // deployment.dp)
    yield Change(
        kind="sequences",
        name=plural(each, "sequence"),
        change=f"Let {plural(each, 'request')} run at once on each replica",
        deployment=replace(deployment, max_num_seqs=each),
        price="Larger batches: every request's tokens come slower, all together more.",
    )


def _formats(model: Model, deployment: Deployment) -> Iterator[Change]:
    yield from cache_formats(model, deployment)
    if deployment.kv_bytes is None:
        yield from weight_formats(model, deployment)
        yield from splits(model, deployment, deployment.gpus)


def _demands(model: Model, before: Plan, deployment: Deployment, users: int | None) -> list[WhatIf]:
    """A shorter context for the same users, and fewer users of the same context."""
    found = []
    if not before.refused:
        longest = longest_context(model, deployment, users or 1).low
        if 1 <= longest < deployment.context:
            found.append(_fitting(model, before, context_to(deployment, longest, ", the longest that fits"), users))
    most = before.requests.low if before.requests is not None else 0
    if users is not None and 1 <= most < users:
        change = Change(
            kind="users",
            name=plural(most, "user"),
            change=f"Serve {plural(most, 'request')} at once instead of {users:,}",
            deployment=deployment,
            price="The others wait in the queue.",
        )
        fewer = _fitting(model, before, change, most)
        words = (
            f"{users:,} → {plural(most, 'request')} of {deployment.context:,} tokens at once, which fit at the safe end"
        )
        found.append(None if fewer is None else replace(fewer, users=most, gain_words=words))
    return [one for one in found if one is not None]


def _pairs(model: Model, before: Plan, kept: Iterable[Change], users: int | None) -> list[WhatIf]:
    """Two changes of settings or formats at once, nearest first, where neither does alone."""
    found = []
    candidates = [change for change in kept if change.kind != "split"]
    for first, second in combinations(candidates, 2):
        if first.kind == second.kind:
            continue
        both = Change(
            kind=second.kind,
            name=f"{first.name} + {second.name}",
            change=f"{first.change}; {second.change[:1].lower()}{second.change[1:]}",
            deployment=_merged(before.deployment, first.deployment, second.deployment),
            price=f"{first.price} {second.price}",
        )
        fitting = _fitting(model, before, both, users)
        if fitting is not None:
            found.append(fitting)
        if len(found) == MOST_PAIRS:
            break
    return found


def _merged(base: Deployment, first: Deployment, second: Deployment) -> Deployment:
    """What the first changes of the base, on what the second changes of it."""
    names = (field.name for field in fields(base))
    changed = {name: getattr(first, name) for name in names if getattr(first, name) != getattr(base, name)}
    return replace(second, **changed)


def _hardware(model: Model, before: Plan, deployment: Deployment, users: int | None) -> list[WhatIf]:
    """The fewest GPUs of the same kind, the smallest larger GPU, another engine."""
    if deployment.kv_bytes is not None:
        return []
    found = []
    more = recommend(
        model, context=deployment.context, users=users or 1, engine=deployment.engine, base=deployment,
        counts=gpu_counts(_MOST_GPUS), gpus=(deployment.gpu,),
    )  # fmt: skip
    found += [
        _fitting(model, before, more_gpus_to(deployment, one.deployment), users)
        for one in more
        if one.gpus != deployment.gpus
    ]
    larger = (_fitting(model, before, change, users) for change in other_gpus(deployment, _LARGER))
    found.append(next((one for one in larger if one is not None), None))
    found += [_fitting(model, before, change, users) for change in other_engines(deployment)]
    return [one for one in found if one is not None]


def _fitting(model: Model, before: Plan, change: Change, users: int | None) -> WhatIf | None:
    """A change as a remedy where the plan after it fits at the safe end; most that are tried do not."""
    base, wanted = basis(model, change.deployment), users or 1
    if base.requests(change.deployment.context).low < wanted:
        return None
    after = starting(base, users)
    return None if after is None or after.requests.low < wanted else told(change, before, after, users)
