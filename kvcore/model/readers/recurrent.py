"""Models with recurrent layers: a state of fixed size in place of a growing cache, in some or all layers.

Shapes follow vLLM 0.33, model_executor/layers/mamba/mamba_utils.py; a convolution keeps its last K − 1 columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kvcore.errors import ConfigError, UnknownLayoutError
from kvcore.formats import element_format
from kvcore.model.keys import Keys
from kvcore.model.memories import Memory, NoMemory, State, StatePart
from kvcore.model.readers.attention import attention_memory
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
from kvcore.model.weights import (
    FeedForward,
    Tally,
    attention_parameters,
    count_embeddings,
    delta_net_parameters,
    mamba1_parameters,
    mamba2_parameters,
    read_feed_forward,
)

# A state and the parameters of the layer that keeps it.
Design = Callable[[Keys, Family, int], tuple[State, int]]
STATE_DTYPE_NAMES = ("mamba_ssm_cache_dtype", "mamba_ssm_dtype")


def state_bytes_per_element(keys: Keys, family: Family) -> int:
    """Bytes of one number of a recurrent state: the declared dtype, else the family's, else the model's."""
    declared = keys.text(*STATE_DTYPE_NAMES)
    return _element_bytes(declared or family.state_dtype or model_dtype(keys))


def model_dtype(keys: Keys) -> str:
    """The 16-bit dtype that the model is served in; a float32 checkpoint is served in bf16."""
    stated = str(keys.raw.get("dtype") or keys.raw.get("torch_dtype") or "bfloat16").removeprefix("torch.")
    return "fp16" if stated in ("float16", "fp16", "half") else "bf16"


def _element_bytes(name: str) -> int:
    return int(element_format(name).bits) // 8


def compressor_state(name: str, rows: int, width: int) -> State:
    """The rolling rows of a DeepSeek-V4 compressor: values and gates, in fp32."""
    return State(design=name, parts=(StatePart(name="rows", shape=(rows, 2, width), element_bytes=4),))


def _state(design: str, conv: tuple[int, ...], conv_bytes: int, ssm: tuple[int, ...], ssm_bytes: int) -> State:
    parts = [StatePart(name="state", shape=ssm, element_bytes=ssm_bytes)]
    if conv[-1] > 0:
        parts.insert(0, StatePart(name="convolution", shape=conv, element_bytes=conv_bytes))
    return State(design=design, parts=tuple(parts))


def mamba1(keys: Keys, family: Family, hidden: int) -> tuple[State, int]:
    """Mamba 1: a convolution of `inner` channels and `state` numbers for each of them."""
    expand = keys.integer("mamba_expand", "expand", default=2)
    inner = hidden * expand
    if family.options.get("inner_is_stated"):
        inner = keys.integer("intermediate_size", default=inner)
    state = keys.integer("mamba_d_state", "state_size", "ssm_state_size", default=16, high=2**16)
    conv = keys.integer("mamba_d_conv", "conv_kernel", "d_conv", default=4, high=1024)
    rank = keys.get("mamba_dt_rank", "time_step_rank")
    dt_rank = -(-hidden // 16) if rank in (None, "auto") else keys.check(rank, ("mamba_dt_rank",), 1, 2**20)
    memory = _state(
        "Mamba 1", (inner, conv - 1), _element_bytes(model_dtype(keys)), (inner, state),
        state_bytes_per_element(keys, family),
    )  # fmt: skip
    return memory, mamba1_parameters(hidden, inner, state, conv, dt_rank)


def mamba2(keys: Keys, family: Family, hidden: int) -> tuple[State, int]:
    """Mamba 2: heads of a matrix state, and a convolution over them and the groups' B and C."""
    heads = keys.integer("mamba_n_heads", "mamba_num_heads", "n_mamba_heads", "num_heads", high=2**16)
    expand = keys.integer("mamba_expand", "expand", default=2)
    stated_dim = keys.get("mamba_d_head", "mamba_head_dim", "mamba_headdim", "head_dim")
    inner = keys.optional("mamba_d_ssm") or 0
    if stated_dim in (None, "auto"):
        inner = inner or hidden * expand
        head_dim = inner // heads
    else:
        head_dim = keys.check(stated_dim, ("mamba_d_head",), 1, 2**16)
        inner = inner or heads * head_dim
    if head_dim < 1:
        raise ConfigError(f"config.json: {heads} Mamba heads do not fit an inner width of {inner}")
    groups = keys.integer("mamba_n_groups", "mamba_ngroups", "n_groups", default=1, high=2**14)
    state = keys.integer("mamba_d_state", "ssm_state_size", "state_size", default=128, high=2**16)
    conv = keys.integer("mamba_d_conv", "conv_kernel", default=4, high=1024)
    memory = _state(
        "Mamba 2", (inner + 2 * groups * state, conv - 1), _element_bytes(model_dtype(keys)),
        (heads, head_dim, state), state_bytes_per_element(keys, family),
    )  # fmt: skip
    return memory, mamba2_parameters(hidden, inner, groups, state, heads, conv)


def gated_delta_net(keys: Keys, family: Family, hidden: int) -> tuple[State, int]:
    """Gated delta net (Qwen3-Next, Qwen3.5, Olmo hybrid): a matrix for each value head."""
    k_heads = keys.integer("linear_num_key_heads", high=2**14)
    v_heads = keys.integer("linear_num_value_heads", high=2**14)
    k_dim = keys.integer("linear_key_head_dim", high=2**14)
    v_dim = keys.integer("linear_value_head_dim", high=2**14)
    conv = keys.integer("linear_conv_kernel_dim", default=4, high=1024)
    channels = 2 * k_heads * k_dim + v_heads * v_dim
    memory = _state(
        "Gated delta net", (channels, conv - 1), _element_bytes(model_dtype(keys)), (v_heads, v_dim, k_dim),
        state_bytes_per_element(keys, family),
    )  # fmt: skip
    return memory, delta_net_parameters(hidden, k_heads, v_heads, k_dim, v_dim, conv)


def kimi_delta(keys: Keys, family: Family, hidden: int) -> tuple[State, int]:
    """Kimi delta attention: a square matrix a head in fp32, convolutions over q, k and v."""
    nested = keys.child("linear_attn_config") or keys
    heads = nested.integer("num_heads", "linear_num_heads", high=2**14)
    width = nested.integer("head_dim", "linear_head_dim", high=2**14)
    conv = nested.integer("short_conv_kernel_size", "linear_conv_kernel_dim", default=4, high=1024)
    memory = _state(
        "Kimi delta attention", (3 * heads * width, conv - 1), _element_bytes(model_dtype(keys)),
        (heads, width, width), state_bytes_per_element(keys, family),
    )  # fmt: skip
    inner = heads * width
    # q, k, v, out; low-rank decay and output gates of one head's width; beta.
    return memory, hidden * inner * 4 + 2 * (hidden * width + width * inner) + hidden * heads + 3 * inner * conv


def lightning(keys: Keys, family: Family, hidden: int) -> tuple[State, int]:
    """Lightning (linear) attention: a square matrix for each head, no convolution."""
    heads = read_heads(keys)
    width = read_head_dim(keys, hidden, heads)
    memory = _state("Linear attention", (0,), 0, (heads, width, width), state_bytes_per_element(keys, family))
    return memory, 5 * hidden * heads * width


def short_convolution(keys: Keys, family: Family, hidden: int) -> tuple[State, int]:
    """Gated short convolution (LFM2): the last L − 1 columns."""
    channels = keys.integer("conv_dim", default=hidden)
    length = keys.integer("conv_L_cache", default=3, high=1024)
    keys.know("conv_dim_out", "conv_use_xavier_init")
    columns = StatePart(
        name="convolution", shape=(channels, length - 1), element_bytes=_element_bytes(model_dtype(keys))
    )
    return State(design="Short convolution", parts=(columns,)), 4 * hidden * channels + channels * length


def rg_lru(keys: Keys, family: Family, hidden: int) -> tuple[State, int]:
    """RG-LRU (Griffin, RecurrentGemma): one number a channel in fp32, and a convolution."""
    width = keys.integer("lru_width", default=hidden)
    conv = keys.integer("conv1d_width", default=4, high=1024)
    memory = _state("RG-LRU", (width, conv - 1), _element_bytes(model_dtype(keys)), (width,), 4)
    heads = read_heads(keys)
    return memory, 3 * hidden * width + width * conv + 2 * width * width // heads


def rwkv4(keys: Keys, family: Family, hidden: int) -> tuple[State, int]:
    """RWKV-4: two shifted tokens, and numerator, denominator and maximum of each channel in fp32."""
    inner = keys.integer("attention_hidden_size", default=hidden)
    shift = StatePart(name="shifted tokens", shape=(2, hidden), element_bytes=_element_bytes(model_dtype(keys)))
    wkv = StatePart(name="wkv", shape=(3, inner), element_bytes=4)
    return State(design="RWKV-4", parts=(shift, wkv)), 4 * hidden * inner


def rwkv_matrix(keys: Keys, family: Family, hidden: int) -> tuple[State, int]:
    """RWKV-5, 6 and 7: two shifted tokens and a square matrix a head in fp32."""
    width = keys.integer("head_size", "head_dim", default=64, high=2**14)
    inner = keys.integer("attention_hidden_size", default=hidden)
    keys.know("num_attention_heads", "head_size_divisor")
    if inner % width:
        raise ConfigError(f"config.json: hidden_size {inner} is not divisible by head_size {width}")
    shift = StatePart(name="shifted tokens", shape=(2, hidden), element_bytes=_element_bytes(model_dtype(keys)))
    wkv = StatePart(name="wkv", shape=(inner // width, width, width), element_bytes=4)
    return State(design=str(family.options.get("design", "RWKV")), parts=(shift, wkv)), 5 * hidden * inner


DESIGNS: dict[str, Design] = {
    "mamba1": mamba1, "mamba2": mamba2, "gdn": gated_delta_net, "kda": kimi_delta, "lightning": lightning,
    "conv": short_convolution, "rg_lru": rg_lru, "rwkv4": rwkv4, "rwkv_matrix": rwkv_matrix,
}  # fmt: skip

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
        raise ConfigError(f"config.json: a layer is {slot!r}, but there is no attention to size it by")
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


def _listed(keys: Keys, layers: int) -> tuple[Slot, ...]:
    """A list with one word a layer, or a string with one letter a layer."""
    for name in ("layers_block_type", "layer_types", "hybrid_override_pattern"):
        value = keys.get(name)
        if value is not None:
            return _words(name, value, layers)
    found = _by_indices(keys, layers)
    if found is None:
        raise ConfigError("config.json: layer_types is missing; expected one word for each layer")
    return found


def _words(name: str, value: Any, layers: int) -> tuple[Slot, ...]:
    if not isinstance(value, str | list):
        raise ConfigError(f"config.json: {name} is neither a list nor a pattern of letters")
    if len(value) < layers:
        raise ConfigError(f"config.json: {name} has {len(value)} entries for {layers} layers")
    unknown = [str(word)[:40] for word in value[:layers] if not isinstance(word, str) or word not in _WORDS]
    if unknown:
        raise UnknownLayoutError(f"config.json: {name} has {unknown[0]!r}, which is not understood", keys=(name,))
    return tuple(_WORDS[word] for word in value[:layers])


def _by_indices(keys: Keys, layers: int) -> tuple[Slot, ...] | None:
    """Lists of the layers that attend: Bamba's, LFM2's; or Zamba2's of its hybrid layers."""
    attends = keys.items("attn_layer_indices", "full_attn_idxs")
    if attends is not None:
        return tuple("full" if layer in attends else "state" for layer in range(layers))
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
        raise ConfigError("config.json: attn_type_list has an entry that is neither 0 (linear) nor 1 (full)")
    return tuple("full" if entry else "state" for entry in listed)


def _cycle(keys: Keys, layers: int) -> tuple[Slot, ...]:
    """RecurrentGemma: a short list of block types that repeats; its attention slides."""
    block = keys.items("block_types", "_block_types") or ["recurrent", "recurrent", "attention"]
    words = {"recurrent": "state", "attention": "sliding"}
    if any(word not in words for word in map(str, block)):
        raise UnknownLayoutError("config.json: block_types has a word that is not understood", keys=("block_types",))
    return tuple(words[str(block[layer % len(block)])] for layer in range(layers))


LAYOUTS: dict[str, Callable[[Keys, int], tuple[Slot, ...]]] = {
    "all_state": _all_state, "all_both": _all_both, "listed": _listed, "period": _period,
    "zamba_period": _zamba_period, "interval": _interval, "type_list": _type_list, "cycle": _cycle,
}  # fmt: skip
