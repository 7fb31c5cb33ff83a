"""Ollama: the llama-server that it starts, and what it logs of its own choices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kvcore.deployment import Request, as_options
from kvcore.engines.llamacpp import LLAMACPP
from kvcore.engines.ollama.engine import OLLAMA, OllamaSettings, default_batch, default_context
from kvcore.errors import EngineError
from kvcore.hardware.gpus import accelerator
from kvcore.model.model import Model
from kvcore.units import GIB
from tests.models import model

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"


def settings_of(subject: Model, common: Request | None = None, **values: Any) -> OllamaSettings:
    return OLLAMA.settings(subject, replace(common or Request(), options=as_options(values)))


@pytest.mark.parametrize(
    ("gib", "tokens"), [(0, 4096), (22.9, 4096), (23, 32768), (46.9, 32768), (47, 262144), (640, 262144)]
)
def test_context_by_memory(gib: float, tokens: int) -> None:
    assert default_context(int(gib * GIB)) == tokens


def test_context_of_all_gpus_together_clamped_to_training() -> None:
    subject = model(LLAMA)
    gpu = accelerator("rtx-4090")
    one = settings_of(subject, Request(gpu=gpu))
    assert (one.num_ctx, one.default_num_ctx) == (32768, 32768)
    two = settings_of(subject, Request(gpu=gpu, pp=2))
    assert (two.asked_num_ctx, two.num_ctx, two.default_num_ctx) == (262144, 131072, 262144)
    none = settings_of(subject, Request(platform="cpu"))
    assert (none.num_ctx, none.default_num_ctx) == (4096, 4096)


def test_every_slot_has_cells_of_its_own() -> None:
    subject = model(LLAMA)
    settings = settings_of(subject, num_ctx=5000, num_parallel=3)
    server = settings.server
    assert (server.ctx_size, server.parallel, server.unified, server.whole_windows) == (15000, 3, False, False)
    layout = OLLAMA.layout(subject, settings)
    assert (layout.engine, layout.max_model_len) == ("ollama", 5000)
    assert layout.bytes_per_request == 5120 * 131_072
    capacity = OLLAMA.capacity(subject, settings, 40 * GIB)
    assert (capacity.kv_cache_size_tokens, capacity.max_concurrency) == (3 * 5120, 3)
    assert capacity.log_lines == LLAMACPP.log_lines(subject, server)


def test_one_slot_for_some_architectures() -> None:
    subject = model("Qwen/Qwen3.5-9B")
    settings = settings_of(subject, num_ctx=8192, num_parallel=4)
    assert (settings.num_parallel, settings.server.parallel, settings.server.ctx_size) == (1, 1, 8192)
    assert OLLAMA.capacity(subject, settings, 40 * GIB).log_lines[0] == (
        'msg="model architecture does not currently support parallel requests" architecture=qwen35'
    )
    assert any("one slot" in note for note in OLLAMA.layout(subject, settings).notes)
    # Another hybrid model is given what is asked.
    assert settings_of(model("ai21labs/Jamba-v0.1"), num_ctx=8192, num_parallel=4).num_parallel == 4


def test_its_own_words() -> None:
    subject = model(LLAMA)
    lines = OLLAMA.capacity(subject, settings_of(subject, Request(pp=2)), 400 * GIB).log_lines
    assert lines[:2] == (
        'msg="vram-based default context" total_vram="160.0 GiB" default_num_ctx=262144',
        'msg="requested context size too large for model" num_ctx=262144 n_ctx_train=131072',
    )
    cpu = settings_of(subject, Request(platform="cpu"))
    assert (
        OLLAMA.capacity(subject, cpu, 40 * GIB)
        .log_lines[0]
        .startswith('msg="vram-based default context" total_vram="0 B" default_num_ctx=4096')
    )
    assert OLLAMA.capacity(subject, cpu, 1).log_lines == ()


def test_cache_type_and_batch() -> None:
    subject = model("google/gemma-3-27b-it")
    settings = settings_of(subject, num_ctx=16384, kv_cache_type="q8_0")
    server = settings.server
    assert (server.cache_type_k, server.cache_type_v, server.batch_size, server.ubatch_size) == ("q8_0",) * 2 + (
        1024,
    ) * 2
    # A window of 1,024 and a batch of 1,024 are 2,048 cells.
    assert "  2048 cells,  52 layers" in OLLAMA.capacity(subject, settings, 40 * GIB).log_lines[-1]
    assert OLLAMA.flags(subject, settings) == (
        "OLLAMA_CONTEXT_LENGTH=16384", "OLLAMA_NUM_PARALLEL=1", "OLLAMA_KV_CACHE_TYPE=q8_0", "ollama", "serve",
    )  # fmt: skip
    assert settings_of(subject, num_ctx=16384, num_batch=300).server.ubatch_size == 300


@pytest.mark.parametrize(
    ("tokens", "flash", "cuda", "gib", "batch"),
    [
        (4096, "auto", True, 80, 512), (4097, "auto", True, 80, 1024), (32768, "auto", False, 0, 1024),
        (32769, "on", True, 80, 2048), (32769, "off", True, 80, 512), (32769, "off", True, 8, 256),
        (4096, "off", True, 8, 512), (32769, "off", False, 0, 2048),
    ],
)  # fmt: skip
def test_batch_by_context(tokens: int, flash: str, cuda: bool, gib: int, batch: int) -> None:
    assert default_batch(tokens, flash, cuda, gib * GIB) == batch


@pytest.mark.parametrize(
    ("common", "values", "why"),
    [
        (Request(engine_version="0.1.0"), {}, "known are fb307609"),
        (Request(context=9000), {"num_ctx": 8192}, "more than num_ctx"),
        (Request(context=200_000), {}, "more than num_ctx, which is 131,072"),
        (Request(kv_dtype="q8_0/q4_0"), {}, "gives both one type"),
        (Request(tp=2), {}, "tp 2"),
        (Request(), {"ctx_size": 1}, "no option of it"),
        (Request(), {"kv_cache_type": "q8_0", "flash_attention": "off"}, "requires flash_attn"),
    ],
)
def test_what_is_refused(common: Request, values: dict[str, Any], why: str) -> None:
    subject = model(LLAMA)
    with pytest.raises(EngineError, match=why):
        OLLAMA.layout(subject, settings_of(subject, common, **values))


def test_fewer_than_four_tokens_are_four() -> None:
    assert settings_of(model(LLAMA), num_ctx=1).num_ctx == 4
