"""Speculative decoding in a plan: weights and caches of what proposes, against logs, engine rules and hand arithmetic."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from typing import Any

import pytest

from kvcore.deployment import OWN_HEAD, Deployment, Draft
from kvcore.errors import UnitError
from kvcore.hardware.gpus import accelerator
from kvcore.model import Model, model_from_config
from kvcore.paths import DATA
from kvcore.planning.launch import launch
from kvcore.planning.plan import Plan, basis, make_plan
from kvcore.planning.pools import loaded_weights, usable_share
from kvcore.planning.splits import check
from kvcore.ranks.speculation import DRAFT_WEIGHTS, HEAD_WEIGHTS
from kvcore.sources import catalogue
from kvcore.units import GIB, MIB
from tests.models import rank_weights

LLAMA_8B, LLAMA_1B = "meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.2-1B-Instruct"
DEEPSEEK = "deepseek-ai/DeepSeek-V3"
ENGINES = ("vllm", "sglang", "tensorrt-llm", "llama.cpp", "ollama", "transformers")


def drafted(model_id: str = LLAMA_1B, weight_format: str | None = None) -> Draft:
    return Draft(name=model_id, model=catalogue.load(model_id), weight_format=weight_format)


def deployed(gpu: str = "h200-sxm", **options: Any) -> Deployment:
    return Deployment(gpu=accelerator(gpu), **({"engine": "vllm", "context": 32_768} | options))


def planned(model_id: str, **options: Any) -> Plan:
    return make_plan(catalogue.load(model_id), deployed(**options))


def part(model: Model, deployment: Deployment, name: str, stage: int = -1) -> int:
    return dict(loaded_weights(model, deployment)[stage].parts).get(name, 0)


# Logs. ----------------------------------------------------------------------------------------------------------------


def report(report_id: str) -> dict[str, Any]:
    lines = (DATA / "field" / "reports.jsonl").read_text("utf-8").splitlines()
    found: dict[str, Any] = next(row["reported"] for row in map(json.loads, lines) if row["id"] == report_id)
    return found


def test_a_log_with_prediction_layers() -> None:
    """thor-qwen35-122b-mtp: 24.05 GiB hold 482,080 tokens, 6.42 requests of 262,144, with the head's layer."""
    logged = report("thor-qwen35-122b-mtp")
    plan = planned(
        "Qwen/Qwen3.5-122B-A10B", gpu="jetson-thor-t5000", context=262_144, engine_version="0.19",
        weight_format="nvfp4", kv_dtype="fp8", speculative_tokens=1, draft=OWN_HEAD,
        kv_bytes=int(logged["available_kv_gib"] * GIB),
    )  # fmt: skip
    assert plan.tokens is not None
    assert plan.concurrency is not None
    assert plan.tokens.best == logged["kv_tokens"] == 482_080
    assert round(float(plan.concurrency.best), 2) == logged["concurrency"] == 6.42


def test_a_log_with_prediction_layers_over_two_ranks() -> None:
    """club-bench-165: 14.68 GiB on each of two cards hold 841,541 tokens; two tokens are proposed."""
    logged = report("club-bench-165")
    plan = planned(
        "nvidia/Qwen3.6-27B-NVFP4", gpu="rtx-5090", context=262_144, tp=2, engine_version="0.25.1", kv_dtype="fp8",
        speculative_tokens=2, draft=OWN_HEAD, kv_bytes=int(logged["available_kv_gib"] * GIB),
    )  # fmt: skip
    assert plan.tokens is not None
    assert plan.tokens.best == logged["kv_tokens"] == 841_541


def test_a_log_with_a_draft_model() -> None:
    """aeon-9: 36 GiB hold 647,449 tokens of Qwen3.6 27B beside a drafter of five layers with 8 KV heads of 128
    (sgl-fs-61369409952 gives its shape), which proposes ten. Without the drafter they would hold a quarter more."""
    logged = report("aeon-9")
    shape = {
        "model_type": "qwen3", "num_hidden_layers": 5, "hidden_size": 5120, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 17_408, "vocab_size": 248_320,
        "max_position_embeddings": 262_144, "torch_dtype": "bfloat16",
    }  # fmt: skip
    draft = Draft(name="drafter", model=model_from_config(shape, "drafter"))
    options: dict[str, Any] = {
        "gpu": "dgx-spark-gb10", "context": 262_144, "engine_version": "0.24.0", "kv_dtype": "fp8",
        "speculative_tokens": 10, "kv_bytes": int(logged["available_kv_gib"] * GIB),
    }  # fmt: skip
    plan = planned("nvidia/Qwen3.6-27B-NVFP4", draft=draft, **options)
    alone = planned("nvidia/Qwen3.6-27B-NVFP4", **options)
    assert plan.tokens is not None
    assert alone.tokens is not None
    assert plan.tokens.best == pytest.approx(logged["kv_tokens"], rel=0.006)
    assert alone.tokens.best > 1.25 * plan.tokens.best


def test_a_log_of_sglang_with_a_draft_model() -> None:
    """sgl-fs-61369409952: the drafter's own pool of 270,000 tokens takes 2 × 1.29 GiB, 10,240 B a token in fp8."""
    logged = report("sgl-fs-61369409952")
    a_token = 5 * 2 * 8 * 128
    assert (logged["draft_k_gib"] + logged["draft_v_gib"]) * GIB == pytest.approx(270_000 * a_token, rel=0.005)


# Prediction layers. ---------------------------------------------------------------------------------------------------


def test_the_head_is_loaded_only_where_it_proposes() -> None:
    """DeepSeek-V3's module has 256 experts and a shared one of 3 × 7168 × 2048 in fp8 and a joint of 2 × 7168² in
    16 bits; attention is split by heads but for the down-projections."""
    model = catalogue.load(DEEPSEEK)
    for tokens in (0, 2):
        assert part(model, deployed(tp=8, speculative_tokens=tokens), HEAD_WEIGHTS) == 0
    own = part(model, deployed(tp=8, speculative_tokens=1, draft=OWN_HEAD), HEAD_WEIGHTS)
    least = 257 * 3 * 7168 * 2048 // 8 + 2 * 2 * 7168 * 7168
    assert least < own < least + 60 * MIB


def test_the_head_lies_on_the_last_stage_with_a_table_of_its_own() -> None:
    """vLLM, _maybe_share_embeddings: with pipeline stages the embedding is loaded separately."""
    model = catalogue.load(DEEPSEEK)
    deployment = deployed(tp=8, pp=2, speculative_tokens=1, draft=OWN_HEAD)
    assert part(model, deployment, HEAD_WEIGHTS, 0) == 0
    shared = part(model, replace(deployment, pp=1), HEAD_WEIGHTS)
    assert part(model, deployment, HEAD_WEIGHTS) == shared + 2 * 129_280 * 7168 // 8


def test_experts_of_the_head_go_whole_to_ranks() -> None:
    """With expert parallel 16 of 256 experts lie on each of 16 GPUs, over both replicas."""
    model = catalogue.load(DEEPSEEK)
    deployment = deployed(tp=8, dp=2, expert_parallel=True, speculative_tokens=1, draft=OWN_HEAD)
    found = dict(loaded_weights(model, deployment)[0].parts)[HEAD_WEIGHTS]
    least = 16 * 3 * 7168 * 2048 + 3 * 7168 * 2048 + 2 * 2 * 7168 * 7168
    assert least < found < least + 60 * MIB


def test_a_head_that_a_quantiser_left_alone_is_in_16_bits() -> None:
    plain = catalogue.load("nvidia/DeepSeek-V3.1-NVFP4")
    own = part(plain, deployed(tp=8, speculative_tokens=1, draft=OWN_HEAD), HEAD_WEIGHTS)
    least = 2 * (257 * 3 * 7168 * 2048 // 8 + 2 * 7168 * 7168)
    assert least < own < least + 90 * MIB


def test_another_format_of_the_weights_leaves_the_head_in_16_bits_but_fp8() -> None:
    model = catalogue.load("Qwen/Qwen3.5-27B")
    sizes = {
        wanted: part(model, deployed(weight_format=wanted, speculative_tokens=1, draft=OWN_HEAD), HEAD_WEIGHTS)
        for wanted in (None, "awq", "nvfp4", "fp8")
    }
    assert sizes[None] == sizes["awq"] == sizes["nvfp4"] == 2 * 424_673_280
    # The joint stays in 16 bits.
    assert sizes["fp8"] == 424_673_280 + 2 * 5120 * 5120


def test_a_checkpoints_own_bytes_hold_a_head_that_is_not_loaded() -> None:
    """DeepSeek-V3's tensors are 680,571,043,840 in fp8, 3,918,786,560 in bf16 and 41,555,600 in fp32 (the repository's
    safetensors headers), with the module and its tables among them: what is loaded without it is 671 billion."""
    total = 680_571_043_840 + 2 * 3_918_786_560 + 4 * 41_555_600
    model = replace(catalogue.load(DEEPSEEK), checkpoint_bytes=total)
    module = 11_505_434_624 + 2 * (2 * 7168 * 7168 + 256 * 7168) + 2 * 2 * 129_280 * 7168
    plain = deployed(engine="transformers")
    (found,) = rank_weights(model, plain)
    assert found.bytes == pytest.approx(total - module, rel=0.001)
    assert found.knowledge == "estimated"
    # A checkpoint that was repackaged without it is loaded as it is.
    without = replace(model, checkpoint_bytes=total - module)
    (found,) = rank_weights(without, plain)
    assert found.bytes == total - module


@pytest.mark.parametrize("model_id", ["deepseek-ai/DeepSeek-V3", "Qwen/Qwen3.5-27B", "zai-org/GLM-4.5"])
def test_caches_of_the_head_are_those_that_mtp_layers_counted(model_id: str) -> None:
    options: dict[str, Any] = {"tp": 8, "speculative_tokens": 1, "kv_bytes": 40 * GIB}
    own = planned(model_id, draft=OWN_HEAD, **options)
    counted = planned(model_id, options=(("mtp_layers", 1),), **options)
    assert own.tokens == counted.tokens
    assert own.request_bytes == counted.request_bytes


def test_mtp_layers_bring_their_weights() -> None:
    model = catalogue.load(DEEPSEEK)
    asked = deployed(tp=8, speculative_tokens=1, options=(("mtp_layers", 1),))
    stated = deployed(tp=8, speculative_tokens=1, draft=OWN_HEAD)
    assert part(model, asked, HEAD_WEIGHTS) == part(model, stated, HEAD_WEIGHTS) > 0
    unknown = make_plan(catalogue.load(LLAMA_8B), deployed(speculative_tokens=1, options=(("mtp_layers", 1),)))
    assert any("prediction layers are not among the weights" in note for note in unknown.notes)


def test_a_head_that_is_not_used_is_said() -> None:
    notes = planned(DEEPSEEK, tp=8).notes
    assert any("a prediction module of 11.61 billion parameters" in note and "not loaded" in note for note in notes)
    assert not any("prediction module" in note for note in planned(LLAMA_8B).notes)
    used = planned(DEEPSEEK, tp=8, speculative_tokens=1, draft=OWN_HEAD).notes
    assert not any("not loaded" in note for note in used)


def test_proposals_from_the_prompt_have_no_weights() -> None:
    plan = planned(LLAMA_8B, speculative_tokens=4)
    assert plan.pools[0].drafted == ("", 0)
    assert any("n-gram" in note for note in plan.notes)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm", "llama.cpp"])
@pytest.mark.parametrize("model_id", [LLAMA_8B, "moonshotai/Kimi-K2-Instruct", "MiniMaxAI/MiniMax-M2.7"])
def test_a_head_that_is_not_there_or_not_known_is_refused(engine: str, model_id: str) -> None:
    plan = planned(model_id, engine=engine, speculative_tokens=1, draft=OWN_HEAD)
    assert "prediction layers" in plan.refused
    assert plan.binding.kind == "engine"


def test_mimo_keeps_the_window_of_its_module_only() -> None:
    """39 sliding layers become 40 in groups of 8, so a request takes no more; the head is 329 million parameters."""
    with_head = planned("XiaomiMiMo/MiMo-V2-Flash", tp=4, speculative_tokens=1, draft=OWN_HEAD)
    plain = planned("XiaomiMiMo/MiMo-V2-Flash", tp=4)
    assert with_head.request_bytes == plain.request_bytes
    # Attention and feed-forward in fp8 over four ranks, the joint whole in 16 bits on each.
    joint = 2 * 4096 * 4096
    assert with_head.pools[0].drafted == (HEAD_WEIGHTS, (329_252_864 - joint) // 4 + 2 * joint)


# A draft model. -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm", "llama.cpp"])
def test_a_draft_model_has_its_own_weights(engine: str) -> None:
    """Llama 3.2 1B has 1,235,814,400 parameters (transformers), all of which are loaded; llama.cpp leaves the table of
    the embedding to the host and loads it as the tied head."""
    with (DATA / "models" / "weights_reference.csv").open(encoding="utf-8", newline="") as stream:
        counts = {row["model_id"]: row["total_parameters"] for row in csv.DictReader(stream) if row["total_parameters"]}
    parameters = int(counts.get(LLAMA_1B, 0) or 1_235_814_400)
    assert parameters == 1_235_814_400
    model = catalogue.load(LLAMA_8B)
    own = part(model, deployed(engine=engine, speculative_tokens=4, draft=drafted()), DRAFT_WEIGHTS)
    assert own == pytest.approx(2 * parameters, rel=1e-4)


def test_a_draft_is_split_as_the_model_is() -> None:
    """draft_tensor_parallel_size is that of the model, and vLLM refuses another; a stage that it is whole on."""
    model = catalogue.load("meta-llama/Llama-3.1-70B-Instruct")
    options: dict[str, Any] = {"speculative_tokens": 4, "draft": drafted()}
    four = part(model, deployed(tp=4, **options), DRAFT_WEIGHTS)
    assert 2 * 1_235_814_400 / 4 <= four < 2 * 1_235_814_400 / 4 * 1.01
    stages = deployed(tp=4, pp=2, **options)
    assert part(model, stages, DRAFT_WEIGHTS, 0) == 0
    assert part(model, stages, DRAFT_WEIGHTS) == four


def test_the_drafts_weights_have_a_format_of_their_own() -> None:
    model = catalogue.load(LLAMA_8B)
    stored = part(model, deployed(weight_format="fp8", speculative_tokens=4, draft=drafted()), DRAFT_WEIGHTS)
    smaller = part(model, deployed(speculative_tokens=4, draft=drafted(weight_format="fp8")), DRAFT_WEIGHTS)
    assert stored == pytest.approx(2 * 1_235_814_400, rel=1e-4)
    assert smaller < 0.7 * stored


def test_vllm_keeps_the_drafts_layers_in_the_same_blocks() -> None:
    """32 layers × 8 × (128 + 128) × 2 B and 16 × 8 × (64 + 64) × 2 B: 131,072 and 32,768 B a token, in one group."""
    plan = planned(LLAMA_8B, speculative_tokens=4, draft=drafted())
    assert plan.request_bytes == (32_768 * (131_072 + 32_768),)


def test_tensorrt_llm_divides_by_the_bytes_of_both() -> None:
    """cal_max_tokens: memory over the sum of both models' bytes a token."""
    options: dict[str, Any] = {"engine": "tensorrt-llm", "kv_bytes": 40 * GIB}
    plan = planned(LLAMA_8B, speculative_tokens=4, draft=drafted(), **options)
    alone = planned(LLAMA_8B, **options)
    assert plan.tokens is not None
    assert alone.tokens is not None
    assert plan.tokens.best == pytest.approx(alone.tokens.best * 131_072 / (131_072 + 32_768), rel=1e-4)
    assert plan.request_bytes == (32_768 * (131_072 + 32_768),)


def test_sglang_sizes_its_pool_by_the_number_of_the_drafts_layers() -> None:
    """DefaultPoolConfigurator: cell × (1 + draft layers / layers), whatever the draft's heads: 16 of 32 here, while
    the draft's slots take a quarter of the model's."""
    options: dict[str, Any] = {"engine": "sglang", "kv_bytes": 40 * GIB}
    plan = planned(LLAMA_8B, speculative_tokens=4, draft=drafted(), **options)
    alone = planned(LLAMA_8B, **options)
    assert plan.tokens is not None
    assert alone.tokens is not None
    assert plan.tokens.best == pytest.approx(alone.tokens.best / 1.5, rel=1e-4)
    assert any("by its number of layers" in note for note in plan.notes)


def test_sglang_counts_a_draft_that_takes_more_than_is_reserved() -> None:
    """A draft with wider layers than the model's fills more than SGLang sets aside: what it takes is counted."""
    wide = replace(catalogue.load(LLAMA_8B), name="wide")
    options: dict[str, Any] = {"engine": "sglang", "kv_bytes": 10 * GIB, "speculative_tokens": 2}
    plan = planned(LLAMA_1B, draft=Draft(name="wide", model=wide), **options)
    assert plan.request_bytes == (32_768 * (32_768 + 131_072),)


def test_llamacpp_gives_the_draft_a_context_as_large_in_16_bits() -> None:
    """ggml-org/llama.cpp#10586: an f16 cache, a context as large as a slot's; the model's own format does not matter."""
    plan = planned(LLAMA_8B, engine="llama.cpp", kv_dtype="q8_0", speculative_tokens=4, draft=drafted())
    assert plan.request_bytes == (32_768 * (131_072 * 17 // 32 + 32_768),)


def test_llamacpp_keeps_latents_twice_for_a_head() -> None:
    """unslothai/unsloth#6447: the second context has all layers once more, in f16; Qwen3.5's has the head's only."""
    plan = planned(DEEPSEEK, engine="llama.cpp", pp=8, speculative_tokens=1, draft=OWN_HEAD)
    alone = planned(DEEPSEEK, engine="llama.cpp", pp=8)
    assert all(more >= 2 * one for more, one in zip(plan.request_bytes, alone.request_bytes, strict=True))
    assert any("upper bound" in note.lower() for note in plan.notes)
    qwen, plain = (
        planned("Qwen/Qwen3.5-27B", engine="llama.cpp", **options)
        for options in ({"speculative_tokens": 1, "draft": OWN_HEAD}, {"speculative_tokens": 1})
    )
    # One layer of 4 × (256 + 256) × 2 B a token, and a state to roll back to: 48 × (48 × 128 × 128 + 3 × 10,240) × 4 B.
    states = 48 * 4 * (48 * 128 * 128 + 3 * 10_240)
    assert not any("upper bound" in note.lower() for note in qwen.notes)
    assert qwen.request_bytes[0] - plain.request_bytes[0] == 32_768 * 4096 + states


@pytest.mark.parametrize(
    ("engine", "options", "why"),
    [
        ("transformers", {}, "assisted generation is not planned"),
        ("ollama", {}, "DFlash and MTP models only"),
        ("sglang", {"pp": 2}, "does not speculate over 2 pipeline stages"),
        ("sglang", {"dp": 2, "dp_attention": True}, "does not work with data-parallel attention"),
        ("vllm", {"draft": drafted("Qwen/Qwen3-0.6B")}, "vocabulary of 151,936 is not the model's 128,256"),
        ("vllm", {"tp": 3}, "cannot be divided over 3 ranks"),
    ],
)
def test_what_an_engine_does_not_do_is_refused(engine: str, options: dict[str, Any], why: str) -> None:
    plan = planned(LLAMA_8B, engine=engine, **({"speculative_tokens": 4, "draft": drafted()} | options))
    assert why in plan.refused
    assert plan.kv_bytes is None


def test_a_draft_that_cannot_be_split_refuses_the_split() -> None:
    """Qwen2 0.5B has 14 heads: as a draft of a model on four ranks it cannot be."""
    small = drafted("Qwen/Qwen2-0.5B-Instruct")
    big = replace(catalogue.load("Qwen/Qwen2-7B-Instruct"), vocab_size=small.model.vocab_size if small.model else 0)
    reason = check(big, deployed(tp=4, speculative_tokens=4, draft=small))
    assert "14 attention heads cannot be divided over 4 ranks" in reason
    assert small.name in reason
    assert basis(big, deployed(tp=2, speculative_tokens=4, draft=small)).refused == ""


def test_states_of_a_draft_are_not_guessed() -> None:
    hybrid = drafted("Qwen/Qwen3.5-9B")
    for engine in ("vllm", "sglang"):
        plan = planned("Qwen/Qwen3.5-27B", engine=engine, speculative_tokens=2, draft=hybrid)
        assert "states of a draft" in plan.refused


def test_a_draft_proposes_at_least_one_token() -> None:
    with pytest.raises(UnitError, match="say how many"):
        deployed(draft=drafted())


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm", "llama.cpp"])
def test_a_draft_never_fits_more(engine: str) -> None:
    for gpu in ("rtx-4090", "h100-sxm"):
        alone = planned(LLAMA_8B, gpu=gpu, engine=engine, context=8192)
        plan = planned(LLAMA_8B, gpu=gpu, engine=engine, context=8192, speculative_tokens=4, draft=drafted())
        assert plan.requests is not None
        assert alone.requests is not None
        assert plan.requests.low <= alone.requests.low
        assert plan.requests.high <= alone.requests.high


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm", "llama.cpp"])
def test_the_parts_add_up_and_are_named(engine: str) -> None:
    plan = planned(LLAMA_8B, engine=engine, speculative_tokens=4, draft=drafted())
    (pool,) = plan.pools
    terms = {term.name: term.value for term in plan.terms}
    assert pool.drafted == (DRAFT_WEIGHTS, terms["weights of the draft model"])
    assert terms["weights"] + terms["weights of the draft model"] == pool.weights_bytes


# EAGLE heads. ---------------------------------------------------------------------------------------------------------

# The shape of yuhuili/EAGLE3-LLaMA3.1-Instruct-8B: one layer of the model's, 32,000 tokens to propose.
EAGLE = {
    "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "num_hidden_layers": 1, "hidden_size": 4096,
    "intermediate_size": 14_336, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128_256,
    "draft_vocab_size": 32_000, "max_position_embeddings": 2048, "torch_dtype": "float16",
}  # fmt: skip


def eagle(**changes: Any) -> Draft:
    return Draft(name="eagle", model=model_from_config(EAGLE | changes, "eagle"))


def test_an_eagle_head_is_loaded_without_the_models_embedding() -> None:
    """llama_eagle3.py: queries, keys and values read 2 × hidden, `fc` reads three hidden states, the output head has
    the draft's own vocabulary."""
    model = catalogue.load(LLAMA_8B)
    attention = 2 * 4096 * (4096 + 2 * 1024) + 4096 * 4096
    parameters = attention + 3 * 4096 * 14_336 + 3 * 4096 * 4096 + 32_000 * 4096
    for engine in ("vllm", "sglang", "tensorrt-llm"):
        own = part(model, deployed(engine=engine, speculative_tokens=3, draft=eagle()), DRAFT_WEIGHTS)
        assert own == pytest.approx(2 * parameters, rel=1e-4)
    apart = part(model, deployed(pp=2, speculative_tokens=3, draft=eagle()), DRAFT_WEIGHTS)
    assert apart == pytest.approx(2 * (parameters + 128_256 * 4096), rel=1e-4)


def test_the_first_eagle_has_no_head_of_its_own() -> None:
    """llama_eagle.py: a layer, and a joint of 2 × hidden; embedding and output head are the model's."""
    shape = {key: value for key, value in EAGLE.items() if key != "draft_vocab_size"}
    draft = Draft(name="eagle", model=model_from_config(shape | {"architectures": ["EagleLlamaForCausalLM"]}, "eagle"))
    own = part(catalogue.load(LLAMA_8B), deployed(speculative_tokens=3, draft=draft), DRAFT_WEIGHTS)
    layer = 4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14_336
    assert own == pytest.approx(2 * (layer + 2 * 4096 * 4096), rel=1e-4)


def test_an_eagle_heads_layer_joins_the_blocks() -> None:
    plan = planned(LLAMA_8B, speculative_tokens=3, draft=eagle())
    assert plan.request_bytes == (32_768 * 4096 * 33,)
    assert (
        "EAGLE heads such as eagle are not followed"
        in planned(LLAMA_8B, engine="llama.cpp", speculative_tokens=3, draft=eagle()).refused
    )


# Requests at once, and the commands. ----------------------------------------------------------------------------------


def test_sglang_runs_fewer_requests_beside_a_draft() -> None:
    """server_args.py: max_running_requests is 48 with a draft where nobody says."""
    small = {"engine": "sglang", "context": 1024, "speculative_tokens": 2, "draft": drafted()}
    plan = planned(LLAMA_8B, **small)
    assert plan.requests is not None
    assert plan.requests.low == 48
    more = planned(LLAMA_8B, **small, max_num_seqs=96)
    assert more.requests is not None
    assert more.requests.low == 96


def test_sglang_keeps_more_off_for_a_draft() -> None:
    """server_args.py: 6 GiB for a model of its own (STANDALONE), 2 GiB for heads, off the share that nobody states."""
    model, base = catalogue.load(LLAMA_8B), deployed(engine="sglang")
    total = base.gpu.memory_bytes
    alone = usable_share(model, base)
    own = usable_share(model, replace(base, speculative_tokens=3, draft=drafted()))
    head = usable_share(model, replace(base, speculative_tokens=3, draft=eagle()))
    assert (alone - own) * total == pytest.approx(6 * GIB, rel=0.03)
    assert (alone - head) * total == pytest.approx(2 * GIB, rel=0.05)
    stated = replace(base, utilization=0.8, speculative_tokens=3, draft=drafted())
    assert usable_share(model, stated) == 0.8


def said(model_id: str, **options: Any) -> str:
    plan = planned(model_id, **options)
    command = launch(plan.model, plan.deployment, 1)
    return " ".join([*command.words, *(text for _, text in command.files)])


@pytest.mark.parametrize(
    ("engine", "own", "draft", "head"),
    [
        ("vllm", '"method": "mtp"', '"method": "draft_model", "model": "Qwen/Qwen3-0.6B"', '"method": "eagle3"'),
        ("sglang", "NEXTN", "STANDALONE --speculative-draft-model-path Qwen/Qwen3-0.6B", "EAGLE3"),
        ("tensorrt-llm", "decoding_type: MTP", 'speculative_model: "Qwen/Qwen3-0.6B"', "decoding_type: Eagle3"),
        ("llama.cpp", "--spec-type draft-mtp", "--spec-type draft-simple --model-draft ./Qwen3-0.6B.gguf", ""),
    ],
)
def test_commands_say_who_proposes(engine: str, own: str, draft: str, head: str) -> None:
    options: dict[str, Any] = {"engine": engine, "speculative_tokens": 2}
    model_id = "zai-org/GLM-4.5-Air"
    assert own in said(model_id, **options, **({"pp": 4} if engine == "llama.cpp" else {"tp": 4}), draft=OWN_HEAD)
    assert draft in said("Qwen/Qwen3-8B", **options, draft=drafted("Qwen/Qwen3-0.6B"))
    if head:
        assert head in said(LLAMA_8B, **options, draft=eagle())


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm", "llama.cpp"])
def test_every_engine_says_in_which_format_a_draft_was_planned(engine: str) -> None:
    """No engine converts a draft while it loads, so the command needs a checkpoint or a file that is stored so."""
    told = replace(drafted("Qwen/Qwen3-0.6B"), weight_format="q8_0")
    for draft, many in ((told, 1), (replace(told, weight_format=None), 0)):
        plan = planned("Qwen/Qwen3-8B", engine=engine, speculative_tokens=2, draft=draft)
        command = launch(plan.model, plan.deployment, 1)
        assert sum("q8_0 weights" in note.lower() for note in command.notes) == many
        assert ("./Qwen3-0.6B-Q8_0.gguf" in command.words) == bool(many and engine == "llama.cpp")


def test_a_hostile_name_of_a_draft_is_quoted() -> None:
    hostile = replace(drafted(), name="a'; $(id) \"x")
    plan = planned(LLAMA_8B, speculative_tokens=2, draft=hostile)
    words = launch(plan.model, plan.deployment, 1).words
    config = json.loads(words[words.index("--speculative-config") + 1])
    assert config["model"] == hostile.name
