"""The controls of the Live screen, and the jobs that they describe."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import streamlit as st

from kvcore.errors import KVCoreError
from kvcore.live import models
from kvcore.live.options import CONTEXTS, KV_FORMATS, RACE_CONTEXTS, WEIGHT_FORMATS
from kvcore.live.settings import read_limits
from kvcore.live.shape import LiveShape, as_variant, cut, default_latent, shape_of_catalogue, weight_bytes
from kvcore.scenario.live import (
    AS_WRITTEN,
    BATCHES,
    BUDGETS,
    LEAST_TOP_P,
    LENGTHS,
    MAX_HEAT,
    MAX_SEED,
    NEW_TOKENS,
    VARIANTS,
    LiveOptions,
)
from kvcore.units import GIB, format_bytes
from pages.ui.live import jobs, replay
from pages.ui.live.words import variant_name
from pages.ui.models import Chosen

SHAPE_ONLY = "shape:"
# How long a click on Stop waits for the engine before the page goes on asking as often as it does anyway.
_STOP_WAIT_S = 1.0
# A shape without weights is cut to layers of at most this, or a third of what the engine may hold.
_SHAPE_BYTES = 3 * GIB
DEFAULTS: dict[str, Any] = {**LiveOptions().controls(), "live_hub": False, "live_on": ""}


def prompt_row(off: str) -> None:
    """The prompt, and the button that runs it, or stops what runs."""
    with st.container(key="live_top"):
        text, button = st.columns([6, 1.2], vertical_alignment="bottom", gap="small")
    with text:
        st.text_area(
            "Prompt", key="live_prompt", height=72, disabled=st.session_state["live_length"] != AS_WRITTEN,
            label_visibility="collapsed", placeholder="Ask the model something",
        )  # fmt: skip
    with button:
        stop_or("Run", "live_run", run, disabled=bool(off), primary=True)


def stop_or(
    label: str, key: str, on_click: Any, *, disabled: bool = False, primary: bool = False, icon: str = ""
) -> None:
    """The button that starts something; while anything runs, the one of the prompt stops it and others wait."""
    watch = jobs.watched()
    if watch is None:
        st.button(
            label, key=key, on_click=on_click, disabled=disabled, type="primary" if primary else "secondary",
            icon=icon or ":material/play_arrow:", width="stretch" if primary else "content",
        )  # fmt: skip
    elif primary:
        _stop()
    else:
        st.button(label, key=key, disabled=True, icon=icon or ":material/play_arrow:")


@st.fragment
def _stop() -> None:
    """The button that stops what runs: drawn alone at a click, so that it answers before the page is drawn anew."""
    watch = jobs.watched()
    if watch is None:
        return
    st.button(
        "Stopping" if watch.stopping else "Stop", key="live_stop", on_click=_stop_now, type="primary",
        icon=":material/stop:", disabled=watch.stopping, width="stretch",
    )  # fmt: skip
    if st.session_state.pop("live_stop_pressed", False) and jobs.settled(_STOP_WAIT_S):
        st.rerun()


def _stop_now() -> None:
    jobs.stop()
    st.session_state["live_stop_pressed"] = True


def settings_row(chosen: Chosen, off: str) -> None:
    """What is run: model, lengths, requests, and the rest behind a button."""
    with st.container(key="live_settings"):
        columns = st.columns([3, 2, 2.2, 1.4], vertical_alignment="bottom", gap="medium")
    with columns[0]:
        _model(chosen)
    with columns[1]:
        st.select_slider(
            "Prompt tokens", LENGTHS, key="live_length",
            help="As written, or that many tokens of a running English text instead.",
        )  # fmt: skip
    with columns[2]:
        st.slider("New tokens", NEW_TOKENS[0], NEW_TOKENS[-1], key="live_new", step=NEW_TOKENS.step)
    with columns[3]:
        st.select_slider("Requests", BATCHES, key="live_batch", help="Copies of the prompt that run together.")
    with st.container(horizontal=True, gap="medium", vertical_alignment="center", key="live_ways"):
        st.checkbox(
            "Then without the cache", key="live_again", help="The same tokens, recomputing everything each time."
        )
        st.checkbox(
            "Then the probe, the first time", key="live_probe_too",
            help="One step at each of several contexts, with and without the cache.",
        )  # fmt: skip
        with st.popover("More settings", type="tertiary", icon=":material/tune:", key="live_more"):
            _more(chosen)
        if replay.shipped():
            st.button(
                "Replay the recording", key="live_replay", on_click=play_recordings, type="tertiary",
                icon=":material/replay:", disabled=jobs.running(),
                help="Plays a recorded run at its true speed; nothing is computed.",
            )  # fmt: skip
    with st.container(key="live_off_place"):
        if off:
            st.info(f"{off} What you see is a recording.", icon=":material/info:")


@st.cache_data(ttl=30, max_entries=1, show_spinner=False)
def _titles() -> dict[str, str]:
    where = {
        "ready": "ready",
        "package": "installed",
        "hub cache": "in the Hub cache",
        "folder": "folder",
        "hub": "on the Hub",
    }
    return {one.id: f"{one.title} · {where.get(one.where, one.where)}" for one in models.listed()}


def _model(chosen: Chosen) -> None:
    titles = _titles()
    shape = f"{SHAPE_ONLY}{chosen.id}"
    options = [*titles, *([shape] if supported(chosen.id) is not None else [])]
    now = st.session_state["live_model"]
    if str(now).startswith(SHAPE_ONLY) and now not in options:
        now = st.session_state["live_model"] = models.DEFAULT
    if now not in options:
        options.insert(0, now)

    def shown(option: str) -> str:
        if option.startswith(SHAPE_ONLY):
            return f"{chosen.name}: shape only, random weights"
        return titles.get(option, option)

    st.selectbox(
        "Live model", options, key="live_model", format_func=shown, accept_new_options=True,
        help="A choice of its own: the model above is what the other screens count. Type `hub:` and an id for "
        "another one of the Llama, Qwen, Mistral or SmolLM families, or a folder that this server offers.",
    )  # fmt: skip


@lru_cache(maxsize=64)
def supported(model_id: str) -> LiveShape | None:
    """The shape of a catalogued model that the engine can run, or None."""
    try:
        return shape_of_catalogue(model_id)
    except (KVCoreError, NotImplementedError):
        return None


@lru_cache(maxsize=64)
def layers_that_fit(model_id: str) -> int:
    """How many layers of a shape are run when nothing is chosen: as many as take three GiB in 16 bits, one at least."""
    shape = supported(model_id)
    if shape is None:
        return 1
    room = min(_SHAPE_BYTES, read_limits().max_memory_bytes // 3)
    fits = [count for count in range(1, shape.num_layers + 1) if weight_bytes(cut(shape, count), "bf16") <= room]
    return max(fits, default=1)


def live_shape() -> LiveShape | None:
    """The shape of the live model where it is catalogued and supported."""
    return supported(str(st.session_state["live_model"]).removeprefix(SHAPE_ONLY).removeprefix("hub:"))


def attentions() -> list[str]:
    """The attentions that a race and a run offer: those that divide the live model's heads."""
    shape = live_shape()
    heads, groups = (shape.num_heads, shape.num_kv_heads) if shape else (0, 0)
    shared = [f"gqa:{count}" for count in range(heads // 2, 1, -1) if heads % count == 0 and count != groups]
    return ["mha", "shipped", *shared, "mqa", "mla", "sliding:256", "sliding:1024"]


def race_choices() -> tuple[list[str], list[str]]:
    """(what the race offers, what was chosen and cannot be had): also those that a link brought, where they fit."""
    shape, listed = live_shape(), attentions()
    chosen, refused = st.session_state["live_variants"], []
    for one in chosen:
        if one in listed:
            continue
        try:
            if shape is not None:
                as_variant(shape, exact(one))
            listed.append(one)
        except KVCoreError:
            refused.append(one)
    if refused:
        st.session_state["live_variants"] = [one for one in chosen if one not in refused]
    return listed, [variant_name(one) for one in refused]


def exact(attention: str) -> str:
    """An attention as a job names it: a latent with its widths."""
    shape = live_shape()
    return attention if attention != "mla" or shape is None else default_latent(shape)


def _more(chosen: Chosen) -> None:
    keep = st.session_state
    with st.container(width=420):
        st.selectbox(
            "Attention", attentions(), key="live_attention", format_func=variant_name, accept_new_options=True,
            help="Anything but as shipped has random weights of the same shape: times and bytes are real, the text "
            "means nothing. Also gqa:4, mla:128+32, sliding:512.",
        )  # fmt: skip
        st.segmented_control("Cache in", KV_FORMATS, key="live_kv", required=True)
        st.segmented_control(
            "Weights in", WEIGHT_FORMATS, key="live_weights", required=True,
            help="int8 and int4 speed up decode on a CPU; the prefill then still runs in 16 bits.",
        )  # fmt: skip
        if str(keep["live_model"]).startswith(SHAPE_ONLY):
            shape = supported(chosen.id)
            most = shape.num_layers if shape else 1
            if keep["live_layers"] is not None and keep["live_layers"] > most:
                keep["live_layers"] = most
            st.number_input(
                "Layers", 1, most, key="live_layers", placeholder=f"{layers_that_fit(chosen.id)} of {most}",
                help="Fewer layers than shipped, so that it fits and answers in time; marked as such.",
            )  # fmt: skip
        st.slider("Temperature", 0.0, MAX_HEAT, key="live_heat", step=0.05, help="0 picks the likeliest token.")
        if keep["live_heat"]:
            st.slider("Top p", LEAST_TOP_P, 1.0, key="live_top_p", step=0.05)
            st.number_input("Seed", 0, MAX_SEED, key="live_seed")
        st.checkbox("As a chat message", key="live_chat", help="Through the model's chat template; else as plain text.")
        st.select_slider(
            "Time budget", BUDGETS, key="live_seconds", format_func=_budget,
            help="What is measured ends then; a curve that is cut off says so. Reading and calibrating a model come "
            "before it.",
        )  # fmt: skip
        _hub()


def _budget(seconds: int) -> str:
    return f"{seconds} s" if seconds else f"{read_limits().max_seconds:g} s, the server's"


def _hub() -> None:
    one = next((one for one in models.listed() if one.id == st.session_state["live_model"]), None)
    size = f", {format_bytes(one.bytes)}" if one is not None and one.where == "hub" and one.bytes else ""
    st.checkbox(
        f"Weights may be downloaded from the Hub{size}", key="live_hub",
        help="Only with this: safetensors of a pinned revision, never code.",
    )  # fmt: skip


def setup(chosen: Chosen) -> dict[str, Any]:
    """The part of a job that says which decoder."""
    keep = st.session_state
    model = str(keep["live_model"])
    found: dict[str, Any] = {
        "model": model, "attention": exact(str(keep["live_attention"])), "kv_format": keep["live_kv"] or "bf16",
        "weight_format": keep["live_weights"] or "bf16",
    }  # fmt: skip
    if keep.get("live_hub"):
        found["allow_hub"] = True
    if keep.get("live_seconds"):
        found["max_seconds"] = int(keep["live_seconds"])
    if model.startswith(SHAPE_ONLY):
        name = model.removeprefix(SHAPE_ONLY)
        shape = supported(name)
        layers = int(keep.get("live_layers") or layers_that_fit(name))
        found |= {"model": name, "weights": "random"}
        if shape is not None and layers < shape.num_layers:
            found["layers"] = layers
    return found


def run_job(chosen: Chosen) -> dict[str, Any]:
    """The job of the Run button."""
    keep = st.session_state
    job: dict[str, Any] = {
        "job": "run", **setup(chosen), "new_tokens": int(keep["live_new"]), "batch": int(keep["live_batch"]),
        "also_recompute": bool(keep["live_again"]),
    }  # fmt: skip
    if keep["live_length"] == AS_WRITTEN:
        job["prompt"] = str(keep["live_prompt"])
        if not keep["live_chat"]:
            job["chat"] = False
        if job["batch"] == 1:
            job["session"] = jobs.session_name()
    else:
        job |= {"prompt_tokens": int(keep["live_length"].replace(",", "")), "ignore_stop": True}
    if keep["live_heat"]:
        job |= {
            "temperature": float(keep["live_heat"]),
            "top_p": float(keep["live_top_p"]),
            "seed": int(keep["live_seed"]),
        }
    return job


def probe_job(chosen: Chosen) -> dict[str, Any]:
    """The job of the probe."""
    keep = st.session_state
    contexts = sorted(int(one) for one in keep["live_contexts"]) or list(CONTEXTS)
    return {"job": "probe", **setup(chosen), "contexts": contexts, "batch": int(keep["live_batch"])}


def race_job(chosen: Chosen) -> dict[str, Any]:
    """The job of the race: attention is what races."""
    keep = st.session_state
    contexts = sorted(int(one) for one in keep["live_race_contexts"]) or list(RACE_CONTEXTS)
    variants = [exact(one) for one in keep["live_variants"] or VARIANTS]
    kept = {name: value for name, value in setup(chosen).items() if name not in ("attention", "weights")}
    return {"job": "race", **kept, "variants": variants, "contexts": contexts, "batch": int(keep["live_batch"])}


def _chosen() -> Chosen:
    found: Chosen = st.session_state["live_chosen"]
    return found


def run() -> None:
    """Run the prompt, and after it the probe where none of this model was made yet."""
    chosen = _chosen()
    job = run_job(chosen)
    if "prompt" in job and not job["prompt"].strip():
        st.session_state["live_problem"] = "The prompt is empty: write something, or choose a number of tokens."
        return
    chain: list[tuple[str, dict[str, Any]]] = [(jobs.RUN, job)]
    last = jobs.results().get(jobs.PROBE)
    wanted = probe_job(chosen)
    if st.session_state["live_probe_too"] and (last is None or last.job != wanted or last.state != "done"):
        chain.append((jobs.PROBE, wanted))
    jobs.start(*chain)


def go_on() -> None:
    """The next turn of the conversation that the engine keeps."""
    text = str(st.session_state.get("live_on") or "").strip()
    if not text:
        return
    job = {
        name: value
        for name, value in run_job(_chosen()).items()
        if name not in ("prompt", "prompt_tokens", "ignore_stop")
    }
    name = jobs.session_name()
    messages: list[list[str]] = []
    for turn in jobs.turns():
        messages += [["user", asked(turn.job)], ["assistant", turn.progress.text]]
    job |= {
        "messages": [*messages, ["user", text]],
        "continue_of": name,
        "session": name,
        "batch": 1,
        "also_recompute": False,
    }
    st.session_state["live_on"] = ""
    jobs.start((jobs.RUN, job))


def asked(job: dict[str, Any]) -> str:
    """What the user asked in a job."""
    if job.get("messages"):
        return str(job["messages"][-1][1])
    return str(job.get("prompt") or "")


def probe() -> None:
    jobs.start((jobs.PROBE, probe_job(_chosen())))


def race() -> None:
    jobs.start((jobs.RACE, race_job(_chosen())))


def measure_again() -> None:
    jobs.start((jobs.MACHINE, {"job": "host", "remeasure": True}))


def play_recordings() -> None:
    """Play the recordings that come with the dashboard, one after the other."""
    jobs.results().clear()
    jobs.play(*(replay.playing(record) for record in replay.shipped()))
