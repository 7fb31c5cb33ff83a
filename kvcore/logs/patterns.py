"""The lines that engines print, as data: what to look for, what it says, and where the engine writes it.

A pattern is matched only where its `needle` stands in a line, so that a line costs a few substring searches; nothing
in a pattern may repeat without a bound. The names of the groups are the names of the facts (`KINDS` says how each is
read where it is not a count); a `word_before` fact is the word that stands before the needle. The versions of a source
are those in which the line was seen, from the oldest to the newest.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal["count", "number", "amount", "text", "switch"]
_N = r"[0-9](?:[0-9,_]{0,17}[0-9])?"
_F = r"-?[0-9](?:[0-9,]{0,12}[0-9])?(?:\.[0-9]{1,6})?"
_UNIT = r"(?:[KMGT]i?B|B)"
_AMOUNT = rf"{_F} ?{_UNIT}"


@dataclass(frozen=True, slots=True)
class Pattern:
    """One line of one engine. `begins`: a new start-up, where the last one had already come to its capacity.

    `closes`: the figure that a start-up ends with. `pairs`: the rest of the line holds `key=value` facts.
    """

    engine: str
    needle: str
    regex: re.Pattern[str]
    source: str
    word_before: str | None = None
    begins: bool = False
    closes: bool = False
    pairs: bool = False


def _p(engine: str, needle: str, rest: str, source: str, **more: object) -> Pattern:
    return Pattern(engine, needle, re.compile(re.escape(needle) + rest), source, **more)  # type: ignore[arg-type]


def _amount(name: str, unit: str = "") -> str:
    return rf"(?P<{name}>{_F} ?{unit or _UNIT})"


def _vllm(needle: str, rest: str, source: str, **more: object) -> Pattern:
    return _p("vllm", needle, rest, f"vLLM {source}", **more)


VLLM = (
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
    _vllm("Using max model len ", rf"(?P<max_model_len>{_N})", "0.8 … 0.33, config/model.py"),
    _vllm("Auto-fit max_model_len: ", rf"reduced from {_N} to (?P<max_model_len>{_N})",
          "0.32, v1/core/kv_cache_utils.py"),
    _vllm("Chunked prefill is enabled with max_num_batched_tokens=", rf"(?P<max_num_batched_tokens>{_N})",
          "0.6 … 0.33, config/scheduler.py"),
    _vllm("Asynchronous scheduling is ", r"(?P<async_scheduling>enabled|disabled)", "0.13 … 0.33, config/vllm.py"),
    _vllm("Using fp8 data type to store kv cache", "(?P<kv_dtype_fp8>)", "0.4 … 0.33, config/cache.py"),
    _vllm("Loading model weights took ", _amount("weights"), "0.4 … 0.8, worker/model_runner.py (GB are GiB)",
          begins=True),
    _vllm("Model loading took ", _amount("weights"), "0.8 … 0.33, v1/worker/gpu_model_runner.py"),
    _vllm("total_gpu_memory (", rf"(?P<total>{_F} ?GiB)\) x gpu_memory_utilization \((?P<gpu_memory_utilization>{_F})\)"
          rf" = {_F} ?GiB", "0.6.4 … 0.9, worker/worker.py"),
    _vllm("model weights take ", rf"{_amount('weights', 'GiB')}; non_torch_memory takes {_amount('non_torch', 'GiB')}; "
          rf"PyTorch activation peak memory takes {_amount('activation', 'GiB')}(?:; the rest of the memory reserved "
          rf"for KV Cache is {_amount('available_kv', 'GiB')})?", "0.6.4 … 0.9, worker/worker.py"),
    _vllm("the rest of the memory reserved for KV Cache is ", _amount("available_kv", "GiB"),
          "0.6.4 … 0.9, worker/worker.py"),
    _vllm("Memory profiling results: ", rf"total_gpu_memory={_amount('total', 'GiB')}", "0.6.3, worker/worker.py",
          pairs=True),
    _vllm("Total non KV cache memory: ", rf"{_amount('non_kv', 'GiB')}; torch peak memory increase: "
          rf"{_amount('activation', 'GiB')}(?:; (?:non-torch forward increase memory: {_amount('non_torch', 'GiB')}|"
          rf"total consumed \(from mem_get_info\): {_amount('consumed', 'GiB')}); weights memory: "
          rf"{_amount('weights', 'GiB')})?", "0.9 … 0.33, utils/mem_utils.py (debug)"),
    _vllm("Available KV cache memory: ", _amount("available_kv"), "0.8.5 … 0.33, v1/worker/gpu_worker.py"),
    _vllm("Explicitly set (", rf"(?P<explicit_kv>{_F})/{_F}\) GiB for KV cache", "0.32, v1/worker/cpu_worker.py"),
    _vllm("reserved ", rf"{_amount('available_kv', 'GiB')} memory for KV Cache",
          "0.11 … 0.33, v1/worker/gpu_worker.py"),
    _vllm("Estimated CUDA graph memory: ", _amount("graph_estimate", "GiB"), "0.19 … 0.33, v1/worker"),
    _vllm("CUDA graph pool memory: ", rf"{_amount('graph', 'GiB')} \(actual\), {_amount('graph_estimate', 'GiB')} "
          r"\(estimated\)", "0.21 … 0.33, v1/worker/gpu_worker.py"),
    _vllm("Graph capturing finished in ", rf"{_N} secs?, took {_amount('graph')}",
          "0.6 … 0.33, v1/worker/gpu_model_runner.py"),
    _vllm("The current --gpu-memory-utilization=", rf"(?P<gpu_memory_utilization>{_F}) is equivalent to "
          rf"--gpu-memory-utilization=(?P<equivalent_utilization>{_F})", "0.21 … 0.33, v1/worker/gpu_worker.py"),
    _vllm("Free memory on device", rf"(?: cuda:[0-9]{{1,3}})? ?\({_F}/(?P<total_gib>{_F}) GiB\) on startup\. Desired "
          rf"GPU memory utilization is \((?P<gpu_memory_utilization>{_F}), {_F} GiB\)",
          "0.10 … 0.33, v1/worker/gpu_worker.py"),
    _vllm("Actual usage is ", rf"{_amount('consumed', 'GiB')} for (?:consumed memory \(weights \+ non-torch\)|weight)"
          rf", {_amount('activation', 'GiB')} for peak activation, (?:{_amount('non_torch', 'GiB')} for non-torch "
          rf"memory, )?and {_amount('graph', 'GiB')} for CUDAGraph memory", "0.10 … 0.33, v1/worker/gpu_worker.py"),
    _vllm("urrent kv cache memory in use is ", _amount("available_kv"), "0.10 … 0.33, v1/worker/gpu_worker.py"),
    _vllm("# GPU blocks: ", rf"(?P<blocks>{_N})", "0.4 … 0.8, executor and v1/core/kv_cache_utils.py", closes=True),
    _vllm("# CUDA blocks: ", rf"(?P<blocks>{_N})", "0.7.3 … 0.9, executor/executor_base.py", closes=True),
    _vllm("# cuda blocks: ", rf"(?P<blocks>{_N})", "0.7.3 … 0.9, executor/executor_base.py", closes=True),
    _vllm("GPU blocks: ", rf"(?P<blocks>{_N})", "0.4 … 0.8, as people copy it", closes=True),
    _vllm("after num_gpu_blocks is: ", rf"(?P<blocks>{_N})", "0.8 … 0.33, v1/metrics/loggers.py", closes=True),
    _vllm("Overriding num_gpu_blocks=", rf"{_N} with num_gpu_blocks_override=(?P<blocks_override>{_N})",
          "0.8 … 0.33, v1/core/kv_cache_utils.py"),
    _vllm(" KV cache size: ", rf"(?P<kv_cache_size_tokens>{_N}) tokens", "0.8.3 … 0.33, v1/core/kv_cache_utils.py",
          word_before="pool", closes=True),
    _vllm("Maximum concurrency for ", rf"(?P<concurrency_length>{_N}) tokens per request: (?P<max_concurrency>{_F})x",
          "0.6 … 0.33, v1/core/kv_cache_utils.py", closes=True),
    _vllm("max seq len (", rf"(?P<max_model_len>{_N})\), \(?{_amount('needed_kv', 'GiB|GB')} KV cache is needed, which "
          rf"is larger than the available KV cache memory \({_amount('available_kv', 'GiB|GB')}\)",
          "0.9 … 0.33, v1/core/kv_cache_planning.py", closes=True),
    _vllm("the estimated maximum model length is ", rf"(?P<estimated_max_model_len>{_N})",
          "0.9 … 0.33, v1/core/kv_cache_planning.py", closes=True),
    _vllm("max seq len (", rf"(?P<max_model_len>{_N})\) is larger than the maximum number of tokens that can be stored "
          rf"in KV cache \((?P<kv_cache_size_tokens>{_N})\)", "0.3 … 0.8, worker/worker.py", closes=True),
    _vllm("No available memory for the cache blocks", "(?P<no_memory>)", "0.3 … 0.33, v1/core/kv_cache_planning.py",
          closes=True),
    _vllm("Setting attention block size to ", rf"(?P<attention_block_size>{_N}) tokens",
          "0.11 … 0.33, platforms/interface.py"),
    _vllm("Padding mamba page size by ", rf"(?P<mamba_padding_pct>{_F})%", "0.11 … 0.33, platforms/interface.py"),
    _vllm("Add ", rf"(?P<padding_layers>{_N}) padding layers", "0.11 … 0.33, v1/core/kv_cache_planning.py"),
    _vllm("kv cache group sizes (", r"(?P<group_block_sizes>[0-9][0-9, ]{0,400})\)", "0.32, v1/core/kv_cache_utils.py"),
    _vllm("Hybrid KV cache manager is disabled", "(?P<hybrid_disabled>)", "0.11 … 0.33, v1/core/kv_cache_utils.py"),
    _vllm("No common block size for ", rf"(?P<refused_block_size>{_N})", "0.32, v1/worker/utils.py", closes=True),
    _vllm("CPU backend prefers block_size", "(?P<platform_cpu>)", "0.32, platforms/cpu.py"),
    _vllm("init engine (profile, create kv cache, warmup model) took ", rf"(?P<init_seconds>{_F})",
          "0.6 … 0.33, v1/engine/core.py"),
)  # fmt: skip


def _sgl(needle: str, rest: str, source: str, **more: object) -> Pattern:
    return _p("sglang", needle, rest, f"SGLang {source} (GB are GiB)", **more)


SGLANG = (
    _sgl("server_args=ServerArgs(", "", "0.2 … 0.5.10, entrypoints/engine.py", begins=True, pairs=True),
    _sgl("server_args={", "", "0.5.23, entrypoints/engine.py", begins=True, pairs=True),
    _sgl("Load weight begin. avail mem=", _amount("free_before_weights"), "0.2 … 0.5.23, model_runner.py",
         begins=True),
    _sgl("Load weight end. ", "(?P<weights_loaded>)", "0.2 … 0.5.23, model_runner.py", pairs=True),
    _sgl("mem usage=", _amount("weights_or_graph"), "0.4 … 0.5.23, model_runner.py"),
    _sgl("avail mem=", _amount("free_now"), "0.2 … 0.5.23, model_runner.py"),
    _sgl("#tokens: ", rf"(?P<kv_cache_size_tokens>{_N}),? K size: {_amount('k_size')}, V size: {_amount('v_size')}",
         "0.4 … 0.5.23, mem_cache/memory_pool.py", closes=True),
    _sgl("#tokens: ", rf"(?P<kv_cache_size_tokens>{_N}),? KV size: {_amount('kv_size')}",
         "0.4.7 … 0.5.23, mem_cache/memory_pool.py", closes=True),
    _sgl("Mamba Cache is allocated. max_mamba_cache_size: ", rf"(?P<state_slots>{_N}), conv_state size: "
         rf"{_amount('conv_state')}, ssm_state size: {_amount('ssm_state')}",
         "0.5.3 … 0.5.23, mem_cache/memory_pool.py"),
    _sgl("full_layer_tokens=", rf"(?P<full_layer_tokens>{_N}), swa_layer_tokens=(?P<swa_layer_tokens>{_N})",
         "0.4.8 … 0.5.23, model_executor/pool_configurator.py"),
    _sgl("max_total_num_tokens=", rf"(?P<max_total_num_tokens>{_N})", "0.2 … 0.5.23, managers/scheduler.py",
         pairs=True, closes=True),
)  # fmt: skip


def _trt(needle: str, rest: str, source: str, **more: object) -> Pattern:
    return _p("tensorrt-llm", needle, rest, f"TensorRT-LLM {source}", **more)


TENSORRT_LLM = (
    _trt("TensorRT-LLM version: ", r"(?P<engine_version>[0-9][\w.+-]{0,40})", "0.6 … 1.2, tensorrt_llm/__init__.py",
         begins=True),
    _trt("[TensorRT-LLM][INFO] Engine version ", r"(?P<engine_version>[0-9][\w.+-]{0,40})", "0.8 … 1.0, runtime",
         begins=True),
    _trt("for max tokens in paged KV cache (", rf"(?P<kv_cache_size_tokens>{_N})\)",
         "0.7 … 1.2, batch_manager/kvCacheManager.cpp", closes=True),
    _trt("[MemUsageChange] Allocated ", rf"{_amount('kv_size')} for max tokens in paged KV cache",
         "0.7 … 1.2, batch_manager/kvCacheManager.cpp"),
    _trt("Number of tokens per block: ", rf"(?P<block_size>{_N})", "0.7 … 1.2, batch_manager/kvCacheManager.cpp"),
    _trt("Memory usage when calculating max tokens in paged kv cache: total: ",
         rf"{_amount('total')}, available: {_amount('free_now')}", "0.9 … 1.0, batch_manager/kvCacheManager.cpp"),
    _trt("Number of blocks in KV cache primary pool: ", rf"(?P<blocks>{_N})",
         "0.9 … 0.20, batch_manager/kvCacheManager.cpp", closes=True),
    _trt("Max KV cache blocks per sequence: ", rf"{_N} \[window size=(?P<window>{_N})\], tokens per block="
         rf"(?P<block_size>{_N})(?:, primary blocks=(?P<blocks>{_N}))?(?:, secondary blocks={_N})?"
         rf"(?:, max sequence length=(?P<max_model_len>{_N}))?", "0.19 … 1.2, batch_manager/kvCacheManager.cpp"),
    _trt("Max KV cache pages per sequence: ", rf"(?P<pages_per_sequence>{_N})",
         "0.8 … 0.18, batch_manager/kvCacheManager.cpp"),
    _trt("Estimated max memory in KV cache : ", _amount("kv_estimate"), "0.18 … 1.2, _torch/pyexecutor/_util.py"),
)  # fmt: skip


def _ggml(needle: str, rest: str, source: str, **more: object) -> Pattern:
    return _p("llama.cpp", needle, rest, f"llama.cpp {source}", **more)


_EQUALS = r" {0,30}= "
LLAMACPP = (
    _ggml("general.name", rf"(?: str)?{_EQUALS}(?P<model>[^|]{{1,200}})", "llama-model.cpp, print_info"),
    _ggml("general.architecture", rf" str{_EQUALS}(?P<architecture>[\w.-]{{1,60}})", "llama-model-loader.cpp"),
    _ggml("arch ", rf"{_EQUALS}(?P<architecture>[\w.-]{{1,60}})", "llama-model.cpp, print_info", begins=True),
    _ggml("print_info: file type", rf"{_EQUALS}(?P<quantization>[^(]{{1,60}})", "llama-model.cpp"),
    *(_ggml(f"{name} ", rf"{_EQUALS}(?P<{name}>{_N})", "llama-model.cpp and llama-context.cpp")
      for name in ("n_ctx_train", "n_layer", "n_swa", "n_seq_max", "n_ctx", "n_ctx_per_seq", "n_ctx_seq", "n_batch",
                   "n_ubatch")),
    _ggml("kv_unified ", rf"{_EQUALS}(?P<kv_unified>true|false)", "b6100 and newer, llama-context.cpp"),
    _ggml("flash_attn ", rf"{_EQUALS}(?P<flash_attn>\w{{1,12}})", "llama-context.cpp"),
    _ggml("using full-size SWA cache", "(?P<swa_full>)", "b5500 and newer, llama-kv-cache-iswa.cpp"),
    _ggml("creating non-SWA KV cache, size = ", rf"(?P<cells>{_N}) cells", "llama-kv-cache-iswa.cpp"),
    _ggml("creating     SWA KV cache, size = ", rf"(?P<swa_cells>{_N}) cells", "llama-kv-cache-iswa.cpp"),
    _ggml(" KV buffer size = ", rf" {{0,12}}{_amount('buffer')}", "llama-kv-cache.cpp", word_before="buffer_device"),
    _ggml(" RS buffer size = ", rf" {{0,12}}{_amount('state_buffer')}", "llama-memory-recurrent.cpp",
          word_before="state_device"),
    _ggml("size = ", rf" {{0,8}}(?P<cache_size>{_F}) MiB \( {{0,8}}(?P<cache_cells>{_N}) cells, {{1,4}}"
          rf"(?P<cache_layers>{_N}) layers(?:, {{1,4}}(?P<cache_seqs>[0-9]{{1,6}}(?:/[0-9]{{1,6}})?) seqs?"
          rf"(?: {{1,4}}[0-9]{{1,6}} rs_seq)?)?\)(?:, (?P<first_name>[KR]) \((?P<first_type>\w{{1,12}})\): {{0,8}}"
          rf"(?P<first_size>{_F}) MiB, (?P<second_name>[VS]) \((?P<second_type>\w{{1,12}})\): {{0,8}}"
          rf"(?P<second_size>{_F}) MiB)?", "llama-kv-cache.cpp and llama-memory-recurrent.cpp", closes=True),
    _ggml("KV self size  = ", rf" {{0,8}}(?P<cache_size>{_F}) MiB(?:, (?:c\^)?(?P<first_name>KV?) "
          rf"\((?P<first_type>\w{{1,12}})\): {{0,8}}(?P<first_size>{_F}) MiB(?:, (?:V|kv\^T) "
          rf"\((?P<second_type>\w{{1,12}})\): {{0,8}}(?P<second_size>{_F}) MiB)?)?",
          "until b5500, llama-context.cpp; ik_llama.cpp", closes=True),
    _ggml("kv self size  = ", rf" {{0,8}}(?P<cache_size>{_F}) MB", "2023, llama.cpp (MB are MiB)", closes=True),
    _ggml("kv_size = ", rf"(?P<cells>{_N})", "until b6000, llama-kv-cache.cpp", pairs=True),
    _ggml(" compute buffer size = ", rf" {{0,12}}{_amount('compute')}", "llama-context.cpp",
          word_before="compute_device"),
    _ggml("initializing, n_slots = ", rf"(?P<slots>{_N}), n_ctx_slot = (?P<slot_tokens>{_N}), kv_unified = "
          r"'(?P<kv_unified>true|false)'", "b6900 and newer, tools/server"),
    _ggml("build: ", rf"(?P<engine_version>{_N} \([0-9a-f]{{4,12}}\))", "common/common.cpp", begins=True),
    _ggml("requires flash_attn", "(?P<flash_attn_required>)", "llama-context.cpp", closes=True),
    _ggml("enabling flash_attn since it is required for quantized V cache", "(?P<flash_attn_forced>)",
          "llama-context.cpp"),
)  # fmt: skip


def _oll(needle: str, rest: str, source: str, **more: object) -> Pattern:
    return _p("ollama", needle, rest, f"Ollama {source}", **more)


OLLAMA = (
    _oll('msg="Listening on ', r"\S{1,100} \(version (?P<engine_version>[0-9][\w.+-]{0,40})\)", "server/routes.go",
         begins=True),
    _oll('msg="server config" env="map[', "", "server/routes.go", pairs=True),
    _oll('msg="starting llama server" cmd="', "", "llm/server.go, until 0.11", begins=True, pairs=True),
    _oll('msg="starting runner" cmd="', "", "llm/server.go, 0.11 and newer", begins=True, pairs=True),
    _oll("KvSize:", rf"(?P<n_ctx>{_N})", "runner/ollamarunner/runner.go, load request"),
    _oll("Parallel:", rf"(?P<n_seq_max>{_N})", "runner/ollamarunner/runner.go, load request"),
    _oll("KvCacheType:", r"(?P<kv_dtype>\w{1,12})", "runner/ollamarunner/runner.go, load request"),
    _oll('msg="model weights" device=', rf'(?P<weights_device>[\w:.-]{{1,40}}) size="{_amount("device_weights")}"',
         "ml/device.go"),
    _oll('msg="kv cache" device=', rf'(?P<kv_device>[\w:.-]{{1,40}}) size="{_amount("device_kv")}"', "ml/device.go",
         closes=True),
    _oll('msg="compute graph" device=', rf'(?P<graph_device>[\w:.-]{{1,40}}) size="{_amount("device_graph")}"',
         "ml/device.go"),
    _oll('msg="total memory" size="', _amount("total_used"), "ml/device.go"),
    _oll('memory.required.kv="', _amount("kv_size"), "llm/memory.go, until 0.11", closes=True),
    _oll("layers.requested=", rf"-?{_N} layers\.model=(?P<model_layers>{_N})", "llm/memory.go, until 0.11"),
)  # fmt: skip

PATTERNS: tuple[Pattern, ...] = (*VLLM, *SGLANG, *TENSORRT_LLM, *LLAMACPP, *OLLAMA)

# Facts whose group is empty: the line itself is the fact.
FLAGS: dict[str, tuple[str, object]] = {
    "kv_dtype_fp8": ("kv_dtype", "fp8"),
    "platform_cpu": ("platform", "cpu"),
    "hybrid_disabled": ("disable_hybrid_kv_cache_manager", True),
    "swa_full": ("swa_full", True),
    "no_memory": ("no_memory", True),
    "weights_loaded": ("weights_loaded", True),
    "flash_attn_required": ("refused", "quantised V cache without flash attention"),
    "flash_attn_forced": ("flash_attn", "enabled"),
}
# Pairs `key=value`, `'key': value` and `--key value` by the engines' own names: (fact, how it is read).
PAIRS: dict[str, tuple[str, Kind]] = {
    "model": ("model", "text"), "model_path": ("model", "text"), "model_tag": ("model", "text"),
    "dtype": ("dtype", "text"), "quantization": ("quantization", "text"), "quant": ("quantization", "text"),
    "max_seq_len": ("max_model_len", "count"), "max_model_len": ("max_model_len", "count"),
    "context_len": ("max_model_len", "count"), "context_length": ("max_model_len", "count"),
    "tensor_parallel_size": ("tensor_parallel_size", "count"), "tp_size": ("tensor_parallel_size", "count"),
    "pipeline_parallel_size": ("pipeline_parallel_size", "count"), "pp_size": ("pipeline_parallel_size", "count"),
    "data_parallel_size": ("data_parallel_size", "count"), "dp_size": ("data_parallel_size", "count"),
    "decode_context_parallel_size": ("decode_context_parallel_size", "count"),
    "kv_cache_dtype": ("kv_dtype", "text"), "block_size": ("block_size", "count"),
    "page_size": ("block_size", "count"), "gpu_memory_utilization": ("gpu_memory_utilization", "number"),
    "mem_fraction_static": ("mem_fraction_static", "number"),
    "max_num_batched_tokens": ("max_num_batched_tokens", "count"),
    "chunked_prefill_size": ("chunked_prefill_size", "count"),
    "max_running_requests": ("max_running_requests", "count"),
    "enable_prefix_caching": ("enable_prefix_caching", "switch"),
    "disable_radix_cache": ("disable_radix_cache", "switch"),
    "disable_hybrid_kv_cache_manager": ("disable_hybrid_kv_cache_manager", "switch"),
    "enable_dp_attention": ("enable_dp_attention", "switch"),
    "num_gpu_blocks_override": ("blocks_override", "count"),
    "kv_cache_memory_bytes": ("kv_cache_memory_bytes", "count"),
    "max_total_tokens": ("max_total_tokens", "count"), "device_config": ("platform", "text"),
    "swa_full_tokens_ratio": ("swa_full_tokens_ratio", "number"),
    "mamba_full_memory_ratio": ("mamba_full_memory_ratio", "number"),
    "available_gpu_mem": ("free_now", "amount"), "kv_cache_size": ("available_kv", "amount"),
    "peak_torch_memory": ("peak_torch", "amount"), "non_torch_memory": ("non_torch", "amount"),
    "type": ("architecture", "text"), "type_k": ("type_k", "text"), "type_v": ("type_v", "text"),
    "n_layer": ("n_layer", "count"), "ctx-size": ("n_ctx", "count"), "parallel": ("n_seq_max", "count"),
    "batch-size": ("n_batch", "count"), "kv-cache-type": ("kv_dtype", "text"), "cache-type-k": ("type_k", "text"),
    "cache-type-v": ("type_v", "text"), "OLLAMA_NUM_PARALLEL": ("n_seq_max", "count"),
    "OLLAMA_KV_CACHE_TYPE": ("kv_dtype", "text"), "OLLAMA_CONTEXT_LENGTH": ("context_default", "count"),
}  # fmt: skip
# Facts of the patterns that are not counts.
KINDS: dict[str, Kind] = {}
_NAMES: tuple[tuple[Kind, str], ...] = (
    (
        "number",
        "gpu_memory_utilization equivalent_utilization max_concurrency mamba_padding_pct init_seconds "
        "explicit_kv total_gib cache_size first_size second_size",
    ),
    (
        "text",
        "engine_version model architecture platform pool group_block_sizes flash_attn kv_unified "
        "async_scheduling quantization buffer_device state_device compute_device cache_seqs first_name "
        "first_type second_name second_type kv_device weights_device graph_device kv_dtype",
    ),
    (
        "amount",
        "weights total non_torch activation available_kv non_kv consumed graph graph_estimate needed_kv "
        "free_before_weights weights_or_graph free_now k_size v_size kv_size conv_state ssm_state kv_estimate "
        "buffer state_buffer compute device_weights device_kv device_graph total_used used",
    ),
)
for _kind, _names in _NAMES:
    KINDS.update(dict.fromkeys(_names.split(), _kind))
