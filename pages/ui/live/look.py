"""What colours mean on the Live screen, and how times and sizes are written there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvcore.units import is_whole
from pages.ui.live.progress import CACHE, RECOMPUTE
from pages.ui.theme import Palette

SIDE_NAMES = {CACHE: "with the cache", RECOMPUTE: "without it, recomputed"}
SHAPES = {CACHE: "dot", RECOMPUTE: "square"}
MARKS = ("dot", "square", "diamond", "ring")
# Colour and mark of each attention in a race, by the word that its name begins with.
_VARIANTS = {"mha": (1, "dot"), "shipped": (0, "ring"), "gqa": (0, "dot"), "mqa": (2, "square"), "mla": (3, "diamond"),
             "sliding": (4, "ring")}  # fmt: skip
_SPARE = (5, "square")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fill:
    """How an area is filled: a colour, with stripes of another one; `edge` is the line above it."""

    colour: str
    stripe: str = ""
    edge: str = ""

    @property
    def css(self) -> str:
        if not self.stripe:
            return self.colour
        return f"repeating-linear-gradient(135deg,{self.stripe} 0 2px,{self.colour} 2px 8px)"


def colour_of(mode: str, colours: Palette) -> str:
    """The colour of what was made with the cache, or without."""
    return colours.series[0] if mode == CACHE else colours.series[1]


def soft(colour: str, share: int, colours: Palette) -> str:
    """That much percent of a colour on the background."""
    return _mixed(colour, colours.background, share / 100)


def _mixed(one: str, other: str, share: float) -> str:
    pairs = ((int(one[at : at + 2], 16), int(other[at : at + 2], 16)) for at in (1, 3, 5))
    return "#" + "".join(f"{round(share * first + (1 - share) * second):02X}" for first, second in pairs)


def text_colour(colour: str, colours: Palette) -> str:
    """A colour moved towards the ink until text in it can be read (4.5:1)."""
    return _mixed(colour, colours.ink, 0.72)


def hatched(colour: str, colours: Palette) -> Fill:
    """A fill for what is reserved and not yet used."""
    return Fill(colour=soft(colour, 12, colours), stripe=soft(colour, 34, colours), edge=colour)


def variant_look(variant: str, colours: Palette) -> tuple[str, str]:
    """(colour, shape of the marks) of an attention."""
    at, shape = _VARIANTS.get(variant.partition(":")[0], _SPARE)
    return colours.series[at], shape


def variant_looks(variants: Sequence[str], colours: Palette) -> dict[str, tuple[str, str]]:
    """The same for those of one chart: of two in one colour, each has a mark of its own while there are marks."""
    found: dict[str, tuple[str, str]] = {}
    for variant in dict.fromkeys(variants):
        colour, shape = variant_look(variant, colours)
        taken = {one for other, one in found.values() if other == colour}
        found[variant] = (colour, next((one for one in (shape, *MARKS) if one not in taken), shape))
    return found


def variant_name(variant: str, shipped: str = "") -> str:
    """An attention as it is called: `gqa:4` is GQA with 4 KV heads."""
    name, _, more = variant.partition(":")
    if name == "shipped":
        return f"as shipped, {shipped}" if shipped and shipped != "shipped" else "as shipped"
    if name == "gqa":
        return f"GQA, {more} KV heads"
    if name == "mla":
        return f"MLA {more}".strip()
    if name == "sliding":
        return f"window {int(more):,}" if is_whole(more) else f"window {more}"
    return name.upper()


def duration(seconds: float) -> str:
    """A time with three figures at most: `41 ms`, `2.03 s`, `7.4 ms`, `85 µs`."""
    if seconds >= 99.5:
        return f"{seconds:,.0f} s"
    if seconds >= 0.9995:
        return f"{seconds:.3g} s"
    if seconds >= 0.0095:
        return f"{1000 * seconds:.0f} ms"
    if seconds >= 0.0001:
        return f"{1000 * seconds:.2g} ms"
    return f"{1e6 * seconds:.0f} µs"


def rate(per_second: float) -> str:
    """Tokens per second: whole ones from ten upwards."""
    return f"{per_second:,.0f}" if per_second >= 9.95 else f"{per_second:.1f}"


def times(factor: float) -> str:
    """A factor: `42×`, `5.3×`."""
    return f"{factor:,.0f}×" if factor >= 9.95 else f"{factor:.1f}×"
