"""vLLM's own flags as data, and settings made from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvcore.engines.base import Common, Option
from kvcore.engines.vllm.settings import VERSION, VllmSettings, release
from kvcore.errors import EngineError
from kvcore.model.model import Model

OPTIONS = (
    Option(flag="--block-size", field="block_size", kind="integer", help="tokens a block"),
    Option(flag="--max-num-batched-tokens", field="max_num_batched_tokens", kind="integer", help="tokens a step"),
    Option(flag="--no-prefix-caching", field="no_prefix_caching", kind="switch", help="keep no blocks of past prompts"),
    Option(
        flag="--disable-hybrid-kv-cache-manager",
        field="disable_hybrid_kv_cache_manager",
        kind="switch",
        help="give windows beside full attention blocks for every token",
    ),
    Option(flag="--no-async-scheduling", field="no_async_scheduling", kind="switch", help="one batch in flight"),
    Option(flag="--num-speculative-tokens", field="num_speculative_tokens", kind="integer", help="proposed tokens"),
    Option(flag="--mtp-layers", field="mtp_layers", kind="integer", help="layers of a multi-token-prediction head"),
    Option(
        flag="--cpu-without-avx512-bf16",
        field="cpu_without_avx512_bf16",
        kind="switch",
        help="a CPU on which recurrent states stay in 16 bits",
    ),
    Option(
        flag="--num-gpu-blocks-override", field="num_gpu_blocks_override", kind="integer", help="blocks of the pool"
    ),
)
_NEGATIONS = {
    "no_prefix_caching": "enable_prefix_caching",
    "no_async_scheduling": "async_scheduling",
    "cpu_without_avx512_bf16": "cpu_avx512_bf16",
}
_OLDEST = (0, 4)


def make_settings(model: Model, common: Common, values: Mapping[str, Any]) -> VllmSettings:
    """Settings of a request for a model; EngineError for a version or a value that cannot be."""
    length = common.max_model_len if common.max_model_len is not None else model.context_limit
    if length is None:
        raise EngineError("the model states no longest context; say --max-model-len", engine="vllm")
    chosen = {name: value for name, value in values.items() if value is not None and name not in _NEGATIONS}
    for negation, name in _NEGATIONS.items():
        if values.get(negation):
            chosen[name] = False
    gpu = common.gpu
    if gpu is not None and common.platform == "cuda":
        chosen["gpu_bytes"] = gpu.memory_bytes
        chosen["compute_capability"] = _capability(gpu.compute_capability)
        # By the name that the driver reports, as vLLM itself does.
        chosen["few_batched_tokens"] = "a100" in gpu.id or gpu.id.startswith(("dgx-spark", "gb10"))
    version = common.version or (VERSION if common.platform == "cuda" else "0.32.0")
    return VllmSettings(
        max_model_len=length,
        kv_cache_dtype=common.kv_dtype,
        tensor_parallel_size=common.tp,
        pipeline_parallel_size=common.pp,
        decode_context_parallel_size=common.dcp,
        platform=common.platform,
        version=check_version(version),
        **chosen,
    )


def check_version(version: str) -> str:
    """The same version; EngineError when it is not one, or older than the rules that are followed."""
    if release(version) < _OLDEST:
        raise EngineError(f"the rules of {version} are not followed; 0.4 and newer are", engine="vllm")
    return version.removeprefix("v")


def _capability(text: str | float | None) -> float:
    try:
        return float(text) if text not in (None, "") else 9.0
    except ValueError:
        return 9.0
