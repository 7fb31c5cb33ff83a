"""Tables for reading: HTML that wraps its words, and is a table to a screen reader.

On a phone each row is a card of its own, its cells below each other with the titles of their columns: nothing scrolls
sideways. Roles are written out, because a table that is laid out otherwise is none to browsers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
.kv-table small a{color:inherit;text-decoration:underline}
.kv-table .w{min-width:12rem}
@media (max-width:640px){
.kv-table,.kv-table tbody{display:block}
.kv-table thead{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
.kv-table tr{display:block;padding:.6rem .2rem;border-bottom:1px solid color-mix(in srgb,currentColor 30%,transparent)}
.kv-table tr.on{padding-left:.8rem}
.kv-table tbody th,.kv-table tbody td{display:grid;grid-template-columns:minmax(0,10fr) minmax(0,12fr);gap:0 .8rem;
  border:0;padding:.15rem 0;min-width:0;white-space:normal;text-align:left;overflow-wrap:anywhere}
.kv-table tbody th{display:block;font-weight:600}
.kv-table tbody .n{text-align:left;white-space:normal}
.kv-table .w{min-width:0}
.kv-table td::before{content:attr(data-title);opacity:.86}
.kv-table td.bare{display:block}
.kv-table td.none{display:none}
.kv-table td small{grid-column:2}
}
</style>"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cited:
    """A cell with its sources below: (name, address) of each, the address empty where there is none to go to."""

    text: str
    sources: tuple[tuple[str, str], ...]


Cell = str | tuple[str, str] | Cited


def table(
    caption: str,
    columns: Sequence[tuple[str, str]],
    rows: Sequence[Sequence[Cell]],
    chosen: int | None = None,
) -> str:
    """HTML of a table that a keyboard can scroll where it is wider than its place.

    A column is (title, class: `n` numbers, `w` words, or empty). A cell is a text, (text, small text below it) or
    Cited; all are escaped. The first cell of a row names it.
    """
    head = "".join(
        f"<th scope='col' role='columnheader' class='{kind}'>{escape(title)}</th>" for title, kind in columns
    )
    body = []
    for at, row in enumerate(rows):
        placed = enumerate(zip(row, columns, strict=True))
        cells = "".join(_cell(cell, title, kind, first=not place) for place, (cell, (title, kind)) in placed)
        mark = " class='on'" if at == chosen else ""
        body.append(f"<tr role='row'{mark}>{cells}</tr>")
    name = escape(caption)
    return (
        f"{STYLE}<div class='kv-scroll' role='region' tabindex='0' aria-label='{name}'>"
        f"<table class='kv-table' role='table' aria-label='{name}'><thead role='rowgroup'><tr role='row'>{head}</tr>"
        f"</thead><tbody role='rowgroup'>{''.join(body)}</tbody></table></div>"
    )


def _cell(cell: Cell, title: str, kind: str, *, first: bool) -> str:
    """A cell, with the title that it has on a phone; one that is empty is left out there."""
    if isinstance(cell, Cited):
        text, small = cell.text, " · ".join(_source(name, address) for name, address in cell.sources)
    else:
        text, small = (cell, "") if isinstance(cell, str) else (cell[0], escape(cell[1]))
    inner = escape(text) + (f"<small>{small}</small>" if small else "")
    if first:
        return f"<th scope='row' role='rowheader' class='{kind}'>{inner}</th>"
    look = " ".join(one for one in (kind, "" if title else "bare", "" if inner else "none") if one)
    return f"<td role='cell' class='{look}' data-title='{escape(title)}'>{inner}</td>"


def _source(name: str, address: str) -> str:
    if not address.startswith("https://"):
        return escape(name)
    return f"<a href='{escape(address)}' target='_blank' rel='noopener'>{escape(name)}</a>"
