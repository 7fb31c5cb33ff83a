"""`vllm serve` for a deployment (options: vLLM 0.32, entrypoints/openai/cli_args.py and engine/arg_utils.py)."""

from __future__ import annotations

import json

from kvcore.engines.vllm import VLLM
from kvcore.engines.vllm.settings import VllmSettings
from kvcore.model.model import Model
from kvcore.plan.deployment import Deployment
from kvcore.plan.launch_words import (
    SIXTEEN_BITS,
    Command,
    cache_word,
    head_note,
    host_note,
    other_weights,
    pairs,
    put,
    requantised_note,
    stored_format,
)

# vLLM's words for the cache formats that it names otherwise (config/cache.py, CacheDType).
CACHE_WORDS = {"bf16": "bfloat16", "fp16": "float16"}
# A cache in the model's own 32 bits is `auto` beside --dtype float32.
_NO_CACHE_WORD = "fp32"


def vllm(model: Model, deployment: Deployment, settings: VllmSettings) -> Command:
    """`vllm serve` with what differs from vLLM's defaults."""
    words = list(VLLM.flags(model, settings))
    cache = cache_word(deployment.kv_dtype, CACHE_WORDS)
    put(words, "--kv-cache-dtype", None if cache == _NO_CACHE_WORD else cache)
    pairs(
        words,
        (
            ("--data-parallel-size", deployment.dp, 1),
            ("--gpu-memory-utilization", _plain(deployment.utilization), None),
            ("--kv-cache-memory-bytes", deployment.kv_bytes, None),
            ("--max-num-seqs", deployment.max_num_seqs, None),
            ("--num-gpu-blocks-override", settings.num_gpu_blocks_override, None),
        ),
    )
    if deployment.kv_bytes is not None:
        put(words, "--gpu-memory-utilization", None)
    if deployment.expert_parallel:
        words.append("--enable-expert-parallel")
    if deployment.enforce_eager:
        words.append("--enforce-eager")
    if not settings.async_scheduling:
        words.append("--no-async-scheduling")
    weights, notes = _weights(model, deployment)
    speculation, more = _speculation(model, settings)
    where = "start a Ray cluster over them and add --distributed-executor-backend ray, or start the same command on "
    where += "each host with --nnodes, --node-rank and --master-addr."
    if deployment.dp > 1:
        where += " Replicas are spread with --data-parallel-size-local and --data-parallel-address."
    return Command(
        words=(*words, *weights, *speculation),
        notes=(*notes, *more, *_attention(deployment), *host_note(deployment.gpus, where)),
    )


def _plain(share: float | None) -> str | None:
    return None if share is None else f"{share:g}"


def _weights(model: Model, deployment: Deployment) -> tuple[list[str], tuple[str, ...]]:
    """Options for a weight format that vLLM makes while it loads: fp8 of 16 bits, and another 16 or 32 bits."""
    wanted = other_weights(model, deployment)
    if wanted is None:
        return [], ()
    if stored_format(model) in SIXTEEN_BITS:
        if wanted in SIXTEEN_BITS:
            return ["--dtype", SIXTEEN_BITS[wanted]], ()
        if wanted == "fp8":
            note = "vLLM quantises the linear layers to fp8 while loading; a checkpoint that is stored so loads faster."
            return ["--quantization", "fp8"], (note,)
    return [], (requantised_note(wanted),)


def _speculation(model: Model, settings: VllmSettings) -> tuple[list[str], tuple[str, ...]]:
    count = settings.num_speculative_tokens
    if not count:
        return [], ()
    if settings.mtp_layers:
        config = {"method": "mtp", "num_speculative_tokens": count}
        return ["--speculative-config", json.dumps(config)], ()
    config = {"method": "ngram", "num_speculative_tokens": count, "prompt_lookup_max": 4}
    mtp = json.dumps({"method": "mtp", "num_speculative_tokens": count})
    return ["--speculative-config", json.dumps(config)], (head_note(model, f"--speculative-config '{mtp}'"),)


def _attention(deployment: Deployment) -> tuple[str, ...]:
    if not deployment.dp_attention:
        return ()
    return ("In vLLM attention is data parallel whenever --data-parallel-size is; the experts span all ranks.",)
