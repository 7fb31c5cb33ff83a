"""SGLang's own parser, run by a Python that has it (see benchmarks.check_launch); it imports nothing of this project.

The parser is built by SGLang's ServerArgs.add_cli_args, as `python -m sglang.launch_server` does. Building it needs no
GPU library, but importing it does: what is not installed is an empty module here. `record` and `parse` as in
vllm_parser.py; the words are those after `sglang.launch_server`.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import json
import os
import sys
from types import ModuleType
from typing import Any

from argparse_record import parse, record

# Really imported, and before anything stands in for a module: they look for optional modules themselves.
REAL = ("torch", "torch._dynamo", "torch._inductor", "numpy", "pydantic", "fastapi", "transformers")


class _Anything(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls


class Absent(ModuleType):
    """A module that is not installed: every name in it is a class, to call, derive from or decorate with."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything(name, (), {"__init__": lambda self, *args, **words: None})


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Found last of all: what nothing else finds, unless it is Python's, SGLang's or a part of something installed."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        top, parent = fullname.partition(".")[0], fullname.rpartition(".")[0]
        if top == "sglang" or top in sys.stdlib_module_names:
            return None
        if parent and not isinstance(sys.modules.get(parent), Absent):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Absent:
        return Absent(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        module.__path__ = []
        module.__dict__["__version__"] = "0"


def parser() -> argparse.ArgumentParser:
    for name in REAL:
        importlib.import_module(name)
    sys.meta_path.append(Finder())
    arguments = importlib.import_module("sglang.srt.server_args")
    made = argparse.ArgumentParser(prog="sglang serve")
    arguments.ServerArgs.add_cli_args(made)
    return made


if __name__ == "__main__":
    built = parser()
    answer: Any = record(built) if sys.argv[1] == "record" else parse(built, json.load(sys.stdin))
    print(json.dumps({"version": importlib.metadata.version("sglang"), "answer": answer}))
    sys.stdout.flush()
    # What was imported has work to do at the end that needs what is absent.
    os._exit(0)
