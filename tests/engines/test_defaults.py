"""Defaults of an engine's releases: their values at the source, and the same whichever layer is asked."""

from __future__ import annotations

import json
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet

from kvcore.cli import main
from kvcore.deployment import Deployment
from kvcore.engines.llamacpp.settings import UBATCH_SIZE
from kvcore.engines.overheads import Overheads
from kvcore.engines.registry import engine, runs_on
from kvcore.engines.tensorrt_llm.settings import MAX_BATCH_SIZE, MAX_NUM_TOKENS
from kvcore.engines.vllm.memory import profile
from kvcore.engines.vllm.settings import default_utilization
from kvcore.hardware.gpus import accelerator, accelerators
from kvcore.model.model import Model
from kvcore.planning.people import batched_tokens
from kvcore.planning.pools import usable_share
from kvcore.sources import catalogue
from tests.models import rank_weights
from tests.models import settings as of_engine

LLAMA_8B, GEMMA_27B = "meta-llama/Llama-3.1-8B-Instruct", "google/gemma-3-27b-it"
VISION_11B = "meta-llama/Llama-3.2-11B-Vision-Instruct"
# One release on either side of every change.
VLLM_RELEASES = (
    None, "0.32.0", "0.28.0", "0.27.1", "0.24.0", "0.23.0", "0.20.0", "0.19.1", "0.11.1", "0.11.0", "0.10.2", "0.9.0",
    "0.8.5.post1", "0.8.4", "0.8.3", "0.8.0", "0.7.3", "0.6.5", "0.6.4", "0.6.3", "0.6.0", "0.5.5", "0.5.3", "0.5.2",
    "0.4.2",
)  # fmt: skip


def started(gpu: str, engine: str = "vllm", version: str | None = None, **options: Any) -> Deployment:
    return Deployment(gpu=accelerator(gpu), engine=engine, engine_version=version, **({"context": 32_768} | options))


def taken(model: Model, deployment: Deployment) -> Overheads:
    return taken_of(model, deployment, usable_share(model, deployment))


def taken_of(model: Model, deployment: Deployment, share: float) -> Overheads:
    settings = of_engine(model, deployment)
    weights = rank_weights(model, deployment)[0]
    return engine(deployment.engine).overheads(model, deployment, settings, weights, share)


@pytest.mark.parametrize(
    ("gpu", "version", "tokens", "sequences"),
    [
        ("b200", "0.20.0", 8192, 1024),
        ("b200", "0.27.1", 8192, 1024),
        ("b200", "0.28.0", 16_384, 1024),
        ("b200", None, 16_384, 1024),
        ("mi300x", "0.8.2", 2048, 1024),
        ("mi300x", "0.28.0rc1", 16_384, 1024),
        ("h100-sxm", "0.8.0", 8192, 1024),
        ("h100-sxm", None, 8192, 1024),
        ("gh200-96gb", "0.8.4", 8192, 1024),
        ("h800-sxm", "0.8.4", 2048, 256),
        ("h800-sxm", "0.8.5", 8192, 1024),
        ("a100-sxm-80gb", "0.8.3", 2048, 1024),
        ("a100-sxm-80gb", "0.8.4", 2048, 256),
        ("a100-sxm-80gb", "0.8.5.post1", 8192, 1024),
        ("a100-sxm-80gb", "0.9.0", 2048, 256),
        ("a100-sxm-80gb", None, 2048, 256),
        ("l4", "0.8.3", 2048, 1024),
        ("l4", None, 2048, 256),
        ("dgx-spark-gb10", "0.27.0", 2048, 256),
        ("dgx-spark-gb10", None, 2048, 256),
        ("jetson-thor-t5000", "0.32.0", 2048, 256),
        ("jetson-thor-t5000", "0.33.0", 8192, 1024),
        ("mi300a", "0.20.0", 8192, 1024),
        ("mi300a", None, 8192, 1024),
        ("strix-halo-128", "0.23.0", 8192, 1024),
        ("strix-halo-128", "0.24.0", 2048, 256),
        ("h100-sxm", "0.7.3", 32_768, 256),
        ("t4", "0.10.2", 32_768, 256),
        ("t4", "0.11.0", 2048, 256),
    ],
)
def test_batches_of_vllm_by_release_and_device(gpu: str, version: str | None, tokens: int, sequences: int) -> None:
    """engine/arg_utils.py of the releases on PyPI (get_batch_defaults, before 0.11.1 _set_default_args_v1)."""
    settings = of_engine(catalogue.load(LLAMA_8B), started(gpu, version=version))
    assert (settings.batched_tokens, settings.sequences) == (tokens, sequences)


@pytest.mark.parametrize("version", VLLM_RELEASES)
@pytest.mark.parametrize("model_id", [LLAMA_8B, GEMMA_27B, VISION_11B])
def test_the_batch_of_vllm_is_one_in_every_layer(model_id: str, version: str | None) -> None:
    model = catalogue.load(model_id)
    for gpu in accelerators():
        if not runs_on("vllm", gpu):
            continue
        deployment = started(gpu.id, version=version)
        settings = of_engine(model, deployment)
        run, made = profile(model, deployment), engine(deployment.engine).pool(model, deployment, deployment.context)
        assert run.tokens == settings.batched_tokens == batched_tokens(model, deployment), gpu.id
        assert settings.sequences == made.sequences, gpu.id
        assert run.older == settings.older_core, gpu.id
        if not run.older:
            assert run.seqs == settings.sequences, gpu.id
            stepped = any("step up at 70 GiB" in note for note in taken(model, deployment).notes)
            assert stepped == (settings.batched_tokens > 2048), gpu.id


def test_one_plan_has_one_batch(capsys: pytest.CaptureFixture[str]) -> None:
    """It once took 8,192 tokens for activations and 16,384 for windows."""
    words = ["--gpu", "b200", "--gpus", "1", "--context", "32K", "--engine-version", "0.20.0", "--json"]
    assert main.main(["plan", GEMMA_27B, *words]) == 0
    answer = json.loads(capsys.readouterr().out)
    peak = next(term["formula"] for term in answer["terms"] if term["name"] == "activation peak")
    assert "8,192 tokens ×" in peak
    assert any("8,192 tokens that may be in flight" in note for note in answer["notes"])
    assert "16,384" not in peak + "".join(answer["notes"])


def test_tokens_of_a_step_are_no_more_than_its_requests_bring() -> None:
    """Since 0.11.1: max_num_seqs × max_model_len; and of a default, no more requests than tokens."""
    model = catalogue.load(LLAMA_8B)
    few = started("h100-sxm", max_num_seqs=2, context=1024)
    assert of_engine(model, few).batched_tokens == profile(model, few).tokens == 2048
    old = started("h100-sxm", max_num_seqs=2, context=1024, version="0.11.0")
    assert of_engine(model, old).batched_tokens == profile(model, old).tokens == 8192
    small = started("h100-sxm", max_num_batched_tokens=512)
    assert of_engine(model, small).sequences == profile(model, small).seqs == 512


def test_a_processor_counts_its_ranks() -> None:
    """engine/arg_utils.py, 0.10 on: 2,048 tokens and 128 sequences for each rank of a CPU."""
    from kvcore.deployment import Request
    from kvcore.engines.vllm import VLLM

    model = catalogue.load(LLAMA_8B)
    made = VLLM.settings(model, Request(context=8192, platform="cpu", tp=2))
    assert (made.batched_tokens, made.sequences) == (4096, 256)


@pytest.mark.parametrize(
    ("name", "version", "share"),
    [
        ("vllm", None, 0.92),
        ("vllm", "0.20.0", 0.92),
        ("vllm", "0.19.1", 0.9),
        ("sglang", None, None),
    ],
)
def test_the_share_is_one_in_every_layer(name: str, version: str | None, share: float | None) -> None:
    """What the driver keeps counts by the share of the memory that the pools are made with."""
    model, deployment = catalogue.load(LLAMA_8B), started("h100-sxm", name, version)
    found = usable_share(model, deployment)
    assert share is None or found == share == default_utilization(version)
    driver = next(part for part in taken(model, deployment).parts if part.name == "kept by the driver")
    assert f"× {found:g}" in driver.formula
    whole = next(part for part in taken_of(model, deployment, 1.0).parts if part.name == "kept by the driver")
    assert driver.bytes.best == pytest.approx(whole.bytes.best * found, abs=2)


def test_sglang_keeps_what_it_computes() -> None:
    """Not a flat 0.9: an H100's automatic mem_fraction_static is smaller."""
    assert usable_share(catalogue.load(LLAMA_8B), started("h100-sxm", "sglang")) < 0.9


def test_the_dummy_run_of_tensorrt_llm() -> None:
    model, deployment = catalogue.load(LLAMA_8B), started("h100-sxm", "tensorrt-llm")
    assert batched_tokens(model, deployment) == MAX_NUM_TOKENS == 8192
    assert engine("tensorrt-llm").pool(model, deployment, 32_768).sequences == MAX_BATCH_SIZE == 2048
    peak = taken(model, deployment).parts[0].formula
    assert peak.startswith("the larger of 8,192 tokens")
    assert "2,048 ×" in peak


def test_the_micro_batch_of_llamacpp() -> None:
    model, deployment = catalogue.load(LLAMA_8B), started("h100-sxm", "llama.cpp")
    assert batched_tokens(model, deployment) == UBATCH_SIZE == 512
    assert taken(model, deployment).parts[0].formula.startswith("512 tokens")
    # 0 is --batch-size, which also bounds it, as the context does (src/llama-context.cpp).
    for options, tokens in (({"ubatch_size": 0}, 2048), ({"batch_size": 256}, 256), ({}, 512)):
        asked = started("h100-sxm", "llama.cpp", options=tuple(options.items()))
        assert taken(model, asked).parts[0].formula.startswith(f"{tokens:,} tokens"), options
    assert taken(model, started("h100-sxm", "llama.cpp", context=100)).parts[0].formula.startswith("100 tokens")


def test_small_defaults_are_version_specifiers() -> None:
    found = {gpu.id: gpu.vllm_small_defaults for gpu in accelerators() if gpu.vllm_small_defaults}
    assert len(found) >= 25
    for id, text in found.items():
        assert all(SpecifierSet(part) for part in text.split(";")), id
        assert accelerator(id).memory_bytes >= 70 * 2**30, id
