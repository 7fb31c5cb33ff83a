"""Names of a checkpoint's matrices, and the lists and patterns by which quantisers mean some of them.

A list names modules in full (`model.layers.3.mlp.gate`), by a module that they are in (`model.layers.3.mlp`), with
wildcards (`model.layers.3.self_attn*`), or by a regular expression (`re:.*self_attn.*`). Only what follows `layers.N.`
is compared: language models of multimodal checkpoints have a longer way to their layers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import translate
from typing import Any, Generic, NamedTuple, TypeVar

from kvcore.model.memories import Latent
from kvcore.model.model import Model
from kvcore.model.weights import dense_layers, sparse_layers

Value = TypeVar("Value")
_IN_A_LAYER = re.compile(r"(?:^|[.*])layers\.(\d+|\*)(.*)$")
_LONGEST = 300
# A file's regular expressions may be written to take for ever: those that repeat groups, or much, are not tried.
_REPEATED_GROUP = re.compile(r"\)\s*[*+{]")
_REPETITIONS = re.compile(r"[*+{]")
_MOST_REPETITIONS, _MOST_EXPRESSIONS = 4, 64


class Named(Generic[Value]):
    """What a list says about modules: `of(layer, names)` is the value of the entry that means one of these names."""

    def __init__(self, entries: Mapping[str, Value]) -> None:
        self._by_layer: dict[int | None, dict[str, Value]] = {}
        self._expressions: list[tuple[re.Pattern[str], Value]] = []
        for entry, value in entries.items():
            if len(entry) > _LONGEST or entry.strip("*") == "":
                continue
            if entry.startswith("re:"):
                expression = _compiled(entry[3:])
                if expression is not None and len(self._expressions) < _MOST_EXPRESSIONS:
                    self._expressions.append((expression, value))
                continue
            found = _IN_A_LAYER.search(entry)
            if found is None:
                # Wherever it is in a name, whole parts of it.
                self._by_layer.setdefault(None, {})[f"*.{entry.removeprefix('*').removeprefix('.')}"] = value
            else:
                layer = None if found[1] == "*" else int(found[1])
                self._by_layer.setdefault(layer, {})[found[2]] = value
        self._everywhere = _Rests(self._by_layer.pop(None, {}))
        # Most lists say the same of all layers: it is prepared once.
        prepared: dict[tuple[tuple[str, Value], ...], _Rests[Value]] = {}
        self._layers = {
            layer: prepared.setdefault(tuple(rests.items()), _Rests(rests)) for layer, rests in self._by_layer.items()
        }

    def of(self, layer: int | None, names: Iterable[str]) -> Value | None:
        """`names` follow `layers.N.`, or are whole names where `layer` is None; None where no entry means one."""
        own = self._layers.get(layer) if layer is not None else None
        for name in names:
            for rests in (own, self._everywhere):
                found = rests.of(f".{name}") if rests is not None else None
                if found is not None:
                    return found
            full = name if layer is None else f"model.layers.{layer}.{name}"
            for expression, value in self._expressions:
                if expression.match(full):
                    return value
        return None


class _Rests(Generic[Value]):
    """Ends of names, from the dot after the layer's number on; an entry means what it names and all that is in it."""

    def __init__(self, entries: Mapping[str, Value]) -> None:
        self._exact = {rest: value for rest, value in entries.items() if "*" not in rest and "?" not in rest}
        wild = [(rest, value) for rest, value in entries.items() if rest not in self._exact]
        self._wild = [(re.compile(f"{translate(rest)}|{translate(_inside(rest))}"), value) for rest, value in wild]
        self._known: dict[str, Value | None] = {}

    def of(self, name: str) -> Value | None:
        if name not in self._known:
            self._known[name] = self._find(name)
        return self._known[name]

    def _find(self, name: str) -> Value | None:
        whole = name
        while name:
            if name in self._exact:
                return self._exact[name]
            name = name.rpartition(".")[0]
        if "" in self._exact:
            return self._exact[""]
        return next((value for expression, value in self._wild if expression.match(whole)), None)


def _inside(rest: str) -> str:
    """The pattern of what is in a module that `rest` means."""
    return f"{rest.rstrip('*.')}.*" if rest.strip("*.") else rest


def _compiled(text: str) -> re.Pattern[str] | None:
    if _REPEATED_GROUP.search(text) or len(_REPETITIONS.findall(text)) > _MOST_REPETITIONS:
        return None
    try:
        return re.compile(text)
    except re.error:
        return None


# The matrices that make keys and values of latents: engines hold them once more where they are quantised.
UP_PROJECTION = "latent up-projections"
# What no published format quantises unless it is named.
_LEFT_ALONE = ("embedding", "norms", "router", "per-layer embeddings", "encoder")
_LISTS = ("ignore", "modules_to_not_convert", "exclude_modules")
_CONTAINERS = ("mlp", "block_sparse_moe", "ffn", "feed_forward", "mixer", "moe")
_ATTENTIONS = ("self_attn", "attn", "attention", "mixer")
_RECURRENT = ("linear_attn", "mixer", "mamba")


class StoredFormat(NamedTuple):
    """A format of numbers: its name, and the bits of one weight with its scales."""

    name: str
    bits: float


SIXTEEN = StoredFormat("bf16", 16)


class _Matrix(NamedTuple):
    """A matrix of one kind in every layer that has it: its names after `layers.N.`, and its share of the kind."""

    names: tuple[str, ...]
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rules:
    """What a configuration says of a module: left alone, named with a format, or in the format of the rest."""

    rest: StoredFormat
    left: Named[bool]
    left_in: StoredFormat
    named: Named[StoredFormat]
    experts: StoredFormat | None

    def of(self, kind: str, layer: int | None, names: tuple[str, ...]) -> StoredFormat:
        if self.left.of(layer, names) is not None:
            # No method converts the output head unless it is named.
            return SIXTEEN if kind == "output head" else self.left_in
        found = self.named.of(layer, names)
        if found is not None:
            return found
        if kind == "output head":
            return SIXTEEN
        return self.experts if kind == "experts" and self.experts is not None else self.rest


def stored_bits(
    model: Model, config: Mapping[str, Any], rest: StoredFormat, expert_dtype: object
) -> dict[str, StoredFormat]:
    """The format of every kind of the model's parameters, an average under the name of its larger share.

    `config` is the quantisation's own object, `rest` the format of what it does not name. Latent up-projections are
    one more entry where there are latents.
    """
    rules = _rules(config, rest, expert_dtype)
    found: dict[str, StoredFormat] = {}
    kinds = {part.name for part in model.weights}
    for kind in kinds:
        if kind in _LEFT_ALONE:
            found[kind] = SIXTEEN
        elif rest.name == "mxfp4" and not _says_where(config) and kind != "experts":
            # gpt-oss's own method converts experts only.
            found[kind] = SIXTEEN
        else:
            found[kind] = _average(model, rules, kind, _matrices(model, kind))
    if "attention" in kinds and model.latents:
        up = (_Matrix(_in(_ATTENTIONS, "kv_b_proj"), 1.0),)
        found[UP_PROJECTION] = _average(model, rules, "attention", up)
    return found


def algorithm(text: str, group: object = None) -> StoredFormat | None:
    """ModelOpt's name of an algorithm (`NVFP4`, `W4A16_NVFP4`, `FP8`, `MXFP8`, `W4A16_AWQ`) as a format."""
    name = text.lower()
    for part, known in (("nvfp4", StoredFormat("nvfp4", 4.5)), ("mxfp4", StoredFormat("mxfp4", 4.25)),
                        ("mxfp8", StoredFormat("fp8", 8.25)), ("fp8", StoredFormat("fp8", 8))):  # fmt: skip
        if part in name:
            return known
    for part, bits in (("int4", 4), ("w4a", 4), ("int8", 8), ("w8a", 8)):
        if part in name:
            return numbers(bits, "int", group)
    return None


def numbers(
    bits: object, kind: object, group: object, zero_point: bool = False, scale: str = ""
) -> StoredFormat | None:
    """Weights of so many bits: floats of 4 bits by their group, 16 for nvfp4 and 32 for mxfp4; integers with 16-bit
    scales a group; 8 bits without a group have a scale a channel or block, which is not counted."""
    size = group if isinstance(group, int) and not isinstance(group, bool) and group > 0 else 0
    if bits == 4 and kind == "float":
        return StoredFormat("mxfp4", 4.25) if size == 32 or "mxfp4" in scale else StoredFormat("nvfp4", 4.5)
    if bits == 8 and kind == "float":
        return StoredFormat("fp8", 8.25 if size == 32 else 8)
    if bits in (4, 8) and isinstance(bits, int):
        extra = (16 + (bits if zero_point else 0)) / size if size else 0.0
        return StoredFormat(f"int{bits}", bits + extra)
    return None


def _rules(config: Mapping[str, Any], rest: StoredFormat, expert_dtype: object) -> _Rules:
    left = {entry: True for name in _LISTS for entry in _texts(config.get(name)) if not entry.startswith("mtp")}
    named = dict(_by_module(config))
    whole = named.pop("Linear", None)
    fp8 = str(config.get("quant_method") or "").lower() == "fp8"
    if named:
        # What is not named is as it was: in 16 bits, or in the fp8 that the method itself is. Its list of exceptions
        # is then one to the named formats.
        unnamed = StoredFormat("fp8", 8) if fp8 else SIXTEEN
        return _Rules(rest=whole or unnamed, left=Named(left), left_in=unnamed, named=Named(named), experts=None)
    experts = StoredFormat("mxfp4", 4.25) if fp8 and str(expert_dtype).lower() in ("fp4", "mxfp4") else None
    return _Rules(rest=whole or rest, left=Named(left), left_in=SIXTEEN, named=Named({}), experts=experts)


def _says_where(config: Mapping[str, Any]) -> bool:
    return bool(config.get("config_groups") or config.get("quantized_layers"))


def _by_module(config: Mapping[str, Any]) -> Iterator[tuple[str, StoredFormat]]:
    """Modules or patterns with their formats; `Linear` for all."""
    layers = config.get("quantized_layers")
    if isinstance(layers, Mapping):
        for module, entry in layers.items():
            found = None
            if isinstance(entry, Mapping):
                found = algorithm(str(entry.get("quant_algo") or ""), entry.get("group_size"))
            if found is not None:
                yield str(module), found
        return
    groups = config.get("config_groups")
    for group in groups.values() if isinstance(groups, Mapping) else ():
        found = group_format(group, config)
        if found is not None:
            yield from ((target, found) for target in _texts(group.get("targets")))


def group_format(group: object, config: Mapping[str, Any]) -> StoredFormat | None:
    """The format of one of `config_groups`; None where it is not understood."""
    weights = group.get("weights") if isinstance(group, Mapping) else None
    if not isinstance(group, Mapping) or not isinstance(weights, Mapping):
        return None
    return numbers(
        weights.get("num_bits"),
        weights.get("type"),
        weights.get("group_size"),
        weights.get("symmetric") is False,
        str(group.get("format") or config.get("format") or ""),
    )


def _texts(value: object) -> list[str]:
    return [entry for entry in value if isinstance(entry, str)] if isinstance(value, list) else []


def _average(model: Model, rules: _Rules, kind: str, matrices: tuple[_Matrix, ...]) -> StoredFormat:
    """Over layers and matrices; the name is that of the format with the larger share."""
    shares: dict[StoredFormat, float] = {}
    layers: list[int | None] = [index for index, has in enumerate(_layers(model, kind)) if has]
    for layer in [None] if kind == "output head" else layers:
        for matrix in matrices:
            one = rules.of(kind, layer, matrix.names)
            shares[one] = shares.get(one, 0.0) + matrix.share
    if not shares:
        return rules.rest
    total = sum(shares.values())
    largest = max(shares, key=lambda one: shares[one])
    bits = largest.bits if len(shares) == 1 else sum(one.bits * share for one, share in shares.items()) / total
    return StoredFormat(largest.name, bits)


def _layers(model: Model, kind: str) -> list[int]:
    if kind in ("experts", "shared experts", "latent projections"):
        return sparse_layers(model)
    if kind == "feed-forward":
        return dense_layers(model)
    found = [int(any(memory.projections == kind for memory in layer)) for layer in model.layers]
    return found if any(found) else [1] * len(found)


def _in(containers: tuple[str, ...], *names: str) -> tuple[str, ...]:
    return tuple(f"{container}.{name}" for container in containers for name in names)


def _matrices(model: Model, kind: str) -> tuple[_Matrix, ...]:
    """The matrices of a kind, as published checkpoints name them, with their shares of its parameters."""
    if kind == "attention":
        return _attention(model)
    if kind == "recurrent layers":
        return (
            _Matrix((*_in(_RECURRENT, "in_proj", "in_proj_qkv", "in_proj_qkvz"), "self_attn.q_proj"), 2.0),
            _Matrix((*_in(_RECURRENT, "out_proj"), "self_attn.o_proj"), 1.0),
        )
    ups, downs = ("up_proj", "w1", "w3"), ("down_proj", "w2")
    if kind == "feed-forward":
        return (_Matrix(_in(_CONTAINERS, *ups), 2.0), _Matrix(_in(_CONTAINERS, *downs), 1.0))
    if kind in ("experts", "shared experts"):
        homes = ("experts", "experts.0") if kind == "experts" else ("shared_experts", "shared_expert")
        return (
            _Matrix(_in(_CONTAINERS, *(f"{home}.{name}" for home in homes for name in ups)), 2.0),
            _Matrix(_in(_CONTAINERS, *(f"{home}.{name}" for home in homes for name in downs)), 1.0),
        )
    if kind == "latent projections":
        return tuple(_Matrix(_in(_CONTAINERS, name), 1.0) for name in ("fc1_latent_proj", "fc2_latent_proj"))
    if kind == "cross-attention":
        return tuple(_Matrix(_in(("cross_attn",), f"{name}_proj"), 1.0) for name in "qo")
    if kind == "indexer":
        return (_Matrix(_in(_ATTENTIONS, "indexer.wq_b", "index_q_proj"), 1.0),)
    if kind == "output head":
        return (_Matrix(("lm_head", "language_model.lm_head", "head", "output"), 1.0),)
    return (_Matrix((kind,), 1.0),)


def _attention(model: Model) -> tuple[_Matrix, ...]:
    """Sizes by the first memory that attention has; low-rank queries count as one matrix, q_b."""
    heads, key, value = model.num_attention_heads, model.key_head_dim or model.head_dim, model.head_dim
    memory = next((one for one, _ in model.groups if one.attends), None)
    query, out = heads * key, heads * value
    if isinstance(memory, Latent):
        up = memory.expanded_by(heads, key, value) / model.hidden_size
        return (
            _Matrix(_in(_ATTENTIONS, "q_b_proj", "q_proj", "wq_b"), query * _query_rank(model, memory)),
            _Matrix(_in(_ATTENTIONS, "kv_a_proj_with_mqa", "wkv"), memory.width),
            _Matrix(_in(_ATTENTIONS, "kv_b_proj"), max(up, 0.0)),
            _Matrix(_in(_ATTENTIONS, "o_proj", "wo_b"), out),
        )
    kv = memory.kv_heads * memory.key_width if memory else query
    fused = "qkv_proj"
    return (
        _Matrix(_in(_ATTENTIONS, "q_proj", fused), query),
        _Matrix(_in(_ATTENTIONS, "k_proj", fused), kv),
        _Matrix(_in(_ATTENTIONS, "v_proj", fused), kv),
        _Matrix((*_in(_ATTENTIONS, "o_proj"), "self_attn.out_proj"), out),
    )


def _query_rank(model: Model, memory: Latent) -> float:
    """The query's parameters as a share of a full one's: what is left of attention, 1 where that is not sensible."""
    total = sum(part.parameters for part in model.weights if part.name == "attention") / max(1, len(model.layers))
    heads, key = model.num_attention_heads, model.key_head_dim or model.head_dim
    up = memory.expanded_by(heads, key, model.head_dim)
    left = total - up - model.hidden_size * (memory.width + heads * model.head_dim)
    full = model.hidden_size * heads * key
    return min(1.0, left / full) if left > 0 else 1.0
