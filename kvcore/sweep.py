"""Models × formats × contexts at once: one NumPy expression over the models' growth laws."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcore.errors import SourceError, UnitError
from kvcore.extras import require
from kvcore.formats import kv_format
from kvcore.hardware.gpus import Accelerator, accelerator, accelerators
from kvcore.model.model import Model
from kvcore.model.weight_formats import weights_bytes
from kvcore.sizing import growth_laws
from kvcore.sources import catalogue, files
from kvcore.units import MAX_TOKENS, parse_tokens

if TYPE_CHECKING:
    import numpy as np


# "No limit": more entries than any context can have.
_UNBOUNDED = MAX_TOKENS + 1
_INT64_SAFE = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Resident bytes of one request: `bytes[m, f, c]` for model m, format f and context c, -1 where they don't suit.

    `kv_dtypes[m][f]` is the format's own name (what `auto` became), or why it does not suit the model.
    """

    models: tuple[str, ...]
    kv_dtypes: tuple[tuple[str, ...], ...]
    contexts: tuple[int, ...]
    bytes: np.ndarray


def sweep(models: Sequence[Model], kv_dtypes: Sequence[str], contexts: Sequence[int]) -> Sweep:
    """Resident bytes for every model, format and context; see Sweep.

    Raises UnitError for a context out of range or a format that no model could have.
    """
    import numpy as np

    tokens = np.asarray(contexts, dtype=np.int64)
    if tokens.size and (tokens.min() < 0 or tokens.max() > MAX_TOKENS):
        raise UnitError(f"contexts: each must be within 0 … {MAX_TOKENS:,} tokens")
    tables, names = _tables(models, kv_dtypes)
    width = max((len(table) for table in tables if table), default=1)
    # Columns: bytes an entry, tokens an entry, most entries, constant bytes; padded with laws that add nothing.
    laws = np.zeros((len(tables), width, 4), dtype=np.int64)
    laws[:, :, 1] = 1
    for row, table in enumerate(tables):
        if table:
            laws[row, : len(table)] = table
    total = np.zeros((len(tables), tokens.size), dtype=np.int64)
    for column in range(width):
        each, shared, most, constant = (laws[:, column, side, None] for side in range(4))
        total += each * np.minimum(tokens // shared, most) + constant
    total[[table is None for table in tables]] = -1
    return Sweep(
        models=tuple(model.name for model in models),
        kv_dtypes=names,
        contexts=tuple(int(value) for value in tokens),
        bytes=total.reshape(len(models), len(kv_dtypes), tokens.size),
    )


def _tables(
    models: Sequence[Model], kv_dtypes: Sequence[str]
) -> tuple[list[list[tuple[int, int, int, int]] | None], tuple[tuple[str, ...], ...]]:
    """The growth laws of every model in every format as integers; None where a format does not suit a model."""
    tables: list[list[tuple[int, int, int, int]] | None] = []
    names = []
    for model in models:
        own = []
        for name in kv_dtypes:
            kv = model.resolve_format(name)
            own.append(kv.name)
            try:
                laws = growth_laws(model, kv)
            except UnitError as problem:
                tables.append(None)
                own[-1] = str(problem)
                continue
            table = [
                (count * law.bytes_per_entry, law.tokens_per_entry, _most(law.max_entries), count * law.constant_bytes)
                for law, count in laws
            ]
            if sum(each * _UNBOUNDED + constant for each, _, _, constant in table) >= _INT64_SAFE:
                raise UnitError(f"{model.name}: too large for a sweep of 64-bit integers")
            tables.append(table)
        names.append(tuple(own))
    return tables, tuple(names)


def _most(entries: int | None) -> int:
    return _UNBOUNDED if entries is None else min(entries, _UNBOUNDED)


MAX_CELLS = 2_000_000
COLUMNS = (
    "model",
    "kv_dtype",
    "tokens",
    "resident_bytes",
    "weights_bytes",
    "gpu",
    "gpu_bytes",
    "requests_beside_weights",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepTable:
    """Rows, one a cell, by the names in COLUMNS; and what was left out, with the reason."""

    rows: list[dict[str, Any]]
    skipped: list[dict[str, str]]


def sweep_rows(*, models: str, contexts: str, kv_dtypes: str, gpus: str = "") -> SweepTable:
    """One row for every model, format, context and (where given) accelerator.

    A format that does not suit a model has no row and is named in `skipped`. `requests_beside_weights` is how many
    such requests fit on one accelerator beside the weights in their stored format, with no overhead counted: a bound,
    not a plan. Raises ModelError, UnitError or HardwareError for what is not known, and UnitError for over two million
    cells.
    """
    chosen = _models(models)
    names = [_format_name(name) for name in _split(kv_dtypes)]
    tokens = [parse_tokens(text, "contexts") for text in _split(contexts)]
    cards: list[Accelerator | None] = [*_accelerators(gpus)] or [None]
    if not (chosen and names and tokens):
        raise UnitError("sweep: at least one model, one format and one context are needed")
    if len(chosen) * len(names) * len(tokens) * len(cards) > MAX_CELLS:
        raise UnitError(f"sweep: more than {MAX_CELLS:,} cells; ask for fewer models, formats, contexts or gpus")
    result = sweep(chosen, names, tokens)
    rows, skipped = [], []
    for m, model in enumerate(chosen):
        stored = weights_bytes(model)
        weights = stored.bytes if stored else None
        for f, name in enumerate(names):
            if tokens and int(result.bytes[m, f, 0]) < 0:
                skipped.append({"model": model.name, "kv_dtype": name, "why": result.kv_dtypes[m][f]})
                continue
            for c, length in enumerate(tokens):
                resident = int(result.bytes[m, f, c])
                row = {"model": model.name, "kv_dtype": result.kv_dtypes[m][f], "tokens": length,
                       "resident_bytes": resident, "weights_bytes": weights}  # fmt: skip
                rows += [row | _on(card, weights, resident) for card in cards]
    return SweepTable(rows=rows, skipped=skipped)


def _accelerators(text: str) -> list[Accelerator]:
    found = [list(accelerators()) if name.lower() == "all" else [accelerator(name)] for name in _split(text)]
    return list({card.id: card for cards in found for card in cards}.values())


def _on(card: Accelerator | None, weights: int | None, resident: int) -> dict[str, Any]:
    if card is None:
        return {"gpu": None, "gpu_bytes": None, "requests_beside_weights": None}
    free = None if weights is None else card.memory_bytes - weights
    requests = None if free is None or not resident else max(0, free // resident)
    return {"gpu": card.id, "gpu_bytes": card.memory_bytes, "requests_beside_weights": requests}


def _models(text: str) -> list[Model]:
    names = [
        [entry.model_id for entry in catalogue.entries()] if name.lower() == "all" else [name] for name in _split(text)
    ]
    return [files.load(name).model for name in dict.fromkeys(name for several in names for name in several)]


def _format_name(name: str) -> str:
    return "auto" if name.lower() == "auto" else kv_format(name).name


def _split(text: str) -> list[str]:
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def write_sweep(table: SweepTable, form: str, output: str | None, as_json: bool) -> None:
    """Write the rows as csv, json (a list) or parquet to a file, or to stdout; SourceError where that cannot be.

    With `as_json` stdout gets one object instead: the rows, or where they went, and what was left out. Without it,
    what was left out is said on stderr.
    """
    if output is not None:
        _write_file(table.rows, form, output)
    elif form == "parquet" and not as_json:
        raise UnitError("sweep: parquet is binary; name the file with --output")
    if as_json:
        rows: dict[str, Any] = {"rows": table.rows} if output is None else {"output": output, "cells": len(table.rows)}
        print(json.dumps(rows | {"skipped": table.skipped}))
        return
    if output is None:
        _write_text(table.rows, form, sys.stdout)
    for one in table.skipped[:5]:
        print(f"kvcore: left out {one['model']} in {one['kv_dtype']}: {one['why']}", file=sys.stderr)
    if len(table.skipped) > 5:
        print(f"kvcore: left out {len(table.skipped) - 5} more; --json names them", file=sys.stderr)


def _write_file(rows: list[dict[str, Any]], form: str, output: str) -> None:
    shown = "".join(filter(str.isprintable, output))[:200] or "--output"
    if form == "parquet":
        require("pyarrow", "parquet", "a parquet file")
    try:
        if form == "parquet":
            import pandas as pd

            with Path(output).open("wb") as file:
                pd.DataFrame(rows, columns=list(COLUMNS)).to_parquet(file, index=False)
        else:
            with Path(output).open("w", encoding="utf-8", newline="") as text:
                _write_text(rows, form, text)
    except (OSError, ValueError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else "not a file's name"
        raise SourceError(f"{shown}: cannot be written ({reason})") from None


def _write_text(rows: list[dict[str, Any]], form: str, file: Any) -> None:
    if form == "json":
        print(json.dumps(rows), file=file)
        return
    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
