"""What is computed of each rung of the Variants screen: its work, its bounds on the server that is meant, its room."""

from __future__ import annotations

from dataclasses import dataclass

import streamlit as st

from kvcore.engines.reserve import stored_by
from kvcore.hardware.gpus import Accelerator, accelerator
from kvcore.hardware.systems import HOST_GPUS
from kvcore.model import Model
from kvcore.planning.bound import Room, gpus_for, room
from kvcore.ranks.memories import on_rank
from kvcore.scenario.scenario import Scenario
from kvcore.scenario.variants import VariantOptions
from kvcore.timing import Bound, CacheWork, WeightWork, Work, bound, decode_cache_work, weight_work
from kvcore.units import format_bytes
from kvcore.variants.ladder import Ladder, Rung
from pages.ui import widgets
from pages.ui.models import Chosen
from pages.ui.size.words import plural
from pages.ui.text import plain
from pages.ui.widgets import Card


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
    """What is computed of a rung for one more token.

    `work` is that of the whole cache, once; `share` is what one GPU does of it, and `fastest` bounds that. `together`
    is the bound with its part of the weights; it and `weights` are None where the weights are not known.
    """

    rung: Rung
    work: CacheWork
    share: CacheWork
    fastest: Bound
    weights: WeightWork | None
    together: Bound | None
    room: Room | None
    engines: tuple[str, ...]
    engines_lack: str
    """Why there is no engine, in words; empty where there is one."""


def server(chosen: Chosen, scenario: Scenario, options: VariantOptions) -> Server:
    """What the controls say: a host, or as many GPUs as the weights fill by half, unless a number is chosen."""
    gpu, weights = accelerator(scenario.gpu), None if options.weights == "auto" else options.weights
    count = options.gpus or max(HOST_GPUS, gpus_for(chosen.model, gpu, weights))
    return Server(gpu=gpu, count=count, weights=weights)


def facts(shown: Ladder, scenario: Scenario, place: Server) -> dict[str, Facts]:
    """What the tables and cards say of every rung, by its design, in the order of the ladder."""
    found = {}
    for rung in shown.rungs:
        tokens, source = max(1, scenario.tokens), scenario.source or None
        # What each GPU has to read: a latent is on all of them, heads and weights are split.
        share = decode_cache_work(on_rank(rung.model, place.count), tokens, rung.kv, source)
        weights = weight_work(rung.model, 1, place.weights)
        engines = stored_by(rung.model, rung.kv.name, place.gpu)
        found[rung.design] = Facts(
            rung=rung,
            work=decode_cache_work(rung.model, tokens, rung.kv, source),
            share=share,
            fastest=bound(share.work, place.gpu),
            weights=weights,
            together=None if weights is None else bound(share.work + _split(weights.work, place.count), place.gpu),
            room=room(
                rung.model, scenario.tokens, rung.kv, place.gpu, place.count, weights=place.weights,
                source_tokens=scenario.source or None,
            ),
            engines=engines,
            engines_lack="" if engines else _lack(rung, place.gpu),
        )  # fmt: skip
    return found


def _lack(rung: Rung, gpu: Accelerator) -> str:
    """What no engine does: store the format on this accelerator, store it at all, or lay out such layers."""
    if not any(memory.kind != "none" for memory, _ in rung.model.kept):
        return "it keeps no cache"
    if stored_by(rung.model, rung.kv.name):
        return f"no engine here stores {rung.kv.name} on {gpu.name}"
    if not rung.own_format and stored_by(rung.model, "auto"):
        return f"no engine here stores this cache in {rung.kv.name}"
    return "no engine here lays out such layers"


def _split(work: Work, ranks: int) -> Work:
    """One rank's part of work that is split evenly."""
    return Work(
        read_bytes=-(-work.read_bytes // ranks),
        written_bytes=-(-work.written_bytes // ranks),
        operations=-(-work.operations // ranks),
    )


_MEANING = {
    "bandwidth": "bandwidth binds, and a smaller cache is also a faster one",
    "arithmetic": "arithmetic binds, and a smaller cache alone is no faster",
}


def title(mine: Facts, place: Server) -> str:
    """Attention in one sentence: what a token makes a GPU read, and what that bounds."""
    fastest = mine.fastest
    if not fastest.work.bytes:
        return "A token reads nothing from the cache"
    meaning = _MEANING[fastest.binds]
    if fastest.ridge_operations_per_byte is None:
        meaning = "a smaller cache is a faster one where bandwidth binds; its arithmetic is not known"
    who = "each new token reads" if place.count == 1 else f"each of {place.count} GPUs reads for a new token"
    return (
        f"{who[0].upper()}{who[1:]} {format_bytes(fastest.work.read_bytes)}, "
        f"{per_byte(fastest.work.operations_per_byte)} a byte: on {place.name} {meaning}"
    )


def per_byte(value: float) -> str:
    """`1 operation`, `40.3 operations`."""
    number = _shown(value)
    return f"{number} operation{'' if number == '1' else 's'}"


def _shown(value: float) -> str:
    """A number of operations: `1`, `40.3`, `1,024`."""
    return f"{value:,.1f}".removesuffix(".0") if value < 100 else f"{value:,.0f}"


def numbers(mine: Facts, scenario: Scenario, place: Server) -> None:
    """Bytes and arithmetic of one decoded token on one GPU, and what that bounds."""
    share, fastest, weights = mine.share, mine.fastest, mine.weights
    token = f"to make token {max(1, scenario.tokens):,} of one request"
    part = part_words(mine.rung.model, mine.work.work.read_bytes, share.work.read_bytes, place.count)
    several = place.count > 1
    shown = [
        Card(
            label="Read by each GPU" if several else "Read from the cache",
            value=format_bytes(share.work.read_bytes),
            line=f"{token}: {part}" if part else token,
        ),
        Card(
            label="Arithmetic",
            value=f"{_shown(share.work.operations_per_byte)} per byte" if share.work.bytes else "none",
            line=_ridge_line(fastest, place),
        ),
        Card(
            label="Cache alone",
            value=_milliseconds(fastest),
            line=f"at least, a token; {fastest.binds} binds on {place.name}"
            if fastest.work.bytes
            else "nothing is read and nothing computed",
        ),
    ]
    if weights is not None and mine.together is not None:
        together = mine.together
        of_bytes = fastest.work.bytes / max(1, together.work.bytes)
        shown.append(
            Card(
                label="With the weights",
                value=_milliseconds(together),
                line=f"at least, {together.tokens_per_s_at_most() or 0:,.0f} tokens/s at most; the cache is "
                f"{of_bytes:.0%} of the bytes{' that a GPU moves' if several else ''}",
            )
        )
    else:
        shown.append(Card(label="With the weights", value="not known", line="this family's weights are not counted"))
    widgets.row(shown, key="attention_cards")
    with st.expander("How it is computed"):
        if several:
            st.caption(
                f"Of the cache: one GPU of {place.count}, with its share of the heads. Of the weights: all of them, "
                "which the GPUs split evenly."
            )
        terms = [*share.terms, *fastest.terms, *(weights.terms if weights else ())]
        st.markdown("\n".join(f"- **{plain(term.name)}**: {plain(term.formula)}" for term in terms))
        for note in dict.fromkeys((*share.notes, *fastest.notes, *(weights.notes if weights else ()))):
            st.caption(plain(note))


def part_words(model: Model, whole: int, part: int, count: int) -> str:
    """Which part of the cache's `whole` bytes read one of `count` GPUs reads with `part`, and why it is not 1/count.

    Empty on one GPU, and where nothing is read.
    """
    if count == 1 or not whole:
        return ""
    copied = "; ".join(_copies(model, count))
    if part == whole:
        return f"the whole cache: {copied}" if copied else "the whole cache"
    of = f"its part of {format_bytes(whole)}"
    return f"{of}; {copied}" if copied and part * count > whole else of


def _copies(model: Model, count: int) -> list[str]:
    """What is not split evenly over `count` GPUs, in words."""
    found = []
    if model.latents:
        found.append("a latent is copied to every GPU")
    if model.indexers:
        found.append("index keys are copied to every GPU")
    heads = {memory.kv_heads for memory, _ in model.kept if memory.kv_heads}
    for number in sorted(heads):
        if number < count:
            found.append(
                f"{plural(number, 'KV head')} for {count} GPUs, one at least on each"
                if number > 1
                else "its one KV head is copied to every GPU"
            )
        elif number % count:
            found.append(f"{number} KV heads do not divide by {count}, some GPUs have one more")
    return found


def _milliseconds(found: Bound) -> str:
    seconds = found.seconds_at_least
    if seconds >= 1:
        return f"{seconds:,.1f} s" if seconds < 100 else f"{seconds:,.0f} s"
    return f"{1000 * seconds:.3g} ms" if seconds >= 1e-4 else f"{1e6 * seconds:.3g} µs"


def _ridge_line(fastest: Bound, place: Server) -> str:
    ridge = fastest.ridge_operations_per_byte
    if not fastest.work.bytes:
        return "nothing is read"
    if ridge is None:
        return f"operations on each byte read; no rate of {place.gpu.name} is known"
    side = {"bandwidth": "at most" if fastest.work.operations_per_byte == ridge else "below", "arithmetic": "above"}
    return (
        f"operations on each byte moved, {side[fastest.binds]} the {ridge:,.0f} at which {place.gpu.name} would "
        f"balance: {fastest.binds} binds"
    )
