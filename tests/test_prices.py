"""Rental prices: complete, sourced, one tier at a time, medians by hand from the rows."""

from __future__ import annotations

import csv
from datetime import date
from pathlib import Path

import pytest

from kvcore.errors import HardwareError
from kvcore.hardware import prices
from kvcore.hardware.gpus import accelerator
from kvcore.hardware.prices import TIERS, offers, rental


def rows() -> list[dict[str, str]]:
    with (prices.DATA / "prices.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_every_row_is_sourced_and_names_a_gpu_that_is_known() -> None:
    table = rows()
    assert len(table) == 292
    for row in table:
        assert None not in row
        assert accelerator(row["gpu_id"]).id == row["gpu_id"]
        for column in ("provider", "instance_sku", "tier", "source", "source_licence", "check"):
            assert row[column], row
        assert date(2026, 5, 1) < date.fromisoformat(row["date_as_of"]) < date(2026, 11, 30)


def test_reserved_is_cheaper_than_on_demand() -> None:
    for row in rows():
        on_demand = float(row["usd_per_hour_on_demand"] or "inf")
        for column in ("usd_per_hour_reserved_1y", "usd_per_hour_reserved_3y", "usd_per_hour_spot"):
            assert not row[column] or float(row[column]) < on_demand, row


def test_an_instance_of_eight_is_priced_by_the_gpu() -> None:
    # AWS p5.48xlarge: 55.04 $ an hour for eight.
    (found,) = [one for one in offers() if one.sku == "p5.48xlarge" and one.tier == "on-demand"]
    assert (found.gpu_id, found.usd_per_hour, found.date) == ("h100-sxm", 6.88, date(2026, 6, 15))


def test_an_mi300x_by_hand() -> None:
    # On demand: DigitalOcean 2.59, Crusoe 3.45, Oracle 6.00; RunPod's 2.39 is another tier.
    found = rental("mi300x")
    assert found is not None
    assert (found.low, found.typical, found.high, found.offers) == (2.59, 3.45, 6.0, 3)
    assert found.providers == ("Crusoe", "DigitalOcean", "Oracle OCI")
    assert (found.oldest, found.newest) == (date(2026, 8, 22), date(2026, 10, 20))
    secure = rental("mi300x", "secure")
    assert secure is not None
    assert (secure.low, secure.tier, secure.offers) == (2.39, "secure", 1)
    assert found.describe == "3.45 $ an hour (2.59 to 6.00), on-demand, 3 offers, 2026-08-22 to 2026-10-20"
    assert secure.describe == "2.39 $ an hour, secure, 1 offer, 2026-08-22"


def test_a_provider_counts_once_however_often_it_is_listed() -> None:
    # RTX 4090 on demand: Vast 0.31, TensorDock 0.35, Yotta 0.48, Genesis 0.55, Novita 0.67 and 0.69.
    found = rental("rtx-4090")
    assert found is not None
    assert (found.low, found.typical, found.high, found.offers) == (0.31, 0.48, 0.69, 6)
    # Two sources list Oracle's GB200 at 16.
    oracle = rental("gb200")
    assert oracle is not None
    assert (oracle.typical, oracle.offers, oracle.providers) == (16.0, 2, ("Oracle OCI",))


def test_a_price_without_its_host_is_left_out() -> None:
    # T4: Google's 0.35 is the accelerator alone, Modal's 0.59 is all of it.
    found = rental("t4")
    assert found is not None
    assert (found.low, found.high, found.providers) == (0.59, 0.59, ("Modal",))
    # Google's A4 bundles the host.
    b200 = rental("b200")
    assert b200 is not None
    assert "Google Cloud" in b200.providers
    assert b200.high == 16.11
    assert rental("p100-pcie-16gb") is None


def test_tiers_are_not_mixed() -> None:
    for gpu_id in {one.gpu_id for one in offers()}:
        for tier in TIERS:
            found = rental(gpu_id, tier)
            if found is not None:
                own = [one for one in offers() if one.gpu_id == gpu_id and one.tier == tier and one.includes_host]
                assert found.tier == tier
                assert found.offers == len(own)
                assert found.low <= found.typical <= found.high
                assert {one.usd_per_hour for one in own} >= {found.low, found.high}


def test_another_tier_stands_in_by_name() -> None:
    stood_in = {one.gpu_id for one in offers()} - {
        one.gpu_id for one in offers() if one.tier == "on-demand" and one.includes_host
    }
    tiers = {found.tier for gpu_id in stood_in if (found := rental(gpu_id)) is not None}
    assert tiers <= {"production", "secure", "community"}
    assert tiers
    # Spot machines never stand in.
    assert rental("rtx-4060-ti-16gb") is None
    spot = rental("rtx-4060-ti-16gb", "spot")
    assert spot is not None
    assert spot.typical == 0.17


def test_a_spot_price_beside_one_on_demand_is_an_offer_of_its_own() -> None:
    # Crusoe: H100 SXM 3.90 on demand, 1.60 spot.
    found = {one.tier: one.usd_per_hour for one in offers() if one.sku == "H100-SXM-80GB"}
    assert found == {"on-demand": 3.9, "spot": 1.6}


def test_what_nobody_rents_has_no_price() -> None:
    assert rental("apple-m3-ultra-512") is None
    assert rental("dgx-spark-gb10") is None


def test_what_is_not_known_is_refused() -> None:
    with pytest.raises(HardwareError, match="h100-sxm"):
        rental("h100-sx")
    with pytest.raises(HardwareError, match="on-demand"):
        rental("h100-sxm", "cheap")


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("tier", "free", "tier is 'free'"),
        ("includes_host", "", "includes_host"),
        ("gpu_count", "1.5", "gpu_count"),
        ("gpu_count", "", "gpu_count"),
        ("usd_per_gpu_hour_on_demand", "-1", "usd_per_gpu_hour_on_demand is '-1'"),
        ("usd_per_gpu_hour_on_demand", "nan", "usd_per_gpu_hour_on_demand is 'nan'"),
        ("usd_per_gpu_hour_on_demand", "1", "not the instance's price"),
        ("date_as_of", "June", "date_as_of is 'June'"),
        ("gpu_id", "h1000", "accelerator"),
    ],
)
def test_a_malformed_row_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, column: str, value: str, message: str
) -> None:
    row = rows()[0]
    row[column] = value
    with (tmp_path / "prices.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(row))
        writer.writeheader()
        writer.writerow(row)
    monkeypatch.setattr(prices, "DATA", tmp_path)
    with pytest.raises(HardwareError, match=message):
        offers.__wrapped__()
