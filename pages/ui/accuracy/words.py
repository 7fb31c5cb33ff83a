"""Names and sentences of the Accuracy screen."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from kvcore.engines.registry import engine as engine_of
from kvcore.evidence import field
from kvcore.evidence.cases import EVIDENCE, PLANNED, PUBLISHED, RUN, Case, recorded_engines
from kvcore.logs import Explanation, LogFigure, LogReading
from kvcore.units import GIB, MIB, format_bytes

FIGURES = {
    "kv_cache_size_tokens": "Token capacity",
    "max_concurrency": "Requests at once",
    "max_total_num_tokens": "Token capacity",
    "needed_kv": "Memory one request needs",
    "estimated_max_model_len": "Longest request that fits",
    "attention_block_size": "Attention block, tokens",
    "block_size": "Block size, tokens",
    "blocks": "Blocks of the cache",
    "available_kv": "Memory for the cache",
    "k_size": "Keys", "v_size": "Values", "kv_size": "Whole cache", "kv cache": "Whole cache",
    "conv_state": "Convolution states", "ssm_state": "Recurrent states",
    "full_layer_tokens": "Tokens in full layers", "swa_layer_tokens": "Tokens in window layers",
}  # fmt: skip
_SCALE = {"MiB": MIB, "GiB": GIB, "bytes": 1}


def engine(name: str) -> str:
    """An engine as its makers write it."""
    return field.family(name).label


def place(evidence: str) -> str:
    """A kind of evidence, as a label."""
    planned = together(recorded_engines(PLANNED))
    return {PUBLISHED: "Published logs", RUN: "Really run on a CPU", PLANNED: f"Planned by {planned}’s code"}[evidence]


def together(names: Iterable[str]) -> str:
    """Engines in a sentence: `A`, `A and B`, `A, B and C`."""
    *others, last = map(engine, names)
    return f"{', '.join(others)} and {last}" if others else last


def family(name: str) -> str:
    """A family, or that it is not known."""
    return name or "not known"


def short(model: str) -> str:
    """A model's name without its publisher."""
    return model.rsplit("/", 1)[-1]


def percent(share: float) -> str:
    """`+16.4%`; small differences keep digits that say something."""
    if share == 0:
        return "0%"
    digits = 1 if abs(share) >= 0.01 else 2 if abs(share) >= 0.0001 else 4
    return f"{share:+.{digits}%}".replace("-", "−")


def in_units(value: float | None, unit: str) -> str:
    """A figure with its unit, as text."""
    if value is None:
        return ""
    if unit in _SCALE:
        return format_bytes(round(value * _SCALE[unit]))
    return f"{value:,.2f} {unit}" if unit == "requests" else f"{round(value):,} {unit}".strip()


def plain(value: float, unit: str) -> float:
    """The figure where it stands on the chart: bytes as bytes, everything else as it is counted."""
    return value * _SCALE.get(unit, 1)


def is_bytes(unit: str) -> bool:
    """Whether a figure is an amount of memory."""
    return unit in _SCALE


def counted(rows: Iterable[Case], evidence: str, *, fork: bool = False) -> list[Case]:
    """The rows of one kind of evidence that belong to its denominator."""
    return [row for row in rows if row.counted and row.evidence == evidence and row.apart == fork]


def headline(rows: Iterable[Case]) -> str:
    """The answer of the screen."""
    found = counted(rows, PUBLISHED)
    met = sum(row.within(0.005) for row in found)
    return f"**{met} of {len(found)}** published start-up logs show what we predict, within 0.5%"


def explained(rows: Iterable[Case]) -> str:
    """What is compared, and what within means."""
    found = dict.fromkeys(row.engine for row in counted(rows, PUBLISHED))
    sizes = [name for name in found if engine_of(field.family(name).of).log.states == "caches"]
    otherwise = f", or, for {together(sizes)}, how large the cache is" if sizes else ""
    return (
        "Logs that state their model. From the memory that a log gives we predict how many tokens its cache holds"
        f"{otherwise}. A log prints memory to two digits, so several sizes print alike: a figure that one of them "
        "gives exactly counts as exact."
    )


def records_sentence(rows: list[Case]) -> str:
    """What the chart shows, of the rows that are counted; what is apart is never added to the others."""
    found = [row for row in rows if row.counted and not row.apart]
    apart = [row for row in rows if row.counted and row.apart]
    if not found and not apart:
        return "None of these cases is counted."
    parts = []
    if found:
        met, exact = sum(row.within(0.005) for row in found), sum(row.within(0) for row in found)
        some = f"{met} of {len(found)} cases lie within 0.5% of what the engine said, {exact} are exact"
        parts.append(("The case is exact" if exact == 1 else f"All {exact} cases are exact")
                     if exact == len(found) else some)  # fmt: skip
    if apart:
        exact = sum(row.within(0) for row in apart)
        forks = list(dict.fromkeys(row.engine for row in apart))
        parts.append(f"{exact} of {len(apart)} of {together(forks)}, which {'count' if forks[1:] else 'counts'} apart")
    return "; ".join(parts)


def evidence_order(rows: Iterable[Case]) -> list[str]:
    """The kinds of evidence that the rows have, in the order of the screen."""
    present = {row.evidence for row in rows}
    return [one for one in EVIDENCE if one in present]


def figure(name: str) -> str:
    """A figure's name in words."""
    words = FIGURES.get(name, name)
    return words[0].upper() + words[1:]


def value(one: LogFigure, number: float | None) -> str:
    """One of a figure's two numbers as text."""
    if number is None:
        return "not predicted"
    if one.unit == "B":
        return format_bytes(number)
    return f"{number:,.2f}" if one.unit == "requests" else f"{number:,.0f}"


def difference(one: LogFigure) -> str:
    """How far a figure is from the prediction, in words."""
    if one.predicted is None:
        return "not predicted"
    if one.difference == 0 or (one.agrees and value(one, one.reported) == value(one, one.predicted)):
        return "none"
    share = percent(one.predicted / one.reported - 1) if one.reported else "not a share"
    return f"{share}, within the rounding" if one.agrees else share


def reasons(figures: tuple[LogFigure, ...]) -> tuple[list[tuple[str, str]], list[str]]:
    """((figure, what is said of it alone)…, what is said of several), so that nothing is read twice."""
    said = [one.reasons for one in figures]
    everything = [sentence for sentences in said for sentence in dict.fromkeys(sentences)]
    shared = [one for one in dict.fromkeys(everything) if everything.count(one) > 1]
    alone = [
        (figure(one.name), " ".join(sentence for sentence in sentences if sentence not in shared))
        for one, sentences in zip(figures, said, strict=True)
    ]
    return [(name, text) for name, text in alone if text], shared


def start_up(reading: LogReading, place: int) -> str:
    """One start-up of a text, as a choice."""
    version = f" {reading.engine_version}" if reading.engine_version else ""
    model = f", {short(reading.model)}" if reading.model else ""
    stream = f" ({reading.stream})" if reading.stream else ""
    return f"{place + 1}: {engine(reading.engine)}{version}{model}{stream}"


def recognised(reading: LogReading, model: str) -> list[tuple[str, str]]:
    """What was read from a log: (what, value), only what it states."""
    numbers = {
        "Longest request": reading.whole("max_model_len") or reading.whole("concurrency_length"),
        "Context": reading.whole("n_ctx"),
        "Slots": reading.whole("n_seq_max"),
    }
    memory = reading.amount("available_kv") or reading.amount("kv_size")
    caches = " + ".join(cache.size.text for cache in reading.caches)
    ranks = {
        name: reading.whole(f"{fact}_parallel_size")
        for name, fact in (("TP", "tensor"), ("PP", "pipeline"), ("DP", "data"))
    }
    found = [
        ("Engine", f"{engine(reading.engine)} {reading.engine_version or '(version not stated)'}"),
        ("Model", model or reading.model or "not named"),
        *(
            (name, f"{number:,} tokens" if name != "Slots" else str(number))
            for name, number in numbers.items()
            if number
        ),
        ("Cache format", reading.text("kv_dtype") or "/".join(reading.caches[0].types if reading.caches else ()) or ""),
        ("Ranks", ", ".join(f"{name} {count}" for name, count in ranks.items() if count and count > 1)),
        ("Memory for the cache", memory.text if memory else caches),
    ]
    return [(name, text) for name, text in found if text]


def verdict(one: Explanation, name: str) -> str:
    """The result of a comparison in a sentence; `name` is the model's."""
    predicted = [figure for figure in one.figures if figure.predicted is not None]
    if one.refused or not predicted:
        return "This start-up was read, but nothing could be predicted"
    met = sum(figure.agrees for figure in predicted)
    if met == len(predicted):
        return f"{engine(one.reading.engine)} reported what we predict for {name}" + (
            "" if met == 1 else f": {'both' if met == 2 else f'all {met}'} figures agree"
        )
    far = max((figure for figure in predicted if not figure.agrees), key=_share)
    both = f"{value(far, far.predicted)} predicted, {value(far, far.reported)} reported"
    return f"{met} of {len(predicted)} figures agree; {figure(far.name).lower()}: {both} ({difference(far)})"


def _share(one: LogFigure) -> float:
    if not one.reported or one.predicted is None:
        return 0.0
    # Rounded, so that of figures that are off by the same the first is named.
    return round(abs(one.predicted / one.reported - 1), 2)


def listed(rows: Iterable[tuple[str, str]]) -> str:
    """HTML of a list of what was read: name and value."""
    lines = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text[:200])}</dd>" for name, text in rows)
    return f"<dl class='kv-read'>{lines}</dl>"
