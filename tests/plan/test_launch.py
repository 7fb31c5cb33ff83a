"""Launch commands: what they say, that the engines' own parsers take them, and that a hostile name does nothing."""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from kvcore import catalogue
from kvcore.engines.registry import NAMES
from kvcore.errors import KVCoreError
from kvcore.hardware import accelerator
from kvcore.plan.deployment import Deployment
from kvcore.plan.launch import Command, launch
from kvcore.plan.launch_words import PLACEHOLDER
from tests.plan.engine_parsers import parsed
from tests.plan.launch_cases import (
    DEEPSEEK,
    GEMMA,
    HOSTILE,
    LLAMA,
    UNPRINTABLE,
    V32,
    h100,
    named,
    vllm_cases,
)


def made(name: str, deployment: Deployment, users: int | None = None) -> Command:
    return launch(catalogue.load(name), deployment, users)


def test_vllm_says_what_differs_from_its_defaults() -> None:
    assert made(LLAMA, h100(tp=4)).text == (
        "vllm serve meta-llama/Llama-3.3-70B-Instruct --max-model-len 32768 --tensor-parallel-size 4"
    )


def test_vllm_says_the_whole_deployment() -> None:
    deployment = h100(
        tp=8, pp=2, dp=2, dcp=2, expert_parallel=True, dp_attention=True, kv_dtype="fp8", utilization=0.85,
        max_num_batched_tokens=4096, max_num_seqs=64, enforce_eager=True, prefix_caching=False, speculative_tokens=3,
        options=(("block_size", 64), ("mtp_layers", 1), ("no_async_scheduling", True)),
    )  # fmt: skip
    command = made(DEEPSEEK, deployment)
    assert parsed("vllm", command.words) == {
        "model": DEEPSEEK, "--max-model-len": 32_768, "--tensor-parallel-size": 8, "--pipeline-parallel-size": 2,
        "--data-parallel-size": 2, "--decode-context-parallel-size": 2, "--enable-expert-parallel": True,
        "--kv-cache-dtype": "fp8", "--gpu-memory-utilization": 0.85, "--max-num-batched-tokens": 4096,
        "--max-num-seqs": 64, "--enforce-eager": True, "--no-enable-prefix-caching": True, "--block-size": 64,
        "--no-async-scheduling": True, "--speculative-config": {"method": "mtp", "num_speculative_tokens": 3},
    }  # fmt: skip
    # 8 × 2 × 2 GPUs are four hosts of eight.
    assert any("32 GPUs are 4 hosts" in note and "--nnodes" in note and "ray" in note for note in command.notes)


def test_vllm_bytes_stand_in_place_of_a_share() -> None:
    command = made(LLAMA, h100(tp=4, kv_bytes=40 * 2**30, utilization=0.9))
    found = parsed("vllm", command.words)
    assert found["--kv-cache-memory-bytes"] == 42_949_672_960
    assert "--gpu-memory-utilization" not in found


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("bf16", "bfloat16"), ("fp16", "float16"), ("fp8", "fp8"), ("fp8_e5m2", "fp8"), ("nvfp4", "nvfp4"),
        ("tq_k8v4", "turboquant_k8v4"), ("int4_per_token_head", "int4_per_token_head"),
    ],
)  # fmt: skip
def test_vllm_cache_formats_have_its_own_words(ours: str, theirs: str) -> None:
    assert parsed("vllm", made(LLAMA, h100(tp=4, kv_dtype=ours)).words)["--kv-cache-dtype"] == theirs


def test_weights_are_an_option_only_where_the_engine_makes_them() -> None:
    fp8 = made(LLAMA, h100(tp=4, weight_format="fp8"))
    assert parsed("vllm", fp8.words)["--quantization"] == "fp8"
    awq = made(LLAMA, h100(tp=4, weight_format="awq"))
    assert "--quantization" not in awq.words
    assert any("awq weights are no option" in note for note in awq.notes)
    # Its own format is not said, and fp8 of a checkpoint that is fp8 is its own.
    assert made(LLAMA, h100(tp=4, weight_format="bf16")).words == made(LLAMA, h100(tp=4)).words
    assert "--quantization" not in made(DEEPSEEK, h100(tp=8, weight_format="fp8")).words
    assert (
        parsed("sglang", made(LLAMA, h100(engine="sglang", tp=4, weight_format="fp16")).words)["--dtype"] == "float16"
    )


@pytest.mark.parametrize(("name", "deployment"), vllm_cases())
def test_vllm_commands_parse_as_recorded(name: str, deployment: Deployment) -> None:
    found = parsed("vllm", made(name, deployment).words)
    assert found["model"] == name
    assert found["--max-model-len"] == deployment.context


SGLANG_CASES = (
    (LLAMA, {"tp": 4}),
    (LLAMA, {"tp": 2, "pp": 2, "dp": 2, "utilization": 0.88, "enforce_eager": True, "prefix_caching": False}),
    (LLAMA, {"tp": 4, "kv_dtype": "bf16", "max_num_seqs": 32, "max_num_batched_tokens": 4096, "weight_format": "fp8"}),
    (
        V32,
        {"tp": 1, "dp": 8, "dp_attention": True, "expert_parallel": True, "kv_dtype": "fp8", "speculative_tokens": 3},
    ),
    (
        GEMMA,
        {"tp": 2, "options": (("page_size", 64), ("swa_full_tokens_ratio", 0.5), ("disable_hybrid_swa_memory", True))},
    ),
    (LLAMA, {"tp": 4, "kv_bytes": 40 * 2**30}),
)


@pytest.mark.parametrize(("name", "more"), SGLANG_CASES)
def test_sglang_commands_parse_as_recorded(name: str, more: dict[str, Any]) -> None:
    found = parsed("sglang", made(name, h100(engine="sglang", **more)).words)
    assert (found["--model-path"], found["--context-length"]) == (name, 32_768)


def test_sglang_counts_attention_ranks_as_its_tensor_parallel_ranks() -> None:
    found = parsed("sglang", made(*_sglang(V32, dp=8, dp_attention=True, expert_parallel=True)).words)
    assert (found["--tp-size"], found["--dp-size"], found["--ep-size"]) == (8, 8, 8)
    assert found["--enable-dp-attention"] is True
    # Replicas that share nothing are SGLang's dp beside its tp.
    found = parsed("sglang", made(*_sglang(LLAMA, tp=4, dp=2)).words)
    assert (found["--tp-size"], found["--dp-size"]) == (4, 2)


def _sglang(name: str, **more: Any) -> tuple[str, Deployment]:
    return name, h100(engine="sglang", **more)


def test_sglang_bytes_are_said_in_tokens() -> None:
    # Llama 3.3 70B over 4 ranks: 80 layers × 2 heads × 2 × 128 × 2 B = 81,920 B a token; 40 GiB are 524,288 of them.
    command = made(*_sglang(LLAMA, tp=4, kv_bytes=40 * 2**30))
    assert parsed("sglang", command.words)["--max-total-tokens"] == 524_288


TRT_CASES: tuple[tuple[str, dict[str, Any]], ...] = (
    (LLAMA, {"tp": 4}),
    (LLAMA, {"tp": 4, "pp": 2, "max_num_batched_tokens": 4096, "max_num_seqs": 64, "utilization": 0.8}),
    (LLAMA, {"tp": 4, "kv_dtype": "fp8", "prefix_caching": False, "enforce_eager": True, "kv_bytes": 10**10}),
    (DEEPSEEK, {"tp": 1, "dp": 8, "dp_attention": True, "expert_parallel": True}),
    (LLAMA, {"tp": 4, "options": (("backend", "tensorrt"), ("tokens_per_block", 64))}),
)


@pytest.mark.parametrize(("name", "more"), TRT_CASES)
def test_tensorrt_llm_commands_parse_as_recorded(name: str, more: dict[str, Any]) -> None:
    command = made(name, h100(engine="tensorrt-llm", **more))
    found = parsed("tensorrt-llm", command.words)
    assert (found["model"], found["--max_seq_len"]) == (name, 32_768)
    assert ("--extra_llm_api_options" in found) == bool(command.files)


def test_tensorrt_llm_has_a_file_for_what_no_option_says() -> None:
    more: dict[str, Any] = {
        "kv_dtype": "fp8",
        "kv_bytes": 10**10,
        "utilization": 0.8,
        "enforce_eager": True,
        "prefix_caching": False,
    }
    command = made(LLAMA, h100(engine="tensorrt-llm", tp=4, **more))
    ((name, text),) = command.files
    assert command.words[-2:] == ("--extra_llm_api_options", name)
    assert text == (
        "kv_cache_config:\n  dtype: fp8\n  enable_block_reuse: false\n  max_gpu_total_bytes: 10000000000\n"
        "  free_gpu_memory_fraction: 0.8\ncuda_graph_config: null\n"
    )
    attention = made(DEEPSEEK, h100(engine="tensorrt-llm", dp=8, dp_attention=True, expert_parallel=True))
    found = parsed("tensorrt-llm", attention.words)
    assert (found["--tp_size"], found["--ep_size"]) == (8, 8)
    assert attention.files[0][1] == "enable_attention_dp: true\n"


def llamacpp_names() -> set[str]:
    """The options that the installed llama.cpp knows, as texts of its library."""
    spec = find_spec("xllamacpp")
    assert spec is not None
    assert spec.origin is not None
    (library,) = Path(spec.origin).parent.glob("*.so")
    return {found.decode() for found in re.findall(rb"\0(--[a-z][a-z0-9-]*)(?=\0)", library.read_bytes())}


def test_llama_cpp_options_are_those_of_the_installed_library() -> None:
    known = llamacpp_names()
    assert {"--model", "--ctx-size"} <= known
    assert "--tensor-parallel-size" not in known
    deployment = Deployment(
        gpu=accelerator("rtx-4090"), context=8192, pp=2, engine="llama.cpp", kv_dtype="q8_0/q4_0", weight_format="q4_k",
        max_num_batched_tokens=4096, prefix_caching=False, speculative_tokens=2,
        options=(("flash_attn", "on"), ("n_gpu_layers", 40), ("split_mode", "layer"), ("tensor_split", "3,1")),
    )  # fmt: skip
    command = made(GEMMA, deployment, users=4)
    assert {word for word in command.words if word.startswith("--")} <= known
    text = " " + command.text + " "
    # Slots share the context: four of 8,192 tokens.
    for part in ("--ctx-size 32768", "--parallel 4", "--cache-type-k q8_0", "--cache-type-v q4_0", "--batch-size 4096",
                 "--ubatch-size 4096", "--no-cache-prompt", "--tensor-split 3,1", "--spec-draft-n-max 2"):  # fmt: skip
        assert f" {part} " in text
    assert command.words[:3] == ("llama-server", "--model", "./gemma-3-27b-it-Q4_K.gguf")


def test_llama_cpp_slots_are_what_was_asked_for() -> None:
    """A server that is told its context and slots is started so, whatever the users are."""
    options = (("ctx_size", 16_384), ("parallel", 2))
    words = made(LLAMA, h100(engine="llama.cpp", options=options, context=8192), users=9).words
    assert words[words.index("--ctx-size") + 1 : words.index("--ctx-size") + 4] == ("16384", "--parallel", "2")


def test_ollama_has_its_environment_and_a_modelfile() -> None:
    deployment = Deployment(
        gpu=accelerator("rtx-4090"), context=8192, pp=2, engine="ollama", kv_dtype="q8_0", weight_format="q4_k",
        options=(("num_gpu", 40),),
    )  # fmt: skip
    command = made(GEMMA, deployment, users=3)
    assert command.text.splitlines() == [
        "OLLAMA_CONTEXT_LENGTH=8192 OLLAMA_NUM_PARALLEL=3 OLLAMA_KV_CACHE_TYPE=q8_0 ollama serve",
        "ollama create kv-plan -f Modelfile",
        "ollama run kv-plan",
    ]
    assert command.files == (
        ("Modelfile", "FROM ./gemma-3-27b-it-Q4_K.gguf\nPARAMETER num_ctx 8192\nPARAMETER num_gpu 40\n"),
    )


def test_transformers_is_a_few_lines_of_python() -> None:
    command = made(LLAMA, h100(engine="transformers", weight_format="fp8"), users=3)
    ((name, text),) = command.files
    assert command.words == ("python", name)
    module = ast.parse(text)
    imported = next(node for node in module.body if isinstance(node, ast.ImportFrom))
    transformers = pytest.importorskip("transformers", exc_type=ImportError)
    assert {alias.name for alias in imported.names} <= set(dir(transformers))
    assert "max_length=32768" in text
    assert "* 3\n" in text


@pytest.mark.parametrize(
    ("engine", "how"), [("vllm", '{"method": "mtp"'), ("sglang", "NEXTN"), ("tensorrt-llm", "decoding_type: MTP")]
)
def test_a_prediction_head_is_not_assumed(engine: str, how: str) -> None:
    """Proposals from the prompt start whatever the checkpoint has; the note says how its head is used."""
    command = made(DEEPSEEK, h100(engine=engine, tp=8, speculative_tokens=2))
    assert any(how in note and "num_nextn_predict_layers" in note for note in command.notes)
    words = " ".join(command.words) + "".join(text for _, text in command.files)
    assert "ngram" in words.lower()
    assert "mtp" not in words.lower()


def test_one_replica_at_a_time_is_said() -> None:
    for engine, more in (("tensorrt-llm", {}), ("llama.cpp", {}), ("ollama", {}), ("transformers", {})):
        notes = made(LLAMA, h100(engine=engine, dp=3, **more)).notes
        assert any("3 times" in note for note in notes), engine


@pytest.mark.parametrize("engine", NAMES)
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_one_word(engine: str, name: str, tmp_path: Path) -> None:
    """A shell that is given the text sees exactly our words, and nothing in the name is run or read as an option."""
    command = launch(named(catalogue.load(LLAMA), name), h100(engine=engine, options=()))
    for line, words in zip(command.text.split("\n"), (command.words, *command.after), strict=True):
        assert tuple(shlex.split(line)) == words
    first = command.text.split("\n")[0]
    quoted = re.sub(r"^(?:OLLAMA_\w+=\w+ )*", "", first)
    shown = subprocess.run(
        ["/bin/sh", "-c", f"printf '%s\\0' {quoted}"],
        capture_output=True,
        cwd=tmp_path,
        check=True,
        env={"HOME": "/nowhere"},
    ).stdout.decode()
    expected = [word for word in command.words if not word.startswith("OLLAMA_")]
    assert shown.split("\0")[:-1] == expected
    assert list(tmp_path.iterdir()) == []
    if engine in ("vllm", "sglang", "tensorrt-llm"):
        found = parsed(engine, command.words)
        assert found.get("model", found.get("--model-path")) == (f"./{name}" if name.startswith("-") else name)
        assert "--trust-remote-code" not in found
    if engine in ("llama.cpp", "ollama"):
        file = command.words[2] if engine == "llama.cpp" else command.files[0][1].split()[1]
        assert re.fullmatch(r"\./[A-Za-z0-9][A-Za-z0-9._-]*\.gguf", file)
    if engine == "transformers":
        assigned = [node for node in ast.parse(command.files[0][1]).body if isinstance(node, ast.Assign)]
        assert ast.literal_eval(assigned[0].value) == (f"./{name}" if name.startswith("-") else name)


@pytest.mark.parametrize("engine", NAMES)
@pytest.mark.parametrize("name", UNPRINTABLE)
def test_a_name_that_a_terminal_would_act_upon_is_not_shown(engine: str, name: str) -> None:
    command = launch(named(catalogue.load(LLAMA), name), h100(engine=engine))
    shown = command.text + "".join(text for _, text in command.files)
    assert shown.replace("\n", "").isprintable()
    assert PLACEHOLDER in shown
    assert any(PLACEHOLDER in note for note in command.notes)


@pytest.mark.parametrize("kv", ["; id", "--trust-remote-code", "fp8\n", "$(id)"])
@pytest.mark.parametrize("engine", NAMES)
def test_a_format_that_is_none_is_refused(engine: str, kv: str) -> None:
    if kv == "fp8\n" and engine in ("vllm", "sglang", "tensorrt-llm"):
        assert "\n" not in made(LLAMA, h100(engine=engine, kv_dtype=kv)).text
        return
    with pytest.raises(KVCoreError):
        made(LLAMA, h100(engine=engine, kv_dtype=kv))


def test_recorded_options_say_where_they_are_from() -> None:
    for path in sorted((Path(__file__).parent / "data").glob("options_*.json")):
        recorded = json.loads(path.read_text("utf-8"))
        assert recorded["version"]
        assert recorded["how"]
        assert len(recorded["options"]) > 35


def test_every_engine_has_a_command() -> None:
    for engine in NAMES:
        plain = replace(h100(), engine=engine)
        assert made(LLAMA, plain).words


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_every_catalogued_model_has_a_command_that_parses(engine: str) -> None:
    for entry in catalogue.entries():
        command = made(entry.model_id, h100(engine=engine, context=256, kv_dtype="fp8", weight_format="fp8"))
        found = parsed(engine, command.words)
        assert found.get("model", found.get("--model-path")) == entry.model_id
