"""Parsers made from what the engines' own take, as recorded in tests/plan/data (see benchmarks.check_launch)."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import yaml

from tests.plan.launch_cases import Case

DATA = Path(__file__).resolve().parent / "data"
_TYPES: dict[str, Any] = {"integer": int, "fraction": float, "json": json.loads, "text": str}
HEADS = {
    "vllm": ("vllm", "serve"),
    "sglang": ("python", "-m", "sglang.launch_server"),
    "tensorrt-llm": ("trtllm-serve",),
}


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


@cache
def recorded(engine: str) -> dict[str, Any]:
    """What was recorded of an engine: its version, how it was read, and what it takes."""
    return dict(json.loads((DATA / f"options_{engine}.json").read_text("utf-8")))


@cache
def parser(engine: str, positional: bool) -> Parser:
    """A parser with every recorded option of that engine, each taking what was recorded, and nothing else."""
    made = Parser(add_help=False, allow_abbrev=False)
    if positional:
        made.add_argument("model")
    for flag, option in recorded(engine)["options"].items():
        name = "option_" + re.sub(r"\W", "_", flag)
        if option["kind"] == "switch":
            made.add_argument(flag, dest=name, action="store_true")
            continue
        kind = _TYPES[option["kind"]]
        choices = [kind(choice) for choice in option["choices"]] or None
        made.add_argument(flag, dest=name, type=kind, choices=choices, nargs=option.get("nargs"))
    return made


def parsed(engine: str, words: tuple[str, ...]) -> dict[str, Any]:
    """What the command's words parse to: the options that were set, by flag, and `model`. ValueError otherwise."""
    head = HEADS[engine]
    if words[: len(head)] != head:
        raise ValueError(f"does not begin with {head}")
    rest = list(words[len(head) :])
    if rest and rest[0] in recorded(engine).get("subcommands", ()) and rest.pop(0) != "serve":
        raise ValueError(f"{words[1]} is a command of its own and no model")
    found = vars(parser(engine, engine != "sglang").parse_args(rest))
    given = {flag for flag in words if flag.startswith("--")}
    return {name: value for name, value in found.items() if name == "model"} | {
        flag: found["option_" + re.sub(r"\W", "_", flag)] for flag in given
    }


def tensorrt_llm_file(text: str) -> dict[str, Any]:
    """The YAML that trtllm-serve reads, as a mapping; ValueError for a field or a value that its LlmArgs refuse."""
    record = recorded("tensorrt-llm")
    given = yaml.safe_load(text)
    _check(given, record["file"]["LlmArgs"], "")
    for name in ("kv_cache_config", "cuda_graph_config"):
        if isinstance(given.get(name), dict):
            _check(given[name], record["file"][name], name)
    if speculation := given.get("speculative_config"):
        fields = record["file"]["speculative_config"].get(speculation.get("decoding_type"))
        if fields is None:
            raise ValueError(f"decoding_type {speculation.get('decoding_type')!r} is none of those")
        _check({name: value for name, value in speculation.items() if name != "decoding_type"}, fields, "speculation")
        for name in record["needed"][speculation["decoding_type"]]:
            if not speculation.get(name):
                raise ValueError(f"{name} has to be given and more than 0")
    return dict(given)


def _check(given: dict[str, Any], fields: dict[str, Any], where: str) -> None:
    for name, value in given.items():
        if name not in fields:
            raise ValueError(f"{where} has no field {name}")
        field = fields[name]
        if value is None and field["null"]:
            continue
        if not any(_is(value, kind) for kind in field["kind"].split("|")):
            raise ValueError(f"{where} {name}: {value!r} is no {field['kind']}")
        if field.get("choices") and value not in field["choices"]:
            raise ValueError(f"{where} {name}: {value!r} is none of {field['choices']}")


def _is(value: Any, kind: str) -> bool:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return {
        "switch": isinstance(value, bool),
        "integer": whole,
        "fraction": whole or isinstance(value, float),
        "text": isinstance(value, str),
        "mapping": isinstance(value, dict),
        "list": isinstance(value, list),
        "integers": isinstance(value, list) and all(isinstance(one, int) for one in value),
    }[kind]


def ollama_environment(words: Iterable[str]) -> dict[str, Any]:
    """The variables before `ollama serve`, each as Ollama reads it; ValueError for one that it does not have."""
    known = recorded("ollama")["environment"]
    found = {}
    for word in words:
        name, _, value = word.partition("=")
        if name not in known:
            raise ValueError(f"Ollama reads no variable {name[:40]!r}")
        found[name] = _value(known[name], value)
    return found


def modelfile(text: str) -> dict[str, Any]:
    """`model` and the parameters of a Modelfile, each as Ollama reads it; ValueError for what its parser refuses.

    One instruction a line: what Ollama does with quotes and with lines that go on is not in these files.
    """
    record, found = recorded("ollama"), {}
    for line in filter(None, (line.strip() for line in text.splitlines())):
        command, _, rest = line.partition(" ")
        if command.lower() not in record["commands"] or not rest.strip():
            raise ValueError(f"no instruction: {line!r}")
        if rest.strip().startswith(('"', "'")):
            raise ValueError(f"quoted: {line!r}")
        if command.lower() == "from":
            found["model"] = rest.strip()
        elif command.lower() == "parameter":
            name, _, value = rest.strip().partition(" ")
            if name not in record["options"]:
                raise ValueError(f"unknown parameter {name!r}")
            found[name] = _value(record["options"][name], value.strip())
        else:
            found[command.lower()] = rest.strip()
    if "model" not in found:
        raise ValueError("no FROM line")
    return found


def _value(taken: dict[str, Any], text: str) -> Any:
    if taken["kind"] == "switch":
        if text not in ("0", "1", "true", "false"):
            raise ValueError(f"{text!r} is neither true nor false")
        return text in ("1", "true")
    if taken.get("choices") and text not in taken["choices"]:
        raise ValueError(f"{text!r} is none of {taken['choices']}")
    return _TYPES[taken["kind"]](text)


def tensorrt_llm(case: Case) -> dict[str, Any]:
    """What trtllm-serve takes a command and its file for; ValueError where it refuses, or takes another model."""
    found = parsed("tensorrt-llm", case.command.words)
    _same(found["model"], case.reference)
    _same(found["--max_seq_len"], case.deployment.context)
    named = found.get("--extra_llm_api_options")
    _same([name for name, _ in case.command.files], [] if named is None else [named])
    for _, text in case.command.files:
        found["file"] = tensorrt_llm_file(text)
        kind = found["file"].get("kv_cache_config", {}).get("dtype", "auto")
        if found.get("--backend") == "tensorrt" and kind != "auto":
            raise ValueError("KvCacheConfig.dtype is not supported by the TensorRT backend")
    return found


def ollama(case: Case) -> dict[str, Any]:
    """What Ollama takes the variables and the Modelfile for; ValueError where it refuses them."""
    words = case.command.words
    _same(words[-2:], ("ollama", "serve"))
    ((name, text),) = case.command.files
    _same(case.command.after, (("ollama", "create", "kv-plan", "-f", name), ("ollama", "run", "kv-plan")))
    found = ollama_environment(words[:-2]) | modelfile(text)
    _same(found["num_ctx"], found["OLLAMA_CONTEXT_LENGTH"])
    return found


def _same(found: object, meant: object) -> None:
    if found != meant:
        raise ValueError(f"taken for {found!r}, not {meant!r}")
