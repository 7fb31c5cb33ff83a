"""The diagram of query heads: what is drawn equals the numbers, and the words say the same."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from urllib.parse import unquote

import pytest

from kvcore.errors import UnitError
from kvcore.formats import kv_format
from kvcore.model import Attention, Indexer, Latent, Memory, Model, NoMemory, SharedCache, State
from kvcore.model.memories import INDEXER_FP8, KINDS, StatePart
from kvcore.sources import catalogue
from kvcore.variants.variants import variant
from pages.ui import theme
from pages.ui.variants.heads import describe, diagram, edge

LLAMA = "meta-llama/Llama-3.3-70B-Instruct"
DEEPSEEK = "deepseek-ai/DeepSeek-V3"
GEMMA = "google/gemma-3-27b-it"
QWEN = "Qwen/Qwen3-Next-80B-A3B-Instruct"
VARIANTS = (
    "mha", "gqa:8", "mqa", "mla", "mla:256+32", "sliding:4096", "sliding:1024/6", "share:2", "share:3", "hybrid:4",
    "hybrid:8:gdn", "hybrid:4:kda", "linear", "linear:mamba2",
)  # fmt: skip
VOID = {"br", "img", "input"}


class Drawn(HTMLParser):
    """A picture's elements by class, its text, and whether every tag is closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.classes: list[str] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.tags: set[str] = set()
        self.labels: list[str] = []
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.add(tag)
        self.classes.append(found.get("class") or "")
        if found.get("role") == "img":
            self.labels.append(found.get("aria-label") or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1] != "style":
            self.words.append(data)

    def count(self, name: str) -> int:
        """Elements of that class: `q` query heads, `q r` those of layers that read along, `k` and `k e` columns,
        `o` what was dropped, `x` a state matrix, `g` groups."""
        return self.classes.count(name)

    @property
    def text(self) -> str:
        return " ".join(self.words)


def model(model_id: str, as_variant: str = "") -> Model:
    found = catalogue.load(model_id)
    return variant(found, as_variant) if as_variant else found


def drawn(found: Model, kv: str | None = None) -> Drawn:
    return Drawn(diagram(found, theme.LIGHT, None if kv is None else kv_format(kv)))


def by_hand(*layers: tuple[Memory, ...], queries: int = 8) -> Model:
    return Model(
        name="by hand", model_type="test", layers=layers, hidden_size=64, num_attention_heads=queries, head_dim=8
    )


def full(heads: int) -> Attention:
    return Attention(num_kv_heads=heads, head_dim=8, v_head_dim=8)


# (model, variant): query heads, groups, growing columns, columns that drop tokens, state matrices. From the published
# configurations: Llama 3.3 70B 64 query and 8 KV heads; Gemma 3 27B 32 and 16, in sliding layers and in full ones;
# DeepSeek-V3 128 query heads on one latent; Qwen3-Next 16 query and 2 KV heads, and 32 value heads in its states;
# Falcon 40B 128 and 8; whisper large 20 heads, twice.
COUNTS = {
    (LLAMA, ""): (64, 8, 8, 0, 0),
    (LLAMA, "mha"): (64, 64, 64, 0, 0),
    (LLAMA, "gqa:32"): (64, 32, 32, 0, 0),
    (LLAMA, "mqa"): (64, 1, 1, 0, 0),
    (LLAMA, "mla"): (64, 1, 1, 0, 0),
    (LLAMA, "sliding:4096"): (64, 8, 0, 8, 0),
    (LLAMA, "sliding:1024/6"): (128, 16, 8, 8, 0),
    (LLAMA, "share:2"): (64, 8, 8, 0, 0),
    (LLAMA, "linear"): (0, 64, 0, 0, 64),
    (DEEPSEEK, ""): (128, 1, 1, 0, 0),
    (DEEPSEEK, "mha"): (128, 128, 128, 0, 0),
    (GEMMA, ""): (64, 32, 16, 16, 0),
    (QWEN, ""): (16, 34, 2, 0, 32),
    ("tiiuae/falcon-40b", ""): (128, 8, 8, 0, 0),
    ("state-spaces/mamba-2.8b-hf", ""): (0, 0, 0, 0, 0),
}  # fmt: skip


@pytest.mark.parametrize(("model_id", "text"), COUNTS)
def test_as_many_boxes_as_the_numbers_say(model_id: str, text: str) -> None:
    picture = drawn(model(model_id, text))
    found = (picture.count("q"), picture.count("g"), picture.count("k e"), picture.count("o"), picture.count("x"))
    assert found == COUNTS[model_id, text]
    # What is dropped always stands over what is kept.
    assert picture.count("k") == picture.count("o")


def test_cross_attention_draws_a_closed_column_a_head_beside_the_growing_ones() -> None:
    picture = drawn(model("openai/whisper-large-v3"), "bf16")
    assert (picture.count("q"), picture.count("k e"), picture.count("k")) == (40, 20, 20)
    # 2 × 20 heads × 64 × 2 B = 5,120 B a source token; × 1,500 = 7,680,000 B = 7.32 MiB.
    assert "1,500 source tokens" in picture.text
    assert "7.32 MiB in each layer" in picture.text
    words = diagram(model("openai/whisper-large-v3"), theme.LIGHT, kv_format("bf16"), source_tokens=300)
    # 5,120 B × 300 = 1,536,000 B = 1.46 MiB.
    assert "300 source tokens" in words
    assert "1.46 MiB" in words
    assert "1,500" not in words


def test_layers_that_read_along_are_rows_of_the_same_groups() -> None:
    two = drawn(model(LLAMA, "share:2"))
    assert (two.count("h"), two.count("q r")) == (16, 64)
    assert "2 layers share each cache" in two.text
    assert "40 of 80 layers; 40 others read along" in two.text
    # 80 layers are 26 threes and one pair. Three rows are drawn at most.
    three = drawn(model(LLAMA, "share:3"))
    assert three.count("q r") == 128
    assert "Up to 3 layers share one cache" in three.text
    five = drawn(model(LLAMA, "share:5"))
    assert five.count("q r") == 128
    assert "in each of 5 layers, 3 layers drawn" in five.text


# Sentences from the published numbers; where layers differ, the counts are those of their model cards.
SENTENCES = {
    (LLAMA, ""): "64 query heads; groups of 8 share one of 8 KV heads of 128; in all 80 layers.",
    (LLAMA, "mha"): "Each of 64 query heads has its own KV head of 128; in all 80 layers.",
    (LLAMA, "mqa"): "All 64 query heads share one KV head of 128; in all 80 layers.",
    (LLAMA, "mla:256+32"): "All 64 query heads share one latent of 256 + 32 a token; in all 80 layers.",
    (LLAMA, "sliding:4096"): "64 query heads; groups of 8 share one of 8 KV heads of 128, for the last 4,096 tokens "
    "only; in all 80 layers.",
    (LLAMA, "share:2"): "64 query heads; groups of 8 share one of 8 KV heads of 128; 2 layers share each cache; in 40 "
    "of 80 layers; 40 others read along.",
    (LLAMA, "linear"): "64 states of 128 × 128, whatever the length; in all 80 layers.",
    (DEEPSEEK, ""): "All 128 query heads share one latent of 512 + 64 a token; in all 61 layers.",
    (DEEPSEEK, "mha"): "Each of 128 query heads has its own KV head of K 192 + V 128; in all 61 layers.",
    (GEMMA, ""): "32 query heads; groups of 2 share one of 16 KV heads of 128; in 10 of 62 layers. 32 query heads; "
    "groups of 2 share one of 16 KV heads of 128, for the last 1,024 tokens only; in 52 of 62 layers.",
    (QWEN, ""): "16 query heads; groups of 8 share one of 2 KV heads of 256; in 12 of 48 layers. 32 states of "
    "128 × 128, whatever the length; in 36 of 48 layers.",
    ("google/gemma-3n-E4B-it", ""): "8 query heads; groups of 4 share one of 2 KV heads of 256; 3 more layers read the "
    "cache of layer 19; in 4 of 35 layers; 3 others read along. 8 query heads; groups of 4 share one of 2 KV heads of "
    "256, for the last 512 tokens only; 12 more layers read the cache of layer 18; in 16 of 35 layers; 12 others read "
    "along.",
    ("meta-llama/Llama-4-Scout-17B-16E-Instruct", ""): "40 query heads; groups of 5 share one of 8 KV heads of 128; in "
    "12 of 48 layers. 40 query heads; groups of 5 share one of 8 KV heads of 128, for the current chunk of at most "
    "8,192 tokens; in 36 of 48 layers.",
    ("allenai/longformer-base-4096", ""): "Nothing is kept (encoder layer); in all 12 layers.",
    ("meituan-longcat/LongCat-Flash-Chat", ""): "All 64 query heads share one latent of 512 + 64 a token; in all 28 "
    "layers, twice in each.",
}  # fmt: skip


@pytest.mark.parametrize(("model_id", "text"), SENTENCES)
def test_the_text_alternative_states_the_numbers(model_id: str, text: str) -> None:
    found = model(model_id, text)
    assert describe(found) == SENTENCES[model_id, text]
    assert drawn(found).labels == [SENTENCES[model_id, text]]


def test_sums_under_the_picture() -> None:
    # 8 × (128 + 128) = 2,048 numbers × 2 B = 4,096 B; 8 of 64 heads are 1/8.
    llama = drawn(model(LLAMA), "bf16").text
    assert "8 × (128 K + 128 V) = 2,048 numbers a token" in llama
    assert "1/8 of what 64 KV heads would keep" in llama
    assert "4 KiB a token in each layer, in bf16" in llama
    # 576 of 128 × (192 + 128) = 40,960 are 1.41%; 576 × 1 B in fp8.
    deepseek = drawn(model(DEEPSEEK), "fp8").text
    assert "512 + 64 = 576 numbers a token" in deepseek
    assert "1.4% of what 128 KV heads of 192 K" in deepseek
    assert "576 B a token in each layer, in fp8" in deepseek
    # 2 × 16 × 128 × 2 B = 8,192 B; × 1,024 tokens = 8 MiB.
    assert "8 KiB a token in each layer, at most 8 MiB, in bf16" in drawn(model(GEMMA), "bf16").text
    # 8,192 × 3 × 2 B + 32 × 128 × 128 × 2 B = 49,152 + 1,048,576 = 1,097,728 B; / (2 × 2 × 256 × 2 B = 2,048) = 536.
    assert "1.05 MiB in each layer" in (qwen := drawn(model(QWEN), "bf16").text)
    assert "As much as 536 tokens in a layer with attention" in qwen
    # Without a format there are no bytes of a cache; a state has its own format.
    assert "KiB" not in drawn(model(LLAMA)).text
    assert "MiB" in drawn(model(QWEN)).text
    with pytest.raises(UnitError, match="packs a latent"):
        drawn(model(LLAMA), "fp8_ds_mla")


def test_deepseek_v4_reads_a_window_compressed_entries_and_an_index() -> None:
    picture = drawn(model("deepseek-ai/DeepSeek-V4-Pro"))
    # 31 layers: window and one entry for every 128 tokens. 30 layers: window, one for every 4 tokens, an index key.
    assert (picture.count("q"), picture.count("g"), picture.count("k"), picture.count("k e")) == (256, 2, 2, 3)
    assert "31 of 61 layers keep the last 128 tokens and one entry for every 128" in picture.text
    assert "one index key of 128 for every 4 tokens" in picture.text
    # (8 × 2 × 1,024 + 8 × 2 × 256) × 4 B = 81,920 B.
    assert "Compressors: 80 KiB in each layer" in picture.text


def test_layers_that_are_not_drawn_are_named() -> None:
    assert "54 more layers: nothing is kept (feed-forward layer)" in drawn(model("nvidia/Nemotron-H-56B-Base-8K")).text
    four = by_hand((full(8),), (full(4),), (full(4),), (full(2),), (full(2),), (full(1),), (full(1),))
    picture = drawn(four)
    # Three kinds with two layers each: 8 query heads thrice, 4 + 2 + 1 KV heads.
    assert (picture.count("q"), picture.count("k e")) == (24, 7)
    assert "1 more layer: each of 8 query heads has its own KV head of 8." in picture.text
    assert "1 of 7 layers" not in picture.text
    assert "Each of 8 query heads has its own KV head of 8" in describe(four)


@pytest.mark.parametrize("queries", [1, 14, 71])
def test_odd_numbers_of_heads(queries: int) -> None:
    groups = 2 if queries == 14 else 1
    picture = drawn(by_hand((full(groups),), queries=queries))
    assert (picture.count("q"), picture.count("k e"), picture.count("g")) == (queries, groups, groups)
    told = {1: "The query head has one KV head", 14: "Groups of 7 query heads share one of 2", 71: "All 71 query heads"}
    assert told[queries] in picture.text


def test_heads_that_do_not_divide_are_not_joined_by_guesswork() -> None:
    found = by_hand((full(3),), queries=8)
    picture = drawn(found)
    assert (picture.count("q"), picture.count("g"), picture.count("k e")) == (8, 1, 3)
    assert describe(found) == "8 query heads; they share 3 KV heads of 8; in its one layer."
    unknown = by_hand((full(3),), queries=0)
    assert drawn(unknown).count("k e") == 3
    assert describe(unknown) == "3 KV heads of 8; in its one layer."


def test_columns_are_as_wide_as_what_they_keep() -> None:
    # One latent of 512 + 64 beside a head's own 192 + 128: 576 / 320 = 1.8; Gemma 4's full heads are 512 wide, its
    # sliding ones 256: the widest is 1.
    assert "--w:1.800" in diagram(model(DEEPSEEK), theme.LIGHT)
    gemma = diagram(model("google/gemma-4-26B-A4B"), theme.LIGHT)
    assert set(re.findall(r"--w:([0-9.]+)", gemma)) == {"1.000", "0.500"}


def test_a_joint_has_a_line_for_every_head() -> None:
    html = diagram(model(LLAMA), theme.LIGHT)
    image = unquote(unescape(html).split("data:image/svg+xml,")[1].split('"')[0])
    lines = re.findall(r"M[0-9.]+ 0C", image)
    assert len(lines) == 8
    assert image.startswith("<svg ")
    assert image.endswith("</svg>")
    # Eight heads stand in the middle of eighths: the first at 6.25%, the last at 93.75%.
    assert "M6.2 0C" in image
    assert "M93.8 0C" in image


@pytest.mark.parametrize("colours", [theme.LIGHT, theme.DARK], ids=["light", "dark"])
def test_every_catalogued_model_can_be_drawn(colours: theme.Palette) -> None:
    for entry in catalogue.entries():
        found = catalogue.load(entry.model_id)
        html = diagram(found, colours, found.resolve_format())
        assert len(html) < 60_000, entry.model_id
        assert Drawn(html).labels == [describe(found)], entry.model_id
        assert not re.search(r"\bNone\b|\b0 query", html), entry.model_id


@pytest.mark.parametrize("model_id", [LLAMA, DEEPSEEK, GEMMA, QWEN])
def test_every_variant_can_be_drawn_and_looks_different(model_id: str) -> None:
    pictures = {}
    for text in VARIANTS:
        found = model(model_id, text)
        pictures[text] = diagram(found, theme.LIGHT, found.resolve_format())
        assert len(pictures[text]) < 60_000
        assert Drawn(pictures[text]).labels == [describe(found)]
    assert len(set(pictures.values())) == len(VARIANTS)


def test_huge_models_stay_small() -> None:
    huge = by_hand((full(4096),), (full(2048),), (full(1024),), queries=4096)
    assert len(diagram(huge, theme.LIGHT)) < 60_000
    assert "4,096 query heads, not all drawn" in drawn(huge).text
    states = State(design="huge", parts=(StatePart(name="state", shape=(9000, 4, 4), element_bytes=2),))
    assert len(diagram(by_hand((states,)), theme.LIGHT)) < 60_000


def test_strings_of_a_model_are_escaped() -> None:
    evil = "<img src=x onerror='alert(1)'>\"&"
    state = State(design=evil, parts=(StatePart(name=evil, shape=(2, 4, 4), element_bytes=2),))
    nothing = NoMemory(reason=evil)
    hostile = replace(by_hand((state,), (full(2),), (nothing,)), name=evil, model_type=evil)
    for found in (hostile, by_hand((nothing,))):
        html = diagram(found, theme.LIGHT, kv_format("bf16"))
        picture = Drawn(html)
        assert "img" not in picture.tags
        assert "<img" not in html
        assert evil in picture.text
        assert picture.labels == [describe(found)]
        assert evil in picture.labels[0]


def test_sanitised_html_keeps_everything() -> None:
    # Streamlit removes SVG elements and scripts: only what HTML has is used.
    html = "".join(diagram(model(model_id), theme.LIGHT) for model_id in (LLAMA, DEEPSEEK, QWEN))
    assert Drawn(html).tags <= {"style", "span", "div", "section", "p", "i", "b"}


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("colours", [theme.LIGHT, theme.DARK], ids=["light", "dark"])
def test_what_is_kept_stands_out_from_the_page(colours: theme.Palette) -> None:
    page = luminance(colours.background)
    for kind in KINDS:
        if kind in ("shared", "none"):
            continue  # Drawn dashed, in the muted ink.
        low, high = sorted((page, luminance(edge(kind, colours))))
        assert (high + 0.05) / (low + 0.05) >= 3, kind


def test_two_attentions_of_one_layer_are_two_blocks_and_an_index_key_belongs_to_its_attention() -> None:
    index = Indexer(index_head_dim=16, stored_as=INDEXER_FP8)
    indexed = drawn(by_hand((Latent(kv_lora_rank=24, qk_rope_head_dim=8), index)))
    assert (indexed.count("g"), indexed.count("k e")) == (1, 2)
    beside = drawn(by_hand((full(4), index)))
    assert (beside.count("g"), beside.count("k e")) == (4, 4)
    assert "One index key of 16 a token" in beside.text
    both = drawn(by_hand((full(4), full(2))))
    assert (both.count("q"), both.count("k e")) == (16, 6)
    lone = drawn(by_hand((full(4),), (SharedCache(owner=0),)))
    assert "1 more layer reads the cache of layer 0" in lone.text
