"""A scenario: everything that a user chose, frozen, and equal to the page's address.

`to_query` and `from_query` are inverses for every valid scenario; defaults are left out of the address. Whatever an
address holds, `from_query` answers with a scenario and a list of what it did not take, never with an exception.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from kvcore.engines.registry import engine
from kvcore.errors import KVCoreError, SourceError, UnitError
from kvcore.formats import kv_format
from kvcore.hardware.gpus import accelerator
from kvcore.units import check_batch, check_tokens, parse_bytes, parse_tokens

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

# A configuration travels in the address while it is smaller than this, compressed and encoded.
MAX_CONFIG_CHARACTERS = 8 * 1024
MAX_CONFIG_BYTES = 2 * 1024 * 1024
MAX_COMPARED = 5
# The GPUs of one host, which is the machine that is meant where nobody says how many, on every screen about hardware.
HOST_GPUS = 8
DEFAULT_MODEL = "meta-llama/Llama-3.3-70B-Instruct"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What one question is about. `model` is a catalogue id; `config` a compressed configuration that replaces it.

    `kv` is a cache format (`auto`, `fp8`, `q8_0/q4_0`), `compare` further catalogue ids, `budget` a size such as
    `40 GiB` for the question of how many tokens fit, `source` the encoder or image tokens of cross-attention (0: the
    model's own maximum). `engine`, `gpu` and `tp` (ranks) are the server that is meant.

    All screens begin with the same machine, a host of H100s: Concurrency plans with HOST_GPUS of them, Variants with
    as many (more where the weights need more), and `budget` lies within what such a host leaves on each GPU beside the
    usual model. Only `tp` begins with one: Size is about one request, whole, before anybody splits it.
    """

    model: str = DEFAULT_MODEL
    config: str = ""
    tokens: int = 32_768
    batch: int = 1
    kv: str = "auto"
    compare: tuple[str, ...] = ()
    budget: str = "48 GiB"
    source: int = 0
    bound: bool = False
    engine: str = "vllm"
    gpu: str = "h100-sxm"
    tp: int = 1

    def to_query(self) -> dict[str, str]:
        """The address's parameters: only what differs from the defaults."""
        return write_query(self)

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> tuple[Scenario, tuple[str, ...]]:
        """(scenario, messages): every parameter that can be read is taken, and each other one has a message."""
        values, problems = read_query(query, _READERS)
        return cls(**values), problems


def write_query(choices: DataclassInstance) -> dict[str, str]:
    """What differs from the defaults of a frozen dataclass of choices, as an address's parameters."""
    plain = type(choices)()
    query = {}
    for field in fields(choices):
        value = getattr(choices, field.name)
        if value != getattr(plain, field.name):
            query[field.name] = _write(value)
    return query


def read_query(
    query: Mapping[str, str], readers: Mapping[str, Callable[[str], Any]]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """(values, messages): each parameter that has a reader, read, or a sentence about why it was not taken."""
    values: dict[str, Any] = {}
    problems = []
    for name, text in query.items():
        reader = readers.get(name)
        if reader is None:
            continue
        try:
            values[name] = reader(text)
        except (KVCoreError, ValueError) as problem:
            problems.append(f"The address's {name} was not taken: {problem}.")
    return values, tuple(problems)


def _write(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(value)
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, float):
        # The shortest digits that read back as the same number, without an exponent, which no reader takes.
        return f"{Decimal(repr(value)):f}"
    return str(value)


def _read_model(text: str) -> str:
    return _clean(text, 200)


def _clean(text: str, limit: int) -> str:
    if len(text) > limit or not text.isprintable():
        raise SourceError(f"{text[:40]!r} is not a name")
    return text


def _read_config(text: str) -> str:
    decode_config(text)
    return text


def _read_kv(text: str) -> str:
    return "auto" if text.strip().lower() == "auto" else kv_format(text).name


def _whole(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 12:
        raise UnitError(f"{text[:20]!r} is not a whole number")
    return int(text)


def _read_ranks(text: str) -> int:
    ranks = _whole(text)
    if not 1 <= ranks <= 4096:
        raise UnitError(f"{ranks:,} ranks are not within 1 … 4,096")
    return ranks


def _read_budget(text: str) -> str:
    parse_bytes(text)
    return text.strip()


_READERS: dict[str, Callable[[str], Any]] = {
    "model": _read_model,
    "config": _read_config,
    "tokens": parse_tokens,
    "batch": lambda text: check_batch(_whole(text)),
    "kv": _read_kv,
    "compare": lambda text: tuple(dict.fromkeys(_clean(part, 200) for part in text.split(",") if part))[:MAX_COMPARED],
    "budget": _read_budget,
    "source": lambda text: check_tokens(_whole(text)),
    "bound": lambda text: text == "1",
    "engine": lambda text: engine(_clean(text, 40)).name,
    "gpu": lambda text: accelerator(_clean(text, 80)).id,
    "tp": _read_ranks,
}


def encode_config(raw: Mapping[str, Any]) -> str | None:
    """A configuration as text for an address, or None when it is too large to travel in one (8 KB)."""
    packed = zlib.compress(json.dumps(raw, separators=(",", ":")).encode(), 9)
    text = base64.urlsafe_b64encode(packed).decode().rstrip("=")
    return text if len(text) <= MAX_CONFIG_CHARACTERS else None


def decode_config(text: str) -> dict[str, Any]:
    """The configuration that `encode_config` made; SourceError for anything else, however it was made."""
    if len(text) > MAX_CONFIG_CHARACTERS:
        raise SourceError("the configuration in the address is too long")
    try:
        packed = base64.b64decode(text.encode() + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
        unpacker = zlib.decompressobj()
        plain = unpacker.decompress(packed, MAX_CONFIG_BYTES)
        if unpacker.unconsumed_tail or not unpacker.eof:
            raise SourceError("the configuration in the address does not unpack")
        raw = json.loads(plain)
    except (binascii.Error, zlib.error, ValueError, RecursionError) as problem:
        if isinstance(problem, SourceError):
            raise
        raise SourceError("the configuration in the address cannot be read") from None
    if not isinstance(raw, dict):
        raise SourceError("the configuration in the address is not an object")
    return raw
