"""What a token takes in each pool on a rank, and how many blocks a budget makes.

Sources: TensorRT-LLM's public sources, tensorrt_llm/_torch/pyexecutor/resource_manager.py (pytorch backend: KV heads
of a rank, bytes a token, blocks, equal shares for the windows) and cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp
(tensorrt backend: blocks rounded up, shares by window × bytes); public documentation of 1.4.0rc4.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from kvcore.engines.tensorrt_llm.settings import TensorRtLlmSettings
from kvcore.errors import EngineError
from kvcore.formats import kv_format
from kvcore.model.memories import Attention, Indexer, Latent, Memory, NoMemory
from kvcore.model.model import Model

_BYTES = {"bf16": 2, "fp16": 2, "fp8": 1, "int8": 1}
# One fp8 scale for every 16 numbers of nvfp4.
_SCALE_BLOCK = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowPool:
    """Layers of one window on one pipeline stage, with the bytes of one token in all of them on one rank."""

    window: int
    layers: int
    token_bytes: int

    def blocks_needed(self, settings: TensorRtLlmSettings) -> int:
        """Blocks that one request claims: its window's, and one more where the window is shorter than the request."""
        length = settings.max_seq_len
        whole = -(-min(length, self.window) // settings.tokens_per_block)
        return whole + (1 if self.window < length else 0)


def check_model(model: Model) -> None:
    """EngineError for what TensorRT-LLM does not serve or what is not followed here."""
    kept = [memory for memory, _ in model.kept]
    if not kept:
        raise EngineError(f"{model.name} keeps no cache", engine="tensorrt-llm")
    for memory in kept:
        plain = memory.attends and memory.kv_heads and memory.key_width == memory.value_width and not model.latents
        if not (plain or memory.kind == "latent" or (memory.kind == "indexer" and model.latents)):
            raise EngineError(f"not followed here: {_refusal(memory)}", engine="tensorrt-llm")
    if any(memory.kind == "shared" for memory, _ in model.groups):
        raise EngineError("layers that share a cache are not followed here", engine="tensorrt-llm")
    widths = {memory.head_dim for memory in model.attentions}
    if len(widths) > 1:
        listed = " and ".join(str(width) for width in sorted(widths))
        raise EngineError(f"one cache has heads of one width, and this model has {listed}", engine="tensorrt-llm")


def _refusal(memory: Memory) -> str:
    if memory.attends and memory.kv_heads:
        return "keys and values of different widths"
    words = {"state": "the cache of recurrent states", "cross": "the cache of cross attention"}
    return words.get(memory.kind, f"this design of {memory.kind} caches")


def resolve_dtype(model: Model, settings: TensorRtLlmSettings) -> str:
    """The cache's dtype: the model's, fp8 or nvfp4 (int8 with the tensorrt backend); EngineError for others."""
    wanted = settings.dtype.strip().lower()
    declared = model.cache_format or model.model_dtype
    name = declared if wanted == "auto" else kv_format(wanted).name
    known = (model.model_dtype, "fp8", *(("int8",) if settings.backend == "tensorrt" else ("nvfp4",)))
    if name not in known:
        raise EngineError(f"cache dtype {name[:20]!r} is not auto, {', '.join(known)}", engine="tensorrt-llm")
    return name


def split_stages(layers: int, stages: int) -> tuple[range, ...]:
    """Layers of each pipeline stage: the first ones take the remainder, 80 over 3 is 27, 27, 26 (Mapping.pp_layers)."""
    if stages > layers:
        raise EngineError(f"pipeline parallel {stages} is more than the {layers} layers", engine="tensorrt-llm")
    base, more = divmod(layers, stages)
    starts = [stage * base + min(stage, more) for stage in range(stages + 1)]
    return tuple(range(starts[stage], starts[stage + 1]) for stage in range(stages))


def stage_pools(model: Model, settings: TensorRtLlmSettings) -> tuple[tuple[WindowPool, ...], ...]:
    """The pools of every stage on one rank, by window from short to long; EngineError for what is refused."""
    check_model(model)
    dtype = resolve_dtype(model, settings)
    stages = split_stages(len(model.layers), settings.pp_size)
    return tuple(_pools(model, settings, dtype, layers) for layers in stages)


def _pools(model: Model, settings: TensorRtLlmSettings, dtype: str, layers: range) -> tuple[WindowPool, ...]:
    windows = settings.windows
    members: dict[int, list[tuple[Memory, ...]]] = {}
    for local, index in enumerate(layers):
        members.setdefault(windows[local % len(windows)], []).append(model.layers[index])
    if len(members) > 1 and model.latents:
        raise EngineError("latent caches take one window size only", engine="tensorrt-llm")
    return tuple(
        WindowPool(window=window, layers=len(own), token_bytes=_token_bytes(own, settings, dtype))
        for window, own in sorted(members.items())
    )


def _token_bytes(layers: list[tuple[Memory, ...]], settings: TensorRtLlmSettings, dtype: str) -> int:
    numbers = index_bytes = 0
    for memory in (memory for layer in layers for memory in layer):
        match memory:
            case Attention():
                # Ranks round their share of the heads up, so none has less than one.
                heads = -(-memory.num_kv_heads // settings.attention_tp)
                numbers += 2 * heads * memory.head_dim
            case Latent():
                numbers += memory.width
            case Indexer():
                index_bytes += memory.entry_bytes()
            case NoMemory():
                pass
            case _:
                raise EngineError(f"a {memory.kind} memory has no pool", engine="tensorrt-llm")
    if dtype == "nvfp4":
        if numbers % _SCALE_BLOCK:
            raise EngineError(
                f"{numbers} numbers a token do not divide into nvfp4's groups of 16", engine="tensorrt-llm"
            )
        return numbers // 2 + numbers // _SCALE_BLOCK + index_bytes
    return numbers * _BYTES[dtype] + index_bytes


def shares(pools: tuple[WindowPool, ...], settings: TensorRtLlmSettings) -> tuple[Fraction, ...]:
    """Each window's part of the memory: equal parts (pytorch), or by window × bytes a token (tensorrt)."""
    if settings.backend == "pytorch":
        return (Fraction(1, len(pools)),) * len(pools)
    weights = [pool.window * pool.token_bytes for pool in pools]
    return tuple(Fraction(weight, sum(weights)) for weight in weights)


def blocks(pools: tuple[WindowPool, ...], settings: TensorRtLlmSettings, kv_bytes: int) -> tuple[int, ...]:
    """Blocks of each window's pool on one stage; `max_tokens` caps a pool, except beside other windows (pytorch)."""
    found = []
    capped = settings.max_tokens is not None and (len(pools) == 1 or settings.backend == "tensorrt")
    for pool, share in zip(pools, shares(pools, settings), strict=True):
        # A stage of layers that keep nothing limits nothing; its blocks are counted as if a token took one byte.
        tokens = int(kv_bytes * share / max(1, pool.token_bytes))
        if capped and settings.max_tokens is not None:
            tokens = min(tokens, settings.max_tokens)
        size = settings.tokens_per_block
        found.append(tokens // size if settings.backend == "pytorch" else -(-tokens // size))
    return tuple(found)
