"""The measurements behind a Host: threads, read bandwidth, and the rates of matrices with one token and with many.

Every figure comes from repeated passes over more memory than the caches hold. torch is imported by what runs it.
The CPU is what this was run on; CUDA and MPS take the same passes with a synchronisation around each, not run there.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from kvcore.errors import LiveError

Progress = Callable[[str, int, int], bool]
Pass = Callable[[], object]

# A matrix of this many rows and columns is about what a layer of a small model has.
_SIDE = 1024
_MIN_BUFFER_BYTES, _MAX_BUFFER_BYTES = 16 * 2**20, 512 * 2**20
_GPU_BUFFER_BYTES = 2**30
_MATRIX_TOKENS, _GPU_SIDE = 512, 4096
_INT4_GROUP = 32
_SMALL = 64
_MIN_PASSES, _MAX_PASSES = 3, 25
# More threads must be this much faster: where they are not, they only disturb others and stall on each other.
_WORTH = 0.9


@dataclass(slots=True, kw_only=True)
class Rates:
    """What was measured; see Host."""

    threads: int = 1
    read_bandwidth_bytes_per_s: float = 0.0
    gemv_bytes_per_s: dict[str, float] = field(default_factory=dict)
    matrix_flops_per_s: dict[str, float] = field(default_factory=dict)
    op_overhead_s: float = 0.0


def choose_device(wanted: str = "auto") -> str:
    """The device of that name, or the best that there is; LiveError where it is not there."""
    import torch

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


def measure_rates(device: str, cores: int, available_bytes: int, seconds: float, progress: Progress | None) -> Rates:
    """All rates of a device in about `seconds`; LiveError where `progress` returned False."""
    import torch

    before = torch.get_num_threads()
    bench = _Bench(torch, device, buffer_bytes(device, available_bytes), seconds)
    rates = Rates(threads=before)
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

    def threads(self, rates: Rates, cores: int) -> None:
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

    def bandwidth(self, rates: Rates) -> None:
        buffer = self.torch.ones(self.size // 4, dtype=self.torch.float32, device=self.device)
        rates.read_bandwidth_bytes_per_s = self.size // 4 * 4 / self.times(buffer.sum)[0]

    def vector(self, rates: Rates, name: str) -> None:
        """Bytes of weights a second with one token; a format without a kernel here is left out."""
        with contextlib.suppress(RuntimeError, NotImplementedError, AttributeError, TypeError):
            run, size = self.pass_over(name, self.size)
            rates.gemv_bytes_per_s[name] = size / self.quick(run)

    def matrix(self, rates: Rates, name: str) -> None:
        with contextlib.suppress(RuntimeError, NotImplementedError):
            side, tokens = (_SIDE, _MATRIX_TOKENS) if self.device == "cpu" else (_GPU_SIDE, _GPU_SIDE)
            weights = self.random(name, side, side)
            inputs = self.random(name, tokens, side)
            seconds = self.quick(lambda: self.torch.nn.functional.linear(inputs, weights))
            rates.matrix_flops_per_s[name] = 2 * tokens * side * side / seconds

    def small(self, rates: Rates) -> None:
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
            scales = torch.ones(_SIDE // _INT4_GROUP, _SIDE, 2, dtype=torch.bfloat16)

            def multiply(part: tuple[Any, ...]) -> object:
                return torch._weight_int4pack_mm_for_cpu(token, part[0], _INT4_GROUP, part[1])

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
