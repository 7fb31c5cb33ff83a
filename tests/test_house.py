"""Rules of the house that no single module's test would notice."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
KVCORE = sorted((ROOT / "kvcore").rglob("*.py"))


def imported(path: Path) -> set[str]:
    """The modules that are imported, and the packages that they are in: `urllib.parse` and `urllib`."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names | {name.split(".")[0] for name in names}


@pytest.mark.parametrize("path", KVCORE, ids=lambda path: str(path.relative_to(ROOT)))
def test_kvcore_knows_no_screen(path: Path) -> None:
    forbidden = {"streamlit", "plotly"} | (set() if "live" in path.relative_to(ROOT).parts else {"torch"})
    assert not imported(path) & forbidden


def test_only_one_module_touches_the_network() -> None:
    network = {"huggingface_hub", "requests", "httpx", "httpx2", "urllib.request", "socket", "http"}
    assert {path.name for path in KVCORE if imported(path) & network} == {"hub.py"}


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


def test_no_asserts_for_input() -> None:
    for path in KVCORE:
        assert not any(isinstance(node, ast.Assert) for node in ast.walk(ast.parse(path.read_text("utf-8")))), path


def test_requirements_are_pinned() -> None:
    for name in ("requirements.txt", "requirements-dev.txt"):
        lines = [line.split("#")[0].strip() for line in (ROOT / name).read_text("utf-8").splitlines()]
        for line in filter(None, lines):
            assert line.startswith("-r ") or re.fullmatch(r"[A-Za-z0-9._\[\]-]+==[0-9][0-9a-z.]*", line), line
