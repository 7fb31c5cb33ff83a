"""The layer strip: one box a layer, so that the eye sees which layers keep what; and where the bytes are."""

from __future__ import annotations

from html import escape

from kvcore.model import Model
from kvcore.units import format_bytes
from pages.ui.theme import Palette, fill_style
from pages.ui.words import Group

_STYLE = """<style>
.kv-strip{display:flex;flex-wrap:wrap;gap:2px;margin:0 0 .3rem}
.kv-ends{display:flex;justify-content:space-between;font-size:.875rem;margin:0 0 .9rem}
.kv-layer{height:36px;display:flex;flex-direction:column;gap:1px}
.kv-layer i{flex:1;border-radius:2px;display:block}
.kv-bar{display:flex;height:20px;gap:2px;margin:.2rem 0 1rem}
.kv-bar i{display:block;border-radius:2px;min-width:3px}
.kv-keys{display:grid;grid-template-columns:auto minmax(0,max-content) auto;justify-content:start;gap:.45rem .8rem;
  align-items:start;margin:0;line-height:1.4}
.kv-keys i{width:16px;height:16px;border-radius:2px;margin-top:.2rem;display:block}
.kv-keys b{font-variant-numeric:tabular-nums;white-space:nowrap;font-weight:600;text-align:right}
</style>"""


def strip(model: Model, rows: tuple[Group, ...], colours: Palette) -> str:
    """HTML of the strip with its legend; colours, patterns and words say the same."""
    count = len(model.layers)
    width = f"clamp(8px, calc((100% - {2 * count}px) / {count}), 22px)"
    cells = "".join(
        f'<span class="kv-layer" style="width:{width}">{"".join(_box(memory.kind, colours) for memory in layer)}</span>'
        for layer in model.layers
    )
    words = escape(describe(model, rows))
    ends = f"<div class='kv-ends' aria-hidden='true'><span>layer 0</span><span>layer {count - 1}</span></div>"
    drawn = f"<div class='kv-strip' role='img' aria-label='{words}'>{cells}</div>{ends}"
    return f"{_STYLE}<div style='max-width:{24 * count}px'>{drawn}</div>{_bar(rows, colours)}{_legend(rows, colours)}"


def _box(kind: str, colours: Palette, more: str = "") -> str:
    return f'<i style="{fill_style(kind, colours)}{more}"></i>'


def _bar(rows: tuple[Group, ...], colours: Palette) -> str:
    """Shares of the bytes side by side, where there is more than one."""
    holders = [row for row in rows if row.bytes]
    if len(holders) < 2:
        return ""
    total = sum(row.bytes for row in holders)
    boxes = "".join(_box(row.kind, colours, f"flex:{row.bytes / total:.4f} 1 0") for row in holders)
    words = ", ".join(f"{row.kind} {_percent(row.bytes / total)}" for row in holders)
    return f"<div class='kv-bar' role='img' aria-label='Share of the bytes: {escape(words)}'>{boxes}</div>"


def describe(model: Model, rows: tuple[Group, ...]) -> str:
    """The strip in words."""
    listed = "; ".join(f"{row.layers} {row.kind}" for row in rows)
    return f"{len(model.layers)} layers, first to last: {listed}"


def _percent(share: float) -> str:
    return "under 1%" if share < 0.005 else f"{share:.0%}"


def _legend(rows: tuple[Group, ...], colours: Palette) -> str:
    total = sum(row.bytes for row in rows)
    lines = []
    for row in rows:
        noun = "layer" if row.layers == 1 else "layers"
        share = f"{format_bytes(row.bytes)} · {_percent(row.bytes / total)}" if row.bytes else "nothing"
        what = f"<strong>{row.layers} {noun}</strong> {escape(row.words)}"
        lines.append(f"{_box(row.kind, colours)}<span>{what}</span><b>{share}</b>")
    return f'<div class="kv-keys">{"".join(lines)}</div>'
