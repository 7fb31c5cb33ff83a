"""One change each: gains by hand arithmetic, a price for every one, and nothing that gains nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvcore.deployment import Deployment
from kvcore.hardware.gpus import accelerator
from kvcore.model.model import Model
from kvcore.planning.changes import cache_quality, larger_gpus, replicas, splits
from kvcore.planning.people import Traffic
from kvcore.planning.plan import Plan, make_plan
from kvcore.planning.whatif import LEAST_GAIN, WhatIf, whatifs
from kvcore.units import GIB
from tests.models import model

LLAMA = model("meta-llama/Llama-3.3-70B-Instruct")
V3 = model("deepseek-ai/DeepSeek-V3")
FOUR_H100 = Deployment(gpu=accelerator("h100-sxm"), context=32_768, tp=4, engine="vllm")
# 30 GiB a GPU: 12 requests of 2.5 GiB, and the block of 16 × 80 KiB that vLLM never hands out.
STATED = replace(FOUR_H100, kv_bytes=30 * GIB + 16 * 81_920)


def by_name(model: Model, deployment: Deployment, traffic: Traffic | None = None) -> dict[str, WhatIf]:
    return {one.name: one for one in whatifs(model, deployment, traffic=traffic)}


def test_formats_and_lengths_in_a_stated_pool() -> None:
    """Half the bytes and half the tokens are twice the requests."""
    found = by_name(LLAMA, STATED)
    for name in ("fp8 cache", "context 16,384", "2 replicas"):
        assert found[name].gain == pytest.approx(2.0)
    assert found["fp8 cache"].gain_words == "12 → 24 requests of 32,768 tokens at once (× 2), at the safe end"
    assert "now of 16,384 tokens" in found["context 16,384"].gain_words
    # The size of the pool was stated: what would change it cannot be told.
    assert {one.kind for one in found.values()} <= {"cache format", "context", "more GPUs", "offload"}


def test_one_request_is_one() -> None:
    """1.5 GiB a GPU hold none of 2.5 GiB, and one of half that size."""
    found = by_name(LLAMA, replace(STATED, kv_bytes=3 * GIB // 2))
    assert found["fp8 cache"].gain_words == "0 → 1 request of 32,768 tokens at once, at the safe end"


@pytest.mark.parametrize("deployment", [FOUR_H100, STATED, replace(FOUR_H100, engine="sglang")])
def test_each_can_be_adopted_and_gains_what_it_says(deployment: Deployment) -> None:
    before = make_plan(LLAMA, deployment)
    found = whatifs(LLAMA, deployment)
    gains = [one.gain for one in found if one.gain is not None]
    assert gains == sorted(gains, reverse=True)
    assert all(gain >= LEAST_GAIN for gain in gains)
    for one in found:
        assert one.price, one.name
        assert one.change, one.name
        if one.kind == "offload":
            assert one.deployment == deployment
            continue
        after = make_plan(LLAMA, one.deployment)
        assert one.deployment != deployment
        assert after == one.plan
        assert not after.refused
        assert after.concurrency is not None
        assert before.concurrency is not None
        assert one.gain == pytest.approx(float(after.concurrency.low / before.concurrency.low))


def test_the_kinds_of_change_that_a_deployment_has() -> None:
    kinds = {one.kind for one in whatifs(LLAMA, FOUR_H100)}
    assert {"cache format", "weight format", "context", "utilization", "GPU", "more GPUs", "offload"} <= kinds


def test_prices_name_what_is_given_up() -> None:
    found = by_name(LLAMA, FOUR_H100)
    assert "AIME 2025" in found["fp8 cache"].price
    assert "refused" in found["context 16,384"].price
    assert "quality" in found["awq weights"].price
    assert "8 × H100 SXM5 80GB instead of 4" in found["2 replicas"].price
    assert not any("× PP" in name for name in found if name.startswith("8 GPUs"))
    assert "Less is left to the system" in found["utilisation 0.95"].price


def test_ranks_that_share_the_tokens_of_a_latent_hold_less() -> None:
    """DeepSeek-V3's latent is on each of 8 ranks; in 8 parts a rank holds an eighth of the tokens."""
    eight = Deployment(gpu=accelerator("h200-sxm"), context=32_768, tp=8, engine="sglang")
    found = by_name(V3, eight)["TP 8 with DCP 8"]
    assert found.gain is not None
    assert 7.5 < found.gain < 8.6
    assert found.deployment.dcp == 8


def test_host_memory_keeps_idle_requests_and_lets_no_more_in() -> None:
    """256 GiB / 10 GiB a request; sglang issue 11698."""
    last = whatifs(LLAMA, FOUR_H100)[-1]
    assert last.kind == "offload"
    assert last.gain is None
    assert "256 GiB of host memory hold 25 idle requests" in last.gain_words
    assert "does not enlarge the pool" in last.gain_words
    assert "50.8 ms" in last.price
    assert last.offload is not None


def test_traffic_caps_the_context_and_shares_a_prefix() -> None:
    """30 GiB: 76 requests of 5,120 tokens; of 3,120 of their own beside one copy of 2,000 tokens 125."""
    traffic = Traffic(prompt_tokens=4096, answer_tokens=1024, shared_prefix_tokens=2000)
    found = by_name(LLAMA, STATED, traffic)
    assert found["context 5,120"].gain == pytest.approx(32_768 / 5120, rel=1e-3)
    assert "expected length" in found["context 5,120"].change
    assert found["shared prefix"].gain == pytest.approx(125 / 76)
    assert found["shared prefix"].gain_words.startswith(
        "76 → 125 requests of 5,120 tokens, the expected length, at once (× 1.64)"
    )
    # The server shares what is the same without being told.
    assert found["shared prefix"].deployment == STATED
    alone = by_name(LLAMA, STATED, replace(traffic, shared_prefix_tokens=0))
    assert "shared prefix" not in alone


def test_a_prefix_is_shared_where_caching_was_switched_off() -> None:
    traffic = Traffic(prompt_tokens=4096, answer_tokens=1024, shared_prefix_tokens=2000)
    found = by_name(LLAMA, replace(STATED, prefix_caching=False), traffic)["shared prefix"]
    assert found.deployment.prefix_caching


def test_more_sequences_where_their_number_binds() -> None:
    """30 GiB hold 384 requests of 1,024 tokens (80 MiB); max_num_seqs 100 lets in 100."""
    found = by_name(LLAMA, replace(STATED, context=1024, max_num_seqs=100))
    more = next(one for one in found.values() if one.kind == "sequences")
    assert more.deployment.max_num_seqs == 384
    assert more.gain == pytest.approx(3.84)
    # A smaller cache gains nothing there.
    assert "fp8 cache" not in found


def test_no_more_sequences_than_can_be_said() -> None:
    """2^43 B hold 26,843,545 requests of one block of 16 × 20 KiB; an address and a command take 1,000,000."""
    deployment = replace(STATED, tp=8, context=16, max_num_seqs=100, max_num_batched_tokens=10**7, kv_bytes=2**43)
    more = next(one for one in whatifs(LLAMA, deployment) if one.kind == "sequences")
    assert more.deployment.max_num_seqs == 1_000_000


def test_from_none_to_some() -> None:
    """131 GiB of weights on one GPU of 80: nothing fits, and what makes room has no factor."""
    for one in whatifs(LLAMA, replace(FOUR_H100, tp=1)):
        assert one.gain is None
        assert one.plan is not None
        assert one.plan.requests is not None
        assert one.plan.requests.low > 0
        assert one.gain_words.startswith("0 → ")


def test_less_memory_for_a_step() -> None:
    """DeepSeek-V3 with SGLang keeps memory by the tokens of a chunk: 1.5 MiB each."""
    eight = Deployment(gpu=accelerator("h200-sxm"), context=32_768, tp=8, engine="sglang")
    found = by_name(V3, eight)
    assert found["2,048 tokens a step"].deployment.max_num_batched_tokens == 2048
    assert "first token comes later" in found["2,048 tokens a step"].price


def test_larger_gpus_are_of_the_same_make() -> None:
    names = [gpu.id for gpu in larger_gpus(accelerator("h100-sxm"), 6)]
    assert "h200-sxm" in names
    assert "b200" in names
    assert all(accelerator(name).vendor == "NVIDIA" and accelerator(name).form.startswith("SXM") for name in names)
    assert larger_gpus(accelerator("mi355x")) == ()


def test_another_engine_comes_with_its_own_defaults() -> None:
    own = replace(FOUR_H100, kv_dtype="fp8", options=(("block_size", 32),), utilization=0.8, max_num_seqs=3)
    other = by_name(LLAMA, own)["sglang"].deployment
    assert other.options == ()
    assert other.utilization is None
    assert other.kv_dtype == "fp8"


def test_published_results_of_a_cache_format() -> None:
    """data/quality.csv: DeepSeek-R1-0528 in fp8, AIME 2025 49.34 against 50.67; gpt-oss-20b q8_0 31.7 against 37.9."""
    assert "This model: AIME 2025 49.34 instead of 50.67 %" in cache_quality("deepseek-ai/DeepSeek-R1-0528", "fp8")
    assert "Qwen3-235B-A22B: AIME 2025 73.33 instead of 77.33 %" in cache_quality("some/other", "fp8")
    # The name of a model is not the beginning of a sentence.
    assert " gpt-oss-20b: AIME 2025 31.7 instead of 37.9 %" in cache_quality("some/other", "q8_0")
    assert cache_quality("some/other", "bf16") == ""


def test_the_price_of_two_formats_says_which_is_for_the_keys() -> None:
    for name in ("turboquant_k8v4", "q8_0/q4_0"):
        keys, _, values = cache_quality("some/other", name).partition("For the values, in 4: ")
        assert keys.startswith("For the keys, in 8 bits: usually small")
        assert values.startswith("small on easy tasks, large on hard ones")
    assert "For the" not in cache_quality("some/other", "turboquant_4bit_nc")


def test_an_increase_against_none_is_said_as_one() -> None:
    said = cache_quality("some/other", "turboquant_k8v4")
    assert "On a model that the source does not name: perplexity 1.17 % higher (" in said
    assert "instead of 0" not in said


@pytest.mark.parametrize(("dp", "doubled"), [(2048, True), (2049, False), (4096, False)])
def test_no_more_gpus_than_can_be_planned(dp: int, doubled: bool) -> None:
    """4,096 GPUs are the most; twice as many as 2,048 are those."""
    deployment = replace(STATED, tp=1, dp=dp)
    assert [one.deployment.gpus for one in replicas(deployment)] == ([4096] if doubled else [])
    assert not list(splits(LLAMA, deployment, 2 * dp)) or doubled
    if not doubled:
        assert "more GPUs" not in {one.kind for one in whatifs(LLAMA, deployment)}


def test_plans_of_changes_are_made_when_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dozens are tried for each answer of a screen, which shows their figures alone."""
    from kvcore.planning import whatif

    made: list[Deployment] = []

    def counted(model: Model, deployment: Deployment, users: int | None = None) -> Plan:
        made.append(deployment)
        return make_plan(model, deployment, users)

    monkeypatch.setattr(whatif, "make_plan", counted)
    asked = Deployment(gpu=accelerator("h100-sxm"), context=12_345, tp=8, engine="vllm")
    found = whatifs(LLAMA, asked, 30)
    assert len(found) > 5
    assert made == [asked]
    first = found[0]
    assert first.plan.requests == first.requests
    assert made == [asked, first.deployment]
