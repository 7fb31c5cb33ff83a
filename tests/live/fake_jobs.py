"""Scripted jobs for the real worker: `python -m kvcore.live.worker tests.live.fake_jobs`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from kvcore.errors import LiveError

Emit = Callable[[dict], bool]
FOREVER = 600.0


def progress(done: int) -> dict:
    return {"event": "progress", "what": "counting", "done": done, "of": 0}


def count(job: dict, emit: Emit) -> None:
    for i in range(job["n"]):
        emit(progress(i))
    emit({"event": "done", "reason": "length"})


def hold(job: dict, emit: Emit) -> None:
    """Works until it is cancelled, or until the file `gate` is there."""
    end = time.monotonic() + FOREVER
    done = 0
    while time.monotonic() < end and not (job.get("gate") and Path(job["gate"]).exists()):
        done += 1
        if not emit(progress(done) if done < 100 else {"beat": done}):
            return emit({"event": "done", "reason": "cancelled"}) and None
        time.sleep(0.01)
    emit({"event": "done", "reason": "length"})


def deaf(job: dict, emit: Emit) -> None:
    emit(progress(0))
    time.sleep(FOREVER)


def echo(job: dict, emit: Emit) -> None:
    emit({"event": "token", "text": job["text"]})


def refuse(job: dict, emit: Emit) -> None:
    raise LiveError("the model has 3 heads, which 2 do not divide")


def report(job: dict, emit: Emit) -> None:
    emit({"event": "error", "message": "said by the job itself"})


def crash(job: dict, emit: Emit) -> None:
    raise ZeroDivisionError("nothing to divide")


def no_memory(job: dict, emit: Emit) -> None:
    raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes")


def no_package(job: dict, emit: Emit) -> None:
    import a_package_that_nobody_has  # noqa: F401


def not_json(job: dict, emit: Emit) -> None:
    emit({"event": "token", "seconds": float("nan")})


def leave(job: dict, emit: Emit) -> None:
    print("the last words, não", file=sys.stderr, flush=True)
    os._exit(3)


def killed(job: dict, emit: Emit) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def prints(job: dict, emit: Emit) -> None:
    print("a warning of some library", flush=True)
    os.write(1, b'{"id": 1, "event": "token", "text": "forged"}\n')
    subprocess.run([sys.executable, "-c", "print('from a child')"], check=True)
    emit({"event": "token", "text": "read " + repr(sys.stdin.read())})


def eats(job: dict, emit: Emit) -> None:
    """Takes memory up to more than any test allows, and no more than a small machine has."""
    held = []
    while emit(progress(len(held))):
        if len(held) < 1024:
            held.append(bytearray(b"x" * 2**20))


def nest(job: dict, emit: Emit) -> None:
    """Does not obey, and has a child that does not either."""
    child = subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({FOREVER})"])
    emit({"event": "child", "pid": child.pid})
    time.sleep(FOREVER)


def aborts(job: dict, emit: Emit) -> None:
    """As a download does: cancelled, it raises from deep inside."""
    while emit({"event": "progress", "what": "download", "done": 0, "of": 1}):
        time.sleep(0.05)
    raise LiveError("cancelled")


RUNNERS = {f.__name__: f for f in (count, hold, deaf, echo, refuse, report, crash, no_memory, no_package, not_json)}
RUNNERS |= {f.__name__: f for f in (leave, killed, prints, eats, aborts, nest)}
