"""The roofline: how fast a step could be at most on an accelerator, by its bandwidth and its rate of arithmetic.

A bound, never a prediction: bytes move at the full bandwidth, arithmetic at the full rate, both at the same time, and
nothing else takes time. Real engines are slower. (Williams, Waterman, Patterson: Roofline, CACM 52(4), 2009.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kvcore.errors import HardwareError
from kvcore.hardware.gpus import FORMATS, Accelerator
from kvcore.terms import Term
from kvcore.timing.work import Work

# What stands in for a format whose rate is not known: the 16-bit formats that attention is computed in.
_STAND_INS = ("bf16", "fp16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The least time that a work can take: `seconds_at_least`, and which of the two limits it comes from.

    `arithmetic_seconds`, `ridge_operations_per_byte` and `rate_format` are None where no rate of the accelerator is
    known; then only its bandwidth bounds. Above the ridge arithmetic binds, below it bandwidth does.
    """

    work: Work
    accelerator: str
    count: int
    bandwidth_bytes_per_s: int
    rate_per_s: float | None
    rate_format: str | None
    notes: tuple[str, ...] = ()

    @property
    def bandwidth_seconds(self) -> float:
        return self.work.bytes / (self.count * self.bandwidth_bytes_per_s)

    @property
    def arithmetic_seconds(self) -> float | None:
        return None if self.rate_per_s is None else self.work.operations / (self.count * self.rate_per_s)

    @property
    def seconds_at_least(self) -> float:
        return max(self.bandwidth_seconds, self.arithmetic_seconds or 0.0)

    @property
    def binds(self) -> Literal["bandwidth", "arithmetic"]:
        return "arithmetic" if (self.arithmetic_seconds or 0.0) > self.bandwidth_seconds else "bandwidth"

    @property
    def ridge_operations_per_byte(self) -> float | None:
        """Operations per byte at which both limits take the same time; the count of accelerators cancels."""
        return None if self.rate_per_s is None else self.rate_per_s / self.bandwidth_bytes_per_s

    def tokens_per_s_at_most(self, tokens: int = 1) -> float | None:
        """Tokens a second where the work makes `tokens` (the batch in decode); None for a work of nothing."""
        return tokens / self.seconds_at_least if self.seconds_at_least else None

    @property
    def terms(self) -> tuple[Term, ...]:
        """The two limits, the bound and the ridge, as far as they are known."""
        return _terms(self)


def bound(work: Work, accelerator: Accelerator, count: int = 1, arithmetic: str = "bf16") -> Bound:
    """The least time for `work` on `count` accelerators, with arithmetic in a format (dense rates).

    Several accelerators are ideal: bandwidth and rate times the count, no communication. Where the rate of the format
    is not known, that of bf16, then fp16 stands in, and a note says so. Raises HardwareError for a count below 1 or a
    format that no accelerator has a rate for.
    """
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise HardwareError(f"count of {accelerator.id}: {count!r} is not a whole number of at least 1, such as 8")
    if arithmetic not in FORMATS:
        raise HardwareError(f"arithmetic: format {arithmetic[:40]!r} is not known; use {', '.join(FORMATS)}")
    rates = accelerator.dense_flops_per_s
    used = next((name for name in (arithmetic, *_STAND_INS) if name in rates), None)
    notes = []
    if used is None:
        notes.append(
            f"No rate of {accelerator.name} is known in {arithmetic} or 16 bits: only its bandwidth bounds the time."
        )
    elif used != arithmetic:
        notes.append(f"No {arithmetic} rate of {accelerator.name} is known: its {used} rate stands in.")
    if count > 1:
        notes.append(f"{count} accelerators are ideal here: each does its share at once, communication takes no time.")
    return Bound(
        work=work,
        accelerator=accelerator.name,
        count=count,
        bandwidth_bytes_per_s=accelerator.bandwidth_bytes_per_s,
        rate_per_s=None if used is None else rates[used],
        rate_format=used,
        notes=tuple(notes),
    )


def _terms(result: Bound) -> tuple[Term, ...]:
    work, times = result.work, f"{result.count} × " if result.count > 1 else ""
    bandwidth = f"{times}{result.bandwidth_bytes_per_s:,} B/s"
    terms = [
        _term("moving the bytes", f"{work.bytes:,} B / ({bandwidth})", result.bandwidth_seconds, "s"),
    ]
    if result.rate_per_s is not None and result.arithmetic_seconds is not None:
        rate = f"{times}{result.rate_per_s:,.0f} {result.rate_format} operations/s"
        formula = f"{work.operations:,} operations / ({rate})"
        terms.append(_term("arithmetic", formula, result.arithmetic_seconds, "s"))
        limits = f"max({result.bandwidth_seconds:.4g} s, {result.arithmetic_seconds:.4g} s)"
    else:
        limits = f"{result.bandwidth_seconds:.4g} s, by bandwidth alone"
    terms.append(_term("cannot be faster than", limits, result.seconds_at_least, "s"))
    ridge = result.ridge_operations_per_byte
    if ridge is not None:
        formula = f"{result.rate_per_s:,.0f} operations/s / {result.bandwidth_bytes_per_s:,} B/s"
        terms.append(_term("ridge", formula, ridge, "operations/B"))
    return tuple(terms)


def _term(name: str, formula: str, value: float, unit: str) -> Term:
    return Term(name=name, formula=f"{formula} = {value:.4g} {unit}", value=value, unit=unit, knowledge="estimated")
