"""From what is asked of a plan to the deployment that is planned: how many GPUs, which engine options, which draft."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kvcore.deployment import Deployment, Draft
from kvcore.engines.base import Engine
from kvcore.errors import EngineError, PlanError, UnitError
from kvcore.model.model import Model
from kvcore.planning.answers import first_split
from kvcore.planning.plan import Plan
from kvcore.planning.splits import Shard, check, shards

_SIDES = ("tp", "pp", "dp", "dcp")
_SWITCHES = ("expert_parallel", "dp_attention")


def deployment_fields(engine: Engine, options: Mapping[str, Any], tp: int, dp: int) -> dict[str, Any]:
    """Fields of a Deployment from an engine's own options, by the field of its settings, and the ranks asked for.

    What every deployment has under a name of its own is renamed; the rest are its `options`. UnitError where the groups
    that attention is spread over do not divide the ranks.
    """
    own = dict(options)
    tp, dp = _attention_ranks(own, tp, dp)
    found: dict[str, Any] = {}
    for option in engine.options:
        if option.means is not None and option.field in own:
            value = own.pop(option.field)
            found[option.means] = option.says if option.kind == "switch" else value
    return found | {"tp": tp, "dp": dp, "options": tuple(sorted(own.items()))}


def _attention_ranks(own: dict[str, Any], tp: int, dp: int) -> tuple[int, int]:
    """(tp, dp) of a deployment where the engine's own options spread attention.

    SGLang and TensorRT-LLM count every GPU as a tensor-parallel rank then, and a deployment counts them as replicas.
    UnitError where the groups do not divide the ranks.
    """
    groups = own.pop("dp_size", None)
    if own.get("enable_attention_dp"):
        groups = tp
    if groups is None:
        return tp, dp
    if not own.get("enable_dp_attention") and not own.get("enable_attention_dp"):
        return tp, groups
    if groups < 1 or tp % groups:
        raise UnitError(f"--dp-size {groups}: it does not divide --tp {tp}, the ranks that attention is spread over")
    return tp // groups, groups


def with_draft(model: Model, wanted: Deployment, draft: Draft | None) -> Deployment:
    """The deployment with what proposes tokens: prediction layers propose a token each unless said otherwise.

    UnitError for a draft model without a number of tokens.
    """
    if draft is None:
        return wanted
    tokens = wanted.speculative_tokens or (max(1, model.prediction.modules) if draft.own else 0)
    if not tokens:
        raise UnitError("--draft: say with --speculative-tokens how many it proposes for each step")
    return replace(wanted, draft=draft, speculative_tokens=tokens)


def on_gpus(model: Model, wanted: Deployment, gpus: int, stated: frozenset[str], users: int | None) -> Deployment:
    """The deployment on so many GPUs; `stated` are the sides of its split that were asked for (tp, pp, dp, dcp).

    Without tp the first split that the engine can serve in which the users fit, tensor parallel before others; see
    `first_split`. With tp and without dp the rest are replicas.
    UnitError where the sides do not make that many GPUs.
    """
    rest, left = divmod(gpus, wanted.gpus)
    if left or (rest != 1 and {"tp", "dp"} <= stated):
        sides = " × ".join(f"{name} {getattr(wanted, name)}" for name in ("tp", "pp", "dp"))
        raise UnitError(f"--gpus: {sides} are {wanted.gpus:,} GPUs, not {gpus:,}; leave one of them out")
    if rest == 1:
        return wanted
    if "tp" in stated:
        return replace(wanted, dp=rest)
    wanted = replace(wanted, tp=rest)
    asked = {name: getattr(wanted, name) for name in ("pp", "dp", "dcp") if name in stated}
    valid = [
        tried
        for shard in shards(model, wanted.engine, wanted.gpus)
        if not check(model, tried := _switched(shard.onto(wanted), wanted))
        and all(getattr(tried, name) == value for name, value in asked.items())
    ]
    return first_split(model, valid, users or 1) if valid else wanted


def _switched(split: Deployment, wanted: Deployment) -> Deployment:
    """A split with what was switched on by hand."""
    return replace(
        split,
        expert_parallel=split.expert_parallel or wanted.expert_parallel,
        dp_attention=split.dp_attention or wanted.dp_attention,
    )


def accepted(plan: Plan) -> Plan:
    """The same plan, or what refuses it as an error: PlanError without weights, else EngineError.

    Where the split is refused, the error names one of as many GPUs that is not.
    """
    if not plan.refused:
        return plan
    if plan.binding.kind == "weights":
        raise PlanError(plan.refused)
    message = plan.refused
    if plan.binding.kind == "split" and (other := _valid_split(plan)):
        message += f"; {plan.deployment.gpus:,} GPUs can be {other}"
    raise EngineError(message)


def _valid_split(plan: Plan) -> str:
    """A split of as many GPUs that the engine can serve, as options of the command line; "" where there is none."""
    valid = (shard for shard in shards(plan.model, plan.deployment.engine, plan.deployment.gpus) if not shard.refused)
    shard = next(valid, None)
    return "" if shard is None else split_words(shard)


def split_words(split: Deployment | Shard) -> str:
    """A split as options of the command line."""
    sides = [f"--{name} {getattr(split, name)}" for name in _SIDES if name == "tp" or getattr(split, name) > 1]
    return " ".join(sides + [f"--{name.replace('_', '-')}" for name in _SWITCHES if getattr(split, name)])
