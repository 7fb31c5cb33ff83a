"""The three numbers of one model: resident, reserved and reported."""

from __future__ import annotations

import pytest

from kvcore.engines.registry import engine, engine_names
from kvcore.engines.reserve import reserve
from kvcore.errors import EngineError
from kvcore.formats import kv_format
from kvcore.sizing import resident_bytes
from tests.models import catalogue_rows, model

GIB = 2**30


def test_they_differ_for_one_model() -> None:
    gemma = model("google/gemma-3-27b-it")
    resident = resident_bytes(gemma, 8192, kv_format("bf16"))
    answer = reserve(gemma, "vllm", length=131_072, kv_bytes=40 * GIB)
    assert answer.layout is not None
    assert answer.capacity is not None
    assert answer.layout.bytes_per_request == 19_301_662_720 > 15 * resident
    # 40 GiB are 32,768 blocks of 1,310,720 B; a request needs 14,726: 32,768 / 14,726 × 131,072 tokens.
    assert answer.capacity.log_lines == (
        "GPU KV cache size: 291,658 tokens, Maximum concurrency for 131,072 tokens per request: 2.23x",
    )
    assert answer.command[:2] == ("vllm", "serve")


def test_a_refusal_is_an_answer() -> None:
    answer = reserve(model("meta-llama/Llama-3.3-70B-Instruct"), "vllm", length=1024, tp=7)
    assert answer.layout is None
    assert "cannot be split" in answer.refused
    with pytest.raises(EngineError, match="abacus"):
        reserve(model("meta-llama/Llama-3.3-70B-Instruct"), "abacus", length=1)


@pytest.mark.parametrize("name", engine_names())
def test_every_engine_answers_or_refuses_every_model(name: str) -> None:
    answered = 0
    for row in catalogue_rows():
        answer = reserve(model(row["model_id"]), name, length=4096, kv_bytes=64 * GIB)
        assert (answer.layout is None) <= bool(answer.refused)
        if answer.layout is not None:
            answered += 1
            assert answer.layout.bytes_per_request >= 0
            assert answer.command
            assert answer.layout.groups or not answer.layout.bytes_per_request
    assert answered > 150


@pytest.mark.parametrize("name", engine_names())
def test_each_states_its_versions_and_its_own_flags(name: str) -> None:
    chosen = engine(name)
    assert chosen.name == name
    assert any(letter.isdigit() for letter in chosen.versions)
    fields = [option.field for option in chosen.options]
    assert len(fields) == len(set(fields))
    for option in chosen.options:
        assert option.flag.startswith("--")
        assert option.help
