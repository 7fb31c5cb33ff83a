"""Which hardware would do: every GPU in every split that holds the users, the cheapest first. Worked out when asked."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import streamlit as st

from kvcore.errors import KVCoreError
from kvcore.model import Model
from kvcore.plan.deployment import Deployment
from kvcore.plan.recommend import Recommendation, recommend
from kvcore.units import format_tokens
from pages.ui import html_table, plan_parts, variant_more
from pages.ui import plan_words as words
from pages.ui.plain import plain
from pages.ui.plan_answers import Case
from pages.ui.words import plural

_SHOWN = 12
_ASKED = "plan_hardware_asked"


@lru_cache(maxsize=32)
def _found(model: Model, wanted: Deployment, users: int) -> tuple[Recommendation, ...]:
    return recommend(model, context=wanted.context, users=users, engine=wanted.engine, base=wanted)


def section(model: Model, case: Case) -> None:
    """A heading that says what is asked, and the answer once somebody asked for it."""
    question = (model.name, case.deployment, case.users)
    who = f"{plural(case.users, 'request')} of {format_tokens(case.deployment.context)}"
    if st.session_state.get(_ASKED) != question:
        st.subheader(plain(f"Which hardware holds {who} for the least money?"), anchor=False)
        st.button(
            "Compare every GPU", key="hardware_go", icon=":material/search:", on_click=_ask, args=(question,),
            help="Every GPU of the catalogue, up to 16 of them, in every split that the engine can serve.",
        )  # fmt: skip
        return
    try:
        found = _found(model, case.deployment, case.users)
    except KVCoreError as problem:
        st.subheader(plain(f"Which hardware holds {who}?"), anchor=False)
        st.caption(plain(words.ended(str(problem))))
        return
    st.subheader(plain(_title(found, who)), anchor=False)
    if not found:
        st.caption("No GPU of the catalogue, up to 16 of them, holds so many at the safe end.")
        return
    columns = (("hardware", "w"), ("split", "w"), ("requests at once", "n"), ("$ an hour", "n"),
               ("$ an hour for each request", "n"))  # fmt: skip
    st.html(html_table.table("Hardware that holds the users", columns, [_row(one) for one in found[:_SHOWN]]))
    explained = words.glossary(
        (words.split_words(one.deployment) for one in found[:_SHOWN]), but=words.split_words(case.deployment)
    )
    if explained:
        st.caption(plain(explained))
    _apply(case, found)
    variant_more.download(lambda: [_line(one) for one in found], "kv-cache-hardware", "hardware")
    st.caption(
        f"{plural(len(found), 'kind')} of GPU hold them at the safe end; each with the fewest that do, the first "
        f"{min(_SHOWN, len(found))} shown. Prices are typical published offers for all GPUs, with their dates in the "
        "file; GPUs without a known price come last. How fast they answer is not weighed here."
    )


def _ask(question: object) -> None:
    st.session_state[_ASKED] = question


def _title(found: Sequence[Recommendation], who: str) -> str:
    if not found or found[0].usd_per_hour is None:
        return f"Hardware that holds {who}"
    first = found[0]
    return f"{_name(first)} hold {who} for ${found[0].usd_per_hour.typical:,.2f} an hour"


def _name(one: Recommendation) -> str:
    return f"{one.gpus} × {one.gpu.name}"


def _price(one: Recommendation) -> str:
    return "not known" if one.usd_per_hour is None else f"{one.usd_per_hour.typical:,.2f}"


def _row(one: Recommendation) -> list[str]:
    each = one.usd_per_hour_a_request
    return [
        _name(one), words.split_words(one.deployment), words.span(one.requests), _price(one),
        "not known" if each is None else f"{each:,.2f}",
    ]  # fmt: skip


def _line(one: Recommendation) -> dict[str, object]:
    price = one.usd_per_hour
    return {
        "gpu": one.gpu.name, "gpus": one.gpus, "split": words.split_words(one.deployment),
        "requests low": one.requests.low, "requests high": one.requests.high,
        "usd an hour": None if price is None else price.typical, "in words": one.sentence,
    }  # fmt: skip


def _apply(case: Case, found: Sequence[Recommendation]) -> None:
    by_name = {_name(one): one for one in found}
    left, right = st.columns([5, 1.2], vertical_alignment="bottom")
    with left:
        name = st.selectbox("Plan with", list(by_name), key="hardware_any")
    if name in by_name:
        right.button(
            "Use it", key="hardware_use", on_click=plan_parts.go, width="stretch",
            args=(case, by_name[name].deployment, None, name),
        )  # fmt: skip
