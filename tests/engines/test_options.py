"""Whole numbers that no engine can take are refused with the flag and what it may be, for every flag of every engine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvcore.deployment import Request, as_options
from kvcore.engines.registry import engine, engine_names
from kvcore.errors import EngineError
from tests.models import model

QWEN = model("Qwen/Qwen3-0.6B")
FLAGS = [
    (name, option.flag, option.field)
    for name in engine_names()
    for option in engine(name).options
    if option.kind == "integer"
]  # fmt: skip
# 0 is the tool's own default, or none of what is counted.
ZERO_IS_TAKEN = {
    ("vllm", "--num-speculative-tokens"), ("vllm", "--mtp-layers"), ("llama.cpp", "--ctx-size"),
    ("llama.cpp", "--ubatch-size"), ("llama.cpp", "--n-gpu-layers"), ("llama.cpp", "--spec-draft-n-max"),
    ("ollama", "--num-ctx"), ("ollama", "--num-parallel"), ("ollama", "--num-batch"), ("ollama", "--num-gpu"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "flag", "field"), FLAGS)
def test_numbers_that_cannot_be(name: str, flag: str, field: str) -> None:
    common = Request(context=1024)
    for value in (-1, 10**20):
        with pytest.raises(EngineError, match=f"{name}: {flag} is {value:,}; expected [0-9,]+ … [0-9,]+$"):
            engine(name).settings(QWEN, replace(common, options=as_options({field: value})))
    if (name, flag) in ZERO_IS_TAKEN:
        assert engine(name).settings(QWEN, replace(common, options=as_options({field: 0})))
        return
    with pytest.raises(EngineError, match=f"{name}: {flag} is 0; expected"):
        engine(name).settings(QWEN, replace(common, options=as_options({field: 0})))
