"""A model's parameters as pieces that are split in different ways: what each layer has, and what one rank holds of it.

Sources: vLLM 0.33, model_executor/layers/linear.py (QKVParallelLinear), vocab_parallel_embedding.py, fused_moe;
models/deepseek_v2.py for latents (q_a, kv_a and the indexer are ReplicatedLinear) and mamba_mixer2.py for groups.
SGLang 0.5.23 and TensorRT-LLM 1.4 split the same matrices in the same way unless said below.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import ceil
from typing import Literal

from kvcore.model.memories import Attention, CrossAttention, Latent, SharedCache, State
from kvcore.model.model import Model, WeightPart
from kvcore.model.prediction import JOINT_BY_COLUMNS
from kvcore.model.weights import dense_layers, sparse_layers

Place = Literal["layers", "first", "last"]
COPIES = "latent up-projections, once more in 16 bits"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """Over how many ranks each kind of matrix is split; 1 is whole.

    `experts_whole`: every rank has whole experts (expert parallel), else a part of each. `vocabulary_pad`: the
    vocabulary is padded to a multiple of it. `width_pad` and `hidden_pad`: likewise the sides of an expert.
    `copies_latent`: the up-projection of latents is held a second time, in 16 bits, for use in attention.
    """

    attention: int
    dense: int
    shared: int
    head: int
    experts: int
    experts_whole: bool
    vocabulary_pad: int = 1
    width_pad: int = 1
    hidden_pad: int = 1
    copies_latent: bool = False


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
