"""The sections of the Variants screen. Each asks kvcore for its figures and draws them."""

from __future__ import annotations

from dataclasses import dataclass

import streamlit as st

from kvcore.engines.reserve import stored_by
from kvcore.errors import KVCoreError
from kvcore.hardware import Accelerator, CapacityLine, accelerator
from kvcore.ladder import Ladder, Rung, ladder
from kvcore.plan.room import Room, gpus_for, room
from kvcore.plan.sharding import on_rank
from kvcore.scenario import HOST_GPUS, Scenario
from kvcore.timing import Bound, CacheWork, WeightWork, Work, bound, decode_cache_work, weight_work
from kvcore.trend import percent
from kvcore.units import format_bytes
from kvcore.variant_options import VariantOptions
from pages.ui import cards, html_table, notices, theme, variant_charts
from pages.ui import trio_words as engine_words
from pages.ui import variant_words as words
from pages.ui.cards import Card
from pages.ui.head_diagram import diagram
from pages.ui.models import Chosen
from pages.ui.plain import plain
from pages.ui.variant_curves import curves_chart, drawn
from pages.ui.words import plural


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The accelerators that the screen's bounds are about."""

    gpu: Accelerator
    count: int
    weights: str | None

    @property
    def name(self) -> str:
        return f"{self.count} × {self.gpu.name}" if self.count > 1 else self.gpu.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is computed of a rung for one more token: the cache's work, its bound, that with the weights' work too.

    `together` and `weights` are None where the weights are not known.
    """

    rung: Rung
    work: CacheWork
    fastest: Bound
    weights: WeightWork | None
    together: Bound | None
    room: Room | None
    engines: tuple[str, ...]


def server(chosen: Chosen, scenario: Scenario, options: VariantOptions) -> Server:
    """What the controls say: a host, or as many GPUs as the weights fill by half, unless a number is chosen."""
    gpu, weights = accelerator(scenario.gpu), None if options.weights == "auto" else options.weights
    count = options.gpus or max(HOST_GPUS, gpus_for(chosen.model, gpu, weights))
    return Server(gpu=gpu, count=count, weights=weights)


def rungs(chosen: Chosen, scenario: Scenario, options: VariantOptions) -> tuple[Ladder, Rung]:
    """The ladder and the rung that is shown closely: the shipped model where that design cannot be built."""
    designs = options.designs if options.design in options.designs else (*options.designs, options.design)

    def built(kv_dtype: str) -> Ladder:
        return ladder(
            chosen.model, designs, tokens=scenario.tokens, kv_dtype=kv_dtype, batch=scenario.batch,
            source_tokens=scenario.source or None,
        )  # fmt: skip

    notice = notices.place("format")
    try:
        found = built(scenario.kv)
    except KVCoreError as problem:
        notice.warning(f"{plain(str(problem))}. Shown with the model's own format.", icon=":material/info:")
        found = built("auto")
    return found, found.rung(options.design) or found.shipped


def facts(shown: Ladder, scenario: Scenario, place: Server) -> dict[str, Facts]:
    """What the tables and cards say of every rung, by its design, in the order of the ladder."""
    found = {}
    for rung in shown.rungs:
        tokens, source = max(1, scenario.tokens), scenario.source or None
        work = decode_cache_work(rung.model, tokens, rung.kv, source)
        # What each GPU has to read: a latent is on all of them, heads and weights are split.
        share = decode_cache_work(on_rank(rung.model, place.count), tokens, rung.kv, source).work
        weights = weight_work(rung.model, 1, place.weights)
        found[rung.design] = Facts(
            rung=rung,
            work=work,
            fastest=bound(share, place.gpu),
            weights=weights,
            together=None if weights is None else bound(share + _split(weights.work, place.count), place.gpu),
            room=room(
                rung.model, scenario.tokens, rung.kv, place.gpu, place.count, weights=place.weights,
                source_tokens=scenario.source or None,
            ),
            engines=stored_by(rung.model, rung.kv.name, place.gpu),
        )  # fmt: skip
    return found


def _split(work: Work, ranks: int) -> Work:
    """One rank's part of work that is split evenly."""
    return Work(
        read_bytes=-(-work.read_bytes // ranks),
        written_bytes=-(-work.written_bytes // ranks),
        operations=-(-work.operations // ranks),
    )


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
            value=format_bytes(rung.bytes_per_token),
            line="while no window is full" if _bends(rung) else "what one more token adds",
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


def _bends(rung: Rung) -> bool:
    return any(memory.growth(rung.kv).max_entries is not None for memory, _ in rung.model.kept)


def ladder_and_diagram(shown: Ladder, chosen: Rung, scenario: Scenario, colours: theme.Palette) -> None:
    """The bars, and beside them the heads of the design that is shown."""
    bars, heads = st.columns([11, 9], gap="large")
    with bars:
        st.subheader(words.ladder_title(shown, scenario), anchor=False)
        figure, alt = variant_charts.ladder_chart(shown.rungs, chosen, colours)
        st.plotly_chart(figure, theme=None, config=theme.chart_config("kv-cache-variants"), alt=alt, key="ladder_chart")
        scale = "Logarithmic scale. " if variant_charts.is_logarithmic(shown.rungs) else ""
        mha = f" Beside each bar: against MHA in {shown.mha_format} · against the model as shipped."
        mha = mha if shown.mha_bytes is not None else " Beside each bar: against the model as shipped."
        st.caption(f"{scale}Resident bytes, cache only.{mha}")
    with heads, st.container(key="heads", gap="xsmall"):
        what = (
            words.shipped_words(chosen.model) + ", as shipped" if chosen.shipped else words.design_words(chosen.design)
        )
        st.subheader(f"Who reads what: {what}", anchor=False)
        st.html(diagram(chosen.model, colours, chosen.kv, scenario.source or None))


def curves(shown: Ladder, chosen: Rung, scenario: Scenario, place: Server, colours: theme.Palette) -> None:
    """Growth of every rung, with marks where windows are full."""
    st.subheader(words.curves_title(drawn(shown.rungs, chosen)), anchor=False)
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


_GAINS = (
    ("variant", "w"), ("holds", "n"), ("vs MHA", "n"), ("vs shipped", "n"), ("read a token", "n"), ("tokens/s", "n"),
    ("requests", "n"), ("engines", "w"),
)  # fmt: skip


def gains(found: dict[str, Facts], shown: Ladder, chosen: Rung, scenario: Scenario, place: Server) -> None:
    """The table of what each rung buys in numbers."""
    cells = [_gain(one) for one in found.values()]
    at = list(found).index(chosen.design)
    st.html(html_table.table("What each variant buys, in numbers", _GAINS, cells, chosen=at))
    st.caption(
        f"holds: {plural(scenario.tokens, 'token')} × {scenario.batch:,}. read a token: of the cache, to make one more "
        f"in one request. tokens/s: a bound for one request on {place.name}. requests: of this "
        f"length at once, beside the weights. engines: whose rules lay such a cache out; a variant has no weights that "
        f"they could load. {words.room_line(found[shown.shipped.design].room, place.gpu.name)}"
    )


def _gain(one: Facts) -> list[str | tuple[str, str]]:
    rung, alone = one.rung, _per_second(one.fastest)
    return [
        (words.label(rung), words.keeps(rung.model)),
        format_bytes(rung.resident_bytes),
        words.times(rung.factor_mha),
        "shipped" if rung.shipped else words.times(rung.factor_shipped),
        format_bytes(one.work.work.read_bytes),
        (_per_second(one.together), f"cache alone {alone}") if one.together else alone,
        words.room_words(one.room),
        ", ".join(engine_words.ENGINES[name] for name in one.engines) or "none of ours",
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
            "states and sources, bytes": one.rung.state_bytes,
            "factor against MHA": None if one.rung.factor_mha is None else float(one.rung.factor_mha),
            "factor against shipped": None if one.rung.factor_shipped is None else float(one.rung.factor_shipped),
            "read a decoded token, bytes": one.work.work.read_bytes,
            "operations a byte": one.work.work.operations_per_byte,
            "decode at most, tokens a second": None if one.together is None else one.together.tokens_per_s_at_most(),
            "decode at most, cache alone": one.fastest.tokens_per_s_at_most(),
            "requests beside the weights at most": None if one.room is None else one.room.requests,
            "laid out by": " ".join(one.engines),
        }
        for one in found.values()
    ]


def attention_title(mine: Facts, place: Server) -> str:
    """Attention in one sentence: what a token reads, and what that bounds."""
    work, binds = mine.work.work, mine.fastest.binds
    if not work.bytes:
        return "A token reads nothing from the cache"
    meaning = {
        "bandwidth": "bandwidth binds, and a smaller cache is also a faster one",
        "arithmetic": "arithmetic binds, and a smaller cache alone is no faster",
    }[binds]
    if mine.fastest.ridge_operations_per_byte is None:
        meaning = "a smaller cache is a faster one where bandwidth binds; its arithmetic is not known"
    each = _per_byte(work.operations_per_byte)
    return f"Each new token reads {format_bytes(work.read_bytes)}, {each} a byte: on {place.name} {meaning}"


def _per_byte(value: float) -> str:
    number = f"{value:,.1f}".removesuffix(".0") if value < 100 else f"{value:,.0f}"
    return f"{number} operation{'' if number == '1' else 's'}"


def attention_numbers(mine: Facts, scenario: Scenario, place: Server) -> None:
    """Bytes and arithmetic of one decoded token, and what that bounds."""
    work, fastest, weights = mine.work, mine.fastest, mine.weights
    ridge = fastest.ridge_operations_per_byte
    per_byte = work.work.operations_per_byte
    shown = [
        Card(
            label="Read from the cache",
            value=format_bytes(work.work.read_bytes),
            line=f"to make token {max(1, scenario.tokens):,} of one request"
            + (f", each of {place.count} GPUs its part" if place.count > 1 else ""),
        ),
        Card(
            label="Arithmetic",
            value=f"{_per_byte(per_byte).split()[0]} per byte" if work.work.bytes else "none",
            line=_ridge_line(per_byte, ridge, place),
        ),
        Card(
            label="Cache alone",
            value=_milliseconds(fastest),
            line=f"at least, a token; {fastest.binds} binds on {place.name}",
        ),
    ]
    if weights is not None and mine.together is not None:
        together = mine.together
        share = fastest.work.bytes / max(1, together.work.bytes)
        shown.append(
            Card(
                label="With the weights",
                value=_milliseconds(together),
                line=f"at least, {together.tokens_per_s_at_most() or 0:,.0f} tokens/s at most; the cache is "
                f"{share:.0%} of the bytes",
            )
        )
    else:
        shown.append(Card(label="With the weights", value="not known", line="this family's weights are not counted"))
    cards.row(shown, key="attention_cards")
    with st.expander("How it is computed"):
        terms = [*work.terms, *fastest.terms, *(weights.terms if weights else ())]
        st.markdown("\n".join(f"- **{plain(term.name)}**: {plain(term.formula)}" for term in terms))
        for note in dict.fromkeys((*work.notes, *fastest.notes, *(weights.notes if weights else ()))):
            st.caption(plain(note))


def _milliseconds(found: Bound) -> str:
    seconds = found.seconds_at_least
    if seconds >= 1:
        return f"{seconds:,.1f} s" if seconds < 100 else f"{seconds:,.0f} s"
    return f"{1000 * seconds:.3g} ms" if seconds >= 1e-4 else f"{1e6 * seconds:.3g} µs"


def _ridge_line(per_byte: float, ridge: float | None, place: Server) -> str:
    if ridge is None:
        return f"operations on each byte read; no rate of {place.gpu.name} is known"
    side = "below" if per_byte < ridge else "above"
    meaning = "its bandwidth is what binds" if per_byte < ridge else "its arithmetic is what binds"
    return f"operations on each byte read, {side} the {ridge:,.0f} at which {place.gpu.name} would balance: {meaning}"
