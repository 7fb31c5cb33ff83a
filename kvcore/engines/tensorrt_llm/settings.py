"""What a user of TensorRT-LLM may set (KvCacheConfig and trtllm-serve, public documentation of 1.4.0rc4)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kvcore.deployment import Request
from kvcore.engines.base import Option, check_whole, longest_request, own_values
from kvcore.engines.releases import followed
from kvcore.errors import EngineError
from kvcore.hardware.systems import MAX_GPUS
from kvcore.model.model import Model
from kvcore.units import MAX_TOKENS, check_tokens, parse_tokens

VERSION = "1.4.0rc4"
BACKENDS = ("pytorch", "tensorrt")
# Defaults of trtllm-serve (commands/serve.py, builder.py: BuildConfig) and of KvCacheConfig.
MAX_NUM_TOKENS, MAX_BATCH_SIZE = 8192, 2048
FREE_GPU_MEMORY_FRACTION, TOKENS_PER_BLOCK = 0.9, 32
_BOUNDS = {
    "max_seq_len": (1, MAX_TOKENS), "tp_size": (1, MAX_GPUS), "pp_size": (1, MAX_GPUS), "tokens_per_block": (2, 65_536),
    "max_tokens": (1, MAX_TOKENS),
}  # fmt: skip

OPTIONS = (
    Option(flag="--backend", field="backend", kind="text", help="pytorch, or engines built by TensorRT",
           choices=BACKENDS),
    Option(flag="--tokens-per-block", field="tokens_per_block", kind="integer", help="tokens a block"),
    Option(flag="--max-tokens", field="max_tokens", kind="integer", help="most tokens in a pool"),
    Option(flag="--free-gpu-memory-fraction", field="free_gpu_memory_fraction", kind="fraction",
           help="share of the free memory for the cache", means="utilization"),
    Option(flag="--max-attention-window", field="max_attention_window", kind="text",
           help="windows of the layers, a pattern that repeats: 128,131072"),
    Option(flag="--enable-attention-dp", field="enable_attention_dp", kind="switch",
           help="attention data-parallel inside the tensor-parallel ranks", means="dp_attention"),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRtLlmSettings:
    """TensorRT-LLM's own settings under their own names; `max_attention_window` is a pattern that repeats."""

    max_seq_len: int
    dtype: str = "auto"
    tp_size: int = 1
    pp_size: int = 1
    enable_attention_dp: bool = False
    backend: str = "pytorch"
    tokens_per_block: int = TOKENS_PER_BLOCK
    max_tokens: int | None = None
    free_gpu_memory_fraction: float = FREE_GPU_MEMORY_FRACTION
    max_attention_window: tuple[int, ...] = ()
    version: str = VERSION

    def __post_init__(self) -> None:
        check_tokens(self.max_seq_len)
        check_whole("tensorrt-llm", self, _BOUNDS)
        size = self.tokens_per_block
        if size & (size - 1):
            raise EngineError(
                f"--tokens-per-block is {size:,}; expected a power of two, 2 … 65,536", engine="tensorrt-llm"
            )
        if not 0 < self.free_gpu_memory_fraction < 1:
            raise EngineError(
                f"free_gpu_memory_fraction is {self.free_gpu_memory_fraction}; expected within 0 … 1",
                engine="tensorrt-llm",
            )
        if self.backend not in BACKENDS:
            raise EngineError(f"backend {self.backend[:20]!r} is not {' or '.join(BACKENDS)}", engine="tensorrt-llm")
        if any(window < 1 for window in self.max_attention_window):
            raise EngineError("a window of max_attention_window is below 1", engine="tensorrt-llm")

    @property
    def attention_tp(self) -> int:
        """Ranks that share the heads of one attention layer."""
        return 1 if self.enable_attention_dp else self.tp_size

    @property
    def windows(self) -> tuple[int, ...]:
        """The pattern of windows, none longer than a request; without one, every layer keeps a whole request."""
        return tuple(min(window, self.max_seq_len) for window in self.max_attention_window) or (self.max_seq_len,)


def make_settings(model: Model, asked: Request) -> TensorRtLlmSettings:
    """Settings for a request; EngineError for a value, a platform or a version that is not followed.

    Where attention is data-parallel, all GPUs count as tensor-parallel ranks, and a request counts replicas.
    """
    if asked.platform != "cuda":
        raise EngineError(f"it does not run on {asked.platform}", engine="tensorrt-llm")
    if asked.dp_attention and asked.tp > 1:
        raise EngineError(
            f"attention is data-parallel over all ranks or none: tp {asked.tp} beside it cannot be",
            engine="tensorrt-llm",
        )
    if asked.dcp != 1:
        raise EngineError("it has no decode context parallel", engine="tensorrt-llm")
    length = longest_request("tensorrt-llm", model, asked)
    chosen = own_values("tensorrt-llm", OPTIONS, asked)
    if isinstance(chosen.get("max_attention_window"), str):
        chosen["max_attention_window"] = _windows(chosen["max_attention_window"])
    return TensorRtLlmSettings(
        max_seq_len=length,
        dtype=asked.kv_dtype,
        tp_size=asked.tp * asked.dp if asked.dp_attention else asked.tp,
        pp_size=asked.pp,
        # The paged pools that these rules describe came with 0.8.
        version=followed("tensorrt-llm", asked.engine_version or VERSION, "0.8 to 1", first=(0, 8), before=(2,)),
        **chosen,
    )


def _windows(text: str) -> tuple[int, ...]:
    words = [word for word in re.split(r"[,\s\[\]]+", text[:2000]) if word]
    if not words:
        raise EngineError("max_attention_window is empty; write for example 128,131072", engine="tensorrt-llm")
    return tuple(parse_tokens(word) for word in words)
