"""SGLang: pools of token slots, of sliding slots and of states, sized by the rank with the least memory."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from kvcore.deployment import Deployment
from kvcore.engines.base import Layout
from kvcore.engines.sglang.cells import page_size, stages
from kvcore.engines.sglang.engine import SGLANG, capacity_terms, stage_request_bytes
from kvcore.engines.sglang.pools import Need, pool_sizes, request_need, window_too_wide
from kvcore.engines.sglang.settings import SglangSettings
from kvcore.model.model import Model
from kvcore.planning.fill.base import NOTHING, Fill
from kvcore.planning.fill.draft import sglang_with_draft, with_draft
from kvcore.ranks.speculation import alone, speculator
from kvcore.terms import Term


class SglangFiller:
    """See kvcore.planning.fill.base.Filler.

    What is free is the least over all ranks, pipeline stages included (get_available_gpu_memory, distributed), so the
    smallest pool meets the widest stage. How many may run depends on the pools, and is part of the concurrency.
    """

    sequences_name = "max_running_requests"

    def __init__(self, model: Model, deployment: Deployment, context: int) -> None:
        self.model = model
        # With a draft SGLang runs so many requests where nobody says (server_args.py).
        few = {"max_running_requests": 48} if deployment.draft and deployment.max_num_seqs is None else {}
        self.settings: SglangSettings = SGLANG.settings(model, deployment.at(context).unless_stated(few))
        plain = self.stages = stages(model, self.settings)
        self.draft = speculator(model, deployment)
        if self.draft is not None:
            own = SGLANG.settings(self.draft, alone(self.draft, deployment, SGLANG.rules).at(context))
            self.stages = sglang_with_draft(plain, self.draft, self.settings.dcp_size, own)
        self.plain = plain
        self.page = page_size(model, self.settings)
        self.keeps_cache = True
        self._needs: dict[int, tuple[SglangSettings, Need]] = {}
        asked = self.settings.max_running_requests
        self.sequences: int | None = None if asked is None else max(1, asked // self.settings.attention_dp)

    def _for(self, context: int) -> tuple[SglangSettings, Need]:
        """The settings for requests of that length, and what one needs; kept for the ends of a range."""
        found = self._needs.get(context)
        if found is None:
            settings = replace(self.settings, context_length=context)
            found = self._needs[context] = settings, request_need(self.model, settings)
        return found

    def fill(self, context: int, kv_bytes: tuple[int, ...]) -> Fill:
        """See Filler.fill."""
        least = min(kv_bytes)
        if least <= 0:
            return NOTHING
        settings, need = self._for(context)
        sizes = pool_sizes(self.model, settings, self.stages, self.page, least)
        if sizes.running <= 0 or window_too_wide(self.model, settings, sizes, self.page):
            return NOTHING
        limits: list[Fraction] = []
        limits += [Fraction(sizes.full, need.tokens)] if any(part.full for part in self.stages) else []
        limits += [Fraction(sizes.swa, need.swa_tokens)] if any(part.swa for part in self.stages) else []
        limits += [Fraction(sizes.state_slots, need.state_slots)] if need.state_slots else []
        tokens = sizes.tokens * (1 if sizes.swa else settings.dcp_size)
        by_memory = min(limits)
        concurrency = min(by_memory, Fraction(sizes.running))
        return Fill(
            concurrency=concurrency, requests=int(concurrency), tokens=tokens, by_sequences=concurrency < by_memory
        )

    def count(self, context: int, kv_bytes: tuple[int, ...]) -> int:
        """See Filler.count."""
        return self.fill(context, kv_bytes).requests

    def holds(self, context: int, requests: int, kv_bytes: tuple[int, ...]) -> bool:
        """See Filler.holds."""
        return self.fill(context, kv_bytes).requests >= requests

    def request_bytes(self, context: int) -> tuple[int, ...]:
        """See Filler.request_bytes."""
        _, need = self._for(context)
        return tuple(stage_request_bytes(stage, need) for stage in self.stages)

    def tightest(self, context: int, kv_bytes: tuple[int, ...]) -> int:
        """See Filler.tightest: the widest stage, for all have the pool of the smallest."""
        sizes = self.request_bytes(context)
        return max(range(len(sizes)), key=lambda stage: sizes[stage])

    def layout(self, context: int, requests: int) -> Layout:
        """See Filler.layout; the same for any number of requests."""
        found = SGLANG.layout(self.model, replace(self.settings, context_length=context))
        if self.draft is None:
            return found
        need = self._for(context)[1]
        pairs = zip(self.stages, self.plain, strict=True)
        more = max(stage_request_bytes(stage, need) - stage_request_bytes(plain, need) for stage, plain in pairs)
        return with_draft(found, self.draft, more)

    def terms(self, context: int, kv_bytes: tuple[int, ...]) -> tuple[Term, ...]:
        """See Filler.terms: the engine's own."""
        least = max(0, min(kv_bytes))
        settings, need = self._for(context)
        sizes = pool_sizes(self.model, settings, self.stages, self.page, least)
        starts = sizes.running > 0 and not window_too_wide(self.model, settings, sizes, self.page)
        return capacity_terms(self.stages, need, sizes, least, sizes.tokens, starts)
