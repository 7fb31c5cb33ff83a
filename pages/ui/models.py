"""Which model the page is about: from the catalogue, or one that the reader brought."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import streamlit as st

from kvcore.errors import KVCoreError, ModelError
from kvcore.formats import KVFormat
from kvcore.model import Model, model_from_config
from kvcore.scenario.scenario import DEFAULT_MODEL, encode_config
from kvcore.sizing import growth_laws
from kvcore.sources import catalogue, files
from kvcore.units import format_count
from pages.ui.text import tidy_name

OWN = "own"  # the option of the picker that stands for the reader's own model


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The model that is shown, with where it is from; `config` is its text for the address, None if too large."""

    id: str
    name: str
    model: Model
    origin: str
    detail: str = ""
    fidelity: str = ""
    config: str | None = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A configuration that was not answered: why, which keys, and how to ask for an upper bound where there is one."""

    name: str
    message: str
    keys: tuple[str, ...] = ()
    bound: Callable[[], files.Loaded] | None = None
    catalogued: bool = False


@st.cache_resource(max_entries=1, show_spinner=False)
def labels() -> dict[str, str]:
    """What the picker shows for every catalogued id: name, kind of attention, parameters."""
    found = {}
    for one in catalogue.summaries():
        size = "" if one.total_parameters is None else f" · {format_count(one.total_parameters)}"
        found[one.entry.model_id] = f"{one.entry.display_name} · {one.attention}{size}"
    for entry in catalogue.entries():
        found.setdefault(entry.model_id, f"{entry.display_name} · not understood")
    return found


def name_of(model_id: str) -> str:
    """The display name of a catalogued id."""
    entry = catalogue.find(model_id)
    return entry.display_name if entry else model_id


def from_catalogue(model_id: str, bound: bool = False) -> Chosen | Refusal:
    """The catalogued model of that id, or why it is refused; with `bound` a refusal becomes an upper bound."""
    entry = catalogue.find(model_id)
    try:
        if entry is None:
            raise ModelError(unknown(model_id))
        model = _load(entry.model_id, bound)
    except KVCoreError as problem:
        name = entry.display_name if entry else model_id
        return Refusal(name=name, message=str(problem), keys=getattr(problem, "keys", ()), catalogued=entry is not None)
    return Chosen(
        id=entry.model_id,
        name=entry.display_name,
        model=model,
        origin=entry.provenance,
        detail=entry.path_in_source,
        fidelity=entry.fidelity,
    )


def suited_format(model: Model, name: str) -> KVFormat:
    """The cache format of that name where it suits the model, else the model's own."""
    try:
        kv = model.resolve_format(name)
        growth_laws(model, kv)
    except KVCoreError:
        return model.resolve_format()
    return kv


def unknown(model_id: str) -> str:
    """Why there is no model of that id, naming the nearest."""
    like = catalogue.nearest(model_id)
    hint = f"; did you mean {', '.join(like)}?" if like else "; choose one from the list"
    return f"{model_id[:120]!r} is not in the catalogue{hint}"


def _load(model_id: str, bound: bool) -> Model:
    try:
        return catalogue.load(model_id)
    except KVCoreError:
        if not bound:
            raise
        return model_from_config(catalogue.raw_config(model_id), model_id, upper_bound=True)


def from_own(loaded: files.Loaded, name: str = "") -> Chosen:
    """What the reader brought, ready to be shown."""
    where = {"pasted": "pasted here", "upload": "uploaded here", "gguf": "uploaded .gguf", "hub": "Hugging Face Hub"}
    return Chosen(
        id=OWN,
        name=tidy_name(name) or _own_name(loaded),
        model=loaded.model,
        origin=where.get(loaded.origin, loaded.origin),
        detail=loaded.detail,
        config=encode_config(loaded.raw) if loaded.raw is not None else None,
    )


def _own_name(loaded: files.Loaded) -> str:
    stated = tidy_name(loaded.model.name.rsplit("/", 1)[-1])
    return stated if stated not in ("", loaded.model.model_type) else tidy_name(f"Your {loaded.model.model_type} model")


def default() -> Chosen:
    """The model that the page opens on."""
    found = from_catalogue(DEFAULT_MODEL)
    if isinstance(found, Refusal):
        raise ModelError(found.message)
    return found
