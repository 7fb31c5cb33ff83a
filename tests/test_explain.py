"""The factors that are shown multiply to the bytes that are counted."""

from __future__ import annotations

from math import prod

import pytest

from kvcore.formats import KV_FORMATS, kv_format
from kvcore.sizing import growth_laws, token_steps
from tests.models import every_model, model


def number(text: str) -> float:
    if text.startswith("("):
        return sum(float(part) for part in text.strip("()").split("+"))
    return float(text.replace(",", ""))


def test_factors_multiply_to_the_bytes(subtests: pytest.Subtests) -> None:
    for model_id in every_model():
        with subtests.test(model=model_id):
            entry = model(model_id)
            for name in ("bf16", "fp8", "q4_0/q8_0", "int4_per_token_head"):
                steps = token_steps(entry, kv_format(name))
                for step in steps:
                    assert prod(number(factor.value) for factor in step.factors) == step.bytes, step.formula
                laws = growth_laws(entry, kv_format(name))
                assert sum(step.bytes for step in steps) == sum(
                    count * (law.bytes_per_entry or law.constant_bytes) for law, count in laws
                )


def test_the_line_for_llama_70b() -> None:
    (step,) = token_steps(model("meta-llama/Llama-3.3-70B-Instruct"), KV_FORMATS["bf16"])
    assert step.formula == (
        "2 (K and V) × 80 layers × 8 KV heads × 128 numbers a head × 2 bytes = 327,680 bytes a token"
    )
    assert (step.per, step.limit, step.kind) == ("token", None, "full")


def test_windows_states_and_compressed_entries_say_what_they_are_per() -> None:
    gemma = token_steps(model("google/gemma-3-27b-it"), KV_FORMATS["bf16"])
    assert {(step.kind, step.limit) for step in gemma} == {("sliding", 1024), ("full", None)}
    v4 = {step.per for step in token_steps(model("deepseek-ai/DeepSeek-V4-Flash"), KV_FORMATS["bf16"])}
    assert v4 == {"token", "4 tokens", "128 tokens", "request"}
