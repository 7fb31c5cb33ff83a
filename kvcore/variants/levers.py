"""What each way to save cache buys and gives up, and the quality results that were published about it.

The claims live in data/levers.csv, one row a lever, and the results in data/quality.csv, one row a number;
data/LEVERS.md explains the columns and how each figure was checked. No number here is ours: a claim that nobody
measured says so, and a result whose source was not read itself carries that mark.
"""

from __future__ import annotations

import csv
import difflib
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, get_args

from kvcore.errors import ConfigError, UnitError
from kvcore.formats import KV_FORMATS, kv_format
from kvcore.paths import DATA

Check = Literal["source", "transcript", "memory"]
Measures = Literal["quality", "memory", "speed"]
Better = Literal["higher", "lower"]

# What a screen says beside a result; "source" needs no mark.
CHECK_LABELS: Mapping[Check, str] = {
    "source": "read in the source",
    "transcript": "read in a transcription of the source",
    "memory": "from memory of the publication, not re-read",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One plain statement and where it is from."""

    text: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """One way to make a cache smaller, or cheaper to read or to hold; every claim has its source."""

    id: str
    name: str
    does: Claim
    """What it does to the cache."""
    buys: Claim
    quality_risk: Claim
    extra_arithmetic: Claim
    recall: Claim
    """What becomes of tokens far back."""
    engines: Claim | None
    """Which engines do it, for what no variant or format stands for; None where their rules say so themselves."""
    variants: tuple[str, ...]
    """Names of kvcore.variants.variants (the part before the colon) that are this lever."""
    formats: tuple[str, ...]
    """Cache formats of kvcore.formats that are this lever."""
    retrieved: str

    @property
    def claims(self) -> tuple[Claim, ...]:
        """All claims: what it does, buys, risks, computes more, and forgets."""
        return self.does, self.buys, self.quality_risk, self.extra_arithmetic, self.recall


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityResult:
    """One published number: a model with a lever (`value`) against the same without it (`baseline`).

    `baseline` is None where only a difference or a share was published. `measures` says whether the metric is one of
    quality, of memory or of speed.
    """

    lever: str
    model: str
    comparison: str
    metric: str
    measures: Measures
    baseline: float | None
    value: float
    unit: str
    better: Better
    conditions: str
    source: str
    url: str
    place: str
    """Table or section of the source."""
    check: Check
    how_checked: str
    retrieved: str

    @property
    def change(self) -> float | None:
        """`value` minus `baseline` in `unit`, without the noise of binary fractions; None without a baseline."""
        return None if self.baseline is None else round(self.value - self.baseline, 9)

    @property
    def worse(self) -> bool | None:
        """Whether the lever made this metric worse; None without a baseline."""
        change = self.change
        if change is None:
            return None
        return change < 0 if self.better == "higher" else change > 0


@cache
def levers() -> tuple[Lever, ...]:
    """Every lever of data/levers.csv, in its order. Raises ConfigError that names a malformed line and column."""
    return read_levers(DATA / "levers.csv")


def lever(id: str) -> Lever:
    """The lever of that id, without regard to case. Raises UnitError that names the nearest ids."""
    known = {one.id: one for one in levers()}
    return known[_known(id, known, "lever")]


def results(lever_id: str) -> tuple[QualityResult, ...]:
    """The published results about a lever, in the order of data/quality.csv; empty where none was found.

    Raises UnitError for an unknown lever, and ConfigError that names a malformed line and column.
    """
    wanted = lever(lever_id).id
    return tuple(one for one in _all_results() if one.lever == wanted)


def lever_of(variant_text: str, format_name: str) -> tuple[str, ...]:
    """Ids of the levers that a variant (`gqa:8`, `""` for the model as built) and a cache format (`q8_0/q4_0`) pull.

    A format of 16 bits or more pulls none, and two formats for keys and values may pull two. `format_name` is a
    resolved name, never `auto`. Raises UnitError for a variant or a format that is not known.
    """
    found: list[str] = []
    name = variant_text.strip().lower().partition(":")[0]
    if name:
        by_variant = {text: one.id for one in levers() for text in one.variants}
        found.append(by_variant[_known(name, by_variant, "variant")])
    kv = kv_format(format_name)
    names = {kv.name} if kv.name in KV_FORMATS else {kv.k.name, kv.v.name}
    found += [one.id for one in levers() if names & set(one.formats)]
    return tuple(found)


def read_levers(path: Path) -> tuple[Lever, ...]:
    """The levers of a table such as data/levers.csv.

    Raises ConfigError that names file, line and column: an empty cell, an id, a variant that is listed twice, or a
    format that kvcore.formats does not know.
    """
    found: list[Lever] = []
    taken: set[str] = set()
    for row in _rows(path, "id"):
        one = _lever(row)
        for column, names in (("id", (one.id,)), ("variants", one.variants)):
            for name in names:
                if f"{column} {name}" in taken:
                    raise row.error(column, f"{name!r} is already in a line above; it belongs to one lever")
                taken.add(f"{column} {name}")
        found.append(one)
    return tuple(found)


def read_results(path: Path, known: Collection[str]) -> tuple[QualityResult, ...]:
    """The results of a table such as data/quality.csv about the levers whose ids are `known`.

    Raises ConfigError that names file, line and column.
    """
    return tuple(_result(row, known) for row in _rows(path, "lever"))


@cache
def _all_results() -> tuple[QualityResult, ...]:
    return read_results(DATA / "quality.csv", [one.id for one in levers()])


class _Row:
    """One line of a data file; every complaint names the file, the line, what it is about and the column."""

    def __init__(self, path: Path, line: int, cells: Mapping[str, str | None], title: str) -> None:
        self._where = f"{path.name}, line {line} ({(cells.get(title) or '')[:40]})"
        self._cells = cells

    def error(self, column: str, what: str) -> ConfigError:
        return ConfigError(f"{self._where}: {column}: {what}")

    def maybe(self, column: str) -> str:
        found = self._cells.get(column)
        if found is None:
            raise self.error(column, "the column is missing; every row has as many cells as line 1")
        return found.strip()

    def needed(self, column: str) -> str:
        found = self.maybe(column)
        if not found:
            raise self.error(column, "is empty, but every row needs it")
        return found

    def claim(self, column: str) -> Claim:
        return Claim(text=self.needed(column), source=self.needed(f"{column}_source"))

    def names(self, column: str) -> tuple[str, ...]:
        return tuple(self.maybe(column).split())

    def number(self, column: str) -> float:
        text = self.needed(column)
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise self.error(column, f"{text[:40]!r} is not a number")
        return value

    def choice(self, column: str, allowed: Iterable[str]) -> str:
        found, known = self.needed(column), tuple(allowed)
        if found not in known:
            raise self.error(column, f"{found[:40]!r} is not known; one of {', '.join(known)} is expected")
        return found


def _rows(path: Path, title: str) -> list[_Row]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            return [_Row(path, reader.line_num, cells, title) for cells in reader]
    except OSError as error:
        raise ConfigError(f"{path.name} could not be read ({error.strerror}); it belongs in {path.parent}") from error


def _lever(row: _Row) -> Lever:
    unknown = [name for name in row.names("formats") if name not in KV_FORMATS]
    if unknown:
        raise row.error("formats", f"{unknown[0]!r} is not a cache format; known are {', '.join(KV_FORMATS)}")
    return Lever(
        id=row.needed("id"),
        name=row.needed("name"),
        does=row.claim("does"),
        buys=row.claim("buys"),
        quality_risk=row.claim("quality_risk"),
        extra_arithmetic=row.claim("extra_arithmetic"),
        recall=row.claim("recall"),
        engines=row.claim("engines") if row.maybe("engines") else None,
        variants=row.names("variants"),
        formats=row.names("formats"),
        retrieved=row.needed("retrieved"),
    )


def _result(row: _Row, known: Collection[str]) -> QualityResult:
    return QualityResult(
        lever=row.choice("lever", known),
        model=row.needed("model"),
        comparison=row.needed("comparison"),
        metric=row.needed("metric"),
        measures=row.choice("measures", get_args(Measures)),  # type: ignore[arg-type]
        baseline=row.number("baseline") if row.maybe("baseline") else None,
        value=row.number("value"),
        unit=row.needed("unit"),
        better=row.choice("better", get_args(Better)),  # type: ignore[arg-type]
        conditions=row.needed("conditions"),
        source=row.needed("source"),
        url=row.needed("url"),
        place=row.needed("place"),
        check=row.choice("check", get_args(Check)),  # type: ignore[arg-type]
        how_checked=row.needed("how_checked"),
        retrieved=row.needed("retrieved"),
    )


def _known(text: str, known: Iterable[str], what: str) -> str:
    key, names = text.strip().lower(), tuple(known)
    if key in names:
        return key
    longer = [name for name in names if key and (name.startswith(key) or key.startswith(name))]
    near = list(dict.fromkeys(longer + difflib.get_close_matches(key[:60], names, n=3, cutoff=0.5)))[:3]
    hint = f"did you mean {', '.join(near)}?" if near else f"known are {', '.join(names)}"
    raise UnitError(f"{what}: {text[:40]!r} is not known; {hint}")
