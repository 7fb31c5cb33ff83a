from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from kvcore.errors import LiveError
from kvcore.live import memory
from kvcore.live import queue as queue_module
from kvcore.live.process import COMMAND
from kvcore.live.queue import LiveQueue, Ticket, default_queue
from kvcore.live.settings import Limits
from kvcore.units import GIB, MIB

ROOT = Path(__file__).resolve().parent.parent.parent
JOBS = (*COMMAND, "tests.live.fake_jobs")
# Reached only where something hangs: the machine may be busy with other things.
PATIENCE = 90.0
LEASE = 1000.0

posix = pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs signals")


@pytest.fixture
def start() -> Iterator[Callable[..., LiveQueue]]:
    made: list[LiveQueue] = []

    def make(command: tuple[str, ...] | str = JOBS, **limits: object) -> LiveQueue:
        if isinstance(command, str):
            command = (sys.executable, str(Path(__file__).with_name("fake_engine.py")), command)
        made.append(LiveQueue(Limits(**{"lease_s": LEASE, "max_memory_bytes": 64 * GIB} | limits), command=command))
        return made[-1]

    yield make
    for live in made:
        live.shutdown()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The queue's own clock, which the test moves."""
    fake = SimpleNamespace(now=time.monotonic())
    looks = itertools.count()

    def monotonic() -> float:
        fake.looks = next(looks)
        return fake.now

    def looked() -> None:
        """Returns when the queue has seen the time that it is now, and done what follows from it."""
        before = fake.looks
        until(lambda: fake.looks > before + 4)

    fake.monotonic, fake.looked, fake.looks = monotonic, looked, 0
    monkeypatch.setattr(queue_module, "time", fake)
    return fake


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def state(ticket: Ticket) -> str:
    assert ticket.wait(PATIENCE)
    return ticket.state


def begun(ticket: Ticket) -> None:
    until(lambda: ticket.events() or ticket.finished)
    assert ticket.state == "running"


def gone(pid: int) -> bool:
    """Whether no process of that id runs; one that ended but that nobody has waited for yet counts as gone."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rsplit(")", 1)[1].split()[0] == "Z"


def works(live: LiveQueue) -> None:
    """The next job is done as if nothing had been."""
    ticket = live.submit({"job": "count", "n": 2})
    assert (state(ticket), ticket.message) == ("done", "")
    assert [event["event"] for event in ticket.events()] == ["progress", "progress", "done"]


def test_two_in_order_with_their_places(start, tmp_path: Path) -> None:
    live = start()
    first, second, third = (live.submit({"job": "hold", "gate": str(tmp_path / name)}) for name in "abc")
    begun(first)
    assert [t.state for t in (first, second, third)] == ["running", "waiting", "waiting"]
    assert [t.ahead for t in (first, second, third)] == [0, 1, 2]
    (tmp_path / "a").touch()
    begun(second)
    assert (state(first), second.ahead, third.ahead) == ("done", 0, 1)
    (tmp_path / "b").touch()
    (tmp_path / "c").touch()
    assert (state(second), state(third), third.ahead) == ("done", "done", 0)
    assert len({first.id, second.id, third.id}) == 3


def test_events_after_those_already_read(start) -> None:
    ticket = start().submit({"job": "count", "n": 5})
    assert state(ticket) == "done"
    assert [e.get("done") for e in ticket.events(0)] == [0, 1, 2, 3, 4, None]
    assert [e.get("done") for e in ticket.events(3)] == [3, 4, None]
    assert ticket.events(6) == ticket.events(99) == []
    assert ticket.events(-1) == ticket.events()
    assert all(e["id"] == ticket.id for e in ticket.events())


def test_one_engine_serves_all_jobs(start) -> None:
    live = start()
    assert live.engine_pid is None
    works(live)
    pid = live.engine_pid
    works(live)
    assert live.engine_pid == pid is not None


def test_unicode_both_ways(start) -> None:
    text = "Grüße, 東京 👩‍👩‍👧 \u2028 \x00 “quoted”\n"
    ticket = start().submit({"job": "echo", "text": text + "half \ud83d"})
    assert state(ticket) == "done"
    # Half a character cannot be sent; everything else comes back as it was.
    assert ticket.events()[0]["text"] == text + "half ?"


def test_cancel_while_it_waits_is_at_once(start, tmp_path: Path) -> None:
    live = start()
    first, second, third = (live.submit({"job": "hold", "gate": str(tmp_path / "a")}) for _ in range(3))
    begun(first)
    second.cancel()
    assert (second.state, second.message, third.ahead) == ("cancelled", "Cancelled before it began.", 1)
    (tmp_path / "a").touch()
    assert (state(first), state(third), second.events()) == ("done", "done", [])
    first.cancel()
    second.cancel()
    assert (first.state, second.state) == ("done", "cancelled")


def test_cancel_within_a_second_and_the_engine_stays(start) -> None:
    live = start()
    took = []
    pids = set()
    for _ in range(3):
        ticket = live.submit({"job": "hold"})
        begun(ticket)
        began = time.monotonic()
        ticket.cancel()
        assert (state(ticket), ticket.message) == ("cancelled", "Cancelled.")
        took.append(time.monotonic() - began)
        pids.add(live.engine_pid)
        assert ticket.events()[-1]["reason"] == "cancelled"
    # The best of three, for the machine may be busy.
    assert min(took) < 1.0
    assert len(pids) == 1


def test_an_engine_that_does_not_obey_is_ended(start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_module, "OBEY_SECONDS", 0.3)
    live = start()
    ticket = live.submit({"job": "deaf"})
    begun(ticket)
    pid = live.engine_pid
    ticket.cancel()
    assert state(ticket) == "cancelled"
    assert gone(pid)
    works(live)


def test_a_lease_that_is_not_renewed(start, clock: SimpleNamespace) -> None:
    live = start()
    ticket, waiting = (live.submit({"job": "hold"}, lease_s=10.0) for _ in range(2))
    kept = live.submit({"job": "count", "n": 1}, lease_s=100.0)
    begun(ticket)
    for _ in range(3):
        clock.now += 9.0
        ticket.touch()
        waiting.touch()
        clock.looked()
        assert (ticket.state, waiting.state) == ("running", "waiting")
    clock.now += 9.0
    waiting.touch()
    clock.now += 2.0
    assert state(ticket) == "abandoned"
    assert "Nobody looked" in ticket.message
    begun(waiting)
    clock.now += 11.0
    assert (state(waiting), state(kept)) == ("abandoned", "done")


def test_abandoned_while_it_waits(start, clock: SimpleNamespace, tmp_path: Path) -> None:
    live = start()
    first = live.submit({"job": "hold", "gate": str(tmp_path / "a")}, lease_s=1e6)
    closed, last = (live.submit({"job": "count", "n": 1}, lease_s=lease) for lease in (10.0, 1e6))
    begun(first)
    clock.now += 11.0
    assert state(closed) == "abandoned"
    assert (first.state, last.ahead) == ("running", 1)
    (tmp_path / "a").touch()
    assert (state(first), state(last)) == ("done", "done")


@posix
def test_killed_in_the_middle(start) -> None:
    live = start()
    ticket, after = live.submit({"job": "hold"}), live.submit({"job": "count", "n": 1})
    begun(ticket)
    os.kill(live.engine_pid, signal.SIGKILL)
    assert state(ticket) == "failed"
    assert ticket.message == (
        "The engine was ended by SIGKILL, as happens when the machine runs out of memory. "
        "The next job starts a new one."
    )
    assert ticket.events()
    assert state(after) == "done"


@posix
def test_killed_while_idle(start) -> None:
    live = start()
    works(live)
    pid = live.engine_pid
    os.kill(pid, signal.SIGKILL)
    until(lambda: live.engine_pid is None)
    works(live)
    assert live.engine_pid != pid


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ("refuse", "the model has 3 heads, which 2 do not divide"),
        ("report", "said by the job itself"),
        ("crash", "the engine failed: ZeroDivisionError: nothing to divide"),
        ("no_memory", "this did not fit into memory; choose a smaller model, batch or context"),
        ("no_package", "the live engine needs the package a_package_that_nobody_has, which is not installed here"),
        ("not_json", "the engine failed: ValueError: Out of range float values are not JSON compliant"),
        ("juggle", "the engine has no job 'juggle'; it has aborts, count, crash, deaf"),
    ],
)
def test_failures_in_words(start, job: str, message: str) -> None:
    live = start()
    ticket = live.submit({"job": job})
    assert state(ticket) == "failed"
    assert ticket.message.startswith(message)
    assert [e["message"] for e in ticket.events() if e["event"] == "error"] == [ticket.message]
    pid = live.engine_pid
    works(live)
    assert live.engine_pid == pid


def test_an_engine_that_leaves(start) -> None:
    live = start()
    ticket = live.submit({"job": "leave"})
    assert state(ticket) == "failed"
    assert ticket.message == (
        "The engine ended with exit code 3, saying: the last words, não. The next job starts a new one."
    )
    works(live)


def test_what_is_printed_is_not_protocol(start) -> None:
    ticket = start().submit({"job": "prints"})
    assert state(ticket) == "done"
    assert [e["text"] for e in ticket.events()] == ["read ''"]


def test_garbage_on_the_line(start) -> None:
    ticket = start("garbage").submit({"job": "any"})
    assert (state(ticket), ticket.message) == ("done", "")
    assert [e["text"] for e in ticket.events()] == ["the only good one"]


def test_an_engine_that_never_answers(start, clock: SimpleNamespace) -> None:
    live = start("mute", max_seconds=20.0, lease_s=1e9)
    ticket = live.submit({"job": "any"})
    until(lambda: live._engine and live._engine.answered)
    clock.looked()
    clock.now += 24.9
    clock.looked()
    assert ticket.state == "running"
    # Told to stop, then ended.
    clock.now += 0.2
    clock.looked()
    assert ticket.state == "running"
    clock.now += 5.1
    assert (state(ticket), ticket.message) == ("failed", "Stopped after 20 s, the most that a job may take here.")
    assert live.engine_pid is None


def test_an_engine_that_reads_nothing_blocks_nobody(start) -> None:
    live = start("silent")
    began = time.monotonic()
    # More than a pipe holds.
    ticket = live.submit({"job": "any", "text": "x" * 900_000})
    second = live.submit({"job": "any"})
    assert (ticket.events(), ticket.ahead, second.ahead) == ([], 0, 1)
    second.cancel()
    until(lambda: live.engine_pid)
    assert time.monotonic() - began < PATIENCE / 3
    live.shutdown()
    assert (ticket.state, second.state) == ("cancelled", "cancelled")


def test_an_engine_that_does_not_start(start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_module, "START_SECONDS", 0.3)
    live = start("silent")
    ticket = live.submit({"job": "any"})
    assert (state(ticket), ticket.message) == ("failed", "The engine did not start within 0 s.")


def test_a_flood_is_bounded(start) -> None:
    live = start("flood", max_tokens=100)
    ticket = live.submit({"job": "any"})
    assert state(ticket) == "failed"
    assert "reported too much" in ticket.message
    # 4 × 100 + 4,000, and the one that was too many.
    assert len(ticket.events()) == 4_401
    assert live.engine_pid is None


def test_a_flood_of_bytes_is_bounded(start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_module, "MAX_EVENT_BYTES", 10_000)
    ticket = start("flood").submit({"job": "any"})
    assert state(ticket) == "failed"
    # An event is between 150 and 200 bytes.
    assert 50 < len(ticket.events()) < 67


def test_an_engine_that_closes_its_output(start) -> None:
    ticket = start("closes").submit({"job": "any"})
    assert state(ticket) == "failed"
    assert ticket.message == "The engine closed its output and was ended. The next job starts a new one."


def test_an_engine_that_ends_at_once(start) -> None:
    live = start("ends")
    for _ in range(2):
        ticket = live.submit({"job": "any"})
        assert state(ticket) == "failed"
        assert ticket.message.startswith("The engine ended with exit code 1, saying: no such device.")


def test_an_engine_that_is_not_there(start, tmp_path: Path) -> None:
    ticket = start((str(tmp_path / "nothing"),)).submit({"job": "any"})
    assert (state(ticket), ticket.message) == (
        "failed",
        "The engine could not be started: No such file or directory.",
    )


@posix
def test_a_dead_engine_whose_child_holds_the_pipe(start) -> None:
    live = start("leaves_a_child")
    ticket = live.submit({"job": "any"})
    until(ticket.events)
    child = ticket.events()[0]["pid"]
    try:
        ticket.cancel()  # The line that makes it end.
        assert state(ticket) == "cancelled"
    finally:
        os.kill(child, signal.SIGKILL)


@posix
def test_what_the_engine_started_ends_with_it(start) -> None:
    live = start()
    ticket = live.submit({"job": "nest"})
    begun(ticket)
    live.shutdown()
    until(lambda: gone(ticket.events()[0]["pid"]))


def test_more_memory_than_is_allowed(start) -> None:
    live = start(max_memory_bytes=200 * MIB)
    ticket = live.submit({"job": "eats"})
    assert state(ticket) == "failed"
    assert "of memory where 200 MiB is the limit" in ticket.message
    works(live)


def test_the_limit_holds_where_there_is_no_proc(start, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS: psutil tells of resident memory alone, and no file of /proc is read."""
    asked = []

    class Process:
        def __init__(self, pid: int | None) -> None:
            asked.append(pid)

        def memory_info(self) -> SimpleNamespace:
            return SimpleNamespace(rss=300 * MIB)

    monkeypatch.setattr(memory, "psutil", SimpleNamespace(LINUX=False, Process=Process, Error=psutil.Error))
    live = start(max_memory_bytes=200 * MIB)
    ticket = live.submit({"job": "deaf"})
    assert state(ticket) == "failed"
    assert "held 300 MiB of memory where 200 MiB is the limit" in ticket.message
    assert asked
    monkeypatch.undo()
    works(live)


def test_an_idle_engine_gives_its_memory_back(start) -> None:
    live = start(idle_s=0.2)
    works(live)
    until(lambda: live.engine_pid is None)
    works(live)


def test_too_many_wait(start, tmp_path: Path) -> None:
    live = start(max_waiting=2)
    first = live.submit({"job": "hold", "gate": str(tmp_path / "a")})
    begun(first)
    rest = [live.submit({"job": "count", "n": 1}) for _ in range(2)]
    with pytest.raises(LiveError, match="2 jobs are waiting already"):
        live.submit({"job": "count", "n": 1})
    (tmp_path / "a").touch()
    assert [state(t) for t in rest] == ["done", "done"]
    works(live)


def test_what_is_no_job(start) -> None:
    live = start()
    for job in ({}, {"job": 5}, [], None):
        with pytest.raises(LiveError, match="names its kind"):
            live.submit(job)
    with pytest.raises(LiveError, match="cannot be sent"):
        live.submit({"job": "count", "n": float("inf")})
    with pytest.raises(LiveError, match="cannot be sent"):
        live.submit({"job": "count", "n": {1}})
    with pytest.raises(LiveError, match="too long"):
        live.submit({"job": "echo", "text": "x" * 1_100_000})
    with pytest.raises(LiveError, match="KV_LIVE_OFF"):
        start(off=True).submit({"job": "count", "n": 1})
    assert live.engine_pid is None


def test_many_threads_submit(start) -> None:
    live = start(max_waiting=100)
    tickets: list[Ticket] = []
    threads = [
        threading.Thread(target=lambda: tickets.extend(live.submit({"job": "count", "n": 3}) for _ in range(10)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [state(t) for t in tickets] == ["done"] * 40
    assert {len(t.events()) for t in tickets} == {4}
    assert sorted(t.id for t in tickets) == list(range(1, 41))


@pytest.mark.parametrize("job", ["hold", "deaf"])
def test_shutdown_leaves_no_process(start, job: str) -> None:
    live = start()
    running, waiting = live.submit({"job": job}), live.submit({"job": "hold"})
    begun(running)
    pid = live.engine_pid
    live.shutdown()
    assert (running.state, waiting.state) == ("cancelled", "cancelled")
    assert "closed" in running.message
    assert gone(pid)
    live.shutdown()
    with pytest.raises(LiveError, match="closing"):
        live.submit({"job": "count", "n": 1})


def test_shutdown_of_what_never_began() -> None:
    LiveQueue(Limits()).shutdown()


_DASHBOARD = """
import os, sys, time
from kvcore.live.queue import LiveQueue, default_queue
from kvcore.live.settings import Limits
live = default_queue(lambda: LiveQueue(Limits(lease_s=1000.0, max_memory_bytes=2**40), command={command!r}))
assert live is default_queue()
ticket = live.submit({{"job": {job!r}}})
while not ticket.events():
    time.sleep(0.01)
print(live.engine_pid, flush=True)
sys.stdin.read()
"""


@posix
@pytest.mark.parametrize(("job", "how"), [("hold", "killed"), ("deaf", "killed"), ("hold", "ended"), ("deaf", "ended")])
def test_the_engine_ends_with_the_dashboard(job: str, how: str) -> None:
    code = _DASHBOARD.format(command=JOBS, job=job)
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as dashboard:
        pid = int(dashboard.stdout.readline())
        assert not gone(pid)
        if how == "killed":
            dashboard.kill()
        else:
            dashboard.stdin.close()
        assert dashboard.wait(PATIENCE) == (-signal.SIGKILL if how == "killed" else 0)
        until(lambda: gone(pid))


def test_one_queue_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_module, "_default", None)
    monkeypatch.setattr(queue_module.atexit, "register", lambda f: f)
    assert default_queue() is default_queue()
