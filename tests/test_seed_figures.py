"""Every figure about sizes in the two introductory texts, at the token count that makes it true.

The texts say "8,000 tokens" and mean 8,192. Two of their figures do not follow from their own formula; the right
values are stated here, and the product explains the difference in a note.
"""

from __future__ import annotations

import pytest

from kvcore.formats import kv_format
from kvcore.model import Model
from kvcore.model.weight_formats import weights_bytes
from kvcore.sizing import bytes_per_token, projections, resident_bytes
from kvcore.units import GB, GIB, KIB, MIB
from kvcore.variants.variants import variant
from tests.models import model

LLAMA_70B = "meta-llama/Llama-3.3-70B-Instruct"
BF16 = kv_format("bf16")
FP16 = kv_format("fp16")


def test_llama_70b_keeps_320_kib_a_token() -> None:
    assert bytes_per_token(model(LLAMA_70B), 0, BF16) == 327_680 == 320 * KIB


@pytest.mark.parametrize(
    ("tokens", "batch", "gib"), [(8_192, 1, 2.5), (131_072, 1, 40), (32_768, 10, 100), (32_768, 1, 10)]
)
def test_llama_70b_conversations(tokens: int, batch: int, gib: float) -> None:
    assert resident_bytes(model(LLAMA_70B), tokens, BF16, batch) == int(gib * GIB)


def test_llama_70b_without_grouping_is_eight_times_larger() -> None:
    mha = variant(model(LLAMA_70B), "mha")
    assert bytes_per_token(mha, 0, BF16) == int(2.5 * MIB) == 8 * 327_680
    assert resident_bytes(mha, 131_072, BF16) == 320 * GIB
    # "More than the combined memory of four 80 GB accelerators, for one conversation."
    assert resident_bytes(mha, 131_072, BF16) > 4 * 80 * GB


def test_one_user_at_full_context_is_over_a_quarter_of_the_weights() -> None:
    weights = weights_bytes(model(LLAMA_70B), "bf16")
    assert weights is not None
    assert resident_bytes(model(LLAMA_70B), 131_072, BF16) > weights.bytes / 4


def test_70b_weights_are_140_gb_which_is_131_gib() -> None:
    """The text's "140 gibibytes" is 140 × 10⁹ bytes: about 131 GiB."""
    weights = weights_bytes(model(LLAMA_70B), "bf16")
    assert weights is not None
    assert weights.bytes / GB == pytest.approx(141.1, abs=0.05)
    assert weights.bytes / GIB == pytest.approx(131.42, abs=0.005)
    assert round(70e9 * 2 / GIB) == 130
    assert pytest.approx(130.4, abs=0.05) == 140 * GB / GIB


@pytest.mark.parametrize(("tokens", "gib"), [(8_192, 1), (16_384, 2), (32_768, 4), (65_536, 8)])
def test_a_7b_class_model_with_grouped_queries(tokens: int, gib: int) -> None:
    """128 KiB a token: 32 layers × 8 KV heads × 128, as in Mistral 7B (v0.3, no window) and Llama 3.1 8B."""
    grouped = model("mistralai/Mistral-7B-Instruct-v0.3")
    assert bytes_per_token(grouped, 0, FP16) == 128 * KIB
    assert resident_bytes(grouped, tokens, FP16) == gib * GIB


def test_a_7b_class_model_weighs_about_14_gb_in_16_bits() -> None:
    weights = weights_bytes(model("mistralai/Mistral-7B-Instruct-v0.3"), "fp16")
    assert weights is not None
    assert 14 * GB < weights.bytes < 15 * GB
    # "An 80 GB card fits them, then a handful of long-context users consume everything left": nine at 64K do.
    assert weights.bytes + 9 * 8 * GIB > 80 * GB > weights.bytes + 7 * 8 * GIB


@pytest.mark.parametrize(("tokens", "gib"), [(8_192, 6.25), (16_384, 12.5)])
def test_13b_multi_head(tokens: int, gib: float) -> None:
    """40 layers × 40 heads × 128 is 800 KiB a token: 6.25 GiB at 8,192. The text's 12.5 GiB is 16,384 tokens."""
    llama_13b = model("meta-llama/Llama-2-13b-hf")
    assert resident_bytes(llama_13b, tokens, FP16) == int(gib * GIB)


def test_70b_multi_head_against_multi_query() -> None:
    mha, mqa = variant(model(LLAMA_70B), "mha"), variant(model(LLAMA_70B), "mqa")
    assert resident_bytes(mha, 8_192, FP16) == 20 * GIB
    assert resident_bytes(mqa, 8_192, FP16) == int(0.3125 * GIB)
    assert resident_bytes(mha, 8_192, FP16) == 64 * resident_bytes(mqa, 8_192, FP16)


def test_deepseek_v3_keeps_69_kib_a_token_and_under_a_quarter_of_llama_70b() -> None:
    v3 = model("deepseek-ai/DeepSeek-V3")
    assert bytes_per_token(v3, 0, BF16) == 70_272 == 61 * (512 + 64) * 2
    assert 4 * bytes_per_token(v3, 0, BF16) < bytes_per_token(model(LLAMA_70B), 0, BF16)


def test_deepseek_v3_has_671b_parameters_of_which_37b_are_active() -> None:
    v3 = model("deepseek-ai/DeepSeek-V3")
    assert v3.total_parameters is not None
    assert v3.active_parameters is not None
    assert round(v3.total_parameters / 1e9) == 671
    assert round(v3.active_parameters / 1e9) == 37


def _reduction(before: Model, after: Model, kv: str) -> float:
    return 1 - bytes_per_token(after, 0, kv_format(kv)) / bytes_per_token(before, 0, BF16)


def test_deepseek_v2_against_67b_needs_the_6_bit_cache_for_93_3_percent() -> None:
    dense, v2 = model("deepseek-ai/deepseek-llm-67b-base"), model("deepseek-ai/DeepSeek-V2")
    assert _reduction(dense, v2, "int6") == pytest.approx(0.933, abs=0.0005)
    assert _reduction(dense, v2, "bf16") == pytest.approx(0.822, abs=0.0005)


def test_kimi_k2_carries_the_same_latent() -> None:
    assert bytes_per_token(model("moonshotai/Kimi-K2-Instruct"), 0, BF16) == 61 * (512 + 64) * 2


def test_quantising_shrinks_severalfold() -> None:
    wide = bytes_per_token(model(LLAMA_70B), 0, BF16)
    assert wide == 2 * bytes_per_token(model(LLAMA_70B), 0, kv_format("fp8"))
    assert wide > 3.5 * bytes_per_token(model(LLAMA_70B), 0, kv_format("q4_0"))


def test_a_window_stops_growing_and_a_state_never_grows() -> None:
    mistral = model("mistralai/Mistral-7B-v0.1")
    assert resident_bytes(mistral, 4_096, BF16) == resident_bytes(mistral, 131_072, BF16) == GIB // 2
    mamba = model("state-spaces/mamba-2.8b-hf")
    assert resident_bytes(mamba, 0, BF16) == resident_bytes(mamba, 10**6, BF16) > 0


def test_an_encoder_with_a_window_keeps_nothing() -> None:
    assert resident_bytes(model("allenai/longformer-base-4096"), 4_096, BF16) == 0


def test_thinking_tokens_are_held_like_any_other() -> None:
    assert resident_bytes(model(LLAMA_70B), 20_000, BF16) == 20_000 * 327_680


def test_what_the_cache_saves() -> None:
    """Producing token 1,001 without a cache projects the thousand before it again."""
    assert projections(1_001) == (1_001, 501_501)
    assert projections(1_001)[1] - projections(1_000)[1] == 1_001
