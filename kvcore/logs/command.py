"""`log`: a text and perhaps a model, answered as the command line and the Accuracy screen show it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kvcore.errors import KVCoreError, LogError
from kvcore.formats import kv_format
from kvcore.logs.explain import Explanation, Figure, explain
from kvcore.logs.reading import LogReading, read_log
from kvcore.logs.values import Amount, Decimals
from kvcore.model.model import Model
from kvcore.scenario.scenario import Scenario, encode_config
from kvcore.units import MAX_TOKENS

# A text may tell of very many start-ups: so many are compared, and for so many missing settings are looked for.
MAX_COMPARED = 10
MAX_GUESSED = 2
# The facts that have names of their own in the answer, in its order.
_NAMED = (
    ("engine_version", "engine_version"), ("model", "model"), ("kv_dtype", "kv_dtype"), ("tp", "tensor_parallel_size"),
    ("pp", "pipeline_parallel_size"), ("dp", "data_parallel_size"), ("max_model_len", "max_model_len"),
    ("dtype", "dtype"), ("quantization", "quantization"),
)  # fmt: skip


def log_command(text: str, model_reference: str | None = None) -> dict[str, Any]:
    """The answer of the `log` command: the first start-up that can be compared (else the first), and all of them.

    Keys: recognised, figures, unread_lines, scenario, refused, notes, readings. Raises LogError where no engine is
    recognised, and what `sources.load` raises for a `model_reference` that names nothing.
    """
    readings = read_log(text)
    if not readings:
        raise LogError(
            "log: no line of vLLM, SGLang, TensorRT-LLM, llama.cpp or Ollama is recognised; paste the start-up log "
            "from the engine's first line to its KV cache size"
        )
    explanations = explain_all(readings, model_reference)
    answers = [_answer(one, model_reference) for one in explanations]
    chosen = next((at for at, one in enumerate(explanations) if one.figures and not one.refused), 0)
    return {**answers[chosen], "readings": answers}


def explain_all(readings: tuple[LogReading, ...], model_reference: str | None = None) -> tuple[Explanation, ...]:
    """Every reading explained, for the model that is named or, without one, the one that the log names."""
    given = _load(model_reference) if model_reference else None
    found = []
    for place, reading in enumerate(readings):
        model, hint = (given, "") if given is not None else model_of(reading)
        if place >= MAX_COMPARED:
            model, hint = None, f"; only the first {MAX_COMPARED} start-ups of a text are compared"
        found.append(explain(reading, model, hint=hint, guess=place < MAX_GUESSED))
    return tuple(found)


def model_of(reading: LogReading) -> tuple[Model | None, str]:
    """The catalogued model that the log names, or None and the nearest ids as the end of a sentence.

    A local path is taken by its last parts, and only where they name a catalogued model in full.
    """
    from kvcore.sources import catalogue

    if reading.model is None:
        return None, ""
    for name in _names(reading.model):
        entry = catalogue.find(name)
        if entry is not None:
            try:
                return catalogue.load(entry.model_id), ""
            except KVCoreError as problem:
                return None, f" ({problem})"
    return None, catalogue.hint(reading.model)


def scenario_of(reading: LogReading, model: Model | None, model_reference: str | None = None) -> Scenario:
    """What of the log can be carried to the other screens: model, length and cache format.

    The model stays the scenario's own default where it is not known.
    """
    from kvcore.sources import catalogue

    changes: dict[str, Any] = {}
    entry = catalogue.find(model.name) if model is not None else None
    if entry is not None:
        changes["model"] = entry.model_id
    elif model is not None and model_reference:
        changes |= _config(model_reference)
    length = reading.whole("max_model_len") or reading.whole("n_ctx") or reading.whole("concurrency_length")
    if length is not None and 0 < length <= MAX_TOKENS:
        changes["tokens"] = length
    changes["kv"] = _format(reading)
    return replace(Scenario(), **changes)


def _answer(one: Explanation, model_reference: str | None) -> dict[str, Any]:
    reading = one.reading
    scenario = scenario_of(reading, one.model, model_reference).to_query() if one.model is not None else None
    return {
        "recognised": recognised(reading),
        "figures": [_figure(figure) for figure in one.figures],
        "unread_lines": reading.unread_lines,
        "unread_samples": list(reading.unread_samples),
        "scenario": scenario,
        "refused": one.refused,
        "notes": list(one.notes),
    }


def recognised(reading: LogReading) -> dict[str, Any]:
    """Every fact of a reading in plain values: bytes as integers with `_bytes` in their names, fractions as floats."""
    answer: dict[str, Any] = {"engine": reading.engine}
    answer |= {name: plain(reading.facts.get(fact)) for name, fact in _NAMED}
    taken = {fact for _, fact in _NAMED}
    for fact, value in reading.facts.items():
        if fact not in taken:
            answer[f"{fact}_bytes" if isinstance(value, Amount) else fact] = plain(value)
    if reading.caches:
        answer["caches"] = [_cache(cache) for cache in reading.caches]
    if reading.buffers:
        answer["buffers"] = [{"device": device, "bytes": size.nearest_bytes} for device, size in reading.buffers]
    if len(reading.ranks) > 1:
        answer["ranks"] = {rank: _rank(facts) for rank, facts in reading.ranks.items()}
    return answer


def plain(value: Any) -> Any:
    """A fact as JSON has it."""
    if isinstance(value, Amount):
        return value.nearest_bytes
    return float(value.value) if isinstance(value, Decimals) else value


def _cache(cache: Any) -> dict[str, Any]:
    return {
        "kind": cache.kind, "bytes": cache.size.nearest_bytes, "cells": cache.cells, "layers": cache.layers,
        "sequences": cache.sequences, "streams": cache.streams, "types": list(cache.types),
    }  # fmt: skip


def _rank(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{name}_bytes" if isinstance(value, Amount) else name: plain(value) for name, value in facts.items()}


def _figure(figure: Figure) -> dict[str, Any]:
    return {
        "name": figure.name, "reported": figure.reported, "predicted": figure.predicted,
        "difference": figure.difference, "agrees": figure.agrees, "why": figure.why,
    }  # fmt: skip


def _load(reference: str) -> Model:
    from kvcore.sources import files

    return files.load(reference).model


def _config(reference: str) -> dict[str, Any]:
    """The configuration of a model that is not catalogued, where it can travel in an address."""
    from kvcore.sources import files

    try:
        raw = files.load(reference).raw
    except KVCoreError:
        return {}
    text = encode_config(raw) if raw is not None else None
    return {"config": text} if text else {}


def _names(stated: str) -> tuple[str, ...]:
    """The ids that a stated model may mean: itself, `org/name` at a path's end or in a Hub cache, its last part."""
    text = stated.strip().strip("'\"").replace("\\", "/").rstrip("/")[:300]
    parts = [part for part in text.split("/") if part]
    names = [text, "/".join(parts[-2:])]
    for part in parts:
        pieces = part.split("--")
        if len(pieces) == 3 and pieces[0] == "models":
            names.append(f"{pieces[1]}/{pieces[2]}")
    if parts and (text.startswith(("/", "~", ".")) or len(parts) != 2):
        names += _same_tail(parts[-1])
    return tuple(dict.fromkeys(names))


def _same_tail(tail: str) -> list[str]:
    """The one catalogued id whose last part is exactly this; none where several share it."""
    from kvcore.sources import catalogue

    found = [
        entry.model_id
        for entry in catalogue.entries()
        if entry.model_id.rsplit("/", 1)[-1].casefold() == tail.casefold()
    ]
    return found if len(found) == 1 else []


def _format(reading: LogReading) -> str:
    """The cache format as scenarios name it; `auto` where the log states none that is known."""
    cache = next((one for one in reading.caches if one.kind == "kv" and one.types), None)
    stated = "/".join(dict.fromkeys(cache.types)) if cache else reading.text("kv_dtype") or "auto"
    try:
        return "auto" if stated == "auto" else kv_format(stated).name
    except KVCoreError:
        return "auto"
