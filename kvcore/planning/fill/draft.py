"""The caches of what proposes tokens ahead, beside the model's: where each engine keeps them.

vLLM puts the draft's layers into the groups of the one pool, with the model's block size (cache_config.block_size is
one for both). SGLang sizes its pool by cells that are larger by draft layers / layers, whatever shape the draft's are
of, and the draft's own pool has as many slots (pool_configurator.py, eagle_draft_num_layers). TensorRT-LLM divides the
memory by the bytes a token of both together (pyexecutor/_util.py, cal_max_tokens).
"""

from __future__ import annotations

from dataclasses import replace

from kvcore.deployment import Deployment
from kvcore.engines.base import Layout
from kvcore.engines.llamacpp.engine import HEAD_ALONE
from kvcore.engines.sglang.cells import Cell, Stage
from kvcore.engines.sglang.cells import stages as sglang_stages
from kvcore.engines.sglang.settings import SglangSettings
from kvcore.engines.vllm.groups import BlockGroup, block_groups
from kvcore.engines.vllm.packed import is_packed, packed_groups
from kvcore.engines.vllm.settings import VllmSettings
from kvcore.engines.vllm.specs import Spec, layer_specs
from kvcore.errors import EngineError
from kvcore.model.memories import State
from kvcore.model.model import Model
from kvcore.ranks.speculation import proposer, speculator
from kvcore.terms import Term

# What llama.cpp's layout says where nobody counts it.
_UNCOUNTED = "The cache of the draft head's own context is not counted."


def vllm_groups(model: Model, draft: Model, settings: VllmSettings, block: int | None) -> tuple[BlockGroup, ...]:
    """The groups of both; EngineError for what vLLM refuses, and for pages that are not followed together."""
    plain = replace(settings, mtp_layers=0)
    if is_packed(model) or is_packed(draft):
        if draft.model_type != model.model_type:
            raise EngineError(f"vllm: how pages of {model.name} are packed beside a draft's is not followed here")
        return packed_groups(replace(model, layers=(*model.layers, *draft.layers)), plain)
    if any(isinstance(memory, State) for memory, _ in draft.kept):
        raise EngineError(f"vllm: the states of a draft such as {draft.name} are not followed here")
    placed: dict[Spec, list[int]] = {spec: list(layers) for spec, layers in layer_specs(model, plain)}
    for spec, layers in layer_specs(draft, replace(plain, block_size=block)):
        placed.setdefault(spec, []).extend(len(model.layers) + layer for layer in layers)
    try:
        return block_groups(tuple((spec, tuple(layers)) for spec, layers in placed.items()), plain)
    except EngineError as problem:
        raise EngineError(f"{problem} (with the draft {draft.name})") from None


def sglang_with_draft(parts: tuple[Stage, ...], draft: Model, dcp: int, settings: SglangSettings) -> tuple[Stage, ...]:
    """The stages with the cells by which SGLang sizes its pool: larger by the draft's layers, or by what its own
    slots take where that is more. One pipeline stage; every decode-context-parallel rank has all of the draft's."""
    (own,) = sglang_stages(draft, settings)
    if own.state_layers:
        raise EngineError(f"sglang: the states of a draft such as {draft.name} are not followed here")
    slots = sum(cell.bytes for cell in (own.full, own.swa) if cell is not None) * dcp
    count = sum(cell.layers for cell in (own.full, own.swa) if cell is not None) * dcp
    found = []
    for part in parts:
        if part.full is None:
            raise EngineError("sglang: a draft beside a model that keeps no full cache is not followed here")
        reserved = part.full.bytes * count // part.full.layers
        found.append(replace(part, full=_larger(part.full, max(reserved, slots))))
    return tuple(found)


def _larger(cell: Cell, more: int) -> Cell:
    return replace(cell, k_bytes=cell.k_bytes + more)


def with_draft(layout: Layout, draft: Model, own_bytes: int) -> Layout:
    """The layout of a request with what the draft keeps of it, in a pool of its own."""
    term = Term(
        name="the draft's cache of it",
        formula=f"{draft.name}: {own_bytes:,} B",
        value=own_bytes,
        unit="B",
    )
    notes = tuple(note.replace(", without speculation", "") for note in layout.notes if note != _UNCOUNTED)
    return replace(
        layout, bytes_per_request=layout.bytes_per_request + own_bytes, terms=(*layout.terms, term), notes=notes
    )


def llamacpp_context(model: Model, deployment: Deployment) -> Model | None:
    """What the second context of llama.cpp keeps, in 16 bits: a draft's layers, or those of the model's own head.

    For most architectures nothing limits the second context of a head to the head's layers, so it has caches for all of
    the model’s once more (ggml-org/llama.cpp#28433; measured for latents in unslothai/unsloth#6447): a bound.
    """
    draft = speculator(model, deployment)
    chosen = proposer(deployment)
    if draft is None or chosen is None or not chosen.own or model.model_type in HEAD_ALONE:
        return draft
    return replace(draft, layers=(*model.layers, *draft.layers))
