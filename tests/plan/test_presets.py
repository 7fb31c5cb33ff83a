"""Latency against throughput on a pool that is stated, by hand arithmetic."""

from __future__ import annotations

from dataclasses import replace
from math import erf, sqrt

import pytest

from kvcore.deployment import Deployment
from kvcore.errors import PlanError
from kvcore.hardware.gpus import accelerator
from kvcore.planning.people import KINDS, Traffic, preset, presets
from kvcore.units import GIB
from tests.models import model

LLAMA = model("meta-llama/Llama-3.3-70B-Instruct")
TOKEN = 81_920
# 30 GiB, and the block that vLLM never hands out.
STATED = 30 * GIB + 16 * TOKEN
FOUR_H100 = Deployment(gpu=accelerator("h100-sxm"), context=32_768, tp=4, kv_bytes=STATED, engine="vllm")
CHAT = Traffic(prompt_tokens=4096, answer_tokens=1024)


def test_each_lets_in_more_than_the_one_before() -> None:
    """12 at 32K, 76 of 5,120 tokens, and 84 of 4,608 beside a chunk of 4,096 (test_traffic.py)."""
    latency, balanced, throughput = presets(LLAMA, FOUR_H100, CHAT)
    assert (latency.requests, balanced.requests, throughput.requests) == (12, 76, 84)
    assert latency.oversubscription == 1.0
    assert balanced.oversubscription == pytest.approx(76 / 12)
    assert throughput.oversubscription == pytest.approx(7.0)
    assert [one.deployment.max_num_seqs for one in (latency, balanced, throughput)] == [12, 76, 84]
    assert latency.deployment.max_num_batched_tokens == 2048
    assert balanced.deployment.max_num_batched_tokens is None
    assert throughput.deployment.max_num_batched_tokens == 16_384


def test_they_show_the_trade() -> None:
    latency, balanced, throughput = presets(LLAMA, FOUR_H100, CHAT)
    assert "stay resident and batches are small" in latency.trade
    assert "computed again as they resume" in throughput.trade
    assert "nothing is ever evicted" in latency.sentence
    assert "while requests stay within their expected length" in balanced.sentence
    assert "evicted request costs at least" in throughput.sentence


def test_how_often_the_pool_is_full() -> None:
    """84 requests, each uniform over 4,096 … 5,120 tokens: mean 84 × 4,608, deviation √84 × 1,024 / √12."""
    latency, balanced, throughput = presets(LLAMA, FOUR_H100, CHAT)
    assert latency.full_chance == 0
    assert balanced.full_chance == pytest.approx(0, abs=1e-6)
    room = STATED / TOKEN - 4096
    deviation = sqrt(84) * 1024 / sqrt(12)
    chance = 0.5 * (1 - erf((room - 84 * 4608) / deviation / sqrt(2)))
    assert throughput.full_chance == pytest.approx(chance, abs=1e-9)
    assert 0 < chance < 0.5


def test_a_token_takes_the_weights_and_the_caches_of_the_batch() -> None:
    """On one of 4 ranks: 69.5 × 10⁹ parameters (the embedding is looked up) of 2 B / 4, and 84 × 4,608 tokens."""
    latency, _, throughput = presets(LLAMA, FOUR_H100, CHAT)
    for found in (latency, throughput):
        read = (70_553_698_304 - 1_050_673_152) * 2 / 4 + found.requests * 4608 * TOKEN
        assert found.step is not None
        assert found.step.seconds_at_least == pytest.approx(read / 3.35e12, rel=2e-3)
        assert found.tokens_per_s_at_most == pytest.approx(found.requests / found.step.seconds_at_least)
    assert throughput.again is not None
    # 4,608 tokens × 2 × 68.45 × 10⁹ on four H100s, and a little attention.
    assert throughput.again.seconds_at_least == pytest.approx(4608 * 2 * 68.45e9 / (4 * 989.5e12), rel=0.06)


def test_replicas_share_the_requests() -> None:
    found = preset(LLAMA, replace(FOUR_H100, dp=2), CHAT, "balanced")
    assert found.requests == 152
    assert found.deployment.max_num_seqs == 76
    one = preset(LLAMA, FOUR_H100, CHAT, "balanced")
    assert found.step is not None
    assert one.step is not None
    assert found.step.seconds_at_least == pytest.approx(one.step.seconds_at_least)


def test_no_more_requests_than_the_engine_runs_unless_told() -> None:
    """30 GiB hold 12,288 requests of two blocks; vLLM runs 1,024 on a GPU of 80 GB, and no more than tokens a step."""
    short = Traffic(prompt_tokens=16, answer_tokens=16)
    assert preset(LLAMA, replace(FOUR_H100, context=32), short, "latency").requests == 1024
    few = replace(FOUR_H100, context=32, max_num_batched_tokens=512)
    assert preset(LLAMA, few, short, "latency").requests == 512


def test_what_was_chosen_by_hand_stays() -> None:
    chosen = replace(FOUR_H100, kv_bytes=None, utilization=0.8, max_num_batched_tokens=4096)
    found = preset(LLAMA, chosen, CHAT, "throughput").deployment
    assert found.utilization == 0.8
    assert found.max_num_batched_tokens == 4096
    assert preset(LLAMA, replace(chosen, utilization=None), CHAT, "throughput").deployment.utilization == 0.95


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llama.cpp"])
def test_a_preset_is_the_same_whichever_was_taken_before(engine: str) -> None:
    """Also after one that was taken arrived in a link, and after two of them."""
    tp, pp = (1, 8) if engine == "llama.cpp" else (8, 1)
    start = Deployment(gpu=accelerator("h100-sxm"), context=32_768, tp=tp, pp=pp, engine=engine)
    fresh = [one.deployment for one in presets(LLAMA, start, CHAT)]
    for taken in fresh:
        assert [one.deployment for one in presets(LLAMA, taken, CHAT)] == fresh
        assert not preset(LLAMA, taken, CHAT, KINDS[fresh.index(taken)]).changes
    if engine == "vllm":
        assert (fresh[0].utilization, fresh[0].max_num_batched_tokens) == (None, 2048)
        assert (fresh[2].utilization, fresh[2].max_num_batched_tokens) == (0.95, 16_384)
        back = preset(LLAMA, fresh[2], CHAT, "latency").changes
        assert "tokens a step: 2,048" in back
        assert "share of the memory: the engine's own" in back


def test_each_counts_its_requests_at_a_length_of_its_own() -> None:
    """The longest, 4,096 + 1,024, and 4,096 + 1,024 / 2."""
    assert [one.tokens for one in presets(LLAMA, FOUR_H100, CHAT)] == [32_768, 5120, 4608]


def test_slots_of_llama_cpp_are_never_evicted() -> None:
    one = replace(FOUR_H100, engine="llama.cpp", tp=1)
    for found in presets(LLAMA, one, CHAT):
        assert found.requests == 3
        assert found.full_chance == 0
        assert found.deployment.max_num_batched_tokens is None


def test_what_does_not_fit_has_no_preset() -> None:
    with pytest.raises(PlanError, match="not even one"):
        preset(LLAMA, replace(FOUR_H100, kv_bytes=GIB // 10), CHAT, "latency")
    with pytest.raises(PlanError, match="known are"):
        preset(LLAMA, FOUR_H100, CHAT, "fast")  # type: ignore[arg-type]
