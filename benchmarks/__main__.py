"""`python -m benchmarks`: speeds of this machine, beside two public planners measured in the same run."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvcore.formats import kv_format
from kvcore.model import model_from_config
from kvcore.sizing import resident_bytes, size
from kvcore.sources import catalogue
from kvcore.sweep import sweep
from kvcore.timing import decode_cache_work
from kvcore.variants.compare import compare
from kvcore.variants.ladder import ladder

APP = Path(__file__).resolve().parent.parent / "app.py"
TOKENS = 131_072
BF16 = kv_format("bf16")
# Models that all three planners accept.
COMPARED = ("meta-llama/Llama-3.3-70B-Instruct", "deepseek-ai/DeepSeek-V3", "Qwen/Qwen3-8B")


def seconds(call: Callable[[], object], rounds: int = 7, at_least: float = 0.05) -> float:
    """The median time of one call over several rounds, each long enough for the clock."""
    call()
    count = 1
    while True:
        start = time.perf_counter()
        for _ in range(count):
            call()
        if time.perf_counter() - start >= at_least:
            break
        count *= 2
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(count):
            call()
        times.append((time.perf_counter() - start) / count)
    return statistics.median(times)


def show(name: str, value: float, limit: float | None = None, beside: str = "") -> None:
    """One line: the time, the limit that is meant to hold, and the ratio to something else of this run."""
    unit, factor = ("µs", 1e6) if value < 1e-3 else ("ms", 1e3) if value < 1 else ("s", 1)
    wanted = "" if limit is None else f"  (meant: {'within' if value <= limit else 'OVER'} {limit * factor:g} {unit})"
    print(f"{name:<58}{value * factor:>9.2f} {unit}{wanted}{beside}")


def after_parsing() -> None:
    models = [catalogue.load(entry.model_id) for entry in catalogue.entries()]
    resident = [seconds(lambda m=model: resident_bytes(m, TOKENS, BF16), 3, 0.005) for model in models]
    full = [seconds(lambda m=model: size(m, TOKENS), 3, 0.01) for model in models]
    worst, slowest = (max(range(len(models)), key=times.__getitem__) for times in (resident, full))
    show("resident bytes, median of the catalogue", statistics.median(resident), 50e-6)
    show(f"resident bytes, worst ({models[worst].name})", resident[worst], 50e-6)
    show("full per-layer result with terms, median", statistics.median(full), 1e-3)
    show(f"full per-layer result, worst ({models[slowest].name})", full[slowest], 1e-3)


def beside_planners() -> None:
    from hf_mem.safetensors.kv_cache import compute_safetensors_kv_cache_size
    from kvfit.architectures import estimate_cache

    for name in COMPARED:
        raw: dict[str, Any] = catalogue.raw_config(name)
        model = catalogue.load(name)
        ours = seconds(lambda m=model: resident_bytes(m, TOKENS, BF16))
        whole = seconds(lambda r=raw: resident_bytes(model_from_config(r), TOKENS, BF16))
        kvfit = seconds(lambda r=raw: estimate_cache(r, context_tokens=TOKENS))
        hf_mem = seconds(lambda r=raw: compute_safetensors_kv_cache_size(r, "BF16", TOKENS))
        show(f"{name.split('/')[1]}: resident bytes of a parsed model", ours)
        show("  from config.json, with the audit of keys", whole)
        show(
            "  kvfit, from config.json",
            kvfit,
            beside=f"  = {kvfit / ours:.1f} × ours parsed, {kvfit / whole:.2f} × whole",
        )
        show("  hf-mem, its formula alone", hf_mem, beside=f"  = {hf_mem / ours:.1f} × ours parsed")


def engine_answers() -> None:
    from kvfit.architectures import estimate_cache

    from kvcore.engines.vllm import VLLM, VllmSettings

    for name in (*COMPARED, "google/gemma-3-27b-it", "deepseek-ai/DeepSeek-V4-Flash"):
        model, raw = catalogue.load(name), catalogue.raw_config(name)
        settings = VllmSettings(max_model_len=TOKENS)
        ours = seconds(lambda m=model, s=settings: VLLM.capacity(m, s, 60 * 2**30))
        kvfit = seconds(lambda r=raw: estimate_cache(r, context_tokens=TOKENS))
        beside = f"; kvfit's estimate of the model alone takes {kvfit / ours:.2f} ×"
        show(f"vLLM's plan and capacity: {name.split('/')[1]}", ours, 1e-3, beside)


def comparisons() -> None:
    """A against B, its ladder and the work of a token, over the catalogue."""
    found = [one for one in catalogue.summaries() if one.attention != "encoder"]
    pairs = list(zip(found, found[7:] + found[:7], strict=True))
    times = [
        seconds(
            lambda a=a, b=b: compare(
                a.model, b.model, TOKENS, a.model.resolve_format(), b.model.resolve_format(), name_a="A", name_b="B"
            ),
            1,
            0.002,
        )
        for a, b in pairs
    ]
    bare = statistics.median([seconds(lambda m=one.model: resident_bytes(m, TOKENS, BF16), 1, 0.002) for one in found])
    median = statistics.median(times)
    show("A against B with its sentence, median", median, 0.1, f"; {median / bare:.0f} × the resident bytes of a model")
    show("A against B, worst of the catalogue's pairs tried", max(times), 0.1)
    ladders = [seconds(lambda m=one.model: ladder(m, tokens=TOKENS), 1, 0.002) for one in found]
    show("ladder of 12 designs, median", statistics.median(ladders), 0.05)
    show("ladder of 12 designs, worst", max(ladders), 0.05)
    works = [seconds(lambda m=one.model: decode_cache_work(m, TOKENS, m.resolve_format()), 1, 0.002) for one in found]
    show("cache work of one token, median", statistics.median(works), 1e-3)


def a_million_cells() -> None:
    models = [catalogue.load(entry.model_id) for entry in catalogue.entries()][:200]
    formats = ["bf16", "fp8", "q8_0", "q4_0", "fp32"]
    contexts = list(range(1024, 1024 * 1001, 1024))
    cells = len(models) * len(formats) * len(contexts)
    whole = seconds(lambda: sweep(models, formats, contexts), 3)
    few = models[:2], formats[:1], contexts
    one_by_one = seconds(lambda: [[resident_bytes(m, n, BF16) for n in contexts] for m in few[0]], 3)
    loop = one_by_one / (2 * len(contexts)) * cells
    show(f"sweep of {cells:,} cells", whole, 2.0, f"; a loop of single answers would take {loop / whole:.0f} ×")


def importing() -> None:
    def fresh(code: str) -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        return time.perf_counter() - start

    bare = min(fresh("pass") for _ in range(5))
    ours = min(fresh("import kvcore, kvcore.sizing, kvcore.model, kvcore.sources.catalogue") for _ in range(5))
    kvfit = min(fresh("import kvfit.architectures") for _ in range(5))
    show(
        "import kvcore with its model layer", ours - bare, 0.2, f"; kvfit takes {(kvfit - bare) / (ours - bare):.1f} ×"
    )


def page(name: str) -> None:
    """Server time of one change on a page, measured in Streamlit's own test runner without a browser."""
    from streamlit.testing.v1 import AppTest

    app = AppTest.from_file(str(APP), default_timeout=30).run()
    app.switch_page(f"pages/{name}.py").run()
    times = []
    for tokens in ("4096", "16384", "65536", "131072", "8192", "32768", "262144"):
        app.query_params["tokens"] = tokens
        start = time.perf_counter()
        app.run()
        times.append(time.perf_counter() - start)
        if app.exception:
            raise SystemExit(f"the page failed: {app.exception}")
    show(f"{name.title()} answers a change of tokens (server, median)", statistics.median(times), 0.1)


if __name__ == "__main__":
    print(json.dumps({"python": sys.version.split()[0], "tokens": TOKENS}))
    importing()
    after_parsing()
    beside_planners()
    engine_answers()
    comparisons()
    a_million_cells()
    page("size")
    page("variants")
