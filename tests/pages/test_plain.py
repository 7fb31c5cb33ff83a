"""Nothing that a reader brings is understood as markup: addresses, configurations, file names and logs of a stranger."""

from __future__ import annotations

import json
import re
import string
from collections.abc import Iterator
from html import unescape
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest
from streamlit.testing.v1.element_tree import Block, Node

from kvcore.scenario.concurrency import ConcurrencyOptions
from kvcore.scenario.fields import choices
from kvcore.scenario.scenario import Scenario, encode_config
from kvcore.scenario.variants import VariantOptions
from kvcore.sources import files
from kvcore.variants import levers
from pages.ui import lines, models, theme
from pages.ui.text import MAX_NAME, in_chart, plain, tidy_name
from pages.ui.variants import lower
from tests.pages.rendered import html_bodies, rendered, resolved, unescaped
from tests.pages.screens import open_screen

SCREENS = ("size", "variants", "concurrency", "accuracy")
# The first fits into what the shortest message quotes of a value; both hold the word by which they are found.
IMAGE = "![evil](//evil.org)"
EVERYTHING = (
    "**evil** `evil` _evil_ $evil$ [evil](http://evil.org) :red[evil] <b>evil</b> :material/evil: :material_evil: "
    "~~evil~~ www.evil.org a@evil.org"
)
HOSTILE = (IMAGE, EVERYTHING)
# What markdown, Streamlit's directives and its search for addresses need: none may be left where a stranger's word is.
MARKUP = re.compile(r"[\[\]<>$`{}|_@~#!]|://|www\.|:\w+:|:material|\*\*evil")
PUBLICATIONS = {
    address
    for lever in levers.levers()
    for claim in (*lever.claims, lever.engines)
    if claim
    for _, address in lower.links(claim.source)
    if address
}
LLAMA = {
    "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 32000, "max_position_embeddings": 65536,
}  # fmt: skip


def run(at: AppTest) -> AppTest:
    at.run()
    assert not at.exception, at.exception[0].value
    return at


def open_page(screen: str = "size", **query: str) -> AppTest:
    """A screen at an address, after a run without an exception."""
    return open_screen(screen, **query)


def nodes(block: Block) -> Iterator[Node]:
    for child in block.children.values():
        yield child
        if isinstance(child, Block):
            yield from nodes(child)


# Messages of the page in which these fields are markdown; what they are in others (an input's options) is plain text.
FIELDS = ("body", "label", "help")


def markdowns(at: AppTest) -> Iterator[str]:
    """Everything on the page that Streamlit reads as markdown: texts, titles, alerts, metrics, labels, helps."""
    for node in nodes(at.main):
        if node.type in ("html", "exception"):
            continue
        for proto in (node.proto, *inner(node.proto)):
            yield from (str(getattr(proto, name)) for name in FIELDS if getattr(proto, name, ""))
        yield from (one.content for one in node.proto.options) if node.type == "button_group" else ()


def inner(proto: Any) -> Iterator[Any]:
    """The expander, tab or popover of a block."""
    if proto is not None and hasattr(proto, "WhichOneof") and "type" in proto.DESCRIPTOR.oneofs_by_name:
        kind = proto.WhichOneof("type")
        if kind:
            yield getattr(proto, kind)


def bodies(at: AppTest) -> str:
    return "".join(html_bodies(at))


def check(at: AppTest, *, least: int = 1, word: str = "evil") -> list[str]:
    """Where the stranger's word is, no mark is left; it is there at least so often. Returns what is seen of it."""
    found = [text for text in markdowns(at) if word in text]
    assert len(found) >= least, "the payload is not on the page, so nothing was tested"
    for text in found:
        assert MARKUP.search(unescaped(text)) is None, text
    assert "<b>evil" not in bodies(at)
    # The only links are those to publications that the project's own data name.
    links = re.findall(r"<a href='([^']*)' target='_blank' rel='noopener'>", bodies(at))
    assert {unescape(address) for address in links} <= PUBLICATIONS
    assert bodies(at).count("<a ") == len(links)
    specs = "".join(chart.proto.spec for chart in at.get("plotly_chart"))
    assert "<b>evil" not in specs
    assert "<a " not in specs
    return [rendered(text) for text in found]


@pytest.mark.parametrize("text", [*HOSTILE, string.punctuation * 2, "hybrid:N[:mamba2|gdn|kda]", "a_b_c * d", "1. x"])
def test_every_mark_is_escaped_and_the_text_is_kept(text: str) -> None:
    assert rendered(plain(text)) == text
    assert not set(unescaped(plain(text))) & set(string.punctuation)


def test_what_streamlit_looks_for_behind_the_escapes_is_kept_apart() -> None:
    """Its search for addresses, icons and arrows sees the text with all escapes resolved."""
    seen = resolved(plain("https://a.org www.b.org c@d.org :material_x: :streamlit: e -> f -- g <-> h"))
    for found in ("://", "www.", "c@d", ":material", ":streamlit", "->", "--"):
        assert found not in seen


@pytest.mark.parametrize("design", ["mla@fp8", "hybrid:8:kda", "shipped@q8_0/q4_0", "sliding:8K/4"])
def test_what_can_be_typed_again_can_be_copied(design: str) -> None:
    assert resolved(plain(design)) == design


def test_lines_and_characters_that_are_none_become_spaces() -> None:
    assert plain("a\n\n    b\x00\x1b[31m\u2028c\ud800d") == r"a b \[31m c d"
    assert plain("10\N{NO-BREAK SPACE}GiB") == "10\N{NO-BREAK SPACE}GiB"
    assert in_chart("a\n<b>") == "a &lt;b&gt;"


def test_names_are_cut_and_can_be_seen() -> None:
    assert tidy_name("  a\u202e\u200b b\r\n") == "a b"
    assert tidy_name("x" * 80) == "x" * 80
    assert len(tidy_name("x" * 81)) == MAX_NAME
    loaded = files.from_json(json.dumps({**LLAMA, "_name_or_path": "org/\n" + "n" * 500}), "")
    assert models.from_own(loaded).name == "n" * 79 + "…"
    assert models.from_own(loaded, "\x00my\x00 model").name == "my model"
    nothing = files.from_json(json.dumps({**LLAMA, "_name_or_path": "\u202e"}), "")
    assert models.from_own(nothing).name == "Your llama model"


def test_names_in_charts_are_text() -> None:
    model = files.from_json(json.dumps(LLAMA), "").model
    line = lines.Line(id="own", name="<a href='//evil'>&lt; %{x}</a>", model=model, kv=model.resolve_format())
    drawn = lines.growth_chart([line], tokens=8192, batch=1, capacities=(), colours=theme.LIGHT, mark_bends=True)
    assert drawn is not None
    figure, alt = drawn
    shown = "&lt;a href='//evil'&gt;&amp;lt; &#37;{x}&lt;/a&gt;"
    assert {trace.name for trace in figure.data if trace.name} == {shown}
    assert all(trace.hovertemplate.startswith(shown) for trace in figure.data if trace.name)
    assert shown in [note.text for note in figure.layout.annotations]
    assert unescape(shown) == line.name
    assert line.name in alt


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("screen", SCREENS)
def test_every_parameter_of_an_address(screen: str, text: str) -> None:
    further = {"variants": set(choices(VariantOptions)), "concurrency": set(choices(ConcurrencyOptions))}
    names = set(choices(Scenario)) | further.get(screen, set())
    at = open_page(screen, **dict.fromkeys(sorted(names), text))
    said = " ".join(check(at))
    for name in names:
        assert f"The address's {name} was not taken" in said


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("screen", SCREENS)
def test_the_name_of_a_configuration_in_the_address(screen: str, text: str) -> None:
    packed = encode_config(LLAMA)
    assert packed is not None
    at = open_page(screen, model=text, config=packed)
    assert any(text[:79] in one for one in check(at))
    assert screen == "accuracy" or text[:79] in rendered(at.title[0].value)


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("screen", SCREENS)
def test_a_refused_configuration_in_the_address(screen: str, text: str) -> None:
    packed = encode_config({**LLAMA, "model_type": text})
    assert packed is not None
    at = open_page(screen, model=text, config=packed)
    assert f"model_type '{text[:80]}' is not understood" in rendered(at.error[0].value)
    assert at.error[0].value.startswith(f"**{plain(tidy_name(text))}**")
    check(at)


def paste(at: AppTest, config: dict[str, Any]) -> AppTest:
    at.text_area(key="pasted").set_value(json.dumps(config))
    at.button(key="paste_go").click()
    return run(at)


@pytest.mark.parametrize("text", HOSTILE)
def test_a_pasted_configuration(text: str) -> None:
    config = {**LLAMA, "_name_or_path": text, text: text, "torch_dtype": text, "architectures": [text],
              "rope_scaling": {"type": text, "factor": 2.0}, "quantization_config": {"kv_cache_quant_algo": text},
              "cache_implementation": text}  # fmt: skip
    at = paste(open_page(), config)
    assert at.selectbox(key="model").value == "own"
    # The title, the line below it, the ignored keys, and the note about the format that is not understood.
    check(at, least=4)
    at.switch_page("pages/variants.py")
    check(run(at), least=2)
    at.switch_page("pages/accuracy.py")
    check(run(at))


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize(
    "change",
    [
        {"num_hidden_layers": "{}"}, {"sliding_window_pattern": "{}"}, {"{}_window_pattern": 3},
        {"model_type": "{}"}, {"layer_types": ["{}"] * 32}, {"kv_{}_lora_state_size": "{}"},
    ],
)  # fmt: skip
def test_a_refused_configuration(change: dict[str, Any], text: str) -> None:
    written = json.dumps({**LLAMA, **change})
    at = open_page()
    # A dot in a key would stand for a key within another.
    at.text_area(key="pasted").set_value(written.replace("{}", text.replace(".", ":")))
    at.button(key="paste_go").click()
    run(at)
    assert at.error
    check(at)
    if "bound_go" in [button.key for button in at.button]:
        at.button(key="bound_go").click()
        check(run(at))


@pytest.mark.parametrize("name", ["![evil](x).json", "$evil$ :red[evil].json", "www.evil.org.json", "<b>evil.gguf"])
@pytest.mark.parametrize("content", [json.dumps(LLAMA), "{", '{"model_type": "martian"}'])
def test_the_name_of_an_uploaded_file(name: str, content: str) -> None:
    at = open_page()
    at.file_uploader(key="uploaded").set_value([(name, content.encode(), "application/json")])
    said = check(run(at))
    assert any(name.removesuffix(".json") in one for one in said)


@pytest.mark.parametrize("key", ["tokens", "batch", "tp"])
def test_a_number_typed_into_a_list(key: str) -> None:
    at = open_page()
    box = at.selectbox(key=key)
    box.options.append(IMAGE)  # Streamlit's test runner takes nothing that is not in the list.
    box.set_value(IMAGE)
    check(run(at))


def test_typed_values() -> None:
    at = open_page()
    at.text_input(key="budget").set_value(IMAGE)
    check(run(at))
    at.text_input(key="hub_id").set_value(EVERYTHING)
    at.button(key="hub_go").click()
    check(run(at))
    at.switch_page("pages/variants.py")
    run(at)
    at.text_input(key="build_heads").set_value(IMAGE)
    at.button(key="build_go").click()
    check(run(at))


LOG = """INFO 05-01 10:00:00 [utils.py:233] non-default args: {{'model': '{0}', 'max_model_len': 8192}}
INFO 05-01 10:00:01 [core.py:58] Initializing a V1 LLM engine (v0.9.1{0}) with config: model='{0}', dtype={0}, max_seq_len=8192, tensor_parallel_size=1, kv_cache_dtype={0}, quantization={0}
INFO 05-01 10:00:30 [gpu_worker.py:227] Available KV cache memory: 10.00 GiB
INFO 05-01 10:00:31 [kv_cache_utils.py:715] GPU KV cache size: 81,920 tokens
INFO 05-01 10:00:31 [kv_cache_utils.py:719] Maximum concurrency for 8,192 tokens per request: 10.00x
{0}
"""
LLAMA_CPP = """llama_model_loader: - kv 0: general.architecture str = {0}
llama_model_loader: - kv 1: general.name str = {0}
llama_context: n_ctx = 8192
llama_kv_cache: size = 1024.00 MiB ( 8192 cells, 32 layers, 1/1 seqs), K ({0}): 512.00 MiB, V ({0}): 512.00 MiB
"""


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("log", [LOG, LLAMA_CPP])
def test_a_pasted_log(log: str, text: str) -> None:
    at = open_page("accuracy")
    at.text_area(key="log_text").set_value(log.format(text))
    run(at)
    assert at.session_state["log_readings"]
    check(at)
    at.selectbox(key="log_model").set_value("meta-llama/Llama-3.1-8B-Instruct")
    check(run(at), least=0)


def test_a_log_that_names_a_stranger_is_quoted_as_text() -> None:
    at = open_page("accuracy")
    at.text_area(key="log_text").set_value(LOG.format("evil/![evil]"))
    assert any("evil/![evil]" in one for one in check(run(at)))


def test_a_message_is_shown_whole() -> None:
    """Brackets and underscores of an honest message are there, and bold stays bold."""
    at = open_page("variants", design="nope", tokens="8_x")
    said = at.warning[0].value
    assert r"hybrid\:N\[\:mamba2\|gdn\|kda\]" in said
    assert "hybrid:N[:mamba2|gdn|kda]" in rendered(said)
    assert "8_x" in rendered(said)
    at = open_page()
    assert at.title[0].value == r"Llama 3\.3 70B remembers **32,768 tokens** in **10 GiB**"
