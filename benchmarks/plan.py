"""`python -m benchmarks.plan`: a plan, a grid and the answers, with what each costs beside one engine capacity."""

from __future__ import annotations

import gc
import statistics
import time
from dataclasses import replace
from functools import partial

from benchmarks.__main__ import seconds, show
from kvcore.deployment import Deployment
from kvcore.engines.registry import engine, engine_names
from kvcore.hardware.gpus import accelerator
from kvcore.model.model import Model
from kvcore.planning.answers import fewest_gpus, least_utilization
from kvcore.planning.plan import make_plan
from kvcore.planning.sweep import grid
from kvcore.sources import catalogue

SIDE = 200
TYPICAL = ("mistralai/Mistral-7B-Instruct-v0.3", "meta-llama/Llama-3.3-70B-Instruct", "deepseek-ai/DeepSeek-V3")


def deployment(name: str, tp: int = 1) -> Deployment:
    return Deployment(gpu=accelerator("h200-sxm"), context=32_768, engine=name, tp=tp)


def square(model: Model, asked: Deployment) -> object:
    limit = model.context_limit or 131_072
    contexts = [max(1, limit * (step + 1) // SIDE) for step in range(SIDE)]
    return grid(model, asked, contexts, range(1, SIDE + 1))


def capacity(model: Model, asked: Deployment) -> object:
    """What a plan cannot do without: the engine's settings and one capacity."""
    return engine(asked.engine).capacity(model, engine(asked.engine).settings(model, asked), 2**50)


def plans() -> None:
    for model_id in TYPICAL:
        model = catalogue.load(model_id)
        for name in engine_names():
            asked = deployment(name, 8 if name in ("vllm", "sglang", "tensorrt-llm") else 1)
            one = seconds(partial(make_plan, model, asked, 10), 5, 0.02)
            beside = seconds(partial(capacity, model, asked), 5, 0.02)
            show(f"{model_id.split('/')[1]}: plan, {name}", one, 1e-3, f"  {one / beside:5.1f} × one capacity")


def grids() -> None:
    for name in engine_names():
        times = []
        for entry in catalogue.entries():
            model = catalogue.load(entry.model_id)
            asked = deployment(name)
            if make_plan(model, asked).refused:
                continue
            times.append((seconds(partial(square, model, asked), 3, 0), entry.model_id))
        worst, model_id = max(times)
        model = catalogue.load(model_id)
        one = seconds(partial(make_plan, model, deployment(name)), 5, 0.02)
        middle = statistics.median(time for time, _ in times)
        show(f"grid of {SIDE} × {SIDE}, {name}, median of the catalogue", middle, 0.15)
        show(f"  worst: {model_id}", worst, 0.15, f"  {worst / one:5.1f} × one plan")


# Splits of eight GPUs, where a stage or a rank has overheads of its own.
SPLITS: dict[str, tuple[dict[str, int], ...]] = {
    "vllm": ({"tp": 8}, {"pp": 8}, {"tp": 2, "pp": 4}), "sglang": ({"tp": 8}, {"pp": 8}, {"tp": 2, "pp": 4}),
    "tensorrt-llm": ({"tp": 8}, {"pp": 8}), "llama.cpp": ({"pp": 8},), "ollama": ({"pp": 8},),
}  # fmt: skip


def first_grids() -> None:
    """Every model that starts, in every split: the very first call, for which nothing was kept.

    Without the garbage collector, as timeit does it: the whole catalogue is in memory here.
    """
    square(catalogue.load(TYPICAL[0]), deployment("vllm"))
    gc.disable()
    for name, splits in SPLITS.items():
        for split in splits:
            times, ones = [], []
            for entry in catalogue.entries():
                model = catalogue.load(entry.model_id)
                asked = replace(deployment(name), gpu=accelerator("b300"), **split)
                start = time.process_time()
                plan = make_plan(model, asked)
                ones.append(time.process_time() - start)
                if plan.refused:
                    continue
                # Another length: nothing of the plan's own pools is taken over.
                start = time.process_time()
                square(model, replace(asked, context=asked.context - 1))
                times.append((time.process_time() - start, entry.model_id))
            (worst, model_id), one = max(times), statistics.median(ones)
            where = " × ".join(f"{kind} {count}" for kind, count in split.items())
            middle = statistics.median(seconds for seconds, _ in times)
            show(f"first grid, {name}, {where}, median of {len(times)}", middle, 0.15)
            show(f"  worst: {model_id}", worst, 0.15, f"  {worst / one:5.1f} × a first plan")
            gc.collect()
    gc.enable()


def answers() -> None:
    model = catalogue.load(TYPICAL[1])
    show("fewest GPUs for ten users, vllm", seconds(partial(fewest_gpus, model, deployment("vllm"), 10), 3, 0.02))
    split = deployment("vllm", 4)
    show("least utilisation for ten users, vllm", seconds(partial(least_utilization, model, split, 10), 3, 0.02))


if __name__ == "__main__":
    plans()
    answers()
    first_grids()
    grids()
