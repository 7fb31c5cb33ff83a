"""What one of several tensor-parallel ranks holds of a memory.

Keys and values are split by head, and a rank never holds less than one KV head; a latent and an index key belong to
all heads, so every rank holds a copy; states are split by head.
"""

from __future__ import annotations

from dataclasses import replace

from kvcore.errors import UnitError
from kvcore.formats import KVFormat
from kvcore.model.memories import Attention, CrossAttention, Memory, State
from kvcore.model.model import Model


def rank_bytes(model: Model, tokens: int, kv: KVFormat, ranks: int, source_tokens: int | None = None) -> int:
    """Bytes that one request of `tokens` tokens takes on the fullest of `ranks` ranks, without an engine's rounding.

    Raises UnitError for fewer than one rank or a format that does not suit the model.
    """
    if ranks < 1:
        raise UnitError(f"ranks: {ranks} is not at least 1")
    return sum(count * _on_rank(memory, tokens, kv, ranks, source_tokens) for memory, count in model.kept)


def _on_rank(memory: Memory, tokens: int, kv: KVFormat, ranks: int, source_tokens: int | None) -> int:
    if isinstance(memory, Attention | CrossAttention):
        # The fullest rank: heads that do not divide evenly leave one more on some.
        memory = replace(memory, num_kv_heads=-(-memory.num_kv_heads // ranks))
    held = memory.growth(kv, source_tokens).at(tokens)
    return -(-held // ranks) if isinstance(memory, State) else held
