"""Bringing a request back from host memory against computing it again, by hand arithmetic."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvcore.deployment import Deployment
from kvcore.errors import EngineError, UnitError
from kvcore.hardware.gpus import accelerator
from kvcore.planning.offload import host_memory_text, offload
from kvcore.units import GIB
from tests.models import model

LLAMA = model("meta-llama/Llama-3.3-70B-Instruct")
FOUR_H100 = Deployment(gpu=accelerator("h100-sxm"), context=32_768, tp=4, engine="vllm")


def test_a_request_of_32k_comes_back_over_pcie_5_much_faster_than_it_is_computed() -> None:
    """10 GiB on four ranks: 2.5 GiB each over 52.8 × 10⁹ B/s; a prefill is 5.89 × 10¹⁵ operations of four H100s."""
    found = offload(LLAMA, FOUR_H100)
    assert found.rank_bytes == 10 * GIB // 4
    assert found.request_bytes == 10 * GIB
    assert found.gpus == 4
    assert found.link.id == "pcie5-x16"
    assert found.back_seconds == pytest.approx(2.5 * GIB / 52.8e9)
    matrices = 2 * (68.452e9 * 32_768 + 1.0507e9)
    attention = 80 * 2 * 64 * 256 * (32_768 * 32_769 // 2)
    seconds = (matrices + attention) / (4 * 989.5e12)
    assert found.recompute is not None
    assert found.recompute.seconds_at_least == pytest.approx(seconds, rel=1e-3)
    assert found.times_faster_at_least == pytest.approx(seconds / (2.5 * GIB / 52.8e9), rel=1e-3)
    assert found.sentence == (
        "Bringing 32,768 tokens back over PCIe 5.0 x16 takes 50.8 ms; computing them again takes at least 1.49 s, "
        "at least 29.3 times as long."
    )


def test_the_bound_stays_a_bound_and_an_assumed_share_is_labelled() -> None:
    bare, assumed = offload(LLAMA, FOUR_H100), offload(LLAMA, FOUR_H100, efficiency=0.5)
    assert bare.recompute_seconds is None
    assert bare.recompute is not None
    assert assumed.recompute_seconds == pytest.approx(2 * bare.recompute.seconds_at_least)
    assert any("assumed" in term.name and term.knowledge == "estimated" for term in assumed.terms)
    assert not any("assumed" in term.name for term in bare.terms)


def test_idle_requests_in_host_memory() -> None:
    found = offload(LLAMA, FOUR_H100)
    assert found.idle_requests(64 * GIB) == 6
    assert found.idle_requests(10 * GIB) == 1
    assert found.idle_requests(10 * GIB - 1) == 0
    assert host_memory_text(found, 64 * GIB) == "64 GiB of host memory hold 6 idle requests of 32,768 tokens."
    with pytest.raises(UnitError, match="less than none"):
        found.idle_requests(-1)


def test_the_pool_on_the_gpu_does_not_grow() -> None:
    """sglang issue 11698: hierarchical caching does not raise max_total_num_tokens."""
    assert "does not enlarge the pool on the GPU" in offload(LLAMA, FOUR_H100).pool_sentence


def test_a_latent_is_on_every_rank_and_so_it_crosses_every_link() -> None:
    """DeepSeek-V3: 61 layers × 576 × 2 B = 70,272 B a token on each of 8 ranks; 8192 tokens are 512 blocks."""
    v3 = model("deepseek-ai/DeepSeek-V3")
    found = offload(v3, Deployment(gpu=accelerator("h200-sxm"), context=8192, tp=8, engine="sglang"))
    assert found.rank_bytes == 8192 * 70_272
    assert found.request_bytes == 8 * 8192 * 70_272


def test_an_fp8_checkpoint_is_multiplied_in_fp8() -> None:
    sixteen = offload(LLAMA, FOUR_H100).recompute
    eight = offload(LLAMA, replace(FOUR_H100, weight_format="fp8")).recompute
    four = offload(LLAMA, replace(FOUR_H100, weight_format="awq")).recompute
    assert sixteen is not None
    assert eight is not None
    assert four is not None
    assert (sixteen.rate_format, eight.rate_format, four.rate_format) == ("bf16", "fp8", "bf16")


def test_a_theoretical_rate_says_so() -> None:
    found = offload(LLAMA, FOUR_H100, host_link="pcie6-x16")
    assert found.link.speed_knowledge == "theoretical"
    assert "in practice more" in found.sentence


def test_a_slow_link_can_lose() -> None:
    """2.5 GiB over 1.25 × 10⁹ B/s take 2.1 s, the prefill on four H100s may take 1.5 s."""
    found = offload(LLAMA, FOUR_H100, host_link="eth-10")
    assert found.back_seconds == pytest.approx(2.5 * GIB / 1.25e9)
    assert found.times_faster_at_least is not None
    assert found.times_faster_at_least < 1
    assert "may be as fast" in found.sentence


def test_what_cannot_be_asked() -> None:
    with pytest.raises(EngineError, match="transformers"):
        offload(LLAMA, replace(FOUR_H100, engine="transformers", tp=1))
    with pytest.raises(EngineError, match="shares its memory"):
        offload(LLAMA, replace(FOUR_H100, gpu=accelerator("dgx-spark-gb10"), tp=1))
    with pytest.raises(UnitError, match="efficiency"):
        offload(LLAMA, FOUR_H100, efficiency=1.5)
    with pytest.raises(UnitError, match="tokens"):
        offload(LLAMA, FOUR_H100, -1)


def test_a_model_of_unknown_shape_has_no_bound() -> None:
    found = offload(replace(LLAMA, weights=(), checkpoint_bytes=None), FOUR_H100)
    assert found.recompute is None
    assert found.times_faster_at_least is None
    assert "not known" in found.sentence
