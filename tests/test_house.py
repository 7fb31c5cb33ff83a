"""Rules of the house that no single module's test would notice."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kvcore.engines.registry import engine_names, labels

ROOT = Path(__file__).resolve().parent.parent
KVCORE = sorted((ROOT / "kvcore").rglob("*.py"))


@pytest.mark.parametrize(
    ("path", "line", "rules"),
    [
        ("kvcore/new.py", "import streamlit", {"TID251"}),
        ("kvcore/new.py", "from plotly import graph_objects", {"TID251"}),
        ("kvcore/new.py", "from torch.nn import functional", {"TID251"}),
        ("kvcore/new.py", "import urllib.request", {"TID251"}),
        ("kvcore/new.py", "import urllib.parse", set()),
        ("kvcore/new.py", "assert __name__", {"S101"}),
        ("kvcore/sources/hub.py", "import huggingface_hub", set()),
        ("kvcore/live/new.py", "import torch", set()),
        ("kvcore/live/new.py", "import streamlit", {"TID251"}),
        ("kvcore/live/new.py", "import socket", {"TID251"}),
        ("pages/new.py", "import streamlit", set()),
    ],
)
def test_rules_of_pyproject_bite(path: str, line: str, rules: set[str]) -> None:
    """ruff runs with the checks; here it looks at a module that is not there."""
    command = [sys.executable, "-m", "ruff", "check", "--select", "TID251,S101", "--output-format", "json"]
    done = subprocess.run(
        [*command, "--stdin-filename", path, "-"], cwd=ROOT, input=line, capture_output=True, text=True, check=False
    )
    assert {found["code"] for found in json.loads(done.stdout)} == rules


def test_importing_kvcore_is_light() -> None:
    """Everything but the live engine, without torch, streamlit, plotly, pandas or numpy."""
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in KVCORE
        if path.stem != "__main__" and "live" not in path.relative_to(ROOT).parts
    ]
    heavy = "{'torch', 'streamlit', 'plotly', 'pandas', 'numpy', 'huggingface_hub'}"
    code = f"import sys, {', '.join(modules)}; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_requirements_are_pinned() -> None:
    for name in ("requirements.txt", "requirements-dev.txt"):
        lines = [line.split("#")[0].strip() for line in (ROOT / name).read_text("utf-8").splitlines()]
        for line in filter(None, lines):
            assert line.startswith("-r ") or re.fullmatch(r"[A-Za-z0-9._\[\]-]+==[0-9][0-9a-z.]*", line), line


def test_no_engine_is_named_outside_its_folder() -> None:
    """What an engine does is asked of it: a name in the code would be a rule that stands somewhere else."""
    names = {*engine_names(), *labels().values()}
    paths = [
        path
        for path in (*KVCORE, *sorted((ROOT / "pages").rglob("*.py")))
        if ROOT / "kvcore/engines" not in path.parents
    ]
    named = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.value}"
        for path in paths
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant) and node.value in names
    ]
    assert named == []


def test_what_ranks_hold_is_known_without_an_engine() -> None:
    below = [ROOT / "kvcore" / "deployment.py", *sorted((ROOT / "kvcore" / "ranks").rglob("*.py"))]
    for path in below:
        assert not any(name.startswith(("kvcore.engines", "kvcore.planning")) for name in _imported(path)), path


def _imported(path: Path) -> set[str]:
    """The modules that a file imports, and what it takes of them."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names
