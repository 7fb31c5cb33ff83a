"""Colours, sentences and the chart's axis: what the screens are made of, without Streamlit."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

from kvcore.engines.registry import engine_names
from kvcore.engines.reserve import Reservation, reserve
from kvcore.hardware.gpus import accelerator, capacity_lines
from kvcore.model import KINDS, Model
from kvcore.sources import catalogue
from kvcore.units import GIB
from pages.ui import lines, theme
from pages.ui.scenario import FORMAT_WORDS
from pages.ui.size import claims, examples, sections, words
from pages.ui.size import reserved as trio_launch
from pages.ui.size import words as trio_words

PALETTES = {"light": theme.LIGHT, "dark": theme.DARK}


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def model(model_id: str) -> Model:
    return catalogue.load(model_id)


def sentence(model_id: str, tokens: int = 32_768) -> str:
    found = model(model_id)
    return words.growth_sentence(found, tokens, found.resolve_format(), 1, None)


@pytest.mark.parametrize("name", PALETTES)
def test_chart_colours_can_be_read(name: str) -> None:
    colours = PALETTES[name]
    # The names at the ends of lines are text in the colour of the line.
    assert all(contrast(colour, colours.background) >= 3.5 for colour in colours.series)
    assert contrast(colours.ink, colours.background) >= 7
    assert contrast(colours.muted, colours.background) >= 4.5
    assert len(set(colours.series)) == len(colours.series) == len(set(theme.DASHES))


@pytest.mark.parametrize("name", PALETTES)
def test_every_kind_has_a_colour_and_kinds_differ_without_it(name: str) -> None:
    colours = PALETTES[name]
    assert set(colours.kinds) == set(KINDS)
    looks = {kind: theme.PATTERNS.get(kind, kind) for kind in KINDS if kind not in ("shared", "none")}
    assert len(set(looks.values())) == len(looks)
    assert "dashed" in theme.fill_style("none", colours)


def test_a_models_colour_does_not_depend_on_the_order_of_choosing() -> None:
    ids = ["a/one", "b/two", "c/three", "d/four", "e/five"]
    forward = theme.series_colours("main", ids, theme.LIGHT)
    assert forward == theme.series_colours("main", reversed(ids), theme.LIGHT)
    assert len(set(forward.values())) == 6


@pytest.mark.parametrize(
    ("model_id", "expected"),
    [
        (
            "meta-llama/Llama-3.3-70B-Instruct",
            "Doubling the conversation doubles the cache: 32K tokens hold 10 GiB, 128K",
        ),
        ("google/gemma-3-27b-it", "Past 1,024 tokens only 10 of 62 layers grow: 32K tokens hold 2.91 GiB, 128K"),
        ("mistralai/Mistral-7B-v0.1", "After 4,096 tokens it stops growing: 512 MiB, however long"),
        ("state-spaces/mamba-2.8b-hf", "It never grows: 11.88 MiB, however long"),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", "Only 12 of 48 layers grow, the states stay at"),
        ("openai/whisper-large-v3", "What it holds of the source stays at 234.38 MiB; its own cache grows"),
        ("allenai/longformer-base-4096", "This model keeps no cache"),
    ],
)
def test_growth_in_a_sentence(model_id: str, expected: str) -> None:
    assert sentence(model_id).startswith(expected)


@pytest.mark.parametrize(
    ("model_id", "expected"),
    [
        ("meta-llama/Llama-3.3-70B-Instruct", "All 80 layers keep every token"),
        ("google/gemma-3-27b-it", "1 layer in 6 keeps every token, and these 10 hold 86% of the bytes"),
        ("allenai/longformer-base-4096", "No layer holds anything"),
    ],
)
def test_where_it_sits_in_a_sentence(model_id: str, expected: str) -> None:
    found = model(model_id)
    rows = words.groups(found, 32_768, found.resolve_format(), None)
    assert words.where_sentence(found, rows) == expected


def test_the_strip_has_a_box_a_memory_and_says_so() -> None:
    found = model("deepseek-ai/DeepSeek-V3.2")
    rows = words.groups(found, 1024, found.resolve_format(), None)
    html = sections.strip(found, rows, theme.LIGHT)
    assert html.count('class="kv-layer"') == 61
    assert "61 latent" in html
    assert "61 indexer" in html


@pytest.mark.parametrize("tokens", [0, 1, 448, 1023, 32_768, 2**20, 10**9])
def test_the_axis_holds_the_scenario_and_the_limit(tokens: int) -> None:
    for limit in (None, 448, 131_072, 10_485_760):
        first, last = lines._ends(tokens, limit)
        assert 16 <= first < last <= 10**9
        if tokens >= 16:
            assert first <= tokens <= last
        if limit:
            assert first <= limit <= last


def test_the_chart_draws_what_is_computed() -> None:
    found = model("meta-llama/Llama-3.3-70B-Instruct")
    line = lines.Line(id="one", name="One", model=found, kv=found.resolve_format())
    drawn = lines.growth_chart([line], tokens=32_768, batch=1, capacities=capacity_lines(), colours=theme.LIGHT)
    assert drawn is not None
    figure, alt = drawn
    points = dict(zip(figure.data[0].x, figure.data[0].y, strict=True)) | dict(
        zip(figure.data[1].x, figure.data[1].y, strict=True)
    )
    assert points[32_768] == 10
    assert points[131_072] == 40
    assert "10 GiB at 32K" in alt
    assert "131,072" in alt
    heights = {shape.y0 for shape in figure.layout.shapes if shape.xref == "paper"}
    assert {card.bytes / GIB for card in capacity_lines() if card.label in alt} == heights


def test_lessons_and_figures_name_models_that_are_there() -> None:
    scenarios = [*examples.LESSONS.values(), *(figure.view for figure in claims.figures())]
    for scenario in scenarios:
        assert catalogue.find(scenario.model)
        assert all(catalogue.find(one) for one in scenario.compare)
    assert all(examples.label(name) != name for name in examples.LESSONS)


def test_every_layout_that_sets_both_formats_is_explained() -> None:
    from kvcore.formats import ELEMENT_FORMATS, KV_FORMATS

    assert set(FORMAT_WORDS) == set(KV_FORMATS) - set(ELEMENT_FORMATS)


def reserved(model_id: str, name: str, *, tp: int = 1, budget: int = 40 * GIB) -> Reservation:
    found = model(model_id)
    device = accelerator("h100-sxm")
    return reserve(found, name, length=found.context_limit, tp=tp, gpu=device, kv_bytes=budget)


def test_every_engine_has_a_name() -> None:
    assert tuple(trio_words.ENGINES) == engine_names()


@pytest.mark.parametrize(
    ("aside", "resident", "ranks", "expected"),
    [
        (10, 10, 1, "exactly what it remembers at that length"),
        (10, 80, 8, "8 ranks together: exactly what"),
        (30, 10, 1, "**3.0 times** what"),
        (173, 100, 1, "**73.0% more** than what"),
        (95, 100, 1, "**5.0% less** than what"),
        (100_001, 100_000, 1, "**under 0.1% more** than what"),
        (10, 0, 1, "it would remember nothing"),
    ],
)
def test_reserved_beside_resident(aside: int, resident: int, ranks: int, expected: str) -> None:
    assert trio_words.beside_resident(aside, resident, ranks).startswith(expected)


@pytest.mark.parametrize(
    ("model_id", "name", "tp", "expected"),
    [
        ("google/gemma-3-27b-it", "vllm", 1, "16,384 tokens that may be in flight"),
        ("google/gemma-3-27b-it", "vllm", 1, "1.06 GiB of padding layers"),
        ("google/gemma-3-27b-it", "sglang", 1, "no sliding pool for this architecture"),
        ("google/gemma-3-27b-it", "llama.cpp", 1, "whole 256s"),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", "vllm", 1, "3 whole blocks of the shared pool"),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", "vllm", 1, "blocks of 576; the last one is partly empty"),
        ("openai/whisper-large-v3", "vllm", 1, "room for 8,192 source tokens"),
        ("deepseek-ai/DeepSeek-V3.2", "vllm", 8, "every rank keeps the whole"),
        ("meta-llama/Llama-3.3-70B-Instruct", "vllm", 16, "8 of them on 16 ranks"),
    ],
)
def test_why_an_engine_sets_aside_more(model_id: str, name: str, tp: int, expected: str) -> None:
    said = trio_words.reasons(model(model_id), reserved(model_id, name, tp=tp), tp, reserved(model_id, name))
    assert any(expected in one for one in said), said


def test_nothing_needs_a_reason_where_nothing_is_added() -> None:
    found = reserved("meta-llama/Llama-3.3-70B-Instruct", "vllm", tp=8)
    alone = reserved("meta-llama/Llama-3.3-70B-Instruct", "vllm")
    assert trio_words.reasons(model("meta-llama/Llama-3.3-70B-Instruct"), found, 8, alone) == []


@pytest.mark.parametrize("name", engine_names())
def test_commands_can_be_pasted_whatever_the_model_is_called(name: str) -> None:
    llama = replace(model("meta-llama/Llama-3.3-70B-Instruct"), name="--port; rm -rf ~")
    made = trio_launch.command(llama, name, 2048, "auto", 1, accelerator("h100-sxm"), 80 * GIB)
    assert not isinstance(made, str)
    assert tuple(shlex.split(made.text.splitlines()[0])) == made.words
    assert "--port; rm -rf ~" not in made.words


def test_a_command_says_the_memory_and_has_its_file_beside_it() -> None:
    llama = model("meta-llama/Llama-3.3-70B-Instruct")
    made = trio_launch.command(llama, "vllm", 2048, "auto", 1, accelerator("h100-sxm"), 40 * GIB)
    assert not isinstance(made, str)
    assert made.words[-2:] == ("--kv-cache-memory-bytes", "42949672960")
    made = trio_launch.command(llama, "tensorrt-llm", 2048, "fp8", 1, accelerator("h100-sxm"), 40 * GIB)
    assert not isinstance(made, str)
    ((file, content),) = made.files
    assert made.words[-2:] == ("--extra_llm_api_options", file)
    assert content == "kv_cache_config:\n  dtype: fp8\n  max_gpu_total_bytes: 42949672960\n"
    assert "no word for q8_0" in str(
        trio_launch.command(llama, "vllm", 2048, "q8_0", 1, accelerator("h100-sxm"), 40 * GIB)
    )
