"""The filler of a deployment's engine."""

from __future__ import annotations

from importlib import import_module

from kvcore.deployment import Deployment
from kvcore.engines.registry import engine
from kvcore.model.model import Model
from kvcore.planning.fill.base import Filler

# Where each lives; imported when it is asked for, so that one answer loads one engine.
_PLACES = {
    "vllm": ("kvcore.planning.fill.vllm", "VllmFiller"),
    "sglang": ("kvcore.planning.fill.sglang", "SglangFiller"),
    "tensorrt-llm": ("kvcore.planning.fill.tensorrt_llm", "TensorRtLlmFiller"),
    "llama.cpp": ("kvcore.planning.fill.llamacpp", "SlotFiller"),
    "ollama": ("kvcore.planning.fill.llamacpp", "SlotFiller"),
    "transformers": ("kvcore.planning.fill.transformers", "TransformersFiller"),
}


def filler(model: Model, deployment: Deployment, context: int) -> Filler:
    """The filler, made for requests of up to `context` tokens; EngineError for what the engine refuses."""
    module, name = _PLACES[engine(deployment.engine).name]
    found: Filler = getattr(import_module(module), name)(model, deployment, context)
    return found
