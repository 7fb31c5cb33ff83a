"""`python -m kvcore live`: its keys, its refusals, and nothing else on stdout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from kvcore.cli.main import main
from kvcore.live import models
from kvcore.live import session as session_module
from kvcore.live.weights import random_weights
from tests.live.standins import Letters
from tests.live.test_jobs import CONFIG, HOST

torch.set_num_threads(1)

KEYS = {
    "device", "model", "weights", "prefill_s", "decode_s", "predicted_prefill_s", "predicted_decode_s",
    "kv_bytes_measured", "kv_bytes_predicted", "kv_bytes_reserved", "tokens", "text", "host",
}  # fmt: skip


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[bool]:
    """The default model is a tiny one, with weights that are there; whether each was asked for with the Hub."""
    hub: list[bool] = []

    def prepare(name: str, progress: Any, *, allow_hub: bool = False) -> models.PreparedModel:
        hub.append(allow_hub)
        return models.PreparedModel(folder=tmp_path, config=CONFIG, tokenizer=Letters(), origin="a test")

    monkeypatch.setattr(models, "prepare", prepare)
    monkeypatch.setattr(session_module, "measure", lambda progress, **more: HOST)
    monkeypatch.setattr(
        "kvcore.live.weights.load_safetensors",
        lambda folder, shape, dtype, device: random_weights(shape, dtype, device),
    )
    return hub


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    status = main(["live", *arguments, "--json"])
    out, err = capsys.readouterr()
    assert (status, err, out.count("\n")) == (0, "", 1)
    result: dict[str, Any] = json.loads(out)
    return result


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, str]:
    status = main(["live", *arguments, "--json"])
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert status == 2
    assert err == f"kvcore: {found['error']}\n"
    return found["kind"], found["error"]


def test_keys_and_figures(capsys: pytest.CaptureFixture[str]) -> None:
    """Two layers of K and V, 2 heads × 8 in bf16: 128 B a token; blocks of 256 tokens; the 6th token never goes in."""
    result = answer(capsys, "--prompt-tokens", "20", "--new-tokens", "6", "--batch", "2")
    assert set(result) >= KEYS
    assert (result["device"], result["weights"], result["batch"]) == ("cpu", "real", 2)
    assert (result["tokens"], len(result["token_ids"]), len(result["decode_s"])) == (6, 6, 5)
    assert result["kv_bytes_measured"] == result["kv_bytes_predicted"] == 2 * 25 * 128
    assert result["kv_bytes_reserved"] == result["kv_bytes_predicted_reserved"] == 2 * 256 * 128
    assert result["predicted_prefill_s"] > 0
    assert len(result["predicted_decode_s"]) == 5
    assert result["host"] == HOST.to_dict()
    assert len(result["text"]) == 6
    assert result["recomputed"] is None


def test_without_the_cache_and_with_both(capsys: pytest.CaptureFixture[str]) -> None:
    alone = answer(capsys, "--prompt-tokens", "20", "--new-tokens", "4", "--no-cache", "--no-calibrate")
    assert (alone["mode"], alone["kv_bytes_measured"], alone["kv_bytes_reserved"]) == ("recompute", 0, 0)
    both = answer(
        capsys,
        "--prompt-tokens",
        "20",
        "--new-tokens",
        "4",
        "--compare",
        "--weight-format",
        "fp32",
        "--kv-dtype",
        "fp32",
    )
    assert both["recomputed"]["mode"] == "recompute"
    assert both["recomputed"]["token_ids"] == both["token_ids"]


@pytest.mark.parametrize(
    ("arguments", "weights", "per_token"),
    [
        (("--attention", "mha"), "random", 256),
        (("--attention", "mqa"), "random", 64),
        (("--attention", "mla:16+8"), "random", 96),
        (("--attention", "sliding:32"), "real", 128),
        (("--random",), "random", 128),
        (("--layers", "1"), "random", 64),
        (("--kv-dtype", "fp32"), "real", 256),
        # A number a byte, and an fp32 scale for each of the 4 vectors in 2 layers.
        (("--kv-dtype", "int8"), "real", 64 + 2 * 4 * 4),
    ],
)  # fmt: skip
def test_attention_and_formats(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], weights: str, per_token: int
) -> None:
    result = answer(capsys, "--prompt-tokens", "9", "--new-tokens", "2", "--no-calibrate", *arguments)
    assert result["weights"] == weights
    assert result["kv_bytes_measured"] == result["kv_bytes_predicted"] == 10 * per_token


def test_a_prompt_ends_where_the_model_ends_it(capsys: pytest.CaptureFixture[str], tiny: list[bool]) -> None:
    result = answer(capsys, "--prompt", "hello", "--new-tokens", "3", "--no-calibrate", "--hub")
    assert result["prompt_tokens"] == 8
    assert tiny == [True]


def test_the_readable_form(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["live", "--prompt-tokens", "16", "--new-tokens", "4", "--compare", "--attention", "mqa"]) == 0
    out = capsys.readouterr().out
    for words in (
        "random weights",
        "first token ",
        "each further ",
        "first token, no cache",
        "cache holds",
        "predicted",
    ):
        assert words in out
    assert "1.19 KiB   1,216 B; predicted 1,216 B" in out  # 19 tokens of 64 B.


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        (("--new-tokens", "0"), "live", "new_tokens"),
        (("--new-tokens", "many"), "unit", "--new-tokens: 'many'"),
        (("--prompt-tokens", "0"), "live", "prompt_tokens"),
        (("--prompt-tokens", "1000000"), "live", "prompt_tokens"),
        (("--prompt", " "), "live", "the prompt is empty"),
        (("--prompt", "a", "--prompt-tokens", "3"), "unit", "not allowed with"),
        (("--batch", "x"), "unit", "--batch"),
        (("--attention", "gqa:3"), "live", "3"),
        (("--attention", "hybrid:8"), "live", "hybrid:8"),
        (("--attention", "no such"), "live", "no such"),
        (("--kv-dtype", "fp8"), "live", "kv_format: 'fp8'"),
        (("--weight-format", "nvfp4"), "live", "weight_format"),
        (("--layers", "3"), "live", "3"),
        (("--seconds", "-1"), "live", "--seconds"),
        (("--suite", "--output", "/no/such/folder/x.json", "--seconds", "0.001"), "source", "cannot be written"),
    ],
)  # fmt: skip
def test_refusals(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], kind: str, words: str) -> None:
    found, error = refusal(capsys, *arguments)
    assert (found, words in error) == (kind, True), error


def test_off(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KV_LIVE_OFF", "1")
    assert refusal(capsys, "--new-tokens", "2") == (
        "live", "the live engine is turned off on this machine (KV_LIVE_OFF)",
    )  # fmt: skip
