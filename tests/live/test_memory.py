"""Memory of the machine and of processes: psutil's, within a container's limit, swapped-out memory included."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from kvcore.live import memory
from kvcore.units import GIB, MIB


def test_a_process_and_one_that_is_gone() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", "held = b'x' * 50_000_000; print(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with child:
        assert child.stdout is not None
        child.stdout.readline()
        assert 50_000_000 < (memory.process_bytes(child.pid) or 0) < 200 * MIB
        child.kill()
        child.wait()
        assert memory.process_bytes(child.pid) is None
    assert memory.process_bytes() == pytest.approx(memory.process_bytes(os.getpid()), rel=0.1)


@pytest.mark.parametrize(("swap_used", "held"), [(0, 100), (GIB, 140)])
def test_what_was_swapped_out_is_still_held(monkeypatch: pytest.MonkeyPatch, swap_used: int, held: int) -> None:
    process = SimpleNamespace(
        memory_info=lambda: SimpleNamespace(rss=100), memory_full_info=lambda: SimpleNamespace(swap=40)
    )
    monkeypatch.setattr(memory.psutil, "LINUX", True)
    monkeypatch.setattr(memory.psutil, "Process", lambda pid: process)
    monkeypatch.setattr(memory.psutil, "swap_memory", lambda: SimpleNamespace(used=swap_used))
    assert memory.process_bytes(1) == held


@pytest.mark.parametrize(
    ("limit", "used", "machine", "available"),
    [
        ("max", "1000", 64 * GIB, 50 * GIB),
        (str(8 * GIB), str(3 * GIB), 8 * GIB, 5 * GIB),
        (str(8 * GIB), str(9 * GIB), 8 * GIB, 0),
        (str(100 * GIB), str(3 * GIB), 64 * GIB, 50 * GIB),
        (None, None, 64 * GIB, 50 * GIB),
    ],
)
def test_a_container_has_less_than_its_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str | None, used: str | None, machine: int, available: int
) -> None:
    for name, text in (("limit", limit), ("used", used)):
        if text is not None:
            (tmp_path / name).write_text(f"{text}\n")
    monkeypatch.setattr(memory, "_CGROUP_LIMITS", (str(tmp_path / "limit"),))
    monkeypatch.setattr(memory, "_CGROUP_USED", (str(tmp_path / "used"),))
    whole = SimpleNamespace(total=64 * GIB, available=50 * GIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: whole)
    assert (memory.machine_bytes(), memory.available_bytes()) == (machine, available)
