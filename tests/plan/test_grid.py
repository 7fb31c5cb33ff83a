"""Every cell of a grid is what the plan of that context and those users says."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from kvcore.deployment import Deployment
from kvcore.engines.registry import engine, engine_names
from kvcore.hardware.gpus import accelerator
from kvcore.planning.answers import most_users
from kvcore.planning.plan import make_plan
from kvcore.planning.pools import pools
from kvcore.planning.sweep import grid
from kvcore.sources.catalogue import entries, load
from kvcore.units import GIB, KIB

LLAMA = "meta-llama/Llama-3.3-70B-Instruct"
MODELS = [entry.model_id for entry in entries()][1::6]
CONTEXTS = (1, 15, 700, 4096, 20_000, 32 * KIB, 32 * KIB + 1, 100_000, 300_000)
USERS = (1, 2, 5, 40, 257, 3000)
GPUS = ("rtx-4090", "h200-sxm", "b200")


def plain(**changes: Any) -> Deployment:
    return replace(Deployment(gpu=accelerator("h200-sxm"), context=8192, engine="vllm"), **changes)


def test_cells_are_plans(subtests: pytest.Subtests) -> None:
    for name in engine_names():
        for model_id in MODELS:
            with subtests.test(engine=name, model=model_id):
                model = load(model_id)
                chance = random.Random(f"{name} {model_id}")
                split = {"tp": 2} if name in ("vllm", "sglang", "tensorrt-llm") else {}
                deployment = plain(engine=name, gpu=accelerator(chance.choice(GPUS)), **chance.choice(({}, split)))
                made = grid(model, deployment, CONTEXTS, USERS)
                for context in chance.sample(CONTEXTS, 4):
                    column = CONTEXTS.index(context)
                    own = replace(deployment, context=context)
                    assert made.most[column] == most_users(model, deployment, context)
                    for users in chance.sample(USERS, 2):
                        plan = make_plan(model, own, users)
                        requests = plan.requests
                        high = 0 if requests is None else requests.high
                        expected = 2 if plan.fits else 1 if users <= high else 0
                        assert made.fits[USERS.index(users), column] == expected, (context, users, plan.binding)


def test_a_column_counts_down_from_the_most_users() -> None:
    # 101 GiB hold 40 requests of 8,192 tokens at 320 KiB a token.
    made = grid(load(LLAMA), plain(kv_bytes=101 * GIB), [8192], range(1, 100))
    assert made.fits[:, 0].tolist() == [2] * 40 + [0] * 59


def test_cells_within_the_range_are_marked() -> None:
    made = grid(load(LLAMA), plain(tp=8), [8192], range(1, 400))
    low, high = made.most[0].low, made.most[0].high
    assert 0 < low < high
    assert made.fits[:, 0].tolist() == [2] * low + [1] * (high - low) + [0] * (399 - high)


def test_limits_are_named() -> None:
    made = grid(load(LLAMA), plain(kv_bytes=100 * GIB, dp=2), [131_072, 131_073], [1])
    assert made.fits[:, 1].tolist() == [0]
    assert made.limits == (
        "meta-llama/Llama-3.3-70B-Instruct takes at most 131,072 tokens",
        "max_num_seqs: 1,024 × 2 replicas = 2,048 requests at once",
    )


def test_what_is_refused_fits_nowhere() -> None:
    made = grid(load("Qwen/Qwen3-Next-80B-A3B-Instruct"), plain(engine="tensorrt-llm"), [1, 100], [1, 2])
    assert not made.fits.any()
    assert "recurrent states" in made.limits[0]


@pytest.mark.parametrize("version", ["0.6.3", "0.33.0"])
@pytest.mark.parametrize("name", engine_names())
def test_pools_of_a_context_are_those_of_a_plan_for_it(name: str, version: str) -> None:
    from kvcore.planning.plan import basis, sizes

    model = load(LLAMA)
    deployment = plain(engine=name, engine_version=version if name == "vllm" else None)
    ranges = basis(model, deployment).by_context
    assert ranges is not None
    for context in (1, 3, 20, 63, 64, 65, 2048, 2049, 20_000, 32_768, 32_769, 35_000, 100_000, 131_072):
        assert ranges.at(context) == sizes(pools(model, replace(deployment, context=context)))


# A latent, one with an index beside it, pictures, pictures by cross attention, and states.
_KINDS = (
    "deepseek-ai/DeepSeek-V3", "deepseek-ai/DeepSeek-V3.2-Exp", "Qwen/Qwen2.5-VL-3B-Instruct",
    "meta-llama/Llama-3.2-11B-Vision-Instruct", "Qwen/Qwen3-Next-80B-A3B-Instruct", "moonshotai/Kimi-K3",
)  # fmt: skip
_SPLITS: dict[str, dict[str, int]] = {
    "vllm": {"tp": 2, "pp": 3}, "sglang": {"tp": 2, "pp": 3}, "tensorrt-llm": {"tp": 2}, "llama.cpp": {"pp": 4},
    "ollama": {"pp": 4}, "transformers": {},
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "version"), [*((name, None) for name in engine_names()), ("vllm", "0.6.3"), ("vllm", "0.10.0")]
)
@pytest.mark.parametrize("model_id", _KINDS)
def test_pools_between_two_contexts_that_have_equal_ones_are_equal(
    model_id: str, name: str, version: str | None
) -> None:
    """Each pool is asked for in the order of a grid, and again for each context alone."""
    from kvcore.planning.plan import basis, sizes

    model = load(model_id)
    deployment = plain(engine=name, engine_version=version, gpu=accelerator("b300"), **_SPLITS[name])
    ranges = basis(model, deployment).by_context
    if ranges is None:
        assert basis(model, deployment).refused
        return
    limit = model.context_limit or 2**20
    contexts = sorted({1, 2, 17, 63, 64, 8191, 8192, 8193, *(max(1, limit * step // 23) for step in range(1, 24))})
    for context in (one for one in contexts if one <= limit):
        asked = replace(deployment, context=context)
        assert ranges.at(context) == sizes(pools(model, asked)), context
        alone = basis(model, asked).by_context
        assert alone is not None
        assert alone.at(context) == ranges.at(context)


@pytest.mark.parametrize(
    ("model_id", "name", "most"),
    [
        # A mask for every length, the same on all eight GPUs.
        ("moonshotai/Kimi-K3", "llama.cpp", 201),
        # Room for cached latents up to 8,192 tokens, 8 of 200 columns; three kinds of stages and the ends of ranges.
        ("deepseek-ai/DeepSeek-V3", "vllm", 48),
        (LLAMA, "vllm", 9),
    ],
)
def test_a_grid_asks_for_overheads_only_where_they_differ(
    monkeypatch: pytest.MonkeyPatch, model_id: str, name: str, most: int
) -> None:
    """What an overhead depends on is asked for once: not for each stage, and not for lengths between equal ones."""
    asked = 0
    kind = type(engine(name))
    real = engine(name).overheads

    def counted(*args: Any) -> Any:
        nonlocal asked
        asked += 1
        return real(*args)

    monkeypatch.setattr(kind, "overheads", staticmethod(counted))
    model = load(model_id)
    deployment = plain(engine=name, gpu=accelerator("b300"), pp=8)
    limit = model.context_limit or 2**17
    made = grid(model, deployment, [limit * (step + 1) // 200 for step in range(200)], range(1, 201))
    assert made.fits.any()
    assert 0 < asked <= most, asked
