"""What every engine answers, in one small protocol; the answers explain themselves in terms.

An engine is given a Model and its own settings. It never looks at a model's name: where its rules depend on the
architecture, the memories say what is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import Any, Literal, Protocol

from kvcore.deployment import Deployment, Request
from kvcore.engines.command import Command
from kvcore.engines.layout import Capacity, Layout
from kvcore.engines.log import NO_LOG, LogRules
from kvcore.engines.overheads import Overheads
from kvcore.errors import EngineError
from kvcore.hardware.gpus import Accelerator
from kvcore.model.model import Model
from kvcore.model.weight_formats import WeightFormat
from kvcore.ranks import splits
from kvcore.ranks.rules import Ranked, RankRules, Ways
from kvcore.ranks.weights import RankWeights
from kvcore.terms import Term


@dataclass(frozen=True, slots=True, kw_only=True)
class Fill:
    """What one replica holds in its pools.

    `concurrency` is exact and as the engine counts it, `requests` whole requests that can be at their full length at
    once (0 where the engine does not start), not capped by CachePool.sequences. `tokens` as the engine logs.
    `by_sequences` where a number of requests that the engine chose by itself binds, and not the memory.
    """

    concurrency: Fraction
    requests: int
    tokens: int
    by_sequences: bool = False


NOTHING = Fill(concurrency=Fraction(0), requests=0, tokens=0)


class CachePool(Protocol):
    """The memory that an engine has for one model's cache, to be filled with requests; made once for all lengths.

    `kv_bytes` is its size on one GPU of each pipeline stage: the stages' bytes differ, and so does what they need.
    Every figure is the engine's own capacity, fast enough for a whole grid. `sequences` is the most requests at once
    that the engine allows one replica whatever its memory, None where it has no such bound, and `sequences_name` what
    that bound is called. `keeps_cache` is false of a model without one. `held_back` is what the engine never hands out,
    so that one request less fits than the memory would hold; "" for nothing.
    """

    sequences_name: str
    sequences: int | None = None
    keeps_cache: bool = True
    held_back: str = ""

    def fill(self, context: int, kv_bytes: tuple[int, ...]) -> Fill:
        """What the pools of the stages hold in requests of `context` tokens; EngineError for what is refused."""

    def count(self, context: int, kv_bytes: tuple[int, ...]) -> int:
        """The `requests` of `fill` alone, for many contexts; EngineError for what is refused."""
        return self.fill(context, kv_bytes).requests

    def holds(self, context: int, requests: int, kv_bytes: tuple[int, ...]) -> bool:
        """Whether one replica holds so many, whatever its number of sequences; EngineError for what is refused."""
        return self.count(context, kv_bytes) >= requests

    def request_bytes(self, context: int) -> tuple[int, ...]:
        """What one request takes on a GPU of each stage."""

    def tightest(self, context: int, kv_bytes: tuple[int, ...]) -> int:
        """The stage that runs out first."""
        sizes = self.request_bytes(context)
        return min(range(len(sizes)), key=lambda stage: Fraction(kv_bytes[stage], max(1, sizes[stage])))

    def layout(self, context: int, requests: int) -> Layout:
        """How one request is stored where the engine is started for so many; EngineError for what is refused."""

    def terms(self, context: int, kv_bytes: tuple[int, ...]) -> tuple[Term, ...]:
        """The steps from the pools to `fill`, with the numbers filled in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One flag of an engine on our command line and in our screens, under the engine's own name.

    `kind` says what is read: a whole number, a text, a fraction, or a switch; `field` is its name in settings, in
    addresses and in a deployment's `options`. Where every engine has the same thing under a name of its own, `means` is
    the deployment's field for it, and `says` what a switch then says of that field. `turns_off` is the settings' field
    that a switch makes false, where it is not one of its own.
    """

    flag: str
    field: str
    kind: Literal["integer", "text", "fraction", "switch"]
    help: str
    choices: tuple[str, ...] = ()
    means: str | None = None
    says: bool = True
    turns_off: str | None = None


class Engine(Ranked, Protocol):
    """One serving engine: everything that it does and says. Its settings are a frozen dataclass of its own.

    `name` is its id in options, addresses and answers, `label` what its makers and the screens call it. `versions` says
    whose rules are followed, `release` is the newest of them ("" where no newer one is planned by them). It is planned
    on GPUs of `vendors`, and where `on_processors` in the memory of a processor. `cache_formats` and `weight_formats`
    are those that it offers beside 16 bits, the mildest first. What has a default here is what most engines do.

    `slots`: every request has room for the longest one from the start, on GPUs that divide the layers. `step_memory`:
    the tokens of a step, and the CUDA graphs of steps, leave less for the cache, and can be chosen. `share_of` says of
    what a user sets the engine's share: of the GPU's "total" memory, of what is "free" after weights and activations,
    of nothing (""); `share_by_gpu` whether its default depends on the GPU. `memory_tiers` are sizes of a GPU in GiB at
    which defaults change. `admission` says what the engine does when the pool is full, `offload` is its option that
    keeps caches of idle requests in host memory ("" where there is none), `plan_notes` are true of every plan. `log`
    has the lines of its start-up log, and what follows from them. `overheads_by_stage`: the weights of a stage matter
    to what it holds beside them.
    """

    name: str
    label: str
    versions: str
    release: str
    vendors: tuple[str, ...]
    options: tuple[Option, ...]
    cache_formats: tuple[str, ...] = ()
    weight_formats: tuple[str, ...] = ()
    on_processors: bool = False
    rules: RankRules = RankRules()
    slots: bool = False
    step_memory: bool = True
    share_of: Literal["", "total", "free"] = ""
    share_by_gpu: bool = False
    memory_tiers: tuple[int, ...] = ()
    admission: tuple[str, ...] = ()
    offload: str = ""
    plan_notes: tuple[str, ...] = ()
    log: LogRules = NO_LOG
    overheads_by_stage: bool = False

    def settings(self, model: Model, asked: Request) -> Any:
        """What the engine makes of a request for a model, its own defaults for everything that is not said.

        EngineError for what the engine does not support, an option that it does not have, or a version whose rules are
        not followed.
        """

    def refusals(self, model: Model, deployment: Deployment) -> Iterator[str]:
        """See Ranked.refusals: by `rules`."""
        return splits.refusals(model, deployment, self)

    def refuses_draft(self, model: Model, deployment: Deployment) -> str:
        """See Ranked.refuses_draft: every draft may propose."""
        return ""

    def draft_notes(self, model: Model, deployment: Deployment) -> tuple[str, ...]:
        """See Ranked.draft_notes: nothing more."""
        return ()

    def stages(self, model: Model, deployment: Deployment) -> tuple[range, ...]:
        """See Ranked.stages: layers divided evenly, or over all GPUs of a replica where each has whole ones."""
        layers = len(model.layers)
        if self.rules.whole_layers:
            return layers_by_device(layers, deployment.replica_gpus)
        return ranges_of(split_layers(layers, deployment.pp))

    def ways(self, model: Model, deployment: Deployment, wanted: WeightFormat | None = None) -> Ways:
        """See Ranked.ways: every kind of matrix over a replica's tensor-parallel ranks."""
        if self.rules.whole_layers:
            return Ways()
        tp = deployment.tp
        return Ways(
            attention=tp, dense=tp, shared=tp, head=tp, experts=tp, experts_whole=deployment.expert_parallel
        )  # fmt: skip

    def pool(self, model: Model, deployment: Deployment, context: int) -> CachePool:
        """A deployment's memory for the cache, for requests of up to `context` tokens; EngineError as for settings."""

    def share(self, model: Model, deployment: Deployment) -> float | None:
        """The fraction of memory that the engine takes: as asked for, else its own default; None where it has none."""
        return None

    def small_defaults(self, gpu: Accelerator, version: str | None) -> bool:
        """Whether a release has other, smaller defaults for this GPU than for others with its memory."""
        return False

    def batched_tokens(self, settings: Any) -> int:
        """Tokens that are taken in at once at most."""

    def no_sharing(self, model: Model, deployment: Deployment) -> str:
        """Why requests do not hold the blocks of a common beginning once, in a sentence; "" where they do."""
        return ""

    def layout(self, model: Model, settings: Any) -> Layout:
        """(a) How a request is stored; EngineError for what the engine does not support."""

    def capacity(self, model: Model, settings: Any, kv_bytes: int) -> Capacity:
        """(c, d) Tokens and requests that fit in `kv_bytes` on each rank, and what the engine logs."""

    def overheads(
        self, model: Model, deployment: Deployment, settings: Any, weights: RankWeights, share: float
    ) -> Overheads:
        """What the fullest GPU of the pipeline stage of `weights` holds beside them and the cache.

        `settings` are the deployment's, for a request of any length: the deployment's context counts. `share` is what
        the engine takes of the memory. EngineError as the settings do.
        """

    def overhead_steps(self, settings: Any) -> tuple[int, ...]:
        """Contexts after which overheads may be less than before; between them they never fall as contexts grow."""
        return ()

    def launch(self, model: Model, deployment: Deployment, settings: Any) -> Command:
        """(e) The command that starts it so: what differs from its defaults, and what the deployment relies on.

        EngineError where it has no word for what was asked. See kvcore.engines.command for what is in all of them.
        """

    def room_for(self, deployment: Deployment, requests: int) -> dict[str, Any]:
        """Options, by field, that make room for so many requests at once on one replica.

        Empty for an engine that takes requests as they come; others allocate every request's cache at the start.
        """
        return {}


def own_values(engine: str, options: tuple[Option, ...], asked: Request) -> dict[str, Any]:
    """The values of an engine's own options by the field of its settings; those that nothing is said about are absent.

    A request's `options` win over what it says in common words. EngineError for an option that the engine does not
    have.
    """
    stated = {name: value for name, value in asked.options if value is not None}
    values: dict[str, Any] = {}
    for option in options:
        value = stated.pop(option.field, None)
        if value is None:
            if option.means is None:
                continue
            value = getattr(asked, option.means)
            if option.kind == "switch":
                value = value == option.says
            elif value is None:
                continue
        if option.turns_off is None:
            values[option.field] = value
        else:
            values[option.turns_off] = not value
    if stated:
        has = ", ".join(sorted(option.field for option in options))
        raise EngineError(f"{min(stated)[:40]!r} is no option of it here; it has {has}", engine=engine)
    return values


def longest_request(engine: str, model: Model, asked: Request) -> int:
    """Tokens of the longest request: as asked for, else the model's own limit; EngineError where neither is stated."""
    length = model.context_limit if asked.context is None else asked.context
    if length is None:
        raise EngineError("the model states no longest context; say --max-model-len", engine=engine)
    return length


def check_whole(engine: str, settings: object, bounds: Mapping[str, tuple[int, int]]) -> None:
    """EngineError, with the flag and what it may be, for a whole number of the settings outside its bounds.

    `bounds` are by field, both ends included. None, the engine's own default, is no number.
    """
    for field, (low, high) in bounds.items():
        value = getattr(settings, field)
        if value is not None and not low <= value <= high:
            flag = "--" + field.replace("_", "-")
            raise EngineError(f"{flag} is {value:,}; expected {low:,} … {high:,}", engine=engine)


def split_layers(layers: int, stages: int) -> tuple[int, ...]:
    """Layers of each pipeline stage as vLLM splits them: the remainder goes to the stages before the last.

    80 over 3 is 27, 27, 26 (vLLM 0.33, distributed/utils.py). Raises EngineError for more stages than layers.
    """
    if not 1 <= stages <= layers:
        raise EngineError(f"pipeline parallel {stages}: must be within 1 … {layers}, the number of layers")
    sizes = [layers // stages] * stages
    for back in range(2, layers % stages + 2):
        sizes[-back] += 1
    return tuple(sizes)


def layers_by_device(layers: int, devices: int) -> tuple[range, ...]:
    """Layers of each GPU in llama.cpp's layer split over equal GPUs; the output counts as one layer more."""
    if devices > layers:
        raise EngineError(f"{devices:,} GPUs are more than the {layers:,} layers that can be split over them")
    ends = [min(layers, -(-place * (layers + 1) // devices)) for place in range(devices + 1)]
    return tuple(range(first, last) for first, last in pairwise(ends))


def ranges_of(sizes: Sequence[int]) -> tuple[range, ...]:
    """Layers of stages of these sizes, one after another."""
    return tuple(range(last - size, last) for size, last in zip(sizes, accumulate(sizes), strict=True))


def with_draft(layout: Layout, draft: Model, own_bytes: int) -> Layout:
    """The layout of a request with what the draft keeps of it, in a pool of its own."""
    term = Term(
        name="the draft's cache of it",
        formula=f"{draft.name}: {own_bytes:,} B",
        value=own_bytes,
        unit="B",
    )
    kept = (note if note.with_draft is None else replace(note, text=note.with_draft) for note in layout.remarks)
    return replace(
        layout, bytes_per_request=layout.bytes_per_request + own_bytes, terms=(*layout.terms, term),
        remarks=tuple(note for note in kept if note.text),
    )  # fmt: skip
