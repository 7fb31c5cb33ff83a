"""`kvcore plan MODEL --gpu ID --context N`: does it fit, for how many users, what binds, what would help."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from kvcore.cli.options import (
    add_engine_options,
    add_memory_options,
    add_model_options,
    cache_memory,
    command_as_text,
    count,
    engine_meant,
    own_values,
    ranks,
)
from kvcore.engines.registry import DEFAULT, engine, engine_names
from kvcore.errors import UnitError
from kvcore.units import MAX_BATCH, format_bytes, parse_tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvcore.deployment import Deployment, Draft
    from kvcore.planning.plan import Plan
    from kvcore.planning.result import PlanResult
    from kvcore.terms import Range


# Remedies that the table shows; JSON has them all.
SHOWN = 6


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
    command.add_argument("--engine", default=DEFAULT, help=", ".join(engine_names()))


def _run(options: argparse.Namespace) -> None:
    from kvcore.planning.plan import make_plan
    from kvcore.planning.resolve import accepted, on_gpus, with_draft
    from kvcore.planning.result import plan_result
    from kvcore.sources import files
    from kvcore.variants.variants import variant

    users: int | None = options.users
    # What is wrong whatever the model is said before anything is read or fetched.
    wanted = _deployment(options)
    model = files.load(options.model, hub=options.hub, upper_bound=options.upper_bound, stdin=sys.stdin).model
    model = model if options.variant is None else variant(model, options.variant)
    deployment = with_draft(model, wanted, _draft(options))
    if options.gpus is not None:
        stated = frozenset(name for name in ("tp", "pp", "dp", "dcp") if getattr(options, name) is not None)
        deployment = on_gpus(model, deployment, options.gpus, stated, users)
    plan = accepted(make_plan(model, deployment, users))
    result = plan_result(plan)
    print(json.dumps(result.to_dict()) if options.json else plan_as_text(plan, result))


def _deployment(options: argparse.Namespace) -> Deployment:
    """What was asked for, before the GPUs are split; UnitError, EngineError or HardwareError for what cannot be."""
    from kvcore.deployment import Deployment
    from kvcore.formats import kv_format
    from kvcore.hardware.gpus import accelerator
    from kvcore.model.weight_formats import weight_format
    from kvcore.planning.resolve import deployment_fields

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
    common["prefix_caching"] = not options.no_prefix_caching
    common |= deployment_fields(chosen, own, options.tp or 1, options.dp or 1)
    if options.kv_dtype.strip().lower() != "auto":
        kv_format(options.kv_dtype)
    return Deployment(
        gpu=accelerator(options.gpu),
        context=options.context,
        pp=options.pp or 1,
        dcp=options.dcp or 1,
        expert_parallel=options.expert_parallel,
        engine=chosen.name,
        engine_version=options.engine_version,
        kv_dtype=options.kv_dtype,
        weight_format=None if options.weight_format is None else weight_format(options.weight_format).name,
        kv_bytes=cache_memory(options),
        **common,
    )


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


def plan_as_text(plan: Plan, result: PlanResult) -> str:
    """The same answer as a short table for people."""
    from kvcore.planning.resolve import split_words

    deployment = plan.deployment
    asked = f"{plan.users or 1:,} × {deployment.context:,} tokens"
    head = f"{result.model} on {result.gpus:,} × {deployment.gpu.name}, {result.engine} {split_words(deployment)}"
    rows = [
        f"{head} · {'fits' if result.fits else 'does NOT fit'}: {asked}",
        _row("of each GPU", "low", "best", "high"),
        _row("weights", "", format_bytes(result.weights_bytes), ""),
    ]
    drafted = max((pool.drafted for pool in plan.pools), key=lambda part: part[1])
    if drafted[1]:
        where = "of it" if len(plan.pools) == 1 else "last stage:"
        rows.append(_row(f"{where} {drafted[0]}", "", format_bytes(drafted[1]), ""))
    for part in result.overheads:
        rows.append(_row(part.name, *map(format_bytes, (part.low_bytes, part.bytes, part.high_bytes))))
    if plan.kv_bytes is not None:
        rows.append(_ends_row("left for the cache", plan.kv_bytes, _left))
    if plan.tokens is not None:
        rows.append(_ends_row("tokens", plan.tokens, "{:,}".format))
    if plan.requests is not None:
        rows.append(_ends_row("requests at once", plan.requests, "{:,}".format))
    rows.append(f"  {result.binding}")
    rows += [f"  would fit: {remedy.change}" for remedy in result.remedies[:SHOWN]]
    rows += [f"  note: {note}" for note in result.notes]
    rows += command_as_text(result.command or "", ((file.name, file.content) for file in result.files))
    return "\n".join(rows)


def _row(name: str, *cells: str) -> str:
    """One line of the table; what is wider than its column still stands apart from the next."""
    return f"  {name:<19}" + "".join(f" {cell:>15}" for cell in cells)


def _ends_row(name: str, ends: Range[int], write: Callable[[int], str]) -> str:
    return _row(name, write(ends.low), write(ends.best), write(ends.high))


def _left(size: int) -> str:
    return format_bytes(size) if size >= 0 else f"{format_bytes(-size)} short"
