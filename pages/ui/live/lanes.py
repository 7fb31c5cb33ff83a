"""Bars to scale below each other, each with its name and its time: the time line, and first tokens compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from pages.ui.live import look, svg
from pages.ui.live.plot import end_of, steps
from pages.ui.live.svg import MARGIN, SIZE, WIDTH, Hatches
from pages.ui.theme import Palette

STYLE = """<style>
.kv-lanes{font-size:max(1rem,15px);line-height:1.3;font-variant-numeric:tabular-nums;margin:.2rem 0 0}
.kv-lanes p{margin:.5rem 0 .25rem;display:flex;justify-content:space-between;gap:.2rem 1rem}
.kv-lanes p span{overflow-wrap:anywhere;min-width:0}
.kv-lanes p b{font-weight:600}
.kv-lanes p>b{white-space:nowrap}
.kv-lanes .lane{position:relative;height:46px;background:var(--s);border-radius:3px;overflow:hidden}
.kv-lanes.low .lane{height:26px}
.kv-lanes .lane i{position:absolute;top:0;bottom:0;min-width:1px;box-shadow:inset -1px 0 0 var(--k)}
.kv-lanes .lane i.pre{display:flex;align-items:center;justify-content:center;font-style:normal;font-weight:600;
  color:var(--k);overflow:hidden;white-space:nowrap;box-shadow:inset -2px 0 0 var(--k)}
.kv-lanes .lane i.odd{opacity:.72}
.kv-lanes .lane i.thin{box-shadow:none}
.kv-lanes .ends{position:relative;height:1.5rem;margin-top:.25rem;color:var(--m)}
.kv-lanes .ends span{position:absolute;transform:translateX(-50%);white-space:nowrap}
.kv-lanes .ends span.first{transform:none}
.kv-lanes .ends span.last{transform:translateX(-100%)}
@media (max-width:640px){.kv-lanes .ends span:nth-child(even){display:none}}
</style>"""
_LANE_PX, _LOW_PX = 46, 26


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A stretch of a lane: `kind`: `pre` for a prefill, `odd` for every second token, `thin` without a gap."""

    start: float
    seconds: float
    fill: str
    said: str
    kind: str = ""
    inside: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """A row: its name in its colour, what is said of it, its value, and what it consists of."""

    name: str
    colour: str
    told: str
    value: str
    bars: Sequence[Bar]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lanes:
    """Rows on one scale from 0 to `span` seconds; `low`: bars of less height."""

    lanes: Sequence[Lane]
    span: float
    alt: str
    colours: Palette
    low: bool = False

    @property
    def html(self) -> str:
        """The chart, with its text alternative."""
        colours = self.colours
        ends = "".join(
            f"<span class='{end_of(place)}' style='left:{place:.2f}%'>{escape(text)}</span>"
            for place, text in self._ticks()
        )
        tints = f"--m:{colours.muted};--k:{colours.background};--s:{look.soft(colours.muted, 9, colours)}"
        return (
            f"{STYLE}<div class='kv-lanes{' low' if self.low else ''}' role='img' aria-label='{escape(self.alt)}' "
            f"style='{tints}'>{''.join(map(self._lane, self.lanes))}<div class='ends'>{ends}</div></div>"
        )

    def _ticks(self) -> list[tuple[float, str]]:
        return [(100 * at / self.span, _seconds(at, self.span)) for at in steps(self.span, 5)]

    def _lane(self, lane: Lane) -> str:
        bars = "".join(
            f"<i class='{one.kind}' style='left:{100 * one.start / self.span:.3f}%;"
            f"width:{100 * one.seconds / self.span:.3f}%;background:{one.fill}' title='{escape(one.said)}'>"
            f"{escape(one.inside)}</i>"
            for one in lane.bars
        )
        colour = look.text_colour(lane.colour, self.colours)
        return (
            f"<p><span><b style='color:{colour}'>{escape(lane.name)}</b> · {escape(lane.told)}</span>"
            f"<b>{escape(lane.value)}</b></p><div class='lane'>{bars}</div>"
        )

    def svg(self, title: str, source: str) -> str:
        """The chart as a file that stands alone."""
        colours, hatches = self.colours, Hatches()
        head, y = svg.heading(title, colours)
        wide, high = WIDTH - 2 * MARGIN, _LOW_PX if self.low else _LANE_PX
        parts = [head]
        for lane in self.lanes:
            y += 1.8 * SIZE
            name = svg.text(MARGIN, y, lane.name, look.text_colour(lane.colour, colours), bold=True)
            # One text with two parts, so that the second stands right behind the first whatever the letters are.
            told = f"<tspan font-weight='400' fill='{colours.ink}'> · {svg.clean(lane.told)}</tspan></text>"
            parts.append(name.removesuffix("</text>") + told)
            parts.append(svg.text(WIDTH - MARGIN, y, lane.value, colours.ink, anchor="end", bold=True))
            y += 0.5 * SIZE
            parts.append(svg.rectangle(MARGIN, y, wide, high, look.soft(colours.muted, 9, colours)))
            for one in lane.bars:
                x, width = MARGIN + wide * one.start / self.span, wide * one.seconds / self.span
                fill = look.soft(one.fill, 72, colours) if one.kind.startswith("odd") else one.fill
                parts.append(
                    svg.rectangle(x, y, width if one.kind.endswith("thin") else width - 1, high, fill, one.said)
                )
                if one.inside and width > svg.width_of(one.inside) + 8:
                    middle = (x + width / 2, y + high / 2 + 0.35 * SIZE)
                    parts.append(svg.text(*middle, one.inside, colours.background, anchor="middle", bold=True))
            y += high
        anchors = {"": "middle", "first": "start", "last": "end"}
        for place, text in self._ticks():
            anchor = anchors[end_of(place)]
            parts.append(svg.text(MARGIN + wide * place / 100, y + 1.4 * SIZE, text, colours.muted, anchor=anchor))
        return svg.document(
            "".join(parts), y + 2.2 * SIZE, title=title, alt=self.alt, source=source, colours=colours, hatches=hatches
        )


def _seconds(value: float, span: float) -> str:
    if span < 1:
        return f"{1000 * value:,.0f} ms"
    return f"{value:g} s"
