"""Encoder-only models, which keep nothing, and models whose decoder also looks across at an encoder or an image."""

from __future__ import annotations

from kvcore.errors import CONFIG, ConfigError, UnknownLayoutError
from kvcore.model.keys import Keys
from kvcore.model.memories import Attention, CrossAttention, Memory, NoMemory
from kvcore.model.readers.attention import attention_memory, finish, read_geometry
from kvcore.model.readers.shape import HEAD_NAMES, Family, Shape, check_kv_heads, read_layers
from kvcore.model.weights import Tally, attention_parameters

# Keys that size the encoder's own windows and caches nothing.
_ENCODER_KEYS = (
    "attention_window", "local_attention", "global_attn_every_n_layers", "local_attention_radius", "position_buckets",
    "share_att_key", "sliding_window", "layer_types", "block_size", "num_random_blocks", "attention_type",
    "conv_kernel_size", "head_dim", "n_groups", "block_sizes",
)  # fmt: skip


def read_encoder(keys: Keys, family: Family) -> Shape:
    """An encoder-only model: every token is seen at once and nothing is remembered for a next one."""
    if keys.flag("is_decoder"):
        raise UnknownLayoutError(
            "is_decoder is true: this family is read as an encoder only", file=CONFIG, keys=("is_decoder",)
        )
    blocks = keys.items("block_sizes")
    if blocks and not keys.stated("num_hidden_layers", "n_layers"):
        layers = sum(keys.check(size, ("block_sizes",), 1, 2048) for size in blocks)
    else:
        layers = read_layers(keys, "num_hidden_layers", "n_layers", "num_layers", "encoder_layers", "n_layer")
    hidden = keys.integer("hidden_size", "dim", "d_model")
    heads = keys.integer(*HEAD_NAMES, "encoder_attention_heads", high=2**14)
    keys.know(*_ENCODER_KEYS)
    keys.notes.append("Encoder only: it reads its whole input at once, so it keeps no cache.")
    window = keys.raw.get("attention_window")
    if window:
        keys.notes.append("Its attention slides over the input; a decoder of the same design would keep that window.")
    return Shape(
        layers=((NoMemory(reason="encoder layer"),),) * layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        head_dim=max(1, hidden // heads),
        vocab_size=keys.optional("vocab_size"),
    )


def read_t5(keys: Keys, family: Family) -> Shape:
    """T5 and its kin: decoder layers with keys and values of their own and of the encoder's output."""
    hidden, heads = keys.integer("d_model"), keys.integer("num_heads", high=2**14)
    width = keys.integer("d_kv", high=2**16)
    encoder_layers = keys.integer("num_layers", high=2048)
    layers = keys.integer("num_decoder_layers", default=encoder_layers, high=2048)
    source = keys.integer("n_positions", default=512)
    keys.notes.append(f"T5 has no fixed input length; {source:,} encoder tokens are assumed unless said otherwise.")
    stack = _decoder(layers, heads, width, source)
    tally = Tally()
    vocabulary = keys.optional("vocab_size")
    if vocabulary:
        tally.add("embedding", vocabulary * hidden, hidden)
        tied = keys.flag("tie_word_embeddings", True)
        tally.add("output head", 0 if tied else vocabulary * hidden)
    matrices = 3 if str(keys.get("feed_forward_proj") or "relu").startswith("gated") else 2
    feed_forward = matrices * hidden * keys.integer("d_ff")
    one = attention_parameters(hidden, heads, heads, width, width)
    _count_pair(tally, encoder_layers, layers, one, feed_forward)
    keys.know("relative_attention_num_buckets", "relative_attention_max_distance", "local_radius", "global_block_size")
    sparse = keys.stated("num_experts") and keys.get("num_experts") not in (None, 0, 1)
    return _shape(stack, hidden, heads, width, vocabulary, None if sparse else tally)


def read_bart(keys: Keys, family: Family) -> Shape:
    """BART, Whisper and their kin: decoder layers that also keep the encoder's keys and values."""
    hidden = keys.integer("d_model", "hidden_size")
    layers = keys.integer("decoder_layers", "num_decoder_layers", "num_hidden_layers", high=2048)
    heads = keys.integer("decoder_attention_heads", "num_decoder_attention_heads", high=2**14)
    if hidden % heads:
        raise ConfigError(f"d_model {hidden} is not divisible by {heads} decoder heads", file=CONFIG)
    source = keys.integer(
        "max_source_positions", "max_encoder_position_embeddings", "max_position_embeddings", default=1024
    )
    keys.know("attention_window", "num_hidden_layers", "num_conv_layers", "conv_kernel_sizes")
    stack = _decoder(layers, heads, hidden // heads, source)
    tally = Tally()
    vocabulary = keys.optional("vocab_size")
    if vocabulary:
        tally.add("embedding", vocabulary * hidden, hidden)
    encoder_layers = keys.integer("encoder_layers", default=layers, high=2048, low=0)
    one = attention_parameters(hidden, heads, heads, hidden // heads, hidden // heads)
    _count_pair(tally, encoder_layers, layers, one, 2 * hidden * keys.integer("decoder_ffn_dim", default=4 * hidden))
    return _shape(stack, hidden, heads, hidden // heads, vocabulary, tally if vocabulary else None)


def _decoder(layers: int, heads: int, width: int, source: int) -> tuple[tuple[Memory, ...], ...]:
    own = Attention(num_kv_heads=heads, head_dim=width, v_head_dim=width)
    across = CrossAttention(num_kv_heads=heads, head_dim=width, source_tokens=source)
    return ((own, across),) * layers


def _count_pair(tally: Tally, encoder: int, decoder: int, attention: int, feed_forward: int) -> None:
    tally.add("encoder", encoder * (attention + feed_forward))
    tally.add("attention", decoder * attention)
    tally.add("cross-attention", decoder * attention)
    tally.add("feed-forward", decoder * feed_forward)


def _shape(
    stack: tuple[tuple[Memory, ...], ...],
    hidden: int,
    heads: int,
    width: int,
    vocabulary: int | None,
    tally: Tally | None,
) -> Shape:
    return Shape(
        layers=stack,
        hidden_size=hidden,
        num_attention_heads=heads,
        head_dim=width,
        vocab_size=vocabulary,
        tally=tally,
    )


# Llama 3.2 Vision: four tiles of (560 / 14)² patches and one class token each (transformers, mllama).
_MLLAMA_VISION_TOKENS = 4 * ((560 // 14) ** 2 + 1)


def read_mllama(keys: Keys, family: Family) -> Shape:
    """Llama 3.2 Vision: the listed layers attend to image tokens only and keep nothing of the text."""
    geometry = read_geometry(keys, family)
    listed = keys.items("cross_attention_layers") or []
    crossing = {keys.check(layer, ("cross_attention_layers",), 0, geometry.layers - 1) for layer in listed}
    source = family.options.get("source_tokens")
    across = CrossAttention(
        num_kv_heads=check_kv_heads(geometry.heads, geometry.kv_heads),
        head_dim=geometry.head_dim,
        source_tokens=source if isinstance(source, int) else _MLLAMA_VISION_TOKENS,
    )
    keys.notes.append(f"Cross-attention keeps {across.source_tokens:,} image tokens: one image of the largest size.")
    full = attention_memory(keys, geometry, "full")
    stack: list[tuple[Memory, ...]] = [(across,) if layer in crossing else (full,) for layer in range(geometry.layers)]
    return finish(keys, family, geometry, stack)
