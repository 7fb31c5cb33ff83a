"""SGLang's start-up log: its lines, and the settings that they tell. It states the pools that it made."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvcore.engines.layout import Layout
from kvcore.engines.log import Kind, LogReading, LogRules, N, Pattern, amount, pattern
from kvcore.model.model import Model
from kvcore.terms import Term


def _sgl(needle: str, rest: str, source: str, **more: Any) -> Pattern:
    return pattern("sglang", needle, rest, f"SGLang {source} (GB are GiB)", **more)


PATTERNS = (
    _sgl("server_args=ServerArgs(", "", "0.2 … 0.5.10, entrypoints/engine.py", begins=True, pairs=True),
    _sgl("server_args={", "", "0.5.23, entrypoints/engine.py", begins=True, pairs=True),
    _sgl("Load weight begin. avail mem=", amount("free_before_weights"), "0.2 … 0.5.23, model_runner.py",
         begins=True),
    _sgl("Load weight end. ", "(?P<weights_loaded>)", "0.2 … 0.5.23, model_runner.py", pairs=True),
    _sgl("mem usage=", amount("weights_or_graph"), "0.4 … 0.5.23, model_runner.py"),
    _sgl("avail mem=", amount("free_now"), "0.2 … 0.5.23, model_runner.py"),
    _sgl("#tokens: ", rf"(?P<kv_cache_size_tokens>{N}),? K size: {amount('k_size')}, V size: {amount('v_size')}",
         "0.4 … 0.5.23, mem_cache/memory_pool.py", closes=True),
    _sgl("#tokens: ", rf"(?P<kv_cache_size_tokens>{N}),? KV size: {amount('kv_size')}",
         "0.4.7 … 0.5.23, mem_cache/memory_pool.py", closes=True),
    _sgl("Mamba Cache is allocated. max_mamba_cache_size: ", rf"(?P<state_slots>{N}), conv_state size: "
         rf"{amount('conv_state')}, ssm_state size: {amount('ssm_state')}",
         "0.5.3 … 0.5.23, mem_cache/memory_pool.py"),
    _sgl("full_layer_tokens=", rf"(?P<full_layer_tokens>{N}), swa_layer_tokens=(?P<swa_layer_tokens>{N})",
         "0.4.8 … 0.5.23, model_executor/pool_configurator.py"),
    _sgl("max_total_num_tokens=", rf"(?P<max_total_num_tokens>{N})", "0.2 … 0.5.23, managers/scheduler.py",
         pairs=True, closes=True),
)  # fmt: skip
PAIRS: dict[str, tuple[str, Kind]] = {
    "model": ("model", "text"), "model_path": ("model", "text"), "dtype": ("dtype", "text"),
    "quantization": ("quantization", "text"), "quant": ("quantization", "text"),
    "context_len": ("max_model_len", "count"), "context_length": ("max_model_len", "count"),
    "tp_size": ("tensor_parallel_size", "count"), "pp_size": ("pipeline_parallel_size", "count"),
    "dp_size": ("data_parallel_size", "count"), "kv_cache_dtype": ("kv_dtype", "text"),
    "page_size": ("block_size", "count"), "mem_fraction_static": ("mem_fraction_static", "number"),
    "chunked_prefill_size": ("chunked_prefill_size", "count"),
    "max_running_requests": ("max_running_requests", "count"),
    "disable_radix_cache": ("disable_radix_cache", "switch"),
    "enable_dp_attention": ("enable_dp_attention", "switch"), "max_total_tokens": ("max_total_tokens", "count"),
    "swa_full_tokens_ratio": ("swa_full_tokens_ratio", "number"),
    "mamba_full_memory_ratio": ("mamba_full_memory_ratio", "number"), "available_gpu_mem": ("free_now", "amount"),
    "type": ("architecture", "text"),
}  # fmt: skip


class SglangLog(LogRules):
    """See kvcore.engines.log.LogRules."""

    patterns = PATTERNS
    pairs = PAIRS
    states = "pool"
    block_option = "page_size"

    def version(self, reading: LogReading) -> tuple[str | None, tuple[str, ...]]:
        """The release that is stated, else the newest."""
        return reading.engine_version, ()

    def options(self, reading: LogReading) -> dict[str, Any]:
        """See LogRules.options."""
        get, number = reading.facts.get, reading.number
        return {
            "page_size": get("block_size"),
            "max_total_tokens": get("kv_cache_size_tokens") or get("max_total_num_tokens"),
            "max_mamba_cache_size": get("state_slots"),
            "max_running_requests": get("max_running_requests"),
            "mem_fraction_static": number("mem_fraction_static"),
            "chunked_prefill_size": get("chunked_prefill_size"),
            "swa_full_tokens_ratio": number("swa_full_tokens_ratio"),
            "mamba_full_memory_ratio": number("mamba_full_memory_ratio"),
            "enable_dp_attention": get("enable_dp_attention"),
            "dp_size": get("data_parallel_size"),
            "disable_radix_cache": get("disable_radix_cache"),
        }

    def reasons(self, reading: LogReading, model: Model, layout: Layout, terms: tuple[Term, ...]) -> Iterator[str]:
        """See LogRules.reasons: what a token takes in each group, and the padding page."""
        for group in layout.groups:
            if group.block_size:
                per_token = group.page_bytes // group.block_size
                yield f"{group.layers} {group.kind} layers × {per_token:,} B a token and layer; SGLang's GB are GiB."
        if tokens := reading.whole("kv_cache_size_tokens"):
            yield f"Buffers hold one padding page beside the {tokens:,} tokens."


SGLANG_LOG = SglangLog()
