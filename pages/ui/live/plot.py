"""Charts of the Live screen as data, which can be drawn in two ways.

While a job runs its charts change four times a second: they are HTML, boxes that the browser moves without drawing
anything anew. (Streamlit gives a plotly chart a new identity whenever its figure changes, so that it would be built
again, and blink, at every token.) Text is text, places are shares of the plot, a line is a strip cut out of a box. When
nothing moves any more, plotly draws the same marks once, and its mode bar gives the chart as an SVG file.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from typing import Any, Protocol

from pages.ui.text import in_chart
from pages.ui.theme import FONT_SIZE, Chart, Palette, figure

PlotPoint = tuple[float, float]
# What a line's thickness is worked out for in HTML; on other widths steep lines are a little thinner or thicker.
_WIDTH_PX = 760
_NICE = (1, 2, 2.5, 5, 10)
_FINE = (1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)
MARKERS = ("dot", "square", "diamond", "ring")
_SYMBOLS = {"dot": "circle", "square": "square", "diamond": "diamond", "ring": "circle", "over": "triangle-up"}
_SIZES = {"diamond": 12, "over": 12}
_DASH = "9px 6px"
# What plotly's axis, and a legend of up to three lines on a phone, take above and below a plot, in pixels.
_AROUND_PX = 104
# Bars: their height, that of low ones, of a line of text above them, and the space between rows, in pixels.
_BAR_PX, _LOW_PX, _LINE_PX, _GAP_PX = 46, 26, 21, 12
_AXIS_PX = 34
# Above the bars' first line, for plotly's mode bar, which would cover the value in it.
_MODE_BAR_PX = 26
# Characters of a line above a bar that a phone has room for.
_LINE_LENGTH = 54
# A bar narrower than this share of all is drawn without a gap behind it: on a phone the gap would be all that is seen.
_THIN = 0.008


@dataclass(frozen=True, slots=True, kw_only=True)
class AreaFill:
    """How an area is filled: a colour, with stripes of another one; `edge` is the line above it."""

    colour: str
    stripe: str = ""
    edge: str = ""

    @property
    def css(self) -> str:
        if not self.stripe:
            return self.colour
        return f"repeating-linear-gradient(135deg,{self.stripe} 0 2px,{self.colour} 2px 8px)"

    @property
    def trace(self) -> dict[str, Any]:
        """The same for a trace of plotly, whose pattern is drawn in the place of its fill's colour."""
        if not self.stripe:
            return {"fillcolor": self.colour}
        stripes = {"shape": "/", "fgcolor": self.stripe, "bgcolor": self.colour, "size": 9, "solidity": 0.25}
        return {"fillcolor": self.colour, "fillpattern": stripes}


def soft(colour: str, share: int, colours: Palette) -> str:
    """That much percent of a colour on the background."""
    return _mixed(colour, colours.background, share / 100)


def text_colour(colour: str, colours: Palette) -> str:
    """A colour moved towards the ink until text in it can be read (4.5:1)."""
    return _mixed(colour, colours.ink, 0.72)


def hatched(colour: str, colours: Palette) -> AreaFill:
    """A fill for what is reserved and not yet used."""
    return AreaFill(colour=soft(colour, 12, colours), stripe=soft(colour, 34, colours), edge=colour)


def _mixed(one: str, other: str, share: float) -> str:
    pairs = ((int(one[at : at + 2], 16), int(other[at : at + 2], 16)) for at in (1, 3, 5))
    return "#" + "".join(f"{round(share * first + (1 - share) * second):02X}" for first, second in pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """An axis from `low` to `high` with what is written at it."""

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    logarithmic: bool = False

    def at(self, value: float) -> float:
        """Where a value stands, in percent from the low end; what lies beyond an end stands at it."""
        if self.logarithmic:
            low, high = math.log(self.low), math.log(self.high)
            place = (math.log(max(value, self.low)) - low) / ((high - low) or 1)
        else:
            place = (value - self.low) / ((self.high - self.low) or 1)
        return 100 * min(1.0, max(0.0, place))

    def coordinate(self, value: float) -> float:
        """A value as plotly's annotations and ranges want it: on a logarithmic axis, its power of ten."""
        return math.log10(value) if self.logarithmic else value

    @property
    def axis(self) -> dict[str, Any]:
        """The same as an axis of plotly."""
        return {
            "type": "log" if self.logarithmic else "linear",
            "range": [self.coordinate(self.low), self.coordinate(self.high)],
            "tickvals": [value for value, _ in self.ticks],
            "ticktext": [text for _, text in self.ticks],
            "tickangle": 0,
            "fixedrange": True,
        }


def nice_above(value: float, among: Sequence[float] = _NICE) -> float:
    """The least of 1, 2, 2.5, 5, 10 (or `among`) times a power of ten that is not below the value."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next((step * power for step in among if step * power >= value * (1 - 1e-9)), 10 * power)


def span_above(value: float) -> float:
    """The same in finer steps: how far an axis reaches that must not change at every moment."""
    return nice_above(value, _FINE)


def steps(high: float, most: int = 5) -> list[float]:
    """Round values from 0 to at most `high`, not more than `most` above 0."""
    step = nice_above(high / most)
    return [step * at for at in range(int(high / step + 1e-9) + 1)]


@dataclass(slots=True)
class Drawing:
    """What plotly is given of a chart."""

    traces: list[dict[str, Any]] = field(default_factory=list)
    annotations: list[dict[str, Any]] = field(default_factory=list)
    shapes: list[dict[str, Any]] = field(default_factory=list)


class Mark(Protocol):
    """Something in a plot, at values of its axes: as HTML, and for plotly."""

    def html(self, plot: Plot) -> str: ...

    def draw(self, plot: Plot, drawing: Drawing) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LineMark:
    """A line through points in the order of their x."""

    points: Sequence[PlotPoint]
    colour: str
    width: float = 2.5
    dashed: bool = False

    def html(self, plot: Plot) -> str:
        placed = plot.placed(self.points)
        if len(placed) < 2:
            return ""
        slopes = [self._slope(one, two, plot.height) for one, two in pairwise(placed)]
        around = [max(pair) for pair in zip([slopes[0], *slopes], [*slopes, slopes[-1]], strict=True)]
        halves = [self.width / 2 * math.sqrt(1 + min(slope, 6) ** 2) for slope in around]
        above = [f"{px:.2f}% calc({py:.2f}% - {half:.1f}px)" for (px, py), half in zip(placed, halves, strict=True)]
        below = [f"{px:.2f}% calc({py:.2f}% + {half:.1f}px)" for (px, py), half in zip(placed, halves, strict=True)]
        dashes = f"repeating-linear-gradient(90deg,{self.colour} 0 9px,transparent 9px 15px)"
        fill = dashes if self.dashed else self.colour
        return f"<div style='background:{fill};clip-path:polygon({','.join(above + below[::-1])})'></div>"

    @staticmethod
    def _slope(one: PlotPoint, two: PlotPoint, height: int) -> float:
        across = abs(two[0] - one[0]) * _WIDTH_PX
        return abs(two[1] - one[1]) * height / across if across else 6.0

    def draw(self, plot: Plot, drawing: Drawing) -> None:
        stroke = {"color": self.colour, "width": self.width, "dash": _DASH if self.dashed else "solid"}
        drawing.traces.append({**_scatter(self.points), "mode": "lines", "hoverinfo": "skip", "line": stroke})


@dataclass(frozen=True, slots=True, kw_only=True)
class AreaMark:
    """What lies below the points."""

    points: Sequence[PlotPoint]
    fill: AreaFill

    def html(self, plot: Plot) -> str:
        placed = plot.placed(self.points)
        if len(placed) < 2:
            return ""
        around = [*placed, (placed[-1][0], 100.0), (placed[0][0], 100.0)]
        corners = ",".join(f"{px:.2f}% {py:.2f}%" for px, py in around)
        return f"<div style='background:{self.fill.css};clip-path:polygon({corners})'></div>"

    def draw(self, plot: Plot, drawing: Drawing) -> None:
        below = {"mode": "lines", "line": {"width": 0}, "fill": "tozeroy", "hoverinfo": "skip"}
        drawing.traces.append({**_scatter(self.points), **below, **self.fill.trace})


@dataclass(frozen=True, slots=True, kw_only=True)
class DotsMark:
    """Marks at (x, y), with what is said on hovering; those beyond the top stand at it as arrows."""

    points: Sequence[tuple[float, float, str]]
    colour: str
    marker: str = "dot"

    def html(self, plot: Plot) -> str:
        parts = []
        for points, marker in self._groups(plot):
            boxes = "".join(
                f"<i style='left:{plot.x.at(x):.2f}%;top:{100 - plot.y.at(y):.2f}%' title='{escape(said)}'></i>"
                for x, y, said in points
            )
            parts.append(f"<div class='d {marker}' style='color:{self.colour}'>{boxes}</div>")
        return "".join(parts)

    def draw(self, plot: Plot, drawing: Drawing) -> None:
        for points, marker in self._groups(plot):
            places = [(x, min(y, plot.y.high)) for x, y, _ in points]
            drawing.traces.append(
                {**_scatter(places), "mode": "markers", "marker": _marker(marker, self.colour, plot.colours),
                 "cliponaxis": False, "text": [in_chart(said) for _, _, said in points],
                 "hovertemplate": "%{text}<extra></extra>"}
            )  # fmt: skip

    def _groups(self, plot: Plot) -> list[tuple[list[tuple[float, float, str]], str]]:
        inside = [one for one in self.points if one[1] <= plot.y.high]
        beyond = [one for one in self.points if one[1] > plot.y.high]
        return [(points, marker) for points, marker in ((inside, self.marker), (beyond, "over")) if points]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpreadsMark:
    """Thin uprights at each x from a low to a high value; one that reaches beyond the top has no end there."""

    ranges: Sequence[tuple[float, float, float]]
    colour: str

    def html(self, plot: Plot) -> str:
        boxes = []
        for x, low, high in self.ranges:
            top, bottom = 100 - plot.y.at(high), 100 - plot.y.at(low)
            kind = "open" if high > plot.y.high else ""
            place = f"left:{plot.x.at(x):.2f}%;top:{top:.2f}%;height:{bottom - top:.2f}%"
            boxes.append(f"<i class='{kind}' style='{place}'></i>")
        return f"<div class='w' style='color:{self.colour}'>{''.join(boxes)}</div>" if boxes else ""

    def draw(self, plot: Plot, drawing: Drawing) -> None:
        if not self.ranges:
            return
        up = {"type": "data", "symmetric": False, "array": [high - low for _, low, high in self.ranges],
              "arrayminus": [0] * len(self.ranges), "color": self.colour, "thickness": 2, "width": 4.5}  # fmt: skip
        feet = _scatter([(x, low) for x, low, _ in self.ranges])
        invisible = {"mode": "markers", "marker": {"size": 1, "color": self.colour}, "hoverinfo": "skip"}
        drawing.traces.append({**feet, **invisible, "error_y": up, "opacity": 0.6})


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteMark:
    """A text beside a place: to its `right` or `left`, and in height at its `middle`, above its `bottom`, below its
    `top`. `wide`: only where there is room, not on a phone.
    """

    x: float
    y: float
    text: str
    colour: str
    side: str = "right"
    stands: str = "middle"
    wide: bool = False

    def html(self, plot: Plot) -> str:
        left, top = plot.x.at(self.x), 100 - plot.y.at(self.y)
        lift = {"middle": "-50%", "bottom": "-125%", "top": "0%"}[self.stands]
        beside = f"left:{left:.2f}%;margin-left:8px"
        place = beside if self.side == "right" else f"right:{100 - left:.2f}%;margin-right:8px"
        return (
            f"<span class='n{' wide' if self.wide else ''}' style='{place};top:{top:.2f}%;"
            f"transform:translateY({lift});color:{text_colour(self.colour, plot.colours)}'>{escape(self.text)}</span>"
        )

    def draw(self, plot: Plot, drawing: Drawing) -> None:
        around = f"0 0 3px {plot.colours.background}"
        font = {"size": FONT_SIZE, "color": text_colour(self.colour, plot.colours), "weight": 600,
                "shadow": ", ".join([around] * 4)}  # fmt: skip
        y = min(max(self.y, plot.y.low), plot.y.high)
        if self.wide:
            # The page's style, which leaves these out on a phone, finds the text of a trace, but not an annotation.
            # Text keeps away from a marker, also from one that is not seen.
            drawing.traces.append(
                {**_scatter([(self.x, y)]), "mode": "markers+text", "text": [in_chart(self.text)], "hoverinfo": "skip",
                 "textposition": "middle right", "textfont": font, "cliponaxis": False,
                 "marker": {"size": 12, "color": self.colour, "opacity": 0}}
            )  # fmt: skip
            return
        right = self.side == "right"
        drawing.annotations.append(
            {"text": in_chart(self.text), "x": plot.x.coordinate(self.x), "y": plot.y.coordinate(y), "font": font,
             "xanchor": "left" if right else "right", "xshift": 8 if right else -8, "yanchor": self.stands,
             "yshift": 4 if self.stands == "bottom" else 0, "showarrow": False, "borderpad": 0}
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class StopMark:
    """A dashed upright where something was cut off, with the reason."""

    x: float
    text: str

    def _note(self, plot: Plot) -> NoteMark:
        side = "right" if plot.x.at(self.x) < 55 else "left"
        return NoteMark(x=self.x, y=plot.y.high, text=self.text, colour=plot.colours.muted, side=side, stands="top")

    def html(self, plot: Plot) -> str:
        line = f"border-left:2px dashed {plot.colours.muted};inset-block:0"
        return f"<div style='left:{plot.x.at(self.x):.2f}%;right:auto;{line}'></div>{self._note(plot).html(plot)}"

    def draw(self, plot: Plot, drawing: Drawing) -> None:
        stroke = {"color": plot.colours.muted, "width": 2, "dash": _DASH}
        drawing.shapes.append(
            {"type": "line", "x0": self.x, "x1": self.x, "y0": 0, "y1": 1, "yref": "paper", "line": stroke}
        )
        self._note(plot).draw(plot, drawing)


def _scatter(points: Sequence[PlotPoint]) -> dict[str, Any]:
    return {"type": "scatter", "showlegend": False, "x": [x for x, _ in points], "y": [y for _, y in points]}


def _marker(marker: str, colour: str, colours: Palette) -> dict[str, Any]:
    is_ring = marker == "ring"
    return {
        "symbol": _SYMBOLS[marker], "size": _SIZES.get(marker, 9), "opacity": 1,
        "color": colours.background if is_ring else colour, "line": {"color": colour, "width": 2.5 if is_ring else 0},
    }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LegendEntry:
    """A line of the legend: a marker, a line (with a marker on it, or dashed), or an area, and its text."""

    text: str
    colour: str = ""
    marker: str = ""
    line: bool = False
    fill: AreaFill | None = None

    @property
    def html(self) -> str:
        if self.fill is not None:
            edge = self.fill.edge or self.fill.colour
            sample = f"<i class='area' style='background:{self.fill.css};border-color:{edge}'></i>"
        else:
            kind = f"m {'line ' if self.line else ''}{self.marker}" if self.marker else "dash"
            sample = f"<i class='{kind}' style='color:{self.colour}'></i>"
        return f"<span>{sample}{escape(self.text)}</span>"

    def trace(self, colours: Palette) -> dict[str, Any]:
        """A trace without points, which plotly puts into its legend."""
        empty = {"type": "scatter", "x": [None], "y": [None], "name": in_chart(self.text), "showlegend": True}
        if self.fill is not None:
            edge = {"color": self.fill.edge or self.fill.colour, "width": 2}
            return {**empty, "mode": "lines", "fill": "tozeroy", "line": edge, **self.fill.trace}
        if not self.marker:
            return {**empty, "mode": "lines", "line": {"color": self.colour, "width": 2, "dash": _DASH}}
        mode = "lines+markers" if self.line else "markers"
        line = {"color": self.colour, "width": 3}
        return {**empty, "mode": mode, "line": line, "marker": _marker(self.marker, self.colour, colours)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A chart with two axes: its marks are laid over each other in their order; `alt` says it in words.

    `height` is that of the plot between its axes, in pixels.
    """

    x: Scale
    y: Scale
    x_title: str
    marks: Sequence[Mark]
    legend: Sequence[LegendEntry]
    alt: str
    colours: Palette
    height: int = 300

    def placed(self, points: Sequence[PlotPoint]) -> list[PlotPoint]:
        """Where points stand, in percent from the left and from the top."""
        return [(self.x.at(px), 100 - self.y.at(py)) for px, py in points]

    @property
    def html(self) -> str:
        """The legend, and the chart with its axes and its text alternative."""
        shown = [(self.y.at(value), text) for value, text in self.y.ticks if self.y.low <= value <= self.y.high]
        widest = max((text for _, text in shown), key=len, default="")
        ys = "".join(f"<b style='bottom:{place:.2f}%'>{escape(text)}</b>" for place, text in shown)
        rules = "".join(f"<hr style='bottom:{place:.2f}%'>" for place, _ in shown if place > 0)
        xs = "".join(
            f"<b class='{_end_of(self.x.at(value))} {'odd' if at % 2 else ''}' style='left:{self.x.at(value):.2f}%'>"
            f"{escape(text)}</b>"
            for at, (value, text) in enumerate(self.x.ticks)
        )
        tints = f"--m:{self.colours.muted};--g:{self.colours.grid};--k:{self.colours.background}"
        marks = "".join(mark.html(self) for mark in self.marks)
        return (
            f"<div class='kv-legend' style='{tints}'>{''.join(one.html for one in self.legend)}</div>"
            f"<div class='kv-plot' role='img' aria-label='{escape(self.alt)}' style='{tints}'>"
            f"<div class='y'><u>{escape(widest)}</u>{ys}</div>"
            f"<div class='p' style='height:{self.height}px'>{rules}{marks}</div>"
            f"<div class='x'>{xs}</div><div class='t'>{escape(self.x_title)}</div></div>"
        )

    def figure(self) -> Chart:
        """The same for plotly."""
        drawing = Drawing()
        for mark in self.marks:
            mark.draw(self, drawing)
        title = {"text": in_chart(self.x_title), "font": {"size": FONT_SIZE, "color": self.colours.muted}}
        layout = {
            "xaxis": {**self.x.axis, "showgrid": False, "showline": True, "title": title},
            "yaxis": {**self.y.axis, "showline": False},
            "annotations": drawing.annotations,
            "shapes": drawing.shapes,
            "hovermode": "closest",
            "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
            "showlegend": True,
            "legend": {"orientation": "h", "x": 0, "xanchor": "left", "y": 1, "yanchor": "bottom", "itemclick": False,
                       "itemdoubleclick": False, "font": {"size": FONT_SIZE, "color": self.colours.ink}},
        }  # fmt: skip
        traces = [*drawing.traces, *(one.trace(self.colours) for one in self.legend)]
        more = _LINE_PX * max(0, len(self.legend) - 3)
        return figure(traces, layout, self.colours, height=self.height + _AROUND_PX + more)


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A stretch of a bar in seconds; `first`: the one that the others follow, which has room for a text `inside`."""

    start: float
    seconds: float
    fill: str
    said: str
    first: bool = False
    odd: bool = False
    inside: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BarRow:
    """A bar: its name in its colour, what is said of it, its value, and what it consists of."""

    name: str
    colour: str
    told: str
    value: str
    segments: Sequence[Segment]


@dataclass(frozen=True, slots=True, kw_only=True)
class BarChart:
    """Bars below each other on one scale from 0 to `span` seconds, each with its text above it; `low`: lower bars."""

    rows: Sequence[BarRow]
    span: float
    alt: str
    colours: Palette
    low: bool = False

    @property
    def html(self) -> str:
        """The chart, with its text alternative."""
        colours = self.colours
        ends = "".join(
            f"<span class='{_end_of(100 * at / self.span)}' style='left:{100 * at / self.span:.2f}%'>"
            f"{escape(text)}</span>"
            for at, text in self._ticks()
        )
        tints = f"--m:{colours.muted};--k:{colours.background};--s:{soft(colours.muted, 9, colours)}"
        return (
            f"<div class='kv-lanes{' low' if self.low else ''}' role='img' aria-label='{escape(self.alt)}' "
            f"style='{tints}'>{''.join(map(self._row_html, self.rows))}<div class='ends'>{ends}</div></div>"
        )

    def _ticks(self) -> list[tuple[float, str]]:
        unit = (lambda at: f"{1000 * at:,.0f} ms") if self.span < 1 else (lambda at: f"{at:g} s")
        return [(at, unit(at)) for at in steps(self.span, 5)]

    def _is_thin(self, segment: Segment) -> bool:
        return not segment.first and segment.seconds < _THIN * self.span

    def _row_html(self, row: BarRow) -> str:
        boxes = "".join(
            f"<i class='{' '.join(self._classes(one))}' style='left:{100 * one.start / self.span:.3f}%;"
            f"width:{100 * one.seconds / self.span:.3f}%;background:{one.fill}' title='{escape(one.said)}'>"
            f"{escape(one.inside)}</i>"
            for one in row.segments
        )
        return (
            f"<p><span><b style='color:{text_colour(row.colour, self.colours)}'>{escape(row.name)}</b> · "
            f"{escape(row.told)}</span><b>{escape(row.value)}</b></p><div class='lane'>{boxes}</div>"
        )

    def _classes(self, segment: Segment) -> list[str]:
        known = {"pre": segment.first, "odd": segment.odd, "thin": self._is_thin(segment)}
        return [name for name, holds in known.items() if holds]

    def figure(self) -> Chart:
        """The same for plotly: its upright axis counts pixels from the top, so that texts and bars stand exactly."""
        high, colours = _LOW_PX if self.low else _BAR_PX, self.colours
        traces, notes, tracks = [], [], []
        y = 0.0
        for row in self.rows:
            lines = textwrap.wrap(row.told, _LINE_LENGTH)
            name = f"<b>{in_chart(row.name)}</b>"
            name = f"<span style='color:{text_colour(row.colour, colours)}'>{name}</span>"
            text = "<br>".join([name, *map(in_chart, lines)])
            above = {"y": y, "xref": "paper", "yanchor": "top", "showarrow": False, "borderpad": 0,
                     "font": {"size": FONT_SIZE, "color": colours.ink}}  # fmt: skip
            notes.append({**above, "text": text, "x": 0, "xanchor": "left", "align": "left"})
            notes.append({**above, "text": f"<b>{in_chart(row.value)}</b>", "x": 1, "xanchor": "right"})
            y += _LINE_PX * (1 + len(lines))
            tracks.append(
                {"type": "rect", "xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y + high, "layer": "below",
                 "line": {"width": 0}, "fillcolor": soft(colours.muted, 9, colours)}
            )  # fmt: skip
            traces.append(self._row_trace(row, y + high / 2, high))
            y += high + _GAP_PX
        # Plotly leaves out a tick's text that reaches beyond the chart: those at its ends are texts of their own.
        inner = [(at, text) for at, text in self._ticks() if not _end_of(100 * at / self.span)]
        for at, text in self._ticks():
            if end := _end_of(100 * at / self.span):
                font = {"size": FONT_SIZE, "color": colours.muted}
                side = {"xanchor": "left" if end == "first" else "right", "yanchor": "top"}
                below = {"x": at, "y": 0, "yref": "paper", "showarrow": False, "borderpad": 0, "font": font}
                notes.append({**below, **side, "text": text})
        layout = {
            "annotations": notes, "shapes": tracks, "hovermode": "closest", "barmode": "overlay", "bargap": 0,
            "uniformtext": {"mode": "hide", "minsize": FONT_SIZE - 1},
            "margin": {"l": 1, "r": 1, "t": _MODE_BAR_PX, "b": _AXIS_PX},
            "xaxis": {
                "range": [0, self.span], "tickvals": [at for at, _ in inner], "fixedrange": True,
                "ticktext": [text for _, text in inner], "showgrid": False, "showline": False, "tickangle": 0,
                "tickfont": {"size": FONT_SIZE, "color": colours.muted},
            },
            "yaxis": {"range": [y, 0], "visible": False, "fixedrange": True},
        }  # fmt: skip
        return figure(traces, layout, colours, height=round(y) + _AXIS_PX + _MODE_BAR_PX)

    def _row_trace(self, row: BarRow, middle: float, high: int) -> dict[str, Any]:
        segments = row.segments
        fills = [soft(one.fill, 72, self.colours) if one.odd else one.fill for one in segments]
        gaps = [0 if self._is_thin(one) else 1 for one in segments]
        return {
            "type": "bar", "orientation": "h", "base": [one.start for one in segments],
            "x": [one.seconds for one in segments], "y": [middle] * len(segments), "width": high,
            "marker": {"color": fills, "line": {"color": self.colours.background, "width": gaps}},
            "text": [in_chart(one.inside) for one in segments], "textposition": "inside", "textangle": 0,
            "insidetextanchor": "middle",
            "insidetextfont": {"size": FONT_SIZE, "color": self.colours.background, "weight": 600},
            "hovertext": [in_chart(one.said) for one in segments], "hovertemplate": "%{hovertext}<extra></extra>",
            "showlegend": False,
        }  # fmt: skip


def _end_of(place: float) -> str:
    """How a text at that percentage stands, so that it does not reach beyond the chart."""
    return "first" if place < 1 else "last" if place > 99 else ""
