"""The levers that let in no more here, each with its reason: what is absent from a list is not forgotten by it."""

from __future__ import annotations

from collections.abc import Callable, Collection

from kvcore.plan.changes import MOST_UTILIZATION, Kind
from kvcore.plan.pools import has_share, usable_share
from kvcore.plan.sharing import SLOTS
from pages.ui.plan_answers import Case

_STATED = "the cache is as you said"
_NOT_MORE = "what it would free holds no more requests"


def idle(case: Case, gained: Collection[Kind]) -> str:
    """The levers that are not among those that gained something, with why, in one sentence."""
    said = [f"{name} ({why(case)})" for kind, name, why in _LEVERS if kind not in gained]
    return f"Tried as well, and lets in no more here: {'; '.join(said)}."


def _tokens(case: Case) -> str:
    if case.deployment.engine in (*SLOTS, "transformers"):
        return "what a step takes in leaves this engine's cache alone"
    return _STATED if case.deployment.kv_bytes is not None else _NOT_MORE


def _sequences(case: Case) -> str:
    if case.plan.binding.kind == "sequences":
        return "it binds, and the cache holds no more either"
    return "the cache is full before that number is reached"


def _prefix(case: Case) -> str:
    if not case.options.shared:
        return "no shared prefix is named under the expected lengths"
    return "requests of the expected length share too little, or the engine keeps no prefixes"


def _share(case: Case) -> str:
    if not has_share(case.deployment.engine):
        return "the engine has no such share"
    if case.deployment.kv_bytes is not None:
        return _STATED
    return "it is taken already" if usable_share(case.plan.model, case.deployment) >= MOST_UTILIZATION else _NOT_MORE


def _graphs(case: Case) -> str:
    if case.deployment.engine in (*SLOTS, "transformers"):
        return "none are counted for this engine"
    if case.deployment.enforce_eager:
        return "none are captured"
    return _STATED if case.deployment.kv_bytes is not None else _NOT_MORE


def _offload(_: Case) -> str:
    return "it keeps the caches of those who wait, and no more generate at once"


_LEVERS: tuple[tuple[Kind, str, Callable[[Case], str]], ...] = (
    ("batched tokens", "fewer tokens a step", _tokens),
    ("sequences", "more requests by the engine's own limit", _sequences),
    ("prefix", "prefix sharing", _prefix),
    ("utilization", f"a share of {MOST_UTILIZATION:.2f} of the memory", _share),
    ("graphs", "no CUDA graphs", _graphs),
    ("offload", "offloading to CPU memory", _offload),
)
