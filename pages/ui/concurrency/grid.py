"""Users × context as a heat map: what fits, what fits only within the range, what does not, and where the plan stands.

Both axes are powers of two, drawn on a linear axis of exponents so that every cell has the same size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from kvcore.planning.sweep import Grid
from kvcore.units import format_tokens
from pages.ui.concurrency import words
from pages.ui.size.words import plural
from pages.ui.text import in_chart
from pages.ui.theme import FONT_SIZE, Chart, Palette, figure

_FIRST = 1024
_WITHOUT_LIMIT = 2**18
_STEPS = 4
_MAX_COLUMNS = 44
_HEIGHT = 500


def contexts(tokens: int, limit: int | None) -> tuple[int, ...]:
    """Columns: four a doubling (fewer where there are many), from 1K or below the plan's, to the model's limit."""
    last = max(limit or _WITHOUT_LIMIT, min(tokens, 2 * (limit or _WITHOUT_LIMIT)), 4)
    low = max(0, math.floor(math.log2(max(1, min(_FIRST, tokens // 2, last // 4)))))
    high = math.ceil(math.log2(last))
    steps = max(1, min(_STEPS, _MAX_COLUMNS // max(1, high - low)))
    found = {round(2 ** (low + at / steps)) for at in range((high - low) * steps + 1)}
    return tuple(sorted({min(one, last) for one in found} | {last}))


def users(wanted: int, most: int) -> tuple[int, ...]:
    """Rows: four a doubling from one to beyond the most that ever fits and to beyond those wanted."""
    top = max(8, min(10**6, max(2 * wanted, math.ceil(1.6 * most))))
    high = math.ceil(math.log2(top))
    steps = max(1, min(_STEPS, _MAX_COLUMNS // high))
    return tuple(sorted({round(2 ** (at / steps)) for at in range(high * steps + 1)}))


def edges(values: Sequence[int]) -> list[float]:
    """Exponents of the borders of the cells: midway between neighbours, half a step beyond both ends."""
    logs = [math.log2(value) for value in values]
    if len(logs) == 1:
        return [logs[0] - 0.5, logs[0] + 0.5]
    middle = [(one + other) / 2 for one, other in pairwise(logs)]
    return [2 * logs[0] - middle[0], *middle, 2 * logs[-1] - middle[-1]]


def grid_chart(
    found: Grid, *, tokens: int, wanted: int, limit: int | None, sequences: int | None, colours: Palette
) -> tuple[Chart, str]:
    """(figure, text alternative). `sequences` is the most requests that the engine runs at once, all replicas."""
    xs, ys = edges(found.contexts), edges(found.users)
    fits = np.asarray(found.fits)
    low = np.array([ends.low for ends in found.most], dtype=float)
    counts = np.array(found.users, dtype=float)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        full = np.where(fits == 2, counts / low[None, :], np.nan)
    traces: list[dict[str, Any]] = [
        _heat(xs, ys, full, [[0, colours.parts["free"]], [1, colours.parts["used"]]]),
        *_edge(xs, ys, found, colours),
        _cells(found, fits, low),
        _here(tokens, wanted, colours),
    ]
    shapes, notes = _limits(xs, ys, limit, sequences, colours)
    notes += _words(xs, ys, fits, colours)
    ticks = [2**n for n in range(31) if xs[0] <= n <= xs[-1]]
    ticks = ticks if len(ticks) <= 9 else ticks[len(ticks) % 2 :: 2]
    rows = [2**n for n in range(31) if ys[0] <= n <= ys[-1]]
    rows = rows if len(rows) <= 12 else rows[::2]
    layout = {
        "shapes": shapes,
        "annotations": notes,
        "hovermode": "closest",
        "xaxis": {
            "tickvals": [math.log2(one) for one in ticks], "ticktext": [format_tokens(one) for one in ticks],
            "range": [xs[0], xs[-1]], "fixedrange": True, "showgrid": False,
            "title": {"text": "longest request, tokens", "font": {"size": FONT_SIZE}},
        },
        "yaxis": {
            "tickvals": [math.log2(one) for one in rows], "ticktext": [f"{one:,}" for one in rows],
            "range": [ys[0], ys[-1]], "fixedrange": True, "showgrid": False,
            "title": {"text": "requests at once", "font": {"size": FONT_SIZE}},
        },
        "plot_bgcolor": colours.parts["system"],
    }  # fmt: skip
    return figure(traces, layout, colours, height=_HEIGHT), _describe(found, tokens, wanted, limit, sequences)


def _heat(xs: list[float], ys: list[float], z: np.ndarray, scale: list[list[Any]]) -> dict[str, Any]:
    rows = [[None if math.isnan(value) else round(float(value), 3) for value in row] for row in z]
    return {"type": "heatmap", "x": xs, "y": ys, "z": rows, "zmin": 0, "zmax": 1, "colorscale": scale,
            "showscale": False, "hoverinfo": "skip", "xgap": 1, "ygap": 1}  # fmt: skip


def _edge(xs: list[float], ys: list[float], found: Grid, colours: Palette) -> list[dict[str, Any]]:
    """What fits at the safe end (thick) and at the hopeful one (dotted), exactly and not by cells, and the band.

    A cell stands for its middle, so that its colour alone would hide a range that is narrower than a cell.
    """
    across = [xs[0], *(math.log2(one) for one in found.contexts), xs[-1]]

    def line(counts: list[int]) -> list[float]:
        up = [min(ys[-1], max(ys[0], math.log2(max(1, count)) if count else ys[0])) for count in counts]
        return [up[0], *up, up[-1]]

    low, high = line([ends.low for ends in found.most]), line([ends.high for ends in found.most])
    plain = {"type": "scatter", "mode": "lines", "x": across, "hoverinfo": "skip"}
    thick = {"color": colours.ink, "width": 3.5}
    if low == high:
        return [plain | {"y": low, "line": thick}]
    dotted = {"color": colours.ink, "width": 2, "dash": "dot"}
    return [
        plain | {"y": low, "line": thick},
        plain | {"y": high, "line": dotted, "fill": "tonexty", "fillcolor": colours.parts["overhead"]},
    ]


_SAID = {2: words.FITS, 1: words.MAY_FIT, 0: words.NOT_FIT}


def _cells(found: Grid, fits: np.ndarray, low: np.ndarray) -> dict[str, Any]:
    """A mark that is not seen in every cell: it can be pointed at and clicked, a heat map's cells cannot."""
    x, y, text, data = [], [], [], []
    for row, count in enumerate(found.users):
        for column, context in enumerate(found.contexts):
            state = int(fits[row, column])
            x.append(round(math.log2(context), 4))
            y.append(round(math.log2(count), 4))
            more = f", {count / low[column]:.0%} of the room" if state == 2 else f": {int(low[column]):,} do"
            text.append(f"{_SAID[state]}{more}" if state != 1 else _SAID[state])
            data.append([context, count])
    clear = {"marker": {"opacity": 0}}
    return {
        "type": "scatter", "mode": "markers", "x": x, "y": y, "text": text, "customdata": data,
        "marker": {"size": 15, "symbol": "square", "color": "#000000", "opacity": 0}, "selected": clear,
        "unselected": clear,
        "hovertemplate": "%{customdata[1]:,} × %{customdata[0]:,} tokens<br>%{text}<extra></extra>",
    }  # fmt: skip


def _here(tokens: int, wanted: int, colours: Palette) -> dict[str, Any]:
    return {
        "type": "scatter", "mode": "markers", "x": [math.log2(max(1, tokens))], "y": [math.log2(wanted)],
        "hoverinfo": "skip",
        "marker": {"size": 17, "color": colours.background, "line": {"color": colours.ink, "width": 4}},
    }  # fmt: skip


def _limits(
    xs: list[float], ys: list[float], limit: int | None, sequences: int | None, colours: Palette
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Lines at the model's limit and at the engine's most requests, with their names."""
    shapes: list[dict[str, Any]] = []
    notes: list[dict[str, Any]] = []
    stroke = {"color": colours.ink, "width": 1.5, "dash": "dash"}
    if limit and xs[0] < math.log2(limit) <= xs[-1]:
        at = math.log2(limit)
        shapes.append({"type": "line", "x0": at, "x1": at, "yref": "paper", "y0": 0, "y1": 1, "line": stroke})
        notes.append(_note(f"model’s limit {limit:,}", colours, x=at, xanchor="right", xshift=-4, y=0, yref="paper",
                           yanchor="bottom", yshift=4))  # fmt: skip
    if sequences and ys[0] < math.log2(sequences) <= ys[-1]:
        at = math.log2(sequences)
        shapes.append({"type": "line", "y0": at, "y1": at, "xref": "paper", "x0": 0, "x1": 1, "line": stroke})
        notes.append(_note(f"engine’s most at once {sequences:,}", colours, x=1, xref="paper", xanchor="right",
                           xshift=-4, y=at, yanchor="bottom", yshift=2))  # fmt: skip
    return shapes, notes


def _words(xs: list[float], ys: list[float], fits: np.ndarray, colours: Palette) -> list[dict[str, Any]]:
    """`fits` and `does not fit`, where there is room for the words: in the corners farthest from the edge."""
    notes = []
    # Each reaches from its corner into the plot, so that no width cuts it.
    corners = ((2, 0.14, 0.1, "left"), (0, 0.72, 0.93, "right"))
    for state, row, column, side in corners:
        if (fits == state).sum() < 0.12 * fits.size:
            continue
        at = (int(fits.shape[0] * row), int(fits.shape[1] * column))
        if fits[at] == state:
            place = {"x": xs[at[1]], "y": ys[at[0]], "xanchor": side, "yanchor": "bottom"}
            notes.append(_note(_SAID[state], colours, size=FONT_SIZE + 3, **place))
    return notes


def _note(text: str, colours: Palette, size: int = FONT_SIZE, **place: Any) -> dict[str, Any]:
    return {"text": in_chart(text), "showarrow": False, "font": {"size": size, "color": colours.ink},
            "bgcolor": colours.background, "opacity": 0.92, "borderpad": 3, **place}  # fmt: skip


def _describe(found: Grid, tokens: int, wanted: int, limit: int | None, sequences: int | None) -> str:
    """The chart in words."""
    marks: list[int] = [2**n for n in range(12, 19) if 2**n in found.contexts]
    marks = marks or list(found.contexts[:: max(1, len(found.contexts) // 5)])
    parts = []
    for mark in marks:
        ends = found.most[found.contexts.index(mark)]
        most = f"{ends.low:,}" if ends.low == ends.high else f"{ends.low:,} to {ends.high:,}"
        parts.append(f"{format_tokens(mark)} tokens: {most}")
    ends_at = f" The model's limit is {limit:,} tokens." if limit else ""
    most_at_once = f" The engine runs at most {sequences:,} at once." if sequences else ""
    return (
        f"Requests at once that fit, by the longest request. {'; '.join(parts)}. The plan stands at "
        f"{plural(wanted, 'request')} of {plural(tokens, 'token')}.{ends_at}{most_at_once}"
    )
