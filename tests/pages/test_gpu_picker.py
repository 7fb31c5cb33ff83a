"""A GPU that is typed is that GPU or none: never the nearest of the list."""

from __future__ import annotations

from typing import Any

import pytest

from kvcore.hardware.gpus import accelerators
from kvcore.scenario.scenario import Scenario
from pages.ui import widgets
from pages.ui.widgets import label, named
from tests.pages.screens import open_screen


def test_every_accelerator_is_found_by_its_id_name_and_label() -> None:
    for one in accelerators():
        for text in (one.id, one.name, label(one), one.name.upper(), f"  {one.name.lower()} "):
            assert named(text) == (one,), text


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("h100 sxm", "H100 SXM5 80GB"), ("H20", "H20 96GB"), ("4090", "GeForce RTX 4090"), ("L4", "NVIDIA L4"),
        ("rtx5090", "GeForce RTX 5090"), ("mi300x", "Instinct MI300X"), ("m4 max 128", "Apple M4 Max 128GB (40-core GPU)"),
    ],
)  # fmt: skip
def test_what_can_mean_one_only(text: str, found: str) -> None:
    assert [one.name for one in named(text)] == [found]


@pytest.mark.parametrize(("text", "least"), [("H100", 3), ("M4", 4), ("a100 80gb", 2)])
def test_what_can_mean_several(text: str, least: int) -> None:
    assert len(named(text)) >= least


@pytest.mark.parametrize("text", ["H1O0", "", "  ", "![x](//evil.org)", "h100 sxm 90gb", "rtx 4091", "x" * 9999])
def test_what_means_none(text: str) -> None:
    assert named(text) == ()


def typed(text: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The session after somebody typed that where an H100 stood."""
    keep = {"gpu": text, "scenario": Scenario(), "changed": 0}

    def changed() -> None:
        keep["changed"] += 1

    monkeypatch.setattr(widgets.st, "session_state", keep)
    widgets._take(changed)
    return keep


@pytest.mark.parametrize(
    ("text", "said"),
    [("H1O0", "is not in the list"), ("H100", "can be H100 PCIe 80GB"), ("<i>zz", "is not in the list")],
)
def test_a_mistyped_gpu_is_named_and_the_one_before_stays(
    text: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep = typed(text, monkeypatch)
    assert keep["gpu"] == "h100-sxm"
    assert keep["changed"] == 0
    assert said in keep["problems"][0]
    assert "H100 SXM5 80GB stays" in keep["problems"][0]


def test_one_that_is_clear_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, gpu, changed in (("H20", "h20-96gb", 1), ("h20-96gb", "h20-96gb", 1), ("h100 sxm", "h100-sxm", 0)):
        keep = typed(text, monkeypatch)
        assert (keep["gpu"], keep["changed"]) == (gpu, changed)
        assert "problems" not in keep


@pytest.mark.parametrize("page", ["size", "variants", "concurrency"])
def test_every_screen_has_the_same_choice(page: str) -> None:
    at = open_screen(page)
    box = at.selectbox(key="gpu")
    assert box.value == "h100-sxm"
    assert box.proto.accept_new_options
    assert [*box.options] == [label(one) for one in accelerators()]
