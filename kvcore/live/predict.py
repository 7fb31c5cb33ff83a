"""What a live cache should take, from the same memories as on the Size screen. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvcore.errors import LiveError
from kvcore.formats import KVFormat, kv_format
from kvcore.live.shape import LiveShape, model_of

# The engine's cache formats and what kvcore calls them: its int8 keeps one fp32 scale a token and KV head (for K and
# for V), or one a token for a latent.
CACHE_FORMATS = {"bf16": "bf16", "fp16": "fp16", "fp32": "fp32", "int8": "int8_per_token_head"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheBytes:
    """Bytes of a cache: `reserved` in whole blocks, `resident` in rows that hold a token."""

    reserved: int
    resident: int


def cache_format(name: str) -> KVFormat:
    """The kvcore format behind a cache format of the engine; LiveError names the known ones."""
    return kv_format(CACHE_FORMATS[cache_format_name(name)])


def cache_format_name(name: str) -> str:
    """The engine's own name of a cache format; LiveError names the known ones."""
    plain = name.strip().lower()
    for own, other in CACHE_FORMATS.items():
        if plain in (own, other):
            return own
    raise LiveError(f"cache format {name[:40]!r} cannot run live; those that can are {', '.join(CACHE_FORMATS)}")


def block_rows(tokens: int, window: int | None, block_tokens: int) -> int:
    """Rows that one request's part of a layer has for `tokens` tokens: whole blocks, at most those of the window."""
    needed = -(-tokens // block_tokens) * block_tokens
    return needed if window is None else min(needed, -(-window // block_tokens) * block_tokens)


def predicted_bytes(shape: LiveShape, kv_format: str, lengths: Sequence[int], block_tokens: int = 256) -> CacheBytes:
    """Bytes that a batch of requests of these lengths (in tokens) takes in the live cache.

    The batch is allocated to its longest request, in blocks of `block_tokens`; a layer with a window keeps a ring of
    the window, rounded up to whole blocks. LiveError for a format that is not known.
    """
    kv = cache_format(kv_format)
    longest = max(lengths, default=0)
    reserved = resident = 0
    for memory, count in model_of(shape).kept:
        law = memory.growth(kv)
        rows = block_rows(longest, law.max_entries, block_tokens)
        reserved += count * len(lengths) * rows * law.bytes_per_entry
        resident += count * sum(law.at(length) for length in lengths)
    return CacheBytes(reserved=reserved, resident=resident)
