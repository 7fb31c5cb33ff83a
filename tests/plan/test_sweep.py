"""One lever over all its values: figures by hand, and the same answers that a plan of each value gives."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvcore.deployment import Deployment
from kvcore.hardware.gpus import accelerator
from kvcore.planning.people import Traffic
from kvcore.planning.plan import make_plan
from kvcore.planning.sweep import LEVERS, Point, sequences, sweep
from kvcore.sources import catalogue
from kvcore.units import GIB

LLAMA = catalogue.load("meta-llama/Llama-3.3-70B-Instruct")
DEEPSEEK = catalogue.load("deepseek-ai/DeepSeek-V3")
# 2 × 80 layers × 8 KV heads × 128 × 2 B × 32,768 tokens are 10 GiB, an eighth on each GPU.
STATED = Deployment(gpu=accelerator("h100-sxm"), context=32_768, tp=8, kv_bytes=51 * GIB, engine="vllm")
PLANNED = replace(STATED, kv_bytes=None)
TRAFFIC = Traffic(
    prompt_tokens=6144, answer_tokens=1024, thinking_tokens=0, shared_prefix_tokens=0, people=1, active_share=1.0
)


def low(points: tuple[Point, ...]) -> dict[str, int | None]:
    return {one.name: None if one.most is None else one.most.low for one in points}


def test_sequences_by_hand() -> None:
    """40 requests of 1.25 GiB are in 51 GiB: a lower cap holds as many as it says, a higher one 40."""
    found = low(sweep(LLAMA, STATED, "seqs"))
    assert [found[name] for name in ("1", "8", "32", "64", "1,024")] == [1, 8, 32, 40, 40]


def test_cache_formats_by_hand() -> None:
    """8 bits take half: 81 whole requests of 0.625 GiB in 51 GiB."""
    found = low(sweep(LLAMA, STATED, "cache"))
    assert found["auto"] == 40
    assert found["fp8"] == 81


def test_a_shared_prefix_by_hand() -> None:
    """7,168 tokens at the end, of which 4,096 are held once: 3,072 × 40 KiB = 120 MiB each beside 160 MiB."""
    found = low(sweep(LLAMA, STATED, "prefix", TRAFFIC))
    # 51 GiB are 52,224 MiB; 280 MiB each, and one block of 16 tokens is kept back.
    assert found["0"] == 186
    assert found["4K"] == (52_224 - 160) // 120
    assert "8K" not in found, "no more is shared than the prompt has"
    assert sweep(LLAMA, STATED, "prefix") == ()


def test_cpu_memory_by_hand() -> None:
    """10 GiB each in CPU memory: 256 GiB keep 25 more than the 40 on the GPUs; two replicas have twice of both."""
    found = sweep(LLAMA, STATED, "host", host_gib=100)
    assert low(found)["256"] == 65
    assert [one.name for one in found if one.now] == ["100"]
    two = sweep(LLAMA, replace(STATED, dp=2), "host")
    assert low(two)["256"] == 130


def test_gpus_by_hand() -> None:
    """16 ranks that share tokens out (TP 16 with DCP 2) keep a sixteenth of each request, 0.625 GiB: 81 in 51 GiB."""
    found = {one.name: one for one in sweep(LLAMA, STATED, "gpus")}
    assert found["8"].now
    assert found["8"].most is not None
    assert found["8"].most.low == 40
    assert found["16"].deployment is not None
    assert (found["16"].deployment.tp, found["16"].deployment.dcp) == (16, 2)
    assert found["16"].most is not None
    assert found["16"].most.low == 81


@pytest.mark.parametrize("lever", [name for name in LEVERS if name not in ("prefix", "host")])
@pytest.mark.parametrize(
    ("model", "wanted"),
    [
        (LLAMA, PLANNED),
        (DEEPSEEK, replace(PLANNED, gpu=accelerator("h200-sxm"), dcp=2)),
        (LLAMA, replace(PLANNED, tp=1, pp=8, engine="llama.cpp")),
        (catalogue.load("Qwen/Qwen3-8B"), Deployment(gpu=accelerator("apple-m4-max-128"), context=8192, engine="ollama")),
    ],
    ids=["llama", "deepseek", "llama.cpp", "mac"],
)  # fmt: skip
def test_each_point_is_what_a_plan_says(lever: str, model, wanted: Deployment) -> None:  # type: ignore[no-untyped-def]
    points = sweep(model, wanted, lever)
    assert len({one.name for one in points}) == len(points)
    for one in points:
        assert one.deployment is not None
        plan = make_plan(model, one.deployment, None)
        assert one.most == (None if plan.refused else plan.requests), one.name
        assert (one.most is None) == bool(one.why)
    if points:
        assert [one.deployment for one in points if one.now] == [wanted]
        now = next(one for one in points if one.now)
        assert now.most == make_plan(model, wanted, None).requests


@pytest.mark.parametrize("engine", ["vllm", "llama.cpp"])
def test_more_gpus_hold_more_also_where_the_first_split_of_more_holds_fewer(engine: str) -> None:
    wanted = PLANNED if engine == "vllm" else replace(PLANNED, tp=1, pp=4, dp=2, engine=engine)
    counts = [one.most.low for one in sweep(LLAMA, wanted, "gpus") if one.most]
    assert counts == sorted(counts)


def test_order_of_what_has_one() -> None:
    """More GPUs, a larger share and a longer prefix never hold fewer."""
    for lever in ("gpus", "share", "prefix", "host"):
        assert LEVERS[lever].ordered
        counts = [one.most.low for one in sweep(LLAMA, PLANNED, lever, TRAFFIC) if one.most]
        assert len(counts) > 3
        assert counts == sorted(counts), lever


def test_levers_that_an_engine_does_not_have() -> None:
    slots = replace(PLANNED, tp=1, pp=8, engine="llama.cpp")
    assert sweep(LLAMA, slots, "batched") == ()
    assert sweep(LLAMA, slots, "share") == ()
    assert sweep(LLAMA, replace(slots, engine="ollama"), "host") == ()
    # A pool that was stated leaves no share to choose.
    assert sweep(LLAMA, STATED, "share") == ()
    with pytest.raises(KeyError):
        sweep(LLAMA, PLANNED, "colour")


def test_only_what_the_gpu_runs_is_offered() -> None:
    assert "nvfp4" not in low(sweep(LLAMA, PLANNED, "cache"))
    assert "nvfp4" in low(sweep(LLAMA, replace(PLANNED, gpu=accelerator("b200")), "cache"))
    names = [one.name for one in sweep(LLAMA, PLANNED, "gpu")]
    assert "H100 SXM5 80GB" in names
    assert not any("MI300" in name or "Apple" in name for name in names)


def test_what_is_refused_says_why() -> None:
    found = {one.name: one for one in sweep(DEEPSEEK, PLANNED, "cache")}
    assert found["turboquant_k8v4"].most is None
    assert found["turboquant_k8v4"].why


def test_the_engines_own_number_of_sequences() -> None:
    assert sequences(LLAMA, PLANNED) == 1024
    assert sequences(LLAMA, replace(PLANNED, max_num_seqs=7)) == 7
