"""Counterfactuals are models made of the same memories."""

from __future__ import annotations

import pytest

from kvcore.errors import UnitError
from kvcore.formats import kv_format
from kvcore.size import bytes_per_token, resident_bytes, size
from kvcore.variants import variant
from tests.models import model

BF16 = kv_format("bf16")
LLAMA = "meta-llama/Llama-3.3-70B-Instruct"


@pytest.mark.parametrize("groups", [1, 2, 4, 8, 16, 32, 64])
def test_the_factor_is_heads_over_kv_heads(groups: int) -> None:
    mha, gqa = variant(model(LLAMA), "mha"), variant(model(LLAMA), f"gqa:{groups}")
    assert bytes_per_token(mha, 0, BF16) * groups == bytes_per_token(gqa, 0, BF16) * 64


@pytest.mark.parametrize(
    ("model_id", "text"),
    [
        (LLAMA, "gqa:8"),
        ("google/gemma-3-27b-it", "sliding:1024/6"),
        ("deepseek-ai/DeepSeek-V3", "mla"),
        ("deepseek-ai/DeepSeek-V3", "mla:512+64"),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", "hybrid:4:gdn"),
        ("mistralai/Mistral-7B-v0.1", "sliding:4096"),
        ("meta-llama/Llama-2-7b-chat-hf", "mha"),
        ("nvidia/Llama-3_3-Nemotron-Super-49B-v1", "gqa:8"),
    ],
)
def test_a_model_as_what_it_is_keeps_its_size(model_id: str, text: str) -> None:
    """The shipped design, asked for as a variant, comes back byte for byte."""
    for tokens in (0, 1000, 100_000):
        assert resident_bytes(variant(model(model_id), text), tokens, BF16) == resident_bytes(
            model(model_id), tokens, BF16
        )


def test_multi_head_of_a_latent_model_uses_its_own_widths() -> None:
    """DeepSeek-V3: 128 heads with keys of 128 + 64 and values of 128."""
    assert bytes_per_token(variant(model("deepseek-ai/DeepSeek-V3"), "mha"), 0, BF16) == 61 * 128 * (192 + 128) * 2


def test_sharing_and_interpolation() -> None:
    llama = model(LLAMA)
    full = resident_bytes(llama, 8192, BF16)
    assert resident_bytes(variant(llama, "share:2"), 8192, BF16) * 2 == full
    assert resident_bytes(variant(llama, "share:3"), 8192, BF16) == full * 27 // 80
    assert resident_bytes(variant(llama, "hybrid:1"), 8192, BF16) == full
    assert resident_bytes(variant(llama, "sliding:128/1"), 8192, BF16) == full
    steps = [resident_bytes(variant(llama, f"sliding:128/{n}"), 8192, BF16) for n in (1, 2, 4, 8, 80, 2048)]
    assert steps == sorted(steps, reverse=True)
    assert steps[-1] == resident_bytes(variant(llama, "sliding:128"), 8192, BF16)


@pytest.mark.parametrize("design", ["mamba2", "gdn", "kda", "linear"])
def test_linear_attention_never_grows(design: str) -> None:
    linear = variant(model(LLAMA), f"linear:{design}")
    assert resident_bytes(linear, 0, BF16) == resident_bytes(linear, 10**6, BF16) == size(linear, 5).state_bytes > 0


@pytest.mark.parametrize(
    "text",
    ["", "gqa", "gqa:", "gqa:3", "gqa:0", "gqa:128", "gqa:x", "mha:2", "mla:0", "mla:512+", "sliding", "sliding:0",
     "sliding:5/0", "share:0", "hybrid", "hybrid:4:magic", "linear:magic", "x" * 100, "gqa:８", "sliding:-5"],
)  # fmt: skip
def test_what_is_no_variant_is_refused(text: str) -> None:
    with pytest.raises(UnitError, match="variant|state"):
        variant(model(LLAMA), text)


def test_a_model_without_heads_has_no_attention_variant() -> None:
    with pytest.raises(UnitError, match="no attention heads"):
        variant(model("state-spaces/mamba-2.8b-hf"), "mha")
