"""The catalogue over time: one mark a model, bytes for each token over the date of its release."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Literal

import numpy as np
import plotly.graph_objects as go

from kvcore.units import KIB, format_bytes, format_count, format_tokens
from kvcore.variants.trend import CLASSES, CONTEXT_TOKENS, AttentionClass, Period, TrendPoint, percent, periods
from pages.ui.text import in_chart
from pages.ui.theme import FONT_SIZE, Palette, figure

Measure = Literal["bytes", "growth", "share"]
HEIGHT = 600

# Class: (name in the key, short for a phone; name in a sentence; place in the palette's series or None for its quiet
# colour; mark).
LOOKS: dict[AttentionClass, tuple[str, str, int | None, str]] = {
    "multi-head": ("MHA", "multi-head (MHA)", 1, "circle"),
    "grouped": ("GQA", "grouped (GQA)", 0, "square"),
    "multi-query": ("MQA", "multi-query (MQA)", 4, "triangle-down"),
    "window": ("window", "sliding or chunked window", 5, "triangle-up"),
    "latent": ("MLA", "latent (MLA)", 3, "diamond"),
    "hybrid": ("hybrid", "hybrid with recurrent states", 2, "star"),
    "recurrent": ("recurrent", "recurrent states only", None, "x"),
}
_MARK_SIZES = {"triangle-up": 10, "triangle-down": 10, "diamond": 10, "star": 12}

# Years with few models share the width of one, so that the others have room also on a phone.
_EARLY_WIDTH = 1.0
_SIZES = tuple(KIB * 4**n / 4**5 for n in range(20))
_GUIDES = (1 / 8, 1 / 64)
_TITLES: dict[Measure, str] = {
    "bytes": f"bytes for each token of a {format_tokens(CONTEXT_TOKENS)} request",
    "growth": "bytes that a token adds at the start",
    "share": "cache against full multi-head attention",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """A design, or a median, on the axes: `x` in widths of a year, `y` in powers of ten."""

    point: TrendPoint
    x: float
    y: float
    on_line: bool
    """Whether it stands on the line of those that add nothing, below the scale."""


def trend_chart(
    points: Sequence[TrendPoint], *, measure: Measure = "bytes", highlight: Iterable[str] = (), colours: Palette
) -> tuple[go.Figure, str]:
    """(figure, text alternative). `bytes` is the average over a request, `growth` what a token adds, `share` of MHA.

    Copies of a design share its mark. `highlight` are ids of models to name on the chart; unknown ones are passed over.
    """
    known = periods(points)
    if not known:
        return figure([], {}, colours, height=HEIGHT), "No model with a release date."
    axis = _axis(known)
    values = {point.model_id: _value(point, measure) for point in points if point.copy_of is None}
    scale = [value for value in values.values() if value]
    low, high = min(scale, default=1.0), max(scale, default=1.0)
    base = math.log10(low) - 0.1 * max(math.log10(high) - math.log10(low), 1)
    places = _places(points, values, axis, base)
    medians = [(period, math.log10(value)) for period in known if (value := _median(period, measure))]
    bottom, top = base - 0.045 * (math.log10(high) - base), math.log10(high) + 0.06 * (math.log10(high) - base)
    window = Window(
        left=axis(date(known[0].first_year, 1, 1)) - 0.04, right=_right(points, axis), bottom=bottom, top=top,
        floor=base + 0.07 * (top - bottom),
    )  # fmt: skip
    named = _named(places, set(highlight), {point.model_id: point for point in points})
    traces = [_marks(name, places, points, colours) for name in CLASSES]
    traces.append(_steps(medians, axis, window.right, colours))
    traces += [_rings([place for place, _ in named], colours)] if named else []
    labels = [Label(x=place.x, y=place.y, text=name, strong=True, needed=True) for place, name in named]
    labels += _median_label(medians, axis)
    labels += [
        Label(x=place.x, y=place.y, text=place.point.name)
        for place in _landmarks(places, measure)
        if place not in [one for one, _ in named]
    ]
    notes = [*arrange(labels, [(place.x, place.y) for place in places], window, colours), _title(measure, colours)]
    shapes = [_guide(share, colours) for share in _GUIDES if measure == "share" and bottom < math.log10(share)]
    if any(place.on_line for place in places):
        shapes.append(_floor(base, colours))
        notes.append(_floor_label(base, colours))
    layout = {
        "shapes": shapes,
        "annotations": notes,
        "hovermode": "closest",
        "showlegend": True,
        "legend": {"orientation": "h", "y": 1.09, "yanchor": "bottom", "x": 0, "font": {"size": FONT_SIZE},
                   "itemclick": False, "itemdoubleclick": False, "itemsizing": "trace"},
        "xaxis": _x_axis(known, axis, window, colours),
        "yaxis": _y_axis(measure, low, high, window),
    }  # fmt: skip
    return figure(traces, layout, colours, height=HEIGHT), _describe(points, known, named, measure)


def _value(point: TrendPoint, measure: Measure) -> float | None:
    """What the scale shows of a model; None for one that adds nothing, or has no heads to be compared with."""
    if not point.growing_bytes_per_token:
        return None
    return {
        "bytes": point.average_bytes_per_token,
        "growth": point.growing_bytes_per_token,
        "share": point.share_of_mha,
    }[measure]


def _median(period: Period, measure: Measure) -> float | None:
    return {
        "bytes": period.average_bytes_per_token,
        "growth": period.growing_bytes_per_token,
        "share": period.share_of_mha,
    }[measure]


def _axis(known: Sequence[Period]) -> Callable[[date], float]:
    """Where a day stands: years side by side, those of a joined first period together as wide as one."""
    first = known[0]
    joined = first.last_year - first.first_year + 1
    dense = first.first_year + (joined if joined > 1 else 0)

    def place(day: date) -> float:
        start = date(day.year, 1, 1)
        year = day.year + (day - start).days / (date(day.year + 1, 1, 1) - start).days
        return year - dense if year >= dense else (year - dense) * _EARLY_WIDTH / joined

    return place


def _right(points: Sequence[TrendPoint], axis: Callable[[date], float]) -> float:
    last = max(point.released for point in points)
    return axis(date(last.year + last.month // 12, last.month % 12 + 1, 1)) + 0.06


def _places(
    points: Sequence[TrendPoint], values: dict[str, float | None], axis: Callable[[date], float], base: float
) -> list[_Place]:
    """The designs; those of which only the month is known are spread over it, in the order of their ids."""
    months: dict[tuple[int, int], list[str]] = {}
    for point in points:
        if point.model_id in values and not point.day_known:
            months.setdefault((point.released.year, point.released.month), []).append(point.model_id)
    found = []
    for point in points:
        if point.model_id not in values:
            continue
        x, day = axis(point.released), point.released
        if not point.day_known:
            others = sorted(months[day.year, day.month])
            width = axis(date(day.year + day.month // 12, day.month % 12 + 1, 1)) - x
            x += width * (others.index(point.model_id) + 0.5) / len(others)
        value = values[point.model_id]
        y = math.log10(value) if value else base
        found.append(_Place(point=point, x=x, y=y, on_line=not value))
    return found


def _named(
    places: list[_Place], wanted: set[str], points: dict[str, TrendPoint]
) -> list[tuple[_Place, str]]:  # fmt: skip
    """(place, name) of every model to be named; a copy stands at its design."""
    at = {place.point.model_id: place for place in places}
    chosen = [points[one] for one in sorted(wanted & points.keys())]
    found = [(at[point.copy_of or point.model_id], point.name) for point in chosen]
    return sorted(found, key=lambda pair: pair[0].x)


def _landmarks(places: list[_Place], measure: Measure) -> list[_Place]:
    """Marks by which the move can be told: the smallest of the last year, the largest, the first latent and MHA."""
    scaled = [place for place in places if not place.on_line]
    last = max(place.point.released.year for place in places)
    found = [min((p for p in scaled if p.point.released.year == last), key=lambda place: place.y, default=None)]
    if measure != "share":  # Where many share the largest value, none is a landmark.
        found.append(max(scaled, key=lambda place: place.y, default=None))
    for kind in ("latent", "multi-head"):
        found.append(next((place for place in scaled if place.point.attention == kind), None))
    return list({place.point.model_id: place for place in found if place}.values())


def _median_label(medians: list[tuple[Period, float]], axis: Callable[[date], float]) -> list[Label]:
    """The line is named where it begins: there are the fewest marks."""
    return [
        Label(x=axis(date((period.first_year + period.last_year + 1) // 2, 1, 1)), y=y, text="median", needed=True)
        for period, y in medians[:1]
    ]


def _marks(
    name: AttentionClass, places: list[_Place], points: Sequence[TrendPoint], colours: Palette
) -> dict[str, Any]:
    text, _, _, symbol = LOOKS[name]
    mine = [place for place in places if place.point.attention == name]
    copies: dict[str, list[str]] = {}
    for point in points:
        if point.copy_of:
            copies.setdefault(point.copy_of, []).append(point.name)
    edge = {"width": 0.8, "color": colours.background}
    return {
        "type": "scatter",
        "mode": "markers",
        "name": text,
        "x": [place.x for place in mine],
        "y": [10**place.y for place in mine],
        "marker": {"color": colour(name, colours), "symbol": symbol, "size": _MARK_SIZES.get(symbol, 8), "line": edge},
        "customdata": [_hover(place.point, copies.get(place.point.model_id, [])) for place in mine],
        "hovertemplate": "%{customdata}<extra></extra>",
        "hoverlabel": {"align": "left"},
    }


def colour(name: AttentionClass, colours: Palette) -> str:
    """The colour of a class on this chart."""
    slot = LOOKS[name][2]
    return colours.muted if slot is None else colours.series[slot]


def _hover(point: TrendPoint, copies: list[str]) -> str:
    when = f"{point.released:%B %Y}"
    size = "parameters not known" if point.parameters is None else f"{format_count(point.parameters)} parameters"
    lines = [
        f"<b>{in_chart(point.name)}</b>",
        f"{when}, {size}",
        LOOKS[point.attention][1],
        f"{format_bytes(point.average_bytes_per_token)} for each of {format_tokens(CONTEXT_TOKENS)} tokens, 16 bits",
    ]
    if point.average_bytes_per_token != point.growing_bytes_per_token:
        lines.append(f"{format_bytes(point.growing_bytes_per_token)} added by a token at the start")
        if point.context_limit is not None and point.context_limit < CONTEXT_TOKENS:
            lines.append(f"the model itself ends at {point.context_limit:,} tokens")
    if point.share_of_mha is not None:
        lines.append(f"{percent(point.share_of_mha)} of full multi-head attention")
    if copies:
        lines.append(f"the same as {in_chart(', '.join(copies[:2]))}{' and others' if len(copies) > 2 else ''}")
    return "<br>".join(lines).replace("{", "(")


def _rings(places: list[_Place], colours: Palette) -> dict[str, Any]:
    marker = {"size": 19, "symbol": "circle-open", "color": colours.ink, "line": {"width": 2.5, "color": colours.ink}}
    return {
        "type": "scatter", "mode": "markers", "hoverinfo": "skip", "showlegend": False, "marker": marker,
        "x": [place.x for place in places], "y": [10**place.y for place in places],
    }  # fmt: skip


def _steps(
    medians: list[tuple[Period, float]], axis: Callable[[date], float], end: float, colours: Palette
) -> dict[str, Any]:  # fmt: skip
    """One level a year, joined at its ends, so that it reads as one line going down."""
    xs: list[float] = []
    ys: list[float] = []
    for period, y in medians:
        xs += [axis(date(period.first_year, 1, 1)), min(axis(date(period.last_year + 1, 1, 1)), end)]
        ys += [10**y, 10**y]
    return {
        "type": "scatter", "mode": "lines", "x": xs, "y": ys, "hoverinfo": "skip", "showlegend": False,
        "line": {"color": colours.ink, "width": 2.5}, "opacity": 0.55,
    }  # fmt: skip


def _title(measure: Measure, colours: Palette) -> dict[str, Any]:
    return {
        "xref": "paper", "yref": "paper", "x": 0, "y": 1, "xanchor": "left", "yanchor": "bottom", "yshift": 4,
        "text": _TITLES[measure], "showarrow": False, "font": {"size": FONT_SIZE, "color": colours.ink},
    }  # fmt: skip


def _floor(base: float, colours: Palette) -> dict[str, Any]:
    stroke = {"color": colours.muted, "width": 1, "dash": "dot"}
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 10**base, "y1": 10**base, "line": stroke,
            "layer": "below"}  # fmt: skip


def _floor_label(base: float, colours: Palette) -> dict[str, Any]:
    return {
        "xref": "paper", "x": 1, "y": base, "xanchor": "right", "yanchor": "bottom", "yshift": 1, "showarrow": False,
        "text": "recurrent: nothing per token", "font": {"size": FONT_SIZE, "color": colours.muted},
    }  # fmt: skip


def _guide(share: float, colours: Palette) -> dict[str, Any]:
    stroke = {"color": colours.muted, "width": 1, "dash": "dash"}
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": share, "y1": share, "line": stroke,
            "layer": "below"}  # fmt: skip


def _x_axis(known: Sequence[Period], axis: Callable[[date], float], window: Window, colours: Palette) -> dict[str, Any]:
    """Years named in their middle; a short last one where it begins."""
    ticks, names = [], []
    for period in known:
        start, end = axis(date(period.first_year, 1, 1)), min(axis(date(period.last_year + 1, 1, 1)), window.right)
        ticks.append((start + end) / 2)
        joined = period.first_year != period.last_year
        names.append(f"{period.first_year}–{period.last_year % 100:02d}" if joined else period.name)
    return {
        "tickvals": ticks, "ticktext": names, "range": [window.left, window.right], "fixedrange": True,
        "showgrid": False, "tickangle": 0,
        "minor": {"tickvals": [axis(date(period.first_year, 1, 1)) for period in known[1:]], "showgrid": True,
                  "gridcolor": colours.grid},
    }  # fmt: skip


def _y_axis(measure: Measure, low: float, high: float, window: Window) -> dict[str, Any]:
    inside = [size for size in _SIZES if low / 1.5 <= size <= high * 1.2]
    values, names = inside, [format_bytes(size) for size in inside]
    if measure == "share":
        values = [8.0**-n for n in range(8) if 8.0**-n >= low]
        names = ["100%", *(f"1/{8**n:,}" for n in range(1, len(values)))]
    return {
        "type": "log", "range": [window.bottom, window.top], "tickvals": values, "ticktext": names, "fixedrange": True,
    }  # fmt: skip


def _describe(
    points: Sequence[TrendPoint], known: Sequence[Period], named: list[tuple[_Place, str]], measure: Measure
) -> str:
    """The chart in words, for those who cannot see it."""
    parts = []
    for period in known:
        counts = ", ".join(f"{count} {LOOKS[name][1]}" for name, count in period.classes)
        middle = _median(period, measure)
        parts.append(f"{period.name}: {counts}; median {'not known' if middle is None else _words(middle, measure)}")
    marked = "".join(
        f" {name}: {_words(value, measure) if (value := _value(place.point, measure)) else 'nothing for a token'},"
        f" {LOOKS[place.point.attention][1]}, {place.point.released:%B %Y}."
        for place, name in named
    )
    designs = sum(period.designs for period in known)
    return (
        f"{_TITLES[measure][0].upper()}{_TITLES[measure][1:]}, logarithmic, over the release dates of {len(points)} "
        f"models, {designs} designs. {'. '.join(parts)}.{marked}"
    )


def _words(value: float, measure: Measure) -> str:
    return percent(value) if measure == "share" else format_bytes(value)


# The plot without its axes and key, in pixels, on a phone and on a wide screen: what fits in both fits between, for a
# wider plot moves texts only further apart.
PLOTS = ((285, 420), (1210, 480))
_LETTER, _LETTER_STRONG, _LINE = 6.9, 7.4, 21
_LONGEST = 22
_SIDES = ("left", "right", "center")
_RISES = (0, -26, 26, -44, 44, -64, 64, -88, 88, -116, 116, -150, 150)
_PLACES = [(side, rise) for rise in _RISES for side in _SIDES if rise or side != "center"]
# What a place costs: leaving the plot, lying on another text, a leader across another, hiding one mark, a pixel of
# distance.
_OUTSIDE, _ON_TEXT, _ACROSS, _ON_MARK, _A_PIXEL = 200.0, 100.0, 5.0, 1.0, 0.04
_ALONG = (0.25, 0.45, 0.65, 0.85)
"""Where a leader counts as a mark that no other text should hide."""
_BESIDE = {"left": 12, "right": -12, "center": 0}
_TOO_BAD = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """A text for the point at `x` and `y` in axis units; one that is not `needed` is left out where it would disturb.

    `strong` is for the models that the reader chose.
    """

    x: float
    y: float
    text: str
    strong: bool = False
    needed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What a plot shows, in axis units; texts stay above `floor`."""

    left: float
    right: float
    bottom: float
    top: float
    floor: float

    def share(self, x: float, y: float) -> tuple[float, float]:
        """A point as shares of the plot's width, from the left, and of its height, from above."""
        return (x - self.left) / (self.right - self.left), (self.top - y) / (self.top - self.bottom)


def short(name: str) -> str:
    """A name that a phone has room for, cut at a space."""
    if len(name) <= _LONGEST:
        return name
    return f"{name[:_LONGEST].rsplit(' ', 1)[0]}…"


def arrange(
    labels: Sequence[Label], marks: Sequence[tuple[float, float]], window: Window, colours: Palette
) -> list[dict[str, Any]]:
    """Annotations for the labels, the first having the first choice of place; `marks` are points to leave in sight."""
    return [note for _, note in arranged(labels, marks, window, colours)]


def arranged(
    labels: Sequence[Label], marks: Sequence[tuple[float, float]], window: Window, colours: Palette
) -> list[tuple[np.ndarray, dict[str, Any]]]:
    """Each label that found a place: its box on each of PLOTS as (left, right, top, bottom) pixels, its annotation."""
    plots = np.array(PLOTS, dtype=float)
    spots = np.array([window.share(*mark) for mark in marks]).reshape(-1, 2) * plots[:, None, :]
    floors = window.share(window.left, window.floor)[1] * plots[:, 1]
    found: list[tuple[np.ndarray, dict[str, Any]]] = []
    leaders: list[tuple[np.ndarray, np.ndarray]] = []
    for label in labels:
        anchor = np.array(window.share(label.x, label.y)) * plots
        tails = anchor + np.array([(_BESIDE[side], rise) for side, rise in _PLACES], dtype=float)[:, None, :]
        boxes = _boxes(tails, len(short(label.text)) * (_LETTER_STRONG if label.strong else _LETTER) + 4)
        costs = _costs(boxes, [taken for taken, _ in found], spots, plots, floors)
        for other in leaders:
            costs = costs + _ACROSS * _cross(anchor, tails, *other).sum(axis=-1)
        best = int(np.argmin(costs))
        if label.needed or costs[best] < _TOO_BAD:
            leaders.append((anchor, tails[best]))
            along = [anchor + part * (tails[best] - anchor) for part in _ALONG]
            spots = np.concatenate([spots, np.stack(along, axis=1)], axis=1)
            found.append((boxes[best], _note(label, *_PLACES[best], colours)))
    return found


def _boxes(tails: np.ndarray, width: float) -> np.ndarray:
    """(place, plot, 4): where the text would be in every place, at the tail of its leader; y grows downwards."""
    start = np.array([{"left": 0.0, "right": -width, "center": -width / 2}[side] for side, _ in _PLACES])
    left, y = tails[..., 0] + start[:, None], tails[..., 1]
    return np.stack([left, left + width, y - _LINE / 2, y + _LINE / 2], axis=-1)


def _cross(a: np.ndarray, b: np.ndarray, c: np.ndarray, d: np.ndarray) -> np.ndarray:
    """Whether the lines from a to b and from c to d cross, on every plot: each has the other's ends on both sides."""

    def side(start: np.ndarray, end: np.ndarray, point: np.ndarray) -> np.ndarray:
        along, to = end - start, point - start
        return np.asarray(np.sign(along[..., 0] * to[..., 1] - along[..., 1] * to[..., 0]))

    return np.asarray((side(a, b, c) * side(a, b, d) < 0) & (side(c, d, a) * side(c, d, b) < 0))


def _costs(
    boxes: np.ndarray, taken: list[np.ndarray], spots: np.ndarray, plots: np.ndarray, floors: np.ndarray
) -> np.ndarray:
    """What every place costs, on both plots together."""
    left, right, upper, lower = (boxes[..., side] for side in range(4))
    outside = (left < -4) | (right > plots[:, 0] + 4) | (upper < 0) | (lower > floors)
    cost = _OUTSIDE * outside
    for other in taken:
        a, b, c, d = (other[:, side] for side in range(4))
        cost = cost + _ON_TEXT * ((left < b + 4) & (right > a - 4) & (upper < d + 1) & (lower > c - 1))
    x, y = spots[None, :, :, 0], spots[None, :, :, 1]
    hidden = (x > left[..., None] - 5) & (x < right[..., None] + 5)
    hidden &= (y > upper[..., None] - 3) & (y < lower[..., None] + 3)
    cost = cost + _ON_MARK * hidden.sum(axis=-1)
    total: np.ndarray = cost.sum(axis=-1) + _A_PIXEL * np.array([abs(rise) for _, rise in _PLACES])
    return total


def _note(label: Label, side: str, rise: int, colours: Palette) -> dict[str, Any]:
    ink = colours.ink if label.strong else colours.muted
    text = in_chart(short(label.text))
    return {
        "x": label.x, "y": label.y, "ax": _BESIDE[side], "ay": rise,
        "xanchor": side, "yanchor": "middle", "text": f"<b>{text}</b>" if label.strong else text,
        "showarrow": True, "arrowhead": 0, "arrowwidth": 1, "arrowcolor": ink if rise else "rgba(0,0,0,0)",
        "standoff": 10 if label.strong else 6, "borderpad": 1, "bgcolor": colours.background, "opacity": 0.92,
        "font": {"size": FONT_SIZE, "color": ink},
    }  # fmt: skip
