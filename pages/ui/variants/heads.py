"""Query heads and what they read: how many of them share one KV head, one latent, one cache or one state.

What is coloured is kept; query heads are grey, because a query is used once and forgotten. A column is as wide as the
numbers that it keeps for a token, on a scale where a query head's box is as wide as its own K and V would be, so that
sharing shows as less colour; only a column that would be too thin to see is widened. Shapes are boxes and one
background image a block, since Streamlit removes inline SVG; text is text and never scales.
"""

from __future__ import annotations

from html import escape
from urllib.parse import quote

from kvcore.formats import KVFormat
from kvcore.model import Attention, CrossAttention, Indexer, Latent, Memory, Model, NoMemory, State
from pages.ui.size.words import plural
from pages.ui.theme import Palette, fill_style
from pages.ui.variants.head_words import (
    MAX_HEADS,
    MAX_ROWS,
    Block,
    above,
    blocks,
    describe,
    kept_words,
    lower,
    numbers,
    sharing,
    state_part,
    state_shape,
    title,
)

__all__ = ["describe", "diagram"]

# Kinds of layers that are drawn; the others are named.
_MAX_BLOCKS = 3
# A column's cells: the height of one, how many there are, and how many where older tokens are dropped.
_CELL_PX = 12
_CELLS = 9
_LEFT = 4
# The narrowest and the widest box of a query head.
_BOX_PX = (3, 60)
# State matrices that are drawn at most, and how many of them at most under the heads that own them.
_MAX_STATES = 512
_STATES_WITH_HEADS = 64
# How much of its kind's colour the ground of a group has.
_TINT = 0.17
# What may stand unescaped in a quoted data address within a style attribute in apostrophes.
_SAFE = " /:=.,"


def diagram(model: Model, colours: Palette, kv: KVFormat | None = None, source_tokens: int | None = None) -> str:
    """HTML of what query heads share, for `st.html`; sizes in bytes where `kv` says the cache's format.

    At most three kinds of layers are drawn, those with the most layers; the others are named. `source_tokens` replaces
    the model's own number of source tokens. Raises UnitError where a format does not suit the model.
    """
    found = blocks(model)
    kept = [block for block in found if block.main.kind != "none"]
    drawn = sorted(kept or found, key=lambda block: -block.layers)[:_MAX_BLOCKS]
    alone = len(drawn) == 1
    panels = "".join(_panel(block, model, colours, kv, source_tokens, alone) for block in found if block in drawn)
    least = max(_least_width(block, model) for block in drawn) if drawn else 0
    theme = f"--m:{colours.muted};--q:{_mix(colours.ink, colours.background, 0.14)};--l:{min(1100, max(400, least))}px"
    more = [
        f"{plural(block.layers, 'more layer')}: {lower(sharing(block, model))}."
        for block in found
        if block not in drawn
    ]
    if any(not isinstance(block.main, State) for block in drawn):
        more.append("Grey: queries, used once and forgotten.")
    if kept:
        more.append("Coloured: what stays in memory.")
    note = f"<p class='kv-more' style='{theme}'>{escape(' '.join(more))}</p>" if more else ""
    alternative = f"<span class='kv-alt' role='img' aria-label='{escape(describe(model, source_tokens))}'></span>"
    return f"{alternative}<div class='kv-heads' style='{theme}'>{panels}</div>{note}"


def _panel(block: Block, model: Model, colours: Palette, kv: KVFormat | None, source: int | None, alone: bool) -> str:
    first, second = title(block, model, source, alone)
    main = block.main
    picture = _states(main, colours) if isinstance(main, State) else _heads(block, model, colours)
    sums = "".join(f"<p class='w'>{escape(line)}</p>" for line in numbers(block, model, kv, source))
    return (
        f"<section><p class='t'>{escape(first)}</p><p class='w'>{escape(second[:1].upper() + second[1:])}</p>"
        f"<p class='a'>{escape(above(block, model))}</p><div aria-hidden='true'>{picture}</div>"
        f"<p class='z'>{escape(kept_words(block, source))}</p>{sums}</section>"
    )


def _heads(block: Block, model: Model, colours: Palette) -> str:
    """Groups of query heads, each over the columns that it reads."""
    main, queries = block.main, model.num_attention_heads
    groups, each = _groups(main, queries)
    columns: list[Memory] = [memory for memory in block.memories if not isinstance(memory, State)]
    if isinstance(main, Attention | CrossAttention):
        # An index key belongs to no KV head: it is said in words.
        columns = [main]
        if groups == 1:
            # How unequal groups would share is not known: all heads stand over all columns.
            columns = columns * min(main.num_kv_heads, MAX_HEADS)
    shown = min(groups, max(1, MAX_HEADS // max(1, each)))
    unit = _unit(model)
    widths = [_width(memory) / unit for memory in columns]
    # A column that a whole group reads stays wide enough to be seen; columns side by side keep their proportions.
    least = [(14 if each >= 4 else 4) * width / max(widths) for width in widths]
    rows = "<i class='q'></i>" * each
    reading = "<i class='q r'></i>" * each
    heads = f"<span class='h'>{rows}</span>" + f"<span class='h'>{reading}</span>" * min(block.readers, MAX_ROWS - 1)
    looks = [
        f"{_look(memory.kind, colours)};--w:{width:.3f};--v:{low:.0f}px;{_cells(memory)}"
        for memory, width, low in zip(columns, widths, least, strict=True)
    ]
    # The first column's look is the block's; the others, if they differ, bring their own.
    own = ["" if look == looks[0] else f" style='{look}'" for look in looks]
    cells = "".join(
        f"<span class='c'{look}>{_column(memory)}</span>" for memory, look in zip(columns, own, strict=True)
    )
    join = f"<b class='f'></b><span class='cs'>{cells}</span>"
    group = f"<span class='g'>{heads if each else ''}{join}</span>"
    fan = _fan(each, min(1.0, sum(widths) / max(1, each)), main.kind, colours)
    tint = _mix(colours.kinds[main.kind], colours.background, _TINT) if each > 1 and main.kind != "none" else "none"
    size = _sizes(shown, each)
    return f"<div class='gs' style='{looks[0]};--t:{tint};{size};--fan:{fan}'>{group * shown}</div>"


def _groups(main: Memory, queries: int) -> tuple[int, int]:
    """Groups of query heads that read the same columns, and how many heads of each are drawn."""
    heads = main.num_kv_heads if isinstance(main, Attention | CrossAttention) else 1
    groups = 1 if queries % heads else heads
    return groups, min(max(1, queries // groups), MAX_HEADS) if queries else 0


def _unit(model: Model) -> int:
    """Numbers of one token that a query head's box stands for: K and V of one head, the widest that the model has."""
    own = [memory.head_dim + memory.v_head_dim for memory, _ in model.groups if isinstance(memory, Attention)]
    return max(own, default=(model.key_head_dim or model.head_dim) + model.head_dim) or 1


def _width(memory: Memory) -> int:
    """Numbers of one entry of one column."""
    if isinstance(memory, Attention):
        return memory.head_dim + memory.v_head_dim
    if isinstance(memory, CrossAttention):
        return 2 * memory.head_dim
    if isinstance(memory, Latent):
        return memory.width
    return memory.index_head_dim if isinstance(memory, Indexer) else 1


def _least_width(block: Block, model: Model) -> int:
    """The narrowest panel in which the query heads of a block stand in one row and can still be counted, in pixels."""
    if isinstance(block.main, State):
        return 0
    groups, each = _groups(block.main, model.num_attention_heads)
    gap, pad, inner = _gaps(groups, each)
    return groups * (gap + 2 * pad + each * (inner + _BOX_PX[0] + 1))


def _gaps(groups: int, each: int) -> tuple[int, int, int]:
    """The gap between groups, the padding of one and the gap within one, in pixels, where there is room."""
    return (3, 0, 0) if each <= 1 else (10 if groups <= 16 else 6, 5, 2)


def _sizes(groups: int, each: int) -> str:
    """CSS of box widths and gaps: one row where it fits, and as many as it takes on a narrow screen."""
    gap, pad, inner = _gaps(groups, each)
    # On a phone gaps shrink before boxes do; 100cqw is the panel's width.
    between = f"clamp({1 if each <= 1 else 2}px,{gap / 12:.2f}cqw,{gap}px)"
    edge_gap, within = f"clamp(0px,{pad / 10:.1f}cqw,{pad}px)", f"clamp(0px,{inner / 8:.2f}cqw,{inner}px)"
    gaps = f"{groups - 1}*{between} - {2 * groups}*{edge_gap} - {groups * max(0, each - 1)}*{within} - 2px"
    least, most = _BOX_PX
    box = f"clamp({least}px,calc((100cqw - {gaps})/{max(1, groups * each)}),{most}px)"
    rise = 18 if each <= 1 else 36 if each <= 4 else 48 if each <= 16 else 80
    return f"--b:{box};--gg:{between};--hg:{within};--pad:{edge_gap};--fh:{rise}px"


def _column(memory: Memory) -> str:
    """One column, the oldest token on top: a dashed part is dropped, an end that fades goes on growing."""
    if isinstance(memory, NoMemory):
        return "<i class='o'></i>"
    if memory.kind in ("sliding", "chunked"):
        return "<i class='o'></i><i class='k'></i>"
    return "<i class='k'></i>" if memory.kind == "cross" else "<i class='k e'></i>"


def _cells(memory: Memory) -> str:
    """CSS variables of a column's cells, number and height; an entry for several tokens is a tall one."""
    if memory.kind in ("sliding", "chunked"):
        return f"--n:{_LEFT};--y:{_CELL_PX}px"
    if isinstance(memory, Latent | Indexer) and memory.tokens_per_entry > 1:
        return f"--n:{_CELLS // 3};--y:{3 * _CELL_PX}px"
    return f"--n:{_CELLS};--y:{_CELL_PX}px"


def _states(state: State, colours: Palette) -> str:
    """One square a state matrix, under the head that owns it; one rectangle where a state has no heads."""
    shape = state_part(state).shape
    count, _ = state_shape(state)
    look = _look("state", colours)
    if count == 1:
        height = 16 if len(shape) == 1 else 72
        return f"<div class='gs' style='{look};--one:{height}px'><i class='x one'></i></div>"
    shown, heads = min(count, _MAX_STATES), count <= _STATES_WITH_HEADS
    rows = -(-shown // (16 if shown <= 32 else 32))
    columns = -(-shown // rows)
    above = "<i class='q s'></i><b class='f'></b>" if heads else ""
    box = f"min({_BOX_PX[1]}px,calc((100cqw - {3 * columns}px)/{columns}))"
    sizes = f"--b:{box};--n:{columns};--rg:{14 if heads else 4}px;--fh:16px;--ar:{shape[2]}/{shape[1]}"
    group = f"<span class='g'>{above}<i class='x'></i></span>"
    return f"<div class='ss' style='{look};{sizes};--fan:{_fan(1, 1.0, 'state', colours)}'>{group * shown}</div>"


# Colours and shapes


def _look(kind: str, colours: Palette) -> str:
    """CSS variables of a kind's colour, pattern and edge; the pattern is the one of the layer strip."""
    style = dict(part.split(":", 1) for part in fill_style(kind, colours).split(";") if part)
    pattern, size = style.get("background-image", "none"), style.get("background-size", "auto")
    return f"--c:{colours.kinds[kind]};--e:{edge(kind, colours)};--p:{pattern};--s:{size}"


def edge(kind: str, colours: Palette) -> str:
    """The outline of what is kept: the kind's colour, moved towards the ink until it stands out from the page."""
    return _mix(colours.ink, colours.kinds[kind], 0.35)


def _mix(one: str, other: str, share: float) -> str:
    """`#rrggbb` with that share of the first colour."""
    pairs = ((int(one[at : at + 2], 16), int(other[at : at + 2], 16)) for at in (1, 3, 5))
    return "#" + "".join(f"{round(a * share + b * (1 - share)):02X}" for a, b in pairs)


def _fan(heads: int, foot: float, kind: str, colours: Palette) -> str:
    """The joint between a group's heads and its columns, as a CSS image: a line a head over a tinted funnel."""
    low, high = 50 - 50 * foot, 50 + 50 * foot
    tint = "none" if kind == "none" or heads <= 1 else _mix(colours.kinds[kind], colours.background, _TINT)
    ends = [(100 * (at + 0.5) / heads, 50 + (high - low) / 2 * ((at + 0.5) / heads - 0.5)) for at in range(heads)]
    lines = [_curve(top, bottom) for top, bottom in ends]
    # Many lines in one place would be a blot: those inside are light, the two outermost say where the fan ends.
    inside = 1 if heads <= 8 else 0.7 if heads <= 16 else 0.45
    image = (
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 100 100' preserveAspectRatio='none'>"
        f"<path d='M0 0H100C100 60 {_short(high)} 40 {_short(high)} 100H{_short(low)}C{_short(low)} 40 0 60 0 0Z'"
        f" fill='{tint}'/><g fill='none' stroke='{colours.muted}' stroke-width='1.2'>"
        f"<path d='{''.join(lines[1:-1])}' vector-effect='non-scaling-stroke' stroke-opacity='{inside}'/>"
        f"<path d='{''.join(lines[:1] + lines[1:][-1:])}' vector-effect='non-scaling-stroke'/></g>"
        "</svg>"
    )
    return f"url(&quot;data:image/svg+xml,{quote(image, safe=_SAFE)}&quot;)"


def _curve(top: float, bottom: float) -> str:
    """A line that leaves a head and enters a column upright."""
    return f"M{_short(top)} 0C{_short(top)} 60 {_short(bottom)} 40 {_short(bottom)} 100"


def _short(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
