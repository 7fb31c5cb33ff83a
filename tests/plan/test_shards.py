"""Which splits are possible, and why the others are not: engines' own rules and refusals that people met."""

from __future__ import annotations

import pytest

from kvcore.deployment import Deployment
from kvcore.engines.registry import engine_names
from kvcore.errors import EngineError, UnitError
from kvcore.hardware.gpus import accelerator
from kvcore.planning.splits import Shard, check, notes, shards
from kvcore.sources import catalogue
from tests.models import rank_weights

LLAMA = "meta-llama/Llama-3.3-70B-Instruct"
DEEPSEEK = "deepseek-ai/DeepSeek-V3"
MINIMAX = "MiniMaxAI/MiniMax-M2.5"
NEXT = "Qwen/Qwen3-Next-80B-A3B-Instruct"
MAMBA = "nvidia/Nemotron-H-56B-Base-8K"


def asked(model_id: str, **chosen) -> str:
    return check(catalogue.load(model_id), deployment(**chosen))


def deployment(**chosen) -> Deployment:
    return Deployment(**{"engine": "vllm", "gpu": accelerator("h100-sxm"), "context": 8192} | chosen)


@pytest.mark.parametrize(
    ("model_id", "chosen"),
    [
        (LLAMA, {"tp": 8}),
        (LLAMA, {"tp": 16}),
        (LLAMA, {"tp": 64, "engine": "sglang"}),
        (LLAMA, {"pp": 80}),
        (LLAMA, {"tp": 16, "dcp": 2}),
        (DEEPSEEK, {"tp": 8, "dcp": 8}),
        (DEEPSEEK, {"tp": 16}),
        (DEEPSEEK, {"tp": 8, "expert_parallel": True}),
        # 256 experts over 24 ranks: vLLM gives the first ranks one more.
        (DEEPSEEK, {"tp": 8, "dp": 3, "expert_parallel": True}),
        (DEEPSEEK, {"dp": 8, "dp_attention": True, "engine": "sglang"}),
        (MINIMAX, {"tp": 4}),
        (MINIMAX, {"tp": 4, "dp": 2, "engine": "sglang"}),
        (MINIMAX, {"tp": 8, "expert_parallel": True}),
        (NEXT, {"tp": 16}),
        (MAMBA, {"tp": 8}),
        (LLAMA, {"pp": 2, "engine": "llama.cpp"}),
        (LLAMA, {"dp": 3, "engine": "transformers"}),
        # 2880 / 8 = 360: vLLM pads the experts of mxfp4.
        ("openai/gpt-oss-120b", {"tp": 8}),
    ],
)
def test_a_split_that_is_possible(model_id: str, chosen: dict[str, object]) -> None:
    assert asked(model_id, **chosen) == ""


@pytest.mark.parametrize(
    ("model_id", "chosen", "reason"),
    [
        (LLAMA, {"tp": 3}, "64 attention heads cannot be divided over 3 ranks"),
        (LLAMA, {"pp": 81}, "81 pipeline stages are more than the 80 layers"),
        # 24 heads and 8 KV heads: three ranks divide the heads only.
        ("meta-llama/Llama-3.2-3B-Instruct", {"tp": 3}, "8 KV heads cannot be divided over 3 ranks"),
        (LLAMA, {"tp": 8, "dcp": 2}, "8 ranks hold each of 8 once, so it may be at most 1"),
        (LLAMA, {"tp": 16, "dcp": 4}, "16 ranks hold each of 8 twice, so it may be at most 2"),
        (LLAMA, {"tp": 16, "dcp": 3}, "decode context parallel 3 does not divide 16"),
        (DEEPSEEK, {"tp": 8, "dcp": 2, "engine": "tensorrt-llm"}, "tensorrt-llm has no decode context parallel"),
        # What vLLM and SGLang refuse of this checkpoint over 8 ranks: 1536 / 8 = 192.
        (MINIMAX, {"tp": 8}, "experts of width 1,536 over 8 ranks are 192 wide, which cuts its fp8 blocks of 128"),
        (MINIMAX, {"tp": 8, "engine": "sglang"}, "expert parallel keeps experts whole"),
        (DEEPSEEK, {"tp": 32}, "feed-forward layers of width 18,432 over 32 ranks are 576 wide"),
        (DEEPSEEK, {"dp": 3, "expert_parallel": True, "dp_attention": True, "engine": "sglang"}, "3 do not divide 256"),
        # vLLM's replicas share the experts: 1536 / (4 × 2).
        (MINIMAX, {"tp": 4, "dp": 2}, "experts of width 1,536 over 8 ranks are 192 wide"),
        (DEEPSEEK, {"tp": 2, "dp": 4, "dp_attention": True, "engine": "tensorrt-llm"}, "ask for tp 1 and dp 8"),
        (DEEPSEEK, {"tp": 128, "dp": 4, "expert_parallel": True}, "256 experts are fewer than the 512 ranks"),
        (LLAMA, {"tp": 8, "expert_parallel": True}, "the model has no experts"),
        (LLAMA, {"dp": 8, "dp_attention": True, "engine": "sglang"}, "without experts replicas have nothing to share"),
        (DEEPSEEK, {"tp": 8, "dp_attention": True, "engine": "sglang"}, "needs more than one replica"),
        # 16 key heads and 32 value heads.
        (NEXT, {"tp": 32}, "16 attention heads cannot be divided over 32 ranks"),
        (MAMBA, {"tp": 16}, "8 groups of Mamba 2 cannot be divided over 16 ranks"),
        ("tiiuae/falcon-mamba-7b", {"tp": 3}, "8,192 channels of Mamba 1 cannot be divided over 3 ranks"),
        (LLAMA, {"tp": 2, "engine": "llama.cpp"}, "ask for pp 2, not tp 2"),
        (LLAMA, {"tp": 2, "engine": "ollama"}, "ollama gives whole layers to each GPU"),
        (LLAMA, {"pp": 2, "engine": "transformers"}, "its cache is not split over GPUs"),
        (DEEPSEEK, {"expert_parallel": True, "engine": "llama.cpp"}, "llama.cpp has no expert parallel"),
        (DEEPSEEK, {"dp": 2, "dp_attention": True, "engine": "ollama"}, "ollama has no data-parallel attention"),
    ],
)
def test_a_split_that_is_refused(model_id: str, chosen: dict[str, object], reason: str) -> None:
    assert reason in asked(model_id, **chosen)


def test_groups_of_quantised_weights_are_not_cut() -> None:
    # Qwen2 72B in AWQ: 29,568 / 8 = 3,696 is not a multiple of 128; in 16 bits nothing is cut.
    model_id = "Qwen/Qwen2-72B-Instruct"
    assert "29,568 over 8 ranks are 3,696 wide, which cuts awq's groups of 128" in asked(
        model_id, tp=8, weight_format="awq"
    )
    assert asked(model_id, tp=8) == ""
    # fp8 made while a 16-bit checkpoint is loaded has no blocks.
    assert asked(model_id, tp=8, weight_format="fp8") == ""
    # Qwen 1 states the width of two matrices: 11,008 / 4 = 2,752 is not a multiple either.
    assert "11,008 over 4 ranks" in asked("Qwen/Qwen-7B-Chat", tp=4, weight_format="awq")
    # Granite's shared experts are wider than the others: 1,536 / 4 = 384 is three groups.
    assert asked("ibm-granite/granite-4.0-h-small", tp=4, expert_parallel=True, weight_format="awq") == ""


def test_an_engine_that_is_not_known() -> None:
    with pytest.raises(EngineError, match="not known"):
        shards(catalogue.load(LLAMA), "vlm", 8)


@pytest.mark.parametrize("gpus", [0, -1, 4097])
def test_a_number_of_gpus_out_of_range(gpus: int) -> None:
    with pytest.raises(UnitError, match="GPUs"):
        shards(catalogue.load(LLAMA), "vllm", gpus)


def test_replication_is_said() -> None:
    llama, deepseek = catalogue.load(LLAMA), catalogue.load(DEEPSEEK)
    assert "each of 16 ranks holds one of 8 KV heads: every head is held twice" in notes(llama, deployment(tp=16))
    assert "the latent is held whole by each of 8 ranks" in notes(deepseek, deployment(tp=8))
    assert any("divides its tokens by 8" in note for note in notes(deepseek, deployment(tp=8, dcp=8)))
    assert notes(llama, deployment(tp=8)) == ()
    assert "80 layers over 3 stages: 27, 27, 26; the fullest binds" in notes(llama, deployment(pp=3))
    (uneven,) = (
        note for note in notes(deepseek, deployment(tp=8, dp=3, expert_parallel=True)) if "whole experts" in note
    )
    assert uneven.startswith("11 whole experts of a layer on each of 24 ranks")


def test_more_gpus_than_a_host_is_a_note() -> None:
    llama = catalogue.load(LLAMA)
    (note,) = (note for note in notes(llama, deployment(tp=16)) if "network" in note)
    assert "16 ranks" in note
    assert "8 GPUs" in note
    # 72 GPUs of a rack are on NVLink.
    assert not any("network" in note for note in notes(llama, deployment(tp=16, gpu=accelerator("gb200"))))
    assert any("stages pass activations" in note for note in notes(llama, deployment(tp=8, pp=2)))


def test_the_list_for_eight_gpus() -> None:
    found = shards(catalogue.load(LLAMA), "vllm", 8)
    assert found[0] == Shard(tp=8, pp=1, dp=1)
    valid = [(one.tp, one.pp, one.dp) for one in found if not one.refused]
    # All products of three powers of two that make eight.
    assert len(valid) == 10
    assert {tp * pp * dp for tp, pp, dp in valid} == {8}
    refused = [one.refused != "" for one in found]
    assert refused == sorted(refused)
    assert {one.dcp for one in found if one.refused} == {2, 4, 8}


def test_experts_are_offered_only_to_models_that_have_them() -> None:
    assert not any(one.expert_parallel or one.dp_attention for one in shards(catalogue.load(LLAMA), "sglang", 8))
    found = shards(catalogue.load(DEEPSEEK), "sglang", 8)
    assert any(one.expert_parallel and not one.refused for one in found)
    assert any(one.dp_attention and not one.expert_parallel and not one.refused for one in found)


def test_engines_that_split_by_layers_are_offered_stages() -> None:
    found = shards(catalogue.load(LLAMA), "llama.cpp", 2)
    assert {(one.tp, one.pp, one.dp) for one in found if not one.refused} == {(1, 2, 1), (1, 1, 2)}
    assert all("ask for pp" in one.refused for one in found if one.tp > 1)


@pytest.mark.parametrize("engine", engine_names())
def test_every_split_has_its_reason_or_its_weights(engine: str) -> None:
    for model_id in (LLAMA, DEEPSEEK, NEXT, MAMBA, "google/gemma-3-27b-it", "openai/gpt-oss-120b"):
        model = catalogue.load(model_id)
        for gpus in (1, 2, 6, 8):
            found = shards(model, engine, gpus)
            assert len(set(found)) == len(found)
            for one in found:
                assert one.tp * one.pp * one.dp == gpus
                if not one.refused:
                    placed = one.onto(deployment(engine=engine))
                    assert len(rank_weights(model, placed)) == one.pp


def test_one_gpu_serves_every_model() -> None:
    for one in catalogue.summaries():
        for engine in engine_names():
            found = shards(one.model, engine, 1)
            assert [(shard.tp, shard.pp, shard.dp, shard.refused) for shard in found] == [(1, 1, 1, "")]
