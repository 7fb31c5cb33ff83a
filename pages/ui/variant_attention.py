"""Attention in numbers: what one GPU reads of the cache for a token, its arithmetic, and which of the two binds.

Heading and cards all follow from one bound, that of a single GPU as it really runs: what is copied it reads whole,
heads and their arithmetic it shares.
"""

from __future__ import annotations

import streamlit as st

from kvcore.model import Attention, CrossAttention, Indexer, Latent, Model
from kvcore.scenario import Scenario
from kvcore.timing import Bound
from kvcore.units import format_bytes
from pages.ui import cards
from pages.ui.cards import Card
from pages.ui.plain import plain
from pages.ui.variant_facts import Facts, Server
from pages.ui.words import plural

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
    number = f"{value:,.1f}".removesuffix(".0") if value < 100 else f"{value:,.0f}"
    return f"{number} operation{'' if number == '1' else 's'}"


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
            value=f"{per_byte(share.work.operations_per_byte).split()[0]} per byte" if share.work.bytes else "none",
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
    cards.row(shown, key="attention_cards")
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
    memories = [memory for memory, _ in model.kept]
    found = []
    if any(isinstance(memory, Latent) for memory in memories):
        found.append("a latent is copied to every GPU")
    if any(isinstance(memory, Indexer) for memory in memories):
        found.append("index keys are copied to every GPU")
    heads = {memory.num_kv_heads for memory in memories if isinstance(memory, Attention | CrossAttention)}
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
