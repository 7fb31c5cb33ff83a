"""What a user chose on the Live screen beside the scenario, equal to that screen's further parameters.

Whether weights may be downloaded is not part of it: a link must not allow that for whoever opens it.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvcore.live.models import DEFAULT
from kvcore.live.options import CONTEXTS, KV_FORMATS, RACE_CONTEXTS, WEIGHT_FORMATS
from kvcore.scenario.fields import (
    Choices,
    Reader,
    choice,
    either,
    number,
    one_of,
    several,
    switch,
    text,
    whole,
)
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


_attention = either({SHIPPED: SHIPPED}, canonical)


def _ascending(values: tuple[int, ...]) -> Reader:
    one = several(one_of("context", values), len(values), "contexts")
    return lambda given: tuple(sorted(one(given)))


def _hundredths(value: float) -> str:
    """A slider's number: what it holds is off by what binary fractions are off."""
    return f"{round(value, 2):g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveOptions(Choices):
    """What a run, a probe and a race are of; every field is named as its control and its parameter in the address.

    `live_layers` None: as many as fit. `live_heat` is the temperature; `live_top_p` and `live_seed` count where it is
    above 0. `live_probe_too`: the probe follows the first run.
    """

    live_prompt: str = choice(PROMPT, text(MAX_PROMPT, lines=True))
    live_model: str = choice(DEFAULT, text(200))
    live_length: str = choice(AS_WRITTEN, one_of("prompt tokens", LENGTHS))
    live_new: int = choice(48, one_of("new tokens", NEW_TOKENS))
    live_batch: int = choice(1, one_of("requests", BATCHES))
    live_attention: str = choice(SHIPPED, _attention)
    live_kv: str = choice("bf16", one_of("cache format", KV_FORMATS))
    live_weights: str = choice("bf16", one_of("format of the weights", WEIGHT_FORMATS))
    live_again: bool = choice(True, switch)
    live_probe_too: bool = choice(True, switch)
    live_layers: int | None = choice(None, whole("layers", 1, MAX_LAYERS))
    live_heat: float = choice(0.0, number("temperature", 0, MAX_HEAT, decimals=2), write=_hundredths)
    live_top_p: float = choice(1.0, number("top p", LEAST_TOP_P, 1, decimals=2), write=_hundredths)
    live_seed: int = choice(0, whole("seed", 0, MAX_SEED))
    live_chat: bool = choice(True, switch)
    live_seconds: int = choice(0, one_of("seconds", BUDGETS))
    live_contexts: tuple[int, ...] = choice(CONTEXTS, _ascending(PROBE_CHOICES))
    live_variants: tuple[str, ...] = choice(VARIANTS, several(_attention, MAX_VARIANTS, "variants"))
    live_race_contexts: tuple[int, ...] = choice(RACE_CONTEXTS, _ascending(RACE_CHOICES))
