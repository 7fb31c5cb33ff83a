"""Parsers made from the recorded options of the engines' own (tests/plan/data, see benchmarks.check_launch)."""

from __future__ import annotations

import argparse
import json
import re
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

DATA = Path(__file__).resolve().parent / "data"
_TYPES = {"integer": int, "fraction": float, "json": json.loads, "text": str}


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


@cache
def parser(engine: str, positional: bool) -> Parser:
    """A parser with every recorded option of that engine, each taking what was recorded, and nothing else."""
    made = Parser(add_help=False, allow_abbrev=False)
    if positional:
        made.add_argument("model")
    recorded = json.loads((DATA / f"options_{engine}.json").read_text("utf-8"))
    for flag, option in recorded["options"].items():
        name = "option_" + re.sub(r"\W", "_", flag)
        if option["kind"] == "switch":
            made.add_argument(flag, dest=name, action="store_true")
        else:
            made.add_argument(flag, dest=name, type=_TYPES[option["kind"]], choices=option["choices"] or None)
    return made


def parsed(engine: str, words: tuple[str, ...]) -> dict[str, Any]:
    """What the command's words parse to: the options that were set, by flag, and `model`. ValueError otherwise."""
    heads = {
        "vllm": ["vllm", "serve"],
        "sglang": ["python", "-m", "sglang.launch_server"],
        "tensorrt-llm": ["trtllm-serve"],
    }
    head = heads[engine]
    if list(words[: len(head)]) != head:
        raise ValueError(f"does not begin with {head}")
    found = vars(parser(engine, engine != "sglang").parse_args(list(words[len(head) :])))
    given = {flag for flag in words if flag.startswith("--")}
    return {name: value for name, value in found.items() if name == "model"} | {
        flag: found["option_" + re.sub(r"\W", "_", flag)] for flag in given
    }
