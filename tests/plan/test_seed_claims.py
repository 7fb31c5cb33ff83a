"""The planning claims of the texts that this project started from."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvcore.deployment import Deployment
from kvcore.hardware.gpus import accelerator
from kvcore.planning.answers import longest_context
from kvcore.planning.plan import make_plan
from kvcore.sizing import resident_bytes
from kvcore.sources.catalogue import load
from kvcore.units import GB, GIB, KIB
from kvcore.variants.variants import variant

MISTRAL = "mistralai/Mistral-7B-Instruct-v0.3"
LLAMA = "meta-llama/Llama-3.3-70B-Instruct"
# 16 tokens of 320 KiB.
BLOCK = 16 * 320 * KIB
H100 = accelerator("h100-sxm")


@pytest.mark.parametrize("name", ["vllm", "sglang", "tensorrt-llm", "llama.cpp", "transformers"])
def test_an_80_gb_card_with_a_7b_model_holds_a_handful_of_long_requests(name: str) -> None:
    # 32 layers × 2 × 8 heads × 128 × 2 B = 128 KiB a token: 64K tokens are 8 GiB, beside about 14 GB of weights.
    model = replace(load(MISTRAL), context_limit=64 * KIB)
    plan = make_plan(model, Deployment(gpu=H100, context=64 * KIB, engine=name))
    assert plan.request_bytes == (8 * GIB,)
    assert plan.requests is not None
    assert 4 <= plan.requests.low <= plan.requests.high <= 8
    assert plan.binding.kind == "cache"


def test_ten_users_at_32k_on_llama_70b_need_100_gib() -> None:
    # 80 layers × 2 × 8 heads × 128 × 2 B = 320 KiB a token, 10 GiB a request; vLLM keeps a block of 5 MiB back.
    model = load(LLAMA)
    need = resident_bytes(model, 32 * KIB, model.resolve_format(), batch=10)
    assert need == 100 * GIB
    asked = Deployment(gpu=H100, context=32 * KIB, kv_bytes=need + BLOCK, engine="vllm")
    assert make_plan(model, asked, 10).fits
    assert make_plan(model, replace(asked, engine="sglang", kv_bytes=need), 10).fits
    assert not make_plan(model, replace(asked, kv_bytes=need), 10).fits
    assert not make_plan(model, replace(asked, kv_bytes=99 * GIB), 10).fits
    # Split over four GPUs a request takes 2.5 GiB of each.
    assert make_plan(model, replace(asked, tp=4, kv_bytes=25 * GIB + BLOCK // 4), 10).fits
    assert make_plan(model, replace(asked, tp=4, kv_bytes=25 * GIB)).request_bytes == (GIB * 5 // 2,)


def test_one_mha_conversation_of_128k_is_more_than_four_80_gb_accelerators() -> None:
    # 64 query heads instead of 8 KV heads: 2.5 MiB a token, 320 GiB for 131,072.
    model = variant(load(LLAMA), "mha")
    need = resident_bytes(model, 128 * KIB, model.resolve_format())
    assert need == 320 * GIB
    assert need > 4 * 80 * GB
    plan = make_plan(model, Deployment(gpu=H100, context=128 * KIB, tp=4, kv_bytes=80 * GB, engine="vllm"))
    assert not plan.fits
    assert plan.binding.kind == "cache"
    # With 8 KV heads it is 40 GiB, 10 on each of four ranks, and one block more.
    assert make_plan(load(LLAMA), Deployment(gpu=H100, context=128 * KIB, tp=4, kv_bytes=11 * GIB, engine="vllm")).fits


@pytest.mark.parametrize(("users", "context"), [(4, 81_920), (8, 40_960), (16, 20_480), (64, 5120), (320, 1024)])
def test_users_times_context_is_one_number(users: int, context: int) -> None:
    # 100 GiB / 320 KiB = 327,680 tokens, however they are divided into requests, beside vLLM's null block.
    asked = Deployment(gpu=H100, context=context, kv_bytes=100 * GIB + BLOCK, engine="vllm")
    assert users * context == 327_680
    assert longest_context(load(LLAMA), asked, users).low == context
    assert make_plan(load(LLAMA), asked, users).fits
    assert not make_plan(load(LLAMA), asked, users + 1).fits
