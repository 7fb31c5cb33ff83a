"""Kept runs side by side: the time to the first token of each, and what each token took over the conversation."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from kvcore.live import runs
from kvcore.live.runs import RunRecord
from kvcore.units import format_tokens
from pages.ui.live.charts import milliseconds
from pages.ui.live.jobs import RACE
from pages.ui.live.plot import (
    MARKERS,
    BarChart,
    BarRow,
    DotsMark,
    LegendEntry,
    LineMark,
    Mark,
    Plot,
    Scale,
    Segment,
    nice_above,
    span_above,
)
from pages.ui.live.words import duration, times
from pages.ui.size.words import plural
from pages.ui.theme import Palette

MOST = 6
_NAME = 28
# Points of a curve: each is the median of its neighbours, so that a burst of the machine does not cross the others.
_POINTS = 24
ContextTime = tuple[int, float]


def comparable(record: RunRecord) -> bool:
    """Whether a kept run has times to lay beside others'; a race compares by itself."""
    return record.kind != RACE and bool(first_s(record) or points(record))


def first_s(record: RunRecord) -> float | None:
    """Seconds to the first token: with the cache, or without where that was not made."""
    told = runs.summary(record)
    return told.ttft_s if told.ttft_s is not None else told.recompute_ttft_s


def points(record: RunRecord) -> list[ContextTime]:
    """(tokens before it, seconds) of each token after a first one, or of each place of a probe."""
    mode = "recompute" if record.mode == "recompute" else "cache"
    mine = [event for event in record.events if event.get("mode") == mode]
    tokens = [(one["context"], one["seconds"]) for one in mine if one["event"] == "token" and one["index"] > 0]
    return sorted(tokens or [(one["context"], one["seconds"]) for one in mine if one["event"] == "probe"])


def names(records: Sequence[RunRecord]) -> list[str]:
    """Short names, each unlike the others."""
    found: list[str] = []
    for record in records:
        name = record.name if len(record.name) <= _NAME else f"{record.name[: _NAME - 1]}…"
        number = 2
        base = name
        while name in found:
            name, number = f"{base} ({number})", number + 1
        found.append(name)
    return found


def looks(count: int, colours: Palette) -> list[tuple[str, str]]:
    """(colour, mark) of each: both differ, so that either is enough."""
    return [(colours.series[at % len(colours.series)], MARKERS[at % len(MARKERS)]) for at in range(count)]


def first_tokens(records: Sequence[RunRecord], colours: Palette) -> BarChart | None:
    """A bar for the time to the first token of each run that has one, on one scale."""
    found = [
        (name, record, seconds, colour)
        for name, record, (colour, _) in zip(names(records), records, looks(len(records), colours), strict=True)
        if (seconds := first_s(record))
    ]
    if not found:
        return None
    rows = [
        BarRow(
            name=name, colour=colour, told=_told(record), value=duration(seconds),
            segments=[Segment(start=0, seconds=seconds, fill=colour, said=f"{name}: {duration(seconds)}")],
        )
        for name, record, seconds, colour in found
    ]  # fmt: skip
    said = "; ".join(f"{name}: {duration(seconds)}" for name, _, seconds, _ in found)
    span = span_above(max(seconds for _, _, seconds, _ in found))
    return BarChart(rows=rows, span=span, alt=f"Time to the first token. {said}.", colours=colours, low=True)


def _told(record: RunRecord) -> str:
    batch = f", {record.batch} requests" if record.batch > 1 else ""
    without = ", without the cache" if record.mode == "recompute" else ""
    return f"{plural(record.prompt_tokens, 'prompt token')} read at once{batch}{without}"


def first_title(records: Sequence[RunRecord]) -> str:
    """What the bars show."""
    firsts = [(seconds, name) for name, one in zip(names(records), records, strict=True) if (seconds := first_s(one))]
    return _compared(firsts, "First token", "The first token") or "Time to the first token"


def tokens_title(records: Sequence[RunRecord]) -> str:
    """What the curves show."""
    middles = [
        (median(seconds for _, seconds in found), name)
        for name, one in zip(names(records), records, strict=True)
        if (found := points(one))
    ]
    return _compared(middles, "Each token", "Each token") or "Time of each token"


def _compared(figures: Sequence[tuple[float, str]], what: str, subject: str) -> str:
    """The least and the most of several (seconds, name), or that they are alike; empty where there are not two."""
    if len(figures) < 2:
        return ""
    (least, best), (most, worst) = min(figures), max(figures)
    if most < 1.05 * least:
        return f"{subject} takes about {duration(least)} in each"
    return f"{what}: {best} {duration(least)}, {worst} {duration(most)}: {times(most / least)}"


def tokens(records: Sequence[RunRecord], colours: Palette) -> Plot | None:
    """A curve of the time per token for each run, over the tokens before it."""
    curves = [
        (name, _bundled(found), len(found), style)
        for name, record, style in zip(names(records), records, looks(len(records), colours), strict=True)
        if (found := points(record))
    ]
    if not curves:
        return None
    everything = [one for _, found, _, _ in curves for one in found]
    low, high = min(at for at, _ in everything), max(at for at, _ in everything)
    marks: list[Mark] = []
    said = []
    for name, found, count, (colour, mark) in curves:
        points_said = [(at, seconds, f"{name}: {duration(seconds)} at {at:,} tokens") for at, seconds in found]
        marks += [LineMark(points=found, colour=colour), DotsMark(points=points_said, colour=colour, marker=mark)]
        middle = duration(median(seconds for _, seconds in found))
        said.append(f"{name}: {plural(count, 'time')} from {found[0][0]:,} to {found[-1][0]:,} tokens, median {middle}")
    return Plot(
        x=_axis(low, high), y=milliseconds(1.15 * max(seconds for _, seconds in everything)), colours=colours,
        x_title="tokens in the conversation", marks=marks,
        legend=[LegendEntry(text=name, colour=colour, marker=mark, line=True) for name, _, _, (colour, mark) in curves],
        alt=f"Time of a token over the tokens before it. {'; '.join(said)}.",
    )  # fmt: skip


def _bundled(found: Sequence[ContextTime]) -> list[ContextTime]:
    size = -(-len(found) // _POINTS)
    groups = [found[at : at + size] for at in range(0, len(found), size)]
    return [(group[len(group) // 2][0], median(seconds for _, seconds in group)) for group in groups]


def _axis(low: int, high: int) -> Scale:
    """Tokens: to scale, or by their magnitude where they lie far apart."""
    if high > 12 * max(low, 1):
        first = max(low, 1)
        marks = [2**power for power in range(24) if first <= 2**power <= high]
        marks = marks[:: -(-len(marks) // 7)] or [first]
        ticks = tuple((float(one), format_tokens(one)) for one in marks)
        return Scale(low=first / 1.1, high=high * 1.1, logarithmic=True, ticks=ticks)
    high = max(high, low + 8)
    step = max(1, int(nice_above((high - low) / 6)))
    begin = -(-low // step) * step
    edge = 0.03 * (high - low)
    return Scale(
        low=low - edge, high=high + edge, ticks=tuple((float(at), f"{at:,}") for at in range(begin, high + 1, step))
    )
