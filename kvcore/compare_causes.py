"""Why two models differ: the ratio of what they remember as a product of exact factors, each with its words.

What one more token adds is a product,

    layers that grow × numbers stored a layer × bits a number × (1 + index keys / the rest),

so the ratio of two models is the product of four ratios. At a length two more follow, the share that windows leave
and what constants (states, cross-attention) add:

    bytes(N) = N × rate × ((bytes(N) − constants) / (N × rate)) × (bytes(N) / (bytes(N) − constants)).

A cause is named where its factor is at least 1.05 either way; what is left over is one factor more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import Literal

from kvcore.compare_side import Rate, Side, decimal, width_words
from kvcore.units import format_bytes

CauseKind = Literal["layers", "width", "format", "index", "windows", "constants", "rest"]
# The smallest factor that is named, and the smallest that is a difference at all.
NAMED = Fraction(21, 20)
SAME = Fraction(101, 100)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One reason why A and B differ: `factor` is A's share over B's, so it is below 1 where it makes A smaller.

    `words` is a clause about A as "it"; `short` is the same as it follows another clause; `detail` adds to either.
    """

    kind: CauseKind
    words: str
    short: str
    factor: Fraction
    detail: str = ""


def magnitude(factor: Fraction) -> Fraction:
    """The factor or its inverse, whichever is at least 1."""
    return max(factor, 1 / factor)


def order(factor: Fraction) -> str:
    """`less` or `more`."""
    return "less" if factor < 1 else "more"


def rate_causes(a: Rate, b: Rate) -> tuple[Cause, ...]:
    """Why one more token adds more to one of them; empty where either adds nothing."""
    return _ordered(_rate_factors(a, b)) if a.bytes and b.bytes else ()


def _rate_factors(a: Rate, b: Rate) -> list[Cause]:
    mine, theirs = width_words(a, b)
    bits = f"{_bits(a.bits, b.bits)} bits a number instead of {_bits(b.bits, a.bits)}"
    return [
        _layers_cause(a, b),
        Cause(kind="width", words=f"it stores {mine} instead of {theirs}", short=f"with {mine} instead of {theirs}",
              factor=a.width / b.width),
        Cause(kind="format", words=f"it stores {bits}", short=f"at {bits}", factor=a.bits / b.bits),
        _index_cause(a, b),
    ]  # fmt: skip


def _bits(mine: Fraction, other: Fraction) -> str:
    digits = 1 if decimal(mine) != decimal(other) else 2
    return decimal(mine, digits)


def _layers_cause(a: Rate, b: Rate) -> Cause:
    factor = Fraction(a.layers, b.layers)
    whole_a, whole_b = a.layers == a.of_layers, b.layers == b.of_layers
    noun = "layer" if a.of_layers == 1 else "layers"
    theirs = f"{b.layers}" if whole_b else f"{b.layers} of {b.of_layers}"
    if whole_a and whole_b:
        what = f"{a.layers} {noun} instead of {theirs}"
        return Cause(kind="layers", words=f"it has {what}", short=f"in {what}", factor=factor)
    only = "only " if factor < 1 and not whole_a else ""
    what = f"{only}{a.layers} of its {a.of_layers} {noun}" if not whole_a else f"all {a.layers} {noun}"
    what += f" instead of {theirs}"
    # Where both grow in part only, saying what the others of each do would be two asides in one.
    partial = b if whole_a else a if whole_b else None
    detail = partial.others if partial else ""
    return Cause(kind="layers", words=f"its cache grows in {what}", short=f"in {what}", factor=factor, detail=detail)


def _index_cause(a: Rate, b: Rate) -> Cause:
    factor = (a.bytes / a.body_bytes) / (b.bytes / b.body_bytes)
    if a.index_bytes and not b.index_bytes:
        words, short = "it keeps index keys as well", "with index keys as well"
    elif b.index_bytes and not a.index_bytes:
        words, short = "it keeps no index keys", "without index keys"
    else:
        words = f"its index keys weigh {order(factor)} beside the rest"
        short = f"with index keys that weigh {order(factor)} beside the rest"
    return Cause(kind="index", words=words, short=short, factor=factor)


def length_causes(a: Side, b: Side, tokens: int) -> tuple[Cause, ...]:
    """Why one of them holds more at `tokens`; empty where either holds nothing."""
    total_a, total_b = a.at(tokens), b.at(tokens)
    if not total_a or not total_b:
        return ()
    grown_a, grown_b = total_a - a.constant_bytes, total_b - b.constant_bytes
    if not grown_a and not grown_b:
        return _ordered(_constant_factors(a, b))
    if not grown_a or not grown_b:
        fixed = f"its {a.constant_noun}" if not grown_a else f"the {b.constant_noun} of {b.name}"
        words = f"{fixed} {'keeps' if fixed.startswith('its cross') else 'keep'} that size at any length"
        return (Cause(kind="constants", words=words, short=words, factor=Fraction(total_a, total_b)),)
    kept = Fraction(grown_a) / (tokens * a.start.bytes) / (Fraction(grown_b) / (tokens * b.start.bytes))
    constants = Fraction(total_a, grown_a) / Fraction(total_b, grown_b)
    found = _rate_factors(a.start, b.start)
    found.append(_constants_cause(a, b, constants))
    windows = _windows_cause(a, b, tokens, kept)
    return _ordered([*found, windows] if windows else found, Fraction(total_a, total_b))


def _windows_cause(a: Side, b: Side, tokens: int, factor: Fraction) -> Cause | None:
    """What windows leave; None where nothing is cut yet: an entry that is not complete is no reason to name."""
    first, second = (a, b) if factor < 1 else (b, a)
    words = first.window_words("its" if first is a else b.name, tokens)
    also = second.window_words("its" if second is a else b.name, tokens)
    if not words:
        return None
    detail = also.replace(" tokens", "") if also else ""
    return Cause(kind="windows", words=words, short=words, factor=factor, detail=detail)


def _constants_cause(a: Side, b: Side, factor: Fraction) -> Cause:
    words = a.constant_words("its") if factor > 1 else b.constant_words(b.name)
    return Cause(kind="constants", words=words, short=words, factor=factor)


def _constant_factors(a: Side, b: Side) -> list[Cause]:
    """Two models that only keep constants: layers that keep any × bytes a layer."""
    per_a, per_b = Fraction(a.constant_bytes, a.constant_layers), Fraction(b.constant_bytes, b.constant_layers)
    noun = a.constant_noun if a.constant_noun == b.constant_noun else "fixed memory"
    size = f"{format_bytes(float(per_a))} of {noun.replace('states', 'state')} a layer"
    size += f" instead of {format_bytes(float(per_b))}"
    layers = f"{a.constant_layers} layer{'' if a.constant_layers == 1 else 's'} instead of {b.constant_layers}"
    factor = Fraction(a.constant_layers, b.constant_layers)
    return [
        Cause(kind="layers", words=f"it keeps {noun} in {layers}", short=f"in {layers}", factor=factor),
        Cause(kind="width", words=f"it keeps {size}", short=f"with {size}", factor=per_a / per_b),
    ]


def _ordered(found: Sequence[Cause], whole: Fraction | None = None) -> tuple[Cause, ...]:
    """The causes worth naming, those that make the difference first, the others folded into the rest."""
    total = prod((cause.factor for cause in found), start=Fraction(1)) if whole is None else whole
    named = [cause for cause in found if magnitude(cause.factor) >= NAMED]
    if not named and magnitude(total) >= SAME:
        named = [max(found, key=lambda cause: magnitude(cause.factor))]
    named.sort(key=lambda cause: (against(cause.factor, total), -magnitude(cause.factor)))
    rest = total / prod((cause.factor for cause in named), start=Fraction(1))
    if rest != 1:
        named.append(Cause(kind="rest", words="the rest counts too", short="the rest counts too", factor=rest))
    return tuple(named)


def against(factor: Fraction, total: Fraction) -> bool:
    """Whether a factor works against the whole ratio."""
    return (factor < 1) != (total < 1) if total != 1 else factor > 1
