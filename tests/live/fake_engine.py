"""Engines that do not keep to the protocol: `python fake_engine.py KIND`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

FOREVER = 600.0


def write(line: bytes) -> None:
    os.write(1, line + b"\n")


def say(message: dict) -> None:
    write(json.dumps(message).encode())


def job_id() -> int:
    return json.loads(sys.stdin.readline())["id"]


def silent() -> None:
    time.sleep(FOREVER)


def mute() -> None:
    say({"hello": 1})
    time.sleep(FOREVER)


def garbage() -> None:
    say({"hello": 1})
    n = job_id()
    write(b"Downloading: 100%|####| 1/1")
    write(b"\xff\xfe\x00 not UTF-8")
    write(b"[" * 100_000)
    write(b'{"id": %d, "event": "token", "text": "' % n + b"x" * 3_000_000 + b'"}')
    write(b'{"id": %d, "event": "token", "seconds": NaN}' % n)
    write(b'{"id": %d, "event": "token", "seconds": 1e999}' % n)
    write(b"[1, 2]")
    write(b"")
    say({"id": n + 1, "event": "token", "text": "of another job"})
    say({"id": str(n), "event": "token"})
    say({"id": n, "event": 7})
    say({"id": n, "end": "perhaps"})
    say({"id": n, "event": "token", "text": "the only good one"})
    say({"id": n, "end": "done", "message": 5})
    time.sleep(FOREVER)


def flood() -> None:
    n = job_id()
    while True:
        say({"id": n, "event": "progress", "what": "x" * 100, "done": 1, "of": 1})


def closes() -> None:
    job_id()
    os.close(1)
    time.sleep(FOREVER)


def leaves_a_child() -> None:
    """Ends while a child of its own holds its output open."""
    n = job_id()
    child = subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({FOREVER})"])
    say({"id": n, "event": "child", "pid": child.pid})
    job_id()
    os._exit(4)


def ends() -> None:
    sys.exit("no such device")


if __name__ == "__main__":
    globals()[sys.argv[1]]()
