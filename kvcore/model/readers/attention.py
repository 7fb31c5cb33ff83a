"""Models whose layers keep keys and values: full, sliding, chunked, shared, or none at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kvcore.errors import ConfigError, UnknownLayoutError
from kvcore.model.keys import Keys
from kvcore.model.memories import Attention, CrossAttention, Memory, SharedCache
from kvcore.model.readers.shape import (
    Family,
    Geometry,
    Shape,
    check_kv_heads,
    read_head_dim,
    read_heads,
    read_hidden,
    read_layers,
)
from kvcore.model.readers.windows import Law, layer_laws, window_size
from kvcore.model.weights import FeedForward, Tally, attention_parameters, count_embeddings, read_feed_forward
from kvcore.units import is_whole


def read_attention(keys: Keys, family: Family) -> Shape:
    """The shape of a model whose every layer keeps keys and values by the same heads."""
    geometry = read_geometry(keys, family)
    laws = layer_laws(keys, family, geometry.layers)
    by_law = {law: attention_memory(keys, geometry, law) for law in dict.fromkeys(laws)}
    layers = share_tail(keys, own_heads(keys, [by_law[law] for law in laws]), laws)
    layers = share_neighbours(keys, layers)
    return finish(keys, family, geometry, layers)


def read_geometry(keys: Keys, family: Family) -> Geometry:
    """Layers, width and heads; ConfigError where they do not fit together."""
    layers, hidden, heads = read_layers(keys), read_hidden(keys), read_heads(keys)
    head_dim = read_head_dim(keys, hidden, heads)
    kv_heads = check_kv_heads(heads, KV_HEAD_RULES[family.kv_heads](keys, heads))
    return Geometry(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        v_head_dim=keys.optional("v_head_dim", high=2**16) or head_dim,
    )


def attention_memory(keys: Keys, geometry: Geometry, law: Law) -> Attention:
    """The memory of a layer that follows `law`."""
    limit = None
    if law == "sliding":
        limit = window_size(keys, "sliding_window", "sliding_window_size", "window_size", "attention_window_size")
    elif law == "chunked":
        limit = keys.integer("attention_chunk_size", high=2**40)
    return Attention(
        num_kv_heads=geometry.kv_heads,
        head_dim=geometry.head_dim,
        v_head_dim=geometry.v_head_dim,
        limit=limit,
        law=law,  # type: ignore[arg-type]
    )


_OVERRIDES = {"head_dim", "num_key_value_heads", "num_attention_heads", "sliding_window"}


def own_heads(keys: Keys, memories: list[Attention]) -> list[tuple[Memory, ...]]:
    """The layers' memories with what `per_layer_config` says of single layers, by number ("05": {"head_dim": 512}).

    UnknownLayoutError for anything there that is not understood.
    """
    result: list[tuple[Memory, ...]] = [(memory,) for memory in memories]
    listed = keys.child("per_layer_config")
    for name in listed.raw if listed is not None else ():
        own = listed.child(name) if listed is not None else None
        if own is None or not is_whole(name) or int(name) >= len(memories) or not set(own.raw) <= _OVERRIDES:
            raise UnknownLayoutError(
                f"config.json: per_layer_config.{name[:40]} is not understood", keys=("per_layer_config",)
            )
        result[int(name)] = (_overridden(memories[int(name)], own),)
    return result


def _overridden(memory: Attention, own: Keys) -> Attention:
    own.know("num_attention_heads")
    width = own.optional("head_dim", high=2**16)
    window = own.optional("sliding_window", high=2**40)
    return replace(
        memory,
        num_kv_heads=own.integer("num_key_value_heads", default=memory.num_kv_heads, high=2**14),
        head_dim=width or memory.head_dim,
        v_head_dim=width or memory.v_head_dim,
        limit=window if window and memory.law == "sliding" else memory.limit,
    )


def share_tail(keys: Keys, layers: list[tuple[Memory, ...]], laws: tuple[Law, ...]) -> list[tuple[Memory, ...]]:
    """Let the last `num_kv_shared_layers` read the last cache of their own law before them (Gemma 3n, Gemma 4)."""
    shared = keys.optional("num_kv_shared_layers", low=0) or 0
    if not shared:
        return layers
    first = len(layers) - shared
    if first < 1:
        raise ConfigError(f"config.json: num_kv_shared_layers is {shared}, but there are only {len(layers)} layers")
    result = list(layers)
    for index in range(first, len(layers)):
        owners = [owner for owner in range(first) if laws[owner] == laws[index]]
        if not owners:
            raise ConfigError(f"config.json: layer {index} shares a cache, but no earlier layer is {laws[index]}")
        result[index] = (SharedCache(owner=owners[-1]),)
    return result


def share_neighbours(keys: Keys, layers: list[tuple[Memory, ...]]) -> list[tuple[Memory, ...]]:
    """Cross-layer attention: groups of `cla_share_factor` layers use the first one's cache, where `use_cla` says so."""
    keys.know("cla_share_factor")
    if not keys.flag("use_cla"):
        return layers
    depth = keys.integer("cla_share_factor", high=2048)
    return [
        layer if index % depth == 0 else (SharedCache(owner=index - index % depth),)
        for index, layer in enumerate(layers)
    ]


def finish(keys: Keys, family: Family, geometry: Geometry, layers: list[tuple[Memory, ...]]) -> Shape:
    """Count the parameters of a plain attention model and close its shape."""
    tally = Tally()
    vocabulary = count_embeddings(keys, tally, geometry.hidden, family.tied)
    feed_forward = read_feed_forward(
        keys,
        geometry.layers,
        geometry.hidden,
        gated=family.gated,
        default_width=family.width_factor * geometry.hidden,
        shared_default=family.shared_experts,
        stated_width_is=family.stated_width_is,
    )
    count_layers(tally, geometry, layers, feed_forward)
    return Shape(
        layers=tuple(layers),
        hidden_size=geometry.hidden,
        num_attention_heads=geometry.heads,
        head_dim=geometry.head_dim,
        vocab_size=vocabulary,
        experts=feed_forward.experts,
        tally=tally if vocabulary and feed_forward.dense_width else None,
    )


def count_layers(tally: Tally, geometry: Geometry, layers: list[tuple[Memory, ...]], feed_forward: FeedForward) -> None:
    """Add attention, feed-forward and norms of every layer to the tally."""
    own_query = geometry.hidden * geometry.heads * (geometry.head_dim + geometry.v_head_dim)
    for index, memories in enumerate(layers):
        first = memories[0]
        if isinstance(first, Attention):
            tally.add(
                "attention",
                attention_parameters(
                    geometry.hidden, geometry.heads, first.num_kv_heads, first.head_dim, first.v_head_dim
                ),
            )
        elif isinstance(first, SharedCache):
            tally.add("attention", own_query)
        elif isinstance(first, CrossAttention):
            tally.add(
                "cross-attention",
                attention_parameters(
                    geometry.hidden, geometry.heads, first.num_kv_heads, first.head_dim, first.head_dim
                ),
            )
        feed_forward.count(tally, index)
        tally.add("norms", 2 * geometry.hidden)


def _standard(keys: Keys, heads: int) -> int:
    return keys.integer("num_key_value_heads", "num_kv_heads", "n_kv_heads", "n_head_kv", default=heads)


def _same_as_heads(keys: Keys, heads: int) -> int:
    return heads


def _multi_query_default(keys: Keys, heads: int) -> int:
    """StarCoder: multi-query unless switched off."""
    return 1 if keys.flag("multi_query", True) else heads


def _falcon(keys: Keys, heads: int) -> int:
    """Falcon: its new architecture states its KV heads; the old one is multi-query unless switched off."""
    if keys.flag("new_decoder_architecture"):
        return keys.integer("num_kv_heads", "n_head_kv", default=heads)
    keys.know("num_kv_heads", "n_head_kv")
    return 1 if keys.flag("multi_query", True) else heads


def _refined_web(keys: Keys, heads: int) -> int:
    """Falcon under its first name: `n_head_kv` where it is stated (40B), else multi-query (7B)."""
    return keys.integer("n_head_kv", default=_multi_query_default(keys, heads))


def _shared_heads(keys: Keys, heads: int) -> int:
    """PLaMo: `n_shared_head` query heads share one KV head."""
    return max(1, heads // keys.integer("n_shared_head", default=1))


def _chatglm(keys: Keys, heads: int) -> int:
    """ChatGLM: `multi_query_group_num` KV heads where `multi_query_attention` is on."""
    keys.know("multi_query_group_num")
    return keys.integer("multi_query_group_num") if keys.flag("multi_query_attention") else heads


def _attn_config(keys: Keys, heads: int) -> int:
    """MPT and DBRX: a nested `attn_config` states the KV heads or the type of attention."""
    nested = keys.child("attn_config")
    if nested is None:
        return heads
    kind = nested.text("attn_type") or "multihead_attention"
    if kind == "multiquery_attention":
        nested.know("kv_n_heads")
        return 1
    nested.know("attn_uses_sequence_id", "prefix_lm")
    return nested.integer("kv_n_heads", default=heads)


def _attention_groups(keys: Keys, heads: int) -> int:
    return keys.integer("num_attention_groups", "num_key_value_heads", default=heads)


KV_HEAD_RULES: dict[str, Callable[[Keys, int], int]] = {
    "standard": _standard,
    "heads": _same_as_heads,
    "multi_query": _multi_query_default,
    "falcon": _falcon,
    "refined_web": _refined_web,
    "shared_heads": _shared_heads,
    "chatglm": _chatglm,
    "attn_config": _attn_config,
    "groups": _attention_groups,
}
