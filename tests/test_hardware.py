"""The hardware data is complete and plausible, and typed-in accelerators are checked."""

from __future__ import annotations

import csv
import pickle
from dataclasses import FrozenInstanceError
from itertools import pairwise
from pathlib import Path

import pytest

from kvcore.errors import HardwareError
from kvcore.hardware import gpus
from kvcore.hardware.gpus import Accelerator, accelerator, accelerators, capacity_lines, custom_accelerator, link, links
from kvcore.units import GB, GIB, MIB

RATES = ("bf16_dense_tflops", "fp16_dense_tflops", "fp8_dense_tflops", "int8_dense_tops", "fp4_dense_tflops")
HARDWARE_NUMBERS = (
    "memory_label",
    "memory_reported_mib",
    "bandwidth_gb_per_s",
    *RATES,
    "link_uni_gb_per_s",
    "link_bidir_gb_per_s",
    "pcie_gen",
    "pcie_lanes",
    "tdp_w",
    "release_year",
)
LINK_NUMBERS = (
    "theoretical_uni_gb_per_s",
    "theoretical_bidir_gb_per_s",
    "usable_uni_gb_per_s",
    "usable_fraction",
    "latency_hint_us",
)
ECC = "ECC kept inside GDDR6 takes one sixteenth"
SHARE = "the GPU's share of memory that it shares with the CPU"
# Driver totals that are not within 95% to 100.5% of the label read as GiB.
FAR_FROM_LABEL = {
    **dict.fromkeys(("t4", "a2", "a10", "a10g", "a16", "a40", "l4", "l40", "l40s"), ECC),
    "b300": "the label counts whole stacks; NVIDIA also calls the board 270 GB, and the driver shows 268.6 GiB",
    "arc-a770-16gb": "the SYCL runtime shows less than the card has",
    **dict.fromkeys(("strix-halo-128", "apple-m1-max-64", "apple-m2-max-96", "apple-m4-16"), SHARE),
    **dict.fromkeys(("apple-m4-max-128", "apple-m5-max-128"), SHARE),
    "tpu-v5p": "XLA shows 95.74 GiB, the label says 95",
}


def rows(name: str) -> list[dict[str, str]]:
    with (gpus.DATA / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    ("name", "numbers", "least"), [("hardware.csv", HARDWARE_NUMBERS, 110), ("links.csv", LINK_NUMBERS, 57)]
)
def test_schema(name: str, numbers: tuple[str, ...], least: int) -> None:
    table = rows(name)
    columns = set(table[0])
    assert len(table) >= least
    assert len({row["id"].lower() for row in table}) == len(table)
    for row in table:
        assert set(row) == columns, row["id"]
        assert all(isinstance(cell, str) and cell == cell.strip() for cell in row.values()), row["id"]
        assert row["retrieved"] == "2026-11-29", row["id"]
        assert row["check"] in {"agree", "disagree", "derived", "single", "arithmetic", "unverified"}, row["id"]
        assert all(float(row[column]) > 0 for column in numbers if row[column]), row["id"]
        unverified = {column for column in row["unverified_fields"].split(",") if column}
        assert unverified <= set(numbers), row["id"]
        assert all(row[column] for column in unverified), f"{row['id']}: unverified but empty"


def test_every_number_has_a_source_or_is_unverified() -> None:
    for name, numbers in (("hardware.csv", HARDWARE_NUMBERS), ("links.csv", LINK_NUMBERS)):
        for row in rows(name):
            for column in numbers:
                source = row["memory_reported_source"] if column == "memory_reported_mib" else row["source"]
                known = source or column in row["unverified_fields"].split(",")
                assert known or not row[column], f"{row['id']}: {column}"


def test_label_and_estimate_are_explicit() -> None:
    for row in rows("hardware.csv"):
        assert row["memory_label_unit"] in {"GB", "GiB"}
        assert row["memory_label_basis"] in {"reported", "documented", "dram"}
        assert bool(row["memory_reported_mib"]) != bool(row["memory_estimate"]), row["id"]
        assert bool(row["memory_reported_mib"]) == bool(row["memory_reported_source"]), row["id"]
        if row["memory_label_basis"] == "reported":
            assert int(row["memory_reported_mib"]) * MIB > 1.03 * float(row["memory_label"]) * GB, row["id"]


def test_reported_totals_fit_the_label() -> None:
    ratios = {item.id: item.reported_bytes / item.hbm_bytes for item in accelerators() if item.reported_bytes}
    far = {id for id, ratio in ratios.items() if not 0.95 <= ratio <= 1.005}
    assert far == set(FAR_FROM_LABEL)
    ecc = [ratio for id, ratio in ratios.items() if FAR_FROM_LABEL.get(id) == ECC]
    assert ecc == pytest.approx([15 / 16] * 9, rel=1e-3)
    assert ratios["tpu-v5p"] < 1.01


def test_estimates_never_exceed_a_reported_total() -> None:
    apple = {"metal_2_3": 0, "metal_3_4": 0}
    for row in rows("hardware.csv"):
        if not row["memory_reported_mib"] or row["id"] == "strix-halo-128":  # its share is a setting
            continue
        rule = "label_as_gb"
        if row["vendor"] == "Apple":
            rule = "metal_2_3" if float(row["memory_label"]) <= 32 else "metal_3_4"
            apple[rule] += 1
        estimate = round(float(row["memory_label"]) * gpus.ESTIMATES[rule])
        assert estimate <= int(row["memory_reported_mib"]) * MIB, row["id"]
    assert all(apple.values())


def test_unreported_memory_is_the_safe_estimate() -> None:
    card = accelerator("rtx-5070")
    assert (card.reported_bytes, card.memory_knowledge) == (None, "estimated")
    assert (card.hbm_bytes, card.memory_bytes) == (12 * GIB, 12 * GB)
    assert accelerator("apple-m2-ultra-192").memory_bytes == 144 * GIB
    assert accelerator("apple-m5-32").memory_bytes == 32 * (2 * GIB // 3)


def test_link_references_resolve_and_agree() -> None:
    for item in accelerators():
        if item.host_link_id:
            assert link(item.host_link_id).kind in {"host<->gpu", "cpu<->gpu"}, item.id
        if item.link_id:
            fabric = link(item.link_id)
            assert (fabric.uni_bytes_per_s, fabric.bidir_bytes_per_s) == (
                item.link_uni_bytes_per_s,
                item.link_bidir_bytes_per_s,
            ), item.id
        if item.link_uni_bytes_per_s is not None:
            assert item.link_bidir_bytes_per_s == 2 * item.link_uni_bytes_per_s, item.id


def test_rates_rise_as_formats_shrink() -> None:
    # Blackwell Ultra gave up integer rate; every other part gets no slower with fewer bits.
    for item in accelerators():
        rates = item.dense_flops_per_s
        floats = [rates[name] for name in ("bf16", "fp8", "fp4") if name in rates]
        assert floats == sorted(floats), item.id
        if item.id not in {"b300", "gb300"} and {"bf16", "int8"} <= set(rates):
            assert rates["int8"] >= rates["bf16"], item.id


# MiB: nvidia-smi and rocm-smi totals; GB/s and dense TFLOPS: the vendors' data sheets as given by AIC, MLE, NANO, TAO.
@pytest.mark.parametrize(
    ("id", "label_gib", "reported", "gb_per_s", "bf16", "fp8", "link_uni", "tdp_w", "capability"),
    [
        ("h100-sxm", 80, 81559 * MIB, 3350, 989.5, 1979, 450, 700, "9.0"),
        ("h200-sxm", 141, 143771 * MIB, 4800, 989.5, 1979, 450, 700, "9.0"),
        ("b200", 180, 183359 * MIB, 7700, 2250, 4500, 900, 1000, "10.0"),
        ("mi300x", 192, 206141652992, 5300, 1307.4, 2614.9, 448, 750, "gfx942"),
        ("rtx-4090", 24, 24564 * MIB, 1008, 165.2, 330.3, None, 450, "8.9"),
    ],
)
def test_popular_cards(
    id: str,
    label_gib: int,
    reported: int,
    gb_per_s: int,
    bf16: float,
    fp8: float,
    link_uni: int | None,
    tdp_w: int,
    capability: str,
) -> None:
    item = accelerator(id)
    assert item.hbm_bytes == label_gib * GIB
    assert item.memory_bytes == item.reported_bytes == reported
    assert item.memory_knowledge == "reported"
    assert item.bandwidth_bytes_per_s == gb_per_s * GB
    assert item.dense_flops_per_s["bf16"] == pytest.approx(bf16 * 1e12)
    assert item.dense_flops_per_s["fp8"] == pytest.approx(fp8 * 1e12)
    assert item.link_uni_bytes_per_s == (None if link_uni is None else link_uni * GB)
    assert (item.tdp_w, item.compute_capability) == (tdp_w, capability)
    assert item.source
    assert item.memory_source


def test_other_fields() -> None:
    spark = accelerator("dgx-spark-gb10")
    assert spark.unified_memory
    assert spark.unverified == ("fp4_dense_tflops", "pcie_lanes")
    assert set(spark.dense_flops_per_s) == {"fp4"}
    assert accelerator("gh200-96gb").host_link_id == "nvlink-c2c-gh200"
    assert accelerator("h100-sxm").release_year == 2022


def test_links() -> None:
    pcie = link("pcie5-x16")
    assert (pcie.uni_bytes_per_s, pcie.bidir_bytes_per_s) == (63 * GB, 126 * GB)
    assert (pcie.bytes_per_s, pcie.speed_knowledge) == (52_800_000_000, "usable")
    assert (link("pcie6-x16").bytes_per_s, link("pcie6-x16").speed_knowledge) == (121 * GB, "theoretical")
    assert link("NVMe-Gen4").latency_s == pytest.approx(1e-4)
    for item in links():
        if item.usable_bytes_per_s is not None:
            assert item.usable_fraction == pytest.approx(item.usable_bytes_per_s / item.uni_bytes_per_s, abs=0.011)
            assert item.usable_bytes_per_s <= item.uni_bytes_per_s, item.id
        if item.bidir_bytes_per_s is not None:
            assert item.bidir_bytes_per_s == 2 * item.uni_bytes_per_s, item.id


def test_lookup_ignores_case_and_suggests() -> None:
    assert accelerator(" H100-SXM ") is accelerator("h100-sxm")
    with pytest.raises(HardwareError, match=r"'h100' is not known; did you mean h100-pcie, h100-sxm, h100-nvl"):
        accelerator("h100")
    with pytest.raises(HardwareError, match=r"rtx-4900.*rtx-4090"):
        accelerator("rtx-4900")
    with pytest.raises(HardwareError, match=r"'zzzz' is not known; ids look like h100-sxm"):
        accelerator("zzzz")
    with pytest.raises(HardwareError, match=r"'pcie5' is not known; did you mean pcie5-x16"):
        link("pcie5")
    with pytest.raises(HardwareError, match="ids look like"):
        accelerator("")


def test_accelerators_are_values() -> None:
    item = accelerator("h100-sxm")
    assert accelerators() is accelerators()
    assert pickle.loads(pickle.dumps(item)) == item
    assert len(set(accelerators())) == len(accelerators())
    with pytest.raises(FrozenInstanceError):
        item.name = "other"  # type: ignore[misc]


def test_typed_in_accelerator() -> None:
    item = custom_accelerator(
        memory="96 GB",
        bandwidth_gb_per_s=1792,
        name="  My card ",
        dense_tflops={"fp8": 1007.7, "bf16": 503.8},
        link_uni_gb_per_s=56.25,
        host_link_id="PCIE5-x16",
        tdp_w=600,
    )
    assert isinstance(item, Accelerator)
    assert (item.id, item.name) == ("custom", "My card")
    assert (item.memory_bytes, item.memory_knowledge) == (96 * GB, "estimated")
    assert item.bandwidth_bytes_per_s == 1_792_000_000_000
    assert item.dense_flops_per_s == pytest.approx({"bf16": 503.8e12, "fp8": 1007.7e12})
    assert (item.link_uni_bytes_per_s, item.link_bidir_bytes_per_s) == (56_250_000_000, 112_500_000_000)
    assert item.host_link_id == "pcie5-x16"
    assert hash(item) == hash(item)
    assert custom_accelerator(memory="96 GiB", bandwidth_gb_per_s=1).memory_bytes == 96 * GIB


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"memory": "eighty"}, r"memory: 'eighty' is not a size; write for example 80 GB"),
        ({"memory": "-80 GB"}, r"'-80 GB' is not a size"),
        ({"memory": "80"}, r"'80' is 80 B, outside 1 GiB … 64 TiB; write for example 80 GB"),
        ({"memory": "0 GB"}, r"'0 GB' is 0 B, outside"),
        ({"memory": "80 PB"}, r"'80 PB' is not a size"),
        ({"memory": "800 TB"}, r"outside 1 GiB … 64 TiB"),
        ({"bandwidth_gb_per_s": 0}, r"memory bandwidth: 0 is outside 1 … 200,000 GB/s, such as 3350"),
        ({"bandwidth_gb_per_s": -1}, r"memory bandwidth: -1"),
        ({"bandwidth_gb_per_s": float("nan")}, r"memory bandwidth: nan"),
        ({"bandwidth_gb_per_s": float("inf")}, r"memory bandwidth: inf"),
        ({"bandwidth_gb_per_s": True}, r"memory bandwidth: True"),
        ({"bandwidth_gb_per_s": "3350"}, r"memory bandwidth: '3350'"),
        ({"dense_tflops": {"fp16": 1e15}}, r"dense rate: 10+\.0 is outside 0.1 … 1,000,000 TFLOPS without sparsity"),
        ({"dense_tflops": {"fp6": 10}}, r"format 'fp6' is not known; use bf16, fp16, fp8, int8, fp4"),
        ({"link_uni_gb_per_s": 0}, r"link speed: 0"),
        ({"host_link_id": "pcie9-x16"}, r"link: 'pcie9-x16' is not known; did you mean .*pcie"),
        ({"tdp_w": -700}, r"power: -700 is outside 1 … 100,000 watts"),
    ],
)
def test_typed_in_accelerator_refuses(wrong: dict[str, object], message: str) -> None:
    given: dict[str, object] = {"memory": "80 GB", "bandwidth_gb_per_s": 3350.0, **wrong}
    with pytest.raises(HardwareError, match=message):
        custom_accelerator(**given)  # type: ignore[arg-type]


def test_capacity_lines() -> None:
    found = {line.id: line for line in capacity_lines()}
    assert list(found) == ["rtx-4090", "h100-sxm", "h200-sxm", "mi300x", "8x-h100-sxm"]
    assert found["h100-sxm"].bytes == 81559 * MIB
    assert found["8x-h100-sxm"].bytes == 8 * 81559 * MIB
    assert found["h100-sxm"].label == "H100 SXM5 80GB (79.6 GiB)"
    assert found["8x-h100-sxm"].label.startswith("8 \N{MULTIPLICATION SIGN} H100")
    sizes = [line.bytes for line in found.values()]
    assert all(high / low > 1.3 for low, high in pairwise(sizes))


def test_capacity_lines_of_a_choice() -> None:
    (small, large) = capacity_lines([("b200", 2), ("RTX-5070", 1)])
    assert (small.accelerator_id, small.count, small.memory_knowledge) == ("rtx-5070", 1, "estimated")
    assert (large.id, large.bytes) == ("2x-b200", 2 * 183359 * MIB)
    for count in (0, -1, True, 1.5):
        with pytest.raises(HardwareError, match="count of b200"):
            capacity_lines([("b200", count)])  # type: ignore[list-item]
    with pytest.raises(HardwareError, match="not known"):
        capacity_lines([("b20", 1)])


GOOD = rows("links.csv")[0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"theoretical_uni_gb_per_s": "fast"}, r"links.csv, line 2 \(pcie3-x16\): theoretical_uni_gb_per_s is 'fast'"),
        ({"theoretical_uni_gb_per_s": "-3"}, r"'-3'; a positive number or nothing"),
        ({"theoretical_uni_gb_per_s": ""}, r"column 'theoretical_uni_gb_per_s' is empty"),
        ({"name": ""}, r"column 'name' is empty"),
        ({"usable_fraction": "inf"}, r"usable_fraction is 'inf'"),
    ],
)
def test_malformed_rows_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, str], message: str
) -> None:
    folder = tmp_path
    with (folder / "links.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(GOOD))
        writer.writeheader()
        writer.writerow({**GOOD, **changes})
    monkeypatch.setattr(gpus, "DATA", folder)
    with pytest.raises(HardwareError, match=message):
        gpus.links.__wrapped__()


def test_malformed_files_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path
    monkeypatch.setattr(gpus, "DATA", folder)
    with pytest.raises(HardwareError, match=r"hardware.csv could not be read"):
        gpus.accelerators.__wrapped__()
    (folder / "hardware.csv").write_text("id,memory_label_unit\nx100,GigaBytes\n", encoding="utf-8")
    with pytest.raises(HardwareError, match=r"\(x100\): memory_label_unit is 'GigaBytes'; one of GB, GiB is expected"):
        gpus.accelerators.__wrapped__()
    (folder / "hardware.csv").write_text("id,memory_label_unit\nx100,GiB\n", encoding="utf-8")
    with pytest.raises(HardwareError, match=r"column 'memory_reported_mib' is missing"):
        gpus.accelerators.__wrapped__()
