"""The chart of the catalogue over time, without Streamlit."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import date
from itertools import combinations, pairwise
from typing import Any

import pytest

from kvcore.variants import trend
from kvcore.variants.trend import CLASSES, TrendPoint
from pages.ui import theme
from pages.ui.variants import trend as trend_labels
from pages.ui.variants.trend import LOOKS, Label, Window, colour, trend_chart

CHOSEN = [
    "meta-llama/Llama-3.3-70B-Instruct",
    "google/gemma-3-27b-it",
    "deepseek-ai/DeepSeek-V3",
    "Qwen/Qwen3-Next-80B-A3B-Instruct",
]
PALETTES = {"light": theme.LIGHT, "dark": theme.DARK}


def drawn(measure: Any = "bytes", chosen: list[str] = CHOSEN, points: Any = None) -> tuple[dict[str, Any], str]:
    found, text = trend_chart(points or trend.points(), measure=measure, highlight=chosen, colours=theme.LIGHT)
    return found.to_plotly_json(), text


def marks(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {trace["name"]: trace for trace in found["data"] if trace.get("name")}


def texts(found: dict[str, Any]) -> list[str]:
    return [note["text"] for note in found["layout"]["annotations"]]


def of(trace: dict[str, Any], name: str) -> float:
    """Where the mark of that model stands, by its hover text."""
    (place,) = [at for at, text in enumerate(trace["customdata"]) if text.startswith(f"<b>{name}</b>")]
    return float(trace["y"][place])


@pytest.mark.parametrize("name", PALETTES)
def test_every_class_has_its_own_mark_and_colour(name: str) -> None:
    assert set(LOOKS) == set(CLASSES)
    assert len({look[3] for look in LOOKS.values()}) == len(CLASSES)
    assert len({colour(kind, PALETTES[name]) for kind in CLASSES}) == len(CLASSES)


def test_one_mark_a_design_at_its_value() -> None:
    found, _ = drawn()
    traces = marks(found)
    designs = [point for point in trend.points() if point.copy_of is None]
    assert sum(len(trace["x"]) for trace in traces.values()) == len(designs)
    # 2 × 32 × 32 × 128 × 2 B, 2 × 80 × 8 × 128 × 2 B and 576 × 2 × 61 B.
    assert of(traces["MHA"], "Llama 2 7B") == pytest.approx(524_288)
    assert of(traces["GQA"], "Llama 3.3 70B") == pytest.approx(327_680)
    assert of(traces["MLA"], "DeepSeek V3") == pytest.approx(70_272)
    # 8,192 B in each of 62 layers at the start; 10 of them and 1/32 of 52 over 32,768 tokens.
    assert of(traces["window"], "Gemma 3 27B") == pytest.approx(95_232)
    assert of(marks(drawn("growth")[0])["window"], "Gemma 3 27B") == pytest.approx(507_904)
    assert of(marks(drawn("share")[0])["GQA"], "Llama 3.3 70B") == pytest.approx(1 / 8)


@pytest.mark.parametrize("measure", ["bytes", "growth", "share"])
def test_pure_states_stand_on_a_named_line_below_all_others(measure: str) -> None:
    found, _ = drawn(measure)
    traces = marks(found)
    (level,) = set(traces["recurrent"]["y"])
    assert level < min(value for name, trace in traces.items() if name != "recurrent" for value in trace["y"])
    assert "recurrent: nothing per token" in texts(found)
    assert any(shape["y0"] == pytest.approx(level) for shape in found["layout"]["shapes"])
    assert 10 ** found["layout"]["yaxis"]["range"][0] < level


def test_years_stand_in_order_and_marks_within_their_month() -> None:
    found, _ = drawn()
    axis = found["layout"]["xaxis"]
    assert list(axis["ticktext"]) == ["2019–22", "2023", "2024", "2025", "2026"]
    assert all(before < after for before, after in pairwise(axis["tickvals"]))
    # A year is as wide as another: Llama 2 is from 18 July 2023, 198 of 365 days into its year, Llama 3.3 from
    # 6 December 2024, 340 of 366 into the next.
    at = {
        trace["customdata"][n].split("</b>")[0]: x for trace in marks(found).values() for n, x in enumerate(trace["x"])
    }
    assert at["<b>Llama 3.3 70B"] - at["<b>Llama 2 7B"] == pytest.approx(1 + 340 / 366 - 198 / 365)
    # September 2023 has no days: 243 to 273 of 365 days into the year.
    inside = at["<b>Mistral 7B v0.1"] - at["<b>Llama 2 7B"] + 198 / 365
    assert 243 / 365 < inside < 273 / 365


def test_ticks_name_byte_units_and_shares_as_eighths() -> None:
    axis = drawn()[0]["layout"]["yaxis"]
    assert axis["type"] == "log"
    assert dict(zip(axis["ticktext"], axis["tickvals"], strict=True))["64 KiB"] == 65_536
    share = drawn("share")[0]["layout"]
    assert list(share["yaxis"]["ticktext"])[:3] == ["100%", "1/8", "1/64"]
    guides = {shape["y0"] for shape in share["shapes"]}
    assert {1 / 8, 1 / 64} <= guides


def test_chosen_models_are_named_a_copy_at_its_design() -> None:
    found, text = drawn(chosen=["nvidia/DeepSeek-V4-Pro-NVFP4", "nobody/nothing"])
    assert "<b>DeepSeek V4 Pro NVFP4</b>" in texts(found)
    (rings,) = [trace for trace in found["data"] if trace.get("marker", {}).get("symbol") == "circle-open"]
    assert list(rings["y"]) == pytest.approx([of(marks(found)["MLA"], "DeepSeek V4 Pro")])
    assert "nobody" not in text


def test_the_text_alternative_has_the_counts_and_the_chosen_models() -> None:
    _, text = drawn()
    assert f"{len(trend.points())} models" in text
    for period in trend.periods(trend.points()):
        for kind, count in period.classes:
            assert f"{count} {LOOKS[kind][1]}" in text
    assert "Llama 3.3 70B: 320 KiB, grouped (GQA), December 2024." in text
    assert "Llama 3.3 70B: 12.5%, grouped" in drawn("share")[1]
    assert "Mamba 2.8B: nothing for a token" in drawn(chosen=["state-spaces/mamba-2.8b-hf"])[1]


def test_hover_says_name_date_class_parameters_and_bytes() -> None:
    (text,) = [one for one in marks(drawn()[0])["MLA"]["customdata"] if "<b>DeepSeek V3</b>" in one]
    for part in ("December 2024", "latent (MLA)", "671.0B parameters", "68.62 KiB", "1.4% of full"):
        assert part in text
    (copied,) = [one for one in marks(drawn()[0])["GQA"]["customdata"] if "<b>Qwen3 8B</b>" in one]
    assert "the same as Qwen3 8B FP8" in copied
    (short,) = [one for one in marks(drawn()[0])["window"]["customdata"] if "<b>Gemma 2 9B</b>" in one]
    assert "the model itself ends at 8,192 tokens" in short


def test_letters_are_large_enough() -> None:
    found, _ = drawn()
    sizes = [note["font"]["size"] for note in found["layout"]["annotations"]]
    sizes += [found["layout"]["legend"]["font"]["size"], found["layout"]["xaxis"]["tickfont"]["size"]]
    assert min(sizes) >= 15


def test_few_points_and_none() -> None:
    assert trend_chart([], measure="bytes", colours=theme.LIGHT)[1] == "No model with a release date."
    one = trend.points()[0]
    state = next(point for point in trend.points() if point.attention == "recurrent")
    for points in ([one], [state], [one, state]):
        for measure in ("bytes", "growth", "share"):
            found, text = drawn(measure, [one.model_id], points)
            low, high = found["layout"]["yaxis"]["range"]
            assert -math.inf < low < high < math.inf
            assert f"{len(points)} models" in text


def test_a_single_december_ends_in_january() -> None:
    december: TrendPoint = replace(trend.points()[0], released=date(2024, 12, 1), day_known=False)
    found, _ = drawn("bytes", [], [december])
    left, right = found["layout"]["xaxis"]["range"]
    assert left < marks(found)["MHA"]["x"][0] < right


def overlap(one: Any, other: Any) -> bool:
    return bool(one[0] < other[1] and other[0] < one[1] and one[2] < other[3] and other[2] < one[3])


def test_names_overlap_neither_on_a_phone_nor_on_a_wide_screen() -> None:
    window = Window(left=0, right=4, bottom=0, top=4, floor=0.2)
    crowd = [(1 + 0.1 * n, 2.0) for n in range(20)]
    labels = [
        Label(x=2 + 0.05 * n, y=2 + 0.02 * n, text=f"A long name {n}", strong=True, needed=True) for n in range(6)
    ]
    found = trend_labels.arranged(labels, crowd, window, theme.LIGHT)
    assert len(found) == 6
    for plot, (width, height) in enumerate(trend_labels.PLOTS):
        boxes = [box[plot] for box, _ in found]
        assert not any(overlap(*pair) for pair in combinations(boxes, 2))
        assert all(box[0] > -5 and box[1] < width + 5 and box[2] >= 0 and box[3] <= height for box in boxes)


def test_a_name_that_is_not_needed_gives_way() -> None:
    window = Window(left=0, right=4, bottom=0, top=4, floor=0.2)
    crowd = [(0.05 * n, 0.1 * m) for n in range(80) for m in range(40)]
    assert trend_labels.arrange([Label(x=2, y=2, text="A")], crowd, window, theme.LIGHT) == []
    assert len(trend_labels.arrange([Label(x=2, y=2, text="A", needed=True)], crowd, window, theme.LIGHT)) == 1
    assert len(trend_labels.arrange([Label(x=2, y=2, text="A")], [], window, theme.LIGHT)) == 1


@pytest.mark.parametrize("measure", ["bytes", "growth", "share"])
def test_the_chosen_models_of_a_real_chart_are_all_named(measure: str) -> None:
    found, _ = drawn(measure)
    assert sum(text.startswith("<b>") for text in texts(found)) == len(CHOSEN)


def test_long_names_are_cut_at_a_space() -> None:
    assert trend_labels.short("Llama 3.3 70B") == "Llama 3.3 70B"
    assert trend_labels.short("Qwen3 Next 80B-A3B Instruct") == "Qwen3 Next 80B-A3B…"
    assert len(trend_labels.short("x" * 50)) <= 23
