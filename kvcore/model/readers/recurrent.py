"""Models with recurrent layers: a state of fixed size in place of a growing cache, in some or all layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kvcore.errors import CONFIG, ConfigError, UnknownLayoutError
from kvcore.model.keys import Keys
from kvcore.model.memories import Memory, NoMemory, State
from kvcore.model.readers.attention import attention_memory
from kvcore.model.readers.designs import DESIGNS
from kvcore.model.readers.shape import Family, Geometry, Shape, check_kv_heads, read_head_dim, read_hidden, read_layers
from kvcore.model.weights import FeedForward, Tally, attention_parameters, count_embeddings, read_feed_forward

# What a layer holds: "state", "full", "sliding", "both" (state beside attention) or "none"; and whether it has a
# feed-forward part ("moe" and "mlp" layers of Nemotron-H have nothing else).
Slot = str


def read_recurrent(keys: Keys, family: Family) -> Shape:
    """A model of recurrent layers, with attention in some of them or none."""
    layers = _layer_count(keys)
    hidden = read_hidden(keys)
    slots = LAYOUTS[str(family.options["layout"])](keys, layers)
    state, state_parameters = DESIGNS[str(family.options["design_of"])](keys, family, hidden)
    geometry = _geometry(keys, family, layers, hidden) if _attends(slots) else None
    if geometry is None:
        keys.know("num_attention_heads", "num_key_value_heads", "head_dim")
    memories = {slot: _memories(keys, slot, state, geometry) for slot in set(slots)}
    stack = [memories[slot] for slot in slots]
    tally = Tally()
    vocabulary = count_embeddings(keys, tally, hidden, family.tied)
    feed_forward = _feed_forward(keys, family, layers, hidden, slots)
    for index, slot in enumerate(slots):
        _count(tally, slot, state_parameters, geometry, family)
        if slot in ("moe", "mlp") or not family.options.get("one_thing_a_layer"):
            feed_forward.count(tally, index)
        tally.add("norms", hidden if family.options.get("one_thing_a_layer") else 2 * hidden)
    return Shape(
        layers=tuple(stack),
        hidden_size=hidden,
        num_attention_heads=geometry.heads if geometry else 0,
        head_dim=geometry.head_dim if geometry else 0,
        vocab_size=vocabulary,
        experts=feed_forward.experts,
        widths=feed_forward.widths,
        tally=tally if vocabulary and not family.options.get("weights_unknown") else None,
    )


def _layer_count(keys: Keys) -> int:
    listed = keys.raw.get("layers_block_type")
    if keys.stated("num_hidden_layers", "n_layer", "n_layers", "num_layers"):
        return read_layers(keys)
    if isinstance(listed, list) and listed:
        return keys.check(len(listed), ("layers_block_type",), 1, 2048)
    return read_layers(keys)


def _attends(slots: tuple[Slot, ...]) -> bool:
    return any(slot in ("full", "sliding", "both") for slot in slots)


def _geometry(keys: Keys, family: Family, layers: int, hidden: int) -> Geometry:
    heads = keys.integer("num_attention_heads", high=2**14)
    if family.options.get("double_width_attention"):
        # Zamba concatenates the embedding to the hidden state before its shared attention.
        head_dim = keys.optional("attention_head_dim") or 2 * hidden // heads
        keys.know("attention_hidden_size", "kv_channels")
    else:
        head_dim = read_head_dim(keys, hidden, heads)
    kv_heads = check_kv_heads(heads, keys.integer("num_key_value_heads", default=heads))
    return Geometry(
        layers=layers, hidden=hidden, heads=heads, kv_heads=kv_heads, head_dim=head_dim, v_head_dim=head_dim
    )


def _memories(keys: Keys, slot: Slot, state: State, geometry: Geometry | None) -> tuple[Memory, ...]:
    if slot == "state":
        return (state,)
    if slot in ("moe", "mlp"):
        return (NoMemory(reason="feed-forward layer"),)
    if geometry is None:
        raise ConfigError(f"a layer is {slot!r}, but there is no attention to size it by", file=CONFIG)
    attention = attention_memory(keys, geometry, "sliding" if slot == "sliding" else "full")
    return (attention, state) if slot == "both" else (attention,)


def _count(tally: Tally, slot: Slot, state_parameters: int, geometry: Geometry | None, family: Family) -> None:
    if slot in ("state", "both"):
        tally.add("recurrent layers", state_parameters)
    if slot in ("full", "sliding", "both") and geometry is not None:
        per_layer = attention_parameters(
            geometry.hidden, geometry.heads, geometry.kv_heads, geometry.head_dim, geometry.v_head_dim
        )
        gate = geometry.hidden * geometry.heads * geometry.head_dim if family.options.get("gated_attention") else 0
        tally.add("attention", per_layer + gate)


def _feed_forward(keys: Keys, family: Family, layers: int, hidden: int, slots: tuple[Slot, ...]) -> FeedForward:
    if family.options.get("no_feed_forward"):
        return FeedForward(hidden=hidden, gated=True, dense_width=0, sparse=(False,) * layers)
    shape = read_feed_forward(
        keys,
        layers,
        hidden,
        gated=family.gated,
        default_width=family.width_factor * hidden,
        stated_width_is=family.stated_width_is,
    )
    if keys.flag("block_auto_adjust_ff_dim"):
        shape = replace(shape, dense_width=_adjusted_width(keys, shape.dense_width))
    if not family.options.get("one_thing_a_layer"):
        return shape
    sparse = tuple(slot == "moe" for slot in slots)
    experts = replace(shape.experts, moe_layers=sum(sparse)) if shape.experts else None
    return replace(shape, sparse=sparse, experts=experts)


def _adjusted_width(keys: Keys, width: int) -> int:
    """LFM2: two thirds of the stated width, stretched, rounded up to a multiple (transformers, modeling_lfm2.py)."""
    factor = keys.get("block_ffn_dim_multiplier")
    stretch = float(factor) if isinstance(factor, int | float) and 0 < factor < 64 else 1.0
    multiple = keys.integer("block_multiple_of", default=256)
    return -(-int(stretch * int(2 * width / 3)) // multiple) * multiple


def _all_state(keys: Keys, layers: int) -> tuple[Slot, ...]:
    return ("state",) * layers


def _all_both(keys: Keys, layers: int) -> tuple[Slot, ...]:
    return ("both",) * layers


_WORDS = {
    "mamba": "state", "linear_attention": "state", "conv": "state", "recurrent": "state", "M": "state",
    "attention": "full", "full_attention": "full", "*": "full", "sliding_attention": "sliding",
    "hybrid": "both", "moe": "moe", "E": "moe", "mlp": "mlp", "-": "mlp",
}  # fmt: skip


# Other ways of saying what such a list says.
_OTHER_WORDS = (
    "full_attn_idxs", "attn_layer_indices", "hybrid_layer_ids", "attn_layer_period", "attn_layer_offset",
    "full_attention_interval", "num_mem_blocks",
)  # fmt: skip


def _listed(keys: Keys, layers: int) -> tuple[Slot, ...]:
    """A list with one word a layer, or a string with one letter a layer."""
    for name in ("layers_block_type", "layer_types", "hybrid_override_pattern"):
        value = keys.get(name)
        if value is not None:
            keys.know(*_OTHER_WORDS)
            return _words(name, value, layers)
    found = _by_indices(keys, layers)
    if found is None and "conv_L_cache" in keys.raw:
        # LFM2 attends in every layer where its file lists none.
        return ("full",) * layers
    if found is None:
        raise ConfigError("layer_types is missing; expected one word for each layer", file=CONFIG)
    return found


def _words(name: str, value: Any, layers: int) -> tuple[Slot, ...]:
    if not isinstance(value, str | list):
        raise ConfigError(f"{name} is neither a list nor a pattern of letters", file=CONFIG)
    if len(value) < layers:
        raise ConfigError(f"{name} has {len(value)} entries for {layers} layers", file=CONFIG)
    unknown = [str(word)[:40] for word in value[:layers] if not isinstance(word, str) or word not in _WORDS]
    if unknown:
        raise UnknownLayoutError(f"{name} has {unknown[0]!r}, which is not understood", file=CONFIG, keys=(name,))
    return tuple(_WORDS[word] for word in value[:layers])


def _by_indices(keys: Keys, layers: int) -> tuple[Slot, ...] | None:
    """Lists of the layers that attend: Bamba's, LFM2's; or Zamba2's of its hybrid layers."""
    attends = keys.items("attn_layer_indices", "full_attn_idxs")
    if attends is not None:
        return tuple("full" if layer in attends else "state" for layer in range(layers))
    if "attn_layer_indices" in keys.raw:
        return ("state",) * layers
    hybrids = keys.items("hybrid_layer_ids")
    if hybrids is not None:
        return tuple("both" if layer in hybrids else "state" for layer in range(layers))
    return None


def _period(keys: Keys, layers: int) -> tuple[Slot, ...]:
    """Jamba: attention in layers i with i mod period = offset."""
    if keys.get("layers_block_type") is not None:
        return _listed(keys, layers)
    period = keys.integer("attn_layer_period", default=8)
    offset = keys.integer("attn_layer_offset", default=4, low=0)
    return tuple("full" if layer % period == offset else "state" for layer in range(layers))


def _zamba_period(keys: Keys, layers: int) -> tuple[Slot, ...]:
    if keys.get("layers_block_type") is not None:
        return _listed(keys, layers)
    period = keys.integer("attn_layer_period", default=6)
    offset = keys.integer("attn_layer_offset", default=4, low=0)
    keys.know("num_mem_blocks")
    return tuple("both" if layer % period == offset else "state" for layer in range(layers))


def _interval(keys: Keys, layers: int) -> tuple[Slot, ...]:
    """Qwen3-Next: layers N, 2N, … attend."""
    interval = keys.integer("full_attention_interval", default=4)
    if keys.get("layer_types") is not None:
        return _listed(keys, layers)
    return tuple("full" if (layer + 1) % interval == 0 else "state" for layer in range(layers))


def _type_list(keys: Keys, layers: int) -> tuple[Slot, ...]:
    """MiniMax: `attn_type_list` has 1 for softmax attention, 0 for linear."""
    listed = keys.per_layer("attn_type_list", layers)
    if listed is None:
        return _listed(keys, layers)
    if any(entry not in (0, 1) for entry in listed):
        raise ConfigError("attn_type_list has an entry that is neither 0 (linear) nor 1 (full)", file=CONFIG)
    return tuple("full" if entry else "state" for entry in listed)


def _cycle(keys: Keys, layers: int) -> tuple[Slot, ...]:
    """RecurrentGemma: a short list of block types that repeats; its attention slides."""
    block = keys.items("block_types", "_block_types") or ["recurrent", "recurrent", "attention"]
    words = {"recurrent": "state", "attention": "sliding"}
    if any(word not in words for word in map(str, block)):
        raise UnknownLayoutError("block_types has a word that is not understood", file=CONFIG, keys=("block_types",))
    return tuple(words[str(block[layer % len(block)])] for layer in range(layers))


LAYOUTS: dict[str, Callable[[Keys, int], tuple[Slot, ...]]] = {
    "all_state": _all_state, "all_both": _all_both, "listed": _listed, "period": _period,
    "zamba_period": _zamba_period, "interval": _interval, "type_list": _type_list, "cycle": _cycle,
}  # fmt: skip
