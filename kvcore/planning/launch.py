"""The command that starts an engine as a plan has it: every choice in it, quoted so that it can be pasted.

Only what differs from the engine's defaults is written, unless the plan relies on it. One small module an engine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvcore.deployment import Deployment
from kvcore.engines.llamacpp.settings import FIXED, MAX_SLOTS
from kvcore.engines.registry import engine, not_followed
from kvcore.errors import EngineError
from kvcore.model.model import Model
from kvcore.planning.launch_llamacpp import llamacpp, ollama
from kvcore.planning.launch_model import reference, refuse_counterfactual
from kvcore.planning.launch_sglang import sglang
from kvcore.planning.launch_tensorrt_llm import tensorrt_llm
from kvcore.planning.launch_transformers import transformers
from kvcore.planning.launch_vllm import vllm
from kvcore.planning.launch_words import Command

if TYPE_CHECKING:
    from kvcore.planning.plan import Plan

__all__ = ["Command", "launch", "launch_plan"]

_MAKERS: dict[str, Callable[[Model, Deployment, Any], Command]] = {
    "vllm": vllm,
    "sglang": sglang,
    "tensorrt-llm": tensorrt_llm,
    "llama.cpp": llamacpp,
    "ollama": ollama,
    "transformers": transformers,
}


def launch(model: Model, deployment: Deployment, users: int | None = None) -> Command:
    """The launch command of a deployment, for so many requests at once where the engine must be told (llama.cpp).

    Raises EngineError or UnitError for what the engine or its options do not allow, and EngineError for a
    counterfactual, which nobody can start.
    """
    name = engine(deployment.engine).name
    refuse_counterfactual(model)
    if refused := not_followed(name, deployment.gpu):
        raise EngineError(refused)
    each = None if users is None else -(-users // deployment.dp)
    settings = engine(name).settings(model, deployment.unless_stated(_slots(name, deployment, each)))
    loaded, notes = reference(model, name)
    command = _MAKERS[name](replace(model, name=loaded), deployment, settings)
    return replace(command, notes=(*notes, *command.notes))


def launch_plan(plan: Plan) -> Command:
    """The launch command of a plan; EngineError or UnitError where the engine refuses it."""
    return launch(plan.model, plan.deployment, plan.users)


def _slots(name: str, deployment: Deployment, users: int | None) -> dict[str, Any]:
    """What an engine is told that allocates every request's cache at its start: slots, and room for a whole one each.

    An engine that is asked for fewer at once than there are users gets no more slots than that.
    """
    asked = min(users or deployment.max_num_seqs or 1, deployment.max_num_seqs or MAX_SLOTS, MAX_SLOTS)
    if name == "llama.cpp" and not FIXED & {option for option, _ in deployment.options}:
        return {"parallel": asked, "ctx_size": deployment.context * asked}
    if name == "ollama":
        return {"num_parallel": asked}
    if name == "transformers":
        return {"batch_size": asked}
    return {}
