"""The scenario between the address, the controls and the pages.

The address is read when it was changed from outside (a link, the Back button) and written after every run, so it
always holds what `Scenario.to_query` says, and a parameter that cannot be read gives a sentence. Streamlit's own
binding would drop such a parameter without a word, and knows no format for keys and values together.

Controls keep their values in the session under the names of the Scenario's fields. Streamlit forgets a control that
a page does not show, so `keep` puts the last value back before each run.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable
from dataclasses import replace
from urllib.parse import urlencode

import streamlit as st

from kvcore.errors import KVCoreError
from kvcore.formats import ELEMENT_FORMATS
from kvcore.hardware.systems import HOST_GPUS
from kvcore.scenario.concurrency import ConcurrencyOptions
from kvcore.scenario.fields import choices
from kvcore.scenario.scenario import DEFAULT_MODEL, Scenario, decode_config
from kvcore.scenario.variants import VariantOptions
from kvcore.sources import catalogue, files
from kvcore.units import is_whole
from pages.ui import models, screens
from pages.ui.concurrency import address
from pages.ui.models import OWN, Chosen, Refusal

SAME = "same"  # values stored as the keys are
VARIANTS, CONCURRENCY, LIVE = "variants", "concurrency", "live"
# The scenario's choices that have one control each, under their own names.
_PLAIN = ("tokens", "batch", "budget", "source", "bound", "engine", "gpu", "tp")
_CONTROLS = ("model", "k_format", "v_format", "compare", *_PLAIN)
_SEEN = "seen_query"
_SHADOW = "shadow"
_TURNED = "turned_page"
_ARRIVED = "query_on_arrival"
_LEFT_EMPTY = "address_left_empty"


def keys() -> tuple[str, ...]:
    """The keys of every control whose value is kept while another screen is open."""
    return (*_CONTROLS, *(key for one in screens.SCREENS if not one.shadow for key in one.keys))


def begin(page: str) -> None:
    """Take the address's scenario where it was changed from outside; call first in every run."""
    state = st.session_state
    query = st.query_params.to_dict()
    touched = any(key in state and state[key] != state.get(_SHADOW, {}).get(key) for key in keys())
    outside = _SEEN not in state or (query != state[_SEEN] and page == state.get("page") and not touched)
    arrived: dict[str, dict[str, str]] = state.setdefault(_ARRIVED, {})
    if outside:
        # Back to where a page was turned to: its address was empty there, and the view was not the plain one.
        state[_LEFT_EMPTY] = not query and bool(arrived.get(page))
        query = query or arrived.get(page, {})
        scenario, problems = Scenario.from_query(query)
        state["problems"] = [*problems, *_unknown(query)]
        adopt(scenario)
        for screen in screens.SCREENS:
            if screen.options is not None and (page == screen.name or not screen.is_set()):
                options, more = screen.options.from_query(query)
                state["problems"] += more
                screen.adopt(options, scenario)
        # A click may end this run before `finish`: the next one must take the click, not this address again.
        state[_SEEN] = st.query_params.to_dict()
        _remember()
    else:
        # A control that two pages have in common is another one on each: it takes the value only if it is set anew.
        for key, value in state.get(_SHADOW, {}).items():
            if key not in state or page != state.get("page"):
                state[key] = value
    state[_TURNED] = page != state.get("page")
    if state[_TURNED] and not outside:
        _carry_gpus(state.get("page"))
    state["page"] = page
    if state[_TURNED] and "scenario" in state:
        address.follow(state["scenario"])
        arrived[page] = _query(state["scenario"])


def _unknown(query: dict[str, str]) -> list[str]:
    """A sentence about the parameters of an address that no screen has; they would be dropped without a word."""
    known = screens.parameters()
    lost = [name for name in query if name not in known]
    if not lost:
        return []
    near = [close[0] for name in lost if (close := difflib.get_close_matches(name, known, 1))]
    hint = f"; did you mean {', '.join(dict.fromkeys(near))}?" if near else "."
    said = ", ".join(name[:40] for name in lost[:6])
    return [f"The address's {said} {'was' if len(lost) == 1 else 'were'} not taken: no screen has such a setting{hint}"]


def _carry_gpus(left: str | None) -> None:
    """Take the number of GPUs from the screen that is left to the other one that asks for it."""
    state = st.session_state
    count = address.key("count")
    if left == CONCURRENCY and is_whole(state[count]):
        many = int(state[count])
        # What every screen begins with is not a number that somebody named.
        state["gpus"] = choices(VariantOptions)["gpus"].control(0 if many == HOST_GPUS else many)
    elif left == VARIANTS and is_whole(state["gpus"]):
        state[count] = state["gpus"]


def adopt(scenario: Scenario) -> None:
    """Set every control to a scenario."""
    state = st.session_state
    state["model"] = scenario.model
    if scenario.config:
        _adopt_config(scenario)
    elif (entry := catalogue.find(scenario.model)) is None:
        state.setdefault("problems", []).append(f"The address's model was not taken: {models.unknown(scenario.model)}.")
        state["model"] = DEFAULT_MODEL
    else:
        state["model"] = entry.model_id
    controls = scenario.controls()
    state.update({name: controls[name] for name in _PLAIN})
    state["k_format"], state["v_format"] = split_formats(scenario.kv)
    known = [entry.model_id for one in scenario.compare if (entry := catalogue.find(one))]
    if len(known) < len(scenario.compare):
        lost = ", ".join(one for one in scenario.compare if not catalogue.find(one))
        state.setdefault("problems", []).append(
            f"The address's compare was not taken: not in the catalogue: {lost[:200]}."
        )
    state["compare"] = known


def show(scenario: Scenario, options: VariantOptions | None = None) -> None:
    """Go to a scenario from a button, on the server that is meant now; what was refused before is forgotten."""
    now: Scenario = st.session_state.get("scenario", scenario)
    st.session_state["refusal"] = None
    adopt(replace(scenario, engine=now.engine, gpu=now.gpu, tp=now.tp))
    if options is not None:
        screens.screen(VARIANTS).adopt(options, scenario)
    # The button may lead to another page, which takes over what is remembered here.
    _remember()


def show_plan(scenario: Scenario, options: ConcurrencyOptions) -> None:
    """Go to a plan from a button; what was refused before is forgotten."""
    st.session_state["refusal"] = None
    adopt(scenario)
    screens.screen(CONCURRENCY).adopt(options, scenario)
    _remember()


def _remember() -> None:
    """Keep what the controls hold, for runs and pages that do not show them."""
    state = st.session_state
    state[_SHADOW] = {key: state[key] for key in keys() if key in state}


def _adopt_config(scenario: Scenario) -> None:
    state = st.session_state
    text = json.dumps(decode_config(scenario.config))
    name = "" if scenario.model == DEFAULT_MODEL else scenario.model
    if not bring(lambda bound: files.from_json(text, name, upper_bound=bound), name, upper_bound=scenario.bound):
        state["model"] = DEFAULT_MODEL


def bring(load: Callable[[bool], files.Loaded], name: str = "", *, upper_bound: bool = False) -> bool:
    """Show the model that `load(upper_bound)` gives; else keep why it was refused, and answer False."""
    state = st.session_state
    try:
        loaded = load(upper_bound)
    except KVCoreError as problem:
        keys = getattr(problem, "keys", ())
        again = (lambda: load(True)) if keys and not upper_bound else None
        state["refusal"] = Refusal(name=name, message=str(problem), keys=keys, bound=again)
        return False
    state["own"] = models.from_own(loaded, name)
    state["model"] = OWN
    state["refusal"] = None
    state["bound"] = upper_bound
    return True


def split_formats(kv: str) -> tuple[str, str]:
    """The two controls' values for a scenario's cache format."""
    first, _, second = kv.partition("/")
    return (first, second) if second else (kv, SAME)


def join_formats(keys: str, values: str, auto: str) -> str:
    """The scenario's cache format from the two controls; `auto` is what the model's own format is."""
    if values == SAME:
        return keys
    keys = auto if keys == "auto" else keys
    if keys == values or keys not in ELEMENT_FORMATS:
        return keys
    return f"{keys}/{values}"


def scenario(chosen: Chosen) -> Scenario:
    """What the controls say now; a field that cannot be read keeps its last good value and leaves a sentence."""
    state = st.session_state
    rows = choices(Scenario)
    values = {name: screens.last_good(name, rows[name].read_control, state.get(name), rows[name].default)
              for name in _PLAIN}  # fmt: skip
    own = chosen.id == OWN
    plain = Scenario()
    return Scenario(
        model=(chosen.name if chosen.config else plain.model) if own else chosen.id,
        config=(chosen.config or "") if own else "",
        kv=join_formats(state["k_format"], state.get("v_format", SAME), chosen.model.resolve_format().name),
        compare=tuple(state.get("compare", ())),
        **values,
    )


def finish(now: Scenario) -> None:
    """Write the address, and remember what the controls hold; call last in every run."""
    state = st.session_state
    query = _query(now)
    # Reading the controls again finds the same faults again: they were said, and are not those of the next answer.
    state.pop("problems", None)
    if state.pop(_LEFT_EMPTY, False):
        # Writing the address would put an entry before this one, and nobody could go back any further.
        state[_SEEN], state["scenario"] = {}, now
        _remember()
        return
    # Turning to another page empties the browser's address without a word to the server.
    if state[_TURNED] or st.query_params.to_dict() != query:
        st.query_params.from_dict(query)
    state[_SEEN] = query
    state["scenario"] = now
    _remember()


def _query(now: Scenario) -> dict[str, str]:
    """The address's parameters on the page that is open."""
    options = screens.screen(st.session_state["page"]).chosen(now)
    return now.to_query() | ({} if options is None else options.to_query())


def link(now: Scenario) -> str:
    """The full address of a scenario on the page that is open."""
    base = (st.context.url or "").split("?")[0].split("#")[0]
    base += "/" if base.count("/") < 3 else ""
    query = urlencode(_query(now), safe="/,:@")
    return f"{base}?{query}" if query else base
