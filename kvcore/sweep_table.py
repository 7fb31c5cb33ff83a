"""A sweep as a table of rows, one a cell, and as a file: csv, json or parquet."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kvcore import catalogue
from kvcore.errors import SourceError, UnitError
from kvcore.formats import kv_format
from kvcore.hardware import Accelerator, accelerator
from kvcore.model.model import Model
from kvcore.sweep import sweep
from kvcore.units import parse_tokens
from kvcore.weight_formats import weights_bytes

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


def sweep_rows(*, models: str, contexts: str, kv_dtypes: str, gpus: str = "") -> list[dict[str, Any]]:
    """One row for every model, format, context and (where given) accelerator.

    A format that does not suit a model has no row. `requests_beside_weights` is how many such requests fit on one
    accelerator beside the weights in their stored format, with no overhead counted: a bound, not a plan.
    Raises ModelError, UnitError or HardwareError for what is not known, and UnitError for over two million cells.
    """
    chosen = _models(models)
    names = [_format_name(name) for name in _split(kv_dtypes)]
    tokens = [parse_tokens(text) for text in _split(contexts)]
    cards: list[Accelerator | None] = [accelerator(name) for name in _split(gpus)] or [None]
    if not (chosen and names and tokens):
        raise UnitError("sweep: at least one model, one format and one context are needed")
    if len(chosen) * len(names) * len(tokens) * len(cards) > MAX_CELLS:
        raise UnitError(f"sweep: more than {MAX_CELLS:,} cells; ask for fewer models, formats, contexts or gpus")
    result = sweep(chosen, names, tokens)
    stored = [weights_bytes(model) for model in chosen]
    rows = []
    for m, model in enumerate(chosen):
        weights = stored[m].bytes if stored[m] else None  # type: ignore[union-attr]
        for f, c in ((f, c) for f in range(len(names)) for c in range(len(tokens))):
            resident = int(result.bytes[m, f, c])
            if resident < 0:
                continue
            row = {"model": model.name, "kv_dtype": result.kv_dtypes[m][f], "tokens": tokens[c],
                   "resident_bytes": resident, "weights_bytes": weights}  # fmt: skip
            rows += [row | _on(card, weights, resident) for card in cards]
    return rows


def _on(card: Accelerator | None, weights: int | None, resident: int) -> dict[str, Any]:
    if card is None:
        return {"gpu": None, "gpu_bytes": None, "requests_beside_weights": None}
    free = None if weights is None else card.memory_bytes - weights
    requests = None if free is None or not resident else max(0, free // resident)
    return {"gpu": card.id, "gpu_bytes": card.memory_bytes, "requests_beside_weights": requests}


def _models(text: str) -> list[Model]:
    if text.strip().lower() == "all":
        return [catalogue.load(entry.model_id) for entry in catalogue.entries()]
    return [catalogue.load(name) for name in _split(text)]


def _format_name(name: str) -> str:
    return "auto" if name.lower() == "auto" else kv_format(name).name


def _split(text: str) -> list[str]:
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def write_rows(rows: list[dict[str, Any]], form: str, output: str | None) -> None:
    """Write the rows as csv, json (a list) or parquet, to a file or to stdout; SourceError where that cannot be."""
    if form == "parquet":
        if output is None:
            raise UnitError("sweep: parquet is binary; name the file with --output")
        import pandas as pd

        with _writing(output):
            pd.DataFrame(rows, columns=list(COLUMNS)).to_parquet(output, index=False)
        return
    text = json.dumps(rows) if form == "json" else None
    if output is None:
        _write_text(rows, text, sys.stdout)
        return
    with _writing(output), Path(output).open("w", encoding="utf-8", newline="") as file:
        _write_text(rows, text, file)


@contextmanager
def _writing(output: str) -> Iterator[None]:
    """Turn a failure to write into a SourceError that names the file as it was typed."""
    try:
        yield
    except OSError as problem:
        raise SourceError(f"{output}: cannot be written ({problem.strerror})") from None


def _write_text(rows: list[dict[str, Any]], text: str | None, file: Any) -> None:
    if text is not None:
        print(text, file=file)
        return
    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
