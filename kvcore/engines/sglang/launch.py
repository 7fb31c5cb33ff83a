"""`python -m sglang.launch_server` for a deployment (options: SGLang 0.5.23, srt/arg_groups/fields)."""

from __future__ import annotations

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
from kvcore.engines.sglang.settings import MAMBA_FULL_MEMORY_RATIO, SWA_FULL_TOKENS_RATIO, SglangSettings
from kvcore.errors import EngineError
from kvcore.model.model import Model

CACHE_WORDS = {"fp8": "fp8_e4m3", "bf16": "bf16", "mxfp4": "fp4_mx_block16"}
# All words of --kv-cache-dtype beside `auto`.
CACHE_CHOICES = ("bf16", "fp8_e4m3", "mxfp8", "nvfp4", "fp4_mx_block16")
_SWITCHES = ("enable_dp_attention", "disable_hybrid_swa_memory", "disable_radix_cache", "disable_cuda_graph")
_QUANTISED = "SGLang quantises the linear layers to fp8 while loading."


def launch(model: Model, deployment: Deployment, settings: SglangSettings, pool_tokens: int | None) -> Command:
    """The launch command with what differs from SGLang's defaults; EngineError for a cache format it has no word for.

    `pool_tokens` are what the deployment's `kv_bytes` make, where it names them: SGLang has no option for bytes.
    Attention data parallelism divides SGLang's tensor-parallel group: tp × dp ranks in all, dp groups in it. Without
    it the ranks of one replica are SGLang's tp, and the replicas its dp.
    """
    name, about = checkpoint(model)
    weights, quantised = weight_words(model, deployment, _QUANTISED)
    speculation, proposed = _speculation(model, deployment)
    dp = settings.dp_size if settings.enable_dp_attention else max(deployment.dp, settings.dp_size)
    words = [
        *("python", "-m", "sglang.launch_server", "--model-path", name),
        *("--context-length", str(settings.context_length)),
        *pairs(
            ("--tp-size", settings.tp_size, 1),
            ("--pp-size", settings.pp_size, 1),
            ("--dcp-size", settings.dcp_size, 1),
            ("--dp-size", dp, 1),
            ("--kv-cache-dtype", _cache(settings), None),
            ("--page-size", settings.page_size, None),
            ("--swa-full-tokens-ratio", settings.swa_full_tokens_ratio, SWA_FULL_TOKENS_RATIO),
            ("--mamba-full-memory-ratio", settings.mamba_full_memory_ratio, MAMBA_FULL_MEMORY_RATIO),
            ("--max-mamba-cache-size", settings.max_mamba_cache_size, None),
            ("--mamba-ssm-dtype", settings.mamba_ssm_dtype, None),
            ("--max-total-tokens", settings.max_total_tokens if pool_tokens is None else None, None),
            ("--max-running-requests", settings.max_running_requests, None),
            ("--mem-fraction-static", settings.mem_fraction_static, None),
            ("--chunked-prefill-size", settings.chunked_prefill_size, None),
            ("--dsa-decode-backend", settings.dsa_decode_backend, None),
        ),
        *("--" + switch.replace("_", "-") for switch in _SWITCHES if getattr(settings, switch)),
        *pairs(
            ("--ep-size", settings.tp_size if deployment.expert_parallel else 1, 1),
            ("--max-total-tokens", pool_tokens, None),
        ),
        *weights,
        *speculation,
    ]
    where = "start the same command on each with --nnodes, --node-rank and --dist-init-addr."
    limit = (
        f"SGLang has no option for bytes: {deployment.kv_bytes or 0:,} B on each GPU are {pool_tokens or 0:,} tokens, "
        "an upper limit that it lowers where memory is less."
    )
    sized = () if pool_tokens is None else (limit,)
    return Command(
        words=tuple(words), notes=(*about, *sized, *quantised, *proposed, *host_note(deployment.gpus, where))
    )


def _cache(settings: SglangSettings) -> str | None:
    word = cache_word(settings.kv_cache_dtype, CACHE_WORDS)
    if word == "fp8_ds_mla":
        # SGLang packs a latent beside an indexer by itself where fp8 is asked for.
        return "fp8_e4m3"
    if word not in (None, *CACHE_CHOICES):
        raise EngineError(
            f"--kv-cache-dtype has no word for {word}; it has {', '.join(CACHE_CHOICES)}", engine="sglang"
        )
    return word


def _speculation(model: Model, deployment: Deployment) -> tuple[list[str], tuple[str, ...]]:
    count = deployment.speculative_tokens
    if not count:
        return [], ()
    if deployment.draft is not None:
        return _drafted(deployment.draft, count)
    # The tokens that are verified at once are the proposed ones and the last accepted one.
    words = ["--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", str(count + 1)]
    how = f"--speculative-algorithm NEXTN --speculative-num-steps {count} --speculative-eagle-topk 1"
    return words, (head_note(model, how),)


def _drafted(draft: Draft, count: int) -> tuple[list[str], tuple[str, ...]]:
    """The model's own prediction layers (NEXTN), or a model that proposes (STANDALONE), one chain of tokens."""
    chain = ["--speculative-num-steps", str(count), "--speculative-eagle-topk", "1"]
    chain += ["--speculative-num-draft-tokens", str(count + 1)]
    if draft.own:
        return ["--speculative-algorithm", "NEXTN", *chain], ()
    name, notes = draft_checkpoint(draft)
    method = {0: "STANDALONE", 1: "EAGLE", 3: "EAGLE3"}[0 if draft.model is None else draft.model.prediction.eagle]
    words = ["--speculative-algorithm", method, "--speculative-draft-model-path", name, *chain]
    return words, notes
