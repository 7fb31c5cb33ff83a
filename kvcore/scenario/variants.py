"""What a user chose on the Variants screen beside the scenario, equal to that screen's further parameters."""

from __future__ import annotations

from dataclasses import dataclass

from kvcore.hardware.systems import MAX_GPUS
from kvcore.scenario.fields import AUTO, Choices, cache_format, choice, either, one_of, several, weights_format, whole
from kvcore.variants.ladder import DEFAULT_DESIGNS, MAX_DESIGNS, SHIPPED, parse_design

TRENDS = ("bytes", "share")


_several = several(parse_design, MAX_DESIGNS, "designs")


def read_designs(given: str) -> tuple[str, ...]:
    """Designs with commas between them, each in its one spelling, each once; UnitError for one that is not known."""
    return tuple(one for one in (_several(given) if given else ()) if one != SHIPPED)


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantOptions(Choices):
    """`designs` are the rungs beside the shipped model, `design` the one that is shown closely.

    `weights` is the format of the weights (`auto`: as stored), `gpus` how many GPUs of the scenario's kind hold them
    (0: those of a host, doubled until the weights fill them by at most half), `other` the cache format of the models
    compared (`same`: the scenario's), `trend` what the catalogue's chart measures.
    """

    designs: tuple[str, ...] = choice(DEFAULT_DESIGNS, read_designs)
    design: str = choice(SHIPPED, parse_design)
    weights: str = choice(AUTO, weights_format)
    gpus: int = choice(0, whole("GPUs", 1, MAX_GPUS, auto=True), control=lambda count: str(count or AUTO),
                       example="auto or 8")  # fmt: skip
    other: str = choice("same", either({"same": "same", AUTO: AUTO}, cache_format))
    trend: str = choice(TRENDS[0], one_of("trend", TRENDS))
