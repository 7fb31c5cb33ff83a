"""Growth of a ladder's rungs: a line a design, named at its end, marked where it bends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvcore.hardware.gpus import CapacityLine
from kvcore.sizing import curve
from kvcore.units import GIB, MAX_TOKENS, format_bytes, format_tokens
from kvcore.variants.ladder import Rung
from pages.ui import lines as charts
from pages.ui.lines import Line
from pages.ui.text import in_chart
from pages.ui.theme import FONT_SIZE, Chart, Palette, figure
from pages.ui.variants import bars, words
from pages.ui.variants.heads import edge

_DASHES = {"state": "dot", "latent": "dashdot", "compressed": "dashdot", "sliding": "dash", "chunked": "dash"}
_FIRST = 1024
_WITHOUT_LIMIT = 2**20
_POINTS = 60
_HEIGHT = 540
# How far the plot reaches beyond the lines, in widths of them: there each is joined to its name in the margin.
_BESIDE = 0.05
# Characters of a name beside a line.
_LONGEST = 18


@dataclass(frozen=True, slots=True, kw_only=True)
class RungCurve:
    """A rung's line: bytes at every context, its colour and dash, and where its windows are full."""

    line: Line
    short: str
    held: np.ndarray
    colour: str
    dash: str
    chosen: bool


def drawn(rungs: Sequence[Rung], chosen: Rung) -> list[Rung]:
    """The rungs that have a line: another format moves a line without bending it, and is left to the ladder."""
    return [rung for rung in rungs if rung.shipped or rung is chosen or "@" not in rung.design]


def curves_chart(
    rungs: Sequence[Rung], chosen: Rung, *, tokens: int, batch: int, source: int | None, marks: Sequence[CapacityLine],
    colours: Palette,
) -> tuple[Chart, str] | None:  # fmt: skip
    """(figure, text alternative) up to the model's context limit, or None where nothing holds anything."""
    limit = chosen.model.context_limit
    last = min(MAX_TOKENS, max(limit or _WITHOUT_LIMIT, tokens, 4 * _FIRST))
    first = _first(rungs, tokens)
    lines = [
        Line(id=rung.design, name=words.label(rung), model=rung.model, kv=rung.kv, source=source)
        for rung in drawn(rungs, chosen)
    ]
    xs = charts.contexts(lines, first, last, tokens, _POINTS)
    made = [
        RungCurve(
            line=line,
            short=_short(words.short(rung)),
            held=curve(line.model, xs, line.kv, batch, source),
            colour=edge(bars.kind_of(line.model), colours),
            dash=_DASHES.get(bars.kind_of(line.model), "solid"),
            chosen=line.id == chosen.design,
        )
        for rung, line in zip(drawn(rungs, chosen), lines, strict=True)
    ]
    made = [one for one in made if int(one.held.max()) > 0]
    if not made:
        return None
    low, high = _range(made, marks)
    made.sort(key=lambda one: (one.chosen, int(one.held[-1])))
    traces = [_trace(one, xs) for one in made]
    bends = [charts.bend_marks(one.line, first, last, batch, one.colour, colours) for one in made]
    traces += [trace for trace in bends if trace is not None]
    ends = [
        charts.LineEnd(
            x=int(xs[-1]), y=math.log10(max(int(one.held[-1]) / GIB, low)), name=(one.short,), colour=one.colour,
            bold=one.chosen,
        )
        for one in made
    ]  # fmt: skip
    across, up = (math.log10(first), math.log10(last)), (math.log10(low), math.log10(high))
    notes, shapes, beside = charts.names_beside(ends, xs=across, ys=up, height=_HEIGHT, colours=colours)
    mine = next((one for one in made if one.chosen), None)
    if mine is not None and tokens >= first:
        held = int(curve(mine.line.model, [tokens], mine.line.kv, batch, source)[0])
        traces.append(charts.here_mark(tokens, held, mine.colour, colours))
        notes.append(charts.here_label(tokens, held, first, colours))
    shapes += [charts.capacity_shape(mark, colours) for mark in marks if low < mark.bytes / GIB < high]
    sides = charts.axes(first, last, low, high)
    sides["xaxis"]["range"] = [across[0], across[1] + charts.BESIDE * (across[1] - across[0])]
    sides["xaxis"]["title"] = {"text": f"tokens in one request, up to {last:,}", "font": {"size": FONT_SIZE}}
    layout = {
        "shapes": shapes, "annotations": notes, "hovermode": "x unified",
        "margin": {"l": 8, "r": beside, "t": 20, "b": 8}, **sides,
    }  # fmt: skip
    return figure(traces, layout, colours, height=_HEIGHT), _describe(made, xs, last)


def _first(rungs: Sequence[Rung], tokens: int) -> int:
    """Where the axis begins: before the scenario and before the smallest window."""
    laws = [memory.growth(rung.kv) for rung in rungs for memory, _ in rung.model.kept]
    bends = [law.max_entries * law.tokens_per_entry for law in laws if law.max_entries is not None]
    return max(16, min([_FIRST, *(bend // 2 for bend in bends), *([tokens // 2] if tokens else [])]))


def _range(made: Sequence[RungCurve], marks: Sequence[CapacityLine]) -> tuple[float, float]:
    """The y axis in GiB: all lines and, if it is not far off, the memory they are compared with."""
    lows = [int(one.held[one.held > 0].min()) / GIB for one in made]
    top = max(int(one.held.max()) for one in made) / GIB
    near = [mark.bytes / GIB for mark in marks if mark.bytes / GIB < 8 * top]
    return min(lows) / 1.6, max([top, *near]) * 2


def _trace(one: RungCurve, xs: np.ndarray) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": in_chart(one.line.name),
        "x": xs.tolist(),
        "y": [int(value) / GIB for value in one.held],
        "line": {"color": one.colour, "width": 4.5 if one.chosen else 2.5, "dash": one.dash},
        "customdata": [format_bytes(int(value)) for value in one.held],
        "hovertemplate": f"{in_chart(one.line.name)}: %{{customdata}}<extra></extra>",
    }


def _short(name: str) -> str:
    """A name as there is room for beside the lines: whole words, and a sign that there was more."""
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1].rsplit(' ', 1)[0]} …"


def _describe(made: Sequence[RungCurve], xs: np.ndarray, last: int) -> str:
    """The chart in words."""
    marks = [mark for mark in (8192, 32_768) if mark < last] + [last]
    parts = []
    for one in sorted(made, key=lambda each: -int(each.held[-1])):
        at = [
            f"{format_bytes(int(one.held[int(np.searchsorted(xs, mark))]))} at {format_tokens(mark)}" for mark in marks
        ]
        parts.append(f"{one.line.name}: {', '.join(at)}")
    return f"Cache size over tokens in one request, both axes logarithmic. {'; '.join(parts)}."
