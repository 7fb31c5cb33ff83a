"""The engines by name. A new engine is one folder and one row here."""

from __future__ import annotations

import difflib
from importlib import import_module

from kvcore.engines.base import Engine
from kvcore.errors import EngineError

# Where each lives; imported when it is asked for, so that one answer loads one engine.
_PLACES = {
    "vllm": ("kvcore.engines.vllm", "VLLM"),
    "sglang": ("kvcore.engines.sglang", "SGLANG"),
    "tensorrt-llm": ("kvcore.engines.tensorrt_llm", "TENSORRT_LLM"),
    "llama.cpp": ("kvcore.engines.llamacpp", "LLAMACPP"),
    "ollama": ("kvcore.engines.ollama", "OLLAMA"),
    "transformers": ("kvcore.engines.transformers", "TRANSFORMERS"),
}
NAMES = tuple(_PLACES)
# The engine where none is named.
DEFAULT = "vllm"


def engine(name: str) -> Engine:
    """The engine of that name; EngineError names the known ones."""
    place = _PLACES.get(name.strip().lower())
    if place is None:
        near = difflib.get_close_matches(name.lower(), NAMES, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise EngineError(f"engine {name[:40]!r} is not known; known are {', '.join(NAMES)}{hint}")
    found: Engine = getattr(import_module(place[0]), place[1])
    return found


def labels() -> dict[str, str]:
    """The engines as their makers call them, by name and in the order of NAMES."""
    return {name: engine(name).label for name in NAMES}
