"""A run of the live engine as a record: kept, exported, loaded again and replayed at the speed it had.

record = from_events(ticket.events(0), name="first run", prompt=prompt)
text = to_json(record);  record = from_json(text)
replay(record, now_s=1.5)        # the events of the first 1.5 s, as the engine emitted them
summary(record).ttft_s
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from statistics import median
from typing import Any, Literal, NoReturn

from kvcore.errors import LiveError
from kvcore.live.host import Host
from kvcore.live.roofline import Calibration
from kvcore.live.run_events import (
    BYTES,
    COUNT,
    HEAD,
    MAX_NAME,
    MEASURED,
    NAME,
    TEXT,
    Value,
    check_values,
    checked,
    is_seconds,
    kept,
    one_of,
    tidy_text,
    timed,
)

SCHEMA = 1
MAX_BYTES = 4 * 2**20
MAX_EVENTS = 30_000
Mode = Literal["cache", "recompute", "both"]

_ABOUT: Mapping[str, Value] = {
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
    said in the turns after it, of which `Summary.turn_tokens` counts the tokens.
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
        return "".join(event["text"] for event in _of(self.events, "token", mode))

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
class Summary:
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
        event = kept(raw)
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
        **about, **head, machine=machine, calibration=calibration, events=tuple(timed(found)),
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
        events.append(checked(event, where))
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


def summary(record: RunRecord) -> Summary:
    """The figures of a run; see Summary for what each one is."""
    cached, again = _of(record.events, "prefill", "cache"), _of(record.events, "prefill", "recompute")
    first = cached[0] if cached else None
    token_s, tokens = _token_seconds(record.events, "cache")
    recompute_s, _ = _token_seconds(record.events, "recompute")
    return Summary(
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


def _of(events: Sequence[Mapping[str, Any]], kind: str, mode: str) -> list[Mapping[str, Any]]:
    return [event for event in events if event["event"] == kind and event["mode"] == mode]


def _token_seconds(events: Sequence[Mapping[str, Any]], mode: str) -> tuple[float | None, int]:
    """(median seconds of a decode step, number of tokens); the first token of a turn comes out of its prefill."""
    tokens = _of(events, "token", mode)
    steps = [event["seconds"] for event in tokens if event["index"] > 0]
    return (median(steps) if steps else None), len(tokens)


def _rate(tokens: int, seconds: float | None) -> float | None:
    return tokens / seconds if seconds else None


def _ratio(events: Sequence[Mapping[str, Any]]) -> float | None:
    """Recompute over cache at the same contexts: the last five of a run, the longest of a probe."""
    by_mode = [
        {event["context"]: event["seconds"] for event in _of(events, "token", mode) if event["index"] > 0}
        for mode in ("cache", "recompute")
    ]
    if by_mode[0].keys() & by_mode[1].keys():
        last = _LAST
    else:
        by_mode = [
            {event["context"]: event["seconds"] for event in _of(events, "probe", mode)}
            for mode in ("cache", "recompute")
        ]
        last = 1
    cached, again = by_mode
    shared = sorted(context for context in cached.keys() & again.keys() if cached[context] > 0)[-last:]
    return median(again[context] / cached[context] for context in shared) if shared else None
