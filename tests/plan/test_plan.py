"""A plan against hand arithmetic."""

from __future__ import annotations

from dataclasses import replace

from kvcore.catalogue import load
from kvcore.hardware import accelerator
from kvcore.plan.deployment import Deployment
from kvcore.plan.plan import make_plan
from kvcore.units import GIB, KIB

LLAMA = "meta-llama/Llama-3.3-70B-Instruct"


def stated(kv_bytes: int, **changes: object) -> Deployment:
    plain = Deployment(gpu=accelerator("h100-sxm"), context=32 * KIB, kv_bytes=kv_bytes)
    return replace(plain, **changes)  # type: ignore[arg-type]


def test_vllm_holds_what_the_pool_divided_by_a_request_says() -> None:
    # 320 KiB a token × 32,768 = 10 GiB a request.
    plan = make_plan(load(LLAMA), stated(100 * GIB), 10)
    assert plan.concurrency is not None
    assert plan.requests is not None
    assert plan.concurrency.low == 10
    assert plan.requests.low == 10
    assert plan.fits
    assert not make_plan(load(LLAMA), stated(100 * GIB), 11).fits


def test_vllm_does_not_start_without_a_block_to_spare() -> None:
    # One block of 16 tokens is 5 MiB, and one is never handed out.
    assert not make_plan(load(LLAMA), stated(10 * GIB)).fits
    assert make_plan(load(LLAMA), stated(10 * GIB + 16 * 320 * KIB)).fits
