"""Designs of recurrent layers: the state that one layer keeps, and the parameters it has.

Shapes follow vLLM 0.33, model_executor/layers/mamba/mamba_utils.py; a convolution keeps its last K − 1 columns.
"""

from __future__ import annotations

from collections.abc import Callable

from kvcore.errors import CONFIG, ConfigError, UnknownLayoutError
from kvcore.formats import element_format
from kvcore.model.keys import Keys, model_dtype
from kvcore.model.memories import State, StateDesign, StatePart, StateTensor
from kvcore.model.readers.shape import (
    Family,
    read_head_dim,
    read_heads,
)
from kvcore.model.weights import delta_net_parameters, mamba1_parameters, mamba2_parameters

# A state and the parameters of the layer that keeps it.
Design = Callable[[Keys, Family, int], tuple[State, int]]
STATE_DTYPE_NAMES = ("mamba_ssm_cache_dtype", "mamba_ssm_dtype")


def state_bytes_per_element(keys: Keys, family: Family) -> int:
    """Bytes of one number of a recurrent state: the declared dtype, else the family's, else the model's."""
    declared = keys.text(*STATE_DTYPE_NAMES)
    if declared == "auto":
        declared = None
    return _element_bytes(declared or family.state_dtype or model_dtype(keys))


def _element_bytes(name: str) -> int:
    return int(element_format(name).bits) // 8


def compressor_state(design: StateDesign, rows: int, width: int) -> State:
    """The rolling rows of a DeepSeek-V4 compressor: values and gates, in fp32."""
    return State(design=design, parts=(StatePart(name=StateTensor.ROWS, shape=(rows, 2, width), element_bytes=4),))


def _state(design: StateDesign, conv: tuple[int, ...], conv_bytes: int, ssm: tuple[int, ...], ssm_bytes: int) -> State:
    parts = [StatePart(name=StateTensor.STATE, shape=ssm, element_bytes=ssm_bytes)]
    if conv[-1] > 0:
        parts.insert(0, StatePart(name=StateTensor.CONVOLUTION, shape=conv, element_bytes=conv_bytes))
    return State(design=design, parts=tuple(parts))


def mamba1(keys: Keys, family: Family, hidden: int) -> tuple[State, int]:
    """Mamba 1: a convolution of `inner` channels and `state` numbers for each of them."""
    expand = keys.integer("mamba_expand", "expand", default=2)
    # Zamba splits the inner width over heads; together they keep the same state.
    keys.know("n_mamba_heads")
    inner = hidden * expand
    if family.options.get("inner_is_stated"):
        inner = keys.integer("intermediate_size", default=inner)
    state = keys.integer("mamba_d_state", "state_size", "ssm_state_size", default=16, high=2**16)
    conv = keys.integer("mamba_d_conv", "conv_kernel", "d_conv", default=4, high=1024)
    rank = keys.get("mamba_dt_rank", "time_step_rank")
    dt_rank = -(-hidden // 16) if rank in (None, "auto") else keys.check(rank, ("mamba_dt_rank",), 1, 2**20)
    memory = _state(
        StateDesign.MAMBA_1, (inner, conv - 1), _element_bytes(model_dtype(keys)), (inner, state),
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
        raise ConfigError(f"{heads} Mamba heads do not fit an inner width of {inner}", file=CONFIG)
    groups = keys.integer("mamba_n_groups", "mamba_ngroups", "n_groups", default=1, high=2**14)
    state = keys.integer("mamba_d_state", "ssm_state_size", "state_size", default=128, high=2**16)
    conv = keys.integer("mamba_d_conv", "conv_kernel", default=4, high=1024)
    memory = _state(
        StateDesign.MAMBA_2, (inner + 2 * groups * state, conv - 1), _element_bytes(model_dtype(keys)),
        (heads, head_dim, state), state_bytes_per_element(keys, family),
    )  # fmt: skip
    return memory, mamba2_parameters(hidden, inner, groups, state, heads, conv)


def mamba_ssm(keys: Keys, family: Family, hidden: int) -> tuple[State, int]:
    """The first files of Mamba 1 and 2: `ssm_cfg` names the layer and what differs from that layer's defaults."""
    own = keys.child("ssm_cfg") or keys
    if keys.items("attn_layer_idx"):
        raise UnknownLayoutError("attn_layer_idx: attention layers of mamba_ssm files are not read", file=CONFIG,
                                 keys=("attn_layer_idx",))  # fmt: skip
    keys.know("attn_cfg")
    inner = hidden * own.integer("expand", default=2)
    conv = own.integer("d_conv", default=4, high=1024)
    element = _element_bytes(model_dtype(keys))
    if own.text("layer") == "Mamba2":
        head_dim, size = own.integer("headdim", default=64), own.integer("d_state", default=128, high=2**16)
        groups = own.integer("ngroups", default=1)
        memory = _state(StateDesign.MAMBA_2, (inner + 2 * groups * size, conv - 1), element,
                        (max(1, inner // head_dim), head_dim, size), element)  # fmt: skip
        return memory, mamba2_parameters(hidden, inner, groups, size, max(1, inner // head_dim), conv)
    size = own.integer("d_state", default=16, high=2**16)
    memory = _state(StateDesign.MAMBA_1, (inner, conv - 1), element, (inner, size), element)
    return memory, mamba1_parameters(hidden, inner, size, conv, -(-hidden // 16))


def gated_delta_net(keys: Keys, family: Family, hidden: int) -> tuple[State, int]:
    """Gated delta net (Qwen3-Next, Qwen3.5, Olmo hybrid): a matrix for each value head."""
    k_heads = keys.integer("linear_num_key_heads", high=2**14)
    v_heads = keys.integer("linear_num_value_heads", high=2**14)
    k_dim = keys.integer("linear_key_head_dim", high=2**14)
    v_dim = keys.integer("linear_value_head_dim", high=2**14)
    conv = keys.integer("linear_conv_kernel_dim", default=4, high=1024)
    channels = 2 * k_heads * k_dim + v_heads * v_dim
    memory = _state(
        StateDesign.GATED_DELTA_NET, (channels, conv - 1), _element_bytes(model_dtype(keys)), (v_heads, v_dim, k_dim),
        state_bytes_per_element(keys, family),
    )  # fmt: skip
    return memory, delta_net_parameters(hidden, k_heads, v_heads, k_dim, v_dim, conv)


def kimi_delta(keys: Keys, family: Family, hidden: int) -> tuple[State, int]:
    """Kimi delta attention: a square matrix a head in fp32, convolutions over q, k and v."""
    nested = keys.child("linear_attn_config")
    if nested is not None:
        heads, width = nested.integer("num_heads", high=2**14), nested.integer("head_dim", high=2**14)
        conv = nested.integer("short_conv_kernel_size", default=4, high=1024)
    else:
        heads, width = keys.integer("linear_num_heads", high=2**14), keys.integer("linear_head_dim", high=2**14)
        conv = keys.integer("linear_conv_kernel_dim", default=4, high=1024)
    memory = _state(
        StateDesign.KIMI_DELTA, (3 * heads * width, conv - 1), _element_bytes(model_dtype(keys)),
        (heads, width, width), state_bytes_per_element(keys, family),
    )  # fmt: skip
    inner = heads * width
    # q, k, v, out; low-rank decay and output gates of one head's width; beta.
    return memory, hidden * inner * 4 + 2 * (hidden * width + width * inner) + hidden * heads + 3 * inner * conv


def lightning(keys: Keys, family: Family, hidden: int) -> tuple[State, int]:
    """Lightning (linear) attention: a square matrix for each head, no convolution."""
    heads = read_heads(keys)
    width = read_head_dim(keys, hidden, heads)
    memory = _state(StateDesign.LINEAR, (0,), 0, (heads, width, width), state_bytes_per_element(keys, family))
    return memory, 5 * hidden * heads * width


def short_convolution(keys: Keys, family: Family, hidden: int) -> tuple[State, int]:
    """Gated short convolution (LFM2): the last L − 1 columns."""
    channels = keys.integer("conv_dim", default=hidden)
    length = keys.integer("conv_L_cache", default=3, high=1024)
    keys.know("conv_dim_out", "conv_use_xavier_init")
    columns = StatePart(
        name=StateTensor.CONVOLUTION, shape=(channels, length - 1), element_bytes=_element_bytes(model_dtype(keys))
    )
    return State(design=StateDesign.SHORT_CONVOLUTION, parts=(columns,)), 4 * hidden * channels + channels * length


def rg_lru(keys: Keys, family: Family, hidden: int) -> tuple[State, int]:
    """RG-LRU (Griffin, RecurrentGemma): one number a channel in fp32, and a convolution."""
    width = keys.integer("lru_width", default=hidden)
    conv = keys.integer("conv1d_width", default=4, high=1024)
    memory = _state(StateDesign.RG_LRU, (width, conv - 1), _element_bytes(model_dtype(keys)), (width,), 4)
    heads = read_heads(keys)
    return memory, 3 * hidden * width + width * conv + 2 * width * width // heads


def rwkv4(keys: Keys, family: Family, hidden: int) -> tuple[State, int]:
    """RWKV-4: two shifted tokens, and numerator, denominator and maximum of each channel in fp32."""
    inner = keys.integer("attention_hidden_size", default=hidden)
    shift = StatePart(
        name=StateTensor.SHIFTED_TOKENS, shape=(2, hidden), element_bytes=_element_bytes(model_dtype(keys))
    )
    wkv = StatePart(name=StateTensor.WKV, shape=(3, inner), element_bytes=4)
    return State(design=StateDesign.RWKV_4, parts=(shift, wkv)), 4 * hidden * inner


def rwkv_matrix(keys: Keys, family: Family, hidden: int) -> tuple[State, int]:
    """RWKV-5, 6 and 7: two shifted tokens and a square matrix a head in fp32."""
    width = keys.integer("head_size", "head_dim", default=64, high=2**14)
    inner = keys.integer("attention_hidden_size", default=hidden)
    keys.know("num_attention_heads", "head_size_divisor")
    if inner % width:
        raise ConfigError(f"hidden_size {inner} is not divisible by head_size {width}", file=CONFIG)
    shift = StatePart(
        name=StateTensor.SHIFTED_TOKENS, shape=(2, hidden), element_bytes=_element_bytes(model_dtype(keys))
    )
    wkv = StatePart(name=StateTensor.WKV, shape=(inner // width, width, width), element_bytes=4)
    return State(design=StateDesign.RWKV, parts=(shift, wkv)), 5 * hidden * inner


DESIGNS: dict[str, Design] = {
    "mamba1": mamba1, "mamba2": mamba2, "mamba_ssm": mamba_ssm, "gdn": gated_delta_net, "kda": kimi_delta,
    "lightning": lightning,
    "conv": short_convolution, "rg_lru": rg_lru, "rwkv4": rwkv4, "rwkv_matrix": rwkv_matrix,
}  # fmt: skip
