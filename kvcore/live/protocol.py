"""What the dashboard and its engine say to each other: one JSON object a line, UTF-8.

To the engine:    {"job": kind, "id": n, …} to do, {"cancel": n} to stop it
From the engine:  {"hello": 1} once, {"id": n, "event": kind, …} while it works, and last of all
                  {"id": n, "end": "done" | "failed" | "cancelled", "message": text}
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

Message = dict[str, Any]
# Takes an event of a job; False where the job was cancelled and should end.
Emit = Callable[[Message], bool]
# Takes (what is being done, steps done, steps in all) of something long; False where it should stop.
OnProgress = Callable[[str, int, int], bool]

VERSION = 1
# A prompt of a million tokens is refused elsewhere; a line longer than these is nobody's.
MAX_JOB_BYTES = 2**20
MAX_LINE_BYTES = 2**20

DONE = "done"
FAILED = "failed"
CANCELLED = "cancelled"
ENDS = frozenset({DONE, FAILED, CANCELLED})


def encode(message: Mapping[str, Any]) -> bytes:
    """The line of a message; TypeError or ValueError where it is not JSON (NaN and infinities are not).

    Half a character, which no UTF-8 can carry, becomes a question mark.
    """
    text = json.dumps(message, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "replace") + b"\n"


def decode(line: bytes) -> Message | None:
    """The message of a line, or None where the line is not one: something else was printed there."""
    if len(line) > MAX_LINE_BYTES:
        return None
    try:
        message = json.loads(line.decode("utf-8"), parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None


def read_line(stream: BinaryIO, limit: int = MAX_LINE_BYTES) -> bytes:
    """The next line, at most `limit` bytes of it kept and one more to show that it was longer; b"" at the end."""
    line = stream.readline(limit + 1)
    rest = line
    while rest and not rest.endswith(b"\n"):
        rest = stream.readline(65536)
    return line


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text[:40]} is too large")
    return value


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
