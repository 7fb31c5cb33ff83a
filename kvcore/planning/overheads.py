"""What a GPU holds beside weights and cache, as a range: activations, graphs, the runtime, what the driver keeps.

For vLLM the numbers are fitted on logged starts (data/overheads.json, made by benchmarks/fit_overheads.py); for the
other engines they follow from how each is built, with wider ranges. data/OVERHEADS.md says where each part comes from.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from kvcore.deployment import Deployment
from kvcore.engines.vllm.settings import VERSION, batch_defaults
from kvcore.model.model import Model
from kvcore.paths import DATA
from kvcore.planning.overhead_engines import ESTIMATES, Estimate
from kvcore.planning.overhead_rule import SPREAD, Coefficients, Fit, Parts, ends_gib, parts_gib, tower_peak_gib
from kvcore.planning.overhead_shape import EXPERT_CHUNK, Profile, profile
from kvcore.planning.overhead_tower import UNSTATED_WEIGHTS, Tower, lacks_tower
from kvcore.ranks.weights import RankWeights
from kvcore.terms import Range
from kvcore.units import GIB

# Bytes a sequence and logit that the dummy run of a rejection sampler takes beside a sampler's: logits of the proposed
# tokens in 16 bits, and at most a copy of them in 32 bits too (gpu_model_runner.py, _dummy_sampler_run).
_PROPOSED = Range(low=0, best=2, high=6)
# Graphs of a draft's layers, as a share of as many layers of the model's.
_DRAFT_GRAPHS = Range(low=0.0, best=1.0, high=2.0)
_NOTHING = Range.exactly(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """Bytes on one GPU that are neither weights nor cache, with the range in which they lie and how that is known."""

    name: str
    bytes: Range[int]
    formula: str
    knowledge: str = "estimated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """The parts, and their total, whose range is fitted on the sum: narrower than the sum of the parts' ranges."""

    parts: tuple[Overhead, ...]
    total: Range[int]
    notes: tuple[str, ...]


def overheads(model: Model, deployment: Deployment, weights: RankWeights, share: float) -> Overheads:
    """Bytes on the fullest GPU of the pipeline stage that `weights` is of. Estimates; never less than nothing.

    `share` is what the engine takes of the memory (pools.usable_share).
    """
    key = (id(model), deployment, weights.stage, weights.bytes, weights.knowledge, share)
    found = _MADE.get(key)
    if found is None:
        if len(_MADE) >= _MOST_MADE:
            _MADE.clear()
        found = _MADE[key] = (model, _overheads(model, deployment, weights, share))
    return found[1]


# A plan asks the same more than once. By identity of the model, which is kept so that its place stays its own.
_MADE: dict[tuple[int, Deployment, int, int, str, float], tuple[Model, Overheads]] = {}
_MOST_MADE = 4096


def total_overheads(model: Model, deployment: Deployment, weights: RankWeights, share: float) -> Range[int]:
    """The total of `overheads` alone, without its parts and their words: for many contexts or splits."""
    if deployment.engine == "vllm":
        return _vllm_total(_Run.of(model, deployment, weights.stage, share), deployment, weights)
    return sum(_lasting(ESTIMATES[deployment.engine](model, deployment, weights, share).parts), _NOTHING)


def _overheads(model: Model, deployment: Deployment, weights: RankWeights, share: float) -> Overheads:
    if deployment.engine == "vllm":
        return _vllm(model, deployment, weights, share)
    estimate = ESTIMATES[deployment.engine]
    found = estimate(model, deployment, weights, share)
    return _added(found.parts, found.notes)


@cache
def fitted() -> Fit:
    """The rule for vLLM: coefficients, and how many spreads the ends lie off."""
    found = json.loads((DATA / "overheads.json").read_text("utf-8"))
    return Fit(coefficients=Coefficients(**found["coefficients"]), low=found["low"], high=found["high"])


@dataclass(frozen=True, slots=True)
class _Run:
    """A dummy run of vLLM with the parts that the rule makes of it."""

    profile: Profile
    parts: Parts
    rule: Fit
    share: float

    @staticmethod
    def of(model: Model, deployment: Deployment, stage: int, share: float) -> _Run:
        rule, run = fitted(), profile(model, deployment, stage)
        return _Run(profile=run, parts=parts_gib(rule.coefficients, run, share), rule=rule, share=share)


def _vllm_total(made: _Run, deployment: Deployment, weights: RankWeights) -> Range[int]:
    """The fitted range of all parts, with speculation and what a tower without a configuration weighs."""
    estimated = weights.bytes / GIB if weights.knowledge == "estimated" else 0.0
    low, high = ends_gib(made.rule, made.parts, made.profile, estimated)
    rule = Range(low=low, best=made.parts.total, high=high).map(_bytes)
    return rule + _speculation(made, deployment) + _unlisted_tower(made.profile, weights)


def _speculation(made: _Run, deployment: Deployment) -> Range[int]:
    """What proposing tokens takes beside the proposer's weights, which are among the weights."""
    if not deployment.speculative_tokens:
        return _NOTHING
    run, draft = made.profile, deployment.draft
    layers = 0 if draft is None else 1 if draft.model is None else len(draft.model.layers)
    logits = run.seqs * run.shape.vocabulary
    graphs = made.parts.graphs * layers / max(1, run.shape.layers)
    return _PROPOSED * logits + (_DRAFT_GRAPHS * graphs).map(_bytes)


def _vllm(model: Model, deployment: Deployment, weights: RankWeights, share: float) -> Overheads:
    made = _Run.of(model, deployment, weights.stage, share)
    run = made.profile
    found = list(_vllm_parts(made.parts, run, made.rule, made.share))
    if deployment.speculative_tokens:
        found.append(
            Overhead(
                name="speculation",
                bytes=_speculation(made, deployment),
                formula=f"logits of what is proposed: {run.seqs:,} sequences × {run.shape.vocabulary:,} × "
                f"{_PROPOSED.best} B" + (", and graphs of the draft's layers" if deployment.draft else ""),
            )
        )
    unlisted = _unlisted_tower(run, weights)
    if unlisted.high:
        found.append(
            Overhead(
                name="weights of the tower",
                bytes=unlisted,
                formula="what reads pictures or sound is not in the configuration: 300 to 600 million parameters",
            )
        )
    total = _vllm_total(made, deployment, weights)
    return Overheads(parts=tuple(found), total=total, notes=_vllm_notes(run, deployment))


def _vllm_parts(parts: Parts, run: Profile, rule: Fit, share: float) -> Iterable[Overhead]:
    fit = rule.coefficients
    doubt = parts.activation_doubt
    yield Overhead(
        name="activation peak",
        bytes=Range(
            low=max(0.0, min(parts.activation - rule.low * doubt, parts.lower_peak)),
            best=parts.activation,
            high=max(parts.activation + rule.high * doubt, parts.higher_peak),
        ).map(_bytes),
        formula=_peak_formula(run, fit),
    )
    runtime = parts.context + parts.collective
    yield Overhead(
        name="outside torch",
        bytes=_around(
            runtime,
            SPREAD["collective"] * parts.collective + SPREAD["linked"] * run.linked + SPREAD["constant"] / 2,
            rule,
        ),
        formula=f"{parts.context:.2f} GiB for CUDA"
        + (f" + {parts.collective:.2f} GiB for {_groups(run.groups)} of ranks" if run.groups else ""),
    )
    if run.graph_units:
        yield Overhead(
            name="CUDA graphs",
            bytes=_around(parts.graphs, parts.graphs_doubt, rule),
            formula=_graph_formula(run, fit),
        )
    if run.shape.tower and run.items:
        yield Overhead(
            name="multimodal encoder",
            bytes=_around(parts.encoder, parts.encoder_doubt, rule),
            formula=_tower_formula(run, run.shape.tower, rule.coefficients),
        )
    if run.unified:
        yield Overhead(
            name="shared with the host",
            bytes=_around(parts.unified, SPREAD["unified"] * parts.unified, rule),
            formula=f"unified memory that the system takes meanwhile: {parts.unified:.2f} GiB",
        )
    if parts.driver:
        yield Overhead(
            name="kept by the driver",
            bytes=_around(parts.driver, SPREAD["driver"] * parts.driver, rule),
            formula=f"({fit.driver:.2f} GiB + {fit.driver_share:.2%} of {run.total_gib:.2f} GiB) × {share:g}: what "
            "nvidia-smi counts and CUDA does not give",
        )


def _unlisted_tower(run: Profile, weights: RankWeights) -> Range[int]:
    """The weights of a tower that no configuration describes, where they are not among the weights."""
    made = run.shape.tower
    missing = made is not None and run.items > 0 and lacks_tower(made, weights)
    return UNSTATED_WEIGHTS.map(_bytes) if missing else _NOTHING


def _groups(count: int) -> str:
    return "one group" if count == 1 else f"{count} groups"


def _tower_formula(run: Profile, made: Tower, fit: Coefficients) -> str:
    what = "picture" if run.items == 1 else "pictures"
    return (
        f"what {run.items:,} {what} × {made.rows:,} patches × {made.hidden:,} columns × "
        f"{fit.encoder + made.outputs:.1f} × 2 B = {tower_peak_gib(fit, run):.2f} GiB take beyond the peak, or what is "
        f"kept of them, {run.pictures_gib:.2f} GiB"
    )


def _graph_formula(run: Profile, fit: Coefficients) -> str:
    experts = run.expert_graphs
    pool, nodes = fit.graph_pool + experts * fit.expert_pool, fit.graph_nodes + experts * fit.expert_nodes
    return (
        f"{pool:.2f} GiB + {run.graph_units:,} (layers × captured sizes) × ({nodes:.3f} MiB of nodes + "
        f"{run.shape.hidden:,} columns × {fit.graphs:.1f} × 2 B)"
    )


def _peak_formula(run: Profile, fit: Coefficients) -> str:
    per_logit = fit.sorting if run.sorts else fit.sampling
    made = run.shape
    layer = f"{run.tokens:,} tokens × ({made.widest:,} + 2 × {made.hidden:,}) × 2 B"
    if run.gathered > run.tokens:
        layer = (
            f"({min(run.gathered, EXPERT_CHUNK):,} tokens × {made.expert_width:,} + {run.gathered:,} tokens of all "
            f"replicas × 2 × {made.hidden:,}) × 2 B"
        )
    layer += f" × {fit.forward:.2f} = {fit.forward * run.forward_gib:.2f} GiB"
    kept = "cached latents" if made.latent_row else "what a stage hands on"
    room = f" + {run.workspace_gib:.2f} GiB for {kept}" if run.workspace_gib else ""
    if not run.seqs:
        return layer + room
    sampler = (
        f"{run.seqs:,} sequences × {run.shape.vocabulary:,} logits × {per_logit:.1f} B + hidden states "
        f"= {per_logit * run.logits_gib + run.hidden_gib:.2f} GiB"
    )
    return f"the larger of {layer} and {sampler}{room}"


def _vllm_notes(run: Profile, deployment: Deployment) -> tuple[str, ...]:
    found: list[str] = []
    if run.seqs_open or run.tokens_open:
        names = [
            name
            for name, is_open in (("max_num_seqs", run.seqs_open), ("max_num_batched_tokens", run.tokens_open))
            if is_open
        ]
        found.append(f"{' and '.join(names)}: the version's default is assumed; stating it narrows the range.")
        if run.stepped:
            *larger, large, small = batch_defaults(deployment.engine_version or VERSION)
            found.append(
                f"vLLM's defaults step up at {large.gib} GiB of memory ({large.tokens:,} tokens and "
                f"{large.sequences:,} sequences instead of {small.tokens:,} and {small.sequences:,})"
                + "".join(f" and at {one.gib} GiB ({one.tokens:,} tokens)" for one in larger)
                + ": just above a step less is left for the cache than just below, unless both are stated."
            )
    if run.shape.tower and not run.shape.tower.stated:
        found.append("The part that reads pictures or sound is not in the configuration: a usual one is assumed.")
    if run.shape.tower and run.older:
        found.append(
            "vLLM's older core profiles pictures for "
            + ("every sequence" if run.shape.tower.crosses else "as many sequences as a step has room for")
            + ", and the whole context at once: fewer sequences or a shorter context leave more."
        )
    if run.gathered > run.tokens:
        found.append("Experts see the tokens of all replicas: a smaller max_num_batched_tokens leaves more.")
        if deployment.expert_parallel and run.graph_units:
            found.append(
                "vLLM's own estimate of CUDA graphs has been logged as 57 to 119 GiB for replicas of a mixture with "
                "expert parallelism (issues 57936 and 53013): such a start is refused, and this plan does not foresee "
                "it. VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0 switches the estimate off."
            )
    if run.unified:
        found.append("Unified memory: what the host uses while vLLM starts is counted against the cache.")
    return tuple(found)


def _around(value: float, doubt: float, rule: Fit) -> Range[int]:
    gib = Range(low=max(0.0, value - rule.low * doubt), best=value, high=value + rule.high * doubt)
    return gib.map(_bytes)


def _added(parts: tuple[Estimate, ...], notes: tuple[str, ...]) -> Overheads:
    """Parts of an engine without a fit: their ends added up, the least certain reading."""
    found = tuple(
        Overhead(name=part.name, bytes=part.gib.map(_bytes), formula=part.formula)
        for part in parts
        if part.gib.high > 0
    )
    return Overheads(parts=found, total=sum((part.bytes for part in found), _NOTHING), notes=notes)


def _lasting(parts: tuple[Estimate, ...]) -> Iterable[Range[int]]:
    return (part.gib.map(_bytes) for part in parts if part.gib.high > 0)


def _bytes(gib: float) -> int:
    return int(gib * GIB)
