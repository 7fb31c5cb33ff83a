"""A run of the live engine as a record: kept, exported, loaded again and replayed at the speed it had.

record = from_events(ticket.events(0), name="first run", prompt=prompt)
text = to_json(record);  record = from_json(text)
replay(record, now_s=1.5)        # the events of the first 1.5 s, as the engine emitted them
summary(record).ttft_s
"""

from __future__ import annotations

import csv
import io
import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from statistics import median
from typing import Any, Literal, NoReturn

from kvcore.errors import LiveError
from kvcore.live.host import Host
from kvcore.live.roofline import Calibration

MAX_TEXT = 20_000
MAX_NAME = 200
_MAX_COUNT = 2**62
_MAX_SECONDS = 1e7
# A path in a message or an origin would tell whose machine it was: its last part says enough.
_PATH = re.compile(r"(?<![\w.:/<])(?:[A-Za-z]:\\|~?/|\\\\)[^\s'\"<>|]*")
# The longest wait that a replay keeps where nothing was measured: loading, or a person who thinks.
_PAUSE_S = 1.0


@dataclass(frozen=True, slots=True)
class ValueRule:
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


def _or_none(kind: ValueRule) -> ValueRule:
    return ValueRule(f"{kind.expected} or null", lambda value: value is None or kind.accepts(value))


def one_of(*words: str) -> ValueRule:
    """A value that is one of these words."""
    return ValueRule(" or ".join(map(repr, words)), lambda value: isinstance(value, str) and value in words)


COUNT = ValueRule("a whole number of at least 0", _is_count)
SECONDS = ValueRule("seconds, at least 0", is_seconds)
TEXT = ValueRule(f"a text of at most {MAX_TEXT:,} characters", _is_text)
NAME = ValueRule(f"one line of at most {MAX_NAME} characters", _is_line)
MODE = one_of("cache", "recompute")
MAYBE_COUNT, MAYBE_SECONDS, MAYBE_NAME = _or_none(COUNT), _or_none(SECONDS), _or_none(NAME)

# What the model, its weights and its formats were; the first "ready" of a run is its record's head.
HEAD: Mapping[str, ValueRule] = {
    "model": NAME, "title": NAME, "weights": one_of("real", "random"), "cut_from": MAYBE_COUNT, "layers": COUNT,
    "parameters": COUNT, "weight_bytes": COUNT, "device": NAME, "threads": COUNT, "attention": NAME,
    "weight_format": NAME, "kv_format": NAME, "origin": NAME, "attention_name": MAYBE_NAME,
    "context_limit": MAYBE_COUNT,
}  # fmt: skip
BYTES: Mapping[str, ValueRule] = {
    "reserved_bytes": MAYBE_COUNT, "resident_bytes": MAYBE_COUNT,
    "predicted_reserved_bytes": MAYBE_COUNT, "predicted_resident_bytes": MAYBE_COUNT,
}  # fmt: skip
EVENTS: Mapping[str, Mapping[str, ValueRule]] = {
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


def recorded_event(raw: Mapping[str, Any]) -> dict[str, Any] | None:
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
    return check_event(event, f"event {kind}")


def check_event(event: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The same event, if it is one: every value of its kind there and right, and none besides; LiveError otherwise."""
    kind = event.get("event")
    if not isinstance(kind, str) or kind not in EVENTS:
        raise LiveError(f"{where}: event is {str(kind)[:40]!r}, expected one of {', '.join(EVENTS)}")
    values = {name: value for name, value in event.items() if name not in ("event", "t")}
    missing = dict.fromkeys(_OPTIONAL.get(kind, frozenset()) - values.keys())
    check_values(values | missing, EVENTS[kind], where)
    return {**event, **missing}


def check_values(values: Mapping[str, Any], table: Mapping[str, ValueRule], where: str) -> None:
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


def with_times(events: Sequence[tuple[float | None, dict[str, Any]]]) -> list[dict[str, Any]]:
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


SCHEMA = 1
MAX_BYTES = 4 * 2**20
MAX_EVENTS = 30_000
Mode = Literal["cache", "recompute", "both"]

_ABOUT: Mapping[str, ValueRule] = {
    "name": NAME, "made_at": NAME, "kind": one_of("run", "probe", "race"), "prompt": TEXT, "prompt_tokens": COUNT,
    "batch": COUNT,
}  # fmt: skip
# Beside the values of the tables; "summary" is for other readers and computed anew.
_OTHERS = ("schema", "machine", "calibration", "events", "summary", "later_prompts")
_MAX_TURNS = 200
# Tokens at the end over which recompute is compared with the cache.
_LAST = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheFigures:
    """Bytes of the cache at one moment: measured on the tensors, and predicted; None where there was no cache."""

    reserved: int | None
    resident: int | None
    predicted_reserved: int | None
    predicted_resident: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One run, probe or race with all that is needed to show it again, and nothing that tells whose machine it was.

    `made_at` is UTC to the second. `weights` says whether the model's own were used or random ones of its shape;
    `cut_from` the shipped number of layers where there are fewer. `events` are the engine's, each with "t", seconds
    since the start. `prompt` and `prompt_tokens` are those of the first turn, a request; `later_prompts` what was
    said in the turns after it, of which `RunSummary.turn_tokens` counts the tokens.
    """

    name: str
    made_at: str
    kind: str
    machine: Host | None
    model: str
    title: str
    weights: str
    cut_from: int | None
    layers: int
    parameters: int
    weight_bytes: int
    device: str
    threads: int
    attention: str
    weight_format: str
    kv_format: str
    origin: str
    prompt: str
    prompt_tokens: int
    batch: int
    calibration: Calibration | None
    events: tuple[Mapping[str, Any], ...] = field(hash=False)
    attention_name: str | None = None
    context_limit: int | None = None
    later_prompts: tuple[str, ...] = ()
    schema: int = SCHEMA

    @property
    def mode(self) -> Mode:
        """What was measured: with the cache, recomputing, or both."""
        modes = {event["mode"] for event in self.events if event["event"] in MEASURED}
        return "both" if len(modes) == 2 else next(iter(modes))

    @property
    def text(self) -> str:
        """What the first request generated; of the cached run where there are two."""
        mode = "recompute" if self.mode == "recompute" else "cache"
        return "".join(event["text"] for event in _events_of(self.events, "token", mode))

    @property
    def bytes(self) -> CacheFigures | None:
        """The cache at the end, measured and predicted; None where no run with a cache was measured."""
        cached = [event for event in self.events if event["event"] in ("prefill", "token") and event["mode"] == "cache"]
        if not cached:
            return None
        return CacheFigures(**{name.removesuffix("_bytes"): cached[-1][name] for name in BYTES})

    @property
    def duration_s(self) -> float:
        """Seconds from the start to the last event."""
        return float(self.events[-1]["t"])

    @property
    def timeline(self) -> tuple[Mapping[str, Any], ...]:
        """All events as a screen takes them: machine, calibration and "ready" at 0 s, then what was measured."""
        opening: list[dict[str, Any]] = []
        if self.machine is not None:
            opening.append({"t": 0.0, "event": "host", "host": self.machine.to_dict()})
        if self.calibration is not None:
            opening.append({"t": 0.0, "event": "calibration", "calibration": self.calibration.to_dict()})
        opening.append({"t": 0.0, "event": "ready"} | {name: getattr(self, name) for name in HEAD})
        return (*opening, *self.events)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """The figures of a run; None where that was not measured.

    `ttft_s` is the first turn's prefill, with the cache if it was used. Times per token are medians over the tokens
    after the first; tokens a second count all requests of the batch. `recompute_ratio` is recompute over cache for the
    same tokens, median of the last five that both made (of a probe: at the longest context of both).
    `turn_tokens` are the tokens of one request that each turn's prefill computed: the first turn's prompt, then what
    each later turn added. `saved_tokens` were in the cache already when a later turn began, over all turns.
    """

    ttft_s: float | None
    prefill_tokens: int | None
    prefill_tokens_per_s: float | None
    new_tokens: int
    token_s: float | None
    decode_tokens_per_s: float | None
    recompute_ttft_s: float | None
    recompute_token_s: float | None
    recompute_ratio: float | None
    turns: int
    turn_tokens: tuple[int, ...]
    saved_tokens: int
    truncated: tuple[str, ...]


def from_events(
    events: Iterable[Mapping[str, Any]],
    *,
    name: str,
    prompt: str = "",
    later_prompts: Sequence[str] = (),
    kind: str | None = None,
    machine: Host | None = None,
    made_at: str | None = None,
) -> RunRecord:
    """The record of a job's events, of several jobs' one after another where a conversation went on.

    A time in "t" or "at" (any clock in seconds) places an event; without, they follow one another in the seconds that
    were measured. The machine and the calibration are taken from "host" and "calibration" events where not given.
    Raises LiveError where nothing has been measured yet or a value is not what it should be.
    """
    calibration: Calibration | None = None
    head: dict[str, Any] | None = None
    found: list[tuple[float | None, dict[str, Any]]] = []
    for raw in events:
        if raw.get("event") == "host":
            machine = Host.from_dict(raw.get("host"))
        elif raw.get("event") == "calibration":
            calibration = Calibration.from_dict(raw.get("calibration"))
        event = recorded_event(raw)
        if event is None or (head is None and event["event"] != "ready"):
            continue
        if head is None:
            head = {name: event[name] for name in HEAD}
        elif event["event"] != "ready" or {name: event[name] for name in HEAD} != head:
            found.append((_clock(raw), event))
    if head is None or not any(event["event"] in MEASURED for _, event in found):
        raise LiveError("There is nothing to keep yet: no prompt was read and no token was generated.")
    if len(found) > MAX_EVENTS:
        raise LiveError(f"A run of {len(found):,} events is more than the {MAX_EVENTS:,} that a record holds.")
    kinds = {event["event"] for _, event in found}
    variants = {event["variant"] for _, event in found if event["event"] == "probe"}
    first = next((event for _, event in found if event["event"] == "prefill"), None)
    about: dict[str, Any] = {
        "name": tidy_name(name),
        "made_at": made_at if made_at is not None else datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "kind": kind or ("run" if "token" in kinds or not variants else "race" if len(variants) > 1 else "probe"),
        "prompt": tidy_text(prompt),
        "prompt_tokens": first["tokens"] + first["reused"] if first else 0,
        "batch": first["batch"] if first else 1,
    }
    check_values(about, _ABOUT, "run")
    return RunRecord(
        **about, **head, machine=machine, calibration=calibration, events=tuple(with_times(found)),
        later_prompts=tuple(tidy_text(one) for one in later_prompts[:_MAX_TURNS]),
    )  # fmt: skip


def tidy_name(name: str) -> str:
    """A name as one line of printable text, at most 200 characters; `run` where nothing is left."""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in name[:10_000]).split())
    return line[:MAX_NAME] or "run"


def _clock(raw: Mapping[str, Any]) -> float | None:
    at = raw.get("t", raw.get("at"))
    return float(at) if type(at) in (int, float) else None


def to_json(record: RunRecord) -> str:
    """The record as a JSON text, with its summary for other readers; LiveError where it is over 4 MiB."""
    made: dict[str, Any] = {one.name: getattr(record, one.name) for one in fields(record)}
    made["machine"] = record.machine.to_dict() if record.machine else None
    made["calibration"] = record.calibration.to_dict() if record.calibration else None
    made["summary"] = asdict(summary(record)) | {"mode": record.mode, "text": record.text}
    made["events"] = [{**event, "t": round(event["t"], 6)} for event in record.events]
    text = json.dumps(made, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    if (size := len(text.encode())) > MAX_BYTES:
        raise LiveError(f"This run takes {size:,} bytes as JSON, more than the {MAX_BYTES:,} that can be loaded again.")
    return text


def from_json(text: str | bytes) -> RunRecord:
    """The record in a JSON text, every value checked; LiveError says what is not as it should be."""
    size = len(text) if isinstance(text, bytes) or len(text) > MAX_BYTES else len(text.encode("utf-8", "replace"))
    if size > MAX_BYTES:
        raise LiveError(f"The file has over {MAX_BYTES:,} bytes, the most that a run has.")
    try:
        decoded = text.decode("utf-8-sig") if isinstance(text, bytes) else text
        raw = json.loads(decoded, parse_constant=_no_constant, object_pairs_hook=_no_doubles)
    except (ValueError, RecursionError) as problem:
        if isinstance(problem, LiveError):
            raise
        raise LiveError("The file is not JSON; expected a run that was exported here.") from None
    if not isinstance(raw, dict) or type(raw.get("schema")) is not int:
        raise LiveError("The file is not a run that was exported here: it has no schema number.")
    if raw["schema"] != SCHEMA:
        raise LiveError(f"The file has schema {str(raw['schema'])[:20]}; this version reads {SCHEMA}.")
    plain = {name: value for name, value in raw.items() if name not in _OTHERS}
    check_values(plain, {**_ABOUT, **HEAD}, "run")
    machine = None if raw.get("machine") is None else Host.from_dict(raw["machine"])
    calibration = None if raw.get("calibration") is None else Calibration.from_dict(raw["calibration"])
    return RunRecord(
        **plain, machine=machine, calibration=calibration, events=_read_events(raw.get("events")),
        later_prompts=_read_prompts(raw.get("later_prompts", [])),
    )  # fmt: skip


def _read_prompts(raw: object) -> tuple[str, ...]:
    if not isinstance(raw, list) or len(raw) > _MAX_TURNS or not all(TEXT.accepts(one) for one in raw):
        raise LiveError(f"run: later_prompts must be a list of at most {_MAX_TURNS} texts")
    return tuple(raw)


def _read_events(raw: object) -> tuple[dict[str, Any], ...]:
    if not isinstance(raw, list) or not raw or len(raw) > MAX_EVENTS:
        raise LiveError(f"run: events must be a list of 1 … {MAX_EVENTS:,} events")
    events: list[dict[str, Any]] = []
    before = 0.0
    for number, event in enumerate(raw, start=1):
        where = f"run: event {number}"
        if not isinstance(event, dict):
            raise LiveError(f"{where} is not an object")
        at: Any = event.get("t")
        if not is_seconds(at) or at < before:
            raise LiveError(f"{where}: t is {str(at)[:40]!r}, expected seconds of at least {before:g}")
        before = at
        events.append(check_event(event, where))
    if not any(event["event"] in MEASURED for event in events):
        raise LiveError("run: its events hold nothing that was measured")
    return tuple(events)


def _no_constant(word: str) -> NoReturn:
    raise LiveError(f"The file holds {word}, which is not a number in JSON.")


def _no_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise LiveError("The file gives a key twice in one object.")
    return made


def replay(record: RunRecord, now_s: float, after: int = 0) -> list[Mapping[str, Any]]:
    """The events that are due `now_s` seconds after the start, without the first `after` of them.

    They are those of `record.timeline`, so "ready" comes first, at 0 s. Played at true speed when `now_s` is a clock.
    """
    timeline = record.timeline
    due = bisect_right(timeline, now_s, key=lambda event: event["t"])
    return list(timeline[after:due])


def summary(record: RunRecord) -> RunSummary:
    """The figures of a run; see RunSummary for what each one is."""
    cached, again = _events_of(record.events, "prefill", "cache"), _events_of(record.events, "prefill", "recompute")
    first = cached[0] if cached else None
    token_s, tokens = _token_seconds(record.events, "cache")
    recompute_s, _ = _token_seconds(record.events, "recompute")
    return RunSummary(
        ttft_s=first["seconds"] if first else None,
        prefill_tokens=first["tokens"] if first else None,
        prefill_tokens_per_s=_rate(first["tokens"] * max(1, first["batch"]), first["seconds"]) if first else None,
        new_tokens=tokens,
        token_s=token_s,
        decode_tokens_per_s=_rate(record.batch, token_s),
        recompute_ttft_s=again[0]["seconds"] if again else None,
        recompute_token_s=recompute_s,
        recompute_ratio=_ratio(record.events),
        turns=len(cached),
        turn_tokens=tuple(event["tokens"] for event in cached),
        saved_tokens=sum(event["reused"] for event in cached),
        truncated=tuple(
            f"{event['mode']}: stopped by the {event['why']} limit at {event['at']:,} tokens"
            for event in record.events
            if event["event"] == "truncated"
        ),
    )


def _events_of(events: Sequence[Mapping[str, Any]], kind: str, mode: str) -> list[Mapping[str, Any]]:
    return [event for event in events if event["event"] == kind and event["mode"] == mode]


def _token_seconds(events: Sequence[Mapping[str, Any]], mode: str) -> tuple[float | None, int]:
    """(median seconds of a decode step, number of tokens); the first token of a turn comes out of its prefill."""
    tokens = _events_of(events, "token", mode)
    steps = [event["seconds"] for event in tokens if event["index"] > 0]
    return (median(steps) if steps else None), len(tokens)


def _rate(tokens: int, seconds: float | None) -> float | None:
    return tokens / seconds if seconds else None


def _ratio(events: Sequence[Mapping[str, Any]]) -> float | None:
    """Recompute over cache at the same contexts: the last five of a run, the longest of a probe."""
    by_mode = [
        {event["context"]: event["seconds"] for event in _events_of(events, "token", mode) if event["index"] > 0}
        for mode in ("cache", "recompute")
    ]
    if by_mode[0].keys() & by_mode[1].keys():
        last = _LAST
    else:
        by_mode = [
            {event["context"]: event["seconds"] for event in _events_of(events, "probe", mode)}
            for mode in ("cache", "recompute")
        ]
        last = 1
    cached, again = by_mode
    shared = sorted(context for context in cached.keys() & again.keys() if cached[context] > 0)[-last:]
    return median(again[context] / cached[context] for context in shared) if shared else None


# Columns of the table that `to_csv_rows` makes, in order.
COLUMNS = (
    "run", "model", "weights", "attention", "weight_format", "kv_format", "device", "t", "event", "turn", "mode",
    "variant", "batch", "tokens", "reused", "index", "context", "seconds", "predicted_s", "repeats", "low_s", "high_s",
    *BYTES, "id", "text",
)  # fmt: skip


def to_csv_rows(record: RunRecord) -> list[dict[str, str | int | float | None]]:
    """One row for every time that was measured, all with the columns COLUMNS; None where a column does not apply.

    `turn` counts the turns of a conversation from 1; a turn's prefill has its new tokens in `tokens`. A text that a
    spreadsheet would take for a formula gets an apostrophe in front.
    """
    about = {name: getattr(record, name) for name in COLUMNS if name in HEAD} | {
        "run": record.name,
        "batch": record.batch,
    }
    first = "recompute" if record.mode == "recompute" else "cache"
    rows: list[dict[str, Any]] = []
    turn = 0
    for event in record.events:
        if event["event"] in MEASURED:
            turn += event["event"] == "prefill" and event["mode"] == first
            rows.append(about | {"turn": turn or None} | {k: value for k, value in event.items() if value is not None})
    return [{name: _cell(row.get(name)) for name in COLUMNS} for row in rows]


def to_csv(record: RunRecord) -> str:
    """The same rows as a CSV text: whole numbers as such, nothing where a column does not apply."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(to_csv_rows(record))
    return text.getvalue()


def _cell(value: Any) -> str | int | float | None:
    return f"'{value}" if isinstance(value, str) and value[:1] in tuple("=+-@\t\r") else value
