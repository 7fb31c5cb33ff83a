"""The Size screen as Streamlit's own test runner sees it: texts, numbers, controls; no browser."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable

import pytest
from streamlit.testing.v1 import AppTest

from kvcore.engines.registry import engine_names, labels
from kvcore.engines.reserve import reserve
from kvcore.hardware.gpus import accelerator
from kvcore.scenario.scenario import DEFAULT_MODEL, Scenario, encode_config
from kvcore.sizing import size
from kvcore.sources import catalogue
from kvcore.units import GIB, format_bytes
from tests.models import every_model, one_of_each_kind
from tests.pages.rendered import html_bodies, rendered
from tests.pages.screens import open_screen

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
    return open_screen("size", **query)


def numbers(at: AppTest) -> list[str]:
    return [metric.value for metric in at.metric][:4]


def trio(at: AppTest) -> dict[str, str]:
    """The cards of the trio: label and value."""
    return {metric.label: metric.value for metric in at.metric[4:]}


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
    assert "Llama 3.3 70B" in rendered(at.title[0].value)
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


@pytest.mark.parametrize("models", [one_of_each_kind, pytest.param(every_model, marks=pytest.mark.slow)])
def test_every_catalogued_model_has_an_answer(models: Callable[[], tuple[str, ...]], subtests: pytest.Subtests) -> None:
    at = open_page()
    names = {entry.model_id: entry.display_name for entry in catalogue.entries()}
    for model_id in models():
        with subtests.test(model=model_id):
            at.selectbox(key="model").set_value(model_id).run()
            assert not at.exception, at.exception[0].value
            assert len(numbers(at)) == 4
            assert all(numbers(at))
            assert next(iter(trio(at))) == "Resident now"
            assert len(trio(at)) == 3 or "no figure" in trio(at).values()
            assert names[model_id] in rendered(at.title[0].value) or at.error
            keeps_a_cache = numbers(at)[0] != "0 B"
            assert len(alts(at)) == int(keeps_a_cache)
            assert all(len(alt) > 60 for alt in alts(at))
            strips = [body for body in html_bodies(at) if "kv-strip" in body]
            assert len(strips) == 1
            assert "aria-label='" in strips[0]


def test_bad_parameters_give_sentences_and_the_default() -> None:
    at = open_page(model="nope", tokens="x", batch="-3", kv="zz", compare="a", budget="q", source="k", config="zz",
                   engine="vlm", gpu="h1", tp="0")  # fmt: skip
    assert numbers(at)[0] == "10 GiB"
    said = rendered(at.warning[0].value)
    for name in ("model", "tokens", "batch", "kv", "compare", "budget", "source", "config", "engine", "gpu", "tp"):
        assert f"The address's {name} was not taken" in said


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
    assert "sliding_window_pattern" in rendered(at.error[0].value)
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
    assert "Gemma 3 27B" in rendered(at.title[0].value)


def test_a_budget_that_cannot_be_read_is_named() -> None:
    at = open_page()
    at.text_input(key="budget").set_value("lots").run()
    assert not at.exception
    assert "lots" in at.warning[0].value
    assert any("157,286 tokens" in text.value for text in at.markdown)


def test_the_budget_can_be_changed_in_both_places() -> None:
    at = open_page()
    at.text_input(key="budget_again").set_value("80 GiB").run()
    assert at.text_input(key="budget").value == "80 GiB"
    assert trio(at)["Reported by vLLM"] == "262,144 tokens"
    at.text_input(key="budget").set_value("160 GiB").run()
    assert at.text_input(key="budget_again").value == "160 GiB"


TRIO_MODELS = ("google/gemma-3-27b-it", "deepseek-ai/DeepSeek-V3.2", "Qwen/Qwen3-Next-80B-A3B-Instruct")


@pytest.mark.parametrize("model_id", TRIO_MODELS)
@pytest.mark.parametrize("name", engine_names())
def test_the_trio_is_what_kvcore_says(name: str, model_id: str) -> None:
    at = open_page(model=model_id, engine=name, budget="200 GiB")
    model = catalogue.load(model_id)
    expected = reserve(model, name, length=model.context_limit, gpu=accelerator(Scenario().gpu), kv_bytes=200 * GIB)
    shown = trio(at)
    assert shown["Resident now"] == format_bytes(size(model, 32_768).resident_bytes)
    if expected.layout is None:
        assert list(shown.values())[1:] == ["no figure"]
        assert any(expected.refused[-30:] in rendered(caption.value) for caption in at.caption)
        return
    assert expected.capacity is not None
    label = labels()[name]
    assert shown[f"Reserved by {label}"] == format_bytes(expected.layout.bytes_per_request)
    reported = f"Reported by {label}" if expected.capacity.log_lines else f"Room in {label}"
    assert shown[reported] == f"{expected.capacity.kv_cache_size_tokens:,} tokens"
    codes = [code.value for code in at.code]
    made = expected.command
    assert not isinstance(made, str)
    assert {made.text, *(content.strip() for _, content in made.files)} <= {code.strip() for code in codes}
    assert not expected.capacity.log_lines or "\n".join(expected.capacity.log_lines) in codes
    assert sum(caption.value == f"Rule: {expected.versions}" for caption in at.caption) == 2


def test_a_refusal_of_the_engine_leaves_the_rest() -> None:
    at = open_page(model="Qwen/Qwen3-Next-80B-A3B-Instruct", engine="tensorrt-llm")
    assert list(trio(at).values())[1:] == ["no figure"]
    assert any("recurrent states" in caption.value for caption in at.caption)
    assert len(numbers(at)) == 4
    assert len(alts(at)) == 1
    at.segmented_control(key="engine").set_value("vllm").run()
    assert len(trio(at)) == 3


def test_too_little_memory_is_said_with_the_engines_sentence() -> None:
    at = open_page(budget="8 GiB")
    assert trio(at)["Reported by vLLM"] == "does not start"
    assert any("To serve at least one request" in code.value for code in at.code)
    assert any("short" in caption.value for caption in at.caption)
    assert any("More than" in caption.value for caption in open_page(budget="40 GiB", gpu="rtx-4090").caption)


def test_an_engine_that_does_not_start_is_not_said_to_have_room() -> None:
    """SGLang makes 7,778 token slots of 256 MiB and no slot for a state, so it refuses; the missing bytes are unknown."""
    at = open_page(model="Qwen/Qwen3-Next-80B-A3B-Instruct", engine="sglang", budget="256 MiB")
    assert trio(at)["Reported by SGLang"] == "does not start"
    assert "Room in SGLang" not in trio(at)
    assert any("256 MiB is too little to start" in rendered(one.value) for one in at.subheader)


def test_ranks_hold_shares_and_copies() -> None:
    assert trio(open_page(tp="8"))["Reserved by vLLM"] == "5 GiB"
    at = open_page(model="deepseek-ai/DeepSeek-V3.2", tp="8")
    assert any("8 ranks together: **8." in caption.value for caption in at.caption)
    assert any("every rank keeps the whole" in caption.value for caption in at.caption)


def test_a_link_restores_the_server_and_examples_keep_it() -> None:
    at = open_page(engine="ollama", gpu="rtx-4090", tp="2")
    assert at.selectbox(key="gpu").value == "rtx-4090"
    assert at.selectbox(key="tp").value == "2"
    assert any("engine=ollama&gpu=rtx-4090&tp=2" in code.value for code in at.code)
    at.button(key="heard_0").click().run()
    assert numbers(at)[0] == "6.25 GiB"
    assert at.session_state["scenario"].engine == "ollama"


def test_a_model_without_a_limit_is_reserved_at_this_length() -> None:
    at = open_page(model="bigscience/bloom-7b1", tokens="8K")
    assert trio(at)["Reserved by vLLM"] == trio(at)["Resident now"] == "3.75 GiB"
    assert any("8,192 tokens, this length; it states no maximum" in caption.value for caption in at.caption)


def test_a_format_that_does_not_suit_is_named() -> None:
    at = open_page(kv="fp8_ds_mla")
    assert "fp8_ds_mla" in rendered(at.warning[0].value)
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
    shown = "\n".join(markdown.value for markdown in at.markdown)
    for figure in ("6.25 GiB", "12.5 GiB", "131 GiB", "128 KiB", "1 GiB, 2 GiB, 4 GiB, 8 GiB", "100 GiB", "20 GiB",
                   "93.3%", "82.2%"):  # fmt: skip
        assert figure in shown
    at.button(key="heard_0").click().run()
    assert numbers(at)[0] == "6.25 GiB"


def test_every_field_of_the_scenario_survives_the_page() -> None:
    asked = Scenario(
        model="openai/whisper-large-v3", tokens=100, batch=3, kv="fp8/int4", compare=(DEFAULT_MODEL,), budget="1 GB",
        source=50, engine="sglang", gpu="mi300x", tp=4,
    )  # fmt: skip
    at = open_page(**asked.to_query())
    assert at.session_state["scenario"] == asked
    at.run()
    assert at.session_state["scenario"] == asked
