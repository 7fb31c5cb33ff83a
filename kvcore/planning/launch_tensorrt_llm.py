"""`trtllm-serve` and its YAML for a deployment (options: TensorRT-LLM's public sources, commands/serve.py)."""

from __future__ import annotations

import json

from kvcore.deployment import Deployment, Draft
from kvcore.engines.tensorrt_llm import TENSORRT_LLM
from kvcore.engines.tensorrt_llm.settings import FREE_GPU_MEMORY_FRACTION, TOKENS_PER_BLOCK, TensorRtLlmSettings
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

CONFIG = "extra_llm_api_options.yaml"
# The longest text that n-gram proposals look up; its default of 0 is refused (LlmArgs, validate_speculative_config).
NGRAM_SIZE = 4
# KvCacheConfig.dtype; in 16 bits the cache has the model's own format.
_CACHE_WORDS = {"fp8": "fp8", "nvfp4": "nvfp4", "int8": "int8"}


def tensorrt_llm(model: Model, deployment: Deployment, settings: TensorRtLlmSettings) -> Command:
    """The command with what differs from the defaults; what only the YAML has is in a file beside it.

    Attention data parallelism divides its tensor-parallel group, as in SGLang.
    """
    ranks, fraction = settings.tp_size, settings.free_gpu_memory_fraction
    words = list(TENSORRT_LLM.flags(model, settings))
    if "/" not in model.name:
        # A first word such as `disaggregated` is a command of trtllm-serve's own; behind `serve` it is a model.
        words.insert(1, "serve")
    put(words, "--kv_cache_free_gpu_memory_fraction", None)
    put(words, "--extra_llm_api_options", None)
    pairs(
        words,
        (
            ("--kv_cache_free_gpu_memory_fraction", f"{fraction:g}", f"{FREE_GPU_MEMORY_FRACTION:g}"),
            ("--max_num_tokens", deployment.max_num_batched_tokens, None),
            ("--max_batch_size", deployment.max_num_seqs, None),
            ("--ep_size", ranks if deployment.expert_parallel else 1, 1),
        ),
    )
    lines = _yaml(deployment, settings)
    files = ((CONFIG, "\n".join(lines) + "\n"),) if lines else ()
    if files:
        words += ["--extra_llm_api_options", CONFIG]
    notes = list(_weight_notes(model, deployment))
    if deployment.draft is not None:
        notes += () if deployment.draft.own else draft_reference(deployment.draft)[1]
    elif deployment.speculative_tokens:
        notes.append(head_note(model, "decoding_type: MTP in the file"))
    if deployment.dp > 1 and not settings.enable_attention_dp:
        notes.append(f"trtllm-serve starts one replica: start it {deployment.dp} times behind a load balancer.")
    where = f"start it under mpirun or srun with {ranks * deployment.pp} tasks, as trtllm-llmapi-launch does."
    notes += host_note(ranks * deployment.pp, where)
    return Command(words=tuple(words), files=files, notes=tuple(notes))


def _yaml(deployment: Deployment, settings: TensorRtLlmSettings) -> list[str]:
    """Lines of the YAML: numbers, words of our own and lists of numbers, so nothing needs quoting."""
    cache = []
    if (word := cache_word(deployment.kv_dtype, _CACHE_WORDS)) in _CACHE_WORDS.values():
        cache.append(f"dtype: {word}")
    if settings.tokens_per_block != TOKENS_PER_BLOCK:
        cache.append(f"tokens_per_block: {settings.tokens_per_block}")
    if settings.max_tokens is not None:
        cache.append(f"max_tokens: {settings.max_tokens}")
    if settings.max_attention_window:
        cache.append(f"max_attention_window: [{', '.join(map(str, settings.max_attention_window))}]")
    if not deployment.prefix_caching:
        cache.append("enable_block_reuse: false")
    if deployment.kv_bytes is not None:
        cache.append(f"max_gpu_total_bytes: {deployment.kv_bytes}")
    if cache and settings.free_gpu_memory_fraction != FREE_GPU_MEMORY_FRACTION:
        # A kv_cache_config in the file stands in place of the one that the command line makes.
        cache.append(f"free_gpu_memory_fraction: {settings.free_gpu_memory_fraction:g}")
    lines = ["kv_cache_config:", *(f"  {line}" for line in cache)] if cache else []
    if settings.enable_attention_dp:
        lines.append("enable_attention_dp: true")
    if deployment.enforce_eager:
        lines.append("cuda_graph_config: null")
    if deployment.draft is not None:
        lines += _drafted(deployment.draft, deployment.speculative_tokens)
    elif deployment.speculative_tokens:
        lines += ["speculative_config:", "  decoding_type: NGram", f"  max_draft_len: {deployment.speculative_tokens}"]
        lines.append(f"  max_matching_ngram_size: {NGRAM_SIZE}")
    return lines


def _drafted(draft: Draft, count: int) -> list[str]:
    """The model's own prediction layers, or a model that proposes; JSON's strings are YAML's."""
    if draft.own:
        return ["speculative_config:", "  decoding_type: MTP", f"  num_nextn_predict_layers: {count}"]
    name = json.dumps(draft_reference(draft)[0])
    method = "Eagle3" if draft.model is not None and draft.model.prediction.eagle else "Draft_Target"
    return ["speculative_config:", f"  decoding_type: {method}", f"  max_draft_len: {count}",
            f"  speculative_model: {name}"]  # fmt: skip


def _weight_notes(model: Model, deployment: Deployment) -> tuple[str, ...]:
    wanted = other_weights(model, deployment)
    if wanted is None or (wanted in SIXTEEN_BITS and stored_format(model) in SIXTEEN_BITS):
        return ()
    return (requantised_note(wanted),)
