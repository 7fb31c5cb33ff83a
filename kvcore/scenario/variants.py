"""What a user chose on the Variants screen beside the scenario, equal to that screen's further parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kvcore.errors import UnitError
from kvcore.formats import kv_format
from kvcore.model.weight_formats import weight_format
from kvcore.planning.room import MAX_GPUS
from kvcore.scenario.scenario import read_query, write_query
from kvcore.variants.ladder import DEFAULT_DESIGNS, MAX_DESIGNS, SHIPPED, parse_design

TRENDS = ("bytes", "share")


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantOptions:
    """`designs` are the rungs beside the shipped model, `design` the one that is shown closely.

    `weights` is the format of the weights (`auto`: as stored), `gpus` how many GPUs of the scenario's kind hold them
    (0: those of a host, doubled until the weights fill them by at most half), `other` the cache format of the models
    compared (`same`: the scenario's), `trend` what the catalogue's chart measures.
    """

    designs: tuple[str, ...] = DEFAULT_DESIGNS
    design: str = SHIPPED
    weights: str = "auto"
    gpus: int = 0
    other: str = "same"
    trend: str = TRENDS[0]

    def to_query(self) -> dict[str, str]:
        """The address's parameters: only what differs from the defaults."""
        return write_query(self)

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> tuple[VariantOptions, tuple[str, ...]]:
        """(options, messages): every parameter that can be read is taken, and each other one has a message."""
        values, problems = read_query(query, READERS)
        return cls(**values), problems


def read_designs(text: str) -> tuple[str, ...]:
    """Designs with commas between them, each in its one spelling, each once; UnitError for one that is not known."""
    parts = [part for part in text.split(",") if part.strip()]
    if len(parts) > MAX_DESIGNS:
        raise UnitError(f"{len(parts)} designs are more than {MAX_DESIGNS}")
    return tuple(one for one in dict.fromkeys(parse_design(part) for part in parts) if one != SHIPPED)


def read_gpus(text: str) -> int:
    """A number of GPUs, `auto` and 0 both leaving it to the weights; UnitError for anything else."""
    plain = text.strip().lower()
    if plain == "auto":
        return 0
    if not plain.isascii() or not plain.isdigit() or len(plain) > 6 or int(plain) > MAX_GPUS:
        raise UnitError(f"GPUs: {text[:20]!r} is not auto or a whole number within 1 … {MAX_GPUS:,}")
    return int(plain)


def _read_weights(text: str) -> str:
    return "auto" if text.strip().lower() == "auto" else weight_format(text).name


def _read_other(text: str) -> str:
    plain = text.strip().lower()
    return plain if plain in ("same", "auto") else kv_format(text).name


def _read_trend(text: str) -> str:
    if text not in TRENDS:
        raise UnitError(f"trend: {text[:20]!r} is not one of {', '.join(TRENDS)}")
    return text


READERS: dict[str, Callable[[str], Any]] = {
    "designs": read_designs,
    "design": parse_design,
    "weights": _read_weights,
    "gpus": read_gpus,
    "other": _read_other,
    "trend": _read_trend,
}
