"""An engine is one folder and one row: with both it appears in every command, search and screen, by its own rules."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

import kvcore
from kvcore.deployment import Deployment
from kvcore.engines import registry
from kvcore.engines.reserve import reserve, stored_by
from kvcore.hardware.gpus import accelerator
from kvcore.logs import reading
from kvcore.planning.answers import recommend
from kvcore.planning.changes import other_engines
from kvcore.planning.launch import launch
from kvcore.planning.people import Traffic, expected
from kvcore.planning.plan import make_plan
from kvcore.planning.splits import shards
from kvcore.planning.sweep import LEVERS, sweep
from kvcore.units import GIB
from tests.commands import answer, run
from tests.models import model

APP = str(Path(__file__).parents[2] / "app.py")
LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
# 32 layers × 2 × 8 heads × 128 in 16 bits.
TOKEN = 131_072
H100 = accelerator("h100-sxm")


@pytest.fixture(autouse=True)
def row() -> Iterator[None]:
    """The row, and nothing that was kept of the engines before or with it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(registry.PLACES, "toy", ("tests.engines.toy", "TOY"))
        _forget()
        yield
    _forget()


def _forget() -> None:
    for kept in (stored_by, reading.patterns, reading._by_word):
        kept.cache_clear()


def plain(**changes: object) -> Deployment:
    return Deployment(**{"gpu": H100, "context": 8192, "engine": "toy"} | changes)  # type: ignore[arg-type]


def test_the_command_for_engines_answers_by_its_rules(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "engine", "toy", LLAMA, "--max-model-len", "1000", "--page", "64", "--kv-gib", "1")
    assert (found["engine"], found["engine_version"], found["block_size"]) == ("toy", "1.2", 64)
    # 16 pages of 64 tokens.
    assert found["bytes_per_request"] == 1024 * TOKEN
    assert found["kv_cache_size_tokens"] == 8000
    assert found["log_lines"] == ["toy: 8000 tokens"]


def test_the_command_for_plans_answers_by_its_rules(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("plan", LLAMA, "--gpu", "h100-sxm", "--context", "1000", "--engine", "toy")
    found = answer(capsys, *asked, "--kv-gib", "10", "--page", "50")
    assert found["engine"] == "toy"
    # 20 pages of 50 tokens each, exactly.
    assert found["requests"]["low"] == 10 * GIB // (1000 * TOKEN)
    assert found["command"] == f"toy serve {LLAMA} --page 50"
    few = answer(capsys, *asked, "--at-once", "3")
    assert (few["requests"]["low"], few["binding_kind"]) == (3, "sequences")
    halves = answer(capsys, *asked, "--pp", "2", "--kv-gib", "10")
    assert halves["requests"]["low"] == 10 * GIB // (1008 * TOKEN // 2)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("engine", "--help"), "toy"),
        (("plan", "--help"), "toy"),
        (("engine", "toy", "--help"), "--page"),
        (("plan", "--engine", "toy", "--help"), "--page"),
    ],
)
def test_the_help_names_it_and_its_options(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], named: str
) -> None:
    with pytest.raises(SystemExit):
        run(capsys, *words)
    assert named in capsys.readouterr().out.replace(",", " ").split()


def test_a_wrong_name_and_a_wrong_release_name_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean toy?" in run(capsys, "engine", "toyy", LLAMA)[2]
    assert "1.0 and newer" in run(capsys, "engine", "toy", LLAMA, "--engine-version", "0.9")[2]


@pytest.mark.slow
def test_mypy_names_what_an_engine_lacks(tmp_path: Path) -> None:
    whole = (Path(__file__).parent / "toy" / "engine.py").read_text("utf-8")
    lacking = tmp_path / "lacking.py"
    lacking.write_text(whole.replace('    label = "The Toy"\n', "").replace("def batched_tokens", "def other"), "utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", str(lacking)]
    done = subprocess.run(command, cwd=Path(APP).parent, capture_output=True, text=True, check=False)
    assert 'abstract attributes "batched_tokens" and "label"' in done.stdout


def test_the_public_api_has_it() -> None:
    assert kvcore.engine("toy", LLAMA, max_model_len=1000, page=64).bytes_per_request == 1024 * TOKEN
    assert kvcore.plan(LLAMA, gpu="h100-sxm", context=8192, engine="toy", kv_gib=8).requests.low == 8


def test_weights_splits_and_overheads_are_planned() -> None:
    llama = model(LLAMA)
    plan = make_plan(llama, plain(tp=2))
    (pool,) = plan.pools
    assert not plan.refused
    assert plan.deployment.gpu.memory_bytes == pool.usable_bytes
    assert {part.name for part in pool.overheads.parts} == {"runtime", "kept by the driver"}
    assert pool.weights_bytes == pytest.approx(16.06e9 / 2, rel=0.01)
    valid = {one.text for one in shards(llama, "toy", 4) if not one.refused}
    assert {"tp4", "tp2-pp2", "tp1-dp4"} <= valid
    assert make_plan(llama, plain(tp=3)).binding.kind == "split"


def test_searches_and_levers_have_it() -> None:
    llama = model(LLAMA)
    names = [point.name for point in sweep(llama, plain(engine="vllm"), "engine")]
    assert names == list(registry.engine_names())
    assert "toy" in {change.deployment.engine for change in other_engines(plain(engine="vllm"))}
    for lever in LEVERS:
        sweep(llama, plain(), lever, Traffic(prompt_tokens=1000, answer_tokens=100))
    assert [point.name for point in sweep(llama, plain(), "cache")] == ["auto", "fp8"]
    (best,) = recommend(llama, context=8192, users=4, engine="toy", gpus=(H100,))
    assert (best.deployment.engine, best.gpus) == ("toy", 1)
    assert expected(llama, plain(), Traffic(prompt_tokens=1000, answer_tokens=100)).peak.requests.low > 0


def test_it_reserves_launches_and_is_refused_as_others_are() -> None:
    llama = model(LLAMA)
    assert reserve(llama, "toy", length=1000).layout is not None
    assert "toy" in stored_by(llama, "fp8")
    assert launch(llama, plain(max_num_seqs=7)).words == ("toy", "serve", LLAMA, "--at-once", "7")
    refused = make_plan(llama, plain(gpu=accelerator("mi300x")))
    assert refused.binding.kind == "engine"
    assert "toy" not in make_plan(llama, plain(gpu=accelerator("tpu-v5p"), engine="vllm")).refused
    newer = make_plan(llama, plain(engine_version="1.3"))
    assert any("The rules of toy 1.2 are followed" in note for note in newer.notes)


def test_its_log_is_read_and_predicted() -> None:
    lines = (f"toy 1.2 serves {LLAMA}", "toy: memory 1.00 GiB in pages of 64", "toy: 8192 tokens")
    found = kvcore.read_log("\n".join(lines))
    assert (found.recognised["engine"], found.recognised["engine_version"]) == ("toy", "1.2")
    (tokens,) = (one for one in found.figures if one.name == "kv_cache_size_tokens")
    assert (tokens.reported, tokens.predicted, tokens.agrees) == (8192, 8192, True)
    assert "The Toy" in reading.logging_engines()


def test_the_size_screen_answers_with_it() -> None:
    at = open_page("pages/size.py")
    shown = {metric.label: metric.value for metric in at.metric}
    # 131,072 tokens, the model's limit; a budget of 48 GiB.
    assert shown["Reserved by The Toy"] == "16 GiB"
    assert shown["Reported by The Toy"] == "393,216 tokens"


def test_the_concurrency_screen_answers_with_it() -> None:
    at = open_page("pages/concurrency.py")
    assert "The Toy 1" in " ".join(caption.value for caption in at.caption)
    assert any("toy serve" in code.value for code in at.code)
    assert any("toy:" in code.value for code in at.code)


def open_page(page: str) -> AppTest:
    """A screen at an address that names the engine, which its control offers by its label."""
    at = AppTest.from_file(APP, default_timeout=60)
    at.query_params["model"], at.query_params["engine"] = LLAMA, "toy"
    at.run()
    at.switch_page(page)
    at.query_params["engine"] = "toy"
    at.run()
    assert not at.exception, at.exception[0].stack_trace
    (engines,) = (one for one in at.button_group if one.key == "engine")
    assert "The Toy" in [option.content for option in engines.proto.options]
    assert engines.value == "toy"
    return at
