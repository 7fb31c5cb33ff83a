"""What an engine sets aside for a request of the longest length, and what it will log: two of the three numbers.

The third, what the model must remember now, is kvcore.sizing's; the three differ several times over for one model.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

from kvcore.deployment import Deployment, Request
from kvcore.engines.base import Engine
from kvcore.engines.command import Command
from kvcore.engines.layout import Capacity, Layout
from kvcore.engines.registry import engine, engine_names, refuse_launch
from kvcore.errors import KVCoreError
from kvcore.hardware.gpus import Accelerator, accelerator
from kvcore.model.model import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """An engine's layout for a request of `length` tokens and what fits in the memory given, or why there is neither.

    `layout` is None where the engine refuses the model or its settings, `capacity` where it has no memory to fill.
    `command` starts the engine so; a sentence where no command does. `refused` is the refusal, `reason` the same
    without the engine's name.
    """

    engine: str
    versions: str
    length: int | None
    layout: Layout | None = None
    capacity: Capacity | None = None
    command: Command | str = ""
    refused: str = ""
    reason: str = ""


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
    chosen, asked = engine(name), Request(context=length, kv_dtype=kv_dtype, tp=tp, gpu=gpu)
    try:
        settings = chosen.settings(model, asked)
        layout = chosen.layout(model, settings)
    except KVCoreError as refusal:
        return Reservation(
            engine=chosen.name, versions=chosen.versions, length=length, command=str(refusal), refused=str(refusal),
            reason=refusal.reason,
        )  # fmt: skip
    capacity, refused, reason = None, "", ""
    if kv_bytes is not None:
        try:
            capacity = chosen.capacity(model, settings, kv_bytes)
        except KVCoreError as refusal:
            refused, reason = str(refusal), refusal.reason
    return Reservation(
        engine=chosen.name,
        versions=chosen.versions,
        length=layout.max_model_len,
        layout=layout,
        capacity=capacity,
        command=_command(model, chosen, asked, settings, layout.max_model_len, kv_bytes),
        refused=refused,
        reason=reason,
    )


def _command(
    model: Model, chosen: Engine, asked: Request, settings: Any, length: int, kv_bytes: int | None
) -> Command | str:
    try:
        return command_for(model, chosen, asked, settings, length, kv_bytes)
    except KVCoreError as refusal:
        return str(refusal)


def command_for(
    model: Model, chosen: Engine, asked: Request, settings: Any, length: int, kv_bytes: int | None
) -> Command:
    """The command that starts an engine with these settings for requests of `length` tokens.

    `kv_bytes` are the memory for the cache on each rank, None for the engine's own share. EngineError or UnitError
    where no command does.
    """
    said = {one.name: getattr(asked, one.name) for one in fields(Request)}
    said |= {"gpu": asked.gpu or accelerator(_UNNAMED), "context": length}
    deployment = Deployment(engine=chosen.name, kv_bytes=kv_bytes, **said)
    refuse_launch(model, deployment)
    return chosen.launch(model, deployment, settings)


# What every engine's settings take a GPU for where none is named.
_UNNAMED = "h100-sxm"
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
