"""Colours, patterns and the one chart style; every screen takes them from here, in both themes."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import streamlit as st

FONT_SIZE = 15
FONT = '"Source Sans", "Source Sans 3", "Segoe UI", Arial, sans-serif'


@dataclass(frozen=True, slots=True, kw_only=True)
class Palette:
    """One theme's colours. `series` are those that reach 3:1 on `background`; the first is never a compared model's.

    `parts` are what a GPU's memory is used for: weights, overhead (hatched, it is a range), cache used and free, what
    is left to the system, and what is missing.
    """

    background: str
    ink: str
    muted: str
    grid: str
    series: tuple[str, ...]
    kinds: dict[str, str]
    parts: dict[str, str]


LIGHT = Palette(
    background="#FFFFFF",
    ink="#111111",
    muted="#4F555E",
    grid="#E3E6EA",
    series=("#0072B2", "#D55E00", "#007A5A", "#A8407E", "#5B3FA8", "#7A5C00"),
    kinds={
        "full": "#0072B2", "sliding": "#56B4E9", "chunked": "#56B4E9", "latent": "#A8407E", "indexer": "#7A5C00",
        "compressed": "#CC79A7", "state": "#009E73", "cross": "#D55E00", "shared": "#FFFFFF", "none": "#FFFFFF",
    },
    parts={
        "weights": "#59626F", "draft": "#2B3139", "overhead": "#C97B00", "used": "#0072B2", "free": "#BFE0F5",
        "system": "#E3E6EA", "missing": "#B3261E",
    },
)  # fmt: skip
DARK = Palette(
    background="#15171A",
    ink="#F2F3F5",
    muted="#B4BAC3",
    grid="#2C3138",
    series=("#56B4E9", "#E69F00", "#2BC596", "#E59BC5", "#B9A5F2", "#F0E442"),
    kinds={
        "full": "#56B4E9", "sliding": "#2F7FB8", "chunked": "#2F7FB8", "latent": "#E59BC5", "indexer": "#F0E442",
        "compressed": "#B06A92", "state": "#2BC596", "cross": "#E69F00", "shared": "#15171A", "none": "#15171A",
    },
    parts={
        "weights": "#98A2B0", "draft": "#D3D9E1", "overhead": "#E69F00", "used": "#56B4E9", "free": "#1F4864",
        "system": "#2C3138", "missing": "#FF8A80",
    },
)  # fmt: skip
PALETTES = {"light": LIGHT, "dark": DARK}
# Dots are for what lies beyond a limit.
DASHES = ("solid", "dash", "dashdot", "longdash", "longdashdot", "8px 3px 2px 3px 2px 3px")

# What tells kinds apart without colour: a pattern drawn over the fill, as CSS.
PATTERNS: dict[str, str] = {
    "sliding": "repeating-linear-gradient(135deg, {line} 0 2px, transparent 2px 6px)",
    "chunked": "repeating-linear-gradient(90deg, {line} 0 2px, transparent 2px 6px)",
    "latent": "radial-gradient({line} 1.2px, transparent 1.6px)",
    "indexer": "repeating-linear-gradient(0deg, {line} 0 1px, transparent 1px 4px)",
    "compressed": "repeating-linear-gradient(45deg, {line} 0 1px, transparent 1px 4px)",
    "state": "repeating-linear-gradient(0deg, {line} 0 2px, transparent 2px 6px)",
    "cross": "conic-gradient({line} 25%, transparent 0 50%, {line} 0 75%, transparent 0)",
}
_PATTERN_SIZE = {"latent": "5px 5px", "cross": "6px 6px"}


# Every style of the pages, for linting and highlighting in one place.
STYLES = Path(__file__).parents[2] / "static" / "style.css"


def layout() -> None:
    """Add the little that Streamlit's own layout lacks; call once in every run."""
    st.html(STYLES)


def name() -> str:
    """`light` or `dark`: the theme that the reader sees now."""
    return "dark" if st.context.theme.type == "dark" else "light"


def palette() -> Palette:
    """The palette of the theme that the reader sees now."""
    return PALETTES[name()]


def fill_style(kind: str, colours: Palette) -> str:
    """CSS that fills a box as layers of that kind are drawn: colour, pattern and an outline."""
    line = f"color-mix(in srgb, {colours.background} 70%, transparent)"
    style = f"background-color:{colours.kinds[kind]};"
    if kind in PATTERNS:
        style += f"background-image:{PATTERNS[kind].format(line=line)};"
    if kind in _PATTERN_SIZE:
        style += f"background-size:{_PATTERN_SIZE[kind]};"
    edge = "dashed" if kind in ("shared", "none") else "solid"
    outline = colours.muted if kind in ("shared", "none") else colours.kinds[kind]
    return style + f"border:1px {edge} {outline};"


def series_colours(main: str, others: Iterable[str], colours: Palette) -> dict[str, tuple[str, str]]:
    """(colour, dash) of each model of a chart: the chosen one always the first colour, the others by their id.

    Two ids that want the same colour are told apart by taking the next free one, in the order of their ids, so that
    the order of choosing never recolours a chart.
    """
    found = {main: (colours.series[0], DASHES[0])}
    free = list(range(1, len(colours.series)))
    for name in sorted(set(others) - {main}):
        if not free:
            free = list(range(1, len(colours.series)))
        wanted = 1 + zlib.crc32(name.encode()) % (len(colours.series) - 1)
        slot = wanted if wanted in free else free[0]
        free.remove(slot)
        found[name] = (colours.series[slot], DASHES[slot % len(DASHES)])
    return found


class Chart(go.Figure):  # type: ignore[misc]
    """A figure from plain dictionaries that plotly checks when it is looked into, and not when it is drawn.

    The check takes plotly 15 to 50 ms a chart, more than everything else that a page does; the tests look into every
    chart. No template is sent, which is nine tenths of a small figure: the style here says all that it would.
    """

    def __init__(self, traces: list[dict[str, Any]], layout: dict[str, Any]) -> None:
        self._spec = {"data": traces, "layout": layout}

    def to_dict(self) -> dict[str, Any]:
        """The figure as it is sent to the browser; not to be changed."""
        return self._spec

    @property
    def checked(self) -> go.Figure:
        """The same as plotly's own figure; ValueError for anything that plotly does not know."""
        return go.Figure(self._spec)

    @property
    def data(self) -> Any:
        return self.checked.data

    @property
    def layout(self) -> Any:
        return self.checked.layout


def figure(traces: list[dict[str, Any]], layout: dict[str, Any], colours: Palette, *, height: int = 460) -> Chart:
    """The figure of these traces in the one chart style."""
    axis = {
        "gridcolor": colours.grid,
        "linecolor": colours.muted,
        "tickfont": {"size": FONT_SIZE, "color": colours.ink},
        "zeroline": False,
        "automargin": True,
    }
    style: dict[str, Any] = {
        "height": height,
        "font": {"family": FONT, "size": FONT_SIZE, "color": colours.ink},
        "paper_bgcolor": colours.background,
        "plot_bgcolor": colours.background,
        "margin": {"l": 8, "r": 12, "t": 20, "b": 8},
        "showlegend": False,
        "dragmode": False,
        "hoverlabel": {"font": {"size": FONT_SIZE, "color": colours.ink}, "bgcolor": colours.background},
    }
    axes = {name: {**axis, **layout[name]} for name in layout if name.startswith(("xaxis", "yaxis"))}
    return Chart(traces, {**style, **layout, **axes})


def chart_config(name: str) -> dict[str, Any]:
    """Plotly options of every chart: an SVG download under `name`, nothing sent anywhere."""
    return {
        "displaylogo": False,
        "showSendToCloud": False,
        "scrollZoom": False,
        "modeBarButtonsToRemove": ["select2d", "lasso2d", "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "autoScale2d",
                                   "resetScale2d"],
        "toImageButtonOptions": {"format": "svg", "filename": name, "scale": 1},
    }  # fmt: skip
