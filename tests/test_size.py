"""The size module: one answer in several forms, and laws that must hold for every model."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcore.errors import UnitError
from kvcore.formats import kv_format
from kvcore.model import Model, model_from_config
from kvcore.sizing import bytes_per_token, curve, max_tokens, resident_bytes, size, state_bytes
from kvcore.sweep import sweep
from kvcore.variants.variants import variant
from tests.models import LLAMA, catalogue_rows, llama, model

IDS = [row["model_id"] for row in catalogue_rows()]
BF16 = kv_format("bf16")
models = st.sampled_from(IDS).map(model)
contexts = st.integers(0, 2_000_000)


@given(models, contexts, contexts)
@settings(max_examples=300, deadline=None)
def test_growth_never_decreases(entry: Model, a: int, b: int) -> None:
    low, high = sorted((a, b))
    assert 0 <= resident_bytes(entry, low, BF16) <= resident_bytes(entry, high, BF16)


@given(models, contexts, st.integers(1, 1000))
@settings(max_examples=200, deadline=None)
def test_batch_is_linear(entry: Model, tokens: int, batch: int) -> None:
    assert resident_bytes(entry, tokens, BF16, batch) == batch * resident_bytes(entry, tokens, BF16)
    one, many = size(entry, tokens, "bf16"), size(entry, tokens, "bf16", batch)
    assert many.bytes_per_token == batch * one.bytes_per_token
    assert many.state_bytes == batch * one.state_bytes


@given(models, contexts)
@settings(max_examples=200, deadline=None)
def test_formats_order_by_size(entry: Model, tokens: int) -> None:
    sizes = [resident_bytes(entry, tokens, kv_format(name)) for name in ("fp32", "bf16", "q8_0", "fp8", "q4_0")]
    assert sizes == sorted(sizes, reverse=True)


@given(models, contexts, st.integers(1, 100_000))
@settings(max_examples=200, deadline=None)
def test_a_window_never_exceeds_full_attention(entry: Model, tokens: int, window: int) -> None:
    if not entry.num_attention_heads:
        return
    slid, full = variant(entry, f"sliding:{window}"), variant(entry, "sliding:1000000000")
    assert resident_bytes(slid, tokens, BF16) <= resident_bytes(full, tokens, BF16)
    if tokens <= window:
        assert resident_bytes(slid, tokens, BF16) == resident_bytes(full, tokens, BF16)


@given(models, contexts)
@settings(max_examples=200, deadline=None)
def test_the_next_token_adds_what_is_said(entry: Model, tokens: int) -> None:
    added = resident_bytes(entry, tokens + 1, BF16) - resident_bytes(entry, tokens, BF16)
    if all(memory.growth(BF16).tokens_per_entry == 1 for memory, _ in entry.groups):
        assert added == bytes_per_token(entry, tokens, BF16)


def test_the_forms_of_the_answer_agree(subtests: pytest.Subtests) -> None:
    for model_id in IDS:
        with subtests.test(model=model_id):
            entry = model(model_id)
            tokens = [0, 1, 127, 128, 1023, 4096, 4097, 131_072, 1_000_000]
            by_curve = curve(entry, tokens, BF16, batch=3)
            for count, expected in zip(tokens, by_curve, strict=True):
                result = size(entry, count, "bf16", 3)
                assert result.resident_bytes == expected == resident_bytes(entry, count, BF16, 3)
                assert result.terms[-1].value == result.resident_bytes
                assert result.state_bytes == state_bytes(entry, BF16, 3)
            table = sweep([entry], ["bf16", "fp8"], tokens)
            assert [3 * int(value) for value in table.bytes[0, 0]] == [int(value) for value in by_curve]


def test_a_sweep_of_many_models_is_each_models_own() -> None:
    names = ["meta-llama/Llama-3.3-70B-Instruct", "deepseek-ai/DeepSeek-V4-Flash", "state-spaces/mamba-2.8b-hf"]
    table = sweep([model(name) for name in names], ["bf16", "fp8_ds_mla", "auto"], [0, 5, 8192, 10**9])
    assert table.bytes.shape == (3, 3, 4)
    assert (table.bytes[0, 1] == -1).all()
    assert "latent" in table.kv_dtypes[0][1]
    assert table.kv_dtypes[0][2] == "bf16"
    for m, name in enumerate(names):
        assert [int(value) for value in table.bytes[m, 0]] == [
            resident_bytes(model(name), tokens, BF16) for tokens in (0, 5, 8192, 10**9)
        ]


def test_deepseek_v4_by_hand() -> None:
    """43 windows of 128; 21 layers keep 1 entry for 4 tokens and an index key, 20 keep 1 for 128 (16 bits, 512 wide)."""
    v4 = model("deepseek-ai/DeepSeek-V4-Flash")
    windows = 43 * 128 * 1024
    entries = 21 * (131_072 // 4) * (1024 + 132) + 20 * (131_072 // 128) * 1024
    # Rolling rows in fp32, values and gates: 8 × 2 × 1024, 8 × 2 × 256 and 128 × 2 × 512 numbers.
    state = 4 * (21 * (8 * 2 * 1024 + 8 * 2 * 256) + 20 * 128 * 2 * 512)
    assert resident_bytes(v4, 131_072, BF16) == windows + entries + state
    assert bytes_per_token(v4, 131_072, BF16) == 21 * (1024 + 132) // 4 + 20 * 1024 // 128
    assert any("long-run average" in note for note in size(v4, 131_072).notes)


def test_max_tokens_is_the_inverse() -> None:
    entry = model("meta-llama/Llama-3.3-70B-Instruct")
    assert max_tokens(entry, 40 * 2**30, BF16) == 131_072
    assert max_tokens(entry, 40 * 2**30 - 1, BF16) == 131_071
    assert max_tokens(entry, 0, BF16) == 0
    assert max_tokens(model("state-spaces/mamba-2.8b-hf"), 2**30, BF16) is None
    assert max_tokens(model("state-spaces/mamba-2.8b-hf"), 1000, BF16) == -1
    assert max_tokens(model("mistralai/Mistral-7B-v0.1"), 2**29, BF16) is None
    assert max_tokens(model("mistralai/Mistral-7B-v0.1"), 2**29 - 1, BF16) == 4095
    assert max_tokens(model("allenai/longformer-base-4096"), 1, BF16) is None


@given(models, st.integers(0, 10**13), st.integers(1, 64))
@settings(max_examples=200, deadline=None)
def test_max_tokens_fits_and_one_more_does_not(entry: Model, budget: int, batch: int) -> None:
    tokens = max_tokens(entry, budget, BF16, batch)
    if tokens is None or tokens > 10**9 - 1:
        return
    if tokens >= 0:
        assert resident_bytes(entry, tokens, BF16, batch) <= budget
    assert resident_bytes(entry, tokens + 1, BF16, batch) > budget


def test_beyond_the_limit_is_answered_with_a_note() -> None:
    result = size(model_from_config(LLAMA), 5000)
    assert any("limit of 4,096" in note for note in result.notes)
    assert not any("limit" in note for note in size(model_from_config(LLAMA), 4096).notes)


def test_source_tokens() -> None:
    whisper = model("openai/whisper-large-v3")
    default = size(whisper, 100, "bf16")
    assert default.state_bytes == 32 * 2 * 20 * 64 * 2 * 1500
    assert size(whisper, 100, "bf16", source_tokens=750).state_bytes * 2 == default.state_bytes
    assert default.resident_bytes - default.state_bytes == 100 * 32 * 2 * 20 * 64 * 2
    assert [layer.kind for layer in default.layers[:2]] == ["full", "cross"]
    assert default.layers[0].index == default.layers[1].index == 0


@pytest.mark.parametrize(("tokens", "batch"), [(-1, 1), (10**9 + 1, 1), (True, 1), (1, 0), (1, 10**7), (1, -5)])
def test_numbers_out_of_range(tokens: int, batch: int) -> None:
    with pytest.raises(UnitError):
        size(model_from_config(LLAMA), tokens, "auto", batch)


def test_the_largest_model_and_context_do_not_overflow() -> None:
    huge = model_from_config(llama(num_hidden_layers=2048, num_attention_heads=16384, num_key_value_heads=16384,
                                   hidden_size=2**20, head_dim=65536))  # fmt: skip
    expected = 10**6 * 10**9 * bytes_per_token(huge, 0, kv_format("fp32"))
    assert expected > 2**63
    assert resident_bytes(huge, 10**9, kv_format("fp32"), 10**6) == expected
    assert int(curve(huge, np.array([10**9]), kv_format("fp32"), 10**6)[0]) == expected
    with pytest.raises(UnitError, match="too large"):
        sweep([huge], ["fp32"], [10**9])
