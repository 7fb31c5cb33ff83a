"""Predictions of prefill and decode: from the machine's rates alone, and calibrated by a few measured points.

Uncalibrated, a step takes the time of reading its weights at the rate of their format's kernel, of reading its cache,
and of its small operations. Calibrated, decode of a batch is a + b × context, through two points, and prefill
a + b × tokens + c × tokens², through three; in a layer with a window the context counts up to the window.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from kvcore.errors import LiveError
from kvcore.live.host import Host
from kvcore.live.options import Setup
from kvcore.live.shape import LiveShape, cache_format, matrices, model_of, step_weight_bytes
from kvcore.terms import Term
from kvcore.timing import decode_cache_work, prefill_cache_work
from kvcore.units import GB, check_batch, check_tokens

# Small operations of one decoder layer, such as norms, rotary positions, views and the two residuals: an estimate.
_OPERATIONS_PER_LAYER = 30
_MATRIX_FORMATS = ("bf16", "fp16", "fp32")


class Predicted(float):
    """Seconds, as a float; `inside` says whether the point lies in the range that was calibrated."""

    inside: bool

    def __new__(cls, seconds: float, inside: bool) -> Predicted:
        made = super().__new__(cls, seconds)
        made.inside = inside
        return made

    def __getnewargs__(self) -> tuple[float, bool]:  # type: ignore[override]
        return float(self), self.inside


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEstimate:
    """Seconds of a step by the machine's rates alone, and what they are made of; `terms` explains them.

    `arithmetic_s` replaces `weights_s` where it is longer, not both count.
    """

    weights_s: float
    arithmetic_s: float
    cache_s: float
    overhead_s: float
    terms: tuple[Term, ...]

    @property
    def seconds(self) -> float:
        return max(self.weights_s, self.arithmetic_s) + self.cache_s + self.overhead_s


def estimate_decode(
    host: Host, shape: LiveShape, context: int, batch: int = 1, *, weight_format: str = "bf16", kv_format: str = "bf16"
) -> StepEstimate:
    """A step that makes one token for each of `batch` requests at a context of `context` tokens, that one counted.

    Weights are read once for all requests, the cache of each once. Raises LiveError where the host's rates lack what is
    needed and UnitError for numbers out of range.
    """
    check_batch(batch)
    work = decode_cache_work(model_of(shape), context, cache_format(kv_format)).work.times(batch)
    operations = 2 * _multiplied(shape, batch, batch)
    return _estimate(host, shape, weight_format, kv_format, operations, work.bytes, "reading and writing the cache")


def estimate_prefill(
    host: Host,
    shape: LiveShape,
    tokens: int,
    batch: int = 1,
    *,
    reused: int = 0,
    weight_format: str = "bf16",
    kv_format: str = "bf16",
) -> StepEstimate:
    """Taking in `tokens` new tokens of each of `batch` requests, whose cache holds `reused` tokens already.

    Arithmetic of attention counts at the rate of matrices, which flatters it. Weights that are packed for decode are
    multiplied in bf16 here. Raises as `estimate_decode` does.
    """
    check_batch(batch)
    work = prefill_cache_work(model_of(shape), check_tokens(tokens), cache_format(kv_format), reused).work.times(batch)
    operations = 2 * _multiplied(shape, tokens * batch, batch) + work.operations
    dense = weight_format if weight_format in _MATRIX_FORMATS else "bf16"
    return _estimate(host, shape, dense, kv_format, operations, work.written_bytes, "writing the cache")


def _multiplied(shape: LiveShape, tokens: int, logits: int) -> int:
    """Multiply-adds of `tokens` with the layers' matrices and of `logits` with the output head."""
    layer = sum(rows * columns for rows, columns in matrices(shape).values())
    return tokens * shape.num_layers * layer + logits * shape.vocab_size * shape.hidden_size


def _estimate(
    host: Host, shape: LiveShape, weight_format: str, kv_format: str, operations: int, cache_bytes: int, moved: str
) -> StepEstimate:
    read = step_weight_bytes(shape, weight_format)
    rate = _rate(host.gemv_bytes_per_s, weight_format, host.read_bandwidth_bytes_per_s, "read bandwidth")
    # A cache is read by the same kind of kernel as weights of its format.
    cache_rate = _rate(host.gemv_bytes_per_s, kv_format, rate, "read bandwidth")
    dense = weight_format if weight_format in host.matrix_flops_per_s else "bf16"
    flops = _rate(host.matrix_flops_per_s, dense, host.matrix_flops_per_s.get("fp32", 0.0), "matrix rate")
    small = _OPERATIONS_PER_LAYER * shape.num_layers
    values = (read / rate, operations / flops, cache_bytes / cache_rate, small * host.op_overhead_s)
    texts = (
        ("reading the weights", f"{read:,} B / {rate / GB:.2f} GB/s"),
        ("arithmetic", f"{operations:,} operations / {flops / GB:,.1f} G operations/s"),
        (moved, f"{cache_bytes:,} B / {cache_rate / GB:.2f} GB/s"),
        ("small operations", f"{shape.num_layers} layers × {_OPERATIONS_PER_LAYER} × {host.op_overhead_s:.3g} s"),
    )
    terms = tuple(
        Term(name=name, formula=f"{formula} = {value:.4g} s", value=value, unit="s", knowledge="estimated")
        for (name, formula), value in zip(texts, values, strict=True)
    )
    weights_s, arithmetic_s, cache_s, overhead_s = values
    return StepEstimate(
        weights_s=weights_s, arithmetic_s=arithmetic_s, cache_s=cache_s, overhead_s=overhead_s, terms=terms
    )


def _rate(rates: Mapping[str, float], name: str, stand_in: float, what: str) -> float:
    rate = rates.get(name) or stand_in
    if rate <= 0:
        raise LiveError(f"host: no {what} was measured, so nothing can be predicted; measure the host again")
    return rate


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeLine:
    """Seconds of a decode step of `batch` requests, base + per token × context, by points from `low` to `high`."""

    batch: int
    base_s: float
    per_token_s: float
    low: int
    high: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillCurve:
    """Seconds of a prefill of one request of n tokens, base + b × n + c × n², by points from `low` to `high`."""

    base_s: float
    per_token_s: float
    per_token_squared_s: float
    low: int
    high: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Measured lines and a curve for one model as it was run. Make one with `fit_calibration`.

    `windows` are pairs of (window, 0 for none; number of layers), empty where every layer sees everything.
    """

    decode: tuple[DecodeLine, ...]
    prefill: PrefillCurve | None
    windows: tuple[tuple[int, int], ...] = ()
    model: str = ""
    attention: str = ""
    weight_format: str = ""
    kv_format: str = ""

    def predict_decode_s(self, context: int, batch: int = 1) -> Predicted | None:
        """Seconds of a step at a context; None for a batch that was not calibrated: one does not predict another."""
        line = next((one for one in self.decode if one.batch == batch), None)
        if line is None:
            return None
        seconds = line.base_s + line.per_token_s * _seen(context, self.windows)
        return Predicted(seconds, line.low <= context <= line.high)

    def predict_prefill_s(self, tokens: int, batch: int = 1, reused: int = 0) -> Predicted | None:
        """Seconds of taking in `tokens` where `reused` are in the cache; None where no prefill was calibrated.

        Several requests, and tokens on top of others, follow from the one curve and are outside what was calibrated.
        """
        curve = self.prefill
        if curve is None:
            return None
        squares = (reused + tokens) ** 2 - reused**2
        seconds = curve.base_s + batch * (curve.per_token_s * tokens + curve.per_token_squared_s * squares)
        inside = batch == 1 and not reused and curve.low <= tokens <= curve.high
        return Predicted(max(seconds, 0.0), inside)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and texts for JSON; `from_dict` is its inverse."""
        made: dict[str, Any] = {one.name: getattr(self, one.name) for one in fields(self)}
        made["decode"] = [_plain(line) for line in self.decode]
        made["prefill"] = _plain(self.prefill) if self.prefill else None
        made["windows"] = [list(pair) for pair in self.windows]
        return made

    @classmethod
    def from_dict(cls, raw: object) -> Calibration:
        """The calibration that a dictionary describes; LiveError names what is missing, unknown or wrong."""
        if not isinstance(raw, Mapping):
            raise LiveError("calibration: expected an object")
        known = {one.name for one in fields(cls)}
        if unknown := [str(name)[:40] for name in raw if name not in known]:
            raise LiveError(f"calibration: {unknown[0]!r} is not a known key")
        decode, windows = raw.get("decode"), raw.get("windows", [])
        if not isinstance(decode, list) or len(decode) > 64 or not isinstance(windows, list) or len(windows) > 1024:
            raise LiveError("calibration: decode and windows must be lists")
        for pair in windows:
            if not isinstance(pair, list) or len(pair) != 2 or not all(_is_whole(one) for one in pair) or not pair[1]:
                raise LiveError(f"calibration: windows holds {str(pair)[:40]}, expected [window, layers]")
        texts = {name: raw.get(name, "") for name in ("model", "attention", "weight_format", "kv_format")}
        for name, text in texts.items():
            if not isinstance(text, str) or len(text) > 200 or not text.isprintable():
                raise LiveError(f"calibration: {name} is {str(text)[:40]!r}, expected a short text")
        prefill = raw.get("prefill")
        return cls(
            decode=tuple(DecodeLine(**_numbers(line, DecodeLine, ("batch", "low", "high"))) for line in decode),
            prefill=None if prefill is None else PrefillCurve(**_numbers(prefill, PrefillCurve, ("low", "high"))),
            windows=tuple((pair[0], pair[1]) for pair in windows),
            **texts,
        )


def fit_calibration(
    decode: Sequence[tuple[int, int, float]],
    prefill: Sequence[tuple[int, float]] = (),
    *,
    windows: Sequence[int | None] = (),
    model: str = "",
    attention: str = "",
    weight_format: str = "",
    kv_format: str = "",
) -> Calibration:
    """The calibration by measured points: decode as (batch, context, seconds), prefill as (tokens, seconds).

    Each batch needs two contexts; a prefill of two lengths gives a line, of three or more a curve. More points than
    needed are fitted by least relative squares. A slope that would be negative, which is noise, counts as 0. `windows`
    are the shape's, one a layer. Raises LiveError for too few points or times that are none.
    """
    for point in (*decode, *prefill):
        if not (math.isfinite(point[-1]) and point[-1] > 0):
            raise LiveError(f"calibration: {point[-1]!r} is not a measured time")
    counted = _window_counts(windows)
    lines = [_line(batch, decode, counted) for batch in sorted({point[0] for point in decode})]
    about = {"model": model, "attention": attention, "weight_format": weight_format, "kv_format": kv_format}
    return Calibration(decode=tuple(lines), prefill=_curve(prefill) if prefill else None, windows=counted, **about)


@dataclass(frozen=True, slots=True, kw_only=True)
class LivePredictor:
    """Calibrated where that was done, else by the machine's rates alone."""

    shape: LiveShape
    host: Host
    setup: Setup
    calibration: Calibration | None = None

    def decode(self, context: int, batch: int) -> float | None:
        known = self.calibration.predict_decode_s(context, batch) if self.calibration else None
        return known if known is not None else self._estimated(estimate_decode, context, batch)

    def prefill(self, tokens: int, batch: int, reused: int = 0) -> float | None:
        known = self.calibration.predict_prefill_s(tokens, batch, reused) if self.calibration else None
        return known if known is not None else self._estimated(estimate_prefill, tokens, batch, reused=reused)

    def _estimated(self, estimate: Callable[..., Any], count: int, batch: int, **more: int) -> float | None:
        formats = {"weight_format": self.setup.weight_format, "kv_format": self.setup.kv_format}
        try:
            return float(estimate(self.host, self.shape, count, batch, **formats, **more).seconds)
        except LiveError:
            return None


def share_of_bandwidth(host: Host, bytes_read: int, seconds: float) -> float:
    """The share of the measured read bandwidth that a step of `seconds` reaches with the bytes that it has to read."""
    if seconds <= 0 or host.read_bandwidth_bytes_per_s <= 0:
        raise LiveError("a share of the bandwidth needs a measured time and a measured bandwidth")
    return bytes_read / seconds / host.read_bandwidth_bytes_per_s


def step_bytes(
    shape: LiveShape, context: int, batch: int = 1, *, weight_format: str = "bf16", kv_format: str = "bf16"
) -> int:
    """Bytes that a decode step has to read: the weights once, and the cache of each request."""
    cache = decode_cache_work(model_of(shape), context, cache_format(kv_format)).work.read_bytes
    return step_weight_bytes(shape, weight_format) + batch * cache


def what_binds(
    host: Host, *, bytes_read: int, seconds: float, weight_format: str = "bf16", layers: int | None = None
) -> str:
    """What sets the pace of a decode step, in sentences made of measurements alone.

    `seconds` is the measured median of a step that has to read `bytes_read`. A cause is named only where the numbers
    show it: bandwidth from 70 % of what was measured; a format's kernel where it is slower than memory by a third and
    the step comes near it; small operations where they take a quarter of the step.
    """
    share, reached = share_of_bandwidth(host, bytes_read, seconds), bytes_read / seconds
    bandwidth, kernel = host.read_bandwidth_bytes_per_s, host.gemv_bytes_per_s.get(weight_format, 0.0)
    wide = host.gemv_bytes_per_s.get("fp32", 0.0)
    said = (
        f"A step reads {bytes_read / 1e6:,.0f} MB in {1000 * seconds:,.1f} ms: {reached / GB:.1f} GB/s, "
        f"{share:.0%} of the {bandwidth / GB:.1f} GB/s that this machine reads at."
    )
    if share >= 0.7:
        return f"{said} Memory bandwidth sets the pace."
    if kernel and reached > 1.1 * kernel:
        return f"{said} It ran faster than was measured before ({kernel / GB:.1f} GB/s): measure this machine again."
    if kernel and kernel < bandwidth / 1.5 and reached >= 0.7 * kernel:
        slow = f"{weight_format} weights are multiplied at {kernel / GB:.1f} GB/s"
        if host.device == "cpu" and weight_format in ("bf16", "fp16") and wide > 1.25 * kernel:
            return (
                f"{said} Converting {weight_format} binds before bandwidth does: {slow}, fp32 weights, which need no "
                f"conversion, at {wide / GB:.1f} GB/s."
            )
        return f"{said} The arithmetic of that format binds before bandwidth does: {slow}."
    small = _OPERATIONS_PER_LAYER * layers * host.op_overhead_s if layers else 0.0
    if small >= seconds / 4:
        return f"{said} Small operations, about {1000 * small:.1f} ms of a step, set the pace."
    return f"{said} These measurements do not show what sets the pace."


def _seen(context: int, windows: tuple[tuple[int, int], ...]) -> float:
    """Tokens that a layer looks at, as a mean over the layers."""
    layers = sum(count for _, count in windows)
    if not layers:
        return float(context)
    return sum(count * min(context, window or context) for window, count in windows) / layers


def _window_counts(windows: Sequence[int | None]) -> tuple[tuple[int, int], ...]:
    if not any(windows):
        return ()
    return tuple((window, sum((one or 0) == window for one in windows)) for window in sorted({w or 0 for w in windows}))


def _line(batch: int, points: Sequence[tuple[int, int, float]], windows: tuple[tuple[int, int], ...]) -> DecodeLine:
    mine = [(context, seconds) for own, context, seconds in points if own == batch]
    contexts = [context for context, _ in mine]
    if len(set(contexts)) < 2:
        raise LiveError(f"calibration: batch {batch:,} was measured at one context; two are needed")
    seen = [(_seen(context, windows), seconds) for context, seconds in mine]
    # Contexts that lie beyond every window look at the same tokens, so that nothing tells a slope.
    terms = 2 if len({tokens for tokens, _ in seen}) > 1 else 1
    base, slope = _least_squares(seen, terms)
    return DecodeLine(batch=batch, base_s=base, per_token_s=slope, low=min(contexts), high=max(contexts))


def _curve(points: Sequence[tuple[int, float]]) -> PrefillCurve:
    lengths = {tokens for tokens, _ in points}
    if len(lengths) < 2:
        raise LiveError("calibration: prefill was measured at one length; two are needed, three for a curve")
    base, slope, *square = _least_squares(list(points), min(3, len(lengths)))
    return PrefillCurve(
        base_s=base,
        per_token_s=slope,
        per_token_squared_s=square[0] if square else 0.0,
        low=min(lengths),
        high=max(lengths),
    )


def _least_squares(points: Sequence[tuple[float, float]], terms: int) -> tuple[float, ...]:
    """Coefficients of 1, x, … by least squares of relative errors; one that is to grow with x never falls with it."""
    scale = max(x for x, _ in points) or 1.0
    rows = [[(x / scale) ** power / y for power in range(terms)] for x, y in points]
    matrix = [
        [sum(row[i] * row[j] for row in rows) for j in range(terms)] + [sum(row[i] for row in rows)]
        for i in range(terms)
    ]
    for i in range(terms):
        pivot = max(range(i, terms), key=lambda row: abs(matrix[row][i]))
        matrix[i], matrix[pivot] = matrix[pivot], matrix[i]
        for j in range(terms):
            if j != i:
                factor = matrix[j][i] / matrix[i][i]
                matrix[j] = [b - factor * a for a, b in zip(matrix[i], matrix[j], strict=True)]
    found = [matrix[i][terms] / matrix[i][i] / scale**i for i in range(terms)]
    if terms > 1 and found[-1] < 0:
        return (*_least_squares(points, terms - 1), 0.0)[: max(terms, 2)]
    return tuple(found) if terms > 1 else (found[0], 0.0)


def _plain(part: DecodeLine | PrefillCurve) -> dict[str, Any]:
    return {one.name: getattr(part, one.name) for one in fields(part)}


def _is_whole(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**31


def _numbers(raw: object, kind: type[DecodeLine] | type[PrefillCurve], whole: tuple[str, ...]) -> dict[str, Any]:
    names = [one.name for one in fields(kind)]
    if not isinstance(raw, Mapping) or set(raw) != set(names):
        raise LiveError(f"calibration: {str(raw)[:60]} is not a line with {', '.join(names)}")
    for name in names:
        value = raw[name]
        number = type(value) in (int, float) and math.isfinite(value) and abs(value) < 1e9
        if not (_is_whole(value) if name in whole else number):
            raise LiveError(f"calibration: {name} is {str(value)[:40]!r}, expected a number")
    return dict(raw)
