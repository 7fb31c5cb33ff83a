"""How many requests fit beside a model's weights: the bound that nothing but weights and caches sets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kvcore.errors import UnitError
from kvcore.formats import KVFormat
from kvcore.hardware.gpus import Accelerator
from kvcore.hardware.systems import MAX_GPUS
from kvcore.model.model import Model
from kvcore.model.weight_formats import weights_bytes
from kvcore.ranks.memories import rank_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """A bound: memory for activations, graphs and the runtime is not taken off, so no more than `requests` fit.

    Weights are split evenly. `free_bytes` and `request_bytes` are those of one GPU; `free_bytes` is negative where
    the weights alone do not fit. `requests` is None where a request takes nothing.
    """

    gpus: int
    weights_bytes: int
    weights_format: str
    weights_knowledge: Literal["exact", "estimated"]
    free_bytes: int
    request_bytes: int
    requests: int | None


def room(
    model: Model,
    tokens: int,
    kv: KVFormat,
    gpu: Accelerator,
    gpus: int,
    *,
    weights: str | None = None,
    source_tokens: int | None = None,
) -> Room | None:
    """Requests of `tokens` tokens beside the weights on that many GPUs; None where the weights are not known.

    `weights` is their format, by default the one that is stored. Raises UnitError for a number of GPUs out of range.
    """
    if not 1 <= gpus <= MAX_GPUS:
        raise UnitError(f"GPUs: {gpus:,} is not within 1 … {MAX_GPUS:,}")
    stored = weights_bytes(model, weights)
    if stored is None:
        return None
    free = gpu.memory_bytes - -(-stored.bytes // gpus)
    each = rank_bytes(model, tokens, kv, gpus, source_tokens)
    return Room(
        gpus=gpus,
        weights_bytes=stored.bytes,
        weights_format=stored.format,
        weights_knowledge=stored.knowledge,
        free_bytes=free,
        request_bytes=each,
        requests=0 if free < 0 else free // each if each else None,
    )


def gpus_for(model: Model, gpu: Accelerator, weights: str | None = None) -> int:
    """The fewest GPUs, doubling from one, whose memory the weights fill at most by half; 1 where they are not known."""
    stored = weights_bytes(model, weights)
    gpus = 1
    while stored is not None and 2 * stored.bytes > gpus * gpu.memory_bytes and gpus < MAX_GPUS:
        gpus *= 2
    return gpus
