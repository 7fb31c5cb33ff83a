"""vLLM's overheads: what the fitted rule says of a dummy run, part by part, with the numbers filled in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from kvcore.deployment import Deployment
from kvcore.engines.overheads import Overhead, gib_bytes
from kvcore.engines.vllm.memory import (
    EXPERT_CHUNK,
    SPREAD,
    Coefficients,
    OverheadFit,
    Parts,
    Profile,
    ends_gib,
    fitted,
    parts_gib,
    profile,
    tower_peak_gib,
)
from kvcore.engines.vllm.settings import VllmSettings, batch_defaults
from kvcore.engines.vllm.tower import UNSTATED_WEIGHTS, lacks_tower
from kvcore.model.model import Model
from kvcore.model.towers import Tower
from kvcore.ranks.weights import RankWeights
from kvcore.terms import Range
from kvcore.units import GIB

# Bytes a sequence and logit that the dummy run of a rejection sampler takes beside a sampler's: logits of the proposed
# tokens in 16 bits, and at most a copy of them in 32 bits too (gpu_model_runner.py, _dummy_sampler_run).
_PROPOSED = Range(low=0, best=2, high=6)
# Graphs of a draft's layers, as a share of as many layers of the model's.
_DRAFT_GRAPHS = Range(low=0.0, best=1.0, high=2.0)
_NOTHING = Range.exactly(0)


# Without slots, so that parts and notes are made once.
@dataclass(frozen=True, kw_only=True)
class VllmOverheads:
    """See kvcore.engines.overheads.Overheads: the total is the fitted range; parts and notes are made when asked."""

    run: Profile
    made: Parts
    rule: OverheadFit
    share: float
    version: str
    deployment: Deployment
    speculation: Range[int]
    unlisted: Range[int]
    total: Range[int]

    @cached_property
    def parts(self) -> tuple[Overhead, ...]:
        """The parts, each with its own doubt."""
        run = self.run
        found = list(_parts(self.made, run, self.rule, self.share))
        if self.deployment.speculative_tokens:
            found.append(
                Overhead(
                    name="speculation",
                    bytes=self.speculation,
                    formula=f"logits of what is proposed: {run.seqs:,} sequences × {run.shape.vocabulary:,} × "
                    f"{_PROPOSED.best} B" + (", and graphs of the draft's layers" if self.deployment.draft else ""),
                )
            )
        if self.unlisted.high:
            found.append(
                Overhead(
                    name="weights of the tower",
                    bytes=self.unlisted,
                    formula="what reads pictures or sound is not in the configuration: 300 to 600 million parameters",
                )
            )
        return tuple(found)

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What is assumed, and what would leave more."""
        return _notes(self.run, self.deployment, self.version)


def overheads(
    model: Model, deployment: Deployment, settings: VllmSettings, weights: RankWeights, share: float
) -> VllmOverheads:
    """Bytes on the fullest GPU of the pipeline stage that `weights` is of. Estimates; never less than nothing."""
    rule, run = fitted(), profile(model, deployment, weights.stage, settings=settings)
    made = parts_gib(rule.coefficients, run, share)
    low, high = ends_gib(rule, made, run, weights.bytes / GIB if weights.knowledge == "estimated" else 0.0)
    speculation, unlisted = _speculation(run, made, deployment), _unlisted_tower(run, weights)
    fit = Range(low=low, best=made.total, high=high).map(gib_bytes)
    return VllmOverheads(
        run=run,
        made=made,
        rule=rule,
        share=share,
        version=settings.version,
        deployment=deployment,
        speculation=speculation,
        unlisted=unlisted,
        total=fit + speculation + unlisted,
    )


def _speculation(run: Profile, made: Parts, deployment: Deployment) -> Range[int]:
    """What proposing tokens takes beside the proposer's weights, which are among the weights."""
    if not deployment.speculative_tokens:
        return _NOTHING
    draft = deployment.draft
    layers = 0 if draft is None else 1 if draft.model is None else len(draft.model.layers)
    logits = run.seqs * run.shape.vocabulary
    graphs = made.graphs * layers / max(1, run.shape.layers)
    return _PROPOSED * logits + (_DRAFT_GRAPHS * graphs).map(gib_bytes)


def _parts(parts: Parts, run: Profile, rule: OverheadFit, share: float) -> Iterator[Overhead]:
    fit = rule.coefficients
    doubt = parts.activation_doubt
    yield Overhead(
        name="activation peak",
        bytes=Range(
            low=max(0.0, min(parts.activation - rule.low * doubt, parts.lower_peak)),
            best=parts.activation,
            high=max(parts.activation + rule.high * doubt, parts.higher_peak),
        ).map(gib_bytes),
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
    if run.tower and run.items:
        yield Overhead(
            name="multimodal encoder",
            bytes=_around(parts.encoder, parts.encoder_doubt, rule),
            formula=_tower_formula(run, run.tower, rule.coefficients),
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
    missing = run.tower is not None and run.items > 0 and lacks_tower(run.tower, weights)
    return UNSTATED_WEIGHTS.map(gib_bytes) if missing else _NOTHING


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


def _notes(run: Profile, deployment: Deployment, version: str) -> tuple[str, ...]:
    found: list[str] = []
    if run.seqs_open or run.tokens_open:
        names = [
            name
            for name, is_open in (("max_num_seqs", run.seqs_open), ("max_num_batched_tokens", run.tokens_open))
            if is_open
        ]
        found.append(f"{' and '.join(names)}: the version's default is assumed; stating it narrows the range.")
        if run.stepped:
            *larger, large, small = batch_defaults(version)
            found.append(
                f"vLLM's defaults step up at {large.gib} GiB of memory ({large.tokens:,} tokens and "
                f"{large.sequences:,} sequences instead of {small.tokens:,} and {small.sequences:,})"
                + "".join(f" and at {one.gib} GiB ({one.tokens:,} tokens)" for one in larger)
                + ": just above a step less is left for the cache than just below, unless both are stated."
            )
    if run.tower and not run.tower.stated:
        found.append("The part that reads pictures or sound is not in the configuration: a usual one is assumed.")
    if run.tower and run.older:
        found.append(
            "vLLM's older core profiles pictures for "
            + ("every sequence" if run.tower.crosses else "as many sequences as a step has room for")
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


def _around(value: float, doubt: float, rule: OverheadFit) -> Range[int]:
    gib = Range(low=max(0.0, value - rule.low * doubt), best=value, high=value + rule.high * doubt)
    return gib.map(gib_bytes)
