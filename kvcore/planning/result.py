"""A plan as the answer that scripts get: figures, what would help, the launch command and the price."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from kvcore.deployment import Deployment
from kvcore.errors import EngineError, UnitError
from kvcore.hardware.prices import hourly
from kvcore.planning.answers import least_utilization
from kvcore.planning.launch import launch_plan
from kvcore.planning.plan import Plan
from kvcore.planning.whatif import WhatIf, remedies
from kvcore.ranks.speculation import proposer
from kvcore.records import Record
from kvcore.terms import Range, Term

if TYPE_CHECKING:
    import pandas as pd

# What a remedy changes is said in this order, and everything else behind it.
_FIRST = ("gpu", "context", "tp", "pp", "dp", "dcp", "expert_parallel", "dp_attention", "engine", "engine_version",
          "kv_dtype", "weight_format")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class OverheadResult(Record):
    """Bytes on one GPU that are neither weights nor cache: a conservative range around the best estimate."""

    name: str
    low_bytes: int
    bytes: int
    high_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RemedyResult(Record):
    """A change that makes the plan fit, in words, with the options of `plan` that it changes and their new values."""

    name: str
    change: str
    price: str
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFile(Record):
    """A file that the launch command reads."""

    name: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceRange(Record):
    """US dollars an hour for all GPUs."""

    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanResult(Record):
    """What a deployment holds. Bytes are those of one GPU, tokens and requests those of all replicas together.

    `fits`: `users` requests of `context` tokens (one where None) fit at the conservative end of every range.
    `kv_bytes` is the memory left for the cache and `kv_cache_size_tokens` the tokens in it, as best estimates with
    their ranges beside them; `max_concurrency` counts requests of `context` tokens as the engine does, `requests` whole
    ones. Figures are None where the model or the engine does not allow them. `binding` says what limits the plan,
    `remedies` what would make it fit (empty where it fits), `least_utilization` the least share of the memory that
    serves the users, `command` and `files` how to start it (None where the engine has no option for it; the notes say
    so). Prices are US dollars an hour for all GPUs, None where none is known.
    """

    fits: bool
    weights_bytes: int
    draft: str | None
    speculative_tokens: int
    draft_weights_bytes: int
    overheads: tuple[OverheadResult, ...]
    overheads_total: Range[int]
    kv_bytes: int | None
    kv_bytes_range: Range[int] | None
    kv_cache_size_tokens: int | None
    kv_cache_size_tokens_range: Range[int] | None
    max_concurrency: Range[float] | None
    requests: Range[int] | None
    longest_context: Range[int] | None
    bytes_per_request: int | None
    binding: str
    binding_kind: str
    least_utilization: float | None
    remedies: tuple[RemedyResult, ...]
    command: str | None
    files: tuple[LaunchFile, ...]
    usd_per_hour: float | None
    usd_per_hour_range: PriceRange | None
    price: str | None
    model: str
    gpu: str
    gpus: int
    engine: str
    tp: int
    pp: int
    dp: int
    dcp: int
    context: int
    users: int | None
    kv_dtype: str
    terms: tuple[Term, ...]
    notes: tuple[str, ...]

    def to_frame(self) -> pd.DataFrame:
        """Where the memory of one GPU goes: one row a part, with the bytes of its range (low, best, high)."""
        import pandas as pd

        rows = [("weights", self.weights_bytes, self.weights_bytes, self.weights_bytes)]
        rows += [(part.name, part.low_bytes, part.bytes, part.high_bytes) for part in self.overheads]
        if self.kv_bytes_range is not None:
            left = self.kv_bytes_range
            rows.append(("KV cache", left.low, left.best, left.high))
        return pd.DataFrame(rows, columns=["part", "low_bytes", "best_bytes", "high_bytes"])


def plan_result(plan: Plan) -> PlanResult:
    """The answer of a plan that is not refused."""
    deployment, tightest = plan.deployment, min(plan.pools, key=lambda pool: pool.kv_bytes.low)
    price = hourly(deployment.gpu, deployment.gpus)
    command, files, notes = _command(plan)
    return PlanResult(
        fits=plan.fits,
        weights_bytes=max(pool.weights_bytes for pool in plan.pools),
        draft=None if (chosen := proposer(deployment)) is None else chosen.text,
        speculative_tokens=deployment.speculative_tokens,
        draft_weights_bytes=max(pool.drafted[1] for pool in plan.pools),
        overheads=tuple(
            OverheadResult(name=part.name, low_bytes=part.bytes.low, bytes=part.bytes.best, high_bytes=part.bytes.high)
            for part in tightest.overheads.parts
        ),
        overheads_total=tightest.overheads.total,
        kv_bytes=None if plan.kv_bytes is None else plan.kv_bytes.best,
        kv_bytes_range=plan.kv_bytes,
        kv_cache_size_tokens=None if plan.tokens is None else plan.tokens.best,
        kv_cache_size_tokens_range=plan.tokens,
        max_concurrency=None if plan.concurrency is None else plan.concurrency.map(float),
        requests=plan.requests,
        longest_context=plan.longest,
        bytes_per_request=None if plan.layout is None else plan.layout.bytes_per_request,
        binding=plan.binding.sentence,
        binding_kind=plan.binding.kind,
        least_utilization=least_utilization(plan.model, deployment, plan.users or 1),
        remedies=()
        if plan.fits
        else tuple(_remedy(one, deployment) for one in remedies(plan.model, deployment, plan.users)),
        command=command,
        files=files,
        usd_per_hour=None if price is None else price.typical,
        usd_per_hour_range=None if price is None else PriceRange(low=price.low, high=price.high),
        price=None if price is None else price.rental.describe,
        model=plan.model.name,
        gpu=deployment.gpu.id,
        gpus=deployment.gpus,
        engine=deployment.engine,
        tp=deployment.tp,
        pp=deployment.pp,
        dp=deployment.dp,
        dcp=deployment.dcp,
        context=deployment.context,
        users=plan.users,
        kv_dtype=deployment.kv_dtype if plan.layout is None else plan.layout.kv_dtype,
        terms=plan.terms,
        notes=(*plan.notes, *notes),
    )


def _command(plan: Plan) -> tuple[str | None, tuple[LaunchFile, ...], tuple[str, ...]]:
    """(text, files, notes); no text where the engine has no option for what was planned, and a note that says so."""
    if plan.binding.kind == "context limit":
        return None, (), ("No launch command: an engine refuses requests that are longer than the model takes.",)
    try:
        made = launch_plan(plan)
    except (EngineError, UnitError) as refusal:
        return None, (), (f"No launch command: {refusal}",)
    return made.text, tuple(LaunchFile(name=name, content=content) for name, content in made.files), made.notes


def _remedy(remedy: WhatIf, before: Deployment) -> RemedyResult:
    users = {} if remedy.users is None else {"users": remedy.users}
    options = _changed(before, remedy.deployment) | users
    return RemedyResult(name=remedy.name, change=remedy.change, price=remedy.price, options=options)


def _changed(before: Deployment, after: Deployment) -> dict[str, Any]:
    names = dict.fromkeys((*_FIRST, *(field.name for field in fields(after))))
    changed = [name for name in names if getattr(after, name) != getattr(before, name)]
    found = {name: getattr(after, name) for name in changed}
    if "gpu" in found:
        found["gpu"] = after.gpu.id
    if after.draft is not None and "draft" in found:
        found["draft"] = after.draft.text
    if "options" in found:
        found |= dict(found.pop("options"))
    if after.gpus != before.gpus:
        found["gpus"] = after.gpus
    return found
