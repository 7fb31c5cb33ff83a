"""The controls of the Concurrency screen: which GPUs, split in which way, by which engine with which settings."""

from __future__ import annotations

import streamlit as st

from kvcore.deployment import OWN, read_split
from kvcore.engines.registry import engine_names, labels
from kvcore.hardware.systems import system, systems
from kvcore.model import Model
from kvcore.model.weight_formats import WEIGHT_FORMATS
from kvcore.planning.pools import has_share
from kvcore.planning.splits import Shard
from kvcore.scenario.concurrency import AUTO
from kvcore.sources import catalogue
from pages.ui import scenario, widgets
from pages.ui.concurrency import address, words
from pages.ui.concurrency import case as plan_answers
from pages.ui.concurrency.case import PlanCase
from pages.ui.text import plain

COUNTS = ("1", "2", "4", "8", "16", "32", "64", "72")
_OWN = "own"
key = address.key


def place(model: Model, case: PlanCase) -> None:
    """System, GPU, count, split, weights and engine: all that changes what the cards say."""
    with st.container(key="plan_controls", gap="xsmall"):
        first = st.columns([2.7, 2.5, 1, 2.1, 1.5], vertical_alignment="bottom")
        with first[0]:
            _system()
        with first[1]:
            widgets.pick(after=_any_split)
        with first[2]:
            scenario.free(key("count"), "GPUs", COUNTS, "All GPUs of all replicas. Type any number.")
        with first[3]:
            _split(model, case)
        with first[4]:
            st.selectbox(
                "Weights in", [AUTO, *WEIGHT_FORMATS], key="weights",
                help="auto: the format in which the checkpoint stores them.",
            )  # fmt: skip
        second = st.columns([6.6, 2.2, 1.6], vertical_alignment="bottom")
        with second[0]:
            st.segmented_control(
                "Engine",
                engine_names(),
                key="engine",
                format_func=lambda name: labels()[name],
                required=True,
                width="stretch",
            )
        with second[1]:
            st.text_input(
                "Cache I already have, GiB a GPU", key=key("have"), placeholder="as planned",
                help="As a log prints it, such as 12.5 GiB: then nothing about memory is estimated. Empty: planned.",
            )  # fmt: skip
        with second[2], st.popover("Engine settings", icon=":material/tune:", key="plan_settings", width="stretch"):
            _settings(model, case)
    _refused(model, case)


def _system() -> None:
    keep = st.session_state
    known = systems()
    now = (keep["gpu"], str(keep[key("count")]))
    found = next((one.id for one in known if (one.gpu_id, str(one.gpus)) == now), _OWN)
    keep["plan_system"] = found
    names = {one.id: one.name for one in known} | {_OWN: "GPU and count as chosen"}
    options = [*names] if found == _OWN else [one.id for one in known]
    st.selectbox(
        "System", options, key="plan_system", format_func=lambda one: names.get(one, one), on_change=_take_system,
        filter_mode="contains",
    )  # fmt: skip


def _take_system() -> None:
    keep = st.session_state
    if keep["plan_system"] != _OWN:
        chosen = system(keep["plan_system"])
        keep["gpu"], keep[key("count")] = chosen.gpu_id, str(chosen.gpus)
        _any_split()


def _any_split() -> None:
    st.session_state[key("split")] = AUTO


def _split(model: Model, case: PlanCase) -> None:
    found = plan_answers.splits(model, case.scenario.engine, case.options.count)
    valid = [one.split.text for one in found if not one.refused]
    now = st.session_state[key("split")] = case.options.split
    # One that the engine refuses can be named in an address; the page then says why it is refused.
    options = [AUTO, *dict.fromkeys([*valid, *([] if now == AUTO else [now])])]
    st.selectbox(
        "Split", options, key=key("split"), format_func=_name,
        help="Only what the engine can serve. TP splits each layer, PP the layers, replicas are whole copies, DCP "
        "splits the tokens of a request over ranks that would hold copies. auto is named under the title.",
    )  # fmt: skip


def _name(text: str) -> str:
    # The same words whatever the plan: a browser answers with the words that it was shown, and later ones must match.
    return "auto: first that fits" if text == AUTO else words.split_words(read_split(text))


def _refused(model: Model, case: PlanCase) -> None:
    """The splits that are not offered, each with its reason, and what is to know about the one that is chosen."""
    found = plan_answers.splits(model, case.scenario.engine, case.options.count)
    mine = next((one for one in found if one.split == case.split), None)
    st.caption(plain(words.split_explained(case.split)))
    for note in mine.notes if mine else ():
        st.caption(plain(f"{note[:1].upper()}{note[1:]}."))
    refused = [one for one in found if one.refused]
    if refused:
        with st.expander(f"Splits of {case.options.count:,} GPUs that do not work here: {len(refused)}"):
            st.markdown("\n".join(f"- **{_shard(one)}**: {plain(one.refused)}" for one in refused))


def _shard(one: Shard) -> str:
    return plain(words.split_words(one.split))


def _proposer() -> None:
    """Who proposes tokens ahead; a draft with weights of a format that the address names is one more choice."""
    now = st.session_state.get(key("draft"), "")
    known = ["", OWN, *(entry.model_id for entry in catalogue.entries())]
    st.selectbox(
        "Proposed by", known if now in known else [*known, now], key=key("draft"), filter_mode="contains",
        format_func=lambda one: {"": "the prompt itself (n-gram)", OWN: "the model’s prediction layers (MTP)"}.get(
            one, one
        ),
        disabled=not st.session_state.get(key("spec")),
        help="A draft model’s weights and cache are counted beside the model’s, and so are prediction layers that the "
        "checkpoint has. Proposals from the prompt have neither.",
    )  # fmt: skip


def _automatic(own: str) -> str:
    """What an empty setting says: `auto: 0.92`, or `auto` where the engine's own is not known."""
    return f"{AUTO}: {own}" if own else AUTO


def _settings(model: Model, case: PlanCase) -> None:
    """The engine's own knobs; an empty one is left to the engine, and says what it takes."""
    own = plan_answers.own_settings(model, case.deployment)
    with st.container(width=340):
        if has_share(case.scenario.engine):
            st.number_input(
                "Share of the GPU’s memory", 0.01, 1.0, None, key=key("util"), step=0.01, format="%.2f",
                placeholder=_automatic(own.util),
                help="gpu_memory_utilization, mem_fraction_static or free_gpu_memory_fraction. Empty: the engine’s "
                "own.",
            )  # fmt: skip
        st.number_input(
            "Most tokens in a step", 1, 10**7, None, key=key("batched"), step=1024, placeholder=_automatic(own.batched),
            help="max_num_batched_tokens or its like. More make prefill faster and take memory. Empty: the engine’s "
            "own.",
        )  # fmt: skip
        st.number_input(
            "Most requests at once", 1, 10**6, None, key=key("seqs"), step=16, placeholder=_automatic(own.seqs),
            help="max_num_seqs or its like, for each replica. Empty: the engine’s own.",
        )  # fmt: skip
        st.number_input(
            "Speculative tokens", 0, 64, key=key("spec"), step=1,
            help="Tokens that are proposed ahead in each step, to be checked by the model at once.",
        )  # fmt: skip
        _proposer()
        st.text_input(
            "Engine version", key=key("version"), placeholder="the newest that is followed", max_chars=40,
            help="A release whose defaults, memory and log lines are meant, such as 0.11.0 of vLLM.",
        )  # fmt: skip
        st.toggle("Without CUDA graphs (eager)", key=key("eager"))
        st.toggle("Keep prefixes (prefix caching)", key=key("prefix"))
