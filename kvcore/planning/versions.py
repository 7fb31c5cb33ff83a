"""Releases of an engine that are newer than the rules that are known."""

from __future__ import annotations

from kvcore.deployment import Deployment
from kvcore.engines.releases import release
from kvcore.engines.sglang.settings import VERSION as SGLANG
from kvcore.engines.tensorrt_llm.settings import VERSION as TENSORRT_LLM
from kvcore.engines.transformers.settings import VERSION as TRANSFORMERS
from kvcore.engines.vllm.settings import VERSION as VLLM

# The newest release whose rules were read; llama.cpp and Ollama refuse every release but those that are known.
NEWEST = {"vllm": VLLM, "sglang": SGLANG, "tensorrt-llm": TENSORRT_LLM, "transformers": TRANSFORMERS}


def newer_note(deployment: Deployment) -> str:
    """`The rules of vllm 0.33.0 are followed: …` where a newer release was asked for, else ""."""
    newest = NEWEST.get(deployment.engine)
    asked = deployment.engine_version
    if newest is None or asked is None or release(asked) <= release(newest):
        return ""
    return (
        f"The rules of {deployment.engine} {newest} are followed, the newest that are known here: "
        f"{asked.removeprefix('v')[:40]} may do otherwise."
    )
