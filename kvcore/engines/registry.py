"""The engines by name. A new engine is one folder and one row here."""

from __future__ import annotations

import difflib
from functools import cache
from importlib import import_module

from kvcore.deployment import Deployment
from kvcore.engines.base import Engine
from kvcore.engines.releases import release
from kvcore.errors import EngineError
from kvcore.hardware.gpus import Accelerator
from kvcore.model.model import Model

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
    place = PLACES.get(name) or PLACES.get(name.strip().lower())
    if place is None:
        near = difflib.get_close_matches(name.lower(), PLACES, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise EngineError(f"engine {name[:40]!r} is not known; known are {', '.join(PLACES)}{hint}")
    return _at(*place)


@cache
def _at(module: str, name: str) -> Engine:
    found: Engine = getattr(import_module(module), name)
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
    reason = _reason(engine(name), gpu)
    return f"{engine(name).name}: {reason}" if reason else ""


def _reason(chosen: Engine, gpu: Accelerator) -> str:
    if _followed(chosen.name, gpu):
        return ""
    vendors = chosen.vendors
    theirs = " and ".join((", ".join(vendors[:-1]), vendors[-1])) if len(vendors) > 1 else "".join(vendors)
    text = f"its rules are followed here on GPUs of {theirs}"
    if chosen.on_processors:
        text += " and on processors"
    others = [other for other in PLACES if _followed(other, gpu)]
    instead = f"{', '.join(others)} can be planned on it" if others else "no engine is planned on it here"
    return f"{text}, and {gpu.name} is not one of them; {instead}"


def newer_note(name: str, version: str | None) -> str:
    """`The rules of vllm 0.33.0 are followed: …` for a release that is newer than the rules that are known, else ""."""
    newest = engine(name).release
    if not newest or version is None or release(version) <= release(newest):
        return ""
    return (
        f"The rules of {name} {newest} are followed, the newest that are known here: {version.removeprefix('v')[:40]} "
        "may do otherwise."
    )


def _followed(name: str, gpu: Accelerator) -> bool:
    return runs_on(name, gpu) or (_is_processor(gpu) and engine(name).on_processors)


def _is_processor(gpu: Accelerator) -> bool:
    return gpu.form == "CPU socket"


def refuse_launch(model: Model, deployment: Deployment) -> None:
    """EngineError for what no command can start: a counterfactual, or an engine on GPUs where its rules are unknown."""
    if model.built_as:
        raise EngineError(f"nobody has weights of {model.name}, a counterfactual")
    chosen = engine(deployment.engine)
    if reason := _reason(chosen, deployment.gpu):
        raise EngineError(reason, engine=chosen.name)
