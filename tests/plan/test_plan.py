"""A plan against hand arithmetic."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from kvcore.deployment import Deployment
from kvcore.errors import UnitError
from kvcore.hardware.gpus import accelerator
from kvcore.planning.plan import Plan, basis, make_plan
from kvcore.sources.catalogue import load
from kvcore.units import GIB, KIB, MIB

LLAMA = "meta-llama/Llama-3.3-70B-Instruct"


def stated(kv_bytes: int, **changes: object) -> Deployment:
    plain = Deployment(gpu=accelerator("h100-sxm"), context=32 * KIB, kv_bytes=kv_bytes, engine="vllm")
    return replace(plain, **changes)  # type: ignore[arg-type]


def test_vllm_holds_what_the_pool_divided_by_a_request_says() -> None:
    # 320 KiB a token × 32,768 = 10 GiB a request, and 5 MiB are the block that is never handed out.
    plan = make_plan(load(LLAMA), stated(100 * GIB + 5 * MIB), 10)
    assert plan.concurrency is not None
    assert plan.requests is not None
    assert plan.concurrency.low == Fraction(20_481, 2048)
    assert plan.requests.low == 10
    assert plan.fits
    assert not make_plan(load(LLAMA), stated(100 * GIB + 5 * MIB), 11).fits


def test_what_vllm_logs_as_10x_are_9_that_are_all_full_at_once() -> None:
    # 100 GiB are 20,480 blocks of 5 MiB and 10 requests of 2,048, but the null block is never handed out.
    plan = make_plan(load(LLAMA), stated(100 * GIB), 10)
    assert plan.concurrency is not None
    assert plan.requests is not None
    assert (plan.concurrency.low, plan.requests.low, plan.fits) == (10, 9, False)
    assert plan.binding.sentence == (
        "The cache is too small: 100 GiB of a GPU hold 9 requests of 32,768 tokens, 10 GiB each and one block that is "
        "never handed out, and 10 are asked for."
    )
    whole = next(term for term in plan.terms if term.name == "whole requests a replica")
    assert whole.formula == "vLLM never hands out one block: (20,480 − 1) // 2,048 = 9 are full at once"
    assert whole.value == 9


def test_vllm_does_not_start_without_a_block_to_spare() -> None:
    # One block of 16 tokens is 5 MiB, and one is never handed out.
    assert not make_plan(load(LLAMA), stated(10 * GIB)).fits
    assert make_plan(load(LLAMA), stated(10 * GIB + 16 * 320 * KIB)).fits


def kind(plan: Plan) -> str:
    return plan.binding.kind


def test_tokens_and_requests_are_those_of_all_replicas() -> None:
    # 101 GiB hold 10.1 requests: three replicas hold 30 whole ones, not floor(30.3), and 3 × 330,956 tokens.
    plan = make_plan(load(LLAMA), stated(101 * GIB, dp=3))
    assert plan.requests is not None
    assert plan.tokens is not None
    assert plan.concurrency is not None
    assert plan.requests.low == 30
    assert float(plan.concurrency.low) == pytest.approx(30.3, abs=0.002)
    assert plan.tokens.low == 3 * (101 * GIB // (320 * KIB) // 16 * 16)
    assert not make_plan(load(LLAMA), stated(101 * GIB, dp=3), 31).fits


def test_a_part_of_a_request_on_each_replica_makes_no_whole_one() -> None:
    # 15 GiB are 1.5 requests; two replicas hold 2 and not 3.
    assert make_plan(load(LLAMA), stated(15 * GIB, dp=2), 2).fits
    assert not make_plan(load(LLAMA), stated(15 * GIB, dp=2), 3).fits


def test_the_smallest_stage_decides() -> None:
    # 80 layers in two stages of 40: 5 GiB a request on each.
    plan = make_plan(load(LLAMA), stated(21 * GIB, pp=2))
    assert plan.request_bytes == (5 * GIB, 5 * GIB)
    assert plan.requests is not None
    assert plan.requests.low == 4


@pytest.mark.parametrize(("gpu", "most"), [("h100-sxm", 1024), ("b200", 1024), ("a100-sxm-80gb", 256), ("l4", 256)])
def test_vllm_runs_no_more_sequences_than_its_default_for_the_gpu(gpu: str, most: int) -> None:
    # 320 KiB × 16 tokens is a block: 2,000 requests of 16 tokens take 2,000 blocks of 5 MiB.
    plan = make_plan(load(LLAMA), stated(100 * GIB, gpu=accelerator(gpu), context=16))
    assert plan.requests is not None
    assert plan.requests.low == most
    assert kind(plan) == "sequences"
    assert plan.binding.sentence == f"max_num_seqs allows {most:,} requests at once; the cache would hold 20,479."


def test_older_versions_of_vllm_ran_fewer_sequences() -> None:
    plan = make_plan(load(LLAMA), stated(100 * GIB, context=16, engine_version="0.7.3"))
    assert plan.requests is not None
    assert plan.requests.low == 256


def test_a_stated_number_of_sequences_binds() -> None:
    plan = make_plan(load(LLAMA), stated(100 * GIB, max_num_seqs=6, dp=2), 13)
    assert not plan.fits
    assert kind(plan) == "sequences"
    assert plan.binding.sentence.startswith("max_num_seqs allows 6 requests at once on each of 2 replicas")


def test_vllm_refuses_fewer_tokens_a_step_than_sequences() -> None:
    plan = make_plan(load(LLAMA), stated(100 * GIB, max_num_seqs=64, max_num_batched_tokens=32))
    assert kind(plan) == "engine"
    assert "max_num_batched_tokens 32 is less than max_num_seqs 64" in plan.refused


def test_what_binds_is_said_with_its_numbers() -> None:
    found = make_plan(load(LLAMA), stated(25 * GIB), 2).binding
    assert (found.kind, found.sentence) == (
        "cache",
        "The cache runs out first: 25 GiB of a GPU hold 2 requests of 32,768 tokens, 10 GiB each.",
    )
    found = make_plan(load(LLAMA), stated(25 * GIB), 9).binding
    assert found.sentence == (
        "The cache is too small: 25 GiB of a GPU hold 2 requests of 32,768 tokens, 10 GiB each, and 9 are asked for."
    )
    found = make_plan(load(LLAMA), stated(4 * GIB)).binding
    assert found.sentence == "A request of 32,768 tokens takes 10 GiB of a GPU, and 4 GiB are left for the cache."
    found = make_plan(load(LLAMA), stated(10 * GIB)).binding
    assert found.sentence.endswith("10 GiB are left for the cache, with which vllm does not start.")


def test_weights_that_do_not_fit_alone_bind() -> None:
    # 70.6 billion parameters in 16 bits are 141 GB, on a GPU of 85.5 GB.
    plan = make_plan(load(LLAMA), Deployment(gpu=accelerator("h100-sxm"), context=4096, engine="vllm"))
    assert not plan.fits
    assert kind(plan) == "weights"
    assert "131.42 GiB" in plan.binding.sentence


def test_overheads_that_leave_nothing_bind() -> None:
    # Two ranks hold 70.6 GB each, of 78.7 that vLLM may use at 0.92; at 0.84 it is 71.8, less than weights and overheads.
    plan = make_plan(
        load(LLAMA), Deployment(gpu=accelerator("h100-sxm"), context=4096, tp=2, utilization=0.84, engine="vllm")
    )
    assert kind(plan) == "overheads"


def test_a_context_beyond_the_models_is_named() -> None:
    plan = make_plan(load(LLAMA), stated(500 * GIB, context=128 * KIB + 1))
    assert not plan.fits
    assert not plan.refused
    assert kind(plan) == "context limit"
    assert "131,073" in plan.binding.sentence
    assert "131,072" in plan.binding.sentence
    assert make_plan(load(LLAMA), stated(500 * GIB, context=128 * KIB)).fits


def test_a_split_that_cannot_be_is_refused_with_its_reason() -> None:
    plan = make_plan(load(LLAMA), stated(50 * GIB, tp=3))
    assert kind(plan) == "split"
    assert "64 attention heads cannot be divided over 3 ranks" in plan.refused


def test_an_engine_that_does_not_serve_a_model_refuses() -> None:
    plan = make_plan(load("Qwen/Qwen3-Next-80B-A3B-Instruct"), stated(50 * GIB, engine="tensorrt-llm"))
    assert kind(plan) == "engine"
    assert plan.requests is None


def test_weights_that_are_not_known_are_an_answer() -> None:
    plan = make_plan(load("Zyphra/Zamba2-7B"), Deployment(gpu=accelerator("h100-sxm"), context=4096, engine="vllm"))
    assert kind(plan) == "weights"
    assert "state the memory" in plan.refused


@pytest.mark.parametrize("change", [{"kv_dtype": "fp9"}, {"weight_format": "q99"}])
def test_a_format_that_is_none_is_a_wrong_word(change: dict[str, Any]) -> None:
    with pytest.raises(UnitError):
        make_plan(load(LLAMA), Deployment(gpu=accelerator("h100-sxm"), context=4096, **{"engine": "vllm", **change}))


@pytest.mark.parametrize("users", [0, -1, 10**7])
def test_users_that_cannot_be_are_refused(users: int) -> None:
    with pytest.raises(UnitError, match="users"):
        make_plan(load(LLAMA), stated(GIB), users)


def test_llama_cpp_is_started_with_a_context_for_all_slots() -> None:
    # f16 caches: 320 KiB a token, 10 GiB a slot of 32,768 cells.
    plan = make_plan(load(LLAMA), stated(45 * GIB, engine="llama.cpp"), 4)
    assert plan.fits
    assert plan.layout is not None
    assert plan.layout.bytes_per_request == 10 * GIB
    assert any("32,768 × 4 slots = 131,072 tokens" in term.formula for term in plan.terms)
    assert not make_plan(load(LLAMA), stated(45 * GIB, engine="llama.cpp"), 5).fits


def test_replicated_heads_hold_no_more_than_the_ranks_that_divide_them() -> None:
    # 8 KV heads over 16 ranks: one each, so a request takes as much of a GPU as over 8: 10 / 8 GiB.
    wide, full = (make_plan(load(LLAMA), stated(50 * GIB, tp=tp)) for tp in (16, 8))
    assert wide.request_bytes == full.request_bytes == (10 * GIB // 8,)
    assert any("held twice" in note for note in wide.notes)


def test_terms_go_from_the_gpu_to_the_requests() -> None:
    plan = make_plan(load(LLAMA), Deployment(gpu=accelerator("h200-sxm"), context=8192, tp=4, dp=2, engine="vllm"))
    names = [term.name for term in plan.terms]
    order = ["share of the GPU", "weights", "left for the cache", "one request", "blocks", "requests at once"]
    assert [name for name in names if name in order] == order
    assert plan.requests is not None
    assert f"× 2 replicas = {plan.requests.low:,}" in plan.terms[-1].formula


def test_older_vllm_left_less_for_the_cache_at_contexts_that_it_did_not_chunk() -> None:
    # Before 0.8 the dummy run was as long as the context up to 32,768 tokens, and 2,048 beyond (vllm#10517: 20K starts,
    # 29K does not, 35K does).
    model = load("mistralai/Mistral-Nemo-Instruct-2407")
    plans = {
        context: make_plan(
            model,
            Deployment(
                gpu=accelerator("l4"), context=context, tp=2, engine_version="0.6.3", utilization=0.9, engine="vllm"
            ),
        )
        for context in (20_000, 29_000, 35_000)
    }
    left = {context: plan.kv_bytes.low for context, plan in plans.items() if plan.kv_bytes is not None}
    assert left[29_000] < left[20_000] < left[35_000]


def test_the_longest_context_of_older_vllm_is_looked_for_on_both_sides_of_its_chunks() -> None:
    model = load("mistralai/Mistral-Nemo-Instruct-2407")
    for share in (0.8, 0.85, 0.9):
        asked = Deployment(
            gpu=accelerator("l4"), context=4096, tp=2, engine_version="0.6.3", utilization=share, engine="vllm"
        )
        longest = make_plan(model, asked).longest
        assert longest is not None
        for context in range(1024, 128_001, 1024):
            assert context <= longest.low or not make_plan(model, replace(asked, context=context)).fits
        assert make_plan(model, replace(asked, context=longest.low)).fits
        assert not make_plan(model, replace(asked, context=longest.low + 1)).fits


def test_what_the_range_leaves_open_is_said() -> None:
    model = load(LLAMA)
    asked = Deployment(gpu=accelerator("h100-sxm"), context=32 * KIB, tp=8, engine="vllm")
    plan = make_plan(model, asked)
    assert plan.requests is not None
    assert plan.requests.low < plan.requests.best
    between = make_plan(model, asked, plan.requests.best)
    assert not between.fits
    assert between.binding.sentence.endswith(f"At best guess it holds {plan.requests.best:,}.")


def test_the_figures_alone_are_those_of_the_plan() -> None:
    """What gains are reckoned with: requests, concurrency and whether a number of sequences binds, over many cases."""
    found = 0
    for model_id in ("meta-llama/Llama-3.3-70B-Instruct", "state-spaces/mamba-2.8b-hf", "google/gemma-3-27b-it"):
        model = load(model_id)
        for name in ("vllm", "sglang", "tensorrt-llm", "llama.cpp", "ollama", "transformers"):
            for pool in (None, 0, 2**40):
                for seqs in (None, 3):
                    asked = Deployment(
                        gpu=accelerator("b300"), context=4096, engine=name, kv_bytes=pool, max_num_seqs=seqs
                    )
                    plan = make_plan(model, asked)
                    if plan.refused:
                        continue
                    held, found = basis(model, asked).held(4096), found + 1
                    assert (held.requests, held.concurrency) == (plan.requests, plan.concurrency)
                    assert held.by_sequences == (plan.binding.kind == "sequences"), (model_id, name, pool, seqs)
    assert found > 60


def test_a_deployment_that_is_asked_again_is_not_worked_out_again() -> None:
    model = load("meta-llama/Llama-3.3-70B-Instruct")
    asked = Deployment(gpu=accelerator("h200-sxm"), context=7000, tp=4, engine="vllm")
    assert basis(model, asked) is basis(load("meta-llama/Llama-3.3-70B-Instruct"), replace(asked))
    assert basis(model, replace(asked, context=7001)) is not basis(model, asked)
