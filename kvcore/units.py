"""Units: bytes are integers, GiB is 2**30 and GB is 10**9; every text says which."""

from __future__ import annotations

import re
from fractions import Fraction

from kvcore.errors import UnitError

KIB = 2**10
MIB = 2**20
GIB = 2**30
TIB = 2**40
GB = 10**9

_BINARY = (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB))
_UNIT_BYTES = {
    "": 1,
    "b": 1,
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
    "tib": TIB,
    "kb": 10**3,
    "mb": 10**6,
    "gb": GB,
    "tb": 10**12,
}
_QUANTITY = re.compile(r"^\s*([0-9][0-9_,]*(?:\.[0-9]+)?)\s*([a-z]*)\s*$", re.IGNORECASE)
MAX_TOKENS = 10**9
MAX_BATCH = 10**6


def format_bytes(n: int | float, digits: int = 2) -> str:
    """Bytes in the largest binary unit that leaves at least one whole: `320 KiB`, `2.5 GiB`, `96 B`.

    Trailing zeros are dropped, so that round figures read round.
    """
    for name, size in _BINARY:
        if abs(n) >= size:
            return f"{_trim(n / size, digits)} {name}"
    return f"{_trim(n, digits)} B"


def format_count(n: int | float) -> str:
    """A count in words of thousands: `671.0B`, `37.6B`, `405M`, `1,024`."""
    for name, size in (("T", 10**12), ("B", 10**9), ("M", 10**6)):
        if abs(n) >= size:
            return f"{n / size:.1f}{name}"
    return f"{n:,.0f}"


def plural(count: int, noun: str) -> str:
    """`1 layer`, `1,024 layers`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def format_tokens(n: int) -> str:
    """Tokens as people say them where that is exact: `8K`, `128K`, `1M`; otherwise with thousands separators."""
    if n >= MIB and n % MIB == 0:
        return f"{n // MIB}M"
    if n >= KIB and n % KIB == 0:
        return f"{n // KIB}K"
    return f"{n:,}"


def is_whole(text: str) -> bool:
    """Whether a text is one to twelve digits, 0 to 9; `str.isdigit` also takes digits that `int` does not read."""
    return re.fullmatch(r"[0-9]{1,12}", text) is not None


def parse_tokens(text: str, what: str = "tokens") -> int:
    """Tokens typed by a person: `8192`, `8,192`, `8K` and `128k` (×1,024), `1M` (×1,048,576).

    Raises UnitError, naming `what` was read, for anything else, for negatives and beyond 10**9.
    """
    found = re.fullmatch(r"\s*([0-9][0-9_,]*(?:\.[0-9]+)?)\s*([km]?)\s*", text, re.IGNORECASE | re.ASCII)
    if not found or len(text) > 32:
        raise UnitError(f"{what}: {text[:40]!r} is not a count; write for example 8192, 8K or 1M")
    exact = Fraction(found[1].replace(",", "").replace("_", "")) * {"": 1, "k": KIB, "m": MIB}[found[2].lower()]
    if exact.denominator != 1:
        raise UnitError(f"{what}: {text!r} is not a whole number of tokens")
    return check_tokens(exact.numerator, what)


def check_tokens(tokens: int, what: str = "tokens") -> int:
    """The same number, or UnitError when it is not between 0 and 10**9."""
    if isinstance(tokens, bool) or not isinstance(tokens, int) or not 0 <= tokens <= MAX_TOKENS:
        raise UnitError(f"{what}: {tokens!r} is outside 0 … {MAX_TOKENS:,}")
    return tokens


def check_batch(batch: int) -> int:
    """The same number, or UnitError when it is not between 1 and 10**6."""
    if isinstance(batch, bool) or not isinstance(batch, int) or not 1 <= batch <= MAX_BATCH:
        raise UnitError(f"batch: {batch!r} is outside 1 … {MAX_BATCH:,}")
    return batch


def parse_bytes(text: str) -> int:
    """Bytes from text with a unit, `80 GB` (10**9) and `80 GiB` (2**30) being different; UnitError otherwise."""
    found = _QUANTITY.match(text) if len(text) <= 64 else None
    if not found or found[2].lower() not in _UNIT_BYTES:
        raise UnitError(f"bytes: {text[:40]!r} is not a size; write for example 40 GiB or 80 GB")
    return int(float(found[1].replace(",", "").replace("_", "")) * _UNIT_BYTES[found[2].lower()])


def _trim(value: float, digits: int) -> str:
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
