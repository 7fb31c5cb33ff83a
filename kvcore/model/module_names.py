"""Names of a checkpoint's matrices, and the lists and patterns by which quantisers mean some of them.

A list names modules in full (`model.layers.3.mlp.gate`), by a module that they are in (`model.layers.3.mlp`), with
wildcards (`model.layers.3.self_attn*`), or by a regular expression (`re:.*self_attn.*`). Only what follows `layers.N.`
is compared: language models of multimodal checkpoints have a longer way to their layers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import translate
from typing import Generic, TypeVar

Value = TypeVar("Value")
_IN_A_LAYER = re.compile(r"(?:^|[.*])layers\.(\d+|\*)(.*)$")
_LONGEST = 300
# A file's regular expressions may be written to take for ever: those that repeat groups, or much, are not tried.
_REPEATED_GROUP = re.compile(r"\)\s*[*+{]")
_REPETITIONS = re.compile(r"[*+{]")
_MOST_REPETITIONS, _MOST_EXPRESSIONS = 4, 64


class Named(Generic[Value]):
    """What a list says about modules: `of(layer, names)` is the value of the entry that means one of these names."""

    def __init__(self, entries: Mapping[str, Value]) -> None:
        self._by_layer: dict[int | None, dict[str, Value]] = {}
        self._expressions: list[tuple[re.Pattern[str], Value]] = []
        for entry, value in entries.items():
            if len(entry) > _LONGEST or entry.strip("*") == "":
                continue
            if entry.startswith("re:"):
                expression = _compiled(entry[3:])
                if expression is not None and len(self._expressions) < _MOST_EXPRESSIONS:
                    self._expressions.append((expression, value))
                continue
            found = _IN_A_LAYER.search(entry)
            if found is None:
                # Wherever it is in a name, whole parts of it.
                self._by_layer.setdefault(None, {})[f"*.{entry.removeprefix('*').removeprefix('.')}"] = value
            else:
                layer = None if found[1] == "*" else int(found[1])
                self._by_layer.setdefault(layer, {})[found[2]] = value
        self._everywhere = _Rests(self._by_layer.pop(None, {}))
        # Most lists say the same of all layers: it is prepared once.
        prepared: dict[tuple[tuple[str, Value], ...], _Rests[Value]] = {}
        self._layers = {
            layer: prepared.setdefault(tuple(rests.items()), _Rests(rests)) for layer, rests in self._by_layer.items()
        }

    def of(self, layer: int | None, names: Iterable[str]) -> Value | None:
        """`names` follow `layers.N.`, or are whole names where `layer` is None; None where no entry means one."""
        own = self._layers.get(layer) if layer is not None else None
        for name in names:
            for rests in (own, self._everywhere):
                found = rests.of(f".{name}") if rests is not None else None
                if found is not None:
                    return found
            full = name if layer is None else f"model.layers.{layer}.{name}"
            for expression, value in self._expressions:
                if expression.match(full):
                    return value
        return None


class _Rests(Generic[Value]):
    """Ends of names, from the dot after the layer's number on; an entry means what it names and all that is in it."""

    def __init__(self, entries: Mapping[str, Value]) -> None:
        self._exact = {rest: value for rest, value in entries.items() if "*" not in rest and "?" not in rest}
        wild = [(rest, value) for rest, value in entries.items() if rest not in self._exact]
        self._wild = [(re.compile(f"{translate(rest)}|{translate(_inside(rest))}"), value) for rest, value in wild]
        self._known: dict[str, Value | None] = {}

    def of(self, name: str) -> Value | None:
        if name not in self._known:
            self._known[name] = self._find(name)
        return self._known[name]

    def _find(self, name: str) -> Value | None:
        whole = name
        while name:
            if name in self._exact:
                return self._exact[name]
            name = name.rpartition(".")[0]
        if "" in self._exact:
            return self._exact[""]
        return next((value for expression, value in self._wild if expression.match(whole)), None)


def _inside(rest: str) -> str:
    """The pattern of what is in a module that `rest` means."""
    return f"{rest.rstrip('*.')}.*" if rest.strip("*.") else rest


def _compiled(text: str) -> re.Pattern[str] | None:
    if _REPEATED_GROUP.search(text) or len(_REPETITIONS.findall(text)) > _MOST_REPETITIONS:
        return None
    try:
        return re.compile(text)
    except re.error:
        return None
