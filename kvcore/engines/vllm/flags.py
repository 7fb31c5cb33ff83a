"""vLLM's own flags as data, and settings made from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from kvcore.engines.base import Common, Option
from kvcore.engines.releases import followed, release
from kvcore.engines.vllm.settings import CPU_VERSION, V1_ONLY_FROM, VERSION, VllmSettings, has_small_defaults
from kvcore.errors import EngineError
from kvcore.model.model import Model

OPTIONS = (
    Option(flag="--block-size", field="block_size", kind="integer", help="tokens a block"),
    Option(
        flag="--max-num-batched-tokens",
        field="max_num_batched_tokens",
        kind="integer",
        help="tokens a step",
        means="max_num_batched_tokens",
    ),
    Option(
        flag="--no-prefix-caching",
        field="no_prefix_caching",
        kind="switch",
        help="keep no blocks of past prompts",
        means="prefix_caching",
        says=False,
        turns_off="enable_prefix_caching",
    ),
    Option(
        flag="--disable-hybrid-kv-cache-manager",
        field="disable_hybrid_kv_cache_manager",
        kind="switch",
        help="give windows beside full attention blocks for every token",
    ),
    Option(
        flag="--no-async-scheduling",
        field="no_async_scheduling",
        kind="switch",
        help="one batch in flight",
        turns_off="async_scheduling",
    ),
    Option(
        flag="--num-speculative-tokens",
        field="num_speculative_tokens",
        kind="integer",
        help="proposed tokens",
        means="speculative_tokens",
    ),
    Option(flag="--mtp-layers", field="mtp_layers", kind="integer", help="layers of a multi-token-prediction head"),
    Option(
        flag="--cpu-without-avx512-bf16",
        field="cpu_without_avx512_bf16",
        kind="switch",
        help="a CPU on which recurrent states stay in 16 bits",
        turns_off="cpu_avx512_bf16",
    ),
    Option(
        flag="--num-gpu-blocks-override", field="num_gpu_blocks_override", kind="integer", help="blocks of the pool"
    ),
)
_NEGATIONS = {option.field: option.turns_off for option in OPTIONS if option.turns_off is not None}


def make_settings(model: Model, common: Common, values: Mapping[str, Any]) -> VllmSettings:
    """Settings of a request for a model; EngineError for a version or a value that cannot be."""
    length = common.max_model_len if common.max_model_len is not None else model.context_limit
    if length is None:
        raise EngineError("vllm: the model states no longest context; say --max-model-len")
    chosen = {name: value for name, value in values.items() if value is not None and name not in _NEGATIONS}
    for negation, name in _NEGATIONS.items():
        if values.get(negation):
            chosen[name] = False
    version = check_version(common.version or (VERSION if common.platform == "cuda" else CPU_VERSION))
    found = release(version)
    gpu = common.gpu
    if gpu is not None and common.platform == "cuda":
        chosen["gpu_bytes"] = gpu.memory_bytes
        chosen["compute_capability"] = _capability(gpu.compute_capability)
        chosen["small_defaults"] = has_small_defaults(gpu, version)
    if found < V1_ONLY_FROM:
        chosen["pictures"] = pictures = _pictures(model)
        # Before Ampere the newer core did not serve at first, nor bitsandbytes' formats nor cross attention.
        old = chosen.get("compute_capability", 9.0) < 8 or common.weight_format == "bnb4" or pictures == "cross"
        chosen["needs_older_core"] = old
    return VllmSettings(
        max_model_len=length,
        kv_cache_dtype=common.kv_dtype,
        tensor_parallel_size=common.tp,
        pipeline_parallel_size=common.pp,
        decode_context_parallel_size=common.dcp,
        max_num_seqs=common.max_num_seqs,
        platform=common.platform,
        version=version,
        **chosen,
    )


def _pictures(model: Model) -> Literal["none", "tokens", "cross"]:
    from kvcore.plan.overhead_tower import tower

    made = tower(model)
    return "none" if made is None else "cross" if made.crosses else "tokens"


def check_version(version: str) -> str:
    """The version without its `v`; EngineError when it is not one, or older than the rules that are followed."""
    return followed("vllm", version, "0.4 and newer", first=(0, 4))


def _capability(text: str | float | None) -> float:
    try:
        return float(text) if text not in (None, "") else 9.0
    except ValueError:
        return 9.0
