"""Ollama's answers: what the llama-server that it starts sets aside, and what Ollama itself says and leaves free.

The rules of the caches are llama.cpp's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kvcore.deployment import Deployment, Request
from kvcore.engines.base import Engine
from kvcore.engines.command import Command
from kvcore.engines.layout import Capacity, Layout, Note
from kvcore.engines.llamacpp.engine import LLAMACPP
from kvcore.engines.llamacpp.launch import slots_for
from kvcore.engines.llamacpp.memory import estimates, planned_cells
from kvcore.engines.llamacpp.settings import LlamaCppSettings
from kvcore.engines.llamacpp.slots import SlotPool, draft_notes
from kvcore.engines.ollama.launch import launch
from kvcore.engines.ollama.log import LOG
from kvcore.engines.ollama.settings import ONE_SLOT, OPTIONS, VERSION, OllamaSettings, default_batch, make_settings
from kvcore.engines.overheads import AddedOverheads, Estimate, added
from kvcore.errors import EngineError
from kvcore.model.model import Model
from kvcore.ranks.weights import RankWeights
from kvcore.terms import Range, Term
from kvcore.units import GIB, KIB, MIB

# Ollama keeps this much of every GPU free (discover: gpuMinimumMemory, 457 MiB).
_FREE_GIB = 457 / 1024
_KEPT_FREE = Estimate(
    name="kept free",
    gib=Range(low=_FREE_GIB, best=_FREE_GIB, high=2 * _FREE_GIB),
    formula="457 MiB of every GPU that Ollama does not use",
)


class Ollama(Engine):
    """Ollama; see kvcore.engines.base.Engine. Every slot has cells of its own for num_ctx tokens."""

    name = "ollama"
    label = "Ollama"
    versions = f"Ollama, snapshot {VERSION} (2026-08-21), with {LLAMACPP.versions}"
    release = VERSION
    vendors = ("NVIDIA", "AMD", "Apple")
    options = OPTIONS
    log = LOG
    cache_formats = ("q8_0", "q4_0")
    weight_formats = LLAMACPP.weight_formats
    on_processors = True
    rules = LLAMACPP.rules
    slots = True
    step_memory = False
    plan_notes = ("Where it does not fit, Ollama leaves layers in host memory and is slower; here all are on GPUs.",)

    def settings(self, model: Model, asked: Request) -> OllamaSettings:
        """See Engine.settings; num_ctx is the longest request unless given, else Ollama's default for the GPUs."""
        return make_settings(model, asked)

    def refuses_draft(self, model: Model, deployment: Deployment) -> str:
        """See Ranked.refuses_draft: drafts are DFlash or MTP models only (0.24: llm/llama_server.go,
        externalDraftType).
        """
        draft = None if deployment.draft is None else deployment.draft.model
        if draft is None or draft.prediction.eagle:
            return ""
        return "its DRAFT takes DFlash and MTP models only; llama.cpp takes any (--model-draft)"

    def draft_notes(self, model: Model, deployment: Deployment) -> tuple[str, ...]:
        """See Ranked.draft_notes: as llama.cpp."""
        return draft_notes(model, deployment)

    def pool(self, model: Model, deployment: Deployment, context: int) -> OllamaSlots:
        """See Engine.pool."""
        return OllamaSlots(self, model, deployment, context)

    def batched_tokens(self, settings: OllamaSettings) -> int:
        """See Engine.batched_tokens."""
        return settings.server.ubatch_size

    def no_sharing(self, model: Model, deployment: Deployment) -> str:
        """See Engine.no_sharing."""
        return f"Every slot of {self.label} has a copy of the prompt: a shared beginning is not counted once."

    def layout(self, model: Model, settings: OllamaSettings) -> Layout:
        """A slot's share of llama-server's caches; EngineError for what llama.cpp refuses."""
        layout = LLAMACPP.layout(model, settings.server)
        cells = settings.num_ctx * settings.num_parallel
        term = Term(
            name="context of llama-server",
            formula=f"num_ctx {settings.num_ctx:,} × {settings.num_parallel} slots = {cells:,} tokens",
            value=cells,
            unit="tokens",
        )
        return replace(
            layout, engine=self.name, engine_version=settings.version, terms=(term, *layout.terms),
            remarks=(*layout.remarks, *map(Note, _notes(settings))),
        )  # fmt: skip

    def capacity(self, model: Model, settings: OllamaSettings, kv_bytes: int) -> Capacity:
        """As llama.cpp's, with Ollama's own words before the lines of llama-server."""
        capacity = LLAMACPP.capacity(model, settings.server, kv_bytes)
        return replace(capacity, log_lines=(*_words(settings), *capacity.log_lines)) if capacity.log_lines else capacity

    def overheads(
        self, model: Model, deployment: Deployment, settings: OllamaSettings, weights: RankWeights, share: float
    ) -> AddedOverheads:
        """As llama.cpp's, and what Ollama leaves free; it chooses its batch by the context."""
        try:
            server = self.settings(model, deployment).server
        except EngineError:
            # No such server starts.
            parts = estimates(model, deployment, LlamaCppSettings(), planned_cells(deployment))
        else:
            parts = estimates(model, deployment, server, server.ctx_size)
        return added((*parts, _KEPT_FREE))

    def launch(self, model: Model, deployment: Deployment, settings: OllamaSettings) -> Command:
        """See Engine.launch: `ollama serve` with its environment, and a Modelfile."""
        return launch(model, deployment, settings)

    def room_for(self, deployment: Deployment, requests: int) -> dict[str, Any]:
        """See Engine.room_for: the slots; each has a context of its own."""
        return {"num_parallel": slots_for(deployment, requests)}


OLLAMA = Ollama()


class OllamaSlots(SlotPool):
    """See SlotPool: num_ctx and num_parallel ask for slots, and the batch is chosen by the tokens of all of them."""

    sequences_name = "OLLAMA_NUM_PARALLEL"

    def asked(self, context: int, slots: int) -> Mapping[str, Any]:
        """See SlotPool.asked."""
        return {"num_parallel": slots}

    def server_of(self, settings: OllamaSettings) -> LlamaCppSettings:
        """See SlotPool.server_of."""
        return settings.server

    def most(self, settings: OllamaSettings) -> int:
        """See SlotPool.most."""
        return 1 if settings.architecture in ONE_SLOT else super().most(settings)

    def batch(self, tokens: int) -> int:
        """See SlotPool.batch: by the tokens of all slots (server/sched.go), unless a number was asked for."""
        if self.deployment.option("num_batch") is not None:
            return 0
        return default_batch(tokens, self.server.flash_attn, True, self.deployment.gpu.memory_bytes)


def _notes(settings: OllamaSettings) -> tuple[str, ...]:
    notes = []
    if settings.num_batch_is_default:
        notes.append(
            f"num_batch {settings.server.batch_size:,} is what Ollama takes with memory enough; with less it takes "
            "down to 512, and sliding layers then have fewer cells."
        )
    if settings.default_num_ctx is not None:
        notes.append("The context is Ollama's default for the GPUs' memory; where it does not fit, Ollama lowers it.")
    if settings.num_parallel < settings.asked_num_parallel:
        notes.append(f"Ollama gives {settings.architecture} one slot whatever OLLAMA_NUM_PARALLEL says.")
    return tuple(notes)


def _words(settings: OllamaSettings) -> tuple[str, ...]:
    """What Ollama itself logs of its choices, without time, level and source."""
    words = []
    if settings.default_num_ctx is not None:
        words.append(
            f'msg="vram-based default context" total_vram="{_human(settings.gpu_bytes)}" '
            f"default_num_ctx={settings.default_num_ctx}"
        )
    if settings.num_parallel < settings.asked_num_parallel and settings.architecture in ONE_SLOT:
        words.append(
            'msg="model architecture does not currently support parallel requests" '
            f"architecture={settings.architecture}"
        )
    if settings.asked_num_ctx > settings.num_ctx:
        words.append(
            f'msg="requested context size too large for model" num_ctx={settings.asked_num_ctx} '
            f"n_ctx_train={settings.train_context}"
        )
    return tuple(words)


def _human(size: int) -> str:
    """Bytes as Ollama prints them (format/bytes.go, HumanBytes2)."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size} B"
