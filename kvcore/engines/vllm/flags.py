"""vLLM's own flags as data, and settings made from them."""

from __future__ import annotations

from typing import Literal

from kvcore.deployment import Request
from kvcore.engines.base import Option, longest_request, own_values
from kvcore.engines.releases import followed, release
from kvcore.engines.vllm.settings import CPU_VERSION, V1_ONLY_FROM, VERSION, VllmSettings, has_small_defaults
from kvcore.model.model import Model
from kvcore.ranks.parts import prediction_head

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


def make_settings(model: Model, asked: Request) -> VllmSettings:
    """Settings of a request for a model; EngineError for a version or a value that cannot be."""
    length = longest_request("vllm", model, asked)
    chosen = own_values("vllm", OPTIONS, asked)
    if asked.draft is not None and asked.draft.own:
        chosen = {"mtp_layers": _own_layers(model)} | chosen
    version = check_version(asked.engine_version or (VERSION if asked.platform == "cuda" else CPU_VERSION))
    found = release(version)
    gpu = asked.gpu
    if gpu is not None and asked.platform == "cuda":
        chosen["gpu_bytes"] = gpu.memory_bytes
        chosen["compute_capability"] = _capability(gpu.compute_capability)
        chosen["small_defaults"] = has_small_defaults(gpu, version)
    if found < V1_ONLY_FROM:
        chosen["pictures"] = pictures = _pictures(model)
        # Before Ampere the newer core did not serve at first, nor bitsandbytes' formats nor cross attention.
        old = chosen.get("compute_capability", 9.0) < 8 or asked.weight_format == "bnb4" or pictures == "cross"
        chosen["needs_older_core"] = old
    return VllmSettings(
        max_model_len=length,
        kv_cache_dtype=asked.kv_dtype,
        tensor_parallel_size=asked.tp,
        pipeline_parallel_size=asked.pp,
        decode_context_parallel_size=asked.dcp,
        max_num_seqs=asked.max_num_seqs,
        platform=asked.platform,
        version=version,
        **chosen,
    )


def _pictures(model: Model) -> Literal["none", "tokens", "cross"]:
    from kvcore.planning.overhead_tower import tower

    made = tower(model)
    return "none" if made is None else "cross" if made.crosses else "tokens"


def _own_layers(model: Model) -> int:
    """Layers with a cache of the model's own prediction modules."""
    head = prediction_head(model)
    return 0 if head is None else sum(any(memory.kind != "none" for memory in layer) for layer in head.layers)


def check_version(version: str) -> str:
    """The version without its `v`; EngineError when it is not one, or older than the rules that are followed."""
    return followed("vllm", version, "0.4 and newer", first=(0, 4))


def _capability(text: str | float | None) -> float:
    try:
        return float(text) if text not in (None, "") else 9.0
    except ValueError:
        return 9.0
