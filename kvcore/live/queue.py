"""One queue for all browser sessions: a machine does one live job at a time, in a process of its own.

`submit` returns a Ticket at once; a page polls `events` and calls `touch` as it does. Nothing here waits for the engine
in the thread of a page.
"""

from __future__ import annotations

import atexit
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvcore.errors import LiveError
from kvcore.live import protocol
from kvcore.live.process import COMMAND, EngineProcess
from kvcore.live.protocol import Message
from kvcore.live.settings import Limits, check_source, read_limits
from kvcore.units import format_bytes

WAITING = "waiting"
RUNNING = "running"
DONE = protocol.DONE
FAILED = protocol.FAILED
CANCELLED = protocol.CANCELLED
ABANDONED = "abandoned"
FINISHED = frozenset({DONE, FAILED, CANCELLED, ABANDONED})

# How long an engine may take to start, to obey, and to notice by itself that its time is over.
START_SECONDS = 60.0
OBEY_SECONDS = 5.0
OVERTIME_SECONDS = 5.0
MAX_EVENT_BYTES = 32 * 2**20

_TICK_SECONDS = 0.1
_MEMORY_SECONDS = 0.2
_NEXT_WORKS = "The next job starts a new one."


class Ticket:
    """One job: where it stands and what it has said. Made by LiveQueue.submit; any thread may use it.

    `id` is unlike that of every other ticket of the queue. `state` is one of waiting, running, done, failed, cancelled
    and abandoned; `message` says why in a sentence where it is one of the last three.
    """

    def __init__(self, number: int, job: Mapping[str, Any], lease_s: float, queue: LiveQueue) -> None:
        self.id = number
        self.job = dict(job)
        self.lease_s = lease_s
        self.message = ""
        self.state = WAITING
        self._queue = queue
        self._events: list[Message] = []
        self._event_bytes = 0
        self._touched = time.monotonic()
        self._stop_asked = False
        self._over = threading.Event()

    @property
    def finished(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.state in FINISHED

    @property
    def ahead(self) -> int:
        """The number of jobs before it, the running one included; 0 when its turn has come."""
        return self._queue._ahead(self)

    def events(self, after: int = 0) -> list[Message]:
        """What the engine said after its first `after` events, oldest first; to be read, not changed."""
        return self._events[max(after, 0) :]

    def touch(self) -> None:
        """Somebody still looks at this job: its lease starts again."""
        self._touched = time.monotonic()

    def cancel(self) -> None:
        """Asks for its end: at once where it waits, where it runs when the engine stops, in a few seconds at most."""
        self._queue._cancel(self)

    def wait(self, timeout: float | None = None) -> bool:
        """Blocks until it is finished, or for `timeout` seconds; whether it is. Not for a page."""
        return self._over.wait(timeout)

    def _expired(self, now: float) -> bool:
        return now - self._touched > self.lease_s

    def _add(self, event: Message) -> None:
        self._events.append(event)
        self._event_bytes += len(protocol.encode(event))

    def _finish(self, state: str, message: str) -> None:
        if not self.finished:
            self.message = message
            self.state = state
            self._over.set()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stop:
    """Why a running job is to end, and the moment when it no longer has a choice."""

    state: str
    message: str
    kill_at: float


class LiveQueue:
    """Jobs of all sessions, one after the other, in one engine that is started when first needed and kept.

    `limits` come from the environment unless given; `command` starts the engine.
    """

    def __init__(self, limits: Limits | None = None, *, command: Sequence[str] = COMMAND) -> None:
        self.limits = read_limits() if limits is None else limits
        self._command = tuple(command)
        self._numbers = itertools.count(1)
        self._changed = threading.Condition(threading.RLock())
        self._waiting: deque[Ticket] = deque()
        self._running: Ticket | None = None
        self._engine: EngineProcess | None = None
        self._idle_since = time.monotonic()
        self._closing = False
        self._server: threading.Thread | None = None

    def submit(self, job: Mapping[str, Any], *, lease_s: float | None = None) -> Ticket:
        """A ticket for the job, whose `job` names its kind; it is abandoned when untouched for `lease_s` seconds.

        LiveError where the engine is turned off, too many jobs wait, or the job is not one.
        """
        _check(job)
        if self.limits.off:
            raise LiveError("the live engine is turned off on this server (KV_LIVE_OFF)")
        check_source(self.limits, job.get("model"), download=bool(job.get("allow_hub")))
        with self._changed:
            if self._closing:
                raise LiveError("the live engine is closing; start the dashboard again")
            if len(self._waiting) >= self.limits.max_waiting:
                raise LiveError(f"{len(self._waiting)} jobs are waiting already; try again when some have finished")
            ticket = Ticket(next(self._numbers), job, self.limits.lease_s if lease_s is None else lease_s, self)
            self._waiting.append(ticket)
            if self._server is None:
                self._server = threading.Thread(target=self._serve, name="live-queue", daemon=True)
                self._server.start()
            self._changed.notify_all()
        return ticket

    @property
    def engine_pid(self) -> int | None:
        """The id of the engine's process, None while there is none."""
        with self._changed:
            return self._engine.pid if self._engine and self._engine.alive() else None

    def shutdown(self) -> None:
        """Ends the engine and every job, and returns when both are gone; later jobs are refused."""
        with self._changed:
            self._closing = True
            while self._waiting:
                self._waiting.popleft()._finish(CANCELLED, "The dashboard was closed.")
            self._changed.notify_all()
            self._wake()
            server = self._server
        if server is not None and server is not threading.current_thread():
            server.join()

    def _ahead(self, ticket: Ticket) -> int:
        with self._changed:
            try:
                return self._waiting.index(ticket) + (self._running is not None)
            except ValueError:
                return 0

    def _cancel(self, ticket: Ticket) -> None:
        with self._changed:
            if ticket in self._waiting:
                self._waiting.remove(ticket)
                ticket._finish(CANCELLED, "Cancelled before it began.")
            elif not ticket.finished:
                ticket._stop_asked = True
                self._wake()

    def _wake(self) -> None:
        if self._engine is not None:
            self._engine.wake()

    def _serve(self) -> None:
        """The queue's own thread: takes tickets in their order until the queue is shut down."""
        while (ticket := self._next()) is not None:
            try:
                self._run(ticket)
            except OSError as error:
                self._drop_engine()
                self._finish(ticket, FAILED, f"The engine could not be started: {error.strerror or error}.")
            except Exception as error:
                # The queue serves everybody: no job may take it down.
                self._drop_engine()
                self._finish(ticket, FAILED, f"The engine was lost ({type(error).__name__}: {error}). {_NEXT_WORKS}")
            self._idle_since = time.monotonic()
        self._drop_engine()

    def _next(self) -> Ticket | None:
        """The next ticket, made the running one; None when the queue closes."""
        while True:
            with self._changed:
                if self._closing:
                    return None
                self._drop_abandoned()
                if self._waiting:
                    self._running = self._waiting.popleft()
                    self._running.state = RUNNING
                    return self._running
                # Nothing waits, so no lease can run out, only the engine's idle time.
                left = self._idle_since + self.limits.idle_s - time.monotonic()
                if self._engine is None or left > 0:
                    self._changed.wait(left if self._engine is not None else None)
                    continue
            self._drop_engine()

    def _drop_abandoned(self) -> None:
        now = time.monotonic()
        with self._changed:
            for ticket in [ticket for ticket in self._waiting if ticket._expired(now)]:
                self._waiting.remove(ticket)
                ticket._finish(ABANDONED, "Nobody looked at this job any more while it waited.")

    def _run(self, ticket: Ticket) -> None:
        engine = self._ready_engine()
        engine.send({**ticket.job, "id": ticket.id})
        began = memory_read = time.monotonic()
        stop: _Stop | None = None
        while True:
            message = engine.receive(_TICK_SECONDS)
            if message is not None:
                engine.answered = True
                if message.get("id") == ticket.id and self._heard(ticket, message, stop):
                    return
            elif engine.ended():
                why = engine.epitaph()
                self._drop_engine()
                ended = stop or _Stop(state=FAILED, message=f"{why.rstrip('.')}. {_NEXT_WORKS}", kill_at=0.0)
                return self._finish(ticket, ended.state, ended.message)
            self._drop_abandoned()
            now = time.monotonic()
            if stop is None and (stop := self._why_stop(ticket, engine, now, began)):
                engine.send({"cancel": ticket.id})
            if now - memory_read >= _MEMORY_SECONDS:
                memory_read = now
                stop = self._too_large(engine) or stop
            if stop is not None and now >= stop.kill_at:
                self._drop_engine()
                return self._finish(ticket, stop.state, stop.message)

    def _ready_engine(self) -> EngineProcess:
        if self._engine is not None and self._engine.alive():
            return self._engine
        self._drop_engine()
        engine = EngineProcess(self._command)
        with self._changed:
            self._engine = engine
        return engine

    def _heard(self, ticket: Ticket, message: Message, stop: _Stop | None) -> bool:
        """Takes in one message of the ticket's job; whether the job is over."""
        end = message.get("end")
        if end in protocol.ENDS:
            said = message.get("message")
            outcome = (end, said if isinstance(said, str) else "")
            if stop is not None and stop.state != CANCELLED:
                outcome = (stop.state, stop.message)
            self._finish(ticket, *outcome)
            return True
        if isinstance(message.get("event"), str):
            ticket._add(message)
            if len(ticket._events) > self.limits.max_events or ticket._event_bytes > MAX_EVENT_BYTES:
                self._drop_engine()
                self._finish(ticket, FAILED, f"The engine reported too much and was ended. {_NEXT_WORKS}")
                return True
        return False

    def _why_stop(self, ticket: Ticket, engine: EngineProcess, now: float, began: float) -> _Stop | None:
        """The first reason for which a running job is to end; None while there is none."""
        if self._closing:
            return _Stop(state=CANCELLED, message="The dashboard was closed.", kill_at=now)
        if ticket._stop_asked:
            return _Stop(state=CANCELLED, message="Cancelled.", kill_at=now + OBEY_SECONDS)
        if ticket._expired(now):
            words = "Nobody looked at this job any more, so it was stopped."
            return _Stop(state=ABANDONED, message=words, kill_at=now + OBEY_SECONDS)
        if now - began > self.limits.max_seconds + OVERTIME_SECONDS:
            words = f"Stopped after {self.limits.max_seconds:,.0f} s, the most that a job may take here."
            return _Stop(state=FAILED, message=words, kill_at=now + OBEY_SECONDS)
        if not engine.answered and now - engine.started > START_SECONDS:
            words = f"The engine did not start within {START_SECONDS:.0f} s."
            return _Stop(state=FAILED, message=words, kill_at=now)
        return None

    def _too_large(self, engine: EngineProcess) -> _Stop | None:
        held, most = engine.memory_bytes(), self.limits.max_memory_bytes
        if held is None or held <= most:
            return None
        words = f"The engine held {format_bytes(held)} of memory where {format_bytes(most)} is the limit and was ended."
        return _Stop(state=FAILED, message=f"{words} {_NEXT_WORKS}", kill_at=0.0)

    def _finish(self, ticket: Ticket, state: str, message: str) -> None:
        # Free first: whoever sees the ticket finished finds the next one moved up.
        with self._changed:
            self._running = None
            ticket._finish(state, message)

    def _drop_engine(self) -> None:
        with self._changed:
            engine, self._engine = self._engine, None
        if engine is not None:
            engine.kill()


def _check(job: Mapping[str, Any]) -> None:
    if not isinstance(job, Mapping) or not isinstance(job.get("job"), str):
        raise LiveError("a job names its kind under `job`")
    try:
        size = len(protocol.encode(dict(job)))
    except (TypeError, ValueError, RecursionError) as error:
        raise LiveError(f"this job cannot be sent to the engine: {error}") from None
    if size > protocol.MAX_JOB_BYTES:
        raise LiveError(f"this job is too long to send: {size:,} bytes where {protocol.MAX_JOB_BYTES:,} is the most")


_default: LiveQueue | None = None
_default_lock = threading.Lock()


def default_queue(make: Callable[[], LiveQueue] = LiveQueue) -> LiveQueue:
    """The queue of this process, made when first asked for; its engine ends with the process."""
    global _default
    with _default_lock:
        if _default is None:
            _default = make()
            atexit.register(_default.shutdown)
        return _default
