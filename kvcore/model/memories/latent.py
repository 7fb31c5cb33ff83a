"""One vector a token in place of keys and values, and the key by which an indexer chooses among tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvcore.formats import Format, KVFormat
from kvcore.model.memories.base import (
    Access,
    Factor,
    Growth,
    Heads,
    Kind,
    Memory,
    MemoryWork,
    bytes_a_number,
    pair_formula,
)
from kvcore.work import Step, windowed_pairs


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent(Memory):
    """One compressed vector a token (or for every `tokens_per_entry` tokens) in place of keys and values.

    Multi-head latent attention keeps `kv_lora_rank` numbers and `qk_rope_head_dim` more for position. DeepSeek-V4
    keeps such vectors for a window (`window`) and for compressed groups of tokens (`tokens_per_entry`).
    `packed_bytes` is one entry in the fp8_ds_mla layout, where that layout is defined for these widths.
    """

    attends = True
    projections = "attention"

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
        return f"{self._sum} × {size} = {self.entry_bytes(kv):,} B for each {_unit(self.tokens_per_entry)}"

    def factors(self, kv: KVFormat, source_tokens: int | None = None) -> tuple[Factor, ...]:
        if kv.packed_latent or kv.k.scope != "tensor":
            what = f"bytes for {self._sum} numbers, scales included"
            return (Factor(value=f"{self.entry_bytes(kv):,}", what=what),)
        return Factor(value=self._sum, what="numbers, latent and position"), bytes_a_number(kv.k.bits)

    @property
    def _sum(self) -> str:
        return f"({self.kv_lora_rank} + {self.qk_rope_head_dim})"

    def numbers_a_token(self) -> tuple[int, int]:
        return self.width, self.tokens_per_entry

    def made_by(self, hidden: int) -> int:
        """The down-projection."""
        return hidden * self.width

    def expanded_by(self, heads: int, key_width: int, value_width: int) -> int:
        """Parameters of the up-projection to keys, their rotary part left out, and values of so many heads."""
        return self.kv_lora_rank * heads * (key_width - self.qk_rope_head_dim + value_width)

    def topk(self, own: Indexer | None, latest: Indexer | None) -> int | None:
        """A latent without an indexer in its layer reads what the latest one chose (GLM-5.2).

        Entries that the indexer does not score are read whole: DeepSeek-V4's window, and its groups of 128.
        """
        if latest is None or self.window is not None:
            return None
        return latest.index_topk if self.tokens_per_entry == latest.tokens_per_entry else None

    def with_window(self, window: int | None) -> Latent:
        return replace(self, window=window)

    def on_rank(self, ranks: int) -> Latent:
        """It belongs to all heads, so every rank holds a copy."""
        return self

    def work(self, access: Access) -> MemoryWork:
        step, topk, share = access.step, access.topk, self.tokens_per_entry
        limit = self.window if self.window is not None else topk
        entries = step.context // share
        if share == 1:
            seen = step.entries_seen(self.window, topk)
        else:
            seen = (entries if topk is None else min(entries, topk)) if step.new_tokens else 0
        pairs = windowed_pairs(step.cached_tokens, step.context, limit, share)
        per_pair, formula, extra, extra_formula = self._arithmetic(step, access.heads, pairs)
        return MemoryWork(
            noun="tokens" if share == 1 else "entries",
            entry_bytes=self.entry_bytes(access.kv),
            entries_read=seen,
            entries_written=entries - step.cached_tokens // share if access.writes else 0,
            pairs=pairs,
            operations_per_pair=per_pair,
            pair_formula=formula,
            extra_operations=extra,
            extra_formula=extra_formula,
        )

    def _arithmetic(self, step: Step, heads: Heads, pairs: int) -> tuple[int, str, int, str]:
        """(operations a pair, its formula, operations a step, its formula): absorbed, or expanded where that is less.

        Absorbed, the up-projections are moved to the query and the output, and every head works on the latent itself
        (DeepSeek-V2 paper, section 2.1.2): engines decode so. Expanded, each latent becomes keys and values of every
        head first, those of tokens in the cache anew in every step: engines prefill so.
        """
        rank, rope = self.kv_lora_rank, self.qk_rope_head_dim
        if self.window is not None or self.tokens_per_entry > 1:
            # DeepSeek-V4's vectors are key and value at once, the rotary part included (transformers, deepseek_v4).
            return 2 * heads.count * 2 * self.width, pair_formula(heads.count, self.width, self.width), 0, ""
        absorbed = 2 * heads.count * (self.width + rank)
        if step.new_tokens > 1:
            expanded = 2 * heads.count * (heads.key_width + heads.value_width)
            unrotated = max(0, heads.key_width - rope)
            extra = step.cached_tokens * 2 * heads.count * rank * (unrotated + heads.value_width)
            if pairs * expanded + extra < pairs * absorbed:
                text = (
                    f" + {step.cached_tokens:,} cached tokens × 2 × {heads.count} heads × {rank} × "
                    f"({unrotated} + {heads.value_width})"
                )
                formula = pair_formula(heads.count, heads.key_width, heads.value_width)
                return expanded, formula, extra, text if extra else ""
        return absorbed, f"2 × {heads.count} heads × ({rank} + {rope} + {rank})", 0, ""

    def keeps(self, source_tokens: int | None = None) -> tuple[str, str]:
        numbers = f"{self.kv_lora_rank} + {self.qk_rope_head_dim} numbers"
        if self.window is not None:
            return f"keep one vector of {numbers} for each of the last {self.window:,} tokens", ""
        return f"keep one latent vector of {numbers} for every {_unit(self.tokens_per_entry)}", ""

    @property
    def brief(self) -> str:
        each = "" if self.tokens_per_entry == 1 else f" for {self.tokens_per_entry} tokens"
        reach = "" if self.window is None else f", last {self.window:,} tokens"
        return f"one latent of {self.width}{each}{reach}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexer(Memory):
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
        unit = _unit(self.tokens_per_entry)
        return f"{self.index_head_dim} × {self.stored_as.describe()} = {self.entry_bytes():,} B for each {unit}"

    def factors(self, kv: KVFormat, source_tokens: int | None = None) -> tuple[Factor, ...]:
        return (Factor(value=f"{self.entry_bytes()}", what=f"bytes for an index key of {self.index_head_dim}"),)

    def numbers_a_token(self) -> tuple[int, int]:
        return self.index_head_dim, self.tokens_per_entry

    def on_rank(self, ranks: int) -> Indexer:
        """It belongs to all heads, so every rank holds a copy."""
        return self

    def work(self, access: Access) -> MemoryWork:
        step, scored_by, share = access.step, self.index_heads or 0, self.tokens_per_entry
        entries = step.context // share
        return MemoryWork(
            noun="keys",
            entry_bytes=self.entry_bytes(),
            entries_read=entries if step.new_tokens else 0,
            entries_written=entries - step.cached_tokens // share,
            pairs=windowed_pairs(step.cached_tokens, step.context, None, share),
            operations_per_pair=2 * scored_by * self.index_head_dim,
            pair_formula=f"2 × {scored_by} index heads × {self.index_head_dim}",
        )

    def keeps(self, source_tokens: int | None = None) -> tuple[str, str]:
        return f"keep an index key of {self.index_head_dim} numbers", "to choose which tokens to read"

    @property
    def brief(self) -> str:
        return "an index key"


# 128 fp8 numbers and one 4-byte scale: 132 bytes (vLLM 0.33, models/deepseek_v2.py; DeepSeek-V3.2).
INDEXER_FP8 = Format(name="indexer_fp8", bits=8, scope="block", block=128, scale_bytes=4, source="DeepSeek-V3.2")


def _unit(tokens: int) -> str:
    return "token" if tokens == 1 else f"{tokens} tokens"
