"""A run of the live engine as a table: one row for every time that was measured."""

from __future__ import annotations

import csv
import io
from typing import Any

from kvcore.live.run_events import BYTES, HEAD, MEASURED
from kvcore.live.runs import RunRecord

# Columns of the table that `to_csv_rows` makes, in order.
COLUMNS = (
    "run", "model", "weights", "attention", "weight_format", "kv_format", "device", "t", "event", "turn", "mode",
    "variant", "batch", "tokens", "reused", "index", "context", "seconds", "predicted_s", "repeats", "low_s", "high_s",
    *BYTES, "id", "text",
)  # fmt: skip


def to_csv_rows(record: RunRecord) -> list[dict[str, str | int | float | None]]:
    """One row for every time that was measured, all with the columns COLUMNS; None where a column does not apply.

    `turn` counts the turns of a conversation from 1; a turn's prefill has its new tokens in `tokens`. A text that a
    spreadsheet would take for a formula gets an apostrophe in front.
    """
    about = {name: getattr(record, name) for name in COLUMNS if name in HEAD} | {
        "run": record.name,
        "batch": record.batch,
    }
    first = "recompute" if record.mode == "recompute" else "cache"
    rows: list[dict[str, Any]] = []
    turn = 0
    for event in record.events:
        if event["event"] in MEASURED:
            turn += event["event"] == "prefill" and event["mode"] == first
            rows.append(about | {"turn": turn or None} | {k: value for k, value in event.items() if value is not None})
    return [{name: _cell(row.get(name)) for name in COLUMNS} for row in rows]


def to_csv(record: RunRecord) -> str:
    """The same rows as a CSV text: whole numbers as such, nothing where a column does not apply."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(to_csv_rows(record))
    return text.getvalue()


def _cell(value: Any) -> str | int | float | None:
    return f"'{value}" if isinstance(value, str) and value[:1] in tuple("=+-@\t\r") else value
