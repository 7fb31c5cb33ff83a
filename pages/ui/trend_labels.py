"""Names beside the marks of a crowded chart, placed so that they can be read on a phone and on a wide screen alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pages.ui.plain import in_chart
from pages.ui.theme import FONT_SIZE, Palette

# The plot without its axes and key, in pixels, on a phone and on a wide screen: what fits in both fits between, for a
# wider plot moves texts only further apart.
PLOTS = ((285, 420), (1210, 480))
_LETTER, _LETTER_STRONG, _LINE = 6.9, 7.4, 21
_LONGEST = 22
_SIDES = ("left", "right", "center")
_RISES = (0, -26, 26, -44, 44, -64, 64, -88, 88, -116, 116, -150, 150)
_PLACES = [(side, rise) for rise in _RISES for side in _SIDES if rise or side != "center"]
# What a place costs: leaving the plot, lying on another text, a leader across another, hiding one mark, a pixel of
# distance.
_OUTSIDE, _ON_TEXT, _ACROSS, _ON_MARK, _A_PIXEL = 200.0, 100.0, 5.0, 1.0, 0.04
_ALONG = (0.25, 0.45, 0.65, 0.85)
"""Where a leader counts as a mark that no other text should hide."""
_BESIDE = {"left": 12, "right": -12, "center": 0}
_TOO_BAD = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """A text for the point at `x` and `y` in axis units; one that is not `needed` is left out where it would disturb.

    `strong` is for the models that the reader chose.
    """

    x: float
    y: float
    text: str
    strong: bool = False
    needed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What a plot shows, in axis units; texts stay above `floor`."""

    left: float
    right: float
    bottom: float
    top: float
    floor: float

    def share(self, x: float, y: float) -> tuple[float, float]:
        """A point as shares of the plot's width, from the left, and of its height, from above."""
        return (x - self.left) / (self.right - self.left), (self.top - y) / (self.top - self.bottom)


def short(name: str) -> str:
    """A name that a phone has room for, cut at a space."""
    if len(name) <= _LONGEST:
        return name
    return f"{name[:_LONGEST].rsplit(' ', 1)[0]}…"


def arrange(
    labels: Sequence[Label], marks: Sequence[tuple[float, float]], window: Window, colours: Palette
) -> list[dict[str, Any]]:
    """Annotations for the labels, the first having the first choice of place; `marks` are points to leave in sight."""
    return [note for _, note in arranged(labels, marks, window, colours)]


def arranged(
    labels: Sequence[Label], marks: Sequence[tuple[float, float]], window: Window, colours: Palette
) -> list[tuple[np.ndarray, dict[str, Any]]]:
    """Each label that found a place: its box on each of PLOTS as (left, right, top, bottom) pixels, its annotation."""
    plots = np.array(PLOTS, dtype=float)
    spots = np.array([window.share(*mark) for mark in marks]).reshape(-1, 2) * plots[:, None, :]
    floors = window.share(window.left, window.floor)[1] * plots[:, 1]
    found: list[tuple[np.ndarray, dict[str, Any]]] = []
    leaders: list[tuple[np.ndarray, np.ndarray]] = []
    for label in labels:
        anchor = np.array(window.share(label.x, label.y)) * plots
        tails = anchor + np.array([(_BESIDE[side], rise) for side, rise in _PLACES], dtype=float)[:, None, :]
        boxes = _boxes(tails, len(short(label.text)) * (_LETTER_STRONG if label.strong else _LETTER) + 4)
        costs = _costs(boxes, [taken for taken, _ in found], spots, plots, floors)
        for other in leaders:
            costs = costs + _ACROSS * _cross(anchor, tails, *other).sum(axis=-1)
        best = int(np.argmin(costs))
        if label.needed or costs[best] < _TOO_BAD:
            leaders.append((anchor, tails[best]))
            along = [anchor + part * (tails[best] - anchor) for part in _ALONG]
            spots = np.concatenate([spots, np.stack(along, axis=1)], axis=1)
            found.append((boxes[best], _note(label, *_PLACES[best], colours)))
    return found


def _boxes(tails: np.ndarray, width: float) -> np.ndarray:
    """(place, plot, 4): where the text would be in every place, at the tail of its leader; y grows downwards."""
    start = np.array([{"left": 0.0, "right": -width, "center": -width / 2}[side] for side, _ in _PLACES])
    left, y = tails[..., 0] + start[:, None], tails[..., 1]
    return np.stack([left, left + width, y - _LINE / 2, y + _LINE / 2], axis=-1)


def _cross(a: np.ndarray, b: np.ndarray, c: np.ndarray, d: np.ndarray) -> np.ndarray:
    """Whether the lines from a to b and from c to d cross, on every plot: each has the other's ends on both sides."""

    def side(start: np.ndarray, end: np.ndarray, point: np.ndarray) -> np.ndarray:
        along, to = end - start, point - start
        return np.asarray(np.sign(along[..., 0] * to[..., 1] - along[..., 1] * to[..., 0]))

    return np.asarray((side(a, b, c) * side(a, b, d) < 0) & (side(c, d, a) * side(c, d, b) < 0))


def _costs(
    boxes: np.ndarray, taken: list[np.ndarray], spots: np.ndarray, plots: np.ndarray, floors: np.ndarray
) -> np.ndarray:
    """What every place costs, on both plots together."""
    left, right, upper, lower = (boxes[..., side] for side in range(4))
    outside = (left < -4) | (right > plots[:, 0] + 4) | (upper < 0) | (lower > floors)
    cost = _OUTSIDE * outside
    for other in taken:
        a, b, c, d = (other[:, side] for side in range(4))
        cost = cost + _ON_TEXT * ((left < b + 4) & (right > a - 4) & (upper < d + 1) & (lower > c - 1))
    x, y = spots[None, :, :, 0], spots[None, :, :, 1]
    hidden = (x > left[..., None] - 5) & (x < right[..., None] + 5)
    hidden &= (y > upper[..., None] - 3) & (y < lower[..., None] + 3)
    cost = cost + _ON_MARK * hidden.sum(axis=-1)
    total: np.ndarray = cost.sum(axis=-1) + _A_PIXEL * np.array([abs(rise) for _, rise in _PLACES])
    return total


def _note(label: Label, side: str, rise: int, colours: Palette) -> dict[str, Any]:
    ink = colours.ink if label.strong else colours.muted
    text = in_chart(short(label.text))
    return {
        "x": label.x, "y": label.y, "ax": _BESIDE[side], "ay": rise,
        "xanchor": side, "yanchor": "middle", "text": f"<b>{text}</b>" if label.strong else text,
        "showarrow": True, "arrowhead": 0, "arrowwidth": 1, "arrowcolor": ink if rise else "rgba(0,0,0,0)",
        "standoff": 10 if label.strong else 6, "borderpad": 1, "bgcolor": colours.background, "opacity": 0.92,
        "font": {"size": FONT_SIZE, "color": ink},
    }  # fmt: skip
