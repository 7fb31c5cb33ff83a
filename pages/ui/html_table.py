"""Tables for reading: HTML that wraps its words, scrolls sideways on a phone and is a table to a screen reader."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

STYLE = """<style>
.kv-scroll{overflow-x:auto;max-width:100%}
.kv-table{border-collapse:collapse;font-size:1rem;line-height:1.4;width:100%}
.kv-table th,.kv-table td{text-align:left;vertical-align:top;padding:.45rem .8rem;border-bottom:1px solid
  color-mix(in srgb,currentColor 18%,transparent)}
.kv-table th{font-weight:400}
.kv-table thead th,.kv-table tr.on th{font-weight:600}
.kv-table thead th{vertical-align:bottom;border-bottom-width:2px}
.kv-table .n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.kv-table tr.on{box-shadow:inset 4px 0 0 currentColor}
.kv-table tr.on td.n{font-weight:600}
.kv-table small{display:block;font-size:.875rem;font-weight:400;opacity:.86}
.kv-table .w{min-width:12rem}
</style>"""


def table(
    caption: str,
    columns: Sequence[tuple[str, str]],
    rows: Sequence[Sequence[str | tuple[str, str]]],
    chosen: int | None = None,
) -> str:
    """HTML of a table that can be scrolled by keyboard. A column is (title, class: `n` numbers, `w` words, or empty).

    A cell is a text or (text, small text below it); all are escaped. The first cell of a row names it.
    """
    head = "".join(f"<th scope='col' class='{kind}'>{escape(title)}</th>" for title, kind in columns)
    body = []
    for at, row in enumerate(rows):
        cells = []
        for place, (cell, (_, kind)) in enumerate(zip(row, columns, strict=True)):
            text, small = (cell, "") if isinstance(cell, str) else cell
            inner = escape(text) + (f"<small>{escape(small)}</small>" if small else "")
            cells.append(
                f"<th scope='row' class='{kind}'>{inner}</th>" if place == 0 else f"<td class='{kind}'>{inner}</td>"
            )
        mark = " class='on'" if at == chosen else ""
        body.append(f"<tr{mark}>{''.join(cells)}</tr>")
    return (
        f"{STYLE}<div class='kv-scroll' role='region' tabindex='0' aria-label='{escape(caption)}'>"
        f"<table class='kv-table'><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )
