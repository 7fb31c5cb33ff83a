"""What a log says beside what we would have predicted, figure by figure, and the difference in words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Literal

from kvcore.engines.log import Amount, Decimals, LogReading
from kvcore.engines.registry import engine
from kvcore.errors import KVCoreError
from kvcore.logs.predict import Prediction, predict, printed
from kvcore.model.model import Model
from kvcore.records import NOT_IN_JSON, Record

# The figures that a log states and an engine predicts, by the name of the fact.
FIGURES = (
    "blocks", "kv_cache_size_tokens", "max_concurrency", "max_total_num_tokens", "needed_kv",
    "estimated_max_model_len", "attention_block_size", "k_size", "v_size", "kv_size", "conv_state", "ssm_state",
    "full_layer_tokens", "swa_layer_tokens", "block_size",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFigure(Record):
    """One figure: as the log states it, as predicted, the difference (predicted − reported), and the reasons.

    `agrees`: some memory that prints as the log does gives exactly what the log states. None: not predicted. `unit` is
    that of both figures, "" for a count; each of the `reasons` is a sentence.
    """

    name: str
    reported: int | float
    predicted: int | float | None
    difference: int | float | None
    agrees: bool
    reasons: tuple[str, ...] = field(metadata=NOT_IN_JSON)
    unit: Literal["", "B", "requests"] = field(default="", metadata=NOT_IN_JSON)

    @property
    def why(self) -> str:
        """The reasons as one text."""
        return " ".join(self.reasons)

    def to_dict(self) -> dict[str, Any]:
        """See Record.to_dict; the reasons are one text, `why`."""
        return {**Record.to_dict(self), "why": self.why}


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Every figure of one reading, with what held for all of them; `refused` says why nothing was predicted."""

    reading: LogReading
    model: Model | None
    figures: tuple[LogFigure, ...]
    notes: tuple[str, ...] = ()
    refused: str = ""


def explain(reading: LogReading, model: Model | None, *, hint: str = "", guess: bool = True) -> Explanation:
    """The reading's figures beside the predictions for `model`; None where it is not known (`hint` says more).

    With `guess`, settings that the log may have left out are tried where a figure disagrees.

    Never raises: what the engine refuses is the explanation's `refused`, and the figures stand without predictions.
    """
    if model is None:
        text = f"The model {reading.model or '(not named in the log)'} is not known here{hint}; name it to compare."
        return Explanation(reading=reading, model=None, figures=_alone(reading, text), refused=text)
    try:
        prediction = predict(reading, model)
    except KVCoreError as problem:
        return Explanation(reading=reading, model=model, figures=_alone(reading, str(problem)), refused=str(problem))
    figures = _compare(reading, prediction)
    changed = _changed(reading, model) if guess and not all(figure.agrees for figure in figures) else ""
    terms = prediction.capacities[prediction.nearest].terms
    words = tuple(prediction.engine.log.reasons(reading, model, prediction.layout, terms))
    told = tuple(_told(figure, words, changed) for figure in figures)
    figures = (*told, *_budget(reading))
    return Explanation(
        reading=reading, model=model, figures=figures, notes=(*prediction.notes, *prediction.layout.notes)
    )


def disagreements(reading: LogReading, prediction: Prediction) -> int:
    """How many figures of the reading this prediction does not give."""
    return sum(not figure.agrees for figure in _compare(reading, prediction))


def _changed(reading: LogReading, model: Model) -> str:
    """The first single setting with which no figure disagrees, in words; "" where there is none."""
    for changes, words in engine(reading.engine).log.guesses(reading, model):
        try:
            if disagreements(reading, predict(reading, model, changes)) == 0:
                return f"It would come out exactly with {words}."
        except KVCoreError:
            continue
    return ""


def _told(figure: LogFigure, words: tuple[str, ...], changed: str) -> LogFigure:
    more = (changed,) if changed and not figure.agrees else ()
    return replace(figure, reasons=(*figure.reasons, *words, *more))


def _alone(reading: LogReading, why: str) -> tuple[LogFigure, ...]:
    """Figures without predictions."""
    stated = [(name, reading.facts[name]) for name in FIGURES if name in reading.facts]
    stated += [(f"cache {index + 1}", cache.size) for index, cache in enumerate(reading.caches)]
    found = (
        LogFigure(name=name, reported=_number(value), predicted=None, difference=None, agrees=False, reasons=(why,),
               unit=_unit(value))
        for name, value in stated
    )  # fmt: skip
    return (*found, *_budget(reading))


def _compare(reading: LogReading, prediction: Prediction) -> tuple[LogFigure, ...]:
    return (*_facts(reading, prediction), *_caches(reading, prediction), *_buffers(reading, prediction))


def _facts(reading: LogReading, prediction: Prediction) -> Iterator[LogFigure]:
    for name in FIGURES:
        reported = reading.facts.get(name)
        if reported is None or (name == "kv_size" and prediction.memory is reported):
            continue
        values = [printed(prediction, name, place) for place in range(len(prediction.capacities))]
        near = values[prediction.nearest]
        if near is None:
            continue
        low, high = min(map(_exact, values)), max(map(_exact, values))
        yield _figure(name, reported, near, low, high, prediction)


def _figure(name: str, reported: Any, near: Any, low: Fraction, high: Fraction, prediction: Prediction) -> LogFigure:
    step = _half_step(reported) + (_half_step(near) if isinstance(near, Amount | Decimals) else 0)
    stated = _exact(reported)
    agrees = low - step <= stated <= high + step
    shown, printed_near = _number(reported), _number(near)
    return LogFigure(
        name=name,
        reported=shown,
        predicted=printed_near,
        difference=_difference(shown, printed_near),
        agrees=agrees,
        reasons=(_lead(name, reported, near, low, high, agrees, prediction),),
        unit=_unit(reported),
    )


def _lead(
    name: str, reported: Any, near: Any, low: Fraction, high: Fraction, agrees: bool, prediction: Prediction
) -> str:
    memory = prediction.memory
    if memory is not None and low != high:
        place = "lies inside" if agrees else "lies outside"
        return (
            f"{memory.text} is anything from {memory.low_bytes:,} to {memory.high_bytes:,} B, which gives "
            f"{_show(low, name)} … {_show(high, name)}; {_text(reported)} {place}."
        )
    if agrees:
        return f"{_text(reported)} is what is predicted."
    share = (_exact(near) / _exact(reported) - 1) * 100 if _exact(reported) else Fraction(0)
    return f"Predicted {_show(_exact(near), name)}, {float(share):+.2f} % from the reported {_text(reported)}."


def _caches(reading: LogReading, prediction: Prediction) -> Iterator[LogFigure]:
    """The caches in their order: cells, and the size as it is printed."""
    ours = prediction.readings[prediction.nearest]
    predicted = ours.caches if ours else ()
    for index, cache in enumerate(reading.caches):
        if len(predicted) != len(reading.caches):
            why = f"The log has {len(reading.caches)} caches and {len(predicted)} are predicted."
            yield LogFigure(name=f"cache {index + 1}", reported=_number(cache.size), predicted=None, difference=None,
                         agrees=False, reasons=(why,), unit="B")  # fmt: skip
            continue
        other = predicted[index]
        name = f"{cache.kind} cache of {cache.layers or other.layers} layers"
        if cache.cells is not None and other.cells is not None:
            same = cache.cells == other.cells
            why = f"{other.cells:,} cells are predicted." if not same else f"{cache.cells:,} cells, as predicted."
            yield LogFigure(name=f"{name}, cells", reported=cache.cells, predicted=other.cells,
                         difference=other.cells - cache.cells, agrees=same, reasons=(why,))  # fmt: skip
        size, agrees = _number(other.size), cache.size.text == other.size.text
        why = f"{cache.size.text} is what is predicted." if agrees else f"Predicted {other.size.text}."
        yield LogFigure(name=f"{name}, bytes", reported=_number(cache.size), predicted=size,
                     difference=_difference(_number(cache.size), size), agrees=agrees, reasons=(why,),
                     unit="B")  # fmt: skip


def _buffers(reading: LogReading, prediction: Prediction) -> Iterator[LogFigure]:
    """The cache of each device, where the log gives no cells: together they are all caches."""
    ours = prediction.readings[prediction.nearest]
    if not prediction.engine.log.caches_by_device or reading.caches or not reading.buffers or ours is None:
        return
    sizes = [size for _, size in reading.buffers]
    stated, predicted = sum(s.nearest_bytes for s in sizes), sum(cache.size.nearest_bytes for cache in ours.caches)
    agrees = sum(s.low_bytes for s in sizes) <= predicted <= sum(s.high_bytes for s in sizes)
    together = " + ".join(f"{size.text} on {device}" for device, size in reading.buffers)
    caches = " + ".join(f"{cache.size.text} for {cache.layers} layers" for cache in ours.caches)
    yield LogFigure(name="kv cache", reported=stated, predicted=predicted, difference=predicted - stated, agrees=agrees,
                 reasons=(f"Reported {together}; predicted {caches}.",), unit="B")  # fmt: skip


def _budget(reading: LogReading) -> tuple[LogFigure, ...]:
    """The memory for the cache as the log's own parts give it: share of the device, less what is used."""
    total, available = reading.amount("total"), reading.amount("available_kv")
    share = reading.facts.get("gpu_memory_utilization")
    used = reading.amount("consumed") or reading.amount("weights")
    parts = [part for part in (used, reading.amount("activation")) if part]
    if reading.amount("consumed") is None and (outside := reading.amount("non_torch")):
        parts.append(outside)
    if total is None or available is None or not isinstance(share, Decimals) or len(parts) < 2:
        return ()
    left = total.nearest_bytes * share.value - sum(part.nearest_bytes for part in parts)
    slack = (
        total.nearest_bytes * share.half_step
        + _half_step(total)
        + sum(_half_step(part) for part in parts)
        + _half_step(available)
    )
    agrees = abs(left - available.nearest_bytes) <= slack
    taken = " − ".join(part.text for part in parts)
    reasons = [
        f"{total.text} × {share.text} − {taken} leaves {float(left) / 2**30:.2f} GiB; the log says {available.text}, "
        f"{'within' if agrees else 'beyond'} the {float(slack) / 2**30:.2f} GiB that the printed digits leave open."
    ]
    if not agrees and (graph := reading.amount("graph_estimate")):
        reasons.append(f"From 0.21 on the estimated CUDA-graph pool of {graph.text} is taken off too.")
    found = LogFigure(name="available_kv", reported=available.nearest_bytes, predicted=round(left),
                   difference=round(left) - available.nearest_bytes, agrees=agrees, reasons=tuple(reasons),
                   unit="B")  # fmt: skip
    return (found,)


def _unit(value: Any) -> Literal["", "B", "requests"]:
    if isinstance(value, Amount):
        return "B"
    return "requests" if isinstance(value, Decimals) else ""


def _exact(value: Any) -> Fraction:
    if isinstance(value, Amount):
        return Fraction(value.nearest_bytes)
    return value.value if isinstance(value, Decimals) else Fraction(value)


def _half_step(value: Any) -> Fraction:
    if isinstance(value, Amount):
        return Fraction(value.high_bytes - value.low_bytes + 1, 2)
    return value.half_step if isinstance(value, Decimals) else Fraction(0)


def _number(value: Any) -> int | float:
    exact = _exact(value)
    return exact.numerator if exact.denominator == 1 else float(exact)


def _difference(reported: int | float, predicted: int | float) -> int | float:
    if isinstance(reported, int) and isinstance(predicted, int):
        return predicted - reported
    return round(predicted - reported, 6)


def _show(value: Fraction, name: str) -> str:
    return f"{float(value):,.2f}" if name == "max_concurrency" else f"{int(value):,}"


def _text(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
