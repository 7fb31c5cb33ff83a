"""Memory of this machine and of its processes, in bytes, on every system that psutil knows."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import psutil

# Version 2 and version 1 of the limit that a container has; psutil tells of the whole machine.
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_CGROUP_USED = ("/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory/memory.usage_in_bytes")


def machine_bytes() -> int:
    """Memory that processes here can have: the machine's, or the container's where that is less."""
    limits = [limit for path in _CGROUP_LIMITS if (limit := _number(path)) is not None]
    return min([int(psutil.virtual_memory().total), *limits])


def available_bytes() -> int:
    """Memory that is free here, within the container's limit."""
    left = [
        max(0, limit - used)
        for limit, used in zip(map(_number, _CGROUP_LIMITS), map(_number, _CGROUP_USED), strict=True)
        if limit is not None and used is not None
    ]
    return min([int(psutil.virtual_memory().available), *left])


def process_bytes(pid: int | None = None) -> int | None:
    """Memory that a process holds (without an id: this one), swapped-out memory included where the system tells of it.

    None where there is no such process, or it may not be asked.
    """
    try:
        process = psutil.Process(pid)
        held = int(process.memory_info().rss)
        # Asking for it walks all pages, which takes longer than the rest by far, and only Linux has it.
        if psutil.LINUX and psutil.swap_memory().used:
            held += int(process.memory_full_info().swap)
    except psutil.Error:
        return None
    return held


def _number(path: str) -> int | None:
    with suppress(OSError):
        text = Path(path).read_text("ascii").strip()
        return int(text) if text.isdecimal() else None
    return None
