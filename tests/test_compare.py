"""A against B: exact factors, and sentences that say what the numbers say."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import combinations, islice
from math import prod
from random import Random
from time import perf_counter

import pytest

from kvcore.errors import UnitError
from kvcore.formats import kv_format
from kvcore.model import Attention, Model, model_from_config
from kvcore.sizing import resident_bytes
from kvcore.sources.catalogue import entries, load
from kvcore.variants.compare import Comparison, compare
from kvcore.variants.variants import variant
from tests.models import llama, model

LLAMA = "meta-llama/Llama-3.3-70B-Instruct"
V3 = "deepseek-ai/DeepSeek-V3"
MISTRAL = "mistralai/Mistral-7B-v0.1"
MAMBA = "state-spaces/mamba-2.8b-hf"
QWEN_NEXT = "Qwen/Qwen3-Next-80B-A3B-Instruct"


def against(a: str | Model, b: str | Model, tokens: int = 8192, kv_a: str = "auto", kv_b: str = "auto") -> Comparison:
    """Two models, catalogued ones by id, under the names A and B."""
    first, second = (model(m) if isinstance(m, str) else m for m in (a, b))
    formats = first.resolve_format(kv_a), second.resolve_format(kv_b)
    return compare(first, second, tokens, *formats, name_a="A", name_b="B")


def factors(result: Comparison) -> dict[str, Fraction]:
    return {cause.kind: cause.factor for cause in result.causes}


def test_a_latent_against_heads() -> None:
    """V3: 61 layers × 576 × 2 B = 70,272 B. Llama: 80 × 2 × 8 × 128 × 2 B = 327,680 B. 2048/576 = 3.56, 80/61 = 1.31."""
    v3, llama_70b = model(V3), model(LLAMA)
    kv = kv_format("bf16")
    result = compare(v3, llama_70b, 131072, kv, kv, name_a="DeepSeek-V3", name_b="Llama 3.3 70B")
    assert (result.per_token_a, result.per_token_b) == (70272, 327680)
    assert (result.resident_a, result.resident_b) == (70272 * 131072, 327680 * 131072)
    assert factors(result) == {"width": Fraction(576, 2048), "layers": Fraction(61, 80)}
    assert result.per_token == (
        "DeepSeek-V3 remembers 4.7× less per token than Llama 3.3 70B because it stores one 576-wide latent a layer "
        "instead of 8 KV heads of 128 (3.6×), in 61 layers instead of 80 (1.3×)."
    )
    # 70,272 × 131,072 B = 8.578 GiB; 327,680 × 131,072 B = 40 GiB.
    assert result.at_length == (
        "At 128K tokens DeepSeek-V3 holds 8.58 GiB against 40 GiB for Llama 3.3 70B, 4.7× less, as for each token."
    )
    assert result.crossover_tokens is None
    back = compare(llama_70b, v3, 131072, kv, kv, name_a="Llama 3.3 70B", name_b="DeepSeek-V3")
    assert back.per_token == (
        "Llama 3.3 70B remembers 4.7× more per token than DeepSeek-V3 because it stores 8 KV heads of 128 instead of "
        "one 576-wide latent a layer (3.6×), in 80 layers instead of 61 (1.3×)."
    )


def test_counterfactuals_of_one_model() -> None:
    """64 query heads share 8 KV heads: MHA is 8 times as much, and 64 times as much as MQA."""
    mha = against(variant(model(LLAMA), "mha"), LLAMA)
    assert mha.per_token == "A remembers 8× more per token than B because it stores 64 KV heads of 128 instead of 8."
    mqa = against(variant(model(LLAMA), "mqa"), variant(model(LLAMA), "mha"))
    assert mqa.per_token_factor == Fraction(1, 64)
    assert mqa.per_token == "A remembers 64× less per token than B because it stores 1 KV head of 128 instead of 64."
    half = against(variant(model(LLAMA), "share:2"), LLAMA)
    assert half.per_token == (
        "A remembers 2× less per token than B because its cache grows in only 40 of its 80 layers instead of 80 "
        "(the others read another layer's cache)."
    )


def test_the_saving_that_deepseek_v2_states() -> None:
    """Section 1 of its paper: 93.3% less than DeepSeek 67B. 60 × 576 × 6 bits against 95 × 2048 × 16 bits."""
    result = against("deepseek-ai/DeepSeek-V2", "deepseek-ai/deepseek-llm-67b-base", 4096, "int6", "bf16")
    assert result.per_token_factor == Fraction(60 * 576 * 6, 95 * 2048 * 16)
    assert result.per_token_factor is not None
    assert round(100 * (1 - result.per_token_factor), 1) == Fraction("93.3")
    assert result.per_token == (
        "A remembers 15× less per token than B because it stores one 576-wide latent a layer instead of 8 KV heads of "
        "128 (3.6×), at 6 bits a number instead of 16 (2.7×), and in 60 layers instead of 95 (1.6×)."
    )


def test_windows_turn_the_order() -> None:
    """A row is 2 × 16 × 128 × 2 B = 8,192 B in both. Gemma 3: 10 full and 52 of 1,024; Gemma 2: 23 full, 23 of 4,096.

    At 128K: 10 × 131,072 + 52 × 1,024 = 1,363,968 rows against 23 × (131,072 + 4,096) = 3,108,864. Gemma 3 holds more
    while 62 N > 46 N, then 10 N + 53,248 > 46 N up to 53,248/36 = 1,479.1.
    """
    result = against("google/gemma-3-27b-it", "google/gemma-2-27b", 131072)
    assert (result.resident_a, result.resident_b) == (1_363_968 * 8192, 3_108_864 * 8192)
    assert (result.per_token_factor, result.long_run_factor) == (Fraction(62, 46), Fraction(10, 23))
    assert result.crossovers == (1480,)
    assert result.per_token == (
        "A remembers 1.3× more per token than B because it has 62 layers instead of 46; once all windows are full, "
        "2.3× less because its cache grows in only 10 of its 62 layers instead of 23 of 46."
    )
    assert result.at_length == (
        "At 128K tokens A holds 10.41 GiB against 23.72 GiB for B, 2.3× less because 52 of its 62 layers keep only "
        "the last 1,024 tokens (3.1×; 23 of the 46 layers of B keep only the last 4,096), though it has 62 layers "
        "instead of 46 (1.3× more); below 1,480 tokens it holds more."
    )


def test_states_are_a_fixed_cost() -> None:
    """Qwen3-Next: 12 layers of 2 × 2 × 256 × 2 B = 24,576 B a token, and 36 states of 1,097,728 B = 39,518,208 B.

    Qwen3 32B: 64 × 2 × 8 × 128 × 2 B = 262,144 B. They meet at 39,518,208 / 237,568 = 166.3 tokens.
    """
    long = against(QWEN_NEXT, "Qwen/Qwen3-32B", 32768)
    assert (long.per_token_a, long.per_token_b) == (24576, 262144)
    assert long.resident_a == 24576 * 32768 + 39_518_208
    assert long.crossovers == (167,)
    assert long.per_token == (
        "A remembers 11× less per token than B because its cache grows in only 12 of its 48 layers instead of 64 "
        "(5.3×; the others keep a fixed state), with 2 KV heads of 256 instead of 8 of 128 (2×)."
    )
    assert long.at_length.endswith("; below 167 tokens it holds more.")
    short = against(QWEN_NEXT, "Qwen/Qwen3-32B", 100)
    assert "1.6× more because its states take 37.69 MiB at any length (17×), though" in short.at_length
    assert short.at_length.endswith("; from 167 tokens on it holds less.")


def test_a_model_that_adds_nothing() -> None:
    """Mamba 2.8B: 64 × 194,560 B = 12,451,840 B = 95 × 131,072 B: at exactly 95 tokens both hold the same."""
    result = against(MAMBA, MISTRAL, 32768)
    assert (result.per_token_a, result.per_token_b, result.per_token_factor) == (0, 131072, None)
    assert result.resident_factor == Fraction(12_451_840, 4096 * 131072)
    assert result.causes == ()
    assert result.per_token == (
        "A adds nothing per token, as its layers keep a fixed state, while B adds 128 KiB per token until its windows "
        "are full."
    )
    assert result.at_length == (
        "At 32K tokens A holds 11.88 MiB against 512 MiB for B, 43× less because its states keep that size at any "
        "length; below 95 tokens it holds more."
    )
    assert result.crossovers == (96,)
    assert against(MAMBA, MISTRAL, 95).at_length == (
        "At 95 tokens A holds exactly as much as B, 11.88 MiB: its states keep that size at any length; "
        "from 96 tokens on it holds less."
    )
    # 64 × 194,560 B against 32 × 65,536 B.
    both = against(MAMBA, "RWKV/rwkv-4-7b-pile")
    assert both.per_token == "Neither A nor B adds anything per token, as their layers keep a fixed state."
    assert both.resident_factor == Fraction(64 * 194560, 32 * 65536)
    assert both.at_length == (
        "At 8K tokens A holds 11.88 MiB against 2 MiB for B, 5.9× more because it keeps 190 KiB of state a layer "
        "instead of 64 KiB (3.0×), in 64 layers instead of 32 (2×)."
    )
    empty = against("allenai/longformer-base-4096", MAMBA)
    assert empty.at_length == "At 8K tokens A holds nothing and B 11.88 MiB."


@pytest.mark.parametrize(
    ("kv", "words"),
    [
        ("fp8", "remembers 2× less per token than A in bf16 because it stores 8 bits a number instead of 16."),
        # 34 B for 32 numbers are 8.5 bits; 16 / 8.5 = 1.88.
        ("q8_0", "remembers 1.9× less per token than A in bf16 because it stores 8.5 bits a number instead of 16."),
        # 9 B for 16 numbers are 4.5 bits; 16 / 4.5 = 3.56.
        ("nvfp4", "remembers 3.6× less per token than A in bf16 because it stores 4.5 bits a number instead of 16."),
    ],
)
def test_formats_of_one_model(kv: str, words: str) -> None:
    m = model(LLAMA)
    result = compare(m, m, 8192, kv_format(kv), kv_format("bf16"), name_a="A", name_b="A")
    assert result.per_token == f"A in {kv} {words}"


def test_equal_models_and_near_ones() -> None:
    same = against(LLAMA, LLAMA)
    assert same.per_token == "A and B remember exactly the same per token, 320 KiB."
    assert same.at_length == "At 8K tokens A and B hold exactly the same, 2.5 GiB."
    assert (same.per_token_factor, same.causes, same.crossover_tokens) == (1, (), None)
    alike = against(_small(layers=64, heads=4), _small(layers=32, heads=8))
    assert alike.per_token == (
        "A remembers exactly as much per token as B, 32 KiB: it stores 4 KV heads of 32 instead of 8 (2× less), in 64 "
        "layers instead of 32 (2× more)."
    )
    near = against(_small(layers=200, heads=1), _small(layers=201, heads=1))
    assert near.per_token == "A remembers as much per token as B, within 1%."
    # 100 and 97 layers: 3% less is the share of the larger, 100/97 is 3.1% more.
    assert "remembers 3% less" in against(_small(layers=97, heads=1), _small(layers=100, heads=1)).per_token
    assert "remembers 3% more" in against(_small(layers=100, heads=1), _small(layers=97, heads=1)).per_token


def _small(*, layers: int, heads: int, window: int | None = None) -> Model:
    """Layers of KV heads of 32, with a window or none."""
    base = model_from_config(llama(), "small")
    law = "sliding" if window else "full"
    memory = Attention(num_kv_heads=heads, head_dim=32, v_head_dim=32, limit=window, law=law)
    return replace(base, layers=((memory,),) * layers)


def test_mixed_shapes_are_said_as_they_are() -> None:
    a, b = (Attention(num_kv_heads=n, head_dim=32, v_head_dim=32) for n in (2, 6))
    c = Attention(num_kv_heads=4, head_dim=32, v_head_dim=32)
    base = _small(layers=3, heads=1)
    two = replace(base, layers=((a,), (b,), (b,)))
    # (2 + 6 + 6) / 3 = 4.67 heads a layer.
    assert "it stores 6 or 2 KV heads of 32 a layer instead of 1 KV head of 32 (4.7×)" in _sole(against(two, base))
    three = replace(base, layers=((a,), (b,), (c,)))
    assert "it stores 4 KV heads of 32 on average instead of 1 KV head of 32 (4×)" in _sole(against(three, base))
    keys = replace(base, layers=((Attention(num_kv_heads=1, head_dim=192, v_head_dim=128),),) * 3)
    assert "1 KV head of 192 (K) and 128 (V) instead of 32" in against(keys, base).per_token


def _sole(result: Comparison) -> str:
    """The clause of the one cause with its factor: A sentence with one cause does not repeat it."""
    (cause,) = result.causes
    digits = f"{float(cause.factor):.1f}".removesuffix(".0")
    return f"{cause.words} ({digits}×)"


def test_index_keys_are_a_cause_of_their_own() -> None:
    """V3.2: 576 × 2 B and an index key of 132 B a layer, (1152 + 132) / 1152 = 1.1146."""
    result = against("deepseek-ai/DeepSeek-V3.2", V3)
    assert factors(result) == {"index": Fraction(1284, 1152)}
    assert result.per_token == "A remembers 1.1× more per token than B because it keeps index keys as well."
    half = against("deepseek-ai/DeepSeek-V3.2", "deepseek-ai/DeepSeek-V3.2", kv_a="fp8", kv_b="bf16")
    # The index keys stay as they are: (576 + 132) / 576 over (1152 + 132) / 1152.
    assert factors(half) == {"format": Fraction(1, 2), "index": Fraction(708, 576) / Fraction(1284, 1152)}


def test_cross_attention_and_chunks() -> None:
    """Whisper: 32 × 2 × 20 × 64 × 2 B = 163,840 B a token, and 1,500 source tokens of the same size."""
    whisper = model("openai/whisper-large-v3")
    kv = kv_format("fp16")
    result = compare(whisper, whisper, 100, kv, kv, name_a="A", name_b="B", source_tokens_a=300)
    assert (result.resident_a, result.resident_b) == (400 * 163840, 1600 * 163840)
    assert result.at_length == (
        "At 100 tokens A holds 62.5 MiB against 250 MiB for B, 4× less because the cross-attention of B takes "
        "234.38 MiB at any length."
    )
    # (10 + 1,500) / 10 = 151. After a clause with another subject the next cause is a whole clause.
    both = compare(whisper, model(LLAMA), 10, kv, kv, name_a="A", name_b="B")
    assert "because its cross-attention takes 234.38 MiB at any length (151×), and it stores 20 KV heads of 64" in (
        both.at_length
    )
    scout = against("meta-llama/Llama-4-Scout-17B-16E-Instruct", variant(model(LLAMA), "gqa:8"), 131072)
    assert "once its chunks are full" in scout.per_token
    assert "36 of its 48 layers keep at most a chunk of 8,192 tokens" in scout.at_length


def test_the_order_can_turn_twice() -> None:
    """A: 1 full layer of 1 head and 3 of 1 head with a window of 100: 4 N, then N + 300. B: 3 full layers and 3 with a
    window of 10: 6 N, then 3 N + 30. B holds more up to 30 tokens (4 N = 3 N + 30), A up to 135 (N + 300 = 3 N + 30).
    """
    full, wide, narrow = (
        Attention(num_kv_heads=1, head_dim=32, v_head_dim=32, limit=limit, law="sliding" if limit else "full")
        for limit in (None, 100, 10)
    )
    base = _small(layers=1, heads=1)
    a = replace(base, layers=((full,), (wide,), (wide,), (wide,)))
    b = replace(base, layers=((full,),) * 3 + ((narrow,),) * 3)
    result = against(a, b, 50)
    assert (result.crossovers, result.crossover_tokens) == ((31, 136), 31)
    assert result.at_length.endswith("; below 30 tokens it holds less.")
    assert against(a, b, 1000).at_length.endswith("; from 31 to 134 tokens it holds more.")
    assert against(a, b, 8).at_length.endswith("; from 31 to 134 tokens it holds more.")
    # A turn that both models cannot reach is known, but not told.
    short = against(replace(a, context_limit=20), b, 8)
    assert short.crossovers == (31, 136)
    assert "it holds" not in short.at_length


def test_a_window_as_long_as_the_limit_never_fills() -> None:
    capped = replace(_small(layers=4, heads=1, window=4096), context_limit=4096)
    assert capped.context_limit == 4096
    result = against(capped, _small(layers=4, heads=1))
    assert result.long_run_a == result.per_token_a
    assert result.per_token == "A and B remember exactly the same per token, 512 B."


def test_names_are_plain_text_and_cut() -> None:
    kv = kv_format("bf16")
    result = compare(model(V3), model(LLAMA), 8192, kv, kv, name_a="<b>*_[x](y)", name_b="n" * 300)
    assert result.per_token.startswith("<b>*_[x](y) remembers 4.7× less per token than " + "n" * 47 + "… because")
    assert len(result.per_token) <= 320
    bound = compare(replace(model(V3), knowledge="upper_bound"), model(LLAMA), 8, kv, kv, name_a="A", name_b="B")
    assert bound.per_token.endswith(". Counted as an upper bound: A.")


def test_refusals() -> None:
    kv = kv_format("bf16")
    with pytest.raises(UnitError, match="tokens"):
        compare(model(V3), model(LLAMA), -1, kv, kv, name_a="A", name_b="B")
    with pytest.raises(UnitError, match="packs a latent"):
        compare(model(V3), model(LLAMA), 1, kv, kv_format("fp8_ds_mla"), name_a="A", name_b="B")


@cache
def layouts() -> tuple[tuple[str, Model], ...]:
    """Every catalogued model, one for each layout: models that keep the same in the same format compare alike."""
    found: dict[object, tuple[str, Model]] = {}
    for entry in entries():
        m = load(entry.model_id)
        found.setdefault((m.kept, len(m.layers), m.resolve_format().name), (entry.display_name, m))
    return tuple(found.values())


def plain(a: tuple[str, Model], b: tuple[str, Model], tokens: int) -> Comparison:
    formats = a[1].resolve_format(), b[1].resolve_format()
    return compare(a[1], b[1], tokens, *formats, name_a=a[0], name_b=b[0])


SOME_DIFFERENCE = Fraction(101, 100)
ODD = re.compile(r"(?<![\d.,])0×|\s\s|\(\)|, ,|\.\.|None|Fraction|\s[;,.]|\( |instead of (of|instead)| because[;.]")


def check(result: Comparison) -> None:
    """The factors multiply to the ratio, and the sentences say less where it is less."""
    for causes, factor, a, b in (
        (result.causes, result.per_token_factor, result.per_token_a, result.per_token_b),
        (result.long_run_causes, result.long_run_factor, result.long_run_a, result.long_run_b),
        (result.length_causes, result.resident_factor, result.resident_a, result.resident_b),
    ):
        if not a or not b:
            assert (factor, causes) == (None, ())
            continue
        assert factor == Fraction(a) / Fraction(b) == prod((cause.factor for cause in causes), start=Fraction(1))
        assert all(cause.words.strip() and cause.short.strip() for cause in causes)
    for sentence in (result.per_token, result.at_length):
        assert sentence.endswith("."), sentence
        assert not ODD.search(sentence), sentence
        assert len(sentence) <= 320, sentence
    for start, factor in (
        (result.per_token.split(" because ")[0].split(";")[0], result.per_token_factor),
        (re.split(" because |, as for|;", result.at_length)[0], result.resident_factor),
    ):
        if factor is not None and max(factor, 1 / factor) >= SOME_DIFFERENCE:
            assert re.search(rf"(×|%) {'less' if factor < 1 else 'more'}\b", start), start
        elif factor is not None:
            assert not re.search(r"(×|%) (less|more)\b", start.split(":")[0]), start


@pytest.mark.parametrize("every", [33, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("tokens", [1000, 131072])
def test_every_pair_of_layouts(tokens: int, every: int) -> None:
    """All pairs at each of two lengths; the fast tests take 3 % of them, not the same 3 % at both."""
    for a, b in islice(combinations(layouts(), 2), int(tokens == 1000) % every, None, every):
        check(plain(a, b, tokens))


def test_the_other_way_round_is_the_inverse() -> None:
    chance = Random(11)
    for _ in range(400):
        a, b = chance.sample(layouts(), 2)
        tokens = chance.choice([0, 1, 7, 100, 3000, 32768, 10**6])
        there, back = plain(a, b, tokens), plain(b, a, tokens)
        check(there)
        check(back)
        assert there.crossovers == back.crossovers
        for name in ("per_token_factor", "long_run_factor", "resident_factor"):
            one, other = getattr(there, name), getattr(back, name)
            assert (one is None and other is None) or one * other == 1
        for name in ("causes", "long_run_causes", "length_causes"):
            one, other = ({cause.kind: cause.factor for cause in getattr(side, name)} for side in (there, back))
            assert one.keys() == other.keys()
            assert all(one[kind] * other[kind] == 1 for kind in one)


def test_crossovers_are_where_sizes_cross() -> None:
    """Held against the sizes themselves, where every token has an entry of its own."""
    chance = Random(5)
    turned = 0
    while turned < 60:
        a, b = (pair for pair in chance.sample(layouts(), 2))
        if any(getattr(memory, "tokens_per_entry", 1) > 1 for side in (a, b) for memory, _ in side[1].kept):
            continue
        for tokens in plain(a, b, 1).crossovers:
            turned += 1
            formats = a[1].resolve_format(), b[1].resolve_format()
            before, after = (
                resident_bytes(a[1], n, formats[0]) - resident_bytes(b[1], n, formats[1]) for n in (tokens - 2, tokens)
            )
            assert before * after < 0


def test_a_comparison_is_quick() -> None:
    """Well under 5 ms on an idle core; the best of several, because other work may share the machine."""
    a, b = ("A", model("deepseek-ai/DeepSeek-V4-Pro")), ("B", model("google/gemma-3-27b-it"))
    times = []
    for _ in range(10):
        start = perf_counter()
        plain(a, b, 131072)
        times.append(perf_counter() - start)
    assert min(times) < 0.02
