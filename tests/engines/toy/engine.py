"""Toy's answers: pages of tokens for the cache of every layer, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from kvcore.deployment import Deployment, Request
from kvcore.engines.base import NOTHING, CachePool, Engine, Fill
from kvcore.engines.command import Command, checkpoint, pairs
from kvcore.engines.layout import Capacity, Layout
from kvcore.engines.overheads import AddedOverheads, added, driver, runtime
from kvcore.formats import kv_format
from kvcore.model.model import Model
from kvcore.ranks.memories import rank_bytes
from kvcore.ranks.weights import RankWeights
from kvcore.terms import Term
from tests.engines.toy.log import TOY_LOG
from tests.engines.toy.settings import OPTIONS, VERSION, ToySettings, make_settings


class Toy(Engine):
    """Toy 1.2; see kvcore.engines.base.Engine."""

    name = "toy"
    label = "The Toy"
    versions = f"Toy {VERSION}"
    release = VERSION
    vendors = ("NVIDIA",)
    options = OPTIONS
    cache_formats = ("fp8",)
    weight_formats = ("fp8",)
    log = TOY_LOG

    def settings(self, model: Model, asked: Request) -> ToySettings:
        """See Engine.settings."""
        return make_settings(model, asked)

    def layout(self, model: Model, settings: ToySettings) -> Layout:
        """See Engine.layout."""
        size = request_bytes(model, settings, settings.length)
        return Layout(
            engine=self.name,
            engine_version=settings.version,
            model=model.name,
            kv_dtype=settings.cache,
            max_model_len=settings.length,
            bytes_per_request=size,
            block_size=settings.page,
            terms=(Term(name="one request", formula=f"whole pages of {settings.page} tokens", value=size, unit="B"),),
        )

    def capacity(self, model: Model, settings: ToySettings, kv_bytes: int) -> Capacity:
        """See Engine.capacity."""
        concurrency = Fraction(kv_bytes, request_bytes(model, settings, settings.length))
        tokens = int(concurrency * settings.length)
        return Capacity(
            kv_bytes=kv_bytes,
            kv_cache_size_tokens=tokens,
            max_concurrency=concurrency,
            log_lines=(f"toy: {tokens} tokens",),
        )

    def batched_tokens(self, settings: ToySettings) -> int:
        """See Engine.batched_tokens."""
        return 2048

    def pool(self, model: Model, deployment: Deployment, context: int) -> CachePool:
        """See Engine.pool."""
        return ToyPool(model, deployment, context)

    def overheads(
        self, model: Model, deployment: Deployment, settings: ToySettings, weights: RankWeights, share: float
    ) -> AddedOverheads:
        """See Engine.overheads."""
        return added((runtime(model, deployment), driver(deployment)))

    def launch(self, model: Model, deployment: Deployment, settings: ToySettings) -> Command:
        """See Engine.launch."""
        name, notes = checkpoint(model)
        words = ["toy", "serve", name, *pairs(("--page", settings.page, 16), ("--at-once", settings.at_once, None))]
        return Command(words=tuple(words), notes=notes)


TOY = Toy()


class ToyPool(CachePool):
    """See CachePool."""

    sequences_name = "--at-once"

    def __init__(self, model: Model, deployment: Deployment, context: int) -> None:
        self.settings = TOY.settings(model, deployment.at(context))
        self.sequences = self.settings.at_once
        self.model = model
        self.stages = [
            replace(model, layers=model.layers[stage.start : stage.stop]) for stage in TOY.stages(model, deployment)
        ]

    def fill(self, context: int, kv_bytes: tuple[int, ...]) -> Fill:
        """See CachePool.fill."""
        pairs = zip(kv_bytes, self.request_bytes(context), strict=True)
        held = min(Fraction(max(0, pool), size) for pool, size in pairs)
        return Fill(concurrency=held, requests=int(held), tokens=int(held * context)) if held else NOTHING

    def request_bytes(self, context: int) -> tuple[int, ...]:
        """See CachePool.request_bytes."""
        return tuple(request_bytes(stage, self.settings, context) for stage in self.stages)

    def layout(self, context: int, requests: int) -> Layout:
        """See CachePool.layout."""
        return TOY.layout(self.model, replace(self.settings, length=context))

    def terms(self, context: int, kv_bytes: tuple[int, ...]) -> tuple[Term, ...]:
        """See CachePool.terms."""
        held = self.fill(context, kv_bytes)
        return (Term(name="requests", formula="pool / pages", value=float(held.concurrency), unit="requests"),)


def request_bytes(model: Model, settings: ToySettings, context: int) -> int:
    """Whole pages of all layers on one rank."""
    tokens = -(-context // settings.page) * settings.page
    return rank_bytes(model, tokens, kv_format(settings.cache), settings.ranks)
