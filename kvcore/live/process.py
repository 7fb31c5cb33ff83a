"""The engine's process as the dashboard holds it: started, spoken to, watched and ended."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import IO, BinaryIO, cast

from kvcore.live.memory import process_bytes
from kvcore.live.protocol import Message, decode, encode, read_line

_ROOT = Path(__file__).resolve().parent.parent.parent
# -P: a file of the folder that the dashboard was started in must not pass for a module of ours.
COMMAND = (sys.executable, "-P", "-X", "utf8", "-m", "kvcore.live.worker")

_INBOX = 1000
_STDERR_LINES = 50
_STDERR_BYTES = 400
_SIGNAL_WORDS = {
    "SIGKILL": ", as happens when the machine runs out of memory",
    "SIGSEGV": ": a fault in the engine itself",
    "SIGABRT": ": a fault in the engine itself",
    "SIGILL": ": this processor lacks an instruction that torch uses",
    "SIGBUS": ": a file that it was reading was cut off, or memory ran out",
}


class EngineProcess:
    """One running engine; OSError where it cannot be started. Methods may be called from any thread."""

    def __init__(self, command: Sequence[str] = COMMAND) -> None:
        paths = [str(_ROOT), os.environ.get("PYTHONPATH", "")]
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # A group of its own: Ctrl-C in the terminal is the dashboard's, and what the engine starts ends with it.
            start_new_session=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
        )
        self.started = time.monotonic()
        self.answered = False
        self._inbox: queue.Queue[Message | None] = queue.Queue(_INBOX)
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._stderr: deque[str] = deque(maxlen=_STDERR_LINES)
        self._killed = threading.Event()
        self._closed = threading.Event()
        self._threads = [
            threading.Thread(target=target, name=f"live-{target.__name__.strip('_')}", daemon=True)
            for target in (self._read, self._write, self._listen)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    def alive(self) -> bool:
        """Whether it can take a job."""
        return self._process.poll() is None and not self._closed.is_set()

    def send(self, message: Message) -> None:
        """Sends a message when the engine reads it; nothing happens where it has ended."""
        self._outbox.put(encode(message))

    def receive(self, timeout: float) -> Message | None:
        """The engine's next message, or None after `timeout` seconds, or when `wake` was called, or at its end."""
        try:
            return self._inbox.get(timeout=timeout)
        except queue.Empty:
            return None

    def wake(self) -> None:
        """Lets a waiting `receive` return at once."""
        with contextlib.suppress(queue.Full):
            self._inbox.put_nowait(None)

    def ended(self) -> bool:
        """Whether it has ended, or said its last, and nothing that it said is left to receive."""
        if self._process.poll() is None:
            return self._closed.is_set() and self._inbox.empty()
        # What it said before it ended may still be on its way; a child of it can hold the pipe open for ever.
        self._threads[0].join(1.0 if self._inbox.empty() else 0.0)
        return self._inbox.empty()

    def memory_bytes(self) -> int | None:
        """Bytes of memory that it holds; None where it has ended."""
        return process_bytes(self.pid)

    def epitaph(self) -> str:
        """Why it ended, as a sentence; it is ended first where it only closed its output."""
        try:
            code = self._process.wait(2.0)
        except subprocess.TimeoutExpired:
            self.kill()
            return "The engine closed its output and was ended."
        if code < 0:
            try:
                name = signal.Signals(-code).name
            except ValueError:
                name = f"signal {-code}"
            return f"The engine was ended by {name}{_SIGNAL_WORDS.get(name, '')}."
        self._threads[2].join(1.0)
        said = f", saying: {self._stderr[-1]}" if self._stderr else ", without a word"
        return f"The engine ended with exit code {code}{said}"

    def kill(self) -> None:
        """Ends it at once, with what it started where it has not ended by itself, and waits until it is gone."""
        self._killed.set()
        self._outbox.put(None)
        # Once it was waited for, its number may be that of another process.
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if hasattr(os, "killpg"):
                    os.killpg(self.pid, signal.SIGKILL)
                else:
                    self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10.0)
        for thread in self._threads:
            thread.join(1.0)

    def _read(self) -> None:
        with _pipe(self._process.stdout) as stream, contextlib.suppress(OSError, ValueError):
            while line := read_line(stream):
                message = decode(line)
                if message is None:
                    self._stderr.append(_readable(line))
                else:
                    self._deliver(message)
        self._closed.set()
        self.wake()

    def _deliver(self, message: Message) -> None:
        # A full inbox makes the engine wait, not the dashboard grow; but not beyond the engine's own end.
        while not self._killed.is_set():
            with contextlib.suppress(queue.Full):
                return self._inbox.put(message, timeout=0.5)

    def _write(self) -> None:
        with contextlib.suppress(OSError, ValueError), _pipe(self._process.stdin) as stream:
            while (line := self._outbox.get()) is not None:
                stream.write(line)
                stream.flush()

    def _listen(self) -> None:
        with _pipe(self._process.stderr) as stream, contextlib.suppress(OSError, ValueError):
            while line := read_line(stream, _STDERR_BYTES):
                if text := _readable(line):
                    self._stderr.append(text)


def _pipe(stream: IO[bytes] | None) -> BinaryIO:
    if stream is None:
        raise OSError("the engine was started without its pipes")
    return cast(BinaryIO, stream)


def _readable(line: bytes) -> str:
    text = line[:_STDERR_BYTES].decode("utf-8", "replace")
    return "".join(c if c.isprintable() else " " for c in text).strip()
