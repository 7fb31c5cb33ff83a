"""Parameters of a counterfactual: what changes in the projections when a model's layers remember differently.

Estimates: biases, norms of heads and output gates are left out, and a latent is counted with a full query projection.
"""

from __future__ import annotations

from types import UnionType

from kvcore.model.memories import Attention, Latent, Memory, SharedCache, State
from kvcore.model.model import Model, WeightPart
from kvcore.model.weights import attention_parameters, delta_net_parameters, mamba2_parameters, mla_parameters

# The kinds of parameters that belong to a layer's way of remembering.
_REMEMBERING = frozenset({"attention", "recurrent layers", "indexer", "compressors"})


def variant_weights(
    model: Model, layers: tuple[tuple[Memory, ...], ...], key: int, value: int
) -> tuple[WeightPart, ...]:
    """The model's parameters with these layers in place of its own; empty where the model's own are not known.

    `key` and `value` are the widths of a query head. Where only the keys and values change, the model's own count is
    corrected by the difference; where a layer works differently, its projections are counted anew.
    """
    if not model.weights:
        return ()
    before, after = ([_first(layer) for layer in stack] for stack in (model.layers, layers))
    if _only(Attention | SharedCache, before, after):
        changed = sum(_kv_projections(model, memory) for memory in after) - sum(
            _kv_projections(model, memory) for memory in before
        )
        return _corrected(model, changed)
    if _only(Latent, before, after):
        changed = sum(_latent_projections(model, memory, key, value) for memory in after) - sum(
            _latent_projections(model, memory, key, value) for memory in before
        )
        return _corrected(model, changed)
    rebuilt = sum(_projections(model, memory, key, value) for memory in after)
    kept = tuple(part for part in model.weights if part.name not in _REMEMBERING)
    return (
        WeightPart(name="attention", parameters=rebuilt, active_parameters=rebuilt, formula="counted for the variant"),
        *kept,
    )


def _only(kinds: UnionType | type, *stacks: list[Memory | None]) -> bool:
    return all(memory is None or isinstance(memory, kinds) for stack in stacks for memory in stack)


def _first(layer: tuple[Memory, ...]) -> Memory | None:
    """What decides a layer's projections; None for layers that the variants leave alone."""
    for memory in layer:
        if isinstance(memory, Attention | Latent | State | SharedCache):
            return memory
    return None


def _corrected(model: Model, changed: int) -> tuple[WeightPart, ...]:
    return tuple(
        WeightPart(
            name=part.name,
            parameters=max(0, part.parameters + changed),
            active_parameters=max(0, part.active_parameters + changed),
            formula=part.formula,
        )
        if part.name == "attention"
        else part
        for part in model.weights
    )


def _kv_projections(model: Model, memory: Memory | None) -> int:
    """The matrices that make a layer's keys and values; a layer that reads another's has none."""
    if not isinstance(memory, Attention):
        return 0
    return model.hidden_size * memory.num_kv_heads * (memory.head_dim + memory.v_head_dim)


def _latent_projections(model: Model, memory: Memory | None, key: int, value: int) -> int:
    """The matrices that make a latent and that keys and values are made of it by."""
    if not isinstance(memory, Latent):
        return 0
    nope = max(1, key - memory.qk_rope_head_dim)
    return model.hidden_size * memory.width + memory.kv_lora_rank * model.num_attention_heads * (nope + value)


def _projections(model: Model, memory: Memory | None, key: int, value: int) -> int:
    """All projections of a layer that keeps this memory."""
    hidden, heads = model.hidden_size, model.num_attention_heads
    if isinstance(memory, Attention):
        return attention_parameters(hidden, heads, memory.num_kv_heads, memory.head_dim, memory.v_head_dim)
    if isinstance(memory, Latent):
        return mla_parameters(
            hidden, heads, q_rank=None, kv_rank=memory.kv_lora_rank, nope=key, rope=memory.qk_rope_head_dim, value=value
        )
    if isinstance(memory, SharedCache):
        return hidden * heads * (key + value)
    if isinstance(memory, State):
        return _state_projections(hidden, memory)
    return 0


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
