"""What the engine does: one function a kind of job, which emits events until it is done.

RUNNERS[kind](job, emit): kvcore.live.options says what a job may hold. emit takes an event and returns False when the
job was cancelled; the job then ends soon, with `done` and the reason `cancelled`. A job that cannot be done raises
LiveError. Beside the events of generate.py and probes.py there are `progress`, `host`, `ready`, `calibration`, `note`
(a sentence for people) and, last of all, `done`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from kvcore.errors import KVCoreError, LiveError
from kvcore.live import options as read
from kvcore.live.generate import Cancelled, Generation, GenerationRequest, Sampling, generate
from kvcore.live.options import CalibrateOptions, ProbeOptions, RunOptions, Setup
from kvcore.live.probes import ProbeRunner, TimeLimit, calibrate
from kvcore.live.protocol import Emit
from kvcore.live.roofline import LivePredictor
from kvcore.live.session import Conversation, FoundModel, LoadedModel, Reporter, Session, find
from kvcore.live.shape import LiveShape, as_variant, default_latent, predicted_bytes, weight_bytes

# Of the memory that is free, what several decoders at once may take.
_SHARE = 0.8
# A running text for prompts that are chosen by their length.
TEXT = (
    "A language model reads a text as a row of tokens and answers one token at a time. For each token that it has "
    "read it keeps a key and a value in every layer, because every later token will look back at them. Reading the "
    "prompt is heavy work that can be done for all of its tokens at once; that is why the first word of an answer "
    "takes longest. Every further word needs only one token's work, and one look at everything that was kept. "
    "Whoever throws the kept keys and values away must read the whole text again for each new word, and the longer "
    "the text grows, the longer every word takes. Memory is what this speed costs. It grows with each token of each "
    "conversation, and on a busy machine it is soon larger than the model itself. Engineers share heads, store "
    "latents, forget what lies far back, or keep fewer bits, and each of these choices trades a little of what the "
    "model can recall for room and pace. "
)
_SESSION: list[Session] = []


def session() -> Session:
    """This process's engine, made when it is first asked for."""
    if not _SESSION:
        _SESSION.append(Session())
    return _SESSION[0]


class JobClock:
    """The time that a job may take: all of it within the settings' limit, what is measured within the job's own."""

    def __init__(self, engine: Session, setup: Setup) -> None:
        self._end = time.perf_counter() + engine.limits.max_seconds
        self._own = setup.max_seconds

    def budget_s(self) -> float:
        """Seconds from now for what is measured."""
        left = max(0.0, self._end - time.perf_counter())
        return left if self._own is None else min(left, self._own)

    def deadline(self) -> float:
        """The same as a time on time.perf_counter."""
        return time.perf_counter() + self.budget_s()


@contextmanager
def _ended(reporter: Reporter) -> Iterator[list[str]]:
    """Emits `done` with the reason that the body leaves in the list; a cancelled body is done, too."""
    reason = ["length"]
    try:
        yield reason
    except Cancelled:
        reason[0] = "cancelled"
    except KVCoreError:
        # Something was told to stop and says so in its own words.
        if not reporter.cancelled:
            raise
        reason[0] = "cancelled"
    reporter({"event": "done", "reason": reason[0]})


def host(job: Mapping[str, Any], emit: Emit) -> None:
    """Measure the machine, or say what was measured."""
    options, reporter = read.read_calibrate(job), Reporter(emit)
    with _ended(reporter):
        found = session().host(reporter, options.setup.device, remeasure=options.remeasure)
        reporter.send({"event": "host", "host": found.to_dict()})


def load(job: Mapping[str, Any], emit: Emit) -> None:
    """Make a decoder ready."""
    options, reporter = read.read_calibrate(job), Reporter(emit)
    with _ended(reporter):
        session().load(options.setup, reporter)


def calibrate_job(job: Mapping[str, Any], emit: Emit) -> None:
    """Time a few points, from which times elsewhere are predicted."""
    options, reporter = read.read_calibrate(job), Reporter(emit)
    with _ended(reporter):
        engine = session()
        clock = JobClock(engine, options.setup)
        loaded = engine.load(options.setup, reporter)
        if options.remeasure:
            loaded.calibrations.clear()
        _calibrated(engine, loaded, options, reporter, clock)


def _calibrated(
    engine: Session, loaded: LoadedModel, options: CalibrateOptions, reporter: Reporter, clock: JobClock
) -> LivePredictor:
    """The predictor for these batches, calibrated where that has not been done yet; emits `calibration`."""
    setup = options.setup
    time_limit = TimeLimit(reporter=reporter, deadline=clock.deadline(), what="Calibrating: filling the cache")
    known = calibrate(
        loaded.decoder,
        setup,
        options.batches,
        time_limit,
        loaded.calibrations.get(setup.kv_format),
        fits=lambda context, batch: _fits(engine, loaded, setup, context, batch),
    )
    if known is not None:
        loaded.calibrations[setup.kv_format] = known
        reporter.send({"event": "calibration", "calibration": known.to_dict()})
    return LivePredictor(shape=loaded.shape, host=engine.host(reporter, setup.device), setup=setup, calibration=known)


def _predictor(
    engine: Session, loaded: LoadedModel, setup: Setup, batch: int, wanted: bool, reporter: Reporter, clock: JobClock
) -> LivePredictor:
    """Calibrated for a batch where that is wanted, else with what is known already."""
    if wanted:
        return _calibrated(engine, loaded, CalibrateOptions(setup=setup, batches=(batch,)), reporter, clock)
    known = loaded.calibrations.get(setup.kv_format)
    return LivePredictor(shape=loaded.shape, host=engine.host(reporter, setup.device), setup=setup, calibration=known)


def run(job: Mapping[str, Any], emit: Emit) -> None:
    """Generate, with the cache or without, or once each way."""
    options, reporter = read.read_run(job), Reporter(emit)
    with _ended(reporter) as reason:
        reason[0] = run_with(session(), options, reporter)[0].reason


def run_with(engine: Session, options: RunOptions, reporter: Reporter) -> list[Generation]:
    """The generations of a `run` job: the first way, and the recomputed one where it was asked for, too."""
    setup = options.setup
    clock = JobClock(engine, setup)
    loaded = engine.load(setup, reporter)
    predictor = _predictor(engine, loaded, setup, options.batch, options.calibrate, reporter, clock)
    kept = _continued(engine, options, reporter)
    new_ids = next_ids(loaded, options, kept.ids, kept.cache.lengths[0]) if kept else fresh_ids(loaded, options)
    held = kept.cache.lengths[0] if kept else 0
    new_tokens, cut_at = _allowed(engine, loaded, held + len(new_ids), options.new_tokens)
    length = held + len(new_ids) + new_tokens
    if options.use_cache:
        engine.cache_bytes(loaded, setup, [length] * options.batch)
    sampling = Sampling(temperature=options.temperature, top_p=options.top_p, seed=options.seed)

    def once(ids: list[int], count: int, use_cache: bool, cache: Any = None, ignore_stop: bool = False) -> Generation:
        request = GenerationRequest(
            prompt_ids=[ids] * options.batch,
            new_tokens=count,
            use_cache=use_cache,
            kv_format=setup.kv_format,
            block_tokens=setup.block_tokens,
            sampling=sampling,
            time_budget_s=clock.budget_s(),
            ignore_stop=ignore_stop or options.ignore_stop,
        )
        return generate(loaded.decoder, loaded.tokenizer, request, emit=reporter, cache=cache, predictor=predictor)

    before = kept.ids[:held] if kept else []
    cache = kept.cache if kept else None
    if options.use_cache and cache is None:
        cache = loaded.decoder.new_cache(options.batch, setup.kv_format, setup.block_tokens)
    results: list[Generation] = []
    try:
        results.append(once(new_ids, new_tokens, options.use_cache, cache))
    except Cancelled as stopped:
        _keep(engine, options, cache, before + new_ids, stopped.result)
        raise
    first = results[0]
    _keep(engine, options, cache, before + new_ids, first)
    if cut_at is not None and first.reason == "length":
        reporter.send({"event": "truncated", "mode": first.mode, "why": "tokens", "at": cut_at})
    if options.also_recompute and options.use_cache and first.ids[0]:
        # As many tokens as with the cache, so that the two can be laid side by side.
        results.append(once(before + new_ids, len(first.ids[0]), False, ignore_stop=True))
    return results


def _continued(engine: Session, options: RunOptions, reporter: Reporter) -> Conversation | None:
    """The conversation to go on with, taken out of the session; None, with a note, where it is not kept any more."""
    if options.continue_of is None:
        return None
    kept = engine.conversations.pop(options.continue_of, None)
    setup = options.setup
    if kept and options.use_cache and (kept.kv_format, kept.block_tokens) == (setup.kv_format, setup.block_tokens):
        return kept
    whole = "the whole conversation is" if options.messages else "only the new message is"
    reporter.note(f"The cache of the last turn is not kept any more: {whole} read.")
    return None


def _keep(engine: Session, options: RunOptions, cache: Any, ids: list[int], result: Generation | None) -> None:
    name = options.session or options.continue_of
    if name is None or cache is None or result is None or not result.ids[0]:
        return
    setup = options.setup
    engine.keep(
        name,
        Conversation(cache=cache, ids=ids + result.ids[0], kv_format=setup.kv_format, block_tokens=setup.block_tokens),
    )


def _allowed(engine: Session, loaded: LoadedModel, prompt: int, wanted: int) -> tuple[int, int | None]:
    """(new tokens that are allowed, the length that cuts what was wanted, if any); LiveError where there is no room."""
    most = min(engine.limits.max_tokens, loaded.shape.context_limit or engine.limits.max_tokens)
    if prompt + 1 > most:
        raise LiveError(f"{prompt:,} tokens of prompt leave no room for new ones: {most:,} tokens are allowed here")
    return (wanted, None) if prompt + wanted <= most else (most - prompt, most)


def _fits(engine: Session, loaded: LoadedModel, setup: Setup, context: int, batch: int) -> bool:
    needed = predicted_bytes(loaded.shape, setup.kv_format, [context] * batch, setup.block_tokens).reserved
    return needed <= engine.available_bytes(loaded.device)


def probe(job: Mapping[str, Any], emit: Emit) -> None:
    """The time of a token against the context, with the cache and without."""
    options, reporter = read.read_probe(job), Reporter(emit)
    with _ended(reporter) as reason:
        probe_with(session(), options, reporter)
        reason[0] = "length"


def probe_with(engine: Session, options: ProbeOptions, reporter: Reporter) -> None:
    """The body of a `probe` job."""
    setup = options.setup
    clock = JobClock(engine, setup)
    loaded = engine.load(setup, reporter)
    predictor = _predictor(engine, loaded, setup, options.batch, options.calibrate, reporter, clock)
    time_limit = TimeLimit(reporter=reporter, deadline=clock.deadline(), what="Filling the cache")
    runner = _prober(engine, loaded, options, time_limit, predictor)
    for context in options.contexts:
        for mode in options.modes:
            runner.measure(context, mode)


def _prober(
    engine: Session, loaded: LoadedModel, options: ProbeOptions, time_limit: TimeLimit, predictor: LivePredictor
) -> ProbeRunner:
    setup = loaded.setup
    return ProbeRunner(
        decoder=loaded.decoder,
        variant=setup.attention,
        batch=options.batch,
        kv_format=options.setup.kv_format,
        block_tokens=options.setup.block_tokens,
        time_limit=time_limit,
        predictor=predictor,
        max_tokens=engine.limits.max_tokens,
        fits=lambda context: _fits(engine, loaded, options.setup, context, options.batch),
    )


def race(job: Mapping[str, Any], emit: Emit) -> None:
    """The time of a token at growing contexts for several kinds of attention, all with random weights of one shape."""
    options, reporter = read.read_race(job), Reporter(emit)
    with _ended(reporter):
        race_with(session(), options, reporter)


def race_with(engine: Session, options: ProbeOptions, reporter: Reporter) -> None:
    """The body of a `race` job. Decoders that fit together take turns at each context, so that moods are shared."""
    setup = options.setup.as_variant("shipped")
    clock = JobClock(engine, setup)
    machine = engine.host(reporter, setup.device)
    reporter.send({"event": "host", "host": machine.to_dict()})
    base = find(setup, reporter.progress)
    entrants: dict[str, FoundModel] = {}
    for name in options.variants or default_variants(base.shape):
        try:
            entrants[name] = FoundModel(
                shape=as_variant(base.shape, name), tokenizer=None, title=base.title, origin=base.origin, folder=None
            )
        except LiveError as problem:
            reporter.note(f"{name} does not take part: {problem}")
    if not entrants:
        raise LiveError("none of these variants can run in this model's shape")
    together = sum(weight_bytes(one.shape, setup.weight_format) for one in entrants.values())
    at_once = together <= _SHARE * engine.available_bytes(machine.device)
    waiting = list(entrants.items())
    deadline: float | None = None
    while waiting:
        group, waiting = (waiting, []) if at_once else (waiting[:1], waiting[1:])
        runners = []
        for name, found in group:
            own = setup.as_variant(name)
            loaded = engine.build(own, machine, reporter, found)
            reporter.send(loaded.ready(own))
            time_limit = TimeLimit(reporter=reporter, what="Filling the cache")
            predictor = LivePredictor(shape=loaded.shape, host=machine, setup=own)
            runners.append(_prober(engine, loaded, options, time_limit, predictor))
        deadline = clock.deadline() if deadline is None else deadline
        for runner in runners:
            runner.time_limit.deadline = deadline
        for context in options.contexts:
            for runner in runners:
                runner.measure(context, "cache")


RUNNERS: dict[str, Callable[[dict[str, Any], Emit], None]] = {
    "host": host,
    "load": load,
    "calibrate": calibrate_job,
    "run": run,
    "probe": probe,
    "race": race,
}


def fresh_ids(loaded: LoadedModel, options: RunOptions) -> list[int]:
    """The ids of a first turn: messages, a number of tokens, or a prompt in the model's own format."""
    tokenizer = loaded.tokenizer
    if options.messages:
        ids = tokenizer.chat(options.messages)
    elif options.prompt_tokens is not None:
        ids = _of_length(loaded, options.prompt_tokens)
    elif options.chat:
        ids = tokenizer.chat([("user", options.prompt)])
    else:
        ids = tokenizer.encode(options.prompt)
    if not ids:
        raise LiveError("the prompt has no tokens; write something")
    return list(ids)


def next_ids(loaded: LoadedModel, options: RunOptions, ids: list[int], held: int) -> list[int]:
    """The ids that a next turn adds to the first `held` of `ids`, which the cache holds.

    They begin with what was generated last and is not in the cache yet, unless that was a mark of the end, which the
    model's own format writes again.
    """
    tokenizer = loaded.tokenizer
    pending = [one for one in ids[held:] if one not in tokenizer.stop_ids]
    if options.prompt_tokens is not None:
        return pending + _of_length(loaded, options.prompt_tokens)
    text = options.messages[-1][1] if options.messages else options.prompt
    if not options.chat:
        return pending + list(tokenizer.encode(text))
    return pending + list(tokenizer.follow_up(text))


def _of_length(loaded: LoadedModel, count: int) -> list[int]:
    once = loaded.tokenizer.encode(TEXT)
    return (once * (count // len(once) + 1))[:count]


def default_variants(shape: LiveShape) -> tuple[str, ...]:
    """Every head, the shipped attention, one head, a latent in DeepSeek's proportion to the head, and a window."""
    return ("mha", "shipped", "mqa", default_latent(shape), "sliding:256")
