"""A model's own prediction layers as a model of their own: what they keep, and their parameters by kind.

Its matrices are split over ranks and its caches laid out as those of any model, so nothing else needs rules for it.
Biases and norms are left out, as everywhere in counts of parameters.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from kvcore.model.memories import Attention, Indexer, Latent, Memory, NoMemory
from kvcore.model.model import Model, WeightPart
from kvcore.model.prediction import JOINT, JOINT_BY_COLUMNS
from kvcore.model.weights import dense_layers, sparse_layers
from kvcore.plan.rank_parts import Piece, Ways, pieces

_WHOLE = Ways(attention=1, dense=1, shared=1, head=1, experts=1, experts_whole=False)
_FORWARD_ONLY: tuple[Memory, ...] = (NoMemory(reason="a feed-forward layer of the module"),)
_OF_EXPERTS = ("experts", "shared experts", "router", "latent projections")


def prediction_head(model: Model) -> Model | None:
    """All prediction layers that the checkpoint has, as one model; None where it has none or `no_head` says why."""
    return None if no_head(model) else _head(model)


@lru_cache(maxsize=64)
def no_head(model: Model) -> str:
    """Why the model's prediction layers cannot be counted, without a full stop; "" where they can."""
    found = model.prediction
    if not found.modules:
        stated = f": {found.key} is 0 in its configuration" if found.key else ""
        return f"{model.name} has no prediction layers of its own{stated}"
    if found.unknown:
        return f"{model.name}: {found.unknown}"
    if not model.weights:
        return f"{model.name}: its parameters are not known by kind, so those of its prediction layers are not either"
    attends, forwards = {one for one, _ in found.layers}, {one for _, one in found.layers}
    lacking = [kind for kind in attends - {""} if _attending(model, kind) is None]
    lacking += [kind for kind in forwards - {""} if _forward_layer(model, kind) is None]
    if lacking:
        return f"{model.name}: it has no layer like those of its prediction module ({', '.join(sorted(lacking))})"
    return ""


@lru_cache(maxsize=64)
def _head(model: Model) -> Model:
    said = model.prediction
    by_kind = {piece.name: piece for piece in pieces(model, _WHOLE)}
    layers: list[tuple[Memory, ...]] = []
    counts: dict[str, int] = {}
    for attends, forward in said.layers:
        at = _attending(model, attends) if attends else None
        kept = _FORWARD_ONLY if at is None else _kept(model.layers[at], attends)
        layers.append(kept)
        if at is not None:
            _add(counts, by_kind, ("attention",), at)
            if any(isinstance(memory, Indexer) for memory in kept):
                counts["indexer"] = counts.get("indexer", 0) + _indexer(model, by_kind)
        found = _forward_layer(model, forward) if forward else None
        if found is not None:
            _add(counts, by_kind, _OF_EXPERTS if forward == "experts" else ("feed-forward",), found)
    joint = JOINT_BY_COLUMNS if said.columns else JOINT
    counts[joint] = 2 * model.hidden_size * model.hidden_size
    mixes = any(forward == "experts" for _, forward in said.layers)
    parts = tuple(
        WeightPart(name=name, parameters=count * said.modules, active_parameters=count * said.modules)
        for name, count in counts.items()
        if count
    )
    return Model(
        name=f"{model.name} (prediction layers)",
        model_type=model.model_type,
        layers=tuple(layers) * said.modules,
        hidden_size=model.hidden_size,
        num_attention_heads=model.num_attention_heads,
        head_dim=model.head_dim,
        key_head_dim=model.key_head_dim,
        vocab_size=model.vocab_size,
        context_limit=model.context_limit,
        model_dtype=model.model_dtype,
        cache_format=model.cache_format,
        experts=replace(model.experts, moe_layers=said.modules) if model.experts and mixes else None,
        weights=parts,
        checkpoint_format=None if said.sixteen_bits else model.checkpoint_format,
        stored_bits=() if said.sixteen_bits else model.stored_bits,
        scale_block=0 if said.sixteen_bits else model.scale_block,
        knowledge=model.knowledge,
    )


def _add(counts: dict[str, int], by_kind: dict[str, Piece], names: tuple[str, ...], layer: int) -> None:
    for name in names:
        if name in by_kind:
            counts[name] = counts.get(name, 0) + by_kind[name].whole[layer]


def _indexer(model: Model, by_kind: dict[str, Piece]) -> int:
    """Of one layer that has an indexer: layers may share one."""
    having = sum(any(isinstance(memory, Indexer) for memory in layer) for layer in model.layers)
    return sum(by_kind["indexer"].whole) // having if "indexer" in by_kind and having else 0


def _attending(model: Model, kind: str) -> int | None:
    """The layer that a module attends as; a window where the module has one."""
    places = [
        index
        for index, layer in enumerate(model.layers)
        for memory in layer
        if isinstance(memory, Attention | Latent) and (kind != "sliding" or _window(memory))
    ]
    # Where layers share what an indexer chose, the module chooses for itself.
    choosing = [index for index in places if any(isinstance(memory, Indexer) for memory in model.layers[index])]
    return max(choosing or places, default=None)


def _kept(layer: tuple[Memory, ...], kind: str) -> tuple[Memory, ...]:
    """What a layer of the module keeps: as the model's own, or its window alone."""
    if kind != "sliding":
        return layer
    return tuple(memory for memory in layer if isinstance(memory, Attention | Latent) and _window(memory))


def _window(memory: Attention | Latent) -> bool:
    return memory.limit is not None if isinstance(memory, Attention) else memory.window is not None


def _forward_layer(model: Model, kind: str) -> int | None:
    """The last layer with experts, or one with a plain feed-forward part."""
    if kind == "experts":
        has = sparse_layers(model) if model.experts else []
    else:
        has = dense_layers(model) if any(part.name == "feed-forward" for part in model.weights) else []
    return next((index for index in reversed(range(len(has))) if has[index]), None)
