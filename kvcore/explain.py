"""How a size is computed, as factors with names: the line that a person can check by hand."""

from __future__ import annotations

from dataclasses import dataclass

from kvcore.formats import KVFormat
from kvcore.model.memories import Attention, CrossAttention, Indexer, Kind, Latent, Memory, State
from kvcore.model.model import Model

_PAIR = "(K and V)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """One factor of a product: its value as text, and what it counts."""

    value: str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What all memories of one form cost together: `factors` multiply to `bytes` for each `per`.

    `per` is "token", "4 tokens" (several share an entry) or "request" (a constant). `limit` is the most tokens that
    are kept, None where there is none. `formula` is the product written out.
    """

    kind: Kind
    layers: int
    factors: tuple[Factor, ...]
    bytes: int
    per: str
    limit: int | None
    formula: str


def token_steps(model: Model, kv: KVFormat, source_tokens: int | None = None) -> tuple[Step, ...]:
    """One step for each form of memory that takes any bytes, in the order of the layers.

    Raises UnitError where the format does not suit the model.
    """
    steps = []
    for memory, layers in model.kept:
        law = memory.growth(kv, source_tokens)
        each = law.bytes_per_entry or law.constant_bytes
        count = Factor(value=f"{layers}", what="layer" if layers == 1 else "layers")
        own = _factors(memory, kv)
        # "2 (K and V)" reads first, as in the formula that people know.
        factors = (own[0], count, *own[1:]) if own and own[0].what == _PAIR else (count, *own)
        if isinstance(memory, CrossAttention):
            source = memory.source_tokens if source_tokens is None else source_tokens
            factors = (*factors, Factor(value=f"{source:,}", what="source tokens"))
        per = "request"
        if law.bytes_per_entry:
            per = "token" if law.tokens_per_entry == 1 else f"{law.tokens_per_entry} tokens"
        product = " × ".join(f"{factor.value} {factor.what}".strip() for factor in factors)
        steps.append(
            Step(
                kind=memory.kind,
                layers=layers,
                factors=factors,
                bytes=layers * each,
                per=per,
                limit=law.max_entries,
                formula=f"{product} = {layers * each:,} bytes a {per}",
            )
        )
    return tuple(steps)


def _factors(memory: Memory, kv: KVFormat) -> tuple[Factor, ...]:
    if isinstance(memory, Attention):
        return _head_factors(memory.num_kv_heads, memory.head_dim, memory.v_head_dim, kv)
    if isinstance(memory, CrossAttention):
        return _head_factors(memory.num_kv_heads, memory.head_dim, memory.head_dim, kv)
    if isinstance(memory, Latent):
        widths = f"({memory.kv_lora_rank} + {memory.qk_rope_head_dim})"
        if kv.packed_latent or kv.k.scope != "tensor":
            return (Factor(value=f"{memory.entry_bytes(kv):,}", what=f"bytes for {widths} numbers, scales included"),)
        return (Factor(value=widths, what="numbers, latent and position"), _bytes_a_number(kv.k.bits))
    if isinstance(memory, Indexer):
        return (Factor(value=f"{memory.entry_bytes()}", what=f"bytes for an index key of {memory.index_head_dim}"),)
    if isinstance(memory, State):
        return (Factor(value=f"{memory.bytes:,}", what=f"bytes of {memory.design} state"),)
    return ()


def _head_factors(heads: int, k_width: int, v_width: int, kv: KVFormat) -> tuple[Factor, ...]:
    head = Factor(value=f"{heads}", what="KV head" if heads == 1 else "KV heads")
    plain = kv.k.scope == "tensor" and kv.k == kv.v
    if plain and k_width == v_width:
        return (
            Factor(value="2", what=_PAIR),
            head,
            Factor(value=f"{k_width}", what="numbers a head"),
            _bytes_a_number(kv.k.bits),
        )
    if plain:
        widths = Factor(value=f"({k_width} + {v_width})", what="numbers of K and V")
        return (head, widths, _bytes_a_number(kv.k.bits))
    # Scales, or K and V stored differently: the two rows are added up in bytes.
    row = kv.kv_bytes(heads, k_width, v_width)
    return (Factor(value=f"{row:,}", what=f"bytes for K and V of {heads} heads, scales included"),)


def _bytes_a_number(bits: float) -> Factor:
    size = bits / 8
    return Factor(value=f"{size:g}", what="byte" if size == 1 else "bytes")
