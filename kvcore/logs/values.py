"""Printed numbers as what they can have been: a count, a fraction or bytes with the interval that rounds to it."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from kvcore.logs.patterns import Kind
from kvcore.units import GIB, KIB, MIB, TIB

# Every engine here counts in powers of two, also those that print "GB".
_UNITS = {"b": 1, "k": KIB, "m": MIB, "g": GIB, "t": TIB}


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """A printed number of bytes: the nearest whole one, and the interval that rounds to what was printed."""

    text: str
    nearest_bytes: int
    low_bytes: int
    high_bytes: int

    def __str__(self) -> str:
        return self.text

    def holds(self, value: int) -> bool:
        """Whether this number of bytes is printed like that."""
        return self.low_bytes <= value <= self.high_bytes


@dataclass(frozen=True, slots=True)
class Decimals:
    """A printed fraction with half a unit of its last digit, so that it can be compared as it was printed."""

    text: str
    value: Fraction
    half_step: Fraction

    def __str__(self) -> str:
        return self.text

    def holds(self, value: Fraction) -> bool:
        """Whether this value is printed like that."""
        return abs(value - self.value) <= self.half_step


def read_value(kind: Kind, text: str) -> Any:
    """A fact's value; None where the text is not what it should be."""
    try:
        if kind == "count":
            return read_count(text)
        if kind == "number":
            return read_decimals(text)
        if kind == "amount":
            return read_amount(text)
    except (ValueError, ZeroDivisionError):
        return None
    if kind == "switch":
        return {"true": True, "false": False}.get(text.lower())
    return text.strip().removeprefix("torch.")[:300] or None


def read_count(text: str) -> int:
    """A whole number as logs print it, `5,186,944`; ValueError for anything else."""
    return int(text.replace(",", "").replace("_", "")[:18])


def read_decimals(text: str) -> Decimals:
    """A fraction as it is printed, with half a unit of its last digit; ValueError for anything else."""
    plain = text.replace(",", "")
    digits = len(plain.partition(".")[2])
    return Decimals(text, Fraction(plain), Fraction(1, 2 * 10**digits))


def read_amount(text: str) -> Amount:
    """Bytes as they are printed, `10.31 GiB`; GB, which engines print for GiB, is read as GiB. ValueError otherwise."""
    number = text.rstrip("iBKMGTkmgt ")
    unit = text[len(number) :].strip().lower()[:1] or "b"
    printed = read_decimals(number)
    if unit not in _UNITS:
        raise ValueError(f"{text[:40]!r} is not an amount of bytes")
    scale = _UNITS[unit]
    low, high = (printed.value - printed.half_step) * scale, (printed.value + printed.half_step) * scale
    return Amount(
        text=text,
        nearest_bytes=round(printed.value * scale),
        low_bytes=-(-low.numerator // low.denominator),
        high_bytes=high.numerator // high.denominator,
    )
