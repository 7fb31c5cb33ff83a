"""How an engine stores one request, and what fits in a given memory: its two answers about a model and settings."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from kvcore.terms import Term


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Layers that share one table of blocks (or one buffer), on one rank, of one kind or of several.

    `page_bytes` is one layer's page after padding; `blocks_per_request` None where the engine has no blocks.
    """

    kinds: tuple[str, ...]
    layers: int
    page_bytes: int
    block_size: int | None = None
    blocks_per_request: int | None = None

    @property
    def kind(self) -> str:
        """All its kinds as one word."""
        return "+".join(self.kinds)


@dataclass(frozen=True, slots=True)
class Note:
    """A sentence about a layout. `kind` is `rules` where it says whose rules were followed.

    `with_draft` stands in its place where the cache of a draft is counted beside the model's: "" for nothing, None
    for the same sentence.
    """

    text: str
    kind: Literal["", "rules"] = ""
    with_draft: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How one request of `max_model_len` tokens is stored on the fullest rank, in bytes of that rank.

    `bytes_per_block` is one block of the pool that all groups draw from; None, like the other block figures, where
    the engine has no blocks. `fixed_bytes` are set aside once, whatever the number of requests. `remarks` are for
    people; `habits` say what the engine does with all layers of a kind that the model has.
    """

    engine: str
    engine_version: str
    model: str
    kv_dtype: str
    max_model_len: int
    bytes_per_request: int
    block_size: int | None = None
    bytes_per_block: int | None = None
    blocks_per_request: int | None = None
    fixed_bytes: int = 0
    groups: tuple[Group, ...] = ()
    terms: tuple[Term, ...] = ()
    remarks: tuple[Note, ...] = ()
    habits: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """The remarks as sentences."""
        return tuple(note.text for note in self.remarks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What fits in a given memory on each rank, and the lines that the engine prints about it.

    `max_concurrency` counts requests of the layout's length and is exact; `blocks` None where there are none. `starts`
    says whether the engine starts with so little; the term with the id `shortfall` has the bytes that lack, where they
    are known.
    """

    kv_bytes: int
    kv_cache_size_tokens: int
    max_concurrency: Fraction
    starts: bool = True
    blocks: int | None = None
    log_lines: tuple[str, ...] = ()
    terms: tuple[Term, ...] = ()
