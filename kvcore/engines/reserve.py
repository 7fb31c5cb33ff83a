"""What an engine sets aside for a request of the longest length, and what it will log: two of the three numbers.

The third, what the model must remember now, is kvcore.sizing's; the three differ several times over for one model.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from kvcore.deployment import Request
from kvcore.engines.base import Capacity, Layout
from kvcore.engines.registry import engine, engine_names
from kvcore.errors import KVCoreError
from kvcore.hardware.gpus import Accelerator
from kvcore.model.model import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """An engine's layout for a request of `length` tokens and what fits in the memory given, or why there is neither.

    `layout` is None where the engine refuses the model or its settings, `capacity` where it has no memory to fill.
    """

    engine: str
    versions: str
    length: int | None
    layout: Layout | None = None
    capacity: Capacity | None = None
    command: tuple[str, ...] = ()
    refused: str = ""


def reserve(
    model: Model,
    name: str,
    *,
    length: int | None,
    kv_dtype: str = "auto",
    tp: int = 1,
    gpu: Accelerator | None = None,
    kv_bytes: int | None = None,
) -> Reservation:
    """What the engine of that name sets aside on one rank, its defaults for everything that is not said.

    A refusal is an answer here and not an error; EngineError only for an engine that is not known.
    """
    chosen = engine(name)
    try:
        settings = chosen.settings(model, Request(context=length, kv_dtype=kv_dtype, tp=tp, gpu=gpu))
        layout = chosen.layout(model, settings)
        command = chosen.flags(model, settings)
    except KVCoreError as refusal:
        return Reservation(engine=chosen.name, versions=chosen.versions, length=length, refused=str(refusal))
    capacity, refused = None, ""
    if kv_bytes is not None:
        try:
            capacity = chosen.capacity(model, settings, kv_bytes)
        except KVCoreError as refusal:
            refused = str(refusal)
    return Reservation(
        engine=chosen.name,
        versions=chosen.versions,
        length=layout.max_model_len,
        layout=layout,
        capacity=capacity,
        command=command,
        refused=refused,
    )


# Any length will do: what an engine refuses is a kind of memory or a format.
_ANY_LENGTH = 8192


@lru_cache(maxsize=1024)
def stored_by(model: Model, kv_dtype: str, gpu: Accelerator | None = None) -> tuple[str, ...]:
    """The engines whose rules lay out these memories in this cache format, whoever may have weights for them."""
    return tuple(
        name
        for name in engine_names()
        if reserve(model, name, length=_ANY_LENGTH, kv_dtype=kv_dtype, gpu=gpu).layout is not None
    )
