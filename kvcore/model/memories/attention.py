"""Keys and values by head: of every token, of a window, of a chunk, or of a source."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from kvcore.formats import KVFormat
from kvcore.model.memories.base import (
    Access,
    Factor,
    Growth,
    Kind,
    Memory,
    MemoryWork,
    bytes_a_number,
    most,
    pair_formula,
)
from kvcore.units import plural
from kvcore.work import chunked_pairs, windowed_pairs

if TYPE_CHECKING:
    from kvcore.model.memories.latent import Indexer

PAIR = "(K and V)"


class KeysAndValues(Memory):
    """What is kept by KV head, of the request's own tokens or of a source's."""

    __slots__ = ()

    def row_bytes(self, kv: KVFormat) -> int:
        """Bytes of one token's keys and values."""
        return kv.kv_bytes(self.kv_heads, self.key_width, self.value_width)

    def made_by(self, hidden: int) -> int:
        return hidden * self.kv_heads * (self.key_width + self.value_width)

    def _product(self, kv: KVFormat) -> str:
        heads, key, value = self.kv_heads, self.key_width, self.value_width
        noun = "KV head" if heads == 1 else "KV heads"
        if key == value and kv.k == kv.v:
            return f"2 {PAIR} × {heads} {noun} × {key} × {kv.k.describe()}"
        return f"{heads} {noun} × (K {key} × {kv.k.describe()} + V {value} × {kv.v.describe()})"

    def _row_factors(self, kv: KVFormat) -> tuple[Factor, ...]:
        heads, key, value = self.kv_heads, self.key_width, self.value_width
        head = Factor(value=f"{heads}", what="KV head" if heads == 1 else "KV heads")
        plain = kv.k.scope == "tensor" and kv.k == kv.v
        if plain and key == value:
            numbers = Factor(value=f"{key}", what="numbers a head")
            return Factor(value="2", what=PAIR), head, numbers, bytes_a_number(kv.k.bits)
        if plain:
            return head, Factor(value=f"({key} + {value})", what="numbers of K and V"), bytes_a_number(kv.k.bits)
        # Scales, or K and V stored differently: the two rows are added up in bytes.
        what = f"bytes for K and V of {heads} heads, scales included"
        return (Factor(value=f"{self.row_bytes(kv):,}", what=what),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention(KeysAndValues):
    """Keys and values for every token, or for the last `limit` of them.

    `law` says what the limit means: none (full), a window that slides, or a chunk that starts anew; the most that a
    request can hold is the same min(N, limit) for the last two.
    """

    attends = True
    projections = "attention"

    num_kv_heads: int
    head_dim: int
    v_head_dim: int
    limit: int | None = None
    law: Literal["full", "sliding", "chunked"] = "full"

    @property
    def kind(self) -> Kind:
        return self.law

    @property
    def kv_heads(self) -> int:
        return self.num_kv_heads

    @property
    def key_width(self) -> int:
        return self.head_dim

    @property
    def value_width(self) -> int:
        return self.v_head_dim

    @property
    def window(self) -> int | None:
        return self.limit

    def growth(self, kv: KVFormat, source_tokens: int | None = None) -> Growth:
        row = kv.kv_bytes(self.num_kv_heads, self.head_dim, self.v_head_dim)
        return Growth(bytes_per_entry=row, max_entries=self.limit)

    def formula(self, kv: KVFormat, source_tokens: int | None = None) -> str:
        return f"{self._product(kv)} = {self.row_bytes(kv):,} B a token"

    def factors(self, kv: KVFormat, source_tokens: int | None = None) -> tuple[Factor, ...]:
        return self._row_factors(kv)

    def numbers_a_token(self) -> tuple[int, int]:
        return self.num_kv_heads * (self.head_dim + self.v_head_dim), 1

    def topk(self, own: Indexer | None, latest: Indexer | None) -> int | None:
        """Keys and values without an indexer in their layer are read whole (MiniMax-M3), and so are windows."""
        return own.index_topk if own is not None and self.limit is None else None

    def with_window(self, window: int | None) -> Attention:
        return replace(self, limit=window, law="full" if window is None else "sliding")

    def on_rank(self, ranks: int) -> Attention:
        """Split by head, at least one KV head on each rank."""
        return replace(self, num_kv_heads=most(self.num_kv_heads, ranks))

    def work(self, access: Access) -> MemoryWork:
        step, topk, heads = access.step, access.topk, access.heads
        limit = self.limit if topk is None else min(topk, self.limit or topk)
        seen = step.entries_seen(self.limit, topk)
        pairs = windowed_pairs(step.cached_tokens, step.context, limit)
        if self.law == "chunked" and self.limit is not None:
            # A request may hold a whole chunk, but a token looks no further back than the start of its own.
            seen = step.cached_tokens % self.limit + step.new_tokens if step.new_tokens else 0
            pairs = chunked_pairs(step.cached_tokens, step.context, self.limit)
        return MemoryWork(
            noun="tokens",
            entry_bytes=self.row_bytes(access.kv),
            entries_read=seen,
            entries_written=step.new_tokens if access.writes else 0,
            pairs=pairs,
            operations_per_pair=2 * heads.count * (self.head_dim + self.v_head_dim),
            pair_formula=pair_formula(heads.count, self.head_dim, self.v_head_dim),
        )

    def keeps(self, source_tokens: int | None = None) -> tuple[str, str]:
        heads = f"{plural(self.num_kv_heads, 'KV head')} of {self.head_dim}"
        if self.law == "sliding":
            return f"keep the last {self.limit:,} tokens", heads
        if self.law == "chunked":
            return f"keep the current chunk of at most {self.limit:,} tokens", heads
        return "keep every token", heads

    @property
    def brief(self) -> str:
        reach = "" if self.limit is None else f", last {plural(self.limit, 'token')}"
        return f"{plural(self.num_kv_heads, 'KV head')} × {self.head_dim}{reach}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossAttention(KeysAndValues):
    """Keys and values of an encoder's output or of image tokens: `source_tokens` of them, whatever is generated."""

    projections = "cross-attention"

    num_kv_heads: int
    head_dim: int
    source_tokens: int

    @property
    def kind(self) -> Kind:
        return "cross"

    @property
    def kv_heads(self) -> int:
        return self.num_kv_heads

    @property
    def key_width(self) -> int:
        return self.head_dim

    @property
    def value_width(self) -> int:
        return self.head_dim

    def tokens(self, source_tokens: int | None = None) -> int:
        """Tokens of the source: those that are asked for, else as many as are assumed."""
        return self.source_tokens if source_tokens is None else source_tokens

    def growth(self, kv: KVFormat, source_tokens: int | None = None) -> Growth:
        return Growth(constant_bytes=self.tokens(source_tokens) * self.row_bytes(kv))

    def formula(self, kv: KVFormat, source_tokens: int | None = None) -> str:
        return f"{self._product(kv)} = {self.row_bytes(kv):,} B × {self.tokens(source_tokens):,} source tokens"

    def factors(self, kv: KVFormat, source_tokens: int | None = None) -> tuple[Factor, ...]:
        return (*self._row_factors(kv), Factor(value=f"{self.tokens(source_tokens):,}", what="source tokens"))

    def numbers_a_token(self) -> tuple[int, int]:
        return 0, 1

    def on_rank(self, ranks: int) -> CrossAttention:
        """Split by head, at least one KV head on each rank."""
        return replace(self, num_kv_heads=most(self.num_kv_heads, ranks))

    def work(self, access: Access) -> MemoryWork:
        step, heads = access.step, access.heads
        source = self.tokens(access.source_tokens) if step.new_tokens else 0
        return MemoryWork(
            noun="source tokens",
            entry_bytes=self.row_bytes(access.kv),
            entries_read=source,
            # Keys and values of the source are made once, for the first token.
            entries_written=0 if step.cached_tokens else source,
            pairs=step.new_tokens * source,
            operations_per_pair=2 * heads.count * 2 * self.head_dim,
            pair_formula=pair_formula(heads.count, self.head_dim, self.head_dim),
        )

    def keeps(self, source_tokens: int | None = None) -> tuple[str, str]:
        return f"keep the keys and values of {self.tokens(source_tokens):,} source tokens", ""

    @property
    def brief(self) -> str:
        return "the source"
