"""What a user chose on the Live screen beside the scenario, equal to that screen's further parameters.

Whether weights may be downloaded is not part of it: a link must not allow that for whoever opens it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from kvcore.errors import LiveError
from kvcore.live.models import DEFAULT
from kvcore.live.options import CONTEXTS, KV_FORMATS, RACE_CONTEXTS, WEIGHT_FORMATS
from kvcore.scenario.scenario import read_query
from kvcore.variants.variants import canonical

PROMPT = "Explain in a few sentences why the sky is blue."
AS_WRITTEN = "as written"
LENGTHS = (AS_WRITTEN, "16", "64", "128", "256", "512", "1,024", "2,048", "4,096")
BATCHES = (1, 2, 4, 8, 16)
NEW_TOKENS = range(8, 513, 8)
MAX_PROMPT = 4000
SHIPPED = "shipped"
MAX_LAYERS = 1000
MAX_HEAT, MAX_SEED = 2.0, 2**31
LEAST_TOP_P = 0.1
PROBE_CHOICES = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
RACE_CHOICES = (128, 256, 512, 1024, 2048, 4096)
VARIANTS = ("mha", SHIPPED, "mqa", "mla", "sliding:256")
MAX_VARIANTS = 16
# The time that what is measured may take, in seconds; 0 is as long as the server allows.
BUDGETS = (0, 5, 10, 20, 30, 60, 120, 300)
# How an empty choice is written: a parameter without a value is dropped by many who pass a link on.
_NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveOptions:
    """What a run, a probe and a race are of; every field is named as its control and its parameter in the address.

    `live_layers` None: as many as fit. `live_heat` is the temperature; `live_top_p` and `live_seed` count where it is
    above 0. `live_probe_too`: the probe follows the first run.
    """

    live_prompt: str = PROMPT
    live_model: str = DEFAULT
    live_length: str = AS_WRITTEN
    live_new: int = 48
    live_batch: int = 1
    live_attention: str = SHIPPED
    live_kv: str = "bf16"
    live_weights: str = "bf16"
    live_again: bool = True
    live_probe_too: bool = True
    live_layers: int | None = None
    live_heat: float = 0.0
    live_top_p: float = 1.0
    live_seed: int = 0
    live_chat: bool = True
    live_seconds: int = 0
    live_contexts: tuple[int, ...] = CONTEXTS
    live_variants: tuple[str, ...] = VARIANTS
    live_race_contexts: tuple[int, ...] = RACE_CONTEXTS

    def to_query(self) -> dict[str, str]:
        """The address's parameters: only what differs from the defaults."""
        plain = LiveOptions()
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: _written(value) for name, value in values.items() if value != getattr(plain, name)}

    def controls(self) -> dict[str, Any]:
        """The values of the controls: what holds several is a list."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    @classmethod
    def from_controls(cls, values: Mapping[str, Any]) -> LiveOptions:
        """What the controls say; one that is missing or holds nothing counts as its default."""
        known = {one.name: values.get(one.name) for one in fields(cls)}
        read: dict[str, Any] = {}
        for name, value in known.items():
            if isinstance(value, list | tuple):
                read[name] = tuple(value) if name == "live_variants" else tuple(sorted(value))
            elif value is not None:
                read[name] = round(value, 2) if isinstance(value, float) else value
        return cls(**read)

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> tuple[LiveOptions, tuple[str, ...]]:
        """(options, messages): every parameter that can be read is taken, and each other one has a message."""
        values, problems = read_query(query, READERS)
        return cls(**values), problems


def _written(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or _NONE
    if isinstance(value, bool):
        return "1" if value else "0"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _text(limit: int) -> Callable[[str], str]:
    def read(text: str) -> str:
        if len(text) > limit or not all(mark.isprintable() or mark == "\n" for mark in text):
            raise LiveError(f"{text[:40]!r} is longer than {limit:,} characters or holds some that cannot be shown")
        return text

    return read


def _one_of(choices: tuple[str, ...]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in choices:
            raise LiveError(f"{text[:40]!r} is not one of {', '.join(choices)}")
        return text

    return read


def _number(choices: range | tuple[int, ...]) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not (_is_whole(text) and int(text) in choices):
            few = [*map(str, choices)] if len(choices) < 20 else [*map(str, choices[:2]), "…", str(choices[-1])]
            raise LiveError(f"{text[:40]!r} is not one of {', '.join(few)}")
        return int(text)

    return read


def _whole(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not (_is_whole(text) and low <= int(text) <= high):
            raise LiveError(f"{text[:40]!r} is not a whole number from {low:,} to {high:,}")
        return int(text)

    return read


def _is_whole(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 12


def _real(low: float, high: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        if not (re.fullmatch(r"[0-9](\.[0-9]{1,2})?", text) and low <= float(text) <= high):
            raise LiveError(f"{text[:40]!r} is not a number from {low:g} to {high:g} with two decimals at most")
        return float(text)

    return read


def _several(choices: Sequence[int]) -> Callable[[str], tuple[int, ...]]:
    one_of = _number(tuple(choices))

    def read(text: str) -> tuple[int, ...]:
        return () if text == _NONE else tuple(sorted({one_of(part) for part in text[:200].split(",")}))

    return read


def _attention(text: str) -> str:
    return text if text == SHIPPED else canonical(text)


def _attentions(text: str) -> tuple[str, ...]:
    if text == _NONE:
        return ()
    found = tuple(dict.fromkeys(_attention(part) for part in text[:1000].split(",")))
    if len(found) > MAX_VARIANTS:
        raise LiveError(f"{len(found)} variants are more than the {MAX_VARIANTS} that can race")
    return found


_truth = _one_of(("0", "1"))


READERS: dict[str, Callable[[str], Any]] = {
    "live_prompt": _text(MAX_PROMPT),
    "live_model": _text(200),
    "live_length": _one_of(LENGTHS),
    "live_new": _number(NEW_TOKENS),
    "live_batch": _number(BATCHES),
    "live_attention": _attention,
    "live_kv": _one_of(KV_FORMATS),
    "live_weights": _one_of(WEIGHT_FORMATS),
    "live_again": lambda text: _truth(text) == "1",
    "live_probe_too": lambda text: _truth(text) == "1",
    "live_layers": _whole(1, MAX_LAYERS),
    "live_heat": _real(0, MAX_HEAT),
    "live_top_p": _real(LEAST_TOP_P, 1),
    "live_seed": _whole(0, MAX_SEED),
    "live_chat": lambda text: _truth(text) == "1",
    "live_seconds": _number(BUDGETS),
    "live_contexts": _several(PROBE_CHOICES),
    "live_variants": _attentions,
    "live_race_contexts": _several(RACE_CHOICES),
}
