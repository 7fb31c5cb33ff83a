"""From a pasted start-up log to facts: which engine, which model, which memory, which capacity.

Any text is answered, in time that grows with its length alone: at most 10 MB and 50,000 lines are read, lines are cut
at 10,000 characters, a line is searched for fixed needles, and the number of places that are looked at is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from kvcore.logs.patterns import FLAGS, KINDS, PAIRS, PATTERNS, Pattern
from kvcore.logs.values import Amount, Decimals, read_amount, read_count, read_value

MAX_CHARACTERS = 10_000_000
MAX_LINE = 10_000
MAX_LINES = 50_000
MAX_PLACES = 10_000
MAX_PAIR_LINES = 100
MAX_READINGS = 100
MAX_SAMPLES = 5

_ANSI = re.compile(r"\x1b\[[0-9;?]{0,20}[A-Za-z]|\x1b[@-_]")
_LITERAL_ANSI = re.compile(r"\\(?:x1b|033|u001b)\[[0-9;]{0,20}m")
_CONTROL: dict[int, str | None] = {**dict.fromkeys((*range(32), *range(127, 160))), 9: " "}
_WORD = re.compile(r"[A-Za-z]\w{2,}")
_STREAM = re.compile(r"\[?([\w][\w./-]{0,80})\]? {1,20}\| ?|\[(pod/[\w./-]{1,200})\] ?")
_RANK = re.compile(r"\b(?:Worker_)?((?:DP[0-9]{1,4}[ _])?(?:PP[0-9]{1,4}[ _])?TP[0-9]{1,4})(?:[ _]EP[0-9]{1,4})?\b")
_NUMBERED_RANK = re.compile(
    r"\[RANK ([0-9]{1,4})\]|\brank=([0-9]{1,4})\b|(?:Worker|WorkerProcess|Wrapper) pid=([0-9]{1,9})"
)
_PAIR = re.compile(
    r"""(?<![\w.'"-])(?:['"](\w{2,40})['"]: |(\w{2,40}) ?= ?|(\w{2,40}):|--([\w-]{2,40})[ =])"""
    r"""('[^']{0,300}'|"[^"]{0,300}"|[^,\s)}\]"]{1,300}(?: [KMGT]i?B\b)?)"""
)
_NOTHING = frozenset({"none", "null", ""})
# What ranks and repeated lines may state differently: the tightest rank decides.
_TIGHTEST = frozenset({"available_kv", "blocks", "kv_cache_size_tokens", "max_concurrency"})
# Of lines that come again for each slot of a server, the first is the context's own.
_FIRST = frozenset({"n_ctx"})
_BY_RANK = frozenset({"weights", "non_torch", "activation", "available_kv", "blocks", "kv_cache_size_tokens", "total"})


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
    """What one start-up says. `facts` are by name (patterns.py); `ranks` those that ranks state each for itself.

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
        value = self.facts.get(name)
        return float(value.value) if isinstance(value, Decimals) else None

    @property
    def engine_version(self) -> str | None:
        return self.text("engine_version")

    @property
    def model(self) -> str | None:
        return self.text("model")


def read_log(text: str) -> tuple[LogReading, ...]:
    """Every start-up that a text tells of, in its order; an empty tuple where no engine is recognised.

    Never raises and never takes longer than its length explains, whatever the text holds.
    """
    reader = _Reader()
    for line in _lines(text):
        reader.take(line)
    return reader.finish()


def _lines(text: str) -> Iterator[str]:
    """Lines worth looking at, cut and without colours and control characters."""
    kept = text[:MAX_CHARACTERS].replace("\r\n", "\n").replace("\r", "\n")
    count = 0
    for raw in kept.split("\n"):
        if not raw or raw.isspace():
            continue
        count += 1
        if count > MAX_LINES:
            return
        line = raw[:MAX_LINE]
        if "\x1b" in line:
            line = _ANSI.sub("", line)
        if "\\" in line:
            line = _LITERAL_ANSI.sub("", line)
        yield line if line.isprintable() else line.translate(_CONTROL)


def _by_word() -> dict[str, tuple[Pattern, ...]]:
    """The patterns by the longest whole word of their needle: a line is only searched for those whose word it has."""
    found: dict[str, list[Pattern]] = {}
    for pattern in PATTERNS:
        words = _WORD.findall(pattern.needle.partition("urrent ")[2] or pattern.needle)
        found.setdefault(max(words, key=len), []).append(pattern)
    return {word: tuple(patterns) for word, patterns in found.items()}


_PATTERNS_OF = _by_word()
_WORDS = frozenset(_PATTERNS_OF)


@dataclass(slots=True)
class _Draft:
    engine: str
    stream: str
    facts: dict[str, Any] = field(default_factory=dict)
    ranks: dict[str, dict[str, Any]] = field(default_factory=dict)
    caches: list[Cache] = field(default_factory=list)
    buffers: list[tuple[str, Amount]] = field(default_factory=list)
    closed: bool = False
    read: int = 0
    unread: int = 0
    samples: list[str] = field(default_factory=list)


class _Reader:
    """Collects facts line by line; one draft is open for each stream (a container's lines) of the text."""

    def __init__(self) -> None:
        self.drafts: list[_Draft] = []
        self.open: dict[str, _Draft] = {}
        self.orphans: list[str] = []
        self.orphan_count = 0
        self.places = 0
        self.pair_lines = 0
        self.continued = ""

    def take(self, line: str) -> None:
        prefix = _STREAM.match(line)
        stream = (prefix[1] or prefix[2]) if prefix else ""
        found = False
        if self.places < MAX_PLACES:
            for word in sorted(_WORDS.intersection(_WORD.findall(line))):
                for pattern in _PATTERNS_OF[word]:
                    found = self._match(pattern, line, stream) or found
        if not found and self.continued == stream and stream in self.open and "=" in line:
            found = self._pairs(self.open[stream], line)
        if not line.rstrip().endswith((":", ",")):
            self.continued = "\n"
        self._count(line, stream, found)

    def _match(self, pattern: Pattern, line: str, stream: str) -> bool:
        at, found = line.find(pattern.needle), False
        for _ in range(3):
            if at < 0:
                break
            self.places += 1
            match = pattern.regex.match(line, at)
            if match:
                self._facts(pattern, match, line, stream)
                found = True
                break
            at = line.find(pattern.needle, at + 1)
        return found

    def _facts(self, pattern: Pattern, match: re.Match[str], line: str, stream: str) -> None:
        draft = self._draft(pattern, stream)
        if draft is None:
            return
        values = {name: text for name, text in match.groupdict().items() if text is not None}
        if pattern.word_before:
            words = line[max(0, match.start() - 60) : match.start()].split()
            values[pattern.word_before] = words[-1] if words else ""
        _special(draft, values, line)
        rank = _rank(line)
        for name, text in values.items():
            flag = FLAGS.get(name)
            fact, value = flag if flag else (name, read_value(KINDS.get(name, "count"), text))
            _put(draft, fact, value, rank)
        if pattern.pairs:
            self._pairs(draft, line[match.end() :])
            self.continued = stream
        draft.closed = draft.closed or pattern.closes

    def _pairs(self, draft: _Draft, rest: str) -> bool:
        self.pair_lines += 1
        if self.pair_lines > MAX_PAIR_LINES:
            return False
        found = False
        for match in _PAIR.finditer(rest):
            key = match[1] or match[2] or match[3] or match[4]
            known = PAIRS.get(key)
            if known is None or (key == "type" and draft.engine != "sglang"):
                continue
            text = match[5].strip("'\"")
            if text.lower() in _NOTHING or (text == "auto" and known[0] in draft.facts):
                continue
            _put(draft, known[0], read_value(known[1], text), None)
            found = True
        return found

    def _draft(self, pattern: Pattern, stream: str) -> _Draft | None:
        """The start-up that a line belongs to; a new one where another engine speaks or the last had ended."""
        current = self.open.get(stream)
        if current is not None and current.engine == "ollama" and pattern.engine == "llama.cpp":
            return current
        if current is not None and current.engine == "llama.cpp" and pattern.engine == "ollama" and not current.closed:
            current.engine = "ollama"
        if current is None or current.engine != pattern.engine or (pattern.begins and current.closed):
            if len(self.drafts) >= MAX_READINGS:
                return current
            current = _Draft(pattern.engine, stream)
            self.drafts.append(current)
            self.open[stream] = current
        return current

    def _count(self, line: str, stream: str, found: bool) -> None:
        draft = self.open.get(stream)
        if draft is None:
            self.orphan_count += 1
            if len(self.orphans) < MAX_SAMPLES:
                self.orphans.append(line[:200])
        elif found:
            draft.read += 1
        else:
            draft.unread += 1
            if len(draft.samples) < MAX_SAMPLES:
                draft.samples.append(line[:200])

    def finish(self) -> tuple[LogReading, ...]:
        drafts = [draft for draft in self.drafts if draft.facts or draft.caches]
        if drafts:
            drafts[0].unread += self.orphan_count
            drafts[0].samples = [*self.orphans, *drafts[0].samples][:MAX_SAMPLES]
        return tuple(_reading(draft) for draft in drafts)


def _reading(draft: _Draft) -> LogReading:
    return LogReading(
        engine=draft.engine,
        stream=draft.stream,
        facts=MappingProxyType(draft.facts),
        ranks=MappingProxyType({rank: MappingProxyType(facts) for rank, facts in draft.ranks.items()}),
        caches=tuple(draft.caches),
        buffers=tuple(draft.buffers),
        read_lines=draft.read,
        unread_lines=draft.unread,
        unread_samples=tuple(draft.samples),
    )


def _special(draft: _Draft, values: dict[str, str], line: str) -> None:
    """Facts that are part of a list, or whose meaning depends on the line."""
    if "cache_size" in values:
        draft.caches.append(_cache(values))
        for name in [name for name in values if name.startswith(("cache_", "first_", "second_"))]:
            del values[name]
    for size, device in (("buffer", "buffer_device"), ("state_buffer", "state_device"), ("device_kv", "kv_device")):
        if size in values:
            draft.buffers.append((values.pop(device, ""), read_amount(values.pop(size))))
    if "explicit_kv" in values:
        values["available_kv"] = values.pop("explicit_kv") + " GiB"
        values["platform_cpu"] = ""
    if "total_gib" in values:
        values["total"] = values.pop("total_gib") + " GiB"
    if "pool" in values:
        pool = values.pop("pool").strip("[]():").upper()
        if pool in ("CPU", "GPU"):
            values["platform"] = "cpu" if pool == "CPU" else "cuda"
    if "weights_or_graph" in values:
        name = "weights" if "Load weight end" in line else "graph" if "raph" in line else "used"
        values[name] = values.pop("weights_or_graph")


def _cache(values: Mapping[str, str]) -> Cache:
    sequences, _, streams = values.get("cache_seqs", "1").partition("/")
    halves = tuple(values[name] + " MiB" for name in ("first_size", "second_size") if name in values)
    cells, layers = values.get("cache_cells"), values.get("cache_layers")
    return Cache(
        kind="state" if values.get("first_name") == "R" else "kv",
        size=read_amount(values["cache_size"] + " MiB"),
        cells=read_count(cells) if cells else None,
        layers=read_count(layers) if layers else None,
        sequences=int(sequences),
        streams=int(streams or 1),
        types=tuple(values[name] for name in ("first_type", "second_type") if name in values),
        halves=tuple(read_amount(half) for half in halves),
    )


def _put(draft: _Draft, name: str, value: Any, rank: str | None) -> None:
    if value is None:
        return
    if rank is not None and name in _BY_RANK:
        draft.ranks.setdefault(rank, {})[name] = value
    known = draft.facts.get(name)
    if known is not None and (name in _FIRST or (name in _TIGHTEST and _size(known) <= _size(value))):
        return
    draft.facts[name] = value


def _size(value: Any) -> Any:
    if isinstance(value, Amount):
        return value.nearest_bytes
    return value.value if isinstance(value, Decimals) else value


def _rank(line: str) -> str | None:
    head = line[:200]
    found = _RANK.search(head)
    if found:
        return found[1].replace("_", " ")
    numbered = _NUMBERED_RANK.search(head)
    if numbered is None:
        return None
    return f"rank {numbered[1] or numbered[2]}" if numbered[1] or numbered[2] else f"process {numbered[3]}"
