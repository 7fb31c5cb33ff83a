"""`kvcore app`: the dashboard in the browser."""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from typing import Any

from kvcore.extras import require
from kvcore.paths import APP


def add(commands: Any) -> None:
    """Add the command; every further word is Streamlit's."""
    command = commands.add_parser(
        "app",
        help="open the dashboard in the browser",
        epilog="Further options are those of `streamlit run`: kvcore app --server.port 8080 --server.headless true",
        allow_abbrev=False,
    )
    command.set_defaults(run=_run, json=False)


def _run(options: argparse.Namespace) -> None:
    """Run Streamlit in this process, so that signals and the exit status are its own; PackageError without it."""
    require("streamlit", "app", "the dashboard")
    # What runs a script puts its folder on the path; Streamlit's own config is read from beside app.py.
    sys.argv = ["streamlit", "run", os.fspath(APP / "app.py"), *options.unknown]
    runpy.run_module("streamlit", run_name="__main__", alter_sys=True)
