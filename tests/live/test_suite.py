"""The check set: its entries, what a failure or a lack of time makes of them, and the checks that need no model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from kvcore.errors import LiveError
from kvcore.live import jobs, models
from kvcore.live import session as session_module
from kvcore.live import suite as module
from kvcore.live.session import Reporter, Session
from kvcore.live.settings import Limits
from kvcore.live.suite import CHECKS, SuiteCheck, suite
from kvcore.live.weights import random_weights
from tests.live.standins import Letters
from tests.live.test_jobs import CONFIG, HOST

torch.set_num_threads(1)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Session:
    def prepare(name: str, progress: Any, **more: Any) -> models.PreparedModel:
        return models.PreparedModel(folder=tmp_path, config=CONFIG, tokenizer=Letters(), origin="a test")

    monkeypatch.setattr(models, "prepare", prepare)
    monkeypatch.setattr(session_module, "measure", lambda progress, **more: HOST)
    monkeypatch.setattr(
        "kvcore.live.weights.load_safetensors",
        lambda folder, shape, dtype, device: random_weights(shape, dtype, device),
    )
    session = Session(Limits(max_memory_bytes=64 << 30))
    monkeypatch.setattr(jobs, "_SESSION", [session])
    return session


def quiet(event: dict[str, Any]) -> bool:
    return True


def test_the_whole_set_on_a_tiny_model(engine: Session) -> None:
    found = suite(engine, Reporter(quiet), seconds=400.0)
    by_name = {entry["check"]: entry for entry in found}
    assert [entry["check"] for entry in found] == [check.name for check in CHECKS if not check.gpu_only]
    assert not [entry for entry in found if "error" in entry or "skipped" in entry]
    assert all(entry.get("ok", True) for entry in found)
    assert by_name["bytes"]["compared"] == 8 * 4 * 3
    assert set(by_name["parity"]["max_difference"]) == {
        "llama", "qwen2", "qwen3", "mistral", "mha", "mqa", "mla:32+16", "sliding:24",
    }  # fmt: skip
    assert [run["mode"] for run in by_name["demonstration"]["runs"]] == ["cache", "recompute"]
    assert by_name["demonstration"]["recompute_over_cache"] > 0
    assert len(by_name["race of variants"]["probes"]) == 5 * 3
    json.dumps(found, allow_nan=False)


def test_parity_notices_a_wrong_cache(engine: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    from kvcore.live.decoder import Decoder

    real = Decoder.step
    monkeypatch.setattr(Decoder, "step", lambda self, ids, cache: real(self, ids, cache) + 0.01)
    monkeypatch.setattr(module, "CHECKS", [one for one in CHECKS if one.name == "parity"])
    (entry,) = suite(engine, Reporter(quiet))
    assert entry["ok"] is False


def test_bytes_notice_a_wrong_prediction(engine: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    real = module.predicted_bytes
    monkeypatch.setattr(module, "predicted_bytes", lambda shape, kv, lengths, block: real(shape, kv, [9], block))
    monkeypatch.setattr(module, "CHECKS", [one for one in CHECKS if one.name == "bytes"])
    (entry,) = suite(engine, Reporter(quiet))
    assert (entry["ok"], len(entry["wrong"])) == (False, entry["compared"])


def test_what_fails_does_not_end_the_others(engine: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(one: Any) -> dict[str, Any]:
        raise LiveError("not here")

    def breaks(one: Any) -> dict[str, Any]:
        raise RuntimeError("CUDA out of memory")

    checks = [
        SuiteCheck(name="a", least_s=0, run=refuses),
        SuiteCheck(name="b", least_s=0, run=breaks),
        SuiteCheck(name="c", least_s=1e6, run=breaks),
        SuiteCheck(name="d", least_s=0, run=lambda one: {"ok": True}),
        SuiteCheck(name="e", least_s=0, run=breaks, gpu_only=True),
    ]
    monkeypatch.setattr(module, "CHECKS", checks)
    found = suite(engine, Reporter(quiet))
    assert [entry["check"] for entry in found] == ["a", "b", "c", "d"]
    assert found[0]["error"] == "LiveError: not here"
    assert found[1]["error"] == "RuntimeError: CUDA out of memory"
    assert "s were left" in found[2]["skipped"]
    assert found[3]["ok"] is True


def test_a_model_that_is_not_here_gives_way_to_random_weights(engine: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str, progress: Any, **more: Any) -> models.PreparedModel:
        raise LiveError("the weights are not on this machine")

    from kvcore.live.shape import shape_from_config

    monkeypatch.setattr(models, "prepare", absent)
    monkeypatch.setattr(models, "listed", tuple)
    monkeypatch.setattr(
        session_module, "shape_of_catalogue", lambda name: shape_from_config(CONFIG | {"num_hidden_layers": 8}, name)
    )
    monkeypatch.setattr(module, "CHECKS", [one for one in CHECKS if one.name == "demonstration"])
    (entry,) = suite(engine, Reporter(quiet))
    assert [(run["weights"], run["layers"], run["cut_from"]) for run in entry["runs"]] == [("random", 4, 8)] * 2
    assert entry["notes"] == ["the weights are not on this machine"]


def test_gpu_checks_are_part_of_it_where_there_is_one(engine: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    monkeypatch.setattr(session_module, "measure", lambda progress, **more: replace(HOST, device="cuda"))
    stubs = [replace(one, run=lambda _: {}) if one.name != "host" else one for one in CHECKS]
    monkeypatch.setattr(module, "CHECKS", stubs)
    names = [entry["check"] for entry in suite(engine, Reporter(quiet))]
    assert names == [check.name for check in CHECKS]
    assert sum(name.startswith("GPU") for name in names) >= 4
