"""`vllm serve` for a deployment (options: vLLM 0.32, entrypoints/openai/cli_args.py and engine/arg_utils.py)."""

from __future__ import annotations

import json

from kvcore.deployment import Deployment, Draft
from kvcore.engines.command import (
    Command,
    cache_word,
    checkpoint,
    draft_checkpoint,
    head_note,
    host_note,
    pairs,
    weight_words,
)
from kvcore.engines.vllm.settings import VllmSettings
from kvcore.errors import EngineError
from kvcore.model.model import Model

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
_QUANTISED = "vLLM quantises the linear layers to fp8 while loading; a checkpoint that is stored so loads faster."


def launch(model: Model, deployment: Deployment, settings: VllmSettings) -> Command:
    """`vllm serve` with what differs from vLLM's defaults; EngineError for a cache format that it has no word for."""
    name, about = checkpoint(model)
    weights, quantised = weight_words(model, deployment, _QUANTISED)
    speculation, proposed = _speculation(model, deployment, settings)
    share = None if deployment.utilization is None or deployment.kv_bytes is not None else f"{deployment.utilization:g}"
    switches = (
        ("--enable-expert-parallel", deployment.expert_parallel),
        ("--enforce-eager", deployment.enforce_eager),
        ("--no-async-scheduling", not settings.async_scheduling),
    )
    words = [
        *("vllm", "serve", name, "--max-model-len", str(settings.max_model_len)),
        *pairs(
            ("--tensor-parallel-size", settings.tensor_parallel_size, 1),
            ("--pipeline-parallel-size", settings.pipeline_parallel_size, 1),
            ("--decode-context-parallel-size", settings.decode_context_parallel_size, 1),
            ("--kv-cache-dtype", _cache(settings), None),
            ("--block-size", settings.block_size, None),
            ("--max-num-batched-tokens", settings.max_num_batched_tokens, None),
        ),
        *([] if settings.enable_prefix_caching else ["--no-enable-prefix-caching"]),
        *(["--disable-hybrid-kv-cache-manager"] if settings.disable_hybrid_kv_cache_manager else []),
        *pairs(
            ("--data-parallel-size", deployment.dp, 1),
            ("--gpu-memory-utilization", share, None),
            ("--kv-cache-memory-bytes", deployment.kv_bytes, None),
            ("--max-num-seqs", deployment.max_num_seqs, None),
            ("--num-gpu-blocks-override", settings.num_gpu_blocks_override, None),
        ),
        *(flag for flag, on in switches if on),
        *weights,
        *speculation,
    ]
    where = "start a Ray cluster over them and add --distributed-executor-backend ray, or start the same command on "
    where += "each host with --nnodes, --node-rank and --master-addr."
    if deployment.dp > 1:
        where += " Replicas are spread with --data-parallel-size-local and --data-parallel-address."
    attention = "In vLLM attention is data parallel whenever --data-parallel-size is; the experts span all ranks."
    spread = (attention,) if deployment.dp_attention else ()
    return Command(
        words=tuple(words), notes=(*about, *quantised, *proposed, *spread, *host_note(deployment.gpus, where))
    )


def _cache(settings: VllmSettings) -> str | None:
    word = cache_word(settings.kv_cache_dtype, CACHE_WORDS)
    if word not in (None, _NO_CACHE_WORD, *CACHE_CHOICES):
        raise EngineError(f"--kv-cache-dtype has no word for {word}; it has {', '.join(CACHE_CHOICES)}", engine="vllm")
    return None if word == _NO_CACHE_WORD else word


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
    name, notes = draft_checkpoint(draft)
    method = {0: "draft_model", 1: "eagle", 3: "eagle3"}[0 if draft.model is None else draft.model.prediction.eagle]
    config: dict[str, object] = {"method": method, "model": name, "num_speculative_tokens": count}
    return ["--speculative-config", json.dumps(config)], notes
