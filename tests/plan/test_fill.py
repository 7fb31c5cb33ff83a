"""Fillers are the engines' own capacity, only faster: over the catalogue, lengths, formats and splits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kvcore.deployment import Deployment
from kvcore.engines.base import CachePool
from kvcore.engines.registry import engine
from kvcore.errors import EngineError, KVCoreError
from kvcore.hardware.gpus import accelerator
from kvcore.model import Model
from kvcore.sources.catalogue import entries, load
from kvcore.units import GIB, KIB

MODELS = [entry.model_id for entry in entries()][::4]
LENGTHS = (1, 100, 5000, 32 * KIB, 100_000)
SIZES = (GIB // 3, 5 * GIB, 60 * GIB + 12_345)
LLAMA = "meta-llama/Llama-3.3-70B-Instruct"


def plain(name: str, **changes: Any) -> Deployment:
    return replace(Deployment(gpu=accelerator("h100-sxm"), context=4096, engine=name), **changes)


def filler(model: Model, deployment: Deployment, context: int) -> CachePool:
    return engine(deployment.engine).pool(model, deployment, context)


def settings_at(model: Model, deployment: Deployment, context: int, **values: Any) -> Any:
    return engine(deployment.engine).settings(model, deployment.at(context).unless_stated(values))


def engine_concurrency(name: str, model: Any, settings: Any, size: int) -> Any:
    try:
        return engine(name).capacity(model, settings, size).max_concurrency
    except EngineError:
        return 0


def filled_or_refused(model: Model, deployment: Deployment, context: int) -> CachePool | None:
    """The filler; None where there is nothing to fill, for which the engine itself must say the same."""
    own = engine(deployment.engine)
    try:
        made = filler(model, deployment, context)
    except KVCoreError:
        with pytest.raises(KVCoreError):
            own.layout(model, settings_at(model, deployment, context))
        return None
    if made.keeps_cache:
        return made
    assert own.layout(model, settings_at(model, deployment, context)).bytes_per_request == 0
    return None


def test_concurrency_is_the_engines_own(subtests: pytest.Subtests) -> None:
    for name in ("vllm", "sglang", "tensorrt-llm", "transformers"):
        for model_id in MODELS:
            with subtests.test(engine=name, model=model_id):
                model, deployment = load(model_id), plain(name)
                limit = model.context_limit or 10**6
                made = filled_or_refused(model, deployment, min(limit, 4096))
                if made is None:
                    continue
                for length in (length for length in LENGTHS if length <= limit):
                    settings = settings_at(model, deployment, length)
                    for size in SIZES:
                        fill, expected = made.fill(length, (size,)), engine_concurrency(name, model, settings, size)
                        # Where an engine refuses so small a pool, no whole request fits.
                        assert fill.concurrency == expected if expected else fill.requests == 0


def test_slots_are_the_most_that_the_engine_starts_with(subtests: pytest.Subtests) -> None:
    for name in ("llama.cpp", "ollama"):
        for model_id in MODELS:
            with subtests.test(engine=name, model=model_id):
                model, deployment = load(model_id), plain(name)
                limit = model.context_limit or 10**6
                made = filled_or_refused(model, deployment, min(limit, 4096))
                if made is None:
                    continue
                for length in (length for length in LENGTHS if length <= limit):
                    for size in SIZES:
                        slots = made.fill(length, (size,)).requests
                        for count, starts in ((slots, True), (slots + 1, False)):
                            if not 1 <= count <= (made.sequences or 0):
                                continue
                            values = {"parallel": count, "ctx_size": count * length}
                            values = {"num_parallel": count} if name == "ollama" else values
                            settings = settings_at(model, deployment, length, **values)
                            assert (engine_concurrency(name, model, settings, size) >= count) is starts, (
                                length,
                                size,
                                count,
                            )


@pytest.mark.parametrize("name", ["vllm", "sglang", "tensorrt-llm"])
def test_stages_of_one_size_are_the_engines_own_answer(name: str) -> None:
    # 80 layers over 3 stages are 27, 27 and 26 in some order: the widest stage decides.
    model, deployment = load(LLAMA), plain(name, pp=3, tp=2)
    settings = settings_at(model, deployment, 8192)
    made = filler(model, deployment, 8192)
    assert made.fill(8192, (9 * GIB,) * 3).concurrency == engine_concurrency(name, model, settings, 9 * GIB)


def test_vllm_makes_as_many_blocks_as_the_poorest_stage() -> None:
    # 40 of 80 layers on each stage: a block of 16 tokens is 40 × 16 × 4 KiB = 2.5 MiB. 4 GiB make 1,638, 1 GiB 409.
    made = filler(load(LLAMA), plain("vllm", pp=2), 4096)
    fill = made.fill(4096, (4 * GIB, GIB))
    assert fill.concurrency * 256 == 409
    assert made.tightest(4096, (4 * GIB, GIB)) == 1


def test_an_option_that_is_none_of_the_engines_is_refused_in_words() -> None:
    with pytest.raises(EngineError, match="no option of it"):
        filler(load(LLAMA), plain("vllm", options=(("page_size", 3),)), 4096)


def test_llama_cpp_with_a_stated_context_is_planned_as_asked() -> None:
    # 4 slots that share 32,768 cells in one cache: 4 requests of 8,192 tokens, 2 of 16,384. 320 KiB a token: 10 GiB.
    asked = plain("llama.cpp", options=(("ctx_size", 32 * KIB),))
    made = filler(load(LLAMA), asked, 8192)
    assert made.fill(8192, (10 * GIB,)).requests == 4
    assert made.fill(16_384, (10 * GIB,)).requests == 2
    assert made.fill(8192, (10 * GIB - 1,)).requests == 0


def test_tensorrt_llm_with_attention_over_replicas_counts_them_as_ranks() -> None:
    model = load("deepseek-ai/DeepSeek-V3")
    apart = plain("tensorrt-llm", dp=8, dp_attention=True, expert_parallel=True)
    settings = settings_at(model, apart, 4096)
    assert (settings.tp_size, settings.attention_tp) == (8, 1)
    with pytest.raises(EngineError, match="over all ranks or none"):
        settings_at(model, replace(apart, tp=2), 4096)


def test_sglang_with_attention_over_replicas_divides_its_running_requests() -> None:
    model = load("deepseek-ai/DeepSeek-V3")
    apart = plain("sglang", tp=2, dp=4, dp_attention=True, max_num_seqs=400)
    settings = settings_at(model, apart, 4096)
    assert (settings.tp_size, settings.dp_size, settings.attention_tp) == (8, 4, 2)
    assert filler(model, apart, 4096).sequences == 100


def test_ollama_gives_some_architectures_one_slot() -> None:
    made = filler(load("Qwen/Qwen3-Next-80B-A3B-Instruct"), plain("ollama"), 4096)
    assert made.sequences == 1
    assert made.fill(4096, (500 * GIB,)).requests == 1


def test_ollama_with_stated_slots_starts_with_all_of_them_or_not() -> None:
    # 4 slots of 8,192 tokens at 320 KiB are 10 GiB.
    made = filler(load(LLAMA), plain("ollama", options=(("num_parallel", 4),)), 8192)
    assert made.sequences == 4
    assert made.fill(8192, (10 * GIB,)).requests == 4
    assert made.fill(8192, (10 * GIB - 1,)).requests == 0


def test_sglang_chooses_a_number_of_requests_that_may_bind_before_its_pool() -> None:
    # Slots of one token at 320 KiB: 300 GiB make 983,040. Requests of 16 tokens would be 61,440, and SGLang runs 4,096.
    fill = filler(load(LLAMA), plain("sglang"), 16).fill(16, (300 * GIB,))
    assert (fill.requests, fill.by_sequences) == (4096, True)
    fill = filler(load(LLAMA), plain("sglang"), 8192).fill(8192, (300 * GIB,))
    assert (fill.requests, fill.by_sequences) == (120, False)


def test_sglang_has_the_pool_of_the_rank_with_the_least() -> None:
    made = filler(load(LLAMA), plain("sglang", pp=2), 8192)
    assert made.fill(8192, (9 * GIB, 5 * GIB)) == made.fill(8192, (5 * GIB, 5 * GIB))


def test_tensorrt_llm_makes_as_many_blocks_as_the_poorest_stage() -> None:
    # 40 layers: 160 KiB a token, so 4 GiB hold 26,214 tokens (819 blocks of 32), 1 GiB 6,553 (204).
    fill = filler(load(LLAMA), plain("tensorrt-llm", pp=2), 4096).fill(4096, (4 * GIB, GIB))
    assert fill.tokens == 204 * 32
