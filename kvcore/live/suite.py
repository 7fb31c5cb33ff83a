"""The check set of a machine: what runs, whether it is right, and how fast, as one list for JSON.

Every entry has `check` and `seconds`; `ok` where something can be wrong, `skipped` or `error` with the reason where it
was not done. On CUDA the GPU paths are part of it: graphs, larger shapes, and peak memory from torch's allocator.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from kvcore.errors import KVCoreError
from kvcore.live.generate import Generation
from kvcore.live.jobs import probe_with, race_with, run_with
from kvcore.live.options import ProbeOptions, RunOptions, Setup
from kvcore.live.roofline import step_bytes, what_binds
from kvcore.live.session import Reporter, Session
from kvcore.live.shape import LiveShape, as_variant, predicted_bytes, shape_from_config

PARITY = 1e-4
TINY: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {"head_dim": 32},
    "mistral": {"sliding_window": 24},
}
_TINY_COMMON = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 160, "rms_norm_eps": 1e-5, "rope_theta": 10_000.0,
    "max_position_embeddings": 512, "tie_word_embeddings": False, "hidden_act": "silu",
}  # fmt: skip
_KV_FORMATS = ("bf16", "fp16", "fp32", "int8")
_VARIANTS = ("shipped", "mha", "mqa", "mla:32+16", "sliding:24")
# The shape that a GPU is measured with, where its memory allows; random weights.
GPU_MODEL = "meta-llama/Llama-3.1-8B-Instruct"
_MODEL_OF_LAST_RESORT = "meta-llama/Llama-3.2-1B-Instruct"


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteCheck:
    """One entry to be made: `least_s` is the time without which it is not begun."""

    name: str
    least_s: float
    run: Callable[[_Suite], dict[str, Any]]
    gpu_only: bool = False


def suite(engine: Session, reporter: Reporter, *, seconds: float = 220.0) -> list[dict[str, Any]]:
    """All checks that there is time for within `seconds`, each with its figures; nothing that fails ends the others."""
    made = _Suite(engine, reporter, time.perf_counter() + seconds)
    return list(made.entries())


class _Suite:
    def __init__(self, engine: Session, reporter: Reporter, deadline: float) -> None:
        self.engine, self.deadline = engine, deadline
        self.events: list[dict[str, Any]] = []
        self._outer = reporter
        self.reporter = Reporter(self._hear)
        self.device = "cpu"
        self.setup = Setup()

    def _hear(self, event: dict[str, Any]) -> bool:
        self.events.append(event)
        return self._outer(event)

    def left_s(self) -> float:
        return self.deadline - time.perf_counter()

    def entries(self) -> Iterator[dict[str, Any]]:
        for number, check in enumerate(CHECKS):
            if check.gpu_only and self.device != "cuda":
                continue
            self.reporter.progress(f"Suite: {check.name}", number, len(CHECKS))
            if self.left_s() < check.least_s:
                yield {"check": check.name, "seconds": 0.0, "skipped": f"{max(0.0, self.left_s()):.0f} s were left"}
                continue
            self.events.clear()
            start = time.perf_counter()
            try:
                found = check.run(self)
            except (KVCoreError, RuntimeError, MemoryError) as problem:
                # RuntimeError is torch's own, out of memory among it: a finding, too.
                found = {"error": f"{type(problem).__name__}: {' '.join(str(problem).split())[:500]}"}
            yield {"check": check.name, "seconds": round(time.perf_counter() - start, 3), **found}

    def run(self, **options: Any) -> list[Generation]:
        setup = options.pop("setup", self.setup)
        setup = replace(setup, max_seconds=max(1.0, min(60.0, self.left_s() - 5.0)))
        return run_with(self.engine, RunOptions(setup=setup, **options), self.reporter)

    def told(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == kind]

    def as_dicts(self, results: list[Generation]) -> list[dict[str, Any]]:
        ready = self.told("ready")[-1]
        # The host has an entry of its own.
        return [one.to_dict(ready, {}) for one in results]


def _host(suite: _Suite) -> dict[str, Any]:
    # Measured anew: what is kept may be from a busier hour.
    host = suite.engine.host(suite.reporter, remeasure=True)
    suite.device = host.device
    return {"host": host.to_dict()}


def _parity(suite: _Suite) -> dict[str, Any]:
    """fp32: cached, chunked and recomputed logits of unequal requests agree, here and with the CPU's."""
    import torch

    from kvcore.live.decoder import Decoder
    from kvcore.live.weights import random_weights

    worst: dict[str, float] = {}
    for name, shape in _tiny_shapes():
        logits = []
        for device in dict.fromkeys(("cpu", suite.device)):
            decoder = Decoder(shape, random_weights(shape, torch.float32, device), device=device, weight_format="fp32")
            rows = [[(7 * place + 3) % 160 for place in range(50)], [(5 * place + 1) % 160 for place in range(33)]]
            cache = decoder.new_cache(2, "fp32", 16)
            decoder.prefill([row[:-4] for row in rows], cache, chunk=16)
            for place in range(-4, 0):
                cached = decoder.step([row[place] for row in rows], cache)
            logits += [cached.cpu(), decoder.recompute(rows).cpu()]
        worst[name] = max(float((one - logits[0]).abs().max()) for one in logits)
    return {"ok": max(worst.values()) <= PARITY, "limit": PARITY, "max_difference": worst, "device": suite.device}


def _bytes(suite: _Suite) -> dict[str, Any]:
    """Measured bytes of the cache are the predicted ones for every format, family, attention and batch."""
    from kvcore.live.decoder import Decoder
    from kvcore.live.weights import random_weights

    compared, wrong = 0, []
    for name, shape in _tiny_shapes():
        decoder = Decoder(shape, random_weights(shape, "bf16", suite.device), device=suite.device)
        for kv in _KV_FORMATS:
            for lengths in ([15], [16], [40, 7, 33]):
                cache = decoder.new_cache(len(lengths), kv, 16)
                decoder.prefill([[1] * length for length in lengths], cache)
                decoder.step([2] * len(lengths), cache)
                said = predicted_bytes(shape, kv, [length + 1 for length in lengths], 16)
                held = (cache.reserved_bytes(), cache.resident_bytes())
                compared += 1
                if held != (said.reserved, said.resident):
                    wrong.append({"shape": name, "kv_format": kv, "lengths": lengths, "measured": held})
    return {"ok": not wrong, "compared": compared, "wrong": wrong}


def _tiny_shapes() -> Iterator[tuple[str, LiveShape]]:
    for family, more in TINY.items():
        yield family, shape_from_config({"model_type": family, **_TINY_COMMON, **more}, family)
    base = shape_from_config({"model_type": "llama", **_TINY_COMMON}, "llama")
    for variant in _VARIANTS[1:]:
        yield variant, as_variant(base, variant)


def _demonstration(suite: _Suite) -> dict[str, Any]:
    """The default run with the cache and again without it; real weights where they are here."""
    options: dict[str, Any] = {"prompt_tokens": 128, "new_tokens": 32, "also_recompute": True, "ignore_stop": True}
    try:
        results = suite.run(**options)
    except KVCoreError as problem:
        suite.setup = Setup(model=_MODEL_OF_LAST_RESORT, weights="random", layers=4)
        suite.events.append({"event": "note", "text": str(problem)})
        results = suite.run(**options)
    runs = suite.as_dicts(results)
    found: dict[str, Any] = {"runs": runs, "calibration": [event["calibration"] for event in suite.told("calibration")]}
    if len(results) > 1 and results[1].decode_s and results[0].decode_s:
        found["recompute_over_cache"] = median(results[1].decode_s) / median(results[0].decode_s)
    loaded = suite.engine.load(suite.setup, suite.reporter)
    step = median(results[0].decode_s)
    read = step_bytes(loaded.shape, 144)
    host = suite.engine.host(suite.reporter)
    found["what_binds"] = what_binds(host, bytes_read=read, seconds=step, layers=loaded.shape.num_layers)
    found["notes"] = [event["text"] for event in suite.told("note")]
    return found | _judged(results)


def _judged(results: list[Generation]) -> dict[str, Any]:
    """Whether the bytes were as predicted, and by how much the median step was off."""
    errors = [
        median(one.decode_s) / median(known) - 1
        for one in results
        if (known := [seconds for seconds in one.predicted_decode_s if seconds]) and one.decode_s
    ]
    right = all(
        (one.held["reserved_bytes"], one.held["resident_bytes"])
        == (one.held["predicted_reserved_bytes"], one.held["predicted_resident_bytes"])
        for one in results
    )
    return {"ok": right, "decode_error": errors}


def _batch(suite: _Suite) -> dict[str, Any]:
    results = suite.run(prompt_tokens=64, new_tokens=24, batch=4, ignore_stop=True)
    return {"runs": suite.as_dicts(results)} | _judged(results)


def _int8_cache(suite: _Suite) -> dict[str, Any]:
    results = suite.run(
        setup=replace(suite.setup, kv_format="int8"),
        prompt_tokens=128,
        new_tokens=24,
        ignore_stop=True,
        calibrate=False,
    )
    return {"runs": suite.as_dicts(results), "calibrated": False} | _judged(results)


def _weights(weight_format: str) -> Callable[[_Suite], dict[str, Any]]:
    def run(suite: _Suite) -> dict[str, Any]:
        setup = replace(suite.setup, weight_format=weight_format)
        results = suite.run(setup=setup, prompt_tokens=128, new_tokens=24, ignore_stop=True, calibrate=False)
        return {"runs": suite.as_dicts(results), "calibrated": False} | _judged(results)

    return run


def _probe(suite: _Suite) -> dict[str, Any]:
    contexts = (16, 64, 256, 1024)
    setup = replace(suite.setup, max_seconds=max(1.0, min(40.0, suite.left_s() - 5.0)))
    probe_with(suite.engine, ProbeOptions(setup=setup, contexts=contexts, modes=("cache", "recompute")), suite.reporter)
    return {"probes": _without_name(suite.told("probe")), "truncated": _without_name(suite.told("truncated"))}


def _race(suite: _Suite) -> dict[str, Any]:
    setup = replace(suite.setup, max_seconds=max(1.0, min(60.0, suite.left_s() - 5.0)))
    race_with(suite.engine, ProbeOptions(setup=setup, contexts=(128, 512, 1024)), suite.reporter)
    return {"probes": _without_name(suite.told("probe")), "truncated": _without_name(suite.told("truncated"))}


def _without_name(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in event.items() if name != "event"} for event in events]


def _gpu(weight_format: str, kv_format: str, prompt: int, batch: int) -> Callable[[_Suite], dict[str, Any]]:
    """A large shape on the GPU: times, bytes, the share of its bandwidth, and the allocator's peak."""

    def run(suite: _Suite) -> dict[str, Any]:
        import torch

        setup = Setup(model=GPU_MODEL, weights="random", weight_format=weight_format, kv_format=kv_format)
        torch.cuda.reset_peak_memory_stats()
        results = suite.run(setup=setup, prompt_tokens=prompt, new_tokens=64, batch=batch, ignore_stop=True)
        loaded = suite.engine.load(setup, suite.reporter)
        step = median(results[0].decode_s)
        read = step_bytes(loaded.shape, prompt + 32, batch, weight_format=weight_format, kv_format=kv_format)
        host = suite.engine.host(suite.reporter)
        return {
            "runs": suite.as_dicts(results),
            "peak_allocated_bytes": int(torch.cuda.max_memory_allocated()),
            "what_binds": what_binds(
                host, bytes_read=read, seconds=step, weight_format=weight_format, layers=loaded.shape.num_layers
            ),
        } | _judged(results)

    return run


def _graphs(suite: _Suite) -> dict[str, Any]:
    """Steps with CUDA graphs and without, taking turns on one decoder and the same contexts; their logits agree."""
    loaded = suite.engine.load(Setup(model=GPU_MODEL, weights="random"), suite.reporter)
    decoder = loaded.decoder
    times: dict[bool, list[float]] = {True: [], False: []}
    logits: dict[bool, Any] = {}
    caches = {on: decoder.new_cache(1) for on in times}
    try:
        for on, cache in caches.items():
            decoder.graphs = on
            decoder.prefill([[1] * 512], cache)
        for place in range(48):
            for on, cache in caches.items():
                decoder.graphs = on
                decoder.synchronise()
                start = time.perf_counter()
                logits[on] = decoder.step([place + 2], cache)
                decoder.synchronise()
                times[on].append(time.perf_counter() - start)
    finally:
        decoder.graphs = True
    difference = float((logits[True] - logits[False]).abs().max())
    # Recording comes with the first steps.
    with_graphs, without = (median(times[on][8:]) for on in (True, False))
    return {"step_s": {"graphs": with_graphs, "none": without}, "max_difference": difference, "ok": difference <= 0.1}


CHECKS = (
    SuiteCheck(name="host", least_s=5, run=_host),
    SuiteCheck(name="parity", least_s=5, run=_parity),
    SuiteCheck(name="bytes", least_s=5, run=_bytes),
    SuiteCheck(name="demonstration", least_s=20, run=_demonstration),
    SuiteCheck(name="GPU: 8B shape, bf16, 2,048 tokens", least_s=40, run=_gpu("bf16", "bf16", 2048, 1), gpu_only=True),
    SuiteCheck(name="GPU: graphs", least_s=20, run=_graphs, gpu_only=True),
    SuiteCheck(name="GPU: 8B shape, bf16, batch of 16", least_s=30, run=_gpu("bf16", "bf16", 2048, 16), gpu_only=True),
    SuiteCheck(name="GPU: 8B shape, int8 cache", least_s=20, run=_gpu("bf16", "int8", 2048, 1), gpu_only=True),
    SuiteCheck(name="probe", least_s=30, run=_probe),
    SuiteCheck(name="batch of 4", least_s=20, run=_batch),
    SuiteCheck(name="int8 cache", least_s=15, run=_int8_cache),
    SuiteCheck(name="int8 weights", least_s=15, run=_weights("int8")),
    SuiteCheck(name="int4 weights", least_s=15, run=_weights("int4")),
    SuiteCheck(name="race of variants", least_s=40, run=_race),
)
