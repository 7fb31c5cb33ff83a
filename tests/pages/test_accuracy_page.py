"""The Accuracy screen as Streamlit's own test runner sees it: the records, the filters, and a log that is brought."""

from __future__ import annotations

import csv
import io

import pytest
from streamlit.testing.v1 import AppTest

from kvcore.evidence.cases import PUBLISHED, RUN, cases
from kvcore.evidence.runs import recordings
from pages.ui import theme
from pages.ui.accuracy import chart as accuracy_chart
from pages.ui.accuracy import words
from pages.ui.accuracy.log import EXAMPLE, EXAMPLE_MODEL
from pages.ui.accuracy.sections import frame
from pages.ui.size import sections
from tests.pages.rendered import html_bodies
from tests.pages.screens import open_screen

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
LOG = f"""INFO 05-01 10:00:00 [utils.py:233] non-default args: {{'model': '{LLAMA}', 'max_model_len': 8192}}
INFO 05-01 10:00:01 [core.py:58] Initializing a V1 LLM engine (v0.9.1) with config: model='{LLAMA}', dtype=torch.bfloat16, max_seq_len=8192, tensor_parallel_size=1, pipeline_parallel_size=1, kv_cache_dtype=auto
INFO 05-01 10:00:30 [gpu_worker.py:227] Available KV cache memory: 10.00 GiB
INFO 05-01 10:00:31 [kv_cache_utils.py:715] GPU KV cache size: 81,920 tokens
INFO 05-01 10:00:31 [kv_cache_utils.py:719] Maximum concurrency for 8,192 tokens per request: 10.00x
"""


def open_page(**query: str) -> AppTest:
    """The Accuracy screen after its first run without an exception."""
    return open_screen("accuracy", **query)


def ran(at: AppTest) -> AppTest:
    assert not at.exception, at.exception[0].value
    return at


def paste(at: AppTest, text: str) -> AppTest:
    return ran(at.text_area(key="log_text").set_value(text).run())


def texts(at: AppTest) -> str:
    found = [one.value for one in (*at.markdown, *at.caption, *at.subheader)]
    return "\n".join([*found, *html_bodies(at)])


def alt(at: AppTest) -> str:
    (chart,) = at.get("plotly_chart")
    return chart.proto.alt


def test_opens_on_the_shares() -> None:
    at = open_page()
    published = [row for row in cases() if row.counted and row.evidence == PUBLISHED and not row.apart]
    met = sum(row.within(0.005) for row in published)
    assert at.title[0].value.startswith(f"**{met} of {len(published)}** published start-up logs")
    assert at.metric[0].value == f"{met} of {len(published)}"
    assert at.metric[2].value == "218 of 218"
    assert len(at.metric) == 4
    assert "both axes logarithmic" in alt(at)
    assert "DeepSeek-R1-Distill-Qwen-14B +16.4%" in alt(at)
    assert "rank with the least memory" in texts(at)
    assert "https://github.com/vllm-project/vllm/issues/13061" in texts(at)
    assert not at.error
    assert not at.warning


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("acc_engine", ["sglang"], "All 6 cases are exact"),
        ("acc_engine", ["ik_llama.cpp"], "33 of 33 of ik_llama.cpp, which counts apart"),
        ("acc_evidence", [RUN], "All 36 cases are exact"),
        ("acc_family", ["gpt_oss"], "cases are exact"),
    ],
)
def test_filters(key: str, value: list[str], sentence: str) -> None:
    at = open_page()
    before = at.title[0].value
    ran(at.multiselect(key=key).set_value(value).run())
    assert sentence in at.subheader[0].value
    assert at.title[0].value == before


def test_filters_that_leave_nothing() -> None:
    at = open_page()
    at.multiselect(key="acc_engine").set_value(["sglang"])
    ran(at.multiselect(key="acc_evidence").set_value([RUN]).run())
    assert not at.get("plotly_chart")
    assert "No recorded case" in at.info[0].value


def test_what_is_not_counted_can_be_seen_and_changes_no_share() -> None:
    at = open_page()
    before = at.subheader[0].value
    ran(at.toggle(key="acc_all").set_value(True).run())
    assert at.subheader[0].value == before
    assert "not counted" in alt(at)
    assert "Not counted: " in texts(at)
    ran(at.multiselect(key="acc_family").set_value([""]).run())
    assert at.subheader[0].value == "None of these cases is counted."


def test_the_table_has_every_case_and_its_source() -> None:
    rows = list(csv.DictReader(io.StringIO(sections.csv(frame(list(cases()))).decode())))
    assert len(rows) == len(cases())
    assert all(row["source"] for row in rows)
    (one,) = (row for row in rows if row["link"].endswith("vllm/issues/13061"))
    assert (float(one["reported"]), float(one["predicted"])) == (81_536, 94_912)


def test_a_log_is_compared() -> None:
    at = paste(open_page(), LOG)
    text = texts(at)
    assert "vLLM reported what we predict for Llama 3.1 8B: both figures agree" in text.replace("\\", "")
    assert text.count("81,920") >= 2
    assert "0.9.1" in text
    assert "log" not in at.query_params
    assert LLAMA not in str(at.query_params)
    assert not at.error


def test_a_difference_is_said() -> None:
    at = paste(open_page(), LOG.replace("81,920", "70,000").replace("10.00x", "8.54x"))
    said = "0 of 2 figures agree; token capacity: 81,920 predicted, 70,000 reported (+17.0%)"
    assert said in texts(at).replace("\\", "")


def test_the_example_is_one_click_away_and_is_carried() -> None:
    at = open_page(batch="3")
    ran(at.button(key="log_example").click().run())
    record = next(one for one in recordings() if one.name == EXAMPLE)
    assert f"{record.kv_tokens:,}" in texts(at)
    assert "Gemma 3 27B: both figures agree" in texts(at).replace("\\", "")
    ran(at.button(key="log_carry").click().run())
    scenario = at.session_state["scenario"]
    assert (scenario.model, scenario.tokens, scenario.batch) == (EXAMPLE_MODEL, record.max_model_len, 3)
    assert "Gemma 3 27B" in at.title[0].value


def test_a_log_that_names_no_model_asks_for_one() -> None:
    record = next(one for one in recordings() if one.name == EXAMPLE)
    at = paste(open_page(), "\n".join(record.log_lines))
    assert "is not known here" in at.warning[0].value
    assert "log_carry" not in [button.key for button in at.button]
    ran(at.selectbox(key="log_model").set_value(EXAMPLE_MODEL).run())
    assert not at.warning
    assert "both figures agree" in texts(at)
    ran(at.selectbox(key="log_model").set_value("Qwen/Qwen3-8B").run())
    assert "0 of 2 figures agree" in texts(at)


def test_several_start_ups_are_choices() -> None:
    other = LOG.replace(LLAMA, "Qwen/Qwen3-8B").replace("81,920", "74,560")
    at = paste(open_page(), LOG + other)
    assert len(at.selectbox(key="log_place").options) == 2
    ran(at.selectbox(key="log_place").set_value(1).run())
    assert "Qwen3 8B" in texts(at)


@pytest.mark.parametrize(
    "text", ["hello", "{}", "\x00\x1b[31m" * 50, "<script>alert(1)</script>", "a" * 1_000_000, "\n" * 100_000]
)
def test_bad_logs_give_a_sentence(text: str) -> None:
    at = paste(open_page(), text)
    assert len(at.error) == 1
    assert at.error[0].value.endswith(".")


def test_a_huge_log_is_read() -> None:
    noise = "INFO 05-01 10:00:00 [worker.py:1] loading shard of weights, nothing to see\n"
    at = paste(open_page(), noise * 40_000 + LOG)
    assert "both figures agree" in texts(at)
    assert "40,0" in "".join(expander.label for expander in at.expander)


def test_markup_in_a_log_is_text() -> None:
    at = paste(open_page(), LOG.replace(LLAMA, "x/<img src=x onerror=alert(1)>[a](javascript:1)"))
    bodies = "".join(html_bodies(at))
    assert "<img" not in bodies
    assert not [one for one in at.markdown if "](javascript" in one.value]


def test_an_upload_is_compared() -> None:
    at = open_page()
    at.file_uploader(key="log_file").set_value([("server.log", LOG.encode() + b"\xff\xfe", "text/plain")])
    ran(at.run())
    assert "both figures agree" in texts(at)


def test_a_log_can_be_cleared() -> None:
    at = paste(open_page(), LOG)
    ran(at.button(key="log_clear").click().run())
    assert at.text_area(key="log_text").value == ""
    assert not at.error
    assert "figures agree" not in texts(at)


@pytest.mark.parametrize("colours", [theme.LIGHT, theme.DARK])
def test_the_chart_draws_every_case_with_both_figures(colours: theme.Palette) -> None:
    rows = list(cases())
    drawn = accuracy_chart.scatter(rows, [], colours)
    assert drawn is not None
    figure, _ = drawn
    marks = sum(len(trace.x) for trace in figure.data if trace.mode == "markers")
    assert marks == sum(bool(row.reported and row.predicted) for row in rows)
    assert {accuracy_chart.base(row.engine) for row in rows} <= set(accuracy_chart.looks())


def test_engines_and_forks_have_marks_and_names_of_their_own() -> None:
    looks = accuracy_chart.looks()
    assert list(looks.items()) == [
        ("vllm", (0, "circle")), ("llama.cpp", (1, "triangle-up")), ("sglang", (2, "diamond")),
        ("tensorrt-llm", (3, "square")), ("ik_llama.cpp", (4, "triangle-down")), ("ollama", (5, "pentagon")),
    ]  # fmt: skip
    assert {accuracy_chart.base(name) for name in ("vllm-ascend", "vllm-tpu", "vllm fork (Lvllm)")} == {"vllm"}
    names = [words.engine(name) for name in ("vllm-xpu", "vllm fork (Lvllm)", "ik_llama.cpp", "tensorrt-llm")]
    assert names == ["vLLM XPU", "vLLM fork (Lvllm)", "ik_llama.cpp", "TensorRT-LLM"]


def test_differences_in_words() -> None:
    shown = [words.percent(share) for share in (0, 0.1641, -0.002, 0.00002)]
    assert shown == ["0%", "+16.4%", "−0.20%", "+0.0020%"]
