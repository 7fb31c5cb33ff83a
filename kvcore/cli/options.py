"""Options that several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any, NoReturn

from kvcore.engines.base import Engine, Option
from kvcore.errors import UnitError
from kvcore.units import GIB, check_batch, parse_tokens


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are errors of kvcore, so that they reach `--json` too."""

    def error(self, message: str) -> NoReturn:
        command = self.prog.removeprefix("kvcore").strip()
        raise UnitError(f"{command}: {message}" if command else message)


def read_batch(text: str, name: str) -> int:
    """Requests at once, as typed; UnitError for what is no number or out of bounds."""
    if not text.isascii() or not text.isdigit() or len(text) > 12:
        raise UnitError(f"{name}: {text[:20]!r} is not a whole number of requests")
    return check_batch(int(text))


def add_model_options(command: argparse.ArgumentParser) -> None:
    """How a model may be read, and the form of the answer."""
    command.add_argument("--upper-bound", action="store_true", help="answer a layout that is not understood by a bound")
    command.add_argument("--hub", action="store_true", help="fetch a model that is not in the catalogue from the Hub")
    command.add_argument("--json", action="store_true", help="one JSON object on stdout")


def engine_values(chosen: Engine, words: list[str]) -> Mapping[str, Any]:
    """This engine's own options, by field, from the words that the command itself did not know."""
    parser = Parser(prog=f"engine {chosen.name}", add_help=False, allow_abbrev=False)
    for option in chosen.options:
        if option.kind == "switch":
            parser.add_argument(option.flag, dest=option.field, action="store_true", default=None)
        else:
            parser.add_argument(option.flag, dest=option.field)
    given = vars(parser.parse_args(words))
    return {
        option.field: _read(option, given[option.field]) for option in chosen.options if given[option.field] is not None
    }


def _read(option: Option, text: Any) -> Any:
    if option.kind == "switch":
        return True
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


def read_ranks(text: str, name: str) -> int:
    """Ranks of a kind of parallelism, as typed; UnitError for what is no number or out of bounds."""
    if not text.isascii() or not text.isdigit() or len(text) > 5 or int(text) < 1:
        raise UnitError(f"{name}: {text[:20]!r} is not a number of ranks")
    return int(text)


def read_memory(kv_bytes: str | None, kv_gib: str | None) -> int | None:
    """Memory for the cache on each rank, in bytes, from --kv-bytes or --kv-gib; None where neither was given."""
    if kv_bytes is not None and kv_gib is not None:
        raise UnitError("--kv-bytes and --kv-gib say the same thing; give one of them")
    text = kv_bytes if kv_bytes is not None else kv_gib
    if text is None:
        return None
    try:
        value = float(text.replace(",", "").replace("_", ""))
    except ValueError:
        value = -1.0
    limit = 2**50
    total = value * (1 if kv_bytes is not None else GIB)
    # A size that is no whole byte would be taken as none at all.
    if not text.isascii() or "-" in text or not 0 <= total <= limit or 0 < total < 1:
        raise UnitError(f"memory for the cache: {text[:20]!r} is not a size within 0 … 1,048,576 GiB")
    return int(total)
