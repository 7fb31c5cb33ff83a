"""The machine that the live engine runs on: its memory, and how fast it reads and multiplies, as measured.

`measure` takes a few seconds once; the answer is kept in the user's cache folder, for this machine and this version of
torch. Every rate comes from repeated passes over more memory than the caches hold. torch is imported only while
measuring. The CPU is what this was run on; CUDA and MPS take the same passes with a synchronisation around each, and
have not been run on such hardware.
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
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from kvcore.errors import LiveError
from kvcore.live import memory
from kvcore.live.protocol import OnProgress
from kvcore.live.settings import user_cache
from kvcore.live.shape import INT4_GROUP

Pass = Callable[[], object]
_MAX_TEXT = 200
# A matrix of this many rows and columns is about what a layer of a small model has.
_SIDE = 1024
_MIN_BUFFER_BYTES, _MAX_BUFFER_BYTES = 16 * 2**20, 512 * 2**20
_GPU_BUFFER_BYTES = 2**30
_MATRIX_TOKENS, _GPU_SIDE = 512, 4096
_SMALL = 64
_MIN_PASSES, _MAX_PASSES = 3, 25
# More threads must be this much faster: where they are not, they only disturb others and stall on each other.
_WORTH = 0.9


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
    progress: OnProgress | None = None, *, seconds: float = 3.0, remeasure: bool = False, device: str = "auto"
) -> Host:
    """The host: as measured before on this machine with this torch, unless `remeasure`; else measured in `seconds`.

    `progress(what, done, of)` is told of each step and stops the measurement by returning False. `device`: auto (CUDA,
    then MPS, then the CPU), cpu, cuda or mps. Sets the number of CPU threads that torch uses for no longer than it
    takes. Raises LiveError where it was cancelled, torch is missing or the device is.
    """
    chosen = choose_device(device)
    name = _clean(device_name(chosen) or processor_name())
    found = None if remeasure else cached(chosen)
    if found is not None and found.device_name == name:
        return found
    total, available = device_memory(chosen) or (memory.machine_bytes(), memory.available_bytes())
    rates = measure_rates(chosen, cores(), available, seconds, progress)
    host = Host(
        device=chosen,
        device_name=name,
        memory_bytes=total,
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
    return replace(host, available_bytes=memory.available_bytes()) if host.device == "cpu" else host


def cores() -> int:
    """CPU cores that this process may use: its affinity, and the container's share where that is less."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text("ascii").split()
        if quota.isdecimal():
            count = min(count, max(1, int(quota) // int(period)))
    return max(1, count)


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
    # A container is moved or resized without a word: what may have changed the rates is part of the name.
    gigabytes = round(memory.machine_bytes() / 2**30)
    about = [platform.machine(), processor_name(), cores(), gigabytes, _torch_version(), device, 3]
    key = hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]
    return user_cache() / f"host-{key}.json"


def _keep(host: Host) -> None:
    """Keep it for next time; a folder that cannot be written only costs measuring again."""
    with contextlib.suppress(OSError, LiveError):
        path = _cache_file(host.device)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".part", delete=False, encoding="utf-8") as file:
            json.dump(host.to_dict(), file)
        Path(file.name).replace(path)


@dataclass(slots=True, kw_only=True)
class MeasuredRates:
    """What was measured; see Host."""

    threads: int = 1
    read_bandwidth_bytes_per_s: float = 0.0
    gemv_bytes_per_s: dict[str, float] = field(default_factory=dict)
    matrix_flops_per_s: dict[str, float] = field(default_factory=dict)
    op_overhead_s: float = 0.0


def choose_device(wanted: str = "auto") -> str:
    """The device of that name, or the best that there is; LiveError where it is not there, or torch is not."""
    try:
        import torch
    except ModuleNotFoundError as problem:
        raise LiveError(f"The live engine needs {problem.name}, which is not installed here.") from None

    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if wanted == "auto":
        return next(name for name, usable in there.items() if usable)
    if not there.get(wanted):
        usable_here = ", ".join(name for name, usable in there.items() if usable)
        raise LiveError(f"device {wanted[:20]!r} is not on this machine; there is {usable_here}")
    return wanted


def device_memory(device: str) -> tuple[int, int] | None:
    """(total, free) bytes of memory that the device has of its own; None where it uses the machine's."""
    import torch

    if device != "cuda":
        return None
    free, total = torch.cuda.mem_get_info()
    return int(total), int(free)


def device_name(device: str) -> str:
    """The name of a GPU; "" where the processor's stands for it."""
    import torch

    return str(torch.cuda.get_device_name()) if device == "cuda" else ""


def measure_rates(
    device: str, cores: int, available_bytes: int, seconds: float, progress: OnProgress | None
) -> MeasuredRates:
    """All rates of a device in about `seconds`; LiveError where `progress` returned False."""
    import torch

    before = torch.get_num_threads()
    bench = _Bench(torch, device, buffer_bytes(device, available_bytes), seconds)
    rates = MeasuredRates(threads=before)
    steps: list[tuple[str, Callable[[], None]]] = []
    if device == "cpu":
        steps.append(("Threads", lambda: bench.threads(rates, cores)))
    steps.append(("Read bandwidth", lambda: bench.bandwidth(rates)))
    steps += [(f"{name} weights", lambda name=name: bench.vector(rates, name)) for name in bench.vectors()]  # type: ignore[misc]
    steps += [(f"{name} matrices", lambda name=name: bench.matrix(rates, name)) for name in bench.dtypes()]  # type: ignore[misc]
    steps.append(("Small operations", lambda: bench.small(rates)))
    bench.budget_s = seconds / len(steps)
    try:
        with torch.inference_mode():
            for number, (what, step) in enumerate(steps):
                if progress is not None and not progress(what, number, len(steps)):
                    raise LiveError("cancelled")
                step()
                if device == "cpu":
                    torch.set_num_threads(rates.threads)
    finally:
        torch.set_num_threads(before)
    if progress is not None:
        progress("Machine measured", len(steps), len(steps))
    return rates


def buffer_bytes(device: str, available_bytes: int) -> int:
    """Bytes to stream through: several times the last-level cache, and at most an eighth of what is free."""
    wanted = _GPU_BUFFER_BYTES if device != "cpu" else min(max(96 * 2**20, 3 * _last_cache_bytes()), _MAX_BUFFER_BYTES)
    return max(_MIN_BUFFER_BYTES, min(wanted, available_bytes // 8))


def _last_cache_bytes() -> int:
    sizes = [0]
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        with contextlib.suppress(OSError, ValueError):
            text = path.read_text("ascii").strip()
            sizes.append(int(text[:-1]) * {"K": 2**10, "M": 2**20, "G": 2**30}[text[-1]])
    return max(sizes)


class _Bench:
    """Passes on one device, each timed for a share of the budget."""

    def __init__(self, torch: Any, device: str, size: int, seconds: float) -> None:
        self.torch, self.device, self.size, self.budget_s = torch, device, size, seconds

    def dtypes(self) -> list[str]:
        """Dtypes of dense matrices; 16-bit floats of the other kind are slow on CPUs and not offered by all GPUs."""
        return {"cpu": ["bf16", "fp32"], "mps": ["fp16", "fp32"]}.get(self.device, ["bf16", "fp16", "fp32"])

    def vectors(self) -> list[str]:
        return [*(["bf16", "fp16", "fp32", "int8", "int4"] if self.device == "cpu" else self.dtypes())]

    def dtype(self, name: str) -> Any:
        return {"bf16": self.torch.bfloat16, "fp16": self.torch.float16, "fp32": self.torch.float32}[name]

    def synchronise(self) -> None:
        if self.device == "cuda":
            self.torch.cuda.synchronize()
        elif self.device == "mps":
            self.torch.mps.synchronize()

    def time(self, run: Pass) -> float:
        self.synchronise()
        start = time.perf_counter()
        run()
        self.synchronise()
        return time.perf_counter() - start

    def times(self, run: Pass) -> list[float]:
        """Seconds of passes, ascending, after one that does not count; fewer of them where one is long."""
        end = time.perf_counter() + self.budget_s
        first = self.time(run)
        found: list[float] = []
        while len(found) < _MAX_PASSES and (time.perf_counter() < end or len(found) < _MIN_PASSES):
            found.append(self.time(run))
            if first > 2 * self.budget_s:
                break
        return sorted(found)

    def quick(self, run: Pass) -> float:
        """Seconds that a quarter of the passes beat: what it takes where little else goes on."""
        found = self.times(run)
        return found[len(found) // 4]

    def threads(self, rates: MeasuredRates, cores: int) -> None:
        """The number of threads with the best median over passes of weights with one token, taken in turn."""
        counts = thread_counts(cores)
        run, _ = self.pass_over("bf16", self.size // 4)
        times: dict[int, list[float]] = {count: [] for count in counts}
        end = time.perf_counter() + 2 * self.budget_s
        while len(times[counts[-1]]) < _MAX_PASSES and (
            time.perf_counter() < end or len(times[counts[-1]]) < _MIN_PASSES + 1
        ):
            for count in counts:
                self.torch.set_num_threads(count)
                times[count].append(self.time(run))
        rates.threads = best_threads({count: median(found[1:]) for count, found in times.items()})

    def bandwidth(self, rates: MeasuredRates) -> None:
        buffer = self.torch.ones(self.size // 4, dtype=self.torch.float32, device=self.device)
        rates.read_bandwidth_bytes_per_s = self.size // 4 * 4 / self.times(buffer.sum)[0]

    def vector(self, rates: MeasuredRates, name: str) -> None:
        """Bytes of weights a second with one token; a format without a kernel here is left out."""
        with contextlib.suppress(RuntimeError, NotImplementedError, AttributeError, TypeError):
            run, size = self.pass_over(name, self.size)
            rates.gemv_bytes_per_s[name] = size / self.quick(run)

    def matrix(self, rates: MeasuredRates, name: str) -> None:
        with contextlib.suppress(RuntimeError, NotImplementedError):
            side, tokens = (_SIDE, _MATRIX_TOKENS) if self.device == "cpu" else (_GPU_SIDE, _GPU_SIDE)
            weights = self.random(name, side, side)
            inputs = self.random(name, tokens, side)
            seconds = self.quick(lambda: self.torch.nn.functional.linear(inputs, weights))
            rates.matrix_flops_per_s[name] = 2 * tokens * side * side / seconds

    def small(self, rates: MeasuredRates) -> None:
        """Seconds of one operation that has next to nothing to do, from a run of two hundred."""
        row = self.random("fp32", 1, _SMALL)

        def many() -> None:
            for _ in range(200):
                row.mul(row)

        rates.op_overhead_s = self.quick(many) / 200

    def random(self, name: str, rows: int, columns: int) -> Any:
        return self.torch.randn(rows, columns, device=self.device).to(self.dtype(name))

    def pass_over(self, name: str, size: int) -> tuple[Pass, int]:
        """A pass of one token through matrices of that format, and the bytes of weights in it."""
        multiply, first = self.kernel(name)
        each = sum(part.untyped_storage().nbytes() for part in first)
        parts = [first, *(tuple(part.clone() for part in first) for _ in range(max(1, size // each) - 1))]

        def run() -> None:
            for part in parts:
                multiply(part)

        return run, len(parts) * each

    def kernel(self, name: str) -> tuple[Callable[[tuple[Any, ...]], object], tuple[Any, ...]]:
        """How a token goes through a matrix of that format, and one such matrix."""
        torch = self.torch
        if name == "int8":
            token, whole = self.random("bf16", 1, _SIDE), torch.randint(-127, 127, (_SIDE, _SIDE), dtype=torch.int8)
            scales = torch.ones(_SIDE, dtype=torch.bfloat16)
            return lambda part: torch._weight_int8pack_mm(token, *part), (whole, scales)
        if name == "int4":
            token = self.random("bf16", 1, _SIDE)
            numbers = torch.randint(0, 15, (_SIDE, _SIDE), dtype=torch.int32)
            packed = torch._convert_weight_to_int4pack_for_cpu(numbers, 1)
            scales = torch.ones(_SIDE // INT4_GROUP, _SIDE, 2, dtype=torch.bfloat16)

            def multiply(part: tuple[Any, ...]) -> object:
                return torch._weight_int4pack_mm_for_cpu(token, part[0], INT4_GROUP, part[1])

            return multiply, (packed, scales)
        token = self.random(name, 1, _SIDE)
        return lambda part: torch.nn.functional.linear(token, part[0]), (self.random(name, _SIDE, _SIDE),)


def thread_counts(cores: int) -> list[int]:
    """Numbers of threads worth measuring: powers of two up to all cores, and that."""
    return sorted({cores, *(2**power for power in range(cores.bit_length()) if 2**power <= cores)})


def best_threads(seconds: dict[int, float]) -> int:
    """The number of threads by their medians: the smallest unless more are faster by a tenth, step by step."""
    best, *others = sorted(seconds)
    for count in others:
        if seconds[count] < _WORTH * seconds[best]:
            best = count
    return best
