"""The ladder of bars, and how its rungs look on every chart: by what they keep."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from kvcore.model import Model
from kvcore.units import format_bytes
from kvcore.variants.ladder import Rung
from pages.ui.text import in_chart
from pages.ui.theme import FONT_SIZE, Palette, figure
from pages.ui.variants import words
from pages.ui.variants.heads import edge

# What a rung is drawn as: the first of these that any of its layers keeps.
_ORDER = ("state", "compressed", "latent", "chunked", "sliding", "full", "cross", "none")
_PATTERNS = {"state": "-", "latent": ".", "compressed": "x", "sliding": "/", "chunked": "|", "full": "", "cross": "+"}
# Above this ratio the smallest bars could not be seen on a linear scale.
_LINEAR_UP_TO = 40
_ROW = 52
# How much of the width the bars take; what they hold is written beside them, also on a phone.
_BARS = 0.54


def kind_of(model: Model) -> str:
    """The kind of memory that a model's bar and line stand for."""
    kinds = {kind for kind, _ in model.kinds}
    return next((kind for kind in _ORDER if kind in kinds), "none")


def ladder_chart(rungs: Sequence[Rung], chosen: Rung, colours: Palette) -> tuple[go.Figure, str]:
    """(figure, text alternative): a bar a rung, most bytes on top, with its factor against MHA."""
    held = [rung.resident_bytes for rung in rungs]
    positive = [value for value in held if value]
    logarithmic = bool(positive) and max(positive) > _LINEAR_UP_TO * min(positive)
    low = min(positive, default=1) / 3 if logarithmic else 0
    places = list(range(len(rungs)))[::-1]
    kinds = [kind_of(rung.model) for rung in rungs]
    bars: dict[str, Any] = {
        "type": "bar",
        "orientation": "h",
        "x": [max(value, low) for value in held],
        "y": places,
        "width": 0.46,
        "marker": {
            "color": [colours.kinds[kind] for kind in kinds],
            "line": {
                "color": [
                    colours.ink if rung is chosen else edge(kind, colours)
                    for rung, kind in zip(rungs, kinds, strict=True)
                ],
                "width": [3 if rung is chosen else 1 for rung in rungs],
            },
            "pattern": {"shape": [_PATTERNS.get(kind, "") for kind in kinds], "fgcolor": colours.background,
                        "size": 7, "solidity": 0.25},
        },
        "text": [_end(rung, chosen) for rung in rungs],
        "textposition": "outside",
        "textfont": {"size": FONT_SIZE, "color": colours.ink},
        "cliponaxis": False,
        "customdata": [in_chart(words.keeps(rung.model)) for rung in rungs],
        "hovertemplate": "%{text}<br>%{customdata}<extra></extra>",
    }  # fmt: skip
    high = max(held, default=1) or 1
    decades = math.log10(high) - math.log10(low) if logarithmic else 0
    scale: dict[str, Any] = (
        {"type": "log", "range": [math.log10(low), math.log10(low) + decades / _BARS]}
        if logarithmic
        else {"range": [0, high / _BARS]}
    )
    names = [
        {"text": _name(rung, chosen), "x": 0, "xref": "paper", "xanchor": "left", "y": place + 0.26,
         "yanchor": "bottom",
         "showarrow": False, "borderpad": 0, "font": {"size": FONT_SIZE, "color": colours.ink}}
        for rung, place in zip(rungs, places, strict=True)
    ]  # fmt: skip
    layout = {
        "annotations": names,
        "xaxis": {**scale, "showticklabels": False, "showgrid": False, "fixedrange": True},
        "yaxis": {
            "range": [-0.4, len(rungs) - 0.25],
            "showticklabels": False,
            "showgrid": False,
            "fixedrange": True,
        },
        "margin": {"l": 2, "r": 8, "t": 4, "b": 4},
    }
    described = "; ".join(f"{words.label(rung)} {_plain(rung)}" for rung in rungs)
    scale_words = " Logarithmic scale." if logarithmic else ""
    return figure([bars], layout, colours, height=_ROW * len(rungs) + 24), f"Cache by design: {described}.{scale_words}"


def is_logarithmic(rungs: Sequence[Rung]) -> bool:
    """Whether the ladder's bars stand on a logarithmic scale."""
    positive = [rung.resident_bytes for rung in rungs if rung.resident_bytes]
    return bool(positive) and max(positive) > _LINEAR_UP_TO * min(positive)


def _name(rung: Rung, chosen: Rung) -> str:
    name = in_chart(words.label(rung))
    return f"<b>{name}</b>" if rung is chosen else name


def _end(rung: Rung, chosen: Rung) -> str:
    """What it holds, and the factors against MHA and against the shipped model."""
    text = f"<b>{format_bytes(rung.resident_bytes)}</b>" if rung is chosen else format_bytes(rung.resident_bytes)
    factors = [
        "1×" if factor == 1 else words.times(factor) for factor in (rung.factor_mha, rung.factor_shipped) if factor
    ]
    return f"{text}  {' · '.join(factors)}"


def _plain(rung: Rung) -> str:
    factor = "" if rung.factor_mha is None else f", {words.factor_words(rung.factor_mha)} than MHA"
    return f"{format_bytes(rung.resident_bytes)}{factor.replace('as much than', 'as much as')}"
