"""The figures of the Size screen as tables."""

from __future__ import annotations

from collections import Counter

import pandas as pd

from kvcore.engines.base import Layout
from kvcore.formats import KVFormat
from kvcore.model import Model
from kvcore.scenario import Scenario
from kvcore.size import SizeResult, bytes_per_token, curve
from kvcore.units import GIB


def contexts(model: Model, scenario: Scenario, kv: KVFormat) -> pd.DataFrame:
    """Bytes at growing contexts: for one request and for the batch."""
    marks = {2**n for n in range(10, 21)} | {scenario.tokens}
    if model.context_limit:
        marks.add(model.context_limit)
    tokens = sorted(marks)
    one = [int(value) for value in curve(model, tokens, kv, 1, scenario.source or None)]
    return pd.DataFrame(
        {
            "tokens": tokens,
            "one request, bytes": one,
            "one request, GiB": [value / GIB for value in one],
            "whole batch, GiB": [value * scenario.batch / GIB for value in one],
            "next token, bytes": [bytes_per_token(model, n, kv) for n in tokens],
        }
    )


def layers(result: SizeResult) -> pd.DataFrame:
    """Bytes of every memory of every layer, for the whole batch."""
    return pd.DataFrame(
        {
            "layer": [layer.index for layer in result.layers],
            "kind": [layer.kind for layer in result.layers],
            "resident, bytes": [layer.resident_bytes for layer in result.layers],
            "next token, bytes": [layer.bytes_per_token for layer in result.layers],
            "formula": [layer.formula for layer in result.layers],
        }
    )


def groups(layout: Layout) -> pd.DataFrame:
    """Groups of layers as an engine stores one request of the longest length on a rank; equal ones in one row."""
    counted = Counter(layout.groups)
    rows = list(counted)
    columns: dict[str, list[object]] = {
        "keeps": [row.kind for row in rows],
        "groups": list(counted.values()),
        "layers in each": [row.layers for row in rows],
        "page of a layer, bytes": [row.page_bytes for row in rows],
        "tokens a block": [row.block_size for row in rows],
        "blocks a request": [row.blocks_per_request for row in rows],
    }
    known = {name: cells for name, cells in columns.items() if any(cell is not None for cell in cells)}
    return pd.DataFrame(known)


def csv(frame: pd.DataFrame) -> bytes:
    """The table as a CSV file; a text that a spreadsheet would take for a formula has an apostrophe before it."""
    return frame.map(_no_formula).to_csv(index=False).encode()


def _no_formula(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value[:1] in tuple("=+-@\t\r") else value
