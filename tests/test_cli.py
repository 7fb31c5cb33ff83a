"""The command line that other programs rely on: keys, exit statuses, and nothing else on stdout."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kvcore import __version__
from kvcore.cli.main import main
from kvcore.engines.registry import engine as engine_of
from kvcore.engines.registry import engine_names
from tests.commands import answer, run
from tests.models import LLAMA

LLAMA_70B = "meta-llama/Llama-3.3-70B-Instruct"

ROOT = Path(__file__).resolve().parent.parent

KEYS = {
    "model", "model_type", "knowledge", "kv_dtype", "tokens", "batch", "resident_bytes", "bytes_per_token",
    "state_bytes", "layers", "keys_used", "keys_ignored", "notes",
}  # fmt: skip


def test_size_of_a_catalogued_model(capsys: pytest.CaptureFixture[str]) -> None:
    result = answer(capsys, "size", "META-llama/llama-3.3-70b-INSTRUCT", "--tokens", "8192")
    assert set(result) >= KEYS
    assert (result["resident_bytes"], result["bytes_per_token"], result["state_bytes"]) == (5 * 2**29, 327_680, 0)
    assert (result["knowledge"], result["kv_dtype"], result["batch"]) == ("exact", "bf16", 1)
    assert len(result["layers"]) == 80
    assert set(result["layers"][0]) == {"index", "kind", "resident_bytes", "bytes_per_token", "formula"}
    assert result["layers"][3] == result["layers"][0] | {"index": 3}
    assert "num_key_value_heads" in result["keys_used"]


def test_figures_are_for_the_whole_batch(capsys: pytest.CaptureFixture[str]) -> None:
    one = answer(capsys, "size", "google/gemma-3-27b-it", "--tokens", "2000")
    many = answer(capsys, "size", "google/gemma-3-27b-it", "--tokens", "2000", "--batch", "7")
    for key in ("resident_bytes", "bytes_per_token", "state_bytes"):
        assert many[key] == 7 * one[key]
    # At 2,000 tokens the windows of 1,024 are full: only the 10 full layers grow.
    assert one["bytes_per_token"] == 10 * 2 * 16 * 128 * 2
    sliding = [layer for layer in one["layers"] if layer["kind"] == "sliding"]
    assert {layer["bytes_per_token"] for layer in sliding} == {0}
    assert one["state_bytes"] == 0


def test_two_memories_have_two_entries_with_one_index(capsys: pytest.CaptureFixture[str]) -> None:
    result = answer(capsys, "size", "deepseek-ai/DeepSeek-V3.2", "--tokens", "0")
    assert [(layer["index"], layer["kind"]) for layer in result["layers"][:4]] == [
        (0, "latent"), (0, "indexer"), (1, "latent"), (1, "indexer"),
    ]  # fmt: skip
    assert result["resident_bytes"] == 0
    assert result["bytes_per_token"] == 61 * (1152 + 132)


@pytest.mark.parametrize(
    ("kv", "per_token"),
    [("auto", 4096), ("fp8", 2048), ("q8_0", 4352 // 2), ("q8_0/q4_0", 1088 + 576), ("f32", 8192), ("FP16", 4096)],
)
def test_cache_formats(capsys: pytest.CaptureFixture[str], tmp_path: Path, kv: str, per_token: int) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA | {"num_hidden_layers": 1, "num_key_value_heads": 8, "head_dim": 128}))
    assert answer(capsys, "size", str(path), "--tokens", "1", "--kv-dtype", kv)["bytes_per_token"] == per_token
    assert answer(capsys, "size", str(tmp_path), "--tokens", "1", "--kv-dtype", kv)["bytes_per_token"] == per_token


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run(capsys, "--version")
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"kvcore {__version__}\n"


def test_standard_input(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(LLAMA)))
    assert answer(capsys, "size", "-", "--tokens", "10")["bytes_per_token"] == 4 * 2 * 2 * 64 * 2


def test_variants(capsys: pytest.CaptureFixture[str]) -> None:
    mha = answer(capsys, "size", "meta-llama/Llama-3.3-70B-Instruct", "--tokens", "131072", "--as", "mha")
    assert mha["resident_bytes"] == 320 * 2**30
    mla = answer(capsys, "size", "meta-llama/Llama-3.3-70B-Instruct", "--tokens", "1", "--as", "mla")
    assert mla["resident_bytes"] == 80 * 576 * 2


def test_encoders_keep_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    result = answer(capsys, "size", "allenai/longformer-base-4096", "--tokens", "4096")
    assert result["resident_bytes"] == 0
    assert {layer["kind"] for layer in result["layers"]} == {"none"}


def test_without_json_it_is_a_short_table(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "size", "deepseek-ai/DeepSeek-V3", "--tokens", "1K")
    assert (status, err) == (0, "")
    assert "68.62 KiB" in out
    assert len(out.splitlines()) < 20


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (("size", "nobody/nothing", "--tokens", "1"), "model"),
        (("size", "openai/gpt-oss-20b", "--tokens", "-1"), "unit"),
        (("size", "openai/gpt-oss-20b", "--tokens", "many"), "unit"),
        (("size", "openai/gpt-oss-20b", "--tokens", "1", "--batch", "0"), "unit"),
        (("size", "openai/gpt-oss-20b", "--tokens", "1", "--batch", "x"), "unit"),
        (("size", "openai/gpt-oss-20b", "--tokens", "1", "--kv-dtype", "fp3"), "unit"),
        (("size", "openai/gpt-oss-20b", "--tokens", "1", "--kv-dtype", "fp8_ds_mla"), "unit"),
        (("size", "openai/gpt-oss-20b", "--tokens", "1", "--as", "gqa:7"), "unit"),
        (("size", "openai/gpt-oss-20b"), "unit"),
        (("size", "openai/gpt-oss-20b", "--tokens", "1", "--frobnicate"), "unit"),
        (("sweep", "--models", "nobody/nothing"), "model"),
        (("sweep", "--gpus", "abacus"), "hardware"),
        (("sweep", "--contexts", "x"), "unit"),
        (("frobnicate",), "unit"),
        ((), "unit"),
    ],
)
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
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("text", "kind"), [("{", "config"), ("[1]", "config"), ('{"model_type": "x"}', "config"), ("", "config")]
)
def test_wrong_files(capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, kind: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    status, out, _ = run(capsys, "size", str(path), "--tokens", "1", "--json")
    assert status == 2
    assert json.loads(out)["kind"] == kind


def test_upper_bounds_are_labelled(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA | {"model_type": "brand_new"}))
    status, out, _ = run(capsys, "size", str(path), "--tokens", "1", "--json")
    assert status == 2
    assert "brand_new" in json.loads(out)["error"]
    assert answer(capsys, "size", str(path), "--tokens", "1", "--upper-bound")["knowledge"] == "upper_bound"


def test_a_sweep_has_a_row_for_every_cell(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    arguments = ("sweep", "--models", "Qwen/Qwen3-8B,openai/gpt-oss-20b", "--contexts", "1K,8K,32K",
                 "--kv-dtypes", "bf16,fp8", "--gpus", "h100-sxm,h200-sxm")  # fmt: skip
    status, out, _ = run(capsys, *arguments)
    assert status == 0
    assert len(out.splitlines()) == 1 + 2 * 3 * 2 * 2
    status, out, _ = run(capsys, *arguments, "--format", "json")
    rows = json.loads(out)
    assert rows[0] == rows[0] | {"model": "Qwen/Qwen3-8B", "kv_dtype": "bf16", "tokens": 1024, "gpu": "h100-sxm"}
    assert rows[0]["resident_bytes"] == 1024 * 147_456
    path = tmp_path / "sweep.parquet"
    assert run(capsys, *arguments, "--format", "parquet", "--output", str(path))[0] == 0
    import pandas as pd

    assert len(pd.read_parquet(path)) == len(rows)
    status, _, err = run(capsys, *arguments, "--format", "parquet")
    assert status == 2
    assert "--output" in err
    status, _, err = run(capsys, *arguments, "--output", str(tmp_path / "no" / "such" / "folder.csv"))
    assert status == 2
    assert "cannot be written" in err


def shell(command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`kvcore` stands for the real command line in a shell of its own."""
    prepared = command.replace("kvcore", f"{sys.executable} -m kvcore")
    return subprocess.run(
        ["bash", "-c", prepared], cwd=ROOT, capture_output=True, text=True, timeout=60, env=os.environ | environment,
        encoding="utf-8",
    )  # fmt: skip


SIZE = "kvcore size Qwen/Qwen3-8B --tokens 1K"


def test_a_full_disk_is_one_line_and_no_traceback() -> None:
    for command in (f"{SIZE} --json > /dev/full", f"{SIZE} > /dev/full"):
        done = shell(command)
        assert done.returncode == 1
        assert done.stderr.count("\n") == 1
        assert "cannot be written" in done.stderr
    assert shell("kvcore size nobody/nothing --tokens 1K --json > /dev/full").returncode == 2


def test_a_reader_that_goes_away_is_no_error() -> None:
    done = shell(f"{SIZE} | head -1")
    assert done.stderr == ""
    assert done.stdout.startswith("Qwen/Qwen3-8B")


def test_closed_streams() -> None:
    done = shell("kvcore size - --tokens 1K <&-")
    assert done.returncode == 2
    assert "standard input is closed" in done.stderr
    json.loads(shell("kvcore size nobody/nothing --tokens 1K --json 2>&-").stdout)


def test_a_terminal_without_our_characters() -> None:
    for flag in ("", "--json"):
        done = shell(f"{SIZE} {flag}", PYTHONIOENCODING="ascii")
        assert (done.returncode, done.stderr) == (0, "")
    assert shell("kvcore size ../м --tokens 1K --json", PYTHONIOENCODING="ascii").returncode == 2


def test_keys_that_no_encoding_holds() -> None:
    raw = '{"model_type":"llama","\\\\ud800x":1,"hidden_size":64,"num_hidden_layers":1,"num_attention_heads":1}'
    done = shell(f"printf '%b' '{raw}' | kvcore size - --tokens 1K --json")
    assert done.returncode == 0
    json.loads(done.stdout)


def test_engine_answers(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("engine", "vllm", "google/gemma-3-27b-it", "--max-model-len", "131072", "--gpu", "h100-sxm")
    without = answer(capsys, *arguments)
    assert without["bytes_per_request"] == 19_301_662_720
    assert without["kv_cache_size_tokens"] is without["max_concurrency"] is without["log_lines"] is None
    with_memory = answer(capsys, *arguments, "--kv-gib", "40")
    assert with_memory["per_rank"] is True
    assert with_memory["blocks"] == 40 * 2**30 // 1_310_720
    assert with_memory["max_concurrency"] == with_memory["blocks"] / with_memory["blocks_per_request"]
    assert with_memory == answer(capsys, *arguments, "--kv-bytes", str(40 * 2**30))
    fp8 = answer(
        capsys, "engine", "vllm", "deepseek-ai/DeepSeek-V3.2", "--max-model-len", "163840", "--kv-dtype", "fp8"
    )
    assert (fp8["kv_dtype"], fp8["bytes_per_request"]) == ("fp8_ds_mla", 7_875_461_120)


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (("engine", "abacus", "Qwen/Qwen3-8B"), "engine"),
        (("engine", "vllm", "nobody/nothing"), "model"),
        (("engine", "vllm", "Qwen/Qwen3-8B", "--tp", "3"), "engine"),
        (("engine", "vllm", "Qwen/Qwen3-8B", "--tp", "x"), "unit"),
        (("engine", "vllm", "Qwen/Qwen3-8B", "--gpu", "abacus"), "hardware"),
        (("engine", "vllm", "Qwen/Qwen3-8B", "--swa-full"), "unit"),
        (("engine", "vllm", "Qwen/Qwen3-8B", "--engine-version", "one"), "engine"),
        (("engine", "vllm", "Qwen/Qwen3-8B", "--kv-gib", "1", "--kv-bytes", "1"), "unit"),
        (("engine", "vllm", "Qwen/Qwen3-8B", "--kv-gib", "-1"), "unit"),
        (("engine", "vllm", "Qwen/Qwen3-8B", "--kv-gib=-0"), "unit"),
        (("engine", "vllm", "Qwen/Qwen3-8B", "--kv-gib", "1e-12"), "unit"),
        (("engine", "vllm", "Qwen/Qwen3-8B", "--kv-gib", "\u0663"), "unit"),
        (("engine", "vllm", "Qwen/Qwen3-8B", "--engine-version", "1.5K"), "engine"),
        (("engine", "vllm", "Qwen/Qwen3-8B", "--max-model-len", "0"), "engine"),
    ],
)
def test_wrong_engine_questions(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], kind: str) -> None:
    status, out, err = run(capsys, *arguments, "--json")
    assert status == 2
    assert json.loads(out)["kind"] == kind
    assert err.count("\n") == 1


LOG = """INFO 08-11 10:10:10 [core.py:70] Initializing a V1 LLM engine (v0.11.0) with config: model='Qwen/Qwen3-8B', dtype=torch.bfloat16, max_seq_len=40960, tensor_parallel_size=1, kv_cache_dtype=auto
INFO [gpu_worker.py:298] Available KV cache memory: 52.31 GiB
INFO [kv_cache_utils.py:1087] GPU KV cache size: 380,912 tokens
INFO [kv_cache_utils.py:1091] Maximum concurrency for 40,960 tokens per request: 9.30x
"""


def test_a_log_is_read_and_compared(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "vllm.log"
    path.write_text(LOG)
    result = answer(capsys, "log", str(path))
    assert result["recognised"]["engine"] == "vllm"
    assert result["recognised"]["model"] == "Qwen/Qwen3-8B"
    tokens = next(figure for figure in result["figures"] if figure["name"] == "kv_cache_size_tokens")
    assert tokens["reported"] == 380_912
    assert abs(tokens["difference"]) <= 40
    monkeypatch.setattr("sys.stdin", io.StringIO(LOG))
    assert answer(capsys, "log", "-") == result
    assert run(capsys, "log", str(path))[0] == 0


@pytest.mark.parametrize(
    ("text", "kind"), [("nothing of interest\n", "log"), ("", "log"), ("\x00\xff\x1b[31m" * 50, "log")]
)
def test_what_is_no_log(capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, kind: str) -> None:
    path = tmp_path / "some.log"
    path.write_text(text)
    status, out, _ = run(capsys, "log", str(path), "--json")
    assert status == 2
    assert json.loads(out)["kind"] == kind
    assert run(capsys, "log", str(tmp_path / "absent"), "--json")[0] == 2
    assert run(capsys, "log", str(tmp_path), "--json")[0] == 2


def test_variants_of_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    result = answer(
        capsys, "variants", LLAMA_70B, "--tokens", "128K", "--designs", "mha,mqa,gqa:7,mla@fp8", "--batch", "2"
    )
    rungs = {rung["design"]: rung for rung in result["rungs"]}
    assert {design: rung["resident_bytes"] for design, rung in rungs.items()} == {
        "mha": 640 * 2**30, "shipped": 80 * 2**30, "mqa": 10 * 2**30, "mla@fp8": 2 * 131_072 * 80 * 576,
    }  # fmt: skip
    assert rungs["shipped"]["shipped"] is True
    assert rungs["mqa"]["factor_mha"] == 64
    assert rungs["mha"]["factor_shipped"] == 0.125
    assert [one["design"] for one in result["refused"]] == ["gqa:7"]
    status, out, err = run(capsys, "variants", LLAMA_70B, "--tokens", "8K")
    assert (status, err) == (0, "")
    assert "(shipped)" in out
    assert "20 GiB" in out


def test_comparing_two_models(capsys: pytest.CaptureFixture[str]) -> None:
    result = answer(capsys, "compare", "deepseek-ai/DeepSeek-V3", LLAMA_70B, "--tokens", "32K")
    assert result["bytes_per_token"] == [70_272, 327_680]
    assert result["resident_bytes"] == [32_768 * 70_272, 10 * 2**30]
    assert "4.7× less per token" in result["per_token"]
    assert result["crossover_tokens"] is None
    product = 1.0
    for cause in result["causes"]:
        product *= cause["factor"]
    assert product == pytest.approx(70_272 / 327_680)


def test_an_engine_stores_a_variant(capsys: pytest.CaptureFixture[str]) -> None:
    result = answer(capsys, "engine", "vllm", LLAMA_70B, "--as", "mla", "--max-model-len", "32768")
    assert result["bytes_per_request"] == 32_768 * 80 * 576 * 2


def test_states_of_qwen_3_5_4b_are_in_32_bits(capsys: pytest.CaptureFixture[str]) -> None:
    """vLLM 0.22.0's log: attention block size 528, 141,107 tokens, 137.80x (public file id 56036894944)."""
    assert answer(capsys, "size", "Qwen/Qwen3.5-4B", "--tokens", "4096")["state_bytes"] == 24 * 2_146_304
    asked = ("--max-model-len", "1024", "--kv-gib", "11.11", "--no-prefix-caching", "--engine-version", "0.22.0")
    result = answer(capsys, "engine", "vllm", "Qwen/Qwen3.5-4B", *asked)
    assert result["block_size"] == 528
    assert result["kv_cache_size_tokens"] == 141_107
    assert f"{result['max_concurrency']:.2f}" == "137.80"


def test_no_command_starts_a_model_that_nobody_has(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("engine", "vllm", LLAMA_70B, "--max-model-len", "8K")
    assert "vllm serve" in run(capsys, *asked)[1]
    shown = run(capsys, *asked, "--as", "mla")[1]
    assert "vllm serve" not in shown
    assert f"No launch command: nobody has weights of {LLAMA_70B} as mla" in shown
    # A variant that is the model itself is one that everybody has.
    assert "vllm serve" in run(capsys, *asked, "--as", "gqa:8")[1]


def test_an_engine_is_told_the_path_that_was_typed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = tmp_path / "my model"
    folder.mkdir()
    config = ROOT / "data" / "models" / "configs" / "Qwen__Qwen3-8B.json"
    (folder / "config.json").write_bytes(config.read_bytes())
    for model, reference in ((folder, f"'{folder}'"), (folder / "config.json", f"'{folder}'"), (config, "MODEL")):
        shown = run(capsys, "engine", "vllm", str(model), "--max-model-len", "8K")[1]
        assert f"  vllm serve {reference} --max-model-len 8192" in shown.splitlines(), model


@pytest.mark.parametrize(
    "arguments",
    [
        ("variants", "meta-llama/Llama-3.3-70B-Instruct", "--tokens", "x"),
        ("variants", "nobody/nothing", "--tokens", "1"),
        ("variants", "meta-llama/Llama-3.3-70B-Instruct", "--tokens", "1", "--batch", "0"),
        ("compare", "meta-llama/Llama-3.3-70B-Instruct", "nobody/nothing", "--tokens", "1"),
        ("compare", "meta-llama/Llama-3.3-70B-Instruct", "Qwen/Qwen3-8B", "--tokens", "1", "--kv-dtype", "fp8_ds_mla"),
        ("engine", "vllm", "meta-llama/Llama-3.3-70B-Instruct", "--as", "gqa:7"),
    ],
)
def test_wrong_input_about_variants_is_refused(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    status, out, err = run(capsys, *arguments, "--json")
    assert status == 2
    assert err.startswith("kvcore: ")
    assert set(json.loads(out)) == {"error", "kind"}


@pytest.mark.parametrize("asked", [
    ("vllm", "--kv-dtype", "bf16"), ("vllm", "--num-gpu-blocks-override", "500"), ("vllm", "--no-async-scheduling"),
    ("vllm", "--num-speculative-tokens", "3"), ("vllm", "--kv-gib", "40"), ("sglang", "--kv-gib", "40"),
    ("sglang", "--kv-dtype", "fp8"), ("sglang", "--dp-size", "2"),
    ("tensorrt-llm", "--free-gpu-memory-fraction", "0.5", "--kv-dtype", "fp8"), ("tensorrt-llm", "--kv-dtype", "bf16"),
    ("llama.cpp", "--parallel", "1"), ("ollama",), ("transformers", "--cache-implementation", "static"),
], ids=" ".join)  # fmt: skip
def test_engine_prints_the_command_that_plan_prints(capsys: pytest.CaptureFixture[str], asked: tuple[str, ...]) -> None:
    """Words and files, in all their lines; what is asked of both is said by both."""
    name, *more = asked
    engine = run(capsys, "engine", name, "Qwen/Qwen3-8B", "--max-model-len", "8K", *more)[1]
    plan = run(capsys, "plan", "Qwen/Qwen3-8B", "--engine", name, "--gpu", "h100-sxm", "--context", "8K", *more)[1]
    first = {"llama.cpp": "llama-server", "ollama": "OLLAMA_", "transformers": "python", "sglang": "python",
             "tensorrt-llm": "trtllm-serve", "vllm": "vllm serve"}[name]  # fmt: skip
    made = [text[text.index(f"\n  {first}") :] for text in (engine, plan)]
    assert made[0] == made[1]


def test_the_command_has_the_engine_s_own_words(capsys: pytest.CaptureFixture[str]) -> None:
    """vLLM takes bfloat16 and no bf16; blocks that are asked for are asked for in the command too."""
    asked = ("engine", "vllm", "Qwen/Qwen3-8B", "--max-model-len", "8K", "--kv-dtype", "bf16")
    assert "  vllm serve Qwen/Qwen3-8B --max-model-len 8192 --kv-cache-dtype bfloat16" in run(capsys, *asked)[1]
    shown = run(capsys, *asked, "--num-gpu-blocks-override", "500", "--kv-gib", "40")[1]
    assert shown.splitlines()[-1].endswith("--kv-cache-memory-bytes 42949672960 --num-gpu-blocks-override 500")
    refused = run(capsys, "engine", "tensorrt-llm", "Qwen/Qwen3-8B", "--max-model-len", "8K", "--gpu", "mi300x")[1]
    assert "No launch command: tensorrt-llm" in refused
    assert "trtllm-serve" not in refused


def own_flags(name: str) -> set[str]:
    return {option.flag for option in engine_of(name).options}


@pytest.mark.parametrize("name", engine_names())
def test_help_lists_the_options_of_the_engine_that_is_named(capsys: pytest.CaptureFixture[str], name: str) -> None:
    for words in (("engine", name), ("engine", name, "Qwen/Qwen3-8B", "--tp", "2"), ("plan", "--engine", name)):
        with pytest.raises(SystemExit) as stop:
            main([*words, "--help"])
        assert stop.value.code == 0
        assert own_flags(name) <= set(re.findall(r"--[a-z0-9-]+", capsys.readouterr().out))


def test_help_without_an_engine(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["engine", "--help"])
    assert "--page-size" not in capsys.readouterr().out


def test_an_engines_options_may_stand_before_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    answers = []
    for words in (("--page-size", "64", "Qwen/Qwen3-8B"), ("Qwen/Qwen3-8B", "--page-size", "64")):
        assert main(["engine", "sglang", *words, "--json"]) == 0
        answers.append(json.loads(capsys.readouterr().out))
    assert answers[0] == answers[1]
    assert answers[0]["block_size"] == 64
