"""`python -m kvcore plan MODEL --gpu ID --context N`: does it fit, for how many users, what binds, what would help."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from kvcore.cli.options import (
    add_engine_options,
    add_memory_options,
    add_model_options,
    cache_memory,
    count,
    engine_meant,
    own_values,
    ranks,
    term_as_dict,
)
from kvcore.engines.registry import NAMES, engine
from kvcore.errors import EngineError, PlanError, UnitError
from kvcore.units import MAX_BATCH, format_bytes, parse_tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvcore.deployment import Deployment, Draft
    from kvcore.model.model import Model
    from kvcore.plan.ends import Ends
    from kvcore.plan.plan import Plan
    from kvcore.plan.pools import Pool
    from kvcore.plan.shards import Shard
    from kvcore.plan.whatif import WhatIf


def add(commands: Any, words: Sequence[str] = ()) -> None:
    """Add the command, with the own options of the engine that its words name."""
    command = commands.add_parser(
        "plan",
        help="whether a model fits on given GPUs, for how many users, and what to change",
        epilog="The engine's own options keep its own names. Whether it fits is said for the safe end of each range; "
        "kv_bytes and kv_cache_size_tokens of the JSON are best guesses, with their ranges in kv_bytes_range and "
        "kv_cache_size_tokens_range.",
        allow_abbrev=False,
    )
    command.add_argument("model", help="config.json, folder, .gguf, catalogue id, or - for a config.json on stdin")
    command.add_argument("--gpu", required=True, help="accelerator id, such as h100-sxm")
    command.add_argument(
        "--gpus", type=ranks("--gpus"), help="how many in all; without --tp the first split that is valid is taken"
    )
    command.add_argument("--context", required=True, type=_context, help="tokens of the longest request: 8192, 8K, 1M")
    _add_engine(command)
    command.add_argument("--engine-version", help="the version whose rules are meant")
    for name, what in (("tp", "tensor"), ("pp", "pipeline"), ("dcp", "decode context"), ("dp", "data")):
        command.add_argument(f"--{name}", type=ranks(f"--{name}"), help=f"{what} parallel ranks")
    command.add_argument("--expert-parallel", action="store_true", help="split experts whole over the ranks")
    command.add_argument("--dp-attention", action="store_true", help="attention data-parallel, experts over all ranks")
    command.add_argument("--kv-dtype", default="auto", help="cache format; auto is the engine's own rule")
    command.add_argument("--weight-format", help="format of the weights; the stored one unless said")
    command.add_argument("--users", type=count("--users", MAX_BATCH), help="requests at once that must fit")
    command.add_argument(
        "--utilization", "--gpu-memory-utilization", type=_share, help="the engine's share of the memory, within 0 … 1"
    )
    command.add_argument("--max-num-seqs", type=count("--max-num-seqs", MAX_BATCH), help="most requests of a step")
    command.add_argument(
        "--max-num-batched-tokens", type=count("--max-num-batched-tokens", 10**7), help="most tokens of a step"
    )
    command.add_argument("--enforce-eager", action="store_true", help="no CUDA graphs")
    command.add_argument("--no-prefix-caching", action="store_true", help="keep no past prompts")
    command.add_argument(
        "--speculative-tokens",
        type=count("--speculative-tokens", 64),
        default=0,
        help="tokens that are proposed for each step",
    )
    command.add_argument("--mtp", action="store_true", help="the model's own prediction layers propose them")
    command.add_argument("--draft", help="the model that proposes them, named as MODEL is; from the prompt unless said")
    command.add_argument("--draft-weight-format", help="format of the draft's weights; the stored one unless said")
    add_memory_options(command, "--kv-cache-memory-bytes", on="GPU", gib_help="the same in GiB, as a log prints it")
    command.add_argument("--as", dest="variant", help="a counterfactual: mha, gqa:8, mqa, mla, sliding:4096/6, …")
    add_model_options(command)
    add_engine_options(command, engine_meant(words, _add_engine))
    command.set_defaults(run=_run)


def _add_engine(command: argparse.ArgumentParser) -> None:
    command.add_argument("--engine", default="vllm", help=", ".join(NAMES))


def _run(options: argparse.Namespace) -> None:
    from kvcore.plan.plan import make_plan
    from kvcore.sources import files
    from kvcore.variants.variants import variant

    users: int | None = options.users
    # What is wrong whatever the model is said before anything is read or fetched.
    wanted = _deployment(options)
    model = files.load(options.model, hub=options.hub, upper_bound=options.upper_bound, stdin=sys.stdin).model
    model = model if options.variant is None else variant(model, options.variant)
    wanted = _speculating(model, wanted, options)
    deployment = _split(model, wanted, options, users)
    plan = make_plan(model, deployment, users)
    if plan.refused:
        raise _refusal(plan)
    if options.json:
        print(json.dumps(plan_as_dict(plan)))
    else:
        print(plan_as_text(plan))


def _deployment(options: argparse.Namespace) -> Deployment:
    """What was asked for, before the GPUs are split; UnitError, EngineError or HardwareError for what cannot be."""
    from kvcore.deployment import Deployment
    from kvcore.formats import kv_format
    from kvcore.hardware.gpus import accelerator
    from kvcore.model.weight_formats import weight_format

    chosen = engine(options.engine)
    own = own_values(chosen, options)
    common: dict[str, Any] = {
        "utilization": options.utilization,
        "max_num_seqs": options.max_num_seqs,
        "max_num_batched_tokens": options.max_num_batched_tokens,
        "speculative_tokens": options.speculative_tokens,
        "enforce_eager": options.enforce_eager,
        "dp_attention": options.dp_attention,
    }
    tp, dp = _attention_ranks(own, options.tp or 1, options.dp or 1)
    common |= {"prefix_caching": not options.no_prefix_caching}
    for option in chosen.options:
        if option.means is not None and option.field in own:
            value = own.pop(option.field)
            common[option.means] = option.says if option.kind == "switch" else value
    if options.kv_dtype.strip().lower() != "auto":
        kv_format(options.kv_dtype)
    return Deployment(
        gpu=accelerator(options.gpu),
        context=options.context,
        tp=tp,
        pp=options.pp or 1,
        dp=dp,
        dcp=options.dcp or 1,
        expert_parallel=options.expert_parallel,
        engine=chosen.name,
        engine_version=options.engine_version,
        kv_dtype=options.kv_dtype,
        weight_format=None if options.weight_format is None else weight_format(options.weight_format).name,
        kv_bytes=cache_memory(options),
        options=tuple(sorted(own.items())),
        **common,
    )


def _speculating(model: Model, wanted: Deployment, options: argparse.Namespace) -> Deployment:
    """The deployment with what proposes tokens; UnitError for options that do not go together.

    Prediction layers propose a token each unless said otherwise.
    """
    draft = _draft(options)
    if draft is None:
        return wanted
    tokens = wanted.speculative_tokens or (max(1, model.prediction.modules) if draft.own else 0)
    if not tokens:
        raise UnitError("--draft: say with --speculative-tokens how many it proposes for each step")
    return replace(wanted, draft=draft, speculative_tokens=tokens)


def _draft(options: argparse.Namespace) -> Draft | None:
    from kvcore.deployment import OWN_HEAD, Draft
    from kvcore.model.weight_formats import weight_format
    from kvcore.sources import files

    if options.draft is None:
        if options.draft_weight_format is not None:
            raise UnitError("--draft-weight-format: it is about the weights of a --draft, and none is named")
        return OWN_HEAD if options.mtp else None
    if options.mtp:
        raise UnitError("--mtp, --draft: one of them proposes tokens, not both")
    if options.draft == "-":
        raise UnitError("--draft: standard input is for the model itself; write the draft's config.json to a file")
    model = files.load(options.draft, hub=options.hub, upper_bound=False, stdin=sys.stdin).model
    wanted = options.draft_weight_format
    return Draft(name=model.name, model=model, weight_format=None if wanted is None else weight_format(wanted).name)


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


def _split(model: Model, wanted: Deployment, options: argparse.Namespace, users: int | None) -> Deployment:
    """The deployment on `--gpus` GPUs.

    Without --tp the first split that the engine can serve in which the users fit, tensor parallel before others; see
    `first_split`. With --tp and without --dp the rest are replicas.
    UnitError where the sides do not make that many GPUs.
    """
    if options.gpus is None:
        return wanted
    gpus: int = options.gpus
    rest, left = divmod(gpus, wanted.gpus)
    free = [name for name in ("tp", "dp") if getattr(options, name) is None]
    if left or (rest != 1 and not free):
        sides = " × ".join(f"{name} {getattr(wanted, name)}" for name in ("tp", "pp", "dp"))
        raise UnitError(f"--gpus: {sides} are {wanted.gpus:,} GPUs, not {gpus:,}; leave one of them out")
    if rest == 1:
        return wanted
    if options.tp is not None:
        return replace(wanted, dp=rest)
    return _first_split(model, replace(wanted, tp=rest), options, users)


def _first_split(model: Model, wanted: Deployment, options: argparse.Namespace, users: int | None) -> Deployment:
    from kvcore.plan.answers import first_split
    from kvcore.plan.shards import check, shards

    asked = {name: getattr(wanted, name) for name in ("pp", "dp", "dcp") if getattr(options, name) is not None}
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


def _refusal(plan: Plan) -> EngineError | PlanError:
    """What the engine refuses is no plan: it is said like every other thing that cannot be, with a split that can."""
    if plan.binding.kind == "weights":
        return PlanError(plan.refused)
    message = plan.refused
    if plan.binding.kind == "split" and (other := _valid_split(plan)):
        message += f"; {plan.deployment.gpus:,} GPUs can be {other}"
    return EngineError(message)


def _valid_split(plan: Plan) -> str:
    """A split of as many GPUs that the engine can serve, as options of this command; "" where there is none."""
    from kvcore.plan.shards import shards

    valid = (shard for shard in shards(plan.model, plan.deployment.engine, plan.deployment.gpus) if not shard.refused)
    shard = next(valid, None)
    return "" if shard is None else split_words(shard)


def _context(text: str) -> int:
    tokens = parse_tokens(text, "--context")
    if tokens < 1:
        raise UnitError("--context: 0 tokens are no request")
    return tokens


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value <= 1:
        raise UnitError(f"--utilization: {text[:20]!r} is not a share above 0 and up to 1, such as 0.92")
    return value


_SIDES = ("tp", "pp", "dp", "dcp")
_SWITCHES = ("expert_parallel", "dp_attention")
# What a remedy changes is said in this order, and everything else behind it.
_FIRST = ("gpu", "context", *_SIDES, *_SWITCHES, "engine", "engine_version", "kv_dtype", "weight_format")
# Remedies that the table shows; JSON has them all.
SHOWN = 6


def split_words(split: Deployment | Shard) -> str:
    """A split as options of this command."""
    sides = [f"--{name} {getattr(split, name)}" for name in _SIDES if name == "tp" or getattr(split, name) > 1]
    return " ".join(sides + [f"--{name.replace('_', '-')}" for name in _SWITCHES if getattr(split, name)])


def plan_as_dict(plan: Plan) -> dict[str, Any]:
    """The stable JSON form of a plan. Memory is that of one GPU; figures without a range are best guesses."""
    from kvcore.hardware.prices import hourly
    from kvcore.plan.answers import least_utilization
    from kvcore.ranks.speculation import proposer

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
        "command": command[0],
        "files": [{"name": name, "content": content} for name, content in command[1]],
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
        "notes": [*plan.notes, *command[2]],
    }


def _tightest(plan: Plan) -> Pool:
    return min(plan.pools, key=lambda pool: pool.kv_bytes.low)


def _ends(ends: Ends[Any] | None) -> dict[str, Any] | None:
    return None if ends is None else {"low": ends.low, "best": ends.best, "high": ends.high}


def _command(plan: Plan) -> tuple[str | None, tuple[tuple[str, str], ...], tuple[str, ...]]:
    """(text, files, notes); no text where the engine has no option for what was planned, and a note that says so."""
    from kvcore.plan.launch import launch_plan

    if plan.binding.kind == "context limit":
        return None, (), ("No launch command: an engine refuses requests that are longer than the model takes.",)
    try:
        made = launch_plan(plan)
    except (EngineError, UnitError) as refusal:
        return None, (), (f"No launch command: {refusal}",)
    return made.text, made.files, made.notes


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
    names = dict.fromkeys((*_FIRST, *(field.name for field in fields(after))))
    changed = [name for name in names if getattr(after, name) != getattr(before, name)]
    found = {name: getattr(after, name) for name in changed}
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
    text, files, notes = _command(plan)
    rows += [f"  note: {note}" for note in (*plan.notes, *notes)]
    rows += [f"  {line}" for line in (text or "").splitlines()]
    for name, content in files:
        rows += [f"  {name}:", *(f"    {line}" for line in content.splitlines())]
    return "\n".join(rows)


def _row(name: str, *cells: str) -> str:
    """One line of the table; what is wider than its column still stands apart from the next."""
    return f"  {name:<19}" + "".join(f" {cell:>15}" for cell in cells)


def _ends_row(name: str, ends: Ends[int], write: Callable[[int], str]) -> str:
    return _row(name, write(ends.low), write(ends.best), write(ends.high))


def _left(size: int) -> str:
    return format_bytes(size) if size >= 0 else f"{format_bytes(-size)} short"
