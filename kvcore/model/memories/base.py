"""The questions that every memory answers, and the shapes of the answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

from kvcore.formats import KVFormat
from kvcore.work import Step, Work

if TYPE_CHECKING:
    from kvcore.model.memories.latent import Indexer

Kind = Literal[
    "full", "sliding", "chunked", "latent", "indexer", "compressed", "state", "cross", "shared", "none"
]  # fmt: skip
KINDS: tuple[Kind, ...] = (
    "full", "sliding", "chunked", "latent", "indexer", "compressed", "state", "cross", "shared", "none",
)  # fmt: skip

Projections = Literal["", "attention", "cross-attention", "recurrent layers"]


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
class Factor:
    """One factor of a product: its value as text, and what it counts."""

    value: str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """The query heads of a model, and the width of one head's key and value."""

    count: int
    key_width: int
    value_width: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How a step uses a memory that is kept in a format: by which query heads, and how much of it.

    `topk` is the most entries that an indexer lets attention read, `writes` is False for a layer that reads another's
    cache, `source_tokens` replaces what cross-attention is assumed to see.
    """

    step: Step
    kv: KVFormat
    heads: Heads
    topk: int | None = None
    writes: bool = True
    source_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryWork:
    """The work of one memory of one layer, for one request, as the numbers that its formulas are made of.

    Counted are the products of queries with what is in the cache: scores and the mix of values, a multiply-add being
    two operations. Softmax, norms and rotary positions are left out, and projections belong to the weights. Each entry
    that is looked at is read once, and each new one is written once and read like the others, as engines with a paged
    cache do.

    `pairs` are the (query token, entry) pairs, each of which takes `operations_per_pair`; `extra_operations` come
    once a step. For a recurrent state an entry is the state and a pair is a token.
    """

    noun: str
    entry_bytes: int
    entries_read: int
    entries_written: int
    pairs: int
    operations_per_pair: int
    pair_formula: str
    extra_operations: int = 0
    extra_formula: str = ""

    @property
    def work(self) -> Work:
        return Work(
            read_bytes=self.entries_read * self.entry_bytes,
            written_bytes=self.entries_written * self.entry_bytes,
            operations=self.pairs * self.operations_per_pair + self.extra_operations,
        )

    @property
    def read_formula(self) -> str:
        """`32,768 tokens × 4,096 B`."""
        return f"{self.entries_read:,} {self.noun} × {self.entry_bytes:,} B"

    @property
    def operations_formula(self) -> str:
        """`32,768 × 2 × 64 heads × (K 128 + V 128)`, and what comes once a step."""
        return f"{self.pairs:,} × {self.pair_formula}{self.extra_formula}"


class Memory:
    """What a layer keeps for one request. A new way to remember is a class that answers these questions.

    `source_tokens` replaces what cross-attention is assumed to see. Methods that are given a format raise UnitError
    for one that does not suit the memory.
    """

    __slots__ = ()

    # Whether it takes no bytes of its own.
    is_empty: ClassVar[bool] = False
    # Whether attention over the request's own tokens reads it.
    attends: ClassVar[bool] = False
    # What the parameters that work on it are counted as; "" where there are none of its own.
    projections: ClassVar[Projections] = ""

    @property
    def kind(self) -> Kind:
        raise NotImplementedError

    @property
    def name(self) -> str:
        """The kind in a word, or the design of a state: `full`, `Mamba 2`."""
        return self.kind

    @property
    def kv_heads(self) -> int:
        """KV heads, 0 where it holds no keys and values by head."""
        return 0

    @property
    def key_width(self) -> int:
        """Numbers of one head's key; 0 without keys by head."""
        return 0

    @property
    def value_width(self) -> int:
        """Numbers of one head's value; 0 without values by head."""
        return 0

    @property
    def window(self) -> int | None:
        """The most recent tokens that are kept, all others being dropped; None where nothing is dropped."""
        return None

    @property
    def tokens_per_entry(self) -> int:
        """Tokens that share one entry."""
        return 1

    @property
    def reads_layer(self) -> int | None:
        """The layer whose cache it reads instead of one of its own."""
        return None

    @property
    def is_counted(self) -> bool:
        """Whether the arithmetic of `work` has a count of its own, and is no guess."""
        return True

    def growth(self, kv: KVFormat, source_tokens: int | None = None) -> Growth:
        """Its law of growth in a format, for one request."""
        raise NotImplementedError

    def formula(self, kv: KVFormat, source_tokens: int | None = None) -> str:
        """The product that makes its bytes, in one line with the numbers filled in."""
        raise NotImplementedError

    def factors(self, kv: KVFormat, source_tokens: int | None = None) -> tuple[Factor, ...]:
        """The same product with a name for each factor."""
        raise NotImplementedError

    def numbers_a_token(self) -> tuple[int, int]:
        """Numbers that it adds, as (numbers, tokens): so many for every so many tokens; (0, 1) where it never grows."""
        raise NotImplementedError

    def made_by(self, hidden: int) -> int:
        """Parameters of the projections that make what is kept, from hidden states of that width."""
        return 0

    def topk(self, own: Indexer | None, latest: Indexer | None) -> int | None:
        """The most entries that an indexer lets a token read of it: one in the layer, or the latest up to it."""
        return None

    def with_window(self, window: int | None) -> Memory:
        """The same with the last `window` tokens kept, or with all of them; itself where that means nothing."""
        return self

    def on_rank(self, ranks: int) -> Memory:
        """What the fullest of `ranks` tensor-parallel ranks holds, without an engine's rounding."""
        raise NotImplementedError

    def work(self, access: Access) -> MemoryWork:
        """Its work in a step, for one request."""
        raise NotImplementedError

    def keeps(self, source_tokens: int | None = None) -> tuple[str, str]:
        """(what layers with it keep, as the end of `52 layers …`, and what that is made of or for)."""
        raise NotImplementedError

    @property
    def brief(self) -> str:
        """What one layer keeps, in a few words; "" for nothing."""
        raise NotImplementedError


LayerPlan: TypeAlias = Callable[[int], tuple[Memory, ...]]


def pair_formula(heads: int, key: int, value: int) -> str:
    """Operations of one (query token, entry) pair: scores and the mix of values."""
    return f"2 × {heads} heads × (K {key} + V {value})"


def bytes_a_number(bits: float) -> Factor:
    """The last factor of most products."""
    size = bits / 8
    return Factor(value=f"{size:g}", what="byte" if size == 1 else "bytes")


def most(count: int, ranks: int) -> int:
    """The share of the fullest rank where `count` things are dealt out one by one."""
    return -(-count // ranks)
