"""What runs out first, in one sentence with its numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kvcore.engines.base import CachePool, Fill
from kvcore.planning.basis import Basis, sizes
from kvcore.terms import Range
from kvcore.units import format_bytes, plural

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
    have = f"{format_bytes(pool.usable_bytes)} of {basis.deployment.gpu.name}{where}"
    weights = format_bytes(pool.weights_bytes)
    if pool.weights_bytes >= pool.usable_bytes:
        return Binding(kind="weights", sentence=f"The weights alone take {weights} of each GPU, more than the {have}.")
    over = format_bytes(pool.overheads.total.high)
    return Binding(
        kind="overheads",
        sentence=f"Weights ({weights}) and overheads (up to {over}) leave nothing of the {have} for a cache.",
    )


def beside_stated_pool(basis: Basis) -> tuple[str, ...]:
    """A note where weights and a stated pool are more than the GPU has: the plan counts with the pool all the same."""
    if basis.deployment.kv_bytes is None:
        return ()
    notes = []
    for pool in basis.pools:
        need = pool.weights_bytes + pool.kv_bytes.best
        if pool.weights_bytes and need > pool.total_bytes:
            where = f" of stage {pool.stage}" if len(basis.pools) > 1 else ""
            weights, stated = format_bytes(pool.weights_bytes), format_bytes(pool.kv_bytes.best)
            notes.append(
                f"The stated pool does not go with these weights on these GPUs: {weights} of weights on each{where} "
                f"and {stated} of cache are {format_bytes(need)}, and {basis.deployment.gpu.name} has "
                f"{format_bytes(pool.total_bytes)}. What is said here is about the pool alone."
            )
    return tuple(notes)


def running_out(basis: Basis, users: int | None, fills: Range[Fill] | None, requests: Range[int]) -> Binding:
    """What ends first as requests come: the cache, a number of sequences, or nothing."""
    cache = basis.cache
    most = None if cache is None else cache.sequences
    if cache is not None and most is not None and (fills is None or fills.low.requests >= most):
        return Binding(kind="sequences", sentence=_allowed(basis, cache, most, fills))
    if cache is not None and fills is not None and fills.low.by_sequences:
        text = f"{cache.sequences_name} is chosen by the engine and allows {plural(requests.low, 'request')} at once."
        return Binding(kind="sequences", sentence=text)
    if cache is None or fills is None:
        return Binding(kind="nothing", sentence=f"{basis.model.name} keeps no cache, so nothing runs out.")
    return Binding(kind="cache", sentence=_cache(basis, cache, users, requests))


def _allowed(basis: Basis, cache: CachePool, most: int, fills: Range[Fill] | None) -> str:
    replicas = basis.deployment.dp
    text = f"{cache.sequences_name} allows {plural(most, 'request')} at once"
    if replicas > 1:
        text += f" on each of {replicas} replicas"
    if fills is not None and fills.low.requests > most:
        text += f"; the cache would hold {fills.low.requests:,}"
    return f"{text}."


def _cache(basis: Basis, cache: CachePool, users: int | None, requests: Range[int]) -> str:
    context, replicas, held = basis.deployment.context, basis.deployment.dp, requests.low
    hope = f" At best guess it holds {requests.best:,}." if requests.best >= (users or 1) > held else ""
    stage = cache.tightest(context, sizes(basis.pools).low)
    one, left = cache.request_bytes(context)[stage], max(0, basis.pools[stage].kv_bytes.low)
    end = "" if basis.deployment.kv_bytes is not None else " at the safe end"
    where = "a GPU" if len(basis.pools) == 1 else f"a GPU of stage {stage}"
    if not held:
        text = (
            f"A request of {context:,} tokens takes {format_bytes(one)} of {where}, and {format_bytes(left)} are left"
        )
        text += f" for the cache{end}"
        return f"{text}.{hope}" if one > left else f"{text}, with which {basis.deployment.engine} does not start.{hope}"
    each = held // replicas
    text = f"{format_bytes(left)} of {where}{end} hold {plural(each, 'request')} of "
    text += f"{context:,} tokens, {format_bytes(one)} each"
    if cache.held_back and left // one > each:
        text += f" and {cache.held_back}"
    if replicas > 1:
        text += f"; {replicas} replicas hold {held:,}"
    if users is not None and users > held:
        return f"The cache is too small: {text}, and {users:,} are asked for.{hope}"
    return f"The cache runs out first: {text}."


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."
