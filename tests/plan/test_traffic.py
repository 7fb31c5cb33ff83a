"""People, requests and lengths, by hand arithmetic on a pool that is stated."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from kvcore.deployment import Deployment
from kvcore.errors import PlanError, UnitError
from kvcore.hardware.gpus import accelerator
from kvcore.planning.people import Traffic, active_requests, expected
from kvcore.units import GIB
from tests.models import model

LLAMA = model("meta-llama/Llama-3.3-70B-Instruct")
# 320 KiB a token over 4 ranks: 80 KiB a token, 1,280 KiB a block of 16.
TOKEN = 81_920
# 30 GiB, and the block that vLLM never hands out.
STATED = 30 * GIB + 16 * TOKEN
FOUR_H100 = Deployment(
    gpu=accelerator("h100-sxm"), context=32_768, tp=4, kv_bytes=STATED, max_num_seqs=4096, engine="vllm"
)
CHAT = Traffic(prompt_tokens=4096, answer_tokens=1024)


def test_lengths_half_way_and_at_the_end() -> None:
    thinking = Traffic(prompt_tokens=1000, thinking_tokens=8000, answer_tokens=500)
    assert thinking.generated_tokens == 8500
    assert thinking.peak_tokens == 9500
    assert thinking.mean_tokens == 1000 + 4250
    assert Traffic(prompt_tokens=0, answer_tokens=1).mean_tokens == 1


def test_a_share_of_the_people_generates() -> None:
    """A tenth of 100 people: 10 at once; a binomial number of mean 10 and deviation 3, at most 18 in 99 of 100."""
    found = active_requests(replace(CHAT, people=100, active_share=0.1))
    assert found.mean == 10
    assert found.nearly_always in (17, 18)
    assert "10 requests at once on average" in found.sentence


def test_littles_law() -> None:
    """60 people ask twice a minute, a request lives 30 s: 60 × 2 / 60 × 30 = 60 requests at once."""
    traffic = replace(CHAT, people=60, requests_per_minute=2.0, seconds_a_request=30.0)
    assert traffic.each == 1
    assert active_requests(traffic).mean == 60
    assert replace(traffic, requests_per_minute=0.1).each == Fraction(1, 20)
    assert "Little's law" in active_requests(traffic).terms[0].formula


@pytest.mark.parametrize(("per_second", "requests"), [(5, 50), (20, 200), (50, 500)])
def test_requests_a_second_become_memory(per_second: int, requests: int) -> None:
    """vLLM issue 22291: 5, 20, 50 requests a second of Qwen2.5-7B, ten seconds each, in 57,344 B a token.

    28 layers × 2 × 4 KV heads × 128 × 2 B; of 2,000 tokens (125 blocks) each.
    """
    qwen = model("Qwen/Qwen2.5-7B-Instruct")
    traffic = Traffic(
        prompt_tokens=1500, answer_tokens=500, requests_per_minute=60.0 * per_second, seconds_a_request=10.0
    )
    assert active_requests(traffic).mean == requests
    one = Deployment(gpu=accelerator("h100-sxm"), context=2000, kv_bytes=requests * 2000 * 57_344, engine="vllm")
    assert expected(qwen, one, traffic).peak.requests.low in (requests, requests - 1)
    less = replace(one, kv_bytes=(requests - 2) * 2000 * 57_344)
    assert expected(qwen, less, traffic).peak.requests.low < requests - 1


def test_worst_case_against_expected_lengths() -> None:
    """30 GiB a GPU: 12 requests of 32K (2.5 GiB), 76 of 5,120 tokens, and beside a chunk of 4,096 tokens 84 of 4,608."""
    found = expected(LLAMA, FOUR_H100, CHAT)
    assert found.worst.requests.low == 30 * GIB // (32_768 * TOKEN) == 12
    assert found.peak.tokens == 5120
    assert found.peak.requests.low == 30 * GIB // (5120 * TOKEN) == 76
    assert found.steady.tokens == 4608
    assert found.chunk_tokens == 4096
    assert found.steady.requests.low == (30 * GIB - 4096 * TOKEN) // (4608 * TOKEN) == 84
    assert "4,608 tokens" in found.steady.sentence


def test_a_chunk_is_no_longer_than_a_step_takes_in() -> None:
    found = expected(LLAMA, replace(FOUR_H100, max_num_batched_tokens=512, max_num_seqs=512), CHAT)
    assert found.chunk_tokens == 512
    assert found.steady.requests.low == (30 * GIB - 512 * TOKEN) // (4608 * TOKEN)
    # 8,192 tokens a step are vLLM's own on a GPU of 80 GB: the prompt has fewer.
    assert expected(LLAMA, FOUR_H100, replace(CHAT, prompt_tokens=20_000)).chunk_tokens == 8192


def test_no_fewer_fit_in_steady_state_than_at_the_end() -> None:
    """Without an answer the mean is the peak, 4,096 tokens: 96 fit in 30 GiB, with a further chunk it would be 95."""
    found = expected(LLAMA, FOUR_H100, replace(CHAT, answer_tokens=0))
    assert found.chunk_tokens == found.steady.tokens == found.peak.tokens == 4096
    assert found.peak.requests.low == found.steady.requests.low == 30 * GIB // (4096 * TOKEN) == 96
    assert "and no fewer than hold when all are at their expected end: 96" in found.steady.terms[-2].formula


def test_thinking_is_held_like_an_answer() -> None:
    found = expected(LLAMA, FOUR_H100, replace(CHAT, thinking_tokens=8192))
    assert found.peak.tokens == 13_312
    assert found.peak.requests.low == 30 * GIB // (13_312 * TOKEN)


def test_a_shared_prefix_is_held_once_in_whole_blocks() -> None:
    """2,000 shared tokens are 125 blocks of 16; 2,009 are no more. Each request keeps 5,120 − 2,000 of its own."""
    found = expected(LLAMA, FOUR_H100, replace(CHAT, shared_prefix_tokens=2009))
    assert found.shared_tokens == 2000
    assert found.peak.own_tokens == 3120
    assert found.peak.requests.low == (30 * GIB - 2000 * TOKEN) // (3120 * TOKEN)
    assert any("2,000 are whole blocks of 16" in note for note in found.notes)
    # The worst case counts on nothing.
    assert found.worst.requests.low == 12


def test_each_replica_holds_its_own_copy_of_the_prefix() -> None:
    one = expected(LLAMA, FOUR_H100, replace(CHAT, shared_prefix_tokens=2000))
    two = expected(LLAMA, replace(FOUR_H100, dp=2), replace(CHAT, shared_prefix_tokens=2000))
    assert two.peak.requests.low == 2 * one.peak.requests.low


@pytest.mark.parametrize("changes", [{"prefix_caching": False}, {"engine": "llama.cpp", "tp": 1, "max_num_seqs": None}])
def test_without_prefix_caching_nothing_is_shared(changes: dict[str, Any]) -> None:
    found = expected(LLAMA, replace(FOUR_H100, **changes), replace(CHAT, shared_prefix_tokens=2000))
    assert found.shared_tokens == 0
    assert any("not counted once" in note for note in found.notes)


def test_a_slot_of_llama_cpp_has_cells_for_the_longest_request() -> None:
    """Expected lengths gain nothing: 10 GiB a slot, 3 slots in 30 GiB."""
    found = expected(LLAMA, replace(FOUR_H100, engine="llama.cpp", tp=1, max_num_seqs=None), CHAT)
    assert found.worst.requests.low == found.peak.requests.low == found.steady.requests.low == 3


def test_people_are_requests_over_what_one_person_has_at_once() -> None:
    found = expected(LLAMA, FOUR_H100, replace(CHAT, people=100, active_share=0.1))
    assert found.worst.people.low == 120
    assert found.peak.people.low == 760
    # 12 at once are 120 people on average, but 100 people have up to 18 in 99 of 100 moments.
    assert not found.worst.fits
    assert found.peak.fits
    assert found.worst.people_nearly_always.low < 100 < found.peak.people_nearly_always.low


def test_a_request_longer_than_the_engine_allows_is_ended_by_it() -> None:
    found = expected(LLAMA, replace(FOUR_H100, context=4500), CHAT)
    assert found.peak.tokens == 4500
    assert any("ends a request at 4,500" in note for note in found.notes)


def test_what_is_let_in_is_said_for_the_engine() -> None:
    assert any("preempts" in note for note in expected(LLAMA, FOUR_H100, CHAT).notes)
    assert any("GUARANTEED_NO_EVICT" in note for note in expected(
        LLAMA, replace(FOUR_H100, engine="tensorrt-llm"), CHAT).notes)  # fmt: skip


def test_transformers_takes_a_prompt_in_whole() -> None:
    # 36 GiB are 294,912 tokens of 128 KiB: beside a prompt of 30,000 there are 264,912, 6.6 requests of 40,000.
    asked = Deployment(gpu=accelerator("h100-sxm"), context=65_536, kv_bytes=36 * GIB, engine="transformers")
    found = expected(
        model("meta-llama/Llama-3.1-8B-Instruct"), asked, Traffic(prompt_tokens=30_000, answer_tokens=20_000)
    )
    assert (found.chunk_tokens, found.steady.requests.low) == (30_000, 6)


def test_a_refused_deployment_has_no_people() -> None:
    with pytest.raises(PlanError):
        expected(LLAMA, replace(FOUR_H100, tp=3), CHAT)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"prompt_tokens": -1}, "prompt tokens"),
        ({"prompt_tokens": 0, "answer_tokens": 0}, "at least one token"),
        ({"shared_prefix_tokens": 5000}, "more than the prompt"),
        ({"people": 0}, "people"),
        ({"active_share": 0.0}, "active share"),
        ({"active_share": 1.5}, "active share"),
        ({"requests_per_minute": 2.0}, "belong together"),
        ({"requests_per_minute": 2.0, "seconds_a_request": -1.0}, "seconds a request"),
    ],
)
def test_what_cannot_be_is_named(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(UnitError, match=text):
        replace(CHAT, **changes)
