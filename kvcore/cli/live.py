"""`kvcore live …`: a small model really generates here; what it took, beside what was predicted."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from kvcore.cli.options import read_batch
from kvcore.errors import LiveError, SourceError
from kvcore.extras import require
from kvcore.units import format_bytes, format_count, parse_tokens


def add(commands: Any) -> None:
    """Add the command."""
    command = commands.add_parser("live", help="generate with a small model on this machine, measured and predicted")
    command.add_argument("--model", help="id, hub:id or a folder (default: SmolLM2-135M-Instruct)")
    what = command.add_mutually_exclusive_group()
    what.add_argument("--prompt", help="the text to answer")
    what.add_argument("--prompt-tokens", help="a running text of so many tokens in place of a prompt")
    command.add_argument("--new-tokens", default="32", help="tokens to generate")
    command.add_argument("--no-cache", action="store_true", help="compute the whole prefix again for every token")
    command.add_argument("--compare", action="store_true", help="with the cache, then again without it")
    command.add_argument("--batch", default="1", help="requests at once, all with the same prompt")
    command.add_argument("--attention", default="shipped", help="shipped, mha, gqa:G, mqa, mla, mla:R+P, sliding:W")
    command.add_argument("--random", action="store_true", help="random weights in the model's shape")
    command.add_argument("--layers", help="keep so many layers (random weights)")
    command.add_argument("--weight-format", default="bf16", help="bf16, fp16, fp32, int8, int4")
    command.add_argument("--kv-dtype", default="bf16", help="cache format: bf16, fp16, fp32, int8")
    command.add_argument("--device", default="auto", help="auto, cpu, cuda, mps")
    command.add_argument("--threads", help="CPU threads (default: what was measured to be best)")
    command.add_argument("--seconds", help="time budget of the generation")
    command.add_argument("--no-calibrate", action="store_true", help="predict from the machine's rates alone")
    command.add_argument("--hub", action="store_true", help="download weights that are not on this machine")
    command.add_argument("--suite", action="store_true", help="the whole check set in under four minutes, as JSON")
    command.add_argument("--output", help="with --suite: the file to write")
    command.add_argument("--json", action="store_true", help="one JSON object on stdout")
    command.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> None:
    require("torch", "live", "the live engine")
    from kvcore.live.session import Reporter, Session

    teller = _Teller()
    engine, reporter = Session(), Reporter(teller)
    if options.suite:
        from kvcore.live.suite import suite

        _write(json.dumps(suite(engine, reporter, seconds=_seconds(options.seconds) or 220.0)), options.output)
        return
    from kvcore.live.jobs import run_with
    from kvcore.live.options import read_run

    results = run_with(engine, read_run(_job(options)), reporter)
    answer = results[0].to_dict(teller.ready, teller.host)
    answer |= {"truncated": teller.truncated, "notes": teller.notes, "calibration": teller.calibration}
    answer["recomputed"] = results[1].to_dict(teller.ready, teller.host) if len(results) > 1 else None
    print(json.dumps(answer) if options.json else live_as_text(answer))


def _job(options: argparse.Namespace) -> dict[str, Any]:
    """The engine's job for these options; what is wrong with a value is said where the job is read."""
    job: dict[str, Any] = {
        "job": "run",
        "model": options.model,
        "weights": "random" if options.random else "auto",
        "attention": options.attention,
        "weight_format": options.weight_format,
        "kv_format": options.kv_dtype,
        "device": options.device,
        "allow_hub": options.hub,
        "new_tokens": parse_tokens(options.new_tokens, "--new-tokens"),
        "batch": read_batch(options.batch, "--batch"),
        "use_cache": not options.no_cache,
        "also_recompute": options.compare,
        "calibrate": not options.no_calibrate,
        "prompt": options.prompt,
        "max_seconds": _seconds(options.seconds),
    }
    if options.layers is not None:
        job["layers"] = parse_tokens(options.layers, "--layers")
    if options.threads is not None:
        job["threads"] = parse_tokens(options.threads, "--threads")
    if options.prompt_tokens is not None:
        # A length was asked for, not an answer: it ends where it was told to.
        job |= {"prompt_tokens": parse_tokens(options.prompt_tokens, "--prompt-tokens"), "ignore_stop": True}
    return job


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1e6:
        raise LiveError(f"--seconds: {text[:40]!r} is not a number of seconds")
    return value


def _write(text: str, output: str | None) -> None:
    if output is None:
        print(text)
        return
    try:
        Path(output).write_text(text + "\n", "utf-8")
    except OSError as problem:
        raise SourceError(f"{output[:200]}: cannot be written ({problem.strerror})") from None


class _Teller:
    """Keeps what the engine says of itself; progress goes to a terminal's stderr."""

    def __init__(self) -> None:
        self.ready: dict[str, Any] = {}
        self.host: dict[str, Any] = {}
        self.calibration: dict[str, Any] | None = None
        self.truncated: list[dict[str, Any]] = []
        self.notes: list[str] = []
        self._width = 0

    def __call__(self, event: dict[str, Any]) -> bool:
        kind = event["event"]
        if kind == "ready":
            self.ready = event
        elif kind == "host":
            self.host = event["host"]
        elif kind == "calibration":
            self.calibration = event["calibration"]
        elif kind == "truncated":
            self.truncated.append({name: event[name] for name in ("mode", "why", "at")})
        elif kind == "note":
            self.notes.append(event["text"])
        self._show(event)
        return True

    def _show(self, event: dict[str, Any]) -> None:
        if sys.stderr is None or not sys.stderr.isatty():
            return
        line = f"{event['what']} {event['done']:,}/{event['of']:,}" if event["event"] == "progress" else ""
        if line or self._width:
            print("\r" + line.ljust(self._width), end="" if line else "\r", file=sys.stderr, flush=True)
            self._width = len(line)


def live_as_text(answer: dict[str, Any]) -> str:
    """The same answer as a short table for people."""
    layers = f", {answer['layers']} of {answer['cut_from']} layers" if answer["cut_from"] else ""
    rows = [
        f"{answer['model']} · {format_count(answer['parameters'])} parameters, {answer['weights']} weights{layers} · "
        f"{answer['weight_format']} weights, {answer['kv_format']} cache · {answer['device']}, "
        f"{answer['threads']} {'thread' if answer['threads'] == 1 else 'threads'}"
    ]
    if answer["text"]:
        rows.append(f"  {' '.join(answer['text'].split())}")
    rows += _times(answer)
    if answer["recomputed"]:
        rows += _times(answer["recomputed"])
    if answer["mode"] == "cache":
        for words, measured, predicted in (
            ("cache holds", "kv_bytes_measured", "kv_bytes_predicted"),
            ("cache has reserved", "kv_bytes_reserved", "kv_bytes_predicted_reserved"),
        ):
            size = f"{answer[measured]:,} B; predicted {answer[predicted]:,} B"
            rows.append(f"  {words:<22}{format_bytes(answer[measured]):>12}   {size}")
    rows += [f"  cut: {one['mode']} by the {one['why']} limit at {one['at']:,} tokens" for one in answer["truncated"]]
    rows += [f"  note: {note}" for note in answer["notes"]]
    return "\n".join(rows)


def _times(made: dict[str, Any]) -> list[str]:
    from statistics import median

    way = "" if made["mode"] == "cache" else ", no cache"
    batch = f"{made['batch']:,} × " if made["batch"] > 1 else ""
    rows = [
        f"  {f'first token{way}':<22}{_ms(made['prefill_s']):>12}   for {batch}{made['prompt_tokens']:,} tokens; "
        f"predicted {_ms(made['predicted_prefill_s'])}"
    ]
    if made["decode_s"]:
        step = median(made["decode_s"])
        known = [one for one in made["predicted_decode_s"] if one is not None]
        rows.append(
            f"  {f'each further{way}':<22}{_ms(step):>12}   median of {len(made['decode_s']):,}, "
            f"{made['batch'] / step:,.1f} tokens/s; predicted {_ms(median(known) if known else None)}"
        )
    return rows


def _ms(seconds: float | None) -> str:
    return "unknown" if seconds is None else f"{1000 * seconds:,.1f} ms"
