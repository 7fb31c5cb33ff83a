"""Recorded runs: those that come with the dashboard, and how one plays again at the speed that it had."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from kvcore.errors import LiveError
from kvcore.live.runs import RunRecord, from_json, replay
from kvcore.paths import DATA
from pages.ui.live.jobs import JobResult

FOLDER = DATA / "live"
# In which order recordings of a kind are shown one after the other.
ORDER = ("run", "probe", "race")


@lru_cache(maxsize=1)
def shipped() -> tuple[RunRecord, ...]:
    """The recordings that come with the dashboard, one a kind at most; a damaged one is left out."""
    found: dict[str, RunRecord] = {}
    for path in sorted(FOLDER.glob("*.json")):
        try:
            record = from_json(path.read_bytes())
        except (LiveError, OSError):
            continue
        found.setdefault(record.kind, record)
    return tuple(found[kind] for kind in ORDER if kind in found)


def whole(record: RunRecord) -> JobResult:
    """A recording as it stood at its end."""
    return JobResult(
        kind=record.kind, job=_job(record), events=[dict(event) for event in record.timeline],
        state="done", record=record,
    )  # fmt: skip


def playing(record: RunRecord, clock: Callable[[], float] = time.monotonic) -> tuple[Playback, JobResult]:
    """A recording that begins to play when it is first looked at, and what it has shown so far."""
    return Playback(record, clock), JobResult(kind=record.kind, job=_job(record), record=record)


def _job(record: RunRecord) -> dict[str, Any]:
    return {"prompt": record.prompt, "later_prompts": list(record.later_prompts)}


class Playback:
    """A ticket whose events come from a recording, each when it is due."""

    message = ""
    ahead = 0

    def __init__(self, record: RunRecord, clock: Callable[[], float]) -> None:
        self._record, self._clock = record, clock
        self._start: float | None = None
        self._ended = ""

    @property
    def state(self) -> str:
        if self._ended:
            return self._ended
        if self._start is None:
            return "waiting"
        return "done" if self._now() > self._record.duration_s else "running"

    def _now(self) -> float:
        return 0.0 if self._start is None else self._clock() - self._start

    def events(self, after: int = 0) -> list[Any]:
        return [] if self._start is None else replay(self._record, self._now(), after)

    def touch(self) -> None:
        if self._start is None:
            self._start = self._clock()

    def cancel(self) -> None:
        self._ended = "cancelled"


def where(record: RunRecord) -> str:
    """On what a recording was made, and when."""
    name = record.machine.device_name if record.machine else record.device
    threads = "" if record.device != "cpu" else f", {record.threads} {'thread' if record.threads == 1 else 'threads'}"
    return f"{name}{threads}, {record.made_at[:10]}"
