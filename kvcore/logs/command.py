"""`log`: a text and perhaps a model, answered as the command line and the Accuracy screen show it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcore.engines.log import Amount, Decimals, LogReading
from kvcore.errors import KVCoreError, LogError, SourceError
from kvcore.formats import kv_format
from kvcore.logs.explain import Explanation, LogFigure, explain
from kvcore.logs.reading import logging_engines, read_log
from kvcore.model.model import Model
from kvcore.records import Record, table
from kvcore.scenario.scenario import Scenario, encode_config
from kvcore.units import MAX_TOKENS

if TYPE_CHECKING:
    import pandas as pd

# A log is read up to here; the reader itself cuts what is longer.
MAX_LOG_BYTES = 10 * 2**20
# A text may tell of very many start-ups: so many are compared, and for so many missing settings are looked for.
MAX_COMPARED = 10
MAX_GUESSED = 2
# The facts that have names of their own in the answer, in its order.
_NAMED = (
    ("engine_version", "engine_version"), ("model", "model"), ("kv_dtype", "kv_dtype"), ("tp", "tensor_parallel_size"),
    ("pp", "pipeline_parallel_size"), ("dp", "data_parallel_size"), ("max_model_len", "max_model_len"),
    ("dtype", "dtype"), ("quantization", "quantization"),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class StartUp(Record):
    """One start-up that a log tells of: what was recognised, and its figures beside our predictions.

    `scenario` holds the parameters of a screen's address, None where the model is not known. `refused` says why nothing
    was predicted, "" where it was.
    """

    recognised: Mapping[str, Any]
    figures: tuple[LogFigure, ...]
    unread_lines: int
    unread_samples: tuple[str, ...]
    scenario: Mapping[str, str] | None
    refused: str
    notes: tuple[str, ...]

    def to_frame(self) -> pd.DataFrame:
        """One row a figure: name, reported, predicted, difference, agrees, why."""
        return table(self.figures)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogResult(StartUp):
    """The first start-up of a text that can be compared with predictions (else the first), and all as `readings`."""

    readings: tuple[StartUp, ...]


def log_result(text: str, model: Model | str | None = None) -> LogResult:
    """A text's start-ups beside the predictions for `model` (a Model or its reference), else for the one it names.

    Raises LogError where no engine is recognised, and what `sources.load` raises for a reference that names nothing.
    """
    readings = read_log(text)
    if not readings:
        raise LogError(
            f"log: no line of {logging_engines()} is recognised; paste the start-up log from the engine's first line "
            "to its KV cache size"
        )
    reference = model if isinstance(model, str) else None
    explanations = explain_all(readings, model)
    answers = tuple(_start_up(one, reference) for one in explanations)
    chosen = next((at for at, one in enumerate(explanations) if one.figures and not one.refused), 0)
    return LogResult(
        **{field.name: getattr(answers[chosen], field.name) for field in fields(StartUp)}, readings=answers
    )


def read_text(path: Path) -> str:
    """The first 10 MiB of a log; bytes that are not UTF-8 are replaced. SourceError where it cannot be read."""
    name = str(path)[:200]
    try:
        if not path.is_file():
            raise SourceError(f"{name}: there is no such file; give a text file with an engine's start-up log")
        with path.open("rb") as file:
            return file.read(MAX_LOG_BYTES).decode("utf-8", "replace")
    except (OSError, ValueError) as problem:
        if isinstance(problem, SourceError):
            raise
        reason = problem.strerror if isinstance(problem, OSError) else "not a file's name"
        raise SourceError(f"{name}: cannot be read ({reason})") from None


def explain_all(readings: tuple[LogReading, ...], model: Model | str | None = None) -> tuple[Explanation, ...]:
    """Every reading explained, for the model (or the one that is referred to), else for the one that the log names."""
    given = (_load(model) if model else None) if isinstance(model, str) else model
    found = []
    for place, reading in enumerate(readings):
        named, hint = (given, "") if given is not None else model_of(reading)
        if place >= MAX_COMPARED:
            named, hint = None, f"; only the first {MAX_COMPARED} start-ups of a text are compared"
        found.append(explain(reading, named, hint=hint, guess=place < MAX_GUESSED))
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
    # A file of the user's may have the name of a catalogued model and say something else.
    entry = catalogue.find(model.name) if model is not None and model.files is None else None
    if entry is not None:
        changes["model"] = entry.model_id
    elif model is not None and model_reference:
        changes |= _config(model_reference)
    length = reading.whole("max_model_len") or reading.whole("n_ctx") or reading.whole("concurrency_length")
    if length is not None and 0 < length <= MAX_TOKENS:
        changes["tokens"] = length
    changes["kv"] = _format(reading)
    return replace(Scenario(), **changes)


def _start_up(one: Explanation, model_reference: str | None) -> StartUp:
    reading = one.reading
    return StartUp(
        recognised=recognised(reading),
        figures=one.figures,
        unread_lines=reading.unread_lines,
        unread_samples=reading.unread_samples,
        scenario=None if one.model is None else scenario_of(reading, one.model, model_reference).to_query(),
        refused=one.refused,
        notes=one.notes,
    )


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
