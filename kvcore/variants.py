"""Counterfactuals: the same model as if it had been built to remember differently.

Every variant is a Model made of the same memories, so everything that works on a model works on it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kvcore.errors import UnitError
from kvcore.model.memories import Attention, Latent, Memory, NoMemory, SharedCache, State, StatePart
from kvcore.model.model import Model
from kvcore.units import parse_tokens

# DeepSeek-V2's latent and rotary widths (section 2.1 of its paper).
_MLA_DEFAULT = (512, 64)
_SYNTAX = "mha, gqa:G, mqa, mla, mla:R+P, sliding:W, sliding:W/N, share:D, hybrid:N[:mamba2|gdn|kda], linear[:…]"


def variant(model: Model, text: str) -> Model:
    """The model as `text` says: mha, gqa:G, mqa, mla[:R+P], sliding:W[/N], share:D, hybrid:N[:design], linear[:design].

    Query heads and head widths stay the model's. Raises UnitError for a variant that cannot be read or built.
    """
    name, _, argument = text.strip().lower().partition(":")
    build = _BUILDERS.get(name)
    if build is None or len(text) > 60:
        raise UnitError(f"variant {text[:40]!r} is not known; known are {_SYNTAX}")
    layers = build(model, argument)
    return replace(model, name=f"{model.name} as {text.strip()}", layers=layers)


def head_widths(model: Model) -> tuple[int, int]:
    """(key, value) width of one query head: the model's own, also where it keeps a latent in their place."""
    for memory, _ in model.groups:
        if isinstance(memory, Attention):
            return memory.head_dim, memory.v_head_dim
    return model.key_head_dim or model.head_dim, model.head_dim


def _attention(model: Model, kv_heads: int) -> Attention:
    if model.num_attention_heads < 1:
        raise UnitError(f"{model.name} has no attention heads to build this variant from")
    if not 1 <= kv_heads <= model.num_attention_heads or model.num_attention_heads % kv_heads:
        raise UnitError(
            f"variant gqa:{kv_heads}: the number of KV heads must divide the {model.num_attention_heads} query heads"
        )
    key, value = head_widths(model)
    return Attention(num_kv_heads=kv_heads, head_dim=key, v_head_dim=value)


def _kv_heads(model: Model) -> int:
    """The model's own KV heads where it has any, else all of them."""
    counts = [(count, memory.num_kv_heads) for memory, count in model.groups if isinstance(memory, Attention)]
    return max(counts)[1] if counts else model.num_attention_heads


def _everywhere(model: Model, memory: Memory) -> tuple[tuple[Memory, ...], ...]:
    return _layers(model, lambda _: memory)


def _layers(model: Model, memory_of: Callable[[int], Memory]) -> tuple[tuple[Memory, ...], ...]:
    """One memory a layer; layers that are only feed-forward, or whose attention was removed, still keep nothing."""
    return tuple(
        layer if isinstance(layer[0], NoMemory) else (memory_of(index),) for index, layer in enumerate(model.layers)
    )


def _mha(model: Model, argument: str) -> tuple[tuple[Memory, ...], ...]:
    _no_argument("mha", argument)
    return _everywhere(model, _attention(model, model.num_attention_heads))


def _mqa(model: Model, argument: str) -> tuple[tuple[Memory, ...], ...]:
    _no_argument("mqa", argument)
    return _everywhere(model, _attention(model, 1))


def _gqa(model: Model, argument: str) -> tuple[tuple[Memory, ...], ...]:
    return _everywhere(model, _attention(model, _number(argument, "gqa:G", 2**14)))


def _mla(model: Model, argument: str) -> tuple[tuple[Memory, ...], ...]:
    rank, rope = _MLA_DEFAULT
    if argument:
        first, plus, second = argument.partition("+")
        rank = _number(first, "mla:R+P", 2**16)
        rope = _number(second if plus else "", "mla:R+P", 2**16, low=0)
    packed = 656 if (rank, rope) == _MLA_DEFAULT else None
    return _everywhere(model, Latent(kv_lora_rank=rank, qk_rope_head_dim=rope, packed_bytes=packed))


def _sliding(model: Model, argument: str) -> tuple[tuple[Memory, ...], ...]:
    first, _, second = argument.partition("/")
    window = parse_tokens(first, "variant sliding:W") if first else 0
    if window < 1:
        raise UnitError(f"variant sliding:W: {first[:20]!r} is not a window of at least one token")
    full = _attention(model, _kv_heads(model))
    sliding = replace(full, limit=window, law="sliding")
    if not second:
        return _everywhere(model, sliding)
    every = _number(second, "sliding:W/N", 2048)
    return _layers(model, lambda layer: full if (layer + 1) % every == 0 else sliding)


def _share(model: Model, argument: str) -> tuple[tuple[Memory, ...], ...]:
    depth = _number(argument, "share:D", 2048)
    own = _attention(model, _kv_heads(model))
    return _layers(model, lambda layer: own if layer % depth == 0 else SharedCache(owner=layer - layer % depth))


def _hybrid(model: Model, argument: str) -> tuple[tuple[Memory, ...], ...]:
    first, _, design = argument.partition(":")
    every = _number(first, "hybrid:N", 2048)
    full, state = _attention(model, _kv_heads(model)), fixed_state(model, design or "mamba2")
    return _layers(model, lambda layer: full if (layer + 1) % every == 0 else state)


def _linear(model: Model, argument: str) -> tuple[tuple[Memory, ...], ...]:
    return _everywhere(model, fixed_state(model, argument or "linear"))


def fixed_state(model: Model, design: str) -> State:
    """The state that a layer of this model's width would keep in a named design.

    mamba2: inner width 2 × hidden, heads of 64, state 128, 8 groups (Mamba-2 as in Nemotron-H, fp32 state).
    gdn: value heads of 128 over 2 × hidden, half as many key heads (Qwen3-Next, state in the model's 16 bits).
    kda: as many heads of 128 as query heads (Kimi Linear, K3; fp32 state).
    linear: a square matrix a query head, in 16 bits.
    """
    hidden, heads = model.hidden_size, max(1, model.num_attention_heads)
    if design == "mamba2":
        inner = 2 * hidden
        return _state("Mamba 2", (inner + 2 * 8 * 128, 3), (max(1, inner // 64), 64, 128), 4)
    if design == "gdn":
        v_heads = max(2, 2 * hidden // 128)
        return _state("Gated delta net", (128 * (v_heads // 2 * 2 + v_heads), 3), (v_heads, 128, 128), 2)
    if design == "kda":
        return _state("Kimi delta attention", (3 * heads * 128, 3), (heads, 128, 128), 4)
    if design == "linear":
        key, value = head_widths(model)
        return State(
            design="Linear attention", parts=(StatePart(name="state", shape=(heads, value, key), element_bytes=2),)
        )
    raise UnitError(f"state {design[:20]!r} is not known; known are mamba2, gdn, kda and, for linear, linear")


def _state(design: str, conv: tuple[int, ...], ssm: tuple[int, ...], element_bytes: int) -> State:
    parts = (
        StatePart(name="convolution", shape=conv, element_bytes=2),
        StatePart(name="state", shape=ssm, element_bytes=element_bytes),
    )
    return State(design=design, parts=parts)


def _number(text: str, syntax: str, high: int, low: int = 1) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 12 or not low <= int(text) <= high:
        raise UnitError(f"variant {syntax}: {text[:20]!r} is not a whole number within {low} … {high:,}")
    return int(text)


def _no_argument(name: str, argument: str) -> None:
    if argument:
        raise UnitError(f"variant {name} takes nothing after a colon; known are {_SYNTAX}")


_BUILDERS: dict[str, Callable[[Model, str], tuple[tuple[Memory, ...], ...]]] = {
    "mha": _mha,
    "mqa": _mqa,
    "gqa": _gqa,
    "mla": _mla,
    "sliding": _sliding,
    "share": _share,
    "hybrid": _hybrid,
    "linear": _linear,
}
