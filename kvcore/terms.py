"""What every result is made of: named steps with the numbers filled in, and figures that are known as a range."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from kvcore.records import NOT_IN_JSON, Record

T = TypeVar("T")
U = TypeVar("U")
V = TypeVar("V")
N = TypeVar("N", int, float)
# One of the three figures of a range.
End = Literal["low", "best", "high"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Term(Record):
    """A named step of a result: its formula with the numbers filled in, its value and unit, how it is known.

    `name` is for people; a step that code looks for has an `id`.
    """

    name: str
    formula: str
    value: int | float
    unit: str
    knowledge: Literal["exact", "upper_bound", "estimated", "measured"] = "exact"
    id: str = field(default="", metadata=NOT_IN_JSON)


@dataclass(frozen=True, slots=True, kw_only=True)
class Range(Generic[T]):
    """A figure as low as it may be, at best guess, and as high as it may be: `low` ≤ `best` ≤ `high`.

    Planning is conservative: it takes the low of what is left and the high of what is used.
    """

    low: T
    best: T
    high: T

    @classmethod
    def exactly(cls, value: T) -> Range[T]:
        """The range of a figure that is known."""
        return cls(low=value, best=value, high=value)

    @property
    def is_one(self) -> bool:
        """Whether all three are the same."""
        return self.low == self.best == self.high

    def __iter__(self) -> Iterator[T]:
        """The three, lowest first."""
        yield self.low
        yield self.best
        yield self.high

    def at(self, end: End) -> T:
        """One of the three by its name."""
        return self.low if end == "low" else self.best if end == "best" else self.high

    def map(self, change: Callable[[T], U]) -> Range[U]:
        """The three after a change that keeps their order; what is one and the same is changed once."""
        low = change(self.low)
        best = low if self.best is self.low else change(self.best)
        return Range(low=low, best=best, high=best if self.high is self.best else change(self.high))

    def zip(self, other: Range[U], join: Callable[[T, U], V]) -> Range[V]:
        """Low joined with low, best with best and high with high: of figures that are high together."""
        return Range(low=join(self.low, other.low), best=join(self.best, other.best), high=join(self.high, other.high))

    def __add__(self: Range[N], other: Range[N] | N) -> Range[N]:
        """The sum with a range that is high at the same time, or with a known figure."""
        if isinstance(other, Range):
            return Range(low=self.low + other.low, best=self.best + other.best, high=self.high + other.high)
        return Range(low=self.low + other, best=self.best + other, high=self.high + other)

    def __radd__(self: Range[N], other: N) -> Range[N]:
        """So that `sum` adds ranges up."""
        return self + other

    def __sub__(self: Range[N], other: Range[N] | N) -> Range[N]:
        """What is left: least where most is taken off."""
        if isinstance(other, Range):
            return Range(low=self.low - other.high, best=self.best - other.best, high=self.high - other.low)
        return Range(low=self.low - other, best=self.best - other, high=self.high - other)

    def __rsub__(self: Range[N], other: N) -> Range[N]:
        """What a range leaves of a known figure."""
        return Range(low=other - self.high, best=other - self.best, high=other - self.low)

    def __mul__(self: Range[N], factor: N) -> Range[N]:
        """The range times a factor that is not negative."""
        return Range(low=self.low * factor, best=self.best * factor, high=self.high * factor)

    def __rmul__(self: Range[N], factor: N) -> Range[N]:
        """The range times a factor that is not negative."""
        return self * factor


# The names of the three, to ask a question for each of them: ENDS.map(lambda end: …).
ENDS: Range[End] = Range(low="low", best="best", high="high")
