"""Gemma 3n and 4: full layers with heads of their own, layers that share a cache, per-layer embeddings."""

from __future__ import annotations

from kvcore.model.keys import Keys
from kvcore.model.memories import Attention, Memory, SharedCache
from kvcore.model.readers.attention import (
    attention_memory,
    finish,
    own_heads,
    read_attention,
    read_geometry,
    share_tail,
)
from kvcore.model.readers.shape import (
    Family,
    Shape,
    check_kv_heads,
)
from kvcore.model.readers.windows import layer_laws


def read_gemma4(keys: Keys, family: Family) -> Shape:
    """Gemma 4: full layers have heads of their own width and number; the last layers may share."""
    geometry = read_geometry(keys, family)
    laws = list(layer_laws(keys, family, geometry.layers))
    same = keys.flag("attention_k_eq_v")
    full_heads = keys.optional("num_global_key_value_heads") if same else None
    keys.know("num_global_key_value_heads")
    # Left out, it is 512 in full layers (transformers 5.24), unless single layers say their own width.
    default_dim = geometry.head_dim if keys.stated("per_layer_config") else 512
    full_dim = keys.optional("global_head_dim", high=2**16) or default_dim
    if same:
        keys.notes.append(
            "attention_k_eq_v: keys and values come from one projection, but differ after norm and rotary "
            "position, so both are kept."
        )
    by_law: dict[str, Attention] = {}
    for law in dict.fromkeys(laws):
        memory = attention_memory(keys, geometry, law)
        if law == "full":
            heads = check_kv_heads(geometry.heads, full_heads or geometry.kv_heads)
            memory = Attention(num_kv_heads=heads, head_dim=full_dim, v_head_dim=full_dim)
        by_law[law] = memory
    layers = share_tail(keys, own_heads(keys, [by_law[law] for law in laws]), tuple(laws))
    shape = finish(keys, family, geometry, layers)
    return _gemma_extras(keys, shape, layers, same)


def _gemma_extras(keys: Keys, shape: Shape, layers: list[tuple[Memory, ...]], one_projection: bool) -> Shape:
    """Parameters that only Gemma 3n and 4 have: per-layer embeddings, doubled widths, one K=V projection."""
    tally, hidden = shape.tally, shape.hidden_size
    if tally is None:
        return shape
    extra = keys.optional("hidden_size_per_layer_input", low=0) or 0
    rows = keys.optional("vocab_size_per_layer_input") or 0
    if extra:
        tally.add("per-layer embeddings", rows * extra * len(layers), extra * len(layers))
        tally.add("per-layer projections", len(layers) * 3 * hidden * extra)
    shared = sum(isinstance(memories[0], SharedCache) for memories in layers)
    width = keys.optional("intermediate_size") or 0
    if keys.flag("use_double_wide_mlp"):
        tally.add("feed-forward", shared * 3 * hidden * width)
    if keys.flag("enable_moe_block"):
        tally.add("feed-forward", len(layers) * 3 * hidden * width)
    if one_projection:
        for memories in layers:
            memory = memories[0]
            if isinstance(memory, Attention) and memory.law == "full":
                tally.add("attention", -hidden * memory.num_kv_heads * memory.v_head_dim)
    return shape


def read_gemma3n(keys: Keys, family: Family) -> Shape:
    """Gemma 3n: sliding and full layers, the last of which share; per-layer embeddings."""
    widths = keys.get("intermediate_size")
    shape = read_attention(keys, family)
    if isinstance(widths, list):
        keys.know("intermediate_size")
    return _gemma_extras_3n(keys, shape)


def _gemma_extras_3n(keys: Keys, shape: Shape) -> Shape:
    if shape.tally is None:
        return shape
    count, extra = len(shape.layers), keys.optional("hidden_size_per_layer_input", low=0) or 0
    rows = keys.optional("vocab_size_per_layer_input") or 0
    shape.tally.add("per-layer embeddings", rows * extra * count, extra * count)
    shape.tally.add("per-layer projections", count * 3 * shape.hidden_size * extra)
    return shape
