"""What a log may have left out: single settings, tried one by one, with which every figure would come out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvcore.engines.logs.reading import LogReading
from kvcore.model.memories import Attention, State
from kvcore.model.model import Model

_BLOCK_SIZES = (16, 32, 64, 128, 256)


def agreeing_change(reading: LogReading, model: Model, wrong: Callable[[dict[str, Any]], int | None]) -> str:
    """The first single setting with which no figure disagrees, in words; else an empty text.

    `wrong` counts the figures that disagree under a change, None where the engine refuses it.
    """
    for changes, words in _candidates(reading, model):
        if wrong(changes) == 0:
            return f"It would come out exactly with {words}."
    return ""


def _candidates(reading: LogReading, model: Model) -> list[tuple[dict[str, Any], str]]:
    kept = [memory for memory, _ in model.kept]
    states = any(isinstance(memory, State) for memory in kept)
    windows = any(isinstance(memory, Attention) and memory.limit is not None for memory in kept)
    now = reading.facts.get("kv_dtype")
    tries: list[tuple[dict[str, Any], str]] = [
        ({"kv_dtype": name}, f"a cache in {name}") for name in ("fp8", "bf16") if name != now
    ]
    if reading.engine != "vllm":
        return tries
    tries += [({"block_size": size}, f"blocks of {size} tokens") for size in _BLOCK_SIZES]
    if states:
        tries.append(({"enable_prefix_caching": False}, "prefix caching off"))
    if windows:
        tries.append(({"disable_hybrid_kv_cache_manager": True}, "the hybrid cache manager off"))
        tries += [({"max_num_batched_tokens": size}, f"max_num_batched_tokens {size:,}") for size in
                  (2048, 4096, 8192, 16_384, 32_768)]  # fmt: skip
        tries.append(({"async_scheduling": "disabled"}, "asynchronous scheduling off"))
    tries.append(({"mtp_layers": 1, "num_speculative_tokens": 1}, "one MTP layer that proposes one token"))
    tries += [({"tensor_parallel_size": size}, f"tensor parallel {size}") for size in (2, 4, 8)]
    return tries
