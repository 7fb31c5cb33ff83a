"""Deployments of every kind, whose launch commands the tests and benchmarks.check_launch parse."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvcore import catalogue
from kvcore.hardware import accelerator
from kvcore.model.model import Model
from kvcore.plan.deployment import Deployment
from kvcore.plan.launch import launch

LLAMA = "meta-llama/Llama-3.3-70B-Instruct"
DEEPSEEK = "deepseek-ai/DeepSeek-V3"
V32 = "deepseek-ai/DeepSeek-V3.2"
GEMMA = "google/gemma-3-27b-it"

# What a shell, an option parser or a terminal would act upon if it were let.
HOSTILE = (
    "; rm -rf ~", "$(touch /tmp/owned)", "`id`", "a'b", 'a"b', "a && b", "-h", "--trust-remote-code", "--model=x", "~/m",
    "a b", "!!", "a\\", "é/模型", "#x", "*", "a|b>c", "%PATH%", "{a,b}", "x=y", "-",
)  # fmt: skip
# Control characters could end a terminal's paste whatever the quoting.
UNPRINTABLE = ("a\nrm -rf ~", "a\x1b[201~\nid", "", "   ", "a\tb", "a\0b", "\u202eabc", "x" * 301)


def h100(**more: Any) -> Deployment:
    return Deployment(gpu=accelerator("h100-sxm"), **({"context": 32_768} | more))


def vllm_cases() -> tuple[tuple[str, Deployment], ...]:
    """(catalogue id, deployment) for vLLM: each choice alone, and all together."""
    plain = h100(tp=4)
    everything = h100(
        tp=8, pp=2, dp=2, dcp=2, expert_parallel=True, dp_attention=True, kv_dtype="fp8", utilization=0.85,
        max_num_batched_tokens=4096, max_num_seqs=64, enforce_eager=True, prefix_caching=False, speculative_tokens=3,
        options=(("block_size", 64), ("mtp_layers", 1), ("no_async_scheduling", True)),
    )  # fmt: skip
    return (
        (LLAMA, plain),
        (LLAMA, replace(plain, dp=2, utilization=0.95)),
        (LLAMA, replace(plain, kv_bytes=40 * 2**30)),
        (LLAMA, replace(plain, weight_format="fp8")),
        (LLAMA, replace(plain, weight_format="awq", speculative_tokens=4)),
        (LLAMA, replace(plain, weight_format="fp16")),
        *((LLAMA, replace(plain, kv_dtype=name)) for name in ("bf16", "fp16", "fp8", "fp8_e5m2", "nvfp4", "tq_k8v4")),
        *((LLAMA, replace(plain, kv_dtype=f"{name}_per_token_head")) for name in ("fp8", "int8", "int4")),
        (GEMMA, replace(plain, tp=2, options=(("disable_hybrid_kv_cache_manager", True),))),
        (DEEPSEEK, everything),
        (V32, replace(everything, options=(), kv_bytes=10**10)),
    )


def named(model: Model, name: str) -> Model:
    """The same model under another name."""
    return replace(model, name=name)


def vllm_commands() -> list[tuple[str, ...]]:
    """Every command of the cases, and one for each hostile name."""
    commands = [launch(catalogue.load(name), deployment).words for name, deployment in vllm_cases()]
    model = catalogue.load(LLAMA)
    return commands + [launch(named(model, name), h100(tp=4)).words for name in (*HOSTILE, *UNPRINTABLE)]
