"""TensorRT-LLM: a pool of blocks for each window, the smallest stage deciding for all."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from kvcore.engines.base import Layout
from kvcore.engines.tensorrt_llm.engine import TENSORRT_LLM
from kvcore.engines.tensorrt_llm.pools import WindowPool, blocks, stage_pools
from kvcore.engines.tensorrt_llm.settings import TensorRtLlmSettings
from kvcore.errors import EngineError
from kvcore.model.model import Model
from kvcore.plan.deployment import Deployment
from kvcore.plan.fill.base import NOTHING, Fill
from kvcore.plan.fill.settings import engine_settings
from kvcore.size import Term

# max_batch_size of trtllm-serve where nobody says: BuildConfig's default (commands/serve.py, builder.py).
MAX_BATCH_SIZE = 2048


class TensorRtLlmFiller:
    """See kvcore.plan.fill.base.Filler."""

    sequences_name = "max_batch_size"

    def __init__(self, model: Model, deployment: Deployment, context: int) -> None:
        self.model = model
        self.settings: TensorRtLlmSettings = engine_settings(model, deployment, context)
        self.keeps_cache = True
        self.sequences: int | None = deployment.max_num_seqs or MAX_BATCH_SIZE
        self._stages: dict[tuple[int, ...], tuple[tuple[WindowPool, ...], ...]] = {}
        # What is refused is refused here, and not at the first length.
        self._pools(self.settings)

    def _pools(self, settings: TensorRtLlmSettings) -> tuple[tuple[WindowPool, ...], ...]:
        """The pools of every stage. Only their windows depend on the length, and only up to the longest of them."""
        key = settings.windows
        if len(key) == 1:
            # One window as long as a request: what a token takes does not change.
            known = self._stages.get(())
            if known is None:
                known = self._stages[()] = self._checked(settings)
            return tuple(tuple(replace(pool, window=key[0]) for pool in pools) for pools in known)
        found = self._stages.get(key)
        if found is None:
            found = self._stages[key] = self._checked(settings)
        return found

    def _checked(self, settings: TensorRtLlmSettings) -> tuple[tuple[WindowPool, ...], ...]:
        found = stage_pools(self.model, settings)
        if len({tuple(pool.window for pool in pools) for pools in found}) > 1:
            raise EngineError("tensorrt-llm: the pipeline stages have different windows, which it refuses")
        return found

    def fill(self, context: int, kv_bytes: tuple[int, ...]) -> Fill:
        """See Filler.fill."""
        if min(kv_bytes) <= 0:
            return NOTHING
        settings = replace(self.settings, max_seq_len=context)
        stages = self._pools(settings)
        made = (blocks(pools, settings, size) for pools, size in zip(stages, kv_bytes, strict=True))
        counts = tuple(map(min, zip(*made, strict=True)))
        if not all(counts):
            return NOTHING
        needs = (pool.blocks_needed(settings) for pool in stages[0])
        concurrency = min(Fraction(count, need) for count, need in zip(counts, needs, strict=True))
        return Fill(concurrency=concurrency, requests=int(concurrency), tokens=counts[-1] * settings.tokens_per_block)

    def holds(self, context: int, requests: int, kv_bytes: tuple[int, ...]) -> bool:
        """See Filler.holds."""
        return self.fill(context, kv_bytes).requests >= requests

    def request_bytes(self, context: int) -> tuple[int, ...]:
        """See Filler.request_bytes."""
        settings = replace(self.settings, max_seq_len=context)
        size = settings.tokens_per_block
        return tuple(
            sum(pool.blocks_needed(settings) * size * pool.token_bytes for pool in pools)
            for pools in self._pools(settings)
        )

    def tightest(self, context: int, kv_bytes: tuple[int, ...]) -> int:
        """See Filler.tightest."""
        sizes = self.request_bytes(context)
        return min(range(len(sizes)), key=lambda stage: Fraction(kv_bytes[stage], max(1, sizes[stage])))

    def layout(self, context: int, requests: int) -> Layout:
        """See Filler.layout; the same for any number of requests."""
        return TENSORRT_LLM.layout(self.model, replace(self.settings, max_seq_len=context))

    def terms(self, context: int, kv_bytes: tuple[int, ...]) -> tuple[Term, ...]:
        """See Filler.terms."""
        settings = replace(self.settings, max_seq_len=context)
        stages = self._pools(settings)
        terms = []
        for number, (pools, size) in enumerate(zip(stages, kv_bytes, strict=True)):
            where = f", stage {number}" if len(stages) > 1 else ""
            for pool, count in zip(pools, blocks(pools, settings, max(0, size)), strict=True):
                part = f"{size:,} B" if len(pools) == 1 else f"its part of {size:,} B"
                text = (
                    f"{part} / {pool.token_bytes:,} B a token / {settings.tokens_per_block} tokens = {count:,} blocks"
                )
                text += f", {pool.blocks_needed(settings):,} a request"
                terms.append(Term(name=f"window of {pool.window:,}{where}", formula=text, value=count, unit="blocks"))
        return tuple(terms)
