"""Configurations of real models, old and new spellings, with sizes worked out by hand from their published keys.

The arithmetic was done apart from kvcore: bytes a token of the layers that grow, (window, bytes a token) of those that
slide or are chunked, and the bytes that never grow.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvcore.model import model_from_config
from kvcore.sizing import size

CASES = [
    json.loads(line) for line in (Path(__file__).parent / "reference" / "by_hand.jsonl").read_text("utf-8").splitlines()
]


def test_there_are_many() -> None:
    assert len(CASES) >= 295


def test_by_hand(subtests: pytest.Subtests) -> None:
    for case in CASES:
        for tokens in (0, 1000, 100_003):
            with subtests.test(case=case["name"], tokens=tokens):
                result = size(model_from_config(case["config"], case["name"]), tokens)
                windows = case["windows"]
                kept = sum(each * min(tokens, window) for window, each in windows)
                assert result.resident_bytes == case["bytes_per_token"] * tokens + kept + case["state_bytes"]
                assert result.bytes_per_token == case["bytes_per_token"] + sum(
                    each for window, each in windows if tokens < window
                )
                assert result.state_bytes == case["state_bytes"]
                assert result.knowledge == "exact"
