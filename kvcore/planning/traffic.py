"""What people ask of a deployment: lengths of prompt, thinking and answer, and how many of them generate at once."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from kvcore.deployment import Deployment
from kvcore.engines.registry import engine
from kvcore.errors import PlanError, UnitError
from kvcore.model.model import Model
from kvcore.planning.basis import basis
from kvcore.planning.fits import Filling, Fit
from kvcore.planning.moments import most_at_once
from kvcore.planning.plan import Plan, plan_from
from kvcore.planning.sharing import batched_tokens, shared_tokens
from kvcore.terms import Term
from kvcore.units import check_tokens

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
