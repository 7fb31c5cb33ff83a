"""Which GPUs for so many users: agrees with the plan, leaves out what cannot hold the weights, in order of price."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from kvcore.deployment import Deployment
from kvcore.errors import EngineError, UnitError
from kvcore.hardware.gpus import accelerator
from kvcore.planning.answers import COUNTS, recommend
from kvcore.planning.plan import make_plan
from kvcore.planning.splits import shards
from tests.models import model

LLAMA = model("meta-llama/Llama-3.3-70B-Instruct")


def test_every_answer_is_a_plan_that_fits() -> None:
    found = recommend(LLAMA, context=32_768, users=10)
    assert len(found) > 20
    for one in found:
        plan = make_plan(LLAMA, one.deployment, 10)
        assert plan.fits, one.sentence
        assert plan.requests == one.requests
        assert one.deployment.gpu == one.gpu


def test_weights_that_do_not_fit_rule_a_gpu_out() -> None:
    """141 × 10⁹ B of weights and ten requests of 10 GiB: 16 cards of 12 GiB are less than either."""
    found = {one.gpu.id: one for one in recommend(LLAMA, context=32_768, users=10)}
    assert "rtx-3060-12gb" not in found
    # 239.5 GiB of weights and caches and 4 × 79.6 GiB: two H100s are too few, four suffice.
    assert found["h100-sxm"].gpus == 4


@pytest.mark.parametrize("gpu_id", ["h100-sxm", "rtx-4090", "mi300x"])
@pytest.mark.parametrize(
    ("name", "engine"),
    [
        ("meta-llama/Llama-3.3-70B-Instruct", "vllm"),
        ("google/gemma-3-27b-it", "vllm"),
        ("google/gemma-3-27b-it", "llama.cpp"),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", "vllm"),
        ("deepseek-ai/DeepSeek-V3.2", "vllm"),
        ("deepseek-ai/DeepSeek-V3", "sglang"),
    ],
)
def test_no_fewer_of_the_same_gpu_suffice(name: str, engine: str, gpu_id: str) -> None:
    """Every valid split of every number is planned: none of a smaller number fits, and where none fits none is given.

    The bounds that spare most plans must hold for windows, hybrids and indexers too.
    """
    gpu, one_model = accelerator(gpu_id), model(name)
    found = recommend(one_model, context=16_384, users=8, engine=engine, gpus=[gpu])
    below = found[0].gpus if found else max(COUNTS) + 1
    for count in (count for count in COUNTS if count < below):
        for shard in shards(one_model, engine, count):
            if not shard.refused:
                tried = shard.onto(Deployment(gpu=gpu, context=16_384, engine=engine))
                assert not make_plan(one_model, tried, 8).fits, shard


def test_the_split_is_the_first_that_holds_nearly_as_much_as_any() -> None:
    """In the order of splits that is tensor parallel before pipelines."""
    gpu = accelerator("h200-sxm")
    (one,) = recommend(LLAMA, context=32_768, users=4, gpus=[gpu])
    held = {}
    for shard in shards(LLAMA, "vllm", one.gpus):
        plan = make_plan(LLAMA, shard.onto(Deployment(gpu=gpu, context=32_768, engine="vllm")), 4)
        if plan.fits and plan.requests is not None:
            held[plan.deployment] = plan.requests.low
    first = next(deployment for deployment, low in held.items() if low >= 0.9 * max(held.values()))
    assert one.deployment == first
    assert one.requests.low == held[first]


def test_what_is_chosen_besides_is_kept() -> None:
    gpu = accelerator("h100-sxm")
    base = Deployment(gpu=gpu, context=1, kv_dtype="fp8", weight_format="fp8", utilization=0.8, engine="vllm")
    (one,) = recommend(LLAMA, context=32_768, users=4, base=base, gpus=[gpu])
    assert (one.deployment.kv_dtype, one.deployment.weight_format, one.deployment.utilization) == ("fp8", "fp8", 0.8)
    assert one.deployment.context == 32_768
    (sixteen,) = recommend(LLAMA, context=32_768, users=4, gpus=[gpu])
    assert one.gpus <= sixteen.gpus


def test_more_users_never_need_fewer_gpus() -> None:
    gpu = accelerator("h100-sxm")
    needed = [recommend(LLAMA, context=8192, users=users, gpus=[gpu])[0].gpus for users in (1, 10, 50, 100, 200)]
    assert needed == sorted(needed)


def test_priced_gpus_come_first_then_the_fewest() -> None:
    found = recommend(LLAMA, context=32_768, users=10)
    keys = [(one.usd_per_hour is None, one.usd_per_hour.typical if one.usd_per_hour else one.gpus) for one in found]
    assert all(first <= second for first, second in pairwise(keys))


def test_an_engine_is_only_offered_what_it_runs_on() -> None:
    vendors = {one.gpu.vendor for one in recommend(model("Qwen/Qwen3-8B"), context=4096, users=1,
                                                   engine="tensorrt-llm")}  # fmt: skip
    assert vendors == {"NVIDIA"}
    macs = {one.gpu.vendor for one in recommend(model("Qwen/Qwen3-8B"), context=4096, users=1, engine="llama.cpp")}
    assert "Apple" in macs
    assert recommend(model("deepseek-ai/DeepSeek-V3"), context=4096, users=1, engine="sglang")


def test_a_pool_that_was_stated_is_that_of_another_gpu() -> None:
    gpu = accelerator("h100-sxm")
    stated = replace(Deployment(gpu=gpu, context=32_768, engine="vllm"), kv_bytes=2**40)
    (one,) = recommend(LLAMA, context=32_768, users=1, base=stated, gpus=[gpu])
    assert one.deployment.kv_bytes is None
    assert one.gpus > 1


def test_nothing_fits_and_what_cannot_be_asked() -> None:
    assert recommend(LLAMA, context=131_072, users=10_000) == ()
    assert recommend(LLAMA, context=1024, users=1, gpus=[]) == ()
    # Its limit is 131,072 tokens.
    assert recommend(LLAMA, context=131_073, users=1) == ()
    with pytest.raises(UnitError, match="users"):
        recommend(LLAMA, context=1024, users=0)
    with pytest.raises(EngineError, match="not known"):
        recommend(LLAMA, context=1024, users=1, engine="tgi")
