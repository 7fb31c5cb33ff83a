"""Deployments as data: splits, what a request may be, and how an engine's own options stand for what is common."""

from __future__ import annotations

from typing import Any

import pytest

from kvcore.deployment import OWN_HEAD, Deployment, Request, Split, as_options
from kvcore.engines.registry import engine, engine_names
from kvcore.errors import UnitError
from kvcore.hardware.gpus import accelerator
from tests.models import model

H100 = accelerator("h100-sxm")


def test_a_deployment_is_a_split_of_its_own() -> None:
    wide = Deployment(gpu=H100, context=8192, engine="sglang", tp=2, dp=4, dp_attention=True)
    assert wide.split == Split(tp=2, dp=4, dp_attention=True)
    assert (wide.gpus, wide.replica_gpus, wide.text) == (8, 2, "tp2-dp4-dpa")
    assert wide.on(Split(pp=8)) == Deployment(gpu=H100, context=8192, engine="sglang", pp=8)
    assert wide.at(8192) is wide
    assert wide.at(4096).context == 4096


@pytest.mark.parametrize("value", [{"a": 1}, [{}], {1, 2}])
def test_options_are_keys(value: Any) -> None:
    with pytest.raises(UnitError, match="options"):
        Request(options=(("tensor_split", value),))


def test_a_list_among_options_is_taken_and_what_is_none_is_not() -> None:
    assert as_options({"tensor_split": [3, 1], "parallel": None, "ctx_size": 8}) == (
        ("ctx_size", 8),
        ("tensor_split", (3, 1)),
    )


def test_stated_options_win() -> None:
    asked = Deployment(gpu=H100, context=8192, engine="llama.cpp", options=(("parallel", 2),))
    assert asked.unless_stated({"parallel": 9, "ctx_size": 16}).options == (("ctx_size", 16), ("parallel", 2))
    assert asked.unless_stated({}) is asked


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("vllm", {"prefix_caching": False}, {"enable_prefix_caching": False}),
        ("vllm", {"options": (("no_async_scheduling", True),)}, {"async_scheduling": False}),
        ("vllm", {"options": (("no_async_scheduling", False),)}, {"async_scheduling": True}),
        ("vllm", {"max_num_batched_tokens": 512}, {"max_num_batched_tokens": 512}),
        (
            "vllm",
            {"max_num_batched_tokens": 512, "options": (("max_num_batched_tokens", 64),)},
            {"max_num_batched_tokens": 64},
        ),
        ("vllm", {"speculative_tokens": 3}, {"num_speculative_tokens": 3, "mtp_layers": 0}),
        ("sglang", {"prefix_caching": False}, {"disable_radix_cache": True}),
        ("sglang", {"enforce_eager": True}, {"disable_cuda_graph": True}),
        ("sglang", {"max_num_seqs": 7, "utilization": 0.5}, {"max_running_requests": 7, "mem_fraction_static": 0.5}),
        ("sglang", {"tp": 2, "dp": 4, "dp_attention": True}, {"tp_size": 8, "dp_size": 4, "attention_tp": 2}),
        ("sglang", {"tp": 2, "dp": 4}, {"tp_size": 2, "dp_size": 1}),
        ("tensorrt-llm", {"utilization": 0.5}, {"free_gpu_memory_fraction": 0.5}),
        ("llama.cpp", {"speculative_tokens": 3}, {"spec_draft_n_max": 0}),
    ],
)
def test_common_words_become_the_engines_own(name: str, changes: dict[str, Any], expected: dict[str, Any]) -> None:
    settings = engine(name).settings(model("Qwen/Qwen3-8B"), Request(context=8192, gpu=H100, **changes))
    assert {field: getattr(settings, field) for field in expected} == expected


def test_the_own_prediction_layers_are_counted_where_they_propose() -> None:
    asked = Request(context=8192, speculative_tokens=1, draft=OWN_HEAD)
    assert engine("vllm").settings(model("deepseek-ai/DeepSeek-V3"), asked).mtp_layers == 1


@pytest.mark.parametrize("name", engine_names())
def test_what_an_option_means_is_a_field_of_every_request(name: str) -> None:
    for option in engine(name).options:
        assert option.means is None or hasattr(Request(), option.means)
        assert option.kind == "switch" or (option.says and option.turns_off is None)
