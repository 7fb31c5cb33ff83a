"""llama.cpp: as many slots as fit, each with cells for a whole request, allocated at the start.

The context is shared by the slots, so a plan starts the server with --ctx-size = context × slots, and slots = users.
Where the options fix the context or the slots, the server is planned as it is asked for. Ollama's slots are the same
with another way to ask for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from kvcore.deployment import Deployment
from kvcore.engines.base import NOTHING, CachePool, Engine, Fill, with_draft
from kvcore.engines.layout import Layout
from kvcore.engines.llamacpp.caches import HOST, device_rates, make_caches
from kvcore.engines.llamacpp.settings import (
    FIXED,
    MAX_SLOTS,
    LlamaCppSettings,
    make_context,
    requests_at_once,
    window_cells,
)
from kvcore.errors import EngineError
from kvcore.model.model import Model
from kvcore.ranks.speculation import alone, proposer, speculator
from kvcore.terms import Term

# Architectures whose head has a context of its own layers (src/llama-model.cpp, the filters of hybrids).
HEAD_ALONE = frozenset({"qwen3_5_text", "qwen3_5_moe_text", "qwen35", "qwen35moe"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Device:
    """Bytes on one GPU for each full cell, each sliding cell and each slot."""

    stage: int
    full: int
    sliding: int
    slot: int


class SlotPool(CachePool):
    """See CachePool. `chosen` is the engine whose server has the slots."""

    sequences_name = "--parallel"

    def __init__(self, chosen: Engine, model: Model, deployment: Deployment, context: int) -> None:
        self.chosen, self.model, self.deployment = chosen, model, deployment
        self.fixed = any(name in FIXED for name, _ in deployment.options)
        made = self.made(context, 1)
        self.server = self.server_of(made)
        caches = make_caches(model, self.server, make_context(model, self.server))
        self.window = next((cache.window for cache in caches if cache.kind == "sliding"), 0)
        self.keeps_cache = any(cache.rows for cache in caches)
        self.devices = tuple(
            _Device(stage=int(place.removeprefix("CUDA")), full=full, sliding=sliding, slot=states // self.server.slots)
            for place in sorted({row.device for cache in caches for row in cache.rows} - {HOST})
            for full, sliding, states in (device_rates(caches, place),)
        )
        self.sequences = self.server.slots if self.fixed else self.most(made)
        self._servers: dict[tuple[int, int], LlamaCppSettings] = {}
        self._ones: dict[int, tuple[int, ...]] = {}
        self.draft = second_context(model, deployment)
        self.beside, self._shift = self._second_context(context)

    # What Ollama does otherwise.

    def asked(self, context: int, slots: int) -> Mapping[str, Any]:
        """Options that ask for so many slots, each with room for `context` tokens."""
        return {"parallel": slots, "ctx_size": context * slots}

    def server_of(self, settings: Any) -> LlamaCppSettings:
        """The llama-server of the engine's settings."""
        server: LlamaCppSettings = settings
        return server

    def most(self, settings: Any) -> int:
        """The most slots where the options do not say how many."""
        return min(MAX_SLOTS, self.deployment.max_num_seqs or MAX_SLOTS)

    def batch(self, tokens: int) -> int:
        """Tokens that are computed at once where the context of all slots has `tokens`; 0: as in `server`."""
        return 0

    def _second_context(self, context: int) -> tuple[SlotPool | None, int]:
        """The draft's own context, and how many GPUs further on its first one is: a head lies with the last layer."""
        if self.draft is None:
            return None, 0
        gpus = self.deployment.replica_gpus
        own = alone(self.draft, self.deployment, self.chosen.rules)
        last = gpus > 1 and len(self.draft.layers) < gpus
        found = type(self)(self.chosen, self.draft, replace(own, tp=1, pp=1) if last else own, context)
        shift = gpus - 1 if last else 0
        if {one.stage + shift for one in found.devices} - {one.stage for one in self.devices}:
            raise EngineError(
                "a draft on a GPU where the model keeps no cache is not followed here", engine="llama.cpp"
            )
        return found, shift

    def made(self, context: int, slots: int) -> Any:
        """The engine's settings of a server with so many slots, each with room for `context` tokens."""
        asked = {} if self.fixed else self.asked(context, slots)
        return self.chosen.settings(self.model, self.deployment.at(context).unless_stated(asked))

    def held(self, context: int, slots: int) -> tuple[int, ...]:
        """Bytes of the caches on each GPU that holds any, for so many slots or as the options say."""
        if self.fixed:
            server, asked, slots = self.server, self.server.ctx_size, self.server.slots
        else:
            server, asked = self._server(context * slots, slots), context * slots
        made = make_context(self.model, server, asked)
        cells = made.n_ctx_seq * made.streams
        slid = made.streams * window_cells(self.window, made, server) if self.window else 0
        more = self._beside(asked // slots, slots)
        return tuple(
            cells * one.full + slid * one.sliding + slots * one.slot + more.get(one.stage, 0) for one in self.devices
        )

    def _beside(self, context: int, slots: int) -> dict[int, int]:
        """Bytes of the draft's context by GPU: as many tokens and slots as the model's."""
        if self.beside is None:
            return {}
        pairs = zip(self.beside.devices, self.beside.held(context, slots), strict=True)
        return {one.stage + self._shift: size for one, size in pairs}

    def _server(self, tokens: int, slots: int) -> LlamaCppSettings:
        """The server for so many slots."""
        batch = self.batch(tokens)
        found = self._servers.get((slots, batch))
        if found is None:
            found = replace(self.server, parallel=slots, max_model_len=None)
            if batch:
                found = replace(found, batch_size=batch, ubatch_size=batch)
            self._servers[slots, batch] = found
        return found

    def _fits(self, context: int, slots: int, room: tuple[int, ...]) -> bool:
        return all(size <= free for size, free in zip(self.held(context, slots), room, strict=True))

    def _room(self, kv_bytes: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(kv_bytes[min(one.stage, len(kv_bytes) - 1)] for one in self.devices)

    def fill(self, context: int, kv_bytes: tuple[int, ...]) -> Fill:
        """See CachePool.fill."""
        room = self._room(kv_bytes)
        if self.fixed:
            server = self.server_of(self.made(context, 1))
            slots = requests_at_once(self.model, server) if self._fits(context, 1, room) else 0
        else:
            slots = self._most_slots(context, room)
        return Fill(concurrency=Fraction(slots), requests=slots, tokens=context * slots) if slots else NOTHING

    def holds(self, context: int, requests: int, kv_bytes: tuple[int, ...]) -> bool:
        """See CachePool.holds: all slots are there from the start."""
        if self.fixed:
            return self.fill(context, kv_bytes).requests >= requests
        return self._fits(context, requests, self._room(kv_bytes))

    def _most_slots(self, context: int, room: tuple[int, ...]) -> int:
        """The most slots that fit; more slots never take less. What one takes is nearly what each takes."""
        most = self.sequences or MAX_SLOTS
        one = self._ones.get(context)
        if one is None:
            one = self._ones[context] = self.held(context, 1)
        low, high = 0, most + 1
        guess = min((free // size for size, free in zip(one, room, strict=True) if size), default=most)
        for tried in (min(max(guess, 1), most), min(max(guess, 0) + 1, most)):
            if low < tried < high:
                low, high = (tried, high) if self._fits(context, tried, room) else (low, tried)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._fits(context, middle, room) else (low, middle)
        return low

    def request_bytes(self, context: int) -> tuple[int, ...]:
        """See CachePool.request_bytes, of one slot; GPUs without a cache have 0."""
        by_stage = {one.stage: size for one, size in zip(self.devices, self.held(context, 1), strict=True)}
        return tuple(by_stage.get(stage, 0) for stage in range(self.deployment.replica_gpus))

    def tightest(self, context: int, kv_bytes: tuple[int, ...]) -> int:
        """See CachePool.tightest."""
        pairs = zip(self.devices, self.held(context, 1), self._room(kv_bytes), strict=True)
        return min(((Fraction(free, max(1, size)), one.stage) for one, size, free in pairs), default=(0, 0))[1]

    def layout(self, context: int, requests: int) -> Layout:
        """See CachePool.layout, for a server with so many slots."""
        slots = min(max(1, requests), self.sequences or MAX_SLOTS)
        found = self.chosen.layout(self.model, self.made(context, slots))
        if self.draft is None:
            return found
        return with_draft(found, self.draft, max(self._beside(context, slots).values(), default=0) // slots)

    def terms(self, context: int, kv_bytes: tuple[int, ...]) -> tuple[Term, ...]:
        """See CachePool.terms: what all slots take that fit, on each GPU."""
        slots = self.server.slots if self.fixed else max(1, self.fill(context, kv_bytes).requests)
        size = self.server.ctx_size if self.fixed else context * slots
        text = f"--ctx-size {size:,}, {slots} slots" if self.fixed else f"{context:,} × {slots} slots = {size:,} tokens"
        terms = [Term(name="context of the server", formula=text, value=size, unit="tokens")]
        for one, held, free in zip(self.devices, self.held(context, slots), self._room(kv_bytes), strict=True):
            text = f"{slots} slots take {held:,} of {free:,} B"
            terms.append(Term(name=f"caches on GPU {one.stage}", formula=text, value=held, unit="B"))
        return tuple(terms)


def second_context(model: Model, deployment: Deployment) -> Model | None:
    """What the second context of llama.cpp keeps, in 16 bits: a draft's layers, or those of the model's own head.

    For most architectures nothing limits the second context of a head to the head's layers, so it has caches for all of
    the model’s once more (ggml-org/llama.cpp#28433; measured for latents in unslothai/unsloth#6447): a bound.
    """
    draft = speculator(model, deployment)
    chosen = proposer(deployment)
    if draft is None or chosen is None or not chosen.own or model.model_type in HEAD_ALONE:
        return draft
    return replace(draft, layers=(*model.layers, *draft.layers))


def draft_notes(model: Model, deployment: Deployment) -> tuple[str, ...]:
    """That prediction layers have a whole second context; nothing where a draft model or no draft proposes."""
    if deployment.draft is None or not deployment.draft.own or model.model_type in HEAD_ALONE:
        return ()
    text = "An upper bound: the second context of prediction layers is counted with all of the model's layers once "
    return (f"{text}more, in 16 bits, as llama.cpp allocates it for most architectures.",)
