"""Requests at once against context: a line for the plan, one for each change beside it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvcore.terms import Range
from kvcore.units import format_tokens
from pages.ui.concurrency import words
from pages.ui.lines import BESIDE, LineEnd, names_beside
from pages.ui.text import in_chart
from pages.ui.theme import DASHES, FONT_SIZE, Chart, Palette, figure

_HEIGHT = 440
# The power of ten at which the axis of requests begins: a little below one request.
_BOTTOM = -0.08
# Characters of one line of a name beside a line.
_LONGEST = 14


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCurve:
    """Requests at once at each context; the plan's own line is `main`."""

    name: str
    most: Sequence[Range[int]]
    main: bool = False


def curves_chart(
    lines: Sequence[PlanCurve], columns: Sequence[int], *, tokens: int, users: int, colours: Palette
) -> tuple[Chart, str] | None:
    """(figure, text alternative), or None where nothing fits anywhere."""
    drawn = [line for line in lines if any(ends.low for ends in line.most)]
    if not drawn:
        return None
    high = max(users, *(ends.low for line in drawn for ends in line.most)) * 1.6
    top = math.log10(high)
    first, last = math.log10(columns[0]), math.log10(columns[-1])
    short = _short([line.name for line in drawn])
    traces, line_ends = [], []
    for at, line in enumerate(drawn):
        colour, dash = colours.series[at % len(colours.series)], DASHES[at % len(DASHES)]
        shown = [(x, ends.low) for x, ends in zip(columns, line.most, strict=True) if ends.low]
        traces.append(_trace(line, shown, colour, dash))
        end = LineEnd(x=shown[-1][0], y=math.log10(shown[-1][1]), name=short[line.name], colour=colour, bold=line.main)
        line_ends.append(end)
    traces.append(
        {"type": "scatter", "mode": "markers", "x": [max(tokens, 1)], "y": [users], "hoverinfo": "skip",
         "marker": {"size": 16, "color": colours.background, "line": {"color": colours.ink, "width": 4}}}
    )  # fmt: skip
    notes, shapes, beside = names_beside(
        line_ends, xs=(first, last), ys=(_BOTTOM, top), height=_HEIGHT, colours=colours
    )
    ticks = [2**n for n in range(31) if columns[0] <= 2**n <= columns[-1]]
    ticks = ticks if len(ticks) <= 5 else ticks[1 - len(ticks) % 2 :: 2]
    rows = [value for n in range(8) for value in (10**n, 3 * 10**n) if value <= high]
    layout = {
        "annotations": notes,
        "shapes": shapes,
        "hovermode": "x unified",
        "margin": {"l": 8, "r": beside, "t": 20, "b": 8},
        "xaxis": {
            "type": "log", "tickangle": 0, "fixedrange": True, "tickvals": ticks,
            "ticktext": [format_tokens(one) for one in ticks],
            "range": [first, last + BESIDE * (last - first)], "hoverformat": ",d",
            "title": {"text": "longest request, tokens", "font": {"size": FONT_SIZE}},
        },
        "yaxis": {
            "type": "log", "tickvals": rows, "ticktext": [f"{one:,}" for one in rows], "fixedrange": True,
            "range": [_BOTTOM, top], "title": {"text": "requests at once", "font": {"size": FONT_SIZE}},
        },
    }  # fmt: skip
    return figure(traces, layout, colours, height=_HEIGHT), _describe(drawn, columns)


def _trace(line: PlanCurve, shown: Sequence[tuple[int, int]], colour: str, dash: str) -> dict[str, Any]:
    return {
        "type": "scatter", "mode": "lines", "name": in_chart(line.name),
        "x": [x for x, _ in shown], "y": [y for _, y in shown],
        "line": {"color": colour, "width": 4.5 if line.main else 2.5, "dash": dash},
        "hovertemplate": f"{in_chart(line.name)}: %{{y:,d}}<extra></extra>",
    }  # fmt: skip


def _short(names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Names as there is room for beside the lines: two lines at most, cut where they are longer."""
    found = {}
    for name in names:
        lines = words.wrapped(name.partition(":")[0], _LONGEST)
        more = [f"{lines[1][: _LONGEST - 1]}…"] if len(lines) > 2 else lines[1:]
        found[name] = (*lines[:1], *more) or ("…",)
    same = [name for name in names if list(found.values()).count(found[name]) > 1]
    # What tells two of them apart stands behind the colon, or at the end.
    return found | {
        name: (found[name][0], f"…{name[1 - _LONGEST :]}" if len(name) >= _LONGEST else name) for name in same
    }


def _describe(lines: Sequence[PlanCurve], columns: Sequence[int]) -> str:
    """The chart in words."""
    marks = [at for at, one in enumerate(columns) if one in (4096, 32_768, 131_072)] or [0, len(columns) - 1]
    parts = [
        f"{line.name}: " + ", ".join(f"{line.most[at].low:,} at {format_tokens(columns[at])}" for at in marks)
        for line in lines
    ]
    return f"Requests at once over the longest request, both axes logarithmic. {'; '.join(parts)}."
