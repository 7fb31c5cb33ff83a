"""What a user of vLLM may set, and the defaults that depend on the machine."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from kvcore.engines.base import check_whole
from kvcore.errors import EngineError
from kvcore.hardware.systems import MAX_GPUS
from kvcore.units import GIB, MAX_TOKENS, check_tokens

VERSION = "0.33.0"
# What changed between releases, read in each release's own v1/kv_cache_interface.py and v1/core/kv_cache_utils.py: the
# line "GPU KV cache size" counts all groups, DeepSeek-V4's pages get slots of their size and later none at all, windows
# hold what all batches in flight may bring and not one batch, size and concurrency share a line, the check at the start
# leaves out the block that is never handed out (the null block), a CPU is called one.
ALL_GROUPS_LOGGED = (0, 21)
SLOTS_BY_SIZE = (0, 23)
ALL_BATCHES_HELD = (0, 26)
PACKED_DENSELY = (0, 27)
ONE_LINE_LOGGED = (0, 28)
NULL_BLOCK_LEFT_OUT = (0, 29)
CPU_NAMED = (0, 30)
_BOUNDS = {
    "tensor_parallel_size": (1, MAX_GPUS), "pipeline_parallel_size": (1, MAX_GPUS),
    "decode_context_parallel_size": (1, MAX_GPUS),
    "block_size": (1, 65_536), "max_num_batched_tokens": (1, MAX_TOKENS), "num_speculative_tokens": (0, 1024),
    "mtp_layers": (0, 256), "num_gpu_blocks_override": (1, MAX_TOKENS),
}  # fmt: skip


@lru_cache(maxsize=256)
def release(version: str) -> tuple[int, int]:
    """The first two numbers of a version such as 0.33.0, v0.23.1rc1 or 0.9; EngineError for anything else."""
    found = re.fullmatch(r"v?(\d{1,3})\.(\d{1,3})(?:(?:[.+-]|rc|dev|post|a\d|b\d)[.\w+-]{0,40})?", version)
    if not found:
        raise EngineError(f"vllm: {version[:20]!r} is not a version such as {VERSION}")
    return int(found[1]), int(found[2])


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmSettings:
    """vLLM's own flags under their own names, with the facts about the device that its defaults depend on.

    `gpu_bytes` and `compute_capability` describe one device (an H100 unless said); `few_batched_tokens` is true of an
    A100 and a GB10, which have the memory of the larger class and the smaller class's default. `mtp_layers` are layers
    of a multi-token-prediction head that speculation adds. On a CPU with AVX-512 BF16 (`cpu_avx512_bf16`)
    vLLM keeps recurrent states in fp32. None means vLLM's own default.
    """

    max_model_len: int
    kv_cache_dtype: str = "auto"
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    decode_context_parallel_size: int = 1
    block_size: int | None = None
    max_num_batched_tokens: int | None = None
    enable_prefix_caching: bool = True
    disable_hybrid_kv_cache_manager: bool = False
    async_scheduling: bool = True
    num_speculative_tokens: int = 0
    mtp_layers: int = 0
    num_gpu_blocks_override: int | None = None
    platform: Literal["cuda", "cpu"] = "cuda"
    cpu_avx512_bf16: bool = True
    gpu_bytes: int = 80 * GIB
    compute_capability: float = 9.0
    few_batched_tokens: bool = False
    version: str = VERSION

    def __post_init__(self) -> None:
        check_tokens(self.max_model_len)
        check_whole("vllm", self, _BOUNDS)
        if self.max_model_len < 1:
            raise EngineError("vllm: max_model_len is 0; a request has at least one token")
        if self.tensor_parallel_size % self.decode_context_parallel_size:
            raise EngineError(
                f"vllm: decode_context_parallel_size {self.decode_context_parallel_size} does not divide "
                f"tensor_parallel_size {self.tensor_parallel_size}"
            )

    @property
    def is_cpu(self) -> bool:
        return self.platform == "cpu"

    @property
    def batched_tokens(self) -> int:
        """max_num_batched_tokens as `vllm serve` defaults it (0.33, engine/arg_utils.py): by the GPU's memory."""
        if self.max_num_batched_tokens is not None:
            return self.max_num_batched_tokens
        if self.is_cpu:
            return 2048
        if self.gpu_bytes >= 160 * GIB:
            return 16_384
        # The driver reports an "80 GB" card as a little less than 80 GiB; vLLM draws its line at 70.
        return 8192 if self.gpu_bytes >= 70 * GIB and not self.few_batched_tokens else 2048

    @property
    def in_flight_tokens(self) -> int:
        """Tokens that may be scheduled before a window's blocks are freed: batches in flight × batched tokens.

        Before 0.26 vLLM counted one batch, however many were in flight.
        """
        if self.is_cpu or release(self.version) < ALL_BATCHES_HELD:
            return self.batched_tokens
        batches = self.pipeline_parallel_size + (1 if self.async_scheduling else 0)
        return batches * self.batched_tokens
