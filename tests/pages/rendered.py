"""What a reader sees of the markdown that the screens write: escapes resolved, joiners gone."""

from __future__ import annotations

import re

from streamlit.testing.v1 import AppTest

_ESCAPE = re.compile(r"\\([!-/:-@\[-`{-~])")


def resolved(markdown: str) -> str:
    """The text without the backslashes before punctuation: what can be copied from the page."""
    return _ESCAPE.sub(r"\1", markdown)


def rendered(markdown: str) -> str:
    """The same without the joiners that keep addresses apart and cannot be seen: what a reader reads."""
    return resolved(markdown).replace("\N{WORD JOINER}", "")


def unescaped(markdown: str) -> str:
    """What markdown may still understand: the text with a dot, which means nothing, for every mark that is escaped."""
    return _ESCAPE.sub("·", markdown)


def html_bodies(at: AppTest) -> list[str]:
    """The HTML that the page shows, without style sheets that stand alone."""
    bodies = [html.proto.body for html in at.get("html")]
    return [body for body in bodies if not (body.startswith("<style>") and body.rstrip().endswith("</style>"))]
