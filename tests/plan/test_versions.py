"""A release that is newer than the rules that are known is planned by these, and the plan says so."""

from __future__ import annotations

import pytest

from kvcore.deployment import Deployment
from kvcore.hardware.gpus import accelerator
from kvcore.planning.plan import make_plan
from tests.models import model

QWEN = model("Qwen/Qwen3-0.6B")
H100 = accelerator("h100-sxm")


def notes(engine: str, version: str | None) -> list[str]:
    plan = make_plan(QWEN, Deployment(gpu=H100, context=1024, engine=engine, engine_version=version))
    assert not plan.refused
    return [note for note in plan.notes if note.endswith("may do otherwise.")]


@pytest.mark.parametrize(
    ("engine", "version", "newest"),
    [
        ("vllm", "99.99", "0.33.0"),
        ("vllm", "v0.34.0", "0.33.0"),
        ("sglang", "0.5.100", "0.5.23"),
        ("tensorrt-llm", "1.5", "1.4.0rc4"),
        ("transformers", "5.25.0", "5.24.0"),
    ],
)
def test_newer_than_known(engine: str, version: str, newest: str) -> None:
    (note,) = notes(engine, version)
    assert f"The rules of {engine} {newest} are followed" in note
    assert note.endswith(f": {version.removeprefix('v')} may do otherwise.")


@pytest.mark.parametrize(
    ("engine", "version"),
    [("vllm", None), ("vllm", "0.33.0"), ("vllm", "0.9.2"), ("tensorrt-llm", "1.4.0"), ("sglang", "0.5.3.post1")],
)
def test_what_is_known_needs_no_note(engine: str, version: str | None) -> None:
    assert not notes(engine, version)
