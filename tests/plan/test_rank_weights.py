"""Weights of a rank, by hand from published shapes, and as engines logged them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvcore.deployment import Deployment
from kvcore.engines.registry import engine as engine_of
from kvcore.errors import EngineError
from kvcore.evidence import field
from kvcore.hardware.gpus import accelerator
from kvcore.ranks.parts import COPIES
from kvcore.ranks.weights import ROTARY, TOWERS
from kvcore.sources import catalogue
from kvcore.units import GIB
from tests.models import rank_weights

LLAMA = "meta-llama/Llama-3.3-70B-Instruct"
DEEPSEEK = "deepseek-ai/DeepSeek-V3"
QWEN = "Qwen/Qwen3-30B-A3B"


def deployment(**chosen) -> Deployment:
    return Deployment(**{"engine": "vllm", "gpu": accelerator("h100-sxm"), "context": 8192} | chosen)


def only(model_id: str, **chosen):
    (found,) = rank_weights(catalogue.load(model_id), deployment(**chosen))
    return found, dict(found.parts)


# Llama 3.3 70B: 80 layers, hidden 8192, 64 heads and 8 KV heads of 128, width 28,672, vocabulary 128,256 (2,004 × 64).
EMBEDDING = 128_256 * 8192
QUERY_OUT, KEY_VALUE, MLP, NORMS = 2 * 8192 * 8192, 2 * 8192 * 1024, 3 * 8192 * 28_672, 2 * 8192


def test_a_dense_model_is_split_eight_ways() -> None:
    found, parts = only(LLAMA, tp=8)
    assert parts["attention"] == 2 * 80 * (QUERY_OUT + KEY_VALUE) // 8
    assert parts["feed-forward"] == 2 * 80 * MLP // 8
    assert parts["embedding"] == parts["output head"] == 2 * EMBEDDING // 8
    assert parts["norms"] == 2 * 80 * NORMS
    assert found.bytes == sum(parts.values()) == 17_640_718_336
    assert round(found.bytes / GIB, 1) == 16.4
    assert found.knowledge == "estimated"


def test_a_kv_head_is_held_twice_by_sixteen_ranks() -> None:
    _, parts = only(LLAMA, tp=16)
    assert parts["attention"] == 2 * 80 * (QUERY_OUT // 16 + KEY_VALUE // 8)
    assert parts["feed-forward"] == 2 * 80 * MLP // 16


@pytest.mark.parametrize(
    ("engine", "layers"), [("vllm", (27, 27, 26)), ("sglang", (26, 27, 27)), ("tensorrt-llm", (27, 27, 26))]
)
def test_three_stages_of_eighty_layers(engine: str, layers: tuple[int, ...]) -> None:
    found = rank_weights(catalogue.load(LLAMA), deployment(pp=3, engine=engine))
    ends = (EMBEDDING, 0, EMBEDDING)
    per_layer = QUERY_OUT + KEY_VALUE + MLP + NORMS
    assert [one.bytes for one in found] == [2 * (n * per_layer + end) for n, end in zip(layers, ends, strict=True)]
    assert [one.stage for one in found] == [0, 1, 2]


def test_a_stage_more_than_layers_is_refused() -> None:
    with pytest.raises(EngineError):
        rank_weights(catalogue.load(LLAMA), deployment(pp=81))


# DeepSeek-V3: 61 layers (3 dense), hidden 7168, 128 heads, query rank 1536, latent 512 + 64, key 128 + 64, value 128.
Q_DOWN, KV_DOWN = 7168 * 1536, 7168 * 576
Q_UP, KV_UP, OUT = 1536 * 128 * 192, 512 * 128 * 256, 128 * 128 * 7168
EXPERT = 3 * 7168 * 2048


def test_latents_and_their_down_projections_are_whole_on_every_rank() -> None:
    _, parts = only(DEEPSEEK, tp=8)
    assert parts["attention"] == 61 * (Q_DOWN + KV_DOWN + (Q_UP + KV_UP + OUT) // 8)
    assert parts["experts"] == 58 * 256 * EXPERT // 8
    assert parts["shared experts"] == 58 * EXPERT // 8
    assert parts["feed-forward"] == 3 * 3 * 7168 * 18_432 // 8
    assert parts["router"] == 2 * 58 * 256 * 7168
    assert parts["embedding"] == 2 * 129_280 * 7168 // 8
    # Of fp8 vLLM keeps the matrices that attention absorbs once more in 16 bits; SGLang has copies of 16 bits too.
    assert parts[COPIES] == 2 * 61 * KV_UP // 8
    _, kept = only("moonshotai/Kimi-K2.5", tp=8)
    assert COPIES not in kept
    _, copied = only("moonshotai/Kimi-K2.5", tp=8, engine="sglang")
    assert copied[COPIES] == 2 * 61 * 512 * 64 * 256 // 8


def test_whole_experts_are_rounded_up() -> None:
    _, parts = only(DEEPSEEK, tp=8, expert_parallel=True)
    assert parts["experts"] == 58 * 32 * EXPERT
    # 256 experts over 24 ranks: the fullest has 11.
    _, parts = only(DEEPSEEK, tp=8, dp=3, expert_parallel=True)
    assert parts["experts"] == 58 * 11 * EXPERT


@pytest.mark.parametrize("engine", ["sglang", "tensorrt-llm"])
def test_replicas_have_all_experts_unless_they_share_them(engine: str) -> None:
    _, alone = only(DEEPSEEK, tp=8, dp=2, engine=engine)
    _, whole = only(DEEPSEEK, tp=8, dp=2, expert_parallel=True, engine=engine)
    assert alone["experts"] == whole["experts"] == 58 * 32 * EXPERT


def test_replicas_of_vllm_share_the_experts() -> None:
    # Without expert parallel each of the 16 ranks has a sixteenth of every expert's width.
    _, parts = only(DEEPSEEK, tp=8, dp=2)
    assert parts["experts"] == 58 * 256 * EXPERT // 16
    assert parts["shared experts"] == 58 * EXPERT // 8
    _, whole = only(DEEPSEEK, tp=8, dp=2, expert_parallel=True)
    assert whole["experts"] == 58 * 16 * EXPERT
    assert whole["attention"] == parts["attention"]
    # The experts' input is then divided by sequence, and shared experts are whole.
    assert whole["shared experts"] == 58 * EXPERT


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_attention_is_whole_where_it_is_data_parallel(engine: str) -> None:
    _, parts = only(DEEPSEEK, dp=8, dp_attention=True, expert_parallel=True, engine=engine)
    assert parts["attention"] == 61 * (Q_DOWN + KV_DOWN + Q_UP + KV_UP + OUT)
    assert parts["experts"] == 58 * 32 * EXPERT
    assert parts["embedding"] == 2 * 129_280 * 7168
    # SGLang splits what is dense over all ranks, vLLM over those of a replica.
    assert parts["shared experts"] == 58 * EXPERT // (8 if engine == "sglang" else 1)
    assert parts["output head"] == 2 * 129_280 * 7168 // (8 if engine == "sglang" else 1)


def test_the_dense_layers_of_a_mixture_are_the_first() -> None:
    first, second = rank_weights(catalogue.load(DEEPSEEK), deployment(tp=8, pp=2))
    # vLLM: 31 and 30 layers, 3 of the first dense.
    assert dict(first.parts)["experts"] == 28 * 256 * EXPERT // 8
    assert dict(second.parts)["experts"] == 30 * 256 * EXPERT // 8
    assert "feed-forward" not in dict(second.parts)


def test_a_mixture_with_four_kv_heads() -> None:
    # 48 layers, hidden 2048, 32 heads and 4 KV heads of 128, 128 experts of width 768, vocabulary 151,936 (2374 × 64).
    _, parts = only(QWEN, tp=8)
    assert parts["attention"] == 2 * 48 * (2 * 2048 * 4096 // 8 + 2 * 2048 * 128)
    assert parts["experts"] == 2 * 48 * 128 * 3 * 2048 * 768 // 8
    assert parts["router"] == 2 * 48 * 128 * 2048
    assert parts["output head"] == 2 * 151_936 * 2048 // 8


def test_a_tied_head_is_held_at_both_ends() -> None:
    model = catalogue.load("meta-llama/Llama-3.2-3B-Instruct")
    (whole,) = rank_weights(model, deployment())
    first, last = rank_weights(model, deployment(pp=2))
    assert first.bytes + last.bytes - whole.bytes == 2 * 128_256 * 3072


def test_padding_of_the_vocabulary() -> None:
    # 50,257 rows are padded to 50,304 = 786 × 64; transformers pads nothing.
    _, padded = only("openai-community/gpt2", engine="vllm")
    _, plain = only("openai-community/gpt2", engine="transformers")
    assert padded["embedding"] - plain["embedding"] == 2 * (50_304 - 50_257) * 768


def test_llamacpp_splits_by_layers_and_leaves_the_table_in_host_memory() -> None:
    model = catalogue.load(LLAMA)
    per_layer = QUERY_OUT + KEY_VALUE + MLP + NORMS
    found = rank_weights(model, deployment(tp=2, engine="llama.cpp"))
    # 81 with the output: layer 40 is the last of the first 40.5.
    assert [one.bytes for one in found] == [2 * 41 * per_layer, 2 * (39 * per_layer + EMBEDDING)]
    assert [one.bytes for one in rank_weights(model, deployment(pp=2, engine="ollama"))] == [one.bytes for one in found]


def test_llamacpp_with_few_layers_on_the_gpu() -> None:
    chosen = deployment(engine="llama.cpp", options=(("n_gpu_layers", 21),))
    (found,) = rank_weights(catalogue.load(LLAMA), chosen)
    # The output is the first of the 21 to be placed.
    assert found.bytes == 2 * (20 * (QUERY_OUT + KEY_VALUE + MLP + NORMS) + EMBEDDING)


def test_an_index_is_what_is_loaded() -> None:
    model = replace(catalogue.load(LLAMA), checkpoint_bytes=141_107_412_992)
    (found,) = rank_weights(model, deployment())
    assert (found.bytes, found.knowledge) == (141_107_412_992, "exact")
    assert sum(size for _, size in found.parts) == found.bytes
    (part,) = rank_weights(model, deployment(tp=8))
    assert part.knowledge == "estimated"
    # The configuration's count is within 10⁻⁵ of the index's.
    assert part.bytes == pytest.approx(141_107_412_992 / 8, rel=2e-4)
    (other,) = rank_weights(model, deployment(weight_format="fp8"))
    assert other.knowledge == "estimated"


def test_a_checkpoint_whose_shape_is_not_known() -> None:
    model = replace(catalogue.load(LLAMA), weights=(), checkpoint_bytes=80_000)
    assert [one.bytes for one in rank_weights(model, deployment(tp=4, pp=2))] == [10_000, 10_000]
    assert rank_weights(replace(model, checkpoint_bytes=None), deployment()) == ()


def test_a_checkpoint_of_32_bits_is_served_in_16() -> None:
    model = catalogue.load("state-spaces/mamba-2.8b-hf")
    assert model.checkpoint_format == "fp32"
    (served,), (kept,) = (rank_weights(model, deployment(engine=name)) for name in ("vllm", "transformers"))
    assert kept.bytes == pytest.approx(2 * served.bytes, rel=1e-3)


def test_what_a_checkpoint_excepts_from_its_format_is_in_16_bits() -> None:
    # Kimi-K2.5: 384 experts in 4 bits with a 16-bit scale for 32; attention, shared experts and dense layers in 16.
    _, parts = only("moonshotai/Kimi-K2.5", tp=8, engine="sglang")
    assert parts["experts"] == 60 * 384 * EXPERT * 9 // 16 // 8
    assert parts["shared experts"] == 2 * 60 * EXPERT // 8
    assert parts["feed-forward"] == 2 * 3 * 7168 * 18_432 // 8
    heads_up = (1536 * 64 * 192 + 512 * 64 * 256 + 64 * 128 * 7168) // 8
    assert parts["attention"] == 2 * 61 * (Q_DOWN + KV_DOWN + heads_up)


def test_experts_in_mxfp4_are_padded_for_their_kernels() -> None:
    # gpt-oss-20b: 24 layers, 32 experts of 2880 × 2880, 4.25 bits; Marlin wants 2944 × 3072, Blackwell 3072 × 3072.
    sizes = {gpu: only("openai/gpt-oss-20b", gpu=accelerator(gpu))[1]["experts"] for gpu in ("a100-sxm-80gb", "b200")}
    bits = 24 * 32 * 3 * 17 // 4
    assert sizes["a100-sxm-80gb"] == bits * 2944 * 3072 // 8
    assert sizes["b200"] == bits * 3072 * 3072 // 8
    # 2880 over 8 ranks are 360, and 384 with padding.
    _, split = only("openai/gpt-oss-20b", gpu=accelerator("a100-sxm-80gb"), tp=8)
    assert split["experts"] == bits * 384 * 3072 // 8


def test_towers_are_loaded_with_the_language_model() -> None:
    _, parts = only("google/gemma-3-27b-it")
    # SigLIP: 27 layers of 4 × 1152² + 2 × 1152 × 4304; patches of 14 × 14 × 3; into 5376.
    counted = 27 * (4 * 1152**2 + 2 * 1152 * 4304) + 3 * 14 * 14 * 1152 + 1152 * 5376
    assert parts[TOWERS] == 2 * counted
    assert TOWERS not in only(LLAMA)[1]


def test_mamba_groups_are_held_by_every_rank() -> None:
    model = catalogue.load("nvidia/Nemotron-H-56B-Base-8K")
    (one,), (eight,) = (rank_weights(model, deployment(tp=tp)) for tp in (1, 8))
    # Eight groups over eight ranks: an eighth of everything.
    assert dict(eight.parts)["recurrent layers"] == pytest.approx(dict(one.parts)["recurrent layers"] / 8, rel=1e-6)
    (two,) = rank_weights(model, deployment(tp=16))
    # 256 heads of 64 and 8 groups of 256: 3 × 16,384 + 256 columns and rows by head, 4096 by group, at least one each.
    share = ((3 * 16_384 + 256) / 16 + 2 * 256) / (3 * 16_384 + 256 + 2 * 8 * 256)
    whole = dict(one.parts)["recurrent layers"]
    assert dict(two.parts)["recurrent layers"] == pytest.approx(whole * share, rel=1e-6)


def test_stages_of_every_engine_hold_every_layer_once() -> None:
    model = catalogue.load(LLAMA)
    for engine in ("vllm", "sglang", "tensorrt-llm", "llama.cpp", "ollama", "transformers"):
        for count in (1, 2, 3, 7, 80):
            found = engine_of(engine).stages(model, deployment(pp=count, engine=engine))
            assert [layer for stage in found for layer in stage] == list(range(80)), engine
            assert len(found) == count


# The checkpoint's format where the report's model is a published quantisation of the catalogue's.
_FORMATS = {"awq_marlin int4": "awq", "fp8": "fp8", "mxfp4 (Marlin)": None, None: None}
# What the weights line of these reports holds beside the model: not a matter of the checkpoint.
_NOT_THE_CHECKPOINT = {
    "nb-llama32-3b-a100": "buffers for LoRA adapters",
    "nb-llama32-3b-t4-lora": "buffers for LoRA adapters",
    "nb-llama32-1b-fp8-l4": "buffers for LoRA adapters",
    "thor-qwen35-122b-mtp": "re-quantised by hand, with a head that speculates",
    "fs-53530895476-qwen122": "re-quantised by hand",
    "aeon-9": "re-quantised by hand, with a draft model",
    "granite-switch-128": "composed; its configuration states the cache's shape only",
    "selfllm-qwen35-4b": "a vision tower, and its configuration is not in the catalogue",
    "sgl-fs-1272019175": "SGLang logs what free memory fell by: 73.58 GiB, of which the checkpoint is 71.2",
    "sgl-fs-53259568910": "SGLang logs what free memory fell by: 0.06 GiB more than the checkpoint",
    "sgl-fs-56671970114": "SGLang logs what free memory fell by; a fine-tune whose tower is not known",
}
_LOGGED = [
    report
    for report in field.reports()
    if report.identified
    and "weights_gib" in report.reported
    and report.weight_quant in _FORMATS
    and report.id not in _NOT_THE_CHECKPOINT
]


def test_enough_reports_log_their_weights() -> None:
    assert len(_LOGGED) >= 15


@pytest.mark.parametrize("report", _LOGGED, ids=lambda report: report.id)
def test_logged_weights_are_met_within_two_percent(report: field.Report) -> None:
    name = report.engine if report.engine == "sglang" else "vllm"
    chosen = deployment(
        tp=report.tp,
        pp=report.pp,
        engine=name,
        engine_version=report.engine_version if name == "vllm" else None,
        weight_format=_FORMATS[report.weight_quant],
    )
    found = rank_weights(report.model(), chosen)[0]
    assert found.bytes / GIB == pytest.approx(report.reported["weights_gib"], rel=0.02)


def test_every_catalogue_model_whose_parameters_are_known_has_weights() -> None:
    for one in catalogue.summaries():
        found = rank_weights(one.model, deployment())
        assert bool(found) == bool(one.model.weights), one.entry.model_id
        for stage in found:
            assert stage.bytes == sum(size for _, size in stage.parts)
            assert all(size > 0 for _, size in stage.parts), one.entry.model_id


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_more_ranks_and_smaller_formats_never_hold_more(engine: str) -> None:
    for one in catalogue.summaries():
        if not one.model.weights:
            continue
        splits = [
            max(rank.bytes for rank in rank_weights(one.model, deployment(tp=tp, engine=engine))) for tp in (1, 2, 4, 8)
        ]
        assert splits == sorted(splits, reverse=True), one.entry.model_id
        formats = [
            rank_weights(one.model, deployment(tp=2, engine=engine, weight_format=name))[0].bytes
            for name in ("bf16", "gptq8", "fp8", "int4", "gptq")
            # The stored format's own name means the checkpoint as it is, with what it left in 16 bits.
            if name != one.model.checkpoint_format or not one.model.stored_bits
        ]
        assert formats == sorted(formats, reverse=True), one.entry.model_id


def test_stages_together_hold_at_least_the_whole() -> None:
    for one in catalogue.summaries():
        layers = len(one.model.layers)
        if not one.model.weights or layers < 4:
            continue
        (whole,) = rank_weights(one.model, deployment())
        assert sum(stage.bytes for stage in rank_weights(one.model, deployment(pp=3))) >= whole.bytes - 3 * len(
            whole.parts
        )


@pytest.mark.parametrize(
    ("model_id", "gpu", "version", "tp", "gib"),
    [
        # Triton's kernels on Hopper since 0.11 (llm-d-planner, docs/empirical-vllm-memory-results.md), Marlin's before
        # (vllm-project/vllm#23278) and on Ampere (dennislee22/vLLM-benchmarking; myoceane.fr, ai-vllm-a100-gemma-4).
        ("openai/gpt-oss-120b", "h100-sxm", "0.11.0", 1, 64.38),
        ("openai/gpt-oss-20b", "h100-sxm", "0.11.0", 1, 13.47),
        ("openai/gpt-oss-120b", "h100-sxm", "0.10.1", 1, 65.9651),
        ("openai/gpt-oss-120b", "a100-sxm-80gb", "0.10.1.1", 4, 17.2217),
        ("openai/gpt-oss-20b", "a100-sxm-80gb", "0.19.0", 1, 13.72),
        # vllm-project/vllm pull request 21489; the rotary table of 8 × 131,072 positions is half a GiB of it.
        ("google/gemma-3-4b-it", "b200", "0.10.0", 1, 8.58),
        # ovg-project/kvcached#448.
        ("Qwen/Qwen3.5-4B", "a100-sxm-40gb", "0.24.0", 1, 8.61),
    ],
)
def test_weights_that_others_logged(model_id: str, gpu: str, version: str, tp: int, gib: float) -> None:
    chosen = deployment(gpu=accelerator(gpu), engine_version=version, tp=tp)
    assert rank_weights(catalogue.load(model_id), chosen)[0].bytes / GIB == pytest.approx(gib, rel=0.02)


def test_stretched_positions_have_a_long_rotary_table() -> None:
    # Gemma 3 4B: 8 × 131,072 positions of 256 numbers in 16 bits, whole on every rank; only vLLM's.
    assert only("google/gemma-3-4b-it", tp=2)[1][ROTARY] == 8 * 131_072 * 256 * 2
    assert ROTARY not in only("google/gemma-3-4b-it", engine="transformers")[1]
    assert ROTARY not in only(LLAMA)[1]
