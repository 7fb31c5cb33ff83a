"""Text that a reader brought (typed, pasted, uploaded, in an address), shown as text where markup would be understood.

Streamlit's markdown loads images, makes links and icons, and drops what it takes for marks; plotly's texts know a
little HTML. Whatever may hold a reader's words goes through `plain` or `in_chart` on its way there.
"""

from __future__ import annotations

import re
import string
from html import escape

MAX_NAME = 80
# Characters that end a line or are none: controls, line separators, halves of a pair.
_BREAKS = re.compile(r"[\x00-\x20\x7f-\x9f\u2028\u2029\ud800-\udfff]+")
_MARKS = re.compile(f"[{re.escape(string.punctuation)}]")
# Streamlit looks for these in the finished text, when escapes are resolved already: addresses, icons, arrows. A joiner
# inside, which takes no room and is not seen, keeps them apart.
_JOINER = "\N{WORD JOINER}"
_FOUND_LATE = re.compile(
    r":(?=//|streamlit:|material_\w+:)|www(?=\.)|@(?=[-\w]+\.)|(?<!\S)(?:<-|[-<>~])(?=[-=>](?!\S))", re.IGNORECASE
)


def plain(text: str) -> str:
    """Markdown that shows `text` as it is, in one line: no mark in it is understood, no address becomes a link."""
    line = _FOUND_LATE.sub(rf"\g<0>{_JOINER}", _BREAKS.sub(" ", text))
    return _MARKS.sub(r"\\\g<0>", line)


def in_chart(text: str) -> str:
    """What shows `text` as it is in plotly's texts and hover texts, where tags and `%{…}` are understood."""
    return escape(_BREAKS.sub(" ", text), quote=False).replace("%{", "&#37;{")


def tidy_name(text: str) -> str:
    """A name of a reader's model in one line of at most 80 characters, without any that cannot be seen."""
    line = " ".join("".join(mark if mark.isprintable() else " " for mark in text).split())
    return line if len(line) <= MAX_NAME else f"{line[: MAX_NAME - 1]}…"
