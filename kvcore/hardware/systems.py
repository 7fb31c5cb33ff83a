"""Hosts of several GPUs as named systems: how many of which GPU, and by what they reach each other and their host."""

from __future__ import annotations

import csv
import difflib
from dataclasses import dataclass
from functools import cache

from kvcore.errors import HardwareError
from kvcore.hardware.gpus import Accelerator, Link, accelerator, link
from kvcore.paths import DATA

_FILE = "systems.csv"
# The GPUs of one host where nothing else is known of a GPU: the machine that is meant where nobody says how many.
HOST_GPUS = 8
# More GPUs, or ranks of any kind, are not planned.
MAX_GPUS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """`gpus` of one kind; `host_gpus` is how many one host (or one NVLink domain) holds at most.

    Links are ids of links.csv, "" where there is none: between GPUs of a host, to its memory, between hosts. A chip
    whose CPU and GPU share one memory has no link to its host.
    """

    id: str
    name: str
    gpu_id: str
    gpus: int
    host_gpus: int
    gpu_link_id: str = ""
    host_link_id: str = ""
    network_link_id: str = ""
    source: str = ""
    notes: str = ""

    @property
    def gpu(self) -> Accelerator:
        """One of its GPUs."""
        return accelerator(self.gpu_id)

    @property
    def hosts(self) -> int:
        """Hosts that it needs."""
        return -(-self.gpus // self.host_gpus)

    @property
    def memory_bytes(self) -> int:
        """Memory of all GPUs, as their driver reports it or as estimated where that is not known."""
        return self.gpus * self.gpu.memory_bytes

    @property
    def gpu_link(self) -> Link | None:
        """What joins the GPUs of one host; None for a single GPU or single-GPU hosts."""
        return link(self.gpu_link_id) if self.gpu_link_id else None

    @property
    def host_link(self) -> Link | None:
        """What joins a GPU to its host's memory; None where they share one."""
        return link(self.host_link_id) if self.host_link_id else None

    @property
    def network_link(self) -> Link | None:
        """What joins hosts, one port; None where none is usual."""
        return link(self.network_link_id) if self.network_link_id else None


@cache
def systems() -> tuple[System, ...]:
    """Every system of data/systems.csv, in its order; HardwareError names a row that is malformed."""
    with (DATA / _FILE).open(encoding="utf-8", newline="") as file:
        return tuple(_system(row, line) for line, row in enumerate(csv.DictReader(file), start=2))


def system(id: str) -> System:
    """The system of that id, without regard to case; HardwareError names ids that look like it."""
    known = {one.id: one for one in systems()}
    found = known.get(id.strip().lower())
    if found is None:
        near = difflib.get_close_matches(id.strip().lower()[:60], known, n=3, cutoff=0.4)
        hint = f"did you mean {', '.join(near)}?" if near else "ids look like 8x-h100-sxm, gb200-nvl72, dgx-spark"
        raise HardwareError(f"system: {id[:60]!r} is not known; {hint}")
    return found


def host_gpus(gpu_id: str) -> int:
    """GPUs of that kind in one host at most; 8 where no system has them."""
    return _host_sizes().get(gpu_id, HOST_GPUS)


def hosts_needed(gpu_id: str, gpus: int) -> int:
    """Hosts that hold that many GPUs of that kind."""
    return -(-gpus // host_gpus(gpu_id))


@cache
def _host_sizes() -> dict[str, int]:
    found: dict[str, int] = {}
    for one in systems():
        found[one.gpu_id] = max(found.get(one.gpu_id, 0), one.host_gpus)
    return found


def _system(row: dict[str, str], line: int) -> System:
    where = f"{_FILE}, line {line} ({row.get('id', '')})"
    for column in ("id", "name", "gpu_id", "gpus", "host_gpus", "source"):
        if not row.get(column):
            raise HardwareError(f"{where}: column {column!r} is empty, but every row needs it")
    counts = {}
    for column in ("gpus", "host_gpus"):
        text = row[column]
        if not text.isdecimal() or not 1 <= int(text) <= MAX_GPUS:
            raise HardwareError(f"{where}: {column} is {text!r}; a whole number within 1 … {MAX_GPUS:,} is expected")
        counts[column] = int(text)
    accelerator(row["gpu_id"])
    for column in ("gpu_link_id", "host_link_id", "network_link_id"):
        if row[column]:
            link(row[column])
    texts = {name: row[name] for name in ("id", "name", "gpu_id", "source", "notes")}
    links = {name: row[name] for name in ("gpu_link_id", "host_link_id", "network_link_id")}
    return System(gpus=counts["gpus"], host_gpus=counts["host_gpus"], **texts, **links)
