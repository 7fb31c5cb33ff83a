"""Charts as SVG files that stand alone: plain shapes and text, no style sheet, no script, nothing from elsewhere."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from html import escape
from itertools import count

from pages.ui.live.look import Fill
from pages.ui.theme import FONT, Palette

WIDTH = 960
MARGIN = 24
SIZE = 15
_TITLE_SIZE = 20
# What a letter takes on the average, as a share of its height; a little more than it is.
_LETTER = 0.55
# Characters that XML does not know.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def clean(text: str) -> str:
    """Text as it may stand in an element or in an attribute."""
    return escape(_NOT_XML.sub("\ufffd", text), quote=True)


def width_of(text: str, size: float = SIZE) -> float:
    """About how many pixels a text takes."""
    return _LETTER * size * len(text)


def text(
    x: float, y: float, words: str, colour: str, *, anchor: str = "start", bold: bool = False, size: float = SIZE,
    halo: str = "",
) -> str:  # fmt: skip
    """A text whose line of letters stands at y; with a `halo` of that colour it can be read over lines."""
    weight = " font-weight='600'" if bold else ""
    around = f" stroke='{halo}' stroke-width='4' stroke-linejoin='round' paint-order='stroke'" if halo else ""
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' fill='{colour}' font-size='{size:g}' text-anchor='{anchor}'{weight}{around}>"
        f"{clean(words)}</text>"
    )


def line(points: Sequence[tuple[float, float]], colour: str, width: float, dashes: str = "") -> str:
    """A line through places."""
    places = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dashed = f" stroke-dasharray='{dashes}'" if dashes else ""
    return (
        f"<polyline points='{places}' fill='none' stroke='{colour}' stroke-width='{width:g}' "
        f"stroke-linejoin='round'{dashed}/>"
    )


def rectangle(x: float, y: float, width: float, height: float, fill: str, said: str = "") -> str:
    """A box, with what is said on hovering."""
    inside = f"<title>{clean(said)}</title>" if said else ""
    place = f"x='{x:.2f}' y='{y:.2f}' width='{max(0.0, width):.2f}' height='{height:.2f}'"
    return f"<rect {place} fill='{fill}'>{inside}</rect>"


def mark(x: float, y: float, colour: str, shape: str, background: str, said: str = "") -> str:
    """A mark as the charts on the page have it."""
    inside = f"<title>{clean(said)}</title>" if said else ""
    if shape == "square":
        return f"<rect x='{x - 4.5:.1f}' y='{y - 4.5:.1f}' width='9' height='9' fill='{colour}'>{inside}</rect>"
    if shape == "diamond":
        corners = f"{x:.1f},{y - 7.5:.1f} {x + 7.5:.1f},{y:.1f} {x:.1f},{y + 7.5:.1f} {x - 7.5:.1f},{y:.1f}"
        return f"<polygon points='{corners}' fill='{colour}'>{inside}</polygon>"
    if shape == "over":
        corners = f"{x:.1f},{y:.1f} {x + 6.5:.1f},{y + 11:.1f} {x - 6.5:.1f},{y + 11:.1f}"
        return f"<polygon points='{corners}' fill='{colour}'>{inside}</polygon>"
    if shape == "ring":
        return (
            f"<circle cx='{x:.1f}' cy='{y:.1f}' r='4.5' fill='{background}' stroke='{colour}' stroke-width='2.5'>"
            f"{inside}</circle>"
        )
    return f"<circle cx='{x:.1f}' cy='{y:.1f}' r='4.5' fill='{colour}'>{inside}</circle>"


class Hatches:
    """Fills of stripes, which SVG wants defined before they are used."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self.definitions: list[str] = []

    def use(self, fill: Fill) -> str:
        """What to write for a fill."""
        if not fill.stripe:
            return fill.colour
        name = f"stripes-{next(self._numbers)}"
        self.definitions.append(
            f"<pattern id='{name}' width='8' height='8' patternUnits='userSpaceOnUse' patternTransform='rotate(45)'>"
            f"<rect width='8' height='8' fill='{fill.colour}'/><rect width='2' height='8' fill='{fill.stripe}'/>"
            "</pattern>"
        )
        return f"url(#{name})"


def legend(
    entries: Sequence[tuple[str, Fill, str]], top: float, colours: Palette, hatches: Hatches
) -> tuple[str, float]:
    """(the legend, where it ends): shapes as `plot.legend` knows them."""
    parts: list[str] = []
    x, y = float(MARGIN), top + SIZE
    for shape, fill, words in entries:
        needed = 38 + width_of(words) + 22
        if x > MARGIN and x + needed > WIDTH - MARGIN:
            x, y = float(MARGIN), y + 1.5 * SIZE
        middle = y - 0.35 * SIZE
        kind = shape.rpartition(" ")[2]
        if shape == "dash":
            parts.append(line([(x, middle), (x + 30, middle)], fill.colour, 2, "9 6"))
        elif shape == "area":
            parts.append(rectangle(x, middle - 6, 30, 12, hatches.use(fill)))
            parts.append(line([(x, middle - 6), (x + 30, middle - 6)], fill.edge or fill.colour, 2))
        else:
            if shape.startswith("line"):
                parts.append(line([(x, middle), (x + 30, middle)], fill.colour, 3))
            parts.append(mark(x + 15, middle, fill.colour, kind, colours.background))
        parts.append(text(x + 38, y, words, colours.ink))
        x += needed
    return "".join(parts), y + 0.6 * SIZE if entries else top


def heading(title: str, colours: Palette) -> tuple[str, float]:
    """(the title in as many lines as it takes, where it ends)."""
    lines = textwrap.wrap(title, int((WIDTH - 2 * MARGIN) / (_LETTER * _TITLE_SIZE))) or [""]
    rows = [
        text(MARGIN, MARGIN + 1.25 * _TITLE_SIZE * (at + 0.8), row, colours.ink, bold=True, size=_TITLE_SIZE)
        for at, row in enumerate(lines)
    ]
    return "".join(rows), MARGIN + 1.25 * _TITLE_SIZE * len(lines) + 6


def document(body: str, bottom: float, *, title: str, alt: str, source: str, colours: Palette, hatches: Hatches) -> str:
    """The whole file, with what the figures are of at its foot."""
    lines = textwrap.wrap(source, int((WIDTH - 2 * MARGIN) / (_LETTER * 13)))
    foot = "".join(text(MARGIN, bottom + 16 * (at + 1), row, colours.muted, size=13) for at, row in enumerate(lines))
    height = round(bottom + 16 * len(lines) + MARGIN)
    defined = f"<defs>{''.join(hatches.definitions)}</defs>" if hatches.definitions else ""
    return (
        "<?xml version='1.0' encoding='UTF-8'?>\n"
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{WIDTH}' height='{height}' viewBox='0 0 {WIDTH} {height}' "
        f"role='img' font-family='{clean(FONT)}'><title>{clean(title)}</title><desc>{clean(alt)}</desc>{defined}"
        f"<rect width='{WIDTH}' height='{height}' fill='{colours.background}'/>{body}{foot}</svg>\n"
    )
