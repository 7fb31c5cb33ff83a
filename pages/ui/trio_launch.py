"""The command that starts an engine as the Size screen has it: the length, the format and the memory that are shown."""

from __future__ import annotations

from functools import lru_cache

from kvcore.errors import KVCoreError
from kvcore.hardware import Accelerator
from kvcore.model import Model
from kvcore.plan.deployment import Deployment
from kvcore.plan.launch import Command, launch


@lru_cache(maxsize=128)
def command(
    model: Model, engine: str, length: int, kv_dtype: str, tp: int, gpu: Accelerator, kv_bytes: int
) -> Command | str:
    """The launch command, or why there is none: the screen's figures are those of the engine's own defaults."""
    # llama.cpp's slots share one cache unless somebody says how many there are; a stated context keeps it so.
    options = (("ctx_size", length),) if engine == "llama.cpp" else ()
    try:
        return launch(
            model,
            Deployment(
                gpu=gpu, context=length, tp=tp, engine=engine, kv_dtype=kv_dtype, kv_bytes=kv_bytes, options=options
            ),
        )
    except KVCoreError as problem:
        return str(problem)
