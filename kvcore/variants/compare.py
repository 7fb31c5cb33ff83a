"""A against B: what each holds, per token and at a length, and the reason in one computed sentence.

The reason is arithmetic on exact fractions: causes.py counts each side and takes the ratio apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from kvcore.formats import KVFormat
from kvcore.model.model import Model
from kvcore.records import Record
from kvcore.units import check_tokens, format_bytes, format_tokens
from kvcore.variants.causes import (
    NAMED,
    SAME,
    Cause,
    Side,
    Turn,
    against,
    length_causes,
    magnitude,
    order,
    rate_causes,
    turns,
)

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison(Record):
    """What two models remember, and why they differ. Bytes are for one request, factors are A over B.

    `models` are the names of A and B. `per_token_a` is what one more token adds while no window is full, `long_run_a`
    what it adds once every window is full that the model's own limit lets fill; both are exact, averages where tokens
    share an entry. So for B. A factor is None, and its causes are empty, where either side is 0; otherwise the factors
    of `causes` multiply to `per_token_factor`, those of `long_run_causes` to `long_run_factor`, those of
    `length_causes` to `resident_factor`, exactly. `crossovers` are the contexts from which on the order of the two is
    reversed, whatever the models' limits; entries that several tokens share count as their average there.
    """

    models: tuple[str, str]
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

    def to_dict(self) -> dict[str, Any]:
        """The stable JSON form; factors are A over B, null where one side is 0."""
        factors = (self.per_token_factor, self.resident_factor)
        per_token, resident = (None if factor is None else float(factor) for factor in factors)
        return {
            "models": list(self.models),
            "tokens": self.tokens,
            "bytes_per_token": [float(self.per_token_a), float(self.per_token_b)],
            "resident_bytes": [self.resident_a, self.resident_b],
            "per_token_factor": per_token,
            "resident_factor": resident,
            "causes": [{"what": cause.words, "factor": float(cause.factor)} for cause in self.causes],
            "crossover_tokens": self.crossover_tokens,
            "per_token": self.per_token,
            "at_length": self.at_length,
        }

    def to_frame(self) -> pd.DataFrame:
        """One row a model: model, bytes_per_token, resident_bytes."""
        import pandas as pd

        answer = self.to_dict()
        return pd.DataFrame(
            {"model": answer["models"], **{name: answer[name] for name in ("bytes_per_token", "resident_bytes")}}
        )

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
        models=(a.name, b.name),
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


# A sentence longer than this drops its least important parts.
MAX_SENTENCE = 320
_MAX_NAME = 48
# Causes whose clause has a subject of its own.
_CLAUSES = ("windows", "constants", "rest")


def distinct_names(name_a: str, name_b: str, kv_a: str, kv_b: str) -> tuple[str, str]:
    """Names that tell the sides apart, also where one model is compared with itself."""
    cut = [name if len(name) <= _MAX_NAME else name[: _MAX_NAME - 1] + "…" for name in (name_a, name_b)]
    if cut[0] != cut[1]:
        return cut[0], cut[1]
    ends = (f" in {kv_a}", f" in {kv_b}") if kv_a != kv_b else (" (A)", " (B)")
    return cut[0] + ends[0], cut[1] + ends[1]


def _times(factor: Fraction) -> str:
    """`4.7×`, `64×`, exact whole numbers as such; below 1.05 a share such as `3%` (of the larger for "less")."""
    size = magnitude(factor)
    if size < NAMED:
        share = 1 - factor if factor < 1 else factor - 1
        return f"{max(1, int(share * 100 + Fraction(1, 2)))}%"
    if size.denominator == 1:
        return f"{size.numerator:,}×"
    tenths = int(size * 10 + Fraction(1, 2))
    if tenths >= 100:
        return f"{int(size + Fraction(1, 2)):,}×"
    return f"{tenths // 10}.{tenths % 10}×"


def _because(causes: Sequence[Cause], total: Fraction, most: int, details: bool) -> str:
    """` because it …, in …, though it …`, or "" where nothing is to be said; the `most` important of the causes."""
    near = magnitude(total) < SAME
    said = [cause for cause in causes if cause.kind != "rest" or magnitude(cause.factor) >= NAMED]
    if len(said) > most:
        kept = [said[0], *sorted(said[1:], key=lambda cause: -magnitude(cause.factor))[: most - 1]] if most else []
        said = [cause for cause in said if cause in kept]
    with_it = [cause for cause in said if near or not against(cause.factor, total)]
    others = [cause for cause in said if cause not in with_it]
    text = _joined(with_it, details, ordered=near, alone=len(causes) == 1)
    if text:
        text = f": {text}" if near else f" because {text}"
    if others:
        text += f", though {_joined(others, details, ordered=True)}"
    return text


def _joined(causes: Sequence[Cause], details: bool, *, ordered: bool, alone: bool = False) -> str:
    """The first cause as a clause and the others after it; `ordered` says more or less with every factor.

    A cause that explains the whole `alone` does not repeat its factor.
    """
    text = ""
    for index, cause in enumerate(causes):
        # "In 61 layers" can follow "it stores 8 KV heads", but not a clause with another subject.
        follows = index > 0 and cause.kind not in _CLAUSES and causes[index - 1].kind not in _CLAUSES
        number = "" if alone else _times(cause.factor) + (f" {order(cause.factor)}" if ordered else "")
        aside = "; ".join(filter(None, (number, cause.detail if details else "")))
        last = index == len(causes) - 1 and index > 1 and not any(c.kind in _CLAUSES for c in causes)
        text += "" if not index else ", and " if last or not follows else ", "
        text += (cause.short if follows else cause.words) + (f" ({aside})" if aside else "")
    return text


def _fitting(texts: Iterable[str]) -> str:
    """The first text that is short enough, else the last."""
    text = ""
    for text in texts:
        if len(text) <= MAX_SENTENCE:
            break
    return text


def per_token_sentence(a: Side, b: Side, causes: Sequence[Cause], late: Sequence[Cause]) -> str:
    """What one more token adds to A against B and why, and what changes once windows are full."""
    if not a.start.bytes or not b.start.bytes:
        return f"{_idle_words(a, b)}."
    total = a.start.bytes / b.start.bytes
    amount = format_bytes(float(a.start.bytes))
    if total == 1 and not causes and not _late_clause(a, b, late, 0):
        head = f"{a.name} and {b.name} remember exactly the same per token, {amount}"
    elif total == 1:
        head = f"{a.name} remembers exactly as much per token as {b.name}, {amount}"
    elif magnitude(total) < SAME:
        head = f"{a.name} remembers as much per token as {b.name}, within 1%"
    else:
        head = f"{a.name} remembers {_times(total)} {order(total)} per token than {b.name}"
    # The most causes to name, whether with their asides, and the most causes of what changes later.
    ways = ((6, True, 3), (6, False, 3), (6, False, 2), (2, False, 2), (2, False, 1), (1, False, 1), (1, False, 0))
    return _fitting(
        f"{head}{_because(causes, total, most, details)}{_late_clause(a, b, late, few)}." for most, details, few in ways
    )


def _late_clause(a: Side, b: Side, causes: Sequence[Cause], most: int) -> str:
    """What changes once windows are full, or "" where nothing does."""
    late_a, late_b = a.late.bytes, b.late.bytes
    changed = late_a * b.start.bytes / (late_b * a.start.bytes) if late_a and late_b else None
    if not (a.windows or b.windows) or (changed and magnitude(changed) < NAMED):
        return ""
    if a.windows and b.windows:
        noun = a.window_noun if a.window_noun == b.window_noun else "windows and chunks"
        when = f"; once all {noun} are full"
    else:
        when = f"; once {f'its {a.window_noun}' if a.windows else f'the {b.window_noun} of {b.name}'} are full"
        if not late_b:
            return f"; {b.name} adds nothing once its {b.window_noun} are full"
    if not late_a and not late_b:
        return f"{when}, neither adds anything"
    if not late_a:
        return f"{when}, it adds nothing"
    if not late_b:
        return f"{when}, {b.name} adds nothing"
    total = late_a / late_b
    if total == 1:
        return f"{when}, exactly as much"
    if magnitude(total) < SAME:
        return f"{when}, as much within 1%"
    return f"{when}, {_times(total)} {order(total)}{_because(causes, total, most, False)}"


def _idle_words(a: Side, b: Side) -> str:
    """What is to be said where one side, or both, adds nothing."""
    if not a.start.bytes and not b.start.bytes:
        why = f", as {a.idle_words.replace('its', 'their', 1)}" if a.idle_words == b.idle_words else ""
        return f"Neither {a.name} nor {b.name} adds anything per token{why}"
    idle, other = (a, b) if not a.start.bytes else (b, a)
    until = f" until its {other.window_noun} are full" if other.windows and not other.late.bytes else ""
    adds = f"{format_bytes(float(other.start.bytes))} per token{until}"
    if idle is a:
        return f"{a.name} adds nothing per token, as {a.idle_words}, while {b.name} adds {adds}"
    return f"{a.name} adds {adds}, while {b.name} adds nothing, as {b.idle_words}"


def length_sentence(a: Side, b: Side, tokens: int, causes: Sequence[Cause], turns: Sequence[Turn]) -> str:
    """What A and B hold at `tokens` and why they differ, and where the order turns."""
    total_a, total_b = a.at(tokens), b.at(tokens)
    size_a, size_b = format_bytes(total_a), format_bytes(total_b)
    when = f"At {format_tokens(tokens)} token{'' if tokens == 1 else 's'}" if tokens else "Before the first token"
    if not total_a and not total_b:
        return f"{when} neither {a.name} nor {b.name} holds anything."
    turn = _turn_clause(a, b, tokens, turns)
    if not total_a or not total_b:
        hold_a, hold_b = size_a if total_a else "nothing", size_b if total_b else "nothing"
        return f"{when} {a.name} holds {hold_a} and {b.name} {hold_b}{turn}."
    total = Fraction(total_a, total_b)
    if total == 1 and not causes:
        head = f"{when} {a.name} and {b.name} hold exactly the same, {size_a}"
    elif total == 1:
        head = f"{when} {a.name} holds exactly as much as {b.name}, {size_a}"
    elif magnitude(total) < SAME:
        head = f"{when} {a.name} holds {size_a}, as much as {b.name} within 1%"
    else:
        head = f"{when} {a.name} holds {size_a} against {size_b} for {b.name}, {_times(total)} {order(total)}"
    if a.start.bytes and b.start.bytes and total == a.start.bytes / b.start.bytes != 1:
        return f"{head}, as for each token{turn}."
    ways = ((6, True), (6, False), (4, False), (3, False), (2, False), (1, False))
    return _fitting(f"{head}{_because(causes, total, most, details)}{turn}." for most, details in ways)


def _turn_clause(a: Side, b: Side, tokens: int, turns: Sequence[Turn]) -> str:
    """`; below 95 tokens it holds more`: the turn of the order nearest to `tokens` that both models can reach."""
    limits = [side.model.context_limit for side in (a, b) if side.model.context_limit is not None]
    reached = [turn for turn in turns if not limits or turn.tokens <= min(limits)]
    now = (a.at(tokens) > b.at(tokens)) - (a.at(tokens) < b.at(tokens))
    past = [turn for turn in reached if turn.tokens <= tokens]
    words = {1: "more", -1: "less"}
    if past:
        turn = past[-1]
        # Entries shared by several tokens can differ from their average by a little, just where the order turns.
        if turn.sign != now:
            return ""
        where = f"below {turn.before + 1:,} token{'s' if turn.before else ''}"
        if len(past) > 1:
            where = f"from {past[-2].tokens:,} to {turn.before:,} tokens"
        return f"; {where} it holds {words[-turn.sign]}"
    if reached and reached[0].sign != now:
        turn = reached[0]
        where = f"from {turn.tokens:,} to {reached[1].before:,} tokens" if len(reached) > 1 else ""
        return f"; {where or f'from {turn.tokens:,} tokens on'} it holds {words[turn.sign]}"
    return ""


def bound_words(a: Side, b: Side) -> str:
    """A sentence more where a layout was not fully understood, else ""."""
    names = [side.name for side in (a, b) if side.model.knowledge == "upper_bound"]
    return f" Counted as an upper bound: {' and '.join(names)}." if names else ""
