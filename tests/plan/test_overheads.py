"""Overheads: hand arithmetic, logged parts, the cross-validated fit, and properties that any range must have."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.fit_overheads import Judged, judge, judged, records, starts, summary
from kvcore import catalogue
from kvcore.hardware import accelerator
from kvcore.model.model import Model
from kvcore.paths import DATA
from kvcore.plan.deployment import Deployment
from kvcore.plan.overhead_engines import compute_buffer_gib
from kvcore.plan.overhead_fit import PRIOR, coefficients
from kvcore.plan.overhead_rule import activation_gib
from kvcore.plan.overhead_shape import captured_graphs, profile, shape
from kvcore.plan.overheads import Overheads, fitted, overheads
from kvcore.plan.rank_weights import rank_weights
from kvcore.units import GIB

LLAMA_8B, QWEN_06B = "meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-0.6B"


@pytest.fixture(scope="module")
def rows() -> list[Judged]:
    return judged(starts())


def deployed(gpu: str = "h100-sxm", **options: Any) -> Deployment:
    return Deployment(gpu=accelerator(gpu), **({"context": 8192} | options))


def of(model: Model, deployment: Deployment) -> Overheads:
    return overheads(model, deployment, rank_weights(model, deployment)[0])


def test_what_the_fit_must_hold(rows: list[Judged]) -> None:
    """Available memory within 3 % of the GPU at the median, 90 % inside, width at most 8 %: never by a fit that saw
    another start of the same source."""
    found = summary(rows)
    assert found["starts"] >= 40
    assert found["sources"] >= 20
    assert found["median_error"] <= 0.03
    assert found["inside"] >= 0.9
    assert found["median_width"] <= 0.08
    assert found["weights_within_2_percent"] >= 0.9
    assert found["weights_median_error"] <= 0.02


def test_the_reports_of_the_field_alone(rows: list[Judged]) -> None:
    found = summary([row for row in rows if row.start.record["report"]])
    assert found["starts"] >= 25
    assert found["median_error"] <= 0.03
    assert found["inside"] >= 0.9
    assert found["median_width"] <= 0.08


def test_what_is_stored_is_what_the_script_fits(rows: list[Judged]) -> None:
    stored = json.loads((DATA / "overheads.json").read_text("utf-8"))
    assert stored["cross_validated"] == {name: round(value, 4) for name, value in summary(rows).items()}
    assert {entry["id"] for entry in stored["residuals"]} == {row.start.case.id for row in rows}
    assert judge(starts()[0], fitted()).best == pytest.approx(stored["residuals"][0]["logged_gib"], abs=0.5)


def test_every_exclusion_has_a_reason_and_every_record_a_source() -> None:
    for record in records():
        assert record["source"]
        assert record["retrieved"]
        assert not record["excluded"] or len(record["excluded"]) > 20
    reports = {json.loads(line)["id"] for line in (DATA / "field" / "reports.jsonl").read_text("utf-8").splitlines()}
    assert {record["report"] for record in records() if record["report"]} <= reports


def test_without_reports_the_rule_is_what_the_code_says() -> None:
    assert coefficients([]) == PRIOR


@pytest.mark.parametrize(
    ("model", "logged"), [(QWEN_06B, 5.56), (LLAMA_8B, 4.76), ("openai/gpt-oss-20b", 7.38), ("Qwen/Qwen3-32B", 5.64)]
)
def test_logged_activation_peaks_of_one_table(model: str, logged: float) -> None:
    """llm-d's table for an H100 and vLLM 0.11: 1,024 sequences are sampled for, whatever the model's size."""
    found = profile(catalogue.load(model), deployed(engine_version="0.11.0", context=16_000))
    assert (found.tokens, found.seqs) == (8192, 1024)
    assert activation_gib(fitted().coefficients, found) == pytest.approx(logged, rel=0.05)


def test_a_layer_by_hand() -> None:
    """Llama 8B: 3 × 14,336 + 2 × 4,096 numbers of 16 bits a token; 2,048 tokens are 204,800 KiB; 256 × 128,256 logits."""
    found = profile(catalogue.load(LLAMA_8B), deployed("a100-sxm-80gb"))
    assert found.shape.layer_width == 3 * 14_336
    assert found.forward_gib * GIB == 2048 * (3 * 14_336 + 2 * 4096) * 2
    assert found.logits_gib * GIB == 256 * 128_256
    assert found.hidden_gib * GIB == 2048 * 4096 * 2


def test_a_layer_is_split_over_ranks_and_the_logits_are_not() -> None:
    model = catalogue.load(LLAMA_8B)
    one, four = (profile(model, deployed(tp=tp)) for tp in (1, 4))
    assert four.shape.layer_width * 4 == one.shape.layer_width
    assert four.logits_gib == one.logits_gib


def test_experts_count_by_those_a_token_uses() -> None:
    """Qwen3-30B-A3B: 8 experts of 768; the hidden size of 2,048 is wider than gate and up together."""
    assert shape(catalogue.load("Qwen/Qwen3-30B-A3B"), 1).layer_width == 8 * (2048 + 768)


def test_a_latent_model_keeps_room_beside_the_step() -> None:
    """DeepSeek V3.2: 65,536 latents expanded for 16 heads of 192 + 128, 40 requests of 132-byte index keys."""
    found = profile(catalogue.load("deepseek-ai/DeepSeek-V3.2"), deployed("h200-sxm", tp=8, context=163_840))
    assert found.workspace_gib * GIB == 65_536 * 16 * (192 + 128) * 2 + 40 * 163_840 * 132


def test_captured_graphs_as_logged() -> None:
    """vLLM's own lines: PIECEWISE=51 (largest=512), FULL=35 (largest=256) for 256 sequences; 3 and 2 for two."""
    assert captured_graphs(256) == 51 + 35
    assert captured_graphs(2) == 3 + 2


@pytest.mark.parametrize(
    ("gpu", "version", "tokens", "seqs"),
    [
        ("h100-sxm", "0.11.0", 8192, 1024),
        ("a100-sxm-80gb", "0.31.0", 2048, 256),
        ("l4", "0.27.1", 2048, 256),
        ("b200", None, 16_384, 1024),
    ],
)
def test_defaults_of_versions(gpu: str, version: str | None, tokens: int, seqs: int) -> None:
    found = profile(catalogue.load(LLAMA_8B), deployed(gpu, engine_version=version))
    assert (found.tokens, found.seqs) == (tokens, seqs)


def test_the_older_core_profiles_the_whole_context() -> None:
    """vllm#10517: 20,000 tokens take 2.07 GiB at the peak; above 32 Ki prefill is in chunks and nobody is sampled."""
    model = catalogue.load(LLAMA_8B)
    long = profile(model, deployed("rtx-3090", engine_version="0.6.4", context=20_000))
    assert activation_gib(fitted().coefficients, long) == pytest.approx(2.07, rel=0.1)
    longer = profile(model, deployed("rtx-3090", engine_version="0.6.4", context=35_000))
    assert (longer.tokens, longer.seqs) == (2048, 0)


def test_graphs_are_taken_off_from_their_version_on_and_not_when_eager() -> None:
    model = catalogue.load(LLAMA_8B)
    names = {part.name for part in of(model, deployed("l4", engine_version="0.27.1")).parts}
    assert "CUDA graphs" in names
    for other in (deployed("l4", engine_version="0.11.0"), deployed("l4", enforce_eager=True)):
        assert "CUDA graphs" not in {part.name for part in of(model, other).parts}


def test_stating_the_settings_narrows_the_range() -> None:
    model = catalogue.load(LLAMA_8B)
    open_ends = of(model, deployed(engine_version="0.11.0"))
    stated = of(model, deployed(engine_version="0.11.0", max_num_batched_tokens=8192, max_num_seqs=1024))
    assert stated.total.best == open_ends.total.best
    assert stated.total.high - stated.total.low < open_ends.total.high - open_ends.total.low
    assert open_ends.notes
    assert not stated.notes


def test_speculation_and_pictures_take_more() -> None:
    model = catalogue.load(LLAMA_8B)
    plain, drafted = of(model, deployed()), of(model, deployed(speculative_tokens=2))
    assert drafted.total.best > plain.total.best
    assert "speculation" in {part.name for part in drafted.parts}
    assert "multimodal encoder" in {part.name for part in of(catalogue.load("google/gemma-3-27b-it"), deployed()).parts}


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm", "llama.cpp", "ollama", "transformers"])
@pytest.mark.parametrize("model_id", [QWEN_06B, "openai/gpt-oss-120b", "deepseek-ai/DeepSeek-V3"])
def test_ends_are_in_order_and_parts_explain_themselves(engine: str, model_id: str) -> None:
    model = catalogue.load(model_id)
    for deployment in (
        deployed(engine=engine),
        deployed(engine=engine, tp=2),
        deployed(engine=engine, context=131_072),
    ):
        found = of(model, deployment)
        assert 0 <= found.total.low <= found.total.best <= found.total.high
        assert found.total.best == pytest.approx(sum(part.bytes.best for part in found.parts), abs=16)
        for part in found.parts:
            assert 0 <= part.bytes.low <= part.bytes.best <= part.bytes.high
            assert part.formula
            assert part.knowledge == "estimated"


def test_only_the_last_stage_samples() -> None:
    model = catalogue.load(LLAMA_8B)
    deployment = replace(deployed(engine_version="0.11.0"), pp=2)
    first, last = (overheads(model, deployment, weights) for weights in rank_weights(model, deployment))
    assert first.total.best < last.total.best


@pytest.mark.parametrize(("cells", "logged"), [(4096, 18.64), (8192, 22.64), (16_384, 30.64)])
def test_compute_buffers_that_llamacpp_logged(cells: int, logged: float) -> None:
    """data/engines/llamacpp.jsonl, SmolLM2-135M, 512 tokens a micro-batch."""
    found = compute_buffer_gib(catalogue.load("HuggingFaceTB/SmolLM2-135M-Instruct"), 512, cells, flash=True)
    assert found.best * 1024 == pytest.approx(logged, rel=0.01)
    assert found.low * 1024 < logged < found.high * 1024


def test_compute_buffers_without_flash_attention_hold_the_scores() -> None:
    """87.51 MiB were logged at 4,096 cells."""
    found = compute_buffer_gib(catalogue.load("HuggingFaceTB/SmolLM2-135M-Instruct"), 512, 4096, flash=False)
    assert found.best * 1024 == pytest.approx(87.51, rel=0.05)
