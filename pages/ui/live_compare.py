"""Kept runs side by side: the time to the first token of each, and what each token took over the conversation."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from kvcore.live import runs
from kvcore.live.runs import RunRecord
from kvcore.units import format_tokens
from pages.ui import live_look as look
from pages.ui.live_charts import milliseconds
from pages.ui.live_lanes import Bar, Lane, Lanes
from pages.ui.live_look import MARKS, Fill
from pages.ui.live_plot import Drawn, Plot, Scale, nice_above, span_above
from pages.ui.live_state import RACE
from pages.ui.size.words import plural
from pages.ui.theme import Palette

MOST = 6
_NAME = 28
# Points of a curve: each is the median of its neighbours, so that a burst of the machine does not cross the others.
_POINTS = 24
Point = tuple[int, float]


def comparable(record: RunRecord) -> bool:
    """Whether a kept run has times to lay beside others'; a race compares by itself."""
    return record.kind != RACE and bool(first_s(record) or points(record))


def first_s(record: RunRecord) -> float | None:
    """Seconds to the first token: with the cache, or without where that was not made."""
    told = runs.summary(record)
    return told.ttft_s if told.ttft_s is not None else told.recompute_ttft_s


def points(record: RunRecord) -> list[Point]:
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
    return [(colours.series[at % len(colours.series)], MARKS[at % len(MARKS)]) for at in range(count)]


def first_tokens(records: Sequence[RunRecord], colours: Palette) -> Lanes | None:
    """A bar for the time to the first token of each run that has one, on one scale."""
    found = [
        (name, record, seconds, colour)
        for name, record, (colour, _) in zip(names(records), records, looks(len(records), colours), strict=True)
        if (seconds := first_s(record))
    ]
    if not found:
        return None
    lanes = [
        Lane(
            name=name, colour=colour, told=_told(record), value=look.duration(seconds),
            bars=[Bar(start=0, seconds=seconds, fill=colour, said=f"{name}: {look.duration(seconds)}")],
        )
        for name, record, seconds, colour in found
    ]  # fmt: skip
    said = "; ".join(f"{name}: {look.duration(seconds)}" for name, _, seconds, _ in found)
    span = span_above(max(seconds for _, _, seconds, _ in found))
    return Lanes(lanes=lanes, span=span, alt=f"Time to the first token. {said}.", colours=colours, low=True)


def _told(record: RunRecord) -> str:
    batch = f", {record.batch} requests" if record.batch > 1 else ""
    without = ", without the cache" if record.mode == "recompute" else ""
    return f"{plural(record.prompt_tokens, 'prompt token')} read at once{batch}{without}"


def first_title(records: Sequence[RunRecord]) -> str:
    """What the bars show."""
    times = [(seconds, name) for name, one in zip(names(records), records, strict=True) if (seconds := first_s(one))]
    if len(times) < 2:
        return "Time to the first token"
    (least, best), (most, worst) = min(times), max(times)
    if most < 1.05 * least:
        return f"The first token takes about {look.duration(least)} in each"
    return f"First token: {best} {look.duration(least)}, {worst} {look.duration(most)}: {look.times(most / least)}"


def tokens_title(records: Sequence[RunRecord]) -> str:
    """What the curves show."""
    middles = [
        (median(seconds for _, seconds in found), name)
        for name, one in zip(names(records), records, strict=True)
        if (found := points(one))
    ]
    if len(middles) < 2:
        return "Time of each token"
    (least, best), (most, worst) = min(middles), max(middles)
    if most < 1.05 * least:
        return f"Each token takes about {look.duration(least)} in each"
    return f"Each token: {best} {look.duration(least)}, {worst} {look.duration(most)}: {look.times(most / least)}"


def tokens(records: Sequence[RunRecord], colours: Palette) -> Drawn | None:
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
    y = milliseconds(1.15 * max(seconds for _, seconds in everything))
    plot = Plot(
        x=_axis(low, high), y=y, colours=colours, height=300, x_title="tokens in the conversation"
    )  # fmt: skip
    said = []
    for name, found, count, (colour, mark) in curves:
        plot.line(found, colour, width=2.5)
        plot.dots([(at, s, f"{name}: {look.duration(s)} at {at:,} tokens") for at, s in found], colour, mark)
        plot.entries.append((f"line {mark}", Fill(colour=colour), name))
        middle = look.duration(median(seconds for _, seconds in found))
        said.append(f"{name}: {plural(count, 'time')} from {found[0][0]:,} to {found[-1][0]:,} tokens, median {middle}")
    return Drawn(plot=plot, alt=f"Time of a token over the tokens before it. {'; '.join(said)}.")


def _bundled(found: Sequence[Point]) -> list[Point]:
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
