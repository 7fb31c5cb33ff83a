"""Where each GPU's memory goes: one bar for each group of ranks that look alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from kvcore.planning.plan import Plan
from kvcore.planning.pools import Pool
from kvcore.units import GIB, format_bytes
from pages.ui.text import in_chart
from pages.ui.theme import FONT_SIZE, Chart, Palette, figure

_ROW = 66
# What tells the parts apart without colour.
_PATTERNS = {"overhead": "/", "range": "/", "missing": "x", "system": "."}
_NAMES = {
    "weights": "weights", "draft": "draft model or prediction layers",
    "overhead": "overhead, at least", "range": "overhead or cache, not certain",
    "used": "cache in use", "free": "cache free", "system": "left to the system", "missing": "missing",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryShare:
    """The memory of one GPU of a group, in bytes, at the safe end; `range` is overhead or cache, nobody knows.

    `draft` are the weights of what proposes tokens ahead. `missing` lacks for the requests that were asked for, `used`
    is what they take of the pool.
    """

    name: str
    weights: int
    draft: int
    overhead: int
    range: int
    used: int
    free: int
    system: int
    missing: int

    @property
    def parts(self) -> list[tuple[str, int]]:
        """The parts in the order in which they are drawn, empty ones left out."""
        return [(part, value) for part in _NAMES if (value := getattr(self, part)) > 0]


def shares(plan: Plan) -> tuple[MemoryShare, ...]:
    """One for each pipeline stage."""
    per_replica = -(-(plan.users or 0) // plan.deployment.dp)
    layout = plan.layout
    wanted = 0 if layout is None else layout.fixed_bytes + per_replica * layout.bytes_per_request
    return tuple(_share(pool, wanted, len(plan.pools)) for pool in plan.pools)


def _share(pool: Pool, wanted: int, stages: int) -> MemoryShare:
    low, high = max(0, pool.kv_bytes.low), max(0, pool.kv_bytes.high)
    used = min(wanted, low)
    overhead = pool.overheads.total.low
    # Weights and overheads that are more than there is leave nothing, and lack beside what the requests lack.
    lacking = max(0, -pool.kv_bytes.low)
    system = max(0, pool.total_bytes - pool.weights_bytes - overhead - high)
    draft = pool.drafted[1]
    own = pool.weights_bytes - draft
    if lacking:
        room = max(0, pool.total_bytes - min(pool.weights_bytes, pool.total_bytes))
        return MemoryShare(
            name=_name(pool, stages), weights=min(own, pool.total_bytes),
            draft=min(draft, max(0, pool.total_bytes - own)),
            overhead=min(overhead, room), range=0, used=0, free=0, system=0, missing=lacking + wanted,
        )  # fmt: skip
    return MemoryShare(
        name=_name(pool, stages),
        weights=own,
        draft=draft,
        overhead=overhead,
        range=high - low,
        used=used,
        free=low - used,
        system=system,
        missing=max(0, wanted - low),
    )


def _name(pool: Pool, stages: int) -> str:
    if stages > 1 and pool.gpus == 1:
        return f"GPU {pool.stage + 1} of {stages}"
    each = "the GPU" if pool.gpus == 1 else f"each of {pool.gpus:,} GPUs"
    return f"{each}, stage {pool.stage + 1} of {stages}" if stages > 1 else each


def memory_chart(found: Sequence[MemoryShare], total: int, colours: Palette) -> tuple[Chart, str]:
    """(figure, text alternative): stacked bars to scale, with a line at the end of the GPU's memory."""
    ends = [sum(value for _, value in share.parts) / GIB for share in found]
    end = max([total / GIB, *ends])
    places = list(range(len(found)))[::-1]
    traces = [
        _trace(part, [getattr(share, part) for share in found], places, found, colours)
        for part in _NAMES
        if any(getattr(share, part) > 0 for share in found)
    ]
    several = len(found) > 1
    notes = [
        {"text": in_chart(share.name), "x": 0, "xref": "paper", "xanchor": "left", "y": place + 0.3,
         "yanchor": "bottom", "showarrow": False, "borderpad": 0, "font": {"size": FONT_SIZE, "color": colours.ink}}
        for share, place in zip(found, places, strict=True)
        if several
    ]  # fmt: skip
    line = {"type": "line", "x0": total / GIB, "x1": total / GIB, "yref": "paper", "y0": 0, "y1": 1,
            "line": {"color": colours.ink, "width": 2}}  # fmt: skip
    layout = {
        "barmode": "stack",
        "annotations": notes,
        "shapes": [line],
        "uniformtext": {"minsize": 13, "mode": "hide"},
        "xaxis": {"range": [0, end * 1.004], "fixedrange": True, "ticksuffix": " GiB", "nticks": 6},
        "yaxis": {"range": [-0.42, len(found) - (0.35 if several else 0.55)], "showticklabels": False,
                  "showgrid": False, "fixedrange": True},
        "margin": {"l": 2, "r": 10, "t": 4, "b": 8},
    }  # fmt: skip
    height = _ROW * len(found) + (60 if several else 44)
    return figure(
        traces, layout, colours, height=height
    ), f"Memory of a GPU of {format_bytes(total, 1)}. {_said(found)}"


def _trace(
    part: str, values: list[int], places: list[int], found: Sequence[MemoryShare], colours: Palette
) -> dict[str, Any]:
    fill = colours.parts["overhead" if part == "range" else part]
    ink = colours.ink if part in ("free", "system", "range") else colours.background
    hatched = part in _PATTERNS
    name = _NAMES[part]
    marker: dict[str, Any] = {"color": fill, "line": {"color": colours.background, "width": 1.5}}
    if hatched:
        back = colours.background if part == "range" else fill
        lines = fill if part == "range" else colours.background
        marker |= {
            "color": back,
            "pattern": {"shape": _PATTERNS[part], "fgcolor": lines, "bgcolor": back, "size": 8, "solidity": 0.28},
        }
        if part == "range":
            marker["line"] = {"color": fill, "width": 1.5}
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "x": [value / GIB for value in values],
        "y": places,
        "width": 0.56,
        "marker": marker,
        # Words on hatching cannot be read: those parts are named below.
        "text": ["" if hatched else f"{_short(part)} {format_bytes(value, 1)}" for value in values],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "textfont": {"size": FONT_SIZE, "color": ink},
        "customdata": [
            f"{in_chart(share.name)}: {name} {format_bytes(value)}" for share, value in zip(found, values, strict=True)
        ],
        "hovertemplate": "%{customdata}<extra></extra>",
    }  # fmt: skip


def _short(part: str) -> str:
    return {"used": "in use", "free": "free"}.get(part, part)


def _said(found: Sequence[MemoryShare]) -> str:
    """The bars in words."""
    parts = []
    for share in found:
        amounts = ", ".join(f"{_NAMES[part]} {format_bytes(value, 1)}" for part, value in share.parts)
        parts.append(f"{share.name[:1].upper()}{share.name[1:]}: {amounts}")
    return f"{'. '.join(parts)}."


def legend(found: Sequence[MemoryShare], colours: Palette) -> str:
    """HTML: what each colour and hatching is, with its amount on the GPU where it is most."""
    items = []
    for part, name in _NAMES.items():
        value = max(getattr(share, part) for share in found)
        if value > 0:
            items.append(f"<span>{_box(part, colours)}{escape(name)} <b>{format_bytes(value, 1)}</b></span>")
    return f"<div class='kv-parts'>{''.join(items)}</div>"


def _box(part: str, colours: Palette) -> str:
    fill = colours.parts["overhead" if part == "range" else part]
    if part in ("overhead", "missing", "range"):
        one, other = (colours.background, fill) if part == "range" else (fill, colours.background)
        share = "5px" if part == "range" else "3px"
        look = f"repeating-linear-gradient(135deg,{one} 0 {share},{other} {share} 7px);border:1px solid {fill}"
    elif part == "system":
        dots = f"radial-gradient({colours.background} 1.2px,{fill} 1.6px) 0 0/5px 5px"
        look = f"{dots};border:1px solid {colours.muted}"
    else:
        look = f"{fill};border:1px solid {colours.muted if part in ('free', 'system') else fill}"
    return f"<i style='background:{look}'></i>"


def rows(found: Sequence[MemoryShare]) -> list[dict[str, object]]:
    """The same for a file, in bytes."""
    return [
        {"GPUs": share.name, **{f"{name}, bytes": getattr(share, part) for part, name in _NAMES.items()}}
        for share in found
    ]  # fmt: skip
