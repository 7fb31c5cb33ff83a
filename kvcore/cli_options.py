"""Options that several commands share."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from kvcore.errors import UnitError
from kvcore.size import Term
from kvcore.units import check_batch


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are errors of kvcore, so that they reach `--json` too."""

    def error(self, message: str) -> NoReturn:
        raise UnitError(f"{self.prog.removeprefix('python -m kvcore ')}: {message}")


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


def term_as_dict(term: Term) -> dict[str, Any]:
    """A term's stable JSON form."""
    return {
        "name": term.name,
        "formula": term.formula,
        "value": term.value,
        "unit": term.unit,
        "knowledge": term.knowledge,
    }
