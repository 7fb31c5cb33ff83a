"""Named systems: complete, consistent with hardware.csv and links.csv, and their sizes as vendors state them."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from kvcore.errors import HardwareError
from kvcore.hardware import systems as module
from kvcore.hardware.gpus import accelerator
from kvcore.hardware.systems import host_gpus, hosts_needed, system, systems


def test_ids_are_unique_and_lower_case() -> None:
    ids = [one.id for one in systems()]
    assert len(set(ids)) == len(ids) >= 50
    assert all(one == one.lower() for one in ids)
    names = [one.name for one in systems()]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("one", systems(), ids=lambda one: one.id)
def test_a_row_holds_together(one: module.System) -> None:
    assert one.gpu.id == one.gpu_id
    assert one.source
    assert one.host_gpus == host_gpus(one.gpu_id)
    # GPUs in one host reach each other by something, and single ones by nothing.
    assert (one.gpu_link is not None) == (min(one.gpus, one.host_gpus) > 1)
    assert (one.host_link is None) == one.gpu.unified_memory
    if one.hosts > 1:
        assert one.network_link is not None
    for link, kinds in (
        (one.gpu_link, ("gpu<->gpu", "host<->gpu")),
        (one.host_link, ("host<->gpu", "cpu<->gpu")),
        (one.network_link, ("network",)),
    ):
        assert link is None or link.kind in kinds
    # Its own fabric is the one that hardware.csv gives the GPU; a pair has one of its links where it has one a peer.
    if one.gpu_link is not None and one.gpu_link.kind == "gpu<->gpu" and one.gpu.link_id:
        pair = f"{one.gpu.link_id}-p2p" if one.gpus == 2 else one.gpu.link_id
        assert one.gpu_link_id in (one.gpu.link_id, pair)


@pytest.mark.parametrize(
    ("id", "gpu", "gpus", "hosts"),
    [
        ("8x-h100-sxm", "h100-sxm", 8, 1),
        ("8x-h200-sxm", "h200-sxm", 8, 1),
        ("8x-b200", "b200", 8, 1),
        ("8x-mi300x", "mi300x", 8, 1),
        ("8x-a100-sxm-80gb", "a100-sxm-80gb", 8, 1),
        ("4x-h100-sxm", "h100-sxm", 4, 1),
        ("gb200-nvl72", "gb200", 72, 1),
        ("gb200-nvl72-36", "gb200", 36, 1),
        ("gb200-nvl72-8", "gb200", 8, 1),
        ("gb200-nvl72-4", "gb200", 4, 1),
        ("dgx-spark", "dgx-spark-gb10", 1, 1),
        ("2x-dgx-spark", "dgx-spark-gb10", 2, 2),
        ("2x-rtx-4090", "rtx-4090", 2, 1),
        ("2x-rtx-3090", "rtx-3090", 2, 1),
        ("4x-l40s", "l40s", 4, 1),
        ("16x-h100-sxm", "h100-sxm", 16, 2),
        ("mac-m3-ultra-512", "apple-m3-ultra-512", 1, 1),
    ],
)
def test_systems_that_are_asked_for(id: str, gpu: str, gpus: int, hosts: int) -> None:
    found = system(id)
    assert (found.gpu_id, found.gpus, found.hosts) == (gpu, gpus, hosts)
    assert found.memory_bytes == gpus * accelerator(gpu).memory_bytes


def test_hosts() -> None:
    assert host_gpus("h100-sxm") == 8
    assert host_gpus("gb200") == 72
    assert host_gpus("dgx-spark-gb10") == 1
    # A GPU that no system has is taken to be in a host of eight.
    assert host_gpus("tpu-v4") == 8
    assert [hosts_needed("h100-sxm", gpus) for gpus in (1, 8, 9, 16)] == [1, 1, 2, 2]


def test_a_system_is_found_in_any_case_and_misspellings_are_answered() -> None:
    assert system(" 8X-H100-SXM ").id == "8x-h100-sxm"
    with pytest.raises(HardwareError, match="8x-h100-sxm"):
        system("8x-h100")
    with pytest.raises(HardwareError, match="ids look like"):
        system("§")


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("gpus", "eight", "gpus is 'eight'"),
        ("gpus", "0", "gpus is '0'"),
        ("host_gpus", "", "host_gpus"),
        ("gpu_id", "h100-smx", "accelerator"),
        ("gpu_link_id", "nvlink9", "link"),
    ],
)
def test_a_malformed_row_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, column: str, value: str, message: str
) -> None:
    with (module.DATA / "systems.csv").open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        names, row = list(reader.fieldnames or ()), next(reader)
    row[column] = value
    with (tmp_path / "systems.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerow(row)
    monkeypatch.setattr(module, "DATA", tmp_path)
    with pytest.raises(HardwareError, match=message):
        systems.__wrapped__()
