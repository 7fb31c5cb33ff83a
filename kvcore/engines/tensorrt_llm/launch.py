"""`trtllm-serve` and its YAML for a deployment (options: TensorRT-LLM's public sources, commands/serve.py)."""

from __future__ import annotations

import json

from kvcore.deployment import Deployment, Draft
from kvcore.engines.command import (
    SIXTEEN_BITS,
    Command,
    cache_word,
    checkpoint,
    draft_checkpoint,
    head_note,
    host_note,
    other_weights,
    pairs,
    requantised_note,
    stored_format,
)
from kvcore.engines.tensorrt_llm.settings import FREE_GPU_MEMORY_FRACTION, TOKENS_PER_BLOCK, TensorRtLlmSettings
from kvcore.model.model import Model

CONFIG = "extra_llm_api_options.yaml"
# The longest text that n-gram proposals look up; its default of 0 is refused (LlmArgs, validate_speculative_config).
NGRAM_SIZE = 4
# KvCacheConfig.dtype; in 16 bits the cache has the model's own format.
_CACHE_WORDS = {"fp8": "fp8", "nvfp4": "nvfp4", "int8": "int8"}


def launch(model: Model, deployment: Deployment, settings: TensorRtLlmSettings) -> Command:
    """The command with what differs from the defaults; what only the YAML has is in a file beside it.

    Attention data parallelism divides its tensor-parallel group, as in SGLang.
    """
    ranks = settings.tp_size
    name, about = checkpoint(model)
    draft, proposed = (None, ()) if deployment.draft is None else _draft(deployment.draft)
    lines = _yaml(deployment, settings, draft)
    words = [
        # A first word such as `disaggregated` is a command of trtllm-serve's own; behind `serve` it is a model.
        *("trtllm-serve", *([] if "/" in name else ["serve"]), name, "--max_seq_len", str(settings.max_seq_len)),
        *pairs(
            ("--backend", settings.backend, "pytorch"),
            ("--tp_size", ranks, 1),
            ("--pp_size", settings.pp_size, 1),
            (
                "--kv_cache_free_gpu_memory_fraction",
                f"{settings.free_gpu_memory_fraction:g}",
                f"{FREE_GPU_MEMORY_FRACTION:g}",
            ),
            ("--max_num_tokens", deployment.max_num_batched_tokens, None),
            ("--max_batch_size", deployment.max_num_seqs, None),
            ("--ep_size", ranks if deployment.expert_parallel else 1, 1),
            ("--extra_llm_api_options", CONFIG if lines else None, None),
        ),
    ]
    notes = [*about, *_weight_notes(model, deployment), *proposed]
    if deployment.speculative_tokens and deployment.draft is None:
        notes.append(head_note(model, "decoding_type: MTP in the file"))
    if deployment.dp > 1 and not settings.enable_attention_dp:
        notes.append(f"trtllm-serve starts one replica: start it {deployment.dp} times behind a load balancer.")
    where = f"start it under mpirun or srun with {ranks * deployment.pp} tasks, as trtllm-llmapi-launch does."
    notes += host_note(ranks * deployment.pp, where)
    files = ((CONFIG, "\n".join(lines) + "\n"),) if lines else ()
    return Command(words=tuple(words), files=files, notes=tuple(notes))


def cache_config(settings: TensorRtLlmSettings, *more: str) -> list[str]:
    """Lines of the YAML's kv_cache_config: numbers, words of our own and lists of numbers, so nothing needs quoting.

    `more` are lines that the settings do not have. Empty where everything is TensorRT-LLM's default.
    """
    lines = []
    if (word := cache_word(settings.dtype, _CACHE_WORDS)) in _CACHE_WORDS.values():
        lines.append(f"dtype: {word}")
    if settings.tokens_per_block != TOKENS_PER_BLOCK:
        lines.append(f"tokens_per_block: {settings.tokens_per_block}")
    if settings.max_tokens is not None:
        lines.append(f"max_tokens: {settings.max_tokens}")
    if settings.max_attention_window:
        lines.append(f"max_attention_window: [{', '.join(map(str, settings.max_attention_window))}]")
    lines += more
    if lines and settings.free_gpu_memory_fraction != FREE_GPU_MEMORY_FRACTION:
        # A kv_cache_config in the file stands in place of the one that the command line makes.
        lines.append(f"free_gpu_memory_fraction: {settings.free_gpu_memory_fraction:g}")
    return lines


def _yaml(deployment: Deployment, settings: TensorRtLlmSettings, draft: str | None) -> list[str]:
    cache = cache_config(
        settings,
        *([] if deployment.prefix_caching else ["enable_block_reuse: false"]),
        *([] if deployment.kv_bytes is None else [f"max_gpu_total_bytes: {deployment.kv_bytes}"]),
    )
    lines = ["kv_cache_config:", *(f"  {line}" for line in cache)] if cache else []
    if settings.enable_attention_dp:
        lines.append("enable_attention_dp: true")
    if deployment.enforce_eager:
        lines.append("cuda_graph_config: null")
    if deployment.speculative_tokens:
        lines += ["speculative_config:", *(f"  {line}" for line in _speculation(deployment, draft))]
    return lines


def _speculation(deployment: Deployment, draft: str | None) -> list[str]:
    """Proposals from the prompt, from the model's own prediction layers, or from a model; JSON's strings are YAML's."""
    count = deployment.speculative_tokens
    if deployment.draft is None:
        return ["decoding_type: NGram", f"max_draft_len: {count}", f"max_matching_ngram_size: {NGRAM_SIZE}"]
    if draft is None:
        return ["decoding_type: MTP", f"num_nextn_predict_layers: {count}"]
    proposes = deployment.draft.model
    method = "Eagle3" if proposes is not None and proposes.prediction.eagle else "Draft_Target"
    return [f"decoding_type: {method}", f"max_draft_len: {count}", f"speculative_model: {json.dumps(draft)}"]


def _draft(draft: Draft) -> tuple[str | None, tuple[str, ...]]:
    """(what it is told to load, notes); nothing for the model's own prediction layers."""
    return (None, ()) if draft.own else draft_checkpoint(draft)


def _weight_notes(model: Model, deployment: Deployment) -> tuple[str, ...]:
    wanted = other_weights(model, deployment)
    if wanted is None or (wanted in SIXTEEN_BITS and stored_format(model) in SIXTEEN_BITS):
        return ()
    return (requantised_note(wanted),)
