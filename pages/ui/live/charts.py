"""The Live screen's charts: the timeline to scale, times token by token, bytes of the cache, the probe, the race."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from kvcore.units import GIB, KIB, MIB, format_bytes, format_tokens
from pages.ui.lines import spread
from pages.ui.live.plot import (
    MARKERS,
    AreaFill,
    AreaMark,
    BarChart,
    BarRow,
    DotsMark,
    LegendEntry,
    LineMark,
    Mark,
    NoteMark,
    Plot,
    Scale,
    Segment,
    SpreadsMark,
    StopMark,
    hatched,
    nice_above,
    soft,
    span_above,
    steps,
)
from pages.ui.live.progress import CACHE, MODES, RECOMPUTE, HeldBytes, JobProgress, ModeProgress, Probe, Token
from pages.ui.live.words import SIDE_NAMES, duration, limit_words, variant_name
from pages.ui.size.words import plural
from pages.ui.theme import Palette

# More marks than this are drawn as medians of neighbours: a browser redraws them four times a second.
MOST_MARKS = 160
_NAME_PX = 22
_OUTLIERS = 0.97
_MARKERS_OF = {CACHE: "dot", RECOMPUTE: "square"}
# Colour and mark of each attention in a race, by the word that its name begins with.
_VARIANTS = {"mha": (1, "dot"), "shipped": (0, "ring"), "gqa": (0, "dot"), "mqa": (2, "square"), "mla": (3, "diamond"),
             "sliding": (4, "ring")}  # fmt: skip
_SPARE = (5, "square")


def colour_of(mode: str, colours: Palette) -> str:
    """The colour of what was made with the cache, or without."""
    return colours.series[0] if mode == CACHE else colours.series[1]


def variant_looks(variants: Sequence[str], colours: Palette) -> dict[str, tuple[str, str]]:
    """(colour, marker) of each attention of one chart: of two in one colour, each has a marker of its own while there
    are markers.
    """
    found: dict[str, tuple[str, str]] = {}
    for variant in dict.fromkeys(variants):
        at, marker = _VARIANTS.get(variant.partition(":")[0], _SPARE)
        colour = colours.series[at]
        taken = {one for other, one in found.values() if other == colour}
        found[variant] = (colour, next((one for one in (marker, *MARKERS) if one not in taken), marker))
    return found


def timeline(progress: JobProgress, colours: Palette) -> BarChart | None:
    """Prefill and each token after it as wide as they took, with and without the cache on one scale."""
    modes = [(mode, progress.modes[mode]) for mode in MODES if progress.modes[mode].prefill]
    if not modes:
        return None
    said = "; ".join(f"{SIDE_NAMES[mode]}: {_row_words(made)}" for mode, made in modes)
    span = span_above(max(made.seconds for _, made in modes))
    rows = [row for mode, made in modes if (row := _timeline_row(mode, made, span, colours))]
    return BarChart(rows=rows, span=span, alt=f"Time line to scale. {said}.", colours=colours)


def _row_words(made: ModeProgress) -> str:
    if made.prefill is None:
        return ""
    first = f"prefill of {plural(made.prefill.tokens, 'token')} {duration(made.prefill.seconds)}"
    if not made.tokens:
        return first
    middle = duration(median(one.seconds for one in made.tokens))
    return f"{first}, then {plural(len(made.tokens), 'token')} of {middle} each, {duration(made.seconds)}"


def _timeline_row(mode: str, made: ModeProgress, span: float, colours: Palette) -> BarRow | None:
    if made.prefill is None:
        return None
    colour, first = colour_of(mode, colours), made.prefill
    segments = [
        Segment(
            start=0, seconds=first.seconds, fill=colour, said=f"prefill {duration(first.seconds)}", first=True,
            inside="prefill" if first.seconds >= 0.09 * span else "",
        )
    ]  # fmt: skip
    start, fill = first.seconds, soft(colour, 58, colours)
    for at, (seconds, count) in enumerate(_bundles(made.tokens)):
        token = made.tokens[min(at * count, len(made.tokens) - 1)].index + 1
        said = f"token {token}: {duration(seconds / count)}"
        segments.append(Segment(start=start, seconds=seconds, fill=fill, said=said, odd=bool(at % 2)))
        start += seconds
    noun = "new token" if first.reused else "prompt token"
    told = f"{plural(first.tokens, noun)} at once in {duration(first.seconds)}" + (
        f", then {plural(len(made.tokens), 'token')}" if made.tokens else ""
    )
    name = SIDE_NAMES[mode].capitalize()
    return BarRow(name=name, colour=colour, told=told, value=duration(made.seconds), segments=segments)


def _bundles(tokens: Sequence[Token]) -> list[tuple[float, int]]:
    """(seconds, tokens) of what is drawn as one box: one token, or several neighbours where there are very many."""
    size = -(-len(tokens) // MOST_MARKS) or 1
    groups = [tokens[at : at + size] for at in range(0, len(tokens), size)]
    return [(sum(one.seconds for one in group), len(group)) for group in groups]


def latency(progress: JobProgress, colours: Palette) -> Plot | None:
    """The time of every token over the tokens before it; None before there is one."""
    made = {mode: progress.modes[mode].tokens for mode in MODES if progress.modes[mode].tokens}
    if not made:
        return None
    everything = [one for tokens in made.values() for one in tokens]
    starts = [one.prefill.tokens + one.prefill.reused for one in progress.modes.values() if one.prefill]
    first = min([*starts, *(one.context for one in everything)])
    last = max(one.context for one in everything)
    y = milliseconds(max(_high(tokens) for tokens in made.values()))
    marks: list[Mark] = []
    for mode in (RECOMPUTE, CACHE):
        tokens = made.get(mode)
        if not tokens:
            continue
        colour, newest = colour_of(mode, colours), tokens[-1]
        predicted = [(one.context, one.predicted_s) for one in tokens if one.predicted_s is not None]
        marks += [
            *_predicted(predicted, colours),
            DotsMark(points=_marks(tokens), colour=colour, marker=_MARKERS_OF[mode]),
            NoteMark(x=newest.context, y=newest.seconds, text=duration(newest.seconds), colour=colour),
        ]
    alt = "Time of each token over the tokens before it. " + "; ".join(
        f"{SIDE_NAMES[mode]}: {duration(tokens[0].seconds)} at {tokens[0].context:,} tokens, "
        f"{duration(tokens[-1].seconds)} at {tokens[-1].context:,}, "
        f"median {duration(median(one.seconds for one in tokens))}"
        for mode, tokens in made.items()
    )
    return Plot(
        x=_growing(first, last), y=y, colours=colours, x_title="tokens in the conversation", alt=f"{alt}.",
        marks=[*marks, *_stops_of_run(progress)],
        legend=_mode_legend(made, any(one.predicted_s is not None for one in everything), colours, line=False),
    )  # fmt: skip


def _predicted(points: Sequence[tuple[float, float]], colours: Palette) -> list[Mark]:
    """A dashed line, where there is one: a single point would be nothing to see."""
    return [LineMark(points=points, colour=colours.ink, width=2, dashed=True)] if len(points) > 1 else []


def _mode_legend(made: Mapping[str, Any], predicted: bool, colours: Palette, *, line: bool) -> list[LegendEntry]:
    entries = [
        LegendEntry(text=SIDE_NAMES[mode], colour=colour_of(mode, colours), marker=_MARKERS_OF[mode], line=line)
        for mode in MODES
        if mode in made
    ]
    return [*entries, LegendEntry(text="predicted", colour=colours.ink)] if predicted else entries


def _growing(first: int, last: int) -> Scale:
    """An axis of tokens with room at its end for what is written there."""
    last = max(last, first + 8)
    return Scale(low=first, high=last + 0.24 * (last - first), ticks=_counts(first, last))


def _high(tokens: Sequence[Token]) -> float:
    """Where the axis ends: all but the few slowest tokens of a noisy machine, which are drawn as arrows at the top."""
    ordered = sorted(one.seconds for one in tokens)
    usual = ordered[min(len(ordered) - 1, int(_OUTLIERS * len(ordered)))]
    predicted = max((one.predicted_s or 0.0 for one in tokens), default=0.0)
    return max(min(usual, 4 * ordered[len(ordered) // 2]), predicted) * 1.18


def _marks(tokens: Sequence[Token]) -> list[tuple[float, float, str]]:
    size = -(-len(tokens) // MOST_MARKS) or 1
    found: list[tuple[float, float, str]] = []
    for at in range(0, len(tokens), size):
        group = tokens[at : at + size]
        seconds = median(one.seconds for one in group)
        found.append((group[0].context, seconds, f"{duration(seconds)} at {group[0].context:,} tokens"))
    return found


def _stops_of_run(progress: JobProgress) -> list[StopMark]:
    found: list[StopMark] = []
    for cut in progress.truncated:
        tokens = progress.modes[cut["mode"]].tokens if cut.get("mode") in progress.modes else []
        if tokens:
            found.append(StopMark(x=tokens[-1].context, text=f"stopped here: {limit_words(str(cut.get('why')))}"))
    return found


def milliseconds(high: float) -> Scale:
    """An axis of times from 0 to `high` seconds."""
    top = nice_above(high)
    marks = steps(top, 5)
    while len(marks) > 2 and marks[-2] >= high:
        marks.pop()
    return Scale(
        low=0,
        high=max(high, marks[-1] if marks[-1] <= high else 0),
        ticks=tuple((one, _axis_time(one)) for one in marks),
    )


def _axis_time(seconds: float) -> str:
    if seconds == 0:
        return "0"
    return f"{seconds:g} s" if seconds >= 1 else f"{1000 * seconds:.4g} ms"


def _log_times(low: float, high: float) -> Scale:
    marks = [step * 10.0**power for power in range(-6, 4) for step in (1, 2, 5)]
    inside = [one for one in marks if low <= one <= high]
    if len(inside) > 7:
        inside = [one for one in inside if f"{one:.0e}"[0] == "1"] if len(inside) > 10 else inside
    return Scale(low=low, high=high, logarithmic=True, ticks=tuple((one, _axis_time(one)) for one in inside))


def _counts(first: int, last: int) -> tuple[tuple[float, str], ...]:
    """Round numbers of tokens between both ends."""
    step = nice_above(max(1, (last - first) / 6))
    step = max(1, int(step))
    begin = -(-first // step) * step
    return tuple((float(at), f"{at:,}") for at in range(begin, last + 1, step))


def held(progress: JobProgress, colours: Palette) -> Plot | None:
    """The cache's bytes at every token, measured on its tensors, against what was predicted."""
    made = progress.cache
    if made.prefill is None or not made.prefill.held.reserved:
        return None
    start = made.prefill.tokens + made.prefill.reused
    points: list[tuple[int, HeldBytes]] = [(start, made.prefill.held)]
    points += [(one.context, one.held) for one in made.tokens]
    # One point a context, the last one told.
    points = sorted(dict(points).items())
    if len(points) < 2:
        points.append((points[0][0] + 1, points[0][1]))
    last = max(points[-1][0], start + 8)
    high = max(max(one.reserved, one.predicted_reserved) for _, one in points) * 1.22
    unit, size = next(
        (name, size) for name, size in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)) if high >= size or size == KIB
    )
    ticks = tuple((one * size, f"{one:g} {unit}" if one else "0") for one in steps(high / size, 4))
    blue, ink = colour_of(CACHE, colours), colours.ink
    stairs = _stairs([(at, one.reserved) for at, one in points])
    resident = [(float(at), float(one.resident)) for at, one in points]
    expected = [(float(at), float(one.predicted_resident)) for at, one in points]
    expected_stairs = _stairs([(at, one.predicted_reserved) for at, one in points])
    filled, reserved = AreaFill(colour=soft(blue, 55, colours), edge=blue), hatched(blue, colours)
    newest_at, newest = points[-1]
    marks: list[Mark] = [
        AreaMark(points=stairs, fill=reserved),
        AreaMark(points=resident, fill=filled),
        LineMark(points=stairs, colour=blue, width=2),
        LineMark(points=resident, colour=blue, width=3),
        LineMark(points=expected, colour=ink, width=2, dashed=True),
        LineMark(points=expected_stairs, colour=ink, width=2, dashed=True),
        NoteMark(
            x=newest_at, y=newest.reserved, text=f"{format_bytes(newest.reserved)} reserved", colour=ink, side="left",
            stands="bottom",
        ),
        NoteMark(x=newest_at, y=newest.resident, text=format_bytes(newest.resident), colour=blue),
    ]  # fmt: skip
    same = all(one.as_predicted for _, one in points)
    alt = (
        f"Bytes of the cache from {start:,} to {newest_at:,} tokens: "
        f"resident {format_bytes(points[0][1].resident)} to {format_bytes(newest.resident)}, "
        f"reserved {format_bytes(newest.reserved)} at the end; "
        f"{'each equal to' if same else 'not everywhere equal to'} what was predicted."
    )
    legend = [
        LegendEntry(text="resident, measured", fill=filled),
        LegendEntry(text="reserved, measured", fill=reserved),
        LegendEntry(text="both predicted", colour=ink),
    ]
    return Plot(
        x=_growing(start, last), y=Scale(low=0, high=high, ticks=ticks), colours=colours,
        x_title="tokens in the conversation", marks=marks, legend=legend, alt=alt,
    )  # fmt: skip


def _stairs(points: Sequence[tuple[int, int]]) -> list[tuple[float, float]]:
    """Points of a line that keeps its height up to the next point."""
    found: list[tuple[float, float]] = []
    for at, value in points:
        if found and found[-1][1] != value:
            found.append((float(at), found[-1][1]))
        found.append((float(at), float(value)))
    return found


def probe(progress: JobProgress, wanted: Sequence[int], colours: Palette) -> Plot | None:
    """One token's time over the context, both axes logarithmic; None before there is a point.

    `wanted` are the contexts that are still to come, for which the axis has room from the start.
    """
    probes = progress.probes
    if not probes:
        return None
    made = {
        mode: sorted((one for one in probes if one.mode == mode), key=lambda one: one.context)
        for mode in MODES
        if any(one.mode == mode for one in probes)
    }
    marks: list[Mark] = []
    for mode in (RECOMPUTE, CACHE):
        mine = made.get(mode)
        if not mine:
            continue
        colour, last = colour_of(mode, colours), mine[-1]
        marks += [
            SpreadsMark(ranges=[(one.context, *one.spread) for one in mine if one.spread], colour=colour),
            LineMark(points=[(one.context, one.seconds) for one in mine], colour=colour, width=3),
            *_predicted([(one.context, one.predicted_s) for one in mine if one.predicted_s is not None], colours),
            DotsMark(
                points=[(one.context, one.seconds, _said(one)) for one in mine], colour=colour,
                marker=_MARKERS_OF[mode],
            ),
            NoteMark(x=last.context, y=last.seconds, text=duration(last.seconds), colour=colour),
        ]  # fmt: skip
    marks += _stops(progress, lambda cut: SIDE_NAMES.get(str(cut.get("mode")), ""))
    alt = "Time of one more token over the tokens before it, both axes logarithmic. " + "; ".join(
        f"{SIDE_NAMES[mode]}: "
        + ", ".join(f"{duration(one.seconds)} at {one.context:,}" for one in probes if one.mode == mode)
        for mode in made
    )
    return Plot(
        x=_contexts([*wanted, *(one.context for one in probes), *_cut_at(progress)]),
        y=_log_times(min(_both(probes)) / 1.7, max(_both(probes)) * 2), colours=colours, height=320,
        x_title="tokens before the one that is made", marks=marks, alt=f"{alt}.",
        legend=_mode_legend(made, any(one.predicted_s is not None for one in probes), colours, line=True),
    )  # fmt: skip


def _said(one: Probe, name: str = "") -> str:
    """What is said of a point on hovering."""
    head = f"{name}: " if name else ""
    text = f"{head}{duration(one.seconds)} at {one.context:,} tokens"
    if one.spread is None:
        return text
    low, high = one.spread
    return f"{text}, median of {one.repeats} from {duration(low)} to {duration(high)}"


def _cut_at(progress: JobProgress) -> list[int]:
    return [int(cut["at"]) for cut in progress.truncated if cut.get("at")]


def _stops(progress: JobProgress, name_of: Callable[[Mapping[str, Any]], str]) -> list[StopMark]:
    """Where curves were cut off: those that end at one place for one reason share an upright."""
    found: dict[tuple[int, str], list[str]] = {}
    for cut in progress.truncated:
        if cut.get("at"):
            found.setdefault((int(cut["at"]), limit_words(str(cut.get("why")))), []).append(name_of(cut))
    stops = []
    for (at, why), names in found.items():
        who = " and ".join(dict.fromkeys(names)) if len(set(names)) < 3 else f"{len(set(names))} curves"
        stops.append(StopMark(x=float(at), text=f"{who} stopped: {why}"))
    return stops


def _both(probes: Sequence[Probe]) -> list[float]:
    return [value for one in probes for value in (one.seconds, one.predicted_s) if value]


def _contexts(contexts: Sequence[int], beside: float = 0.2) -> Scale:
    """A logarithmic axis of these contexts, with room for texts after the last: that share of the axis."""
    marks = sorted(set(contexts))
    reach = max(marks[-1] / marks[0], 4)
    low, high = marks[0] / reach**0.03, marks[0] * reach ** (1 + beside)
    return Scale(low=low, high=high, logarithmic=True, ticks=tuple((float(one), format_tokens(one)) for one in marks))


def race(progress: JobProgress, wanted: Sequence[int], colours: Palette, shipped: str) -> Plot | None:
    """Time of a token for each attention over the context; None before there is a point."""
    probes = progress.probes
    if not probes:
        return None
    spreads = any(one.spread for one in probes)
    height = 340
    x = _contexts([*wanted, *(one.context for one in probes), *_cut_at(progress)], 0.38)
    y = milliseconds(max(_both(probes)) * (1.3 if spreads else 1.12))
    marks: list[Mark] = []
    legend, said, ends = [], [], []
    looks = variant_looks([one.variant for one in probes], colours)
    for at, (variant, (colour, marker)) in enumerate(looks.items()):
        mine = sorted((one for one in probes if one.variant == variant), key=lambda one: one.context)
        name = variant_name(variant, shipped)
        # Side by side, so that one upright does not hide the other.
        aside = (x.high / x.low) ** (0.008 * (at - (len(looks) - 1) / 2)) if spreads else 1.0
        marks += [
            SpreadsMark(ranges=[(one.context * aside, *one.spread) for one in mine if one.spread], colour=colour),
            LineMark(points=[(one.context * aside, one.seconds) for one in mine], colour=colour, width=3),
            DotsMark(
                points=[(one.context * aside, one.seconds, _said(one, name)) for one in mine], colour=colour,
                marker=marker,
            ),
        ]  # fmt: skip
        legend.append(LegendEntry(text=name, colour=colour, marker=marker, line=True))
        ends.append((mine[-1].seconds, mine[-1].context, f"{name} {duration(mine[-1].seconds)}", colour))
        said.append(f"{name} " + ", ".join(f"{duration(one.seconds)} at {one.context:,}" for one in mine))
    # Names stand at the last context, for those that have come so far.
    last = max(one.context for one in probes)
    ends = sorted(end for end in ends if end[1] == last)
    places = spread([end[0] for end in ends], _NAME_PX / height * y.high, 0, y.high)
    beside = last * (x.high / x.low) ** (0.004 * len(looks) if spreads else 0)
    marks += [
        NoteMark(x=beside, y=place, text=text, colour=colour, wide=True)
        for (_, _, text, colour), place in zip(ends, places, strict=True)
    ]
    marks += _stops(progress, lambda cut: variant_name(str(cut.get("variant") or ""), shipped))
    return Plot(
        x=x, y=y, colours=colours, height=height, x_title="tokens before the one that is made", marks=marks,
        legend=legend, alt=f"Time of a token by attention. {'; '.join(said)}.",
    )  # fmt: skip
