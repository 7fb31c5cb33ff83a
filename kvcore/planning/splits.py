"""A split over GPUs in words, and what it costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from kvcore.deployment import Deployment, Split
from kvcore.engines.base import Engine
from kvcore.engines.registry import engine as engine_of
from kvcore.errors import UnitError
from kvcore.hardware.gpus import Accelerator, accelerator
from kvcore.hardware.systems import MAX_GPUS, host_gpus
from kvcore.model.model import Model
from kvcore.ranks import speculation
from kvcore.ranks.splits import is_latent, kv_heads


def split_name(deployment: Deployment) -> str:
    """`TP 4 × DP 2`, `TP 8 with DCP 2`, `TP 1`."""
    sizes = (("TP", deployment.tp), ("PP", deployment.pp), ("DP", deployment.dp))
    name = " × ".join(f"{word} {size}" for word, size in sizes if size > 1) or "TP 1"
    extras = [f"DCP {deployment.dcp}"] if deployment.dcp > 1 else []
    extras += ["expert parallel"] if deployment.expert_parallel else []
    extras += ["DP attention"] if deployment.dp_attention else []
    return f"{name} with {', '.join(extras)}" if extras else name


def split_price(before: Deployment, after: Deployment) -> tuple[str, ...]:
    """What the second split asks for that the first does not, a sentence each without its full stop."""
    words = []
    if after.tp > before.tp:
        words.append("in every layer the GPUs of a replica wait for each other's sums, which cross the link")
    if after.pp > before.pp:
        words.append(
            f"a token passes {after.pp} stages one after another, so that one request is no faster than on one stage's "
            "GPUs"
        )
    if after.dp > before.dp and not after.dp_attention:
        words.append("each replica loads all weights, and a prefix cached in one is not in the others")
    if after.replica_gpus > before.replica_gpus and after.gpus == before.gpus:
        words.append("there are fewer replicas: one that fails takes more of the service with it")
    if after.dcp > before.dcp:
        words.append("ranks exchange their parts of the attention in every decoding step")
    if after.expert_parallel and not before.expert_parallel:
        words.append("experts that are asked for most often load some GPUs more than others")
    if after.dp_attention and not before.dp_attention:
        words.append("each request's cache lies on one group of ranks, which requests must be spread over evenly")
    return tuple(words)


# The rules of a split do not depend on the GPU; one is needed to ask.
_ANY_GPU = "h100-sxm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard(Split):
    """One way to split a model: `refused` says why the engine cannot, "" where it can; `notes` what it means."""

    refused: str = ""
    notes: tuple[str, ...] = ()

    def onto(self, deployment: Deployment) -> Deployment:
        """The deployment in this split."""
        return deployment.on(self)


def check(model: Model, deployment: Deployment) -> str:
    """Why this engine cannot serve the model in this split, in a sentence without its full stop; "" where it can.

    Raises EngineError for an engine that is not known. Memory is not looked at.
    """
    chosen = engine_of(deployment.engine)
    return next(chosen.refusals(model, deployment), "") or speculation.refused(model, deployment, chosen)


def notes(model: Model, deployment: Deployment) -> tuple[str, ...]:
    """What is held more than once, divided unevenly or sent between hosts in a split that is possible."""
    return tuple(_notes(model, deployment, engine_of(deployment.engine)))


def shards(model: Model, engine: str, gpus: int) -> tuple[Shard, ...]:
    """Every split of that many GPUs that somebody would try: valid ones first, tensor parallel before the others.

    Raises EngineError for an engine that is not known and UnitError for a number of GPUs out of range.
    """
    chosen = engine_of(engine)
    if not 1 <= gpus <= MAX_GPUS:
        raise UnitError(f"GPUs: {gpus:,} is not within 1 … {MAX_GPUS:,}")
    found = []
    for deployment in _tries(model, chosen, gpus, accelerator(_ANY_GPU)):
        reason = check(model, deployment)
        found.append(
            Shard(
                tp=deployment.tp, pp=deployment.pp, dp=deployment.dp, dcp=deployment.dcp,
                expert_parallel=deployment.expert_parallel, dp_attention=deployment.dp_attention, refused=reason,
                notes=() if reason else notes(model, deployment),
            )
        )  # fmt: skip
    return tuple(sorted(found, key=_order))


def _order(shard: Shard) -> tuple[object, ...]:
    return (bool(shard.refused), shard.pp, shard.dp, shard.dp_attention, shard.dcp, shard.expert_parallel)


def _tries(model: Model, engine: Engine, gpus: int, gpu: Accelerator) -> Iterator[Deployment]:
    """Divisors of the number of GPUs for each way; of engines that split by layers, tensor parallel for its reason."""
    base = Deployment(gpu=gpu, context=1, engine=engine.name)
    apart = engine.rules.dp_attention not in ("", "replicas")
    divisors = [number for number in range(1, gpus + 1) if gpus % number == 0]
    for pp in divisors:
        for tp in (number for number in divisors if gpus // pp % number == 0):
            split = replace(base, tp=tp, pp=pp, dp=gpus // pp // tp)
            yield split
            if engine.rules.whole_layers:
                continue
            if model.experts is not None and split.tp * split.dp > 1:
                yield replace(split, expert_parallel=True, dp_attention=split.dp > 1)
            if split.dp > 1 and pp == 1 and apart and (model.experts is not None or is_latent(model)):
                yield replace(split, dp_attention=True)
            if pp == 1 and split.dp == 1:
                yield from (replace(split, dcp=dcp) for dcp in divisors if dcp > 1 and tp % dcp == 0)


def _notes(model: Model, deployment: Deployment, engine: Engine) -> Iterator[str]:
    tp, pp, dp = deployment.tp, deployment.pp, deployment.dp
    if not engine.rules.whole_layers and tp > 1:
        yield from _held_twice(model, deployment)
    sizes = [len(stage) for stage in engine.stages(model, deployment)]
    if len(set(sizes)) > 1:
        yield f"{len(model.layers)} layers over {len(sizes)} stages: {', '.join(map(str, sizes))}; the fullest binds"
    experts = engine.ways(model, deployment).experts
    if deployment.expert_parallel and model.experts is not None:
        number, ranks = model.experts.num_experts, experts
        most = -(-number // ranks)
        uneven = "" if number % ranks == 0 else f"; {number} are not divisible, so others have {most - 1}"
        yield f"{most} whole experts of a layer on each of {ranks} ranks{uneven}"
    group = max(tp, experts)
    if dp > 1 and group > tp:
        yield f"each of {dp} replicas holds all of attention; they share the experts over {group} ranks"
    elif dp > 1:
        yield f"{dp} replicas hold all weights once each; each serves its own requests"
    host = host_gpus(deployment.gpu.id)
    if group > host:
        yield f"{group} ranks that exchange every layer are more than a host's {host} GPUs: they go over the network"
    elif tp * pp > host:
        yield f"the {tp * pp} GPUs of a replica are more than a host's {host}: stages pass activations over the network"


def _held_twice(model: Model, deployment: Deployment) -> Iterator[str]:
    tp, dcp = deployment.tp, deployment.dcp
    if is_latent(model):
        split = f"; decode context parallel divides its tokens by {dcp}" if dcp > 1 else ""
        yield f"the latent is held whole by each of {tp} ranks{split}"
    else:
        for kv in kv_heads(model):
            if tp > kv:
                times = {2: "twice"}.get(tp // kv, f"{tp // kv} times")
                heads = f"one of {kv} KV heads" if kv > 1 else "the one KV head"
                split = f"; decode context parallel divides their tokens by {dcp}" if dcp > 1 else ""
                yield f"each of {tp} ranks holds {heads}: every head is held {times}{split}"
    if model.indexers:
        yield f"the indexer and its keys are held whole by each of {tp} ranks"
