"""Sentences of the Live screen, computed from what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from kvcore.units import format_bytes, format_count, is_whole
from pages.ui.live.jobs import JobResult, JobTicket
from pages.ui.live.progress import CACHE, RECOMPUTE, JobProgress, Probe
from pages.ui.live.replay import where
from pages.ui.size.words import plural
from pages.ui.text import plain
from pages.ui.widgets import Card

SIDE_NAMES = {CACHE: "with the cache", RECOMPUTE: "without it, recomputed"}
_DONE = {
    "length": "Done: all tokens made",
    "stop": "Done: the model ended its answer",
    "time": "Stopped at the time budget",
    "cancelled": "Stopped",
}
_DEVICES = {"cpu": "CPU", "cuda": "CUDA", "mps": "Apple MPS"}
# What one token must take more before it is called so.
_STEADY = 1.15


def title(result: JobResult | None) -> str:
    """The screen's headline: what the run on it showed."""
    progress = result.progress if result else JobProgress()
    first, each = progress.cache.prefill, progress.cache.median_s
    if result is not None and not result.finished:
        return "A language model is running, and this is what each token takes"
    if first is None or not each:
        return "The first token costs more than all others: watch a language model do it"
    head = f"The first token took **{duration(first.seconds)}**, each one after it **{duration(each)}**"
    slower = progress.slower()
    if slower and slower > _STEADY:
        return f"{head}; without the cache it would be **{times(slower)}** as long"
    return head


def model_line(progress: JobProgress) -> str:
    """Which model ran, with what, on what; empty before that is known."""
    ready = progress.ready
    if not ready:
        return ""
    weights = "real weights" if ready.get("weights") == "real" else "**random weights**"
    layers = f"cut to {ready['layers']} of {ready['cut_from']} layers" if ready.get("cut_from") else ""
    parts = [
        f"**{plain(str(ready.get('title') or ready.get('model')))}**",
        f"{format_count(ready['parameters'])} parameters" if ready.get("parameters") else "",
        f"{weights} in {plain(_stored(str(ready.get('weight_format'))))}, {format_bytes(ready['weight_bytes'])}"
        if ready.get("weight_bytes")
        else weights,
        layers,
        f"cache in {plain(str(ready.get('kv_format')))}",
        ""
        if ready.get("attention") in (None, "shipped")
        else f"attention {plain(variant_name(str(ready['attention'])))}",
        device_words(progress),
    ]
    return " · ".join(part for part in parts if part)


def _stored(weight_format: str) -> str:
    """A weight format; the small ones are for decode, and the prefill keeps its own in 16 bits."""
    return f"{weight_format} for decode and bf16 for prefill" if weight_format in ("int8", "int4") else weight_format


def device_words(progress: JobProgress) -> str:
    """The device, its threads and the bandwidth that was measured on it, as markdown."""
    return plain(_device(progress))


def _device(progress: JobProgress) -> str:
    ready, host = progress.ready, progress.host
    device = str(ready.get("device") or host.get("device") or "")
    name = _DEVICES.get(device.partition(":")[0], device)
    threads = f", {plural(int(ready['threads']), 'thread')}" if device == "cpu" and ready.get("threads") else ""
    band = host.get("read_bandwidth_bytes_per_s")
    return f"{name}{threads}" + (f", reads {band / 1e9:.3g} GB/s" if band else "")


def recording_words(result: JobResult) -> str:
    """That a result is a recording, and where it was made; empty where it is not."""
    if result.record is None:
        return ""
    how = "A recording" if result.finished else "A recording, at its true speed"
    return f"**{how}**: made on {plain(where(result.record))}, not here and now."


def cards(progress: JobProgress, finished: bool) -> list[Card]:
    """The four big numbers, as far as they are known."""
    first, each = progress.cache.prefill, progress.cache.median_s
    waiting = "not measured" if finished else "coming"
    return [
        Card(
            label="First token",
            value=duration(first.seconds) if first else "…",
            line=_first_line(progress) if first else waiting,
            help="Time to first token (TTFT): the whole prompt is read at once, in the prefill.",
        ),
        Card(
            label="Then, each token",
            value=duration(each) if each else "…",
            line=_each_line(progress) if each else waiting,
            help="Time per output token with the cache: the median of the steps after the first token.",
        ),
        _without(progress, waiting),
        _held(progress, waiting),
    ]


def _first_line(progress: JobProgress) -> str:
    first = progress.cache.prefill
    if first is None:
        return ""
    speed = first.tokens * first.batch / first.seconds if first.seconds else 0
    read = (
        f"{plural(first.tokens, 'new token')} read, {first.reused:,} already in the cache"
        if first.reused
        else (f"{plural(first.tokens, 'prompt token')} read at once")
    )
    many = f" × {first.batch}" if first.batch > 1 else ""
    return f"{read}{many}: **{rate(speed)} tokens/s**"


def _each_line(progress: JobProgress) -> str:
    each = progress.cache.median_s or 0.0
    speed = progress.batch / each
    told = [one.predicted_s for one in progress.cache.tokens if one.predicted_s is not None]
    expected = f"; predicted {duration(median(told))}" if told else ""
    return f"**{rate(speed)} tokens/s**, median of {len(progress.cache.tokens)}{expected}"


def _without(progress: JobProgress, waiting: str) -> Card:
    tokens = progress.recompute.tokens
    slower = progress.slower()
    value = duration(tokens[-1].seconds) if tokens else "…"
    line = waiting
    if tokens and slower:
        line = f"the last token; at the end **{times(slower)} as long**"
        if tokens[-1].seconds > _STEADY * tokens[0].seconds:
            line += ", and climbing"
    return Card(
        label="Without the cache", value=value, line=line,
        help="The whole conversation is computed again for every token, as it must be where nothing is remembered.",
    )  # fmt: skip


def _held(progress: JobProgress, waiting: str) -> Card:
    held = progress.cache.held
    if held is None:
        return Card(label="Cache held", value="…", line=waiting)
    same = held.resident == held.predicted_resident
    match = "as predicted, to the byte" if same else f"predicted {format_bytes(held.predicted_resident)}"
    return Card(
        label="Cache held", value=format_bytes(held.resident),
        line=f"**{match}**; {format_bytes(held.reserved)} reserved",
        help="Resident: filled rows of the cache's tensors. Reserved: their storage, in whole blocks.",
    )  # fmt: skip


def status(result: JobResult, ticket: JobTicket | None, stopping: bool = False) -> tuple[str, float | None]:
    """(what is going on, share done or None) while a job is watched."""
    progress = result.progress
    if stopping:
        return "Stopping: the step that is being computed ends first", None
    if ticket is not None and result.state == "waiting" and result.record is None:
        ahead = ticket.ahead
        return (f"In the queue: {plural(ahead, 'job')} before yours" if ahead else "Starting the engine", None)
    if not progress.ready and progress.doing is None:
        return "Starting the engine", None
    if progress.doing is not None:
        what, done, of = progress.doing
        return f"{what[:1].upper()}{what[1:]}", min(1.0, done / of) if of else None
    if result.kind == "probe":
        return f"The probe: {plural(len(progress.probes), 'step')} measured", None
    if result.kind == "race":
        return f"The race: {plural(len(progress.probes), 'step')} measured", None
    made, wanted = len(progress.cache.tokens) + 1, int(result.job.get("new_tokens") or 0)
    if progress.recompute.prefill or (result.job.get("also_recompute") and made >= wanted > 1):
        return f"The same again without the cache: token {len(progress.recompute.tokens) + 1}", None
    if progress.cache.prefill:
        return f"With the cache: token {len(progress.cache.tokens) + 1}", None
    return "Reading the prompt", None


def cut_words(progress: JobProgress, *, race: bool) -> str:
    """Which curves were cut off, where and why; no markdown, empty where none was."""
    found: dict[tuple[str, int], list[str]] = {}
    for cut in progress.truncated:
        mode, variant = str(cut.get("mode")), str(cut.get("variant") or "")
        name = variant_name(variant) if race else SIDE_NAMES.get(mode, mode)
        found.setdefault((limit_words(str(cut.get("why"))), int(cut.get("at") or 0)), []).append(name)
    parts = []
    for (why, at), names in found.items():
        *most, last = dict.fromkeys(names)
        who = f"{', '.join(most)} and {last}" if most else last
        parts.append(f"{who}, at {at:,} tokens ({why})")
    return f"Cut off early: {'; '.join(parts)}." if parts else ""


def limit_words(why: str) -> str:
    """The limit that cut a curve off."""
    return {"time": "time budget", "tokens": "token limit", "memory": "memory limit"}.get(why, why)


def ended(result: JobResult) -> str:
    """How a finished job ended where there is something to say about it."""
    if result.state in ("failed", "cancelled", "abandoned"):
        return result.message or result.state
    if result.kind != "run" and result.progress.done == "length":
        return "Done"
    return _DONE.get(result.progress.done, "")


def timeline_title(progress: JobProgress) -> str:
    """What the time line shows."""
    first, each = progress.cache.prefill, progress.cache.median_s
    if first is None:
        return "First the prompt, then token by token"
    if not each:
        return f"The prefill reads {plural(first.tokens, 'token')} in one go"
    worth = first.seconds / each
    wide = f"One prefill, as wide as {worth:.1f} tokens" if worth >= _STEADY else "One prefill, no wider than a token"
    both = progress.recompute.seconds
    if (
        progress.recompute.tokens
        and len(progress.recompute.tokens) >= len(progress.cache.tokens)
        and both > progress.cache.seconds
    ):
        return f"{wide}; without the cache {times(both / progress.cache.seconds)} as long"
    return wide


def latency_title(progress: JobProgress) -> str:
    """What the tokens' times show."""
    cached, again = progress.cache.tokens, progress.recompute.tokens
    if not cached:
        return "Time of each token"
    first, last = _start(cached), _end(cached)
    flat = last < _STEADY * first
    held = f"stays at {duration(last)}" if flat else f"goes from {duration(first)} to {duration(last)}"
    if len(again) < 4:
        return f"With the cache a token {held}"
    return f"With the cache a token {held}; without, {duration(_start(again))} becomes {duration(_end(again))}"


def _start(tokens: Sequence[Any]) -> float:
    return float(median(one.seconds for one in tokens[: max(1, min(5, len(tokens) // 2))]))


def _end(tokens: Sequence[Any]) -> float:
    return float(median(one.seconds for one in tokens[-max(1, min(5, len(tokens) // 2)) :]))


def held_title(progress: JobProgress) -> str:
    """What the cache's bytes show."""
    first, tokens = progress.cache.prefill, progress.cache.tokens
    if first is None:
        return "Bytes of the cache"
    told = [first.held, *(one.held for one in tokens)]
    if any(not one.as_predicted for one in told):
        off = max(abs(one.resident - one.predicted_resident) for one in told)
        return f"The cache is not what was predicted: off by up to {format_bytes(off)}"
    steady = [two.held.resident - one.held.resident for one, two in pairwise(tokens)]
    grown = f", {format_bytes(median(steady))} a token" if steady and steady[-1] else ""
    return f"The cache grows byte for byte as predicted{grown}"


def probe_title(probes: Sequence[Probe]) -> str:
    """What the probe shows."""
    by = {(one.mode, one.context): one.seconds for one in probes}
    both = sorted(context for mode, context in by if mode == RECOMPUTE and (CACHE, context) in by)
    if len(both) < 2:
        return "The longer the conversation, the more the cache is worth"
    low, high = both[0], both[-1]
    ratios = [by[RECOMPUTE, at] / by[CACHE, at] for at in (low, high)]
    return (
        f"At {low:,} tokens the cache is worth {times(ratios[0])}, at {high:,} it is worth {times(ratios[1])}: "
        f"{duration(by[CACHE, high])} instead of {duration(by[RECOMPUTE, high])}"
    )


def repeats(probes: Sequence[Probe]) -> str:
    """How often the points were timed, and what their uprights are; empty where that is not known."""
    counts = sorted({one.repeats for one in probes if one.repeats})
    if not counts:
        return ""
    if counts == [1]:
        return "Each point was timed once."
    many = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else f"{counts[0]}"
    return (
        f"Each point is the median of {many} timings, few enough for a neighbour on the machine to show: "
        "the thin uprights reach from the fastest to the slowest."
    )


def race_title(probes: Sequence[Probe], shipped: str) -> str:
    """What the race shows; no markdown."""
    if not probes:
        return "Which attention is fastest as the conversation grows?"
    last = max(one.context for one in probes)
    there = sorted((one for one in probes if one.context == last), key=lambda one: one.seconds)
    if len(there) < 2:
        return f"The race at {last:,} tokens"
    best, worst = there[0], there[-1]
    first, second = (variant_name(one.variant, shipped) for one in (best, worst))
    ratio = times(worst.seconds / best.seconds)
    return f"At {last:,} tokens {first} takes {duration(best.seconds)}, {second} {duration(worst.seconds)}: {ratio}"


def saving(progress: JobProgress, afresh_s: float | None) -> str:
    """What a further turn saved by going on from the cache."""
    first = progress.cache.prefill
    if first is None or not first.reused:
        return ""
    whole = first.reused + first.tokens
    head = (
        f"**{first.reused:,} of {whole:,} tokens were in the cache already**: only "
        f"{plural(first.tokens, 'token')} had to be read, in {duration(first.seconds)}"
    )
    if afresh_s is None or afresh_s <= first.seconds:
        return f"{head}."
    less = times(afresh_s / first.seconds)
    return f"{head} instead of {duration(afresh_s)} (predicted) for all of them: **{less} less**."


def variant_name(variant: str, shipped: str = "") -> str:
    """An attention as it is called: `gqa:4` is GQA with 4 KV heads."""
    name, _, more = variant.partition(":")
    if name == "shipped":
        return f"as shipped, {shipped}" if shipped and shipped != "shipped" else "as shipped"
    if name == "gqa":
        return f"GQA, {more} KV heads"
    if name == "mla":
        return f"MLA {more}".strip()
    if name == "sliding":
        return f"window {int(more):,}" if is_whole(more) else f"window {more}"
    return name.upper()


def duration(seconds: float) -> str:
    """A time with three figures at most: `41 ms`, `2.03 s`, `7.4 ms`, `85 µs`."""
    if seconds >= 99.5:
        return f"{seconds:,.0f} s"
    if seconds >= 0.9995:
        return f"{seconds:.3g} s"
    if seconds >= 0.0095:
        return f"{1000 * seconds:.0f} ms"
    if seconds >= 0.0001:
        return f"{1000 * seconds:.2g} ms"
    return f"{1e6 * seconds:.0f} µs"


def rate(per_second: float) -> str:
    """Tokens per second: whole ones from ten upwards."""
    return f"{per_second:,.0f}" if per_second >= 9.95 else f"{per_second:.1f}"


def times(factor: float) -> str:
    """A factor: `42×`, `5.3×`."""
    return f"{factor:,.0f}×" if factor >= 9.95 else f"{factor:.1f}×"
