"""A figure with a range: what it is at the safe end, at best guess and at the hopeful end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends(Generic[T]):
    """`low` ≤ `best` ≤ `high`. Planning uses the safe end: low of what is left, high of what is used."""

    low: T
    best: T
    high: T

    def map(self, change: Callable[[T], U]) -> Ends[U]:
        """The same three after a change that keeps their order."""
        return Ends(low=change(self.low), best=change(self.best), high=change(self.high))

    @property
    def is_one(self) -> bool:
        """Whether all three are the same."""
        return self.low == self.best == self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """Bytes on one GPU that are neither weights nor cache, with the range in which they lie and how that is known."""

    name: str
    bytes: Ends[int]
    formula: str
    knowledge: str = "estimated"
