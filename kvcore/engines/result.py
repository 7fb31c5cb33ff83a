"""What an engine reserves for a request and what fits in a given memory, as one answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvcore.engines.base import Engine, Group
from kvcore.model.model import Model
from kvcore.records import Record, table
from kvcore.terms import Term

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineResult(Record):
    """How an engine stores requests of `max_model_len` tokens, in bytes of the fullest GPU of a replica.

    `bytes_per_request` is what one such request reserves. `block_size` (tokens), `bytes_per_block` and
    `blocks_per_request` are None where the engine has no blocks; `fixed_bytes` are reserved once, whatever the number
    of requests. `kv_cache_size_tokens`, `max_concurrency` (requests of that length), `blocks` and `log_lines` say what
    fits in the memory for the cache, and are None where none was given. `groups` are the layers that share a table of
    blocks.
    """

    engine: str
    engine_version: str
    model: str
    kv_dtype: str
    max_model_len: int
    block_size: int | None
    bytes_per_block: int | None
    bytes_per_request: int
    blocks_per_request: int | None
    fixed_bytes: int
    kv_cache_size_tokens: int | None
    max_concurrency: float | None
    blocks: int | None
    per_rank: bool
    groups: tuple[GroupResult, ...]
    log_lines: tuple[str, ...] | None
    terms: tuple[Term, ...]
    notes: tuple[str, ...]

    def to_frame(self) -> pd.DataFrame:
        """One row a group of layers: kind, layers, block_size, page_bytes, blocks_per_request."""
        return table(self.groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupResult(Record):
    """Layers that share one table of blocks: `page_bytes` is one layer's block after padding, on one GPU."""

    kind: str
    layers: int
    block_size: int | None
    page_bytes: int
    blocks_per_request: int | None


def engine_result(engine: Engine, model: Model, settings: Any, kv_bytes: int | None) -> EngineResult:
    """The engine's answer for its settings, with `kv_bytes` for the cache on each GPU (None: not known).

    Raises EngineError for what the engine does not support.
    """
    layout = engine.layout(model, settings)
    capacity = None if kv_bytes is None else engine.capacity(model, settings, kv_bytes)
    return EngineResult(
        engine=layout.engine,
        engine_version=layout.engine_version,
        model=layout.model,
        kv_dtype=layout.kv_dtype,
        max_model_len=layout.max_model_len,
        block_size=layout.block_size,
        bytes_per_block=layout.bytes_per_block,
        bytes_per_request=layout.bytes_per_request,
        blocks_per_request=layout.blocks_per_request,
        fixed_bytes=layout.fixed_bytes,
        kv_cache_size_tokens=None if capacity is None else capacity.kv_cache_size_tokens,
        max_concurrency=None if capacity is None else float(capacity.max_concurrency),
        blocks=None if capacity is None else capacity.blocks,
        per_rank=True,
        groups=tuple(_group(group) for group in layout.groups),
        log_lines=None if capacity is None else capacity.log_lines,
        terms=(*layout.terms, *(() if capacity is None else capacity.terms)),
        notes=layout.notes,
    )


def _group(group: Group) -> GroupResult:
    return GroupResult(
        kind=group.kind,
        layers=group.layers,
        block_size=group.block_size,
        page_bytes=group.page_bytes,
        blocks_per_request=group.blocks_per_request,
    )
