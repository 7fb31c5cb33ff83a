"""What a layer must keep about the past, as data, each with its growth law.

Every memory grows in one of three ways, and `Growth` holds all three: a line, a line that stops (a window), a
constant. So a curve, a sum over layers or a sweep is arithmetic on a handful of integers, never a loop over tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from kvcore.formats import Format, KVFormat

Kind = Literal[
    "full", "sliding", "chunked", "latent", "indexer", "compressed", "state", "cross", "shared", "none"
]  # fmt: skip
KINDS: tuple[Kind, ...] = (
    "full", "sliding", "chunked", "latent", "indexer", "compressed", "state", "cross", "shared", "none",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """bytes(N) = constant_bytes + bytes_per_entry × min(N // tokens_per_entry, max_entries), for one request."""

    bytes_per_entry: int = 0
    tokens_per_entry: int = 1
    max_entries: int | None = None
    constant_bytes: int = 0

    def at(self, tokens: int) -> int:
        """Bytes after `tokens` tokens."""
        entries = tokens // self.tokens_per_entry
        if self.max_entries is not None and entries > self.max_entries:
            entries = self.max_entries
        return self.constant_bytes + self.bytes_per_entry * entries

    def next_token(self, tokens: int) -> tuple[int, int]:
        """What one more token adds at `tokens`, as (bytes, tokens an entry): a full window adds (0, 1)."""
        if self.max_entries is not None and tokens // self.tokens_per_entry >= self.max_entries:
            return 0, 1
        return self.bytes_per_entry, self.tokens_per_entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Keys and values for every token, or for the last `limit` of them.

    `law` says what the limit means: none (full), a window that slides, or a chunk that starts anew; the most that a
    request can hold is the same min(N, limit) for the last two.
    """

    num_kv_heads: int
    head_dim: int
    v_head_dim: int
    limit: int | None = None
    law: Literal["full", "sliding", "chunked"] = "full"

    @property
    def kind(self) -> Kind:
        return self.law

    def growth(self, kv: KVFormat, source_tokens: int | None = None) -> Growth:
        return Growth(bytes_per_entry=self.row_bytes(kv), max_entries=self.limit)

    def row_bytes(self, kv: KVFormat) -> int:
        """Bytes of one token's keys and values."""
        return kv.kv_bytes(self.num_kv_heads, self.head_dim, self.v_head_dim)

    def formula(self, kv: KVFormat, source_tokens: int | None = None) -> str:
        product = _kv_formula(self.num_kv_heads, self.head_dim, self.v_head_dim, kv)
        return f"{product} = {self.row_bytes(kv):,} B a token"


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossAttention:
    """Keys and values of an encoder's output or of image tokens: `source_tokens` of them, whatever is generated."""

    num_kv_heads: int
    head_dim: int
    source_tokens: int

    @property
    def kind(self) -> Kind:
        return "cross"

    def growth(self, kv: KVFormat, source_tokens: int | None = None) -> Growth:
        source = self.source_tokens if source_tokens is None else source_tokens
        return Growth(constant_bytes=source * kv.kv_bytes(self.num_kv_heads, self.head_dim, self.head_dim))

    def formula(self, kv: KVFormat, source_tokens: int | None = None) -> str:
        source = self.source_tokens if source_tokens is None else source_tokens
        row = kv.kv_bytes(self.num_kv_heads, self.head_dim, self.head_dim)
        return (
            f"{_kv_formula(self.num_kv_heads, self.head_dim, self.head_dim, kv)} = {row:,} B × {source:,} source tokens"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
    """One compressed vector a token (or for every `tokens_per_entry` tokens) in place of keys and values.

    Multi-head latent attention keeps `kv_lora_rank` numbers and `qk_rope_head_dim` more for position. DeepSeek-V4
    keeps such vectors for a window (`window`) and for compressed groups of tokens (`tokens_per_entry`).
    `packed_bytes` is one entry in the fp8_ds_mla layout, where that layout is defined for these widths.
    """

    kv_lora_rank: int
    qk_rope_head_dim: int
    window: int | None = None
    tokens_per_entry: int = 1
    packed_bytes: int | None = None

    @property
    def kind(self) -> Kind:
        if self.window is not None:
            return "sliding"
        return "latent" if self.tokens_per_entry == 1 else "compressed"

    @property
    def width(self) -> int:
        return self.kv_lora_rank + self.qk_rope_head_dim

    def entry_bytes(self, kv: KVFormat) -> int:
        return kv.latent_bytes(self.width, self.packed_bytes)

    def growth(self, kv: KVFormat, source_tokens: int | None = None) -> Growth:
        return Growth(
            bytes_per_entry=self.entry_bytes(kv), tokens_per_entry=self.tokens_per_entry, max_entries=self.window
        )

    def formula(self, kv: KVFormat, source_tokens: int | None = None) -> str:
        size = "packed" if kv.packed_latent else kv.k.describe()
        unit = "token" if self.tokens_per_entry == 1 else f"{self.tokens_per_entry} tokens"
        parts = f"({self.kv_lora_rank} + {self.qk_rope_head_dim})"
        return f"{parts} × {size} = {self.entry_bytes(kv):,} B for each {unit}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexer:
    """The key that a sparse-attention indexer keeps to choose which tokens to read; it has a format of its own.

    `index_topk` is the most entries that attention then reads, `index_heads` the query heads that score each key; None
    where the configuration does not say.
    """

    index_head_dim: int
    stored_as: Format
    tokens_per_entry: int = 1
    index_topk: int | None = None
    index_heads: int | None = None

    @property
    def kind(self) -> Kind:
        return "indexer"

    def entry_bytes(self) -> int:
        return self.stored_as.row_bytes(1, self.index_head_dim)

    def growth(self, kv: KVFormat, source_tokens: int | None = None) -> Growth:
        return Growth(bytes_per_entry=self.entry_bytes(), tokens_per_entry=self.tokens_per_entry)

    def formula(self, kv: KVFormat, source_tokens: int | None = None) -> str:
        unit = "token" if self.tokens_per_entry == 1 else f"{self.tokens_per_entry} tokens"
        return f"{self.index_head_dim} × {self.stored_as.describe()} = {self.entry_bytes():,} B for each {unit}"


# 128 fp8 numbers and one 4-byte scale: 132 bytes (vLLM 0.33, models/deepseek_v2.py; DeepSeek-V3.2).
INDEXER_FP8 = Format(name="indexer_fp8", bits=8, scope="block", block=128, scale_bytes=4, source="DeepSeek-V3.2")


@dataclass(frozen=True, slots=True, kw_only=True)
class StatePart:
    """One tensor of a state: its name, its shape, and the bytes of one element."""

    name: str
    shape: tuple[int, ...]
    element_bytes: int

    @property
    def bytes(self) -> int:
        total = self.element_bytes
        for side in self.shape:
            total *= side
        return total


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What a recurrent layer keeps: tensors of fixed shape, whatever the number of tokens and the cache format."""

    design: str
    parts: tuple[StatePart, ...]

    @property
    def kind(self) -> Kind:
        return "state"

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)

    def growth(self, kv: KVFormat, source_tokens: int | None = None) -> Growth:
        return Growth(constant_bytes=self.bytes)

    def formula(self, kv: KVFormat, source_tokens: int | None = None) -> str:
        parts = " + ".join(
            f"{part.name} {' × '.join(map(str, part.shape))} × {part.element_bytes} B" for part in self.parts
        )
        return f"{self.design}: {parts} = {self.bytes:,} B whatever the length"


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedCache:
    """A layer that reads the cache of layer `owner` and keeps none of its own."""

    owner: int

    @property
    def kind(self) -> Kind:
        return "shared"

    def growth(self, kv: KVFormat, source_tokens: int | None = None) -> Growth:
        return Growth()

    def formula(self, kv: KVFormat, source_tokens: int | None = None) -> str:
        return f"reads the cache of layer {self.owner}: 0 B"


@dataclass(frozen=True, slots=True, kw_only=True)
class NoMemory:
    """A layer that remembers nothing: a feed-forward layer, an encoder layer, an attention that was removed."""

    reason: str

    @property
    def kind(self) -> Kind:
        return "none"

    def growth(self, kv: KVFormat, source_tokens: int | None = None) -> Growth:
        return Growth()

    def formula(self, kv: KVFormat, source_tokens: int | None = None) -> str:
        return f"{self.reason}: 0 B"


Memory: TypeAlias = Attention | CrossAttention | Latent | Indexer | State | SharedCache | NoMemory
LayerPlan: TypeAlias = Callable[[int], tuple[Memory, ...]]


def _kv_formula(heads: int, k_width: int, v_width: int, kv: KVFormat) -> str:
    noun = "KV head" if heads == 1 else "KV heads"
    if k_width == v_width and kv.k == kv.v:
        return f"2 (K and V) × {heads} {noun} × {k_width} × {kv.k.describe()}"
    return f"{heads} {noun} × (K {k_width} × {kv.k.describe()} + V {v_width} × {kv.v.describe()})"
