"""TensorRT-LLM's start-up log: its lines, and the settings that they tell."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvcore.engines.layout import Layout
from kvcore.engines.log import LogReading, LogRules, N, Pattern, amount, pattern
from kvcore.model.model import Model
from kvcore.terms import Term


def _trt(needle: str, rest: str, source: str, **more: Any) -> Pattern:
    return pattern("tensorrt-llm", needle, rest, f"TensorRT-LLM {source}", **more)


PATTERNS = (
    _trt("TensorRT-LLM version: ", r"(?P<engine_version>[0-9][\w.+-]{0,40})", "0.6 … 1.2, tensorrt_llm/__init__.py",
         begins=True),
    _trt("[TensorRT-LLM][INFO] Engine version ", r"(?P<engine_version>[0-9][\w.+-]{0,40})", "0.8 … 1.0, runtime",
         begins=True),
    _trt("for max tokens in paged KV cache (", rf"(?P<kv_cache_size_tokens>{N})\)",
         "0.7 … 1.2, batch_manager/kvCacheManager.cpp", closes=True),
    _trt("[MemUsageChange] Allocated ", rf"{amount('kv_size')} for max tokens in paged KV cache",
         "0.7 … 1.2, batch_manager/kvCacheManager.cpp"),
    _trt("Number of tokens per block: ", rf"(?P<block_size>{N})", "0.7 … 1.2, batch_manager/kvCacheManager.cpp"),
    _trt("Memory usage when calculating max tokens in paged kv cache: total: ",
         rf"{amount('total')}, available: {amount('free_now')}", "0.9 … 1.0, batch_manager/kvCacheManager.cpp"),
    _trt("Number of blocks in KV cache primary pool: ", rf"(?P<blocks>{N})",
         "0.9 … 0.20, batch_manager/kvCacheManager.cpp", closes=True),
    _trt("Max KV cache blocks per sequence: ", rf"{N} \[window size=(?P<window>{N})\], tokens per block="
         rf"(?P<block_size>{N})(?:, primary blocks=(?P<blocks>{N}))?(?:, secondary blocks={N})?"
         rf"(?:, max sequence length=(?P<max_model_len>{N}))?", "0.19 … 1.2, batch_manager/kvCacheManager.cpp"),
    _trt("Max KV cache pages per sequence: ", rf"(?P<pages_per_sequence>{N})",
         "0.8 … 0.18, batch_manager/kvCacheManager.cpp"),
    _trt("Estimated max memory in KV cache : ", amount("kv_estimate"), "0.18 … 1.2, _torch/pyexecutor/_util.py"),
)  # fmt: skip


class TensorRtLlmLog(LogRules):
    """See kvcore.engines.log.LogRules."""

    patterns = PATTERNS
    block_option = "tokens_per_block"

    def version(self, reading: LogReading) -> tuple[str | None, tuple[str, ...]]:
        """The release that is stated, else the newest."""
        return reading.engine_version, ()

    def options(self, reading: LogReading) -> dict[str, Any]:
        """See LogRules.options."""
        return {"tokens_per_block": reading.facts.get("block_size")}

    def reasons(self, reading: LogReading, model: Model, layout: Layout, terms: tuple[Term, ...]) -> Iterator[str]:
        """See LogRules.reasons: the steps from the memory to the blocks of each window."""
        yield from (f"{term.formula}." for term in terms[:3])


TENSORRT_LLM_LOG = TensorRtLlmLog()
