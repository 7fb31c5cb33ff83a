"""The fewest of one GPU on which users fit, of all splits: most splits are ruled out by a bound and never planned."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field, replace
from functools import lru_cache

from kvcore.deployment import Deployment
from kvcore.engines.base import CachePool, Engine
from kvcore.engines.registry import engine
from kvcore.errors import EngineError, KVCoreError
from kvcore.hardware.gpus import Accelerator, accelerator
from kvcore.model.memories import Attention, Latent
from kvcore.model.model import Model
from kvcore.planning.basis import Basis, basis
from kvcore.planning.overheads import total_overheads
from kvcore.planning.pools import left_for_cache, loaded_weights, pools, usable_share
from kvcore.planning.shards import Shard, shards
from kvcore.ranks.weights import RankWeights
from kvcore.units import GIB

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
class Split:
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
    _splits: dict[int, tuple[Split, ...]] = field(default_factory=dict)
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

    def _valid(self, count: int) -> tuple[Split, ...]:
        """The valid splits of so many GPUs, made when their number is first needed."""
        if count not in self._splits:
            reference = accelerator(REFERENCE)
            asked = replace(self.asked, gpu=reference, utilization=None)
            self._splits[count] = _splits(self.model, asked, count)
        return self._splits[count]

    def _bound(self, split: Split, usable: float, rules: Rules, gpu: Accelerator) -> float:
        """What the split cannot hold more of: by its bytes, and by what a GPU with no less memory holds."""
        most = split.bound(usable)
        larger = self._held.get((rules, split.shard))
        return most if larger is None or larger[0] < gpu.memory_bytes else min(most, larger[1])

    def _low(self, split: Split, gpu: Accelerator, rules: Rules) -> int:
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

    def _lows(self, split: Split, deployment: Deployment) -> tuple[int, ...]:
        """The pools of `pools` at the safe end, without their terms in words."""
        if not split.loaded:
            return tuple(pool.kv_bytes.low for pool in pools(self.model, deployment, loaded=split.loaded))
        share = usable_share(self.model, deployment)
        return tuple(
            left_for_cache(deployment, share, weights, total_overheads(self.model, deployment, weights, share)).low
            for weights in loaded_weights(self.model, deployment)
        )


@lru_cache(maxsize=128)
def _splits(model: Model, asked: Deployment, count: int) -> tuple[Split, ...]:
    """The valid splits of so many GPUs: the same for every GPU, share of its memory and number of users."""
    made = (_split(model, shard, asked) for shard in shards(model, asked.engine, count) if not shard.refused)
    return tuple(split for split in made if split is not None)


def _split(model: Model, shard: Shard, asked: Deployment) -> Split | None:
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
    return Split(shard=shard, loaded=loaded, weights_bytes=weights, least_request_bytes=slack * request)


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
    limits = (
        memory.limit if isinstance(memory, Attention) else memory.window if isinstance(memory, Latent) else 0
        for memory, _ in model.kept
    )
    return all(limit is None for limit in limits)
