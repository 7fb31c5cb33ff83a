"""One declaration for each choice: its default, how text is read, how it is written, and what its control holds.

A choice is a field of a frozen dataclass (`choice`), named as its parameter in the address. Readers take text as people
and addresses write it and raise KVCoreError or ValueError with what was wrong; they are made here once for all screens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Self, TypeVar

from kvcore.errors import KVCoreError, UnitError
from kvcore.formats import kv_format
from kvcore.model.weight_formats import weight_format
from kvcore.units import is_whole, parse_bytes

AUTO = "auto"
# How an empty choice of several is written: a parameter without a value is dropped by many who pass a link on.
NONE = "none"

Reader = Callable[[str], Any]
C = TypeVar("C", bound="Choices")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What is known of one choice. `write` is the inverse of `read`; `example` is for who wrote something else."""

    default: Any
    read: Reader
    write: Callable[[Any], str]
    control: Callable[[Any], Any]
    example: str

    def read_control(self, value: Any) -> Any:
        """A control's value as the choice that it stands for, None as the default; raises what the reader raises."""
        if value is None:
            return self.default
        return self.read(value if isinstance(value, str) else self.write(value))


def written(value: object) -> str:
    """A choice as text for an address: numbers in the shortest digits that read back as the same, no exponent."""
    if isinstance(value, tuple | list):
        return ",".join(map(str, value)) or NONE
    if isinstance(value, bool):
        return "1" if value else "0"
    return f"{Decimal(repr(value)):f}" if isinstance(value, float) else str(value)


def held(value: Any) -> Any:
    """A choice as most controls hold it: several in a list."""
    return list(value) if isinstance(value, tuple) else value


def choice(
    default: Any,
    read: Reader,
    *,
    write: Callable[[Any], str] = written,
    control: Callable[[Any], Any] = held,
    example: str = "",
) -> Any:
    """The field of a dataclass of choices; see Choice."""
    row = Choice(default=default, read=read, write=write, control=control, example=example)
    return field(default=default, metadata={"choice": row})


def choices(of: type[Choices]) -> Mapping[str, Choice]:
    """Every choice of a dataclass, by its name."""
    return MappingProxyType({one.name: one.metadata["choice"] for one in fields(of)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """A frozen set of choices, equal to a part of an address. Every field of a subclass is made by `choice`."""

    def to_query(self) -> dict[str, str]:
        """The address's parameters: only what differs from the defaults."""
        values = {name: getattr(self, name) for name in choices(type(self))}
        return {
            name: row.write(values[name]) for name, row in choices(type(self)).items() if values[name] != row.default
        }

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> tuple[Self, tuple[str, ...]]:
        """(choices, messages): every parameter that can be read is taken, and each other one has a message."""
        return read_query(cls, query)

    def controls(self) -> dict[str, Any]:
        """The values of the controls."""
        return {name: row.control(getattr(self, name)) for name, row in choices(type(self)).items()}


def read_query(of: type[C], query: Mapping[str, str]) -> tuple[C, tuple[str, ...]]:
    """(choices, messages) of an address, whatever it holds; parameters that are no choices of these are passed over."""
    values: dict[str, Any] = {}
    problems = []
    for name, row in choices(of).items():
        if name not in query:
            continue
        try:
            values[name] = row.read(query[name])
        except (KVCoreError, ValueError) as problem:
            problems.append(f"The address's {name} was not taken: {problem}.")
    return of(**values), tuple(problems)


def whole(what: str, low: int, high: int, *, auto: bool = False) -> Reader:
    """A whole number within bounds, commas allowed; with `auto`, `auto` and 0 both say that none is named."""
    kind = f"{AUTO} or a whole number" if auto else "a whole number"

    def read(text: str) -> int:
        plain = text.strip().replace(",", "")
        if auto and plain.lower() in (AUTO, "0"):
            return 0
        if not is_whole(plain) or not low <= int(plain) <= high:
            raise UnitError(f"{what}: {text[:20]!r} is not {kind} within {low:,} … {high:,}")
        return int(plain)

    return read


def number(what: str, low: float, high: float, *, decimals: int = 17, auto: bool = False) -> Reader:
    """A number within bounds, without an exponent; with `auto`, `auto` says that none is named, as 0 does."""
    form = re.compile(rf"[0-9]{{0,7}}\.[0-9]{{1,{decimals}}}|[0-9]{{1,7}}")
    said = f", {decimals} decimals at most" if decimals < 17 else ", such as 0.92"

    def read(text: str) -> float:
        plain = text.strip()
        if auto and plain.lower() == AUTO:
            return 0.0
        if not form.fullmatch(plain) or not low <= float(plain) <= high:
            raise UnitError(f"{what}: {text[:20]!r} is not a number within {low:,} … {high:,}{said}")
        return float(plain)

    return read


def one_of(what: str, values: Iterable[str | int]) -> Reader:
    """One of these words or numbers, however its letters are written."""
    known = {str(value).lower(): value for value in values}
    names = [*map(str, known.values())]
    listed = ", ".join(names if len(names) < 20 else [*names[:2], "…", names[-1]])

    def read(text: str) -> str | int:
        found = known.get(text.strip().lower())
        if found is None:
            raise UnitError(f"{what}: {text[:40]!r} is not one of {listed}")
        return found

    return read


def several(one: Reader, most: int, what: str) -> Reader:
    """As many as `most` with commas between them, each once and each read by `one`; `none` for an empty choice."""

    def read(text: str) -> tuple[Any, ...]:
        found = () if text.strip() == NONE else tuple(dict.fromkeys(one(part) for part in text.split(",")))
        if len(found) > most:
            raise UnitError(f"{len(found):,} {what} are more than {most}")
        return found

    return read


def text(most: int, *, lines: bool = False) -> Reader:
    """Text of as many characters that can be shown; with `lines`, in lines."""

    def read(given: str) -> str:
        if len(given) > most or not all(mark.isprintable() or (lines and mark == "\n") for mark in given):
            raise UnitError(f"{given[:40]!r} is longer than {most:,} characters or holds some that cannot be shown")
        return given

    return read


def matching(pattern: str, what: str) -> Reader:
    """Text of that form (a regular expression), called what it is in the message."""
    form = re.compile(pattern)

    def read(given: str) -> str:
        if not form.fullmatch(given.strip()):
            raise UnitError(f"{given[:20]!r} is not {what}")
        return given.strip()

    return read


def either(words: Mapping[str, Any], read: Reader) -> Reader:
    """A word that stands for a value, however its letters are written, or anything that `read` takes."""

    def either_of(given: str) -> Any:
        plain = given.strip().lower()
        return words[plain] if plain in words else read(given)

    return either_of


def switch(given: str) -> bool:
    """0 or 1."""
    if given not in ("0", "1"):
        raise UnitError(f"{given[:20]!r} is not 0 or 1")
    return given == "1"


def size(given: str) -> str:
    """A size in bytes with a unit, as it is written."""
    parse_bytes(given)
    return given.strip()


def cache_format(given: str) -> str:
    """The name of a cache format."""
    return kv_format(given).name


def weights_format(given: str) -> str:
    """The name of a format of weights, or `auto`: as they are stored."""
    return AUTO if given.strip().lower() == AUTO else weight_format(given).name
