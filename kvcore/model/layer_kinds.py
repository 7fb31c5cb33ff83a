"""Which layers of a model have which kind of matrices, as far as its memories and its count of MoE layers say."""

from __future__ import annotations

from kvcore.model.memories import NoMemory, State
from kvcore.model.model import Model


def forward_layers(model: Model) -> list[int]:
    """1 for layers with a feed-forward part: where a layer does one thing only, those that remember nothing."""
    one_thing = any(isinstance(memory, State) for memory, _ in model.groups)
    nothing = [int(all(isinstance(memory, NoMemory) for memory in layer)) for layer in model.layers]
    return nothing if one_thing and any(nothing) else [1] * len(model.layers)


def sparse_layers(model: Model) -> list[int]:
    """1 for layers with experts. The memories do not say which: a few dense ones are the first, many alternate."""
    layers = forward_layers(model)
    places = [index for index, has in enumerate(layers) if has]
    sparse = model.experts.moe_layers if model.experts else 0
    dense = len(places) - sparse
    if sparse <= 0 or dense <= 0:
        return layers
    kept = set(places[dense:])
    if 4 * dense >= len(places):
        # The n-th of every group, as decoder_sparse_step and its like count them.
        kept = {
            place for at, place in enumerate(places) if (at + 1) * sparse // len(places) > at * sparse // len(places)
        }
    return [int(index in kept) for index in range(len(layers))]


def dense_layers(model: Model) -> list[int]:
    """1 for layers with a plain feed-forward part: those without experts, or all where one is beside the experts."""
    layers = forward_layers(model)
    sparse = sparse_layers(model) if model.experts else [0] * len(model.layers)
    found = [int(has and not other) for has, other in zip(layers, sparse, strict=True)]
    return found if any(found) else layers
