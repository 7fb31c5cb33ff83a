"""Where the project's own data is."""

from pathlib import Path

DATA = Path(__file__).resolve().parent.parent / "data"
