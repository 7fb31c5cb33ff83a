"""Times of single steps at chosen contexts: for the probe, the race of variants, and the calibration."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from kvcore.errors import LiveError
from kvcore.live.generate import Cancelled, Predictor, Unknown
from kvcore.live.predict import predicted_bytes
from kvcore.live.session import Speaker

STEPS = 5
# A step at context c is timed on a cache of c − 1 tokens, after one that is not counted.
LEAST_CONTEXT = 4


def tokens(count: int, vocab_size: int, seed: int = 0) -> list[int]:
    """Ids that stand for text where only time matters."""
    draw = random.Random(seed)
    return [draw.randrange(vocab_size) for _ in range(count)]


class Late(Exception):
    """The time budget ended."""


@dataclass(slots=True, kw_only=True)
class Watch:
    """Whether to go on: the job's speaker and its deadline on time.perf_counter."""

    speaker: Speaker
    deadline: float = float("inf")
    what: str = "prefill"

    def late(self, coming: float = 0.0) -> bool:
        """Whether something that takes `coming` seconds would end too late."""
        return time.perf_counter() + coming > self.deadline

    def __call__(self, done: int, of: int) -> bool:
        if done < of:
            self.speaker.progress(self.what, done, of)
        return not self.speaker.cancelled and not self.late()

    @contextmanager
    def stopping(self) -> Iterator[None]:
        """Around a prefill that this watches: raises Cancelled or Late where it was stopped."""
        try:
            yield
        except LiveError:
            if self.speaker.cancelled:
                raise Cancelled from None
            if self.late():
                raise Late from None
            raise
        if self.speaker.cancelled:
            raise Cancelled


@dataclass(slots=True)
class Filled:
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

    def fill(self, count: int, watch: Watch) -> float:
        """Hold exactly `count` tokens in each request; seconds that the prefill took. Raises Late and Cancelled."""
        if self.cache is None or self.cache.lengths[0] > count:
            self.cache = self.decoder.new_cache(self.batch, self.kv_format, self.block_tokens)
        held = self.cache.lengths[0]
        if held == count:
            return 0.0
        self._ids = self._ids if len(self._ids) >= count else tokens(count, self.decoder.shape.vocab_size)
        rows = [self._ids[held:count]] * self.batch
        self.decoder.synchronise()
        start = time.perf_counter()
        with watch.stopping():
            self.decoder.prefill(rows, self.cache, progress=watch)
        self.decoder.synchronise()
        seconds = time.perf_counter() - start
        self.prefill_rate = (count - held) / seconds
        return seconds

    def steps(self, context: int, count: int, watch: Watch) -> list[float]:
        """Seconds of `count` decode steps, the first of them at `context`, on a cache filled for it."""
        if self.cache is None or self.cache.lengths[0] != context - 1:
            self.fill(context - 2, watch)
            self.decoder.step([1] * self.batch, self.cache)
        return [self._step(watch) for _ in range(count)]

    def _step(self, watch: Watch) -> float:
        self.decoder.synchronise()
        start = time.perf_counter()
        self.decoder.step([1] * self.batch, self.cache)
        self.decoder.synchronise()
        seconds = time.perf_counter() - start
        if watch.speaker.cancelled:
            raise Cancelled
        return seconds


def recompute_seconds(decoder: Any, context: int, batch: int, watch: Watch) -> list[float]:
    """Seconds to compute a prefix of `context` tokens afresh for every request: one to three times.

    Raises Late and Cancelled, also in the middle: a long prefix takes many seconds.
    """
    rows = [tokens(context, decoder.shape.vocab_size)] * batch
    times = []
    for _ in range(3 if context <= 64 else 2 if context <= 256 else 1):
        decoder.synchronise()
        start = time.perf_counter()
        with watch.stopping():
            decoder.recompute(rows, watch)
        decoder.synchronise()
        times.append(time.perf_counter() - start)
    return times


@dataclass(slots=True, kw_only=True)
class Runner:
    """One decoder at growing contexts; a mode that would end after the deadline, or not fit, is cut and says so."""

    decoder: Any
    variant: str
    batch: int
    kv_format: str
    block_tokens: int
    watch: Watch
    predictor: Predictor = field(default_factory=Unknown)
    max_tokens: int = 10**9
    fits: Callable[[int], bool] = lambda _: True
    over: set[str] = field(default_factory=set)
    last_recompute: tuple[int, float] | None = None
    filled: Filled | None = None

    def measure(self, context: int, mode: str) -> None:
        """Emit the `probe` event of this context, or a `truncated` one where it cannot be had."""
        if mode in self.over:
            return
        why = self._hindrance(context, mode)
        if why is None:
            try:
                times = self._cached(context) if mode == "cache" else self._recomputed(context)
            except Late:
                why = "time"
        if why is not None:
            self.over.add(mode)
            self.watch.speaker.say(
                {"event": "truncated", "mode": mode, "variant": self.variant, "why": why, "at": context}
            )
            return
        predict = self.predictor.decode if mode == "cache" else self.predictor.prefill
        self.watch.speaker.say(
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
            return "time" if self.watch.late(self._filled().expected_s(context)) else None
        # At least as many times longer as the prefix is.
        likely = self.last_recompute[1] * context / self.last_recompute[0] if self.last_recompute else 0.0
        return "time" if self.watch.late(likely) else None

    def _filled(self) -> Filled:
        if self.filled is None:
            self.filled = Filled(self.decoder, self.batch, self.kv_format, self.block_tokens)
        return self.filled

    def _cached(self, context: int) -> list[float]:
        return self._filled().steps(context, STEPS, self.watch)

    def _recomputed(self, context: int) -> list[float]:
        if self.last_recompute is None:
            self.decoder.recompute([tokens(LEAST_CONTEXT, self.decoder.shape.vocab_size)] * self.batch)
        times = recompute_seconds(self.decoder, context, self.batch, self.watch)
        self.last_recompute = (context, median(times))
        return times

    def _held(self, mode: str) -> dict[str, int]:
        if mode != "cache" or self.filled is None or self.filled.cache is None:
            return {}
        cache = self.filled.cache
        predicted = predicted_bytes(self.decoder.shape, self.kv_format, list(cache.lengths), self.block_tokens)
        return {
            "reserved_bytes": cache.reserved_bytes(),
            "resident_bytes": cache.resident_bytes(),
            "predicted_reserved_bytes": predicted.reserved,
            "predicted_resident_bytes": predicted.resident,
        }
