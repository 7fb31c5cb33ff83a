"""`python -m sglang.launch_server` for a deployment (options: SGLang 0.5.23, srt/arg_groups/fields)."""

from __future__ import annotations

from dataclasses import replace

from kvcore.deployment import Deployment, Draft
from kvcore.engines.sglang import SGLANG
from kvcore.engines.sglang.settings import SglangSettings
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

CACHE_WORDS = {"fp8": "fp8_e4m3", "bf16": "bf16", "mxfp4": "fp4_mx_block16"}


def sglang(model: Model, deployment: Deployment, settings: SglangSettings) -> Command:
    """The launch command with what differs from SGLang's defaults.

    Attention data parallelism divides SGLang's tensor-parallel group: tp × dp ranks in all, dp groups in it.
    """
    # Without data-parallel attention the ranks of one replica are SGLang's tp, and the replicas its dp.
    asked = settings if settings.enable_dp_attention else replace(settings, dp_size=deployment.dp)
    words = list(SGLANG.flags(model, asked))
    put(words, "--kv-cache-dtype", _cache(deployment))
    if deployment.expert_parallel:
        pairs(words, (("--ep-size", asked.tp_size, 1),))
    notes: tuple[str, ...] = ()
    if deployment.kv_bytes is not None:
        tokens = SGLANG.capacity(model, settings, deployment.kv_bytes).kv_cache_size_tokens
        put(words, "--max-total-tokens", None)
        words += ["--max-total-tokens", str(tokens)]
        notes = (
            f"SGLang has no option for bytes: {deployment.kv_bytes:,} B on each GPU are {tokens:,} tokens, an upper "
            "limit that it lowers where memory is less.",
        )
    weights, more = _weights(model, deployment)
    speculation, about = _speculation(model, deployment)
    where = "start the same command on each with --nnodes, --node-rank and --dist-init-addr."
    return Command(
        words=(*words, *weights, *speculation),
        notes=(*notes, *more, *about, *host_note(deployment.gpus, where)),
    )


def _cache(deployment: Deployment) -> str | None:
    word = cache_word(deployment.kv_dtype, CACHE_WORDS)
    known = (None, "bf16", "fp8_e4m3", "mxfp8", "nvfp4", "fp4_mx_block16")
    if word == "fp8_ds_mla":
        # SGLang packs a latent beside an indexer by itself where fp8 is asked for.
        return "fp8_e4m3"
    if word not in known:
        raise EngineError(f"sglang: --kv-cache-dtype has no word for {word}; it has {', '.join(filter(None, known))}")
    return word


def _weights(model: Model, deployment: Deployment) -> tuple[list[str], tuple[str, ...]]:
    wanted = other_weights(model, deployment)
    if wanted is None:
        return [], ()
    if stored_format(model) in SIXTEEN_BITS:
        if wanted in SIXTEEN_BITS:
            return ["--dtype", SIXTEEN_BITS[wanted]], ()
        if wanted == "fp8":
            return ["--quantization", "fp8"], ("SGLang quantises the linear layers to fp8 while loading.",)
    return [], (requantised_note(wanted),)


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
    name, notes = draft_reference(draft)
    if draft.weight_format is not None:
        notes += (f"The draft was planned with {draft.weight_format} weights: name a checkpoint that is stored so.",)
    method = {0: "STANDALONE", 1: "EAGLE", 3: "EAGLE3"}[0 if draft.model is None else draft.model.prediction.eagle]
    words = ["--speculative-algorithm", method, "--speculative-draft-model-path", name, *chain]
    return words, notes
