"""The sections of the Variants screen. Each asks kvcore for its figures and draws them."""

from __future__ import annotations

import streamlit as st

from kvcore.engines.registry import labels
from kvcore.errors import KVCoreError
from kvcore.hardware.gpus import CapacityLine
from kvcore.planning.bound import Room, room
from kvcore.scenario.scenario import Scenario
from kvcore.scenario.variants import VariantOptions
from kvcore.timing import Bound
from kvcore.units import format_bytes
from kvcore.variants.ladder import SHIPPED, Ladder, Rung, ladder
from kvcore.variants.trend import percent
from pages.ui import theme, widgets
from pages.ui.models import Chosen
from pages.ui.size.words import plural
from pages.ui.text import plain
from pages.ui.variants import bars as variant_charts
from pages.ui.variants import words
from pages.ui.variants.curves import curves_chart, drawn
from pages.ui.variants.facts import Facts, Server
from pages.ui.variants.heads import diagram
from pages.ui.widgets import Card


def rungs(chosen: Chosen, scenario: Scenario, options: VariantOptions) -> tuple[Ladder, Rung]:
    """The ladder and the rung that is shown closely: the shipped model where that design cannot be built."""
    designs = options.designs if options.design in options.designs else (*options.designs, options.design)
    own = chosen.model.resolve_format("auto").name

    def built(kv_dtype: str) -> Ladder:
        # In another format the model as it really ships is one of the rows too.
        really = () if chosen.model.resolve_format(kv_dtype).name == own else (f"{SHIPPED}@{own}",)
        return ladder(
            chosen.model, (*really, *designs), tokens=scenario.tokens, kv_dtype=kv_dtype, batch=scenario.batch,
            source_tokens=scenario.source or None,
        )  # fmt: skip

    notice = widgets.place("format")
    try:
        found = built(scenario.kv)
    except KVCoreError as problem:
        notice.warning(f"{plain(str(problem))}. Shown with the model's own format.", icon=":material/info:")
        found = built("auto")
    return found, found.rung(options.design) or found.shipped


def big_numbers(mine: Facts, shown: Ladder, scenario: Scenario, place: Server) -> list[Card]:
    """The four figures of the screen, for the design that is shown."""
    rung = mine.rung
    what = words.shipped_words(rung.model) if rung.shipped else words.design_words(rung.design)
    factor, alone = rung.factor_mha, mine.fastest.tokens_per_s_at_most()
    speed = alone if mine.together is None else mine.together.tokens_per_s_at_most()
    cache = "any speed" if alone is None else f"{alone:,.0f}"
    return [
        Card(
            label="One request",
            value=format_bytes(rung.resident_bytes // scenario.batch),
            line=f"{what}, {plural(scenario.tokens, 'token')}, "
            f"{'exact' if rung.model.knowledge == 'exact' else 'a bound'}",
        ),
        Card(
            label="Per token",
            value=format_bytes(rung.next_token_bytes),
            line=words.per_token_line(rung),
        ),
        Card(
            label="Against MHA",
            value=words.times(factor),
            line=_no_factor(shown)
            if factor is None
            else f"{percent(float(1 / factor))} of what full multi-head attention would hold",
        ),
        Card(
            label="Decode at most",
            value="any speed" if speed is None else f"{speed:,.0f} /s",
            line=f"tokens a second of one request on {place.name}; the cache alone would allow {cache}"
            if mine.together
            else f"tokens a second of one request on {place.name}, cache alone: its weights are not counted",
            help="A bound: the bytes of weights and cache that a token reads over the memory bandwidth, or its "
            "arithmetic over the rate, whichever takes longer. Real engines are slower.",
        ),
    ]


def _no_factor(shown: Ladder) -> str:
    if shown.mha_bytes is not None:
        return "nothing is held yet that could be compared"
    return "it has no heads to compare with" if shown.shipped.model.kept else "it keeps no cache"


# The sections of the page by the anchors of their headings, in order.
SECTIONS = {
    "ladder": "Ladder", "growth": "Growth", "gains": "Gains", "attention": "Attention in numbers",
    "prices": "What each gives up", "against": "Against another", "trend": "Trend", "lessons": "Lessons",
}  # fmt: skip


def sections() -> None:
    """Links to the sections: on a phone the tables are many screens of cards, with the rest of the page behind them."""
    # Not a caption: its links would be too pale in the dark theme.
    st.markdown(" · ".join(f"[{name}](#{anchor})" for anchor, name in SECTIONS.items()))


def ladder_and_diagram(shown: Ladder, chosen: Rung, scenario: Scenario, colours: theme.Palette) -> None:
    """The bars, and beside them the heads of the design that is shown."""
    bars, heads = st.columns([11, 9], gap="large")
    with bars:
        st.subheader(words.ladder_title(shown, scenario), anchor="ladder")
        scale = "Logarithmic scale. " if variant_charts.is_logarithmic(shown.rungs) else ""
        mha = f"against MHA in {shown.mha_format} · " if shown.mha_bytes is not None else ""
        # Above the bars, which are higher than a window: what stands beside them is read with the first.
        st.caption(
            f"{scale}Resident bytes, cache only. Beside each bar: {mha}against {words.yardstick(shown)} "
            "(÷ less, × more, 1× the same)."
        )
        figure, alt = variant_charts.ladder_chart(shown.rungs, chosen, colours)
        st.plotly_chart(figure, theme=None, config=theme.chart_config("kv-cache-variants"), alt=alt, key="ladder_chart")
    with heads, st.container(key="heads", gap="xsmall"):
        what = words.label(chosen)
        if chosen.shipped and chosen.own_format:
            what = f"{words.shipped_words(chosen.model)}, as shipped"
        st.subheader(f"Who reads what: {what}", anchor=False)
        st.html(diagram(chosen.model, colours, chosen.kv, scenario.source or None))


def curves(shown: Ladder, chosen: Rung, scenario: Scenario, place: Server, colours: theme.Palette) -> None:
    """Growth of every rung, with marks where windows are full."""
    st.subheader(words.curves_title(drawn(shown.rungs, chosen)), anchor="growth")
    space = room(shown.shipped.model, 1, shown.shipped.kv, place.gpu, place.count, weights=place.weights)
    # On several GPUs a latent takes its bytes on each: one line would not be true of all variants.
    alone = space is not None and space.free_bytes > 0 and place.count == 1
    marks = (_free_line(space, place),) if alone and space is not None else ()
    made = curves_chart(
        shown.rungs, chosen, tokens=scenario.tokens, batch=scenario.batch, source=scenario.source or None,
        marks=marks, colours=colours,
    )  # fmt: skip
    if made is None:
        st.info("Nothing to draw: this model keeps no cache.")
        return
    figure, alt = made
    st.plotly_chart(figure, theme=None, config=theme.chart_config("kv-cache-variants-growth"), alt=alt, key="curves")
    many = f" × {scenario.batch:,}" if scenario.batch > 1 else ""
    line = f" Horizontal: what one {place.gpu.name} has beside the weights." if marks else ""
    formats = "Another format moves a line and does not bend it."
    st.caption(f"◇ a window is full. Both axes logarithmic, one request{many}. {formats}{line}")


def _free_line(space: Room, place: Server) -> CapacityLine:
    free = space.free_bytes * space.gpus
    return CapacityLine(
        id="free",
        label=f"beside the weights: {format_bytes(free, 1)}",
        bytes=free,
        accelerator_id=place.gpu.id,
        count=place.count,
        memory_knowledge=place.gpu.memory_knowledge,
    )


_AGAINST = "vs shipped"
_GAINS = (
    ("variant", "w"), ("holds", "n"), ("vs MHA", "n"), (_AGAINST, "n"), ("a GPU reads", "n"), ("tokens/s", "n"),
    ("requests", "n"), ("engines", "w"),
)  # fmt: skip


def gains(found: dict[str, Facts], shown: Ladder, chosen: Rung, scenario: Scenario, place: Server) -> None:
    """The table of what each rung buys in numbers."""
    cells = [_gain(one) for one in found.values()]
    at = list(found).index(chosen.design)
    against = _AGAINST if shown.stored_as_shipped else f"vs {words.yardstick(shown)}"
    columns = [(against if name == _AGAINST else name, kind) for name, kind in _GAINS]
    st.html(widgets.table("What each variant buys, in numbers", columns, cells, chosen=at))
    st.caption(
        f"holds: {plural(scenario.tokens, 'token')} × {scenario.batch:,}. {words.reads_line(place.name, place.count)} "
        f"tokens/s: a bound for one request on {place.name}. requests: of this length at once, beside the weights. "
        f"engines: whose rules lay such a cache out; a variant has no weights that they could load. "
        f"{words.room_line(found[shown.shipped.design].room, place.gpu.name)}"
    )


def _gain(one: Facts) -> list[str | tuple[str, str]]:
    rung, alone = one.rung, _per_second(one.fastest)
    return [
        (words.label(rung), words.keeps(rung.model)),
        format_bytes(rung.resident_bytes),
        words.times(rung.factor_mha),
        ("shipped" if rung.own_format else "itself") if rung.shipped else words.times(rung.factor_shipped),
        format_bytes(one.share.work.read_bytes),
        (_per_second(one.together), f"cache alone {alone}") if one.together else alone,
        words.room_words(one.room),
        ", ".join(labels()[name] for name in one.engines) or f"none: {one.engines_lack}",
    ]


def _per_second(found: Bound) -> str:
    speed = found.tokens_per_s_at_most()
    return "–" if speed is None else f"≤ {speed:,.0f}"


def gain_rows(found: dict[str, Facts], scenario: Scenario) -> list[dict[str, object]]:
    """The same as rows for a file, in bytes."""
    return [
        {
            "design": one.rung.design,
            "name": words.label(one.rung),
            "cache format": one.rung.kv.name,
            "tokens": scenario.tokens,
            "requests": scenario.batch,
            "resident, bytes": one.rung.resident_bytes,
            "bytes a token while nothing is full": one.rung.bytes_per_token,
            "bytes that the next token adds": one.rung.next_token_bytes,
            "states and sources, bytes": one.rung.state_bytes,
            "factor against MHA": None if one.rung.factor_mha is None else float(one.rung.factor_mha),
            "factor against shipped": None if one.rung.factor_shipped is None else float(one.rung.factor_shipped),
            "read a decoded token, bytes": one.work.work.read_bytes,
            "operations a byte": one.work.work.operations_per_byte,
            "read a decoded token by each GPU, bytes": one.share.work.read_bytes,
            "operations a byte on each GPU": one.share.work.operations_per_byte,
            "decode at most, tokens a second": None if one.together is None else one.together.tokens_per_s_at_most(),
            "decode at most, cache alone": one.fastest.tokens_per_s_at_most(),
            "requests beside the weights at most": None if one.room is None else one.room.requests,
            "laid out by": " ".join(one.engines),
        }
        for one in found.values()
    ]
