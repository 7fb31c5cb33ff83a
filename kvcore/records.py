"""Results as plain JSON values and as tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


class Record:
    """Base of the frozen dataclasses that the public API answers with."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """The stable JSON form, as the command line prints it: each field under its name, bytes and tokens integers."""
        return _fields(self)


def table(rows: Iterable[Record]) -> pd.DataFrame:
    """A table with one row a record and one column a key of its JSON form."""
    import pandas as pd

    return pd.DataFrame([row.to_dict() for row in rows])


def _fields(record: Any) -> dict[str, Any]:
    return {field.name: _plain(getattr(record, field.name)) for field in fields(record)}


def _plain(value: Any) -> Any:
    """A value as JSON has it: records and mappings as objects, sequences as lists, fractions as floats."""
    if isinstance(value, Record):
        return value.to_dict()
    if is_dataclass(value):
        return _fields(value)
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    return float(value) if isinstance(value, Fraction) else value
