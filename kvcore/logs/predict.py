"""From a reading to an engine's settings, and from a printed memory to what the engine would have printed about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from types import MappingProxyType
from typing import Any

from kvcore.deployment import Request, as_options
from kvcore.engines.base import Engine
from kvcore.engines.layout import Capacity, Layout
from kvcore.engines.log import Amount, LogReading
from kvcore.engines.registry import engine
from kvcore.logs.reading import read_log
from kvcore.model.model import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What an engine would have said: for the least, the nearest and the most memory that prints as the log does.

    `readings` are of the lines that our engine prints for them; `blocks` and `concurrency` are exact.
    """

    engine: Engine
    model: Model
    settings: Any
    layout: Layout
    capacities: tuple[Capacity, ...]
    readings: tuple[LogReading | None, ...]
    memory: Amount | None
    notes: tuple[str, ...] = ()

    @property
    def nearest(self) -> int:
        """The place of the nearest memory among `capacities`."""
        return len(self.capacities) // 2


def predict(reading: LogReading, model: Model, changes: Mapping[str, Any] | None = None) -> Prediction:
    """What the reading's engine would have printed for this model; `changes` replace single facts of the log.

    Raises EngineError for what the engine does not support, or a log without a memory or a size to start from.
    """
    chosen = engine(reading.engine)
    reading = replace(reading, facts=MappingProxyType({**reading.facts, **(changes or {})}))
    version, notes = chosen.log.version(reading)
    settings = _settings(chosen, model, reading, version)
    layout = chosen.layout(model, settings)
    sizes, memory = chosen.log.memories(reading, layout)
    capacities = tuple(chosen.capacity(model, settings, size) for size in sizes)
    readings = tuple(map(read_back, capacities))
    return Prediction(
        engine=chosen, model=model, settings=settings, layout=layout, capacities=capacities, readings=readings,
        memory=memory, notes=notes,
    )  # fmt: skip


def read_back(capacity: Capacity) -> LogReading | None:
    """What the lines say that the engine would print; None where it prints none."""
    return next(iter(read_log("\n".join(capacity.log_lines))), None)


def longest_that_fits(chosen: Engine, model: Model, settings: Any, kv_bytes: int) -> int:
    """The longest request that the engine names where it refuses this memory, 0 where it names none.

    The one that it was asked for where it does not refuse.
    """
    capacity = chosen.capacity(model, settings, kv_bytes)
    if capacity.starts:
        return chosen.layout(model, settings).max_model_len
    said = read_back(capacity)
    return (said.whole("estimated_max_model_len") if said else None) or 0


def _settings(chosen: Engine, model: Model, reading: LogReading, version: str | None) -> Any:
    """The engine's settings as far as the log states them."""
    facts, rules = reading.facts, chosen.log
    asked = Request(
        context=rules.length(reading),
        kv_dtype=rules.kv_dtype(reading),
        tp=facts.get("tensor_parallel_size") or 1,
        pp=facts.get("pipeline_parallel_size") or 1,
        dcp=facts.get("decode_context_parallel_size") or 1,
        platform="cpu" if facts.get("platform") == "cpu" else "cuda",
        engine_version=version,
        options=as_options(rules.options(reading)),
    )
    return rules.completed(chosen.settings(model, asked), reading)


def printed(prediction: Prediction, name: str, place: int) -> Any:
    """The fact that our engine would print for the memory at this place; None where it prints none."""
    capacity, reading = prediction.capacities[place], prediction.readings[place]
    exact: dict[str, int | Fraction | None] = {
        "blocks": capacity.blocks,
        "kv_cache_size_tokens": capacity.kv_cache_size_tokens,
        "max_concurrency": capacity.max_concurrency,
        "needed_kv": prediction.layout.bytes_per_request,
    }
    if name == "attention_block_size":
        return prediction.layout.block_size
    if name in exact:
        return exact[name]
    return reading.facts.get(name) if reading else None
