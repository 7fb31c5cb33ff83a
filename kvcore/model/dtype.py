"""The 16-bit dtype in which a checkpoint is served."""

from __future__ import annotations

from kvcore.model.keys import Keys


def model_dtype(keys: Keys) -> str:
    """The 16-bit dtype that the model is served in; a float32 checkpoint is served in bf16."""
    stated = str(keys.raw.get("dtype") or keys.raw.get("torch_dtype") or "bfloat16").removeprefix("torch.")
    return "fp16" if stated in ("float16", "fp16", "half") else "bf16"
