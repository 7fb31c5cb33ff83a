"""Times of single steps at chosen contexts: for the probe, the race of variants, and the calibration."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from kvcore.errors import LiveError
from kvcore.live.generate import Cancelled, NoPrediction, Predictor, measured_bytes
from kvcore.live.options import Setup
from kvcore.live.roofline import Calibration, fit_calibration
from kvcore.live.session import Reporter
from kvcore.live.shape import LiveShape

STEPS = 5
# A step at context c is timed on a cache of c − 1 tokens, after one that is not counted.
LEAST_CONTEXT = 4
# Ascending; on a slow machine the long ones are left out, so that it takes no longer than BUDGET_S.
PREFILL_TOKENS = (16, 64, 256, 1024)
# Decode is timed at the first of these and at the longest of the others that there is time for.
DECODE_CONTEXTS = (16, 64, 256, 512, 1024)
DECODE_STEPS = 12
BUDGET_S = 10.0
# How often a prefill of up to so many tokens is timed.
_REPEATS = ((64, 5), (256, 3))


def random_ids(count: int, vocab_size: int, seed: int = 0) -> list[int]:
    """Ids that stand for text where only time matters."""
    draw = random.Random(seed)
    return [draw.randrange(vocab_size) for _ in range(count)]


class OutOfTime(Exception):
    """The time budget ended."""


@dataclass(slots=True, kw_only=True)
class TimeLimit:
    """Whether to go on: the job's reporter and its deadline on time.perf_counter."""

    reporter: Reporter
    deadline: float = float("inf")
    what: str = "prefill"

    def late(self, coming: float = 0.0) -> bool:
        """Whether something that takes `coming` seconds would end too late."""
        return time.perf_counter() + coming > self.deadline

    def __call__(self, done: int, of: int) -> bool:
        if done < of:
            self.reporter.progress(self.what, done, of)
        return not self.reporter.cancelled and not self.late()

    @contextmanager
    def stopping(self) -> Iterator[None]:
        """Around a prefill that this watches: raises Cancelled or OutOfTime where it was stopped."""
        try:
            yield
        except LiveError:
            if self.reporter.cancelled:
                raise Cancelled from None
            if self.late():
                raise OutOfTime from None
            raise
        if self.reporter.cancelled:
            raise Cancelled


@dataclass(slots=True)
class FilledCache:
    """A cache that is filled to each context in turn; `prefill_rate` is the last measured tokens a second."""

    decoder: Any
    batch: int
    kv_format: str
    block_tokens: int
    cache: Any = None
    prefill_rate: float = 0.0
    _ids: list[int] = field(default_factory=list)

    def expected_s(self, context: int) -> float:
        """Seconds that filling up to a context takes, by the last one; 0 where nothing is known."""
        missing = max(0, context - (self.cache.lengths[0] if self.cache is not None else 0))
        return missing / self.prefill_rate if self.prefill_rate else 0.0

    def fill(self, count: int, time_limit: TimeLimit) -> float:
        """Hold exactly `count` tokens in each request; seconds that the prefill took. Raises OutOfTime, Cancelled."""
        if self.cache is None or self.cache.lengths[0] > count:
            self.cache = self.decoder.new_cache(self.batch, self.kv_format, self.block_tokens)
        held = self.cache.lengths[0]
        if held == count:
            return 0.0
        self._ids = self._ids if len(self._ids) >= count else random_ids(count, self.decoder.shape.vocab_size)
        rows = [self._ids[held:count]] * self.batch
        self.decoder.synchronise()
        start = time.perf_counter()
        with time_limit.stopping():
            self.decoder.prefill(rows, self.cache, progress=time_limit)
        self.decoder.synchronise()
        seconds = time.perf_counter() - start
        self.prefill_rate = (count - held) / seconds
        return seconds

    def steps(self, context: int, count: int, time_limit: TimeLimit) -> list[float]:
        """Seconds of `count` decode steps, the first of them at `context`, on a cache filled for it."""
        if self.cache is None or self.cache.lengths[0] != context - 1:
            self.fill(context - 2, time_limit)
            self.decoder.step([1] * self.batch, self.cache)
        return [self._step(time_limit) for _ in range(count)]

    def _step(self, time_limit: TimeLimit) -> float:
        self.decoder.synchronise()
        start = time.perf_counter()
        self.decoder.step([1] * self.batch, self.cache)
        self.decoder.synchronise()
        seconds = time.perf_counter() - start
        if time_limit.reporter.cancelled:
            raise Cancelled
        return seconds


def recompute_seconds(decoder: Any, context: int, batch: int, time_limit: TimeLimit) -> list[float]:
    """Seconds to compute a prefix of `context` tokens afresh for every request: one to three times.

    Raises OutOfTime and Cancelled, also in the middle: a long prefix takes many seconds.
    """
    rows = [random_ids(context, decoder.shape.vocab_size)] * batch
    times = []
    for _ in range(3 if context <= 64 else 2 if context <= 256 else 1):
        decoder.synchronise()
        start = time.perf_counter()
        with time_limit.stopping():
            decoder.recompute(rows, time_limit)
        decoder.synchronise()
        times.append(time.perf_counter() - start)
    return times


@dataclass(slots=True, kw_only=True)
class ProbeRunner:
    """One decoder at growing contexts; a mode that would end after the deadline, or not fit, is cut and says so."""

    decoder: Any
    variant: str
    batch: int
    kv_format: str
    block_tokens: int
    time_limit: TimeLimit
    predictor: Predictor = field(default_factory=NoPrediction)
    max_tokens: int = 10**9
    fits: Callable[[int], bool] = lambda _: True
    over: set[str] = field(default_factory=set)
    last_recompute: tuple[int, float] | None = None
    filled: FilledCache | None = None

    def measure(self, context: int, mode: str) -> None:
        """Emit the `probe` event of this context, or a `truncated` one where it cannot be had."""
        if mode in self.over:
            return
        why = self._hindrance(context, mode)
        if why is None:
            try:
                times = self._cached(context) if mode == "cache" else self._recomputed(context)
            except OutOfTime:
                why = "time"
        if why is not None:
            self.over.add(mode)
            self.time_limit.reporter.send(
                {"event": "truncated", "mode": mode, "variant": self.variant, "why": why, "at": context}
            )
            return
        predict = self.predictor.decode if mode == "cache" else self.predictor.prefill
        self.time_limit.reporter.send(
            {
                "event": "probe",
                "mode": mode,
                "variant": self.variant,
                "context": context,
                "batch": self.batch,
                "seconds": median(times),
                "repeats": len(times),
                "low_s": min(times),
                "high_s": max(times),
                "predicted_s": predict(context, self.batch),
                **self._held(mode),
            }
        )

    def _hindrance(self, context: int, mode: str) -> str | None:
        limit = self.decoder.shape.context_limit or self.max_tokens
        if context + STEPS > min(limit, self.max_tokens):
            return "tokens"
        if mode == "cache" and not self.fits(context + STEPS):
            return "memory"
        if mode == "cache":
            return "time" if self.time_limit.late(self._filled().expected_s(context)) else None
        # At least as many times longer as the prefix is.
        likely = self.last_recompute[1] * context / self.last_recompute[0] if self.last_recompute else 0.0
        return "time" if self.time_limit.late(likely) else None

    def _filled(self) -> FilledCache:
        if self.filled is None:
            self.filled = FilledCache(self.decoder, self.batch, self.kv_format, self.block_tokens)
        return self.filled

    def _cached(self, context: int) -> list[float]:
        return self._filled().steps(context, STEPS, self.time_limit)

    def _recomputed(self, context: int) -> list[float]:
        if self.last_recompute is None:
            self.decoder.recompute([random_ids(LEAST_CONTEXT, self.decoder.shape.vocab_size)] * self.batch)
        times = recompute_seconds(self.decoder, context, self.batch, self.time_limit)
        self.last_recompute = (context, median(times))
        return times

    def _held(self, mode: str) -> dict[str, int]:
        if mode != "cache" or self.filled is None or self.filled.cache is None:
            return {}
        cache = self.filled.cache
        return measured_bytes(self.decoder.shape, cache, self.kv_format, list(cache.lengths), self.block_tokens)


def calibrate(
    decoder: Any,
    setup: Setup,
    batches: Sequence[int],
    time_limit: TimeLimit,
    known: Calibration | None = None,
    *,
    fits: Callable[[int, int], bool] = lambda context, batch: True,
    budget_s: float = BUDGET_S,
) -> Calibration | None:
    """`known` with the batches that it lacks, timed now within about `budget_s`; None where too little could be timed.

    Contexts beyond the model's limit, or that do not fit, are left out. Raises Cancelled.
    """
    missing = [batch for batch in batches if known is None or all(line.batch != batch for line in known.decode)]
    wants_prefill = known is None or known.prefill is None
    if not missing and not wants_prefill:
        return known
    points = _Points(decoder, setup.kv_format, setup.block_tokens, time_limit, fits, time.perf_counter() + budget_s)
    of = len(missing) + wants_prefill
    try:
        time_limit.reporter.progress("Calibration", 0, of)
        if wants_prefill:
            points.prefills()
        for done, batch in enumerate(missing):
            time_limit.reporter.progress("Calibration", done + wants_prefill, of)
            points.decodes(batch)
    except OutOfTime:
        return known
    time_limit.reporter.progress("Calibration", of, of)
    shape: LiveShape = decoder.shape
    try:
        found = fit_calibration(
            points.decode,
            points.prefill,
            windows=shape.windows,
            model=shape.name,
            attention=shape.attention,
            weight_format=setup.weight_format,
            kv_format=setup.kv_format,
        )
    except LiveError:
        # Too little context for two points: the machine's rates have to do.
        return known
    if known is None:
        return found
    return replace(known, decode=known.decode + found.decode, prefill=known.prefill or found.prefill)


@dataclass(slots=True)
class _Points:
    """What was timed: `prefill` as (tokens, seconds), `decode` as (batch, context, seconds)."""

    decoder: Any
    kv_format: str
    block_tokens: int
    time_limit: TimeLimit
    fits: Callable[[int, int], bool]
    deadline: float
    prefill: list[tuple[int, float]] = field(default_factory=list)
    decode: list[tuple[int, int, float]] = field(default_factory=list)
    token_s: float = 0.0

    def there_is_time(self, seconds: float) -> bool:
        return time.perf_counter() + seconds <= self.deadline

    def has_room(self, context: int, batch: int) -> bool:
        limit = self.decoder.shape.context_limit
        return (limit is None or context <= limit) and self.fits(context, batch)

    def prefills(self) -> None:
        for count in PREFILL_TOKENS:
            # Half of the time is for decoding, which fills a cache as long as the last one.
            if not self.has_room(count, 1) or (len(self.prefill) > 1 and not self.there_is_time(2 * self.cost(count))):
                return
            repeats = next((times for most, times in _REPEATS if count <= most), 1)
            times: list[float] = []
            while len(times) < repeats and (not times or self.there_is_time(2 * times[-1])):
                if not times and repeats > 1:
                    self.once(count)
                times.append(self.once(count))
            self.prefill.append((count, median(times)))

    def cost(self, count: int) -> float:
        return count * self.token_s

    def once(self, count: int) -> float:
        """Seconds of a prefill of `count` tokens into an empty cache."""
        cache = self.decoder.new_cache(1, self.kv_format, self.block_tokens)
        row = random_ids(count, self.decoder.shape.vocab_size)
        self.decoder.synchronise()
        start = time.perf_counter()
        with self.time_limit.stopping():
            self.decoder.prefill([row], cache, progress=self.time_limit)
        self.decoder.synchronise()
        seconds = time.perf_counter() - start
        if self.time_limit.late():
            raise OutOfTime
        self.token_s = seconds / count
        return seconds

    def decodes(self, batch: int) -> None:
        """Two contexts, whose steps take turns: a busy moment of the machine hits both and not the slope."""
        near, *far = [one for one in DECODE_CONTEXTS if self.has_room(one + DECODE_STEPS, batch)] or [0]
        if not far:
            return
        # Three steps make the first one ordinary and say about how long the others will take.
        filled = {near: FilledCache(self.decoder, batch, self.kv_format, self.block_tokens)}
        step = median(filled[near].steps(near, 3, self.time_limit))
        token_s = self.token_s or 1 / filled[near].prefill_rate
        # Several requests take about as many times longer to fill.
        reach = [one for one in far if self.there_is_time(batch * one * token_s + 2 * DECODE_STEPS * step)]
        longest = max(reach, default=far[0])
        filled[longest] = FilledCache(self.decoder, batch, self.kv_format, self.block_tokens)
        filled[near].steps(near, 1, self.time_limit)
        filled[longest].steps(longest, 1, self.time_limit)
        times: dict[int, list[float]] = {near: [], longest: []}
        for place in range(1, DECODE_STEPS):
            for context, one in filled.items():
                times[context] += one.steps(context + place, 1, self.time_limit)
        # The steps went on from each context: their median belongs to the middle one.
        self.decode += [(batch, context + DECODE_STEPS // 2, median(found)) for context, found in times.items()]
