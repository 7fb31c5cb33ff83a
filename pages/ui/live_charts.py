"""The Live screen's charts: the timeline to scale, times token by token, bytes of the cache, the probe, the race."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from kvcore.units import GIB, KIB, MIB, format_bytes, format_tokens
from pages.ui import live_look as look
from pages.ui.lines import spread
from pages.ui.live_lanes import Bar, Lane, Lanes
from pages.ui.live_look import Fill
from pages.ui.live_plot import Drawn, Plot, Scale, nice_above, span_above, steps
from pages.ui.live_story import CACHE, MODES, RECOMPUTE, Held, Probe, Side, Story, Token
from pages.ui.live_words import limit_words
from pages.ui.size.words import plural
from pages.ui.theme import Palette

# More marks than this are drawn as medians of neighbours: a browser redraws them four times a second.
MOST_MARKS = 160
_NAME_PX = 22
_THIN = 0.008
_OUTLIERS = 0.97


def timeline(story: Story, colours: Palette) -> Lanes | None:
    """Prefill and each token after it as wide as they took, with and without the cache on one scale."""
    sides = [(mode, story.sides[mode]) for mode in MODES if story.sides[mode].prefill]
    if not sides:
        return None
    said = "; ".join(f"{look.SIDE_NAMES[mode]}: {_lane_words(side)}" for mode, side in sides)
    span = span_above(max(side.seconds for _, side in sides))
    lanes = [lane for mode, side in sides if (lane := _lane(mode, side, span, colours))]
    return Lanes(lanes=lanes, span=span, alt=f"Time line to scale. {said}.", colours=colours)


def _lane_words(side: Side) -> str:
    if side.prefill is None:
        return ""
    first = f"prefill of {plural(side.prefill.tokens, 'token')} {look.duration(side.prefill.seconds)}"
    if not side.tokens:
        return first
    middle = look.duration(median(one.seconds for one in side.tokens))
    return f"{first}, then {plural(len(side.tokens), 'token')} of {middle} each, {look.duration(side.seconds)}"


def _lane(mode: str, side: Side, span: float, colours: Palette) -> Lane | None:
    if side.prefill is None:
        return None
    colour, first = look.colour_of(mode, colours), side.prefill
    bars = [
        Bar(
            start=0, seconds=first.seconds, fill=colour, said=f"prefill {look.duration(first.seconds)}", kind="pre",
            inside="prefill" if first.seconds >= 0.09 * span else "",
        )
    ]  # fmt: skip
    start, fill = first.seconds, look.soft(colour, 58, colours)
    for at, (seconds, count) in enumerate(_bundles(side.tokens)):
        token = side.tokens[min(at * count, len(side.tokens) - 1)].index + 1
        said = f"token {token}: {look.duration(seconds / count)}"
        # Where a bar is hardly a pixel on a phone, a gap after it would be all that is seen.
        kind = ("odd" if at % 2 else "") + (" thin" if seconds < _THIN * span else "")
        bars.append(Bar(start=start, seconds=seconds, fill=fill, said=said, kind=kind.strip()))
        start += seconds
    noun = "new token" if first.reused else "prompt token"
    told = f"{plural(first.tokens, noun)} at once in {look.duration(first.seconds)}" + (
        f", then {plural(len(side.tokens), 'token')}" if side.tokens else ""
    )
    name = look.SIDE_NAMES[mode].capitalize()
    return Lane(name=name, colour=colour, told=told, value=look.duration(side.seconds), bars=bars)


def _bundles(tokens: Sequence[Token]) -> list[tuple[float, int]]:
    """(seconds, tokens) of what is drawn as one box: one token, or several neighbours where there are very many."""
    size = -(-len(tokens) // MOST_MARKS) or 1
    groups = [tokens[at : at + size] for at in range(0, len(tokens), size)]
    return [(sum(one.seconds for one in group), len(group)) for group in groups]


def latency(story: Story, colours: Palette) -> Drawn | None:
    """The time of every token over the tokens before it; None before there is one."""
    sides = {mode: story.sides[mode].tokens for mode in MODES if story.sides[mode].tokens}
    if not sides:
        return None
    everything = [one for tokens in sides.values() for one in tokens]
    starts = [side.prefill.tokens + side.prefill.reused for side in story.sides.values() if side.prefill]
    first = min([*starts, *(one.context for one in everything)])
    last = max(one.context for one in everything)
    high = max(_high(tokens) for tokens in sides.values())
    y = milliseconds(high)
    plot = Plot(
        x=_growing(first, last), y=y,
        colours=colours, height=300, x_title="tokens in the conversation",
    )  # fmt: skip
    for mode in (RECOMPUTE, CACHE):
        tokens = sides.get(mode)
        if not tokens:
            continue
        colour = look.colour_of(mode, colours)
        predicted = [(one.context, one.predicted_s) for one in tokens if one.predicted_s is not None]
        if len(predicted) > 1:
            plot.line(predicted, colours.ink, width=2, dashed=True)
        plot.dots(_marks(tokens), colour, look.SHAPES[mode])
        plot.entries.insert(0, (look.SHAPES[mode], Fill(colour=colour), look.SIDE_NAMES[mode]))
        newest = tokens[-1]
        plot.note(newest.context, min(newest.seconds, y.high), look.duration(newest.seconds), colour)
    if any(one.predicted_s is not None for one in everything):
        plot.entries.append(("dash", Fill(colour=colours.ink), "predicted"))
    for cut in _cuts(story):
        plot.stop(*cut)
    alt = "Time of each token over the tokens before it. " + "; ".join(
        f"{look.SIDE_NAMES[mode]}: {look.duration(tokens[0].seconds)} at {tokens[0].context:,} tokens, "
        f"{look.duration(tokens[-1].seconds)} at {tokens[-1].context:,}, "
        f"median {look.duration(median(one.seconds for one in tokens))}"
        for mode, tokens in sides.items()
    )
    return Drawn(plot=plot, alt=f"{alt}.")


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
        found.append((group[0].context, seconds, f"{look.duration(seconds)} at {group[0].context:,} tokens"))
    return found


def _cuts(story: Story) -> list[tuple[float, str]]:
    found: list[tuple[float, str]] = []
    for cut in story.truncated:
        tokens = story.sides[cut["mode"]].tokens if cut.get("mode") in story.sides else []
        if tokens:
            found.append((tokens[-1].context, f"stopped here: {limit_words(str(cut.get('why')))}"))
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


def held(story: Story, colours: Palette) -> Drawn | None:
    """The cache's bytes at every token, measured on its tensors, against what was predicted."""
    side = story.cache
    if side.prefill is None or not side.prefill.held.reserved:
        return None
    start = side.prefill.tokens + side.prefill.reused
    points: list[tuple[int, Held]] = [(start, side.prefill.held)]
    points += [(one.context, one.held) for one in side.tokens]
    points = _unique(points)
    if len(points) < 2:
        points.append((points[0][0] + 1, points[0][1]))
    last = max(points[-1][0], start + 8)
    high = max(max(one.reserved, one.predicted_reserved) for _, one in points) * 1.22
    unit, size = next(
        (name, size) for name, size in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)) if high >= size or size == KIB
    )
    ticks = tuple((one * size, f"{one:g} {unit}" if one else "0") for one in steps(high / size, 4))
    plot = Plot(
        x=_growing(start, last), y=Scale(low=0, high=high, ticks=ticks),
        colours=colours, height=300, x_title="tokens in the conversation",
    )  # fmt: skip
    blue = look.colour_of(CACHE, colours)
    stairs = _stairs([(at, one.reserved) for at, one in points])
    resident = [(float(at), float(one.resident)) for at, one in points]
    filled, reserved = Fill(colour=look.soft(blue, 55, colours), edge=blue), look.hatched(blue, colours)
    plot.area(stairs, reserved)
    plot.area(resident, filled)
    plot.line(stairs, blue, width=2)
    plot.line(resident, blue, width=3)
    plot.line([(float(at), float(one.predicted_resident)) for at, one in points], colours.ink, width=2, dashed=True)
    plot.line(_stairs([(at, one.predicted_reserved) for at, one in points]), colours.ink, width=2, dashed=True)
    newest = points[-1][1]
    plot.note(points[-1][0], newest.reserved, f"{format_bytes(newest.reserved)} reserved", colours.ink, side="left",
              lift="-125%")  # fmt: skip
    plot.note(points[-1][0], newest.resident, format_bytes(newest.resident), blue)
    same = all(one.as_predicted for _, one in points)
    alt = (
        f"Bytes of the cache from {start:,} to {points[-1][0]:,} tokens: "
        f"resident {format_bytes(points[0][1].resident)} to {format_bytes(newest.resident)}, "
        f"reserved {format_bytes(newest.reserved)} at the end; "
        f"{'each equal to' if same else 'not everywhere equal to'} what was predicted."
    )
    plot.entries += [
        ("area", filled, "resident, measured"),
        ("area", reserved, "reserved, measured"),
        ("dash", Fill(colour=colours.ink), "both predicted"),
    ]
    return Drawn(plot=plot, alt=alt)


def _unique(points: list[tuple[int, Held]]) -> list[tuple[int, Held]]:
    """One point a context, the last one told, ascending."""
    return sorted(dict(points).items())


def _stairs(points: Sequence[tuple[int, int]]) -> list[tuple[float, float]]:
    """Points of a line that keeps its height up to the next point."""
    found: list[tuple[float, float]] = []
    for at, value in points:
        if found and found[-1][1] != value:
            found.append((float(at), found[-1][1]))
        found.append((float(at), float(value)))
    return found


def probe(story: Story, wanted: Sequence[int], colours: Palette) -> Drawn | None:
    """One token's time over the context, both axes logarithmic; None before there is a point.

    `wanted` are the contexts that are still to come, for which the axis has room from the start.
    """
    probes = story.probes
    if not probes:
        return None
    low = min(_both(probes)) / 1.7
    high = max(_both(probes)) * 2
    plot = Plot(
        x=_contexts([*wanted, *(one.context for one in probes), *_cut_at(story)]), y=_log_times(low, high),
        colours=colours, height=320, x_title="tokens before the one that is made",
    )  # fmt: skip
    for mode in (RECOMPUTE, CACHE):
        mine = sorted((one for one in probes if one.mode == mode), key=lambda one: one.context)
        if not mine:
            continue
        colour = look.colour_of(mode, colours)
        predicted = [(one.context, one.predicted_s) for one in mine if one.predicted_s is not None]
        plot.spreads([(one.context, *one.spread) for one in mine if one.spread], colour)
        plot.line([(one.context, one.seconds) for one in mine], colour, width=3)
        plot.line(predicted, colours.ink, width=2, dashed=True)
        plot.dots(
            [(one.context, one.seconds, _said(one)) for one in mine], colour, look.SHAPES[mode],
        )  # fmt: skip
        plot.note(mine[-1].context, mine[-1].seconds, look.duration(mine[-1].seconds), colour)
        plot.entries.insert(0, (f"line {look.SHAPES[mode]}", Fill(colour=colour), look.SIDE_NAMES[mode]))
    if any(one.predicted_s is not None for one in probes):
        plot.entries.append(("dash", Fill(colour=colours.ink), "predicted"))
    _mark_cuts(plot, story, lambda cut: look.SIDE_NAMES.get(str(cut.get("mode")), ""))
    alt = "Time of one more token over the tokens before it, both axes logarithmic. " + "; ".join(
        f"{look.SIDE_NAMES[mode]}: "
        + ", ".join(f"{look.duration(one.seconds)} at {one.context:,}" for one in probes if one.mode == mode)
        for mode in MODES
        if any(one.mode == mode for one in probes)
    )
    return Drawn(plot=plot, alt=f"{alt}.")


def _said(one: Probe, name: str = "") -> str:
    """What is said of a point on hovering."""
    head = f"{name}: " if name else ""
    text = f"{head}{look.duration(one.seconds)} at {one.context:,} tokens"
    if one.spread is None:
        return text
    low, high = one.spread
    return f"{text}, median of {one.repeats} from {look.duration(low)} to {look.duration(high)}"


def _cut_at(story: Story) -> list[int]:
    return [int(cut["at"]) for cut in story.truncated if cut.get("at")]


def _mark_cuts(plot: Plot, story: Story, name_of: Callable[[Mapping[str, Any]], str]) -> None:
    """An upright where curves were cut off: those that end at one place for one reason share it."""
    found: dict[tuple[int, str], list[str]] = {}
    for cut in story.truncated:
        if cut.get("at"):
            found.setdefault((int(cut["at"]), limit_words(str(cut.get("why")))), []).append(name_of(cut))
    for (at, why), names in found.items():
        who = " and ".join(dict.fromkeys(names)) if len(set(names)) < 3 else f"{len(set(names))} curves"
        plot.stop(float(at), f"{who} stopped: {why}")


def _both(probes: Sequence[Probe]) -> list[float]:
    return [value for one in probes for value in (one.seconds, one.predicted_s) if value]


def _contexts(contexts: Sequence[int], beside: float = 0.2) -> Scale:
    """A logarithmic axis of these contexts, with room for texts after the last: that share of the axis."""
    marks = sorted(set(contexts))
    reach = max(marks[-1] / marks[0], 4)
    low, high = marks[0] / reach**0.03, marks[0] * reach ** (1 + beside)
    return Scale(low=low, high=high, logarithmic=True, ticks=tuple((float(one), format_tokens(one)) for one in marks))


def race(story: Story, wanted: Sequence[int], colours: Palette, shipped: str) -> Drawn | None:
    """Time of a token for each attention over the context; None before there is a point."""
    probes = story.probes
    if not probes:
        return None
    spreads = any(one.spread for one in probes)
    y = milliseconds(max(_both(probes)) * (1.3 if spreads else 1.12))
    plot = Plot(
        x=_contexts([*wanted, *(one.context for one in probes), *_cut_at(story)], 0.38), y=y, colours=colours,
        height=340, x_title="tokens before the one that is made",
    )  # fmt: skip
    said, ends = [], []
    looks = look.variant_looks([one.variant for one in probes], colours)
    for at, (variant, (colour, shape)) in enumerate(looks.items()):
        mine = sorted((one for one in probes if one.variant == variant), key=lambda one: one.context)
        name = look.variant_name(variant, shipped)
        # Side by side, so that one upright does not hide the other.
        aside = (plot.x.high / plot.x.low) ** (0.008 * (at - (len(looks) - 1) / 2)) if spreads else 1.0
        plot.spreads([(one.context * aside, *one.spread) for one in mine if one.spread], colour)
        plot.line([(one.context * aside, one.seconds) for one in mine], colour, width=3)
        plot.dots([(one.context * aside, one.seconds, _said(one, name)) for one in mine], colour, shape)
        plot.entries.append((f"line {shape}", Fill(colour=colour), name))
        ends.append((mine[-1].seconds, mine[-1].context, f"{name} {look.duration(mine[-1].seconds)}", colour))
        said.append(f"{name} " + ", ".join(f"{look.duration(one.seconds)} at {one.context:,}" for one in mine))
    # Names stand at the last context, for those that have come so far.
    last = max(one.context for one in probes)
    ends = sorted(end for end in ends if end[1] == last)
    places = spread([end[0] for end in ends], _NAME_PX / plot.height * y.high, 0, y.high)
    beside = last * (plot.x.high / plot.x.low) ** (0.004 * len(looks) if spreads else 0)
    for (_, _, text, colour), place in zip(ends, places, strict=True):
        plot.note(beside, place, text, colour, wide=True)
    _mark_cuts(plot, story, lambda cut: look.variant_name(str(cut.get("variant") or ""), shipped))
    return Drawn(plot=plot, alt=f"Time of a token by attention. {'; '.join(said)}.")
