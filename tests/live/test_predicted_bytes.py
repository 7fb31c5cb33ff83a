"""Predicted bytes of the live cache, by hand and against the Size screen's own code."""

from __future__ import annotations

import pytest

from kvcore.errors import LiveError
from kvcore.formats import kv_format
from kvcore.live.shape import CacheBytes, as_variant, predicted_bytes, shape_of_catalogue
from kvcore.sizing import resident_bytes
from kvcore.sources import catalogue

SMOLLM2 = "HuggingFaceTB/SmolLM2-135M-Instruct"


@pytest.mark.parametrize(
    ("kv", "row"),
    [
        # 30 layers × K and V × 3 heads × 64 numbers, and a scale of 4 B for each vector in int8.
        ("bf16", 30 * 2 * 3 * 64 * 2),
        ("fp16", 23_040),
        ("fp32", 46_080),
        ("int8", 30 * 2 * 3 * (64 + 4)),
        ("int8_per_token_head", 12_240),
    ],
)
def test_smollm2_by_hand(kv: str, row: int) -> None:
    shape = shape_of_catalogue(SMOLLM2)
    assert predicted_bytes(shape, kv, [1]) == CacheBytes(reserved=256 * row, resident=row)
    assert predicted_bytes(shape, kv, [256]) == CacheBytes(reserved=256 * row, resident=256 * row)
    # Three requests, allocated to the longest.
    assert predicted_bytes(shape, kv, [257, 5, 0]) == CacheBytes(reserved=3 * 512 * row, resident=262 * row)
    assert predicted_bytes(shape, kv, [257], 16) == CacheBytes(reserved=272 * row, resident=257 * row)
    assert predicted_bytes(shape, kv, []) == predicted_bytes(shape, kv, [0]) == CacheBytes(reserved=0, resident=0)


def test_a_window_by_hand() -> None:
    """A window of 300 in blocks of 256 is a ring of 512 rows; layers 5, 10, … see everything."""
    shape = as_variant(shape_of_catalogue(SMOLLM2), "sliding:300/5")
    row = 2 * 3 * 64 * 2
    found = predicted_bytes(shape, "bf16", [1000, 100])
    assert found.reserved == 2 * (24 * 512 + 6 * 1024) * row
    assert found.resident == (24 * (300 + 100) + 6 * 1100) * row


def test_a_latent_by_hand() -> None:
    """128 + 32 numbers a token and layer, one scale a token in int8."""
    shape = as_variant(shape_of_catalogue(SMOLLM2), "mla:128+32")
    assert predicted_bytes(shape, "bf16", [10]) == CacheBytes(reserved=256 * 30 * 320, resident=10 * 30 * 320)
    assert predicted_bytes(shape, "int8", [10]) == CacheBytes(reserved=256 * 30 * 164, resident=10 * 30 * 164)


@pytest.mark.parametrize("model_id", ["mistralai/Mistral-7B-v0.1", "Qwen/Qwen3-8B", "Qwen/Qwen2.5-0.5B"])
@pytest.mark.parametrize("tokens", [1, 4095, 4096, 10_000])
def test_resident_is_what_the_size_screen_says(model_id: str, tokens: int) -> None:
    for kv in ("bf16", "fp32"):
        expected = resident_bytes(catalogue.load(model_id), tokens, kv_format(kv), 2)
        assert predicted_bytes(shape_of_catalogue(model_id), kv, [tokens, tokens]).resident == expected


def test_a_format_that_is_not_known() -> None:
    with pytest.raises(
        LiveError, match="cache format 'fp8' cannot run live; those that can are bf16, fp16, fp32, int8"
    ):
        predicted_bytes(shape_of_catalogue(SMOLLM2), "fp8", [1])
