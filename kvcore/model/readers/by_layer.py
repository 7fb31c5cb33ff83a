"""Families whose layers differ in their heads, or that keep something beside keys and values."""

from __future__ import annotations

from dataclasses import replace

from kvcore.errors import ConfigError
from kvcore.formats import element_format
from kvcore.model.dtype import model_dtype
from kvcore.model.keys import Keys
from kvcore.model.memories import Attention, Memory, NoMemory, State, StatePart
from kvcore.model.readers.attention import (
    attention_memory,
    finish,
    read_attention,
    read_geometry,
)
from kvcore.model.readers.shape import (
    Family,
    Shape,
    check_kv_heads,
    read_head_dim,
    read_heads,
    read_hidden,
    read_layers,
)
from kvcore.model.readers.windows import layer_laws, window_size
from kvcore.model.weights import Tally, attention_parameters, count_embeddings


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
    return finish(keys, family, geometry, layers)


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
    recent = StatePart(name="hidden states", shape=(2, shape.hidden_size), element_bytes=element)
    state = State(design="Localized filtering", parts=(recent,))
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
        raise ConfigError("config.json: block_configs is missing; expected one entry for each layer")
    memories: list[tuple[Memory, ...]] = []
    tally = Tally()
    vocabulary = count_embeddings(keys, tally, hidden, tied_by_default=False)
    for index, block in enumerate(blocks):
        if not isinstance(block, dict) or not isinstance(block.get("attention"), dict):
            raise ConfigError(f"config.json: block_configs[{index}] has no attention object")
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
    if isinstance(memory, Attention):
        tally.add(
            "attention",
            attention_parameters(hidden, heads, memory.num_kv_heads, memory.head_dim, memory.v_head_dim),
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
        raise ConfigError("config.json: num_query_heads and num_kv_heads need one entry for each layer")
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
