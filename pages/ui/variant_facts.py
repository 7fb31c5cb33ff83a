"""What is computed of each rung of the Variants screen: its work, its bounds on the server that is meant, its room."""

from __future__ import annotations

from dataclasses import dataclass

from kvcore.engines.reserve import stored_by
from kvcore.hardware import Accelerator, accelerator
from kvcore.ladder import Ladder, Rung
from kvcore.plan.room import Room, gpus_for, room
from kvcore.plan.sharding import on_rank
from kvcore.scenario import HOST_GPUS, Scenario
from kvcore.timing import Bound, CacheWork, WeightWork, Work, bound, decode_cache_work, weight_work
from kvcore.variant_options import VariantOptions
from pages.ui.models import Chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The accelerators that the screen's bounds are about."""

    gpu: Accelerator
    count: int
    weights: str | None

    @property
    def name(self) -> str:
        return f"{self.count} × {self.gpu.name}" if self.count > 1 else self.gpu.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is computed of a rung for one more token.

    `work` is that of the whole cache, once; `share` is what one GPU does of it, and `fastest` bounds that. `together`
    is the bound with its part of the weights; it and `weights` are None where the weights are not known.
    """

    rung: Rung
    work: CacheWork
    share: CacheWork
    fastest: Bound
    weights: WeightWork | None
    together: Bound | None
    room: Room | None
    engines: tuple[str, ...]
    engines_lack: str
    """Why there is no engine, in words; empty where there is one."""


def server(chosen: Chosen, scenario: Scenario, options: VariantOptions) -> Server:
    """What the controls say: a host, or as many GPUs as the weights fill by half, unless a number is chosen."""
    gpu, weights = accelerator(scenario.gpu), None if options.weights == "auto" else options.weights
    count = options.gpus or max(HOST_GPUS, gpus_for(chosen.model, gpu, weights))
    return Server(gpu=gpu, count=count, weights=weights)


def facts(shown: Ladder, scenario: Scenario, place: Server) -> dict[str, Facts]:
    """What the tables and cards say of every rung, by its design, in the order of the ladder."""
    found = {}
    for rung in shown.rungs:
        tokens, source = max(1, scenario.tokens), scenario.source or None
        # What each GPU has to read: a latent is on all of them, heads and weights are split.
        share = decode_cache_work(on_rank(rung.model, place.count), tokens, rung.kv, source)
        weights = weight_work(rung.model, 1, place.weights)
        engines = stored_by(rung.model, rung.kv.name, place.gpu)
        found[rung.design] = Facts(
            rung=rung,
            work=decode_cache_work(rung.model, tokens, rung.kv, source),
            share=share,
            fastest=bound(share.work, place.gpu),
            weights=weights,
            together=None if weights is None else bound(share.work + _split(weights.work, place.count), place.gpu),
            room=room(
                rung.model, scenario.tokens, rung.kv, place.gpu, place.count, weights=place.weights,
                source_tokens=scenario.source or None,
            ),
            engines=engines,
            engines_lack="" if engines else _lack(rung, place.gpu),
        )  # fmt: skip
    return found


def _lack(rung: Rung, gpu: Accelerator) -> str:
    """What no engine does: store the format on this accelerator, store it at all, or lay out such layers."""
    if not any(memory.kind != "none" for memory, _ in rung.model.kept):
        return "it keeps no cache"
    if stored_by(rung.model, rung.kv.name):
        return f"no engine here stores {rung.kv.name} on {gpu.name}"
    if not rung.own_format and stored_by(rung.model, "auto"):
        return f"no engine here stores this cache in {rung.kv.name}"
    return "no engine here lays out such layers"


def _split(work: Work, ranks: int) -> Work:
    """One rank's part of work that is split evenly."""
    return Work(
        read_bytes=-(-work.read_bytes // ranks),
        written_bytes=-(-work.written_bytes // ranks),
        operations=-(-work.operations // ranks),
    )
