"""Three ways to run one deployment: for latency, balanced, for throughput; what each sets, keeps and risks.

The trade is the one between memory and recomputation: caches that stay resident with small batches, against larger
batches whose requests are sometimes evicted and computed again when they resume.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from math import erf, sqrt
from typing import Literal

from kvcore.deployment import Deployment
from kvcore.engines.registry import engine
from kvcore.errors import PlanError
from kvcore.model.model import Model
from kvcore.planning.pools import usable_share
from kvcore.planning.sharing import batched_tokens, layout_at
from kvcore.planning.speed import decode_bound, prefill_bound, seconds_text
from kvcore.planning.traffic import Expected, Traffic, expected
from kvcore.terms import Term
from kvcore.timing import Bound
from kvcore.units import plural

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
