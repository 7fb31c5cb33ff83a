"""Charts that change several times a second: boxes that the browser moves without drawing the chart anew.

Streamlit gives a plotly chart a new identity whenever its figure changes, so that it would be built again, and blink,
at every token. These are HTML: text is text, places are shares of the plot, a line is a strip cut out of a box. Each
is also an SVG file to download, made of the same marks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise

from pages.ui.live import svg
from pages.ui.live.look import Fill, text_colour
from pages.ui.live.svg import MARGIN, SIZE, WIDTH, Hatches
from pages.ui.theme import Palette

Point = tuple[float, float]
# (shape, fill, text): `dash`, `area`, or a mark (`dot`, `square`, `diamond`, `ring`), after `line ` on a line.
Entry = tuple[str, Fill, str]
# What a line's thickness is worked out for; on other widths steep lines are a little thinner or thicker.
_WIDTH_PX = 760
_NICE = (1, 2, 2.5, 5, 10)
_FINE = (1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)
_LINE = 1.3 * SIZE

STYLE = """<style>
.kv-plot{display:grid;grid-template-columns:max-content minmax(0,1fr);font-size:max(1rem,15px);line-height:1.25;
  font-variant-numeric:tabular-nums;margin:.3rem 0 0}
.kv-plot .y{position:relative;padding-right:.6rem;text-align:right;white-space:nowrap}
.kv-plot .y b,.kv-plot .x b{font-weight:400}
.kv-plot .y b{position:absolute;right:.6rem;transform:translateY(50%)}
.kv-plot .y u{visibility:hidden;text-decoration:none}
.kv-plot .p{position:relative;border-bottom:1px solid var(--m)}
.kv-plot .p>div{position:absolute;inset:0;pointer-events:none}
.kv-plot .p>hr{position:absolute;left:0;right:0;height:0;margin:0;border:0;border-top:1px solid var(--g)}
.kv-plot .d>i{position:absolute;margin:-4.5px;pointer-events:auto}
.kv-plot .d>i,.kv-legend i.m:after{width:9px;height:9px;border-radius:50%;background:currentColor}
.kv-plot .d.square>i,.kv-legend i.square:after{border-radius:1px}
.kv-plot .d.diamond>i,.kv-legend i.diamond:after{border-radius:1px;transform:rotate(45deg);width:11px;height:11px}
.kv-plot .d.ring>i,.kv-legend i.ring:after{background:var(--k);border:2.5px solid currentColor;width:11px;height:11px}
.kv-plot .d.diamond>i,.kv-plot .d.ring>i{margin:-5.5px}
.kv-plot .d.over>i{border-radius:0;clip-path:polygon(50% 0,100% 100%,0 100%);width:13px;height:11px;margin:0 -6.5px}
.kv-plot .w>i{position:absolute;width:9px;margin-left:-4.5px;border:solid currentColor;border-width:2px 0;opacity:.6;
  background:linear-gradient(currentColor,currentColor) center/2px 100% no-repeat}
.kv-plot .w>i.open{border-top:0}
.kv-plot .n{position:absolute;white-space:nowrap;padding:0 .3rem;font-weight:600;
  text-shadow:0 0 3px var(--k),0 0 3px var(--k),0 0 3px var(--k),0 0 3px var(--k)}
.kv-plot .x{grid-column:2;position:relative;height:1.5rem;margin-top:.3rem}
.kv-plot .x b{position:absolute;transform:translateX(-50%);white-space:nowrap}
.kv-plot .x b.first{transform:none}
.kv-plot .x b.last{transform:translateX(-100%)}
.kv-plot .t{grid-column:2;text-align:center;color:var(--m)}
.kv-legend{display:flex;flex-wrap:wrap;gap:.2rem 1.4rem;font-size:max(1rem,15px);margin:.2rem 0}
.kv-legend span{display:inline-flex;align-items:center;gap:.5rem;overflow-wrap:anywhere}
.kv-legend i{display:inline-grid;place-items:center;flex:none;width:14px;height:14px}
.kv-legend i.m:after{content:"";box-sizing:border-box}
.kv-legend i.line{width:30px;background:linear-gradient(currentColor,currentColor) center/100% 3px no-repeat}
.kv-legend i.dash{height:2px;width:30px;
  background:repeating-linear-gradient(90deg,currentColor 0 9px,transparent 9px 15px)}
.kv-legend i.area{width:30px;height:13px;border-top:2px solid}
@media (max-width:640px){.kv-plot .x b.odd,.kv-plot .n.wide{display:none}}
</style>"""


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


@dataclass(frozen=True, slots=True)
class _Box:
    """Where the plot stands in an SVG file, in pixels."""

    left: float
    top: float
    width: float
    height: float

    def place(self, x: float, y: float) -> Point:
        """Pixels of a place in percent from the left and from the top."""
        return self.left + self.width * x / 100, self.top + self.height * y / 100


@dataclass(slots=True, kw_only=True)
class Plot:
    """One chart in the making: marks are laid over each other in the order in which they are added.

    `marks` is what the page shows, `shapes` the same for a file: each is drawn when it is known how large the plot is.
    """

    x: Scale
    y: Scale
    colours: Palette
    height: int = 300
    x_title: str = ""
    entries: list[Entry] = field(default_factory=list)
    marks: list[str] = field(default_factory=list)
    shapes: list[_Shape] = field(default_factory=list)

    def line(self, points: Sequence[Point], colour: str, *, width: float = 2.5, dashed: bool = False) -> None:
        """A line through the points, in the order of their x."""
        placed = self._placed(points)
        if len(placed) < 2:
            return
        slopes = [self._slope(one, two) for one, two in pairwise(placed)]
        around = [max(pair) for pair in zip([slopes[0], *slopes], [*slopes, slopes[-1]], strict=True)]
        halves = [width / 2 * math.sqrt(1 + min(slope, 6) ** 2) for slope in around]
        above = [f"{px:.2f}% calc({py:.2f}% - {half:.1f}px)" for (px, py), half in zip(placed, halves, strict=True)]
        below = [f"{px:.2f}% calc({py:.2f}% + {half:.1f}px)" for (px, py), half in zip(placed, halves, strict=True)]
        fill = f"repeating-linear-gradient(90deg,{colour} 0 9px,transparent 9px 15px)" if dashed else colour
        self.marks.append(f"<div style='background:{fill};clip-path:polygon({','.join(above + below[::-1])})'></div>")
        self.shapes.append(_Line(points=placed, colour=colour, width=width, dashed=dashed))

    def _placed(self, points: Sequence[Point]) -> list[Point]:
        return [(self.x.at(px), 100 - self.y.at(py)) for px, py in points]

    def _slope(self, one: Point, two: Point) -> float:
        across = abs(two[0] - one[0]) * _WIDTH_PX
        return abs(two[1] - one[1]) * self.height / across if across else 6.0

    def area(self, points: Sequence[Point], fill: Fill) -> None:
        """What lies below the points."""
        placed = self._placed(points)
        if len(placed) < 2:
            return
        around = [*placed, (placed[-1][0], 100.0), (placed[0][0], 100.0)]
        corners = ",".join(f"{px:.2f}% {py:.2f}%" for px, py in around)
        self.marks.append(f"<div style='background:{fill.css};clip-path:polygon({corners})'></div>")
        self.shapes.append(_Area(points=around, fill=fill))

    def dots(self, points: Sequence[tuple[float, float, str]], colour: str, shape: str = "") -> None:
        """Marks with what is said on hovering; those beyond the top stand at it as arrows."""
        inside = [one for one in points if one[1] <= self.y.high]
        beyond = [one for one in points if one[1] > self.y.high]
        for group, kind in ((inside, shape), (beyond, "over")):
            if group:
                placed = [(self.x.at(px), 100 - self.y.at(py), said) for px, py, said in group]
                boxes = "".join(
                    f"<i style='left:{px:.2f}%;top:{py:.2f}%' title='{escape(said)}'></i>" for px, py, said in placed
                )
                self.marks.append(f"<div class='d {kind}' style='color:{colour}'>{boxes}</div>")
                self.shapes.append(_Dots(points=placed, colour=colour, shape=kind))

    def spreads(self, ranges: Sequence[tuple[float, float, float]], colour: str) -> None:
        """Thin uprights at each x from a low to a high value; one that reaches beyond the top has no end there."""
        if not ranges:
            return
        placed = [
            (self.x.at(px), 100 - self.y.at(high), 100 - self.y.at(low), high > self.y.high) for px, low, high in ranges
        ]
        boxes = "".join(
            f"<i class='{'open' if is_open else ''}' style='left:{px:.2f}%;top:{top:.2f}%;height:{low - top:.2f}%'></i>"
            for px, top, low, is_open in placed
        )
        self.marks.append(f"<div class='w' style='color:{colour}'>{boxes}</div>")
        self.shapes.append(_Spreads(ranges=placed, colour=colour))

    def note(
        self, x: float, y: float, text: str, colour: str, *, side: str = "right", lift: str = "-50%", wide: bool = False
    ) -> None:
        """A text beside a place: to its `right` or `left`, moved up by `lift` of its own height.

        `wide`: only where there is room, not on a phone.
        """
        left, top = self.x.at(x), 100 - self.y.at(y)
        readable = text_colour(colour, self.colours)
        place = f"left:{left:.2f}%;margin-left:8px" if side == "right" else f"right:{100 - left:.2f}%;margin-right:8px"
        self.marks.append(
            f"<span class='n{' wide' if wide else ''}' style='{place};top:{top:.2f}%;transform:translateY({lift});"
            f"color:{readable}'>{escape(text)}</span>"
        )
        share = float(lift.rstrip("%")) / 100
        self.shapes.append(_Note(at=(left, top), text=text, colour=readable, side=side, lift=share))

    def stop(self, x: float, text: str) -> None:
        """A dashed upright where something was cut off, with the reason."""
        colour, place = self.colours.muted, self.x.at(x)
        self.marks.append(
            f"<div style='left:{place:.2f}%;right:auto;border-left:2px dashed {colour};inset-block:0'></div>"
        )
        self.shapes.append(_Line(points=[(place, 0.0), (place, 100.0)], colour=colour, width=2, dashed=True))
        self.note(x, self.y.high, text, colour, side="right" if place < 55 else "left", lift="0%")

    def html(self, alt: str) -> str:
        """The chart with its axes, and with its text alternative."""
        shown = self._rules()
        widest = max((text for _, text in shown), key=len, default="")
        ys = "".join(f"<b style='bottom:{place:.2f}%'>{escape(text)}</b>" for place, text in shown)
        rules = "".join(f"<hr style='bottom:{place:.2f}%'>" for place, _ in shown if place > 0)
        xs = "".join(
            f"<b class='{end_of(self.x.at(value))} {'odd' if at % 2 else ''}' style='left:{self.x.at(value):.2f}%'>"
            f"{escape(text)}</b>"
            for at, (value, text) in enumerate(self.x.ticks)
        )
        title = f"<div class='t'>{escape(self.x_title)}</div>" if self.x_title else ""
        tints = f"--m:{self.colours.muted};--g:{self.colours.grid};--k:{self.colours.background}"
        return (
            f"{STYLE}<div class='kv-plot' role='img' aria-label='{escape(alt)}' style='{tints}'>"
            f"<div class='y'><u>{escape(widest)}</u>{ys}</div>"
            f"<div class='p' style='height:{self.height}px'>{rules}{''.join(self.marks)}</div>"
            f"<div class='x'>{xs}</div>{title}</div>"
        )

    def _rules(self) -> list[tuple[float, str]]:
        return [(self.y.at(value), text) for value, text in self.y.ticks if self.y.low <= value <= self.y.high]

    def svg(self, *, title: str, alt: str, source: str) -> str:
        """The chart as a file that stands alone."""
        colours, hatches = self.colours, Hatches()
        head, top = svg.heading(title, colours)
        names, top = svg.legend(self.entries, top, colours, hatches)
        rules = self._rules()
        left = MARGIN + max((svg.width_of(text) for _, text in rules), default=0) + 10
        box = _Box(left, top + 14, WIDTH - MARGIN - left, 1.2 * self.height)
        right, bottom = box.left + box.width, box.top + box.height
        parts = [head, names]
        for place, text in rules:
            at = bottom - box.height * place / 100
            parts.append(svg.line([(left, at), (right, at)], colours.muted if place == 0 else colours.grid, 1))
            parts.append(svg.text(left - 10, at + 0.35 * SIZE, text, colours.ink, anchor="end"))
        parts.append(svg.line([(left, bottom), (right, bottom)], colours.muted, 1))
        parts += [shape.svg(box, colours, hatches) for shape in self.shapes]
        anchors = {"": "middle", "first": "start", "last": "end"}
        for value, text in self.x.ticks:
            place = self.x.at(value)
            x = box.left + box.width * place / 100
            parts.append(svg.text(x, bottom + _LINE, text, colours.ink, anchor=anchors[end_of(place)]))
        if self.x_title:
            middle = box.left + box.width / 2
            parts.append(svg.text(middle, bottom + 2.3 * _LINE, self.x_title, colours.muted, anchor="middle"))
        return svg.document(
            "".join(parts), bottom + 3 * _LINE, title=title, alt=alt, source=source, colours=colours, hatches=hatches
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    points: Sequence[Point]
    colour: str
    width: float
    dashed: bool

    def svg(self, box: _Box, colours: Palette, hatches: Hatches) -> str:
        placed = [box.place(*one) for one in self.points]
        return svg.line(placed, self.colour, self.width, "9 6" if self.dashed else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Area:
    points: Sequence[Point]
    fill: Fill

    def svg(self, box: _Box, colours: Palette, hatches: Hatches) -> str:
        corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in (box.place(*one) for one in self.points))
        return f"<polygon points='{corners}' fill='{hatches.use(self.fill)}'/>"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Dots:
    points: Sequence[tuple[float, float, str]]
    colour: str
    shape: str

    def svg(self, box: _Box, colours: Palette, hatches: Hatches) -> str:
        return "".join(
            svg.mark(*box.place(x, y), self.colour, self.shape, colours.background, said) for x, y, said in self.points
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spreads:
    ranges: Sequence[tuple[float, float, float, bool]]
    colour: str

    def svg(self, box: _Box, colours: Palette, hatches: Hatches) -> str:
        parts = []
        for x, top, low, is_open in self.ranges:
            (at, high), (_, bottom) = box.place(x, top), box.place(x, low)
            parts.append(svg.line([(at, high), (at, bottom)], self.colour, 2))
            ends = [bottom] if is_open else [bottom, high]
            parts += [svg.line([(at - 4.5, end), (at + 4.5, end)], self.colour, 2) for end in ends]
        return f"<g opacity='0.6'>{''.join(parts)}</g>"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Note:
    at: Point
    text: str
    colour: str
    side: str
    lift: float

    def svg(self, box: _Box, colours: Palette, hatches: Hatches) -> str:
        x, y = box.place(*self.at)
        right = self.side == "right"
        # The middle of the line of letters lies about a third of their size above its foot.
        foot = y + (self.lift + 0.5) * _LINE + 0.35 * SIZE
        return svg.text(
            x + (12 if right else -12), foot, self.text, self.colour, anchor="start" if right else "end", bold=True,
            halo=colours.background,
        )  # fmt: skip


_Shape = _Line | _Area | _Dots | _Spreads | _Note


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A finished chart: as HTML with its legend, and as an SVG file."""

    plot: Plot
    alt: str

    @property
    def html(self) -> str:
        return self.plot.html(self.alt)

    @property
    def legend(self) -> str:
        return legend(self.plot.entries, self.plot.colours)

    def svg(self, title: str, source: str) -> str:
        """The file; `title` is its headline, `source` says what was measured where."""
        return self.plot.svg(title=title, alt=self.alt, source=source)


def end_of(place: float) -> str:
    """How a text at that percentage stands, so that it does not reach beyond the chart."""
    return "first" if place < 1 else "last" if place > 99 else ""


def legend(entries: Sequence[Entry], colours: Palette) -> str:
    """A legend whose marks are those of the chart."""
    parts = "".join(f"<span>{_sample(shape, fill)}{escape(text)}</span>" for shape, fill, text in entries)
    return f"{STYLE}<div class='kv-legend' style='--k:{colours.background}'>{parts}</div>"


def _sample(shape: str, fill: Fill) -> str:
    if shape == "area":
        return f"<i class='area' style='background:{fill.css};border-color:{fill.edge or fill.colour}'></i>"
    marked = "" if shape == "dash" else "m "
    return f"<i class='{marked}{shape}' style='color:{fill.colour}'></i>"
