"""Work: bytes that have to move and arithmetic that has to be done, whatever does it; and the steps that ask for it.

How many entries of the past the tokens of a step look at, all together, is a sum in closed form: token i, counting from
1, looks at i entries under full attention (itself is one), at the last `limit` under a window.
"""

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

    def entries_seen(self, window: int | None = None, topk: int | None = None) -> int:
        """Distinct entries that the step's tokens look at, with one token an entry.

        Behind a window the first new token still sees window − 1 of the past. Tokens of one step may choose different
        entries: at least those that a single one chooses are read.
        """
        if not self.new_tokens:
            return 0
        past = self.cached_tokens if window is None else min(self.cached_tokens, window - 1)
        seen = past + self.new_tokens
        return seen if topk is None else min(seen, topk)


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


def windowed_pairs(before: int, upto: int, limit: int | None = None, tokens_per_entry: int = 1) -> int:
    """Σ min(⌊i / tokens_per_entry⌋, limit) over i = before + 1 … upto; without a limit the sum is of ⌊…⌋ alone."""
    return _windowed(upto, limit, tokens_per_entry) - _windowed(before, limit, tokens_per_entry)


def chunked_pairs(before: int, upto: int, chunk: int) -> int:
    """Σ (((i − 1) mod chunk) + 1) over i = before + 1 … upto: every chunk starts anew."""
    return _chunked(upto, chunk) - _chunked(before, chunk)


def _windowed(tokens: int, limit: int | None, share: int) -> int:
    # Entries 1, 2, … full − 1 are each the newest for `share` tokens; every token after that sees `full`.
    full = tokens // share
    if limit is not None:
        full = min(full, limit)
    return share * (full * (full - 1) // 2) + full * (tokens - share * full + 1) if full else 0


def _chunked(tokens: int, chunk: int) -> int:
    whole, rest = divmod(tokens, chunk)
    return whole * (chunk * (chunk + 1) // 2) + rest * (rest + 1) // 2
