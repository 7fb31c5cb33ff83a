"""llama.cpp's answers: everything is set aside at the start, so a request is charged its part of the whole."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

from kvcore.deployment import Deployment, Request
from kvcore.engines.base import Engine
from kvcore.engines.command import Command
from kvcore.engines.layout import Capacity, Group, Layout, Note
from kvcore.engines.llamacpp.caches import HOST, SlotCache, device_rates, layer_devices, make_caches
from kvcore.engines.llamacpp.launch import launch, room_for
from kvcore.engines.llamacpp.log import LLAMACPP_LOG
from kvcore.engines.llamacpp.memory import estimates, planned_cells
from kvcore.engines.llamacpp.settings import (
    CELL_PADDING,
    OPTIONS,
    VERSION,
    VERSIONS,
    Context,
    LlamaCppSettings,
    make_context,
    make_settings,
    requests_in,
    slot_length,
    window_cells,
)
from kvcore.engines.llamacpp.slots import SlotPool, draft_notes
from kvcore.engines.overheads import AddedOverheads, added
from kvcore.errors import EngineError
from kvcore.model.model import Model
from kvcore.ranks.rules import RankRules
from kvcore.ranks.weights import RankWeights
from kvcore.terms import Term

_HABITS = (
    ("sliding", "Windows of all slots and one micro-batch have cells, in whole 256s."),
    ("state", "States are kept in 32 bits, for every slot."),
)


class LlamaCpp(Engine):
    """llama.cpp, as llama-server or as a library; see kvcore.engines.base.Engine.

    The cache is allocated whole when the context is made. `bytes_per_request` is that allocation, on the fullest
    device, divided by the requests of max_model_len that it holds at once: a slot's share. There are no blocks.
    """

    name = "llama.cpp"
    label = "llama.cpp"
    versions = "; ".join(VERSIONS.values())
    release = ""
    vendors = ("NVIDIA", "AMD", "Intel", "Apple")
    options = OPTIONS
    log = LLAMACPP_LOG
    cache_formats = ("q8_0", "q8_0/q4_0", "q4_0")
    weight_formats = ("q8_0", "q6_k", "q4_k")
    on_processors = True
    # The input layer's table is on the host (llama-model.cpp, load_tensors: dev_input is the CPU), towers in mmproj.
    rules = RankRules(whole_layers=True, table_on_host=True)
    slots = True
    step_memory = False
    offload = "--cache-ram"

    def settings(self, model: Model, asked: Request) -> LlamaCppSettings:
        """See Engine.settings. Without --ctx-size it is the least with which a slot holds the longest request, and
        without that the training context; where none is asked for, requests are as long as a slot allows.
        """
        return make_settings(model, asked)

    def stages(self, model: Model, deployment: Deployment) -> tuple[range, ...]:
        """See Ranked.stages: by the shares and the number of layers that were chosen, without those in host memory."""
        if deployment.option("n_gpu_layers") is None and deployment.option("tensor_split") is None:
            return super().stages(model, deployment)
        gpus = deployment.replica_gpus
        places = layer_devices(len(model.layers), self.settings(model, replace(deployment, tp=1, pp=gpus)))
        found = []
        for device in range(gpus):
            own = [layer for layer, place in enumerate(places) if place == f"CUDA{device}"]
            found.append(range(own[0], own[-1] + 1) if own else range(0))
        return tuple(found)

    def draft_notes(self, model: Model, deployment: Deployment) -> tuple[str, ...]:
        """See Ranked.draft_notes."""
        return draft_notes(model, deployment)

    def pool(self, model: Model, deployment: Deployment, context: int) -> SlotPool:
        """See Engine.pool."""
        return SlotPool(self, model, deployment, context)

    def batched_tokens(self, settings: LlamaCppSettings) -> int:
        """See Engine.batched_tokens."""
        return settings.ubatch_size

    def no_sharing(self, model: Model, deployment: Deployment) -> str:
        """See Engine.no_sharing."""
        return f"Every slot of {self.label} has a copy of the prompt: a shared beginning is not counted once."

    def layout(self, model: Model, settings: LlamaCppSettings) -> Layout:
        """A slot's share of the fullest device's cache; EngineError for what llama.cpp refuses or a slot too short."""
        context = make_context(model, settings)
        caches = make_caches(model, settings, context)
        length = slot_length(settings, context)
        requests = requests_in(context, length)
        device, held = fullest(caches)
        share = -(-held // requests)
        return Layout(
            engine=self.name,
            engine_version=settings.version,
            model=model.name,
            kv_dtype=_dtype(settings),
            max_model_len=length,
            bytes_per_request=share,
            groups=tuple(_group(cache) for cache in caches),
            terms=_layout_terms(caches, context, device, held, requests, share),
            remarks=_notes(model, settings, context),
            habits=_habits(caches),
        )

    def capacity(self, model: Model, settings: LlamaCppSettings, kv_bytes: int) -> Capacity:
        """The cells of all streams and the requests that they hold at once, where the cache fits in `kv_bytes` of
        the fullest device; llama.cpp does not start where it does not fit, and more memory makes no more cells.
        EngineError for a model that keeps no cache.
        """
        context = make_context(model, settings)
        caches = make_caches(model, settings, context)
        _, held = fullest(caches)
        if not held:
            raise EngineError(f"{model.name} keeps no cache, so there is no capacity to compute", engine=self.name)
        requests = requests_in(context, slot_length(settings, context))
        fits = held <= kv_bytes
        tokens = context.n_ctx_seq * context.streams if fits else 0
        return Capacity(
            kv_bytes=kv_bytes,
            kv_cache_size_tokens=tokens,
            max_concurrency=Fraction(requests if fits else 0),
            starts=fits,
            log_lines=tuple(line for cache in caches for line in cache.lines()) if fits else (),
            terms=_capacity_terms(model, settings, context, caches, kv_bytes),
        )

    def log_lines(self, model: Model, settings: LlamaCppSettings) -> tuple[str, ...]:
        """The lines about its caches that llama.cpp logs with memory enough; EngineError as layout."""
        context = make_context(model, settings)
        return tuple(line for cache in make_caches(model, settings, context) for line in cache.lines())

    def overheads(
        self, model: Model, deployment: Deployment, settings: LlamaCppSettings, weights: RankWeights, share: float
    ) -> AddedOverheads:
        """See Engine.overheads."""
        return added(estimates(model, deployment, settings, planned_cells(deployment)))

    def launch(self, model: Model, deployment: Deployment, settings: LlamaCppSettings) -> Command:
        """See Engine.launch: `llama-server`."""
        return launch(model, deployment, settings)

    def room_for(self, deployment: Deployment, requests: int) -> dict[str, Any]:
        """See Engine.room_for: the slots, and a context for all of them."""
        return room_for(deployment, requests)


LLAMACPP = LlamaCpp()


def fullest(caches: tuple[SlotCache, ...]) -> tuple[str, int]:
    """The device with the most bytes of cache, and those bytes; the host only where no GPU holds any."""
    held = {device: sum(cache.bytes_on(device) for cache in caches) for device in _devices(caches)}
    return max(held.items(), key=lambda pair: pair[1], default=(HOST, 0))


def _devices(caches: tuple[SlotCache, ...]) -> tuple[str, ...]:
    """The GPUs that hold a part of the caches, else the host."""
    places = {row.device for cache in caches for row in cache.rows}
    return tuple(sorted(places - {HOST} or places))


def _dtype(settings: LlamaCppSettings) -> str:
    k, v = settings.formats
    return k.name if k == v else f"{k.name}/{v.name}"


def _group(cache: SlotCache) -> Group:
    largest = max((row.k_bytes + row.v_bytes for row in cache.rows), default=0)
    return Group(kinds=(cache.kind,), layers=cache.layers, page_bytes=largest)


def _layout_terms(
    caches: tuple[SlotCache, ...], context: Context, device: str, held: int, requests: int, share: int
) -> tuple[Term, ...]:
    terms = [Term(name=f"{cache.kind} cache", formula=_formula(cache), value=cache.bytes, unit="B") for cache in caches]
    places = sorted({row.device for cache in caches for row in cache.rows})
    if len(places) > 1:
        for place in places:
            size = sum(cache.bytes_on(place) for cache in caches)
            rows = sum(row.layers for cache in caches for row in cache.rows if row.device == place)
            text = f"{rows} layers' caches = {size:,} B"
            terms.append(Term(name=f"on {place}", formula=text, value=size, unit="B"))
    text = f"{held:,} B on {device}, allocated when the server starts"
    terms.append(Term(name="allocated at start", formula=text, value=held, unit="B"))
    text = f"{held:,} B / {requests} requests at once = {share:,} B"
    terms.append(Term(name="one request", formula=text, value=share, unit="B"))
    return tuple(terms)


def _formula(cache: SlotCache) -> str:
    if cache.kind == "state":
        copies = cache.slots * (1 + cache.rollbacks)
        one = cache.bytes // copies if copies else 0
        return f"{cache.layers} layers, {one:,} B of 32-bit floats × {copies} slots = {cache.bytes:,} B"
    cells = cache.cells * cache.streams
    streams = f" × {cache.streams} streams" if cache.streams > 1 else ""
    row = cache.bytes // cells if cells else 0
    return f"{cache.cells:,} cells{streams} × {row:,} B of {cache.layers} layers = {cache.bytes:,} B"


def _capacity_terms(
    model: Model, settings: LlamaCppSettings, context: Context, caches: tuple[SlotCache, ...], kv_bytes: int
) -> tuple[Term, ...]:
    device, held = fullest(caches)
    cells = context.n_ctx_seq * context.streams
    text = f"{context.n_ctx_seq:,} cells × {context.streams} streams = {cells:,}"
    terms = [Term(name="cells", formula=text, value=cells, unit="tokens")]
    if held > kv_bytes:
        text = f"llama.cpp does not start: {held:,} B on {device}, {held - kv_bytes:,} B more than there are"
        terms.append(Term(id="shortfall", name="shortfall", formula=text, value=held - kv_bytes, unit="B"))
    else:
        text = f"{kv_bytes:,} − {held:,} B stay free: the cache is as large as --ctx-size says"
        terms.append(Term(name="unused", formula=text, value=kv_bytes - held, unit="B"))
    largest = _largest_context(model, settings, caches, kv_bytes)
    text = f"the largest --ctx-size whose cache fits in {kv_bytes:,} B of {device} = {largest:,}"
    terms.append(Term(name="largest context", formula=text, value=largest, unit="tokens"))
    return tuple(terms)


def _largest_context(model: Model, settings: LlamaCppSettings, caches: tuple[SlotCache, ...], kv_bytes: int) -> int:
    """The largest --ctx-size in whole cells that fits, by bisection: more context never takes less. 0: none does."""
    step = CELL_PADDING * (1 if settings.unified else settings.slots)
    window = next((cache.window for cache in caches if cache.kind == "sliding"), 0)
    rates = [device_rates(caches, device) for device in _devices(caches)]

    def fits(steps: int) -> bool:
        context = make_context(model, settings, steps * step)
        cells = context.n_ctx_seq * context.streams
        slid = context.streams * window_cells(window, context, settings) if window else 0
        return all(cells * full + slid * sliding + fixed <= kv_bytes for full, sliding, fixed in rates)

    low, high = 0, (2**31 - 1) // step
    if fits(high):
        return high * step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low * step


def _notes(model: Model, settings: LlamaCppSettings, context: Context) -> tuple[Note, ...]:
    notes = [Note("The whole cache is allocated at the start; a request is charged its share of it.")]
    if settings.ctx_size == 0:
        notes.append(
            Note("The training context is assumed whole: unless -c 0 is given, --fit lowers it where memory is short.")
        )
    if settings.devices > 1 and not settings.tensor_split:
        notes.append(Note("Layers are divided by free memory, taken as equal on all GPUs."))
    if settings.spec_draft_n_max:
        notes.append(Note("The cache of the draft head's own context is not counted.", with_draft=""))
    if model.model_type in ("t5", "mt5", "umt5"):
        notes.append(Note("As many encoder as decoder layers are assumed; the encoder's output is not kept."))
    if settings.version != VERSION:
        notes.append(Note(f"Log lines as in {VERSION}."))
    return tuple(notes)


def _habits(caches: tuple[SlotCache, ...]) -> tuple[str, ...]:
    """What is done with all layers of a kind."""
    kinds = {cache.kind for cache in caches}
    return tuple(text for kind, text in _HABITS if kind in kinds)
