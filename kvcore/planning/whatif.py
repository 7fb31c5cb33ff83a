"""What if: one change each, how much more it lets in, and what it costs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from functools import lru_cache
from itertools import combinations
from types import MappingProxyType

from kvcore.deployment import Deployment
from kvcore.errors import KVCoreError
from kvcore.model.model import Model
from kvcore.planning.answers import gpu_counts, least_utilization, longest_context, recommend
from kvcore.planning.changes import (
    MOST_UTILIZATION,
    Change,
    Kind,
    cache_formats,
    context_to,
    more_gpus_to,
    other_engines,
    other_gpus,
    replicas,
    shorter,
    splits,
    step_options,
    utilization,
    utilization_to,
    weight_formats,
)
from kvcore.planning.offload import Offload, host_memory_text, offload
from kvcore.planning.people import Traffic, expected
from kvcore.planning.plan import HeldRequests, Plan, basis, make_plan, starting
from kvcore.planning.pools import usable_share
from kvcore.terms import End, Range
from kvcore.units import GIB, MAX_BATCH, MIB, format_bytes, plural

# Host memory that an offer to offload is reckoned with.
HOST_BYTES = 256 * GIB
# A gain below this is none.
LEAST_GAIN = 1.005
# Splits that are shown, of those with different gains.
_MOST: Mapping[Kind, int] = MappingProxyType({"split": 4, "more GPUs": 4})


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """One change, the deployment and the plan after it.

    `requests` are those that fit at once after the change. `gain` is how many times more those are at the safe end,
    `gain_best` at best guess; None where none fit before, or where the gain is not one in requests at once
    (offloading). `gain_words` says it in words, `price` what it costs. `users` is set by a remedy that serves fewer,
    `asked` are those that the plan before was asked for.

    `deployment` is the present one, and there is nothing to set, where the change is not one of the server: offloading,
    fewer users, and a shared prefix that it would cache already. `requests` and `plan` then are the present ones too;
    what a shared prefix gains at the expected length is in `gain` and `gain_words` alone.
    """

    kind: Kind
    name: str
    change: str
    deployment: Deployment
    gain: float | None
    gain_best: float | None
    gain_words: str
    price: str
    requests: Range[int] | None
    model: Model
    asked: int | None
    users: int | None = None
    offload: Offload | None = None

    @property
    def plan(self) -> Plan:
        """The plan after the change, for as many users as the one before: made when it is asked for."""
        return _planned(self.model, self.deployment, self.asked)


@lru_cache(maxsize=256)
def _planned(model: Model, deployment: Deployment, users: int | None) -> Plan:
    return make_plan(model, deployment, users)


def whatifs(
    model: Model, deployment: Deployment, users: int | None = None, *, traffic: Traffic | None = None
) -> tuple[WhatIf, ...]:
    """Every single change that lets in more requests, the largest gain at the safe end first.

    Changes that the engine or the model refuses, and those that gain nothing, are left out. With `traffic` also a cap
    at the expected length, and what sharing a prefix gains. Last comes host memory for idle requests, which lets no
    more generate at once. Raises UnitError for users out of range.
    """
    before = make_plan(model, deployment, users)
    tried = list(_changes(model, deployment))
    if traffic is not None and traffic.peak_tokens < deployment.context:
        tried.append(context_to(deployment, traffic.peak_tokens, ", the expected length of a request"))
    gained: list[_Gained | WhatIf | None] = [_try(model, before, change) for change in tried]
    gained += [_more_sequences(model, before), _prefix(model, before, traffic)]
    found = _few(sorted((one for one in gained if one is not None), key=_order), model, before, users)
    idle = _offload(model, before)
    return (*found, idle) if idle is not None else tuple(found)


def _changes(model: Model, deployment: Deployment) -> tuple[Change, ...]:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gained:
    """A change that lets in more, before anything is said of it: most that are tried do not."""

    change: Change
    requests: Range[int]
    gain: float | None
    gain_best: float | None


def _try(model: Model, before: Plan, change: Change) -> _Gained | None:
    """One change against the plan before it; None where it is refused or gains nothing."""
    base = basis(model, change.deployment)
    if base.refused:
        return None
    after = base.held(change.deployment.context)
    low, best = _gain(before, after, "low"), _gain(before, after, "best")
    if not after.requests.low or (low is not None and low < LEAST_GAIN):
        return None
    return _Gained(change=change, requests=after.requests, gain=low, gain_best=best)


def told(
    change: Change,
    before: Plan,
    after: HeldRequests,
    users: int | None,
    gain: float | None = None,
    best: float | None = None,
) -> WhatIf:
    """A change with what it holds then and what it gains; None where the gain is that it fits at all."""
    return WhatIf(
        kind=change.kind,
        name=change.name,
        change=change.change,
        deployment=change.deployment,
        gain=gain,
        gain_best=best,
        gain_words=_gain_words(before, after, change.deployment.context, gain),
        price=change.price,
        requests=after.requests,
        model=before.model,
        asked=users,
    )


def _gain_words(before: Plan, after: HeldRequests, length: int, gain: float | None) -> str:
    """`12 → 25 requests of 32,768 tokens at once (× 2.08), at the safe end`."""
    was, now = 0 if before.requests is None else before.requests.low, after.requests.low
    noun = "request" if now == 1 else "requests"
    noun += f", now of {length:,} tokens," if length != before.deployment.context else f" of {length:,} tokens"
    times = "" if gain is None else f" (× {gain:.3g})"
    return f"{was:,} → {now:,} {noun} at once{times}, at the safe end"


def _gain(before: Plan, after: HeldRequests, end: End) -> float | None:
    was = _exact(before.requests, before.concurrency, before.binding.kind == "sequences", end)
    now = _exact(after.requests, after.concurrency, after.by_sequences, end)
    return float(now / was) if was else None


def _exact(requests: Range[int] | None, concurrency: Range[Fraction] | None, by_sequences: bool, end: End) -> Fraction:
    """Requests at once as an exact number, or whole ones where a number of sequences is less than the memory."""
    if requests is None:
        return Fraction(0)
    whole = requests.at(end)
    exact = Fraction(whole) if concurrency is None else concurrency.at(end)
    return Fraction(whole) if by_sequences or not whole else max(Fraction(whole), exact)


def _few(ordered: list[_Gained | WhatIf], model: Model, before: Plan, users: int | None) -> list[WhatIf]:
    """Of changes of one kind that are many, the best ones, and of those with the same gain the simplest."""
    kept: list[WhatIf] = []
    shown: dict[Kind, list[tuple[int, int]]] = {}
    for one in ordered:
        if isinstance(one, WhatIf):
            kept.append(one)
            continue
        kind, answer = one.change.kind, (one.requests.low, one.change.deployment.context)
        others = shown.setdefault(kind, [])
        if kind in _MOST and (answer in others or len(others) == _MOST[kind]):
            continue
        after = starting(basis(model, one.change.deployment), users)
        if after is not None:
            others.append(answer)
            kept.append(told(one.change, before, after, users, one.gain, one.gain_best))
    return kept


def _order(one: _Gained | WhatIf) -> tuple[float, float, int]:
    deployment = one.change.deployment if isinstance(one, _Gained) else one.deployment
    # The largest gain first; where none fit before, the most requests; of equals the one with fewer GPUs.
    now = 0 if one.requests is None else one.requests.low
    return (-(one.gain or 0.0), -float(now) if one.gain is None else 0.0, deployment.gpus)


def _more_sequences(model: Model, before: Plan) -> _Gained | None:
    """As many sequences as the memory holds, where the engine's own number is what binds; no more than can be said."""
    if before.binding.kind != "sequences" or before.concurrency is None:
        return None
    each = min(MAX_BATCH, int(before.concurrency.low / before.deployment.dp))
    now = 0 if before.requests is None else before.requests.low // before.deployment.dp
    if each <= now:
        return None
    change = Change(
        kind="sequences",
        name=plural(each, "sequence"),
        change=f"Let {plural(each, 'request')} run at once on each replica instead of {now:,}",
        deployment=replace(before.deployment, max_num_seqs=each),
        price="Larger batches: every request's tokens come slower, all together more.",
    )
    return _try(model, before, change)


def _prefix(model: Model, before: Plan, traffic: Traffic | None) -> WhatIf | None:
    """What it gains to hold a shared beginning once, where traffic has one: requests at their expected peak."""
    if traffic is None or not traffic.shared_prefix_tokens or before.refused:
        return None
    change = replace(before.deployment, prefix_caching=True)
    try:
        apart = expected(model, before.deployment, replace(traffic, shared_prefix_tokens=0)).peak.requests
        found = expected(model, change, traffic)
    except KVCoreError:
        return None
    together = found.peak.requests
    if not apart.low or together.low < LEAST_GAIN * apart.low:
        return None
    return WhatIf(
        kind="prefix",
        name="shared prefix",
        change=f"Begin every prompt with the same {found.shared_tokens:,} tokens, and cache them",
        deployment=change,
        gain=together.low / apart.low,
        gain_best=together.best / apart.best,
        gain_words=f"{apart.low:,} → {plural(together.low, 'request')} of {found.peak.tokens:,} tokens, the expected "
        f"length, at once (× {together.low / apart.low:.3g}), at the safe end, against each holding its own copy",
        price="What comes before the first difference must be the same token for token; nothing is lost in quality.",
        requests=found.plan.requests,
        model=model,
        asked=None,
    )


def _offload(model: Model, before: Plan) -> WhatIf | None:
    """Host memory for requests that rest: the gain is in conversations that need not be computed again."""
    if before.requests is None or not before.requests.low:
        return None
    try:
        found = offload(model, before.deployment)
    except KVCoreError:
        return None
    return WhatIf(
        kind="offload",
        name="CPU offload",
        change=f"Keep the caches of idle requests in host memory ({found.switch})",
        deployment=before.deployment,
        gain=None,
        gain_best=None,
        gain_words=f"{host_memory_text(found, HOST_BYTES)} {found.pool_sentence}",
        price=found.sentence,
        requests=before.requests,
        model=model,
        asked=before.users,
        offload=found,
    )


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
