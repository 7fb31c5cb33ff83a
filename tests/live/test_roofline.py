"""Predictions: the machine's rates alone, calibrated lines and curves, and what binds, by numbers worked out by hand."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from typing import Any

import pytest

from kvcore.errors import LiveError
from kvcore.live.host import Host
from kvcore.live.roofline import (
    Calibration,
    Predicted,
    estimate_decode,
    estimate_prefill,
    fit_calibration,
    share_of_bandwidth,
    step_bytes,
    what_binds,
)
from kvcore.live.shape import shape_of_catalogue

HOST = Host(
    device="cpu", device_name="test", memory_bytes=2**34, available_bytes=2**33, threads=1,
    read_bandwidth_bytes_per_s=20e9, gemv_bytes_per_s={"bf16": 10e9, "fp32": 16e9, "int8": 8e9},
    matrix_flops_per_s={"bf16": 200e9, "fp32": 100e9}, measured_at="2026-11-29T21:00:00Z", torch_version="2.13.0",
    op_overhead_s=1e-6,
)  # fmt: skip
# 134,515,008 parameters, of which all are read in a step (the head is the embedding), 2 B each.
WEIGHTS = 269_030_016
# 2 (K and V) × 30 layers × 3 heads × 64 × 2 B.
TOKEN = 23_040


def smol() -> Any:
    return shape_of_catalogue("HuggingFaceTB/SmolLM2-135M-Instruct")


def test_a_decode_step_by_rates_alone() -> None:
    found = estimate_decode(HOST, smol(), 1000)
    assert found.weights_s == pytest.approx(WEIGHTS / 10e9)
    # 1,000 tokens are read, the new one among them, which was written first.
    assert found.cache_s == pytest.approx(1001 * TOKEN / 10e9)
    # 30 layers × 30 small operations × 1 µs.
    assert found.overhead_s == pytest.approx(0.0009)
    # 26.9030 + 2.3063 + 0.9 ms; arithmetic, 0.269 G operations at 200 G, hides behind the weights.
    assert found.seconds == pytest.approx(0.0301093, rel=1e-5)
    assert [term.knowledge for term in found.terms] == ["estimated"] * 4
    assert found.terms[0].formula == "269,030,016 B / 10.00 GB/s = 0.0269 s"


def test_a_batch_reads_weights_once_and_the_cache_of_each() -> None:
    one, eight = estimate_decode(HOST, smol(), 1000), estimate_decode(HOST, smol(), 1000, 8)
    assert eight.weights_s == one.weights_s
    assert eight.cache_s == pytest.approx(8 * one.cache_s)
    # Of 64 requests the arithmetic, 64 × 0.269 G operations at 200 G, takes longer than reading the weights.
    many = estimate_decode(HOST, smol(), 1000, 64)
    assert many.arithmetic_s == pytest.approx(64 * 2 * 134_479_872 / 200e9, rel=1e-3)
    assert many.seconds == pytest.approx(many.arithmetic_s + many.cache_s + many.overhead_s)


def test_a_prefill_is_arithmetic() -> None:
    found = estimate_prefill(HOST, smol(), 512)
    # 2 × 512 × (134,479,872 − 28,311,552 of the head) + 2 × 28,311,552 for one row of logits, and attention:
    # 30 layers × 512 × 513 / 2 pairs × 2 × 9 heads × (64 + 64).
    attention = 30 * 512 * 513 // 2 * 2 * 9 * 128
    assert found.arithmetic_s == pytest.approx((1024 * 106_168_320 + 2 * 28_311_552 + attention) / 200e9, rel=1e-6)
    assert found.cache_s == pytest.approx(512 * TOKEN / 10e9)
    packed = estimate_prefill(HOST, smol(), 512, weight_format="int8")
    assert packed.seconds == found.seconds


def test_a_window_stops_the_growth() -> None:
    shape = replace(smol(), windows=(256,) * 30)
    assert estimate_decode(HOST, shape, 4096).cache_s == pytest.approx(estimate_decode(HOST, shape, 300).cache_s)


def test_a_missing_rate_has_a_stand_in_or_is_an_error() -> None:
    bare = replace(HOST, gemv_bytes_per_s={})
    # The read bandwidth, 20 GB/s, stands in.
    assert estimate_decode(bare, smol(), 10).weights_s == pytest.approx(WEIGHTS / 20e9)
    with pytest.raises(LiveError, match="no matrix rate was measured"):
        estimate_decode(replace(HOST, matrix_flops_per_s={}), smol(), 10)
    with pytest.raises(LiveError, match="no read bandwidth was measured"):
        estimate_decode(replace(bare, read_bandwidth_bytes_per_s=0.0), smol(), 10)
    with pytest.raises(LiveError, match="weight format"):
        estimate_decode(HOST, smol(), 10, weight_format="fp4")


def test_two_points_make_a_line_for_each_batch() -> None:
    # Batch 1: 39.9 ms + 5 µs a token. Batch 4: 50 ms + 20 µs a token.
    made = fit_calibration([(1, 16, 0.03998), (1, 2016, 0.04998), (4, 16, 0.05032), (4, 516, 0.06032)])
    assert made.predict_decode_s(1016) == pytest.approx(0.04498)
    assert made.predict_decode_s(4016, 1) == pytest.approx(0.05998)
    assert made.predict_decode_s(2016, 4) == pytest.approx(0.09032)
    inside = [made.predict_decode_s(context).inside for context in (15, 16, 2016, 2017)]  # type: ignore[union-attr]
    assert inside == [False, True, True, False]
    # Nothing is known of other batches: one does not predict another.
    assert made.predict_decode_s(100, 2) is None
    assert made.predict_prefill_s(100) is None


def test_three_points_make_a_curve() -> None:
    # 10 ms + 1 ms a token + 1 µs a token squared.
    made = fit_calibration([], [(10, 0.0201), (100, 0.12), (1000, 2.01)])
    assert made.predict_prefill_s(500) == pytest.approx(0.76)
    assert made.predict_prefill_s(500).inside  # type: ignore[union-attr]
    assert made.predict_prefill_s(2000) == pytest.approx(6.01)
    assert not made.predict_prefill_s(2000).inside  # type: ignore[union-attr]
    # 400 tokens on top of 100: 0.01 + 0.4 + (500² − 100²) µs.
    assert made.predict_prefill_s(400, reused=100) == pytest.approx(0.65)
    assert not made.predict_prefill_s(400, reused=100).inside  # type: ignore[union-attr]
    # Two requests share what comes once.
    assert made.predict_prefill_s(500, 2) == pytest.approx(1.51)
    # Two lengths: a line, 10 ms + 1 ms a token.
    line = fit_calibration([], [(10, 0.02), (100, 0.11)])
    assert line.predict_prefill_s(50) == pytest.approx(0.06)


def test_more_points_are_fitted_and_noise_makes_no_negative_slope() -> None:
    # Between 0.9 and 1.1 of 40 ms at two equal contexts: relative squares meet at (0.9 + 1.1)/(0.81 + 1.21) of it …
    made = fit_calibration([(1, 16, 0.036), (1, 16, 0.044), (1, 1016, 0.04)])
    assert made.decode[0].per_token_s >= 0
    # (1/36 + 1/44) / (1/36² + 1/44²) = 39.2079 ms at 16, and 40 at 1,016, exactly: three points, two unknowns.
    assert made.predict_decode_s(16) == pytest.approx(0.0392079, rel=1e-5)
    assert made.predict_decode_s(1016) == pytest.approx(0.04, rel=1e-5)
    # A step that got faster with context is noise: no slope, (1/50 + 1/40) / (1/50² + 1/40²) = 43.902 ms.
    falling = fit_calibration([(1, 16, 0.05), (1, 1016, 0.04)])
    assert falling.decode[0].per_token_s == 0
    assert falling.predict_decode_s(500) == pytest.approx(0.0439024, rel=1e-5)
    # A prefill that bends downwards is taken as a line that grows.
    bent = fit_calibration([], [(10, 0.1), (100, 0.5), (1000, 0.9)])
    assert bent.prefill is not None
    assert bent.prefill.per_token_squared_s == 0
    assert bent.prefill.per_token_s > 0


def test_windows_bound_what_a_step_looks_at() -> None:
    # 16 tokens: 40.4 ms; 2,048, of which 256 are seen: 50 ms. 9.6 ms for 240 tokens: 40 µs each on 39.76 ms.
    made = fit_calibration([(1, 16, 0.0404), (1, 2048, 0.05)], windows=(256,) * 30)
    assert made.predict_decode_s(128) == pytest.approx(0.03976 + 128 * 4e-5)
    assert made.predict_decode_s(4096) == pytest.approx(0.05)
    # Half of the layers see everything: (256 + 2048)/2 = 1,152 tokens on average.
    mixed = fit_calibration([(1, 16, 0.0404), (1, 2048, 0.05)], windows=(None, 256) * 15)
    assert mixed.decode[0].per_token_s == pytest.approx(0.0096 / (1152 - 16))
    assert mixed.windows == ((0, 15), (256, 15))
    # Both contexts beyond the window look alike: a constant, not a division by nothing.
    flat = fit_calibration([(1, 300, 0.04), (1, 600, 0.04)], windows=(256,) * 30)
    assert flat.predict_decode_s(5000) == pytest.approx(0.04)


def test_a_calibration_needs_points() -> None:
    with pytest.raises(LiveError, match="batch 1 was measured at one context"):
        fit_calibration([(1, 16, 0.04), (1, 16, 0.05)])
    with pytest.raises(LiveError, match="prefill was measured at one length"):
        fit_calibration([], [(16, 0.04)])
    for seconds in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(LiveError, match="not a measured time"):
            fit_calibration([(1, 16, 0.04), (1, 160, seconds)])


def test_a_prediction_is_a_number() -> None:
    made = Predicted(0.04, True)
    assert json.dumps({"predicted_s": made}) == '{"predicted_s": 0.04}'
    assert pickle.loads(pickle.dumps(made)).inside
    assert made + 1 == 1.04


def test_a_calibration_comes_back_from_json() -> None:
    made = fit_calibration(
        [(1, 16, 0.04), (1, 1016, 0.05), (4, 16, 0.05), (4, 516, 0.06)], [(16, 0.05), (256, 0.4), (1024, 2.0)],
        windows=(None, 256) * 15, model="m", attention="sliding:256", weight_format="int4", kv_format="int8",
    )  # fmt: skip
    assert Calibration.from_dict(json.loads(json.dumps(made.to_dict()))) == made
    assert Calibration.from_dict(fit_calibration([(1, 16, 0.04), (1, 1016, 0.05)]).to_dict()).prefill is None


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"decode": None}, "lists"),
        ({"decode": [1]}, "not a line"),
        ({"decode": [{"batch": 1}]}, "not a line"),
        ({"decode": [{"batch": 1, "low": 1, "high": 2, "base_s": float("nan"), "per_token_s": 0}]}, "base_s"),
        ({"decode": [{"batch": 1, "low": 1, "high": 2, "base_s": True, "per_token_s": 0}]}, "base_s"),
        ({"decode": [{"batch": 1.5, "low": 1, "high": 2, "base_s": 1, "per_token_s": 0}]}, "batch"),
        ({"windows": [[256, 0]]}, "windows"),
        ({"windows": [[256]]}, "windows"),
        ({"windows": [[-1, 3]]}, "windows"),
        ({"model": 5}, "model"),
        ({"model": "a\nb"}, "model"),
        ({"prefill": []}, "not a line"),
        ({"more": 1}, "'more' is not a known key"),
    ],
)
def test_a_calibration_that_is_none_is_refused(change: dict[str, Any], match: str) -> None:
    raw = fit_calibration([(1, 16, 0.04), (1, 1016, 0.05)]).to_dict()
    with pytest.raises(LiveError, match=match):
        Calibration.from_dict(raw | change)
    with pytest.raises(LiveError):
        Calibration.from_dict([raw])


def test_the_bytes_of_a_step() -> None:
    assert step_bytes(smol(), 1000) == WEIGHTS + 1000 * TOKEN
    # int8: 64 numbers and one 4-byte scale a head, for K and for V.
    assert step_bytes(smol(), 1000, 4, kv_format="int8") == WEIGHTS + 4 * 1000 * 2 * 30 * 3 * 68
    assert share_of_bandwidth(HOST, 10**9, 0.1) == pytest.approx(0.5)
    with pytest.raises(LiveError):
        share_of_bandwidth(HOST, 10**9, 0.0)


def test_what_binds_is_said_only_where_the_numbers_show_it() -> None:
    # 16 of 20 GB/s: 80 %.
    said = what_binds(HOST, bytes_read=800_000_000, seconds=0.05)
    assert said == (
        "A step reads 800 MB in 50.0 ms: 16.0 GB/s, 80% of the 20.0 GB/s that this machine reads at. "
        "Memory bandwidth sets the pace."
    )
    # 9 GB/s: 45 % of the bandwidth, 90 % of what bf16 weights reach, where fp32 weights reach 16 GB/s.
    said = what_binds(HOST, bytes_read=270_000_000, seconds=0.03)
    assert said.endswith(
        "Converting bf16 binds before bandwidth does: bf16 weights are multiplied at 10.0 GB/s, fp32 weights, "
        "which need no conversion, at 16.0 GB/s."
    )
    # The same step where fp32 is no faster: the kernel binds, and nothing is said of conversion.
    level = replace(HOST, gemv_bytes_per_s={"bf16": 10e9, "fp32": 10e9})
    assert what_binds(level, bytes_read=270_000_000, seconds=0.03).endswith(
        "The arithmetic of that format binds before bandwidth does: bf16 weights are multiplied at 10.0 GB/s."
    )
    # On a GPU nothing is converted on the way.
    assert "Converting" not in what_binds(replace(HOST, device="cuda"), bytes_read=270_000_000, seconds=0.03)
    # 3 GB/s: near nothing that was measured. 30 layers × 30 × 1 µs are 0.9 ms: a hundredth of 90 ms, a third of 2.7.
    assert what_binds(HOST, bytes_read=270_000_000, seconds=0.09, layers=30).endswith(
        "These measurements do not show what sets the pace."
    )
    assert what_binds(HOST, bytes_read=8_100_000, seconds=0.0027, layers=30).endswith(
        "Small operations, about 0.9 ms of a step, set the pace."
    )
