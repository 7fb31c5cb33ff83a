"""An engine's argparse parser recorded and used: what vllm_parser.py and sglang_parser.py share.

Run by a Python that has the engine, beside those scripts; it imports nothing of this project.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
from typing import Any

_TRIALS = (("json", '{"a": 1}', "x y"), ("integer", "7", "0.5"), ("fraction", "0.5", "x"))


def kind(action: argparse.Action) -> str:
    """What the value has to look like, found by trying: engines' types are functions of their own."""
    if action.nargs == 0 or isinstance(action, argparse.BooleanOptionalAction):
        return "switch"
    convert = action.type
    if convert is None or convert is str:
        return "text"
    for name, good, bad in _TRIALS:
        if _takes(convert, good) and not _takes(convert, bad):
            return name
    return "text"


def _takes(convert: Any, text: str) -> bool:
    try:
        convert(text)
    except (Exception, SystemExit):
        return False
    return True


def record(parser: argparse.ArgumentParser) -> dict[str, Any]:
    """Every long option: what it takes, out of what where there is a list, and how many where it is not one."""
    options: dict[str, Any] = {}
    for action in parser._actions:
        for flag in action.option_strings:
            if flag.startswith("--"):
                choices = [] if action.choices is None else sorted(str(choice) for choice in action.choices)
                options[flag] = {"kind": kind(action), "choices": choices}
                if action.nargs in ("*", "+", "?") and options[flag]["kind"] != "switch":
                    options[flag]["nargs"] = action.nargs
    return dict(sorted(options.items()))


def parse(parser: argparse.ArgumentParser, commands: list[list[str]]) -> list[dict[str, Any]]:
    """What each command sets that is not the default, or `error`."""
    results = []
    for words in commands:
        said = io.StringIO()
        try:
            with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
                found = parser.parse_args(words)
        except SystemExit:
            results.append({"error": "".join(said.getvalue().strip().splitlines()[-1:]) or "ended"})
        except Exception as problem:
            results.append({"error": f"{type(problem).__name__}: {problem}"})
        else:
            chosen = {name: value for name, value in vars(found).items() if value != parser.get_default(name)}
            results.append(json.loads(json.dumps(chosen, default=str)))
    return results
