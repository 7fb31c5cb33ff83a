"""Work: the bytes that have to move and the arithmetic that has to be done, whatever does it."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from kvcore.units import check_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Bytes read, bytes written, and operations: a multiplication or an addition is one, a multiply-add two.

    Works add up with `+`; `times` repeats one.
    """

    read_bytes: int = 0
    written_bytes: int = 0
    operations: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(
            read_bytes=self.read_bytes + other.read_bytes,
            written_bytes=self.written_bytes + other.written_bytes,
            operations=self.operations + other.operations,
        )

    def times(self, count: int) -> Work:
        """The same work `count` times: once for every layer, or for every request of a batch."""
        return Work(
            read_bytes=count * self.read_bytes,
            written_bytes=count * self.written_bytes,
            operations=count * self.operations,
        )

    @property
    def bytes(self) -> int:
        """Bytes that move: read and written."""
        return self.read_bytes + self.written_bytes

    @property
    def operations_per_byte(self) -> float:
        """Arithmetic intensity: operations for each byte that moves; 0 for no work, infinite where no byte moves."""
        if not self.bytes:
            return inf if self.operations else 0.0
        return self.operations / self.bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One forward pass for one request: `new_tokens` at once, on top of `cached_tokens` that are in the cache."""

    cached_tokens: int
    new_tokens: int

    @property
    def context(self) -> int:
        """Tokens after the step."""
        return self.cached_tokens + self.new_tokens


def decode_step(tokens: int) -> Step:
    """The step that makes one token at a context of `tokens`, which counts that token; of 0 there is nothing to do.

    Raises UnitError for tokens out of range.
    """
    check_tokens(tokens)
    new = min(tokens, 1)
    return Step(cached_tokens=tokens - new, new_tokens=new)


def prefill_step(new_tokens: int, cached_tokens: int = 0) -> Step:
    """The step that takes in `new_tokens` at once where `cached_tokens` are there already.

    Raises UnitError for tokens out of range.
    """
    check_tokens(new_tokens, "new tokens")
    check_tokens(cached_tokens, "cached tokens")
    return Step(cached_tokens=cached_tokens, new_tokens=new_tokens)
