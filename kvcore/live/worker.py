"""The engine's side of the protocol: `python -m kvcore.live.worker [MODULE]`, started by kvcore.live.queue.

Jobs come on stdin and events go out on what was stdout; whatever anything prints goes to stderr. The jobs are those of
RUNNERS in MODULE, kvcore.live.jobs by default. A cancellation is read while a job runs, and the end of stdin, which is
that of the dashboard, ends the engine at once.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

from kvcore.errors import KVCoreError, LiveError
from kvcore.live import protocol
from kvcore.live.protocol import Emit, Message

JOBS = "kvcore.live.jobs"
JobRunner = Callable[[Message, Emit], None]

_NO_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")


class Worker:
    """Does one job after another; `source` brings them and `sink` takes what is said about them."""

    def __init__(self, source: BinaryIO, sink: BinaryIO, runners: Callable[[], Mapping[str, JobRunner]]) -> None:
        self._source = source
        self._sink = sink
        self._runners = runners
        self._jobs: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._cancelled: set[int] = set()
        self._speaking = threading.Lock()

    def serve(self) -> None:
        """Works until the dashboard is gone; does not return before that."""
        self._say({"hello": protocol.VERSION})
        threading.Thread(target=self._listen, daemon=True).start()
        while True:
            self._do(self._jobs.get())

    def _listen(self) -> None:
        while line := protocol.read_line(self._source):
            message = protocol.decode(line) or {}
            if isinstance(message.get("cancel"), int):
                self._cancelled.add(message["cancel"])
            elif isinstance(message.get("id"), int):
                self._jobs.put(message)
        # Nobody is left to work for, and the job that runs cannot be asked to hurry.
        os._exit(0)

    def _do(self, job: Message) -> None:
        number: int = job["id"]
        spoken = {"reason": "", "error": ""}

        def emit(event: Message) -> bool:
            self._say({**event, "id": number})
            if event.get("event") == "done":
                spoken["reason"] = str(event.get("reason", ""))
            elif event.get("event") == "error":
                spoken["error"] = str(event.get("message", "")) or "the engine gave no reason"
            return number not in self._cancelled

        try:
            runners = self._runners()
            kind = str(job.get("job"))
            if kind not in runners:
                raise LiveError(f"the engine has no job {kind!r}; it has {', '.join(sorted(runners))}")
            runners[kind](job, emit)
        except BaseException as error:
            words = _in_words(error)
            stopped = number in self._cancelled and isinstance(error, KVCoreError)
            if not stopped and not spoken["error"]:
                emit({"event": "error", "message": words})
        cancelled = number in self._cancelled and spoken["reason"] in ("", "cancelled")
        if spoken["error"] and not cancelled:
            end = (protocol.FAILED, spoken["error"])
        elif cancelled or spoken["reason"] == "cancelled":
            end = (protocol.CANCELLED, "Cancelled.")
        else:
            end = (protocol.DONE, "")
        self._say({"id": number, "end": end[0], "message": end[1]})
        self._cancelled.discard(number)

    def _say(self, message: Message) -> None:
        line = protocol.encode(message)
        if len(line) > protocol.MAX_LINE_BYTES:
            raise ValueError(f"an event of {len(line):,} bytes, where {protocol.MAX_LINE_BYTES:,} is the most")
        try:
            with self._speaking:
                self._sink.write(line)
                self._sink.flush()
        except OSError:
            os._exit(0)


def _in_words(error: BaseException) -> str:
    """A sentence for the page; what is not an error of ours also leaves its traceback on stderr."""
    if isinstance(error, KVCoreError):
        return str(error)
    traceback.print_exception(error)
    text = " ".join(str(error).split())
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"the live engine needs the package {error.name}, which is not installed here"
    if isinstance(error, MemoryError) or any(words in text.lower() for words in _NO_MEMORY):
        return f"this did not fit into memory; choose a smaller model, batch or context ({text[:160] or 'MemoryError'})"
    return f"the engine failed: {type(error).__name__}: {text[:300]}"


def _own_streams() -> tuple[BinaryIO, BinaryIO]:
    """The protocol's two streams, moved to where no library prints or reads: stdout is stderr from here on."""
    source, sink = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return os.fdopen(source, "rb"), os.fdopen(sink, "wb")


def main(module: str = JOBS) -> None:
    """Serves the jobs of `module` until the dashboard is gone."""
    source, sink = _own_streams()
    # Ctrl-C is for the dashboard, which then ends this.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Where memory runs out, the kernel shall take the engine and not the dashboard.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500", "ascii")

    def runners() -> Mapping[str, JobRunner]:
        found: Mapping[str, JobRunner] = importlib.import_module(module).RUNNERS
        return found

    Worker(source, sink, runners).serve()


if __name__ == "__main__":
    main(*sys.argv[1:2])
