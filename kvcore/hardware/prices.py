"""What renting a GPU costs by the hour: offers of data/prices.csv, one tier at a time.

data/PRICES.md says where the offers are from and what a tier is. They are dated and move; callers let people edit them.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from functools import cache
from statistics import median

from kvcore.deployment import Deployment
from kvcore.errors import HardwareError
from kvcore.hardware.gpus import Accelerator, accelerator
from kvcore.paths import DATA

_FILE = "prices.csv"
ON_DEMAND = "on-demand"
SPOT = "spot"
# What is taken where a GPU has no offer on demand, in this order; spot machines can be taken away and never stand in.
_INSTEAD = ("production", "secure", "community")
TIERS = (ON_DEMAND, *_INSTEAD, "prototyping", SPOT)
_MAX_USD = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One offer: `usd_per_hour` is for one GPU. `includes_host` is False where the host is billed on top."""

    provider: str
    sku: str
    gpu_id: str
    usd_per_hour: float
    tier: str
    region: str
    includes_host: bool
    date: date
    source: str
    check: str
    notes: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rental:
    """US dollars an hour for one GPU, from the offers of one tier: cheapest, typical, dearest.

    Typical is the median over providers of each provider's median. `oldest` and `newest` are the dates of the offers.
    """

    gpu_id: str
    tier: str
    low: float
    typical: float
    high: float
    offers: int
    providers: tuple[str, ...]
    oldest: date
    newest: date
    sources: tuple[str, ...]

    @property
    def describe(self) -> str:
        """The figure with what it rests on, in a line."""
        many = "1 offer" if self.offers == 1 else f"{self.offers} offers"
        dates = f"{self.newest}" if self.oldest == self.newest else f"{self.oldest} to {self.newest}"
        span = "" if self.low == self.high else f" ({self.low:.2f} to {self.high:.2f})"
        return f"{self.typical:.2f} $ an hour{span}, {self.tier}, {many}, {dates}"


@cache
def offers() -> tuple[Offer, ...]:
    """Every offer, in the file's order; HardwareError names a row that is malformed.

    Spot prices that a row states beside its price on demand are offers of their own.
    """
    found: list[Offer] = []
    with (DATA / _FILE).open(encoding="utf-8", newline="") as file:
        for line, row in enumerate(csv.DictReader(file), start=2):
            found += _offers(row, f"{_FILE}, line {line} ({row.get('provider', '')})")
    return tuple(found)


def rental(gpu_id: str, tier: str | None = None) -> Rental | None:
    """What that GPU costs on demand, or in the tier asked for; None where nobody offers it so.

    Without a tier, a GPU that nobody offers on demand is priced by the tier that it has; the answer says which.
    Raises HardwareError for a GPU or a tier that is not known.
    """
    known = accelerator(gpu_id).id
    if tier is not None and tier not in TIERS:
        raise HardwareError(f"tier {tier[:30]!r} is not known; known are {', '.join(TIERS)}")
    return _rentals(known, tier)


@cache
def _rentals(gpu_id: str, tier: str | None) -> Rental | None:
    for wanted in (ON_DEMAND, *_INSTEAD) if tier is None else (tier,):
        rows = [one for one in offers() if one.gpu_id == gpu_id and one.tier == wanted and one.includes_host]
        if rows:
            return _rental(gpu_id, wanted, rows)
    return None


def _rental(gpu_id: str, tier: str, rows: list[Offer]) -> Rental:
    by_provider: dict[str, list[float]] = {}
    for one in rows:
        by_provider.setdefault(one.provider, []).append(one.usd_per_hour)
    prices, dates = [one.usd_per_hour for one in rows], [one.date for one in rows]
    return Rental(
        gpu_id=gpu_id,
        tier=tier,
        low=min(prices),
        typical=median(median(own) for own in by_provider.values()),
        high=max(prices),
        offers=len(rows),
        providers=tuple(sorted(by_provider)),
        oldest=min(dates),
        newest=max(dates),
        sources=tuple(sorted({one.source for one in rows})),
    )


def _offers(row: Mapping[str, str], where: str) -> list[Offer]:
    tier, host = row.get("tier", ""), row.get("includes_host", "")
    if tier not in TIERS:
        raise HardwareError(f"{where}: tier is {tier[:30]!r}; one of {', '.join(TIERS)} is expected")
    if host not in ("yes", "no"):
        raise HardwareError(f"{where}: includes_host is {host[:30]!r}; yes or no is expected")
    count = _number(row, "gpu_count", where)
    if count is None or count != int(count):
        raise HardwareError(f"{where}: gpu_count is {row.get('gpu_count', '')!r}; a whole number is expected")
    on_demand, instance = (
        _number(row, name, where) for name in ("usd_per_gpu_hour_on_demand", "usd_per_hour_on_demand")
    )
    spot = _number(row, "usd_per_hour_spot", where)
    if on_demand is not None and (instance is None or abs(instance / count - on_demand) > 0.005):
        raise HardwareError(f"{where}: {on_demand:g} $ for a GPU is not the instance's price over {count:g} GPUs")
    prices = [] if on_demand is None else [(tier, on_demand)]
    if spot is not None:
        # Rows of other tiers that have no price on demand state theirs in the same column.
        prices.append((tier if on_demand is None else SPOT, spot / count))
    if not prices:
        raise HardwareError(f"{where}: no price is stated")
    try:
        stated = date.fromisoformat(row["date_as_of"])
    except ValueError as error:
        raise HardwareError(f"{where}: date_as_of is {row['date_as_of'][:30]!r}; a date is expected") from error
    return [
        Offer(
            provider=row["provider"], sku=row["instance_sku"], gpu_id=accelerator(row["gpu_id"]).id, usd_per_hour=price,
            tier=kind, region=row["region"], includes_host=host == "yes", date=stated, source=row["source"],
            check=row["check"], notes=row["notes"],
        )
        for kind, price in prices
    ]  # fmt: skip


def _number(row: Mapping[str, str], column: str, where: str) -> float | None:
    text = row.get(column, "")
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= _MAX_USD:
        raise HardwareError(f"{where}: {column} is {text[:30]!r}; a number above 0 and up to {_MAX_USD:,} is expected")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Hourly:
    """US dollars an hour for `gpus` GPUs together, and the rental of one that they follow from."""

    gpus: int
    rental: Rental

    @property
    def low(self) -> float:
        return self.gpus * self.rental.low

    @property
    def typical(self) -> float:
        return self.gpus * self.rental.typical

    @property
    def high(self) -> float:
        return self.gpus * self.rental.high


def hourly(gpu: Accelerator, gpus: int) -> Hourly | None:
    """What so many GPUs cost; None where no rental of that GPU is known, as of one that was typed in."""
    try:
        found = rental(gpu.id)
    except HardwareError:
        return None
    return None if found is None else Hourly(gpus=gpus, rental=found)


def cost_words(before: Deployment, after: Deployment) -> str:
    """`8 × H100 instead of 4 × H100: $24.00/h instead of $12.00/h, on demand, offers up to 2026-11-29`.

    "" for the same GPUs; a price that is not known is named.
    """
    if before.gpu == after.gpu and before.gpus == after.gpus:
        return ""
    was, now = hourly(before.gpu, before.gpus), hourly(after.gpu, after.gpus)
    gpus = f"{after.gpus:,} × {after.gpu.name} instead of {before.gpus:,} × {before.gpu.name}"
    if now is None:
        return f"{gpus}; no rental price of {after.gpu.name} is known"
    source = f"{now.rental.tier}, offers up to {now.rental.newest}"
    if was is None:
        return f"{gpus}: ${now.typical:,.2f}/h ({source}), no rental price of {before.gpu.name} is known"
    return f"{gpus}: ${now.typical:,.2f}/h instead of ${was.typical:,.2f}/h ({source})"
