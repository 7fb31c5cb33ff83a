"""The field reports against our engines, and the engines that were really run."""

import json

import pytest

from kvcore.engines.vllm import VLLM
from kvcore.errors import EngineError, KVCoreError
from kvcore.evidence import field
from kvcore.evidence.runs import recordings
from kvcore.paths import DATA


def _table(rows: list[field.FieldComparison]) -> str:
    shares = "; ".join(f"{s.engine} {s.within_half_percent}/{s.total}" for s in field.summary(rows))
    far = [f"{row.report.id} {row.figure} {row.reported} ≠ {row.predicted} ({row.error:.2%})" for row in rows]
    return f"within 0.5 %: {shares}; beyond: {[text for row, text in zip(rows, far, strict=True) if row.error > 0.005]}"


@pytest.fixture(scope="module")
def rows() -> list[field.FieldComparison]:
    return [field.compare(report) for report in field.usable()]


def test_at_least_95_percent_are_within_half_a_percent_beside_the_fork(rows: list[field.FieldComparison]) -> None:
    own = [row for row in rows if not field.family(row.report.engine).apart]
    close = sum(row.error <= field.CLOSE for row in own)
    assert len(own) >= 40, f"only {len(own)} usable reports"
    assert close / len(own) >= 0.95, f"{close} of {len(own)}; {_table(own)}"


def test_the_fork_is_complete(rows: list[field.FieldComparison]) -> None:
    fork = [row for row in rows if field.family(row.report.engine).apart]
    assert len(fork) == 33
    assert all(row.error == 0 for row in fork), _table(fork)


def test_every_exception_is_explained_in_the_data(rows: list[field.FieldComparison]) -> None:
    unexplained = [row for row in rows if row.error > field.CLOSE and not row.report.explanation]
    assert not unexplained, _table(unexplained)


@pytest.mark.parametrize(
    "report_id",
    [
        "fs-9297248278",  # Gemma 3 27B, 50.05x
        "fs-57700282700",  # MedGemma 27B at 131,072
        "fs-57814046151",  # MedGemma 27B in fp8, two batches in flight
        "fs-67319049985",  # EXAONE 4, 10.28x
        "fs-63396953296",  # DeepSeek-V4-Flash in 0.23.0, 8.30x
        "fs-60215495369",  # DeepSeek-V4-Flash in 0.22.1rc1, 9.76x
        "vllm-44376",  # DeepSeek-V4-Flash in 0.22, refused: 13,528 tokens at most
        "fs-53530895476-gemma4",  # Gemma 4 26B, 33.42x
        "fs-53530895476-qwen122",  # Qwen3.5 122B, 11.79x
        "thor-qwen35-122b-mtp",  # with a multi-token-prediction layer, 6.42x
        "selfllm-qwen35-4b",
        "club-bench-165",
        "club-bench-523",
        "sgl-fs-65830671609",
        "sgl-18039",
        "fs-59045670747",  # Qwen3.5 9B in llama.cpp
        "fs-56762473812",  # Gemma 4 E2B
        "fs-63460504310-full",  # gpt-oss 20B, its full layers
        "fs-63460504310-swa",  # and its windows
        "unsloth-7530-b",  # Gemma 3 270M
        "ggml-27680-dsv4-swa",
    ],
)
def test_hybrid_and_sliding_models_are_exact(report_id: str) -> None:
    report = next(one for one in field.reports() if one.id == report_id)
    assert report in field.usable()
    found = field.compare(report)
    assert found.error == 0, (found.reported, found.low, found.high)
    requests = field.concurrency(report)
    assert requests is None or requests.error == 0 or report.explanation, (
        requests.reported,
        requests.low,
        requests.high,
    )


def test_a_wrong_model_is_seen() -> None:
    from dataclasses import replace

    report = next(one for one in field.reports() if one.id == "fs-9297248278")
    wrong = field.compare(replace(report, catalogue_id="google/gemma-3-4b-it"))
    assert wrong.error > 0.1


def test_logged_concurrency_is_met_too() -> None:
    found = [(report, field.concurrency(report)) for report in field.usable()]
    stated = [(report, one) for report, one in found if one is not None]
    far = [report.id for report, one in stated if one.error > field.CLOSE and not report.explanation]
    assert len(stated) >= 20
    assert not far


def test_every_report_has_a_source_and_no_model_is_both_named_and_inlined() -> None:
    for report in field.reports():
        assert report.source
        assert report.retrieved
        assert not (report.catalogue_id and report.config), report.id
        assert report.model_note or not report.config, report.id
    assert len({report.id for report in field.reports()}) == len(field.reports()) == 159


def test_every_identified_model_is_read() -> None:
    for report in field.reports():
        if report.identified:
            assert report.model().layers, report.id


def test_inline_models_are_all_used() -> None:
    used = {report.config for report in field.reports() if report.config}
    assert used == {path.name for path in (DATA / "field" / "models").glob("*.json")}


def test_what_is_not_identified_is_refused_and_left_out() -> None:
    report = next(one for one in field.reports() if one.id == "vllm-13596")
    assert report not in field.usable()
    with pytest.raises(EngineError, match="not identified"):
        field.prediction(report)


def test_prediction_is_a_pair_and_a_note() -> None:
    report = next(one for one in field.reports() if one.id == "vllm-13061")
    predicted, reported, note = field.prediction(report)
    assert (predicted, reported) == (94912, 81536)
    assert "least memory" in note


def test_summary_counts_the_fork_last_and_names_the_worst() -> None:
    shares = field.summary()
    assert [share.engine for share in shares if field.family(share.engine).apart] == [shares[-1].engine]
    assert shares[0].engine == "vllm"
    assert shares[0].worst == "vllm-13061"
    assert sum(share.total for share in shares) == len(field.usable())
    for share in shares:
        assert share.exact <= share.within_half_percent <= share.within_2_percent <= share.within_5_percent


def test_everything_that_can_be_compared_is() -> None:
    ids = {one.report.id for one in field.compared()}
    assert {report.id for report in field.usable()} <= ids


@pytest.mark.parametrize("record", [r for r in recordings() if r.num_blocks is not None], ids=lambda r: r.name)
def test_recorded_vllm_is_predicted(record) -> None:  # type: ignore[no-untyped-def]
    if record.status == "exit 1":
        with pytest.raises(EngineError, match="no common block size"):
            record.predicted()
        return
    capacity = record.predicted()
    assert capacity.blocks == record.num_blocks
    assert capacity.kv_cache_size_tokens == record.kv_tokens
    assert f"{float(capacity.max_concurrency):.2f}" == f"{record.concurrency:.2f}"
    if record.concurrency_exact:
        assert str(float(capacity.max_concurrency)) == record.concurrency_exact
    layout = VLLM.layout(record.model(), record.settings())
    needs = [(g["n_layers"], g["page_size_bytes"], -(-g["max_memory_usage_bytes"] // g["page_size_bytes"]))
             for g in record.groups]  # fmt: skip
    assert sorted((g.layers, g.page_bytes, g.blocks_per_request) for g in layout.groups) == sorted(needs)


@pytest.mark.parametrize("record", [r for r in recordings() if r.num_blocks is None], ids=lambda r: r.name)
def test_recorded_refusals_are_predicted_in_their_words(record) -> None:  # type: ignore[no-untyped-def]
    (line,) = record.predicted().log_lines
    assert any(line in logged for logged in record.log_lines)


def test_recordings_are_complete() -> None:
    assert len(recordings()) == 20
    assert all(json.dumps(dict(record.config)) for record in recordings())
    with pytest.raises(KVCoreError):
        next(r for r in recordings() if r.name == "llama31-8b-bs16").predicted()
