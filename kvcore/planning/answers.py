"""Which numbers of GPUs are tried: every number of a host of eight, then whole hosts."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from kvcore.deployment import Deployment
from kvcore.engines.base import CachePool, Engine
from kvcore.engines.registry import DEFAULT, engine, runs_on
from kvcore.engines.registry import engine as engine_of
from kvcore.errors import EngineError, KVCoreError, UnitError
from kvcore.hardware.gpus import Accelerator, accelerator, accelerators
from kvcore.hardware.prices import Hourly, hourly
from kvcore.hardware.systems import HOST_GPUS
from kvcore.model.model import Model
from kvcore.planning.plan import Basis, basis
from kvcore.planning.pools import alike, has_share, left_for_cache, loaded_weights, pools, usable_share
from kvcore.planning.splits import Shard, shards, split_name
from kvcore.ranks.weights import RankWeights
from kvcore.terms import Range
from kvcore.units import GIB, MAX_BATCH, check_tokens


def gpu_counts(most: int) -> tuple[int, ...]:
    """1 … 8, then multiples of 8 up to `most`, beyond 128 in steps of 128.

    What fits on fewer GPUs may not fit on more, where those divide the model worse: none of them can be skipped.
    """
    within = range(1, min(HOST_GPUS, most) + 1)
    hosts = range(2 * HOST_GPUS, min(128, most) + 1, HOST_GPUS)
    return (*within, *hosts, *range(256, most + 1, 128))


# The GPU that bounds are made with.
REFERENCE = "h100-sxm"
# Of splits that hold nearly as much, the one that comes first: tensor parallel before pipelines.
NEARLY = 0.9
# A request is at least this share of what it is there. Block sizes depend little on the GPU; the tokens in flight
# behind a window, the blocks of a hybrid and the layouts beside an indexer depend on it more.
_SLACK, _MORE_SLACK = 0.9, 0.4
# GPUs of the newer classes have kernels, and so blocks and layouts, of their own.
_HOPPER, _BLACKWELL, _AFTER = 9.0, 10.0, 11.0
Rules = tuple[str, int, str, bool, bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitCandidate:
    """A valid split with what it takes of each GPU, whatever the GPU is: its weights, and a request at least."""

    shard: Shard
    loaded: tuple[RankWeights, ...]
    weights_bytes: int
    least_request_bytes: float

    def bound(self, usable_bytes: float) -> float:
        """Requests that GPUs with so much memory for weights and cache cannot hold more of."""
        if self.weights_bytes >= usable_bytes:
            return 0.0
        return self.shard.dp * (usable_bytes - self.weights_bytes) / max(1.0, self.least_request_bytes)


@dataclass(slots=True, kw_only=True)
class Search:
    """One question about many GPUs; what does not depend on the GPU is made once.

    Asked from the largest memory down: what one GPU holds in a split bounds what a smaller one of the same rules does.
    """

    model: Model
    asked: Deployment
    users: int
    counts: tuple[int, ...]
    _splits: dict[int, tuple[SplitCandidate, ...]] = field(default_factory=dict)
    _caches: dict[tuple[Rules, Shard], CachePool | None] = field(default_factory=dict)
    _held: dict[tuple[Rules, Shard], tuple[int, int]] = field(default_factory=dict)

    def fewest(self, gpu: Accelerator) -> Basis | None:
        """The fewest of this GPU that suffice at the safe end, in the first split that holds nearly most; or None."""
        chosen = engine(self.asked.engine)
        fixed = chosen.share_of == "total" and not chosen.share_by_gpu
        try:
            share = usable_share(self.model, self.asked) if fixed else 1.0
            usable, rules = gpu.memory_bytes * share, _rules(chosen, self.asked.engine_version, gpu)
        except EngineError:
            # A release that is not followed holds nothing.
            return None
        for count in self.counts:
            held: dict[Shard, int] = {}
            splits = self._valid(count)
            bounds = {split.shard: self._bound(split, usable, rules, gpu) for split in splits}
            for split in sorted(splits, key=lambda split: -bounds[split.shard]):
                if bounds[split.shard] < max(self.users, NEARLY * max(held.values(), default=0)):
                    break
                low = self._low(split, gpu, rules)
                if low >= self.users:
                    held[split.shard] = low
            most = max(held.values(), default=0)
            for split in splits:
                if held.get(split.shard, 0) < max(self.users, NEARLY * most):
                    continue
                base = basis(self.model, self._on(gpu, split.shard))
                if base.requests(self.asked.context).low >= self.users:
                    return base
        return None

    def _on(self, gpu: Accelerator, shard: Shard) -> Deployment:
        return shard.onto(replace(self.asked, gpu=gpu))

    def _valid(self, count: int) -> tuple[SplitCandidate, ...]:
        """The valid splits of so many GPUs, made when their number is first needed."""
        if count not in self._splits:
            reference = accelerator(REFERENCE)
            asked = replace(self.asked, gpu=reference, utilization=None)
            self._splits[count] = _splits(self.model, asked, count)
        return self._splits[count]

    def _bound(self, split: SplitCandidate, usable: float, rules: Rules, gpu: Accelerator) -> float:
        """What the split cannot hold more of: by its bytes, and by what a GPU with no less memory holds."""
        most = split.bound(usable)
        larger = self._held.get((rules, split.shard))
        return most if larger is None or larger[0] < gpu.memory_bytes else min(most, larger[1])

    def _low(self, split: SplitCandidate, gpu: Accelerator, rules: Rules) -> int:
        """Whole requests at once at the safe end, as Basis.requests has them."""
        deployment, context = self._on(gpu, split.shard), self.asked.context
        key = rules, split.shard
        try:
            if key not in self._caches:
                self._caches[key] = engine(deployment.engine).pool(self.model, deployment, context)
            made = self._caches[key]
            if made is None:
                return 0
            held = made.fill(context, self._lows(split, deployment)).requests
            low = deployment.dp * (held if made.sequences is None else min(held, made.sequences))
            if not made.keeps_cache:
                low = basis(self.model, deployment).requests(context).low
        except KVCoreError:
            self._caches.setdefault(key, None)
            return 0
        self._held[key] = gpu.memory_bytes, low
        return low

    def _lows(self, split: SplitCandidate, deployment: Deployment) -> tuple[int, ...]:
        """The pools of `pools` at the safe end, without their terms in words."""
        if not split.loaded:
            return tuple(pool.kv_bytes.low for pool in pools(self.model, deployment, loaded=split.loaded))
        share = usable_share(self.model, deployment)
        chosen = engine(deployment.engine)
        settings = chosen.settings(self.model, deployment)
        # What is padded for a GPU's kernels is the reference's in a split.
        stored = deployment.weight_format or self.model.checkpoint_format
        loaded = loaded_weights(self.model, deployment) if stored in chosen.rules.padded_experts else split.loaded
        stages = alike(deployment, loaded)
        over = {
            stage: chosen.overheads(self.model, deployment, settings, loaded[stage], share).total
            for stage in set(stages)
        }
        return tuple(
            left_for_cache(deployment, share, weights, over[stage]).low
            for weights, stage in zip(loaded, stages, strict=True)
        )


@lru_cache(maxsize=128)
def _splits(model: Model, asked: Deployment, count: int) -> tuple[SplitCandidate, ...]:
    """The valid splits of so many GPUs: the same for every GPU, share of its memory and number of users."""
    made = (_split(model, shard, asked) for shard in shards(model, asked.engine, count) if not shard.refused)
    return tuple(split for split in made if split is not None)


def _split(model: Model, shard: Shard, asked: Deployment) -> SplitCandidate | None:
    deployment = shard.onto(asked)
    slack = _SLACK if _is_plain(model) else _MORE_SLACK
    try:
        loaded = loaded_weights(model, deployment)
        request = max(
            engine(deployment.engine).pool(model, deployment, deployment.context).request_bytes(deployment.context),
            default=0,
        )
    except KVCoreError:
        return None
    weights = max((rank.bytes for rank in loaded), default=0)
    return SplitCandidate(shard=shard, loaded=loaded, weights_bytes=weights, least_request_bytes=slack * request)


def _rules(chosen: Engine, version: str | None, gpu: Accelerator) -> Rules:
    """What an engine's layout and defaults see of a GPU: two that are alike in it differ in their memory only."""
    tier = bisect_right(chosen.memory_tiers, gpu.memory_bytes / GIB)
    try:
        number = float(gpu.compute_capability or _HOPPER)
        capability = (
            str(_HOPPER) if number == _HOPPER else str(_BLACKWELL) if _BLACKWELL <= number < _AFTER else "other"
        )
    except ValueError:
        capability = gpu.compute_capability or ""
    return gpu.vendor, tier, capability, gpu.unified_memory, chosen.small_defaults(gpu, version)


def _is_plain(model: Model) -> bool:
    """Whether every layer keeps all tokens, whatever the GPU, and nothing chooses among them."""
    return all(memory.attends and memory.window is None for memory, _ in model.kept)


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


MOST_GPUS_TRIED = 16
COUNTS = gpu_counts(MOST_GPUS_TRIED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """The fewest GPUs of one kind on which the users fit at the safe end, in the first split that holds nearly most.

    `requests` of the context fit at once. `usd_per_hour` is for all GPUs, None where no price is known.
    """

    gpu: Accelerator
    deployment: Deployment
    requests: Range[int]
    usd_per_hour: Hourly | None
    sentence: str

    @property
    def gpus(self) -> int:
        return self.deployment.gpus

    @property
    def usd_per_hour_a_request(self) -> float | None:
        """Typical dollars an hour for each request that could be in flight at the safe end."""
        return None if self.usd_per_hour is None else self.usd_per_hour.typical / self.requests.low


def recommend(
    model: Model,
    *,
    context: int,
    users: int,
    engine: str = DEFAULT,
    base: Deployment | None = None,
    counts: Iterable[int] = COUNTS,
    gpus: Iterable[Accelerator] | None = None,
) -> tuple[Recommendation, ...]:
    """One answer for each GPU on which `users` requests of `context` tokens fit, at most 16 of them unless said.

    Cheapest an hour first where prices are known, then those without a price, fewest GPUs and least memory first.
    `base` carries everything else (formats, utilisation, options); its GPU and split are replaced, and its engine.
    Raises UnitError for users or a context that cannot be, EngineError for an engine that is not known.
    """
    check_tokens(context)
    if not 1 <= users <= MAX_BATCH:
        raise UnitError(f"users: {users!r} is outside 1 … {MAX_BATCH:,}")
    engine = engine_of(engine).name
    kinds = tuple(gpu for gpu in (accelerators() if gpus is None else gpus) if runs_on(engine, gpu))
    if not kinds or (model.context_limit is not None and context > model.context_limit):
        return ()
    asked = replace(
        base or Deployment(gpu=kinds[0], context=context, engine=engine), context=context, engine=engine, kv_bytes=None
    )
    search = Search(model=model, asked=asked, users=users, counts=tuple(sorted(set(counts))))
    # From the largest memory down: what a GPU does not hold, a smaller one of the same rules does not hold either.
    held = [search.fewest(gpu) for gpu in sorted(kinds, key=lambda gpu: -gpu.memory_bytes)]
    return tuple(sorted((_made(base) for base in held if base is not None), key=_order))


def _made(base: Basis) -> Recommendation:
    deployment, gpu = base.deployment, base.deployment.gpu
    requests = base.requests(deployment.context)
    price = hourly(gpu, deployment.gpus)
    cost = "no rental price is known" if price is None else f"${price.typical:,.2f}/h, {price.rental.tier}"
    split = f" ({split_name(deployment)})" if deployment.gpus > 1 else ""
    noun = "request" if requests.low == 1 else "requests"
    sentence = (
        f"{deployment.gpus:,} × {gpu.name}{split}: {requests.low:,} {noun} of {deployment.context:,} tokens at once at "
        f"the safe end; {cost}."
    )
    return Recommendation(gpu=gpu, deployment=deployment, requests=requests, usd_per_hour=price, sentence=sentence)


def _order(one: Recommendation) -> tuple[bool, float, int, int, str]:
    price = one.usd_per_hour
    return (price is None, price.typical if price else 0.0, one.gpus, one.gpus * one.gpu.memory_bytes, one.gpu.id)
