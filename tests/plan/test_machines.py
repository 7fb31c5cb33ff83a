"""Engines are planned only on accelerators for which their rules are followed; elsewhere it is said who is."""

from __future__ import annotations

import pytest

from kvcore.deployment import Deployment
from kvcore.engines.registry import not_followed, runs_on
from kvcore.errors import EngineError
from kvcore.hardware.gpus import accelerator, custom_accelerator
from kvcore.planning.launch import launch
from kvcore.planning.plan import make_plan
from tests.models import model

QWEN = model("Qwen/Qwen3-0.6B")


def test_engines_run_on_what_they_run_on() -> None:
    assert runs_on("vllm", accelerator("mi300x"))
    assert not runs_on("tensorrt-llm", accelerator("mi300x"))
    assert not runs_on("vllm", accelerator("epyc-9654"))
    assert runs_on("llama.cpp", accelerator("apple-m3-ultra-512"))


@pytest.mark.parametrize(
    ("name", "gpu", "instead"),
    [
        ("sglang", "epyc-9654", "transformers can be planned on it"),
        ("vllm", "epyc-9654", "on GPUs of NVIDIA, AMD and Intel, and"),
        ("tensorrt-llm", "apple-m3-ultra-512", "llama.cpp, ollama, transformers can be planned on it"),
        ("sglang", "mi300x", "on GPUs of NVIDIA, and .* is not one of them; vllm, llama.cpp, ollama, transformers can"),
        ("vllm", "tpu-v5p", "no engine is planned on it here"),
        ("llama.cpp", "tpu-v5p", "no engine is planned on it here"),
    ],
)
def test_elsewhere_the_plan_is_refused_with_who_is_planned_there(name: str, gpu: str, instead: str) -> None:
    deployment = Deployment(gpu=accelerator(gpu), context=1024, engine=name)
    plan = make_plan(QWEN, deployment)
    assert plan.binding.kind == "engine"
    assert plan.requests is None
    assert not plan.fits
    assert plan.refused.startswith(f"{name}: its rules are followed here on GPUs of NVIDIA")
    assert accelerator(gpu).name in plan.refused
    with pytest.raises(EngineError, match=instead):
        launch(QWEN, deployment)


@pytest.mark.parametrize("name", ["vllm", "sglang", "tensorrt-llm", "llama.cpp", "ollama", "transformers"])
def test_a_gpu_that_was_typed_in_is_taken_as_one_of_nvidias(name: str) -> None:
    assert not_followed(name, custom_accelerator(memory="48 GiB", bandwidth_gb_per_s=900)) == ""


@pytest.mark.parametrize(
    ("name", "gpu"), [("vllm", "mi300x"), ("llama.cpp", "epyc-9654"), ("transformers", "apple-m4-max-128")]
)
def test_where_they_are_followed_they_plan(name: str, gpu: str) -> None:
    plan = make_plan(QWEN, Deployment(gpu=accelerator(gpu), context=1024, engine=name))
    assert not plan.refused
    assert plan.fits
