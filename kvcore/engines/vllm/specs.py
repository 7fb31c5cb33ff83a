"""A layer's page in vLLM: what one block of one layer holds, and how many of them a request needs.

Sources: vLLM 0.33, v1/kv_cache_interface.py (pages, requests), platforms/interface.py (block sizes),
model_executor/layers/mamba/mamba_utils.py (states under tensor parallelism).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import lcm, prod
from typing import Literal, TypeAlias

from kvcore.engines.vllm.settings import VllmSettings
from kvcore.errors import EngineError
from kvcore.formats import KVFormat, kv_format
from kvcore.model.memories import Attention, CrossAttention, Indexer, Latent, Memory, State, StatePart
from kvcore.model.model import Model

SpecKind = Literal["full", "sliding", "chunked", "latent", "indexer", "state", "cross"]
DEFAULT_BLOCK = 16
CPU_BLOCK = 128
_CPU_KERNEL = 32
# States that follow mamba_ssm_cache_dtype, which a CPU with AVX-512 BF16 sets to fp32 (platforms/cpu.py, 0.32).
_CPU_FP32 = ("Gated delta net", "Mamba 2")
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
        length, flight = settings.max_model_len, settings.in_flight_tokens
        if self.kind == "sliding" and self.reach is not None:
            return _cdiv(min(self.reach - 1 + flight, length), self.block_size) + 1
        if self.kind == "chunked" and self.reach is not None:
            return _cdiv(min(self.reach + flight, length), self.block_size)
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
    memories = [memory for memory, _ in model.kept]
    if any(isinstance(memory, Latent) and memory.kind != "latent" for memory in memories):
        return kv_format("fp8_ds_mla")
    wanted = model.resolve_format(settings.kv_cache_dtype)
    has_indexer = any(isinstance(memory, Indexer) for memory in memories)
    has_latent = any(isinstance(memory, Latent) for memory in memories)
    if has_indexer and has_latent and wanted.name == "fp8":
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
    if not kv.name.startswith("turboquant") or any(isinstance(memory, State) for memory, _ in model.kept):
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
        raise EngineError(f"vllm: cache format {stored!r} is not one of {', '.join(sorted(_FORMATS))}")
    tp, dcp = settings.tensor_parallel_size, settings.decode_context_parallel_size
    if model.num_attention_heads and model.num_attention_heads % tp:
        raise EngineError(f"vllm: {model.num_attention_heads} attention heads cannot be split over {tp} ranks")
    for memory, _ in model.kept:
        if dcp > 1 and isinstance(memory, Attention) and memory.limit is not None:
            raise EngineError("vllm: decode context parallel does not work with sliding or chunked attention")
        if isinstance(memory, Attention) and dcp > max(1, tp // memory.num_kv_heads):
            raise EngineError(
                f"vllm: decode_context_parallel_size {dcp} is more than the {max(1, tp // memory.num_kv_heads)} copies "
                f"that {tp} ranks keep of {memory.num_kv_heads} KV heads"
            )


def block_size(model: Model, settings: VllmSettings, kv: KVFormat) -> int:
    """Tokens a block before hybrid growth: what was asked for, else what the attention kernels prefer."""
    memories = [memory for memory, _ in model.kept]
    latents = [memory for memory in memories if isinstance(memory, Latent)]
    if settings.is_cpu:
        return _cpu_block_size(memories, bool(latents), settings)
    if settings.block_size is not None:
        return settings.block_size
    if any(latent.kind != "latent" for latent in latents):
        return 256
    indexers = [memory for memory in memories if isinstance(memory, Indexer)]
    if indexers:
        return 64 if latents else 128
    if latents:
        # FLASH_ATTN_MLA takes 16-bit caches in blocks of 16, FLASHMLA 8-bit ones in blocks of 64 (SM90).
        return 64 if kv.k.bits == 8 else DEFAULT_BLOCK
    widest = max((memory.head_dim for memory in memories if isinstance(memory, Attention)), default=0)
    # Heads of 512 in fp8 run on a FlashAttention 4 kernel that takes blocks of 64 (SM90, flash_attn.py).
    return 64 if widest > 256 and kv.k.bits == 8 and settings.compute_capability == 9.0 else DEFAULT_BLOCK


def _cpu_block_size(memories: list[Memory], latent: bool, settings: VllmSettings) -> int:
    """vLLM on CPU (0.32, platforms/cpu.py): 128; MLA only 16; beside windows the next multiple of 32."""
    if latent:
        return DEFAULT_BLOCK
    asked = settings.block_size
    if asked is None:
        return CPU_BLOCK
    if asked % _CPU_KERNEL == 0:
        return asked
    if any(isinstance(memory, Attention) and memory.limit is not None for memory in memories):
        return _cdiv(asked, _CPU_KERNEL) * _CPU_KERNEL
    raise EngineError(
        f"vllm: no common block size for {asked} on CPU, whose attention takes multiples of {_CPU_KERNEL}"
    )


def _spec(memory: Memory, kv: KVFormat, block: int, settings: VllmSettings) -> Spec:
    tp = settings.tensor_parallel_size
    if isinstance(memory, Attention):
        heads = max(1, memory.num_kv_heads // tp)
        page = block * kv.kv_bytes(heads, memory.head_dim, memory.v_head_dim)
        return Spec(kind=memory.law, block_size=block, page_bytes=page, unpadded_bytes=page, reach=memory.limit,
                    heads=heads, widths=(memory.head_dim, memory.v_head_dim))  # fmt: skip
    if isinstance(memory, CrossAttention):
        heads = max(1, memory.num_kv_heads // tp)
        page = block * kv.kv_bytes(heads, memory.head_dim, memory.head_dim)
        return Spec(kind="cross", block_size=block, page_bytes=page, unpadded_bytes=page, heads=heads,
                    widths=(memory.head_dim, memory.head_dim))  # fmt: skip
    if isinstance(memory, Latent):
        page = block * memory.entry_bytes(kv)
        return Spec(kind="latent", block_size=block, page_bytes=page, unpadded_bytes=page, widths=(memory.width, 0))
    if isinstance(memory, Indexer):
        page = block * memory.entry_bytes()
        return Spec(kind="indexer", block_size=block, page_bytes=page, unpadded_bytes=page,
                    widths=(memory.index_head_dim, 0))  # fmt: skip
    if isinstance(memory, State):
        size = state_bytes(memory, settings)
        checkpoints = _checkpoint_pages(memory, settings)
        return Spec(kind="state", block_size=block, page_bytes=size, unpadded_bytes=size, checkpoint_pages=checkpoints)
    raise EngineError(f"vllm: a {memory.kind} memory is not laid out")


def _checkpoint_pages(state: State, settings: VllmSettings) -> int:
    """Prefill checkpoints that prefix caching keeps: Mamba 2 always, a gated delta net with FlashInfer (SM90)."""
    if state.design == "Mamba 2":
        return 1
    return int(_flashinfer_delta_net(state, settings))


def _flashinfer_delta_net(state: State, settings: VllmSettings) -> bool:
    return state.design == "Gated delta net" and not settings.is_cpu and settings.compute_capability == 9.0


def state_bytes(state: State, settings: VllmSettings) -> int:
    """One rank's part of a state; EngineError where it cannot be split. Short of a group each, ranks get copies."""
    tp = settings.tensor_parallel_size
    return sum(_part_bytes(part, state, tp, settings) for part in state.parts)


def _part_bytes(part: StatePart, state: State, tp: int, settings: VllmSettings) -> int:
    shape = list(part.shape)
    element = part.element_bytes
    if part.name == "convolution":
        # Tokens that are only proposed have columns of their own until they are accepted.
        shape[1] += settings.num_speculative_tokens
    if part.name == "convolution" and state.design == "Mamba 2":
        shape[0] = _mamba2_channels(state, shape[0], tp)
    if part.name == "state" and settings.is_cpu and settings.cpu_avx512_bf16 and state.design in _CPU_FP32:
        element = 4
    if shape[0] % tp:
        raise EngineError(f"vllm: a {state.design} state of {shape[0]} cannot be split over {tp} ranks")
    return replace(part, shape=(shape[0] // tp, *shape[1:]), element_bytes=element).bytes


def _mamba2_channels(state: State, channels: int, tp: int) -> int:
    """Convolution channels, the groups of B and C extended to one a rank where they do not divide."""
    # A GGUF file states heads × head_dim as one number.
    *heads, size = next(part.shape for part in state.parts if part.name == "state")
    inner = prod(heads)
    groups = (channels - inner) // (2 * size)
    return channels if groups % tp == 0 else inner + 2 * tp * size


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
