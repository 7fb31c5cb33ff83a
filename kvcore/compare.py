"""A against B: what each remembers, per token and at a length, and the reason in one computed sentence.

The reason is arithmetic on exact fractions: compare_side.py counts each side, compare_causes.py takes the ratio apart,
compare_turns.py finds where the order turns, and compare_words.py says it.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from kvcore.compare_causes import Cause, length_causes, rate_causes
from kvcore.compare_side import Side
from kvcore.compare_turns import turns
from kvcore.compare_words import bound_words, distinct_names, length_sentence, per_token_sentence
from kvcore.formats import KVFormat
from kvcore.model.model import Model
from kvcore.units import check_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What two models remember, and why they differ. Bytes are for one request, factors are A over B.

    `per_token_a` is what one more token adds while no window is full, `long_run_a` what it adds once every window is
    full that the model's own limit lets fill; both are exact, averages where tokens share an entry. So for B.
    A factor is None, and its causes are empty, where either side is 0; otherwise the factors of `causes` multiply to
    `per_token_factor`, those of `long_run_causes` to `long_run_factor`, those of `length_causes` to
    `resident_factor`, exactly. `crossovers` are the contexts from which on the order of the two is reversed, whatever
    the models' limits; entries that several tokens share count as their average there.
    """

    tokens: int
    per_token_a: Fraction
    per_token_b: Fraction
    long_run_a: Fraction
    long_run_b: Fraction
    resident_a: int
    resident_b: int
    per_token_factor: Fraction | None
    long_run_factor: Fraction | None
    resident_factor: Fraction | None
    causes: tuple[Cause, ...]
    long_run_causes: tuple[Cause, ...]
    length_causes: tuple[Cause, ...]
    crossovers: tuple[int, ...]
    per_token: str
    at_length: str

    @property
    def crossover_tokens(self) -> int | None:
        """The first context at which the order turns, None where one model holds the more at every length."""
        return self.crossovers[0] if self.crossovers else None


def compare(
    a: Model,
    b: Model,
    tokens: int,
    kv_a: KVFormat,
    kv_b: KVFormat,
    *,
    name_a: str,
    name_b: str,
    source_tokens_a: int | None = None,
    source_tokens_b: int | None = None,
) -> Comparison:
    """A against B in their formats, per token and at `tokens`; names go into the sentences as they are, cut at 48.

    Raises UnitError for tokens out of range, or for a format that does not suit its model.
    """
    for count in (tokens, source_tokens_a or 0, source_tokens_b or 0):
        check_tokens(count)
    name_a, name_b = distinct_names(name_a, name_b, kv_a.name, kv_b.name)
    left = Side(name=name_a, model=a, kv=kv_a, source_tokens=source_tokens_a)
    right = Side(name=name_b, model=b, kv=kv_b, source_tokens=source_tokens_b)
    resident_a, resident_b = left.at(tokens), right.at(tokens)
    causes = rate_causes(left.start, right.start)
    late = rate_causes(left.late, right.late)
    at_length = length_causes(left, right, tokens)
    found = turns(left, right)
    bound = bound_words(left, right)
    return Comparison(
        tokens=tokens,
        per_token_a=left.start.bytes,
        per_token_b=right.start.bytes,
        long_run_a=left.late.bytes,
        long_run_b=right.late.bytes,
        resident_a=resident_a,
        resident_b=resident_b,
        per_token_factor=_ratio(left.start.bytes, right.start.bytes),
        long_run_factor=_ratio(left.late.bytes, right.late.bytes),
        resident_factor=_ratio(resident_a, resident_b),
        causes=causes,
        long_run_causes=late,
        length_causes=at_length,
        crossovers=tuple(turn.tokens for turn in found),
        per_token=per_token_sentence(left, right, causes, late) + bound,
        at_length=length_sentence(left, right, tokens, at_length, found) + bound,
    )


def _ratio(a: Fraction | int, b: Fraction | int) -> Fraction | None:
    return Fraction(a) / b if a and b else None
