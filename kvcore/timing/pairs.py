"""How many entries of the past the tokens of a step look at, all together, in closed form.

Token i, counting from 1, looks at i entries under full attention (itself is one), at the last `limit` under a window.
Each function is the sum over the tokens after the first `before` up to `upto`.
"""

from __future__ import annotations


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
