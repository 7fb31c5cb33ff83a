"""One lever over all its values: a curve where they have an order, bars where they have none."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvcore.terms import Range
from pages.ui.concurrency import words
from pages.ui.size.words import plural
from pages.ui.text import in_chart
from pages.ui.theme import FONT_SIZE, Chart, Palette, figure

_HEIGHT = 380
_LINE = 20
_LONGEST = 17
_WIDE = 8.2
# More names than these beside each other touch on a phone.
_MOST_TICKS = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A value that has an answer: its name and requests at once, low to high; `now` is the plan's own."""

    name: str
    most: Range[int]
    now: bool


def curve_chart(
    bars: Sequence[Bar], *, unit: str, counted: str, users: int | None, colours: Palette
) -> tuple[Chart, str]:
    """(figure, text alternative): a point a value, evenly apart, with the range as a band and the users as a line."""
    places = list(range(len(bars)))
    low, high = [one.most.low for one in bars], [one.most.high for one in bars]
    hover = [f"{in_chart(one.name)} {unit}: {words.span(one.most)}" for one in bars]
    bare: dict[str, Any] = {"type": "scatter", "mode": "lines", "x": places, "hoverinfo": "skip"}
    now = [at for at, one in enumerate(bars) if one.now]
    traces: list[dict[str, Any]] = [
        bare | {"y": low, "line": {"width": 0}},
        bare | {"y": high, "line": {"color": colours.parts["overhead"], "width": 1.5, "dash": "dot"}, "fill": "tonexty",
                "fillcolor": _soft(colours.parts["overhead"])},
        {"type": "scatter", "mode": "lines+markers", "x": places, "y": low, "text": hover,
         "line": {"color": colours.series[0], "width": 4}, "marker": {"size": 8, "color": colours.series[0]},
         "hovertemplate": "%{text}<extra></extra>"},
        {"type": "scatter", "mode": "markers", "x": now, "y": [low[at] for at in now], "hoverinfo": "skip",
         "marker": {"size": 16, "color": colours.background, "line": {"color": colours.ink, "width": 4}}},
    ]  # fmt: skip
    top = max(1, *high, users or 0) * 1.12
    # Its name stands at the end of the plot where the curve is farther from it.
    side = "right" if users is None or abs(low[-1] - users) > abs(low[0] - users) else "left"
    shapes, notes = ([], []) if users is None else _wanted(users, top, side, colours)
    step = max(1, math.ceil(len(bars) / _MOST_TICKS))
    ticks = places[(now[0] if now else 0) % step :: step]
    layout = {
        "shapes": shapes,
        "annotations": notes,
        "xaxis": {
            "tickvals": ticks, "ticktext": [in_chart(bars[at].name) for at in ticks], "tickangle": 0,
            "range": [-0.4, len(bars) - 0.6], "fixedrange": True, "showgrid": False,
            "title": {"text": unit, "font": {"size": FONT_SIZE}},
        },
        "yaxis": {
            "range": [0, top], "fixedrange": True, "tickformat": ",d", "nticks": 6,
            "title": {"text": "<br>".join(textwrap.wrap(counted, 34)), "font": {"size": FONT_SIZE}},
        },
    }  # fmt: skip
    return figure(traces, layout, colours, height=_HEIGHT), describe(bars, counted)


def bars_chart(bars: Sequence[Bar], *, counted: str, users: int | None, colours: Palette) -> tuple[Chart, str]:
    """(figure, text alternative): a bar a value, the range hatched at its end, its figures in the margin."""
    places = list(range(len(bars)))[::-1]
    names = ["<br>".join(in_chart(part) for part in words.wrapped(one.name, _LONGEST)) for one in bars]
    figures = [words.span(one.most) for one in bars]
    hover = [f"{in_chart(one.name)}: {said}" for one, said in zip(bars, figures, strict=True)]
    fill = colours.parts["overhead"]
    bare: dict[str, Any] = {
        "type": "bar", "orientation": "h", "y": places, "width": 0.6, "text": hover, "textposition": "none",
        "hovertemplate": "%{text}<extra></extra>",
    }  # fmt: skip
    traces = [
        bare | {"x": [one.most.low for one in bars],
                "marker": {"color": [colours.series[0] if one.now else colours.parts["free"] for one in bars],
                           "line": {"color": colours.series[0], "width": 1.5}}},
        bare | {"x": [one.most.high - one.most.low for one in bars],
                "marker": {"color": colours.background, "line": {"color": fill, "width": 1},
                           "pattern": {"shape": "/", "fgcolor": fill, "bgcolor": colours.background, "size": 7,
                                       "solidity": 0.3}}},
    ]  # fmt: skip
    notes = [
        {"text": f"<b>{said}</b>" if one.now else said, "x": 1, "xref": "paper", "xanchor": "left", "xshift": 6,
         "y": place, "yanchor": "middle", "showarrow": False, "borderpad": 0,
         "font": {"size": FONT_SIZE, "color": colours.ink}}
        for one, said, place in zip(bars, figures, places, strict=True)
    ]  # fmt: skip
    shapes = [] if users is None else [_line(colours, x0=users, x1=users, yref="paper", y0=0, y1=1)]
    layout = {
        "barmode": "stack",
        "annotations": notes,
        "shapes": shapes,
        "xaxis": {"range": [0, max(1, *(one.most.high for one in bars), users or 0) * 1.02], "fixedrange": True,
                  "tickformat": ",d", "nticks": 5, "title": {"text": counted, "font": {"size": FONT_SIZE}}},
        "yaxis": {"tickvals": places, "fixedrange": True, "showgrid": False, "range": [-0.6, len(bars) - 0.4],
                  "ticktext": [f"<b>{name}</b>" if one.now else name for one, name in zip(bars, names, strict=True)]},
        "margin": {"l": 8, "r": math.ceil(_WIDE * max(len(said) for said in figures)) + 12, "t": 4, "b": 8},
    }  # fmt: skip
    # The tallest name says how high a row is.
    row = max(2, *(name.count("<br>") + 1 for name in names)) * _LINE + 4
    return figure(traces, layout, colours, height=row * len(bars) + 70), describe(bars, counted)


def _line(colours: Palette, **place: Any) -> dict[str, Any]:
    return {"type": "line", "line": {"color": colours.ink, "width": 1.5, "dash": "dash"}, **place}


def _wanted(users: int, top: float, side: str, colours: Palette) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The line of those who are asked for, named inside the plot where there is room above or below it."""
    note = {
        "text": f"{plural(users, 'user')} asked for", "x": int(side == "right"), "xref": "paper", "xanchor": side,
        "y": users,
        "yanchor": "top" if users > 0.85 * top else "bottom", "showarrow": False, "borderpad": 3, "opacity": 0.92,
        "bgcolor": colours.background, "font": {"size": FONT_SIZE, "color": colours.ink},
    }  # fmt: skip
    return [_line(colours, xref="paper", x0=0, x1=1, y0=users, y1=users)], [note]


def _soft(colour: str) -> str:
    """The same colour, to be seen through."""
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.35)"


def describe(bars: Sequence[Bar], counted: str) -> str:
    """The chart in words."""
    said = [f"{one.name}{', as planned' if one.now else ''}: {words.to(one.most)}" for one in bars]
    return f"{counted[:1].upper()}{counted[1:]}, safe to hopeful end. {'; '.join(said)}."
