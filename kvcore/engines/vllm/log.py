"""vLLM's start-up log: its lines, and the settings and the memory that they tell."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from kvcore.engines.layout import Layout
from kvcore.engines.log import F, Kind, LogReading, LogRules, N, Pattern, amount, pattern
from kvcore.engines.releases import release
from kvcore.engines.vllm.memory import GRAPHS_DEDUCTED
from kvcore.engines.vllm.settings import ALL_GROUPS_LOGGED, CPU_VERSION, VERSION, VllmSettings
from kvcore.errors import EngineError
from kvcore.model.memories import Attention, Indexer, Latent, State
from kvcore.model.model import Model
from kvcore.terms import Term

# A version whose line counts one group's share; since 0.21 it counts requests.
OLD = "0.20"
_BLOCK_SIZES = (16, 32, 64, 128, 256)
_BATCHES = (2048, 4096, 8192, 16_384, 32_768)


def _vllm(needle: str, rest: str, source: str, **more: Any) -> Pattern:
    return pattern("vllm", needle, rest, f"vLLM {source}", **more)


PATTERNS = (
    _vllm("Initializing a V1 LLM engine (v", r"(?P<engine_version>[\w.+-]{1,60})\)",
          "0.8 … 0.33, v1/engine/core.py", begins=True, pairs=True),
    _vllm("Initializing an LLM engine (v", r"(?P<engine_version>[\w.+-]{1,60})\)",
          "0.4 … 0.8, engine/llm_engine.py", begins=True, pairs=True),
    _vllm("Initializing a V0 LLM engine (v", r"(?P<engine_version>[\w.+-]{1,60})\)",
          "0.8 … 0.10, engine/llm_engine.py", begins=True, pairs=True),
    _vllm("vLLM API server version ", r"(?P<engine_version>[0-9][\w.+-]{0,60})", "0.4 … 0.32, entrypoints",
          begins=True),
    _vllm("vLLM server version ", r"(?P<engine_version>[0-9][\w.+-]{0,60})(?:, serving model (?P<model>\S{1,300}))?",
          "0.33, entrypoints/common/startup.py", begins=True),
    _vllm("█ ▀▄▀ █  version ", r"(?P<engine_version>[0-9][\w.+-]{0,60})", "0.17 … 0.33, entrypoints, the banner"),
    _vllm("█     █     █     █  model   ", r"(?P<model>\S{1,300})", "0.17 … 0.33, entrypoints, the banner"),
    _vllm("non-default args: {", "", "0.9 … 0.33, entrypoints/common/startup.py", pairs=True),
    _vllm("Automatically detected platform ", r"(?P<platform>\w{1,20})", "0.7 … 0.33, platforms/__init__.py"),
    _vllm("Resolved architecture: ", r"(?P<architecture>\w{1,100})", "0.10 … 0.33, config/model.py"),
    _vllm("Using max model len ", rf"(?P<max_model_len>{N})", "0.8 … 0.33, config/model.py"),
    _vllm("Auto-fit max_model_len: ", rf"reduced from {N} to (?P<max_model_len>{N})",
          "0.32, v1/core/kv_cache_utils.py"),
    _vllm("Chunked prefill is enabled with max_num_batched_tokens=", rf"(?P<max_num_batched_tokens>{N})",
          "0.6 … 0.33, config/scheduler.py"),
    _vllm("Asynchronous scheduling is ", r"(?P<async_scheduling>enabled|disabled)", "0.13 … 0.33, config/vllm.py"),
    _vllm("Using fp8 data type to store kv cache", "(?P<kv_dtype_fp8>)", "0.4 … 0.33, config/cache.py"),
    _vllm("Loading model weights took ", amount("weights"), "0.4 … 0.8, worker/model_runner.py (GB are GiB)",
          begins=True),
    _vllm("Model loading took ", amount("weights"), "0.8 … 0.33, v1/worker/gpu_model_runner.py"),
    _vllm("total_gpu_memory (", rf"(?P<total>{F} ?GiB)\) x gpu_memory_utilization \((?P<gpu_memory_utilization>{F})\)"
          rf" = {F} ?GiB", "0.6.4 … 0.9, worker/worker.py"),
    _vllm("model weights take ", rf"{amount('weights', 'GiB')}; non_torch_memory takes {amount('non_torch', 'GiB')}; "
          rf"PyTorch activation peak memory takes {amount('activation', 'GiB')}(?:; the rest of the memory reserved "
          rf"for KV Cache is {amount('available_kv', 'GiB')})?", "0.6.4 … 0.9, worker/worker.py"),
    _vllm("the rest of the memory reserved for KV Cache is ", amount("available_kv", "GiB"),
          "0.6.4 … 0.9, worker/worker.py"),
    _vllm("Memory profiling results: ", rf"total_gpu_memory={amount('total', 'GiB')}", "0.6.3, worker/worker.py",
          pairs=True),
    _vllm("Total non KV cache memory: ", rf"{amount('non_kv', 'GiB')}; torch peak memory increase: "
          rf"{amount('activation', 'GiB')}(?:; (?:non-torch forward increase memory: {amount('non_torch', 'GiB')}|"
          rf"total consumed \(from mem_get_info\): {amount('consumed', 'GiB')}); weights memory: "
          rf"{amount('weights', 'GiB')})?", "0.9 … 0.33, utils/mem_utils.py (debug)"),
    _vllm("Available KV cache memory: ", amount("available_kv"), "0.8.5 … 0.33, v1/worker/gpu_worker.py"),
    _vllm("Explicitly set (", rf"(?P<explicit_kv>{F})/{F}\) GiB for KV cache", "0.32, v1/worker/cpu_worker.py"),
    _vllm("reserved ", rf"{amount('available_kv', 'GiB')} memory for KV Cache",
          "0.11 … 0.33, v1/worker/gpu_worker.py"),
    _vllm("Estimated CUDA graph memory: ", amount("graph_estimate", "GiB"), "0.19 … 0.33, v1/worker"),
    _vllm("CUDA graph pool memory: ", rf"{amount('graph', 'GiB')} \(actual\), {amount('graph_estimate', 'GiB')} "
          r"\(estimated\)", "0.21 … 0.33, v1/worker/gpu_worker.py"),
    _vllm("Graph capturing finished in ", rf"{N} secs?, took {amount('graph')}",
          "0.6 … 0.33, v1/worker/gpu_model_runner.py"),
    _vllm("The current --gpu-memory-utilization=", rf"(?P<gpu_memory_utilization>{F}) is equivalent to "
          rf"--gpu-memory-utilization=(?P<equivalent_utilization>{F})", "0.21 … 0.33, v1/worker/gpu_worker.py"),
    _vllm("Free memory on device", rf"(?: cuda:[0-9]{{1,3}})? ?\({F}/(?P<total_gib>{F}) GiB\) on startup\. Desired "
          rf"GPU memory utilization is \((?P<gpu_memory_utilization>{F}), {F} GiB\)",
          "0.10 … 0.33, v1/worker/gpu_worker.py"),
    _vllm("Actual usage is ", rf"{amount('consumed', 'GiB')} for (?:consumed memory \(weights \+ non-torch\)|weight)"
          rf", {amount('activation', 'GiB')} for peak activation, (?:{amount('non_torch', 'GiB')} for non-torch "
          rf"memory, )?and {amount('graph', 'GiB')} for CUDAGraph memory", "0.10 … 0.33, v1/worker/gpu_worker.py"),
    _vllm("urrent kv cache memory in use is ", amount("available_kv"), "0.10 … 0.33, v1/worker/gpu_worker.py"),
    _vllm("# GPU blocks: ", rf"(?P<blocks>{N})", "0.4 … 0.8, executor and v1/core/kv_cache_utils.py", closes=True),
    _vllm("# CUDA blocks: ", rf"(?P<blocks>{N})", "0.7.3 … 0.9, executor/executor_base.py", closes=True),
    _vllm("# cuda blocks: ", rf"(?P<blocks>{N})", "0.7.3 … 0.9, executor/executor_base.py", closes=True),
    _vllm("GPU blocks: ", rf"(?P<blocks>{N})", "0.4 … 0.8, as people copy it", closes=True),
    _vllm("after num_gpu_blocks is: ", rf"(?P<blocks>{N})", "0.8 … 0.33, v1/metrics/loggers.py", closes=True),
    _vllm("Overriding num_gpu_blocks=", rf"{N} with num_gpu_blocks_override=(?P<blocks_override>{N})",
          "0.8 … 0.33, v1/core/kv_cache_utils.py"),
    _vllm(" KV cache size: ", rf"(?P<kv_cache_size_tokens>{N}) tokens", "0.8.3 … 0.33, v1/core/kv_cache_utils.py",
          word_before="pool", closes=True),
    _vllm("Maximum concurrency for ", rf"(?P<concurrency_length>{N}) tokens per request: (?P<max_concurrency>{F})x",
          "0.6 … 0.33, v1/core/kv_cache_utils.py", closes=True),
    _vllm("max seq len (", rf"(?P<max_model_len>{N})\), \(?{amount('needed_kv', 'GiB|GB')} KV cache is needed, which "
          rf"is larger than the available KV cache memory \({amount('available_kv', 'GiB|GB')}\)",
          "0.9 … 0.33, v1/core/kv_cache_planning.py", closes=True),
    _vllm("the estimated maximum model length is ", rf"(?P<estimated_max_model_len>{N})",
          "0.9 … 0.33, v1/core/kv_cache_planning.py", closes=True),
    _vllm("max seq len (", rf"(?P<max_model_len>{N})\) is larger than the maximum number of tokens that can be stored "
          rf"in KV cache \((?P<kv_cache_size_tokens>{N})\)", "0.3 … 0.8, worker/worker.py", closes=True),
    _vllm("No available memory for the cache blocks", "(?P<no_memory>)", "0.3 … 0.33, v1/core/kv_cache_planning.py",
          closes=True),
    _vllm("Setting attention block size to ", rf"(?P<attention_block_size>{N}) tokens",
          "0.11 … 0.33, platforms/interface.py"),
    _vllm("Padding mamba page size by ", rf"(?P<mamba_padding_pct>{F})%", "0.11 … 0.33, platforms/interface.py"),
    _vllm("Add ", rf"(?P<padding_layers>{N}) padding layers", "0.11 … 0.33, v1/core/kv_cache_planning.py"),
    _vllm("kv cache group sizes (", r"(?P<group_block_sizes>[0-9][0-9, ]{0,400})\)", "0.32, v1/core/kv_cache_utils.py"),
    _vllm("Hybrid KV cache manager is disabled", "(?P<hybrid_disabled>)", "0.11 … 0.33, v1/core/kv_cache_utils.py"),
    _vllm("No common block size for ", rf"(?P<refused_block_size>{N})", "0.32, v1/worker/utils.py", closes=True),
    _vllm("CPU backend prefers block_size", "(?P<platform_cpu>)", "0.32, platforms/cpu.py"),
    _vllm("init engine (profile, create kv cache, warmup model) took ", rf"(?P<init_seconds>{F})",
          "0.6 … 0.33, v1/engine/core.py"),
)  # fmt: skip
PAIRS: dict[str, tuple[str, Kind]] = {
    "model": ("model", "text"), "model_tag": ("model", "text"), "dtype": ("dtype", "text"),
    "quantization": ("quantization", "text"), "max_seq_len": ("max_model_len", "count"),
    "max_model_len": ("max_model_len", "count"), "tensor_parallel_size": ("tensor_parallel_size", "count"),
    "pipeline_parallel_size": ("pipeline_parallel_size", "count"),
    "data_parallel_size": ("data_parallel_size", "count"),
    "decode_context_parallel_size": ("decode_context_parallel_size", "count"),
    "kv_cache_dtype": ("kv_dtype", "text"), "block_size": ("block_size", "count"),
    "gpu_memory_utilization": ("gpu_memory_utilization", "number"),
    "max_num_batched_tokens": ("max_num_batched_tokens", "count"),
    "enable_prefix_caching": ("enable_prefix_caching", "switch"),
    "disable_hybrid_kv_cache_manager": ("disable_hybrid_kv_cache_manager", "switch"),
    "num_gpu_blocks_override": ("blocks_override", "count"),
    "kv_cache_memory_bytes": ("kv_cache_memory_bytes", "count"), "device_config": ("platform", "text"),
    "kv_cache_size": ("available_kv", "amount"), "peak_torch_memory": ("peak_torch", "amount"),
    "non_torch_memory": ("non_torch", "amount"),
}  # fmt: skip


class VllmLog(LogRules):
    """See kvcore.engines.log.LogRules."""

    patterns = PATTERNS
    pairs = PAIRS

    def version(self, reading: LogReading) -> tuple[str | None, tuple[str, ...]]:
        """The release that is stated; without one, that of the meaning that the token line has."""
        stated = reading.engine_version
        if stated is not None and not stated.startswith("0.1.dev"):
            return stated.partition("+")[0], ()
        version = VERSION if _counts_requests(reading) else OLD
        if reading.facts.get("platform") == "cpu" and version == VERSION:
            version = CPU_VERSION
        return version, (f"The log states no release; its lines are read as those of {version}.",)

    def options(self, reading: LogReading) -> dict[str, Any]:
        """See LogRules.options."""
        get = reading.facts.get
        return {
            "block_size": get("block_size") or _kernel_block(reading),
            "max_num_batched_tokens": get("max_num_batched_tokens"),
            "no_prefix_caching": True if get("enable_prefix_caching") is False or _whole_requests(reading) else None,
            "disable_hybrid_kv_cache_manager": get("disable_hybrid_kv_cache_manager"),
            "no_async_scheduling": True if get("async_scheduling") == "disabled" else None,
            "num_gpu_blocks_override": get("blocks_override"),
            "mtp_layers": get("mtp_layers"),
            "num_speculative_tokens": get("num_speculative_tokens"),
        }

    def completed(self, settings: VllmSettings, reading: LogReading) -> VllmSettings:
        """With the device's memory, on which the default of batched tokens depends."""
        total = reading.amount("total")
        return settings if total is None else replace(settings, gpu_bytes=total.nearest_bytes)

    def reasons(self, reading: LogReading, model: Model, layout: Layout, terms: tuple[Term, ...]) -> Iterator[str]:
        """See LogRules.reasons: blocks, groups, what the token line means, and what ranks copy."""
        groups = layout.groups
        if layout.bytes_per_block and layout.block_size:
            yield f"One block of the pool is {layout.bytes_per_block:,} B."
        if len(groups) > 1:
            needs = " + ".join(f"{group.blocks_per_request:,}" for group in groups)
            total = layout.blocks_per_request
            yield f"{len(groups)} groups of layers share it; a request needs {needs} = {total:,} blocks."
            widest = max(group.layers for group in groups)
            padding = sum(widest - group.layers for group in groups)
            # A packed pool has pages of several sizes and no padding.
            if padding and len({group.page_bytes for group in groups}) == 1:
                yield f"Groups are padded to {widest} layers: {padding} padding layers hold nothing."
        elif layout.blocks_per_request:
            yield f"A request of {layout.max_model_len:,} tokens needs {layout.blocks_per_request:,} blocks."
        if len(groups) > 1 and "kv_cache_size_tokens" in reading.facts:
            yield _meaning(layout.engine_version, len(groups))
        yield from _ranks(reading, model)
        if (graph := reading.amount("graph_estimate")) and release(layout.engine_version) >= GRAPHS_DEDUCTED:
            yield f"The estimated CUDA-graph pool of {graph.text} was taken off before the cache was sized."

    def guesses(self, reading: LogReading, model: Model) -> Iterator[tuple[dict[str, Any], str]]:
        """See LogRules.guesses."""
        kept = [memory for memory, _ in model.kept]
        yield from super().guesses(reading, model)
        yield from (({"block_size": size}, f"blocks of {size} tokens") for size in _BLOCK_SIZES)
        if any(isinstance(memory, State) for memory in kept):
            yield {"enable_prefix_caching": False}, "prefix caching off"
        if any(isinstance(memory, Attention) and memory.limit is not None for memory in kept):
            yield {"disable_hybrid_kv_cache_manager": True}, "the hybrid cache manager off"
            yield from (({"max_num_batched_tokens": size}, f"max_num_batched_tokens {size:,}") for size in _BATCHES)
            yield {"async_scheduling": "disabled"}, "asynchronous scheduling off"
        yield {"mtp_layers": 1, "num_speculative_tokens": 1}, "one MTP layer that proposes one token"
        yield from (({"tensor_parallel_size": size}, f"tensor parallel {size}") for size in (2, 4, 8))


VLLM_LOG = VllmLog()


def _counts_requests(reading: LogReading) -> bool:
    """Whether the token line is concurrency × length; where both are not printed, the newest meaning is taken."""
    facts = reading.facts
    if "blocks" in facts and "kv_cache_size_tokens" not in facts:
        return False
    tokens, length = facts.get("kv_cache_size_tokens"), facts.get("concurrency_length")
    concurrency = reading.decimals("max_concurrency")
    if concurrency is None or tokens is None or length is None:
        return True
    return bool(abs(tokens - concurrency.value * length) <= concurrency.half_step * length + 1)


def _group_sizes(reading: LogReading) -> tuple[int, ...]:
    stated = str(reading.facts.get("group_block_sizes", ""))
    return tuple(int(word) for word in stated.replace(",", " ").split()[:64])


def _kernel_block(reading: LogReading) -> int | None:
    """The block size that was chosen, where the log lists those of the groups and none has grown to hold a state."""
    sizes = _group_sizes(reading)
    return min(sizes) if sizes and "attention_block_size" not in reading.facts else None


def _whole_requests(reading: LogReading) -> bool:
    """Whether a group's block is a whole request: states have such blocks where no prefixes are cached."""
    return "attention_block_size" in reading.facts and reading.facts.get("max_model_len") in _group_sizes(reading)


def _is_old(version: str) -> bool:
    """Whether a vLLM of this version counts one group in its token line."""
    try:
        return release(version) < ALL_GROUPS_LOGGED
    except EngineError:
        return False


def _meaning(version: str, groups: int) -> str:
    if _is_old(version):
        return f"vLLM {version} prints the tokens of one group's share: blocks // {groups} × the block size."
    return f"vLLM {version} prints concurrency × max_model_len as tokens, so the number depends on the length."


def _ranks(reading: LogReading, model: Model) -> Iterator[str]:
    stated = {rank: facts["available_kv"] for rank, facts in reading.ranks.items() if "available_kv" in facts}
    if len({amount.text for amount in stated.values()}) > 1:
        rank = min(stated, key=lambda name: stated[name].nearest_bytes)
        yield f"The ranks have different memory; the tightest, {rank} with {stated[rank].text}, decides for all."
    tp = reading.whole("tensor_parallel_size") or 1
    if tp == 1:
        return
    kept = [memory for memory, _ in model.kept]
    if any(isinstance(memory, Latent | Indexer) for memory in kept):
        yield f"The latent cache is copied to each of the {tp} tensor-parallel ranks, not divided."
    heads = {memory.num_kv_heads for memory in kept if isinstance(memory, Attention)}
    if heads and max(heads) < tp:
        yield f"{max(heads)} KV heads on {tp} ranks: each rank keeps one head, so heads are copied."
