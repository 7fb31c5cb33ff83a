"""What people asked in public about the memory of serving, and where it is answered here (data/questions.json)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from kvcore.errors import SourceError
from kvcore.paths import DATA

_FILE = "questions.json"
_INTRODUCTION = """# Questions that people asked in public

Each is answered on a screen and by a command, with the figure that the answer must have in `data/questions.json`. Links
open on a dashboard at `http://localhost:8501` (`kvcore app`). This page is made from that file:
`python -m kvcore.evidence.questions > docs/questions.md`.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A figure that the answer must have: at `key` of the command's JSON (`max_concurrency.best`), this value.

    `within` is a relative tolerance (0: the same), or `least` where the answer must be at least that. `how` says where
    the value is from: its arithmetic, or what was logged.
    """

    key: str
    value: float | str | bool
    within: float | Literal["least"]
    how: str

    def holds(self, found: Any) -> bool:
        """Whether a value of the command's answer is the figure."""
        if self.within == "least":
            return bool(found >= self.value)
        if self.within and not isinstance(self.value, str):
            return bool(abs(found - self.value) <= self.within * abs(self.value))
        return bool(found == self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question in our own words with its source and date, the answer, and where it is given.

    `address` is that of a screen, from its path on; `command` the words after `kvcore`.
    """

    number: int
    source: str
    date: str
    short: str
    question: str
    answer: str
    address: str
    command: str
    figures: tuple[Figure, ...]


@cache
def questions() -> tuple[Question, ...]:
    """Every question, in the file's order; SourceError where the file cannot be read."""
    try:
        rows = json.loads((DATA / _FILE).read_text("utf-8"))["questions"]
        return tuple(
            Question(**{**row, "figures": tuple(Figure(**figure) for figure in row["figures"])}) for row in rows
        )
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise SourceError(f"{_FILE} could not be read ({problem}); it belongs in {DATA}") from problem


def page(base: str) -> str:
    """The questions as a page of Markdown: each with its source, answer, command and link to a server at `base`."""
    parts = [_INTRODUCTION]
    for one in questions():
        repository, number = one.source.split("#")
        parts.append(
            f"""## {one.number}. {one.short}

{one.question} ([{one.source}](https://github.com/{repository}/issues/{number}), {one.date})

{one.answer}

[Open it]({base}{one.address}), or:

```sh
kvcore {one.command}
```
"""
        )
    return "\n".join(parts)


if __name__ == "__main__":
    print(page("http://localhost:8501"), end="")
