"""Views worth seeing, one click each."""

from __future__ import annotations

from typing import Any

from kvcore.scenario.scenario import Scenario
from kvcore.sizing import bytes_per_token, resident_bytes
from kvcore.sources import catalogue
from kvcore.units import format_bytes
from pages.ui.size.claims import DEEPSEEK_67B, DEEPSEEK_V2, LLAMA_13B, LLAMA_70B, MISTRAL_7B

_K = 1024


def _lesson(model: str = LLAMA_70B, compare: str = "", **more: Any) -> Scenario:
    return Scenario(model=model, compare=(compare,) if compare else (), **more)


LESSONS: dict[str, Scenario] = {
    "Llama 3.3 70B, one 8K chat": _lesson(tokens=8 * _K),
    "Llama 3.3 70B, a full 128K context": _lesson(tokens=128 * _K),
    "Llama 3.3 70B, ten users at 32K": _lesson(batch=10, budget="100 GiB"),
    "Llama 2 13B, full multi-head, 8K": _lesson(LLAMA_13B, LLAMA_70B, tokens=8 * _K),
    "Llama 2 13B, full multi-head, 8K, ten users": _lesson(LLAMA_13B, LLAMA_70B, tokens=8 * _K, batch=10),
    "A 7B with grouped queries, 8K": _lesson(MISTRAL_7B, "meta-llama/Llama-2-7b-hf", tokens=8 * _K),
    "A 7B with grouped queries, 64K": _lesson(MISTRAL_7B, "meta-llama/Llama-2-7b-hf", tokens=64 * _K),
    "DeepSeek-V3, one latent a token": _lesson("deepseek-ai/DeepSeek-V3", LLAMA_70B),
    "DeepSeek-V2 against DeepSeek 67B": _lesson(DEEPSEEK_V2, DEEPSEEK_67B),
    "Mistral 7B v0.1, a window that fills": _lesson("mistralai/Mistral-7B-v0.1", MISTRAL_7B),
    "Gemma 3 27B, five windows to one full layer": _lesson("google/gemma-3-27b-it", "google/gemma-2-27b"),
    "Qwen3-Next, three states to one full layer": _lesson("Qwen/Qwen3-Next-80B-A3B-Instruct", "Qwen/Qwen3-32B"),
    "Mamba, a state that never grows": _lesson("state-spaces/mamba-2.8b-hf", MISTRAL_7B),
}


def label(name: str) -> str:
    """The lesson's name with what it shows, computed: bytes held, and a token's where that is the point."""
    lesson = LESSONS[name]
    model = catalogue.load(lesson.model)
    kv = model.resolve_format(lesson.kv)
    held = format_bytes(resident_bytes(model, lesson.tokens, kv, lesson.batch))
    if "DeepSeek" in name:
        return f"{name}: {format_bytes(bytes_per_token(model, lesson.tokens, kv))} a token"
    return f"{name}: {held}"
