"""The Size screen as Streamlit's own test runner sees it: texts, numbers, controls; no browser."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from kvcore import catalogue
from kvcore.scenario import DEFAULT_MODEL, Scenario, encode_config

APP = str(Path(__file__).parents[2] / "app.py")
LLAMA_LIKE = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 32000,
    "max_position_embeddings": 65536,
}
UNKNOWN_KEY = {**LLAMA_LIKE, "sliding_window_pattern": 6}


def open_page(**query: str) -> AppTest:
    """The page at an address, after its first run without an exception."""
    at = AppTest.from_file(APP, default_timeout=60)
    for name, value in query.items():
        at.query_params[name] = value
    at.run()
    assert not at.exception, at.exception[0].value
    return at


def numbers(at: AppTest) -> list[str]:
    return [metric.value for metric in at.metric]


def alts(at: AppTest) -> list[str]:
    return [chart.proto.alt for chart in at.get("plotly_chart")]


def paste(at: AppTest, config: object) -> AppTest:
    at.text_area(key="pasted").set_value(config if isinstance(config, str) else json.dumps(config))
    at.button(key="paste_go").click().run()
    assert not at.exception
    return at


def test_opens_on_an_answer() -> None:
    at = open_page()
    assert numbers(at) == ["10 GiB", "10 GiB", "320 KiB", "≈ 7.6%"]
    assert "Llama 3.3 70B" in at.title[0].value
    assert "10 GiB" in at.title[0].value
    assert at.subheader[0].value.startswith("Doubling the conversation doubles the cache: 32K tokens hold 10 GiB, 128K")
    assert not at.warning
    assert not at.error


@pytest.mark.parametrize(
    ("query", "held"),
    [
        ({"tokens": "8192"}, "2.5 GiB"),
        ({"tokens": "128K"}, "40 GiB"),
        ({"batch": "10"}, "100 GiB"),
        ({"model": "meta-llama/Llama-2-13b-hf", "tokens": "8K"}, "6.25 GiB"),
        ({"model": "mistralai/Mistral-7B-Instruct-v0.3", "tokens": "64K"}, "8 GiB"),
        ({"kv": "q8_0/q4_0"}, "4.06 GiB"),
        ({"model": "state-spaces/mamba-2.8b-hf", "tokens": "1M"}, "11.88 MiB"),
    ],
)
def test_an_address_gives_the_batch_figure(query: dict[str, str], held: str) -> None:
    assert numbers(open_page(**query))[1] == held


def test_every_catalogued_model_has_an_answer() -> None:
    at = open_page()
    for entry in catalogue.entries():
        at.selectbox(key="model").set_value(entry.model_id).run()
        assert not at.exception, (entry.model_id, at.exception[0].value)
        assert len(numbers(at)) == 4, entry.model_id
        assert all(numbers(at)), entry.model_id
        assert entry.display_name in at.title[0].value or at.error, entry.model_id
        keeps_a_cache = numbers(at)[0] != "0 B"
        assert len(alts(at)) == int(keeps_a_cache), entry.model_id
        assert all(len(alt) > 60 for alt in alts(at)), entry.model_id
        strips = [html.proto.body for html in at.get("html") if "kv-strip" in html.proto.body]
        assert len(strips) == 1, entry.model_id
        assert "aria-label='" in strips[0]


def test_bad_parameters_give_sentences_and_the_default() -> None:
    at = open_page(model="nope", tokens="x", batch="-3", kv="zz", compare="a", budget="q", source="k", config="zz")
    assert numbers(at)[0] == "10 GiB"
    text = at.warning[0].value
    for name in ("model", "tokens", "batch", "kv", "compare", "budget", "source", "config"):
        assert f"The address's {name} was not taken" in text


@pytest.mark.parametrize(
    "query",
    [
        {"model": "%00" * 50},
        {"tokens": "-1"},
        {"tokens": "1e9"},
        {"batch": "1000000000000"},
        {"kv": "fp8/fp8/fp8"},
        {"config": "A" * 9000},
        {"compare": ",".join(["x"] * 500)},
        {"bound": "yes"},
        {"unknown": "1"},
        {"config": ""},
        {"model": "<script>alert(1)</script>"},
    ],
)
def test_no_address_breaks_the_page(query: dict[str, str]) -> None:
    assert numbers(open_page(**query))[0] == "10 GiB"


def test_extremes_are_answered() -> None:
    assert numbers(open_page(tokens="1000000000", batch="1000000"))[0] == "298.02 TiB"
    assert numbers(open_page(tokens="0"))[:3] == ["0 B", "0 B", "320 KiB"]


def test_pasted_configuration_is_sized_and_linked() -> None:
    at = paste(open_page(), LLAMA_LIKE)
    assert numbers(at)[2] == "128 KiB"
    assert at.selectbox(key="model").value == "own"
    packed = encode_config(LLAMA_LIKE)
    assert packed is not None
    assert any(f"config={packed}" in code.value for code in at.code)
    again = open_page(config=packed)
    assert numbers(again)[2] == "128 KiB"
    assert not again.warning


def test_refused_configuration_names_the_key_and_keeps_the_last_model() -> None:
    at = paste(open_page(), UNKNOWN_KEY)
    assert "sliding_window_pattern" in at.error[0].value
    assert numbers(at)[0] == "10 GiB"
    at.button(key="bound_go").click().run()
    assert not at.exception
    assert not at.error
    assert numbers(at)[2] == "512 KiB"
    assert any("upper bound" in caption.value for caption in at.caption)
    assert all("upper bound" in caption.value for caption in at.caption if caption.value.startswith("resident"))


@pytest.mark.parametrize("text", ["", "not json", "[1, 2]", '{"a":', "{}", '{"model_type": "martian"}', "[" * 5000])
def test_bad_paste_gives_an_error_box(text: str) -> None:
    at = paste(open_page(), text)
    assert len(at.error) == 1
    assert numbers(at)[0] == "10 GiB"


def test_a_configuration_too_large_for_a_link_says_so() -> None:
    noise = [zlib.crc32(str(n).encode()) for n in range(4000)]
    at = paste(open_page(), {**LLAMA_LIKE, "id2label": noise})
    assert numbers(at)[2] == "128 KiB"
    assert any("needs the file" in text.value for text in at.markdown)


def test_upload_is_read_as_a_configuration() -> None:
    at = open_page()
    at.file_uploader(key="uploaded").set_value([("config.json", json.dumps(LLAMA_LIKE).encode(), "application/json")])
    at.run()
    assert not at.exception
    assert numbers(at)[2] == "128 KiB"


def test_bound_travels_in_the_link() -> None:
    packed = encode_config(UNKNOWN_KEY)
    assert packed is not None
    assert open_page(config=packed).error
    assert numbers(open_page(config=packed, bound="1"))[2] == "512 KiB"


def test_choosing_another_model_forgets_the_refusal() -> None:
    at = paste(open_page(), UNKNOWN_KEY)
    at.selectbox(key="model").set_value("google/gemma-3-27b-it").run()
    assert not at.error
    assert "Gemma 3 27B" in at.title[0].value


def test_a_budget_that_cannot_be_read_is_named() -> None:
    at = open_page()
    at.text_input(key="budget").set_value("lots").run()
    assert not at.exception
    assert "lots" in at.warning[0].value
    assert any("131,072 tokens" in text.value for text in at.markdown)


def test_a_format_that_does_not_suit_is_named() -> None:
    at = open_page(kv="fp8_ds_mla")
    assert "fp8_ds_mla" in at.warning[0].value
    assert numbers(at)[0] == "10 GiB"


def test_source_tokens_only_with_cross_attention() -> None:
    assert "source" not in [field.key for field in open_page().text_input]
    at = open_page(model="openai/whisper-large-v3")
    before = numbers(at)[0]
    at.text_input(key="source").set_value("100").run()
    assert numbers(at)[0] != before


def test_compared_models_are_in_the_text_alternative() -> None:
    at = open_page(compare="google/gemma-3-27b-it,deepseek-ai/DeepSeek-V3")
    assert "Gemma 3 27B" in alts(at)[0]
    assert "DeepSeek" in alts(at)[0]


def test_beyond_the_limit_is_said() -> None:
    assert any("beyond this model’s limit" in caption.value for caption in open_page(tokens="256K").caption)


def test_figures_one_may_have_heard() -> None:
    at = open_page()
    text = "\n".join(markdown.value for markdown in at.markdown)
    for figure in ("6.25 GiB", "12.5 GiB", "131 GiB", "128 KiB", "1 GiB, 2 GiB, 4 GiB, 8 GiB", "100 GiB", "20 GiB",
                   "93.3%", "82.2%"):  # fmt: skip
        assert figure in text
    at.button(key="heard_0").click().run()
    assert numbers(at)[0] == "6.25 GiB"


def test_every_field_of_the_scenario_survives_the_page() -> None:
    asked = Scenario(
        model="openai/whisper-large-v3", tokens=100, batch=3, kv="fp8/int4", compare=(DEFAULT_MODEL,), budget="1 GB",
        source=50,
    )  # fmt: skip
    at = open_page(**asked.to_query())
    assert at.session_state["scenario"] == asked
    at.run()
    assert at.session_state["scenario"] == asked
