"""What each GPU has left for the cache: the engine's own rule, with weights taken off and overheads as a range.

Sources: vLLM 0.33, v1/worker/utils.py (request_memory) and gpu_worker.py; SGLang 0.5.23, arg_groups/memory_hook.py and
mem_cache/kv_cache_configurator.py; TensorRT-LLM 1.4, KvCacheConfig.free_gpu_memory_fraction. llama.cpp, Ollama and
transformers have no share: the cache may have all that is left.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from math import ceil
from typing import Any

from kvcore.deployment import Deployment
from kvcore.engines.base import Engine
from kvcore.engines.overheads import Overheads, added
from kvcore.engines.registry import engine
from kvcore.errors import PlanError
from kvcore.hardware.gpus import Accelerator, accelerator
from kvcore.model.model import Model
from kvcore.ranks.speculation import speculator_bytes, with_speculator
from kvcore.ranks.weights import RankWeights, rank_weights
from kvcore.terms import Range, Term
from kvcore.units import MAX_TOKENS

NO_OVERHEADS = added(())


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """The memory of one GPU of a pipeline stage: the fullest rank of it. `gpus` look like this, over all replicas.

    `usable_bytes` is what the engine's share lets it have; `kv_bytes` is low where the overheads are high, and may be
    negative: nothing fits then. `left_bytes` of `total_bytes` are left to the system. `drafted` is the part of the
    weights that proposes tokens ahead, its name and its bytes, ("", 0) where this stage has none.
    """

    stage: int
    gpus: int
    total_bytes: int
    usable_bytes: int
    weights_bytes: int
    overheads: Overheads
    kv_bytes: Range[int]
    left_bytes: int
    terms: tuple[Term, ...]
    drafted: tuple[str, int] = ("", 0)


def pools(
    model: Model,
    deployment: Deployment,
    *,
    loaded: tuple[RankWeights, ...] | None = None,
    share: float | None = None,
    settings: Any = None,
    over: Mapping[int, Overheads] | None = None,
) -> tuple[Pool, ...]:
    """One pool for each pipeline stage. Where `kv_bytes` was stated it is the pool, and nothing is estimated.

    `loaded` are the weights of each stage, `share` is usable_share, `settings` are the engine's for a request of any
    length and `over` are the overheads by stage (see `alike`), where they are already there.
    Raises PlanError where the weights are not known and no pool was stated, EngineError as the engine's settings do.
    """
    if loaded is None:
        loaded = loaded_weights(model, deployment)
    if deployment.kv_bytes is not None:
        return _stated(deployment, deployment.kv_bytes, loaded)
    check_known(model, deployment, loaded)
    if share is None:
        share = usable_share(model, deployment)
    if settings is None:
        settings = engine(deployment.engine).settings(model, deployment.at(max(1, deployment.context)))
    chosen, stages = engine(deployment.engine), alike(deployment, loaded)
    if over is None:
        over = {
            stage: chosen.overheads(model, deployment, settings, loaded[stage], share) for stage in sorted(set(stages))
        }
    return tuple(_pool(deployment, share, weights, over[stage]) for weights, stage in zip(loaded, stages, strict=True))


def alike(deployment: Deployment, loaded: tuple[RankWeights, ...]) -> tuple[int, ...]:
    """For each stage the first of those whose overheads are the same."""
    if not engine(deployment.engine).overheads_by_stage:
        return (0,) * len(loaded)
    first: dict[object, int] = {}
    return tuple(
        first.setdefault((stage == 0, stage == len(loaded) - 1, one.bytes, one.knowledge, one.parts), stage)
        for stage, one in enumerate(loaded)
    )


def check_known(model: Model, deployment: Deployment, loaded: tuple[RankWeights, ...]) -> None:
    """PlanError where the weights are not known and no pool was stated."""
    if not loaded and deployment.kv_bytes is None:
        raise PlanError(
            f"{model.name}: how much its weights take is not known from its configuration; state the memory that is "
            "left for the cache, as an engine's log prints it"
        )


def loaded_weights(model: Model, deployment: Deployment) -> tuple[RankWeights, ...]:
    """The weights of each stage: the same whatever the context, the size of the GPU or the share of its memory."""
    gpu = _of_class(deployment.gpu.compute_capability)
    return _loaded(model, replace(deployment, context=1, gpu=gpu, utilization=None, kv_bytes=None))


@lru_cache(maxsize=64)
def _of_class(compute_capability: str | None) -> Accelerator:
    """One accelerator for all that have the same kernels: these pad weights differently, whatever the memory."""
    return replace(accelerator("h100-sxm"), compute_capability=compute_capability)


@lru_cache(maxsize=1024)
def _loaded(model: Model, deployment: Deployment) -> tuple[RankWeights, ...]:
    chosen = engine(deployment.engine)
    return with_speculator(rank_weights(model, deployment, chosen), model, deployment, chosen)


def usable_share(model: Model, deployment: Deployment) -> float:
    """The fraction that the engine takes: as asked for, else its own default; 1 where it has none.

    Of a device's total memory, or of what is free after weights and activations (Engine.share_of).
    """
    share = engine(deployment.engine).share(model, deployment)
    return 1.0 if share is None else share


def has_share(name: str) -> bool:
    """Whether the engine has a fraction of memory that a user sets."""
    return engine(name).share_of != ""


def _of_free(deployment: Deployment) -> bool:
    return engine(deployment.engine).share_of == "free"


def _stated(deployment: Deployment, kv_bytes: int, loaded: tuple[RankWeights, ...]) -> tuple[Pool, ...]:
    """Pools as somebody read them off a log: the same on every rank."""
    total = deployment.gpu.memory_bytes
    term = Term(name="memory for the cache", formula=f"stated: {kv_bytes:,} B", value=kv_bytes, unit="B")
    return tuple(
        Pool(
            stage=stage,
            gpus=deployment.tp * deployment.dp,
            total_bytes=total,
            usable_bytes=total,
            weights_bytes=loaded[stage].bytes if stage < len(loaded) else 0,
            drafted=speculator_bytes(loaded[stage]) if stage < len(loaded) else ("", 0),
            overheads=NO_OVERHEADS,
            kv_bytes=Range.exactly(kv_bytes),
            left_bytes=0,
            terms=(term,),
        )
        for stage in range(max(deployment.pp, len(loaded)))
    )


def left_for_cache(deployment: Deployment, share: float, weights: RankWeights, over: Range[int]) -> Range[int]:
    """The pool on one GPU of a stage: low where the overheads (in all) are high; negative where nothing is left."""
    total = deployment.gpu.memory_bytes
    if _of_free(deployment):
        exact = Fraction(str(share))
        return (total - weights.bytes - over).map(lambda free: _part(free, exact))
    return _usable(deployment, share) - weights.bytes - over


def _usable(deployment: Deployment, share: float) -> int:
    """The engine's share of the device, rounded up as vLLM does; all of it where the share is of what is free."""
    total = deployment.gpu.memory_bytes
    if share == 1 or _of_free(deployment):
        return total
    return _rounded_up(total, share)


@lru_cache(maxsize=1024)
def _rounded_up(total: int, share: float) -> int:
    return ceil(total * Fraction(str(share)))


def _pool(deployment: Deployment, share: float, weights: RankWeights, over: Overheads) -> Pool:
    total, usable = deployment.gpu.memory_bytes, _usable(deployment, share)
    kv = left_for_cache(deployment, share, weights, over.total)
    if usable == total:
        first = Term(name="memory of the GPU", formula=f"{total:,} B", value=total, unit="B")
    else:
        text = f"{total:,} B × {share:g} = {usable:,} B"
        first = Term(name="share of the GPU", formula=text, value=usable, unit="B")
    drafted = speculator_bytes(weights)
    loaded = [("weights", weights.formula, weights.bytes - drafted[1])]
    loaded += [(f"weights of the {drafted[0]}", weights.drafted, drafted[1])] if drafted[1] else []
    taken = tuple(
        Term(name=name, formula=text, value=size, unit="B", knowledge=weights.knowledge) for name, text, size in loaded
    )
    parts = tuple(
        Term(
            name=part.name,
            formula=f"{part.formula} ({part.bytes.low:,} … {part.bytes.high:,} B)",
            value=part.bytes.best,
            unit="B",
            knowledge="estimated",
        )
        for part in over.parts
    )
    return Pool(
        stage=weights.stage,
        gpus=deployment.tp * deployment.dp,
        total_bytes=total,
        usable_bytes=usable,
        weights_bytes=weights.bytes,
        overheads=over,
        kv_bytes=kv,
        left_bytes=total - usable if usable < total else max(0, total - weights.bytes - over.total.high - kv.low),
        drafted=drafted,
        terms=(first, *taken, *parts, _left_term(deployment, share, usable, weights, over, kv)),
    )


def _part(free: int, share: Fraction) -> int:
    """A share of what is free; what is short is short whole."""
    return int(free * share) if free > 0 else free


def _left_term(
    deployment: Deployment, share: float, usable: int, weights: RankWeights, over: Overheads, kv: Range[int]
) -> Term:
    text = f"{usable:,} − {weights.bytes:,} − {over.total.high:,} B"
    if _of_free(deployment):
        text = f"({text}) × {share:g}"
    text += f" = {kv.low:,} B at the safe end; {kv.best:,} B at best guess, at most {kv.high:,} B"
    return Term(name="left for the cache", formula=text, value=kv.low, unit="B", knowledge="estimated")


# Below so many tokens a batch may be limited by the requests themselves.
SHORT = 64
Span = tuple[int, int]
# Bytes of each stage's pool.
Sizes = Range[tuple[int, ...]]


@dataclass(slots=True, kw_only=True)
class PoolRanges:
    """Asked by context; answers are kept. `longest` is the longest context that will be asked for."""

    model: Model
    deployment: Deployment
    loaded: tuple[RankWeights, ...]
    share: float
    settings: Any
    """The engine's, for a request of any length."""
    longest: int = MAX_TOKENS
    ranges: tuple[Span, ...] = ()
    """Contexts within which the pool does not grow: in each, what fits at a length fits at every shorter one."""
    _pools: tuple[Pool, ...] | None = None
    _told: dict[int, Sizes] = field(default_factory=dict)
    _points: dict[Span, tuple[list[int], list[Sizes]]] = field(default_factory=dict)
    _engine: Engine = field(init=False)
    _alike: tuple[int, ...] = ()
    _over: dict[int, Overheads] = field(default_factory=dict)
    """Overheads for the deployment's own context, by stage."""

    def __post_init__(self) -> None:
        self._engine = engine(self.deployment.engine)
        ends = {0, min(SHORT - 1, self.longest), self.longest}
        ends.update(min(step, self.longest) for step in self._engine.overhead_steps(self.settings))
        self.ranges = tuple((first + 1, last) for first, last in pairwise(sorted(ends)))
        self._alike = alike(self.deployment, self.loaded)

    @property
    def pools(self) -> tuple[Pool, ...]:
        """The pools for the deployment's own context, with their terms."""
        if self._pools is None:
            self._pools = pools(
                self.model,
                self.deployment,
                loaded=self.loaded,
                share=self.share,
                settings=self.settings,
                over=self._over or None,
            )
        return self._pools

    def at(self, context: int) -> Sizes:
        """The sizes of the pools for this context."""
        found = self._told.get(context)
        if found is None:
            found = self._told[context] = self._sizes(context)
        return found

    def _sizes(self, context: int) -> Sizes:
        if self.deployment.kv_bytes is not None:
            stages = (self.deployment.kv_bytes,) * max(self.deployment.pp, len(self.loaded))
            return Range.exactly(stages)
        span = next((one for one in self.ranges if context <= one[1]), (context, context))
        points = self._points.setdefault(span, ([], []))
        if points[0] and context not in points[0]:
            # More than one is asked for: the ends of the range may make all of it known.
            for end in span:
                self._exactly(end, *points)
            right = bisect_left(points[0], context)
            if points[0][right] != context and points[1][right - 1] == points[1][right]:
                return points[1][right]
        return self._exactly(context, *points)

    def _exactly(self, context: int, contexts: list[int], found: list[Sizes]) -> Sizes:
        """The sizes for this context, kept among the others of its range in the order of contexts."""
        place = bisect_left(contexts, context)
        if place == len(contexts) or contexts[place] != context:
            contexts.insert(place, context)
            found.insert(place, self._made(context))
        return found[place]

    def _made(self, context: int) -> Sizes:
        own = self.deployment.at(context)
        over = {
            stage: self._engine.overheads(self.model, own, self.settings, self.loaded[stage], self.share)
            for stage in sorted(set(self._alike))
        }
        if own is self.deployment:
            self._over = over
        left = [
            left_for_cache(own, self.share, weights, over[stage].total)
            for weights, stage in zip(self.loaded, self._alike, strict=True)
        ]
        return by_stage(left)


def by_stage(left: Sequence[Range[int]]) -> Sizes:
    """The range of all stages' pools together from that of each stage."""
    return Range(
        low=tuple(one.low for one in left), best=tuple(one.best for one in left), high=tuple(one.high for one in left)
    )
