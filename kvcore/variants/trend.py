"""The catalogue over time: what each released model keeps for a token, and by which kind of attention.

A token has no single price. While everything grows it costs one thing; once windows are full and states are spread
over a long request it costs another. Both are here, and the average over a request is the one to show: the first hides
what a window saves, the cost in the long run hides what windows and states hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cache
from statistics import median
from typing import Literal

from kvcore.errors import ConfigError
from kvcore.formats import kv_format
from kvcore.model.memories import Attention, CrossAttention, Memory
from kvcore.model.model import Model
from kvcore.sizing import bytes_per_token, resident_bytes
from kvcore.sources.catalogue import Entry, Summary, attention_label, summaries
from kvcore.variants.variants import variant

AttentionClass = Literal["multi-head", "grouped", "multi-query", "window", "latent", "hybrid", "recurrent"]
CLASSES: tuple[AttentionClass, ...] = (
    "multi-head", "grouped", "multi-query", "window", "latent", "hybrid", "recurrent",
)  # fmt: skip

CONTEXT_TOKENS = 32_768
"""The request over which bytes are averaged: longer than most windows, within reach of most models since 2024."""
ENOUGH = 10
"""Designs below which a year says nothing by itself."""

# The first word of kvcore.sources.catalogue.attention_label; an encoder keeps nothing and has no place here.
_CLASS_OF_LABEL: dict[str, AttentionClass] = {
    "MHA": "multi-head", "GQA": "grouped", "MQA": "multi-query", "sliding": "window", "chunked": "window",
    "MLA": "latent", "compressed": "latent", "hybrid:": "hybrid", "recurrent": "recurrent",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TrendPoint:
    """One catalogued model in 16 bits. `released` is the first of the month where no day is known.

    `growing_bytes_per_token` is what a token adds while every window still grows, 0 for a pure state.
    `average_bytes_per_token` is what a request of CONTEXT_TOKENS tokens holds, divided by them and rounded up.
    `share_of_mha` divides what it holds by what the same model would with full multi-head attention in every layer
    that attends or keeps a state; None where the model has no heads.
    `parameters` is None where not known. `copy_of` is the id of a model of the same month with the same layers and
    parameters: a chat, quantised or otherwise repackaged release of one design; None for the design itself.
    """

    model_id: str
    name: str
    released: date
    day_known: bool
    attention: AttentionClass
    growing_bytes_per_token: int
    average_bytes_per_token: int
    share_of_mha: float | None
    parameters: int | None
    context_limit: int | None
    copy_of: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """The designs of one year, or of all years before the first that has enough of them; `last` is inclusive.

    Medians are over the designs; that of `share_of_mha` over those that have one, None where none has.
    """

    name: str
    first_year: int
    last_year: int
    designs: int
    classes: tuple[tuple[AttentionClass, int], ...]
    growing_bytes_per_token: int
    average_bytes_per_token: int
    share_of_mha: float | None


@cache
def points() -> tuple[TrendPoint, ...]:
    """Every catalogued decoder with a release date, oldest first. Raises ConfigError for a date that is none."""
    dated = [one for one in summaries() if one.entry.released and attention_class(one.model) is not None]
    # The shortest id of a design is the one without a suffix for its format or its tuning.
    dated.sort(key=lambda one: (len(one.entry.model_id), one.entry.model_id))
    designs: dict[object, str] = {}
    found = []
    for one in dated:
        key = (one.entry.released[:7], one.model.layers, one.total_parameters)
        design = designs.setdefault(key, one.entry.model_id)
        found.append(_point(one, None if design == one.entry.model_id else design))
    return tuple(sorted(found, key=lambda point: (point.released, point.model_id)))


@cache
def undated() -> tuple[str, ...]:
    """Ids of the catalogued decoders that `points` leaves out because no release date is known, in order."""
    return tuple(sorted(
        one.entry.model_id
        for one in summaries()
        if not one.entry.released and attention_class(one.model) is not None
    ))  # fmt: skip


def attention_class(model: Model) -> AttentionClass | None:
    """A model's class, read from its memories; None for an encoder.

    A window as long as the model's whole context drops nothing, so such layers count as full attention.
    """
    layers = tuple(tuple(_unlimited(memory, model.context_limit) for memory in layer) for layer in model.layers)
    return _CLASS_OF_LABEL.get(attention_label(replace(model, layers=layers)).split()[0])


def periods(found: Iterable[TrendPoint]) -> tuple[Period, ...]:
    """The designs among the points by year, oldest first; years before the first with ENOUGH are one period."""
    designs = [point for point in found if point.copy_of is None]
    years = Counter(point.released.year for point in designs)
    dense = min((year for year, count in years.items() if count >= ENOUGH), default=max(years, default=0) + 1)
    early = [point for point in designs if point.released.year < dense]
    parts = [early] if early else []
    parts += [[p for p in designs if p.released.year == year] for year in sorted(years) if year >= dense]
    return tuple(_period(part) for part in parts)


def headline(found: Sequence[TrendPoint]) -> str:
    """One or two sentences that say how the years moved, between the first and the last period with ENOUGH designs."""
    known = periods(found)
    if not known:
        return "No model with a release date to compare."
    large = [period for period in known if period.designs >= ENOUGH]
    if len(large) < 2:
        total, full = sum(period.designs for period in known), sum(_full(period) for period in known)
        return f"Of {total} catalogued {'design' if total == 1 else 'designs'}, {_keep(full)}."
    first, last = large[0], large[-1]
    after = _full(last)
    sentence = (
        f"Of the {first.designs} catalogued designs from {first.name}, {_keep(_full(first))}; of the {last.designs} "
        f"from {last.name}, {after or 'none'} {'do' if after > 1 else 'does'}."
    )
    if first.share_of_mha is None or last.share_of_mha is None:
        return sentence
    return (
        f"{sentence} Of those that attend, the median cache went from {percent(first.share_of_mha)} to "
        f"{percent(last.share_of_mha)} of what full multi-head attention would hold."
    )


def percent(share: float) -> str:
    """A share as `100%`, `12.5%`, `0.06%`: three figures at most, one at least."""
    value = 100 * share
    digits = 0 if value >= 99.95 else 1 if value >= 1 else 2
    text = f"{value:.{digits}f}"
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text}%"


def _point(one: Summary, copy_of: str | None) -> TrendPoint:
    model, bf16 = one.model, kv_format("bf16")
    attention = attention_class(model)
    if attention is None:
        raise ConfigError(f"{one.entry.model_id} is an encoder and keeps nothing for a token")
    held = resident_bytes(model, CONTEXT_TOKENS, bf16)
    released, day_known = _date(one.entry)
    full = resident_bytes(_full_multi_head(model), CONTEXT_TOKENS, bf16) if model.num_attention_heads else 0
    return TrendPoint(
        model_id=one.entry.model_id,
        name=one.entry.display_name,
        released=released,
        day_known=day_known,
        attention=attention,
        growing_bytes_per_token=bytes_per_token(model, 0, bf16),
        average_bytes_per_token=-(-held // CONTEXT_TOKENS),
        share_of_mha=held / full if full else None,
        parameters=one.total_parameters,
        context_limit=model.context_limit,
        copy_of=copy_of,
    )


def _date(entry: Entry) -> tuple[date, bool]:
    day_known = len(entry.released) > 7
    try:
        return date.fromisoformat(entry.released if day_known else f"{entry.released}-01"), day_known
    except ValueError as error:
        raise ConfigError(
            f"{entry.model_id}: released is {entry.released!r}; expected a month such as 2024-05, or a day of it"
        ) from error


def _unlimited(memory: Memory, context_limit: int | None) -> Memory:
    """The same memory, without a window that the model's context can never overrun."""
    if isinstance(memory, Attention) and memory.limit and context_limit and memory.limit >= context_limit:
        return replace(memory, limit=None, law="full")
    return memory


def _full_multi_head(model: Model) -> Model:
    """The model with full multi-head attention, also where its layers read an image or an encoder's output."""
    mha = variant(model, "mha")
    layers = tuple(tuple(_every_head(memory, model.num_attention_heads) for memory in layer) for layer in mha.layers)
    return replace(mha, layers=layers)


def _every_head(memory: Memory, heads: int) -> Memory:
    return replace(memory, num_kv_heads=heads) if isinstance(memory, CrossAttention) else memory


def _period(designs: list[TrendPoint]) -> Period:
    first, last = min(p.released.year for p in designs), max(p.released.year for p in designs)
    counts = Counter(point.attention for point in designs)
    shares = [point.share_of_mha for point in designs if point.share_of_mha is not None]
    return Period(
        name=str(first) if first == last else f"{first} to {last}",
        first_year=first,
        last_year=last,
        designs=len(designs),
        classes=tuple((name, counts[name]) for name in CLASSES if counts[name]),
        growing_bytes_per_token=round(median(point.growing_bytes_per_token for point in designs)),
        average_bytes_per_token=round(median(point.average_bytes_per_token for point in designs)),
        share_of_mha=median(shares) if shares else None,
    )


def _full(period: Period) -> int:
    return dict(period.classes).get("multi-head", 0)


def _keep(full: int) -> str:
    return f"{full or 'none'} {'keep' if full > 1 else 'keeps'} keys and values for every head"
