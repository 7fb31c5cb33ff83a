"""Where the project's own files are: beside the package in the repository, inside it once it is installed."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def _folder(installed: str, in_repository: str) -> Path:
    """`kvcore/<installed>` where the wheel put the files, else the place that they have in the repository."""
    inside = _PACKAGE / installed
    return inside if inside.is_dir() else _PACKAGE.parent / in_repository


# Hardware, models, prices, recorded logs.
DATA = _folder("_data", "data")
# The dashboard: app.py, pages/, static/ and .streamlit/.
APP = _folder("_app", "")
