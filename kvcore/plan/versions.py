"""Releases of an engine that are newer than the rules that are known."""

from __future__ import annotations

import re

from kvcore.deployment import Deployment
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
    if newest is None or asked is None or _numbers(asked) <= _numbers(newest):
        return ""
    return (
        f"The rules of {deployment.engine} {newest} are followed, the newest that are known here: "
        f"{asked.removeprefix('v')[:40]} may do otherwise."
    )


def _numbers(version: str) -> tuple[int, ...]:
    """The release without what follows it: (1, 4, 0) of 1.4.0rc4, (0, 33, 0) of v0.33."""
    found = re.match(r"v?(\d{1,3})(?:\.(\d{1,3}))?(?:\.(\d{1,3}))?", version)
    return tuple(int(part or 0) for part in found.groups()) if found else (0, 0, 0)
