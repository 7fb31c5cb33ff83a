"""The weight work of a forward pass: what has to be read of the parameters, and the arithmetic with them."""

from __future__ import annotations

from dataclasses import dataclass
from math import expm1, log1p

from kvcore.errors import UnitError
from kvcore.model.memories import CrossAttention
from kvcore.model.model import Model, WeightPart
from kvcore.model.weight_formats import WeightFormat, chosen_weight_format, weights_bytes
from kvcore.terms import Term
from kvcore.timing.work import Work
from kvcore.units import check_tokens

# Tables of which a token reads its own row; the embedding is one unless it is the output head as well.
_LOOKED_UP = frozenset({"embedding", "per-layer embeddings"})
# Used once for a source (a sound, a text to translate), not for the tokens that follow it.
_SOURCE_ONLY = "encoder"


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightPartWork:
    """The work of one kind of parameters: `numbers_read` of them are read, and `tokens` multiply by `multiplied` each.

    `expected` says that `numbers_read` is an expectation: the experts that a batch chooses.
    """

    name: str
    numbers_read: int
    bits: float
    multiplied: int
    tokens: int
    read_formula: str
    expected: bool = False

    @property
    def work(self) -> Work:
        return Work(read_bytes=int(self.numbers_read * self.bits / 8), operations=2 * self.multiplied * self.tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightWork:
    """The weight work of one forward pass over `tokens` tokens of all requests together.

    Parameters are counted from the configuration, so the terms are estimates; `parts` add up to `work`.
    """

    tokens: int
    format: str
    work: Work
    parts: tuple[WeightPartWork, ...]
    notes: tuple[str, ...]

    @property
    def terms(self) -> tuple[Term, ...]:
        """Bytes read of every part, then all of them and the arithmetic."""
        return _terms(self)


def weight_work(model: Model, tokens: int = 1, name: str | None = None, logits: int | None = None) -> WeightWork | None:
    """Weight work of one forward pass over `tokens` tokens, in a format (by default the one that is stored).

    `tokens` are the batch in decode (one a request) and all new tokens in prefill. `logits` of them need the output
    head: all unless said; a prefill needs one a request. Every matrix is read once; experts are those that the tokens
    choose, expected under uniform routing: E (1 − (1 − k/E)^tokens) a layer. None where the shape is not known.
    Raises UnitError for tokens out of range or a format that is not known.
    """
    check_tokens(tokens)
    needed = tokens if logits is None else check_tokens(logits, "logits")
    if needed > tokens:
        raise UnitError(f"logits: {needed:,} are asked of only {tokens:,} tokens")
    stored = weights_bytes(model, name)
    if stored is None or not model.weights:
        return None
    wanted = chosen_weight_format(model, name)
    kept = [part for part in model.weights if part.name != _SOURCE_ONLY and part.active_parameters]
    parts = tuple(_part(model, part, tokens, needed, wanted) for part in kept)
    total = Work()
    for part in parts:
        total += part.work
    return WeightWork(tokens=tokens, format=wanted.name, work=total, parts=parts, notes=_notes(model, parts))


def _part(model: Model, part: WeightPart, tokens: int, logits: int, wanted: WeightFormat) -> WeightPartWork:
    bits = wanted.bits_of(part.name)
    active = part.active_parameters
    if part.name in _LOOKED_UP and 2 * active < part.parameters:
        read = min(part.parameters, tokens * active)
        text = f"{tokens:,} {'token' if tokens == 1 else 'tokens'} × {active:,} looked up"
        return WeightPartWork(
            name=part.name, numbers_read=read, bits=bits, multiplied=0, tokens=tokens, read_formula=text
        )
    if part.name in ("embedding", "output head"):
        read = active if logits else 0
        return WeightPartWork(
            name=part.name, numbers_read=read, bits=bits, multiplied=active, tokens=logits, read_formula=f"{read:,}"
        )
    if part.name == "experts":
        return _experts(part, tokens, bits)
    if part.name == "cross-attention":
        active -= _source_projections(model)
    read = active if tokens else 0
    return WeightPartWork(
        name=part.name, numbers_read=read, bits=bits, multiplied=active, tokens=tokens, read_formula=f"{read:,}"
    )


def _experts(part: WeightPart, tokens: int, bits: float) -> WeightPartWork:
    """Experts that at least one of the tokens chooses; of one token exactly its own."""
    read, share = part.active_parameters, part.active_parameters / part.parameters
    text, expected = f"{read:,}", tokens > 1 and share < 1
    if tokens != 1:
        chosen = 1.0 if share >= 1 else -expm1(tokens * log1p(-share))
        read = min(part.parameters, int(chosen * part.parameters))
        text = f"{part.parameters:,} × (1 − (1 − {share:.4g})^{tokens:,})"
    return WeightPartWork(
        name=part.name,
        numbers_read=read,
        bits=bits,
        multiplied=part.active_parameters,
        tokens=tokens,
        read_formula=text,
        expected=expected,
    )


def _source_projections(model: Model) -> int:
    """Projections of a source to keys and values, which are used once for the source."""
    return sum(
        count * 2 * model.hidden_size * memory.num_kv_heads * memory.head_dim
        for memory, count in model.groups
        if isinstance(memory, CrossAttention)
    )


def _notes(model: Model, parts: tuple[WeightPartWork, ...]) -> tuple[str, ...]:
    notes = []
    if any(part.expected for part in parts):
        notes.append("Experts read are an expectation: every token chooses its experts uniformly and on its own.")
    if any(part.name == _SOURCE_ONLY for part in model.weights):
        notes.append("The encoder, and the projections of its output, run once for a source and are not counted.")
    return tuple(notes)


def _terms(result: WeightWork) -> tuple[Term, ...]:
    terms = [
        Term(
            name=f"{part.name}: read",
            formula=f"{part.read_formula} × {part.bits:g} bits = {part.work.read_bytes:,} B",
            value=part.work.read_bytes,
            unit="B",
            knowledge="estimated",
        )
        for part in result.parts
    ]
    together = " + ".join(f"{part.work.read_bytes:,}" for part in result.parts) or "0"
    terms.append(
        Term(
            name="weights read",
            formula=f"{together} = {result.work.read_bytes:,} B",
            value=result.work.read_bytes,
            unit="B",
            knowledge="estimated",
        )
    )
    by_tokens: dict[int, int] = {}
    for part in result.parts:
        by_tokens[part.tokens] = by_tokens.get(part.tokens, 0) + part.multiplied
    products = " + ".join(
        f"2 × {multiplied:,} parameters × {tokens:,} {'token' if tokens == 1 else 'tokens'}"
        for tokens, multiplied in by_tokens.items()
        if multiplied
    )
    terms.append(
        Term(
            name="arithmetic with the weights",
            formula=f"{products or '0'} = {result.work.operations:,} operations",
            value=result.work.operations,
            unit="operations",
            knowledge="estimated",
        )
    )
    return tuple(terms)
