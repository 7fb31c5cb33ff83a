"""Models × formats × contexts at once: one NumPy expression over the models' growth laws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcore.errors import UnitError
from kvcore.model.model import Model
from kvcore.size import growth_laws
from kvcore.units import MAX_TOKENS

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
