"""Every refusal has its kind, and what is no refusal is not called one."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kvcore import errors
from kvcore.cli import main as command_line
from kvcore.errors import INTERNAL, STOPPED, KVCoreError, PlanError
from kvcore.model.gguf_file import HeaderCutOffError
from tests.commands import run

ROOT = Path(__file__).resolve().parent.parent
SIZE = ("size", "Qwen/Qwen3-8B", "--tokens", "1K")


# The one class of the tree that lies elsewhere, imported so that the tree is whole.
ELSEWHERE = HeaderCutOffError


def tree(one: type[KVCoreError]) -> list[type[KVCoreError]]:
    """An error and all that are derived from it."""
    return [one, *(error for child in one.__subclasses__() for error in tree(child))]


def test_no_error_lies_outside_the_tree() -> None:
    """Every class of kvcore that is derived from an error of the tree is known below."""
    names = {error.__name__ for error in tree(KVCoreError)}
    found = {
        derived
        for path in (ROOT / "kvcore").rglob("*.py")
        for derived, base in re.findall(r"^class (\w+)\((\w+)\):", path.read_text("utf-8"), re.MULTILINE)
        if base in names
    }
    assert found == names - {"KVCoreError"}


def test_kinds() -> None:
    assert {error.__name__: error.kind for error in tree(KVCoreError)} == {
        "KVCoreError": "internal", "ConfigError": "config", "UnknownLayoutError": "config", "ModelError": "model",
        "UnitError": "unit", "EngineError": "engine", "LogError": "log", "HardwareError": "hardware",
        "PlanError": "plan", "SourceError": "source", "HeaderCutOffError": "source", "LiveError": "live", "PackageError": "package",
    }  # fmt: skip


def test_the_printed_tree_is_complete() -> None:
    printed = re.findall(r"^[│ ]*[├└]── (\w+)", errors.__doc__ or "", re.MULTILINE)
    assert sorted(["KVCoreError", *printed]) == sorted(error.__name__ for error in tree(KVCoreError))


def test_messages_are_cut() -> None:
    assert len(str(PlanError("x" * 10_000))) == errors.MAX_MESSAGE


@pytest.mark.parametrize(
    ("problem", "status", "kind"),
    [
        (RuntimeError("two\nlines"), 1, INTERNAL),
        (MemoryError(), 1, INTERNAL),
        (KeyboardInterrupt(), 1, STOPPED),
        (PlanError("no weights"), 2, "plan"),
    ],
)
@pytest.mark.parametrize("debug", ["", "0", "1"])
def test_what_goes_wrong(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, problem: BaseException, status: int, kind: str,
    debug: str,
) -> None:  # fmt: skip
    def fail(*_: object, **__: object) -> None:
        raise problem

    monkeypatch.setattr(command_line, "size", fail)
    monkeypatch.setenv("KV_DEBUG", debug)
    found, out, err = run(capsys, *SIZE, "--json")
    assert (found, json.loads(out)["kind"]) == (status, kind)
    *trace, line = err.splitlines()
    assert line == f"kvcore: {json.loads(out)['error']}"
    assert bool(trace) is (debug == "1")
    if trace:
        assert trace[0].startswith("Traceback")
        assert type(problem).__name__ in trace[-1] or type(problem).__name__ in trace[-2]


def test_a_plan_without_weights_is_of_the_kind_plan(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "brand_new", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2}')
    words = ("plan", str(path), "--gpu", "h100-sxm", "--context", "8K", "--upper-bound", "--json")
    status, out, _ = run(capsys, *words)
    assert (status, json.loads(out)["kind"]) == (2, "plan")
