"""Which GPUs for so many users: every catalogued GPU in every valid split, the cheapest first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

from kvcore.engines.registry import engine as engine_of
from kvcore.errors import EngineError, KVCoreError, UnitError
from kvcore.hardware import Accelerator, accelerator, accelerators
from kvcore.model.memories import Attention, Latent
from kvcore.model.model import Model
from kvcore.plan.basis import Basis, basis
from kvcore.plan.deployment import Deployment
from kvcore.plan.ends import Ends
from kvcore.plan.hardware_changes import runs_on
from kvcore.plan.hourly import Hourly, hourly
from kvcore.plan.pools import usable_share
from kvcore.plan.rank_weights import rank_weights
from kvcore.plan.shard_words import split_name
from kvcore.plan.shards import Shard, shards
from kvcore.plan.sharing import layout_at
from kvcore.units import MAX_BATCH, check_tokens

COUNTS = (1, 2, 4, 8, 16)
# The GPU that bounds are made with.
REFERENCE = "h100-sxm"
# Of splits that hold nearly as much, the one that comes first: tensor parallel before pipelines.
NEARLY = 0.9
# A request is at least this share of what it is there. Block sizes depend little on the GPU; the tokens in flight
# behind a window, the blocks of a hybrid and the layouts beside an indexer depend on it more.
_SLACK, _MORE_SLACK = 0.9, 0.4


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """The fewest GPUs of one kind on which the users fit at the safe end, in the first split that holds nearly most.

    `requests` of the context fit at once. `usd_per_hour` is for all GPUs, None where no price is known.
    """

    gpu: Accelerator
    deployment: Deployment
    requests: Ends[int]
    usd_per_hour: Hourly | None
    sentence: str

    @property
    def gpus(self) -> int:
        return self.deployment.gpus

    @property
    def usd_per_hour_a_request(self) -> float | None:
        """Typical dollars an hour for each request that could be in flight at the safe end."""
        return None if self.usd_per_hour is None else self.usd_per_hour.typical / self.requests.low


@dataclass(frozen=True, slots=True, kw_only=True)
class _Split:
    """A valid split with what it takes of each GPU at least, whatever the GPU is: weights, and one request."""

    shard: Shard
    weights_bytes: int
    least_request_bytes: float


def recommend(
    model: Model,
    *,
    context: int,
    users: int,
    engine: str = "vllm",
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
    if not kinds:
        return ()
    asked = replace(base or Deployment(gpu=kinds[0], context=context), context=context, engine=engine, kv_bytes=None)
    reference = replace(asked, gpu=accelerator(REFERENCE))
    by_count = _ByCount(model=model, reference=reference, counts=tuple(sorted(set(counts))))
    found = [one for gpu in kinds if (one := _for_gpu(model, asked, gpu, users, by_count)) is not None]
    return tuple(sorted(found, key=_order))


@dataclass(frozen=True, slots=True, kw_only=True)
class _ByCount:
    """Splits by number of GPUs, made when a number is first needed."""

    model: Model
    reference: Deployment
    counts: tuple[int, ...]
    _known: dict[int, tuple[_Split, ...]] = field(default_factory=dict)

    def __iter__(self) -> Iterator[tuple[_Split, ...]]:
        for count in self.counts:
            if count not in self._known:
                self._known[count] = _splits(self.model, self.reference, count)
            yield self._known[count]


def _splits(model: Model, reference: Deployment, count: int) -> tuple[_Split, ...]:
    """The valid splits of so many GPUs, with what is the same on every GPU."""
    made, slack = [], _SLACK if _is_plain(model) else _MORE_SLACK
    for shard in shards(model, reference.engine, count):
        if shard.refused:
            continue
        split = shard.onto(reference)
        try:
            weights = max((rank.bytes for rank in rank_weights(model, split)), default=0)
            request = layout_at(model, split, split.context).bytes_per_request
        except KVCoreError:
            continue
        made.append(_Split(shard=shard, weights_bytes=weights, least_request_bytes=slack * request))
    return tuple(made)


def _is_plain(model: Model) -> bool:
    """Whether every layer keeps all tokens, whatever the GPU, and nothing chooses among them."""
    limits = (
        memory.limit if isinstance(memory, Attention) else memory.window if isinstance(memory, Latent) else 0
        for memory, _ in model.kept
    )
    return all(limit is None for limit in limits)


def _for_gpu(
    model: Model, asked: Deployment, gpu: Accelerator, users: int, by_count: _ByCount
) -> Recommendation | None:
    """The fewest of one GPU that suffice; a split is only planned where its bound says that it may hold enough."""
    # vLLM's share is the same in every split; the other engines' are not, or are of what the weights leave.
    usable = gpu.memory_bytes * (usable_share(model, asked) if asked.engine == "vllm" else 1.0)
    for splits in by_count:
        held: dict[_Split, tuple[int, Basis]] = {}
        most = 0
        for split in sorted(splits, key=partial(_bound, usable), reverse=True):
            bound = _bound(usable, split)
            if bound < users or bound < NEARLY * most:
                break
            base = basis(model, split.shard.onto(replace(asked, gpu=gpu)))
            low = _low(base)
            if low >= users:
                held[split], most = (low, base), max(most, low)
        if held:
            base = next(held[split][1] for split in splits if split in held and held[split][0] >= NEARLY * most)
            return _made(gpu, base.requests(base.deployment.context), base.deployment)
    return None


def _low(base: Basis) -> int:
    """Whole requests at once at the safe end, as Basis.requests has them, without asking for any other context."""
    context = base.deployment.context
    if base.filler is None or not base.filler.keeps_cache or not base.allows(context):
        return base.requests(context).low
    try:
        return base.whole(base.filler.fill(context, tuple(pool.kv_bytes.low for pool in base.pools)))
    except EngineError:
        return 0


def _bound(usable_bytes: float, split: _Split) -> float:
    """Requests that GPUs with that memory for weights and cache cannot hold more of in a split."""
    if split.weights_bytes >= usable_bytes:
        return 0.0
    return split.shard.dp * (usable_bytes - split.weights_bytes) / max(1.0, split.least_request_bytes)


def _made(gpu: Accelerator, requests: Ends[int], deployment: Deployment) -> Recommendation:
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
