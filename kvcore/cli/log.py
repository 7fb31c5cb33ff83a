"""`python -m kvcore log FILE|-`: what a start-up log says, beside what we predict, and why they differ."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from kvcore.errors import SourceError

# A log is read up to here; the reader itself cuts what is longer.
MAX_LOG_BYTES = 10 * 2**20


def add(commands: Any) -> None:
    """Add the command."""
    command = commands.add_parser("log", help="read an engine's start-up log and compare it with our figures")
    command.add_argument("file", help="a text file, or - for standard input")
    command.add_argument("--model", help="the model, where the log does not name one that is catalogued")
    command.add_argument("--json", action="store_true", help="one JSON object on stdout")
    command.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> None:
    from kvcore.logs.command import log_command

    result = log_command(_text(options.file), options.model)
    print(json.dumps(result) if options.json else log_as_text(result))


def _text(name: str) -> str:
    """The text of a file or of standard input; bytes that are no UTF-8 are replaced. SourceError: it cannot be read."""
    try:
        if name == "-":
            if sys.stdin is None:
                raise SourceError("standard input is closed; pipe a log into it")
            data = getattr(sys.stdin, "buffer", sys.stdin).read(MAX_LOG_BYTES)
            return data if isinstance(data, str) else data.decode("utf-8", "replace")
        path = Path(name)
        if not path.is_file():
            raise SourceError(f"{name[:200]}: there is no such file; give a text file with an engine's start-up log")
        with path.open("rb") as file:
            return file.read(MAX_LOG_BYTES).decode("utf-8", "replace")
    except (OSError, ValueError) as problem:
        if isinstance(problem, SourceError):
            raise
        reason = problem.strerror if isinstance(problem, OSError) else "not a file's name"
        raise SourceError(f"{name[:200]}: cannot be read ({reason})") from None


def log_as_text(result: dict[str, Any]) -> str:
    """The answer as a short table for people."""
    known = ", ".join(f"{name} {value}" for name, value in result["recognised"].items() if value is not None)
    rows = [f"recognised: {known}"]
    for figure in result["figures"]:
        rows.append(f"  {figure['name']}: reported {figure['reported']}, predicted {figure['predicted']}")
        rows.append(f"    {figure['why']}")
    if result.get("refused"):
        rows.append(f"  not compared: {result['refused']}")
    rows += [f"  note: {note}" for note in result.get("notes", [])]
    rows.append(f"  {result['unread_lines']} lines were not read")
    return "\n".join(rows)
