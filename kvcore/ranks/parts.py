"""A model's parameters as pieces that are split in different ways: what each layer has, and what one rank holds of it.

Sources: vLLM 0.33, model_executor/layers/linear.py (QKVParallelLinear), vocab_parallel_embedding.py, fused_moe;
models/deepseek_v2.py for latents (q_a, kv_a and the indexer are ReplicatedLinear) and mamba_mixer2.py for groups.
SGLang 0.5.23 and TensorRT-LLM 1.4 split the same matrices in the same way unless said below.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from math import ceil
from typing import Literal

from kvcore.model.memories import Attention, CrossAttention, Indexer, Latent, Memory, NoMemory, SharedCache, State
from kvcore.model.model import Model, WeightPart
from kvcore.model.prediction import JOINT, JOINT_BY_COLUMNS
from kvcore.model.weights import dense_layers, sparse_layers
from kvcore.ranks.rules import Ways

Place = Literal["layers", "first", "last"]
COPIES = "latent up-projections, once more in 16 bits"


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Parameters of one kind: all of them, and those of the fullest rank, layer by layer (one entry at an end)."""

    name: str
    place: Place
    whole: tuple[int, ...]
    held: tuple[int, ...]


@lru_cache(maxsize=256)
def pieces(model: Model, ways: Ways) -> tuple[Piece, ...]:
    """Every kind of the model's parameters, in the model's order; `whole` of them adds up to the model's count.

    Kept for the models asked about last: a plan asks again for every GPU, and walks hundreds of layers each time.
    """
    found = [_split(model, part, ways) for part in model.weights]
    if ways.copies_latent and any(isinstance(memory, Latent) for memory, _ in model.groups):
        found.append(_latent_copies(model, ways.attention))
    return tuple(found)


def is_tied(model: Model) -> bool:
    """Whether the embedding serves as the output head too."""
    return any(part.name == "embedding" and part.active_parameters == part.parameters for part in model.weights)


def padded(count: int, multiple: int) -> int:
    """The count, up to the next multiple."""
    return -(-count // multiple) * multiple


def _split(model: Model, part: WeightPart, ways: Ways) -> Piece:
    if part.name in ("embedding", "per-layer embeddings", "output head", "encoder"):
        return _at_an_end(model, part, ways)
    if part.name in ("attention", "cross-attention"):
        return _attention(model, part, ways.attention)
    if part.name == "recurrent layers":
        layers = _where(model, lambda layer: any(isinstance(one, State) for one in layer))
        return _even(part, layers, _state_share(model, ways.attention))
    if part.name == "experts":
        return _even(part, sparse_layers(model), _expert_share(model, part, ways))
    if part.name == "feed-forward":
        return _even(part, dense_layers(model), Fraction(1, ways.dense))
    if part.name == "shared experts":
        return _even(part, sparse_layers(model), Fraction(1, ways.shared))
    if part.name in ("router", "latent projections"):
        return _even(part, sparse_layers(model), Fraction(1))
    if part.name == JOINT_BY_COLUMNS:
        return _even(part, [1] * len(model.layers), Fraction(1, ways.attention))
    # A kind that is not known here is taken to be whole on every rank, which is safe.
    return _even(part, [1] * len(model.layers), Fraction(1))


def _at_an_end(model: Model, part: WeightPart, ways: Ways) -> Piece:
    split = ways.head if part.name == "output head" else ways.attention
    share = Fraction(1, split)
    rows = model.vocab_size
    if rows and part.name != "encoder":
        share = Fraction(-(-padded(rows, ways.vocabulary_pad) // split), rows)
    place: Place = "last" if part.name == "output head" else "first"
    return Piece(name=part.name, place=place, whole=(part.parameters,), held=(ceil(part.parameters * share),))


def _even(part: WeightPart, layers: list[int], share: Fraction) -> Piece:
    whole = _spread(part.parameters, layers)
    over, under = share.numerator, share.denominator
    held = tuple(-(-count * over // under) for count in whole)
    return Piece(name=part.name, place="layers", whole=whole, held=held)


def _spread(total: int, weights: list[int]) -> tuple[int, ...]:
    """The total over the layers by their weights, to whole numbers that add up to it."""
    everything, before, seen = sum(weights) or 1, 0, 0
    found = []
    for weight in weights:
        seen += weight
        upto = total * seen // everything
        found.append(upto - before)
        before = upto
    return tuple(found)


def _where(model: Model, has: Callable[..., bool]) -> list[int]:
    """1 for the layers that have it; every layer counts where none does."""
    found = [int(has(layer)) for layer in model.layers]
    return found if any(found) else [1] * len(found)


def _expert_share(model: Model, part: WeightPart, ways: Ways) -> Fraction:
    experts = model.experts
    if experts is None or (ways.experts == 1 and ways.width_pad == ways.hidden_pad == 1):
        return Fraction(1, ways.experts)
    number = experts.num_experts
    split = 1 if ways.experts_whole else ways.experts
    share = Fraction(-(-number // ways.experts), number) if ways.experts_whole else Fraction(1)
    # Three matrices, hidden × width; only formats of gated experts are padded.
    width = part.parameters // (max(1, experts.moe_layers) * number * 3 * model.hidden_size)
    if width and (ways.width_pad > 1 or ways.hidden_pad > 1):
        share *= Fraction(padded(-(-width // split), ways.width_pad), width)
        return share * Fraction(padded(model.hidden_size, ways.hidden_pad), model.hidden_size)
    return share / split


def _attention(model: Model, part: WeightPart, ranks: int) -> Piece:
    """Queries and outputs by head, keys and values by KV head but never less than one; latents by their own rule."""
    own = [_attending(model, layer, part.name == "cross-attention") for layer in model.layers]
    by_head = _most(model.num_attention_heads, ranks)
    if not any(own):
        return _even(part, [1] * len(own), by_head)
    widths = [_width(model, one) for one in own]
    made = [_made(model, one, shared) for one, shared in zip(own, _is_shared(model), strict=True)]
    rest = part.parameters - sum(whole for whole, _ in made)
    if rest < 0:
        return _even(part, [int(one is not None) for one in own], by_head)
    whole, held = [], []
    shares: dict[tuple[object, int, int, int], int] = {}
    for (cached, heads), other, memory in zip(made, _spread(rest, widths), own, strict=True):
        whole.append(cached + other)
        key = (memory, cached, heads, other)
        if key not in shares:
            down = _query_down(model, memory, other) if isinstance(memory, Latent) else 0
            own_share = cached * _most(heads, ranks) if heads else cached
            shares[key] = ceil(own_share + down + (other - down) * by_head)
        held.append(shares[key])
    return Piece(name=part.name, place="layers", whole=tuple(whole), held=tuple(held))


def _attending(model: Model, layer: tuple[object, ...], cross: bool) -> Attention | Latent | CrossAttention | None:
    """What a layer attends over; a layer that reads another's cache attends over what that one has."""
    for memory in layer:
        if cross:
            if isinstance(memory, CrossAttention):
                return memory
            continue
        if isinstance(memory, SharedCache):
            return _attending(model, model.layers[memory.owner], cross) if memory.owner < len(model.layers) else None
        if isinstance(memory, Attention | Latent):
            return memory
    return None


def _is_shared(model: Model) -> list[bool]:
    return [any(isinstance(memory, SharedCache) for memory in layer) for layer in model.layers]


def _width(model: Model, memory: Attention | Latent | CrossAttention | None) -> int:
    """In proportion to the query and output projections of a layer."""
    if isinstance(memory, Attention):
        return memory.head_dim + memory.v_head_dim
    return 0 if memory is None else 2 * model.head_dim


def _made(model: Model, memory: object, shared: bool) -> tuple[int, int]:
    """Parameters that make what is kept, and the heads over which they are split (0: every rank has all of them)."""
    if shared or memory is None:
        return 0, 1
    if isinstance(memory, Attention):
        return model.hidden_size * memory.num_kv_heads * (memory.head_dim + memory.v_head_dim), memory.num_kv_heads
    if isinstance(memory, CrossAttention):
        return 2 * model.hidden_size * memory.num_kv_heads * memory.head_dim, memory.num_kv_heads
    if isinstance(memory, Latent):
        return model.hidden_size * memory.width, 0
    return 0, 1


def _query_down(model: Model, memory: Latent, rest: int) -> int:
    """The query's own down-projection, which every rank has whole, from what is left of a layer: q, kv_b and o.

    With a low rank r the query has r × (hidden + heads × key width) parameters, else hidden × heads × key width; the
    rank that the rest leaves is a whole number. 0 where the query has no low rank, and for DeepSeek-V4, whose output
    has one too.
    """
    heads, key = model.num_attention_heads, model.key_head_dim or model.head_dim
    if memory.window is not None or memory.tokens_per_entry > 1:
        return 0
    query = rest - _up_projection(model, memory) - heads * model.head_dim * model.hidden_size
    low_rank, remainder = divmod(query, model.hidden_size + heads * key)
    if query <= 0 or query >= model.hidden_size * heads * key or remainder:
        return 0
    return low_rank * model.hidden_size


def _up_projection(model: Model, memory: Latent) -> int:
    """Parameters that make keys and values of all heads from a latent."""
    key = model.key_head_dim or model.head_dim
    return memory.kv_lora_rank * model.num_attention_heads * (key - memory.qk_rope_head_dim + model.head_dim)


def _latent_copies(model: Model, ranks: int) -> Piece:
    share = _most(model.num_attention_heads, ranks)
    held = [
        sum(
            ceil(_up_projection(model, one) * share)
            for one in layer
            if isinstance(one, Latent) and one.kind == "latent"
        )
        for layer in model.layers
    ]
    return Piece(name=COPIES, place="layers", whole=(0,) * len(held), held=tuple(held))


def _most(heads: int, ranks: int) -> Fraction:
    """The share of the rank with most heads, at least one."""
    return Fraction(-(-heads // ranks), heads) if heads else Fraction(1, ranks)


def _state_share(model: Model, ranks: int) -> Fraction:
    """Recurrent layers by head; of Mamba 2's groups every rank has at least one."""
    state = next((memory for memory, _ in model.groups if isinstance(memory, State)), None)
    share = Fraction(1, ranks)
    if state is None or ranks == 1:
        return share
    shapes = {part.name: part.shape for part in state.parts}
    if state.design != "Mamba 2" or len(shapes.get("state", ())) != 3 or "convolution" not in shapes:
        heads = shapes.get("state", (0,))[0]
        return _most(heads, ranks) if len(shapes.get("state", ())) == 3 else share
    heads, rows, columns = shapes["state"]
    inner = heads * rows
    groups = max(1, (shapes["convolution"][0] - inner) // (2 * columns))
    # In-projection columns and output rows; B and C are two columns of a group.
    shared = 2 * groups * columns
    everything = 3 * inner + shared + heads
    held = (everything - shared) * _most(heads, ranks) + shared * _most(groups, ranks)
    return held / everything


_WHOLE = Ways()
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
    lacking = [kind for kind in attends - {""} if _attends_as(model, kind) is None]
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
        at = _attends_as(model, attends) if attends else None
        kept = _FORWARD_ONLY if at is None else _kept_by_module(model.layers[at], attends)
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


def _attends_as(model: Model, kind: str) -> int | None:
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


def _kept_by_module(layer: tuple[Memory, ...], kind: str) -> tuple[Memory, ...]:
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
