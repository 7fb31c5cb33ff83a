"""Why A differs from B: what each side counts, the causes that multiply to the ratio, and where the order turns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil, floor, prod
from typing import Literal

from kvcore.formats import KVFormat
from kvcore.model.memories import Attention, Growth, Indexer, Latent, Memory, NoMemory, State
from kvcore.model.model import Model
from kvcore.units import format_bytes

_Form = tuple[Memory, ...]
_NUMBER_WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
# What a layer that does not grow does instead, by the kind of its memory: (several layers, one layer).
_INSTEAD = {
    "state": ("keep a fixed state", "keeps a fixed state"),
    "sliding": ("keep only a window", "keeps only a window"),
    "chunked": ("keep only a chunk", "keeps only a chunk"),
    "cross": ("only cross-attend", "only cross-attends"),
    "shared": ("read another layer's cache", "reads another layer's cache"),
    "feed-forward layer": ("are feed-forward", "is feed-forward"),
    "encoder layer": ("are encoder layers", "is an encoder layer"),
    "attention removed": ("have no attention", "has no attention"),
}
_NOTHING = ("keep nothing", "keeps nothing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """What one more token adds: exact bytes and numbers of all `layers` that grow, averages where an entry is shared.

    Index keys stand apart (`index_bytes`, in `index_layers` layers), because they have a format of their own.
    `forms` are the growing memories of one layer with the number of such layers; `instead` what the others do.
    """

    layers: int
    of_layers: int
    numbers: Fraction
    body_bytes: Fraction
    index_bytes: Fraction
    index_layers: int
    forms: tuple[tuple[_Form, int], ...]
    instead: tuple[str, ...]

    @property
    def bytes(self) -> Fraction:
        return self.body_bytes + self.index_bytes

    @property
    def width(self) -> Fraction:
        """Numbers a growing layer stores for one token, index keys aside."""
        return self.numbers / self.layers

    @property
    def bits(self) -> Fraction:
        """Bits a number, scales included, index keys aside."""
        return 8 * self.body_bytes / self.numbers

    @property
    def others(self) -> str:
        """What the layers do that do not grow: `the others keep a fixed state`; there must be one."""
        if self.of_layers - self.layers == 1:
            return f"the other {_INSTEAD_ONE[self.instead[0]]}"
        return f"the others {either(self.instead)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One model in its format: growth laws, layers by what they keep, and the rates of growth.

    `start` is what a token adds while nothing is full. `late` is what it adds once every window is full that the
    model's own context limit lets fill: a window as long as that limit never cuts anything.
    """

    name: str
    model: Model
    kv: KVFormat
    source_tokens: int | None = None
    laws: dict[Memory, Growth] = field(init=False)
    layers: tuple[tuple[_Form, int], ...] = field(init=False)
    start: Rate = field(init=False)
    late: Rate = field(init=False)

    def __post_init__(self) -> None:
        laws = {memory: memory.growth(self.kv, self.source_tokens) for memory, _ in self.model.kept}
        object.__setattr__(self, "laws", laws)
        counts: dict[_Form, int] = {}
        for form in self.model.layers:
            counts[form] = counts.get(form, 0) + 1
        object.__setattr__(self, "layers", tuple(counts.items()))
        start = self._rate(lambda law: law.bytes_per_entry > 0)
        object.__setattr__(self, "start", start)
        late = self._rate(lambda law: law.bytes_per_entry > 0 and not self._fills(law)) if self.windows else start
        object.__setattr__(self, "late", late)

    def _fills(self, law: Growth) -> bool:
        limit = self.model.context_limit
        return law.max_entries is not None and (limit is None or law.max_entries * law.tokens_per_entry < limit)

    @property
    def windows(self) -> tuple[Memory, ...]:
        """Memories that are cut within the model's own limit."""
        return tuple(memory for memory, law in self.laws.items() if self._fills(law))

    @property
    def window_noun(self) -> str:
        kinds = {memory.kind for memory in self.windows}
        return "chunks" if kinds == {"chunked"} else "windows"

    def _rate(self, grows: Callable[[Growth], bool]) -> Rate:
        growing = {memory: law for memory, law in self.laws.items() if grows(law)}
        forms: dict[_Form, int] = {}
        instead: dict[str, None] = {}
        layers = index_layers = 0
        numbers = body = index = Fraction(0)
        for form, count in self.layers:
            found = tuple(memory for memory in form if memory in growing)
            if not found:
                reason = _instead(form, self.laws)
                instead[reason] = None
                continue
            layers += count
            # An index key is part of the body only where a layer grows by nothing else.
            own = tuple(memory for memory in found if not isinstance(memory, Indexer)) or found
            keys = tuple(memory for memory in found if memory not in own)
            index_layers += count if keys else 0
            index += count * sum((_per_token(growing[memory]) for memory in keys), Fraction(0))
            body += count * sum((_per_token(growing[memory]) for memory in own), Fraction(0))
            numbers += count * sum((_numbers(memory) for memory in own), Fraction(0))
            forms[own] = forms.get(own, 0) + count
        return Rate(
            layers=layers,
            of_layers=len(self.model.layers),
            numbers=numbers,
            body_bytes=body,
            index_bytes=index,
            index_layers=index_layers,
            forms=tuple(sorted(forms.items(), key=lambda pair: -pair[1])),
            instead=tuple(instead),
        )

    def at(self, tokens: int) -> int:
        """Resident bytes at `tokens`."""
        return sum(count * self.laws[memory].at(tokens) for memory, count in self.model.kept)

    @property
    def constant_bytes(self) -> int:
        """Bytes that are there from the first token on: states and cross-attention."""
        return sum(count * self.laws[memory].constant_bytes for memory, count in self.model.kept)

    @property
    def constant_layers(self) -> int:
        """Layers that keep any such bytes."""
        return sum(count for form, count in self.layers if any(self._constant(memory) for memory in form))

    def _constant(self, memory: Memory) -> int:
        law = self.laws.get(memory)
        return law.constant_bytes if law else 0

    @property
    def constant_noun(self) -> str:
        kinds = {"states" if isinstance(memory, State) else "cross-attention" for memory in self.laws
                 if self._constant(memory)}  # fmt: skip
        return " and ".join(sorted(kinds, reverse=True))

    def constant_words(self, owner: str) -> str:
        """`its states take 75 MiB at any length`; `owner` is "its" or the name of the model."""
        verb = "takes" if self.constant_noun == "cross-attention" else "take"
        noun = f"its {self.constant_noun}" if owner == "its" else f"the {self.constant_noun} of {owner}"
        return f"{noun} {verb} {format_bytes(self.constant_bytes)} at any length"

    def window_words(self, owner: str, tokens: int) -> str:
        """`52 of its 62 layers keep only the last 1,024 tokens`, or "" where nothing is cut at `tokens`."""
        cut = {memory: law for memory, law in self.laws.items() if _is_cut(law, tokens)}
        forms = [(form, count) for form, count in self.layers if any(memory in cut for memory in form)]
        if not forms:
            return ""
        layers, total = sum(count for _, count in forms), len(self.model.layers)
        caps = sorted({(law.max_entries or 0) * law.tokens_per_entry for law in cut.values()})
        last = f"{caps[0]:,}" if len(caps) == 1 else f"{caps[0]:,} to {caps[-1]:,}"
        chunked = all(memory.kind == "chunked" for memory in cut)
        kept = f"at most a chunk of {last} tokens" if chunked else f"only the last {last} tokens"
        # Where most of these layers also keep older tokens in a compressed form, the window is only the uncut part.
        also = sum(count for form, count in forms if any(m in self.laws and m not in cut
                                                         and self.laws[m].bytes_per_entry for m in form))  # fmt: skip
        if also * 2 > layers:
            kept += " uncompressed"
        if layers == total:
            where = f"all its {total} layers" if owner == "its" else f"all {total} layers of {owner}"
        else:
            where = (
                f"{layers} of its {total} layers" if owner == "its" else f"{layers} of the {total} layers of {owner}"
            )
        return f"{where} keep {kept}"

    @property
    def idle_words(self) -> str:
        """Why nothing grows, about the model as "it": `all its layers keep a fixed state`."""
        reasons = self.start.instead
        if self.start.of_layers == 1:
            return f"its only layer {_INSTEAD_ONE[reasons[0]]}"
        return f"its layers {either(reasons)}" if reasons else "it has no layers"


_INSTEAD_ONE = dict((*_INSTEAD.values(), _NOTHING))


def _instead(form: _Form, laws: dict[Memory, Growth]) -> str:
    """What a layer that does not grow does: the first thing that takes bytes, else the reason why nothing does."""
    memory = next((memory for memory in form if memory in laws), form[0])
    key = memory.reason if isinstance(memory, NoMemory) else memory.kind
    return _INSTEAD.get(key, _NOTHING)[0]


def _per_token(law: Growth) -> Fraction:
    return Fraction(law.bytes_per_entry, law.tokens_per_entry)


def _numbers(memory: Memory) -> Fraction:
    """Numbers that a memory stores for one token, on average."""
    if isinstance(memory, Attention):
        return Fraction(memory.num_kv_heads * (memory.head_dim + memory.v_head_dim))
    if isinstance(memory, Latent):
        return Fraction(memory.width, memory.tokens_per_entry)
    if isinstance(memory, Indexer):
        return Fraction(memory.index_head_dim, memory.tokens_per_entry)
    return Fraction(0)


def _is_cut(law: Growth, tokens: int) -> bool:
    return law.max_entries is not None and law.bytes_per_entry > 0 and tokens // law.tokens_per_entry > law.max_entries


def decimal(value: Fraction, digits: int = 1) -> str:
    """A number with at most so many decimals, halves rounded up, without trailing zeros."""
    scaled = int(value * 10**digits + Fraction(1, 2))
    text = f"{scaled // 10**digits:,}"
    rest = f"{scaled % 10**digits:0{digits}d}".rstrip("0")
    return f"{text}.{rest}" if rest else text


def either(words: Iterable[str]) -> str:
    """`a`, `a or b`, `a, b or c`."""
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last


def width_words(rate: Rate, other: Rate) -> tuple[str, str]:
    """What each of two sides stores in a layer that grows: `64 KV heads of 128`, and `8` where only that differs."""
    mine, theirs = _form_words(rate), _form_words(other)
    if mine == theirs:
        return _average(rate), decimal(other.width)
    heads, other_heads = _one_attention(rate), _one_attention(other)
    if heads and other_heads:
        if heads.num_kv_heads == other_heads.num_kv_heads:
            return mine, _dims(other_heads)
        return mine, _heads(other_heads, head_noun=False, dims=_dims(heads) != _dims(other_heads))
    latent, other_latent = _one_latent(rate), _one_latent(other)
    if latent and other_latent:
        return f"one {latent.width}-wide latent a layer", f"one of {other_latent.width}"
    # Said once is enough, of the side that is not plain heads.
    return (mine, _a_layer(theirs)) if heads else (_a_layer(mine), theirs)


def _a_layer(words: str) -> str:
    return words if " on average" in words or " per " in words else f"{words} a layer"


def _form_words(rate: Rate) -> str:
    memories = {memory for form, _ in rate.forms for memory in form}
    attentions = [memory for memory in memories if isinstance(memory, Attention)]
    latents = [memory for memory in memories if isinstance(memory, Latent)]
    if len(attentions) == len(memories) and all(len(form) == 1 for form, _ in rate.forms):
        shapes = list(dict.fromkeys(_shape(form[0]) for form, _ in rate.forms))
        if len(shapes) == 1:
            return _heads(attentions[0])
        if len(shapes) == 2:
            first, second = (next(a for a in attentions if _shape(a) == shape) for shape in shapes)
            if _dims(first) == _dims(second):
                return f"{first.num_kv_heads} or {second.num_kv_heads} KV heads of {_dims(first)}"
            if first.num_kv_heads == second.num_kv_heads:
                return f"{_heads(first)} or {_dims(second)}"
            return f"{_heads(first)} or {_heads(second, head_noun=False)}"
        if len({_dims(memory) for memory in attentions}) == 1:
            heads = rate.width / (attentions[0].head_dim + attentions[0].v_head_dim)
            return f"{decimal(heads)} KV heads of {_dims(attentions[0])} on average"
    if len(latents) == len(memories) and len({memory.width for memory in latents}) == 1:
        return _latent_words(rate, latents)
    return _average(rate)


def _latent_words(rate: Rate, latents: list[Latent]) -> str:
    width = latents[0].width
    shared = sorted({memory.tokens_per_entry for memory in latents} - {1})
    groups = either(map(str, shared)) if shared else ""
    if len(shared) < len({memory.tokens_per_entry for memory in latents}):
        if shared:
            return f"one {width}-wide latent a token and one per {groups}"
        count = rate.width / width
        if count == 1:
            return f"one {width}-wide latent"
        if count.denominator == 1 and count < len(_NUMBER_WORDS):
            return f"{_NUMBER_WORDS[int(count)]} {width}-wide latents"
        return f"{decimal(count)} {width}-wide latents on average"
    return f"one {width}-wide latent per {groups} tokens"


def _average(rate: Rate) -> str:
    return f"{decimal(rate.width)} numbers a layer on average"


def _one_attention(rate: Rate) -> Attention | None:
    shapes = {_shape(memory) for form, _ in rate.forms for memory in form}
    found = rate.forms[0][0][0]
    one = len(shapes) == 1 and isinstance(found, Attention) and all(len(form) == 1 for form, _ in rate.forms)
    return found if one and isinstance(found, Attention) else None


def _one_latent(rate: Rate) -> Latent | None:
    found = rate.forms[0][0][0]
    alone = len(rate.forms) == 1 and len(rate.forms[0][0]) == 1
    return found if alone and isinstance(found, Latent) and found.tokens_per_entry == 1 else None


def _shape(memory: Memory) -> tuple[int, int, int] | None:
    """What makes two memories read alike: a window does not."""
    if isinstance(memory, Attention):
        return memory.num_kv_heads, memory.head_dim, memory.v_head_dim
    return None


def _heads(memory: Attention, *, head_noun: bool = True, dims: bool = True) -> str:
    words = f"{memory.num_kv_heads}"
    if head_noun:
        words += " KV head" if memory.num_kv_heads == 1 else " KV heads"
    return f"{words} of {_dims(memory)}" if dims else words


def _dims(memory: Attention) -> str:
    if memory.head_dim == memory.v_head_dim:
        return f"{memory.head_dim}"
    return f"{memory.head_dim} (K) and {memory.v_head_dim} (V)"


CauseKind = Literal["layers", "width", "format", "index", "windows", "constants", "rest"]
# The smallest factor that is named, and the smallest that is a difference at all.
NAMED = Fraction(21, 20)
SAME = Fraction(101, 100)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One reason why A and B differ: `factor` is A's share over B's, so it is below 1 where it makes A smaller.

    `words` is a clause about A as "it"; `short` is the same as it follows another clause; `detail` adds to either.
    """

    kind: CauseKind
    words: str
    short: str
    factor: Fraction
    detail: str = ""


def magnitude(factor: Fraction) -> Fraction:
    """The factor or its inverse, whichever is at least 1."""
    return max(factor, 1 / factor)


def order(factor: Fraction) -> str:
    """`less` or `more`."""
    return "less" if factor < 1 else "more"


def rate_causes(a: Rate, b: Rate) -> tuple[Cause, ...]:
    """Why one more token adds more to one of them; empty where either adds nothing."""
    return _ordered(_rate_factors(a, b)) if a.bytes and b.bytes else ()


def _rate_factors(a: Rate, b: Rate) -> list[Cause]:
    mine, theirs = width_words(a, b)
    bits = f"{_bits(a.bits, b.bits)} bits a number instead of {_bits(b.bits, a.bits)}"
    return [
        _layers_cause(a, b),
        Cause(kind="width", words=f"it stores {mine} instead of {theirs}", short=f"with {mine} instead of {theirs}",
              factor=a.width / b.width),
        Cause(kind="format", words=f"it stores {bits}", short=f"at {bits}", factor=a.bits / b.bits),
        _index_cause(a, b),
    ]  # fmt: skip


def _bits(mine: Fraction, other: Fraction) -> str:
    digits = 1 if decimal(mine) != decimal(other) else 2
    return decimal(mine, digits)


def _layers_cause(a: Rate, b: Rate) -> Cause:
    factor = Fraction(a.layers, b.layers)
    whole_a, whole_b = a.layers == a.of_layers, b.layers == b.of_layers
    noun = "layer" if a.of_layers == 1 else "layers"
    theirs = f"{b.layers}" if whole_b else f"{b.layers} of {b.of_layers}"
    if whole_a and whole_b:
        what = f"{a.layers} {noun} instead of {theirs}"
        return Cause(kind="layers", words=f"it has {what}", short=f"in {what}", factor=factor)
    only = "only " if factor < 1 and not whole_a else ""
    what = f"{only}{a.layers} of its {a.of_layers} {noun}" if not whole_a else f"all {a.layers} {noun}"
    what += f" instead of {theirs}"
    # Where both grow in part only, saying what the others of each do would be two asides in one.
    partial = b if whole_a else a if whole_b else None
    detail = partial.others if partial else ""
    return Cause(kind="layers", words=f"its cache grows in {what}", short=f"in {what}", factor=factor, detail=detail)


def _index_cause(a: Rate, b: Rate) -> Cause:
    factor = (a.bytes / a.body_bytes) / (b.bytes / b.body_bytes)
    if a.index_bytes and not b.index_bytes:
        words, short = "it keeps index keys as well", "with index keys as well"
    elif b.index_bytes and not a.index_bytes:
        words, short = "it keeps no index keys", "without index keys"
    else:
        words = f"its index keys weigh {order(factor)} beside the rest"
        short = f"with index keys that weigh {order(factor)} beside the rest"
    return Cause(kind="index", words=words, short=short, factor=factor)


def length_causes(a: Side, b: Side, tokens: int) -> tuple[Cause, ...]:
    """Why one of them holds more at `tokens`; empty where either holds nothing."""
    total_a, total_b = a.at(tokens), b.at(tokens)
    if not total_a or not total_b:
        return ()
    grown_a, grown_b = total_a - a.constant_bytes, total_b - b.constant_bytes
    if not grown_a and not grown_b:
        return _ordered(_constant_factors(a, b))
    if not grown_a or not grown_b:
        fixed = f"its {a.constant_noun}" if not grown_a else f"the {b.constant_noun} of {b.name}"
        words = f"{fixed} {'keeps' if fixed.startswith('its cross') else 'keep'} that size at any length"
        return (Cause(kind="constants", words=words, short=words, factor=Fraction(total_a, total_b)),)
    kept = Fraction(grown_a) / (tokens * a.start.bytes) / (Fraction(grown_b) / (tokens * b.start.bytes))
    constants = Fraction(total_a, grown_a) / Fraction(total_b, grown_b)
    found = _rate_factors(a.start, b.start)
    found.append(_constants_cause(a, b, constants))
    windows = _windows_cause(a, b, tokens, kept)
    return _ordered([*found, windows] if windows else found, Fraction(total_a, total_b))


def _windows_cause(a: Side, b: Side, tokens: int, factor: Fraction) -> Cause | None:
    """What windows leave; None where nothing is cut yet: an entry that is not complete is no reason to name."""
    first, second = (a, b) if factor < 1 else (b, a)
    words = first.window_words("its" if first is a else b.name, tokens)
    also = second.window_words("its" if second is a else b.name, tokens)
    if not words:
        return None
    detail = also.replace(" tokens", "") if also else ""
    return Cause(kind="windows", words=words, short=words, factor=factor, detail=detail)


def _constants_cause(a: Side, b: Side, factor: Fraction) -> Cause:
    words = a.constant_words("its") if factor > 1 else b.constant_words(b.name)
    return Cause(kind="constants", words=words, short=words, factor=factor)


def _constant_factors(a: Side, b: Side) -> list[Cause]:
    """Two models that only keep constants: layers that keep any × bytes a layer."""
    per_a, per_b = Fraction(a.constant_bytes, a.constant_layers), Fraction(b.constant_bytes, b.constant_layers)
    noun = a.constant_noun if a.constant_noun == b.constant_noun else "fixed memory"
    size = f"{format_bytes(float(per_a))} of {noun.replace('states', 'state')} a layer"
    size += f" instead of {format_bytes(float(per_b))}"
    layers = f"{a.constant_layers} layer{'' if a.constant_layers == 1 else 's'} instead of {b.constant_layers}"
    factor = Fraction(a.constant_layers, b.constant_layers)
    return [
        Cause(kind="layers", words=f"it keeps {noun} in {layers}", short=f"in {layers}", factor=factor),
        Cause(kind="width", words=f"it keeps {size}", short=f"with {size}", factor=per_a / per_b),
    ]


def _ordered(found: Sequence[Cause], whole: Fraction | None = None) -> tuple[Cause, ...]:
    """The causes worth naming, those that make the difference first, the others folded into the rest."""
    total = prod((cause.factor for cause in found), start=Fraction(1)) if whole is None else whole
    named = [cause for cause in found if magnitude(cause.factor) >= NAMED]
    if not named and magnitude(total) >= SAME:
        named = [max(found, key=lambda cause: magnitude(cause.factor))]
    named.sort(key=lambda cause: (against(cause.factor, total), -magnitude(cause.factor)))
    rest = total / prod((cause.factor for cause in named), start=Fraction(1))
    if rest != 1:
        named.append(Cause(kind="rest", words="the rest counts too", short="the rest counts too", factor=rest))
    return tuple(named)


def against(factor: Fraction, total: Fraction) -> bool:
    """Whether a factor works against the whole ratio."""
    return (factor < 1) != (total < 1) if total != 1 else factor > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A turn of the order: up to `before` tokens A − B has one sign, and from `tokens` on it has `sign`."""

    before: int
    tokens: int
    sign: int


def turns(a: Side, b: Side) -> tuple[Turn, ...]:
    """Every turn of the order from one token on, in order; shared entries count as their average.

    Bytes are piecewise linear in the tokens, with a bend where a window fills: one division for each piece.
    """
    lines: list[tuple[Fraction, int | None]] = []
    value = Fraction(a.constant_bytes - b.constant_bytes)
    for side, sign in ((a, 1), (b, -1)):
        for memory, count in side.model.kept:
            law = side.laws[memory]
            slope = Fraction(sign * count * law.bytes_per_entry, law.tokens_per_entry)
            lines.append((slope, None if law.max_entries is None else law.max_entries * law.tokens_per_entry))
    bends = sorted({0, *(end for _, end in lines if end)})
    found: list[Turn] = []
    sign_before, level_from = _sign(value), 0
    for start, end in zip(bends, [*bends[1:], None], strict=True):
        slope = sum((s for s, stop in lines if stop is None or stop > start), Fraction(0))
        after = _sign(slope) if end is None else _sign(value + slope * (end - start))
        if sign_before and after == -sign_before:
            root = start - value / slope
            first = floor(root) + 1
            # Where both hold the same for a while, the former order ends where that begins.
            last = ceil(root if value else level_from) - 1
            if last >= 1:
                found.append(Turn(before=last, tokens=first, sign=after))
        sign_before = after or sign_before
        if end is not None:
            level_from = level_from if not value and not slope else end
            value += slope * (end - start)
    return tuple(found)


def _sign(value: Fraction) -> int:
    return (value > 0) - (value < 0)
