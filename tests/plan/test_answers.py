"""A plan asked backwards."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kvcore.deployment import Deployment
from kvcore.hardware.gpus import accelerator
from kvcore.planning.answers import (
    fewest_gpus,
    first_split,
    fits,
    gpu_counts,
    least_utilization,
    longest_context,
    most_users,
)
from kvcore.planning.plan import last_that_holds, make_plan
from kvcore.planning.splits import shards
from kvcore.sources.catalogue import load
from kvcore.terms import Range
from kvcore.units import GIB, KIB, MIB

LLAMA = "meta-llama/Llama-3.3-70B-Instruct"
MISTRAL = "mistralai/Mistral-7B-Instruct-v0.3"


def plain(**changes: Any) -> Deployment:
    return replace(Deployment(gpu=accelerator("h100-sxm"), context=32 * KIB, engine="vllm"), **changes)


def test_most_users_is_the_pool_over_a_request() -> None:
    # 320 KiB a token: 100 GiB hold 327,680 tokens, 40 requests of 8,192; vLLM never hands out one block of 16.
    assert most_users(load(LLAMA), plain(kv_bytes=100 * GIB), 8192) == Range.exactly(39)
    assert most_users(load(LLAMA), plain(kv_bytes=100 * GIB + 5 * MIB), 8192) == Range.exactly(40)


def test_most_users_of_a_context_beyond_the_limit_is_none() -> None:
    assert most_users(load(LLAMA), plain(kv_bytes=100 * GIB), 128 * KIB + 1) == Range.exactly(0)


@pytest.mark.parametrize("users", [3, 7, 10, 64, 500])
def test_the_longest_context_fits_and_one_block_more_does_not(users: int) -> None:
    # 20,480 blocks of 16 tokens, one never handed out: users × ceil(context / 16) of the others.
    deployment = plain(kv_bytes=100 * GIB)
    expected = 20_479 // users * 16
    assert longest_context(load(LLAMA), deployment, users).low == expected
    assert fits(load(LLAMA), replace(deployment, context=expected), users)
    assert not fits(load(LLAMA), replace(deployment, context=expected + 1), users)


def test_one_request_is_as_long_as_the_model_takes() -> None:
    assert longest_context(load(LLAMA), plain(kv_bytes=100 * GIB), 1).low == 128 * KIB


def test_no_context_fits_more_users_than_the_engine_allows() -> None:
    # vLLM: max_num_seqs 1,024 on an H100.
    assert longest_context(load(LLAMA), plain(kv_bytes=100 * GIB), 1024).low > 0
    assert longest_context(load(LLAMA), plain(kv_bytes=100 * GIB), 1025).low == 0


@pytest.mark.parametrize("name", ["vllm", "sglang", "tensorrt-llm"])
def test_fewest_gpus_fits_and_no_fewer_of_them_do(name: str) -> None:
    model, asked = load(LLAMA), plain(engine=name)
    found = fewest_gpus(model, asked, 10)
    assert found is not None
    # 141 GB of weights need two GPUs of 80 GB at least, and 100 GiB of cache two more.
    assert found.gpus >= 4
    assert make_plan(model, found, 10).fits
    for count in range(1, found.gpus):
        for shard in shards(model, name, count):
            assert shard.refused or not make_plan(model, shard.onto(asked), 10).fits


def test_the_fewest_gpus_need_not_be_a_power_of_two() -> None:
    """30 requests of 10 GiB at 128K do not fit two hosts of H100s and fit three: eight ranks by three stages."""
    model, asked = load(LLAMA), plain(context=128 * KIB)
    found = fewest_gpus(model, asked, 30)
    assert found is not None
    assert found.gpus == 24
    assert make_plan(model, found, 30).fits
    assert make_plan(model, replace(asked, tp=8, pp=3), 30).fits
    for shard in shards(model, "vllm", 16):
        assert shard.refused or not make_plan(model, shard.onto(asked), 30).fits


def test_numbers_of_gpus_are_those_of_a_host_and_then_whole_hosts() -> None:
    assert gpu_counts(16) == (1, 2, 3, 4, 5, 6, 7, 8, 16)
    assert gpu_counts(3) == (1, 2, 3)
    assert [count for count in gpu_counts(1024) if count > 8] == [*range(16, 129, 8), *range(256, 1025, 128)]


def test_the_first_split_is_the_one_in_which_the_users_fit() -> None:
    """A pool of 10 GiB on each of 8 GPUs, requests of 10 GiB in all: 8 at TP 8, less one block; 7 in all at most.

    At TP 4 a request takes 2.5 GiB of each: 3 on each of 2 replicas.
    """
    one = plain(kv_bytes=10 * GIB)
    eight, four = replace(one, tp=8), replace(one, tp=4, dp=2)
    model = load(LLAMA)
    assert first_split(model, [four, eight], 7) == eight
    assert first_split(model, [four, eight], 6) == four
    # Nobody holds a hundred: the first that starts, though another holds more.
    assert first_split(model, [four, eight], 100) == four
    short = replace(four, kv_bytes=1)
    assert first_split(model, [short, eight], 100) == eight
    assert first_split(model, [short], 100) == short


def test_fewest_gpus_of_layers_on_each_gpu() -> None:
    found = fewest_gpus(load(MISTRAL), plain(engine="llama.cpp"), 4)
    assert found is not None
    assert found.gpus == 1


def test_no_number_of_gpus_fits_a_context_beyond_the_limit() -> None:
    assert fewest_gpus(load(MISTRAL), plain(context=32 * KIB + 1), 1) is None


def test_replicas_of_the_own_split() -> None:
    # 10 GiB requests on 4 × 12 GiB: each replica of 4 ranks holds 4 × 12 / 10 = 4.8, so 4; 10 users need 3 replicas.
    found = fewest_gpus(load(LLAMA), plain(tp=4, kv_bytes=12 * GIB), 10, engine_splits=False)
    assert found is not None
    assert (found.tp, found.dp) == (4, 3)


@pytest.mark.parametrize("name", ["vllm", "sglang", "tensorrt-llm"])
def test_least_utilization_fits_and_a_hundredth_less_does_not(name: str) -> None:
    model, asked = load(MISTRAL), plain(engine=name)
    share = least_utilization(model, asked, 5)
    assert share is not None
    assert make_plan(model, replace(asked, utilization=share), 5).fits
    assert not make_plan(model, replace(asked, utilization=round(share - 0.01, 2)), 5).fits


def test_no_share_to_choose() -> None:
    model = load(MISTRAL)
    assert least_utilization(model, plain(engine="llama.cpp"), 1) is None
    assert least_utilization(model, plain(kv_bytes=GIB), 1) is None
    assert least_utilization(model, plain(), 10_000) is None


@pytest.mark.parametrize("guess", [-5, 0, 1, 39, 40, 41, 999, 5000])
@pytest.mark.parametrize("truth", [0, 1, 39, 40, 41, 998, 999])
def test_a_search_finds_the_last_that_holds_whatever_the_guess(truth: int, guess: int) -> None:
    assert last_that_holds(lambda context: context <= truth, 0, 999, lambda: guess) == truth
