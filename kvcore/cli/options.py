"""Options that several commands share, and how their values are read: argparse calls a reader for each value."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NoReturn

from kvcore.engines.base import Engine, Option
from kvcore.engines.registry import engine
from kvcore.errors import KVCoreError, UnitError
from kvcore.units import GIB, check_batch, is_whole, parse_tokens

# An engine's own options keep their names, which may be those of the command's own values.
_OWN = "engine_"


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are errors of kvcore, so that they reach `--json` too."""

    def error(self, message: str) -> NoReturn:
        # argparse has words of its own for a value that its reader refuses; the reader's say what would be right.
        problem = sys.exception()
        if isinstance(problem, argparse.ArgumentError) and isinstance(problem.__context__, KVCoreError):
            raise problem.__context__
        command = self.prog.removeprefix("kvcore").strip()
        raise UnitError(f"{command}: {message}" if command else message)


def add_model_options(command: argparse.ArgumentParser) -> None:
    """How a model may be read, and the form of the answer."""
    command.add_argument("--upper-bound", action="store_true", help="answer a layout that is not understood by a bound")
    command.add_argument("--hub", action="store_true", help="fetch a model that is not in the catalogue from the Hub")
    command.add_argument("--json", action="store_true", help="one JSON object on stdout")


def command_as_text(text: str, files: Iterable[tuple[str, str]]) -> list[str]:
    """A launch command as lines of a table for people: what is typed, then the files (name, content) that it reads."""
    rows = [f"  {line}" for line in text.splitlines()]
    for name, content in files:
        rows += [f"  {name}:", *(f"    {line}" for line in content.splitlines())]
    return rows


def engine_meant(words: Sequence[str], add: Callable[[Parser], object]) -> Engine | None:
    """The engine that a command's words name, whose options `add` knows; None where they cannot be read yet.

    EngineError for one that is not known.
    """
    parser = Parser(add_help=False)
    add(parser)
    try:
        name = parser.parse_known_args(words)[0].engine
    except UnitError:
        # The command's whole parser says the same, or helps.
        return None
    return engine(name)


def add_engine_options(command: argparse.ArgumentParser, chosen: Engine | None) -> None:
    """The engine's own options, beside those of the command, which come first where both have one."""
    if chosen is None:
        return
    group = command.add_argument_group(f"options of {chosen.name}")
    for option in chosen.options:
        name = _OWN + option.field
        try:
            if option.kind == "switch":
                group.add_argument(option.flag, dest=name, action="store_true", default=None, help=option.help)
            else:
                group.add_argument(option.flag, dest=name, type=partial(_read, option), metavar=_metavar(option),
                                   help=option.help)  # fmt: skip
        except argparse.ArgumentError:
            continue


def own_values(chosen: Engine, options: argparse.Namespace) -> dict[str, Any]:
    """What was given of this engine's own options, by field."""
    given = {option.field: getattr(options, _OWN + option.field, None) for option in chosen.options}
    return {field: value for field, value in given.items() if value is not None}


def _metavar(option: Option) -> str:
    return f"{{{','.join(option.choices)}}}" if option.choices else option.kind.upper()


def _read(option: Option, text: str) -> Any:
    if option.choices and text not in option.choices:
        raise UnitError(f"{option.flag}: {text[:20]!r} is not one of {', '.join(option.choices)}")
    if option.kind == "integer":
        return parse_tokens(text)
    if option.kind == "fraction":
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0 <= value <= 1:
            raise UnitError(f"{option.flag}: {text[:20]!r} is not a number within 0 … 1")
        return value
    return text


def read_batch(text: str, name: str = "--batch") -> int:
    """Requests at once, as typed; UnitError for what is no number or out of bounds."""
    if not is_whole(text):
        raise UnitError(f"{name}: {text[:20]!r} is not a whole number of requests")
    return check_batch(int(text))


def tokens(name: str) -> Callable[[str], int]:
    """A reader of tokens for the option of that name."""
    return partial(parse_tokens, what=name)


def count(name: str, most: int) -> Callable[[str], int]:
    """A reader of a number from 1 to `most` for the option of that name."""

    def read(text: str) -> int:
        value = parse_tokens(text, name)
        if not 1 <= value <= most:
            raise UnitError(f"{name}: {value:,} is not within 1 … {most:,}")
        return value

    return read


def ranks(name: str) -> Callable[[str], int]:
    """A reader of ranks of a kind of parallelism for the option of that name."""

    def read(text: str) -> int:
        if not is_whole(text) or int(text) < 1:
            raise UnitError(f"{name}: {text[:20]!r} is not a number of ranks")
        return int(text)

    return read


def add_memory_options(command: argparse.ArgumentParser, *more: str, on: str, gib_help: str) -> None:
    """Memory for the cache on each rank or GPU, in bytes (by `more` names too) or in GiB; see `cache_memory`."""
    command.add_argument("--kv-bytes", *more, dest="kv_bytes", type=partial(_memory, unit=1),
                         help=f"memory for the cache on each {on}, in bytes")  # fmt: skip
    command.add_argument("--kv-gib", type=partial(_memory, unit=GIB), help=gib_help)


def cache_memory(options: argparse.Namespace) -> int | None:
    """Memory for the cache in bytes, None where none was given; UnitError where it was given twice."""
    if options.kv_bytes is not None and options.kv_gib is not None:
        raise UnitError("--kv-bytes and --kv-gib say the same thing; give one of them")
    found: int | None = options.kv_gib if options.kv_bytes is None else options.kv_bytes
    return found


def _memory(text: str, unit: int) -> int:
    try:
        value = float(text.replace(",", "").replace("_", ""))
    except ValueError:
        value = -1.0
    limit = 2**50
    total = value * unit
    # A size that is no whole byte would be taken as none at all.
    if not text.isascii() or "-" in text or not 0 <= total <= limit or 0 < total < 1:
        raise UnitError(f"memory for the cache: {text[:20]!r} is not a size within 0 … 1,048,576 GiB")
    return int(total)
