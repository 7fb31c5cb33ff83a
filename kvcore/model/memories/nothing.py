"""Layers that keep nothing of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from kvcore.formats import KVFormat
from kvcore.model.memories.base import Access, Factor, Growth, Kind, Memory, MemoryWork


class _Nothing(Memory):
    __slots__ = ()
    is_empty = True

    def growth(self, kv: KVFormat, source_tokens: int | None = None) -> Growth:
        return Growth()

    def factors(self, kv: KVFormat, source_tokens: int | None = None) -> tuple[Factor, ...]:
        return ()

    def numbers_a_token(self) -> tuple[int, int]:
        return 0, 1

    def on_rank(self, ranks: int) -> Self:
        return self

    def work(self, access: Access) -> MemoryWork:
        return MemoryWork(
            noun="tokens", entry_bytes=0, entries_read=0, entries_written=0, pairs=0, operations_per_pair=0,
            pair_formula="0",
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedCache(_Nothing):
    """A layer that reads the cache of layer `owner` and keeps none of its own."""

    projections = "attention"

    owner: int

    @property
    def kind(self) -> Kind:
        return "shared"

    @property
    def reads_layer(self) -> int:
        return self.owner

    def formula(self, kv: KVFormat, source_tokens: int | None = None) -> str:
        return f"reads the cache of layer {self.owner}: 0 B"

    def keeps(self, source_tokens: int | None = None) -> tuple[str, str]:
        return "keep nothing of their own: they read another layer's cache", ""

    @property
    def brief(self) -> str:
        return "read another layer's"


@dataclass(frozen=True, slots=True, kw_only=True)
class NoMemory(_Nothing):
    """A layer that remembers nothing: a feed-forward layer, an encoder layer, an attention that was removed."""

    reason: str

    @property
    def kind(self) -> Kind:
        return "none"

    def formula(self, kv: KVFormat, source_tokens: int | None = None) -> str:
        return f"{self.reason}: 0 B"

    def keeps(self, source_tokens: int | None = None) -> tuple[str, str]:
        return f"keep nothing ({self.reason})", ""

    @property
    def brief(self) -> str:
        return ""
