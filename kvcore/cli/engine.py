"""`kvcore engine NAME MODEL …`: what a serving engine sets aside, how much fits, and what it logs."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kvcore.cli.options import (
    add_engine_options,
    add_memory_options,
    add_model_options,
    cache_memory,
    engine_meant,
    own_values,
    ranks,
)
from kvcore.deployment import Request, as_options
from kvcore.engines.base import Engine
from kvcore.engines.registry import engine, engine_names
from kvcore.engines.result import EngineResult, engine_result
from kvcore.errors import EngineError
from kvcore.model.model import Model
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
    result = engine_result(chosen, model, settings, cache_memory(options))
    if options.json:
        print(json.dumps(result.to_dict()))
    else:
        print(engine_as_text(result, *_flags(chosen, model, settings)))


def _flags(chosen: Engine, model: Model, settings: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(the words that ask for it, notes); no words for a counterfactual, whose weights nobody has."""
    from kvcore.planning.launch_model import gguf_file, reference, refuse_counterfactual

    try:
        refuse_counterfactual(model)
    except EngineError as refusal:
        return (), (f"No launch command: {refusal}",)
    loaded, notes = reference(model, chosen.name)
    words = list(chosen.flags(replace(model, name=loaded), settings))
    if "--model" in words and (given := gguf_file(model)) is not None:
        words[words.index("--model") + 1] = given
    return tuple(words), notes


def engine_as_text(result: EngineResult, flags: tuple[str, ...], notes: tuple[str, ...] = ()) -> str:
    """The same answer as a short table for people; `notes` are about `flags`, which may be none."""
    import shlex

    rows = [
        f"{result.model} in {result.engine} {result.engine_version} · {result.kv_dtype} cache · per rank",
        f"  {'one request':<16}{format_bytes(result.bytes_per_request):>12}   {result.bytes_per_request:,} B for "
        f"{result.max_model_len:,} tokens",
    ]
    rows += [f"  {term.name}: {term.formula}" for term in result.terms]
    rows += [f"  log: {line}" for line in result.log_lines or ()]
    rows += [f"  note: {note}" for note in (*result.notes, *notes)]
    if flags:
        rows.append(f"  {shlex.join(flags)}")
    return "\n".join(rows)
