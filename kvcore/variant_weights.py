"""Parameters of a counterfactual: what changes in the projections when a model's layers remember differently.

Estimates: biases, norms of heads and output gates are left out, and a latent that the model did not have is counted
with a full query projection.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

from kvcore.model.memories import Attention, Latent, Memory, SharedCache, State
from kvcore.model.model import Model, WeightPart
from kvcore.model.weights import attention_parameters, delta_net_parameters, mamba2_parameters, mla_parameters

Layers = tuple[tuple[Memory, ...], ...]
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
