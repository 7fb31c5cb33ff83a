"""Resident bytes of a model, whatever the engine, and each figure explained in terms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING

from kvcore.errors import UnitError
from kvcore.formats import KVFormat
from kvcore.model.memories import PAIR, Factor, Growth, Kind, Memory
from kvcore.model.model import Knowledge, Model
from kvcore.records import Record, table
from kvcore.terms import Term
from kvcore.units import MAX_TOKENS, check_batch, check_tokens

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd


# Beyond this a 64-bit integer could overflow, and arrays hold Python integers instead.
_INT64_SAFE = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSize(Record):
    """One memory of one layer, for the whole batch, in bytes."""

    index: int
    kind: Kind
    resident_bytes: int
    bytes_per_token: int
    formula: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeResult(Record):
    """The whole answer for one model, context, batch and format; all figures are for the whole batch, in bytes.

    `bytes_per_token` is what one more token adds to each request, `state_bytes` what never grows. `layers` has a row
    for each memory of each layer. `keys_used` and `keys_ignored` are the configuration's keys.
    """

    model: str
    model_type: str
    knowledge: Knowledge
    kv_dtype: str
    tokens: int
    batch: int
    resident_bytes: int
    bytes_per_token: int
    state_bytes: int
    layers: tuple[LayerSize, ...]
    keys_used: tuple[str, ...]
    keys_ignored: tuple[str, ...]
    notes: tuple[str, ...]
    terms: tuple[Term, ...]

    def to_frame(self) -> pd.DataFrame:
        """One row a memory of a layer: index, kind, resident_bytes, bytes_per_token, formula."""
        return table(self.layers)


def growth_laws(model: Model, kv: KVFormat, source_tokens: int | None = None) -> tuple[tuple[Growth, int], ...]:
    """The model's distinct growth laws in a format, each with the number of memories that follow it."""
    return tuple([(memory.growth(kv, source_tokens), count) for memory, count in model.kept])


def resident_bytes(model: Model, tokens: int, kv: KVFormat, batch: int = 1, source_tokens: int | None = None) -> int:
    """Bytes that `batch` requests of `tokens` tokens make the model remember.

    Raises UnitError for tokens or a batch out of range, or a format that does not suit the model.
    """
    check_tokens(tokens)
    check_batch(batch)
    return batch * sum(count * law.at(tokens) for law, count in growth_laws(model, kv, source_tokens))


def state_bytes(model: Model, kv: KVFormat, batch: int = 1, source_tokens: int | None = None) -> int:
    """Bytes that never grow: recurrent state and cross-attention."""
    return batch * sum(count * law.constant_bytes for law, count in growth_laws(model, kv, source_tokens))


def bytes_per_token(model: Model, tokens: int, kv: KVFormat, batch: int = 1) -> int:
    """Bytes that one more token adds to each request at `tokens`; a long-run average where tokens share an entry."""
    whole, shared = 0, Fraction(0)
    for law, count in growth_laws(model, kv):
        entry_bytes, tokens_per_entry = law.next_token(tokens)
        if tokens_per_entry == 1:
            whole += count * entry_bytes
        else:
            shared += Fraction(count * entry_bytes, tokens_per_entry)
    # A long-run average is rounded once, upwards.
    return batch * whole + ceil(batch * shared)


def size(
    model: Model, tokens: int, kv_dtype: str = "auto", batch: int = 1, source_tokens: int | None = None
) -> SizeResult:
    """The full per-layer result with its terms and notes; see SizeResult.

    Raises UnitError for tokens, a batch or a format that cannot be.
    """
    check_tokens(tokens)
    check_batch(batch)
    if source_tokens is not None:
        check_tokens(source_tokens)
    kv = model.resolve_format(kv_dtype)
    by_memory = {
        memory: _row(memory, memory.growth(kv, source_tokens), tokens, batch, memory.formula(kv, source_tokens))
        for memory, _ in model.groups
    }
    # Layers of one kind share one object: looking it up by identity spares hashing it for every layer.
    by_identity: dict[int, _Row] = {}
    layers = []
    added = Fraction(0)
    for index, memories in enumerate(model.layers):
        for memory in memories:
            row = by_identity.get(id(memory))
            if row is None:
                row = by_identity[id(memory)] = by_memory[memory]
            # Entries that several tokens share have a fractional cost a token: it is rounded along the layers, so
            # that they add up to the model's own figure.
            whole = row.added
            if row.fraction:
                before, added = ceil(added), added + row.fraction
                whole += ceil(added) - before
            layers.append(
                LayerSize(
                    index=index,
                    kind=row.kind,
                    resident_bytes=row.resident,
                    bytes_per_token=whole,
                    formula=row.formula,
                )
            )
    return SizeResult(
        model=model.name,
        model_type=model.model_type,
        knowledge=model.knowledge,
        kv_dtype=kv.name,
        tokens=tokens,
        batch=batch,
        resident_bytes=sum(layer.resident_bytes for layer in layers),
        bytes_per_token=bytes_per_token(model, tokens, kv, batch),
        state_bytes=state_bytes(model, kv, batch, source_tokens),
        layers=tuple(layers),
        keys_used=tuple(name for name, _ in model.reading.keys_used),
        keys_ignored=model.reading.keys_ignored,
        notes=_notes(model, tokens, kv),
        terms=_terms(model, tokens, kv, batch, source_tokens),
    )


@dataclass(frozen=True, slots=True)
class _Row:
    """What every layer with one memory has to say; a further token costs `added` bytes and, on average, `fraction`."""

    kind: Kind
    resident: int
    added: int
    fraction: Fraction
    formula: str


def _row(memory: Memory, law: Growth, tokens: int, batch: int, formula: str) -> _Row:
    entry_bytes, shared = law.next_token(tokens)
    exact = batch * Fraction(entry_bytes, shared) if shared > 1 else Fraction(batch * entry_bytes)
    whole = exact.numerator // exact.denominator
    if law.max_entries is not None:
        formula += f", at most {law.max_entries:,} tokens"
    return _Row(memory.kind, batch * law.at(tokens), whole, exact - whole, formula)


def _terms(model: Model, tokens: int, kv: KVFormat, batch: int, source_tokens: int | None) -> tuple[Term, ...]:
    terms = []
    request = 0
    for memory, count in model.kept:
        law = memory.growth(kv, source_tokens)
        value = count * law.at(tokens)
        request += value
        noun = "layer" if count == 1 else "layers"
        reach = _reach(law, tokens)
        terms.append(
            Term(
                name=f"{count} {memory.kind} {noun}",
                formula=f"{count} {noun} × {memory.formula(kv, source_tokens)}{reach} = {value:,} B",
                value=value,
                unit="B",
                knowledge=model.knowledge,
            )
        )
    together = " + ".join(f"{term.value:,}" for term in terms) or "0"
    terms.append(
        Term(
            id="request",
            name="one request",
            formula=f"{together} = {request:,} B",
            value=request,
            unit="B",
            knowledge=model.knowledge,
        )
    )
    terms.append(
        Term(
            id="batch",
            name="whole batch",
            formula=f"{batch:,} × {request:,} = {batch * request:,} B",
            value=batch * request,
            unit="B",
            knowledge=model.knowledge,
        )
    )
    return tuple(terms)


def _reach(law: Growth, tokens: int) -> str:
    if not law.bytes_per_entry:
        return ""
    entries = tokens // law.tokens_per_entry
    kept = entries if law.max_entries is None else min(entries, law.max_entries)
    noun = "tokens" if law.tokens_per_entry == 1 else "entries"
    return f" × {kept:,} {noun}"


def _notes(model: Model, tokens: int, kv: KVFormat) -> tuple[str, ...]:
    notes = list(model.notes)
    if model.context_limit is not None and tokens > model.context_limit:
        notes.append(f"{tokens:,} tokens is beyond this model's limit of {model.context_limit:,}.")
    if any(law.tokens_per_entry > 1 for law, _ in growth_laws(model, kv)):
        notes.append("Several tokens share one entry: bytes a token is the long-run average.")
    if kv.note:
        notes.append(kv.note)
    if model.knowledge == "upper_bound":
        notes.append("An upper bound: the layout was not fully understood, every layer is counted as full attention.")
    return tuple(notes)


def curve(
    model: Model,
    tokens: Sequence[int] | np.ndarray,
    kv: KVFormat,
    batch: int = 1,
    source_tokens: int | None = None,
) -> np.ndarray:
    """Resident bytes at every context of an array, in closed form; integers, shape as `tokens`."""
    import numpy as np

    contexts = np.asarray(tokens)
    largest = int(contexts.max(initial=0))
    if contexts.size and (int(contexts.min()) < 0 or largest > MAX_TOKENS):
        raise UnitError(f"tokens: a context is outside 0 … {MAX_TOKENS:,}")
    laws = growth_laws(model, kv, source_tokens)
    top = batch * sum(count * (law.constant_bytes + law.bytes_per_entry * (largest + 1)) for law, count in laws)
    contexts = contexts.astype(np.int64 if top < _INT64_SAFE else object)
    total = np.zeros_like(contexts)
    for law, count in laws:
        entries = contexts // law.tokens_per_entry
        if law.max_entries is not None:
            entries = np.minimum(entries, law.max_entries)
        total = total + count * (law.constant_bytes + law.bytes_per_entry * entries)
    return total * batch


def max_tokens(
    model: Model, budget_bytes: int, kv: KVFormat, batch: int = 1, source_tokens: int | None = None
) -> int | None:
    """The longest context that `batch` requests can have in `budget_bytes`, or None when nothing ever fills it.

    -1 means that not even an empty request fits. The growth never decreases, so bisection is exact.
    """
    check_batch(batch)
    laws = growth_laws(model, kv, source_tokens)

    def need(tokens: int) -> int:
        return batch * sum(count * law.at(tokens) for law, count in laws)

    if need(0) > budget_bytes:
        return -1
    if all(law.bytes_per_entry == 0 or law.max_entries is not None for law, _ in laws):
        ceiling = max((law.max_entries or 0) * law.tokens_per_entry for law, _ in laws) if laws else 0
        if need(ceiling) <= budget_bytes:
            return None
    low, high = 0, 1
    while need(high) <= budget_bytes:
        low, high = high, high * 2
        if high > 2**60:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if need(middle) <= budget_bytes else (low, middle)
    return low


def projections(tokens: int) -> tuple[int, int]:
    """Key-value projections to produce `tokens` tokens one by one: (with a cache, without).

    With a cache each token is projected once: N. Without, the prefix is projected anew at every step:
    1 + 2 + … + N = N(N+1)/2.
    """
    check_tokens(tokens)
    return tokens, tokens * (tokens + 1) // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class CostStep:
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


def token_steps(model: Model, kv: KVFormat, source_tokens: int | None = None) -> tuple[CostStep, ...]:
    """One step for each form of memory that takes any bytes, in the order of the layers.

    Raises UnitError where the format does not suit the model.
    """
    steps = []
    for memory, layers in model.kept:
        law = memory.growth(kv, source_tokens)
        each = law.bytes_per_entry or law.constant_bytes
        count = Factor(value=f"{layers}", what="layer" if layers == 1 else "layers")
        own = memory.factors(kv, source_tokens)
        # "2 (K and V)" reads first, as in the formula that people know.
        factors = (own[0], count, *own[1:]) if own[0].what == PAIR else (count, *own)
        per = "request"
        if law.bytes_per_entry:
            per = "token" if law.tokens_per_entry == 1 else f"{law.tokens_per_entry} tokens"
        product = " × ".join(f"{factor.value} {factor.what}".strip() for factor in factors)
        steps.append(
            CostStep(
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
