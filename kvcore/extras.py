"""The parts of the project that need more packages than the numbers do: the extras of the package."""

from __future__ import annotations

from importlib.util import find_spec

from kvcore.errors import PackageError

PROJECT = "kv-cache-explorer"


def require(package: str, extra: str, what: str) -> None:
    """PackageError, saying how to install the extra, where `package` is not installed, which `what` needs."""
    if find_spec(package) is None:
        raise PackageError(f"{what} needs {package}, which is not installed: pip install '{PROJECT}[{extra}]'")
