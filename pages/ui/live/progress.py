"""What a live job has told so far: its events, folded into prefill, tokens, probes and how it ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

CACHE, RECOMPUTE = "cache", "recompute"
MODES = (CACHE, RECOMPUTE)
# Places at the end over which both ways are compared, as in kvcore.live.runs.
_LAST = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBytes:
    """Bytes of the cache: as measured on its tensors, and as predicted before it ran."""

    reserved: int
    resident: int
    predicted_reserved: int
    predicted_resident: int

    @property
    def as_predicted(self) -> bool:
        """Whether both are what was predicted, to the byte."""
        return (self.reserved, self.resident) == (self.predicted_reserved, self.predicted_resident)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefill:
    """The prompt, read at once: `tokens` of it were computed, `reused` stood in the cache already."""

    tokens: int
    reused: int
    batch: int
    seconds: float
    predicted_s: float | None
    held: HeldBytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """One step after the first token: its place, how many tokens the step attended to, and what it took."""

    index: int
    context: int
    seconds: float
    predicted_s: float | None
    held: HeldBytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One measured step at one context: the median of `repeats`, of which the fastest and the slowest are known."""

    mode: str
    variant: str
    context: int
    seconds: float
    predicted_s: float | None
    repeats: int = 0
    low_s: float | None = None
    high_s: float | None = None

    @property
    def spread(self) -> tuple[float, float] | None:
        """The fastest and the slowest of its times, or None where there was one, or that is not known."""
        if self.repeats < 2 or self.low_s is None or self.high_s is None:
            return None
        return self.low_s, self.high_s


@dataclass(slots=True, kw_only=True)
class ModeProgress:
    """One way of making the answer: with the cache or without.

    `tokens` are the steps after the first token, which comes out of the prefill and belongs to its time; `text` is all
    that was written, the first token included.
    """

    prefill: Prefill | None = None
    tokens: list[Token] = field(default_factory=list)
    text: str = ""

    @property
    def seconds(self) -> float:
        """All that was measured so far."""
        return (self.prefill.seconds if self.prefill else 0.0) + sum(one.seconds for one in self.tokens)

    @property
    def median_s(self) -> float | None:
        """The middle of the tokens' times, or None before there is one."""
        return median(one.seconds for one in self.tokens) if self.tokens else None

    @property
    def held(self) -> HeldBytes | None:
        """The cache after the last thing that happened."""
        if self.tokens:
            return self.tokens[-1].held
        return self.prefill.held if self.prefill else None


@dataclass(slots=True, kw_only=True)
class JobProgress:
    """A job's events so far, or those of several jobs of one conversation, of which the last turn is told.

    `doing` is (what, done, of) of what is going on before the next result, `earlier` the answers of turns before.
    """

    ready: dict[str, Any] = field(default_factory=dict)
    host: dict[str, Any] = field(default_factory=dict)
    calibration: dict[str, Any] = field(default_factory=dict)
    modes: dict[str, ModeProgress] = field(default_factory=lambda: {mode: ModeProgress() for mode in MODES})
    probes: list[Probe] = field(default_factory=list)
    truncated: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    earlier: list[str] = field(default_factory=list)
    doing: tuple[str, int, int] | None = None
    done: str = ""
    error: str = ""

    @property
    def cache(self) -> ModeProgress:
        return self.modes[CACHE]

    @property
    def recompute(self) -> ModeProgress:
        return self.modes[RECOMPUTE]

    @property
    def text(self) -> str:
        """The answer: of the run with the cache, or of the one without where only that was made."""
        return self.cache.text or self.recompute.text

    @property
    def began(self) -> bool:
        """Whether anything was measured."""
        return bool(self.probes) or any(side.prefill or side.tokens for side in self.modes.values())

    @property
    def random(self) -> bool:
        """Whether the weights are random: times and bytes are real, the text means nothing."""
        return self.ready.get("weights") == "random"

    @property
    def batch(self) -> int:
        first = self.cache.prefill or self.recompute.prefill
        return first.batch if first else 1

    def slower(self) -> float | None:
        """How many times as long as with the cache: the median over the last five places that both ways made.

        None before there is one. A single pair would tell of a noisy moment.
        """
        with_cache = {one.context: one.seconds for one in self.cache.tokens if one.seconds > 0}
        pairs = [(one.seconds, with_cache[one.context]) for one in self.recompute.tokens if one.context in with_cache]
        return median(again / cached for again, cached in pairs[-_LAST:]) if pairs else None


def progress_of(events: Iterable[Mapping[str, Any]]) -> JobProgress:
    """The progress that these events tell; what is not understood is left out."""
    return add_events(JobProgress(), events)


def add_events(progress: JobProgress, events: Iterable[Mapping[str, Any]]) -> JobProgress:
    """The same progress with what these further events tell."""
    for event in events:
        try:
            _take(progress, event)
        except (KeyError, TypeError, ValueError):
            continue
    return progress


def _take(progress: JobProgress, event: Mapping[str, Any]) -> None:
    name = event.get("event")
    if name == "progress":
        progress.doing = (str(event["what"]), int(event["done"]), int(event["of"]))
        return
    if name in ("ready", "host", "calibration"):
        setattr(progress, str(name), dict(event if name == "ready" else event[name]))
    elif name == "prefill":
        if progress.modes[event["mode"]].prefill is not None and event["mode"] == CACHE:
            # A further turn of one conversation: what follows is about it.
            progress.earlier.append(progress.text)
            progress.modes = {mode: ModeProgress() for mode in MODES}
        progress.modes[event["mode"]].prefill = Prefill(
            tokens=int(event["tokens"]),
            reused=int(event.get("reused") or 0),
            batch=int(event.get("batch") or 1),
            seconds=float(event["seconds"]),
            predicted_s=_maybe(event.get("predicted_s")),
            held=_held(event),
        )
    elif name == "token":
        side = progress.modes[event["mode"]]
        side.text += str(event.get("text") or "")
        if int(event["index"]) == 0:
            return
        side.tokens.append(
            Token(
                index=int(event["index"]),
                context=int(event["context"]),
                seconds=float(event["seconds"]),
                predicted_s=_maybe(event.get("predicted_s")),
                held=_held(event),
            )
        )
    elif name == "probe":
        progress.probes.append(
            Probe(
                mode=str(event["mode"]),
                variant=str(event.get("variant") or "shipped"),
                context=int(event["context"]),
                seconds=float(event["seconds"]),
                predicted_s=_maybe(event.get("predicted_s")),
                repeats=int(event.get("repeats") or 0),
                low_s=_maybe(event.get("low_s")),
                high_s=_maybe(event.get("high_s")),
            )
        )
    elif name == "truncated":
        progress.truncated.append(dict(event))
    elif name == "note":
        progress.notes.append(str(event["text"]))
    elif name == "done":
        progress.done = str(event.get("reason") or "length")
    elif name == "error":
        progress.error = str(event["message"])
    progress.doing = None


def _held(event: Mapping[str, Any]) -> HeldBytes:
    return HeldBytes(
        reserved=int(event.get("reserved_bytes") or 0),
        resident=int(event.get("resident_bytes") or 0),
        predicted_reserved=int(event.get("predicted_reserved_bytes") or 0),
        predicted_resident=int(event.get("predicted_resident_bytes") or 0),
    )


def _maybe(value: Any) -> float | None:
    return None if value is None else float(value)
