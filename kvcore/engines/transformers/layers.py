"""What each layer of a transformers cache holds, in bytes of one request, after a number of tokens.

Source: transformers 5.24, cache_utils.py, and the model classes, which were run without weights (the tests do so).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from kvcore.engines.transformers.settings import TransformersSettings
from kvcore.errors import EngineError
from kvcore.model.memories import Attention, CrossAttention, Indexer, Latent, Memory, State, StateTensor
from kvcore.model.model import Model

# Where the model class keeps something else than its memories say; by model_type.
NO_CACHE = frozenset({"openai-gpt"})
# GPT-Neo masks its local layers, but its cache drops nothing.
WINDOWS_KEEP_ALL = frozenset({"gpt_neo"})
# Falcon repeats its KV heads to every query head before it keeps them.
KV_HEADS_REPEATED = frozenset({"falcon"})
CONVOLUTION_WITHOUT_CURRENT = frozenset({"recurrent_gemma"})
# The reference code computes these recurrences in fp32 and keeps the result so.
STATES_IN_FP32 = frozenset({
    "bamba", "falcon_h1", "falcon_mamba", "granitemoehybrid", "jamba", "mamba", "mamba2", "olmo_hybrid",
    "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next", "zamba", "zamba2",
})  # fmt: skip
# Architectures whose code comes with the model's repository.
OWN_CODE = frozenset({
    "aquila", "arctic", "aria_moe_lm", "baichuan", "bailing_moe", "bailing_moe_v2", "chatglm", "deci", "deepseek",
    "ernie4_5_moe_vl", "grok-1", "hf_olmo", "hunyuan", "internlm", "internlm2", "jais", "kimi_k2", "mimo", "minicpm",
    "minicpmo", "minicpmv", "mamba_ssm", "minimax_m1", "minimax_m3", "minimax_text_01", "molmo", "nemotron-nas",
    "openelm", "orion", "pangu_ultra_moe", "phi-msft", "phi3_v", "phi3small", "phi4mm", "plamo", "qwen", "refinedweb",
    "refinedwebmodel", "rwkv5", "rwkv6", "rwkv6qwen2", "rwkv7", "skywork", "solar", "stablelm_epoch", "step3_text",
    "step3p7_text", "telechat", "telechat2", "xverse", "yuan",
})  # fmt: skip
_COUNTER = 8
_FP8_SCALES = 2 * 4


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldLayer:
    """One kind of layer: bytes a token for at most `most` tokens, bytes whatever the length, and counters beside them.

    `numbers` are the numbers a token of each of the layer's tensors, for a quantized cache. A compressor makes an entry
    of `tokens_per_entry` tokens; `waiting_bytes` a token wait until they are so many, and `overlap_bytes` stay after.
    """

    kind: str
    token_bytes: int = 0
    most: int | None = None
    constant_bytes: int = 0
    counter_bytes: int = 0
    numbers: tuple[int, ...] = ()
    tokens_per_entry: int = 1
    waiting_bytes: int = 0
    overlap_bytes: int = 0

    def kept(self, tokens: int) -> int:
        """Entries that the layer still holds after `tokens`."""
        entries = tokens // self.tokens_per_entry
        return entries if self.most is None else min(entries, self.most)

    def buffered(self, tokens: int) -> int:
        """Bytes of tokens that are not compressed yet, and of the overlap with the last entry."""
        overlap = self.overlap_bytes if tokens >= self.tokens_per_entry else 0
        return self.waiting_bytes * (tokens % self.tokens_per_entry) + overlap


def held_layers(model: Model, settings: TransformersSettings) -> tuple[tuple[HeldLayer, int], ...]:
    """The kinds of layers with their counts; EngineError for what transformers does not do."""
    if model.model_type in NO_CACHE:
        raise EngineError(
            f"{model.name} keeps no cache; it computes everything anew for every token", engine="transformers"
        )
    if not model.kept:
        raise EngineError(f"{model.name} keeps no cache", engine="transformers")
    if settings.cache_implementation == "quantized":
        _check_quantizable(model)
    element = settings.element_bytes(model)
    if any(latent.kind != "latent" for latent in model.latents):
        return _compressed_layers(model, settings, element)
    held = partial(_held, model, settings, element)
    return tuple((held(memory), count) for memory, count in model.kept)


def _check_quantizable(model: Model) -> None:
    for memory, _ in model.groups:
        full = memory.attends and memory.kv_heads and memory.window is None
        if not full and memory.kind != "latent":
            raise EngineError(
                f"QuantizedCache takes models with full attention only, and this one has {memory.kind} layers",
                engine="transformers",
            )


def _held(model: Model, settings: TransformersSettings, element: int, memory: Memory) -> HeldLayer:
    static = settings.cache_implementation == "static"
    counter = _COUNTER if static else 0
    match memory:
        case Attention():
            return _attention(model, settings, element, memory)
        case CrossAttention():
            row = 2 * memory.num_kv_heads * memory.head_dim * element
            return HeldLayer(kind="cross", constant_bytes=row * memory.source_tokens)
        case Latent():
            numbers = (memory.kv_lora_rank, memory.qk_rope_head_dim)
            quantized = settings.cache_implementation == "quantized" and settings.cache_backend == "fp8"
            return HeldLayer(
                kind="latent",
                token_bytes=memory.width * element,
                counter_bytes=counter + (_FP8_SCALES if quantized else 0),
                numbers=tuple(number for number in numbers if number),
            )
        case Indexer():
            # Indexer keys are kept in the model's dtype, not in the engines' 8 bits.
            return HeldLayer(kind="indexer", token_bytes=memory.index_head_dim * element, counter_bytes=counter)
        case State():
            return HeldLayer(kind="state", constant_bytes=_state_bytes(model, memory, element))
        case _:
            raise EngineError(f"a {memory.kind} memory is not followed here", engine="transformers")


def _compressed_layers(model: Model, settings: TransformersSettings, element: int) -> tuple[tuple[HeldLayer, int], ...]:
    """DeepSeek-V4: a window in every layer; in some also compressed entries, an indexer, and what waits for them."""
    if settings.cache_implementation != "dynamic":
        raise EngineError(
            "compressed latents (DeepSeek-V4) are followed in a dynamic cache only", engine="transformers"
        )
    counts: dict[HeldLayer, int] = {}
    for layer in model.layers:
        ratios = [memory.tokens_per_entry for memory in layer if memory.attends]
        for memory in layer:
            held = _compressed(memory, max(ratios), len(layer) == 1, element)
            counts[held] = counts.get(held, 0) + 1
    return tuple(counts.items())


def _compressed(memory: Memory, ratio: int, alone: bool, element: int) -> HeldLayer:
    match memory:
        case Latent() if memory.window is not None:
            # The caches of compressed layers know that key and value are one tensor; a plain window's does not.
            row = memory.width * element * (2 if alone else 1)
            return HeldLayer(kind="sliding", token_bytes=row, most=memory.window - 1, counter_bytes=_COUNTER)
        case Latent():
            row = memory.width * element
            return HeldLayer(kind="compressed", token_bytes=row, tokens_per_entry=memory.tokens_per_entry)
        case Indexer():
            row = memory.index_head_dim * element
            return HeldLayer(kind="indexer", token_bytes=row, tokens_per_entry=memory.tokens_per_entry)
        case State():
            rows, _, width = memory.parts[0].shape
            # A value and a gate a row; where windows overlap, half of the last one stays, its gates in fp32.
            overlap = ratio * width // 2 * (element + 4) if rows > ratio else 0
            return HeldLayer(
                kind="state", tokens_per_entry=ratio, waiting_bytes=2 * width * element, overlap_bytes=overlap
            )
        case _:
            raise EngineError(
                f"a {memory.kind} memory beside compressed latents is not followed here", engine="transformers"
            )


def _attention(model: Model, settings: TransformersSettings, element: int, memory: Attention) -> HeldLayer:
    heads = memory.num_kv_heads
    if model.model_type in KV_HEADS_REPEATED and heads > 1:
        heads = model.num_attention_heads
    numbers = (heads * memory.head_dim, heads * memory.v_head_dim)
    most, counter = _most(model, settings, memory)
    if settings.cache_implementation == "quantized" and settings.cache_backend == "fp8":
        counter += _FP8_SCALES
    kind = memory.law if most is not None else "full"
    return HeldLayer(kind=kind, token_bytes=sum(numbers) * element, most=most, counter_bytes=counter, numbers=numbers)


def _most(model: Model, settings: TransformersSettings, memory: Attention) -> tuple[int | None, int]:
    """(tokens that a window's layer holds at most, bytes of its counter)."""
    static = settings.cache_implementation == "static"
    window = memory.limit
    if window is None or model.model_type in WINDOWS_KEEP_ALL:
        return None, _COUNTER if static else 0
    if model.window_of_past:
        window += 1
    # Between steps a growing window holds W − 1 tokens: with the one that is computed next they are W.
    return window if static else window - 1, _COUNTER


def _state_bytes(model: Model, state: State, element: int) -> int:
    total = 0
    for part in state.parts:
        shape, size = part.shape, part.element_bytes
        if part.name == StateTensor.CONVOLUTION:
            extra = 0 if model.model_type in CONVOLUTION_WITHOUT_CURRENT else 1
            shape, size = (*shape[:-1], shape[-1] + extra), element
        elif part.name == StateTensor.STATE and model.model_type in STATES_IN_FP32:
            size = 4
        numbers = size
        for side in shape:
            numbers *= side
        total += numbers
    return total


def request_bytes(
    layers: tuple[tuple[HeldLayer, int], ...], settings: TransformersSettings, model: Model, tokens: int
) -> int:
    """Bytes that one request of `tokens` tokens holds in all layers, counters left out.

    A quantized cache is counted at its largest: `residual_length` − 1 tokens not quantized yet.
    """
    return sum(count * layer_bytes(held, settings, model, tokens) for held, count in layers)


def layer_bytes(held: HeldLayer, settings: TransformersSettings, model: Model, tokens: int) -> int:
    """Bytes of one request of `tokens` tokens in one layer."""
    if settings.cache_implementation != "quantized":
        return held.constant_bytes + held.token_bytes * held.kept(tokens) + held.buffered(tokens)
    if settings.cache_backend == "fp8":
        return sum(held.numbers) * tokens
    # The first pass is quantized whole; later tokens wait until there are residual_length of them.
    waiting = min(settings.residual_length - 1, max(0, tokens - 1))
    return held.token_bytes * waiting + sum(
        quantized_bytes(number * (tokens - waiting), settings, model) for number in held.numbers
    )


def quantized_bytes(numbers: int, settings: TransformersSettings, model: Model) -> int:
    """Bytes of one quantized tensor: its bits packed in bytes, and a scale and a shift for every group.

    Sources: optimum-quanto 0.2.7 (grouped.py, packed.py, max_optimizer.py) and hqq 0.2.8 (quantize.py, bitpack.py).
    Raises EngineError where the numbers do not divide into groups, as both do.
    """
    group, bits = settings.q_group_size, settings.bits
    if numbers % group:
        raise EngineError(
            f"{numbers:,} numbers cannot be cut in groups of {group}; change q_group_size", engine="transformers"
        )
    groups = numbers // group
    scales = 2 * settings.element_bytes(model) * groups
    if settings.cache_backend == "quanto":
        # Rows of one group each are packed on top of each other.
        return -(-groups * bits // 8) * group + scales
    if bits == 3:
        # hqq packs ten numbers of 3 bits in 4 bytes.
        return -(-group // 10) * 4 * groups + scales
    return group * bits // 8 * groups + scales
