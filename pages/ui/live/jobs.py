"""What a browser session does with the live engine: the job it watches, the jobs that follow, and what came of them.

A page never waits: it submits a job, and a fragment asks for its events four times a second while it runs. Asking also
renews the job's lease, so that a closed tab frees the machine.
"""

from __future__ import annotations

import importlib.util
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

import streamlit as st

from kvcore.errors import LiveError
from kvcore.live.queue import default_queue
from kvcore.live.runs import RunRecord
from kvcore.live.settings import read_limits
from kvcore.scenario.live import LiveOptions
from pages.ui.live.progress import JobProgress, add_events

RUN, PROBE, RACE, MACHINE = "run", "probe", "race", "host"
POLL_S = 0.25
_GLANCE_S = 0.02
FINISHED = ("done", "failed", "cancelled", "abandoned")
# Controls that keep their value while other pages are open.
KEYS = (*(one.name for one in fields(LiveOptions)), "live_hub", "live_on")
IN_POPOVER = (
    "live_attention", "live_kv", "live_weights", "live_layers", "live_heat", "live_top_p", "live_seed", "live_chat",
    "live_seconds", "live_hub",
)  # fmt: skip
_SHADOW, _WATCH, _RESULTS, _TURNS = "live_shadow", "live_watch", "live_results", "live_turns"


class JobTicket(Protocol):
    """A job in the queue, or a recording that plays."""

    @property
    def state(self) -> str: ...

    @property
    def message(self) -> str: ...

    @property
    def ahead(self) -> int: ...

    def events(self, after: int = 0) -> list[Any]: ...

    def touch(self) -> None: ...

    def cancel(self) -> None: ...


class JobQueue(Protocol):
    """What the page needs of the queue."""

    def submit(self, job: Mapping[str, Any]) -> JobTicket: ...


@dataclass(slots=True, kw_only=True)
class JobResult:
    """What a job has told so far; `record` is the recording that plays instead of an engine."""

    kind: str
    job: dict[str, Any] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    state: str = "waiting"
    message: str = ""
    record: RunRecord | None = None
    _progress: JobProgress = field(default_factory=JobProgress, repr=False, compare=False)
    _told: int = field(default=0, repr=False, compare=False)

    @property
    def progress(self) -> JobProgress:
        """What the events tell: each is taken in once, since a page asks for this many times at every token."""
        new, self._told = self.events[self._told :], len(self.events)
        return add_events(self._progress, new)

    @property
    def finished(self) -> bool:
        return self.state in FINISHED


@dataclass(slots=True, kw_only=True)
class WatchedJob:
    """The job that is watched now, and those that follow it."""

    ticket: JobTicket
    result: JobResult
    then: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    follow: list[tuple[JobTicket, JobResult]] = field(default_factory=list)
    stopping: bool = False


def queue() -> JobQueue:
    """The queue of this server's engine."""
    return default_queue()


def why_off() -> str:
    """Why nothing can run here, as a sentence; empty where it can."""
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed on this server, so no model can run here: install what requirements.txt lists."
    try:
        limits = read_limits()
    except LiveError as problem:
        return f"The live engine's settings cannot be read: {problem}."
    return "The live engine is turned off on this server (KV_LIVE_OFF)." if limits.off else ""


def begin(defaults: Mapping[str, Any]) -> None:
    """Give every control its last value, or its default; call first in every run of the page."""
    keep = st.session_state
    shadow = keep.get(_SHADOW, {})
    for key, value in defaults.items():
        if key not in keep:
            keep[key] = shadow.get(key, value)
    # A popover's controls are made in the browser when it is opened: they take their value only if it is set in the
    # run before that, whichever it is.
    for key in IN_POPOVER:
        if key in keep:
            keep[key] = keep[key]
    poll()


def finish() -> None:
    """Remember what the controls hold; call last."""
    keep = st.session_state
    keep[_SHADOW] = {**keep.get(_SHADOW, {}), **{key: keep[key] for key in KEYS if key in keep}}


def session_name() -> str:
    """The name under which the engine keeps this session's conversation."""
    return str(st.session_state.setdefault("live_session", f"page-{uuid.uuid4().hex[:12]}"))


def start(*jobs: tuple[str, dict[str, Any]]) -> None:
    """Submit the first (kind, job); the others follow when it is done. A refusal becomes a sentence."""
    _leave()
    (kind, job), *rest = jobs
    try:
        ticket = queue().submit(job)
    except LiveError as problem:
        st.session_state["live_problem"] = f"{problem}."
        return
    st.session_state["live_problem"] = ""
    _watch(WatchedJob(ticket=ticket, result=JobResult(kind=kind, job=job), then=list(rest)))


def play(*parts: tuple[JobTicket, JobResult]) -> None:
    """Show recordings one after the other, in their own time."""
    _leave()
    (ticket, result), *rest = parts
    st.session_state["live_problem"] = ""
    _watch(WatchedJob(ticket=ticket, result=result, follow=list(rest)))


def _watch(watch: WatchedJob) -> None:
    st.session_state[_WATCH] = watch
    results()[watch.result.kind] = watch.result
    _read(watch)


def stop() -> None:
    """Ask the watched job to end, and drop those that were to follow; what it has shown stays."""
    watch = watched()
    if watch is not None:
        watch.then, watch.follow = [], []
        watch.stopping = True
        watch.ticket.cancel()


def settled(within_s: float) -> bool:
    """Whether the watched job ends in that time. The engine stops after the step that it computes."""
    watch = watched()
    end = time.monotonic() + within_s
    while watch is not None and watch.ticket.state not in FINISHED:
        if time.monotonic() > end:
            return False
        time.sleep(_GLANCE_S)
    return True


def _leave() -> None:
    """Turn to something else: what was watched is cancelled and no longer followed."""
    watch = watched()
    if watch is not None:
        stop()
        st.session_state[_WATCH] = None
        watch.result.state, watch.result.message = "cancelled", "Stopped."


def poll() -> bool:
    """Take in what is new; whether the watched job has ended or given way to the next since the last time."""
    watch: WatchedJob | None = st.session_state.get(_WATCH)
    if watch is None:
        return False
    watch.ticket.touch()
    _read(watch)
    if not watch.result.finished:
        return False
    st.session_state[_WATCH] = None
    st.session_state["live_newest"] = watch.result.kind
    if watch.result.kind == RUN and watch.result.record is None:
        _remember_turn(watch.result)
    if watch.result.state == "done" and not watch.result.progress.error:
        if watch.then:
            start(*watch.then)
        elif watch.follow:
            (ticket, result), *rest = watch.follow
            ticket.touch()
            _watch(WatchedJob(ticket=ticket, result=result, follow=rest))
    return True


def _read(watch: WatchedJob) -> None:
    # The state first: what is told after it was read is taken at the next poll, and nothing at an end is lost.
    state, message = watch.ticket.state, watch.ticket.message
    watch.result.events += [dict(event) for event in watch.ticket.events(len(watch.result.events))]
    watch.result.state, watch.result.message = state, message


def _remember_turn(result: JobResult) -> None:
    keep = st.session_state
    if not result.job.get("continue_of"):
        keep[_TURNS] = []
    if result.progress.cache.prefill is not None and result.job.get("session"):
        keep.setdefault(_TURNS, []).append(result)


def turns() -> list[JobResult]:
    """The finished turns of the conversation that the engine keeps."""
    return list(st.session_state.get(_TURNS, []))


def watched() -> WatchedJob | None:
    """What is being watched."""
    found: WatchedJob | None = st.session_state.get(_WATCH)
    return found


def running(*kinds: str) -> bool:
    """Whether a job of one of these kinds (of any, without) is being watched."""
    watch = watched()
    return watch is not None and (not kinds or watch.result.kind in kinds)


def results() -> dict[str, JobResult]:
    """What came of the last job of each kind."""
    found: dict[str, JobResult] = st.session_state.setdefault(_RESULTS, {})
    return found
