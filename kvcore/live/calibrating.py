"""Calibrating: the few points that are timed on a loaded decoder, and what is predicted from them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from kvcore.errors import LiveError
from kvcore.live.host import Host
from kvcore.live.options import Setup
from kvcore.live.probes import Filled, Late, Watch, tokens
from kvcore.live.roofline import Calibration, estimate_decode, estimate_prefill
from kvcore.live.roofline import calibrate as fitted
from kvcore.live.shape import LiveShape

# Ascending; on a slow machine the long ones are left out, so that it takes no longer than BUDGET_S.
PREFILL_TOKENS = (16, 64, 256, 1024)
# Decode is timed at the first of these and at the longest of the others that there is time for.
DECODE_CONTEXTS = (16, 64, 256, 512, 1024)
DECODE_STEPS = 12
BUDGET_S = 10.0
# How often a prefill of up to so many tokens is timed.
_REPEATS = ((64, 5), (256, 3))


def calibrate(
    decoder: Any,
    kv_format: str,
    block_tokens: int,
    batches: Sequence[int],
    watch: Watch,
    known: Calibration | None = None,
    *,
    weight_format: str = "bf16",
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
    points = _Points(decoder, kv_format, block_tokens, watch, fits, time.perf_counter() + budget_s)
    of = len(missing) + wants_prefill
    try:
        watch.speaker.progress("Calibration", 0, of)
        if wants_prefill:
            points.prefills()
        for done, batch in enumerate(missing):
            watch.speaker.progress("Calibration", done + wants_prefill, of)
            points.decodes(batch)
    except Late:
        return known
    watch.speaker.progress("Calibration", of, of)
    shape: LiveShape = decoder.shape
    try:
        found = fitted(
            points.decode,
            points.prefill,
            windows=shape.windows,
            model=shape.name,
            attention=shape.attention,
            weight_format=weight_format,
            kv_format=kv_format,
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
    watch: Watch
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
        row = tokens(count, self.decoder.shape.vocab_size)
        self.decoder.synchronise()
        start = time.perf_counter()
        with self.watch.stopping():
            self.decoder.prefill([row], cache, progress=self.watch)
        self.decoder.synchronise()
        seconds = time.perf_counter() - start
        if self.watch.late():
            raise Late
        self.token_s = seconds / count
        return seconds

    def decodes(self, batch: int) -> None:
        """Two contexts, whose steps take turns: a busy moment of the machine hits both and not the slope."""
        near, *far = [one for one in DECODE_CONTEXTS if self.has_room(one + DECODE_STEPS, batch)] or [0]
        if not far:
            return
        # Three steps make the first one ordinary and say about how long the others will take.
        filled = {near: Filled(self.decoder, batch, self.kv_format, self.block_tokens)}
        step = median(filled[near].steps(near, 3, self.watch))
        token_s = self.token_s or 1 / filled[near].prefill_rate
        # Several requests take about as many times longer to fill.
        reach = [one for one in far if self.there_is_time(batch * one * token_s + 2 * DECODE_STEPS * step)]
        longest = max(reach, default=far[0])
        filled[longest] = Filled(self.decoder, batch, self.kv_format, self.block_tokens)
        filled[near].steps(near, 1, self.watch)
        filled[longest].steps(longest, 1, self.watch)
        times: dict[int, list[float]] = {near: [], longest: []}
        for place in range(1, DECODE_STEPS):
            for context, one in filled.items():
                times[context] += one.steps(context + place, 1, self.watch)
        # The steps went on from each context: their median belongs to the middle one.
        self.decode += [(batch, context + DECODE_STEPS // 2, median(found)) for context, found in times.items()]


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
