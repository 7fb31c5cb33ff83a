"""vLLM: blocks of one pool, of which one is never handed out."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import lru_cache

from kvcore.deployment import Deployment
from kvcore.engines.base import Layout
from kvcore.engines.vllm.engine import VLLM
from kvcore.engines.vllm.groups import BlockGroup
from kvcore.engines.vllm.settings import VllmSettings
from kvcore.errors import EngineError
from kvcore.model.model import Model
from kvcore.planning.fill.base import NOTHING, Fill
from kvcore.planning.fill.draft import vllm_groups
from kvcore.ranks.speculation import speculator
from kvcore.terms import Term


@lru_cache(maxsize=512)
def _planned(model: Model, settings: VllmSettings) -> tuple[tuple[BlockGroup, ...], int | None, tuple[int, ...]]:
    """Groups, block size and bytes of a block on each stage: the same for every length and number of replicas."""
    groups, block = VLLM.plan(model, settings)
    return groups, block, VLLM.stage_block_bytes(model, settings, groups)


class VllmFiller:
    """See kvcore.planning.fill.base.Filler. All ranks make as many blocks as the one that can make the fewest."""

    sequences_name = "max_num_seqs"

    def __init__(self, model: Model, deployment: Deployment, context: int) -> None:
        self.model = model
        self.settings: VllmSettings = VLLM.settings(model, deployment.at(context))
        # Groups and pages do not depend on the length, only how many pages of each a request claims.
        self.groups, self.block, self.block_bytes = _planned(
            model, replace(self.settings, max_model_len=1, max_num_seqs=None)
        )
        draft = speculator(model, deployment)
        if draft is not None:
            self.groups = vllm_groups(model, draft, self.settings, self.block)
            # Its layers lie behind the last stage's.
            self.settings = replace(self.settings, mtp_layers=len(draft.layers))
            self.block_bytes = VLLM.stage_block_bytes(model, self.settings, self.groups)
        self.keeps_cache = any(self.block_bytes)
        most = self.settings.sequences
        self.sequences: int | None = most
        self._needed: dict[int, int] = {}
        if most > self.settings.batched_tokens:
            raise EngineError(
                f"vllm: max_num_batched_tokens {self.settings.batched_tokens:,} is less than max_num_seqs "
                f"{most:,}; each request computes at least one token a step"
            )

    def needed(self, context: int) -> int:
        """Blocks that one request claims."""
        found = self._needed.get(context)
        if found is None:
            settings = replace(self.settings, max_model_len=context)
            found = self._needed[context] = sum(group.pages(settings) for group in self.groups)
        return found

    def blocks(self, kv_bytes: tuple[int, ...]) -> int:
        """Blocks of the pool, the smallest of all stages."""
        if self.settings.num_gpu_blocks_override is not None:
            return self.settings.num_gpu_blocks_override
        pairs = zip(kv_bytes, self.block_bytes, strict=True)
        return min(max(0, pool) // size for pool, size in pairs if size)

    def fill(self, context: int, kv_bytes: tuple[int, ...]) -> Fill:
        """See Filler.fill. vLLM divides all blocks in its log, and hands out all but one (the null block).

        So requests that can all be full at once are those of one block less: one needs its blocks and one more.
        """
        blocks, needed = self.blocks(kv_bytes), self.needed(context)
        if not blocks:
            return NOTHING
        concurrency = Fraction(blocks, needed)
        tokens = int(concurrency * context)
        if VLLM.counts_one_group(self.settings):
            tokens = blocks // max(1, len(self.groups)) * (self.block or 1)
        return Fill(concurrency=concurrency, requests=(blocks - 1) // needed, tokens=tokens)

    def count(self, context: int, kv_bytes: tuple[int, ...]) -> int:
        """See Filler.count."""
        blocks = self.blocks(kv_bytes)
        return (blocks - 1) // self.needed(context) if blocks else 0

    def holds(self, context: int, requests: int, kv_bytes: tuple[int, ...]) -> bool:
        """See Filler.holds."""
        return self.count(context, kv_bytes) >= requests

    def request_bytes(self, context: int) -> tuple[int, ...]:
        """See Filler.request_bytes."""
        needed = self.needed(context)
        return tuple(needed * size for size in self.block_bytes)

    def tightest(self, context: int, kv_bytes: tuple[int, ...]) -> int:
        """See Filler.tightest: the stage that makes the fewest blocks."""
        stages = [stage for stage, size in enumerate(self.block_bytes) if size]
        return min(stages, key=lambda stage: kv_bytes[stage] // self.block_bytes[stage])

    def layout(self, context: int, requests: int) -> Layout:
        """See Filler.layout; the same for any number of requests."""
        return VLLM.layout_of(self.model, replace(self.settings, max_model_len=context), self.groups, self.block)

    def terms(self, context: int, kv_bytes: tuple[int, ...]) -> tuple[Term, ...]:
        """See Filler.terms."""
        blocks, needed = self.blocks(kv_bytes), self.needed(context)
        stage = self.tightest(context, kv_bytes)
        text = f"{kv_bytes[stage]:,} B // {self.block_bytes[stage]:,} B a block = {blocks:,}"
        if self.settings.num_gpu_blocks_override is not None:
            text = f"num_gpu_blocks_override = {blocks:,}"
        ratio = f"{blocks:,} / {needed:,} blocks a request = {blocks / needed:.4f}"
        terms = [
            Term(name="blocks", formula=text, value=blocks, unit="blocks", knowledge="exact"),
            Term(name="requests a replica", formula=ratio, value=blocks / needed, unit="requests"),
        ]
        if blocks <= needed:
            text = f"vLLM keeps one block back and refuses to start: {blocks:,} − 1 blocks are fewer than {needed:,}"
            terms.append(Term(name="shortfall", formula=text, value=needed + 1 - blocks, unit="blocks"))
        else:
            whole = (blocks - 1) // needed
            text = f"vLLM never hands out one block: ({blocks:,} − 1) // {needed:,} = {whole:,} are full at once"
            terms.append(Term(name="whole requests a replica", formula=text, value=whole, unit="requests"))
        return tuple(terms)
