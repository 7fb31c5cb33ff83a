"""TensorRT-LLM: a pool of blocks for each window, the smallest stage deciding for all."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from kvcore.deployment import Deployment
from kvcore.engines.base import Layout
from kvcore.engines.tensorrt_llm.engine import TENSORRT_LLM
from kvcore.engines.tensorrt_llm.pools import WindowPool, blocks, stage_pools
from kvcore.engines.tensorrt_llm.settings import MAX_BATCH_SIZE, TensorRtLlmSettings
from kvcore.errors import EngineError
from kvcore.model.model import Model
from kvcore.planning.fill.base import NOTHING, Fill
from kvcore.planning.fill.draft import with_draft
from kvcore.ranks.speculation import alone, speculator
from kvcore.terms import Term


class TensorRtLlmFiller:
    """See kvcore.planning.fill.base.Filler."""

    sequences_name = "max_batch_size"

    def __init__(self, model: Model, deployment: Deployment, context: int) -> None:
        self.model = model
        self.settings: TensorRtLlmSettings = TENSORRT_LLM.settings(model, deployment.at(context))
        self.keeps_cache = True
        self.sequences: int | None = deployment.max_num_seqs or MAX_BATCH_SIZE
        self._stages: dict[tuple[int, ...], tuple[tuple[WindowPool, ...], ...]] = {}
        # What is refused is refused here, and not at the first length.
        found = self._pools(self.settings)
        self.draft = speculator(model, deployment)
        # Bytes a token of the draft's, on the last stage.
        self.drafted = 0 if self.draft is None else self._draft_token(self.draft, deployment, context, found)

    def _draft_token(
        self, draft: Model, deployment: Deployment, context: int, found: tuple[tuple[WindowPool, ...], ...]
    ) -> int:
        own = stage_pools(draft, TENSORRT_LLM.settings(draft, alone(draft, deployment, TENSORRT_LLM.rules).at(context)))
        if any(len(pools) > 1 for pools in (*found, *own)):
            raise EngineError("tensorrt-llm: how windows share the memory with a draft's cache is not followed here")
        return sum(pool.token_bytes for pools in own for pool in pools)

    def _target(self, kv_bytes: tuple[int, ...]) -> tuple[int, ...]:
        """What is left of the pools for the model: both have as many tokens (cal_max_tokens)."""
        if not self.drafted:
            return kv_bytes
        each = self._pools(self.settings)[-1][0].token_bytes
        return (*kv_bytes[:-1], kv_bytes[-1] * each // (each + self.drafted))

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
        sizes = self._target(kv_bytes)
        made = (blocks(pools, settings, size) for pools, size in zip(stages, sizes, strict=True))
        counts = tuple(map(min, zip(*made, strict=True)))
        if not all(counts):
            return NOTHING
        needs = (pool.blocks_needed(settings) for pool in stages[0])
        concurrency = min(Fraction(count, need) for count, need in zip(counts, needs, strict=True))
        return Fill(concurrency=concurrency, requests=int(concurrency), tokens=counts[-1] * settings.tokens_per_block)

    def count(self, context: int, kv_bytes: tuple[int, ...]) -> int:
        """See Filler.count."""
        return self.fill(context, kv_bytes).requests

    def holds(self, context: int, requests: int, kv_bytes: tuple[int, ...]) -> bool:
        """See Filler.holds."""
        return self.fill(context, kv_bytes).requests >= requests

    def request_bytes(self, context: int) -> tuple[int, ...]:
        """See Filler.request_bytes."""
        settings = replace(self.settings, max_seq_len=context)
        size = settings.tokens_per_block
        stages = self._pools(settings)
        last = len(stages) - 1
        return tuple(
            sum(
                pool.blocks_needed(settings) * size * (pool.token_bytes + (self.drafted if stage == last else 0))
                for pool in pools
            )
            for stage, pools in enumerate(stages)
        )

    def tightest(self, context: int, kv_bytes: tuple[int, ...]) -> int:
        """See Filler.tightest."""
        sizes = self.request_bytes(context)
        return min(range(len(sizes)), key=lambda stage: Fraction(kv_bytes[stage], max(1, sizes[stage])))

    def layout(self, context: int, requests: int) -> Layout:
        """See Filler.layout; the same for any number of requests."""
        settings = replace(self.settings, max_seq_len=context)
        found = TENSORRT_LLM.layout(self.model, settings)
        if self.draft is None:
            return found
        tokens = self._pools(settings)[-1][0].blocks_needed(settings) * settings.tokens_per_block
        return with_draft(found, self.draft, tokens * self.drafted)

    def terms(self, context: int, kv_bytes: tuple[int, ...]) -> tuple[Term, ...]:
        """See Filler.terms."""
        settings = replace(self.settings, max_seq_len=context)
        stages = self._pools(settings)
        terms = []
        if self.drafted:
            each = stages[-1][0].token_bytes
            text = f"{kv_bytes[-1]:,} B × {each:,} / ({each:,} + {self.drafted:,} B a token of the draft)"
            own = self._target(kv_bytes)[-1]
            terms.append(Term(name="the model's part of the pool", formula=f"{text} = {own:,} B", value=own, unit="B"))
        for number, (pools, size) in enumerate(zip(stages, self._target(kv_bytes), strict=True)):
            where = f", stage {number}" if len(stages) > 1 else ""
            for pool, count in zip(pools, blocks(pools, settings, max(0, size)), strict=True):
                part = f"{size:,} B" if len(pools) == 1 else f"its part of {size:,} B"
                text = (
                    f"{part} / {pool.token_bytes:,} B a token / {settings.tokens_per_block} tokens = {count:,} blocks"
                )
                text += f", {pool.blocks_needed(settings):,} a request"
                terms.append(Term(name=f"window of {pool.window:,}{where}", formula=text, value=count, unit="blocks"))
        return tuple(terms)
