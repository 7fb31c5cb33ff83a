"""Multi-head latent attention (MLA): one compressed vector a token in place of keys and values, and its indexers."""

from __future__ import annotations

from kvcore.errors import CONFIG, ConfigError
from kvcore.formats import ELEMENT_FORMATS
from kvcore.model.keys import Keys
from kvcore.model.memories import INDEXER_FP8, Indexer, Latent, Memory, StateDesign
from kvcore.model.readers.attention import attention_memory, finish, read_attention, read_geometry
from kvcore.model.readers.designs import compressor_state, kimi_delta
from kvcore.model.readers.shape import Family, Shape, read_heads, read_hidden, read_layers
from kvcore.model.weights import Tally, count_embeddings, mla_parameters, read_feed_forward

MLA_KEYS = ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "q_lora_rank")


def read_latent(keys: Keys, family: Family) -> Shape:
    """A model whose every layer keeps a latent, or plain keys and values where MLA is switched off."""
    if not uses_mla(keys):
        keys.know(*MLA_KEYS)
        plain = Keys({name: value for name, value in keys.raw.items() if name != "v_head_dim"})
        shape = read_attention(plain, family)
        keys.used.update(plain.used)
        keys.notes.extend([*plain.notes, "MLA is switched off here: plain keys and values are kept."])
        return shape
    layers = read_layers(keys, "num_hidden_layers", "num_layers")
    memory = latent_memory(keys)
    each = int(str(family.options.get("attentions_a_layer", 1)))
    indexers = indexer_layers(keys, layers)
    latents: tuple[Memory, ...] = (memory,) * each
    indexed = (*latents, _indexer(keys)) if any(indexers) else latents
    stack = [indexed if has_indexer else latents for has_indexer in indexers]
    return _finish(keys, family, stack, each)


def uses_mla(keys: Keys) -> bool:
    """Whether the configuration has a latent; `use_mla: false` or a null rank switches it off."""
    if not keys.flag("use_mla", True):
        return False
    return keys.get("kv_lora_rank") is not None


def latent_memory(keys: Keys) -> Latent:
    """The latent that one MLA layer keeps. `num_key_value_heads` and `head_dim` do not size it."""
    keys.know("num_key_value_heads", "head_dim", "qk_head_dim")
    rank = keys.integer("kv_lora_rank", high=2**16)
    rope = keys.integer("qk_rope_head_dim", low=0, high=2**16)
    # fp8_ds_mla: 512 fp8 numbers, four 4-byte scales, 64 bf16 numbers (vLLM 0.33, mla_attention.py).
    packed = rank + rank // 128 * 4 + rope * 2 if (rank, rope) == (512, 64) else None
    return Latent(kv_lora_rank=rank, qk_rope_head_dim=rope, packed_bytes=packed)


def key_width(keys: Keys) -> int:
    """The width of one query head's key: the part without position and the rotary part."""
    nope = keys.integer("qk_nope_head_dim", low=0, high=2**16)
    return nope + keys.integer("qk_rope_head_dim", low=0, high=2**16)


def indexer_layers(keys: Keys, layers: int) -> tuple[bool, ...]:
    """Which layers have a sparse-attention indexer of their own; others reuse an earlier one's choice (GLM-5.2)."""
    if keys.get("index_head_dim") is None:
        return (False,) * layers
    keys.know("index_n_heads", "index_topk", "layer_types", "index_topk_freq", "index_skip_topk_offset")
    keys.know("index_topk_pattern")
    types = keys.per_layer("indexer_types", layers)
    if types is not None:
        return tuple(kind != "shared" for kind in types)
    pattern = keys.get("index_topk_pattern")
    if isinstance(pattern, str | list) and len(pattern) >= layers:
        return tuple(letter != "S" for letter in pattern[:layers])
    frequency = keys.integer("index_topk_freq", default=1)
    offset = keys.integer("index_skip_topk_offset", default=2, low=0)
    return tuple(max(layer - offset + 1, 0) % frequency == 0 for layer in range(layers))


def _indexer(keys: Keys) -> Indexer:
    return Indexer(
        index_head_dim=keys.integer("index_head_dim", high=2**16),
        stored_as=INDEXER_FP8,
        index_topk=_stated(keys, "index_topk"),
        index_heads=_stated(keys, "index_n_heads"),
    )


def _stated(keys: Keys, name: str) -> int | None:
    """A count, or None where it is absent, null or 0."""
    return keys.optional(name, low=0, high=2**40) or None


def mla_layer_parameters(keys: Keys, hidden: int, heads: int) -> int:
    """Parameters of one MLA layer; raises ConfigError when a width is missing."""
    return mla_parameters(
        hidden,
        heads,
        q_rank=keys.optional("q_lora_rank", low=0),
        kv_rank=keys.integer("kv_lora_rank"),
        nope=keys.integer("qk_nope_head_dim", low=0, high=2**16),
        rope=keys.integer("qk_rope_head_dim", low=0, high=2**16),
        value=keys.integer("v_head_dim", default=max(1, hidden // heads), high=2**16),
    )


def _finish(keys: Keys, family: Family, stack: list[tuple[Memory, ...]], each: int) -> Shape:
    hidden, heads = read_hidden(keys), read_heads(keys)
    tally = Tally()
    vocabulary = count_embeddings(keys, tally, hidden, family.tied)
    feed_forward = read_feed_forward(keys, len(stack), hidden, gated=family.gated)
    per_layer = mla_layer_parameters(keys, hidden, heads)
    for index, memories in enumerate(stack):
        tally.add("attention", each * per_layer)
        if memories[-1].kind == "indexer":
            tally.add("indexer", _indexer_parameters(keys, hidden))
        feed_forward.count(tally, index)
        if each > 1:
            tally.add("feed-forward", each * 3 * hidden * feed_forward.dense_width)
        tally.add("norms", 2 * each * hidden)
    return Shape(
        layers=tuple(stack),
        hidden_size=hidden,
        num_attention_heads=heads,
        head_dim=keys.integer("v_head_dim", default=max(1, hidden // heads), high=2**16),
        key_head_dim=key_width(keys),
        vocab_size=vocabulary,
        experts=feed_forward.experts,
        widths=feed_forward.widths,
        tally=tally,
    )


def _indexer_parameters(keys: Keys, hidden: int) -> int:
    heads, width = keys.integer("index_n_heads", default=0, low=0), keys.integer("index_head_dim")
    query_rank = keys.optional("q_lora_rank", low=0) or hidden
    return query_rank * heads * width + hidden * width + hidden * heads


def read_minimax_m3(keys: Keys, family: Family) -> Shape:
    """MiniMax-M3: keys and values in every layer, and in most an index key of one head (vLLM 0.33, minimax_m3)."""
    geometry = read_geometry(keys, family)
    full = attention_memory(keys, geometry, "full")
    sparse = keys.child("sparse_attention_config")
    has_index, index = _m3_index(keys, sparse, geometry.layers)
    stack: list[tuple[Memory, ...]] = [(full, index) if index and wanted else (full,) for wanted in has_index]
    return finish(keys, family, geometry, stack)


def _m3_index(keys: Keys, sparse: Keys | None, layers: int) -> tuple[list[bool], Indexer | None]:
    """Which layers keep an index key, and that key (None: none does)."""
    if sparse is not None and sparse.flag("use_sparse_attention", True):
        listed = sparse.per_layer("sparse_attention_freq", layers) or [1] * layers
        sparse.know(
            "sparse_disable_index_value", "sparse_init_block", "sparse_local_block", "sparse_score_type",
        )  # fmt: skip
        names = ("sparse_index_dim", "sparse_num_index_heads", "sparse_topk_blocks", "sparse_block_size")
        return [bool(entry) for entry in listed], _m3_indexer(sparse, *names)
    types = keys.per_layer("layer_types", layers)
    if types and keys.get("index_head_dim"):
        keys.know("index_local_blocks")
        names = ("index_head_dim", "index_n_heads", "index_topk_blocks", "index_block_size")
        return [entry != "full_attention" for entry in types], _m3_indexer(keys, *names)
    return [False] * layers, None


def _m3_indexer(keys: Keys, width: str, heads: str, blocks: str, block_size: str) -> Indexer:
    """The key of MiniMax-M3's indexer, which chooses whole blocks; the local ones are among those chosen.

    Source: transformers 5.24, models/minimax_m3_vl (MiniMaxM3VLIndexer).
    """
    return Indexer(
        index_head_dim=keys.integer(width, high=2**16),
        stored_as=ELEMENT_FORMATS["bf16"],
        index_topk=(_stated(keys, blocks) or 0) * (_stated(keys, block_size) or 0) or None,
        index_heads=_stated(keys, heads),
    )


def read_deepseek_v4(keys: Keys, family: Family) -> Shape:
    """DeepSeek-V4: a window of latents in every layer, and compressed latents of 4 or 128 tokens in most.

    Ratio 4 also has an indexer over its compressed entries. Each compressor keeps a rolling state of rows in fp32.
    Source: vLLM 0.33, models/deepseek_v4 (attention.py, compressor.py).
    """
    layers = read_layers(keys, "num_hidden_layers", "n_layers")
    head_dim = keys.integer("head_dim", "kv_lora_rank", high=2**16)
    rope = keys.integer("qk_rope_head_dim", "rope_head_dim", low=0, high=2**16)
    if rope > head_dim:
        raise ConfigError(f"qk_rope_head_dim {rope} is wider than head_dim {head_dim}", file=CONFIG)
    keys.know("num_key_value_heads", "compress_rope_theta", "o_lora_rank", "o_groups")
    index = Indexer(
        index_head_dim=keys.integer("index_head_dim", default=128, high=2**16),
        stored_as=INDEXER_FP8,
        tokens_per_entry=4,
        index_topk=_stated(keys, "index_topk"),
        index_heads=keys.integer("index_n_heads", default=64, low=0) or None,
    )
    window = keys.integer("sliding_window", "window_size", high=2**40)
    ratios = _ratios(keys, layers)
    by_ratio = {ratio: _v4_layer(head_dim, rope, window, ratio, index) for ratio in set(ratios)}
    stack = [by_ratio[ratio] for ratio in ratios]
    return _finish_v4(keys, family, stack, head_dim)


def _ratios(keys: Keys, layers: int) -> list[int]:
    """The compression ratio of each layer: 0 for none."""
    listed = keys.per_layer("compress_ratios", layers)
    if listed is not None:
        return [keys.check(ratio, ("compress_ratios",), 0, 2**20) for ratio in listed]
    types, rates = keys.per_layer("layer_types", layers), keys.child("compress_rates")
    if types is None:
        raise ConfigError("compress_ratios is missing; expected one ratio for each layer", file=CONFIG)
    by_type = {"sliding_attention": 0}
    for name in ("compressed_sparse_attention", "heavily_compressed_attention"):
        by_type[name] = rates.integer(name) if rates is not None else {"c": 4, "h": 128}[name[0]]
    unknown = [kind for kind in types if kind not in by_type]
    if unknown:
        raise ConfigError(f"layer_types has {str(unknown[0])[:40]!r}, which is not understood", file=CONFIG)
    return [by_type[kind] for kind in types]


def _v4_layer(head_dim: int, rope: int, window: int, ratio: int, index: Indexer) -> tuple[Memory, ...]:
    nope = head_dim - rope
    # 448 fp8 numbers, 7 one-byte scales padded to 8, 64 bf16 numbers: 584 bytes.
    packed = nope + 8 + rope * 2 if (nope, rope) == (448, 64) else None
    recent = Latent(kv_lora_rank=nope, qk_rope_head_dim=rope, window=window, packed_bytes=packed)
    if not ratio:
        return (recent,)
    compressed = Latent(kv_lora_rank=nope, qk_rope_head_dim=rope, tokens_per_entry=ratio, packed_bytes=packed)
    overlap = 2 if ratio == 4 else 1
    state = compressor_state(StateDesign.COMPRESSOR, overlap * ratio, overlap * head_dim)
    if ratio != index.tokens_per_entry:
        return (recent, compressed, state)
    index_state = compressor_state(StateDesign.INDEXER_COMPRESSOR, 2 * ratio, 2 * index.index_head_dim)
    return (recent, compressed, index, state, index_state)


def _finish_v4(keys: Keys, family: Family, stack: list[tuple[Memory, ...]], head_dim: int) -> Shape:
    hidden, heads = keys.integer("hidden_size", "dim"), keys.integer("num_attention_heads", "n_heads")
    tally = Tally()
    vocabulary = count_embeddings(keys, tally, hidden, family.tied)
    keys.know("moe_inter_dim", "n_activated_experts")
    q_rank = keys.integer("q_lora_rank")
    o_rank, groups = keys.integer("o_lora_rank", default=1024), keys.integer("o_groups", default=8)
    index_heads, index_dim = keys.integer("index_n_heads", default=64), keys.integer("index_head_dim", default=128)
    feed_forward = read_feed_forward(keys, len(stack), hidden, gated=True)
    for index, memories in enumerate(stack):
        query = hidden * q_rank + q_rank * heads * head_dim
        output = heads * head_dim * o_rank + groups * o_rank * hidden
        tally.add("attention", query + hidden * head_dim + output)
        overlap = 2 if any(memory.kind == "indexer" for memory in memories) else 1
        if len(memories) > 1:
            tally.add("compressors", 2 * hidden * overlap * head_dim)
        if overlap == 2:
            tally.add("indexer", q_rank * index_heads * index_dim + hidden * (index_heads + 4 * index_dim))
        feed_forward.count(tally, index)
        tally.add("norms", 2 * hidden)
    return Shape(
        layers=tuple(stack),
        hidden_size=hidden,
        num_attention_heads=heads,
        head_dim=head_dim,
        vocab_size=vocabulary,
        experts=feed_forward.experts,
        widths=feed_forward.widths,
        tally=tally if feed_forward.experts else None,
    )


def read_kimi(keys: Keys, family: Family) -> Shape:
    """The shape of a model with latents in some layers and a delta state in the rest."""
    layers, hidden, heads = read_layers(keys), read_hidden(keys), read_heads(keys)
    latent = latent_memory(keys)
    state, state_parameters = kimi_delta(keys, family, hidden)
    attends = _attending(keys, layers)
    stack: list[tuple[Memory, ...]] = [(latent,) if full else (state,) for full in attends]
    tally = Tally()
    vocabulary = count_embeddings(keys, tally, hidden, family.tied)
    feed_forward = read_feed_forward(keys, layers, hidden, gated=True)
    latent_parameters = mla_layer_parameters(keys, hidden, heads)
    for index, full in enumerate(attends):
        tally.add("attention" if full else "recurrent layers", latent_parameters if full else state_parameters)
        feed_forward.count(tally, index)
        tally.add("norms", 2 * hidden)
    return Shape(
        layers=tuple(stack),
        hidden_size=hidden,
        num_attention_heads=heads,
        head_dim=keys.integer("v_head_dim", high=2**16),
        key_head_dim=key_width(keys),
        vocab_size=vocabulary,
        experts=feed_forward.experts,
        widths=feed_forward.widths,
        tally=tally,
    )


def _attending(keys: Keys, layers: int) -> list[bool]:
    """Which layers keep a latent; `kda_layers` and `full_attn_layers` count from 1."""
    types = keys.per_layer("layer_types", layers)
    if types is not None:
        return [kind == "full_attention" for kind in types]
    nested = keys.child("linear_attn_config")
    if nested is None:
        raise ConfigError("linear_attn_config is missing; expected kda_layers and full_attn_layers", file=CONFIG)
    delta, full = (
        {nested.check(layer, (name,), 1, layers) for layer in nested.items(name) or []}
        for name in ("kda_layers", "full_attn_layers")
    )
    # The lists name layers from 1; together they must name each layer once.
    if delta & full or delta | full != set(range(1, layers + 1)):
        raise ConfigError(
            f"kda_layers and full_attn_layers do not name each of the layers 1 … {layers} exactly once", file=CONFIG
        )
    return [layer in full for layer in range(1, layers + 1)]
