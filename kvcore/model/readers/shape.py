"""What every reader returns, and the geometry that most configurations state in the same way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kvcore.errors import CONFIG, ConfigError
from kvcore.model.keys import MAX_LAYERS, Keys
from kvcore.model.memories import Memory
from kvcore.model.model import NO_WIDTHS, Experts, Widths
from kvcore.model.weights import Tally


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How configurations of one model_type are to be read: data that a reader consults instead of branching on names.

    `window` names the rule in readers/windows.py for configurations without `layer_types`; `pattern` its period.
    `kv_heads` names a rule in readers/attention.py. `gated` feed-forward layers have three matrices, others two.
    `harmless` are keys that look as if they changed the cache, and do not in this family.
    """

    read: Callable[[Keys, Family], Shape]
    window: str = "none"
    pattern: int = 0
    kv_heads: str = "standard"
    gated: bool = True
    tied: bool = False
    width_factor: int = 0
    shared_experts: int = 0
    stated_width_is: int = 1
    state_dtype: str | None = None
    harmless: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    options: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a reader found: the memories of each layer, and the model's dimensions and parameters."""

    layers: tuple[tuple[Memory, ...], ...]
    hidden_size: int
    num_attention_heads: int
    head_dim: int
    key_head_dim: int | None = None
    vocab_size: int | None = None
    experts: Experts | None = None
    widths: Widths = NO_WIDTHS
    window_of_past: bool = False
    tally: Tally | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """Layers, width and heads, as most configurations state them under one name or another."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int


LAYER_NAMES = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_transformer_layers")
HIDDEN_NAMES = ("n_embed", "hidden_size", "n_embd", "d_model", "dim", "model_dim")
HEAD_NAMES = ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads")
HEAD_DIM_NAMES = ("head_dim", "attention_head_dim", "kv_channels", "head_size")


def read_layers(keys: Keys, *names: str) -> int:
    """The number of layers; ConfigError when it is missing or absurd."""
    return keys.integer(*(names or LAYER_NAMES), high=MAX_LAYERS)


def read_hidden(keys: Keys) -> int:
    """The model's width; ConfigError when it is missing."""
    return keys.integer(*HIDDEN_NAMES, high=2**20)


def read_heads(keys: Keys) -> int:
    """The number of query heads; ConfigError when it is missing."""
    return keys.integer(*HEAD_NAMES, high=2**14)


def read_head_dim(keys: Keys, hidden: int, heads: int) -> int:
    """The width of a head where it is stated, else hidden / heads; ConfigError when that is not whole."""
    stated = keys.optional(*HEAD_DIM_NAMES, high=2**16)
    if stated is not None:
        return stated
    if hidden % heads:
        raise ConfigError(
            f"hidden_size {hidden:,} is not divisible by {heads:,} heads, and no head_dim is stated", file=CONFIG
        )
    return hidden // heads


# Keys that give some layers a number of query heads of their own; a reader has to take them into account.
_OWN_HEADS = ("num_query_heads", "swa_num_attention_heads", "num_attention_heads_per_layer", "attention.head_count")


def other_query_heads(keys: Keys, heads: int) -> tuple[str, ...]:
    """The keys, with their paths, by which some layers have other query heads than `heads`; 0 is no attention."""
    names = [name for name in _OWN_HEADS if name in keys.used and _differs(keys.raw.get(name), heads)]
    found = [keys.path + name for name in names]
    for child in keys.children:
        own = child.raw.get("num_attention_heads")
        if child.path.endswith("attention_other_setting.") and "num_attention_heads" in child.used:
            found += [f"{child.path}num_attention_heads"] if _differs(own, heads) else []
    return tuple(found)


def _differs(stated: object, heads: int) -> bool:
    entries = stated if isinstance(stated, list | tuple) else (stated,)
    return any(entry not in (heads, 0, None) for entry in entries)


def check_kv_heads(heads: int, kv_heads: int) -> int:
    """The same number of KV heads, or ConfigError when query heads cannot share them evenly."""
    if kv_heads > heads or heads % kv_heads:
        raise ConfigError(
            f"num_key_value_heads is {kv_heads}, which does not divide num_attention_heads {heads}", file=CONFIG
        )
    return kv_heads
