"""`kvcore engine NAME MODEL …`: what a serving engine sets aside, how much fits, and what it logs."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from kvcore.cli.options import (
    add_engine_options,
    add_memory_options,
    add_model_options,
    cache_memory,
    command_as_text,
    engine_meant,
    own_values,
    ranks,
)
from kvcore.deployment import Request, as_options
from kvcore.engines.command import Command
from kvcore.engines.registry import engine, engine_names
from kvcore.engines.reserve import command_for
from kvcore.engines.result import EngineResult, engine_result
from kvcore.errors import KVCoreError
from kvcore.units import format_bytes, parse_tokens


def add(commands: Any, words: Sequence[str] = ()) -> None:
    """Add the command, with the own options of the engine that its words name."""
    command = commands.add_parser(
        "engine",
        help="what a serving engine sets aside, and what it logs",
        epilog="The engine's own options keep its own names.",
    )
    _add_options(command)
    command.add_argument("model", help="config.json, folder, .gguf, catalogue id, or - for a config.json on stdin")
    add_engine_options(command, engine_meant(words, _add_options))
    command.set_defaults(run=_run)


def _add_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("engine", help=", ".join(engine_names()))
    command.add_argument("--as", dest="variant", help="a counterfactual: mha, gqa:8, mqa, mla, sliding:4096/6, …")
    command.add_argument(
        "--max-model-len", type=parse_tokens, help="tokens of one request; the model's limit unless said"
    )
    command.add_argument("--kv-dtype", default="auto", help="cache format; auto is the engine's own rule")
    for name, what in (("tp", "tensor"), ("pp", "pipeline"), ("dcp", "decode context")):
        command.add_argument(f"--{name}", type=ranks(f"--{name}"), default=1, help=f"{what} parallel ranks")
    command.add_argument("--gpu", help="accelerator id, such as h100-sxm")
    command.add_argument("--platform", choices=("cuda", "cpu"), default="cuda")
    add_memory_options(command, on="rank", gib_help="the same in GiB")
    command.add_argument("--engine-version", help="the version whose rules and log lines are meant")
    add_model_options(command)


def _run(options: argparse.Namespace) -> None:
    from kvcore.hardware.gpus import accelerator
    from kvcore.sources import files
    from kvcore.variants.variants import variant

    chosen = engine(options.engine)
    model = files.load(options.model, hub=options.hub, upper_bound=options.upper_bound, stdin=sys.stdin).model
    model = model if options.variant is None else variant(model, options.variant)
    asked = Request(
        context=options.max_model_len,
        kv_dtype=options.kv_dtype,
        tp=options.tp,
        pp=options.pp,
        dcp=options.dcp,
        gpu=None if options.gpu is None else accelerator(options.gpu),
        platform=options.platform,
        engine_version=options.engine_version,
        options=as_options(own_values(chosen, options)),
    )
    settings = chosen.settings(model, asked)
    memory = cache_memory(options)
    result = engine_result(chosen, model, settings, memory)
    if options.json:
        print(json.dumps(result.to_dict()))
        return
    try:
        command: Command | str = command_for(model, chosen, asked, settings, result.max_model_len, memory)
    except KVCoreError as refusal:
        command = f"No launch command: {refusal}"
    print(engine_as_text(result, command))


def engine_as_text(result: EngineResult, command: Command | str) -> str:
    """The same answer as a short table for people, with the launch command or the sentence that says there is none."""
    rows = [
        f"{result.model} in {result.engine} {result.engine_version} · {result.kv_dtype} cache · per rank",
        f"  {'one request':<16}{format_bytes(result.bytes_per_request):>12}   {result.bytes_per_request:,} B for "
        f"{result.max_model_len:,} tokens",
    ]
    rows += [f"  {term.name}: {term.formula}" for term in result.terms]
    rows += [f"  log: {line}" for line in result.log_lines or ()]
    notes = (command,) if isinstance(command, str) else command.notes
    rows += [f"  note: {note}" for note in (*result.notes, *notes)]
    if not isinstance(command, str):
        rows += command_as_text(command.text, command.files)
    return "\n".join(rows)
