"""The controls of the Variants screen: which designs stand on the ladder, a new one, and the accelerators meant."""

from __future__ import annotations

import streamlit as st

from kvcore.errors import KVCoreError
from kvcore.formats import KV_FORMATS
from kvcore.model.weight_formats import WEIGHT_FORMATS
from kvcore.variants.ladder import DEFAULT_DESIGNS, MAX_DESIGNS, SHIPPED, Ladder, Rung, parse_design
from kvcore.variants.variants import STATES
from pages.ui import scenario, widgets
from pages.ui.text import plain
from pages.ui.variants import words

GPUS = ("auto", "1", "2", "4", "8", "16")
MORE_DESIGNS = (
    "gqa:16", "gqa:4", "gqa:2", "mla:256+32", "sliding:4096/4", "sliding:128/2", "share:4", "hybrid:8:mamba2",
    "hybrid:4:kda", "linear", "linear:gdn", "shipped@q8_0", "shipped@q4_0", "shipped@nvfp4", "mla@fp8", "mqa@fp8",
)  # fmt: skip


def pick(shown: Ladder, chosen: Rung) -> None:
    """Which rung is shown closely, which rungs there are, and a new one."""
    keep = st.session_state
    # A popover's controls are made in the browser when it is opened: the box is empty unless its value is set in the
    # run before that, whichever it is.
    keep["designs"] = keep["designs"]
    listed = [rung.design for rung in shown.rungs]
    if keep.get("design") not in listed:
        keep["design"] = chosen.design
    by_design = {rung.design: rung for rung in shown.rungs}
    with st.container(key="designs_row", gap="xsmall"):
        st.pills(
            "Look at it as", listed, key="design", required=True,
            format_func=lambda one: words.label(by_design[one]) if one in by_design else words.design_words(one),
        )  # fmt: skip
        with st.container(horizontal=True, gap="small", vertical_alignment="center"):
            with st.popover("Choose variants", type="tertiary", icon=":material/checklist:", key="designs_panel"):
                _choose()
            with st.popover("Build one", type="tertiary", icon=":material/construction:", key="build_panel"):
                _build()
    refused = [f"{words.design_words(design)}: {why}" for design, why in shown.refused if design not in DEFAULT_DESIGNS]
    quiet = [words.design_words(design) for design, _ in shown.refused if design in DEFAULT_DESIGNS]
    if quiet and shown.mha_bytes is not None:
        refused.append(f"Not possible here: {', '.join(quiet)} ({_reason(shown)})")
    if refused:
        st.caption(plain(". ".join(refused) + "."))


def _reason(shown: Ladder) -> str:
    return next(why for design, why in shown.refused if design in DEFAULT_DESIGNS)


def _choose() -> None:
    keep = st.session_state
    options = list(dict.fromkeys([*DEFAULT_DESIGNS, *MORE_DESIGNS, *keep["designs"]]))
    with st.container(width=460):
        st.multiselect(
            "Variants beside the shipped model", options, key="designs", format_func=words.design_words,
            accept_new_options=True, max_selections=MAX_DESIGNS, on_change=_tidy_designs, wrap=True,
            help="Type any other: gqa:16, mla:256+32, sliding:8K/4, share:3, hybrid:8:kda, linear:gdn, with @ and a "
            "cache format to store it in, as mla@fp8 or shipped@q8_0/q4_0.",
        )  # fmt: skip
        st.button("Back to the usual ones", key="designs_reset", on_click=_reset_designs, type="tertiary")


def _tidy_designs() -> None:
    keep = st.session_state
    good = []
    for text in keep["designs"]:
        try:
            good.append(parse_design(str(text)))
        except KVCoreError as problem:
            keep.setdefault("problems", []).append(f"{str(problem)[:300]}.")
    keep["designs"] = [one for one in dict.fromkeys(good) if one != SHIPPED]


def _reset_designs() -> None:
    st.session_state["designs"] = list(DEFAULT_DESIGNS)


# What each kind of variant asks for: (label, key, what it starts with) of its inputs.
_KINDS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "as shipped": (),
    "grouped heads": (("KV heads", "build_heads", "4"),),
    "latent": (("Latent width", "build_rank", "512"), ("Rotary width", "build_rope", "64")),
    "window": (("Window, tokens", "build_window", "4096"), ("1 layer in … full (0: none)", "build_every", "4")),
    "shared layers": (("Layers that share", "build_depth", "2"),),
    "hybrid": (("1 layer in … attends", "build_ratio", "4"),),
    "states only": (),
}


def _build() -> None:
    # Two beside each other: the panel is low enough that its button stands within the window.
    with st.container(width=460):
        first, second = st.columns(2)
        kind = first.selectbox("Build it with", list(_KINDS), key="build_kind", index=1)
        second.selectbox("Stored in", ["the cache format above", *KV_FORMATS], key="build_format")
        places = st.columns(2)
        for place, (label, key, start) in zip(places, _KINDS[kind], strict=False):
            place.text_input(label, key=key, value=st.session_state.get(key, start))
        if kind in ("hybrid", "states only"):
            places[len(_KINDS[kind])].selectbox(
                "State", list(STATES), key="build_state", format_func=lambda one: words.STATE_NAMES[one]
            )
        st.button("Add it", key="build_go", on_click=_add)


def _add() -> None:
    keep = st.session_state
    kind = keep["build_kind"]
    values = [str(keep.get(key, start)).strip() for _, key, start in _KINDS[kind]]
    state = keep.get("build_state", STATES[0])
    text = {
        "as shipped": lambda: SHIPPED,
        "grouped heads": lambda: f"gqa:{values[0]}",
        "latent": lambda: f"mla:{values[0]}+{values[1]}",
        "window": lambda: f"sliding:{values[0]}" + ("" if values[1] in ("", "0") else f"/{values[1]}"),
        "shared layers": lambda: f"share:{values[0]}",
        "hybrid": lambda: f"hybrid:{values[0]}:{state}",
        "states only": lambda: f"linear:{state}",
    }[kind]()
    stored = keep["build_format"]
    if stored in KV_FORMATS:
        text += f"@{stored}"
    try:
        design = parse_design(text)
    except KVCoreError as problem:
        keep.setdefault("problems", []).append(f"{str(problem)[:300]}.")
        return
    if design not in keep["designs"] and design != SHIPPED:
        keep["designs"] = [*keep["designs"][: MAX_DESIGNS - 1], design]
    keep["design"] = design


def server() -> None:
    """Which accelerators the bounds are about."""
    with st.container(key="server_controls"):
        gpu, count, weights = st.columns([3, 1.4, 1.6], vertical_alignment="bottom")
    with gpu:
        widgets.pick()
    with count:
        scenario.free(
            "gpus", "GPUs", GPUS, "auto: a host of 8, doubled until the weights fill its memory by at most half."
        )
    with weights:
        st.selectbox(
            "Weights in", ["auto", *WEIGHT_FORMATS], key="weights",
            help="auto: the format in which the checkpoint stores them.",
        )  # fmt: skip
