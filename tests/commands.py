"""The command line as a script sees it: exit status, stdout and stderr, and the one object of --json."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvcore.cli.main import main


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """(exit status, stdout, stderr) of `python -m kvcore` with these words."""
    status = main(arguments)
    out, err = capsys.readouterr()
    return status, out, err


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """The object that --json prints on one line, beside nothing else and with exit status 0."""
    status, out, err = run(capsys, *arguments, "--json")
    assert (status, err) == (0, "")
    assert out.count("\n") == 1
    result: dict[str, Any] = json.loads(out)
    return result
