"""What a user chose on the Live screen beside the scenario, equal to that screen's further parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kvcore.errors import LiveError
from kvcore.live.models import DEFAULT
from kvcore.live.options import KV_FORMATS, WEIGHT_FORMATS
from kvcore.scenario import read_query, write_query
from kvcore.variants import canonical

PROMPT = "Explain in a few sentences why the sky is blue."
AS_WRITTEN = "as written"
LENGTHS = (AS_WRITTEN, "16", "64", "128", "256", "512", "1,024", "2,048", "4,096")
BATCHES = (1, 2, 4, 8, 16)
NEW_TOKENS = range(8, 513, 8)
MAX_PROMPT = 4000
SHIPPED = "shipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveOptions:
    """What a run is of; every field is named as its control and as its parameter in the address."""

    live_prompt: str = PROMPT
    live_model: str = DEFAULT
    live_length: str = AS_WRITTEN
    live_new: int = 48
    live_batch: int = 1
    live_attention: str = SHIPPED
    live_kv: str = "bf16"
    live_weights: str = "bf16"
    live_again: bool = True

    def to_query(self) -> dict[str, str]:
        """The address's parameters: only what differs from the defaults."""
        return write_query(self)

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> tuple[LiveOptions, tuple[str, ...]]:
        """(options, messages): every parameter that can be read is taken, and each other one has a message."""
        values, problems = read_query(query, READERS)
        return cls(**values), problems


def _text(limit: int) -> Callable[[str], str]:
    def read(text: str) -> str:
        if len(text) > limit or not all(mark.isprintable() or mark == "\n" for mark in text):
            raise LiveError(f"{text[:40]!r} is longer than {limit:,} characters or holds some that cannot be shown")
        return text

    return read


def _one_of(choices: tuple[str, ...]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in choices:
            raise LiveError(f"{text[:40]!r} is not one of {', '.join(choices)}")
        return text

    return read


def _number(choices: range | tuple[int, ...]) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) < 6 and int(text) in choices):
            raise LiveError(f"{text[:40]!r} is not one of {', '.join(str(one) for one in choices)}"[:200])
        return int(text)

    return read


READERS: dict[str, Callable[[str], Any]] = {
    "live_prompt": _text(MAX_PROMPT),
    "live_model": _text(200),
    "live_length": _one_of(LENGTHS),
    "live_new": _number(NEW_TOKENS),
    "live_batch": _number(BATCHES),
    "live_attention": lambda text: text if text == SHIPPED else canonical(text),
    "live_kv": _one_of(KV_FORMATS),
    "live_weights": _one_of(WEIGHT_FORMATS),
    "live_again": lambda text: _one_of(("0", "1"))(text) == "1",
}
