"""Which tokens and sequences vLLM profiles where nobody says: by version, engine core, GPU and kind of model.

Source: engine/arg_utils.py and config.py (SchedulerConfig) of the versions named beside the constants.
"""

from __future__ import annotations

import re
from functools import lru_cache

from kvcore.deployment import Deployment
from kvcore.hardware.gpus import Accelerator
from kvcore.plan.overhead_tower import Tower
from kvcore.units import GIB

# From this version vLLM has its second engine core ("V1") by default, and by it alone from 0.11.
V1_FROM, V1_ONLY_FROM = (0, 8), (0, 11)
# An 80 GB card's 1,024 sequences by default (engine/arg_utils.py); before, 256 everywhere.
MANY_SEQS_FROM = (0, 9)
LARGEST_DEFAULTS_FROM = (0, 27)
LARGE_GIB, LARGEST_GIB = 70, 160
NEWEST = (0, 33)
# The older core switched chunked prefill on by itself for longer contexts than this (engine/arg_utils.py), from the
# release after pull request 6666 on; never for models with towers (8425), whose steps it never made smaller than 5,120.
V0_CHUNKS_ABOVE, V0_CHUNKS_FROM, V0_PICTURES_AT_LEAST = 32_768, (0, 5, 4), 5120


@lru_cache(maxsize=256)
def version_of(text: str | None) -> tuple[int, int]:
    """(major, minor) of a version; the newest that is followed where none is stated."""
    found = re.match(r"v?(\d+)\.(\d+)", text or "")
    return (int(found[1]), int(found[2])) if found else NEWEST


def _is_old_gpu(gpu: Accelerator) -> bool:
    """Before Ampere (compute capability 8.0), which the newer core did not serve at first."""
    try:
        return float(gpu.compute_capability or "9") < 8
    except ValueError:
        return False


def is_v0(deployment: Deployment, made: Tower | None = None) -> bool:
    """Whether vLLM's older core runs: by version, and in between for old GPUs, bitsandbytes' formats and towers whose
    pictures are read by cross attention."""
    version = version_of(deployment.engine_version)
    if version < V1_FROM:
        return True
    old = _is_old_gpu(deployment.gpu) or deployment.weight_format == "bnb4" or (made is not None and made.crosses)
    return version < V1_ONLY_FROM and old


def chunks_by_itself(deployment: Deployment, made: Tower | None = None) -> bool:
    """Whether the older core switched chunked prefill on, which it did for long contexts only, and for text only."""
    found = re.match(r"v?(\d+)\.(\d+)\.(\d+)", deployment.engine_version or "")
    early = found is not None and tuple(int(part) for part in found.groups()) < V0_CHUNKS_FROM
    long = deployment.max_num_batched_tokens is None and deployment.context > V0_CHUNKS_ABOVE
    return long and made is None and not early


def v0_defaults(deployment: Deployment, version: tuple[int, int], made: Tower | None) -> tuple[int, int]:
    """Tokens of a step and sequences of the older core, as stated or by default."""
    chunk = 512 if version < (0, 6) else 2048
    least = V0_PICTURES_AT_LEAST if made else 2048
    default = chunk if chunks_by_itself(deployment, made) else max(deployment.context, least)
    return deployment.max_num_batched_tokens or default, deployment.max_num_seqs or 256


def has_large_defaults(gpu: Accelerator) -> bool:
    """Whether the newer core's defaults are those of large GPUs; unified memory (GB10, Jetson) has the smaller ones."""
    return gpu.memory_bytes >= LARGE_GIB * GIB and "a100" not in gpu.id and not gpu.unified_memory


def v1_defaults(deployment: Deployment, version: tuple[int, int]) -> tuple[int, int]:
    """The same of the newer core."""
    large = has_large_defaults(deployment.gpu)
    largest = large and deployment.gpu.memory_bytes >= LARGEST_GIB * GIB and version >= LARGEST_DEFAULTS_FROM
    tokens = 16_384 if largest else 8192 if large else 2048
    seqs = 1024 if large and version >= MANY_SEQS_FROM else 256
    seqs = deployment.max_num_seqs or seqs
    return deployment.max_num_batched_tokens or min(tokens, seqs * max(1, deployment.context)), seqs


def captured_graphs(seqs: int) -> int:
    """CUDA graphs: sizes up to twice the sequences for steps with prefill, up to the sequences for decoding.

    Sizes are 1, 2, 4, every 8 up to 256 and every 16 up to 512 (config/vllm.py, cudagraph_capture_sizes).
    """
    return _sizes(min(512, 2 * seqs)) + _sizes(min(512, seqs))


def _sizes(largest: int) -> int:
    small = sum(size <= largest for size in (1, 2, 4))
    return small + min(largest, 256) // 8 + max(0, (largest - 256) // 16)
