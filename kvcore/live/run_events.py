"""The events of a run that are kept, and what each of their values may be.

One table serves the engine's own events and a file that somebody loads: what is not in it is not in a record.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvcore.errors import LiveError

MAX_TEXT = 20_000
MAX_NAME = 200
_MAX_COUNT = 2**62
_MAX_SECONDS = 1e7
# A path in a message or an origin would tell whose machine it was: its last part says enough.
_PATH = re.compile(r"(?<![\w.:/<])(?:[A-Za-z]:\\|~?/|\\\\)[^\s'\"<>|]*")
# The longest wait that a replay keeps where nothing was measured: loading, or a person who thinks.
_PAUSE_S = 1.0


@dataclass(frozen=True, slots=True)
class Value:
    """What a value may be: a test, and its description for a message."""

    expected: str
    accepts: Callable[[object], bool]


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= _MAX_COUNT


def is_seconds(value: object) -> bool:
    """Whether this is a finite time of at least 0."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _MAX_SECONDS


def _is_text(value: object, limit: int = MAX_TEXT) -> bool:
    # A half of a surrogate pair is text to Python and an error to whoever has to write it.
    return isinstance(value, str) and len(value) <= limit and not re.search("[\ud800-\udfff]", value)


def _is_line(value: object) -> bool:
    return isinstance(value, str) and "\n" not in value and _is_text(value, MAX_NAME)


def _or_none(kind: Value) -> Value:
    return Value(f"{kind.expected} or null", lambda value: value is None or kind.accepts(value))


def one_of(*words: str) -> Value:
    """A value that is one of these words."""
    return Value(" or ".join(map(repr, words)), lambda value: isinstance(value, str) and value in words)


COUNT = Value("a whole number of at least 0", _is_count)
SECONDS = Value("seconds, at least 0", is_seconds)
TEXT = Value(f"a text of at most {MAX_TEXT:,} characters", _is_text)
NAME = Value(f"one line of at most {MAX_NAME} characters", _is_line)
MODE = one_of("cache", "recompute")
MAYBE_COUNT, MAYBE_SECONDS, MAYBE_NAME = _or_none(COUNT), _or_none(SECONDS), _or_none(NAME)

# What the model, its weights and its formats were; the first "ready" of a run is its record's head.
HEAD: Mapping[str, Value] = {
    "model": NAME, "title": NAME, "weights": one_of("real", "random"), "cut_from": MAYBE_COUNT, "layers": COUNT,
    "parameters": COUNT, "weight_bytes": COUNT, "device": NAME, "threads": COUNT, "attention": NAME,
    "weight_format": NAME, "kv_format": NAME, "origin": NAME, "attention_name": MAYBE_NAME,
    "context_limit": MAYBE_COUNT,
}  # fmt: skip
BYTES: Mapping[str, Value] = {
    "reserved_bytes": MAYBE_COUNT, "resident_bytes": MAYBE_COUNT,
    "predicted_reserved_bytes": MAYBE_COUNT, "predicted_resident_bytes": MAYBE_COUNT,
}  # fmt: skip
EVENTS: Mapping[str, Mapping[str, Value]] = {
    "ready": HEAD,
    "progress": {"what": NAME, "done": COUNT, "of": COUNT},
    "prefill": {
        "mode": MODE, "tokens": COUNT, "reused": COUNT, "batch": COUNT, "seconds": SECONDS,
        "predicted_s": MAYBE_SECONDS, **BYTES,
    },
    "token": {
        "mode": MODE, "index": COUNT, "context": COUNT, "seconds": SECONDS, "predicted_s": MAYBE_SECONDS, "id": COUNT,
        "text": TEXT, **BYTES,
    },
    "probe": {
        "mode": MODE, "variant": NAME, "context": COUNT, "batch": MAYBE_COUNT, "seconds": SECONDS,
        "predicted_s": MAYBE_SECONDS, "repeats": MAYBE_COUNT, "low_s": MAYBE_SECONDS, "high_s": MAYBE_SECONDS, **BYTES,
    },
    "truncated": {"mode": MODE, "variant": MAYBE_NAME, "why": one_of("time", "tokens", "memory"), "at": COUNT},
    "note": {"text": TEXT},
    "done": {"reason": one_of("length", "stop", "time", "cancelled")},
    "error": {"message": TEXT},
}  # fmt: skip
MEASURED = ("prefill", "token", "probe")
# How often a point was timed, the fastest and the slowest time: runs that were exported before do not have them.
_OPTIONAL: Mapping[str, frozenset[str]] = {"probe": frozenset({"repeats", "low_s", "high_s"})}
# Values that may name a folder of the machine.
_MAY_HOLD_PATHS = {
    "ready": ("model", "title", "origin"),
    "error": ("message",),
    "note": ("text",),
    "progress": ("what",),
}


def kept(raw: Mapping[str, Any]) -> dict[str, Any] | None:
    """An event of the engine as a record keeps it, without paths and unknown values; None for one of another kind.

    Raises LiveError for a value that is not what the table says.
    """
    kind = raw.get("event")
    if not isinstance(kind, str) or kind not in EVENTS:
        return None
    table = EVENTS[kind]
    event: dict[str, Any] = {"event": kind} | {name: raw.get(name) for name in table}
    if kind == "token" and "token_id" in raw:
        # A queue puts the job's number under "id".
        event["id"] = raw["token_id"]
    for name in _MAY_HOLD_PATHS.get(kind, ()):
        if isinstance(event[name], str):
            event[name] = without_paths(event[name])
    return checked(event, f"event {kind}")


def checked(event: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The same event, if it is one: every value of its kind there and right, and none besides; LiveError otherwise."""
    kind = event.get("event")
    if not isinstance(kind, str) or kind not in EVENTS:
        raise LiveError(f"{where}: event is {str(kind)[:40]!r}, expected one of {', '.join(EVENTS)}")
    values = {name: value for name, value in event.items() if name not in ("event", "t")}
    missing = dict.fromkeys(_OPTIONAL.get(kind, frozenset()) - values.keys())
    check_values(values | missing, EVENTS[kind], where)
    return {**event, **missing}


def check_values(values: Mapping[str, Any], table: Mapping[str, Value], where: str) -> None:
    """Raises LiveError where a value is missing, unknown or not what the table says."""
    if unknown := [str(name)[:40] for name in values if name not in table]:
        raise LiveError(f"{where}: {unknown[0]!r} is not a known key")
    for name, value in table.items():
        if name not in values:
            raise LiveError(f"{where}: {name} is missing, expected {value.expected}")
        if not value.accepts(values[name]):
            raise LiveError(f"{where}: {name} is {str(values[name])[:40]!r}, expected {value.expected}")


def tidy_text(text: str) -> str:
    """The text as a record holds it: cut where it is too long, half characters replaced."""
    whole = re.sub("[\ud800-\udfff]", "\ufffd", text)
    return whole if len(whole) <= MAX_TEXT else whole[: MAX_TEXT - 1] + "…"


def without_paths(text: str) -> str:
    """The text with every path in it cut to its last part."""
    return _PATH.sub(lambda found: re.split(r"[\\/]", found[0].rstrip("\\/"))[-1], text)


def timed(events: Sequence[tuple[float | None, dict[str, Any]]]) -> list[dict[str, Any]]:
    """The events with "t", seconds since the start, from the clock that each came with, if any.

    What was measured takes at least the time that was measured; where nothing was measured (a model is loaded, a
    person thinks) a wait counts for at most a second. Without a clock a prefill's progress is spread over its time.
    """
    made: list[dict[str, Any]] = []
    now, ended, last = 0.0, 0.0, None
    coming = 0.0
    lengths = [0.0] * len(events)
    for place in range(len(events) - 1, -1, -1):
        event = events[place][1]
        if event["event"] in MEASURED:
            coming = event["seconds"] if event["event"] == "prefill" else 0.0
        lengths[place] = coming
    for (at, event), length in zip(events, lengths, strict=True):
        measured = event["event"] in MEASURED
        seconds = event["seconds"] if measured else 0.0
        waited = 0.0 if at is None or last is None else max(0.0, at - last)
        now += min(waited, seconds + _PAUSE_S)
        if measured:
            now = max(now, ended + seconds)
            ended = now
        elif event["event"] == "progress":
            if at is None and event["what"] == "prefill" and event["of"]:
                now = max(now, ended + length * min(1.0, event["done"] / event["of"]))
        else:
            ended = max(ended, now)
        last = at if at is not None else last
        made.append({"t": now, **event})
    return made
