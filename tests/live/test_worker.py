from __future__ import annotations

import io
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvcore.live import protocol
from kvcore.live.process import COMMAND

ROOT = Path(__file__).resolve().parent.parent.parent
PATIENCE = 90.0


class Engine:
    """A worker on a pipe, spoken to line by line as any program could."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=ROOT.parent,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )

    def write(self, text: str) -> None:
        self.process.stdin.write(text.encode() + b"\n")
        self.process.stdin.flush()

    def send(self, **message: object) -> None:
        self.write(json.dumps(message))

    def read(self) -> dict:
        return json.loads(self.process.stdout.readline())

    def until_end(self) -> list[dict]:
        said = [self.read()]
        while "end" not in said[-1]:
            said.append(self.read())
        return said

    def close(self) -> tuple[int, bytes]:
        """Its exit code once its stdin is closed, and all that it wrote to stderr."""
        self.process.stdin.close()
        errors = self.process.stderr.read()
        assert self.process.stdout.read() == b""
        self.process.stdout.close()
        self.process.stderr.close()
        return self.process.wait(PATIENCE), errors


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = Engine("tests.live.fake_jobs")
    assert made.read() == {"hello": 1}
    yield made
    if made.process.stdin.closed:
        return
    assert made.close()[0] == 0


def test_jobs_in_their_order(engine: Engine) -> None:
    engine.send(job="count", id=7, n=2)
    engine.send(job="echo", id=8, text="Grüße 東京")
    assert engine.until_end() == [
        {"event": "progress", "what": "counting", "done": 0, "of": 0, "id": 7},
        {"event": "progress", "what": "counting", "done": 1, "of": 0, "id": 7},
        {"event": "done", "reason": "length", "id": 7},
        {"id": 7, "end": "done", "message": ""},
    ]
    assert engine.until_end() == [
        {"event": "token", "text": "Grüße 東京", "id": 8},
        {"id": 8, "end": "done", "message": ""},
    ]


def test_cancel_while_a_job_runs(engine: Engine) -> None:
    engine.send(job="hold", id=1)
    assert engine.read()["done"] == 1
    engine.send(cancel=1)
    said = engine.until_end()
    assert said[-2:] == [
        {"event": "done", "reason": "cancelled", "id": 1},
        {"id": 1, "end": "cancelled", "message": "Cancelled."},
    ]
    engine.send(job="count", id=2, n=0)
    assert engine.until_end()[-1]["end"] == "done"


def test_cancel_of_a_job_that_has_not_begun(engine: Engine) -> None:
    engine.send(cancel=2)
    engine.send(job="hold", id=2)
    assert [m.get("end") for m in engine.until_end()] == [None, None, "cancelled"]
    # And of one that is long over: nothing happens.
    engine.send(cancel=2)
    engine.send(job="count", id=3, n=0)
    assert engine.until_end()[-1] == {"id": 3, "end": "done", "message": ""}


def test_a_cancelled_job_that_raises(engine: Engine) -> None:
    engine.send(job="aborts", id=1)
    engine.read()
    engine.send(cancel=1)
    said = engine.until_end()
    assert said[-1] == {"id": 1, "end": "cancelled", "message": "Cancelled."}
    assert not [message for message in said if message.get("event") == "error"]


def test_a_job_that_finished_although_cancelled(engine: Engine) -> None:
    engine.send(cancel=4)
    engine.send(job="count", id=4, n=1)
    assert engine.until_end()[-1] == {"id": 4, "end": "done", "message": ""}


def test_lines_that_are_no_messages(engine: Engine) -> None:
    for line in ("", "hello", "[1]", "{}", '{"id": "x", "job": "count"}', '{"cancel": "all"}', '{"job": "count"}'):
        engine.write(line)
    engine.send(job="count", id=5, n=0)
    assert engine.until_end()[-1] == {"id": 5, "end": "done", "message": ""}


def test_only_the_protocol_is_on_stdout(engine: Engine) -> None:
    engine.send(job="prints", id=1)
    assert engine.until_end()[0] == {"event": "token", "text": "read ''", "id": 1}
    code, errors = engine.close()
    assert code == 0
    assert errors.splitlines() == [
        b"a warning of some library",
        b'{"id": 1, "event": "token", "text": "forged"}',
        b"from a child",
    ]


def test_a_fault_leaves_its_traceback_on_stderr(engine: Engine) -> None:
    engine.send(job="crash", id=1)
    assert engine.until_end()[-1]["end"] == "failed"
    engine.send(job="refuse", id=2)
    assert engine.until_end()[-1]["message"] == "the model has 3 heads, which 2 do not divide"
    errors = engine.close()[1]
    assert b"ZeroDivisionError: nothing to divide" in errors
    # What a user can cause is no fault.
    assert b"LiveError" not in errors


@pytest.mark.parametrize("job", ["hold", "deaf"])
def test_the_end_of_stdin_ends_it_in_the_middle_of_a_job(engine: Engine, job: str) -> None:
    engine.send(job=job, id=1)
    engine.read()
    engine.process.stdin.close()
    assert engine.process.wait(PATIENCE) == 0
    engine.process.stdout.close()
    engine.process.stderr.close()


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs signals")
def test_ctrl_c_is_for_the_dashboard(engine: Engine) -> None:
    engine.send(job="hold", id=1)
    engine.read()
    engine.process.send_signal(signal.SIGINT)
    for _ in range(50):  # Half a second of its work.
        assert engine.read().get("event", "progress") == "progress"
    engine.send(cancel=1)
    assert engine.until_end()[-1]["end"] == "cancelled"


def test_jobs_that_cannot_be_imported() -> None:
    engine = Engine("a_module_that_nobody_has")
    assert engine.read() == {"hello": 1}
    engine.send(job="count", id=1)
    end = engine.until_end()[-1]
    assert (end["end"], "a_module_that_nobody_has" in end["message"]) == ("failed", True)
    assert engine.close()[0] == 0


def test_a_message_is_one_line() -> None:
    message = {"id": 1, "text": "a\nb\r\u2028c 東京 👩‍👩‍👧", "n": 2**70, "x": 0.1, "none": None}
    line = protocol.encode(message)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert protocol.decode(line) == message
    assert protocol.encode({"t": "\ud83d!"}) == b'{"t":"?!"}\n'


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1, 2}, b"x", object()])
def test_what_is_not_json(value: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        protocol.encode({"x": value})


_TOO_LONG = (b"[" * 99_999, b'{"x": ' + b"9" * 5000 + b"}", b'{"x": "' + b"y" * 2**20 + b'"}')
_NO_OBJECT = (b"", b"\n", b"null", b"[]", b'"x"', b"{", b"\xff")
_NO_NUMBER = (b'{"x": NaN}', b'{"x": -Infinity}', b'{"x": 1e999}')


@pytest.mark.parametrize("line", _TOO_LONG + _NO_OBJECT + _NO_NUMBER, ids=lambda line: repr(line[:12]))
def test_lines_that_are_not_understood(line: bytes) -> None:
    assert protocol.decode(line) is None


def test_lines_are_read_in_bounds() -> None:
    stream = io.BufferedReader(io.BytesIO(b"one\n" + b"x" * 200_000 + b"\nthree\n\nlast"))
    assert [protocol.read_line(stream, 10) for _ in range(6)] == [b"one\n", b"x" * 11, b"three\n", b"\n", b"last", b""]
