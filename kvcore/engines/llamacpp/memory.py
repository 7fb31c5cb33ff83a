"""What llama.cpp and Ollama hold beside weights and cache: compute buffers that follow from the graph of a layer."""

from __future__ import annotations

from dataclasses import replace

from kvcore.deployment import Deployment
from kvcore.engines.llamacpp.settings import LlamaCppSettings, micro_batch
from kvcore.engines.overheads import CONTEXT, Estimate, driver, shape
from kvcore.model.model import Model
from kvcore.ranks.speculation import speculator
from kvcore.terms import Range
from kvcore.units import GIB

# llama.cpp computes in 32 bits (graph of a layer, llama-graph.cpp): gate, up, their product and five residual rows.
_F32, _RESIDUAL_ROWS, _MASK_BYTES = 4, 5, 2


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


def estimates(model: Model, deployment: Deployment, server: LlamaCppSettings, cells: int) -> tuple[Estimate, ...]:
    """The parts on one GPU of a server with so many cells in all slots, those of a draft beside the model's."""
    runtime = Estimate(name="runtime", gib=CONTEXT, formula=f"a context of {CONTEXT.best:g} GiB on each GPU")
    parts = [_buffers(model, server, cells), runtime, driver(deployment)]
    draft = speculator(model, deployment)
    if draft is not None:
        # Its own context computes as many tokens at once over as many cells.
        parts.insert(1, replace(_buffers(draft, server, cells), name="compute buffers of the draft"))
    return tuple(parts)


def planned_cells(deployment: Deployment) -> int:
    """Cells of all slots: of as many requests as are asked for, unless the context of the server is stated."""
    options = dict(deployment.options)
    parallel = int(options.get("parallel") or options.get("num_parallel") or deployment.max_num_seqs or 1)
    return int(options.get("ctx_size") or options.get("num_ctx") or deployment.context * parallel)


def _buffers(model: Model, server: LlamaCppSettings, cells: int) -> Estimate:
    tokens = micro_batch(server, cells)
    return Estimate(
        name="compute buffers",
        gib=compute_buffer_gib(model, tokens, cells, server.flash_attn != "off"),
        formula=f"{tokens:,} tokens × one layer in 32 bits + a mask of {tokens:,} × {cells:,} × {_MASK_BYTES} B",
    )
