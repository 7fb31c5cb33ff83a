"""What start-up logs say: printed numbers, lines as data, and the rules by which an engine's log is read.

A pattern is matched only where its `needle` stands in a line, so that a line costs a few substring searches; nothing
in a pattern may repeat without a bound. The names of the groups are the names of the facts (`KINDS` says how each is
read where it is not a count); a `word_before` fact is the word that stands before the needle. The versions of a source
are those in which the line was seen, from the oldest to the newest.

Each engine has its lines and its rules in a module of its own (`log.py` in its folder); kvcore.logs reads with them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal

from kvcore.engines.layout import Layout
from kvcore.errors import EngineError
from kvcore.model.model import Model
from kvcore.terms import Term
from kvcore.units import GIB, KIB, MIB, TIB

Kind = Literal["count", "number", "amount", "text", "switch"]
# Building blocks of patterns: a whole number, one with a fraction, a unit of bytes.
N = r"[0-9](?:[0-9,_]{0,17}[0-9])?"
F = r"-?[0-9](?:[0-9,]{0,12}[0-9])?(?:\.[0-9]{1,6})?"
UNIT = r"(?:[KMGT]i?B|B)"


def amount(name: str, unit: str = "") -> str:
    """The group of a fact that is a number of bytes, in that unit or any."""
    return rf"(?P<{name}>{F} ?{unit or UNIT})"


@dataclass(frozen=True, slots=True)
class Pattern:
    """One line of one engine. `begins`: a new start-up, where the last one had already come to its capacity.

    `closes`: the figure that a start-up ends with. `pairs`: the rest of the line holds `key=value` facts.
    """

    engine: str
    needle: str
    regex: re.Pattern[str]
    source: str
    word_before: str | None = None
    begins: bool = False
    closes: bool = False
    pairs: bool = False


def pattern(
    engine: str, needle: str, rest: str, source: str, *, word_before: str | None = None, begins: bool = False,
    closes: bool = False, pairs: bool = False,
) -> Pattern:  # fmt: skip
    """A line of which `rest`, a regular expression, follows the needle."""
    return Pattern(engine, needle, re.compile(re.escape(needle) + rest), source, word_before, begins, closes, pairs)


# Facts whose group is empty: the line itself is the fact.
FLAGS: dict[str, tuple[str, object]] = {
    "kv_dtype_fp8": ("kv_dtype", "fp8"),
    "platform_cpu": ("platform", "cpu"),
    "hybrid_disabled": ("disable_hybrid_kv_cache_manager", True),
    "swa_full": ("swa_full", True),
    "no_memory": ("no_memory", True),
    "weights_loaded": ("weights_loaded", True),
    "flash_attn_required": ("refused", "quantised V cache without flash attention"),
    "flash_attn_forced": ("flash_attn", "enabled"),
}
# Facts of the patterns that are not counts.
KINDS: dict[str, Kind] = {}
_NAMES: tuple[tuple[Kind, str], ...] = (
    (
        "number",
        "gpu_memory_utilization equivalent_utilization max_concurrency mamba_padding_pct init_seconds "
        "explicit_kv total_gib cache_size first_size second_size",
    ),
    (
        "text",
        "engine_version model architecture platform pool group_block_sizes flash_attn kv_unified "
        "async_scheduling quantization buffer_device state_device compute_device cache_seqs first_name "
        "first_type second_name second_type kv_device weights_device graph_device kv_dtype",
    ),
    (
        "amount",
        "weights total non_torch activation available_kv non_kv consumed graph graph_estimate needed_kv "
        "free_before_weights weights_or_graph free_now k_size v_size kv_size conv_state ssm_state kv_estimate "
        "buffer state_buffer compute device_weights device_kv device_graph total_used used",
    ),
)
for _kind, _names in _NAMES:
    KINDS.update(dict.fromkeys(_names.split(), _kind))

# Every engine here counts in powers of two, also those that print "GB".
_UNITS = {"b": 1, "k": KIB, "m": MIB, "g": GIB, "t": TIB}


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """A printed number of bytes: the nearest whole one, and the interval that rounds to what was printed."""

    text: str
    nearest_bytes: int
    low_bytes: int
    high_bytes: int

    def __str__(self) -> str:
        return self.text

    def holds(self, value: int) -> bool:
        """Whether this number of bytes is printed like that."""
        return self.low_bytes <= value <= self.high_bytes


@dataclass(frozen=True, slots=True)
class Decimals:
    """A printed fraction with half a unit of its last digit, so that it can be compared as it was printed."""

    text: str
    value: Fraction
    half_step: Fraction

    def __str__(self) -> str:
        return self.text

    def holds(self, value: Fraction) -> bool:
        """Whether this value is printed like that."""
        return abs(value - self.value) <= self.half_step


def read_value(kind: Kind, text: str) -> Any:
    """A fact's value; None where the text is not what it should be."""
    try:
        if kind == "count":
            return read_count(text)
        if kind == "number":
            return read_decimals(text)
        if kind == "amount":
            return read_amount(text)
    except (ValueError, ZeroDivisionError):
        return None
    if kind == "switch":
        return {"true": True, "false": False}.get(text.lower())
    return text.strip().removeprefix("torch.")[:300] or None


def read_count(text: str) -> int:
    """A whole number as logs print it, `5,186,944`; ValueError for anything else."""
    return int(text.replace(",", "").replace("_", "")[:18])


def read_decimals(text: str) -> Decimals:
    """A fraction as it is printed, with half a unit of its last digit; ValueError for anything else."""
    plain = text.replace(",", "")
    digits = len(plain.partition(".")[2])
    return Decimals(text, Fraction(plain), Fraction(1, 2 * 10**digits))


def read_amount(text: str) -> Amount:
    """Bytes as they are printed, `10.31 GiB`; GB, which engines print for GiB, is read as GiB. ValueError otherwise."""
    number = text.rstrip("iBKMGTkmgt ")
    unit = text[len(number) :].strip().lower()[:1] or "b"
    printed = read_decimals(number)
    if unit not in _UNITS:
        raise ValueError(f"{text[:40]!r} is not an amount of bytes")
    scale = _UNITS[unit]
    low, high = (printed.value - printed.half_step) * scale, (printed.value + printed.half_step) * scale
    return Amount(
        text=text,
        nearest_bytes=round(printed.value * scale),
        low_bytes=-(-low.numerator // low.denominator),
        high_bytes=high.numerator // high.denominator,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """One cache that llama.cpp reports: its size, cells, layers, and the types of its halves (K and V, or R and S)."""

    size: Amount
    kind: str = "kv"
    cells: int | None = None
    layers: int | None = None
    sequences: int = 1
    streams: int = 1
    types: tuple[str, ...] = ()
    halves: tuple[Amount, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LogReading:
    """What one start-up says. `facts` are by name; `ranks` those that ranks state each for itself.

    `buffers` are (device, size) of cache buffers; `unread_lines` counts lines that said nothing known.
    """

    engine: str
    facts: Mapping[str, Any]
    stream: str = ""
    ranks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    caches: tuple[Cache, ...] = ()
    buffers: tuple[tuple[str, Amount], ...] = ()
    read_lines: int = 0
    unread_lines: int = 0
    unread_samples: tuple[str, ...] = ()

    def whole(self, name: str) -> int | None:
        """A fact that is a whole number; None where the log does not say."""
        value = self.facts.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def text(self, name: str) -> str | None:
        """A fact that is text."""
        value = self.facts.get(name)
        return value if isinstance(value, str) else None

    def amount(self, name: str) -> Amount | None:
        """A fact that is a number of bytes."""
        value = self.facts.get(name)
        return value if isinstance(value, Amount) else None

    def number(self, name: str) -> float | None:
        """A fact that is a number with a fraction."""
        value = self.decimals(name)
        return None if value is None else float(value.value)

    def decimals(self, name: str) -> Decimals | None:
        """The same as it was printed."""
        value = self.facts.get(name)
        return value if isinstance(value, Decimals) else None

    @property
    def engine_version(self) -> str | None:
        return self.text("engine_version")

    @property
    def model(self) -> str | None:
        return self.text("model")


# Settings that a log states as switches, in words.
SWITCHES = {"true": True, "enabled": True, "false": False, "disabled": False}
# Memory for the cache where the log says what was made of it: the pools are asked for by their own counts.
UNLIMITED = 2**60


class LogRules:
    """How one engine's start-up log is read: its lines, and what of its settings and its memory they tell.

    This one is of an engine that logs nothing about its cache. `pairs` are the facts of `key=value`, `'key': value`
    and `--key value`, by the engine's own names. `starts` names an engine whose server this one starts: the lines of
    that server are part of its log. `states` says which memory a log gives: the `memory` that the pool is made of, the
    `pool` as it was made, or each of the `caches`; `caches_by_device` that they may be summed up by device. The
    options by which a block's size and a context are set are `block_option` and `context_option`.
    """

    patterns: tuple[Pattern, ...] = ()
    pairs: Mapping[str, tuple[str, Kind]] = {}
    starts: str = ""
    states: Literal["memory", "pool", "caches"] = "memory"
    caches_by_device: bool = False
    block_option: str = "block_size"
    context_option: str | None = None

    def version(self, reading: LogReading) -> tuple[str | None, tuple[str, ...]]:
        """The release whose rules are used (None: the newest), and notes where the log does not state it."""
        return None, ()

    def length(self, reading: LogReading) -> int | None:
        """Tokens of the longest request; None where the settings say it otherwise."""
        return reading.facts.get("concurrency_length") or reading.facts.get("max_model_len")

    def kv_dtype(self, reading: LogReading) -> str:
        """The cache format, `auto` where the log states none."""
        stated = reading.text("kv_dtype")
        if stated is not None and stated != "auto":
            return stated
        return "fp32" if reading.text("dtype") in ("float32", "float") else "auto"

    def options(self, reading: LogReading) -> dict[str, Any]:
        """The engine's own options, by field; None for what the log does not state."""
        return {}

    def completed(self, settings: Any, reading: LogReading) -> Any:
        """The settings with what no option says."""
        return settings

    def memories(self, reading: LogReading, layout: Layout) -> tuple[tuple[int, ...], Amount | None]:
        """The memories to ask a capacity for, and the printed one that they come from (None: a count, or no limit).

        The least, the nearest and the most that print as the log does. EngineError where it states no memory.
        """
        exact = reading.facts.get("kv_cache_memory_bytes")
        if isinstance(exact, int):
            return (exact,), None
        if self.states != "memory":
            return (UNLIMITED,), None
        memory = reading.amount("available_kv") or reading.amount("kv_size")
        if memory is not None:
            return (memory.low_bytes, memory.nearest_bytes, memory.high_bytes), memory
        blocks, tokens = reading.facts.get("blocks"), reading.facts.get("kv_cache_size_tokens")
        if layout.bytes_per_block and isinstance(blocks, int):
            return (blocks * layout.bytes_per_block,), None
        if layout.bytes_per_block and isinstance(tokens, int) and len(layout.groups) == 1 and layout.block_size:
            return (tokens // layout.block_size * layout.bytes_per_block,), None
        raise EngineError(
            "the log states no memory for the cache, so nothing can be predicted from it", engine=reading.engine
        )

    def reasons(self, reading: LogReading, model: Model, layout: Layout, terms: tuple[Term, ...]) -> Iterator[str]:
        """How the engine comes from memory to its figures, each a whole sentence; `terms` are the capacity's."""
        yield from (f"{term.name}: {term.formula}." for term in layout.terms[: len(reading.caches)])

    def guesses(self, reading: LogReading, model: Model) -> Iterator[tuple[dict[str, Any], str]]:
        """Single settings that a log may have left out, as (facts, words), in the order in which they are tried."""
        now = reading.facts.get("kv_dtype")
        yield from (({"kv_dtype": name}, f"a cache in {name}") for name in ("fp8", "bf16") if name != now)


# Of an engine that logs nothing about its cache.
NO_LOG = LogRules()
