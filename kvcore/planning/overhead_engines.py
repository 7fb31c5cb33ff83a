"""Overheads of the engines that few logs speak of: what their code does, with ranges that admit how little is known.

SGLang keeps activations and graphs in the share that it leaves free; TensorRT-LLM takes its share of what is free after
a dummy run; llama.cpp allocates compute buffers that follow from its graph; transformers only computes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from kvcore.deployment import Deployment
from kvcore.engines.llamacpp.settings import LlamaCppSettings, micro_batch
from kvcore.engines.registry import engine
from kvcore.engines.tensorrt_llm.settings import MAX_BATCH_SIZE, MAX_NUM_TOKENS
from kvcore.errors import EngineError
from kvcore.model.model import Model
from kvcore.planning.overhead_shape import shape
from kvcore.ranks.speculation import speculator
from kvcore.ranks.weights import RankWeights
from kvcore.terms import Range
from kvcore.units import GIB

# What nvidia-smi reports and CUDA does not give (data/overheads.json), and what a CUDA context takes.
DRIVER = Range(low=0.25, best=0.45, high=0.8)
CONTEXT = Range(low=0.3, best=0.45, high=0.7)
COLLECTIVES = Range(low=0.3, best=0.8, high=2.0)
# SGLang's, measured before its weights are loaded: of GPUs with links of their own and of others (two, four and eight
# ranks, data/field/memory_sglang.jsonl).
LINKED_RANKS, OTHER_RANKS = Range(low=0.8, best=1.7, high=2.6), Range(low=0.1, best=0.3, high=1.0)
NOTHING = Range.exactly(0.0)
# llama.cpp computes in 32 bits (graph of a layer, llama-graph.cpp): gate, up, their product and five residual rows.
_F32, _RESIDUAL_ROWS, _MASK_BYTES = 4, 5, 2
# Ollama keeps this much of every GPU free (discover: gpuMinimumMemory, 457 MiB).
_OLLAMA_FREE = 457 / 1024
# Shares of a GPU's memory that TensorRT-LLM takes beside these parts for a mixture over several ranks; what for is not
# known. Kimi K2.5 in NVFP4 on eight B300: 13.5 GiB beside the weights, of which the parts explain about 3 and at most
# 9.3 (data/field/memory_tensorrt.jsonl).
_TRT_MIXTURE = Range(low=0.0, best=0.02, high=0.05)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """One part in GiB."""

    name: str
    gib: Range[float]
    formula: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimates:
    """The parts of one engine, and notes."""

    parts: tuple[Estimate, ...]
    notes: tuple[str, ...] = ()


def _driver(deployment: Deployment) -> Estimate:
    known = deployment.gpu.vendor == "NVIDIA" and not deployment.gpu.unified_memory
    return Estimate(
        name="kept by the driver",
        gib=DRIVER if known else NOTHING,
        formula="what nvidia-smi counts and CUDA does not give",
    )


def _has_ranks(model: Model, deployment: Deployment) -> bool:
    return deployment.tp > 1 or deployment.pp > 1 or (deployment.dp > 1 and model.experts is not None)


def _runtime(model: Model, deployment: Deployment, collectives: Range[float] = COLLECTIVES) -> Estimate:
    # Replicas of a mixture exchange what their experts need; others are servers of their own.
    several = _has_ranks(model, deployment)
    gib = CONTEXT + collectives if several else CONTEXT
    text = f"a context of {CONTEXT.best:g} GiB"
    if several:
        text += f" + {collectives.best:g} GiB for collectives"
    return Estimate(name="runtime", gib=gib, formula=text)


def _sglang(model: Model, deployment: Deployment, weights: RankWeights, share: float) -> Estimates:
    ranks = OTHER_RANKS if deployment.gpu.link_name is None else LINKED_RANKS
    parts = tuple(
        Estimate(name=part.name, gib=part.gib * share, formula=f"{part.formula}, × {share:g}")
        for part in (_driver(deployment), _runtime(model, deployment, ranks))
    )
    note = "Activations and CUDA graphs live in the share that SGLang leaves free (mem_fraction_static)."
    return Estimates(parts=parts, notes=(note,))


def _tensorrt(model: Model, deployment: Deployment, weights: RankWeights, share: float) -> Estimates:
    made = shape(model, deployment.tp)
    tokens = deployment.max_num_batched_tokens or MAX_NUM_TOKENS
    seqs = min(tokens, deployment.max_num_seqs or MAX_BATCH_SIZE)
    layer = tokens * (made.widest + 2 * made.hidden) * 2 / GIB
    logits = seqs * made.vocabulary * 4 / GIB
    text = f"{tokens:,} tokens × ({made.widest:,} + 2 × {made.hidden:,}) × 2 B; {seqs:,} × {made.vocabulary:,} × 4 B"
    activation = Estimate(
        name="activation peak",
        gib=Range(low=0.5 * layer, best=max(layer, logits), high=2 * layer + 2 * logits + 1),
        formula=f"the larger of {text}",
    )
    note = "The share is of what is free after a dummy run: an estimate of the dummy run decides."
    parts = [activation, _runtime(model, deployment), _driver(deployment)]
    if model.experts is not None and _has_ranks(model, deployment):
        total = deployment.gpu.memory_bytes / GIB
        parts.append(
            Estimate(
                name="workspaces",
                gib=_TRT_MIXTURE * total,
                formula=f"{_TRT_MIXTURE.best:.0%} of {total:.2f} GiB for a mixture over several ranks, by one log",
            )
        )
    return Estimates(parts=tuple(parts), notes=(note,))


def compute_buffer_gib(model: Model, tokens: int, cells: int, flash: bool) -> Range[float]:
    """llama.cpp's compute buffer of one device: a layer of a micro-batch in 32 bits, and its attention mask.

    Without flash attention also the scores of all heads. Builds that reserve the logits of a whole micro-batch take
    `tokens` × vocabulary × 4 B instead of the layer, the high end.
    """
    made = shape(model, 1)
    layer = tokens * (made.widest + _RESIDUAL_ROWS * made.hidden) * _F32
    mask = tokens * cells * _MASK_BYTES
    scores = 0 if flash else model.num_attention_heads * tokens * cells * _F32
    logits = tokens * made.vocabulary * _F32
    best = layer + mask + scores
    return Range(
        low=0.8 * best / GIB, best=best / GIB, high=(1.6 * (mask + scores) + max(1.6 * layer, 1.1 * logits)) / GIB
    )


def _buffers(model: Model, deployment: Deployment, draft: Model | None = None) -> Estimate:
    tokens, cells, flash = _micro_batch(model, deployment)
    return Estimate(
        name="compute buffers",
        gib=compute_buffer_gib(draft or model, tokens, cells, flash),
        formula=f"{tokens:,} tokens × one layer in 32 bits + a mask of {tokens:,} × {cells:,} × {_MASK_BYTES} B",
    )


def _micro_batch(model: Model, deployment: Deployment) -> tuple[int, int, bool]:
    """Tokens of a micro-batch, cells of all slots, flash attention; as the engine itself sets them where it can be
    asked. Ollama takes up to 2,048 tokens by the context (server/sched.go), llama.cpp 512."""
    options = dict(deployment.options)
    parallel = int(options.get("parallel") or options.get("num_parallel") or deployment.max_num_seqs or 1)
    cells = int(options.get("ctx_size") or options.get("num_ctx") or deployment.context * parallel)
    try:
        made = engine(deployment.engine).settings(model, deployment)
    except EngineError:
        # No such server starts.
        server = LlamaCppSettings()
    else:
        server = made.server if deployment.engine == "ollama" else made
        cells = server.ctx_size if deployment.engine == "ollama" else cells
    flash = "off" not in (options.get("flash_attn"), options.get("flash_attention"))
    return micro_batch(server, cells), cells, flash


def _llamacpp(model: Model, deployment: Deployment, weights: RankWeights, share: float) -> Estimates:
    runtime = Estimate(name="runtime", gib=CONTEXT, formula=f"a context of {CONTEXT.best:g} GiB on each GPU")
    parts = [_buffers(model, deployment), runtime, _driver(deployment)]
    draft = speculator(model, deployment)
    if draft is not None:
        # Its own context computes as many tokens at once over as many cells.
        parts.insert(1, replace(_buffers(model, deployment, draft), name="compute buffers of the draft"))
    return Estimates(parts=tuple(parts))


def _ollama(model: Model, deployment: Deployment, weights: RankWeights, share: float) -> Estimates:
    kept = Estimate(
        name="kept free",
        gib=Range(low=_OLLAMA_FREE, best=_OLLAMA_FREE, high=2 * _OLLAMA_FREE),
        formula="457 MiB of every GPU that Ollama does not use",
    )
    found = _llamacpp(model, deployment, weights, share)
    return Estimates(parts=(*found.parts, kept))


def _transformers(model: Model, deployment: Deployment, weights: RankWeights, share: float) -> Estimates:
    made = shape(model, 1)
    tokens = deployment.context
    layer = tokens * (made.widest + 4 * made.hidden) * 2 / GIB
    logits = tokens * made.vocabulary * 6 / GIB
    activation = Estimate(
        name="activation peak",
        gib=Range(low=0.7 * layer, best=layer, high=2 * layer + logits),
        formula=f"a prompt of {tokens:,} tokens at once × ({made.widest:,} + 4 × {made.hidden:,}) × 2 B; "
        f"versions that keep the logits of all tokens take {made.vocabulary:,} × 6 B more for each",
    )
    slack = Estimate(
        name="allocator",
        gib=Range(low=0.0, best=0.02 * weights.bytes / GIB, high=0.06 * weights.bytes / GIB),
        formula="blocks of the caching allocator that are not full: 2 % of the weights",
    )
    return Estimates(parts=(activation, _runtime(model, deployment), slack, _driver(deployment)))


ESTIMATES: Mapping[str, Callable[[Model, Deployment, RankWeights, float], Estimates]] = {
    "sglang": _sglang,
    "tensorrt-llm": _tensorrt,
    "llama.cpp": _llamacpp,
    "ollama": _ollama,
    "transformers": _transformers,
}
# What these estimate looks at the weights of a stage; all others say the same of every stage.
BY_STAGE = frozenset({"vllm", "transformers"})
