"""The command that starts an engine as a plan has it: every choice in it, quoted so that it can be pasted.

Only what differs from the engine's defaults is written, unless the plan relies on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcore.deployment import Deployment
from kvcore.engines.command import Command
from kvcore.engines.registry import engine, refuse_launch
from kvcore.model.model import Model

if TYPE_CHECKING:
    from kvcore.planning.plan import Plan


def launch(model: Model, deployment: Deployment, users: int | None = None) -> Command:
    """The launch command of a deployment, for so many requests at once where the engine must be told (llama.cpp).

    Raises EngineError or UnitError for what the engine or its options do not allow, and EngineError for a
    counterfactual, which nobody can start.
    """
    chosen = engine(deployment.engine)
    refuse_launch(model, deployment)
    each = -(-(users or 0) // deployment.dp) or deployment.max_num_seqs or 1
    room = chosen.room_for(deployment, each)
    return chosen.launch(model, deployment, chosen.settings(model, deployment.unless_stated(room)))


def launch_plan(plan: Plan) -> Command:
    """The launch command of a plan; EngineError or UnitError where the engine refuses it."""
    return launch(plan.model, plan.deployment, plan.users)
