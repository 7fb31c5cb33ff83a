"""What every filler answers."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

from kvcore.engines.base import Layout
from kvcore.terms import Term


@dataclass(frozen=True, slots=True, kw_only=True)
class Fill:
    """What one replica holds in its pools.

    `concurrency` is exact and as the engine counts it, `requests` whole requests that can be at their full length at
    once (0 where the engine does not start), not capped by Filler.sequences. `tokens` as the engine logs.
    `by_sequences` where a number of requests that the engine chose by itself binds, and not the memory.
    """

    concurrency: Fraction
    requests: int
    tokens: int
    by_sequences: bool = False


class Filler(Protocol):
    """One engine filling its pools for one model; made once for all lengths.

    `sequences` is the most requests at once that the engine allows one replica whatever its memory, None where it has
    no such bound, and `sequences_name` what that bound is called. `keeps_cache` is false of a model without one.
    """

    sequences: int | None
    sequences_name: str
    keeps_cache: bool

    def fill(self, context: int, kv_bytes: tuple[int, ...]) -> Fill:
        """What the pools of the stages hold in requests of `context` tokens; EngineError for what is refused."""

    def count(self, context: int, kv_bytes: tuple[int, ...]) -> int:
        """The `requests` of `fill` alone, for many contexts; EngineError for what is refused."""

    def holds(self, context: int, requests: int, kv_bytes: tuple[int, ...]) -> bool:
        """Whether one replica holds so many, whatever its number of sequences; EngineError for what is refused."""

    def request_bytes(self, context: int) -> tuple[int, ...]:
        """What one request takes on a GPU of each stage."""

    def tightest(self, context: int, kv_bytes: tuple[int, ...]) -> int:
        """The stage that runs out first."""

    def layout(self, context: int, requests: int) -> Layout:
        """How one request is stored where the engine is started for so many; EngineError for what is refused."""

    def terms(self, context: int, kv_bytes: tuple[int, ...]) -> tuple[Term, ...]:
        """The steps from the pools to `fill`, with the numbers filled in."""


NOTHING = Fill(concurrency=Fraction(0), requests=0, tokens=0)
