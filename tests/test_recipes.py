"""The recipes of CONTRIBUTING.md, step by step: a GPU and a model family are one row each.

The recipe for an engine is tests/engines/test_toy_engine.py, that for a screen tests/pages/test_screens.py.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kvcore.hardware import gpus
from kvcore.model import families, model_from_config
from kvcore.model.readers.attention import read_attention
from kvcore.model.readers.shape import Family
from kvcore.paths import DATA
from kvcore.sizing import size
from tests.commands import answer
from tests.models import llama

ROOT = Path(__file__).resolve().parent.parent
RECIPES = (ROOT / "CONTRIBUTING.md").read_text("utf-8").partition("## Recipes")[2]


@pytest.fixture
def hardware(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the data files about hardware, which are read again before and after the test."""
    for name in ("hardware.csv", "links.csv"):
        (tmp_path / name).write_text((DATA / name).read_text("utf-8"), "utf-8")
    monkeypatch.setattr(gpus, "DATA", tmp_path)
    return tmp_path / "hardware.csv"


def test_a_gpu_is_one_row(hardware: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = hardware.read_text("utf-8")
    row = next(line for line in text.splitlines() if line.startswith("h100-sxm,"))
    name = row.split(",")[1]
    hardware.write_text(text + row.replace("h100-sxm,", "toy-gpu,", 1).replace(name, "Toy GPU", 1) + "\n", "utf-8")
    gpus.accelerators.cache_clear()
    try:
        words = ("plan", "meta-llama/Llama-3.1-8B-Instruct", "--context", "8K", "--gpu")
        toy, known = answer(capsys, *words, "toy-gpu"), answer(capsys, *words, "h100-sxm")
    finally:
        gpus.accelerators.cache_clear()
    assert toy["gpu"] == "toy-gpu"
    assert toy["kv_bytes"] == known["kv_bytes"] > 0


def test_a_family_that_is_read_like_others_is_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(families.FAMILIES, "toyformer", Family(read=read_attention))
    found = model_from_config(json.loads(json.dumps(llama(model_type="toyformer"))))
    known = model_from_config(llama())
    assert size(found, 4096).resident_bytes == size(known, 4096).resident_bytes > 0


def test_every_file_that_a_recipe_names_is_there() -> None:
    named = set(re.findall(r"`((?:kvcore|pages|data|tests|docs)/[\w./]+)`", RECIPES))
    assert {
        "kvcore/model/families.py",
        "kvcore/engines/registry.py",
        "data/hardware.csv",
        "pages/ui/screens.py",
    } <= named
    assert [name for name in named if not (ROOT / name).exists()] == []
