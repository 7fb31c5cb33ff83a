"""`vllm serve` for a deployment (options: vLLM 0.32, entrypoints/openai/cli_args.py and engine/arg_utils.py)."""

from __future__ import annotations

import json

from kvcore.deployment import Deployment, Draft
from kvcore.engines.vllm import VLLM
from kvcore.engines.vllm.settings import VllmSettings
from kvcore.errors import EngineError
from kvcore.model.model import Model
from kvcore.planning.launch_model import draft_reference
from kvcore.planning.launch_words import (
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
# All words of --kv-cache-dtype beside `auto` (config/cache.py, CacheDType).
CACHE_CHOICES = (
    "bfloat16", "float16", "fp8", "fp8_ds_mla", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "fp8_per_token_head",
    "int4_per_token_head", "int8_per_token_head", "nvfp4", "nvfp4_4over6", "nvfp4_ds_mla", "turboquant_3bit_nc",
    "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_k8v4", "ultraquant_4bit",
)  # fmt: skip
# A cache in the model's own 32 bits is `auto` beside --dtype float32.
_NO_CACHE_WORD = "fp32"


def vllm(model: Model, deployment: Deployment, settings: VllmSettings) -> Command:
    """`vllm serve` with what differs from vLLM's defaults."""
    words = list(VLLM.flags(model, settings))
    cache = cache_word(deployment.kv_dtype, CACHE_WORDS)
    if cache not in (None, _NO_CACHE_WORD, *CACHE_CHOICES):
        raise EngineError(f"vllm: --kv-cache-dtype has no word for {cache}; it has {', '.join(CACHE_CHOICES)}")
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
    speculation, more = _speculation(model, deployment, settings)
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


def _speculation(model: Model, deployment: Deployment, settings: VllmSettings) -> tuple[list[str], tuple[str, ...]]:
    count = settings.num_speculative_tokens
    if not count:
        return [], ()
    if deployment.draft is not None and not deployment.draft.own:
        return _drafted(deployment.draft, count)
    if settings.mtp_layers:
        own = {"method": "mtp", "num_speculative_tokens": count}
        return ["--speculative-config", json.dumps(own)], ()
    config: dict[str, object] = {"method": "ngram", "num_speculative_tokens": count, "prompt_lookup_max": 4}
    mtp = json.dumps({"method": "mtp", "num_speculative_tokens": count})
    return ["--speculative-config", json.dumps(config)], (head_note(model, f"--speculative-config '{mtp}'"),)


def _drafted(draft: Draft, count: int) -> tuple[list[str], tuple[str, ...]]:
    """A draft model; the reader of a draft's weights is its checkpoint's own, but for fp8 of 16 bits."""
    name, notes = draft_reference(draft)
    method = {0: "draft_model", 1: "eagle", 3: "eagle3"}[0 if draft.model is None else draft.model.prediction.eagle]
    config: dict[str, object] = {"method": method, "model": name, "num_speculative_tokens": count}
    if draft.weight_format is not None:
        notes += (f"The draft was planned with {draft.weight_format} weights: name a checkpoint that is stored so.",)
    return ["--speculative-config", json.dumps(config)], notes


def _attention(deployment: Deployment) -> tuple[str, ...]:
    if not deployment.dp_attention:
        return ()
    return ("In vLLM attention is data parallel whenever --data-parallel-size is; the experts span all ranks.",)
