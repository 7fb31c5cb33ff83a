"""The catalogue over time: points worked out by hand, classes of known models, what the years say."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import date

import pytest

from kvcore.model import model_from_config
from kvcore.sources import catalogue
from kvcore.variants import trend
from kvcore.variants.trend import TrendPoint
from tests.models import catalogue_rows, llama, model

POINTS = {point.model_id: point for point in trend.points()}


# (growing, average over 32,768 tokens, share of full multi-head attention), each by hand in 16 bits.
BY_HAND = {
    # 2 (K and V) × 32 layers × 32 heads × 128 × 2 B; every head is kept.
    "meta-llama/Llama-2-7b-hf": (524_288, 524_288, 1),
    # 2 × 80 × 8 × 128 × 2 B, with 8 of 64 heads.
    "meta-llama/Llama-3.3-70B-Instruct": (327_680, 327_680, 1 / 8),
    # (512 + 64) × 2 B × 61 layers, against 128 heads of (192 + 128) × 2 B in each: 1,152 of 81,920.
    "deepseek-ai/DeepSeek-V3": (70_272, 70_272, 1_152 / 81_920),
    # 2 × 24 × 1 × 128 × 2 B, with 1 of 16 heads.
    "bigcode/gpt_bigcode-santacoder": (12_288, 12_288, 1 / 16),
    # 62 layers × 2 × 16 heads × 128 × 2 B = 507,904. 10 see everything, 52 the last 1,024 of 32,768 tokens:
    # 8,192 × (10 + 52/32) = 95,232. Against 62 layers of 32 heads, 16,384 B each: 1,015,808.
    "google/gemma-3-27b-it": (507_904, 95_232, 95_232 / 1_015_808),
    # 32 layers × 2 × 8 × 128 × 2 B, all with the last 4,096 of 32,768 tokens: an eighth of a quarter.
    "mistralai/Mistral-7B-v0.1": (131_072, 16_384, 1 / 32),
    # States of 64 layers: 5,120 × (3 columns of the convolution + 16) × 2 B = 194,560 B, 12,451,840 B in all,
    # over 32,768 tokens 380 B. It has no heads.
    "state-spaces/mamba-2.8b-hf": (0, 380, None),
    # Decoder layers keep themselves and the 1,500 tokens of the encoder: 32 × 2 × 20 × 64 × 2 B = 163,840 B for each
    # of 32,768 + 1,500 tokens, as full multi-head attention would. 163,840 × 34,268 / 32,768 = 171,340.
    "openai/whisper-large-v3": (163_840, 171_340, 1),
    # Of 40 layers 32 read the text and 8 an image; keys and values of 8 of 32 heads in both.
    "meta-llama/Llama-3.2-11B-Vision-Instruct": (131_072, None, 1 / 4),
}

CLASSES = {
    "openai-community/gpt2": "multi-head",
    "meta-llama/Llama-2-7b-hf": "multi-head",
    "openai/whisper-large-v3": "multi-head",
    "meta-llama/Llama-3.3-70B-Instruct": "grouped",
    "tiiuae/falcon-40b": "grouped",
    "MiniMaxAI/MiniMax-M3": "grouped",  # beside an indexer
    "nvidia/Llama-3_3-Nemotron-Super-49B-v1": "grouped",  # beside layers without attention
    "bigcode/gpt_bigcode-santacoder": "multi-query",
    "WizardLM/WizardCoder-15B-V1.0": "multi-query",
    "google/gemma-3-27b-it": "window",
    "mistralai/Mistral-7B-v0.1": "window",
    "openai/gpt-oss-120b": "window",
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": "window",  # chunks
    "deepseek-ai/DeepSeek-V3": "latent",
    "deepseek-ai/DeepSeek-V3.2": "latent",  # beside an indexer
    "deepseek-ai/DeepSeek-V4-Pro": "latent",  # compressed
    "Qwen/Qwen3-Next-80B-A3B-Instruct": "hybrid",
    "moonshotai/Kimi-Linear-48B-A3B-Instruct": "hybrid",  # states and latents
    "google/recurrentgemma-2b": "hybrid",  # states and windows
    "state-spaces/mamba-2.8b-hf": "recurrent",
    "RWKV/rwkv-4-7b-pile": "recurrent",
    # Windows of 262,144 and 131,072 tokens in a context of 131,072 never drop one.
    "microsoft/Phi-3-mini-128k-instruct": "multi-head",
    "microsoft/Phi-3.5-MoE-instruct": "grouped",
    # Its sister's window of 2,047 in a context of 4,096 does.
    "microsoft/Phi-3-mini-4k-instruct": "window",
}


def point(year: int, share: float | None = 1.0, **changes: object) -> TrendPoint:
    plain = TrendPoint(
        model_id=f"a/{year}-{share}-{sorted(changes.items())}", name="A", released=date(year, 3, 1), day_known=False,
        attention="multi-head", growing_bytes_per_token=1000, average_bytes_per_token=1000, share_of_mha=share,
        parameters=None, context_limit=None,
    )  # fmt: skip
    return replace(plain, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("model_id", BY_HAND)
def test_points_worked_out_by_hand(model_id: str) -> None:
    growing, average, share = BY_HAND[model_id]
    found = POINTS[model_id]
    assert found.growing_bytes_per_token == growing
    assert average is None or found.average_bytes_per_token == average
    assert found.share_of_mha == (None if share is None else pytest.approx(share, rel=1e-9))


@pytest.mark.parametrize("model_id", CLASSES)
def test_classes_of_known_models(model_id: str) -> None:
    assert POINTS[model_id].attention == CLASSES[model_id]


def test_a_class_comes_from_the_memories_and_not_from_the_name() -> None:
    # 8 query heads: as many, 2 and 1 key-value heads.
    for heads, expected in ((8, "multi-head"), (2, "grouped"), (1, "multi-query")):
        built = model_from_config(llama(num_key_value_heads=heads), "somebody/DeepSeek-Mamba-MLA")
        assert trend.attention_class(built) == expected
    assert trend.attention_class(model("allenai/longformer-base-4096")) is None


def test_every_dated_decoder_is_there_once_and_the_others_are_counted() -> None:
    # Of the table's rows, the two Longformers are encoders.
    decoders = {row["model_id"]: row["released"] for row in catalogue_rows() if "longformer" not in row["model_id"]}
    assert Counter(one.model_id for one in trend.points()) == Counter(one for one, cell in decoders.items() if cell)
    assert trend.undated() == tuple(sorted(one for one, cell in decoders.items() if not cell))
    assert [one.released for one in trend.points()] == sorted(one.released for one in trend.points())


def test_a_month_is_its_first_day_and_says_so() -> None:
    mistral, llama2 = POINTS["mistralai/Mistral-7B-v0.1"], POINTS["meta-llama/Llama-2-7b-hf"]
    assert (mistral.released, mistral.day_known) == (date(2023, 9, 1), False)
    assert (llama2.released, llama2.day_known) == (date(2023, 7, 18), True)


def test_repackaged_releases_are_copies_of_the_design_and_later_models_are_not() -> None:
    assert POINTS["nvidia/DeepSeek-V4-Pro-NVFP4"].copy_of == "deepseek-ai/DeepSeek-V4-Pro"
    assert POINTS["Qwen/Qwen3-8B-FP8"].copy_of == "Qwen/Qwen3-8B"
    assert POINTS["meta-llama/Llama-2-7b-chat-hf"].copy_of == "meta-llama/Llama-2-7b-hf"
    # The same layers a month later, and another size in the same month.
    assert POINTS["deepseek-ai/DeepSeek-R1"].copy_of is None
    assert POINTS["meta-llama/Llama-2-13b-hf"].copy_of is None
    assert all(POINTS[one.copy_of].copy_of is None for one in trend.points() if one.copy_of)


def test_a_date_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    summary = next(one for one in catalogue.summaries() if one.entry.released == "2023-09")
    for cell in ("2023-13", "soon", "2023-02-30"):
        wrong = replace(summary, entry=replace(summary.entry, released=cell))
        monkeypatch.setattr(trend, "summaries", lambda wrong=wrong: (wrong,))
        with pytest.raises(trend.ConfigError, match=cell):
            trend.points.__wrapped__()


def test_periods_join_the_early_years_and_count_designs() -> None:
    few = [point(2019), point(2021, share=0.5), point(2021, name="copy", copy_of="a")]
    many = [point(2023, name=str(one), attention="grouped", share=0.25) for one in range(9)]
    early, dense = trend.periods([*few, *many, point(2023, share=None, attention="recurrent")])
    assert (early.name, early.designs, early.share_of_mha) == ("2019 to 2021", 2, 0.75)
    assert (dense.name, dense.designs, dense.share_of_mha) == ("2023", 10, 0.25)
    assert dense.classes == (("grouped", 9), ("recurrent", 1))
    assert trend.periods([]) == ()
    # A thin year after a dense one stays a year of its own.
    after = trend.periods([*many, point(2023), point(2024)])
    assert [one.name for one in after] == ["2023", "2024"]


def test_medians_of_a_year() -> None:
    sizes = [point(2023, name=str(size), average_bytes_per_token=size) for size in (1, 2, 3, 10, 100)]
    (period,) = trend.periods(sizes)
    assert period.average_bytes_per_token == 3
    assert period.growing_bytes_per_token == 1000


def test_the_headline_tells_the_move() -> None:
    before = [point(2023, name=str(one)) for one in range(12)]
    after = [point(2026, name=str(one), attention="hybrid", share=0.02) for one in range(10)]
    assert trend.headline(before + after) == (
        "Of the 12 catalogued designs from 2023, 12 keep keys and values for every head; of the 10 from 2026, none "
        "does. Of those that attend, the median cache went from 100% to 2% of what full multi-head attention would hold."
    )
    one, two = [point(2026, name="x")], [point(2026, name="y")]
    assert "of the 11 from 2026, 1 does." in trend.headline(before + after + one)
    assert "of the 12 from 2026, 2 do." in trend.headline(before + after + one + two)
    bare = [replace(each, share_of_mha=None) for each in before]
    assert trend.headline(bare + after).endswith("from 2026, none does.")


def test_the_headline_of_too_few_models_counts_them() -> None:
    assert trend.headline([]) == "No model with a release date to compare."
    assert trend.headline([point(2023)]) == "Of 1 catalogued design, 1 keeps keys and values for every head."
    grouped = [point(2024, name=str(one), attention="grouped") for one in range(3)]
    assert trend.headline(grouped) == "Of 3 catalogued designs, none keeps keys and values for every head."


def test_the_real_headline_agrees_with_the_table() -> None:
    text = trend.headline(trend.points())
    designs = [one for one in trend.points() if one.copy_of is None]
    of_2023 = [one for one in designs if one.released.year == 2023]
    full = sum(one.attention == "multi-head" for one in of_2023)
    assert text.startswith(f"Of the {len(of_2023)} catalogued designs from 2023, {full} keep keys and values")
    newest = max(one.released.year for one in designs)
    assert f"from {newest}, " in text or len([one for one in designs if one.released.year == newest]) < trend.ENOUGH


@pytest.mark.parametrize(
    ("share", "text"), [(1.0, "100%"), (1.00003, "100%"), (0.125, "12.5%"), (0.25, "25%"), (0.0208, "2.1%"),
                        (0.00061, "0.06%")]
)  # fmt: skip
def test_shares_as_percent(share: float, text: str) -> None:
    assert trend.percent(share) == text
