"""What is left for the cache, by each engine's rule, against hand arithmetic with known weights and overheads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kvcore.deployment import Deployment
from kvcore.engines.overheads import Estimate, added
from kvcore.engines.registry import engine, engine_names
from kvcore.engines.vllm.settings import default_utilization
from kvcore.errors import PlanError
from kvcore.hardware.gpus import accelerator
from kvcore.planning.pools import loaded_weights, pools, usable_share
from kvcore.ranks.weights import RankWeights
from kvcore.sources.catalogue import entries, load
from kvcore.terms import Range
from kvcore.units import GIB
from tests.models import rank_weights

MISTRAL = "mistralai/Mistral-7B-Instruct-v0.3"
GPU = replace(accelerator("h100-sxm"), reported_bytes=80 * GIB)
WEIGHTS = (RankWeights(stage=0, bytes=14 * GIB, knowledge="exact", parts=(), formula="14 GiB"),)
RANGE = Range(low=GIB, best=2 * GIB, high=4 * GIB)


@pytest.fixture(autouse=True)
def known_overheads(monkeypatch: pytest.MonkeyPatch) -> None:
    part = Estimate(name="activations", gib=Range(low=1.0, best=2.0, high=4.0), formula="by hand")
    made = added((part,), notes=("by hand",))
    for name in engine_names():
        monkeypatch.setattr(type(engine(name)), "overheads", lambda *_: made)


def plain(name: str = "vllm", **changes: Any) -> Deployment:
    return replace(Deployment(gpu=GPU, context=8192, engine=name), **changes)


def left(deployment: Deployment) -> Range[int]:
    (pool,) = pools(load(MISTRAL), deployment, loaded=WEIGHTS)
    return pool.kv_bytes


def test_vllm_takes_its_share_of_the_total_less_all_that_is_used() -> None:
    # 80 × 0.92 = 73.6 GiB, − 14 − 4 / 2 / 1.
    kv = left(plain())
    assert [round(size / GIB, 6) for size in (kv.low, kv.best, kv.high)] == [55.6, 57.6, 58.6]


def test_vllm_rounds_its_share_up() -> None:
    # 1,000 of 85,899,345,920 B: 0.92 × 85,899,345,920 = 79,027,398,246.4, which torch is asked for in whole bytes.
    assert left(plain()).high == 79_027_398_247 - 15 * GIB


def test_older_versions_took_nine_tenths() -> None:
    assert default_utilization("0.19.1") == 0.9
    assert default_utilization("v0.20.0") == 0.92
    assert default_utilization(None) == 0.92
    assert left(plain(engine_version="0.10.1")).low == 72 * GIB - 18 * GIB


def test_a_stated_share_is_taken() -> None:
    assert left(plain(utilization=0.5)).low == (40 - 14 - 4) * GIB


def test_sglang_keeps_what_lies_outside_its_share() -> None:
    # Half of 80 GiB holds weights and pools; what is used before the pools are made goes off it.
    assert left(plain("sglang", utilization=0.5)).low == (40 - 14 - 4) * GIB


def test_sglang_chooses_its_share_by_the_gpu() -> None:
    # Of an 80 GiB GPU it keeps at least 10 GiB (memory_hook.py); the rule itself is tested with the engine.
    assert usable_share(load(MISTRAL), plain("sglang")) < 70 / 80


def test_tensorrt_llm_takes_a_share_of_what_is_free() -> None:
    # 80 − 14 − 4 = 62 GiB free, of which 0.9 is 55.8.
    assert left(plain("tensorrt-llm")).low == int(62 * GIB * 9 // 10)
    assert left(plain("tensorrt-llm", utilization=0.5)).low == 31 * GIB


@pytest.mark.parametrize("name", ["llama.cpp", "ollama", "transformers"])
def test_engines_without_a_share_leave_all_that_remains(name: str) -> None:
    assert left(plain(name)) == Range(low=62 * GIB, best=64 * GIB, high=65 * GIB)


def test_nothing_left_is_negative_and_whole() -> None:
    assert left(plain("tensorrt-llm", gpu=replace(GPU, reported_bytes=15 * GIB))).low == -3 * GIB


def test_a_stated_pool_is_that_pool_without_an_estimate() -> None:
    (pool,) = pools(load("RWKV/rwkv-4-7b-pile"), plain(kv_bytes=7 * GIB))
    assert pool.kv_bytes == Range.exactly(7 * GIB)
    assert not pool.overheads.parts


def test_unknown_weights_are_said_to_be_unknown() -> None:
    with pytest.raises(PlanError, match="not known"):
        pools(load("RWKV/rwkv-4-7b-pile"), plain())


def test_one_pool_for_each_stage_counts_its_gpus_over_all_replicas() -> None:
    found = pools(load(MISTRAL), plain(tp=2, pp=2, dp=3))
    assert [(pool.stage, pool.gpus) for pool in found] == [(0, 6), (1, 6)]


def test_terms_are_the_sum_with_its_numbers() -> None:
    (pool,) = pools(load(MISTRAL), plain(), loaded=WEIGHTS)
    names = [term.name for term in pool.terms]
    assert names == ["share of the GPU", "weights", "activations", "left for the cache"]
    assert pool.terms[-1].value == pool.kv_bytes.low
    assert f"{pool.usable_bytes:,} − {14 * GIB:,} − {4 * GIB:,} B = {pool.kv_bytes.low:,} B" in pool.terms[-1].formula


@pytest.mark.parametrize("name", ["vllm", "sglang", "tensorrt-llm", "llama.cpp", "transformers"])
@pytest.mark.parametrize("model_id", [entry.model_id for entry in entries()][::20])
def test_weights_depend_on_neither_the_size_of_the_gpu_nor_the_context(name: str, model_id: str) -> None:
    # Plans keep them for all GPUs and contexts.
    model = load(model_id)
    for gpu in ("t4", "mi300x", "apple-m4-max-128"):
        deployment = plain(name, gpu=accelerator(gpu), context=99, utilization=0.4)
        assert loaded_weights(model, deployment) == rank_weights(model, deployment)


@pytest.mark.parametrize(
    ("gpu", "gib"), [("h100-sxm", 32.922), ("h200-sxm", 32.922), ("b200", 34.267), ("a100-sxm-80gb", 34.267)]
)
def test_experts_are_padded_for_the_kernels_of_the_gpu(gpu: str, gib: float) -> None:
    # 2,880 wide, over two ranks 1,440: 64s of Triton's kernels on a Hopper make 1,472, 128s and 256s 1,536.
    deployment = Deployment(gpu=accelerator(gpu), context=32_768, tp=2, engine="vllm")
    model = load("openai/gpt-oss-120b")
    (weights,) = loaded_weights(model, deployment)
    assert weights.bytes / GIB == pytest.approx(gib, abs=0.001)
    assert (weights,) == rank_weights(model, deployment)
    assert pools(model, deployment)[0].weights_bytes == weights.bytes
