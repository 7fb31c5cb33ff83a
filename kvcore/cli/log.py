"""`kvcore log FILE|-`: what a start-up log says, beside what we predict, and why they differ."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcore.errors import SourceError

if TYPE_CHECKING:
    from kvcore.logs.command import LogResult


def add(commands: Any) -> None:
    """Add the command."""
    command = commands.add_parser("log", help="read an engine's start-up log and compare it with our figures")
    command.add_argument("file", help="a text file, or - for standard input")
    command.add_argument("--model", help="the model, where the log does not name one that is catalogued")
    command.add_argument("--json", action="store_true", help="one JSON object on stdout")
    command.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> None:
    from kvcore.logs.command import log_result

    result = log_result(_text(options.file), options.model)
    print(json.dumps(result.to_dict()) if options.json else log_as_text(result))


def _text(name: str) -> str:
    """The text of a file or of standard input; SourceError where it cannot be read."""
    from kvcore.logs.command import MAX_LOG_BYTES, read_text

    if name != "-":
        return read_text(Path(name))
    if sys.stdin is None:
        raise SourceError("standard input is closed; pipe a log into it")
    try:
        data = getattr(sys.stdin, "buffer", sys.stdin).read(MAX_LOG_BYTES)
    except OSError as problem:
        raise SourceError(f"-: cannot be read ({problem.strerror})") from None
    return data if isinstance(data, str) else data.decode("utf-8", "replace")


def log_as_text(result: LogResult) -> str:
    """The answer as a short table for people."""
    known = ", ".join(f"{name} {value}" for name, value in result.recognised.items() if value is not None)
    rows = [f"recognised: {known}"]
    for figure in result.figures:
        rows.append(f"  {figure.name}: reported {figure.reported}, predicted {figure.predicted}")
        rows.append(f"    {figure.why}")
    if result.refused:
        rows.append(f"  not compared: {result.refused}")
    rows += [f"  note: {note}" for note in result.notes]
    rows.append(f"  {result.unread_lines} lines were not read")
    return "\n".join(rows)
