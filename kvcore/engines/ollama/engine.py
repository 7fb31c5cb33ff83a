"""Ollama: how it starts llama-server, and what that server then sets aside.

Source: Ollama, snapshot fb307609 (2026-08-21): llm/llama_server.go (the command), server/routes.go (context by memory),
server/sched.go (slots, batch), envconfig/config.go (defaults). The rules of the caches are llama.cpp's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kvcore.deployment import Deployment, Request, as_options
from kvcore.engines.base import Capacity, Engine, Layout, Option, own_values
from kvcore.engines.llamacpp.architectures import architecture
from kvcore.engines.llamacpp.engine import LLAMACPP
from kvcore.engines.llamacpp.settings import CACHE_TYPES, MAX_SLOTS, LlamaCppSettings, make_settings
from kvcore.engines.llamacpp.slots import SlotPool, draft_notes
from kvcore.engines.releases import not_followed
from kvcore.errors import EngineError
from kvcore.model.model import Model
from kvcore.terms import Term
from kvcore.units import GIB, KIB, MIB

VERSION = "fb307609"
OPTIONS = (
    Option(flag="--num-ctx", field="num_ctx", kind="integer", help="tokens of one request (num_ctx, or "
           "OLLAMA_CONTEXT_LENGTH); unset: by total GPU memory"),
    Option(flag="--num-parallel", field="num_parallel", kind="integer", help="requests at once (OLLAMA_NUM_PARALLEL)"),
    Option(flag="--kv-cache-type", field="kv_cache_type", kind="text", help="number format of keys and values "
           "(OLLAMA_KV_CACHE_TYPE)", choices=tuple(CACHE_TYPES)),
    Option(flag="--num-batch", field="num_batch", kind="integer", help="tokens computed at once (num_batch); unset: by "
           "context"),
    Option(flag="--num-gpu", field="num_gpu", kind="integer", help="layers on GPUs (num_gpu); unset: all"),
    Option(flag="--flash-attention", field="flash_attention", kind="text", help="OLLAMA_FLASH_ATTENTION",
           choices=("on", "off", "auto")),
)  # fmt: skip
# Tokens of one request by the memory of all GPUs together, in GiB; 4,096 below.
CONTEXT_BY_GIB = ((47, 262_144), (23, 32_768))
LEAST_CONTEXT = 4096
# Architectures that are given one slot whatever is asked.
ONE_SLOT = frozenset(
    ("mllama", "qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe", "qwen3next", "lfm2", "lfm2moe", "nemotron_h",
     "nemotron_h_moe", "nemotron_h_omni")
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class OllamaSettings:
    """What Ollama was asked, and the llama-server that it starts. `default_num_ctx` where the context was its own.

    `gpu_bytes` is the memory of all GPUs together.
    """

    asked_num_ctx: int
    asked_num_parallel: int
    num_ctx: int
    num_parallel: int
    gpu_bytes: int
    server: LlamaCppSettings
    architecture: str
    default_num_ctx: int | None = None
    num_batch_is_default: bool = True
    train_context: int | None = None
    version: str = VERSION


class Ollama(Engine):
    """Ollama; see kvcore.engines.base.Engine. Every slot has cells of its own for num_ctx tokens."""

    name = "ollama"
    label = "Ollama"
    versions = f"Ollama, snapshot {VERSION} (2026-08-21), with {LLAMACPP.versions}"
    release = VERSION
    vendors = ("NVIDIA", "AMD", "Apple")
    options = OPTIONS
    cache_formats = ("q8_0", "q4_0")
    weight_formats = LLAMACPP.weight_formats
    on_processors = True
    rules = LLAMACPP.rules
    slots = True
    step_memory = False
    plan_notes = ("Where it does not fit, Ollama leaves layers in host memory and is slower; here all are on GPUs.",)

    def settings(self, model: Model, asked: Request) -> OllamaSettings:
        """See Engine.settings; num_ctx is the longest request unless given, else Ollama's default for the GPUs (an H100
        of 80 GB where none is named).
        """
        if asked.engine_version not in (None, VERSION):
            raise not_followed("ollama", asked.engine_version, VERSION)
        values = own_values("ollama", OPTIONS, asked)
        _check(values)
        name = architecture(model)
        gpu_bytes = 0 if asked.platform == "cpu" else asked.pp * _gpu_bytes(asked)
        stated = values.get("num_ctx") or asked.context
        default = None if stated else default_context(gpu_bytes)
        # Fewer than 4 tokens are taken as 4, and no more than the model was trained for.
        tokens = max(4, stated or default or LEAST_CONTEXT)
        num_ctx = min(tokens, model.context_limit or tokens)
        asked_parallel = max(1, values.get("num_parallel") or 1)
        parallel = 1 if name in ONE_SLOT or not model.kept else asked_parallel
        length = asked.context or num_ctx
        if length > num_ctx:
            raise EngineError(f"ollama: max_model_len {length:,} is more than num_ctx, which is {num_ctx:,}")
        return OllamaSettings(
            asked_num_ctx=tokens, asked_num_parallel=asked_parallel, num_ctx=num_ctx, num_parallel=parallel,
            gpu_bytes=gpu_bytes, server=_server(model, asked, length, values, num_ctx, parallel), architecture=name,
            default_num_ctx=default, num_batch_is_default=not values.get("num_batch"),
            train_context=model.context_limit,
        )  # fmt: skip

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
            notes=(*layout.notes, *_notes(settings)),
        )  # fmt: skip

    def capacity(self, model: Model, settings: OllamaSettings, kv_bytes: int) -> Capacity:
        """As llama.cpp's, with Ollama's own words before the lines of llama-server."""
        capacity = LLAMACPP.capacity(model, settings.server, kv_bytes)
        return replace(capacity, log_lines=(*_words(settings), *capacity.log_lines)) if capacity.log_lines else capacity

    def flags(self, model: Model, settings: OllamaSettings) -> tuple[str, ...]:
        """The environment and the command that ask for it; num_batch and num_gpu are set with the request."""
        server = settings.server
        words = [f"OLLAMA_CONTEXT_LENGTH={settings.num_ctx}", f"OLLAMA_NUM_PARALLEL={settings.num_parallel}"]
        if server.cache_type_k != "f16":
            words.append(f"OLLAMA_KV_CACHE_TYPE={server.cache_type_k}")
        if server.flash_attn != "auto":
            words.append(f"OLLAMA_FLASH_ATTENTION={int(server.flash_attn == 'on')}")
        return (*words, "ollama", "serve")


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


def default_context(gpu_bytes: int) -> int:
    """num_ctx where nobody says: by the memory of all GPUs (server/routes.go)."""
    return next((tokens for gib, tokens in CONTEXT_BY_GIB if gpu_bytes >= gib * GIB), LEAST_CONTEXT)


def default_batch(tokens: int, flash_attention: str, has_cuda: bool, gpu_bytes: int) -> int:
    """num_batch where nobody says, with memory enough: by the tokens of all slots (server/sched.go)."""
    if flash_attention == "off" and has_cuda:
        return 256 if tokens > 4096 and gpu_bytes <= 8 * GIB else 512
    return 2048 if tokens > 32_768 else 1024 if tokens > 4096 else 512


def _server(
    model: Model, asked: Request, length: int, values: Mapping[str, Any], num_ctx: int, parallel: int
) -> LlamaCppSettings:
    """The llama-server that Ollama starts: -c num_ctx × slots, -np slots, and one number for -b and -ub."""
    flash = values.get("flash_attention") or "auto"
    has_cuda = asked.platform != "cpu"
    batch = values.get("num_batch") or default_batch(num_ctx * parallel, flash, has_cuda, _gpu_bytes(asked))
    kind = values.get("kv_cache_type")
    flags = {
        "ctx_size": num_ctx * parallel, "parallel": parallel, "batch_size": batch, "ubatch_size": batch,
        "flash_attn": flash, "n_gpu_layers": values.get("num_gpu"), "cache_type_k": kind, "cache_type_v": kind,
    }  # fmt: skip
    server = Request(
        context=length, kv_dtype=asked.kv_dtype, tp=asked.tp, pp=asked.pp, dcp=asked.dcp, gpu=asked.gpu,
        platform=asked.platform, options=as_options(flags),
    )  # fmt: skip
    settings = make_settings(model, server)
    if settings.cache_type_k != settings.cache_type_v:
        raise EngineError(
            f"ollama: keys in {settings.cache_type_k} and values in {settings.cache_type_v}; it gives both one type"
        )
    return settings


def _check(values: Mapping[str, Any]) -> None:
    """EngineError for a number that Ollama or its llama-server cannot take; 0 is Ollama's own default."""
    for field, high in (("num_ctx", 2**31 - 1), ("num_parallel", MAX_SLOTS), ("num_batch", 2**31 - 1),
                        ("num_gpu", 2**31 - 1)):  # fmt: skip
        value = values.get(field)
        if value is not None and not 0 <= value <= high:
            raise EngineError(f"ollama: --{field.replace('_', '-')} is {value:,}; expected 0 … {high:,}")


def _gpu_bytes(asked: Request) -> int:
    """Memory of one GPU, that of an H100 of 80 GB where none is named."""
    return 80 * GIB if asked.gpu is None else asked.gpu.memory_bytes


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
