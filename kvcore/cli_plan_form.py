"""A plan as the command line prints it: a stable JSON object, and a short table for people."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from kvcore.cli_options import command_as_text, term_as_dict
from kvcore.errors import EngineError, UnitError
from kvcore.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcore.engines.command import Command
    from kvcore.plan.deployment import Deployment
    from kvcore.plan.ends import Ends
    from kvcore.plan.plan import Plan
    from kvcore.plan.pools import Pool
    from kvcore.plan.shards import Shard
    from kvcore.plan.whatif import WhatIf

_SIDES = ("tp", "pp", "dp", "dcp")
_SWITCHES = ("expert_parallel", "dp_attention")
# Remedies that the table shows; JSON has them all.
SHOWN = 6


def split_words(split: Deployment | Shard) -> str:
    """A split as options of this command."""
    sides = [f"--{name} {getattr(split, name)}" for name in _SIDES if name == "tp" or getattr(split, name) > 1]
    return " ".join(sides + [f"--{name.replace('_', '-')}" for name in _SWITCHES if getattr(split, name)])


def plan_as_dict(plan: Plan) -> dict[str, Any]:
    """The stable JSON form of a plan. Memory is that of one GPU; figures without a range are best guesses."""
    from kvcore.plan.answers import least_utilization
    from kvcore.plan.hourly import hourly
    from kvcore.plan.speculation import proposer

    deployment, tightest = plan.deployment, _tightest(plan)
    price = hourly(deployment.gpu, deployment.gpus)
    command = _command(plan)
    return {
        "fits": plan.fits,
        "weights_bytes": max(pool.weights_bytes for pool in plan.pools),
        "draft": None if (chosen := proposer(deployment)) is None else chosen.text,
        "speculative_tokens": deployment.speculative_tokens,
        "draft_weights_bytes": max(pool.drafted[1] for pool in plan.pools),
        "overheads": [
            {
                "name": part.name,
                "low_bytes": part.bytes.low,
                "bytes": part.bytes.best,
                "high_bytes": part.bytes.high,
            }
            for part in tightest.overheads.parts
        ],
        "overheads_total": _ends(tightest.overheads.total),
        "kv_bytes": None if plan.kv_bytes is None else plan.kv_bytes.best,
        "kv_bytes_range": _ends(plan.kv_bytes),
        "kv_cache_size_tokens": None if plan.tokens is None else plan.tokens.best,
        "kv_cache_size_tokens_range": _ends(plan.tokens),
        "max_concurrency": _ends(None if plan.concurrency is None else plan.concurrency.map(float)),
        "requests": _ends(plan.requests),
        "longest_context": _ends(plan.longest),
        "bytes_per_request": None if plan.layout is None else plan.layout.bytes_per_request,
        "binding": plan.binding.sentence,
        "binding_kind": plan.binding.kind,
        "least_utilization": least_utilization(plan.model, deployment, plan.users or 1),
        "remedies": [remedy_as_dict(remedy, deployment) for remedy in _remedies(plan)],
        "command": None if isinstance(command, str) else command.text,
        "files": [] if isinstance(command, str) else [{"name": name, "content": text} for name, text in command.files],
        "usd_per_hour": None if price is None else price.typical,
        "usd_per_hour_range": None if price is None else {"low": price.low, "high": price.high},
        "price": None if price is None else price.rental.describe,
        "model": plan.model.name,
        "gpu": deployment.gpu.id,
        "gpus": deployment.gpus,
        "engine": deployment.engine,
        "tp": deployment.tp,
        "pp": deployment.pp,
        "dp": deployment.dp,
        "dcp": deployment.dcp,
        "context": deployment.context,
        "users": plan.users,
        "kv_dtype": deployment.kv_dtype if plan.layout is None else plan.layout.kv_dtype,
        "terms": [term_as_dict(term) for term in plan.terms],
        "notes": [*plan.notes, *((command,) if isinstance(command, str) else command.notes)],
    }


def _tightest(plan: Plan) -> Pool:
    return min(plan.pools, key=lambda pool: pool.kv_bytes.low)


def _ends(ends: Ends[Any] | None) -> dict[str, Any] | None:
    return None if ends is None else {"low": ends.low, "best": ends.best, "high": ends.high}


def _command(plan: Plan) -> Command | str:
    """The launch command; a sentence where the engine has no option for what was planned."""
    from kvcore.plan.launch import launch_plan

    if plan.binding.kind == "context limit":
        return "No launch command: an engine refuses requests that are longer than the model takes."
    try:
        return launch_plan(plan)
    except (EngineError, UnitError) as refusal:
        return f"No launch command: {refusal}"


def _remedies(plan: Plan) -> tuple[WhatIf, ...]:
    from kvcore.plan.remedies import remedies

    return () if plan.fits else remedies(plan.model, plan.deployment, plan.users)


def remedy_as_dict(remedy: WhatIf, before: Deployment) -> dict[str, Any]:
    """A change that makes it fit: in words, and the options of this command that it changes with their new values."""
    return {
        "name": remedy.name,
        "change": remedy.change,
        "price": remedy.price,
        "options": _changed(before, remedy.deployment) | ({} if remedy.users is None else {"users": remedy.users}),
    }


def _changed(before: Deployment, after: Deployment) -> dict[str, Any]:
    names = [field.name for field in fields(after) if getattr(after, field.name) != getattr(before, field.name)]
    found = {name: getattr(after, name) for name in names}
    if "gpu" in found:
        found["gpu"] = after.gpu.id
    if after.draft is not None and "draft" in found:
        found["draft"] = after.draft.text
    if "options" in found:
        found |= dict(found.pop("options"))
    if after.gpus != before.gpus:
        found["gpus"] = after.gpus
    return found


def plan_as_text(plan: Plan) -> str:
    """The same answer as a short table for people."""
    deployment, tightest = plan.deployment, _tightest(plan)
    asked = f"{plan.users or 1:,} × {deployment.context:,} tokens"
    head = f"{plan.model.name} on {deployment.gpus:,} × {deployment.gpu.name}, {deployment.engine}"
    head += f" {split_words(deployment)}"
    rows = [
        f"{head} · {'fits' if plan.fits else 'does NOT fit'}: {asked}",
        _row("of each GPU", "low", "best", "high"),
        _row("weights", "", format_bytes(max(pool.weights_bytes for pool in plan.pools)), ""),
    ]
    drafted = max((pool.drafted for pool in plan.pools), key=lambda part: part[1])
    if drafted[1]:
        where = "of it" if len(plan.pools) == 1 else "last stage:"
        rows.append(_row(f"{where} {drafted[0]}", "", format_bytes(drafted[1]), ""))
    rows += [_ends_row(part.name, part.bytes, format_bytes) for part in tightest.overheads.parts]
    if plan.kv_bytes is not None:
        rows.append(_ends_row("left for the cache", plan.kv_bytes, _left))
    if plan.tokens is not None:
        rows.append(_ends_row("tokens", plan.tokens, "{:,}".format))
    if plan.requests is not None:
        rows.append(_ends_row("requests at once", plan.requests, "{:,}".format))
    rows.append(f"  {plan.binding.sentence}")
    rows += [f"  would fit: {remedy.change}" for remedy in _remedies(plan)[:SHOWN]]
    command = _command(plan)
    notes = (command,) if isinstance(command, str) else command.notes
    rows += [f"  note: {note}" for note in (*plan.notes, *notes)]
    if not isinstance(command, str):
        rows += command_as_text(command)
    return "\n".join(rows)


def _row(name: str, *cells: str) -> str:
    """One line of the table; what is wider than its column still stands apart from the next."""
    return f"  {name:<19}" + "".join(f" {cell:>15}" for cell in cells)


def _ends_row(name: str, ends: Ends[int], write: Callable[[int], str]) -> str:
    return _row(name, write(ends.low), write(ends.best), write(ends.high))


def _left(size: int) -> str:
    return format_bytes(size) if size >= 0 else f"{format_bytes(-size)} short"
