"""The machine that the live engine runs on: its memory, and how fast it reads and multiplies, as measured.

`measure` takes a few seconds once; the answer is kept in the user's cache folder, for this machine and this version of
torch. torch is imported only while measuring. CUDA and MPS are written for, and have not been run on such hardware.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kvcore.errors import LiveError
from kvcore.live.settings import machine_memory_bytes

Progress = Callable[[str, int, int], bool]

_MAX_TEXT = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What was measured on a machine, with nothing that tells whose it is: no host name, user or path.

    `available_bytes` is what was free when this was read; `threads` is the number with the best measured median.
    `read_bandwidth_bytes_per_s` is the best of several sums over a buffer larger than the caches, at that number of
    threads. Of the other rates a quarter of the passes was faster, so that a busy machine matters less:
    `gemv_bytes_per_s` the bytes of weights a second when one token goes through matrices, by weight format, and
    `matrix_flops_per_s` operations a second of products of matrices, by dtype. A format or dtype without a kernel here
    is missing. `op_overhead_s` is what one small operation costs whatever its size (0: not measured).
    `measured_at` is the time in UTC, to the second.
    """

    device: str
    device_name: str
    memory_bytes: int
    available_bytes: int
    threads: int
    read_bandwidth_bytes_per_s: float
    gemv_bytes_per_s: Mapping[str, float] = field(hash=False)
    matrix_flops_per_s: Mapping[str, float] = field(hash=False)
    measured_at: str
    torch_version: str
    cores: int = 0
    op_overhead_s: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and texts for JSON; `from_dict` is its inverse."""
        made = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: dict(value) if isinstance(value, Mapping) else value for name, value in made.items()}

    @classmethod
    def from_dict(cls, raw: object) -> Host:
        """The host that a dictionary describes; LiveError names a key that is missing, unknown or wrong."""
        if not isinstance(raw, Mapping):
            raise LiveError("host: expected an object with what was measured")
        known = {one.name for one in fields(cls)}
        if unknown := [str(name)[:40] for name in raw if name not in known]:
            raise LiveError(f"host: {unknown[0]!r} is not a known key")
        values: dict[str, Any] = {}
        for name, (check, expected) in _CHECKS.items():
            if name not in raw and name in _OPTIONAL:
                continue
            value = raw.get(name)
            if not check(value):
                raise LiveError(f"host: {name} is {str(value)[:40]!r}, expected {expected}")
            values[name] = dict(value) if isinstance(value, Mapping) else value
        return cls(**values)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _MAX_TEXT and value.isprintable()


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e21


def _is_rates(value: object) -> bool:
    return (
        isinstance(value, Mapping) and len(value) <= 32 and all(_is_text(k) and _is_number(v) for k, v in value.items())
    )


_CHECKS: dict[str, tuple[Any, str]] = {
    "device": (_is_text, "a short text"),
    "device_name": (_is_text, "a short text"),
    "memory_bytes": (_is_count, "bytes"),
    "available_bytes": (_is_count, "bytes"),
    "threads": (_is_count, "a whole number"),
    "read_bandwidth_bytes_per_s": (_is_number, "bytes a second"),
    "gemv_bytes_per_s": (_is_rates, "bytes a second by weight format"),
    "matrix_flops_per_s": (_is_rates, "operations a second by dtype"),
    "measured_at": (_is_text, "a time"),
    "torch_version": (_is_text, "a version"),
    "cores": (_is_count, "a whole number"),
    "op_overhead_s": (_is_number, "seconds"),
}
_OPTIONAL = ("cores", "op_overhead_s")


def measure(
    progress: Progress | None = None, *, seconds: float = 3.0, remeasure: bool = False, device: str = "auto"
) -> Host:
    """The host: as measured before on this machine with this torch, unless `remeasure`; else measured in `seconds`.

    `progress(what, done, of)` is told of each step and stops the measurement by returning False. `device`: auto (CUDA,
    then MPS, then the CPU), cpu, cuda or mps. Sets the number of CPU threads that torch uses for no longer than it
    takes. Raises LiveError where it was cancelled, torch is missing or the device is.
    """
    try:
        from kvcore.live import host_rates
    except ModuleNotFoundError as problem:
        raise LiveError(f"The live engine needs {problem.name}, which is not installed here.") from None
    chosen = host_rates.choose_device(device)
    name = _clean(host_rates.device_name(chosen) or processor_name())
    found = None if remeasure else cached(chosen)
    if found is not None and found.device_name == name:
        return found
    memory, available = host_rates.device_memory(chosen) or (memory_bytes(), available_memory_bytes())
    rates = host_rates.measure_rates(chosen, cores(), available, seconds, progress)
    host = Host(
        device=chosen,
        device_name=name,
        memory_bytes=memory,
        available_bytes=available,
        threads=rates.threads,
        read_bandwidth_bytes_per_s=rates.read_bandwidth_bytes_per_s,
        gemv_bytes_per_s=rates.gemv_bytes_per_s,
        matrix_flops_per_s=rates.matrix_flops_per_s,
        measured_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        torch_version=_torch_version(),
        cores=cores(),
        op_overhead_s=rates.op_overhead_s,
    )
    _keep(host)
    return host


def cached(device: str = "cpu") -> Host | None:
    """What was measured before on this machine with this torch, with the memory that is free now; None if nothing.

    Does not import torch.
    """
    try:
        raw = json.loads(_cache_file(device).read_text("utf-8"))
        host = Host.from_dict(raw)
    except (OSError, ValueError, RecursionError):
        return None
    return replace(host, available_bytes=available_memory_bytes()) if host.device == "cpu" else host


def cores() -> int:
    """CPU cores that this process may use: its affinity, and the container's share where that is less."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text("ascii").split()
        if quota.isdecimal():
            count = min(count, max(1, int(quota) // int(period)))
    return max(1, count)


def memory_bytes() -> int:
    """Bytes of memory that processes here can have; 0 where the system does not say."""
    return machine_memory_bytes() or 0


def available_memory_bytes() -> int:
    """Bytes that are free here, within the container's limit; all memory where the system does not say."""
    known = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text("ascii").splitlines():
            if line.startswith("MemAvailable:"):
                known.append(int(line.split()[1]) * 1024)
    with contextlib.suppress(OSError, ValueError):
        limit, used = (Path(f"/sys/fs/cgroup/memory.{name}").read_text("ascii") for name in ("max", "current"))
        known.append(max(0, int(limit) - int(used)))
    return min(known, default=memory_bytes())


def processor_name() -> str:
    """The processor as its maker names it, such as `AMD EPYC`; the architecture where that is not known."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines():
            if line.lower().startswith("model name"):
                return line.partition(":")[2].strip()
    if sys.platform == "darwin":
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            asked = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
            return subprocess.run(asked, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
    return platform.processor() or platform.machine() or "CPU"


def _torch_version() -> str:
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return ""


def _clean(text: str) -> str:
    return "".join(letter for letter in text if letter.isprintable())[:_MAX_TEXT]


def _cache_file(device: str) -> Path:
    """Where this machine's figures are kept; LiveError where the user's cache folder cannot be written."""
    # Its readers need no tokenizer library until something is read.
    from kvcore.live.folders import user_cache

    # A container is moved or resized without a word: what may have changed the rates is part of the name.
    about = [platform.machine(), processor_name(), cores(), round(memory_bytes() / 2**30), _torch_version(), device, 3]
    key = hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]
    return user_cache() / f"host-{key}.json"


def _keep(host: Host) -> None:
    """Keep it for next time; a folder that cannot be written only costs measuring again."""
    with contextlib.suppress(OSError, LiveError):
        path = _cache_file(host.device)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".part", delete=False, encoding="utf-8") as file:
            json.dump(host.to_dict(), file)
        Path(file.name).replace(path)
