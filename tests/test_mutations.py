"""Ten thousand mutated configurations give an answer or a KVCoreError: never another exception, never an absurdity.

The fast tests take the first thousand of them.
"""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest

from kvcore.errors import MAX_MESSAGE, KVCoreError
from kvcore.model import model_from_config
from kvcore.model.weight_formats import weights_bytes
from kvcore.sizing import size
from tests.models import catalogue_rows, config

MUTATIONS = 10_000
SHARDS, FAST_SHARDS = 20, 2
# More than any model of 2,048 layers, 16,384 heads and 65,536 numbers a head could take; it grows with the tokens.
ABSURD_BYTES = 2048 * 2 * 16_384 * 65_536 * 4 * 8192

JUNK: list[Any] = [
    None, True, False, 0, -1, 1, 2, 3, 7, 10**6, 10**12, 2**63, -(2**40), 0.5, 1.5, 128.0, float("inf"), float("nan"),
    "", "x", "full_attention", "128", [], [0], [1, 2, 3], ["sliding_attention"], [None] * 5, [[["global"], 3]], {},
    {"a": 1}, {"num_hidden_layers": 2}, [0] * 100_000, "L" * 10_000, "M*-E", b"bytes",
]  # fmt: skip


def _mutate(raw: dict[str, Any], rng: random.Random, names: list[str]) -> None:
    """Change, drop, add or swap one key, here or in a nested object."""
    target = raw
    nested = [value for value in raw.values() if isinstance(value, dict)]
    if nested and rng.random() < 0.5:
        target = rng.choice(nested)
    keys = list(target)
    action = rng.randrange(6)
    if not keys or action == 0:
        target[rng.choice(names)] = copy.deepcopy(rng.choice(JUNK))
        return
    key = rng.choice(keys)
    if action == 1:
        del target[key]
    elif action == 2:
        target[key] = copy.deepcopy(rng.choice(JUNK))
    elif action == 3:
        target[key] = target[rng.choice(keys)]
    elif action == 4 and isinstance(target[key], int | float):
        target[key] = target[key] * rng.choice([-1, 0, 2, 0.5, 1000, 10**9])
    elif isinstance(target[key], list) and target[key]:
        target[key] = [*target[key][: rng.randrange(len(target[key]))], copy.deepcopy(rng.choice(JUNK))]
    else:
        target[key] = copy.deepcopy(rng.choice(JUNK))


@pytest.mark.parametrize(
    "shard",
    [*range(FAST_SHARDS), *(pytest.param(shard, marks=pytest.mark.slow) for shard in range(FAST_SHARDS, SHARDS))],
)
def test_mutated_configurations(shard: int) -> None:
    rng = random.Random(shard)
    originals = [config(row["model_id"]) for row in catalogue_rows()]
    names = sorted({key for raw in originals for key in raw})
    types = sorted({raw["model_type"] for raw in originals if isinstance(raw.get("model_type"), str)})
    answered = 0
    for _ in range(MUTATIONS // SHARDS):
        raw = copy.deepcopy(rng.choice(originals))
        for _ in range(rng.randrange(1, 5)):
            _mutate(raw, rng, names)
        if rng.random() < 0.1:
            raw["model_type"] = rng.choice(types)
        for upper_bound in (False, True):
            try:
                entry = model_from_config(raw, "mutant", upper_bound=upper_bound)
                result = size(entry, 8192)
            except KVCoreError as refusal:
                assert 0 < len(str(refusal)) <= MAX_MESSAGE
                continue
            answered += 1
            assert 0 <= result.resident_bytes <= ABSURD_BYTES
            assert 0 <= result.state_bytes <= result.resident_bytes
            assert result.bytes_per_token >= 0
            assert all(layer.resident_bytes >= 0 and layer.formula for layer in result.layers)
            assert 1 <= len(entry.layers) <= 2048
            assert entry.context_limit is None or entry.context_limit > 0
            weights = weights_bytes(entry)
            assert weights is None or weights.bytes >= 0
    # Most small mutations leave an understandable model: a reader that refuses everything would pass the rest.
    assert answered > MUTATIONS // SHARDS // 3
