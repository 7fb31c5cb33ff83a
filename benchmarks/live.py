"""`python -m benchmarks.live`: what the live engine is meant to reach, as ratios within one run.

Engines that are compared take turns step by step, so that a busy moment hits them alike; figures are medians. The
weights are those of SmolLM2-135M-Instruct, transformers reads them from the same folder. `--quick` leaves out the long
contexts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvcore.live import models
from kvcore.live.jobs import probe_with, run_with
from kvcore.live.options import ProbeOptions, RunOptions, Setup
from kvcore.live.probes import FilledCache, TimeLimit, calibrate, random_ids
from kvcore.live.roofline import LivePredictor, share_of_bandwidth, step_bytes, what_binds
from kvcore.live.session import Reporter, Session
from kvcore.live.shape import LiveShape, shape_from_config

STEPS = 24
SILENT = Reporter(lambda event: True)


def show(name: str, value: float, least: float | None = None, most: float | None = None, unit: str = "×") -> None:
    """One figure beside what it is meant to be."""
    meant = ""
    if least is not None:
        meant = f"  (meant: at least {least:g}{unit}: {'yes' if value >= least else 'NO'})"
    if most is not None:
        meant = f"  (meant: at most {most:g}{unit}: {'yes' if value <= most else 'NO'})"
    print(f"{name:<66}{value:>9.2f}{unit}{meant}", flush=True)


def timed(call: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def in_turns(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The median time of each call, one after another in every round; the first round is not counted."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name, call in calls.items():
            seconds = timed(call)
            if number:
                times[name].append(seconds)
    return {name: statistics.median(found) for name, found in times.items()}


class Transformers:
    """transformers with its dynamic cache, from the same folder."""

    def __init__(self, folder: Path, dtype: str) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self.torch = torch
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
        self.cache: Any = None

    def prefill(self, ids: Sequence[int]) -> None:
        from transformers import DynamicCache

        self.cache = DynamicCache()
        self._forward(ids, logits_to_keep=1)

    def step(self) -> None:
        self._forward([1])

    def _forward(self, ids: Sequence[int], **more: Any) -> None:
        with self.torch.inference_mode():
            self.model(input_ids=self.torch.tensor([list(ids)]), past_key_values=self.cache, use_cache=True, **more)


def decoders(folder: Path, shape: LiveShape, *formats: str) -> dict[str, Any]:
    """Our decoder in each weight format."""
    from kvcore.live.decoder import Decoder
    from kvcore.live.weights import load_safetensors

    found = {}
    for name in formats:
        dtype = name if name in ("fp32", "fp16") else "bf16"
        found[name] = Decoder(shape, load_safetensors(folder, shape, dtype), weight_format=name)
    return found


def against_transformers(folder: Path, shape: LiveShape, contexts: Sequence[int]) -> None:
    """Decode and prefill beside transformers in bf16, and our packed weights beside our bf16."""
    other = Transformers(folder, "bfloat16")
    ours = decoders(folder, shape, "bf16", "int8", "int4")
    for context in contexts:
        ids = random_ids(context, shape.vocab_size)
        calls: dict[str, Callable[[], object]] = {"transformers": other.step}
        other.prefill(ids)
        for name, decoder in ours.items():
            cache = decoder.new_cache(1)
            ours["bf16"].prefill([ids], cache)
            calls[name] = lambda decoder=decoder, cache=cache: decoder.step([1], cache)
        found = in_turns(calls, STEPS)
        print(f"  ms a step at {context:,}: " + ", ".join(f"{name} {1e3 * s:.1f}" for name, s in found.items()))
        least = 1.2 if context <= 128 else 2.0 if context >= 4096 else None
        show(f"decode at {context:,} tokens, bf16: transformers / ours", found["transformers"] / found["bf16"], least)
        packed = found["bf16"] / min(found["int8"], found["int4"])
        show(f"decode at {context:,} tokens: our bf16 / our int8 or int4", packed, 2.0 if context <= 128 else None)
    for length in [one for one in (128, 512, 1024) if one <= max(contexts)]:
        ids = random_ids(length, shape.vocab_size)
        found = in_turns(
            {
                "transformers": lambda ids=ids: other.prefill(ids),
                "ours": lambda ids=ids: ours["bf16"].prefill([ids], ours["bf16"].new_cache(1)),
            },
            3,
        )
        show(f"prefill of {length:,} tokens, bf16: transformers / ours", found["transformers"] / found["ours"], 1.0)


def overhead(folder: Path, shape: LiveShape) -> None:
    """What a step costs apart from its matrices: a twin with as many layers and operations, but narrow."""
    from kvcore.live.decoder import Decoder
    from kvcore.live.weights import random_weights

    narrow = replace(shape, hidden_size=32, intermediate_size=32, head_dim=8, vocab_size=64)
    twin = Decoder(narrow, random_weights(narrow, "bf16"))
    full = decoders(folder, shape, "bf16")["bf16"]
    calls: dict[str, Callable[[], object]] = {}
    for name, decoder in (("twin", twin), ("full", full)):
        cache = decoder.new_cache(1)
        decoder.prefill([[1] * 128], cache)
        calls[name] = lambda decoder=decoder, cache=cache: decoder.step([1], cache)
    found = in_turns(calls, STEPS)
    show(
        "framework overhead: a narrow twin's share of a bf16 step",
        100 * found["twin"] / found["full"],
        most=10,
        unit="%",
    )


def predictions(engine: Session, folder: Path, shape: LiveShape, contexts: Sequence[int]) -> None:
    """Calibrated predictions beside measurements, within the calibrated range and beyond it."""
    decoder = decoders(folder, shape, "bf16")["bf16"]
    host = engine.host(SILENT)
    time_limit = TimeLimit(reporter=SILENT)
    known = calibrate(decoder, Setup(), (1, 4), time_limit, budget_s=60.0)
    if known is None:
        raise SystemExit("nothing could be calibrated")
    predictor = LivePredictor(shape=shape, host=host, setup=Setup(), calibration=known)
    for batch, most in ((1, 5.0), (4, 10.0)):
        filled = FilledCache(decoder, batch, "bf16", 256)
        line = next(one for one in known.decode if one.batch == batch)
        for context in contexts if batch == 1 else [one for one in contexts if one <= 2048]:
            measured = statistics.median(filled.steps(context, 16, time_limit))
            predicted = predictor.decode(context + 8, batch) or 0.0
            where = "inside" if line.low <= context <= line.high else "beyond"
            error = 100 * abs(predicted / measured - 1)
            show(f"decode at {context:,} tokens, batch {batch}: error ({where} the points)", error, most=most, unit="%")
            if batch == 1 and context == 128:
                read = step_bytes(shape, context)
                show("share of the measured read bandwidth", 100 * share_of_bandwidth(host, read, measured), unit="%")
                print(f"  {what_binds(host, bytes_read=read, seconds=measured, layers=shape.num_layers)}")
    for length in (32, 128, 512, 768):
        if known.prefill is None or not known.prefill.low <= length <= known.prefill.high:
            continue
        row = [random_ids(length, shape.vocab_size)]
        measured = in_turns({"ours": lambda row=row: decoder.prefill(row, decoder.new_cache(1))}, 3)["ours"]
        error = 100 * abs((predictor.prefill(length, 1) or 0.0) / measured - 1)
        show(f"prefill of {length:,} tokens: error (inside the points)", error, most=15, unit="%")


def demonstration(engine: Session) -> None:
    """The probe, then 32 tokens with the cache and recomputed, on a loaded and calibrated engine."""
    run_with(engine, RunOptions(setup=Setup(), prompt_tokens=16, new_tokens=2), SILENT)
    start = time.perf_counter()
    firsts: list[float] = []
    steps: dict[str, list[float]] = {"cache": [], "recompute": []}

    def emit(event: dict[str, Any]) -> bool:
        if event["event"] in ("probe", "token", "prefill"):
            firsts.append(time.perf_counter() - start)
        if event["event"] == "token" and event["index"]:
            steps[event["mode"]].append(event["seconds"])
        return True

    reporter = Reporter(emit)
    contexts = (16, 64, 256, 1024)
    probe_with(engine, ProbeOptions(setup=Setup(), contexts=contexts, modes=("cache", "recompute")), reporter)
    options = RunOptions(setup=Setup(), prompt_tokens=128, new_tokens=32, also_recompute=True, ignore_stop=True)
    run_with(engine, options, reporter)
    show("the default demonstration", time.perf_counter() - start, most=20, unit=" s")
    show("its first result", firsts[0], most=2, unit=" s")
    last = statistics.median(steps["recompute"][-5:]) / statistics.median(steps["cache"][-5:])
    show("its last tokens: recompute / cache", last, 5.0)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.live")
    parser.add_argument("--quick", action="store_true", help="no context beyond 512 tokens")
    quick = parser.parse_args().quick
    import torch
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    engine = Session()
    host = engine.host(SILENT)
    torch.set_num_threads(host.threads)
    print(json.dumps(host.to_dict()))
    prepared = models.prepare(models.DEFAULT, lambda what, done, of: True)
    shape = shape_from_config(prepared.config, models.DEFAULT)
    against_transformers(prepared.folder, shape, (128, 512) if quick else (128, 1024, 4096))
    overhead(prepared.folder, shape)
    predictions(engine, prepared.folder, shape, (32, 128, 512) if quick else (32, 128, 512, 1536, 3072))
    demonstration(engine)


if __name__ == "__main__":
    main()
