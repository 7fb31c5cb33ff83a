"""Line charts on logarithmic axes: the growth of a cache, and the names that such charts write beside their lines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go

from kvcore.formats import KVFormat
from kvcore.hardware.gpus import CapacityLine
from kvcore.model import Model
from kvcore.sizing import curve, growth_laws
from kvcore.units import GIB, MAX_TOKENS, format_bytes, format_tokens
from pages.ui.text import in_chart
from pages.ui.theme import FONT_SIZE, Palette, figure, series_colours

_POINTS = 200
_FIRST = 1024
_SIZES = tuple(4**n * 2**-20 for n in range(30))  # GiB: 1 KiB, 4 KiB, 16 KiB …


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One model of the chart, with the format in which its cache is counted."""

    id: str
    name: str
    model: Model
    kv: KVFormat
    source: int | None = None


def growth_chart(
    lines: list[Line],
    *,
    tokens: int,
    batch: int,
    capacities: tuple[CapacityLine, ...],
    colours: Palette,
    mark_bends: bool = False,
) -> tuple[go.Figure, str] | None:
    """(figure, text alternative) with the first line as the chosen model, or None where nothing holds anything.

    `mark_bends` marks where a line stops growing, or grows less, because windows are full.
    """
    main = lines[0]
    first, last = _ends(tokens, main.model.context_limit)
    xs = contexts(lines, first, last, tokens)
    ys = {line.id: curve(line.model, xs, line.kv, batch, line.source) for line in lines}
    drawn = [line for line in lines if int(ys[line.id].max()) > 0]
    if not drawn:
        return None
    look = series_colours(main.id, (line.id for line in lines[1:]), colours)
    low, high = y_range([ys[line.id] for line in drawn])
    shown = [card for card in capacities if low * GIB * 1.5 < card.bytes < high * GIB / 1.6]
    limit = main.model.context_limit if (main.model.context_limit or 0) >= first else None
    traces = [
        trace for line in reversed(drawn) for trace in line_traces(line, xs, ys[line.id], look[line.id], line is main)
    ]
    notes = _end_labels(drawn, xs, ys, look, low, high, colours)
    if main in drawn and tokens >= first:
        held = int(curve(main.model, [tokens], main.kv, batch, main.source)[0])
        traces.append(here_mark(tokens, held, look[main.id][0], colours))
        notes.append(here_label(tokens, held, first, colours))
    if mark_bends:
        traces += [
            trace for line in drawn if (trace := bend_marks(line, first, last, batch, look[line.id][0], colours))
        ]
    shapes = [capacity_shape(card, colours) for card in shown]
    if limit:
        shapes.append(_limit(limit, colours))
        notes.append(_limit_label(limit, first, colours))
    layout = {"shapes": shapes, "annotations": notes, "hovermode": "x unified", **axes(first, last, low, high)}
    return figure(traces, layout, colours), _describe(drawn, xs, ys, shown, limit)


def _ends(tokens: int, limit: int | None) -> tuple[int, int]:
    """The tokens axis: 1K … 1M, wider where the scenario or the model's limit would sit at an end."""
    low, high = min(tokens or 2 * _FIRST, limit or 2 * _FIRST), max(tokens, (limit or 0) // 2)
    first = _FIRST
    while first > 16 and first > low / 2:
        first //= 4
    return first, min(max(2**20, 4 * high), MAX_TOKENS)


def contexts(lines: list[Line], first: int, last: int, tokens: int, points: int = _POINTS) -> np.ndarray:
    """Contexts spread evenly on the logarithmic axis, with the places where a line bends."""
    spread = np.unique(np.geomspace(first, last, points).astype(np.int64))
    bends = {tokens} | {2**n for n in range(4, last.bit_length())}
    for line in lines:
        if line.model.context_limit:
            bends.add(line.model.context_limit)
        for law, _ in growth_laws(line.model, line.kv, line.source):
            if law.max_entries is not None:
                bends.add(law.max_entries * law.tokens_per_entry)
    extra = np.array([one for one in bends if first <= one <= last], dtype=np.int64)
    return np.unique(np.concatenate([spread, extra]))


def line_traces(line: Line, xs: np.ndarray, ys: np.ndarray, look: tuple[str, str], main: bool) -> list[dict[str, Any]]:
    """A line up to the model's context limit, and its thin continuation beyond."""
    colour, dash = look
    limit = line.model.context_limit or int(xs[-1])
    name, traces = in_chart(line.name), []
    for inside, beyond in ((xs <= limit, False), (xs >= limit, True)):
        if int(inside.sum()) < 2:
            continue
        stroke = {"width": 1.5, "dash": "dot"} if beyond else {"width": 3.5 if main else 2, "dash": dash}
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": name,
                "x": xs[inside].tolist(),
                "y": [int(value) / GIB for value in ys[inside]],
                "line": {"color": colour, **stroke},
                "customdata": [format_bytes(int(value)) for value in ys[inside]],
                "hovertemplate": f"{name}: %{{customdata}}{' beyond its limit' if beyond else ''}<extra></extra>",
            }
        )
    return traces


def y_range(curves: list[np.ndarray]) -> tuple[float, float]:
    """The y axis in GiB: all lines, and at least one card above them."""
    lows = [int(values[values > 0].min()) / GIB for values in curves if int(values.max()) > 0]
    high = max(max(int(values.max()) for values in curves) / GIB * 3, 150)
    return min(lows) / 1.5, high


def capacity_shape(card: CapacityLine, colours: Palette) -> dict[str, Any]:
    """A horizontal line at an amount of memory, with its name."""
    label = {
        "text": f"\u2002{in_chart(card.label)}",
        "textposition": "start",
        "yanchor": "bottom",
        "font": {"size": FONT_SIZE, "color": colours.muted},
    }
    stroke = {"color": colours.muted, "width": 1}
    height = card.bytes / GIB
    return {
        "type": "line",
        "xref": "paper",
        "x0": 0,
        "x1": 1,
        "y0": height,
        "y1": height,
        "line": stroke,
        "label": label,
    }


def _limit(limit: int, colours: Palette) -> dict[str, Any]:
    stroke = {"color": colours.ink, "width": 1, "dash": "dash"}
    return {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "x0": limit, "x1": limit, "line": stroke}


def _limit_label(limit: int, first: int, colours: Palette) -> dict[str, Any]:
    to_the_left = limit >= 16 * first  # where there is room also on a phone
    side: dict[str, Any] = {"xanchor": "right", "xshift": -6} if to_the_left else {"xanchor": "left", "xshift": 6}
    place: dict[str, Any] = {"x": math.log10(limit), "y": 0, "yref": "paper", "yanchor": "bottom", "yshift": 4, **side}
    return free_text(f"context limit {limit:,}", colours, **place)


def bend_marks(line: Line, first: int, last: int, batch: int, colour: str, colours: Palette) -> dict[str, Any] | None:
    """Where a window of this line is full: a mark on it."""
    laws = [law for law, _ in growth_laws(line.model, line.kv, line.source) if law.max_entries is not None]
    full = sorted({(law.max_entries or 0) * law.tokens_per_entry for law in laws})
    places = [place for place in full if first <= place <= last]
    if not places:
        return None
    held = curve(line.model, places, line.kv, batch, line.source)
    return {
        "type": "scatter",
        "mode": "markers",
        "x": places,
        "y": [int(value) / GIB for value in held],
        "marker": {"size": 13, "symbol": "diamond", "color": colours.background, "line": {"color": colour, "width": 3}},
        "customdata": [f"{in_chart(line.name)}: windows of {place:,} tokens are full" for place in places],
        "hovertemplate": "%{customdata}<extra></extra>",
    }


def here_mark(tokens: int, held: int, colour: str, colours: Palette) -> dict[str, Any]:
    """A dot where the scenario stands."""
    marker = {"size": 13, "color": colour, "line": {"color": colours.background, "width": 2}}
    place = {"x": [tokens], "y": [held / GIB]}
    return {"type": "scatter", "mode": "markers", "hoverinfo": "skip", "marker": marker, **place}


def here_label(tokens: int, held: int, first: int, colours: Palette) -> dict[str, Any]:
    """What is held where the scenario stands."""
    place: dict[str, Any] = {
        "x": math.log10(tokens),
        "y": math.log10(max(held, 1) / GIB),
        "yanchor": "bottom",
        "yshift": 5,
    }
    side: dict[str, Any] = (
        {"xanchor": "right", "xshift": -8} if tokens >= 8 * first else {"xanchor": "left", "xshift": 8}
    )
    return free_text(f"<b>{format_bytes(held)}</b>", colours, size=FONT_SIZE + 3, **place, **side)


def _end_labels(
    lines: list[Line], xs: np.ndarray, ys: dict[str, np.ndarray],
    look: dict[str, tuple[str, str]], low: float, high: float, colours: Palette,
) -> list[dict[str, Any]]:  # fmt: skip
    """Names at the right end of the lines, above them, moved apart where they would touch."""
    step = (math.log10(high) - math.log10(low)) * 0.062
    place, labels = -math.inf, []
    for line in sorted(lines, key=lambda one: int(ys[one.id][-1])):
        place = max(math.log10(int(ys[line.id][-1]) / GIB), place + step)
        at: dict[str, Any] = {
            "x": math.log10(int(xs[-1])),
            "y": place,
            "xanchor": "right",
            "yanchor": "bottom",
            "yshift": 2,
        }
        labels.append(free_text(in_chart(line.name), colours, colour=look[line.id][0], **at))
    return labels


# How far a plot reaches beyond its lines, in widths of them: there each is joined to its name in the margin.
BESIDE = 0.06
# How wide a character of a name is at most on average, in pixels.
_CHARACTER_PX = 8.2


@dataclass(frozen=True, slots=True, kw_only=True)
class LineEnd:
    """Where a line ends, `x` as drawn and `y` as a power of ten, and its name in one line of text or more."""

    x: float
    y: float
    name: tuple[str, ...]
    colour: str
    bold: bool


def names_beside(
    ends: Sequence[LineEnd], *, xs: tuple[float, float], ys: tuple[float, float], height: int, colours: Palette
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], int]:
    """(names in the margin, moved apart, what joins each to its line, width of that margin in pixels).

    `xs` and `ys` are the ends of both axes as powers of ten, `height` that of the figure in pixels.
    """
    (first, last), (low, high) = xs, ys
    lines = max(len(end.name) for end in ends)
    step = FONT_SIZE * (0.4 + 0.95 * lines) / (height - 80) * (high - low)
    ordered = sorted(ends, key=lambda end: end.y)
    places = spread([end.y for end in ordered], step, low + step / 2, high - step / 2)
    edge = 10 ** (last + BESIDE * (last - first))
    notes, shapes = [], []
    for end, place in zip(ordered, places, strict=True):
        name = "<br>".join(in_chart(part) for part in end.name)
        notes.append(
            {"text": f"<b>{name}</b>" if end.bold else name, "x": 1, "xref": "paper", "y": place, "xanchor": "left",
             "yanchor": "middle", "xshift": 4, "align": "left", "showarrow": False, "borderpad": 0,
             "bgcolor": colours.background, "font": {"size": FONT_SIZE, "color": end.colour}}
        )  # fmt: skip
        shapes.append(
            {"type": "line", "x0": end.x, "x1": edge, "y0": 10**end.y, "y1": 10**place,
             "line": {"color": end.colour, "width": 1}}
        )  # fmt: skip
    longest = max(len(part) for end in ends for part in end.name)
    return notes, shapes, math.ceil(longest * _CHARACTER_PX) + 10


def spread(wanted: Sequence[float], step: float, low: float, high: float) -> list[float]:
    """Ascending places as near as can be to those wanted, `step` apart and within low … high while there is room.

    Neighbours that touch are pooled and stand evenly around their mean.
    """
    pools: list[list[float]] = []  # [sum of wanted first places, members]
    for at, place in enumerate(wanted):
        pools.append([place - at * step, 1])
        while len(pools) > 1 and pools[-2][0] / pools[-2][1] > pools[-1][0] / pools[-1][1]:
            total, members = pools.pop()
            pools[-1][0] += total
            pools[-1][1] += members
    bases = [total / members for total, members in pools for _ in range(int(members))]
    top = high - (len(wanted) - 1) * step
    return [max(low, min(base, top)) + at * step for at, base in enumerate(bases)]


def free_text(text: str, colours: Palette, size: int = FONT_SIZE, colour: str = "", **place: Any) -> dict[str, Any]:
    """A free text; on logarithmic axes its place is given as a power of ten."""
    font = {"size": size, "color": colour or colours.ink}
    return {"text": text, "showarrow": False, "font": font, "bgcolor": colours.background, "borderpad": 1, **place}


def axes(first: int, last: int, low: float, high: float) -> dict[str, Any]:
    """Both axes, logarithmic: tokens from first to last, and low to high in GiB."""
    start = first.bit_length() - 1
    exponents = range(start, last.bit_length() + 1, 2 if last <= 2**18 * first else 4)
    ticks = [2**n for n in exponents if 2**n <= last * 1.01]
    inside = [size for size in _SIZES if low <= size <= high]
    sizes = inside if len(inside) <= 8 else inside[len(inside) % 2 :: 2]
    return {
        "xaxis": {
            "type": "log",
            "tickvals": ticks,
            "ticktext": [format_tokens(tick) for tick in ticks],
            "title": {"text": "tokens in one request", "font": {"size": FONT_SIZE}},
            "range": [math.log10(first), math.log10(last)],
            "fixedrange": True,
            "hoverformat": ",d",
        },
        "yaxis": {
            "type": "log",
            "tickvals": sizes,
            "ticktext": [format_bytes(round(size * GIB)) for size in sizes],
            "range": [math.log10(low), math.log10(high)],
            "fixedrange": True,
        },
    }


def _describe(
    lines: list[Line], xs: np.ndarray, ys: dict[str, np.ndarray], capacities: list[CapacityLine], limit: int | None
) -> str:  # fmt: skip
    """The chart in words, for those who cannot see it."""
    marks = [mark for mark in (8192, 32_768, 131_072, 1_048_576) if mark <= int(xs[-1])]
    parts = []
    for line in lines:
        at = {mark: int(ys[line.id][int(np.searchsorted(xs, mark))]) for mark in marks}
        parts.append(f"{line.name}: " + ", ".join(f"{format_bytes(at[m])} at {format_tokens(m)}" for m in marks))
    cards = f" Lines mark {', '.join(card.label for card in capacities)}." if capacities else ""
    ends = f" The context limit is {limit:,} tokens." if limit else ""
    return f"Cache size over tokens in one request, both axes logarithmic. {'; '.join(parts)}.{ends}{cards}"
