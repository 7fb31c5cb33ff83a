"""What a deployment costs an hour, where the rental of its GPUs is known."""

from __future__ import annotations

from dataclasses import dataclass

from kvcore.errors import HardwareError
from kvcore.hardware import Accelerator
from kvcore.plan.deployment import Deployment
from kvcore.prices import Rental, rental


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
