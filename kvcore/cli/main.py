"""The same answers for scripts: `kvcore COMMAND … [--json]`, or `python -m kvcore COMMAND …`.

Exit status 0 for an answer, 2 for input that is wrong or not understood, 1 for anything else. An error is one line on
stderr; with `--json` also an object on stdout. With KV_DEBUG=1 in the environment its traceback is on stderr too.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from kvcore import __version__
from kvcore.cli import app, engine, live, log, plan, variants
from kvcore.cli.options import Parser, add_model_options, read_batch, tokens
from kvcore.errors import INTERNAL, STOPPED, KVCoreError, UnitError
from kvcore.sizing import SizeResult, size
from kvcore.units import format_bytes, parse_tokens

DEFAULT_CONTEXTS = "1024,8192,32768,131072"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    as_json = "--json" in given
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that cannot show a character gets its code, not an error.
            stream.reconfigure(errors="backslashreplace")
    try:
        options, unknown = _parser(given).parse_known_args(given)
        # What opens the dashboard passes further words on.
        options.unknown = unknown
        if unknown and options.command != "app":
            where = f"engine {options.engine}: " if "engine" in options else ""
            raise UnitError(f"{where}unrecognized arguments: {' '.join(unknown)[:200]}")
        run: Callable[[argparse.Namespace], None] = options.run
        run(options)
        if sys.stdout is not None:
            sys.stdout.flush()
    except KVCoreError as problem:
        return _refuse(str(problem), problem.kind, as_json, 2)
    except BrokenPipeError:
        # The reader went away (`| head`): nothing is wrong, and nothing more can be written.
        _drop_output()
        return 0
    except OSError as problem:
        _drop_output()
        return _refuse(f"the answer cannot be written ({problem.strerror})", INTERNAL, False, 1)
    except KeyboardInterrupt:
        return _refuse("stopped", STOPPED, as_json, 1)
    except Exception as problem:
        return _refuse(f"unexpected {type(problem).__name__}: {problem}", INTERNAL, as_json, 1)
    return 0


def _drop_output() -> None:
    """Let what is still in the buffer go nowhere, so that Python does not complain of it at its end."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _refuse(message: str, kind: str, as_json: bool, status: int) -> int:
    """Print the error that is being handled; returns `status`."""
    line = " ".join(message.split())
    with contextlib.suppress(OSError):
        if sys.stderr is not None:
            if os.environ.get("KV_DEBUG", "0") not in ("", "0"):
                traceback.print_exc()
            print(f"kvcore: {line}", file=sys.stderr)
        if as_json:
            print(json.dumps({"error": line, "kind": kind}))
            sys.stdout.flush()
        return status
    _drop_output()
    return status


def _parser(given: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of these words; which options an engine has depends on the engine that they name."""
    parser = Parser(prog="kvcore", description="What a language model's KV cache costs.")
    parser.add_argument("--version", action="version", version=f"kvcore {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, parser_class=Parser)
    _add_size(commands)
    _add_sweep(commands)
    variants.add(commands)
    engine.add(commands, given[1:] if given[:1] == ["engine"] else ())
    plan.add(commands, given[1:] if given[:1] == ["plan"] else ())
    log.add(commands)
    live.add(commands)
    app.add(commands)
    return parser


def _add_size(commands: Any) -> None:
    command = commands.add_parser("size", help="what one request makes a model remember, layer by layer")
    command.add_argument("model", help="config.json, folder, .gguf, catalogue id, or - for a config.json on stdin")
    command.add_argument("--tokens", required=True, type=parse_tokens, help="tokens in each request: 8192, 8K, 1M")
    command.add_argument("--kv-dtype", default="auto", help="cache format: auto, bf16, fp8, q8_0, or K/V")
    command.add_argument("--batch", type=read_batch, default=1, help="requests at once")
    command.add_argument(
        "--source-tokens", type=tokens("--source-tokens"), help="encoder or image tokens for cross-attention"
    )
    command.add_argument("--as", dest="variant", help="a counterfactual: mha, gqa:8, mqa, mla, sliding:4096/6, …")
    add_model_options(command)
    command.set_defaults(run=_size)


def _size(options: argparse.Namespace) -> None:
    from kvcore.sources import files
    from kvcore.variants.variants import variant

    loaded = files.load(options.model, hub=options.hub, upper_bound=options.upper_bound, stdin=sys.stdin)
    model = loaded.model if options.variant is None else variant(loaded.model, options.variant)
    result = size(
        model,
        options.tokens,
        options.kv_dtype,
        options.batch,
        options.source_tokens,
    )
    if options.json:
        print(json.dumps(result.to_dict()))
    else:
        print(size_as_text(result))


def size_as_text(result: SizeResult) -> str:
    """The same answer as a short table for people."""
    kind = "" if result.knowledge == "exact" else "  (upper bound)"
    rows = [
        f"{result.model} · {result.model_type} · {result.kv_dtype} cache{kind}",
        f"  {'resident':<16}{format_bytes(result.resident_bytes):>12}   {result.resident_bytes:,} B for "
        f"{result.batch:,} × {result.tokens:,} tokens",
        f"  {'one more token':<16}{format_bytes(result.bytes_per_token):>12}",
        f"  {'never grows':<16}{format_bytes(result.state_bytes):>12}",
    ]
    rows += [f"  {term.name}: {term.formula}" for term in result.terms]
    rows += [f"  note: {note}" for note in result.notes]
    return "\n".join(rows)


def _add_sweep(commands: Any) -> None:
    command = commands.add_parser("sweep", help="models × formats × contexts × hardware, one row a cell")
    command.add_argument("--models", default="all", help="models with commas: all, catalogue ids, paths")
    command.add_argument("--contexts", default=DEFAULT_CONTEXTS, help="tokens with commas: 8K,32K,128K")
    command.add_argument("--kv-dtypes", default="auto", help="cache formats with commas")
    command.add_argument("--gpus", default="", help="accelerators with commas: all, ids")
    command.add_argument("--format", choices=("csv", "parquet", "json"), default="csv")
    command.add_argument("--output", help="the file to write (needed for parquet)")
    command.add_argument("--json", action="store_true", help="one JSON object on stdout: rows, and what was left out")
    command.set_defaults(run=_sweep)


def _sweep(options: argparse.Namespace) -> None:
    from kvcore.sweep import sweep_rows, write_sweep

    table = sweep_rows(models=options.models, contexts=options.contexts, kv_dtypes=options.kv_dtypes, gpus=options.gpus)
    write_sweep(table, options.format, options.output, options.json)
