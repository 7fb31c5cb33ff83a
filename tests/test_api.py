"""The public API: the command line's answers as functions, light to import, and never hidden by a module's name."""

from __future__ import annotations

import doctest
import json
import subprocess
import sys
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import pytest

import kvcore
from tests.commands import answer

ROOT = Path(__file__).resolve().parent.parent
LLAMA_70B = "meta-llama/Llama-3.3-70B-Instruct"
GEMMA = "google/gemma-3-27b-it"
LOG = ROOT / "tests" / "engines" / "corpus" / "vllm_gemma3.log"
FUNCTIONS = ("load", "size", "engine", "plan", "read_log", "compare")


def test_the_names() -> None:
    assert set(kvcore.__all__) == {"KVCoreError", *FUNCTIONS}
    assert set(kvcore.__all__) <= set(dir(kvcore))
    with pytest.raises(AttributeError, match="frobnicate"):
        _ = kvcore.frobnicate


def test_no_module_has_the_name_of_a_function() -> None:
    """Python binds a module that is imported to its package, and would hide the function."""
    names = {path.stem for path in (ROOT / "kvcore").iterdir()}
    assert names & set(kvcore.__all__) == set()


def test_importing_is_light_and_quick() -> None:
    code = """
import sys
before = set(sys.modules)
import kvcore
light = {name for name in set(sys.modules) - before if name.startswith("kvcore")}
import kvcore.sizing, kvcore.planning.plan, kvcore.variants.compare
print(sorted(light), all(callable(getattr(kvcore, name)) for name in kvcore.__all__))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['kvcore'] True"


# (what the function answers, the same question on the command line)
SAME: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (lambda: kvcore.size(GEMMA, "32K", kv_dtype="fp8", batch=3),
     ("size", GEMMA, "--tokens", "32768", "--kv-dtype", "fp8", "--batch", "3")),
    (lambda: kvcore.size(kvcore.load(LLAMA_70B, variant="mla"), 1), ("size", LLAMA_70B, "--tokens", "1", "--as", "mla")),
    (lambda: kvcore.compare(GEMMA, LLAMA_70B, 8192, other_kv_dtype="fp8"),
     ("compare", GEMMA, LLAMA_70B, "--tokens", "8K", "--other-kv-dtype", "fp8")),
    (lambda: kvcore.engine("vllm", GEMMA, max_model_len="128K", gpu="h100-sxm", kv_gib=40, block_size=32),
     ("engine", "vllm", GEMMA, "--max-model-len", "128K", "--gpu", "h100-sxm", "--kv-gib", "40", "--block-size", "32")),
    (lambda: kvcore.engine("llama.cpp", GEMMA, ctx_size=131072, parallel=2, cache_type_k="q8_0", swa_full=False),
     ("engine", "llama.cpp", GEMMA, "--ctx-size", "131072", "--parallel", "2", "--cache-type-k", "q8_0")),
    (lambda: kvcore.plan(LLAMA_70B, gpu="h100-sxm", gpus=4, context="32K", users=10),
     ("plan", LLAMA_70B, "--gpu", "h100-sxm", "--gpus", "4", "--context", "32K", "--users", "10")),
    (lambda: kvcore.plan(LLAMA_70B, gpu="h100-sxm", gpus=8, tp=4, context="32K", kv_gib=20, prefix_caching=False),
     ("plan", LLAMA_70B, "--gpu", "h100-sxm", "--gpus", "8", "--tp", "4", "--context", "32K", "--kv-gib", "20",
      "--no-prefix-caching")),
    (lambda: kvcore.plan("deepseek-ai/DeepSeek-V3", gpu="h200-sxm", tp=8, context="32K", draft="mtp"),
     ("plan", "deepseek-ai/DeepSeek-V3", "--gpu", "h200-sxm", "--tp", "8", "--context", "32K", "--mtp")),
    (lambda: kvcore.plan(LLAMA_70B, gpu="h100-sxm", tp=4, context="32K", draft="meta-llama/Llama-3.2-1B-Instruct",
                         draft_weight_format="fp8", speculative_tokens=4),
     ("plan", LLAMA_70B, "--gpu", "h100-sxm", "--tp", "4", "--context", "32K", "--draft",
      "meta-llama/Llama-3.2-1B-Instruct", "--draft-weight-format", "fp8", "--speculative-tokens", "4")),
    (lambda: kvcore.plan("deepseek-ai/DeepSeek-V3", gpu="h200-sxm", tp=8, context="32K", engine="sglang", dp_size=8,
                         enable_dp_attention=True, mem_fraction_static=0.8),
     ("plan", "deepseek-ai/DeepSeek-V3", "--gpu", "h200-sxm", "--tp", "8", "--context", "32K", "--engine", "sglang",
      "--dp-size", "8", "--enable-dp-attention", "--mem-fraction-static", "0.8")),
    (lambda: kvcore.read_log(LOG), ("log", str(LOG))),
    (lambda: kvcore.read_log(LOG.read_text("utf-8"), model="google/gemma-3-4b-it"),
     ("log", str(LOG), "--model", "google/gemma-3-4b-it")),
)  # fmt: skip


@pytest.mark.parametrize(("asked", "words"), SAME, ids=[f"{at}-{words[0]}" for at, (_, words) in enumerate(SAME)])
def test_functions_answer_as_the_command_line_does(
    capsys: pytest.CaptureFixture[str], asked: Any, words: tuple[str, ...]
) -> None:
    result = asked()
    found = result.to_dict()
    assert found == json.loads(json.dumps(found)), "plain JSON values"
    assert found == answer(capsys, *words)
    with pytest.raises(FrozenInstanceError):
        setattr(result, fields(result)[0].name, None)
    table = result.to_frame()
    assert len(table) > 0
    assert all(isinstance(name, str) for name in table.columns)


def test_tables() -> None:
    size = kvcore.size(LLAMA_70B, 8192)
    assert size.to_frame()["resident_bytes"].sum() == size.resident_bytes == 5 * 2**29
    plan = kvcore.plan(LLAMA_70B, gpu="h100-sxm", tp=4, context="32K")
    parts = plan.to_frame().set_index("part")["best_bytes"]
    assert parts["weights"] == plan.weights_bytes
    assert parts["KV cache"] == plan.kv_bytes
    pair = kvcore.compare(GEMMA, LLAMA_70B, 8192)
    assert list(pair.to_frame()["model"]) == [GEMMA, LLAMA_70B]


def test_a_model_may_be_given_in_every_form(tmp_path: Path) -> None:
    raw = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    for model in (kvcore.load(raw), kvcore.load(tmp_path), kvcore.load(tmp_path / "config.json"), str(tmp_path)):
        assert kvcore.size(model, 10).resident_bytes == 10 * 2 * 2 * 64 * 2
    bound = kvcore.load(raw | {"model_type": "brand_new"}, upper_bound=True)
    assert kvcore.size(bound, 10).knowledge == "upper_bound"


@pytest.mark.parametrize(
    ("asked", "kind"),
    [
        (lambda: kvcore.load("nobody/nothing"), "model"),
        (lambda: kvcore.load({"model_type": "brand_new"}), "config"),
        (lambda: kvcore.load(LLAMA_70B, variant="gqa:7"), "unit"),
        (lambda: kvcore.size(LLAMA_70B, "many"), "unit"),
        (lambda: kvcore.size(LLAMA_70B, -1), "unit"),
        (lambda: kvcore.size(LLAMA_70B, 1, batch=0), "unit"),
        (lambda: kvcore.compare(LLAMA_70B, GEMMA, 1, kv_dtype="fp3"), "unit"),
        (lambda: kvcore.engine("abacus", LLAMA_70B), "engine"),
        (lambda: kvcore.engine("vllm", LLAMA_70B, gpu="abacus"), "hardware"),
        (lambda: kvcore.engine("vllm", LLAMA_70B, page_size=16), "engine"),
        (lambda: kvcore.engine("vllm", LLAMA_70B, block_size="16"), "unit"),
        (lambda: kvcore.engine("vllm", LLAMA_70B, block_size=True), "unit"),
        (lambda: kvcore.engine("vllm", LLAMA_70B, kv_bytes=-1), "unit"),
        (lambda: kvcore.engine("vllm", LLAMA_70B, kv_bytes=1, kv_gib=1), "unit"),
        (lambda: kvcore.plan(LLAMA_70B, gpu="h100-sxm", context="8K", users=0), "unit"),
        (lambda: kvcore.plan(LLAMA_70B, gpu="h100-sxm", context=-1), "unit"),
        (lambda: kvcore.plan(LLAMA_70B, gpu="h100-sxm", context="8K", kv_dtype="fp3"), "unit"),
        (lambda: kvcore.plan(LLAMA_70B, gpu="h100-sxm", context="8K", tp=3), "engine"),
        (lambda: kvcore.plan(LLAMA_70B, gpu="h100-sxm", context="8K", gpus=6, tp=4), "unit"),
        (lambda: kvcore.plan(LLAMA_70B, gpu="h100-sxm", context="8K", draft=GEMMA), "unit"),
        (lambda: kvcore.read_log("nothing here"), "log"),
        (lambda: kvcore.read_log(Path("no such file.log")), "source"),
    ],
)
def test_refusals(asked: Any, kind: str) -> None:
    with pytest.raises(kvcore.KVCoreError) as refusal:
        asked()
    assert refusal.value.kind == kind


def test_the_documented_examples() -> None:
    flags = doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL | doctest.ELLIPSIS
    found = doctest.testfile(str(ROOT / "docs" / "api.md"), module_relative=False, optionflags=flags)
    assert found.failed == 0
    assert found.attempted > 25
    assert doctest.testmod(kvcore).failed == 0
