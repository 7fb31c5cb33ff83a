"""A scenario: everything that a user chose, frozen, and equal to the page's address.

`to_query` and `from_query` are inverses for every valid scenario; defaults are left out of the address. Whatever an
address holds, `from_query` answers with a scenario and a list of what it did not take, never with an exception.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvcore.engines.registry import DEFAULT, engine
from kvcore.errors import SourceError
from kvcore.hardware.gpus import accelerator
from kvcore.hardware.systems import MAX_GPUS
from kvcore.scenario.fields import AUTO, Choices, cache_format, choice, either, size, switch, text, whole
from kvcore.units import MAX_BATCH, format_tokens, parse_tokens

# A configuration travels in the address while it is smaller than this, compressed and encoded.
MAX_CONFIG_CHARACTERS = 8 * 1024
MAX_CONFIG_BYTES = 2 * 1024 * 1024
MAX_COMPARED = 5
DEFAULT_MODEL = "meta-llama/Llama-3.3-70B-Instruct"


def read_config(given: str) -> str:
    """A configuration as `encode_config` writes it; SourceError for anything else."""
    if given:
        decode_config(given)
    return given


def read_compared(given: str) -> tuple[str, ...]:
    """Models with commas between them, each once; those beyond MAX_COMPARED are left out."""
    return tuple(dict.fromkeys(map(_name, filter(None, given.split(",")))))[:MAX_COMPARED]


_name = text(200)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario(Choices):
    """What one question is about. `model` is a catalogue id; `config` a compressed configuration that replaces it.

    `kv` is a cache format (`auto`, `fp8`, `q8_0/q4_0`), `compare` further catalogue ids, `budget` a size such as
    `40 GiB` for the question of how many tokens fit, `source` the encoder or image tokens of cross-attention (0: the
    model's own maximum). `engine`, `gpu` and `tp` (ranks) are the server that is meant.

    All screens begin with the same machine, a host of H100s: Concurrency plans with HOST_GPUS of them, Variants with
    as many (more where the weights need more), and `budget` lies within what such a host leaves on each GPU beside the
    usual model. Only `tp` begins with one: Size is about one request, whole, before anybody splits it.
    """

    model: str = choice(DEFAULT_MODEL, _name)
    config: str = choice("", read_config)
    tokens: int = choice(32_768, parse_tokens, control=format_tokens, example="8192, 8K or 1M")
    batch: int = choice(1, whole("requests", 1, MAX_BATCH), control=str, example="10")
    kv: str = choice(AUTO, either({AUTO: AUTO}, cache_format))
    compare: tuple[str, ...] = choice((), read_compared)
    budget: str = choice("48 GiB", size)
    source: int = choice(0, either({"": 0}, parse_tokens), control=lambda count: f"{count:,}" if count else "")
    bound: bool = choice(False, switch)
    engine: str = choice(DEFAULT, lambda given: engine(given).name)
    gpu: str = choice("h100-sxm", lambda given: accelerator(given).id)
    tp: int = choice(1, whole("ranks", 1, MAX_GPUS), control=str, example="8")


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
