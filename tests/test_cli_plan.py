"""`python -m kvcore plan`: the keys that other programs rely on, exit statuses, and how GPUs are split.

Pools are stated (`--kv-gib`) wherever a figure is worked out by hand: then nothing about memory is estimated.
"""

from __future__ import annotations

import io
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvcore.engines.registry import engine_names
from tests import commands
from tests.models import LLAMA

ROOT = Path(__file__).resolve().parent.parent
LLAMA_70B = "meta-llama/Llama-3.3-70B-Instruct"
GIB = 2**30
KEYS = {
    "fits", "weights_bytes", "overheads", "kv_bytes", "kv_cache_size_tokens", "max_concurrency", "binding", "remedies",
    "command", "usd_per_hour", "terms",
}  # fmt: skip


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    return commands.run(capsys, "plan", *arguments)


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    return commands.answer(capsys, "plan", *arguments)


def test_keys_and_their_kinds(capsys: pytest.CaptureFixture[str]) -> None:
    result = answer(capsys, LLAMA_70B, "--gpu", "h100-sxm", "--gpus", "4", "--context", "32K", "--users", "10")
    assert set(result) >= KEYS
    assert result["fits"] is True
    assert set(result["max_concurrency"]) == {"low", "best", "high"}
    for key in ("weights_bytes", "kv_bytes", "kv_cache_size_tokens"):
        assert type(result[key]) is int
    for part in result["overheads"]:
        assert set(part) == {"name", "low_bytes", "bytes", "high_bytes"}
        assert 0 <= part["low_bytes"] <= part["bytes"] <= part["high_bytes"]
    for term in result["terms"]:
        assert set(term) == {"name", "formula", "value", "unit", "knowledge"}
    assert isinstance(result["binding"], str)
    assert isinstance(result["command"], str)
    assert result["usd_per_hour"] is None or result["usd_per_hour"] > 0
    assert result["remedies"] == []
    # 141,107 MB of weights in 16 bits over 4 ranks: the part of each is at least a quarter.
    assert 141_107_412_992 / 4 <= result["weights_bytes"] <= 1.03 * 141_107_412_992 / 4


def test_a_stated_pool_worked_out_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    """40 GiB on each of 4 ranks: 80 layers × 2 KV heads × 2 × 128 × 2 B = 81,920 B a token, 16 tokens a block."""
    result = answer(capsys, LLAMA_70B, "--gpu", "h100-sxm", "--tp", "4", "--context", "32K", "--kv-gib", "40")
    assert result["kv_bytes"] == 40 * GIB
    assert result["kv_cache_size_tokens"] == 40 * GIB // 81_920 == 524_288
    assert result["max_concurrency"] == {"low": 16.0, "best": 16.0, "high": 16.0}
    assert result["bytes_per_request"] == 32_768 * 81_920
    # Two replicas hold twice as much, each its own.
    twice = answer(
        capsys, LLAMA_70B, "--gpu", "h100-sxm", "--gpus", "8", "--tp", "4", "--context", "32K", "--kv-gib", "40"
    )
    assert (twice["dp"], twice["kv_bytes"]) == (2, 40 * GIB)
    assert twice["kv_cache_size_tokens"] == 2 * 524_288
    assert twice["max_concurrency"]["best"] == 32.0


def test_users_decide_whether_it_fits(capsys: pytest.CaptureFixture[str]) -> None:
    # 16 requests of 2.5 GiB on each of four ranks, and the block of 16 × 80 KiB that vLLM never hands out.
    pool = str(40 * GIB + 16 * 80 * 1024)
    stated = (LLAMA_70B, "--gpu", "h100-sxm", "--tp", "4", "--context", "32K", "--kv-bytes", pool)
    assert answer(capsys, *stated, "--users", "16")["fits"] is True
    result = answer(capsys, *stated, "--users", "17")
    assert (result["fits"], result["binding_kind"]) == (False, "cache")
    assert "17" in result["binding"]
    assert result["remedies"]
    for remedy in result["remedies"]:
        assert remedy["change"]
        assert remedy["options"]
    # fp8 halves what a token takes: 32 requests fit.
    changes = [remedy["options"] for remedy in result["remedies"]]
    assert {"kv_dtype": "fp8"} in changes
    assert {"users": 16} in changes
    assert answer(capsys, *stated, "--users", "32", "--kv-dtype", "fp8")["fits"] is True


def test_the_command_is_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--tp", "4", "--context", "32K", "--kv-gib", "40", "--max-num-seqs", "64", "--enforce-eager")
    result = answer(capsys, LLAMA_70B, "--gpu", "h100-sxm", *arguments)
    assert shlex.split(result["command"]) == [
        "vllm", "serve", LLAMA_70B, "--max-model-len", "32768", "--tensor-parallel-size", "4",
        "--kv-cache-memory-bytes", str(40 * GIB), "--max-num-seqs", "64", "--enforce-eager",
    ]  # fmt: skip
    result = answer(capsys, LLAMA_70B, "--gpu", "h100-sxm", "--tp", "4", "--context", "32K", "--utilization", "0.95")
    assert result["command"].endswith(" --gpu-memory-utilization 0.95")


@pytest.mark.parametrize("engine", engine_names())
def test_a_model_that_nobody_has_gets_a_plan_and_no_command(capsys: pytest.CaptureFixture[str], engine: str) -> None:
    asked = (LLAMA_70B, "--gpu", "h200-sxm", "--gpus", "4", "--context", "8K", "--engine", engine)
    result = answer(capsys, *asked, "--as", "mha")
    assert set(result) >= KEYS
    assert (result["command"], result["files"]) == (None, [])
    said = f"No launch command: nobody has weights of {LLAMA_70B} as mha, a counterfactual"
    assert said in result["notes"]
    _, text, _ = run(capsys, *asked, "--as", "mha")
    assert f"  note: {said}" in text.splitlines()
    assert not any(word in text for word in ("vllm serve", "launch_server", "trtllm-serve", "llama-server", "FROM "))
    # Eight KV heads are what the model has: the variant is the model.
    assert answer(capsys, *asked, "--as", "gqa:8")["command"] == answer(capsys, *asked)["command"] is not None


def test_standard_input_is_no_checkpoint(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(LLAMA)))
    result = answer(capsys, "-", "--gpu", "h100-sxm", "--context", "4K")
    assert result["command"] == "vllm serve MODEL --max-model-len 4096"
    assert any("in place of MODEL" in note for note in result["notes"])


@pytest.mark.parametrize(
    ("engine", "more", "split"),
    [
        ("vllm", ("--gpus", "8"), (8, 1, 1)),
        ("vllm", ("--gpus", "8", "--pp", "2"), (4, 2, 1)),
        ("vllm", ("--gpus", "8", "--tp", "2"), (2, 1, 4)),
        ("vllm", ("--gpus", "8", "--dp", "2"), (4, 1, 2)),
        # 64 heads are not divided by six: two by three stages, in which a request fits beside the weights.
        ("vllm", ("--gpus", "6"), (2, 3, 1)),
        # llama.cpp divides layers; one card holds no 140 GB of weights, two do, and the other two are a replica.
        ("llama.cpp", ("--gpus", "4"), (1, 2, 2)),
        ("sglang", ("--gpus", "4"), (4, 1, 1)),
    ],
)
def test_gpus_are_split(
    capsys: pytest.CaptureFixture[str], engine: str, more: tuple[str, ...], split: tuple[int, int, int]
) -> None:
    result = answer(capsys, LLAMA_70B, "--gpu", "h100-sxm", "--engine", engine, "--context", "32K", *more)
    assert (result["tp"], result["pp"], result["dp"]) == split
    assert result["gpus"] == int(more[1])


def test_engines_own_options(capsys: pytest.CaptureFixture[str]) -> None:
    """Under the engines' names, and where a deployment has a name of its own both say the same."""
    base = ("deepseek-ai/DeepSeek-V3", "--gpu", "h200-sxm", "--context", "8K", "--kv-gib", "20")
    spread = answer(capsys, *base, "--engine", "sglang", "--tp", "8", "--dp-size", "8", "--enable-dp-attention")
    same = answer(capsys, *base, "--engine", "sglang", "--dp", "8", "--dp-attention")
    assert spread == same
    assert (spread["tp"], spread["dp"], spread["gpus"]) == (1, 8, 8)
    words = shlex.split(spread["command"])
    assert [words[words.index(flag) + 1] for flag in ("--tp-size", "--dp-size")] == ["8", "8"]
    trt = answer(capsys, *base, "--engine", "tensorrt-llm", "--tp", "8", "--enable-attention-dp")
    assert (trt["tp"], trt["dp"]) == (1, 8)
    assert trt["files"][0]["content"].endswith("enable_attention_dp: true\n")
    blocks = answer(capsys, LLAMA_70B, "--gpu", "h100-sxm", "--tp", "4", "--context", "32K", "--block-size", "64")
    assert "--block-size 64" in blocks["command"]
    share = answer(capsys, LLAMA_70B, "--gpu", "h100-sxm", "--tp", "4", "--context", "32K", "--engine", "sglang",
                   "--mem-fraction-static", "0.85")  # fmt: skip
    assert share["command"].endswith("--mem-fraction-static 0.85")


def test_a_context_beyond_the_models_is_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    result = answer(capsys, LLAMA_70B, "--gpu", "h100-sxm", "--gpus", "4", "--context", "256K")
    assert (result["fits"], result["binding_kind"], result["command"]) == (False, "context limit", None)
    assert "131,072" in result["binding"]


def test_weights_that_do_not_fit_are_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    result = answer(capsys, LLAMA_70B, "--gpu", "rtx-4090", "--context", "8K")
    assert (result["fits"], result["binding_kind"]) == (False, "weights")
    assert result["kv_bytes"] < 0


def test_other_models(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    result = answer(capsys, str(path), "--gpu", "rtx-4090", "--context", "1K", "--kv-gib", "1")
    # 4 layers × 2 KV heads × 2 × 64 × 2 B = 2,048 B a token.
    assert result["kv_cache_size_tokens"] == GIB // 2048
    mha = answer(
        capsys, LLAMA_70B, "--gpu", "h100-sxm", "--tp", "8", "--context", "32K", "--kv-gib", "40", "--as", "mha"
    )
    assert mha["bytes_per_request"] == 80 * 8 * 2 * 128 * 2 * 32_768


def test_without_json_it_is_a_short_table(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, LLAMA_70B, "--gpu", "h100-sxm", "--gpus", "2", "--context", "32K", "--users", "10")
    assert (status, err) == (0, "")
    assert "does NOT fit: 10 × 32,768 tokens" in out
    assert "would fit: " in out
    assert "vllm serve " in out
    assert len(out.splitlines()) < 30


def test_columns_of_the_table_stand_apart(capsys: pytest.CaptureFixture[str]) -> None:
    """2^50 B a GPU: tokens and requests of more than twelve characters; the three of a line are three words."""
    _, out, _ = run(
        capsys, LLAMA_70B, "--gpu", "h100-sxm", "--gpus", "4096", "--tp", "8", "--context", "16", "--kv-gib", "1048576"
    )
    (line,) = (line for line in out.splitlines() if line.startswith("  tokens "))
    low, best, high = line.removeprefix("  tokens").split()
    assert low == best == high
    assert len(low) > 12


def test_what_is_missing_is_said_as_short(capsys: pytest.CaptureFixture[str]) -> None:
    """131 GiB of weights on a GPU of 80 GB."""
    _, out, _ = run(capsys, LLAMA_70B, "--gpu", "h100-sxm", "--tp", "1", "--context", "8K")
    (line,) = (line for line in out.splitlines() if line.startswith("  left for the cache "))
    assert line.count(" GiB short") == 3
    assert "-" not in line


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (("nobody/nothing", "--gpu", "h100-sxm", "--context", "8K"), "model"),
        ((LLAMA_70B, "--gpu", "abacus", "--context", "8K"), "hardware"),
        ((LLAMA_70B, "--gpu", "h100-sxm"), "unit"),
        ((LLAMA_70B, "--context", "8K"), "unit"),
        ((LLAMA_70B, "--gpu", "h100-sxm", "--context", "many"), "unit"),
        ((LLAMA_70B, "--gpu", "h100-sxm", "--context", "0"), "unit"),
        ((LLAMA_70B, "--gpu", "h100-sxm", "--context", "8K", "--users", "0"), "unit"),
        ((LLAMA_70B, "--gpu", "h100-sxm", "--context", "8K", "--users", "-3"), "unit"),
        ((LLAMA_70B, "--gpu", "h100-sxm", "--context", "8K", "--engine", "abacus"), "engine"),
        ((LLAMA_70B, "--gpu", "h100-sxm", "--context", "8K", "--kv-dtype", "fp3"), "unit"),
        ((LLAMA_70B, "--gpu", "h100-sxm", "--context", "8K", "--kv-dtype", "q4_0"), "engine"),
        ((LLAMA_70B, "--gpu", "h100-sxm", "--context", "8K", "--weight-format", "fp3"), "unit"),
        ((LLAMA_70B, "--gpu", "h100-sxm", "--context", "8K", "--tp", "3"), "engine"),
        ((LLAMA_70B, "--gpu", "h100-sxm", "--context", "8K", "--tp", "x"), "unit"),
        ((LLAMA_70B, "--gpu", "h100-sxm", "--context", "8K", "--gpus", "0"), "unit"),
        ((LLAMA_70B, "--gpu", "h100-sxm", "--context", "8K", "--gpus", "6", "--tp", "4"), "unit"),
        ((LLAMA_70B, "--gpu", "h100-sxm", "--context", "8K", "--gpus", "8", "--tp", "4", "--dp", "1"), "unit"),
        ((LLAMA_70B, "--gpu", "h100-sxm", "--context", "8K", "--tp", "4096", "--pp", "2"), "unit"),
        ((LLAMA_70B, "--gpu", "h100-sxm", "--context", "8K", "--utilization", "1.5"), "unit"),
        ((LLAMA_70B, "--gpu", "h100-sxm", "--context", "8K", "--utilization", "nan"), "unit"),
        ((LLAMA_70B, "--gpu", "h100-sxm", "--context", "8K", "--kv-gib", "-1"), "unit"),
        ((LLAMA_70B, "--gpu", "h100-sxm", "--context", "8K", "--kv-gib", "1", "--kv-bytes", "1"), "unit"),
        ((LLAMA_70B, "--gpu", "h100-sxm", "--context", "8K", "--frobnicate"), "unit"),
        ((LLAMA_70B, "--gpu", "h100-sxm", "--context", "8K", "--page-size", "16"), "unit"),
        ((LLAMA_70B, "--gpu", "h100-sxm", "--context", "8K", "--engine", "sglang", "--tp", "4", "--dp-size", "3",
          "--enable-dp-attention"), "unit"),
    ],
)  # fmt: skip
def test_wrong_input(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], kind: str) -> None:
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (2, "")
    assert err.startswith("kvcore: ")
    assert err.count("\n") == 1
    status, out, err = run(capsys, *arguments, "--json")
    assert status == 2
    refusal = json.loads(out)
    assert refusal["kind"] == kind
    assert refusal["error"] in err


def test_a_refused_split_names_one_that_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    _, _, err = run(capsys, LLAMA_70B, "--gpu", "h100-sxm", "--context", "8K", "--tp", "16", "--engine", "llama.cpp")
    assert "--pp" in err or "--dp" in err


def test_as_a_program() -> None:
    words = [sys.executable, "-m", "kvcore", "plan", LLAMA_70B, "--gpu", "h100-sxm", "--gpus", "4", "--context", "32K"]
    done = subprocess.run([*words, "--json"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["fits"] is True


DEEPSEEK = ("deepseek-ai/DeepSeek-V3", "--gpu", "h200-sxm", "--tp", "8", "--context", "32K")


def test_prediction_layers_are_a_part_of_the_weights(capsys: pytest.CaptureFixture[str]) -> None:
    """A module's 257 experts of 3 × 7168 × 2048 in fp8 over 8 ranks and a joint of 2 × 7168² in 16 bits on each."""
    plain, own = answer(capsys, *DEEPSEEK), answer(capsys, *DEEPSEEK, "--mtp")
    assert (plain["draft"], plain["speculative_tokens"], plain["draft_weights_bytes"]) == (None, 0, 0)
    assert (own["draft"], own["speculative_tokens"]) == ("mtp", 1)
    least = 257 * 3 * 7168 * 2048 // 8 + 2 * 2 * 7168 * 7168
    assert least < own["draft_weights_bytes"] < least + 60 * 2**20
    assert own["weights_bytes"] == plain["weights_bytes"] + own["draft_weights_bytes"]
    assert '"method": "mtp"' in own["command"]
    assert any("prediction module" in note for note in plain["notes"])
    assert answer(capsys, *DEEPSEEK, "--mtp", "--speculative-tokens", "3")["speculative_tokens"] == 3
    _, text, _ = run(capsys, *DEEPSEEK, "--mtp")
    assert "of it prediction layers" in text


def test_a_draft_model_by_id_or_by_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Llama 3.2 1B has 1,235,814,400 parameters; its cache is a quarter of Llama 3.1 8B's."""
    asked = ("meta-llama/Llama-3.1-8B-Instruct", "--gpu", "h200-sxm", "--context", "32K", "--speculative-tokens", "4")
    found = answer(capsys, *asked, "--draft", "meta-llama/llama-3.2-1b-instruct")
    assert found["draft"] == "meta-llama/Llama-3.2-1B-Instruct"
    assert found["draft_weights_bytes"] == pytest.approx(2 * 1_235_814_400, rel=1e-4)
    assert found["bytes_per_request"] == 32_768 * (131_072 + 32_768)
    smaller = answer(capsys, *asked, "--draft", "meta-llama/Llama-3.2-1B-Instruct", "--draft-weight-format", "fp8")
    assert smaller["draft_weights_bytes"] < found["draft_weights_bytes"]
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA | {"vocab_size": 128_256}), "utf-8")
    assert answer(capsys, *asked, "--draft", str(path))["draft_weights_bytes"] > 0


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--draft", "meta-llama/Llama-3.2-1B-Instruct"), "say with --speculative-tokens"),
        (("--draft", "meta-llama/Llama-3.2-1B-Instruct", "--mtp"), "not both"),
        (("--draft", "-", "--speculative-tokens", "2"), "standard input"),
        (("--draft", "no/such-model", "--speculative-tokens", "2"), "no/such-model"),
        (("--draft-weight-format", "fp8"), "none is named"),
        (("--mtp",), "has no prediction layers of its own"),
        (("--draft", "Qwen/Qwen3-0.6B", "--speculative-tokens", "2"), "vocabulary of 151,936"),
    ],
)
def test_who_proposes_has_to_be_said(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], why: str) -> None:
    code, out, error = run(
        capsys, "meta-llama/Llama-3.1-8B-Instruct", "--gpu", "h200-sxm", "--context", "8K", *arguments
    )
    assert code == 2
    assert out == ""
    assert why in error
