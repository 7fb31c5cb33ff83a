"""Counterfactuals: the same model as if it had been built to remember differently.

Every variant is a Model made of the same memories, so everything that works on a model works on it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from math import gcd
from typing import Any, TypeAlias

from kvcore.errors import UnitError
from kvcore.model.memories import Attention, CrossAttention, Latent, Memory, NoMemory, SharedCache, State, StatePart
from kvcore.model.model import Model, WeightPart
from kvcore.model.weights import attention_parameters, delta_net_parameters, mamba2_parameters, mla_parameters
from kvcore.units import parse_tokens

Layers: TypeAlias = tuple[tuple[Memory, ...], ...]

# DeepSeek-V2's latent and rotary widths (section 2.1 of its paper).
MLA_DEFAULT = (512, 64)
# What no variant replaces: the memory of a source, and layers that have none.
_KEPT = (CrossAttention, NoMemory)
STATES = ("mamba2", "gdn", "kda", "linear")
_SYNTAX = "mha, gqa:G, mqa, mla, mla:R+P, sliding:W, sliding:W/N, share:D, hybrid:N[:mamba2|gdn|kda], linear[:…]"


def variant(model: Model, text: str) -> Model:
    """The model as `text` says: mha, gqa:G, mqa, mla[:R+P], sliding:W[/N], share:D, hybrid:N[:design], linear[:design].

    Query heads and head widths stay the model's, and so does what it keeps of a source (cross-attention). Parameters
    are counted anew; the checkpoint's bytes stay only where no projection changes. A variant that is the model itself
    comes back as the model. Raises UnitError for a variant that cannot be read or built.
    """
    plain = canonical(text)
    name, _, argument = plain.partition(":")
    layers = _BUILDERS[name](model, argument)
    if layers == model.layers:
        return model
    weights = variant_weights(model, layers, *head_widths(model))
    stored = model.checkpoint_bytes if weights == model.weights else None
    return replace(
        model,
        name=f"{model.name} as {plain}",
        built_as=plain,
        layers=layers,
        weights=weights,
        checkpoint_bytes=stored,
    )


def canonical(text: str) -> str:
    """A variant in its one spelling (`MLA:512+64` is `mla`, `hybrid:4` is `hybrid:4:mamba2`), whatever the model.

    Raises UnitError for what cannot be read.
    """
    name, colon, argument = text.strip().lower().partition(":")
    spell = _SPELLINGS.get(name)
    if spell is None or len(text) > 60:
        raise UnitError(f"variant {text[:40]!r} is not known; known are {_SYNTAX}")
    spelled = spell(argument)
    if colon and not spelled and name in ("mha", "mqa"):
        raise UnitError(f"variant {name} takes nothing after a colon; known are {_SYNTAX}")
    return f"{name}:{spelled}" if spelled else name


def head_widths(model: Model) -> tuple[int, int]:
    """(key, value) width of one query head: the model's own, also where it keeps a latent in their place."""
    for memory, _ in model.groups:
        if isinstance(memory, Attention):
            return memory.head_dim, memory.v_head_dim
    return model.key_head_dim or model.head_dim, model.head_dim


def _need_heads(model: Model) -> None:
    if model.num_attention_heads < 1:
        raise UnitError(f"{model.name} has no attention heads to build this variant from")


def _layers(model: Model, memory_of: Callable[[int], Memory]) -> Layers:
    """One memory a layer in place of what it keeps of its own past.

    Layers that are only feed-forward, or whose attention was removed, still keep nothing, and what a layer keeps of a
    source stays.
    """
    return tuple(_layer(layer, memory_of(index)) for index, layer in enumerate(model.layers))


def _layer(layer: tuple[Memory, ...], memory: Memory) -> tuple[Memory, ...]:
    kept = tuple(one for one in layer if isinstance(one, _KEPT))
    return layer if len(kept) == len(layer) else (memory, *kept)


def _remembering(model: Model) -> list[int]:
    """The layers that a variant may change. Neighbours and rhythms are counted among them alone.

    A feed-forward layer between two of them has no cache that could be read, and is none of the N of "1 in N".
    """
    return [at for at, layer in enumerate(model.layers) if not all(isinstance(one, _KEPT) for one in layer)]


def _one_in(model: Model, every: int) -> frozenset[int]:
    """Every `every`-th of the layers that remember, the last of each group of so many."""
    return frozenset(_remembering(model)[every - 1 :: every])


def _grouped(model: Model, kv_heads: int) -> Layers:
    """Full attention in every layer with that many KV heads, each layer with its own widths where it states them."""
    _need_heads(model)
    if not 1 <= kv_heads <= model.num_attention_heads or model.num_attention_heads % kv_heads:
        raise UnitError(
            f"variant gqa:{kv_heads}: the number of KV heads must divide the {model.num_attention_heads} query heads"
        )
    key, value = head_widths(model)

    def memory(index: int) -> Memory:
        own = _attention_of(model, index)
        k_width, v_width = (own.head_dim, own.v_head_dim) if own else (key, value)
        return Attention(num_kv_heads=kv_heads, head_dim=k_width, v_head_dim=v_width)

    return _layers(model, memory)


def _attention_of(model: Model, index: int) -> Attention | None:
    """The keys and values that a layer keeps, or reads from another, if it does."""
    for memory in model.layers[index]:
        if isinstance(memory, Attention):
            return memory
        if isinstance(memory, SharedCache):
            return _attention_of(model, memory.owner)
    return None


def _own(model: Model) -> Callable[[int], Attention | Latent]:
    """What a layer's attention keeps without any window: its own KV heads, else the model's usual memory."""
    _need_heads(model)
    usual = _usual(model)

    def memory(index: int) -> Attention | Latent:
        own = _attention_of(model, index)
        return replace(own, limit=None, law="full") if own else usual

    return memory


def _usual(model: Model) -> Attention | Latent:
    attention = [(count, memory) for memory, count in model.groups if isinstance(memory, Attention)]
    if attention:
        common = max(attention, key=lambda pair: pair[0])[1]
        return replace(common, limit=None, law="full")
    latents = [memory for memory, _ in model.groups if isinstance(memory, Latent)]
    if latents:
        return replace(latents[0], window=None, tokens_per_entry=1)
    key, value = head_widths(model)
    return Attention(num_kv_heads=model.num_attention_heads, head_dim=key, v_head_dim=value)


def _windowed(memory: Attention | Latent, window: int) -> Attention | Latent:
    if isinstance(memory, Latent):
        return replace(memory, window=window)
    return replace(memory, limit=window, law="sliding")


def _mha(model: Model, _: str) -> Layers:
    return _grouped(model, model.num_attention_heads)


def _mqa(model: Model, _: str) -> Layers:
    return _grouped(model, 1)


def _gqa(model: Model, argument: str) -> Layers:
    return _grouped(model, _number(argument, "gqa:G", 2**14))


def _mla(model: Model, argument: str) -> Layers:
    _need_heads(model)
    rank, rope = _latent_widths(argument)
    packed = 656 if (rank, rope) == MLA_DEFAULT else None
    latent = Latent(kv_lora_rank=rank, qk_rope_head_dim=rope, packed_bytes=packed)
    return _layers(model, lambda _: latent)


def _design(text: str) -> str:
    if text not in STATES:
        raise UnitError(f"state {text[:20]!r} is not known; known are {', '.join(STATES)}")
    return text


def _latent_widths(argument: str) -> tuple[int, int]:
    if not argument:
        return MLA_DEFAULT
    first, plus, second = argument.partition("+")
    if not plus:
        raise UnitError(f"variant mla:R+P: {argument[:20]!r} needs both widths, as 512+64")
    return _number(first, "mla:R+P", 2**16), _number(second, "mla:R+P", 2**16, low=0)


def _window(text: str) -> int:
    window = parse_tokens(text, "variant sliding:W") if text else 0
    if window < 1:
        raise UnitError(f"variant sliding:W: {text[:20]!r} is not a window of at least one token")
    return window


def _sliding(model: Model, argument: str) -> Layers:
    first, _, second = argument.partition("/")
    own, window = _own(model), _window(first)
    full = _one_in(model, _number(second, "sliding:W/N", 2048)) if second else frozenset()
    return _layers(model, lambda layer: own(layer) if layer in full else _windowed(own(layer), window))


def _share(model: Model, argument: str) -> Layers:
    depth = _number(argument, "share:D", 2048)
    own, places = _own(model), _remembering(model)
    owners = {layer: places[at - at % depth] for at, layer in enumerate(places)}
    return _layers(
        model, lambda layer: SharedCache(owner=owners[layer]) if owners.get(layer, layer) != layer else own(layer)
    )


def _hybrid(model: Model, argument: str) -> Layers:
    first, _, design = argument.partition(":")
    full = _one_in(model, _number(first, "hybrid:N", 2048))
    own, state = _own(model), fixed_state(model, design)
    return _layers(model, lambda layer: own(layer) if layer in full else state)


def _linear(model: Model, argument: str) -> Layers:
    state = fixed_state(model, argument or "linear")
    return _layers(model, lambda _: state)


def fixed_state(model: Model, design: str) -> State:
    """The state that a layer of this model's width would keep in a named design.

    mamba2: inner width 2 × hidden, heads of 64, state 128, 8 groups (Mamba-2 as in Nemotron-H, fp32 state), fewer where
    8 do not divide the heads.
    gdn: key heads of 128 over hidden, twice as many value heads (Qwen3-Next, state in the model's 16 bits).
    kda: as many heads of 128 as query heads (Kimi Linear, K3; fp32 state).
    linear: a square matrix a query head, in 16 bits.
    """
    hidden, heads = model.hidden_size, model.num_attention_heads
    if design in ("kda", "linear"):
        _need_heads(model)
    if design == "mamba2":
        inner = 2 * hidden
        ssm_heads = max(1, inner // 64)
        return _state("Mamba 2", (inner + 2 * gcd(8, ssm_heads) * 128, 3), (ssm_heads, 64, 128), 4)
    if design == "gdn":
        k_heads = max(1, hidden // 128)
        v_heads = 2 * k_heads
        return _state("Gated delta net", (128 * (2 * k_heads + v_heads), 3), (v_heads, 128, 128), 2)
    if design == "kda":
        return _state("Kimi delta attention", (3 * heads * 128, 3), (heads, 128, 128), 4)
    if design == "linear":
        key, value = head_widths(model)
        return State(
            design="Linear attention", parts=(StatePart(name="state", shape=(heads, value, key), element_bytes=2),)
        )
    raise UnitError(f"state {design[:20]!r} is not known; known are {', '.join(STATES)}")


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


def _spell_latent(argument: str) -> str:
    rank, rope = _latent_widths(argument)
    return "" if (rank, rope) == MLA_DEFAULT else f"{rank}+{rope}"


def _spell_window(argument: str) -> str:
    first, slash, second = argument.partition("/")
    every = f"/{_number(second, 'sliding:W/N', 2048)}" if slash else ""
    return f"{_window(first)}{every}"


def _spell_hybrid(argument: str) -> str:
    first, _, second = argument.partition(":")
    return f"{_number(first, 'hybrid:N', 2048)}:{_design(second or 'mamba2')}"


# How each variant's argument is written: read, checked, and left out where it is the default.
_SPELLINGS: dict[str, Callable[[str], str]] = {
    "mha": lambda _: "",
    "mqa": lambda _: "",
    "gqa": lambda argument: str(_number(argument, "gqa:G", 2**14)),
    "mla": _spell_latent,
    "sliding": _spell_window,
    "share": lambda argument: str(_number(argument, "share:D", 2048)),
    "hybrid": _spell_hybrid,
    "linear": lambda argument: "" if argument in ("", "linear") else _design(argument),
}
_BUILDERS: dict[str, Callable[[Model, str], Layers]] = {
    "mha": _mha,
    "mqa": _mqa,
    "gqa": _gqa,
    "mla": _mla,
    "sliding": _sliding,
    "share": _share,
    "hybrid": _hybrid,
    "linear": _linear,
}


# Kinds of parameters that no layer of a variant has: it keeps no index keys, compresses nothing beside a latent, and
# the states that it has are counted with its other projections.
_REPLACED = frozenset({"attention", "recurrent layers", "indexer", "compressors"})


def variant_weights(model: Model, layers: Layers, key: int, value: int) -> tuple[WeightPart, ...]:
    """The model's parameters with these layers in place of its own; empty where the model's own are not known.

    `key` and `value` are the widths of a query head. Where only keys and values, or only latents, change, the model's
    own count is corrected by the difference; where a layer works differently, its projections are counted anew, and
    layers that stay as they were keep their share of what the model states.
    """
    if not model.weights:
        return ()
    before, after = ([_attending(layer) for layer in stack] for stack in (model.layers, layers))
    stated = sum(part.parameters for part in model.weights if part.name == "attention")
    count = _Count(model, key, value)
    if not any(isinstance(memory, State) for memory in chain.from_iterable(layers)) and (
        _only(Attention | SharedCache, before, after) or _only(Latent | SharedCache, before, after)
    ):
        attention = stated + sum(map(count.cached, after)) - sum(map(count.cached, before))
    else:
        usual = stated // max(1, sum(memory is not None for memory in before))
        own = {memory for memory in before if memory is not None}
        attention = sum(
            usual if memory in own and not isinstance(memory, SharedCache) else count.projections(memory)
            for memory in chain.from_iterable(layers)
        )
    if attention == sum(part.parameters for part in model.weights if part.name in _REPLACED):
        return model.weights
    made = WeightPart(name="attention", parameters=attention, active_parameters=attention)
    place = next((at for at, part in enumerate(model.weights) if part.name in _REPLACED), 0)
    parts = [
        made if at == place else part
        for at, part in enumerate(model.weights)
        if at == place or part.name not in _REPLACED
    ]
    return tuple(part for part in parts if part.parameters)


def _attending(layer: tuple[Memory, ...]) -> Memory | None:
    """What a layer attends over of its own past; None for layers that do not."""
    return next((memory for memory in layer if isinstance(memory, Attention | Latent | SharedCache)), None)


def _only(kinds: Any, *stacks: list[Memory | None]) -> bool:
    return all(memory is None or isinstance(memory, kinds) for stack in stacks for memory in stack)


class _Count:
    """Parameters of a layer of this model, by what it keeps."""

    def __init__(self, model: Model, key: int, value: int) -> None:
        self._hidden, self._heads = model.hidden_size, model.num_attention_heads
        self._key, self._value = key, value
        # A latent model's key width holds the rotary part, which is no part of what is made of the latent.
        latents = [memory for memory, _ in model.groups if isinstance(memory, Latent)]
        self._nope = max(1, key - latents[0].qk_rope_head_dim) if latents else key

    def cached(self, memory: Memory | None) -> int:
        """The matrices that make what is kept, or that use it in keys' and values' place; none where it is read."""
        if isinstance(memory, Attention):
            return self._hidden * memory.num_kv_heads * (memory.head_dim + memory.v_head_dim)
        if isinstance(memory, Latent):
            return self._hidden * memory.width + memory.kv_lora_rank * self._heads * (self._nope + self._value)
        return 0

    def projections(self, memory: Memory) -> int:
        """All projections of a layer that keeps this memory."""
        hidden, heads = self._hidden, self._heads
        if isinstance(memory, Attention):
            return attention_parameters(hidden, heads, memory.num_kv_heads, memory.head_dim, memory.v_head_dim)
        if isinstance(memory, Latent):
            return mla_parameters(
                hidden,
                heads,
                q_rank=None,
                kv_rank=memory.kv_lora_rank,
                nope=self._nope,
                rope=memory.qk_rope_head_dim,
                value=self._value,
            )
        if isinstance(memory, SharedCache):
            return hidden * heads * (self._key + self._value)
        return _state_projections(hidden, memory) if isinstance(memory, State) else 0


def _state_projections(hidden: int, memory: State) -> int:
    shapes = {part.name: part.shape for part in memory.parts}
    heads, rows, columns = shapes["state"]
    if memory.design == "Mamba 2":
        inner = heads * rows
        return mamba2_parameters(hidden, inner, (shapes["convolution"][0] - inner) // (2 * columns), columns, heads, 4)
    if "convolution" in shapes:
        k_heads = (shapes["convolution"][0] - heads * rows) // (2 * columns)
        return delta_net_parameters(hidden, k_heads, heads, columns, rows, 4)
    return attention_parameters(hidden, heads, heads, columns, rows)
