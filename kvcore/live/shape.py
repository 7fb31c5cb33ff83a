"""The shape of a decoder that the live engine can run: read from a configuration, varied, cut, counted. No torch.

Counted are its parameters, the bytes of its weights in each format, and the bytes that its cache should take, from the
same memories as on the Size screen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from kvcore.errors import KVCoreError, LiveError
from kvcore.formats import KVFormat, kv_format
from kvcore.model import Attention, Latent, Memory, Model, model_from_config
from kvcore.model.keys import Keys
from kvcore.sources import catalogue
from kvcore.units import parse_tokens
from kvcore.variants import variants

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
VARIANTS = "shipped, mha, gqa:G, mqa, mla, mla:R+P, sliding:W, sliding:W/N"
WEIGHT_FORMATS = ("bf16", "fp16", "fp32", "int8", "int4")
ELEMENT_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
# Numbers that share one scale and zero in the packed 4-bit format.
INT4_GROUP = 32
# The engine's cache formats and what kvcore calls them: its int8 keeps one fp32 scale a token and KV head (for K and
# for V), or one a token for a latent.
CACHE_FORMATS = {"bf16": "bf16", "fp16": "fp16", "fp32": "fp32", "int8": "int8_per_token_head"}
# What each kind of rotary scaling must state, and what it may; their formulas are in attention.py.
_ROPE_KEYS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "default": ((), ()),
    "linear": (("factor",), ()),
    # Up to the stated limit a dynamic scaling changes nothing; beyond it the engine refuses.
    "dynamic": (("factor",), ("original_max_position_embeddings",)),
    "llama3": (("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"), ()),
    "yarn": (
        ("factor",),
        ("original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim",
         "truncate"),
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveShape:
    """What decides a decoder's tensors and arithmetic.

    `family` is the model_type. `windows` has one entry a layer: the tokens that it sees, None for all of them.
    `kv_lora_rank` > 0 is multi-head latent attention computed in the latent ("absorbed"); it exists with random
    weights only. `context_limit` is what the configuration states, `cut_from` the shipped number of layers where some
    were left out.
    """

    name: str
    family: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    windows: tuple[int | None, ...]
    rope_scaling: tuple[tuple[str, Any], ...] = ()
    qk_norm: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    tied: bool = False
    kv_lora_rank: int = 0
    qk_rope_head_dim: int = 0
    context_limit: int | None = None
    cut_from: int | None = None

    @property
    def is_latent(self) -> bool:
        """Whether the cache holds one latent a token in place of keys and values."""
        return self.kv_lora_rank > 0

    @property
    def cache_heads(self) -> int:
        """KV heads of the cache: 1 for a latent, which all query heads share."""
        return 1 if self.is_latent else self.num_kv_heads

    @property
    def cache_parts(self) -> int:
        """Vectors that the cache keeps for a token and KV head: a key and a value, or one latent."""
        return 1 if self.is_latent else 2

    @property
    def cache_width(self) -> int:
        """Numbers of one such vector."""
        return self.kv_lora_rank + self.qk_rope_head_dim if self.is_latent else self.head_dim

    @property
    def key_width(self) -> int:
        """Numbers of one query head, which also set the scale of its scores."""
        return self.head_dim + self.qk_rope_head_dim if self.is_latent else self.head_dim

    @property
    def rope_width(self) -> int:
        """Numbers of a query head that carry the position."""
        return self.qk_rope_head_dim if self.is_latent else self.head_dim

    @property
    def qkv_width(self) -> int:
        """Rows of the fused projection: queries, then keys and values, or queries and the latent."""
        queries = self.num_heads * self.key_width
        return queries + (self.cache_width if self.is_latent else 2 * self.num_kv_heads * self.head_dim)

    @property
    def attention(self) -> str:
        """The attention in a word: MHA, GQA, MQA or MLA, and a window where there is one."""
        if self.is_latent:
            word = "MLA"
        elif self.num_kv_heads == self.num_heads:
            word = "MHA"
        else:
            word = "MQA" if self.num_kv_heads == 1 else "GQA"
        seen = sorted({window for window in self.windows if window is not None})
        return f"{word}, window {'/'.join(f'{one:,}' for one in seen)}" if seen else word


def shape_from_config(raw: Mapping[str, Any], name: str = "") -> LiveShape:
    """The shape that a parsed config.json describes; LiveError names what the live engine does not support.

    What each layer keeps is read by the same code as on the Size screen.
    """
    try:
        return _read(raw, name)
    except LiveError:
        raise
    except KVCoreError as problem:
        raise LiveError(str(problem)) from None


def shape_of_catalogue(model_id: str) -> LiveShape:
    """The shape of a catalogued model; ModelError where there is none of that id, LiveError where it cannot run."""
    return shape_from_config(catalogue.raw_config(model_id), model_id)


def as_variant(shape: LiveShape, text: str) -> LiveShape:
    """The same shape with another attention, spelled as in kvcore.variants.variants, `shipped` for the shape itself.

    mha, gqa:G, mqa and mla see everything; sliding:W keeps the KV heads. LiveError where it cannot be built.
    """
    if text.strip().lower() in ("", "shipped"):
        return shape
    try:
        plain = variants.canonical(text)
        variants.variant(model_of(shape), plain)
    except KVCoreError as problem:
        raise LiveError(str(problem)) from None
    name, _, argument = plain.partition(":")
    build = _VARIANTS.get(name)
    if build is None:
        raise LiveError(f"variant {plain} cannot run live; those that can are {VARIANTS}")
    varied = build(shape, argument)
    _check(varied)
    return varied


def default_latent(shape: LiveShape) -> str:
    """The latent attention that a shape gets where no widths are named: in DeepSeek's proportion to the head."""
    return f"mla:{4 * shape.head_dim}+{max(2, shape.head_dim // 2)}"


def cut(shape: LiveShape, layers: int) -> LiveShape:
    """The first `layers` layers of the shape; LiveError where it does not have as many."""
    if not 1 <= layers <= shape.num_layers:
        raise LiveError(f"{shape.name}: cannot keep {layers:,} of {shape.num_layers:,} layers")
    if layers == shape.num_layers:
        return shape
    shipped = shape.cut_from or shape.num_layers
    return replace(shape, num_layers=layers, windows=shape.windows[:layers], cut_from=shipped)


def model_of(shape: LiveShape) -> Model:
    """The shape as a Model: the same memories as on the Size screen, so that both count alike."""
    raw = {
        "model_type": shape.family,
        "num_hidden_layers": shape.num_layers,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab_size,
        "tie_word_embeddings": shape.tied,
        "max_position_embeddings": shape.context_limit or 2**20,
        "sliding_window": None,
        "torch_dtype": "bfloat16",
    }
    model = replace(model_from_config(raw, shape.name), context_limit=shape.context_limit)
    if shape.is_latent:
        model = variants.variant(model, f"mla:{shape.kv_lora_rank}+{shape.qk_rope_head_dim}")
    layers = tuple((_windowed(layer[0], window),) for layer, window in zip(model.layers, shape.windows, strict=True))
    return replace(model, name=shape.name, layers=layers)


def _windowed(memory: Memory, window: int | None) -> Memory:
    if window is None:
        return memory
    if isinstance(memory, Latent):
        return replace(memory, window=window)
    return replace(memory, limit=window, law="sliding") if isinstance(memory, Attention) else memory


def _grouped(shape: LiveShape, kv_heads: int) -> LiveShape:
    return replace(shape, num_kv_heads=kv_heads, windows=(None,) * shape.num_layers, kv_lora_rank=0, qk_rope_head_dim=0)


def _latent(shape: LiveShape, argument: str) -> LiveShape:
    rank, _, rope = argument.partition("+")
    widths = (int(rank), int(rope)) if argument else variants.MLA_DEFAULT
    # Norms and biases of heads have no counterpart in a latent: the variant has none.
    return replace(
        shape, windows=(None,) * shape.num_layers, kv_lora_rank=widths[0], qk_rope_head_dim=widths[1],
        qk_norm=False, qkv_bias=False,
    )  # fmt: skip


def _sliding(shape: LiveShape, argument: str) -> LiveShape:
    first, _, second = argument.partition("/")
    window, every = parse_tokens(first, "variant sliding:W"), int(second or 0)
    windows = (None if every and (layer + 1) % every == 0 else window for layer in range(shape.num_layers))
    return replace(shape, windows=tuple(windows))


_VARIANTS: dict[str, Callable[[LiveShape, str], LiveShape]] = {
    "mha": lambda shape, _: _grouped(shape, shape.num_heads),
    "gqa": lambda shape, argument: _grouped(shape, int(argument)),
    "mqa": lambda shape, _: _grouped(shape, 1),
    "mla": _latent,
    "sliding": _sliding,
}


def _read(raw: Mapping[str, Any], name: str) -> LiveShape:
    model = model_from_config(raw, name)
    shown = name or model.model_type
    if model.model_type not in FAMILIES or raw.get("model_type") != model.model_type:
        stated = str(raw.get("model_type"))[:60]
        raise LiveError(f"{shown}: models of type {stated!r} cannot run live; those that can are {', '.join(FAMILIES)}")
    kept = [layer[0] for layer in model.layers if len(layer) == 1 and isinstance(layer[0], Attention)]
    attention = [one for one in kept if isinstance(one, Attention) and one.law != "chunked"]
    widths = {(one.num_kv_heads, one.head_dim, one.v_head_dim) for one in attention}
    if len(attention) != len(model.layers) or len(widths) != 1:
        raise LiveError(f"{shown}: its layers do not all keep the same keys and values, which the live engine needs")
    keys = Keys(raw)
    family, first = model.model_type, attention[0]
    bias = keys.flag("attention_bias") if family in ("llama", "qwen3") else False
    theta, scaling = _rope(keys, shown)
    shape = LiveShape(
        name=name,
        family=family,
        num_layers=len(attention),
        hidden_size=model.hidden_size,
        intermediate_size=keys.integer("intermediate_size"),
        num_heads=model.num_attention_heads,
        num_kv_heads=first.num_kv_heads,
        head_dim=first.head_dim,
        vocab_size=keys.integer("vocab_size", default=model.vocab_size),
        rms_norm_eps=_real(keys, "rms_norm_eps", 1e-6),
        rope_theta=theta,
        rope_scaling=scaling,
        windows=tuple(one.limit for one in attention),
        qk_norm=family == "qwen3",
        qkv_bias=bias or family == "qwen2",
        o_bias=bias,
        mlp_bias=keys.flag("mlp_bias") if family == "llama" else False,
        tied=keys.flag("tie_word_embeddings"),
        context_limit=keys.optional("max_position_embeddings", high=2**40),
    )
    act = keys.text("hidden_act") or "silu"
    if act not in ("silu", "swish"):
        raise LiveError(f"{shown}: hidden_act {act[:40]!r} cannot run live; only silu can")
    if first.v_head_dim != first.head_dim:
        raise LiveError(f"{shown}: keys and values of different widths cannot run live")
    _check(shape)
    return shape


def _check(shape: LiveShape) -> None:
    if shape.num_heads % shape.cache_heads:
        raise LiveError(f"{shape.name}: {shape.num_kv_heads} KV heads do not divide {shape.num_heads} query heads")
    if shape.rope_width % 2 or (shape.is_latent and not shape.rope_width):
        raise LiveError(f"{shape.name}: {shape.rope_width} numbers a head cannot carry the position, which takes pairs")


def _rope(keys: Keys, shown: str) -> tuple[float, tuple[tuple[str, Any], ...]]:
    """(theta, scaling) from either place where configurations state them; LiveError for what is not known."""
    nested = keys.child("rope_parameters") or keys.child("rope_scaling")
    theta = _real(keys, "rope_theta", 10_000.0)
    if nested is None:
        return theta, ()
    theta = _real(nested, "rope_theta", theta)
    kind = nested.text("rope_type", "type") or "default"
    if kind not in _ROPE_KEYS:
        raise LiveError(f"{shown}: rope scaling {kind[:40]!r} cannot run live; those that can: {', '.join(_ROPE_KEYS)}")
    if _real(nested, "partial_rotary_factor", _real(keys, "partial_rotary_factor", 1.0)) != 1.0:
        raise LiveError(f"{shown}: a rotary part of each head cannot run live")
    if kind == "default":
        return theta, ()
    needed, allowed = _ROPE_KEYS[kind]
    scaling: list[tuple[str, Any]] = [("rope_type", kind)]
    for key in (*needed, *allowed):
        value = nested.get(key)
        if value is None and key in needed:
            raise LiveError(f"{shown}: rope scaling {kind} does not state {key}")
        if value is not None:
            scaling.append((key, _flag(value) if key == "truncate" else _number(value, key)))
    return theta, tuple(scaling)


def _flag(value: Any) -> bool:
    """A true/false value of a scaling, LiveError where it is something else."""
    if isinstance(value, bool):
        return value
    raise LiveError(f"rope scaling: truncate is {str(value)[:40]}; expected true or false")


def _real(keys: Keys, name: str, default: float) -> float:
    value = keys.get(name)
    return default if value is None else _number(value, name)


def _number(value: Any, name: str) -> float:
    usable = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e15
    if not usable:
        raise LiveError(f"config.json: {name} is {str(value)[:40]}; expected a positive number")
    return float(value)


def matrices(shape: LiveShape) -> dict[str, tuple[int, int]]:
    """(rows, columns) of the matrices of one layer that every token multiplies with, by name."""
    out = shape.num_heads * shape.head_dim
    return {
        "qkv": (shape.qkv_width, shape.hidden_size),
        "o": (shape.hidden_size, out),
        "gate_up": (2 * shape.intermediate_size, shape.hidden_size),
        "down": (shape.hidden_size, shape.intermediate_size),
    }


def parameters(shape: LiveShape) -> int:
    """Every number of the model's weights, biases and norms included; a tied head is counted once."""
    embedding = shape.vocab_size * shape.hidden_size
    return embedding * (1 if shape.tied else 2) + shape.num_layers * _layer_parameters(shape) + shape.hidden_size


def weight_bytes(shape: LiveShape, weight_format: str) -> int:
    """Bytes that the engine holds for the weights in a format.

    int8 and int4 keep the 16-bit weights beside the packed ones: prefill multiplies with the former.
    """
    check_weight_format(weight_format)
    if weight_format in ELEMENT_BYTES:
        return parameters(shape) * ELEMENT_BYTES[weight_format]
    packed = [(pair, shape.num_layers) for pair in matrices(shape).values()]
    packed.append(((shape.vocab_size, shape.hidden_size), 1))
    return 2 * parameters(shape) + sum(
        count * packed_bytes(weight_format, rows, columns) for (rows, columns), count in packed
    )


def step_weight_bytes(shape: LiveShape, weight_format: str) -> int:
    """Bytes of weights that one decode step reads: all but the embedding table, of which it reads one row a request.

    A tied head is read in full.
    """
    check_weight_format(weight_format)
    read = parameters(shape) - (0 if shape.tied else shape.vocab_size * shape.hidden_size)
    if weight_format in ELEMENT_BYTES:
        return read * ELEMENT_BYTES[weight_format]
    pairs = [(pair, shape.num_layers) for pair in matrices(shape).values()]
    pairs.append(((shape.vocab_size, shape.hidden_size), 1))
    total = 2 * read
    for (rows, columns), count in pairs:
        packed = packed_bytes(weight_format, rows, columns)
        total += count * (packed - 2 * rows * columns) if packed else 0
    return total


def packed_bytes(weight_format: str, rows: int, columns: int) -> int:
    """Bytes of a packed matrix, 0 where its sides do not suit the kernel and it stays in 16 bits.

    int8: one bf16 scale a row. int4: two numbers a byte, a bf16 scale and zero for every 32 numbers of a row.
    """
    if not packs(weight_format, rows, columns):
        return 0
    if weight_format == "int8":
        return rows * columns + 2 * rows
    return ceil(rows * columns / 2) + rows * (columns // INT4_GROUP) * 2 * 2


def packs(weight_format: str, rows: int, columns: int) -> bool:
    """Whether torch's CPU kernel of that format takes a matrix of these sides."""
    if weight_format == "int8":
        return rows % 16 == 0 and columns % 16 == 0
    return weight_format == "int4" and rows % 16 == 0 and columns % INT4_GROUP == 0


def check_weight_format(name: str) -> None:
    """LiveError names the known formats where `name` is none of them."""
    if name not in WEIGHT_FORMATS:
        raise LiveError(f"weight format {name[:40]!r} is not known here; known are {', '.join(WEIGHT_FORMATS)}")


def _layer_parameters(shape: LiveShape) -> int:
    total = sum(rows * columns for rows, columns in matrices(shape).values()) + 2 * shape.hidden_size
    if shape.is_latent:
        total += shape.kv_lora_rank * (2 * shape.num_heads * shape.head_dim + 1)
    total += 2 * shape.head_dim if shape.qk_norm and not shape.is_latent else 0
    total += shape.qkv_width if shape.qkv_bias else 0
    total += shape.hidden_size if shape.o_bias else 0
    return total + (2 * shape.intermediate_size + shape.hidden_size if shape.mlp_bias else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheBytes:
    """Bytes of a cache: `reserved` in whole blocks, `resident` in rows that hold a token."""

    reserved: int
    resident: int


def cache_format(name: str) -> KVFormat:
    """The kvcore format behind a cache format of the engine; LiveError names the known ones."""
    return kv_format(CACHE_FORMATS[cache_format_name(name)])


def cache_format_name(name: str) -> str:
    """The engine's own name of a cache format; LiveError names the known ones."""
    plain = name.strip().lower()
    for own, other in CACHE_FORMATS.items():
        if plain in (own, other):
            return own
    raise LiveError(f"cache format {name[:40]!r} cannot run live; those that can are {', '.join(CACHE_FORMATS)}")


def block_rows(tokens: int, window: int | None, block_tokens: int) -> int:
    """Rows that one request's part of a layer has for `tokens` tokens: whole blocks, at most those of the window."""
    needed = -(-tokens // block_tokens) * block_tokens
    return needed if window is None else min(needed, -(-window // block_tokens) * block_tokens)


def predicted_bytes(shape: LiveShape, kv_format: str, lengths: Sequence[int], block_tokens: int = 256) -> CacheBytes:
    """Bytes that a batch of requests of these lengths (in tokens) takes in the live cache.

    The batch is allocated to its longest request, in blocks of `block_tokens`; a layer with a window keeps a ring of
    the window, rounded up to whole blocks. LiveError for a format that is not known.
    """
    kv = cache_format(kv_format)
    longest = max(lengths, default=0)
    reserved = resident = 0
    for memory, count in model_of(shape).kept:
        law = memory.growth(kv)
        rows = block_rows(longest, law.max_entries, block_tokens)
        reserved += count * len(lengths) * rows * law.bytes_per_entry
        resident += count * sum(law.at(length) for length in lengths)
    return CacheBytes(reserved=reserved, resident=resident)
