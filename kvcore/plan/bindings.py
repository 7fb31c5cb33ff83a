"""What runs out first, in one sentence with its numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kvcore.engines.base import Layout
from kvcore.plan.basis import Basis
from kvcore.plan.ends import Ends
from kvcore.plan.fill import Fill
from kvcore.plan.pools import Pool
from kvcore.units import format_bytes

Kind = Literal["engine", "split", "weights", "overheads", "cache", "sequences", "context limit", "nothing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """What keeps a plan from holding more, or from working at all."""

    kind: Kind
    sentence: str


def refusal(basis: Basis) -> Binding | None:
    """Why there is nothing to plan, whatever the context; None where there is."""
    if not basis.refused:
        return None
    kinds: dict[str, Kind] = {"split": "split", "engine": "engine", "weights": "weights"}
    return Binding(kind=kinds[basis.reason], sentence=_sentence(basis.refused))


def beyond_limit(basis: Basis) -> Binding | None:
    """Whether the context is longer than the model's."""
    context, limit = basis.deployment.context, basis.limit
    if limit is None or context <= limit:
        return None
    return Binding(
        kind="context limit",
        sentence=f"Requests of {context:,} tokens are longer than {basis.model.name} takes: its limit is {limit:,}.",
    )


def memory_gone(basis: Basis) -> Binding | None:
    """Whether nothing is left for a cache at the safe end: the weights alone, or what the engine takes beside them."""
    pool = min(basis.pools, key=lambda pool: pool.kv_bytes.low)
    if pool.kv_bytes.low > 0:
        return None
    where = f" of stage {pool.stage}" if len(basis.pools) > 1 else ""
    have = f"{format_bytes(pool.usable_bytes)} of a {basis.deployment.gpu.name}{where}"
    weights = format_bytes(pool.weights_bytes)
    if pool.weights_bytes >= pool.usable_bytes:
        return Binding(kind="weights", sentence=f"The weights alone take {weights} of each GPU, more than the {have}.")
    over = format_bytes(pool.overheads.total.high)
    return Binding(
        kind="overheads",
        sentence=f"Weights ({weights}) and overheads (up to {over}) leave nothing of the {have} for a cache.",
    )


def running_out(
    basis: Basis, users: int | None, layout: Layout, fills: Ends[Fill] | None, requests: Ends[int]
) -> Binding:
    """What ends first as requests come: the cache, the engine's number of sequences, or nothing."""
    filler, low = basis.filler, requests.low
    length = f"{basis.deployment.context:,} tokens"
    capped = filler is not None and filler.sequences is not None
    replicas = basis.deployment.dp
    most = filler.sequences if filler is not None and filler.sequences is not None else 0
    if capped and filler is not None and (fills is None or fills.low.requests >= most):
        each = f"{most:,}" if replicas == 1 else f"{most:,} on each of {replicas} replicas"
        asked = f", and {users:,} are asked for" if users is not None and users > low else ""
        return Binding(
            kind="sequences",
            sentence=f"{filler.sequences_name} allows {each} requests at once{asked}; the memory holds more.",
        )
    if fills is None:
        return Binding(kind="nothing", sentence=f"{basis.model.name} keeps no cache, so nothing runs out.")
    pool = tightest(basis, layout)
    one, left = format_bytes(layout.bytes_per_request), format_bytes(max(0, pool.kv_bytes.low))
    wanted = max(1, users or 1)
    on_each = -(-wanted // replicas)
    if wanted > low:
        need = format_bytes(layout.bytes_per_request * on_each)
        what = f"{on_each:,} requests of {length}" if on_each > 1 else f"a request of {length}"
        take = "take" if on_each > 1 else "takes"
        return Binding(
            kind="cache",
            sentence=f"The cache is too small: {what} {take} {need} of a GPU, and {left} are left at the safe end.",
        )
    return Binding(
        kind="cache",
        sentence=f"The cache runs out first: {left} of a GPU at the safe end hold {low // replicas:,} requests of {length}, "
        f"{one} each.",
    )


def tightest(basis: Basis, layout: Layout) -> Pool:
    """The stage with the smallest pool at the safe end."""
    return min(basis.pools, key=lambda pool: pool.kv_bytes.low)


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."
