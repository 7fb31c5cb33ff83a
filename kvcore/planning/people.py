"""How many independent people want an answer at the same moment: a binomial or a Poisson number."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from math import erf, exp, floor, lgamma, log, log1p, sqrt
from typing import Literal

from kvcore.deployment import Deployment
from kvcore.engines.layout import Layout
from kvcore.engines.registry import engine
from kvcore.errors import PlanError, UnitError
from kvcore.model.model import Model
from kvcore.planning.plan import NONE, Basis, Plan, basis, plan_from
from kvcore.planning.pools import usable_share
from kvcore.terms import ENDS, End, Range, Term
from kvcore.timing import Bound
from kvcore.timing.step import decode_bound, prefill_bound, seconds_text
from kvcore.units import check_tokens, plural

# Up to here chances are summed term by term; beyond, a normal curve stands in, with an error below a thousandth.
_SUMMED = 1_000
# Deviations above the mean beyond which nothing is left, and the share of a sum below which a term adds nothing.
_NEVER, _NOTHING = 40, 1e-17


@lru_cache(maxsize=4096)
def chance_at_most(requests: int, people: int, each: float, *, by_rate: bool) -> float:
    """The chance that no more than `requests` requests of `people` people are alive at a moment.

    Binomial where each person waits for one answer or for none, `each` being the share of the time that they wait.
    With `by_rate` requests arrive at random, `each` alive at a time on average for each person: then their number is
    Poisson whatever their lengths (the queue M/G/∞).
    """
    mean = people * each
    if requests < 0:
        return 0.0
    if mean == 0 or (not by_rate and requests >= people):
        return 1.0
    if not by_rate and each >= 1:
        return 0.0
    deviation = sqrt(mean if by_rate else mean * (1 - each))
    if requests > _SUMMED:
        return 0.5 * (1 + erf((requests + 0.5 - mean) / (deviation * sqrt(2))))
    return _sum_down(min(requests, int(mean + _NEVER * (deviation + 1))), people, each, mean, by_rate)


def _sum_down(top: int, people: int, each: float, mean: float, by_rate: bool) -> float:
    """Chances of `top`, one less, and so on, each from the one before, until nothing more is added."""
    if by_rate:
        term = exp(top * log(mean) - mean - lgamma(top + 1))
    else:
        ways = lgamma(people + 1) - lgamma(top + 1) - lgamma(people - top + 1)
        term = exp(ways + top * log(each) + (people - top) * log1p(-each))
    against = (1 - each) / each if not by_rate else 0.0
    total = 0.0
    for count in range(top, -1, -1):
        total += term
        if term <= total * _NOTHING and count < mean:
            break
        term *= count / mean if by_rate else against * count / (people - count + 1)
    return min(total, 1.0)


def most_at_once(people: int, each: float, *, by_rate: bool, chance: float = 0.99) -> int:
    """The least number of requests that is not exceeded with that chance."""
    low, high = -1, 1
    while chance_at_most(high, people, each, by_rate=by_rate) < chance:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        if chance_at_most(middle, people, each, by_rate=by_rate) < chance:
            low = middle
        else:
            high = middle
    return high


def most_people(requests: int, each: float, *, by_rate: bool, chance: float = 0.99) -> int:
    """The most people whose requests are no more than `requests` at once with that chance (above a half)."""
    most = int(max(requests, 0) / each) + 2
    # So many deviations below the mean lie about 99 of 100 moments; the search widens from there.
    guess = int(max(0.0, requests - 2.4 * sqrt(max(requests, 0))) / each)
    low, high, step = 0, most, max(1, most // 64)
    if guess and chance_at_most(requests, guess, each, by_rate=by_rate) >= chance:
        low = guess
        while low + step < high and chance_at_most(requests, low + step, each, by_rate=by_rate) >= chance:
            low += step
        high = min(high, low + step)
    elif guess:
        high = guess
    while high - low > 1:
        middle = (low + high) // 2
        if chance_at_most(requests, middle, each, by_rate=by_rate) >= chance:
            low = middle
        else:
            high = middle
    return low


def layout_at(model: Model, deployment: Deployment, tokens: int) -> Layout:
    """How the engine stores a request of `tokens` tokens on the fullest GPU; EngineError for what it refuses."""
    return _layout_at(model, deployment, max(1, tokens))


@lru_cache(maxsize=256)
def _layout_at(model: Model, deployment: Deployment, tokens: int) -> Layout:
    base = basis(model, deployment)
    made = base.cache if base.allows(deployment.context) else None
    return (made or engine(deployment.engine).pool(model, deployment, deployment.context)).layout(tokens, 1)


def batched_tokens(model: Model, deployment: Deployment) -> int:
    """Tokens that are taken in at once at most: what was asked for, else the engine's own default."""
    if deployment.max_num_batched_tokens is not None:
        return deployment.max_num_batched_tokens
    chosen = engine(deployment.engine)
    return chosen.batched_tokens(chosen.settings(model, deployment))


def shared_tokens(model: Model, deployment: Deployment, prefix_tokens: int, tokens: int) -> tuple[int, tuple[str, ...]]:
    """Tokens of a common prefix that requests of `tokens` tokens hold once a replica, and why not all of them.

    Whole blocks only, the largest block that any layer has. 0 where the engine shares nothing.
    """
    if not prefix_tokens:
        return 0, ()
    if reason := engine(deployment.engine).no_sharing(model, deployment):
        return 0, (reason,)
    if not deployment.prefix_caching:
        return 0, ("Prefix caching is switched off: a shared beginning is not counted once.",)
    layout = layout_at(model, deployment, tokens)
    block = max([layout.block_size or 1, *(group.block_size or 1 for group in layout.groups)])
    # At least one token of a request is its own.
    whole = min(prefix_tokens, tokens - 1) // block * block
    if whole == prefix_tokens:
        return whole, ()
    return whole, (f"Of the shared {prefix_tokens:,} tokens {whole:,} are whole blocks of {block:,} and held once.",)


__all__ = ["Active", "Expected", "Fit", "Traffic", "active_requests", "expected"]

MAX_PEOPLE = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Expected lengths in tokens, and the people.

    Thinking tokens are generated before the answer and are in the cache like it. `shared_prefix_tokens` are the
    beginning of every prompt (a system prompt) and part of `prompt_tokens`. `active_share` is the share of people who
    wait for an answer at a moment; `requests_per_minute` of one person with `seconds_a_request` replace it.
    """

    prompt_tokens: int
    answer_tokens: int
    thinking_tokens: int = 0
    shared_prefix_tokens: int = 0
    people: int = 1
    active_share: float = 1.0
    requests_per_minute: float | None = None
    seconds_a_request: float | None = None

    def __post_init__(self) -> None:
        """UnitError that names what cannot be."""
        for name in ("prompt_tokens", "answer_tokens", "thinking_tokens", "shared_prefix_tokens"):
            check_tokens(getattr(self, name), name.replace("_", " "))
        if self.peak_tokens < 1:
            raise UnitError("tokens: a request of no prompt and no answer holds nothing; say at least one token")
        check_tokens(self.peak_tokens, "prompt, thinking and answer together")
        if self.shared_prefix_tokens > self.prompt_tokens:
            raise UnitError(
                f"shared prefix: {self.shared_prefix_tokens:,} tokens are more than the prompt of "
                f"{self.prompt_tokens:,} that they begin"
            )
        if isinstance(self.people, bool) or not 1 <= self.people <= MAX_PEOPLE:
            raise UnitError(f"people: {self.people:,} is not within 1 … {MAX_PEOPLE:,}")
        if not 0 < self.active_share <= 1:
            raise UnitError(f"active share: {self.active_share:g} is not above 0 and at most 1")
        if (self.requests_per_minute is None) != (self.seconds_a_request is None):
            raise UnitError("requests a minute and seconds a request belong together: give both or neither")
        for name in ("requests_per_minute", "seconds_a_request"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 10**9:
                raise UnitError(f"{name.replace('_', ' ')}: {value:g} is not above 0 and below 10⁹")

    @property
    def generated_tokens(self) -> int:
        """Thinking and answer."""
        return self.thinking_tokens + self.answer_tokens

    @property
    def peak_tokens(self) -> int:
        """What a request holds when its last token is made: the prompt and all that was generated."""
        return self.prompt_tokens + self.generated_tokens

    @property
    def mean_tokens(self) -> int:
        """What it holds on average over its life where decoding takes most of it: the prompt and half of the rest."""
        return self.prompt_tokens + -(-self.generated_tokens // 2)

    @property
    def by_rate(self) -> bool:
        """Whether people are described by how often they ask."""
        return self.requests_per_minute is not None

    @property
    def each(self) -> Fraction:
        """Requests that one person has at once on average: the share, or by Little's law."""
        if self.requests_per_minute is None or self.seconds_a_request is None:
            return _exact(self.active_share)
        return _exact(self.requests_per_minute) * _exact(self.seconds_a_request) / 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Active:
    """Requests at once, for all people: `mean` on average, `nearly_always` in 99 of 100 moments at most."""

    mean: Fraction
    nearly_always: int
    sentence: str
    terms: tuple[Term, ...]


def active_requests(traffic: Traffic) -> Active:
    """How many requests are alive at a moment: people × share, or Little's law L = λ W (Little 1961).

    People are independent of each other: with a share their number at a moment is binomial; where requests arrive at a
    rate it is a Poisson variable with mean L, whatever their lengths (M/G/∞).
    """
    mean = traffic.people * traffic.each
    if not traffic.by_rate:
        formula = f"{traffic.people:,} people × {traffic.active_share:g} generating at a moment"
    else:
        formula = (
            f"{traffic.people:,} people × {traffic.requests_per_minute:g} requests a minute / 60 × "
            f"{traffic.seconds_a_request:g} s a request (Little's law)"
        )
    most = most_at_once(traffic.people, float(traffic.each), by_rate=traffic.by_rate)
    shown = f"{float(mean):,.4g}"
    terms = (
        Term(name="requests at once, mean", formula=f"{formula} = {shown}", value=float(mean), unit="requests"),
        Term(
            name="requests at once, 99 of 100 moments",
            formula=f"no more than {most:,}, people being independent of each other",
            value=most,
            unit="requests",
            knowledge="estimated",
        ),
    )
    people = "person" if traffic.people == 1 else "people"
    sentence = (
        f"{traffic.people:,} {people} have {shown} requests at once on average, and at most {most:,} in 99 of 100 "
        "moments."
    )
    return Active(mean=mean, nearly_always=most, sentence=sentence, terms=terms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The same traffic admitted three ways, from the safest to the fullest; see `expected`."""

    plan: Plan
    active: Active
    shared_tokens: int
    chunk_tokens: int
    worst: Fit
    peak: Fit
    steady: Fit
    notes: tuple[str, ...]

    @property
    def fits(self) -> tuple[Fit, Fit, Fit]:
        """All three."""
        return self.worst, self.peak, self.steady


def expected(model: Model, deployment: Deployment, traffic: Traffic) -> Expected:
    """People that fit by worst case, by the expected peak, and in steady state.

    By worst case every request may grow to max_model_len, at the peak to its expected end: with either, all that are
    admitted can finish without one being preempted. In steady state requests are of all ages and hold the mean, beside
    one chunk of a prompt that is being taken in: more fit, and sometimes one has to wait or is computed again; never
    fewer, for what fits with all at their end fits at every age. The shared prefix is held once a replica, whole blocks
    of it; the worst case counts it like the rest. Raises PlanError where the deployment does not start or its memory is
    not known.
    """
    base = basis(model, deployment)
    plan = plan_from(base)
    if plan.refused or plan.kv_bytes is None:
        raise PlanError(plan.refused or f"{model.name}: its weights are not known; state the memory for the cache")
    limit = deployment.context
    notes: tuple[str, ...] = ()
    if traffic.peak_tokens > limit:
        notes = (
            f"Prompt, thinking and answer are {traffic.peak_tokens:,} tokens: the engine ends a request at {limit:,}, "
            "its max_model_len.",
        )
    peak, mean = min(traffic.peak_tokens, limit), min(traffic.mean_tokens, limit)
    shared, whole = shared_tokens(model, deployment, min(traffic.shared_prefix_tokens, limit), mean)
    chunk = max(1, min(batched_tokens(model, deployment), traffic.prompt_tokens - shared))
    filling = Filling(base=base, each=traffic.each, by_rate=traffic.by_rate, people=traffic.people)
    at_peak = filling.fit("expected peak", peak, shared, 0, "If every request may grow to its expected end")
    return Expected(
        plan=plan,
        active=active_requests(traffic),
        shared_tokens=shared,
        chunk_tokens=chunk,
        worst=filling.fit("worst case", limit, 0, 0, "If every request may grow to max_model_len"),
        peak=at_peak,
        steady=filling.fit(
            "steady state", mean, shared, chunk, "In steady state, with requests of all ages", at_peak.requests
        ),
        notes=notes + whole + engine(deployment.engine).admission,
    )


def _exact(value: float) -> Fraction:
    """A typed decimal as it reads: 0.1 is a tenth."""
    return Fraction(str(value))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What fits when a request is counted as `tokens` tokens, `own_tokens` of them beside the shared prefix.

    `requests` at once over all replicas, `people` whose requests these are on average, and `people_nearly_always`
    whose requests they are in 99 of 100 moments; low is the safe end. `fits`: the traffic's own people, at the safe
    end, in 99 of 100 moments.
    """

    name: str
    tokens: int
    own_tokens: int
    requests: Range[int]
    people: Range[int]
    people_nearly_always: Range[int]
    fits: bool
    sentence: str
    terms: tuple[Term, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Filling:
    """The pools of one deployment, to be filled with requests of several lengths.

    `each` are requests that one of `people` has at once on average, `by_rate` whether they come at random.
    """

    base: Basis
    each: Fraction
    by_rate: bool
    people: int

    def fit(self, name: str, tokens: int, shared: int, chunk: int, when: str, least: Range[int] = NONE) -> Fit:
        """Requests of `tokens` tokens, `shared` of them held once, beside a chunk in prefill; no fewer than `least`."""
        own = tokens - shared
        if engine(self.base.deployment.engine).slots:
            # A slot has cells for the longest request, whatever is in it.
            own, shared, chunk = self.base.deployment.context, 0, 0
        beside = sum(self._bytes(part) for part in (shared, chunk) if part)
        held = ENDS.map(lambda end: self._requests(own, beside, end))
        requests = held.zip(least, max)
        people = requests.map(lambda count: floor(count / self.each))
        nearly = requests.map(lambda count: most_people(count, float(self.each), by_rate=self.by_rate))
        sentence = (
            f"{when} ({tokens:,} tokens), {requests.low:,} fit at once: {people.low:,} people on average, "
            f"{nearly.low:,} in 99 of 100 moments."
        )
        return Fit(
            name=name,
            tokens=tokens,
            own_tokens=own,
            requests=requests,
            people=people,
            people_nearly_always=nearly,
            fits=nearly.low >= self.people,
            sentence=sentence,
            terms=self._terms(own, shared, chunk, beside, held.low, requests, people),
        )

    def _bytes(self, tokens: int) -> int:
        return layout_at(self.base.model, self.base.deployment, tokens).bytes_per_request

    def _requests(self, tokens: int, beside: int, end: End) -> int:
        """Requests over all replicas, beside so many bytes on each GPU."""
        if self.base.cache is None or not self.base.cache.keeps_cache:
            return self.base.requests(tokens).at(end)
        room = tuple(max(0, pool.kv_bytes.at(end) - beside) for pool in self.base.pools)
        return self.base.whole(self.base.cache.fill(tokens, room))

    def _terms(
        self, own: int, shared: int, chunk: int, beside: int, held: int, requests: Range[int], people: Range[int]
    ) -> tuple[Term, ...]:
        each, size = self._bytes(own), min(pool.kv_bytes.low for pool in self.base.pools)
        terms = [_term("pool on each GPU", f"{size:,} B at the safe end", size, "B")]
        for what, tokens in (("shared prefix, once a replica", shared), ("a chunk in prefill", chunk)):
            if tokens:
                value = self._bytes(tokens)
                terms.append(_term(what, f"{tokens:,} tokens = {value:,} B", value, "B"))
        terms.append(_term("a request's own", f"{own:,} tokens = {each:,} B on the fullest GPU", each, "B"))
        text = f"({size:,} − {beside:,}) B / {each:,} B, on {self.base.deployment.dp} replicas: {held:,}"
        if held < requests.low:
            text += f", and no fewer than hold when all are at their expected end: {requests.low:,}"
        terms.append(_term("requests at once", text, requests.low, "requests"))
        text = f"{requests.low:,} / {float(self.each):.4g} requests a person = {people.low:,}"
        terms.append(_term("people", text, people.low, "people"))
        return tuple(terms)


def _term(name: str, formula: str, value: int, unit: str) -> Term:
    return Term(name=name, formula=formula, value=value, unit=unit, knowledge="estimated")


Kind = Literal["latency", "balanced", "throughput"]
KINDS: tuple[Kind, ...] = ("latency", "balanced", "throughput")
# vLLM's advice (docs, Optimization and Tuning): about 2048 for short gaps between tokens, above 8192 for throughput.
SMALL_CHUNK, LARGE_CHUNK = 2048, 16_384
HIGH_UTILIZATION = 0.95

_TRADE = {
    "latency": (
        "Caches stay resident and batches are small: every request that is let in can grow to max_model_len, so none "
        "is ever evicted, and short chunks of prompts hold up the others' tokens least. Others wait in the queue."
    ),
    "balanced": (
        "As many requests are let in as can all reach their expected end. One that grows beyond it may evict another, "
        "which is then computed again."
    ),
    "throughput": (
        "The pool is filled with requests of all ages: batches are larger and memory is reused at once, and when many "
        "are near their end some are evicted and computed again as they resume."
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """One way to run a deployment. `requests` are let in at once over all replicas, `worst` of them could all grow to
    max_model_len, and `oversubscription` is the first over the second (None where not even one could).

    `tokens` is how long each of `requests` is counted: the longest, the expected end, or what is held on average.
    `full_chance` estimates how often the pool is full at a random moment where all are busy. `step` bounds the time
    between two tokens of a request, `again` the time to compute an evicted one again; None for an unknown shape.
    """

    kind: Kind
    deployment: Deployment
    changes: tuple[str, ...]
    requests: int
    worst: int
    oversubscription: float | None
    full_chance: float
    tokens: int
    expected: Expected
    step: Bound | None
    again: Bound | None
    trade: str
    sentence: str
    terms: tuple[Term, ...]

    @property
    def tokens_per_s_at_most(self) -> float | None:
        """Tokens a second of all requests together at most, where each makes one a step."""
        if self.step is None or not self.requests or not self.step.seconds_at_least:
            return None
        return self.requests / self.step.seconds_at_least


def presets(model: Model, deployment: Deployment, traffic: Traffic) -> tuple[Preset, ...]:
    """The three ways, for latency first; PlanError where the deployment does not start."""
    return tuple(preset(model, deployment, traffic, kind) for kind in KINDS)


def preset(model: Model, deployment: Deployment, traffic: Traffic, kind: Kind) -> Preset:
    """One way to run a deployment; PlanError where it does not start, or for a kind that is not one of KINDS.

    It is the same whichever preset was taken before: nothing that one of them sets counts as chosen by hand.
    """
    if kind not in KINDS:
        raise PlanError(f"preset {str(kind)[:40]!r} is not known; known are {', '.join(KINDS)}")
    chosen = _chosen(model, _by_hand(model, deployment), kind)
    found = expected(model, replace(chosen, max_num_seqs=None), traffic)
    worst = found.worst.requests.low
    counted = {"latency": found.worst, "balanced": found.peak, "throughput": found.steady}[kind]
    admitted = counted.requests.low
    if admitted < 1 and worst < 1 and found.steady.requests.low < 1:
        raise PlanError(f"{kind}: not even one request fits at the safe end; {found.plan.binding.sentence}")
    each = max(1, admitted // chosen.dp)
    chosen = replace(chosen, max_num_seqs=each)
    requests = each * chosen.dp
    layout = layout_at(model, chosen, found.steady.tokens)
    step = decode_bound(model, chosen, found.steady.tokens, each, layout.kv_dtype)
    again = prefill_bound(model, chosen, found.steady.tokens, layout.kv_dtype)
    over = requests / worst if worst else None
    chance = _full_chance(model, chosen, traffic, found, each)
    return Preset(
        kind=kind,
        deployment=chosen,
        changes=_changes(deployment, chosen),
        requests=requests,
        worst=worst,
        oversubscription=over,
        full_chance=chance,
        tokens=counted.tokens,
        expected=found,
        step=step,
        again=again,
        trade=_TRADE[kind],
        sentence=_sentence(kind, requests, worst, chance, step, again),
        terms=_terms(requests, worst, over, chance, step),
    )


def _by_hand(model: Model, deployment: Deployment) -> Deployment:
    """The deployment as it would be had no preset been taken: a link does not say which one was.

    So a number that equals what a preset sets is a preset's, also where somebody typed it.
    """
    plain = replace(deployment, max_num_seqs=None)
    if not engine(deployment.engine).step_memory:
        return plain
    if plain.max_num_batched_tokens is not None:
        default = batched_tokens(model, replace(plain, max_num_batched_tokens=None))
        if plain.max_num_batched_tokens in _chunks(default).values():
            plain = replace(plain, max_num_batched_tokens=None)
    if plain.utilization is not None and _has_high_share(plain):
        default_share = usable_share(model, replace(plain, utilization=None))
        if plain.utilization == max(HIGH_UTILIZATION, default_share):
            plain = replace(plain, utilization=None)
    return plain


def _chosen(model: Model, deployment: Deployment, kind: Kind) -> Deployment:
    """Chunk and utilisation of a kind, where the engine has them; what was chosen by hand stays."""
    if not engine(deployment.engine).step_memory:
        return deployment
    chunk = deployment.max_num_batched_tokens
    if chunk is None:
        default = batched_tokens(model, deployment)
        chunk = _chunks(default).get(kind)
        chunk = None if chunk == default else chunk
    share = deployment.utilization
    if share is None and kind == "throughput" and _has_high_share(deployment):
        share = max(HIGH_UTILIZATION, usable_share(model, deployment))
    return replace(deployment, max_num_batched_tokens=chunk, utilization=share)


def _chunks(default: int) -> dict[Kind, int]:
    """Tokens a step of the kinds that set them, beside the engine's own number."""
    return {"latency": min(SMALL_CHUNK, default), "throughput": max(LARGE_CHUNK, default)}


def _has_high_share(deployment: Deployment) -> bool:
    """Whether throughput raises the share of the memory there."""
    chosen = engine(deployment.engine)
    return chosen.share_of == "total" and not chosen.share_by_gpu and deployment.kv_bytes is None


def _full_chance(model: Model, deployment: Deployment, traffic: Traffic, found: Expected, batch: int) -> float:
    """How likely the pool of a replica is full at a random moment: an estimate by a normal curve.

    Each of `batch` requests is at a random point of its answer, so what it holds is uniform between its prompt and its
    peak: the mean of the sum is the batch times the middle, its variance the batch times a twelfth of the square.
    """
    if engine(deployment.engine).slots:
        return 0.0
    shared = found.shared_tokens
    start, end = (
        layout_at(model, deployment, tokens - shared).bytes_per_request
        for tokens in (max(traffic.prompt_tokens, shared + 1), found.peak.tokens)
    )
    beside = sum(layout_at(model, deployment, part).bytes_per_request for part in (shared, found.chunk_tokens) if part)
    room = min(pool.kv_bytes.low for pool in found.plan.pools) - beside
    if batch * end <= room:
        return 0.0
    deviation = sqrt(batch / 12) * (end - start)
    mean = batch * Fraction(start + end, 2)
    if not deviation:
        return float(mean > room)
    return 0.5 * (1 - erf(float(room - mean) / (deviation * sqrt(2))))


def _changes(before: Deployment, after: Deployment) -> tuple[str, ...]:
    names = {
        "max_num_seqs": "sequences at once on each replica",
        "max_num_batched_tokens": "tokens a step",
        "utilization": "share of the memory",
    }
    changed = []
    for name, words in names.items():
        value = getattr(after, name)
        if value != getattr(before, name):
            said = "the engine's own" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:g}"
            changed.append(f"{words}: {said}")
    return tuple(changed)


def _sentence(kind: Kind, requests: int, worst: int, chance: float, step: Bound | None, again: Bound | None) -> str:
    text = f"Tuned for {kind}: " if kind != "balanced" else "Balanced: "
    text += f"{plural(requests, 'request')} at once"
    if worst:
        text += f", {requests / worst:.3g} times what fits at max_model_len"
    if step is not None:
        text += f"; a token every {seconds_text(step.seconds_at_least)} at best"
    if chance >= 0.005:
        text += f"; the pool is full {chance:.0%} of the time, by estimate, and an evicted request costs"
        text += " its prefill again" if again is None else f" at least {seconds_text(again.seconds_at_least)} again"
    elif requests <= worst:
        text += "; nothing is ever evicted"
    else:
        text += "; nothing is evicted while requests stay within their expected length"
    return f"{text}."


def _terms(requests: int, worst: int, over: float | None, chance: float, step: Bound | None) -> tuple[Term, ...]:
    terms = [Term(name="let in at once", formula=plural(requests, "request"), value=requests, unit="requests")]
    if over is not None:
        text = f"{requests:,} / {worst:,} that fit at max_model_len = {over:.4g}"
        terms.append(Term(name="oversubscription", formula=text, value=over, unit="times", knowledge="estimated"))
    text = "requests at random points of their answers, their sum by a normal curve"
    terms.append(Term(name="pool full", formula=text, value=chance, unit="share", knowledge="estimated"))
    return (*terms, *(step.terms if step is not None else ()))
