"""The engines by name. A new engine is one folder and one row here."""

from __future__ import annotations

import difflib
from importlib import import_module

from kvcore.engines.base import Engine
from kvcore.errors import EngineError
from kvcore.hardware.gpus import Accelerator

# Where each lives; imported when it is asked for, so that one answer loads one engine.
PLACES = {
    "vllm": ("kvcore.engines.vllm", "VLLM"),
    "sglang": ("kvcore.engines.sglang", "SGLANG"),
    "tensorrt-llm": ("kvcore.engines.tensorrt_llm", "TENSORRT_LLM"),
    "llama.cpp": ("kvcore.engines.llamacpp", "LLAMACPP"),
    "ollama": ("kvcore.engines.ollama", "OLLAMA"),
    "transformers": ("kvcore.engines.transformers", "TRANSFORMERS"),
}
# The engine where none is named.
DEFAULT = "vllm"


def engine_names() -> tuple[str, ...]:
    """The engines' names, in the order of the rows."""
    return tuple(PLACES)


def engine(name: str) -> Engine:
    """The engine of that name; EngineError names the known ones."""
    place = PLACES.get(name.strip().lower())
    if place is None:
        near = difflib.get_close_matches(name.lower(), PLACES, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise EngineError(f"engine {name[:40]!r} is not known; known are {', '.join(PLACES)}{hint}")
    found: Engine = getattr(import_module(place[0]), place[1])
    return found


def labels() -> dict[str, str]:
    """The engines as their makers call them, by name."""
    return {name: engine(name).label for name in PLACES}


def runs_on(name: str, gpu: Accelerator) -> bool:
    """Whether an engine is offered for GPUs of that vendor; one that was typed in is taken as one of NVIDIA's."""
    return gpu.vendor == "custom" or (gpu.vendor in engine(name).vendors and not _is_processor(gpu))


def not_followed(name: str, gpu: Accelerator) -> str:
    """Why an engine is not planned on an accelerator, and which ones are; "" where it is.

    Raises EngineError for an engine that is not known.
    """
    chosen = engine(name)
    if _followed(name, gpu):
        return ""
    vendors = chosen.vendors
    theirs = " and ".join((", ".join(vendors[:-1]), vendors[-1])) if len(vendors) > 1 else "".join(vendors)
    text = f"{chosen.name}: its rules are followed here on GPUs of {theirs}"
    if chosen.on_processors:
        text += " and on processors"
    others = [other for other in PLACES if _followed(other, gpu)]
    instead = f"{', '.join(others)} can be planned on it" if others else "no engine is planned on it here"
    return f"{text}, and {gpu.name} is not one of them; {instead}"


def _followed(name: str, gpu: Accelerator) -> bool:
    return runs_on(name, gpu) or (_is_processor(gpu) and engine(name).on_processors)


def _is_processor(gpu: Accelerator) -> bool:
    return gpu.form == "CPU socket"
