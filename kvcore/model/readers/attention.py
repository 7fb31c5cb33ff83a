"""Models whose layers keep keys and values: full, sliding, chunked, shared, or none at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kvcore.errors import CONFIG, ConfigError, UnknownLayoutError
from kvcore.formats import element_format
from kvcore.model.keys import Keys, model_dtype
from kvcore.model.memories import Attention, Memory, NoMemory, SharedCache, State, StateDesign, StatePart, StateTensor
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
                f"per_layer_config.{name[:40]} is not understood", file=CONFIG, keys=("per_layer_config",)
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
        raise ConfigError(f"num_kv_shared_layers is {shared}, but there are only {len(layers)} layers", file=CONFIG)
    result = list(layers)
    for index in range(first, len(layers)):
        owners = [owner for owner in range(first) if laws[owner] == laws[index]]
        if not owners:
            raise ConfigError(f"layer {index} shares a cache, but no earlier layer is {laws[index]}", file=CONFIG)
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
        widths=feed_forward.widths,
        tally=tally if vocabulary and feed_forward.dense_width else None,
    )


def count_layers(tally: Tally, geometry: Geometry, layers: list[tuple[Memory, ...]], feed_forward: FeedForward) -> None:
    """Add attention, feed-forward and norms of every layer to the tally."""
    own_query = geometry.hidden * geometry.heads * (geometry.head_dim + geometry.v_head_dim)
    for index, memories in enumerate(layers):
        first = memories[0]
        if first.kv_heads:
            tally.add(
                first.projections,
                attention_parameters(
                    geometry.hidden, geometry.heads, first.kv_heads, first.key_width, first.value_width
                ),
            )
        elif first.reads_layer is not None:
            tally.add(first.projections, own_query)
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


def read_mimo_v2(keys: Keys, family: Family) -> Shape:
    """MiMo-V2: sliding layers have their own number of heads, and keys wider than values."""
    geometry = read_geometry(keys, family)
    laws = layer_laws(keys, family, geometry.layers)
    heads = keys.integer("swa_num_attention_heads", default=geometry.heads)
    keys.know("attention_chunk_size")
    sliding = Attention(
        num_kv_heads=check_kv_heads(heads, keys.integer("swa_num_key_value_heads", default=2 * geometry.kv_heads)),
        head_dim=keys.integer("swa_head_dim", default=geometry.head_dim, high=2**16),
        v_head_dim=keys.integer("swa_v_head_dim", default=geometry.v_head_dim, high=2**16),
        limit=window_size(keys) if "sliding" in laws else None,
        law="sliding",
    )
    layers: list[tuple[Memory, ...]] = [
        (sliding if law == "sliding" else attention_memory(keys, geometry, law),) for law in laws
    ]
    # Without that key it is sliding_window, which counts the current token, as everywhere.
    of_past = keys.stated("sliding_window_size")
    return replace(finish(keys, family, geometry, layers), window_of_past=of_past)


def read_step(keys: Keys, family: Family) -> Shape:
    """Step 3.5 and 3.7: `attention_other_setting` may give sliding layers heads of their own."""
    geometry = read_geometry(keys, family)
    laws = layer_laws(keys, family, geometry.layers)
    keys.know("num_sliding_attention_heads", "share_expert_dim")
    by_law = {law: attention_memory(keys, geometry, law) for law in dict.fromkeys(laws)}
    other = keys.child("attention_other_setting")
    if other is not None and "sliding" in by_law:
        other.know("attention_type", "true_head_dim")
        heads = other.integer("num_attention_heads", default=geometry.heads)
        width = other.integer("head_dim", default=geometry.head_dim, high=2**16)
        by_law["sliding"] = replace(
            by_law["sliding"],
            num_kv_heads=check_kv_heads(heads, other.integer("num_attention_groups", default=geometry.kv_heads)),
            head_dim=width,
            v_head_dim=width,
        )
    return finish(keys, family, geometry, [(by_law[law],) for law in laws])


def read_yuan(keys: Keys, family: Family) -> Shape:
    """Yuan 2: localized filtering looks at the last two hidden states, which every layer keeps beside its cache."""
    shape = read_attention(keys, family)
    element = int(element_format(model_dtype(keys)).bits) // 8
    recent = StatePart(name=StateTensor.HIDDEN_STATES, shape=(2, shape.hidden_size), element_bytes=element)
    state = State(design=StateDesign.LOCALIZED_FILTERING, parts=(recent,))
    return replace(shape, layers=tuple((*memories, state) for memories in shape.layers))


def read_nemotron_nas(keys: Keys, family: Family) -> Shape:
    """Models from architecture search (DeciLM): each block has its own KV heads, or no attention at all."""
    layers, hidden, heads = read_layers(keys), read_hidden(keys), read_heads(keys)
    head_dim = read_head_dim(keys, hidden, heads)
    blocks = keys.per_layer("block_configs", layers)
    by_layer = keys.per_layer("num_key_value_heads_per_layer", layers)
    keys.know("num_key_value_heads", "num_key_value_heads_per_layer")
    if blocks is None and by_layer is not None:
        return _deci(keys, family, by_layer)
    if blocks is None:
        raise ConfigError("block_configs is missing; expected one entry for each layer", file=CONFIG)
    memories: list[tuple[Memory, ...]] = []
    tally = Tally()
    vocabulary = count_embeddings(keys, tally, hidden, tied_by_default=False)
    for index, block in enumerate(blocks):
        if not isinstance(block, dict) or not isinstance(block.get("attention"), dict):
            raise ConfigError(f"block_configs[{index}] has no attention object", file=CONFIG)
        block_keys = Keys(block["attention"], path=f"block_configs[{index}].attention.")
        memories.append((_nas_memory(block_keys, heads, head_dim),))
        feed_forward = block.get("ffn") if isinstance(block.get("ffn"), dict) else {}
        _nas_weights(tally, memories[-1][0], feed_forward or {}, hidden, heads, index)
    return Shape(
        layers=tuple(memories), hidden_size=hidden, num_attention_heads=heads, head_dim=head_dim,
        vocab_size=vocabulary, tally=tally,
    )  # fmt: skip


def _deci(keys: Keys, family: Family, by_layer: list[object]) -> Shape:
    """DeciLM's first generation: every layer has attention, with a number of KV heads of its own."""
    plain = Keys({**keys.raw, "num_key_value_heads": keys.raw["num_attention_heads"]}, path=keys.path)
    geometry = read_geometry(plain, family)
    layers: list[tuple[Memory, ...]] = []
    for entry in by_layer:
        kv_heads = check_kv_heads(geometry.heads, keys.check(entry, ("num_key_value_heads_per_layer",), 1, 2**14))
        layers.append((Attention(num_kv_heads=kv_heads, head_dim=geometry.head_dim, v_head_dim=geometry.v_head_dim),))
    return finish(keys, family, geometry, layers)


_LINEAR = NoMemory(reason="attention replaced by a linear layer")


def _nas_memory(block: Keys, heads: int, head_dim: int) -> Memory:
    if block.flag("no_op"):
        return NoMemory(reason="attention removed")
    if block.flag("replace_with_linear"):
        return _LINEAR
    group = block.integer("n_heads_in_group", high=heads)
    window = block.optional("window_length", high=2**40)
    kv_heads = check_kv_heads(heads, max(1, heads // group))
    return Attention(
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        v_head_dim=head_dim,
        limit=window,
        law="full" if window is None else "sliding",
    )


def _nas_weights(
    tally: Tally, memory: Memory, feed_forward: dict[str, object], hidden: int, heads: int, index: int
) -> None:
    if memory.kv_heads:
        tally.add(
            "attention",
            attention_parameters(hidden, heads, memory.kv_heads, memory.key_width, memory.value_width),
        )
    elif memory == _LINEAR:
        tally.add("attention", hidden * hidden)
    factor = feed_forward.get("ffn_mult")
    if feed_forward.get("replace_with_linear"):
        tally.add("feed-forward", hidden * hidden)
    elif isinstance(factor, int | float) and not feed_forward.get("no_op"):
        # Two thirds of the multiple, rounded up to 256 (DeciLM's modelling code).
        width = -(-int(2 * factor * hidden / 3) // 256) * 256
        tally.add("feed-forward", 3 * hidden * width)
    tally.add("norms", 2 * hidden)


def read_openelm(keys: Keys, family: Family) -> Shape:
    """OpenELM: every layer has its own number of query and KV heads."""
    layers, hidden = read_layers(keys), read_hidden(keys)
    head_dim = keys.integer("head_dim", high=2**16)
    queries = keys.per_layer("num_query_heads", layers)
    kv_heads = keys.per_layer("num_kv_heads", layers)
    if queries is None or kv_heads is None:
        raise ConfigError("num_query_heads and num_kv_heads need one entry for each layer", file=CONFIG)
    memories: list[tuple[Memory, ...]] = []
    for index in range(layers):
        heads = keys.check(queries[index], ("num_query_heads",), 1, 2**14)
        own = check_kv_heads(heads, keys.check(kv_heads[index], ("num_kv_heads",), 1, 2**14))
        memories.append((Attention(num_kv_heads=own, head_dim=head_dim, v_head_dim=head_dim),))
    keys.know("num_gqa_groups", "qkv_multipliers")
    return Shape(
        layers=tuple(memories), hidden_size=hidden, num_attention_heads=int(max(queries)), head_dim=head_dim,
        vocab_size=keys.optional("vocab_size"),
    )  # fmt: skip


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
    shared = sum(memories[0].kind == "shared" for memories in layers)
    width = keys.optional("intermediate_size") or 0
    if keys.flag("use_double_wide_mlp"):
        tally.add("feed-forward", shared * 3 * hidden * width)
    if keys.flag("enable_moe_block"):
        tally.add("feed-forward", len(layers) * 3 * hidden * width)
    if one_projection:
        for memories in layers:
            memory = memories[0]
            if memory.kind == "full":
                tally.add("attention", -hidden * memory.kv_heads * memory.value_width)
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
