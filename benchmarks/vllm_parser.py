"""vLLM's own parser, run by a Python that has vLLM (see benchmarks.check_launch); it imports nothing of this project.

`record` prints the parser's options as JSON. `parse` reads a JSON list of word lists on standard input, each without
`vllm serve`, and prints what each parses to, or why it does not.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")


def parser() -> Any:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    return make_arg_parser(FlexibleArgumentParser(prog="vllm serve"))


def kind(action: argparse.Action) -> str:
    """What the value has to look like, found by trying: vLLM's types are functions of its own."""
    if action.nargs == 0:
        return "switch"
    if isinstance(action, argparse.BooleanOptionalAction):
        return "switch"
    convert = action.type
    if convert is None or convert is str:
        return "text"
    for name, good, bad in (("json", '{"a": 1}', "x y"), ("integer", "7", "0.5"), ("fraction", "0.5", "x")):
        if _takes(convert, good) and not _takes(convert, bad):
            return name
    return "text"


def _takes(convert: Any, text: str) -> bool:
    try:
        convert(text)
    except Exception:
        return False
    return True


def record() -> dict[str, Any]:
    import vllm

    options = {}
    for action in parser()._actions:
        for flag in action.option_strings:
            if flag.startswith("--"):
                choices = [] if action.choices is None else sorted(str(choice) for choice in action.choices)
                options[flag] = {"kind": kind(action), "choices": choices}
    return {"version": vllm.__version__, "options": dict(sorted(options.items()))}


def parse(commands: list[list[str]]) -> list[dict[str, Any]]:
    made, results = parser(), []
    for words in commands:
        errors = io.StringIO()
        try:
            with contextlib.redirect_stderr(errors):
                found = made.parse_args(words)
        except SystemExit:
            results.append({"error": errors.getvalue().strip().splitlines()[-1:]})
            continue
        except Exception as problem:
            results.append({"error": f"{type(problem).__name__}: {problem}"})
            continue
        results.append({name: json.loads(json.dumps(value, default=str)) for name, value in vars(found).items()})
    return results


if __name__ == "__main__":
    answer: Any = record() if sys.argv[1] == "record" else parse(json.load(sys.stdin))
    print(json.dumps(answer))
