"""What one layer's memory makes a step read, write and compute, by the law of that memory.

Counted are the products of queries with what is in the cache: scores and the mix of values, a multiply-add being two
operations. Softmax, norms and rotary positions are left out, and projections belong to the weights. Each entry that is
looked at is read once, and each new one is written once and read like the others, as engines with a paged cache do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from kvcore.formats import KVFormat
from kvcore.model.memories import Attention, CrossAttention, Indexer, Latent, State
from kvcore.timing.pairs import chunked_pairs, windowed_pairs
from kvcore.timing.states import arithmetic_text, operations_per_token, touched_bytes
from kvcore.timing.work import Step, Work

# Memories that hold something to read; a layer that shares reads one of its owner's.
Cache: TypeAlias = Attention | CrossAttention | Latent | Indexer | State


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """The query heads of a model, and the width of one head's key and value."""

    count: int
    key_width: int
    value_width: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryWork:
    """The work of one memory of one layer, for one request, as the numbers that its formulas are made of.

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


def memory_work(
    memory: Cache,
    step: Step,
    kv: KVFormat,
    heads: Heads,
    *,
    topk: int | None = None,
    writes: bool = True,
    source_tokens: int | None = None,
) -> MemoryWork:
    """The work of one memory in a step, for one request.

    `topk` is the most entries that an indexer lets attention read, `writes` is False for a layer that reads another's
    cache, `source_tokens` replaces what cross-attention is assumed to see. Raises UnitError for a format that does
    not suit the memory.
    """
    if isinstance(memory, Attention):
        return _attention(memory, step, kv, heads, topk, writes)
    if isinstance(memory, Latent):
        return _latent(memory, step, kv, heads, topk, writes)
    if isinstance(memory, Indexer):
        return _indexer(memory, step)
    if isinstance(memory, CrossAttention):
        return _cross(memory, step, kv, heads, source_tokens)
    return _state(memory, step)


def _attention(memory: Attention, step: Step, kv: KVFormat, heads: Heads, topk: int | None, writes: bool) -> MemoryWork:
    limit = memory.limit if topk is None else min(topk, memory.limit or topk)
    seen = _entries_seen(step, memory.limit, topk)
    pairs = windowed_pairs(step.cached_tokens, step.context, limit)
    if memory.law == "chunked" and memory.limit is not None:
        # A request may hold a whole chunk, but a token looks no further back than the start of its own.
        seen = step.cached_tokens % memory.limit + step.new_tokens if step.new_tokens else 0
        pairs = chunked_pairs(step.cached_tokens, step.context, memory.limit)
    return MemoryWork(
        noun="tokens",
        entry_bytes=memory.row_bytes(kv),
        entries_read=seen,
        entries_written=step.new_tokens if writes else 0,
        pairs=pairs,
        operations_per_pair=2 * heads.count * (memory.head_dim + memory.v_head_dim),
        pair_formula=_pair_formula(heads.count, memory.head_dim, memory.v_head_dim),
    )


def _latent(memory: Latent, step: Step, kv: KVFormat, heads: Heads, topk: int | None, writes: bool) -> MemoryWork:
    share = memory.tokens_per_entry
    limit = memory.window if memory.window is not None else topk
    entries = step.context // share
    if share == 1:
        seen = _entries_seen(step, memory.window, topk)
    else:
        seen = (entries if topk is None else min(entries, topk)) if step.new_tokens else 0
    pairs = windowed_pairs(step.cached_tokens, step.context, limit, share)
    per_pair, formula, extra, extra_formula = _latent_arithmetic(memory, step, heads, pairs)
    return MemoryWork(
        noun="tokens" if share == 1 else "entries",
        entry_bytes=memory.entry_bytes(kv),
        entries_read=seen,
        entries_written=entries - step.cached_tokens // share if writes else 0,
        pairs=pairs,
        operations_per_pair=per_pair,
        pair_formula=formula,
        extra_operations=extra,
        extra_formula=extra_formula,
    )


def _latent_arithmetic(memory: Latent, step: Step, heads: Heads, pairs: int) -> tuple[int, str, int, str]:
    """(operations a pair, its formula, operations a step, its formula): absorbed, or expanded where that is less.

    Absorbed, the up-projections are moved to the query and the output, and every head works on the latent itself
    (DeepSeek-V2 paper, section 2.1.2): engines decode so. Expanded, each latent becomes keys and values of every head
    first, those of tokens in the cache anew in every step: engines prefill so.
    """
    rank, rope = memory.kv_lora_rank, memory.qk_rope_head_dim
    if memory.window is not None or memory.tokens_per_entry > 1:
        # DeepSeek-V4's vectors are key and value at once, the rotary part included (transformers, deepseek_v4).
        return 2 * heads.count * 2 * memory.width, _pair_formula(heads.count, memory.width, memory.width), 0, ""
    absorbed = 2 * heads.count * (memory.width + rank)
    if step.new_tokens > 1:
        expanded = 2 * heads.count * (heads.key_width + heads.value_width)
        unrotated = max(0, heads.key_width - rope)
        extra = step.cached_tokens * 2 * heads.count * rank * (unrotated + heads.value_width)
        if pairs * expanded + extra < pairs * absorbed:
            text = (
                f" + {step.cached_tokens:,} cached tokens × 2 × {heads.count} heads × {rank} × "
                f"({unrotated} + {heads.value_width})"
            )
            formula = _pair_formula(heads.count, heads.key_width, heads.value_width)
            return expanded, formula, extra, text if extra else ""
    return absorbed, f"2 × {heads.count} heads × ({rank} + {rope} + {rank})", 0, ""


def _indexer(memory: Indexer, step: Step) -> MemoryWork:
    heads, share = memory.index_heads or 0, memory.tokens_per_entry
    entries = step.context // share
    return MemoryWork(
        noun="keys",
        entry_bytes=memory.entry_bytes(),
        entries_read=entries if step.new_tokens else 0,
        entries_written=entries - step.cached_tokens // share,
        pairs=windowed_pairs(step.cached_tokens, step.context, None, share),
        operations_per_pair=2 * heads * memory.index_head_dim,
        pair_formula=f"2 × {heads} index heads × {memory.index_head_dim}",
    )


def _cross(memory: CrossAttention, step: Step, kv: KVFormat, heads: Heads, source_tokens: int | None) -> MemoryWork:
    source = (memory.source_tokens if source_tokens is None else source_tokens) if step.new_tokens else 0
    width = memory.head_dim
    return MemoryWork(
        noun="source tokens",
        entry_bytes=kv.kv_bytes(memory.num_kv_heads, width, width),
        entries_read=source,
        # Keys and values of the source are made once, for the first token.
        entries_written=0 if step.cached_tokens else source,
        pairs=step.new_tokens * source,
        operations_per_pair=2 * heads.count * 2 * width,
        pair_formula=_pair_formula(heads.count, width, width),
    )


def _state(memory: State, step: Step) -> MemoryWork:
    once = min(step.new_tokens, 1)
    return MemoryWork(
        noun="state",
        entry_bytes=touched_bytes(memory, step.new_tokens),
        entries_read=once,
        entries_written=once,
        pairs=step.new_tokens,
        operations_per_pair=operations_per_token(memory),
        pair_formula=arithmetic_text(memory),
    )


def _entries_seen(step: Step, window: int | None, topk: int | None) -> int:
    """Distinct entries that the step's tokens look at, with one token an entry.

    Behind a window the first new token still sees window − 1 of the past. Tokens of one step may choose different
    entries: at least those that a single one chooses are read.
    """
    if not step.new_tokens:
        return 0
    past = step.cached_tokens if window is None else min(step.cached_tokens, window - 1)
    seen = past + step.new_tokens
    return seen if topk is None else min(seen, topk)


def _pair_formula(heads: int, key: int, value: int) -> str:
    return f"2 × {heads} heads × (K {key} + V {value})"
