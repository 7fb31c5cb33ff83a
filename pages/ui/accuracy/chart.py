"""The chart of the Accuracy screen: predicted against reported, both axes logarithmic, one mark a case."""

from __future__ import annotations

import math
from typing import Any

import plotly.graph_objects as go

from kvcore.evidence.cases import Case
from pages.ui.accuracy import words
from pages.ui.text import in_chart
from pages.ui.theme import FONT_SIZE, Palette, figure

# Engine: (place in the palette, mark). Ports of vLLM plan with vLLM's code and look like it.
_LOOKS = {
    "vllm": (0, "circle"), "llama.cpp": (1, "triangle-up"), "sglang": (2, "diamond"), "tensorrt-llm": (3, "square"),
    "ik_llama.cpp": (4, "triangle-down"), "ollama": (5, "pentagon"),
}  # fmt: skip
_TICKS = {10**0: "1", 10**3: "1 thousand", 10**6: "1 million", 10**9: "1 billion", 10**12: "1 trillion"}
NAMED = 4


def scatter(rows: list[Case], worst: list[Case], colours: Palette) -> tuple[go.Figure, str] | None:
    """(figure, text alternative) of the rows that have both figures; `worst` are named on it. None: nothing to draw."""
    drawn = [row for row in rows if row.reported and row.predicted]
    if not drawn:
        return None
    low, high = _range(drawn)
    traces = [_identity(low, high, colours), *_engines(drawn, colours)]
    grey = [row for row in drawn if not row.counted]
    if grey:
        traces.append(_trace("not counted", grey, {"color": colours.muted, "symbol": "x-thin", "size": 9,
                                                   "line": {"width": 2, "color": colours.muted}}))  # fmt: skip
    named = [row for row in worst if row in drawn][:NAMED]
    notes = [_number(row, place, colours) for place, row in enumerate(named, 1)]
    notes += [_key(named, colours)] if named else []
    ticks = [value for value in _TICKS if low + 0.3 < math.log10(value) < high - 0.3]
    axis: dict[str, Any] = {
        "type": "log", "range": [low, high], "tickvals": ticks, "ticktext": [_TICKS[value] for value in ticks],
        "fixedrange": True,
    }  # fmt: skip
    layout = {
        "annotations": notes,
        "showlegend": True,
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "font": {"size": FONT_SIZE},
                   "itemclick": False, "itemdoubleclick": False},
        "xaxis": {**axis, "title": {"text": "reported by the engine", "font": {"size": FONT_SIZE}}},
        "yaxis": {**axis, "title": {"text": "predicted by us", "font": {"size": FONT_SIZE}}, "tickangle": -90},
    }  # fmt: skip
    return figure(traces, layout, colours, height=540), _describe(drawn, named)


def base(engine: str) -> str:
    """The engine whose rules and look a port shares."""
    return "vllm" if engine.startswith("vllm") else engine


def _range(rows: list[Case]) -> tuple[float, float]:
    values = [words.plain(number, row.unit) for row in rows for number in (row.reported, row.predicted) if number]
    return math.log10(min(values)) - 0.4, math.log10(max(values)) + 0.4


def _identity(low: float, high: float, colours: Palette) -> dict[str, Any]:
    ends = [10**low, 10**high]
    return {
        "type": "scatter", "mode": "lines", "x": ends, "y": ends, "name": "predicted = reported", "hoverinfo": "skip",
        "line": {"color": colours.muted, "width": 1.5},
    }  # fmt: skip


def _engines(rows: list[Case], colours: Palette) -> list[dict[str, Any]]:
    traces = []
    for name, (place, symbol) in _LOOKS.items():
        mine = [row for row in rows if row.counted and base(row.engine) == name]
        if not mine:
            continue
        marks = [f"{symbol}-open" if words.is_bytes(row.unit) else symbol for row in mine]
        colour = colours.series[place]
        traces.append(
            _trace(words.engine(name), mine, {"color": colour, "symbol": marks, "size": 9, "opacity": 0.85,
                                              "line": {"width": 1.5, "color": colour}})
        )  # fmt: skip
    return traces


def _trace(name: str, rows: list[Case], marker: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": [words.plain(row.reported or 0, row.unit) for row in rows],
        "y": [words.plain(row.predicted or 0, row.unit) for row in rows],
        "marker": marker,
        "customdata": [_hover(row) for row in rows],
        "hovertemplate": "%{customdata}<extra></extra>",
    }


def _hover(row: Case) -> str:
    version = f" {row.engine_version}" if row.engine_version else ""
    rounding = " (within the rounding)" if row.difference and not row.error else ""
    far = "" if row.difference is None else f"<br>difference {words.percent(row.difference)}{rounding}"
    what = f"{words.engine(row.engine)}{version}: {row.compared}"
    return (
        f"<b>{in_chart(words.short(row.model))}</b><br>{in_chart(what)}"
        f"<br>reported {words.in_units(row.reported, row.unit)}"
        f"<br>predicted {words.in_units(row.predicted, row.unit)}{far}"
    ).replace("{", "(")


def _number(row: Case, place: int, colours: Palette) -> dict[str, Any]:
    """The number of a case that is off, beside its mark: by turns below and above, so that neighbours do not touch."""
    side = 1 if place % 2 else -1
    return {
        "x": math.log10(words.plain(row.reported or 1, row.unit)),
        "y": math.log10(words.plain(row.predicted or 1, row.unit)),
        "text": f"<b>{place}</b>", "showarrow": True, "arrowhead": 0, "arrowwidth": 1, "arrowcolor": colours.ink,
        "standoff": 5, "ax": side * 22, "ay": side * 22, "borderpad": 1,
        "font": {"size": FONT_SIZE, "color": colours.ink},
    }  # fmt: skip


def _key(named: list[Case], colours: Palette) -> dict[str, Any]:
    """The names to the numbers, in the corner below the line, where nothing is drawn."""
    lines = [
        f"<b>{place}</b> {in_chart(words.short(row.model)[:28])} {words.percent(row.difference or 0)}"
        for place, row in enumerate(named, 1)
    ]
    return {
        "xref": "paper", "yref": "paper", "x": 1, "y": 0.015, "xanchor": "right", "yanchor": "bottom", "align": "right",
        "text": "<br>".join(lines), "showarrow": False, "font": {"size": FONT_SIZE - 1, "color": colours.ink},
    }  # fmt: skip


def _describe(rows: list[Case], named: list[Case]) -> str:
    """The chart in words, for those who cannot see it."""
    counts: dict[str, int] = {}
    for row in rows:
        name = words.engine(base(row.engine)) if row.counted else "not counted"
        counts[name] = counts.get(name, 0) + 1
    listed = ", ".join(f"{name} {count}" for name, count in counts.items())
    met = sum(row.within(0.005) for row in rows)
    far = "; ".join(f"{words.short(row.model)} {words.percent(row.difference or 0)}" for row in named)
    return (
        f"Predicted against reported figures of {len(rows)} cases, both axes logarithmic ({listed}). {met} lie within "
        f"0.5% of the line where both are equal." + (f" Furthest from it: {far}." if far else "")
    )
