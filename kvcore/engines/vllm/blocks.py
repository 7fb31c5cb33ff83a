"""Blocks of vLLM: what one block of one layer holds, and how layers share the blocks of one pool.

Sources: vLLM 0.33, v1/kv_cache_interface.py (pages, requests), platforms/interface.py (block sizes),
model_executor/layers/mamba/mamba_utils.py (states under tensor parallelism), v1/core/kv_cache_planning.py (groups).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import lcm
from typing import Literal, TypeAlias

from kvcore.engines.vllm.settings import VllmSettings
from kvcore.errors import EngineError
from kvcore.formats import KVFormat, kv_format
from kvcore.model.memories import (
    Attention,
    CrossAttention,
    Indexer,
    Latent,
    Memory,
    State,
    StateDesign,
    StatePart,
    StateTensor,
)
from kvcore.model.model import Model

SpecKind = Literal["full", "sliding", "chunked", "latent", "indexer", "state", "cross"]
DEFAULT_BLOCK = 16
CPU_BLOCK = 128
_CPU_KERNEL = 32
# States that follow mamba_ssm_cache_dtype, which a CPU with AVX-512 BF16 sets to fp32 (platforms/cpu.py, 0.32).
_CPU_FP32 = (StateDesign.GATED_DELTA_NET, StateDesign.MAMBA_2)
# vLLM's MLA kernels want the blocks of hybrid models in multiples of 128 (platforms/interface.py).
_MLA_HYBRID_ALIGNMENT = 128
# FlashInfer's gated delta net prefill, chosen on SM90, checkpoints on boundaries of 64 tokens.
_GDN_ALIGNMENT = 64


# A spec and the layers that have it.
Placed: TypeAlias = "tuple[Spec, tuple[int, ...]]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """One layer's cache: `block_size` tokens a block, in a page of `page_bytes` (`unpadded_bytes` before padding)."""

    kind: SpecKind
    block_size: int
    page_bytes: int
    unpadded_bytes: int
    reach: int | None = None
    heads: int = 1
    widths: tuple[int, int] = (0, 0)
    checkpoint_pages: int = 0

    @property
    def family(self) -> tuple[object, ...]:
        """Layers of one family and block size need the same number of token slots, and share one group."""
        if self.kind in ("full", "latent", "indexer"):
            return ("full",)
        return (self.kind, self.reach)

    def pages(self, settings: VllmSettings) -> int:
        """Pages that one request of max_model_len tokens claims (max_memory_usage_bytes / page)."""
        length = settings.max_model_len
        if self.kind == "sliding" and self.reach is not None:
            return _cdiv(min(self.reach - 1 + settings.in_flight_tokens, length), self.block_size) + 1
        if self.kind == "chunked" and self.reach is not None:
            return _cdiv(min(self.reach + settings.in_flight_tokens, length), self.block_size)
        if self.kind == "cross":
            return _cdiv(settings.batched_tokens, self.block_size)
        if self.kind == "state":
            resident = 2 + self.checkpoint_pages if settings.enable_prefix_caching else 1
            return resident + settings.num_speculative_tokens
        return _cdiv(_cdiv(length, settings.decode_context_parallel_size), self.block_size)


# What vLLM 0.33 can store a cache in (config/cache.py); fp32 as a model's own dtype only.
_FORMATS = frozenset(
    {"fp32", "bf16", "fp16", "fp8", "fp8_per_token_head", "int8_per_token_head", "int4_per_token_head", "nvfp4",
     "turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc", "fp8_ds_mla"}
)  # fmt: skip


_SPARED_ENDS, _SPARED_FORMAT = 2, "bf16"


def resolve_format(model: Model, settings: VllmSettings) -> KVFormat:
    """vLLM's own rule for the cache format: packed layouts for DeepSeek-V4 and for fp8 beside an indexer."""
    if any(latent.kind != "latent" for latent in model.latents):
        return kv_format("fp8_ds_mla")
    wanted = model.resolve_format(settings.kv_cache_dtype)
    if model.indexers and model.latents and wanted.name == "fp8":
        return kv_format("fp8_ds_mla")
    return wanted


def layer_specs(model: Model, settings: VllmSettings) -> tuple[Placed, ...]:
    """The distinct specs on one tensor-parallel rank and the layers that have them, blocks chosen and states padded.

    Raises EngineError for what vLLM refuses.
    """
    _check(model, settings)
    kv = resolve_format(model, settings)
    block = block_size(model, settings, kv)
    by_memory = {memory: _spec(memory, kv, block, settings) for memory, _ in model.kept}
    states = [spec for spec in by_memory.values() if spec.kind == "state"]
    growing = [spec for spec in by_memory.values() if spec.kind in ("full", "latent")]
    if states and growing:
        by_memory = _align_hybrid(model, by_memory, max(state.unpadded_bytes for state in states), settings)
    placed: dict[Spec, list[int]] = {}
    spared = spared_layers(model, kv)
    for memory, layers in memory_layers(model):
        placed.setdefault(by_memory[memory], []).extend(layer for layer in layers if layer not in spared)
        if of_it := [layer for layer in layers if layer in spared]:
            placed.setdefault(_spec(memory, kv_format(_SPARED_FORMAT), block, settings), []).extend(of_it)
    placed = {spec: layers for spec, layers in placed.items() if layers}
    return tuple((spec, tuple(layers)) for spec, layers in _with_head(model, placed, settings).items())


def spared_layers(model: Model, kv: KVFormat) -> frozenset[int]:
    """Layers that TurboQuant leaves in 16 bits: the first and the last two, never more than all.

    Source: vLLM, quantization/turboquant/config.py and engine/arg_utils.py, which add them to
    --kv-cache-dtype-skip-layers whatever is asked for. A model with recurrent states is compressed in all layers.
    """
    if not kv.name.startswith("turboquant") or model.states:
        return frozenset()
    count, ends = len(model.layers), min(_SPARED_ENDS, len(model.layers) // 2)
    return frozenset({*range(ends), *range(count - ends, count)})


@lru_cache(maxsize=64)
def memory_layers(model: Model) -> tuple[tuple[Memory, tuple[int, ...]], ...]:
    """The distinct memories that take any bytes, in order, and the layers that have them."""
    layers: dict[Memory, list[int]] = {memory: [] for memory, _ in model.kept}
    # Layers of one kind share one object: looking it up by identity spares hashing it for every layer.
    by_identity: dict[int, list[int] | None] = {}
    for index, memories in enumerate(model.layers):
        for memory in memories:
            key = id(memory)
            if key not in by_identity:
                by_identity[key] = layers.get(memory)
            own = by_identity[key]
            if own is not None:
                own.append(index)
    return tuple((memory, tuple(own)) for memory, own in layers.items())


def _with_head(model: Model, placed: dict[Spec, list[int]], settings: VllmSettings) -> dict[Spec, list[int]]:
    """Add the layers of a multi-token-prediction head: they are of the kind of the last layer that attends."""
    if not settings.mtp_layers:
        return placed
    last = max((layers[-1] for spec, layers in placed.items() if spec.kind in ("full", "latent")), default=None)
    extra = range(len(model.layers), len(model.layers) + settings.mtp_layers)
    return {spec: [*layers, *extra] if last in layers else layers for spec, layers in placed.items()}


def _check(model: Model, settings: VllmSettings) -> None:
    stored = resolve_format(model, settings).name
    if stored not in _FORMATS:
        raise EngineError(f"cache format {stored!r} is not one of {', '.join(sorted(_FORMATS))}", engine="vllm")
    tp, dcp = settings.tensor_parallel_size, settings.decode_context_parallel_size
    if model.num_attention_heads and model.num_attention_heads % tp:
        raise EngineError(f"{model.num_attention_heads} attention heads cannot be split over {tp} ranks", engine="vllm")
    for memory, _ in model.kept:
        if dcp > 1 and memory.kv_heads and memory.window is not None:
            raise EngineError("decode context parallel does not work with sliding or chunked attention", engine="vllm")
        if memory.attends and memory.kv_heads and dcp > max(1, tp // memory.kv_heads):
            raise EngineError(
                f"decode_context_parallel_size {dcp} is more than the {max(1, tp // memory.kv_heads)} copies "
                f"that {tp} ranks keep of {memory.kv_heads} KV heads",
                engine="vllm",
            )


def block_size(model: Model, settings: VllmSettings, kv: KVFormat) -> int:
    """Tokens a block before hybrid growth: what was asked for, else what the attention kernels prefer."""
    latents = model.latents
    if settings.is_cpu:
        return _cpu_block_size(model, settings)
    if settings.block_size is not None:
        return settings.block_size
    if any(latent.kind != "latent" for latent in latents):
        return 256
    if model.indexers:
        return 64 if latents else 128
    if latents:
        # FLASH_ATTN_MLA takes 16-bit caches in blocks of 16, FLASHMLA 8-bit ones in blocks of 64 (SM90).
        return 64 if kv.k.bits == 8 else DEFAULT_BLOCK
    widest = max((memory.head_dim for memory in model.attentions), default=0)
    # Heads of 512 in fp8 run on a FlashAttention 4 kernel that takes blocks of 64 (SM90, flash_attn.py).
    return 64 if widest > 256 and kv.k.bits == 8 and settings.compute_capability == 9.0 else DEFAULT_BLOCK


def _cpu_block_size(model: Model, settings: VllmSettings) -> int:
    """vLLM on CPU (0.32, platforms/cpu.py): 128; MLA only 16; beside windows the next multiple of 32."""
    if model.latents:
        return DEFAULT_BLOCK
    asked = settings.block_size
    if asked is None:
        return CPU_BLOCK
    if asked % _CPU_KERNEL == 0:
        return asked
    if model.has_windows:
        return _cdiv(asked, _CPU_KERNEL) * _CPU_KERNEL
    raise EngineError(
        f"no common block size for {asked} on CPU, whose attention takes multiples of {_CPU_KERNEL}", engine="vllm"
    )


def _spec(memory: Memory, kv: KVFormat, block: int, settings: VllmSettings) -> Spec:
    match memory:
        case Attention() | CrossAttention():
            heads = max(1, memory.kv_heads // settings.tensor_parallel_size)
            page = block * kv.kv_bytes(heads, memory.key_width, memory.value_width)
            kind: SpecKind = memory.law if isinstance(memory, Attention) else "cross"
            return Spec(kind=kind, block_size=block, page_bytes=page, unpadded_bytes=page, reach=memory.window,
                        heads=heads, widths=(memory.key_width, memory.value_width))  # fmt: skip
        case Latent():
            page = block * memory.entry_bytes(kv)
            return Spec(kind="latent", block_size=block, page_bytes=page, unpadded_bytes=page, widths=(memory.width, 0))
        case Indexer():
            page = block * memory.entry_bytes()
            return Spec(kind="indexer", block_size=block, page_bytes=page, unpadded_bytes=page,
                        widths=(memory.index_head_dim, 0))  # fmt: skip
        case State():
            size = state_bytes(memory, settings)
            return Spec(kind="state", block_size=block, page_bytes=size, unpadded_bytes=size,
                        checkpoint_pages=_checkpoint_pages(memory, settings))  # fmt: skip
        case _:
            raise EngineError(f"a {memory.kind} memory is not laid out", engine="vllm")


def _checkpoint_pages(state: State, settings: VllmSettings) -> int:
    """Prefill checkpoints that prefix caching keeps: Mamba 2 always, a gated delta net with FlashInfer (SM90)."""
    if state.design == StateDesign.MAMBA_2:
        return 1
    return int(_flashinfer_delta_net(state, settings))


def _flashinfer_delta_net(state: State, settings: VllmSettings) -> bool:
    return state.design == StateDesign.GATED_DELTA_NET and not settings.is_cpu and settings.compute_capability == 9.0


def state_bytes(state: State, settings: VllmSettings) -> int:
    """One rank's part of a state; EngineError where it cannot be split. Short of a group each, ranks get copies."""
    tp = settings.tensor_parallel_size
    return sum(_part_bytes(part, state, tp, settings) for part in state.parts)


def _part_bytes(part: StatePart, state: State, tp: int, settings: VllmSettings) -> int:
    shape = list(part.shape)
    element = part.element_bytes
    if part.name == StateTensor.CONVOLUTION:
        # Tokens that are only proposed have columns of their own until they are accepted.
        shape[1] += settings.num_speculative_tokens
    if part.name == StateTensor.CONVOLUTION and state.design == StateDesign.MAMBA_2:
        shape[0] = state.channels(tp)
    if part.name == StateTensor.STATE and settings.is_cpu and settings.cpu_avx512_bf16 and state.design in _CPU_FP32:
        element = 4
    if shape[0] % tp:
        raise EngineError(f"a {state.design} state of {shape[0]} cannot be split over {tp} ranks", engine="vllm")
    return replace(part, shape=(shape[0] // tp, *shape[1:]), element_bytes=element).bytes


def _align_hybrid(model: Model, specs: dict[Memory, Spec], state: int, settings: VllmSettings) -> dict[Memory, Spec]:
    """Grow attention blocks until one page holds a state, then pad every state's page to it."""
    attention = [spec for spec in specs.values() if spec.kind in ("full", "latent")]
    first = attention[0]
    token = first.unpadded_bytes // first.block_size
    step = first.block_size
    if first.kind == "latent":
        step = max(step, _MLA_HYBRID_ALIGNMENT)
    if settings.enable_prefix_caching and any(
        isinstance(memory, State) and _flashinfer_delta_net(memory, settings) for memory in specs
    ):
        step = lcm(step, _GDN_ALIGNMENT)
    block = max(first.block_size, step * _cdiv(state, step * token))
    grown: dict[Memory, Spec] = {}
    for memory, spec in specs.items():
        if spec.kind == "state":
            grown[memory] = replace(spec, block_size=block, page_bytes=block * token)
        else:
            page = spec.unpadded_bytes // spec.block_size * block
            grown[memory] = replace(spec, block_size=block, page_bytes=page, unpadded_bytes=page)
    return grown


def _cdiv(a: int, b: int) -> int:
    return -(-a // b)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockGroup:
    """Layers that share one table of blocks: their distinct specs, each with the layers that have it."""

    parts: tuple[Placed, ...]

    @property
    def layers(self) -> int:
        """How many caches the group has."""
        return sum(len(layers) for _, layers in self.parts)

    def pages(self, settings: VllmSettings) -> int:
        """Blocks that one request claims from the pool for this group."""
        return max(spec.pages(settings) for spec, _ in self.parts)

    def bytes_on(self, stage: range) -> int:
        """Page bytes of the group's layers on a pipeline stage."""
        return sum(spec.page_bytes * sum(map(stage.__contains__, layers)) for spec, layers in self.parts)


def block_groups(placed: tuple[Placed, ...], settings: VllmSettings) -> tuple[BlockGroup, ...]:
    """The groups of all layers of a model; EngineError where vLLM cannot bring their pages to one size."""
    if not placed:
        return ()
    if settings.windows_are_whole:
        placed = _promote(placed)
    if len({(spec.family, spec.block_size) for spec, _ in placed}) == 1:
        return (BlockGroup(parts=placed),)
    return _uniform_pages(_unify(placed))


def _promote(placed: tuple[Placed, ...]) -> tuple[Placed, ...]:
    """Without the hybrid manager, windows beside full attention are given blocks for every token."""
    if not any(spec.kind in ("full", "latent") for spec, _ in placed):
        return placed
    return tuple(
        (replace(spec, kind="full", reach=None) if spec.kind in ("sliding", "chunked") else spec, layers)
        for spec, layers in placed
    )


def _unify(placed: tuple[Placed, ...]) -> list[Placed]:
    """One page size for all: smaller pages get larger blocks where that divides, else they are padded."""
    largest = max(spec.page_bytes for spec, _ in placed)
    return [(_unified(spec, largest), layers) for spec, layers in placed]


def _unified(spec: Spec, largest: int) -> Spec:
    if spec.page_bytes == largest:
        return spec
    if spec.kind == "state":
        return replace(spec, page_bytes=largest)
    if largest % spec.page_bytes == 0:
        ratio = largest // spec.page_bytes
        return replace(spec, block_size=spec.block_size * ratio, page_bytes=largest, unpadded_bytes=largest)
    if spec.kind in ("latent", "indexer"):
        raise EngineError(
            f"a latent page of {spec.page_bytes:,} bytes can be neither grown nor padded to {largest:,}", engine="vllm"
        )
    return replace(spec, page_bytes=largest)


def _uniform_pages(placed: list[Placed]) -> tuple[BlockGroup, ...]:
    """Buckets of equal specs, split so that groups have (nearly) equal numbers of layers.

    Layers are dealt out in turn, so that pipeline stages get equal shares of each group.
    """
    buckets: dict[Spec, list[int]] = {}
    for spec, layers in placed:
        buckets.setdefault(spec, []).extend(layers)
    counts = [len(layers) for layers in buckets.values()]
    size = max(counts) if max(counts) < 1.5 * min(counts) else min(counts)
    groups = []
    for spec, unsorted in buckets.items():
        in_order, number = sorted(unsorted), -(-len(unsorted) // size)
        groups += [BlockGroup(parts=((spec, tuple(in_order[first::number])),)) for first in range(number)]
    return tuple(groups)
