"""Thousands of answers of the command line, recorded, so that a change of the code can show what it changed.

    python -m benchmarks.answers record before.jsonl.gz
    python -m benchmarks.answers record after.jsonl.gz --like before.jsonl.gz
    python -m benchmarks.answers compare before.jsonl.gz after.jsonl.gz [--allow expected.toml]

`record` runs `python -m kvcore` with thousands of command lines: every model, accelerator and engine, cache and weight
formats, splits, releases, engines' own options, drafts, logs, and wrong input. Nothing of kvcore is used but its
command line, so a record can be replayed on a code base that is built otherwise. Live runs are left out: they measure
time.

A record is gzipped JSON lines. The first has the files that commands read, {"files": {name: base64}, "every": 1}; they
are laid out in an empty folder, where the commands run. Each further line is one answer: argv, stdin (where there is
any), status, stdout and stderr. `--like` takes commands and files from an old record, so that both have the same
whatever has become of the list here; `--every N` takes every Nth, for a quick look.

`compare` lists what differs by command and by the path of the JSON key, all items of a list together. Its exit status
is 1 if anything differs beyond what `--allow` names: a TOML or JSON file with a list `allow` of {argv, path, reason},
where `*` in the patterns of words and path stands for any text.

The module is long because half of it is the table of what is asked.
"""

from __future__ import annotations

import argparse
import base64
import csv
import difflib
import gzip
import io
import json
import math
import multiprocessing
import os
import random
import re
import runpy
import shlex
import sys
import tempfile
import time
import tomllib
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import cycle, islice, product
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "data"
CORPUS = ROOT / "tests" / "engines" / "corpus"
PROCESSES = 2
# Every so many answers of a command are recorded once more as the table for people.
TEXT_EVERY = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """The words after `python -m kvcore`, and the text on standard input."""

    argv: tuple[str, ...]
    stdin: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a command ended with and wrote."""

    command: Command
    status: int
    stdout: str
    stderr: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Answers with the files that their commands read; `every` is above 1 where commands of the list were left out."""

    files: Mapping[str, bytes]
    answers: tuple[Answer, ...]
    every: int = 1


# The commands. --------------------------------------------------------------------------------------------------------

ENGINES = ("vllm", "sglang", "tensorrt-llm", "llama.cpp", "ollama", "transformers")
KV_DTYPES = (
    "auto", "fp32", "bf16", "fp16", "fp8", "fp8_e5m2", "fp8_per_token_head", "int8_per_token_head",
    "int4_per_token_head", "int8", "int6", "int4", "nvfp4", "mxfp4", "mxfp8", "kivi2", "q8_0", "q5_1", "q5_0", "q4_1",
    "q4_0", "iq4_nl", "turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc", "fp8_ds_mla",
    "q8_0/q4_0", "bf16/fp8", "F32", "fp3",
)  # fmt: skip
WEIGHT_FORMATS = (
    "fp32", "bf16", "fp16", "fp8", "int8", "int4", "awq", "gptq", "gptq8", "awq8", "bnb4", "nvfp4", "mxfp4", "q8_0",
    "q6_k", "q5_k", "q4_k", "q3_k", "q2_k", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl", "iq4_xs", "fp3",
)  # fmt: skip
VARIANTS = (
    "mha", "mqa", "gqa:8", "gqa:4", "gqa:1", "gqa:7", "mla", "mla:256+32", "MLA:512+64", "sliding:4096",
    "sliding:1024/6", "share:2", "share:3", "hybrid:8", "hybrid:4:gdn", "hybrid:3:kda", "linear", "linear:gdn",
)  # fmt: skip
CONTEXTS = ("1", "500", "2K", "4096", "8K", "20000", "32K", "64K", "128K", "1M")
# One model for each way of remembering, and for each rule that an engine has about one.
TYPICAL = (
    "meta-llama/Llama-3.3-70B-Instruct", "google/gemma-3-27b-it", "deepseek-ai/DeepSeek-V3", "openai/gpt-oss-120b",
    "Qwen/Qwen3-8B", "Qwen/Qwen3-Next-80B-A3B-Instruct", "deepseek-ai/DeepSeek-V3.2", "mistralai/Mistral-7B-v0.1",
    "meta-llama/Llama-4-Scout-17B-16E-Instruct", "nvidia/Nemotron-H-56B-Base-8K", "google/gemma-3-4b-it",
    "Qwen/Qwen3-235B-A22B", "deepseek-ai/DeepSeek-V2-Lite", "google/gemma-2-9b", "mistralai/Mixtral-8x7B-v0.1",
    "moonshotai/Kimi-Linear-48B-A3B-Instruct", "ai21labs/Jamba-v0.1", "deepseek-ai/DeepSeek-V4-Flash",
    "meta-llama/Llama-3.2-11B-Vision-Instruct", "state-spaces/mamba-2.8b-hf", "google/gemma-3n-E4B-it",
    "Qwen/Qwen3.5-27B", "tiiuae/Falcon-H1-7B-Instruct", "google/gemma-4-26B-A4B", "zai-org/GLM-4.5-Air",
    "MiniMaxAI/MiniMax-Text-01", "openai/whisper-large-v3", "google/recurrentgemma-2b", "zai-org/GLM-5.1-FP8",
    "ibm-granite/granite-4.0-h-small", "Qwen/Qwen2.5-VL-3B-Instruct", "nvidia/Llama-3_3-Nemotron-Super-49B-v1",
    "google-t5/t5-small", "allenai/longformer-base-4096", "RWKV/rwkv-5-world-3b", "moonshotai/Kimi-K2-Instruct",
    "nvidia/DeepSeek-V3.1-NVFP4", "stepfun-ai/Step-3.7-Flash", "LiquidAI/LFM2-1.2B", "tiiuae/falcon-40b",
)  # fmt: skip
# A release for each rule that changed, beside some that are refused.
VERSIONS: Mapping[str, tuple[str, ...]] = {
    "vllm": ("0.4.0", "0.6.3", "0.8.5.post1", "v0.9.1rc1", "0.10.2", "0.11.0", "0.12.0", "0.15.1", "0.17.0", "0.19.0",
             "0.20.0", "0.20.2", "0.21.0", "0.22.0", "0.23.0", "0.25.1", "0.26.0", "0.27.0", "0.28.0", "0.29.0",
             "0.30.0", "0.32.0", "0.33.0", "v0.34.0", "1.0", "0.3.3", "newest"),
    "sglang": ("0.4.0", "0.4.9.post2", "0.5.0", "v0.5.4", "0.5.23", "0.5.24", "0.6.0", "0.3.1", "five"),
    "tensorrt-llm": ("0.8.0", "0.21.0", "1.0.0", "1.3.0rc7", "1.4.0rc4", "v1.5.0", "0.7.1", "2.0", "x"),
    "llama.cpp": ("2026.10.11549", "'xllamacpp 2026.10.11549'", "0.3.36", "b4000"),
    "ollama": ("fb307609", "0.5.7"),
    "transformers": ("5.0.0", "5.24.0", "v5.25.0", "4.57.1", "x"),
}  # fmt: skip
OPTIONS: Mapping[str, tuple[str, ...]] = {
    "vllm": (
        "--block-size 16", "--block-size 128", "--block-size 7", "--max-num-batched-tokens 2048",
        "--max-num-batched-tokens 16K", "--no-prefix-caching", "--disable-hybrid-kv-cache-manager",
        "--no-async-scheduling", "--num-speculative-tokens 3", "--mtp-layers 1", "--cpu-without-avx512-bf16",
        "--num-gpu-blocks-override 2000", "--block-size 0", "--block-size 16 --no-prefix-caching --no-async-scheduling",
    ),
    "sglang": (
        "--page-size 1", "--page-size 64", "--dp-size 2", "--dp-size 2 --enable-dp-attention --tp 4",
        "--swa-full-tokens-ratio 0.5", "--swa-full-tokens-ratio 2", "--disable-hybrid-swa-memory",
        "--mamba-full-memory-ratio 0.5", "--max-mamba-cache-size 100", "--mamba-ssm-dtype bfloat16",
        "--disable-radix-cache", "--max-total-tokens 100000", "--max-running-requests 32", "--mem-fraction-static 0.8",
        "--chunked-prefill-size 2048", "--dsa-decode-backend fa3", "--dsa-decode-backend none", "--disable-cuda-graph",
        "--mem-fraction-static 0.85 --max-running-requests 128 --disable-radix-cache",
    ),
    "tensorrt-llm": (
        "--backend pytorch", "--backend tensorrt", "--backend x", "--tokens-per-block 64", "--tokens-per-block 48",
        "--max-tokens 100000", "--free-gpu-memory-fraction 0.7", "--max-attention-window 128,131072",
        "--max-attention-window 0", "--enable-attention-dp", "--enable-attention-dp --tp 4",
    ),
    "llama.cpp": (
        "--ctx-size 65536", "--ctx-size 0", "--parallel 8", "--parallel 8 --kv-unified", "--kv-unified-per-slot 4096",
        "--batch-size 512", "--ubatch-size 1024", "--cache-type-k q8_0", "--cache-type-v q4_0 --flash-attn on",
        "--cache-type-v q4_0 --flash-attn off", "--swa-full", "--no-kv-offload", "--n-gpu-layers 10",
        "--split-mode row", "--split-mode tensor", "--pp 2 --tensor-split 3,1", "--tensor-split x",
        "--spec-draft-n-max 4", "--tool library", "--parallel 300",
    ),
    "ollama": (
        "--num-ctx 8192", "--num-parallel 4", "--kv-cache-type q8_0", "--kv-cache-type q4_0 --flash-attention on",
        "--kv-cache-type q8_0 --flash-attention off", "--num-batch 1024", "--num-gpu 20", "--num-ctx 1",
    ),
    "transformers": (
        "--cache-implementation static", "--cache-implementation quantized",
        "--cache-implementation quantized --cache-backend hqq --nbits 8",
        "--cache-implementation quantized --cache-backend fp8", "--nbits 5", "--q-group-size 32", "--q-group-size 30",
        "--cache-implementation quantized --residual-length 64", "--batch-size 16", "--cache-implementation x",
    ),
}  # fmt: skip
SPLITS = (
    "--tp 2", "--tp 4", "--tp 8", "--tp 16", "--tp 3", "--pp 2", "--pp 4", "--pp 7", "--tp 2 --pp 2", "--tp 4 --dp 2",
    "--dp 8", "--tp 8 --dcp 2", "--tp 8 --dcp 8", "--tp 8 --dcp 3", "--tp 8 --expert-parallel",
    "--dp 4 --expert-parallel", "--tp 2 --dp 4 --expert-parallel --dp-attention", "--tp 4 --dp 2 --dp-attention",
    "--gpus 8 --pp 2", "--gpus 8 --tp 2", "--gpus 8 --dp 2", "--gpus 8 --expert-parallel", "--gpus 16",
    "--gpus 6", "--gpus 8 --tp 3", "--gpus 64 --dp-attention", "--tp 8 --pp 4 --dp 2",
)  # fmt: skip
# What every deployment may be asked.
ASKED = (
    "--users 1", "--users 40", "--users 1000", "--kv-gib 20", "--kv-gib 0.5", "--kv-bytes 12345678901", "--kv-bytes 0",
    "--kv-cache-memory-bytes 8e9", "--utilization 0.8", "--gpu-memory-utilization 0.99", "--utilization 0.3",
    "--max-num-seqs 16", "--max-num-seqs 1024", "--max-num-batched-tokens 2048", "--max-num-batched-tokens 32K",
    "--enforce-eager", "--no-prefix-caching", "--speculative-tokens 3", "--weight-format fp8 --kv-dtype fp8",
    "--weight-format q4_k --users 8", "--kv-gib 20 --users 12 --enforce-eager",
    "--max-num-seqs 64 --max-num-batched-tokens 4096 --utilization 0.85 --enforce-eager --no-prefix-caching",
)  # fmt: skip
DRAFTS = (
    ("meta-llama/Llama-3.3-70B-Instruct", "meta-llama/Llama-3.2-1B-Instruct"),
    ("meta-llama/Llama-3.1-8B-Instruct", "files/eagle3.json"), ("meta-llama/Llama-3.1-8B-Instruct", "files/eagle.json"),
    ("Qwen/Qwen3-32B", "Qwen/Qwen3-0.6B"), ("google/gemma-3-27b-it", "google/gemma-3-1b-it"),
    ("openai/gpt-oss-120b", "openai/gpt-oss-20b"), ("Qwen/Qwen3-235B-A22B", "Qwen/Qwen3-30B-A3B-FP8"),
    ("deepseek-ai/DeepSeek-V3", "deepseek-ai/DeepSeek-V2-Lite"), ("Qwen/Qwen3-8B", "nobody/nothing"),
)  # fmt: skip
# yuhuili/EAGLE3-LLaMA3.1-Instruct-8B's shape: one layer of the model's, 32,000 tokens to propose.
EAGLE3 = {
    "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "num_hidden_layers": 1, "hidden_size": 4096,
    "intermediate_size": 14_336, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128_256,
    "draft_vocab_size": 32_000, "max_position_embeddings": 2048, "torch_dtype": "float16",
}  # fmt: skip
LLAMA = {
    "model_type": "llama", "num_hidden_layers": 4, "hidden_size": 512, "num_attention_heads": 8,
    "num_key_value_heads": 2, "intermediate_size": 1024, "vocab_size": 1000, "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}  # fmt: skip
# What is refused, and some things at the edge of what is taken: the rest of a line, by its beginning.
EDGES: Mapping[str, tuple[str, ...]] = {
    "": (
        "", "frobnicate", "size", "engine", "plan", "log", "variants", "compare", "live --frobnicate",
        "variants nobody/nothing --tokens 8K", "variants files/unknown.json --tokens 1K --upper-bound",
    ),
    "size": (
        "nobody/nothing --tokens 1", "qwen/QWEN3-8b --tokens 1", "Qwen/Qwen3-8 --tokens 1",
        "files/none.json --tokens 1", "./nowhere --tokens 1", "files/broken.json --tokens 1",
        "files/list.json --tokens 1", "files/empty.json --tokens 1", "files/unknown.json --tokens 1",
        "files/unknown.json --tokens 1 --upper-bound", "files/weights.bin --tokens 1", "files --tokens 1",
        "files/measured --tokens 8K", "files/measured/config.json --tokens 8K",
    ),
    "size Qwen/Qwen3-8B": (
        "", "--tokens", "--tokens -1", "--tokens many", "--tokens 1.5K", "--tokens 99999999999999", "--tokens 4k",
        "--tokens 1_000", "--tokens 1,000", "--tokens ١٢", "--tokens 1 --batch 0", "--tokens 1 --batch x",
        "--tokens 1 --batch 1000000", "--tokens 1 --batch 9999999999999", "--tokens 1 --as gqa:x",
        "--tokens 1 --as mha:3", "--tokens 1 --as hybrid:4:unknown", "--tokens 1 --as frobnicate",
        "--tokens 1 --source-tokens x", "--tokens 1 --frobnicate", "--tok 1", "--tokens 1 extra",
    ),
    "engine": (
        "frobnicate Qwen/Qwen3-8B", "vLLM Qwen/Qwen3-8B", "vlm Qwen/Qwen3-8B", "sglang Qwen/Qwen3-8B --block-size 5",
        "vllm facebook/opt-125m --max-model-len 1M", "vllm files/unknown.json --upper-bound --max-model-len 4K",
        "vllm files/measured --kv-gib 1", "vllm nobody/nothing", "llama.cpp Qwen/Qwen3-8B --tp 2 --pp 2",
    ),
    "engine vllm Qwen/Qwen3-8B": (
        "", "--max-model-len 0", "--max-model-len x", "--tp 0", "--tp two", "--tp 100000", "--pp 37", "--gpu abacus",
        "--gpu H100-SXM", "--platform tpu", "--kv-gib x", "--kv-gib -1", "--kv-gib 0", "--kv-gib 1 --kv-bytes 5",
        "--kv-gib 1e9", "--page-size 5", "--block 16", "--block-size", "extra",
    ),
    "plan": (
        "Qwen/Qwen3-8B", "Qwen/Qwen3-8B --gpu h100-sxm", "Qwen/Qwen3-8B --context 8K",
        "nobody/nothing --gpu h100-sxm --context 8K", "files/unknown.json --gpu h100-sxm --context 4K --upper-bound",
        "files/measured --gpu l4 --context 4K", "files/measured --gpu l4 --context 4K --weight-format q4_k",
    ),
    "plan Qwen/Qwen3-8B --context 8K": ("--gpu abacus", "--gpu h100", "--gpu H100-SXM", "--gpu"),
    "plan Qwen/Qwen3-8B --gpu h100-sxm": ("--context 0", "--context x", "--context 10M", "--context -1"),
    "plan Qwen/Qwen3-8B --gpu h100-sxm --context 8K": (
        "--engine vlm", "--gpus 0", "--gpus x", "--gpus 5000", "--tp 0", "--dp 9999", "--gpus 8 --tp 3",
        "--gpus 8 --tp 4 --dp 4", "--users 0", "--users x", "--users 99999999", "--utilization 0", "--utilization 1",
        "--utilization 1.1", "--utilization nan", "--max-num-seqs 0", "--max-num-batched-tokens x",
        "--speculative-tokens 65", "--mtp", "--util 0.5", "--page-size 5", "--kv-gib 1 --kv-bytes 1",
        "--draft Qwen/Qwen3-0.6B", "--draft Qwen/Qwen3-0.6B --mtp", "--draft - --speculative-tokens 3",
        "--draft-weight-format fp8", "--draft Qwen/Qwen3-0.6B --speculative-tokens 3 --draft-weight-format x", "extra",
    ),
    "variants Qwen/Qwen3-8B": ("", "--tokens x", "--tokens 8K --designs x", "--tokens 8K --designs mha@fp8,mqa@x"),
    "compare": (
        "Qwen/Qwen3-8B --tokens 8K", "Qwen/Qwen3-8B Qwen/Qwen3-8B --tokens 8K",
        "Qwen/Qwen3-8B nobody/nothing --tokens 8K", "Qwen/Qwen3-8B openai/gpt-oss-20b --tokens 0",
        "Qwen/Qwen3-8B openai/gpt-oss-20b --tokens x", "files/unknown.json Qwen/Qwen3-8B --tokens 8K --upper-bound",
    ),
    "sweep": (
        "--frobnicate", "--models nobody/nothing", "--models ,", "--models all --contexts 1K",
        "--models files/measured,Qwen/Qwen3-8B --gpus l4",
    ),
    "sweep --models Qwen/Qwen3-8B": (
        "", "--gpus abacus", "--contexts x", "--kv-dtypes fp3", "--format parquet", "--format xml",
        "--contexts 8K --gpus all",
    ),
    "log": (
        "files/none.log", "files/empty.json", "files", "files/vllm.log", "files/sglang.log",
        "files/vllm.log --model Qwen/Qwen3-8B", "files/vllm.log --model nobody/nothing",
        "files/vllm.log --model files/again/google__gemma-3-27b-it.json",
    ),
}  # fmt: skip


def commands() -> tuple[list[Command], dict[str, bytes]]:
    """Every command once, and the files that they read by their path; the same at every call."""
    files = _files()
    made = dict.fromkeys(
        Command(argv=(*one.argv, "--json"), stdin=one.stdin)
        for group in (_edges(), _sizes(), _engines(), _plans(), _own_files(files), _logs(), _variants(), _sweeps())
        for one in group
    )
    named: dict[str, list[Command]] = {}
    for one in made:
        named.setdefault(one.argv[0], []).append(one)
    shown = [one for group in named.values() for one in group[::TEXT_EVERY]]
    return [*made, *(Command(argv=one.argv[:-1], stdin=one.stdin) for one in shown)], files


def _words(line: str, *more: str, stdin: str = "") -> Command:
    return Command(argv=tuple(word for text in (line, *more) for word in shlex.split(text)), stdin=stdin)


@cache
def _rows(path: str) -> tuple[dict[str, str], ...]:
    with (DATA / path).open(encoding="utf-8", newline="") as file:
        return tuple(csv.DictReader(file))


def _lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def _models() -> list[str]:
    return [row["model_id"] for row in _rows("models/catalogue.csv")]


def _gpus() -> list[str]:
    return [row["id"] for row in _rows("hardware.csv")]


def _config(model: str) -> dict[str, Any]:
    row = next(row for row in _rows("models/catalogue.csv") if row["model_id"] == model)
    config: dict[str, Any] = json.loads((DATA / "models" / "configs" / row["file"]).read_text("utf-8"))
    return config


@cache
def _enough(model: str, gpu: str) -> int:
    """A power of two of GPUs that about holds a model's weights in 16 bits, judged by its name."""
    row = next((row for row in _rows("models/catalogue.csv") if row["model_id"] == model), None)
    text = "8B" if row is None else row["total_parameters"] or row["display_name"]
    found = re.search(r"([\d.]+) ?([BT])", text)
    billions = 8.0 if found is None else float(found[1]) * (1000 if found[2] == "T" else 1)
    memory = float(next(row for row in _rows("hardware.csv") if row["id"] == gpu)["memory_label"] or 80)
    return int(2 ** min(5, max(0, math.ceil(math.log2(billions * 2.4 / memory)))))


def _edges() -> Iterator[Command]:
    for begin, ends in EDGES.items():
        for end in ends:
            yield _words(begin, end)
    for text in (
        "{",
        "[1]",
        '{"model_type": "x"}',
        "",
        json.dumps(LLAMA),
        json.dumps({**LLAMA, "num_hidden_layers": 0}),
    ):
        yield _words("size - --tokens 100", stdin=text)
        yield _words("plan - --gpu l4 --context 4K", stdin=text)
        yield _words("log -", stdin=text)


def _sizes() -> Iterator[Command]:
    draw = random.Random(11)
    formats = cycle(KV_DTYPES)
    for model in _models():
        yield _words(f"size {model} --tokens 32K")
        length, batch = draw.choice(("0", "1", *CONTEXTS)), draw.choice((1, 2, 7, 64))
        yield _words(f"size {model} --tokens {length} --batch {batch} --kv-dtype {next(formats)}")
    for model, kv in product(("Qwen/Qwen3-8B", "deepseek-ai/DeepSeek-V3.2"), KV_DTYPES):
        yield _words(f"size {model} --tokens 5000 --kv-dtype {kv}")
    for model, design in product(TYPICAL[:12], VARIANTS):
        yield _words(f"size {model} --tokens 20000 --as {design}")
    for model in ("meta-llama/Llama-3.2-11B-Vision-Instruct", "openai/whisper-large-v3", "google-t5/t5-small"):
        for tokens in ("0", "10", "4K", "1M"):
            yield _words(f"size {model} --tokens 100 --source-tokens {tokens}")
    for case in _lines(ROOT / "tests" / "reference" / "by_hand.jsonl"):
        yield _words("size - --tokens 10000", stdin=json.dumps(case["config"]))


def _engines() -> Iterator[Command]:
    draw = random.Random(12)
    others, formats = cycle(ENGINES[1:]), cycle(KV_DTYPES)
    for model in _models():
        length, memory = draw.choice(CONTEXTS[3:8]), draw.choice(("0.5", "4", "20", "60"))
        yield _words(f"engine vllm {model} --max-model-len {length} --kv-gib {memory}")
        yield _words(f"engine {next(others)} {model} --max-model-len {length} --kv-gib {memory}")
    some = cycle(TYPICAL)
    for name in ENGINES:
        for own in OPTIONS[name]:
            for model in islice(some, 3):
                yield _words(f"engine {name} {model} --max-model-len 8K --kv-gib 16", own)
        for version in VERSIONS[name]:
            for model in ("google/gemma-3-27b-it", "deepseek-ai/DeepSeek-V4-Flash", next(some)):
                yield _words(f"engine {name} {model} --max-model-len 32K --kv-gib 40 --engine-version", version)
        for kv, gpu in zip(KV_DTYPES, cycle(("h100-sxm", "b200", "a100-sxm-80gb")), strict=False):
            yield _words(f"engine {name} {next(some)} --max-model-len 8K --kv-gib 16 --gpu {gpu} --kv-dtype {kv}")
        for split in ("--tp 2", "--tp 8", "--tp 16", "--pp 2", "--pp 3 --tp 2", "--tp 8 --dcp 4", "--tp 2 --dcp 4"):
            for model in ("meta-llama/Llama-3.3-70B-Instruct", "deepseek-ai/DeepSeek-V3", next(some)):
                yield _words(f"engine {name} {model} --max-model-len 8K --kv-bytes 20000000000", split)
        for model in islice(some, 8):
            yield _words(f"engine {name} {model} --platform cpu --kv-gib 4 --kv-dtype {next(formats)}")
            yield _words(f"engine {name} {model} --max-model-len 100")
            yield _words(f"engine {name} {model} --max-model-len 8K --kv-gib 8 --as {draw.choice(VARIANTS)}")
    for gpu in _gpus():
        for model in ("google/gemma-3-27b-it", "deepseek-ai/DeepSeek-V3.2"):
            yield _words(f"engine {draw.choice(ENGINES)} {model} --max-model-len 16K --gpu {gpu} --kv-gib 10")
    for run in _lines(DATA / "engines" / "real_vllm.jsonl"):
        asked = f"engine vllm - --platform cpu --max-model-len 4K --kv-bytes {run['kv_memory_bytes']}"
        yield _words(asked, stdin=json.dumps(run["config"]))


def _plans() -> Iterator[Command]:
    yield from _plans_of_models()
    yield from _plans_of_gpus()
    yield from _plans_of_engines()
    yield from _speculating()


def _plan(model: str, gpu: str, context: str, *more: str, gpus: int | None = None) -> Command:
    count = _enough(model, gpu) if gpus is None else gpus
    # Where a split is asked for, it says how many GPUs there are.
    stated = "" if re.search(r"--(gpus|tp|pp|dp) ", " ".join(more)) else f"--gpus {count}"
    return _words(f"plan {model} --gpu {gpu} --context {context}", stated, *more)


def _plans_of_models() -> Iterator[Command]:
    draw = random.Random(13)
    gpus, others = cycle(_gpus()), cycle(ENGINES[1:])
    for model in _models():
        users = draw.choice(("", "--users 1", "--users 16", "--users 200"))
        yield _plan(model, "h100-sxm", draw.choice(CONTEXTS[3:8]), users)
        yield _plan(model, next(gpus), "8K", f"--engine {next(others)}")
        for _ in range(2):
            name = draw.choice(ENGINES)
            gpu = draw.choice(("h100-sxm", "h200-sxm", "b200", "a100-sxm-80gb", "l40s", "mi300x"))
            asked = [f"--engine {name}", draw.choice(("", *ASKED)), f"--kv-dtype {draw.choice(KV_DTYPES[:5])}"]
            asked.append(draw.choice(("", f"--engine-version {draw.choice(VERSIONS[name][:22])}")))
            asked.append(draw.choice(("", f"--weight-format {draw.choice(WEIGHT_FORMATS[:13])}")))
            yield _plan(model, gpu, draw.choice(CONTEXTS), *asked)


def _plans_of_gpus() -> Iterator[Command]:
    draw = random.Random(14)
    for gpu, name in product(_gpus(), ENGINES):
        yield _plan(draw.choice(TYPICAL[:16]), gpu, draw.choice(CONTEXTS[2:8]), f"--engine {name}")
    # Where a release's defaults depend on the machine: large memories, and those that CPU and GPU share.
    large = ("b200", "b300", "gb200", "mi300x", "h200-sxm", "a100-sxm-80gb", "dgx-spark-gb10", "jetson-thor-t5000",
             "mi300a", "strix-halo-128", "l4", "rtx-4090")  # fmt: skip
    for gpu, version in product(large, ("0.8.5", "0.12.0", "0.20.0", "0.26.0", "0.27.0", "0.33.0")):
        for model in ("google/gemma-3-27b-it", "Qwen/Qwen3-8B"):
            yield _plan(model, gpu, "32K", f"--engine-version {version}")


def _plans_of_engines() -> Iterator[Command]:
    draw = random.Random(15)
    some = cycle(TYPICAL)
    for name in ENGINES:
        engine = f"--engine {name}"
        for own in OPTIONS[name]:
            for model in islice(some, 3):
                yield _plan(model, "h100-sxm", "8K", engine, own)
        for version in VERSIONS[name]:
            for model in ("google/gemma-3-27b-it", "openai/gpt-oss-120b", next(some)):
                yield _plan(model, "h100-sxm", "16K", engine, f"--engine-version {version}")
        for split in SPLITS:
            for model in ("meta-llama/Llama-3.3-70B-Instruct", "deepseek-ai/DeepSeek-V3", next(some)):
                yield _plan(model, "h200-sxm", "32K", engine, split)
        for kv in KV_DTYPES:
            for gpu in ("h100-sxm", "b200"):
                yield _plan(next(some), gpu, "32K", engine, f"--kv-dtype {kv}")
        for weights in WEIGHT_FORMATS:
            yield _plan(next(some), "h100-sxm", "8K", engine, f"--weight-format {weights}")
        for asked in ASKED:
            for model in islice(some, 3):
                yield _plan(model, draw.choice(("h100-sxm", "a100-sxm-40gb", "l4")), "8K", engine, asked)
        for design in VARIANTS:
            yield _plan(draw.choice(TYPICAL[:10]), "h100-sxm", "32K", engine, f"--as {design}")
        for model in islice(some, 12):
            # Too few GPUs or too many users, so that something has to be changed.
            yield _plan(model, "l4", "64K", engine, f"--users {draw.choice((1, 20))}", gpus=draw.choice((1, 2)))
            yield _plan(model, "a100-sxm-40gb", "32K", engine, f"--users {draw.choice((4, 60))}")


def _speculating() -> Iterator[Command]:
    draw = random.Random(16)
    layers = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
    own = [model for model in _models() if any(key in json.dumps(_config(model)) for key in layers)]
    for model in own:
        for name in ("vllm", draw.choice(ENGINES[1:])):
            tokens = draw.choice(("", "--speculative-tokens 2"))
            yield _plan(model, draw.choice(("h200-sxm", "b200")), "32K", f"--engine {name} --mtp", tokens)
    for (model, draft), name in product(DRAFTS, ENGINES):
        for more in ("", "--draft-weight-format fp8", "--tp 4", "--users 12"):
            yield _plan(model, "h100-sxm", "16K", f"--engine {name} --draft {draft} --speculative-tokens 3", more)


def _files() -> dict[str, bytes]:
    """Files for commands, by their path: configurations, a folder with an index of weights, logs, and broken ones."""
    from tests.gguf_writer import CONVERTED, TENSORS, write
    from tests.gguf_writer import LLAMA as TOY
    from tests.test_gguf import GEMMA3

    first = {key: value for key, value in EAGLE3.items() if key != "draft_vocab_size"}
    texts: dict[str, Any] = {
        "files/eagle3.json": EAGLE3,
        "files/eagle.json": first | {"architectures": ["EagleLlamaForCausalLM"]},
        "files/unknown.json": LLAMA | {"model_type": "brand_new"},
        "files/list.json": [1],
        "files/measured/config.json": _config("Qwen/Qwen3-8B"),
        "files/measured/model.safetensors.index.json": {"metadata": {"total_size": 16_381_470_720}, "weight_map": {}},
    }
    for model in TYPICAL:
        config, name = _config(model), model.replace("/", "__")
        # The same model under another name; then with its keys in another order and one that nobody reads.
        texts[f"files/again/{name}.json"] = config
        texts[f"files/turned/{name}.json"] = _turned(config) | {"a_key_that_nobody_reads": 1}
    files = {name: json.dumps(value).encode() for name, value in texts.items()}
    files |= {"files/broken.json": b"{", "files/empty.json": b"", "files/weights.bin": b"\0" * 64}
    files |= {"files/vllm.log": (CORPUS / "vllm_gemma3.log").read_bytes()}
    files |= {"files/sglang.log": (CORPUS / "sglang_kimi.log").read_bytes()}
    files["files/toy.gguf"] = write("llama", TOY, TENSORS)
    for model, architecture, keys in CONVERTED:
        config = _config(model)
        text = GEMMA3 | config.get("text_config", config)
        files[f"files/{model.split('/')[1]}.gguf"] = write(architecture, keys(text))
    return files


def _turned(value: Any) -> Any:
    """The same JSON with the keys of every object in the opposite order."""
    if isinstance(value, dict):
        return {key: _turned(value[key]) for key in reversed(value)}
    return [_turned(one) for one in value] if isinstance(value, list) else value


def _own_files(files: Mapping[str, bytes]) -> Iterator[Command]:
    others = cycle(ENGINES)
    for name in files:
        if name.startswith(("files/again/", "files/turned/")):
            model = Path(name).stem.replace("__", "/")
            gpus = f"--gpus {_enough(model, 'h100-sxm')}"
            yield _words(f"size {name} --tokens 8K")
            yield _words(f"plan {name} --gpu h100-sxm --context 32K", gpus)
            yield _words(f"plan {name} --gpu h100-sxm --context 8K --engine {next(others)} --users 4", gpus)
            yield _words(f"engine {next(others)} {name} --max-model-len 8K --kv-gib 10")
        elif name.endswith(".gguf"):
            yield _words(f"size {name} --tokens 8K")
            yield _words(f"engine llama.cpp {name} --max-model-len 8K --kv-gib 10")
            yield _words(f"plan {name} --gpu rtx-4090 --context 8K --engine llama.cpp")
            # The headers name no tensors, so weights are not known and the cache has to be stated.
            for engine in ENGINES:
                yield _words(f"plan {name} --gpu rtx-4090 --context 8K --kv-gib 8 --engine {engine}")
    for case in _lines(ROOT / "tests" / "reference" / "by_hand.jsonl")[::2]:
        asked = f"plan - --gpu h100-sxm --gpus 2 --context 8K --engine {next(others)}"
        yield _words(asked, stdin=json.dumps(case["config"]))


def _logs() -> Iterator[Command]:
    for report in _lines(DATA / "field" / "reports.jsonl"):
        yield _words("log -", stdin=report["quote"])
        if report["catalogue_id"]:
            yield _words(f"log - --model {report['catalogue_id']}", stdin=report["quote"])
    for run in _lines(DATA / "engines" / "llamacpp.jsonl") + _lines(CORPUS / "real_llamacpp.jsonl"):
        text = "\n".join(run["log_lines"])
        yield _words("log -", stdin=text)
        yield _words("log - --model HuggingFaceTB/SmolLM2-135M-Instruct", stdin=text)
    for run in _lines(DATA / "engines" / "real_vllm.jsonl"):
        text = "\n".join([*run["log_lines"], *run["errors"]])
        yield _words("log -", stdin=text)
        yield _words("log - --model google/gemma-3-27b-it", stdin=text)
    for line, _, _ in _lines(CORPUS / "lines.jsonl"):
        yield _words("log -", stdin=line)
        yield _words("log - --model Qwen/Qwen3-8B", stdin=line)


def _variants() -> Iterator[Command]:
    draw = random.Random(17)
    models = _models()
    for at, model in enumerate(models):
        other, (first, second) = models[(at * 7 + 11) % len(models)], draw.choices(KV_DTYPES[:9], k=2)
        if at % 2:
            yield _words(f"variants {model} --tokens {draw.choice(CONTEXTS)} --kv-dtype {first}")
        yield _words(f"compare {model} {other} --tokens {draw.choice(CONTEXTS)}")
        if at % 3 == 0:
            formats = f"--kv-dtype {first} --other-kv-dtype {second}"
            yield _words(f"compare {model} {other} --tokens {draw.choice(CONTEXTS)} {formats}")
    for model in TYPICAL:
        designs = ",".join([*draw.sample(VARIANTS, 4), f"{draw.choice(VARIANTS)}@{draw.choice(KV_DTYPES)}"])
        yield _words(f"variants {model} --tokens 32K --batch {draw.choice((1, 8))} --designs {designs}")


def _sweeps() -> Iterator[Command]:
    draw = random.Random(18)
    for form in ("csv", "json"):
        for _ in range(20):
            models, gpus = ",".join(draw.sample(_models(), 3)), ",".join(draw.sample(_gpus(), draw.randrange(3)))
            contexts, formats = (",".join(draw.sample(names, 2)) for names in (CONTEXTS, KV_DTYPES[:-1]))
            asked = f"--models {models} --contexts {contexts} --kv-dtypes {formats} --format {form}"
            yield _words(f"sweep {asked}", f"--gpus {gpus}" if gpus else "")


# Recording. -----------------------------------------------------------------------------------------------------------


def answer(command: Command) -> tuple[Answer, float]:
    """What `python -m kvcore` answers in this process, and the seconds of processor time that it took."""
    kept = sys.argv, sys.stdin, sys.stdout, sys.stderr
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    start, status = time.process_time(), 0
    try:
        sys.argv, sys.stdout, sys.stderr = ["kvcore", *command.argv], out, err
        sys.stdin = io.TextIOWrapper(io.BytesIO(command.stdin.encode()), encoding="utf-8")
        runpy.run_module("kvcore", run_name="__main__")
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except Exception as problem:
        # What would be a traceback, which names folders of this machine.
        status = 1
        print(f"{type(problem).__name__}: {problem}", file=err)
    finally:
        sys.argv, sys.stdin, sys.stdout, sys.stderr = kept
    seconds = time.process_time() - start
    written = []
    for stream in (out, err):
        stream.flush()
        written.append(stream.detach().getvalue().decode())
    return Answer(command=command, status=status, stdout=written[0], stderr=written[1]), seconds


def _start(folder: str) -> None:
    os.chdir(folder)
    # Where they are shown depends on what ran before, and they name folders of this machine.
    warnings.simplefilter("ignore")


def record(asked: Sequence[Command], files: Mapping[str, bytes]) -> Record:
    """The answers to these commands, in their order; progress and the slowest of them are printed on stderr."""
    answers, times = [], []
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        for name, data in files.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        with multiprocessing.get_context("spawn").Pool(PROCESSES, _start, (folder,)) as pool:
            for found, seconds in pool.imap(answer, asked, chunksize=10):
                answers.append(found)
                times.append(seconds)
                if len(answers) % 500 == 0 or len(answers) == len(asked):
                    spent = time.perf_counter() - began
                    print(f"{len(answers):,} of {len(asked):,} answers after {spent:.0f} s", file=sys.stderr)
    for at in sorted(range(len(times)), key=lambda at: -times[at])[:5]:
        print(f"{times[at]:6.2f} s  {' '.join(asked[at].argv)}", file=sys.stderr)
    return Record(files=files, answers=tuple(answers))


def write(made: Record, path: Path) -> None:
    """Write a record to a file; equal records make equal files."""
    head = {"files": {name: base64.b64encode(data).decode() for name, data in made.files.items()}, "every": made.every}
    lines = [json.dumps(head)]
    for one in made.answers:
        given = {"stdin": one.command.stdin} if one.command.stdin else {}
        line = {"argv": one.command.argv, **given, "status": one.status, "stdout": one.stdout, "stderr": one.stderr}
        lines.append(json.dumps(line, ensure_ascii=False))
    path.write_bytes(gzip.compress("\n".join([*lines, ""]).encode(), mtime=0))


def read(path: Path) -> Record:
    """The record in a file."""
    head, *lines = gzip.decompress(path.read_bytes()).decode().split("\n")[:-1]
    found = json.loads(head)
    answers = []
    for line in map(json.loads, lines):
        command = Command(argv=tuple(line["argv"]), stdin=line.get("stdin", ""))
        answers.append(Answer(command=command, **{name: line[name] for name in ("status", "stdout", "stderr")}))
    files = {name: base64.b64decode(data) for name, data in found["files"].items()}
    return Record(files=files, answers=tuple(answers), every=found["every"])


# Comparing. -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """What stands at one place of an answer before and after; `MISSING` where there is nothing."""

    path: str
    before: Any
    after: Any


class _Missing:
    def __repr__(self) -> str:
        return "nothing"


MISSING = _Missing()


@dataclass(slots=True)
class Place:
    """All answers of one command that differ at one path, and some of them."""

    answers: int = 0
    examples: list[tuple[Command, Difference]] = field(default_factory=list)


@dataclass(slots=True)
class Allowed:
    """A difference that is expected, by patterns of the command's words and of the path, and where it was found."""

    argv: str
    path: str
    reason: str
    places: dict[tuple[str, str], Place] = field(default_factory=dict)

    def covers(self, command: Command, path: str) -> bool:
        """Whether the difference is one of these."""
        return _matches(self.argv, " ".join(command.argv)) and _matches(self.path, path)


def _matches(pattern: str, text: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text, re.DOTALL) is not None


def read_allowed(path: Path) -> list[Allowed]:
    """The expected differences of a TOML or JSON file."""
    text = path.read_text("utf-8")
    found = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    return [Allowed(argv=one["argv"], path=one["path"], reason=one["reason"]) for one in found["allow"]]


def differences(before: Answer, after: Answer) -> Iterator[Difference]:
    """Where two answers to one command differ; nothing where they are the same byte for byte."""
    if before.status != after.status:
        yield Difference(path="(exit status)", before=_gist(before), after=_gist(after))
        return
    texts, stated = (before.stdout, after.stdout), False
    if before.stdout != after.stdout:
        objects = [_object(text) for text in texts]
        if MISSING in objects:
            found = list(_changed("(text)", *(text.splitlines() for text in texts)))
        else:
            found = list(_values("", *objects))
            stated = any(one.path == "error" for one in found)
        yield from found or [
            Difference(path="(order of keys, or how numbers are written)", before=texts[0], after=texts[1])
        ]
    # A refusal's line is the error of its JSON once more.
    if before.stderr != after.stderr and not stated:
        yield Difference(path="(stderr)", before=before.stderr, after=after.stderr)


def _gist(one: Answer) -> str:
    return f"{one.status}: {one.stderr.strip() or one.stdout[:60]}"


def _object(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return MISSING


def _values(path: str, before: Any, after: Any) -> Iterator[Difference]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in dict.fromkeys((*before, *after)):
            inside = f"{path}.{key}" if path else key
            yield from _values(inside, before.get(key, MISSING), after.get(key, MISSING))
    elif isinstance(before, list) and isinstance(after, list):
        yield from _changed(f"{path}[]", before, after)
    elif type(before) is not type(after) or before != after:
        yield Difference(path=path, before=before, after=after)


def _changed(path: str, before: list[Any], after: list[Any]) -> Iterator[Difference]:
    """Differences of two lists: what both have in one order is left out, so that one more item is one difference."""
    old, new = ([json.dumps(one, sort_keys=True) for one in items] for items in (before, after))
    for kind, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind == "equal":
            continue
        for at in range(max(b - a, d - c)):
            one = before[a + at] if a + at < b else MISSING
            other = after[c + at] if c + at < d else MISSING
            yield from _values(path, one, other)


def compare(before: Record, after: Record, allowed: Sequence[Allowed], examples: int) -> bool:
    """Print how two records differ; returns whether anything does beyond what is allowed."""
    olds = {one.command: one for one in before.answers}
    news = {one.command: one for one in after.answers}
    both = [command for command in olds if command in news]
    places: dict[tuple[str, str], Place] = {}
    equal = expected = 0
    for command in both:
        found = list(differences(olds[command], news[command]))
        unexpected = False
        for path in dict.fromkeys(one.path for one in found):
            reason = next((one for one in allowed if one.covers(command, path)), None)
            unexpected |= reason is None
            place = (places if reason is None else reason.places).setdefault(
                (command.argv[0] if command.argv else "(no command)", path), Place()
            )
            place.answers += 1
            if len(place.examples) < examples:
                place.examples.append((command, next(one for one in found if one.path == path)))
        equal += not found
        expected += bool(found) and not unexpected
    print(f"{len(both):,} answers compared: {equal:,} are equal, {expected:,} differ only as allowed, "
          f"{len(both) - equal - expected:,} differ otherwise.")  # fmt: skip
    missing = [
        f"{len(mine) - len(both):,} commands of the {name} record alone"
        for name, mine, others in (("first", olds, after), ("second", news, before))
        # A record that took every Nth command is meant to lack the others.
        if len(mine) > len(both) and others.every == 1
    ]
    print(*(f"{line} are not compared." for line in missing), sep="\n", end="\n" if missing else "")
    _print_places(places)
    for one in allowed:
        print(f"\nAllowed: {one.reason} ({one.argv}; {one.path})" + ("" if one.places else ": not found"))
        _print_places(one.places)
    return bool(places or missing)


def _print_places(places: Mapping[tuple[str, str], Place]) -> None:
    for (name, path), place in sorted(places.items()):
        print(f"\n{name}: {path} ({place.answers:,} answers)" if place.answers > 1 else f"\n{name}: {path} (1 answer)")
        for command, one in place.examples:
            print(f"    {' '.join(command.argv)}" + (f"  < {len(command.stdin):,} characters" if command.stdin else ""))
            print(f"        {_beside(one.before, one.after)}")


def _beside(before: Any, after: Any) -> str:
    if all(isinstance(one, int | float) and not isinstance(one, bool) for one in (before, after)):
        share = f" ({(after - before) / abs(before):+.3%})" if before else ""
        return f"{before:,} → {after:,}{share}"
    if isinstance(before, str) and isinstance(after, str):
        alike = next((at for at, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), 0)
        start = max(0, alike - 40)
        before, after = (("…" if start else "") + text[start:] for text in (before, after))
    shown = [repr(one) for one in (before, after)]
    return " → ".join(text if len(text) <= 160 else text[:160] + "…" for text in shown)


def main(arguments: Iterable[str] | None = None) -> int:
    """Run one of the two commands; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.answers", description=(__doc__ or "").split("\n")[0])
    modes = parser.add_subparsers(dest="mode", required=True)
    recording = modes.add_parser("record", help="run the commands and write what they answer")
    recording.add_argument("file", type=Path, help="the record to write, such as before.jsonl.gz")
    recording.add_argument("--like", type=Path, help="an old record, whose commands and files are taken")
    recording.add_argument("--every", type=int, default=1, help="take every Nth command only")
    comparing = modes.add_parser("compare", help="list what differs between two records")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    comparing.add_argument("--allow", type=Path, help="expected differences, TOML or JSON")
    comparing.add_argument("--examples", type=int, default=3, help="examples of each difference")
    options = parser.parse_args(None if arguments is None else list(arguments))
    if options.mode == "record":
        if options.like is None:
            (asked, files), every = commands(), 1
        else:
            old = read(options.like)
            asked, files, every = [one.command for one in old.answers], dict(old.files), old.every
        made = record(asked[:: options.every], files)
        write(replace(made, every=every * options.every), options.file)
        return 0
    allowed = [] if options.allow is None else read_allowed(options.allow)
    return int(compare(read(options.before), read(options.after), allowed, options.examples))


if __name__ == "__main__":
    sys.exit(main())
