"""llama.cpp and Ollama: as many slots as fit, each with cells for a whole request, allocated at the start.

The context is shared by the slots, so a plan starts the server with --ctx-size = context × slots, and slots = users.
Where the options fix the context or the slots, the server is planned as it is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from kvcore.deployment import Deployment
from kvcore.engines.base import Layout
from kvcore.engines.llamacpp.caches import make_caches
from kvcore.engines.llamacpp.devices import HOST
from kvcore.engines.llamacpp.engine import LLAMACPP, device_rates, requests_at_once
from kvcore.engines.llamacpp.settings import MAX_SLOTS, LlamaCppSettings, make_context, window_cells
from kvcore.engines.ollama import OLLAMA, ONE_SLOT, OllamaSettings, default_batch
from kvcore.errors import EngineError
from kvcore.model.model import Model
from kvcore.planning.fill.base import NOTHING, Fill
from kvcore.planning.fill.draft import llamacpp_context, with_draft
from kvcore.ranks.speculation import alone
from kvcore.terms import Term

# Options that say what the slots share.
FIXED = frozenset({"ctx_size", "kv_unified", "kv_unified_per_slot", "parallel", "num_parallel", "num_ctx", "tool"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Device:
    """Bytes on one GPU for each full cell, each sliding cell and each slot."""

    stage: int
    full: int
    sliding: int
    slot: int


class SlotFiller:
    """See kvcore.planning.fill.base.Filler."""

    def __init__(self, model: Model, deployment: Deployment, context: int) -> None:
        self.model, self.deployment = model, deployment
        self.ollama = deployment.engine == "ollama"
        self.sequences_name = "OLLAMA_NUM_PARALLEL" if self.ollama else "--parallel"
        named = {name for name, _ in deployment.options}
        self.fixed = bool(FIXED & named)
        self.own_batch = self.ollama and "num_batch" not in named
        made = self.made(context, 1)
        self.server = made.server if isinstance(made, OllamaSettings) else made
        caches = make_caches(model, self.server, make_context(model, self.server))
        self.window = next((cache.window for cache in caches if cache.kind == "sliding"), 0)
        self.keeps_cache = any(cache.rows for cache in caches)
        self.devices = tuple(
            _Device(stage=int(place.removeprefix("CUDA")), full=full, sliding=sliding, slot=states // self.server.slots)
            for place in sorted({row.device for cache in caches for row in cache.rows} - {HOST})
            for full, sliding, states in (device_rates(caches, place),)
        )
        self.sequences: int | None = self._most(made)
        self._servers: dict[tuple[int, int], LlamaCppSettings] = {}
        self._ones: dict[int, tuple[int, ...]] = {}
        self.draft = llamacpp_context(model, deployment)
        self.beside, self._shift = self._second_context(context)

    def _second_context(self, context: int) -> tuple[SlotFiller | None, int]:
        """The draft's own context, and how many GPUs further on its first one is: a head lies with the last layer."""
        if self.draft is None:
            return None, 0
        gpus = self.deployment.replica_gpus
        own = alone(self.draft, self.deployment, LLAMACPP.rules)
        last = gpus > 1 and len(self.draft.layers) < gpus
        found = SlotFiller(self.draft, replace(own, tp=1, pp=1) if last else own, context)
        shift = gpus - 1 if last else 0
        if {one.stage + shift for one in found.devices} - {one.stage for one in self.devices}:
            raise EngineError("llama.cpp: a draft on a GPU where the model keeps no cache is not followed here")
        return found, shift

    def _most(self, made: LlamaCppSettings | OllamaSettings) -> int:
        if self.fixed:
            return self.server.slots
        if isinstance(made, OllamaSettings) and made.architecture in ONE_SLOT:
            return 1
        return min(MAX_SLOTS, self.deployment.max_num_seqs or MAX_SLOTS)

    def made(self, context: int, slots: int) -> LlamaCppSettings | OllamaSettings:
        """The settings of a server with so many slots, each with room for `context` tokens."""
        values = {"num_parallel": slots} if self.ollama else {"parallel": slots, "ctx_size": context * slots}
        asked = self.deployment.at(context).unless_stated({} if self.fixed else values)
        return OLLAMA.settings(self.model, asked) if self.ollama else LLAMACPP.settings(self.model, asked)

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
        """The server for so many slots; Ollama chooses its batch by the tokens of all of them."""
        gpu = self.deployment.gpu.memory_bytes
        batch = default_batch(tokens, self.server.flash_attn, True, gpu) if self.own_batch else 0
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
        """See Filler.fill."""
        room = self._room(kv_bytes)
        if self.fixed:
            slots = requests_at_once(self.model, self.made_server(context)) if self._fits(context, 1, room) else 0
        else:
            slots = self._most_slots(context, room)
        return Fill(concurrency=Fraction(slots), requests=slots, tokens=context * slots) if slots else NOTHING

    def count(self, context: int, kv_bytes: tuple[int, ...]) -> int:
        """See Filler.count."""
        return self.fill(context, kv_bytes).requests

    def holds(self, context: int, requests: int, kv_bytes: tuple[int, ...]) -> bool:
        """See Filler.holds: all slots are there from the start."""
        if self.fixed:
            return self.fill(context, kv_bytes).requests >= requests
        return self._fits(context, requests, self._room(kv_bytes))

    def made_server(self, context: int) -> LlamaCppSettings:
        """llama-server's settings for requests of that length, as the options say."""
        made = self.made(context, 1)
        return made.server if isinstance(made, OllamaSettings) else made

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
        """See Filler.request_bytes, of one slot; GPUs without a cache have 0."""
        by_stage = {one.stage: size for one, size in zip(self.devices, self.held(context, 1), strict=True)}
        return tuple(by_stage.get(stage, 0) for stage in range(self.deployment.replica_gpus))

    def tightest(self, context: int, kv_bytes: tuple[int, ...]) -> int:
        """See Filler.tightest."""
        pairs = zip(self.devices, self.held(context, 1), self._room(kv_bytes), strict=True)
        return min(((Fraction(free, max(1, size)), one.stage) for one, size, free in pairs), default=(0, 0))[1]

    def layout(self, context: int, requests: int) -> Layout:
        """See Filler.layout, for a server with so many slots."""
        slots = min(max(1, requests), self.sequences or MAX_SLOTS)
        made = self.made(context, slots)
        found = (
            OLLAMA.layout(self.model, made) if isinstance(made, OllamaSettings) else LLAMACPP.layout(self.model, made)
        )
        if self.draft is None:
            return found
        return with_draft(found, self.draft, max(self._beside(context, slots).values(), default=0) // slots)

    def terms(self, context: int, kv_bytes: tuple[int, ...]) -> tuple[Term, ...]:
        """See Filler.terms: what all slots take that fit, on each GPU."""
        slots = self.server.slots if self.fixed else max(1, self.fill(context, kv_bytes).requests)
        size = self.server.ctx_size if self.fixed else context * slots
        text = f"--ctx-size {size:,}, {slots} slots" if self.fixed else f"{context:,} × {slots} slots = {size:,} tokens"
        terms = [Term(name="context of the server", formula=text, value=size, unit="tokens")]
        for one, held, free in zip(self.devices, self.held(context, slots), self._room(kv_bytes), strict=True):
            text = f"{slots} slots take {held:,} of {free:,} B"
            terms.append(Term(name=f"caches on GPU {one.stage}", formula=text, value=held, unit="B"))
        return tuple(terms)
