"""Charts that change several times a second: boxes that the browser moves without drawing the chart anew.

Streamlit gives a plotly chart a new identity whenever its figure changes, so that it would be built again, and blink,
at every token. These are HTML: text is text, places are shares of the plot, a line is a strip cut out of a box.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise

from pages.ui.live_look import text_colour
from pages.ui.theme import Palette

Point = tuple[float, float]
# What a line's thickness is worked out for; on other widths steep lines are a little thinner or thicker.
_WIDTH_PX = 760
_NICE = (1, 2, 2.5, 5, 10)
_FINE = (1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)

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
.kv-plot .d>i{position:absolute;width:9px;height:9px;margin:-4.5px;border-radius:50%;background:currentColor;
  pointer-events:auto}
.kv-plot .d.square>i{border-radius:1px}
.kv-plot .d.diamond>i{border-radius:1px;transform:rotate(45deg);width:11px;height:11px;margin:-5.5px}
.kv-plot .d.ring>i{background:var(--k);border:2.5px solid currentColor;width:11px;height:11px;margin:-5.5px}
.kv-plot .d.over>i{border-radius:0;clip-path:polygon(50% 0,100% 100%,0 100%);width:13px;height:11px;margin:0 -6.5px}
.kv-plot .n{position:absolute;white-space:nowrap;padding:0 .3rem;font-weight:600;
  text-shadow:0 0 3px var(--k),0 0 3px var(--k),0 0 3px var(--k),0 0 3px var(--k)}
.kv-plot .x{grid-column:2;position:relative;height:1.5rem;margin-top:.3rem}
.kv-plot .x b{position:absolute;transform:translateX(-50%);white-space:nowrap}
.kv-plot .x b.first{transform:none}
.kv-plot .x b.last{transform:translateX(-100%)}
.kv-plot .t{grid-column:2;text-align:center;color:var(--m)}
.kv-legend{display:flex;flex-wrap:wrap;gap:.2rem 1.4rem;font-size:max(1rem,15px);margin:.2rem 0}
.kv-legend span{display:inline-flex;align-items:center;gap:.5rem}
.kv-legend i{width:18px;height:12px;border-radius:2px;display:inline-block;flex:none}
.kv-legend i.dot{width:11px;height:11px;border-radius:50%}
.kv-legend i.dash{height:3px;width:26px;border-radius:0}
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


@dataclass(slots=True, kw_only=True)
class Plot:
    """One chart in the making: marks are laid over each other in the order in which they are added."""

    x: Scale
    y: Scale
    colours: Palette
    height: int = 300
    x_title: str = ""
    marks: list[str] = field(default_factory=list)

    def line(self, points: Sequence[Point], colour: str, *, width: float = 2.5, dashed: bool = False) -> None:
        """A line through the points, in the order of their x."""
        placed = [(self.x.at(px), 100 - self.y.at(py)) for px, py in points]
        if len(placed) < 2:
            return
        slopes = [self._slope(one, two) for one, two in pairwise(placed)]
        around = [max(pair) for pair in zip([slopes[0], *slopes], [*slopes, slopes[-1]], strict=True)]
        halves = [width / 2 * math.sqrt(1 + min(slope, 6) ** 2) for slope in around]
        above = [f"{px:.2f}% calc({py:.2f}% - {half:.1f}px)" for (px, py), half in zip(placed, halves, strict=True)]
        below = [f"{px:.2f}% calc({py:.2f}% + {half:.1f}px)" for (px, py), half in zip(placed, halves, strict=True)]
        fill = f"repeating-linear-gradient(90deg,{colour} 0 9px,transparent 9px 15px)" if dashed else colour
        self.marks.append(f"<div style='background:{fill};clip-path:polygon({','.join(above + below[::-1])})'></div>")

    def _slope(self, one: Point, two: Point) -> float:
        across = abs(two[0] - one[0]) * _WIDTH_PX
        return abs(two[1] - one[1]) * self.height / across if across else 6.0

    def area(self, points: Sequence[Point], fill: str) -> None:
        """What lies below the points."""
        placed = [(self.x.at(px), 100 - self.y.at(py)) for px, py in points]
        if len(placed) < 2:
            return
        edge = [f"{px:.2f}% {py:.2f}%" for px, py in placed]
        corners = [f"{placed[-1][0]:.2f}% 100%", f"{placed[0][0]:.2f}% 100%"]
        self.marks.append(f"<div style='background:{fill};clip-path:polygon({','.join(edge + corners)})'></div>")

    def dots(self, points: Sequence[tuple[float, float, str]], colour: str, shape: str = "") -> None:
        """Marks with what is said on hovering; those beyond the top stand at it as arrows."""
        inside = [one for one in points if one[1] <= self.y.high]
        beyond = [one for one in points if one[1] > self.y.high]
        for group, kind in ((inside, shape), (beyond, "over")):
            if group:
                boxes = "".join(
                    f"<i style='left:{self.x.at(px):.2f}%;top:{100 - self.y.at(py):.2f}%' title='{escape(said)}'></i>"
                    for px, py, said in group
                )
                self.marks.append(f"<div class='d {kind}' style='color:{colour}'>{boxes}</div>")

    def note(
        self, x: float, y: float, text: str, colour: str, *, side: str = "right", lift: str = "-50%", wide: bool = False
    ) -> None:
        """A text beside a place: to its `right` or `left`, moved up by `lift` of its own height.

        `wide`: only where there is room, not on a phone.
        """
        left = self.x.at(x)
        place = f"left:{left:.2f}%;margin-left:8px" if side == "right" else f"right:{100 - left:.2f}%;margin-right:8px"
        top = 100 - self.y.at(y)
        self.marks.append(
            f"<span class='n{' wide' if wide else ''}' style='{place};top:{top:.2f}%;transform:translateY({lift});"
            f"color:{text_colour(colour, self.colours)}'>{escape(text)}</span>"
        )

    def stop(self, x: float, text: str) -> None:
        """A dashed upright where something was cut off, with the reason."""
        colour = self.colours.muted
        self.marks.append(
            f"<div style='left:{self.x.at(x):.2f}%;right:auto;border-left:2px dashed {colour};inset-block:0'></div>"
        )
        self.note(x, self.y.high, text, colour, side="right" if self.x.at(x) < 55 else "left", lift="0")

    def html(self, alt: str) -> str:
        """The chart with its axes, and with its text alternative."""
        shown = [(self.y.at(value), text) for value, text in self.y.ticks if self.y.low <= value <= self.y.high]
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


def end_of(place: float) -> str:
    """How a text at that percentage stands, so that it does not reach beyond the chart."""
    return "first" if place < 1 else "last" if place > 99 else ""


def legend(entries: Sequence[tuple[str, str, str]]) -> str:
    """A legend: (shape: `box`, `dot` or `dash`, colour or fill, text) each."""
    parts = "".join(
        f"<span><i class='{shape}' style='background:{_fill(shape, fill)}'></i>{escape(text)}</span>"
        for shape, fill, text in entries
    )
    return f"{STYLE}<div class='kv-legend'>{parts}</div>"


def _fill(shape: str, fill: str) -> str:
    return f"repeating-linear-gradient(90deg,{fill} 0 7px,transparent 7px 11px)" if shape == "dash" else fill
