"""The Variants screen without a browser: every model, every lesson, hostile addresses, what its controls do."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from itertools import pairwise

import pandas as pd
import pytest
from streamlit.testing.v1 import AppTest

from kvcore.engines.registry import labels
from kvcore.engines.reserve import stored_by
from kvcore.hardware.gpus import accelerator
from kvcore.scenario.scenario import Scenario
from kvcore.sources import catalogue
from kvcore.units import GIB, format_bytes
from kvcore.variants.ladder import ladder
from kvcore.variants.levers import lever, levers
from kvcore.variants.variants import variant
from pages.ui import lines, theme, widgets
from pages.ui.size import sections
from pages.ui.variants import curves, facts, lessons, lower, words
from tests.models import every_model, one_of_each_kind
from tests.pages.rendered import html_bodies
from tests.pages.screens import APP, open_screen


def open_page(**query: str) -> AppTest:
    """The Variants screen at an address, after a run without an exception."""
    return open_screen("variants", **query)


def rerun(at: AppTest) -> AppTest:
    at.run()
    assert not at.exception, at.exception[0].value
    return at


def numbers(at: AppTest) -> list[str]:
    return [metric.value for metric in at.metric][:4]


def read(text: str) -> str:
    """Markdown as it is read: without the marks that keep a name from being taken for markup."""
    return re.sub(r"\\([^\w\s])", r"\1", text).replace("\N{WORD JOINER}", "")


def title(at: AppTest) -> str:
    return read(at.title[0].value)


def subheaders(at: AppTest) -> list[str]:
    return [read(one.value) for one in at.subheader]


def captions(at: AppTest) -> str:
    return read(" ".join(caption.value for caption in at.caption))


def alts(at: AppTest) -> list[str]:
    return [chart.proto.alt for chart in at.get("plotly_chart")]


def table_html(at: AppTest) -> str:
    return "".join(body for body in html_bodies(at) if "kv-table" in body)


def test_opens_on_the_shipped_model_and_what_it_saves() -> None:
    at = open_page()
    assert title(at) == (
        "With 8 KV heads for 64 query heads, Llama 3.3 70B remembers **8× less** than with full multi-head attention: "
        "**10 GiB**"
    )
    assert numbers(at)[:3] == ["10 GiB", "320 KiB", "÷8"]
    # 8 × 3.35 TB/s over the 10 GiB and the 2 × 69,503,033,344 parameters that a token reads: all but the embedding.
    read = 10 * GIB + 2 * (70_553_698_304 - 128_256 * 8192 + 8192) + 2 * 80 * 8 * 128 * 2
    assert numbers(at)[3] == f"{8 * 3.35e12 / read:,.0f} /s"
    assert f"cache alone would allow {8 * 3.35e12 / (10 * GIB + 2 * 80 * 8 * 128 * 2):,.0f}" in captions(at)
    assert not at.warning
    assert not at.error
    assert len(alts(at)) == 4
    assert all(len(alt) > 60 for alt in alts(at))


def test_the_scenario_and_the_gpu_travel_from_page_to_page() -> None:
    at = AppTest.from_file(APP, default_timeout=60)
    at.query_params["tokens"] = "8192"
    at.query_params["gpu"] = "mi300x"
    at.run()
    at.switch_page("pages/variants.py")
    rerun(at)
    assert numbers(at)[0] == "2.5 GiB"
    assert at.selectbox(key="gpu").value == "mi300x"


@pytest.mark.parametrize(
    ("design", "expected"),
    [
        ("mha", ["80 GiB", "2.5 MiB", "the same"]),
        ("mqa", ["1.25 GiB", "40 KiB", "÷64"]),
        ("mla", ["2.81 GiB", "90 KiB", "÷28.4"]),
        ("sliding:4096", ["1.25 GiB", "0 B", "÷64"]),
        ("share:2", ["5 GiB", "160 KiB", "÷16"]),
        ("shipped@fp8", ["5 GiB", "160 KiB", "÷16"]),
    ],
)
def test_looking_at_it_otherwise(design: str, expected: list[str]) -> None:
    at = open_page()
    at.button_group(key="design").set_value(design)
    rerun(at)
    assert numbers(at)[:3] == expected
    assert "Llama 3.3 70B" in title(at)
    assert words.design_words(design) in table_html(at)


@pytest.mark.parametrize("name", lessons.LESSONS)
def test_a_lesson_shows_its_sentence(name: str) -> None:
    lesson = lessons.LESSONS[name]
    at = open_page()
    at.button(key=f"lesson_{name}").click()
    rerun(at)
    assert read(at.info[0].value) == f"**{lesson.title}.** {lessons.sentence(name)}"
    assert lessons.shown(lesson.scenario, lesson.options) == name


@pytest.mark.parametrize(
    ("name", "figures"),
    [
        ("mha-70b", ("2.5 MiB", "320 GiB", "298 GiB", "40 GiB")),
        ("mqa-70b", ("20 GiB", "0.31 GiB", "64-fold", "2.5 GiB")),
        ("mha-13b", ("6.25 GiB at 8K", "12.5 GiB at 16K")),
        ("latent", ("70,272 bytes", "69 KiB", "320 KiB", "under a quarter", "671B")),
        ("latent-6-bit", ("82.2%", "93.3%", "5.76 times")),
        ("kimi-k2", ("512", "70,272")),
        ("window", ("4,096", "512 MiB", "4 GiB")),
        ("7b-growth", ("128 KiB", "1 GiB, 2 GiB, 4 GiB, 8 GiB")),
        ("qwen3-next", ("12 of 48", "805.69 MiB", "37.69 MiB", "3 GiB")),
        ("nemotron-h", ("64 of its 118", "10 attend", "5.85 GiB", "32 GiB")),
        ("gemma-3", ("10.41 GiB", "17%", "62 GiB")),
    ],
)
def test_the_figures_of_the_lessons(name: str, figures: tuple[str, ...]) -> None:
    """Worked out by hand in tests/test_seed_figures.py and below."""
    said = lessons.sentence(name)
    for figure in figures:
        assert figure in said, said


def test_hybrids_by_hand() -> None:
    """Qwen3-Next at 32K: 12 × 2 × 2 × 256 × 2 B × 32,768 and 36 states of 32 × 128 × 128 × 2 B + 8,192 × 3 × 2 B."""
    states = 36 * (32 * 128 * 128 * 2 + 8192 * 3 * 2)
    held = 12 * 2 * 2 * 256 * 2 * 32_768 + states
    assert f"{held / 2**20:.2f} MiB" in lessons.sentence("qwen3-next")
    assert f"{states / 2**20:.2f} MiB" in lessons.sentence("qwen3-next")
    # Nemotron-H 56B at 128K: 10 layers of 8 KV heads × 128; in all 64 layers it would be 64/10 of that.
    full = 10 * 2 * 8 * 128 * 2 * 131_072
    assert full / GIB == 5
    assert "32 GiB" in lessons.sentence("nemotron-h")


def test_every_lesson_is_another_view_and_has_a_title() -> None:
    views = [(one.scenario, one.options) for one in lessons.LESSONS.values()]
    assert len({str(view) for view in views}) == len(views)
    assert all(one.title for one in lessons.LESSONS.values())


@pytest.mark.parametrize("models", [one_of_each_kind, pytest.param(every_model, marks=pytest.mark.slow)])
def test_every_catalogued_model_has_an_answer(models: Callable[[], tuple[str, ...]], subtests: pytest.Subtests) -> None:
    at = open_page()
    names = {entry.model_id: entry.display_name for entry in catalogue.entries()}
    for model_id in models():
        with subtests.test(model=model_id):
            at.selectbox(key="model").set_value(model_id)
            rerun(at)
            assert len(numbers(at)) == 4
            assert all(numbers(at))
            assert names[model_id] in title(at) or at.error
            said = " ".join([title(at), *subheaders(at), captions(at)])
            wrong = re.search(r"\bnan\b|\binf\b|None|-0\b|\b1 layers|\b1 tokens|\b1 requests|(?<![.\d])0× ", said)
            assert wrong is None


def test_an_address_sets_the_screen_and_what_it_cannot_say_is_named() -> None:
    at = open_page()
    for name, value in {
        "designs": "MLA:256+32@FP8,gqa:7,gqa:16", "design": "gqa:16", "weights": "q9", "gpus": "-1", "other": "w",
        "trend": "up",
    }.items():  # fmt: skip
        at.query_params[name] = value
    rerun(at)
    assert numbers(at)[0] == "20 GiB"
    assert "MLA 256 + 32 in fp8" in table_html(at)
    assert "must divide the 64 query heads" in captions(at)
    for name in ("weights", "gpus", "other", "trend"):
        assert f"The address's {name} was not taken" in read(at.warning[0].value)
    for name, value in {"designs": "mha,<b>x</b>", "design": "nope"}.items():
        at.query_params[name] = value
    rerun(at)
    for name in ("designs", "design"):
        assert f"The address's {name} was not taken" in read(at.warning[0].value)
    assert numbers(at)[0] == "10 GiB"


def test_building_one() -> None:
    at = open_page()
    at.selectbox(key="build_kind").set_value("window")
    rerun(at)
    at.text_input(key="build_window").set_value("2K")
    at.text_input(key="build_every").set_value("8")
    at.selectbox(key="build_format").set_value("fp8")
    at.button(key="build_go").click()
    rerun(at)
    assert at.button_group(key="design").value == "sliding:2048/8@fp8"
    # 80 layers × 2 × 8 × 128 B: 70 keep 2,048 tokens, 10 keep all 32,768.
    assert numbers(at)[0] == f"{(70 * 2048 + 10 * 32_768) * 2048 / 2**20:.2f} MiB".replace(".00", "")


def test_a_model_without_heads_and_an_encoder_have_a_page() -> None:
    mamba = open_page(model="state-spaces/mamba-2.8b-hf")
    assert "no query heads to build otherwise" in title(mamba)
    encoder = open_page(model="allenai/longformer-base-4096")
    assert numbers(encoder)[0] == "0 B"


def test_more_gpus_and_other_weights_change_the_bounds() -> None:
    at = open_page()
    at.selectbox(key="gpus").set_value("1")
    rerun(at)
    assert "weights do not fit" in table_html(at)
    at.selectbox(key="weights").set_value("q4_k")
    rerun(at)
    assert "weights do not fit" not in table_html(at)


def test_against_another_model() -> None:
    at = open_page(model="deepseek-ai/DeepSeek-V3")
    at.multiselect(key="compare").set_value(["meta-llama/Llama-3.3-70B-Instruct"])
    rerun(at)
    assert any(
        "remembers 4.7× less per token than Llama 3.3 70B because it stores one 576-wide latent a layer instead of 8 KV "
        "heads of 128" in one
        for one in subheaders(at)
    )
    assert "68.62 KiB" in table_html(at)


def test_their_cache_may_be_in_another_format() -> None:
    """DeepSeek 67B in 16 bits: 2 × 95 × 8 × 128 × 2 B; V2 in 6 bits: 60 × 576 × 6/8 B, 93.3% less."""
    at = open_page(model="deepseek-ai/DeepSeek-V2", kv="int6", compare="deepseek-ai/deepseek-llm-67b-base")
    at.selectbox(key="other").set_value("bf16")
    rerun(at)
    saved = 1 - (60 * 576 * 6 // 8) / (2 * 95 * 8 * 128 * 2)
    assert saved == pytest.approx(0.933, abs=0.0005)
    assert "25.31 KiB" in table_html(at)
    assert "380 KiB" in table_html(at)
    assert "×15" in table_html(at)


def test_names_stand_apart_and_near_their_lines() -> None:
    assert lines.spread([0.0, 5.0, 9.0], 1.0, 0.0, 10.0) == [0.0, 5.0, 9.0]
    assert lines.spread([4.0, 4.0], 1.0, 0.0, 10.0) == [3.5, 4.5]
    assert lines.spread([9.9, 10.0], 1.0, 0.0, 10.0) == [9.0, 10.0]
    assert lines.spread([0.0, 0.0, 0.1], 1.0, 0.0, 10.0) == [0.0, 1.0, 2.0]
    crowded = lines.spread([1.0, 1.1, 1.2, 5.0, 5.1], 0.5, 0.0, 6.0)
    assert all(after - before >= 0.5 - 1e-9 for before, after in pairwise(crowded))


def test_the_lines_take_the_width_and_the_names_a_margin_of_their_own() -> None:
    """On a wide screen a share of the plot for names would leave a third of it empty."""
    rungs = ladder(catalogue.load("meta-llama/Llama-3.3-70B-Instruct"),
                   ("mha", "sliding:4096/1000", "hybrid:4:gdn@turboquant_3bit_nc"), tokens=8192).rungs  # fmt: skip
    chosen = next(rung for rung in rungs if "@" in rung.design)
    made = curves.curves_chart(
        rungs, chosen, tokens=8192, batch=1, source=None, marks=(), colours=theme.PALETTES["light"]
    )
    assert made is not None
    low, high = made[0].layout["xaxis"]["range"]
    assert (math.log10(131_072) - low) / (high - low) > 0.9
    names = [note["text"] for note in made[0].layout["annotations"] if note["xref"] == "paper"]
    assert set(names) == {"MHA", "shipped", "window 4K 1/1000", "<b>hybrid 1/4 …</b>"}
    assert made[0].layout["margin"]["r"] >= 8 * len("window 4K 1/1000")


def test_a_name_in_a_download_is_never_a_formula() -> None:
    """Numbers stay numbers, below zero too, and what is missing stays empty."""
    rows = [{"model": "=1+1", "factor": -0.5, "note": "-x"}, {"model": "a=b", "factor": None, "note": "@sum"}]
    assert sections.csv(pd.DataFrame(rows)).decode() == "model,factor,note\n'=1+1,-0.5,'-x\na=b,,'@sum\n"


def test_tables_escape_and_name_their_rows() -> None:
    made = widgets.table("<i>", (("a", ""), ("b", "n")), [("<script>", ("1", "<b>"))], chosen=0)
    assert "<script>" not in made
    assert "&lt;script&gt;" in made
    assert "scope='row'" in made
    assert "aria-label='&lt;i&gt;'" in made
    # On a phone rows are cards: a cell then says itself under which title it stands, and roles keep it a table.
    assert "data-title='b'" in made
    assert made.count("role='row'") == 2
    assert all(f"role='{role}'" in made for role in ("table", "columnheader", "rowheader", "cell"))
    quoted = widgets.table("t", (("a", ""), ("'onclick='x", "")), [("", "1")])
    assert "data-title='&#x27;onclick=&#x27;x'" in quoted


@pytest.mark.parametrize(
    ("design", "said"),
    [
        ("mqa", "MQA"), ("gqa:4", "GQA-4"), ("mla:256+32@fp8", "MLA 256 + 32 in fp8"),
        ("sliding:1024/6", "window 1,024, 1 in 6 full"), ("share:3", "3 layers share"),
        ("hybrid:4:gdn", "1 in 4, rest gated delta net"), ("linear", "linear attention"),
        ("linear:kda", "all KDA"), ("shipped@kivi2", "this design in kivi2"),
    ],
)  # fmt: skip
def test_designs_in_words(design: str, said: str) -> None:
    assert words.design_words(design) == said


def test_against_a_model_that_keeps_nothing() -> None:
    at = open_page(compare="allenai/longformer-base-4096")
    assert "–" in table_html(at)


@pytest.mark.parametrize(
    ("query", "expected", "card"),
    [
        (
            {"model": "Qwen/Qwen3-Next-80B-A3B-Instruct"},
            "holds **37.69 MiB** before its first token",
            "nothing is held",
        ),
        ({"model": "openai/whisper-large-v3"}, "keeps keys and values for every head", ""),
        ({}, "holds **0 B** before its first token", "nothing is held yet"),
        (
            {"model": "allenai/longformer-base-4096"},
            "keeps no cache, so there is nothing to build",
            "it keeps no cache",
        ),
        ({"model": "state-spaces/mamba-2.8b-hf"}, "no query heads to build otherwise", "it has no heads"),
    ],
)
def test_before_the_first_token(query: dict[str, str], expected: str, card: str) -> None:
    at = open_page(tokens="0", **query)
    assert expected in title(at)
    assert card in captions(at)


@pytest.mark.parametrize(
    ("design", "expected"),
    [
        ("linear", "with linear attention in all layers would hold **160 MiB** instead of 0 B"),
        ("share:2048", "with one cache for all layers would hold"),
        ("hybrid:2048:kda", "with KDA in all layers would hold"),
        ("sliding:1/2048", "with a window of 1 token would hold"),
        ("hybrid:4:gdn", "with attention in 20 of 80 layers and gated delta net in the rest"),
    ],
)
def test_titles_say_what_was_really_built(design: str, expected: str) -> None:
    at = open_page(tokens="0")
    at.query_params["design"] = design
    rerun(at)
    assert expected in title(at)


def test_a_design_that_holds_as_much_says_its_size_once() -> None:
    at = open_page(tokens="4096", design="sliding:8192", designs="sliding:8192")
    at.query_params["design"] = "sliding:8192"
    rerun(at)
    assert (
        title(at)
        == "Llama 3.3 70B with a window of 8,192 tokens would remember **as much** as it ships with: **1.25 GiB**"
    )


def test_a_design_that_comes_out_as_another_is_shown_as_that_one() -> None:
    at = open_page()
    at.query_params["design"] = "gqa:8@fp8"
    rerun(at)
    assert numbers(at)[0] == "5 GiB"
    assert at.button_group(key="design").value == "shipped@fp8"


def test_a_latent_is_read_whole_by_every_gpu() -> None:
    """16 GPUs do not read DeepSeek-V3's latent 16 times faster: each has its own copy of 32,768 × 70,272 B."""
    at = open_page(model="deepseek-ai/DeepSeek-V3")
    at.selectbox(key="gpus").set_value("16")
    rerun(at)
    seconds = (32_768 * 70_272 + 70_272) / 3.35e12
    assert f"cache alone would allow {1 / seconds:,.0f}" in captions(at)


@pytest.mark.parametrize(("gpu", "words_"), [("epyc-9654", "its arithmetic is not known"), ("h100-sxm", "binds")])
def test_nothing_binds_where_no_rate_is_known(gpu: str, words_: str) -> None:
    from kvcore.hardware.gpus import accelerators

    known = {one.id for one in accelerators()}
    chosen = gpu if gpu in known else next(one.id for one in accelerators() if not one.dense_rates)
    at = open_page(gpu=chosen)
    assert any(words_ in one for one in subheaders(at))


def test_one_is_one() -> None:
    at = open_page(tokens="1")
    at.button_group(key="design").set_value("mha")
    rerun(at)
    said = " ".join([title(at), *subheaders(at), captions(at)])
    assert not re.search(r"\b1 (tokens|operations|layers|requests)\b", said), said
    # At any length that matters MHA does one operation a byte: 2 × 128 multiply-adds for 2 × 128 numbers of 2 bytes.
    at.selectbox(key="tokens").set_value("128K")
    rerun(at)
    assert any("1 operation a byte" in one for one in subheaders(at))


LATENT_LESSON = {
    "model": "deepseek-ai/DeepSeek-V2", "kv": "int6", "compare": "deepseek-ai/deepseek-llm-67b-base",
    "designs": "mha,gqa:8,mqa,shipped@bf16,shipped@fp8", "other": "bf16",
}  # fmt: skip


def test_heading_and_cards_agree_about_what_binds_on_one_gpu() -> None:
    """DeepSeek-V2's latent in 6 bits on 16 GPUs: each reads all of 60 × 576 × 6/8 B × 32,768 for 8 of 128 heads.

    60 layers × 2 × 8 heads × (576 + 512) operations over 60 × 432 B: 40.3 a byte, an eighth of where an H100 balances.
    """
    at = open_page(**LATENT_LESSON)
    heading = next(one for one in subheaders(at) if "bandwidth binds" in one or "arithmetic binds" in one)
    assert heading == (
        "Each of 16 GPUs reads for a new token 810 MiB, 40.3 operations a byte: on 16 × H100 SXM5 80GB bandwidth "
        "binds, and a smaller cache is also a faster one"
    )
    assert pytest.approx(40.3, abs=0.05) == 2 * 8 * (576 + 512) / 432
    cards = {metric.label: metric.value for metric in at.metric}
    assert cards["Read by each GPU"] == "810 MiB"
    assert cards["Arithmetic"] == "40.3 per byte"
    said = captions(at)
    assert "to make token 32,768 of one request: the whole cache: a latent is copied to every GPU" in said
    assert "below the 295 at which H100 SXM5 80GB would balance: bandwidth binds" in said
    assert "arithmetic binds" not in said
    assert f"{1000 * (60 * 432 * 32_769) / 3.35e12:.3g} ms" == cards["Cache alone"]


@pytest.mark.parametrize("gpus", ["1", "8", "16"])
@pytest.mark.parametrize("model", ["meta-llama/Llama-3.3-70B-Instruct", "deepseek-ai/DeepSeek-V3",
                                   "deepseek-ai/DeepSeek-V3.2", "Qwen/Qwen3-Next-80B-A3B-Instruct"])  # fmt: skip
def test_what_binds_has_one_answer_everywhere(model: str, gpus: str) -> None:
    at = open_page(model=model)
    at.selectbox(key="gpus").set_value(gpus)
    rerun(at)
    said = [*subheaders(at), *(read(one.value) for one in at.caption)]
    binding = re.findall(r"\b(bandwidth|arithmetic) binds", " ".join(one for one in said if "a byte:" in one))
    binding += re.findall(r"balance: (bandwidth|arithmetic) binds", " ".join(said))
    binding += re.findall(r"at least, a token; (bandwidth|arithmetic) binds", " ".join(said))
    assert len(binding) == 3
    assert len(set(binding)) == 1


def test_which_part_of_the_cache_a_gpu_reads() -> None:
    llama, latent = (catalogue.load(name) for name in ("meta-llama/Llama-3.3-70B-Instruct", "deepseek-ai/DeepSeek-V3"))
    assert facts.part_words(llama, 10 * GIB, 10 * GIB, 1) == ""
    assert facts.part_words(llama, 10 * GIB, 10 * GIB // 8, 8) == "its part of 10 GiB"
    assert facts.part_words(llama, 10 * GIB, 10 * GIB // 8, 16) == (
        "its part of 10 GiB; 8 KV heads for 16 GPUs, one at least on each"
    )
    assert facts.part_words(llama, 8 * GIB, 2 * GIB, 6) == (
        "its part of 8 GiB; 8 KV heads do not divide by 6, some GPUs have one more"
    )
    assert facts.part_words(variant(llama, "mqa"), GIB, GIB, 8) == (
        "the whole cache: its one KV head is copied to every GPU"
    )
    assert facts.part_words(latent, GIB, GIB, 8) == "the whole cache: a latent is copied to every GPU"


def test_what_the_next_token_adds_where_windows_are_full() -> None:
    """Llama 3.3 70B with a window of 1,024 in 67 of 80 layers, at 32K: 13 full layers × 4,096 B = 52 KiB."""
    at = open_page()
    at.button_group(key="design").set_value("sliding:1024/6")
    rerun(at)
    assert numbers(at)[1] == format_bytes(13 * 4096) == "52 KiB"
    assert "what the next token adds here; 320 KiB while no window is full" in captions(at)
    short = open_page(tokens="1000")
    short.button_group(key="design").set_value("sliding:1024/6")
    rerun(short)
    assert numbers(short)[1] == "320 KiB"
    assert "what the next token adds; no window is full yet" in captions(short)
    # Gemma 3 27B at 128K: 10 of 62 layers of 8 KiB are full ones.
    at.button(key="lesson_gemma-3").click()
    rerun(at)
    assert numbers(at)[1] == "80 KiB"
    assert "what the next token adds here; 496 KiB while no window is full" in captions(at)
    # Beside it Gemma 2 27B, 46 layers of 2 × 16 × 128 × 2 B = 8 KiB, half of them with windows of 4,096.
    assert "496 KiB<small>no window full; 80 KiB here</small>" in table_html(at)
    assert "368 KiB<small>no window full; 184 KiB here</small>" in table_html(at)


def test_shipped_is_what_ships_in_its_own_format() -> None:
    """DeepSeek-V2 in 6 bits is not what ships: that is a row of its own, 16/6 of it, and alone carries the mark."""
    at = open_page(**LATENT_LESSON)
    made = table_html(at)
    assert "this design in int6" in made
    assert "MLA 512 + 64 in bf16 (shipped)" in made
    assert ["(shipped)" in one for one in at.button_group(key="design").options].count(True) == 1
    assert "vs this design in int6" in made
    assert "vs shipped" not in made
    assert "none: no engine here stores this cache in int6" in made
    assert "none of ours" not in made
    assert "against this design in int6" in captions(at)
    at.button_group(key="design").set_value("shipped@bf16")
    rerun(at)
    assert title(at) == "DeepSeek V2 as it ships, in bf16, remembers **2.7× more than in int6**: **2.11 GiB**"


@pytest.mark.parametrize(("kv", "own"), [("auto", True), ("bf16", True), ("fp8", False), ("q8_0", False)])
def test_the_real_model_is_always_a_row_and_marked(kv: str, own: bool) -> None:
    at = open_page(kv=kv)
    marked = [one for one in at.button_group(key="design").options if "(shipped)" in one]
    assert marked == (["GQA-8 (shipped)"] if own else ["GQA-8 in bf16 (shipped)"])


def test_a_lesson_says_what_it_changed_with_a_link_to_the_answer() -> None:
    at = open_page()
    assert not at.toast
    at.button(key="lesson_gemma-3").click()
    rerun(at)
    said = read(at.toast[0].value)
    assert "**Five windows to one** → Gemma 3 27B: 10.41 GiB, ÷11.9 against MHA" in said
    assert "(#answer)" in said
    assert at.title[0].anchor == "answer"


def test_why_no_engine_stores_a_cache() -> None:
    shown = ladder(catalogue.load("meta-llama/Llama-3.3-70B-Instruct"), ("share:2", "shipped@kivi2"), tokens=8192)
    place = facts.Server(gpu=accelerator("h100-sxm"), count=8, weights=None)
    found = facts.facts(shown, Scenario(tokens=8192), place)
    assert found["shipped"].engines
    assert found["shipped"].engines_lack == ""
    assert found["shipped@kivi2"].engines == ()
    assert found["shipped@kivi2"].engines_lack == "no engine here stores this cache in kivi2"


def test_links_at_the_top_lead_to_every_section() -> None:
    at = open_page()
    linked = re.findall(r"\[[^]]+\]\(#([a-z]+)\)", next(one.value for one in at.markdown if "(#ladder)" in one.value))
    there = [one.anchor for one in at.subheader if one.anchor]
    assert linked == there == ["ladder", "growth", "gains", "attention", "prices", "against", "trend", "lessons"]


def test_every_statement_has_its_source_beside_it() -> None:
    made = table_html(open_page())
    gives_up = made[made.index("What each way of remembering gives up") :]
    assert "<a href='https://arxiv.org/abs/2305.13245' target='_blank' rel='noopener'>GQA</a>" in gives_up
    assert "<a href='https://github.com/ggml-org/llama.cpp/pull/21038' target='_blank' rel='noopener'>" in gives_up
    for one in levers():
        claims = (*one.claims, *([one.engines] if one.engines else []))
        for claim in claims:
            found = lower.links(claim.source)
            assert found, claim
            # Without an address stand only what needs no source, what has none, our own rules, and one blog.
            assert {name for name, address in found if not address} <= {
                "by definition", "no measurement found", "our rules for engines", "vLLM blog",
            }, claim  # fmt: skip
            assert all(len(name) <= 24 for name, _ in found), found


def test_what_no_variant_stands_for_says_which_engines_do_it() -> None:
    """FlashAttention, paging, prefix reuse and sparse reading change no layout that a rung could be asked about."""
    assert {one.id for one in levers() if one.engines} == {"sparse", "kernels", "paging", "prefix"}
    sparse = lever("sparse").engines
    assert sparse is not None
    laid_out = stored_by(catalogue.load("deepseek-ai/DeepSeek-V3.2"), "auto")
    assert laid_out
    assert sparse.text.startswith(", ".join(labels()[name] for name in laid_out) + " store")
    assert "vLLM, SGLang, TensorRT-LLM and transformers" in table_html(open_page())


def test_a_source_that_is_no_address_is_no_link() -> None:
    cell = widgets.Cited(text="<b>", sources=(("<i>", "javascript:alert(1)"), ("a", "https://a.b/'c")))
    made = widgets.table("t", (("a", ""), ("b", "")), [("x", cell)])
    assert "javascript" not in made
    assert "&lt;b&gt;<small>&lt;i&gt; · <a href='https://a.b/&#x27;c'" in made
