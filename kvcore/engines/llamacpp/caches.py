"""The caches that llama.cpp makes for a context: their cells, rows, devices and log lines.

Sources: llama.cpp, src/llama-model.cpp (create_memory: which caches an architecture gets; load_tensors: devices),
src/llama-kv-cache*.cpp, src/llama-memory-recurrent.cpp, ggml/src/ggml-cuda/ggml-cuda.cu and ggml-backend.cpp (padding,
alignment).
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from kvcore.engines.llamacpp.architectures import NO_FLASH_ATTENTION, ROLLS_BACK, architecture, held_layers
from kvcore.engines.llamacpp.settings import Context, LlamaCppSettings, window_cells
from kvcore.errors import EngineError
from kvcore.formats import Format
from kvcore.model.memories import Attention, Indexer, Latent, Memory, NoMemory, State, StateTensor
from kvcore.model.model import Model
from kvcore.units import MIB

HOST = "CPU"


def single(value: float) -> float:
    """The nearest 32-bit float, in which llama.cpp computes split points and prints sizes."""
    nearest: float = struct.unpack("f", struct.pack("f", value))[0]
    return nearest


def layer_devices(layers: int, settings: LlamaCppSettings) -> tuple[str, ...]:
    """The device whose memory holds each layer's cache: the last layers are on GPUs, divided by their shares."""
    devices = 1 if settings.split_mode == "none" else settings.devices
    # The output counts as one layer more, on the last device.
    on_gpu = layers + 1 if settings.n_gpu_layers is None else min(settings.n_gpu_layers, layers + 1)
    if settings.no_kv_offload or not settings.devices or not on_gpu:
        return (HOST,) * layers
    first = layers + 1 - on_gpu
    if devices == 1:
        return (HOST,) * first + ("CUDA0",) * (layers - first)
    total, points = 0.0, []
    for share in settings.tensor_split or (1.0,) * devices:
        total = single(total + single(share))
        points.append(total)
    points = [single(point / total) for point in points]
    places = [bisect_right(points, single((layer - first) / on_gpu)) for layer in range(first, layers)]
    return (HOST,) * first + tuple(f"CUDA{place}" for place in places)


def in_buffer(size: int, form: Format, width: int, device: str) -> int:
    """A tensor's bytes in its buffer: CUDA pads the last quantised row to 512 numbers; then alignment."""
    if size and form.block > 1 and device != HOST and width % 512:
        size += form.row_bytes(1, 512 - width % 512)
    return aligned(size, device)


def aligned(size: int, device: str) -> int:
    """A tensor's bytes up to where the next one starts."""
    step = 32 if device == HOST else 128
    return -(-size // step) * step


_FULL_SWA = (
    "llama_kv_cache_iswa: using full-size SWA cache "
    "(ref: https://github.com/ggml-org/llama.cpp/pull/13194#issuecomment-2868343055)"
)


# Tensors of a state that llama.cpp counts as R; the others are S.
_SHIFTED = (StateTensor.CONVOLUTION, StateTensor.SHIFTED_TOKENS)
# A memory, the device that holds it, and how many layers keep one there.
Part: TypeAlias = tuple[Memory, str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Layers that keep the same on one device: bytes of one layer's K (or R) and V (or S) tensor, and both padded."""

    layers: int
    device: str
    k_bytes: int
    v_bytes: int
    buffer_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotCache:
    """One cache: `cells` a stream, and the rows of its layers. `heads` are the lines that are printed before it."""

    kind: str
    cells: int
    slots: int
    streams: int
    types: tuple[str, str]
    rows: tuple[Row, ...]
    heads: tuple[str, ...] = ()
    counted_layers: int = 0
    rollbacks: int = 0
    window: int = 0

    @property
    def layers(self) -> int:
        return sum(row.layers for row in self.rows)

    @property
    def k_bytes(self) -> int:
        return sum(row.layers * row.k_bytes for row in self.rows)

    @property
    def v_bytes(self) -> int:
        return sum(row.layers * row.v_bytes for row in self.rows)

    @property
    def bytes(self) -> int:
        return self.k_bytes + self.v_bytes

    def bytes_on(self, device: str) -> int:
        """Bytes of its tensors on one device."""
        return sum(row.layers * (row.k_bytes + row.v_bytes) for row in self.rows if row.device == device)

    def lines(self) -> tuple[str, ...]:
        """What llama.cpp logs about it, in its own format strings."""
        place = "llama_memory_recurrent" if self.kind == "state" else "llama_kv_cache"
        what = "RS" if self.kind == "state" else "KV"
        buffers: dict[str, int] = {}
        for row in self.rows:
            buffers[row.device] = buffers.get(row.device, 0) + row.layers * row.buffer_bytes
        held = [
            f"{place}: {device:>10} {what} buffer size = {buffers[device] / MIB:8.2f} MiB" for device in sorted(buffers)
        ]
        k, v = self.types
        total, first, second = (f"{single(size) / MIB:7.2f}" for size in (self.bytes, self.k_bytes, self.v_bytes))
        if self.kind == "state":
            size = (
                f"{place}: size = {total} MiB ({self.cells:6} cells, {self.counted_layers:3} layers, "
                f"{self.slots:2} seqs {self.rollbacks:2} rs_seq), R (f32): {first} MiB, S (f32): {second} MiB, "
                f"P (f32): {0:7.2f} MiB"
            )
        else:
            size = (
                f"{place}: size = {total} MiB ({self.cells:6} cells, {self.counted_layers:3} layers, "
                f"{self.slots:2}/{self.streams} seqs), K ({k}): {first} MiB, V ({v}): {second} MiB"
            )
        return (*self.heads, *held, size)


def make_caches(model: Model, settings: LlamaCppSettings, context: Context) -> tuple[SlotCache, ...]:
    """The caches in the order in which llama.cpp makes them, none for an encoder; EngineError for what it refuses."""
    name = architecture(model)
    layers = held_layers(model, name)
    _check_types(name, layers, settings)
    maker = _Maker(model, settings, context, layers, name)
    return (*maker.attention(), *maker.recurrent())


def _check_types(name: str, layers: tuple[tuple[Memory, ...], ...], settings: LlamaCppSettings) -> None:
    """Refuse the cache types that llama_init_from_model refuses, and rows that ggml cannot hold."""
    memories = {id(memory): memory for layer in layers for memory in layer}.values()
    flash = settings.flash_attn != "off" and name not in NO_FLASH_ATTENTION
    k, v = settings.formats
    if any(isinstance(memory, Latent) for memory in memories) and k != v:
        raise EngineError(
            f"a model with latents does not support different K ({settings.cache_type_k}) and V "
            f"({settings.cache_type_v}) cache types",
            engine="llama.cpp",
        )
    if v.block > 1 and not flash:
        raise EngineError(
            f"a quantized V cache ({settings.cache_type_v}) requires flash_attn to be enabled", engine="llama.cpp"
        )
    for memory in memories:
        for side, stored, heads, width in _widths(memory, k, v):
            # Without flash attention only the whole row must be made of blocks.
            needed = width if flash else heads * width
            if needed % stored.block:
                raise EngineError(
                    f"{side} cache type {stored.name} with block size {stored.block} does not divide "
                    f"a {'head' if flash else 'row'} of {needed}",
                    engine="llama.cpp",
                )


def _widths(memory: Memory, k: Format, v: Format) -> tuple[tuple[str, Format, int, int], ...]:
    match memory:
        case Attention():
            return ("K", k, memory.num_kv_heads, memory.head_dim), ("V", v, memory.num_kv_heads, memory.v_head_dim)
        case Latent():
            return ("K", k, 1, memory.width), ("V", v, 1, memory.kv_lora_rank)
        case Indexer():
            return (("K", k, 1, memory.index_head_dim),)
        case _:
            return ()


def _parts(layers: tuple[tuple[Memory, ...], ...], places: tuple[str, ...]) -> list[Part]:
    """Each memory with its device and how many layers keep it there, in the order of the layers."""
    counts: dict[tuple[int, str], int] = {}
    known: dict[int, Memory] = {}
    for layer, place in zip(layers, places, strict=True):
        for memory in layer:
            key = (id(memory), place)
            counts[key] = counts.get(key, 0) + 1
            known[id(memory)] = memory
    return [(known[memory], device, count) for (memory, device), count in counts.items()]


class _Maker:
    """Makes the caches of one model in one context."""

    def __init__(
        self,
        model: Model,
        settings: LlamaCppSettings,
        context: Context,
        layers: tuple[tuple[Memory, ...], ...],
        name: str,
    ) -> None:
        self.settings, self.context, self.layers, self.name = settings, context, len(layers), name
        parts = _parts(layers, layer_devices(len(layers), settings))
        self.keeps = [part for part in parts if part[0].attends]
        self.empty = [part for part in parts if part[0].kind == "none"]
        self.indexers = [part for part in parts if part[0].kind == "indexer"]
        self.states = [part for part in parts if part[0].kind == "state"]
        if self.states and self.indexers:
            raise EngineError(
                f"{model.name} has states and an indexer, which are not laid out together here", engine="llama.cpp"
            )
        self.widest_v = max((m.kv_heads * m.value_width for m, _, _ in self.keeps), default=0)

    def attention(self) -> tuple[SlotCache, ...]:
        """The caches of keys and values: one, or one for full and one for sliding layers, and that of an indexer."""
        if not self.keeps:
            return ()
        cells = self.context.n_ctx_seq
        sliding = [part for part in self.keeps if part[0].window is not None]
        full = [part for part in self.keeps if part[0].window is None]
        if not self.states:
            # A layer without KV heads has a tensor of no width, and is counted; recurrent models leave it out.
            full = [*full, *self.empty]
        plain = "latent" if any(isinstance(memory, Latent) for memory, _, _ in full) else "full"
        window = self._window_cells(sliding)
        if self.indexers:
            return self._with_indexer(plain, full, sliding, window)
        if not sliding:
            return (self._cache(plain, cells, full),)
        heads = [_FULL_SWA] if self.settings.whole_windows else []
        heads.append(f"llama_kv_cache_iswa: creating non-SWA KV cache, size = {cells} cells")
        second = f"llama_kv_cache_iswa: creating     SWA KV cache, size = {window} cells"
        return (
            self._cache(plain, cells, full, heads),
            self._cache("sliding", window, sliding, [second]),
        )

    def _window_cells(self, sliding: list[Part]) -> int:
        windows = {memory.window for memory, _, _ in sliding}
        if len(windows) > 1:
            raise EngineError(f"one model has one window, and this one has {len(windows)}", engine="llama.cpp")
        return window_cells(next(iter(windows)) or 0, self.context, self.settings) if windows else 0

    def _with_indexer(
        self,
        plain: str,
        full: list[Part],
        sliding: list[Part],
        window: int,
    ) -> tuple[SlotCache, ...]:
        cells = self.context.n_ctx_seq
        inner = "llama_kv_cache_dsa" if plain == "latent" else "llama_kv_cache_msa"
        heads = [f"{inner}: creating main KV cache, size = {cells} cells"]
        if sliding:
            outer = "llama_kv_cache_dsa_iswa"
            heads.insert(0, f"{outer}: creating DSA KV cache, size = {cells} cells")
            if self.settings.whole_windows:
                heads.insert(0, _FULL_SWA.replace("llama_kv_cache_iswa", outer))
        indexer = [f"{inner}: creating indexer KV cache, size = {cells} cells"]
        caches = [
            self._cache(plain, cells, full, heads),
            self._cache("indexer", cells, self.indexers, indexer, plain != "latent"),
        ]
        if sliding:
            second = f"llama_kv_cache_dsa_iswa: creating SWA KV cache, size = {window} cells"
            caches.append(self._cache("sliding", window, sliding, [second]))
        return tuple(caches)

    def _cache(
        self,
        kind: str,
        cells: int,
        members: Sequence[Part],
        heads: Iterable[str] = (),
        with_values: bool = True,
    ) -> SlotCache:
        rows = tuple(self._row(memory, device, count, cells, with_values) for memory, device, count in members)
        return SlotCache(
            kind=kind, cells=cells, slots=self.context.slots, streams=self.context.streams,
            types=(self.settings.cache_type_k, self.settings.cache_type_v), rows=rows, heads=tuple(heads),
            counted_layers=sum(row.layers for row in rows),
            window=max((memory.window or 0 for memory, _, _ in members), default=0),
        )  # fmt: skip

    def _row(self, memory: Memory, device: str, count: int, cells: int, with_values: bool) -> Row:
        k, v = self.settings.formats
        transposed = self.settings.flash_attn == "off" or self.name in NO_FLASH_ATTENTION
        match memory:
            case Attention():
                widths = (memory.num_kv_heads * memory.head_dim, memory.num_kv_heads * memory.v_head_dim)
            case Latent():
                widths = (memory.width, 0)
            case NoMemory():
                widths = (0, 0)
            case Indexer():
                # MiniMax-M3's indexer has values beside its keys: one head as wide as the model's.
                value = next(m.value_width for m, _, _ in self.keeps if m.kv_heads) if with_values else 0
                widths = (memory.index_head_dim, value)
            case _:
                raise EngineError(f"a {memory.kind} memory is not laid out", engine="llama.cpp")
        if transposed and (memory.kv_heads or memory.is_empty):
            # Values are stored transposed then, every layer's as wide as the widest.
            widths = (widths[0], self.widest_v)
        total = cells * self.context.streams
        sizes = tuple(total * form.row_bytes(1, width) for form, width in zip((k, v), widths, strict=True))
        buffer = sum(
            in_buffer(size, form, width, device) for size, form, width in zip(sizes, (k, v), widths, strict=True)
        )
        return Row(layers=count, device=device, k_bytes=sizes[0], v_bytes=sizes[1], buffer_bytes=buffer)

    def recurrent(self) -> tuple[SlotCache, ...]:
        """The recurrent states, one for each slot and each draft that may be rolled back."""
        if not self.states:
            return ()
        rollbacks = self.settings.spec_draft_n_max if self.name in ROLLS_BACK else 0
        copies = self.context.slots * (1 + rollbacks)
        rows = tuple(_state_row(state, device, count, copies) for state, device, count in self.states)
        return (
            SlotCache(kind="state", cells=self.context.slots, slots=self.context.slots, streams=1, types=("f32", "f32"),
                  rows=rows, counted_layers=self.layers, rollbacks=rollbacks),
        )  # fmt: skip


def _state_row(state: Memory, device: str, count: int, copies: int) -> Row:
    if not isinstance(state, State):
        raise EngineError(f"a {state.kind} memory is no state", engine="llama.cpp")
    shifted = sum(part.bytes for part in state.parts if part.name in _SHIFTED)
    sizes = (copies * shifted, copies * (state.bytes - shifted))
    buffer = sum(aligned(size, device) for size in sizes)
    return Row(layers=count, device=device, k_bytes=sizes[0], v_bytes=sizes[1], buffer_bytes=buffer)


def device_rates(caches: tuple[SlotCache, ...], device: str) -> tuple[int, int, int]:
    """Bytes on a device for each full cell, for each sliding cell, and for all slots' states whatever the context."""
    full = sliding = fixed = 0
    for cache in caches:
        size = cache.bytes_on(device)
        if cache.kind == "state":
            fixed += size
        elif cache.kind == "sliding":
            sliding += size // (cache.cells * cache.streams)
        else:
            full += size // (cache.cells * cache.streams)
    return full, sliding, fixed
