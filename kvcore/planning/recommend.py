"""Which GPUs for so many users: every catalogued GPU in every valid split, the cheapest first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from kvcore.deployment import Deployment
from kvcore.engines.registry import engine as engine_of
from kvcore.engines.registry import runs_on
from kvcore.errors import UnitError
from kvcore.hardware.gpus import Accelerator, accelerators
from kvcore.hardware.prices import Hourly, hourly
from kvcore.model.model import Model
from kvcore.planning.basis import Basis
from kvcore.planning.gpu_counts import gpu_counts
from kvcore.planning.shard_words import split_name
from kvcore.planning.split_search import Search
from kvcore.terms import Range
from kvcore.units import MAX_BATCH, check_tokens

MOST_GPUS = 16
COUNTS = gpu_counts(MOST_GPUS)


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
