"""Where two growth curves cross: the contexts at which the smaller model becomes the larger one."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor

from kvcore.compare_side import Side


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A turn of the order: up to `before` tokens A − B has one sign, and from `tokens` on it has `sign`."""

    before: int
    tokens: int
    sign: int


def turns(a: Side, b: Side) -> tuple[Turn, ...]:
    """Every turn of the order from one token on, in order; shared entries count as their average.

    Bytes are piecewise linear in the tokens, with a bend where a window fills: one division for each piece.
    """
    lines: list[tuple[Fraction, int | None]] = []
    value = Fraction(a.constant_bytes - b.constant_bytes)
    for side, sign in ((a, 1), (b, -1)):
        for memory, count in side.model.kept:
            law = side.laws[memory]
            slope = Fraction(sign * count * law.bytes_per_entry, law.tokens_per_entry)
            lines.append((slope, None if law.max_entries is None else law.max_entries * law.tokens_per_entry))
    bends = sorted({0, *(end for _, end in lines if end)})
    found: list[Turn] = []
    sign_before, level_from = _sign(value), 0
    for start, end in zip(bends, [*bends[1:], None], strict=True):
        slope = sum((s for s, stop in lines if stop is None or stop > start), Fraction(0))
        after = _sign(slope) if end is None else _sign(value + slope * (end - start))
        if sign_before and after == -sign_before:
            root = start - value / slope
            first = floor(root) + 1
            # Where both hold the same for a while, the former order ends where that begins.
            last = ceil(root if value else level_from) - 1
            if last >= 1:
                found.append(Turn(before=last, tokens=first, sign=after))
        sign_before = after or sign_before
        if end is not None:
            level_from = level_from if not value and not slope else end
            value += slope * (end - start)
    return tuple(found)


def _sign(value: Fraction) -> int:
    return (value > 0) - (value < 0)
