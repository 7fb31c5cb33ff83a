"""llama.cpp and Ollama: as many slots as fit, each with cells for a whole request, allocated at the start.

The context is shared by the slots, so a plan starts the server with --ctx-size = context × slots, and slots = users.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

from kvcore.engines.base import Layout
from kvcore.engines.llamacpp.caches import make_caches
from kvcore.engines.llamacpp.devices import HOST
from kvcore.engines.llamacpp.engine import LLAMACPP, device_rates
from kvcore.engines.llamacpp.settings import MAX_SLOTS, LlamaCppSettings, make_context, window_cells
from kvcore.engines.ollama import OLLAMA, ONE_SLOT, OllamaSettings, default_batch
from kvcore.model.model import Model
from kvcore.plan.deployment import Deployment
from kvcore.plan.fill.base import Fill
from kvcore.plan.fill.settings import engine_settings
from kvcore.size import Term

# Options that fix what the slots share: the server is then planned as it is asked for.
FIXED = frozenset({"ctx_size", "kv_unified", "kv_unified_per_slot", "parallel", "num_parallel", "num_ctx", "tool"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Device:
    """Bytes on one GPU for each full cell, each sliding cell and each slot."""

    stage: int
    full: int
    sliding: int
    slot: int


class SlotFiller:
    """See kvcore.plan.fill.base.Filler."""

    def __init__(self, model: Model, deployment: Deployment, context: int) -> None:
        self.model, self.deployment = model, deployment
        self.ollama = deployment.engine == "ollama"
        self.sequences_name = "OLLAMA_NUM_PARALLEL" if self.ollama else "--parallel"
        made = self.made(context, 1)
        self.server: LlamaCppSettings = made.server if isinstance(made, OllamaSettings) else made
        caches = make_caches(model, self.server, make_context(model, self.server))
        slots = self.server.slots
        self.window = next((cache.window for cache in caches if cache.kind == "sliding"), 0)
        places = sorted({row.device for cache in caches for row in cache.rows} - {HOST})
        rates = ((place, device_rates(caches, place)) for place in places)
        self.devices = tuple(
            _Device(stage=int(place.removeprefix("CUDA")), full=full, sliding=sliding, slot=fixed // slots)
            for place, (full, sliding, fixed) in rates
        )
        self.keeps_cache = bool(caches)
        one = isinstance(made, OllamaSettings) and made.architecture in ONE_SLOT
        self.sequences: int | None = 1 if one else min(MAX_SLOTS, deployment.max_num_seqs or MAX_SLOTS)

    def made(self, context: int, slots: int) -> LlamaCppSettings | OllamaSettings:
        """The settings of a server with so many slots, each with room for `context` tokens."""
        values = {"num_parallel": slots} if self.ollama else {"parallel": slots, "ctx_size": context * slots}
        found: LlamaCppSettings | OllamaSettings = engine_settings(self.model, self.deployment, context, values)
        return found

    def held(self, context: int, slots: int) -> tuple[int, ...]:
        """Bytes of the caches of that many slots on each GPU that holds any."""
        server = replace(self.server, ctx_size=context * slots, parallel=slots, max_model_len=None)
        if self.ollama and "num_batch" not in dict(self.deployment.options):
            batch = default_batch(context * slots, server.flash_attn, True, self.deployment.gpu.memory_bytes)
            server = replace(server, batch_size=batch, ubatch_size=batch)
        made = make_context(self.model, server)
        cells = made.n_ctx_seq * made.streams
        slid = made.streams * window_cells(self.window, made, server) if self.window else 0
        return tuple(cells * one.full + slid * one.sliding + slots * one.slot for one in self.devices)

    def _fits(self, context: int, kv_bytes: tuple[int, ...]) -> Callable[[int], bool]:
        room = [kv_bytes[min(one.stage, len(kv_bytes) - 1)] for one in self.devices]
        return lambda slots: all(size <= free for size, free in zip(self.held(context, slots), room, strict=True))

    def fill(self, context: int, kv_bytes: tuple[int, ...]) -> Fill:
        """See Filler.fill: the most slots that fit, by bisection, for more slots never take less."""
        fits = self._fits(context, kv_bytes)
        most = self.sequences or MAX_SLOTS
        slots = bisect_right(range(1, most + 1), 0, key=lambda count: 0 if fits(count) else 1)
        return Fill(concurrency=Fraction(slots), requests=slots, tokens=context * slots)

    def layout(self, context: int, requests: int) -> Layout:
        """See Filler.layout, for a server with so many slots."""
        slots = min(max(1, requests), self.sequences or MAX_SLOTS)
        made = self.made(context, slots)
        if isinstance(made, OllamaSettings):
            return OLLAMA.layout(self.model, made)
        return LLAMACPP.layout(self.model, made)

    def terms(self, context: int, kv_bytes: tuple[int, ...]) -> tuple[Term, ...]:
        """See Filler.terms: what one slot takes on each GPU, and what all take that fit."""
        slots = max(1, self.fill(context, kv_bytes).requests)
        ctx = f"{context:,} × {slots} slots = {context * slots:,} tokens"
        terms = [Term(name="--ctx-size", formula=ctx, value=context * slots, unit="tokens")]
        for one, size in zip(self.devices, self.held(context, slots), strict=True):
            free = kv_bytes[min(one.stage, len(kv_bytes) - 1)]
            text = f"{slots} slots take {size:,} of {free:,} B"
            terms.append(Term(name=f"caches on GPU {one.stage}", formula=text, value=size, unit="B"))
        return tuple(terms)
