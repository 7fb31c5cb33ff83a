"""Every recorded case as a row: complete, with sources, and shares that can be counted again from the rows."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest

from kvcore.evidence import cases as recorded
from kvcore.evidence import field
from kvcore.evidence.cases import EVIDENCE, PLANNED, PUBLISHED, RUN, Case, cases, summary, worst
from kvcore.evidence.runs import recordings
from kvcore.paths import DATA


def lines(name: str) -> int:
    return len((DATA / name).read_text("utf-8").splitlines())


def by_id(name: str) -> Case:
    (found,) = (row for row in cases() if row.id == name)
    return found


def test_every_record_is_a_row() -> None:
    counts = Counter(row.evidence for row in cases())
    assert counts[PLANNED] == lines("engines/vllm.jsonl") == 218
    assert counts[RUN] == lines("engines/real_vllm.jsonl") + lines("engines/llamacpp.jsonl") >= 36
    assert counts[PUBLISHED] == lines("field/reports.jsonl") >= 157
    assert set(counts) == set(EVIDENCE)
    ids = [(row.evidence, row.id) for row in cases()]
    assert len(set(ids)) == len(ids)


def test_every_row_has_a_source_and_what_is_compared() -> None:
    for row in cases():
        assert row.source, row.id
        assert row.engine, row.id
        assert row.model, row.id
        assert row.compared, row.id
        assert (row.unit == "") == (row.reported is None), row.id
        assert (row.family == "") <= (not row.counted), row.id
        if not row.counted:
            assert "Not counted: " in row.note, row.id
        if row.url:
            assert row.url.startswith("https://"), row.id


def test_counted_reports_are_the_usable_ones() -> None:
    counted = {row.id for row in cases() if row.evidence == PUBLISHED and row.counted}
    assert counted == {report.id for report in field.usable()}


@pytest.mark.parametrize("record", recordings(), ids=lambda record: record.name)
def test_a_real_run_is_met(record) -> None:  # type: ignore[no-untyped-def]
    row = by_id(record.name)
    assert row.counted
    assert row.within(0)
    if record.status == "exit 1":
        assert "refused" in row.note
    else:
        assert row.reported == row.predicted == record.kv_tokens
        assert row.note.startswith("Its blocks and its concurrency are met too.")


def test_every_plan_is_met_to_the_byte() -> None:
    text = (DATA / "engines" / "vllm.jsonl").read_text("utf-8")
    records = {f"{one['model']} {one['tag']}": one for one in map(json.loads, text.splitlines())}
    for row in cases():
        if row.evidence == PLANNED:
            assert row.reported == row.predicted == records[row.id]["bytes_per_request"]
            assert row.note.endswith("are met too.")


def test_figures_of_single_rows() -> None:
    small = by_id("smol-toosmall")
    assert (small.compared, small.reported, small.predicted) == ("longest request that fits", 2688, 2688)
    refused = by_id("llama31-8b-bs16")
    assert (refused.reported, refused.predicted, refused.error) == (None, None, 0)
    gemma = by_id("gemma3-27b-c16384-np1")
    assert (gemma.reported, gemma.predicted, gemma.unit) == (1280 + 624, 1280 + 624, "MiB")
    ranks = by_id("vllm-13061")
    assert ranks.difference == pytest.approx(94_912 / 81_536 - 1)
    assert ranks.error == pytest.approx(0.163, abs=0.001)
    assert "rank with the least memory" in ranks.note


def test_the_shares_are_those_of_the_rows() -> None:
    rows = cases()
    shares = summary(rows)
    assert sum(share.total for share in shares) == sum(row.counted for row in rows)
    for share in shares:
        mine = [row for row in rows if row.counted and (row.evidence, row.engine) == (share.evidence, share.engine)]
        errors = [row.error for row in mine if row.error is not None]
        assert share.total == len(mine) == len(errors)
        assert share.exact == sum(error == 0 for error in errors)
        limits = (share.within_half_percent, share.within_2_percent, share.within_5_percent)
        assert limits == tuple(sum(error <= limit for error in errors) for limit in (0.005, 0.02, 0.05))
        assert share.worst.error == max(errors)
    assert [share.engine for share in shares if share.apart] == [shares[-1].engine] == ["ik_llama.cpp"]


def test_published_shares_are_those_of_the_field() -> None:
    theirs = {share.engine: (share.total, share.exact, share.within_half_percent) for share in field.summary()}
    ours = {
        share.engine: (share.total, share.exact, share.within_half_percent)
        for share in summary(cases())
        if share.evidence == PUBLISHED
    }
    assert ours == theirs


def test_at_least_95_percent_of_the_published_logs_within_half_a_percent() -> None:
    rows = [row for row in cases() if row.evidence == PUBLISHED and row.counted and not row.apart]
    assert sum(row.within(0.005) for row in rows) >= 0.95 * len(rows)


def test_what_is_further_is_explained() -> None:
    far = [row for row in worst(cases()) if row.counted]
    assert far
    assert all(len(row.note) > 40 for row in far)
    assert [row.error for row in far] == sorted((row.error for row in far), reverse=True)


def test_a_wrong_prediction_would_be_seen() -> None:
    row = by_id("smol-bs128-256M")
    assert recorded._error(11_648, 11_650) == pytest.approx(2 / 11_648)
    off = replace(row, predicted=2 * row.reported, error=1.0)
    assert off.difference == 1
    (share,) = summary([row, off])
    assert (share.total, share.exact, share.within_5_percent, share.worst) == (2, 1, 1, off)


def test_the_errors_of_a_figure() -> None:
    assert recorded._error(None, None) == 0
    assert recorded._error(1, None) == recorded._error(None, 1) == 1
    assert recorded._error(3.22, 3.2226, 0.005) == 0
    assert recorded._error(100, 103, 1) == pytest.approx(0.02)
