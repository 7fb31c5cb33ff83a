"""Sentences and labels of the Concurrency screen, computed from the plan."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from kvcore.planning.plan import Plan
from kvcore.terms import Range
from kvcore.units import GIB, format_bytes, format_tokens
from pages.ui.size.words import ENGINES, plural
from pages.ui.text import plain

BINDS = {
    "engine": "the engine", "split": "the split", "weights": "the weights", "overheads": "the overheads",
    "cache": "the cache", "sequences": "engine’s limit", "context limit": "model’s limit",
    "nothing": "nothing",
}  # fmt: skip


def span(ends: Range[int]) -> str:
    """A range of counts: `41–43`, `42` where both ends are the same."""
    return f"{ends.low:,}" if ends.low == ends.high else f"{ends.low:,}–{ends.high:,}"


def to(ends: Range[int]) -> str:
    """The same in a sentence: `41 to 43`."""
    return span(ends).replace("–", " to ")


def times(value: float) -> str:
    """A factor in a sentence: `2.4`, `29`, `17,200`; no exponents."""
    return f"{value:.2g}" if value < 9.95 else f"{value:,.0f}"


def wrapped(text: str, width: int) -> list[str]:
    """Lines of so many characters at most, broken at spaces and behind underscores; within a word only if need be."""
    lines = [""]
    for part in re.split(r"(?<=[_\s])", text):
        if lines[-1] and len((lines[-1] + part).rstrip()) > width:
            lines.append("")
        lines[-1] += part
    cut = [line.strip() for line in lines if line.strip()]
    return [line[at : at + width] for line in cut for at in range(0, len(line), width)]


def ended(text: str) -> str:
    """A sentence with its full stop, one and not two."""
    return text if text.endswith((".", "!", "?")) else f"{text}."


def tokens(count: int) -> str:
    """`32K tokens`, `1 token`."""
    return f"{format_tokens(count)} {'token' if count == 1 else 'tokens'}"


def span_bytes(ends: Range[int], digits: int = 1) -> str:
    """A range of bytes in one unit: `51.2–54.1 GiB`."""
    low, high = (max(0, value) for value in (ends.low, ends.high))
    if format_bytes(low, digits) == format_bytes(high, digits):
        return format_bytes(low, digits)
    if high >= GIB:
        return f"{low / GIB:,.{digits}f}–{high / GIB:,.{digits}f} GiB"
    return f"{format_bytes(low, digits)}–{format_bytes(high, digits)}"


def split_words(split: Any) -> str:
    """A split as people say it: `TP 8`, `TP 4 × 2 replicas`, `TP 8 · DCP 8`, `one GPU`."""
    parts = [f"TP {split.tp}"] if split.tp > 1 else []
    if split.pp > 1:
        parts.append(f"PP {split.pp}")
    if split.dp > 1:
        parts.append(f"DP {split.dp}" if split.dp_attention or split.expert_parallel else f"{split.dp:,} replicas")
    words = " × ".join(parts) or "one GPU"
    extra = [f"DCP {split.dcp}"] if split.dcp > 1 else []
    extra += ["expert parallel"] if split.expert_parallel else []
    extra += ["DP attention"] if split.dp_attention else []
    return " · ".join([words, *extra])


# What the short words of a split mean, each by what it is written with.
_MEANINGS = {
    "TP": (r"\bTP \d", "tensor parallel (TP): each layer is split over so many GPUs"),
    "PP": (r"\bPP \d", "pipeline parallel (PP): the layers are shared out over so many stages, one after another"),
    "DP": (r"\bDP \d|\breplicas?\b", "data parallel (DP), replicas: whole copies of the model, each with its own "
           "requests"),
    "DCP": (r"\bDCP \d", "decode context parallel (DCP): the tokens of a request are split over ranks that would "
            "otherwise hold copies of its cache"),
    "EP": (r"\bexpert parallel\b|\bEP\b", "expert parallel (EP): each rank holds whole experts instead of a slice of "
           "every one"),
    "DPA": (r"\bDP attention\b", "DP attention: each rank keeps attention and cache of its own requests, and all share "
            "the experts"),
}  # fmt: skip


def glossary(texts: Iterable[str], but: str = "") -> str:
    """What the short words for splits in these texts mean, in sentences; none of those that stand in `but`."""
    said = " ".join(texts)
    found = [
        meaning
        for pattern, meaning in _MEANINGS.values()
        if re.search(pattern, said) and not (but and re.search(pattern, but))
    ]
    return " ".join(f"{one[:1].upper()}{one[1:]}." for one in found)


def split_explained(split: Any) -> str:
    """What the words of a split come to, a sentence each: `TP 8, tensor parallel: …`; "" on one GPU."""
    parts = []
    if split.tp > 1:
        parts.append(f"TP {split.tp}, tensor parallel: each layer is split over {split.tp:,} GPUs.")
    if split.pp > 1:
        parts.append(f"PP {split.pp}, pipeline parallel: the layers are shared out over {split.pp:,} stages, which a "
                     "token passes one after another.")  # fmt: skip
    if split.dp_attention:
        parts.append(f"DP attention: {split.dp:,} groups of ranks each keep attention and cache of their own requests.")
    elif split.dp > 1 and not split.expert_parallel:
        parts.append(
            f"Data parallel (DP): {split.dp:,} replicas, whole copies of the model with requests of their own."
        )
    elif split.dp > 1:
        parts.append(f"DP {split.dp}, data parallel: {split.dp:,} groups of ranks, each with requests of its own.")
    if split.dcp > 1:
        parts.append(f"DCP {split.dcp}, decode context parallel: a request’s tokens are split over {split.dcp:,} ranks "
                     "that would otherwise hold copies of its cache.")  # fmt: skip
    if split.expert_parallel:
        parts.append("EP, expert parallel: each rank holds whole experts instead of a slice of every one.")
    return " ".join(parts)


def place_words(plan: Plan) -> str:
    """The GPUs: `8 × H100 SXM5 80GB`, or one by its name."""
    gpus, name = plan.deployment.gpus, plan.deployment.gpu.name
    return f"{gpus:,} × {name}" if gpus > 1 else name


def requests_of(count: str, tokens: int) -> str:
    """`41 to 43 requests of 32K`, with `1 request`."""
    return f"{count} request{'' if count == '1' else 's'} of {format_tokens(tokens)}"


# What is said of users against the range of those that fit: at its safe end, within it, beyond it.
FITS, MAY_FIT, NOT_FIT = "fits", "may fit, or not", "does not fit"
_MANY = {FITS: "fit", MAY_FIT: "may fit, or not", NOT_FIT: "do not fit"}


def verdict(users: int, ends: Range[int]) -> str:
    """`fit`, `may fit, or not` or `do not fit`, and with `s` for one: the same three words everywhere."""
    state = FITS if users <= ends.low else MAY_FIT if users <= ends.high else NOT_FIT
    return state if users == 1 else _MANY[state]


def title(name: str, plan: Plan, users: int) -> str:
    """The answer in one sentence, as markdown; so is `name`."""
    place, engine = plain(place_words(plan)), ENGINES[plan.deployment.engine]
    context, kind = plan.deployment.context, plan.binding.kind
    if plan.refused or plan.requests is None:
        return {
            "split": f"{place} cannot share {name} as {split_words(plan.deployment)}",
            "weights": f"How much {name}’s weights take is not known: say what is left for the cache",
        }.get(kind, f"{engine} does not serve {name} this way")
    if kind == "context limit":
        return f"{name} takes requests of at most **{plan.model.context_limit or 0:,} tokens**, not {context:,}"
    if kind in ("weights", "overheads") and plan.requests.high == 0:
        why = "its weights alone are too large" if kind == "weights" else "nothing is left beside its weights"
        return f"{name} does not start on {place}: {why}"
    held = f"**{requests_of(to(plan.requests), context)}**"
    if kind == "nothing":
        return f"{name} keeps no cache: on {place} nothing runs out"
    asked = requests_of(f"{users:,}", context)
    not_fit = "does not fit" if users == 1 else "do not fit"
    if plan.requests.high == 0:
        return (
            f"Not even one request of {format_tokens(context)} tokens fits: {name} on {place} does not start with that"
        )
    if plan.fits:
        return f"{_fits(users)}: {name} on {place} holds {held} at once, then {_ends(plan)}"
    if plan.requests.high >= users:
        who = _fits(users).rsplit(" ", 1)[0]
        return f"{who} {MAY_FIT}: {name} on {place} holds {held} at once, then {_ends(plan)}"
    return f"{asked} {not_fit}: {name} on {place} holds **{to(plan.requests)}**, then {_ends(plan)}"


def answer(plan: Plan, users: int) -> str:
    """The answer in few words: `38–43 of 32K at once, 30 fit`."""
    if plan.requests is None:
        return "refused as chosen"
    length = format_tokens(plan.deployment.context)
    return f"{span(plan.requests)} of {length} at once, {users:,} {verdict(users, plan.requests)}"


def _fits(users: int) -> str:
    return "One user fits" if users == 1 else f"{users:,} users fit"


def _ends(plan: Plan) -> str:
    return {
        "cache": "the cache is full",
        "sequences": "the engine lets no more in",
    }.get(plan.binding.kind, f"{BINDS[plan.binding.kind]} bind")


def scenario_line(plan: Plan, rent: str) -> str:
    """What the plan is, in one line; `rent` in words, "" where it is not known."""
    deployment, layout = plan.deployment, plan.layout
    weights = deployment.weight_format or plan.model.checkpoint_format or plan.model.model_dtype
    version = f" {layout.engine_version}" if layout and layout.engine_version not in ("", "unknown") else ""
    stored = layout.kv_dtype if layout else deployment.kv_dtype
    parts = [
        f"{place_words(plan)} as {split_words(deployment)}" if deployment.gpus > 1 else place_words(plan),
        f"weights in {weights}",
        f"cache in {stored}",
        f"{ENGINES[deployment.engine]}{version}",
        f"requests of up to {plural(deployment.context, 'token')}",
        *([rent] if rent else []),
    ]
    return plain(" · ".join(parts))


def memory_title(plan: Plan, missing: int, used: int) -> str:
    """The bar's title: what the requests take of each GPU, or what lacks."""
    users = plan.users or 0
    who = plural(users, "request")
    if plan.kv_bytes is None or not used + missing:
        return "Where each GPU’s memory goes"
    take = "takes" if users == 1 else "take"
    if missing and plan.kv_bytes.low < 0:
        lacks, wanted = format_bytes(-plan.kv_bytes.low, 1), format_bytes(missing + plan.kv_bytes.low, 1)
        return f"Weights and overheads are {lacks} more than a GPU has; {who} would take {wanted} beside them"
    if missing:
        there = format_bytes(max(0, plan.kv_bytes.low), 1)
        return f"{who} would take {format_bytes(used + missing, 1)} of each GPU, where {there} are surely there"
    share = used / max(1, plan.kv_bytes.low)
    return f"{who} {take} {format_bytes(used, 1)} of each GPU, {share:.0%} of what is surely there for the cache"


def grid_title(plan: Plan, half: Range[int] | None) -> str:
    """The heat map's title: what half the context would buy."""
    if plan.requests is None or half is None or plan.requests.low == 0:
        return "Users against context"
    context = plan.deployment.context
    noun = "request" if plan.requests.high == 1 else "requests"
    return f"{to(plan.requests)} {noun} of {format_tokens(context)}, or {to(half)} of {format_tokens(context // 2)}"


def factor(value: Fraction | float | None) -> str:
    """`2.0×`, `+12%` below a tenth and a half, a dash where there is nothing to compare with."""
    if value is None:
        return "–"
    number = float(value)
    if number >= 9.95:
        return f"{number:,.0f}×"
    return f"{number:.1f}×" if abs(number - 1) >= 0.15 else f"{number - 1:+.0%}"


def seconds(value: float) -> str:
    """A time with three figures: `1.2 s`, `85 ms`."""
    if value >= 100:
        return f"{value:,.0f} s"
    if value >= 1:
        return f"{value:.3g} s"
    return f"{1000 * value:.3g} ms" if value >= 1e-3 else f"{1e6 * value:.3g} µs"
