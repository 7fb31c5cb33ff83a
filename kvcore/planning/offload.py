"""Caches of idle requests in host memory: the time to bring one back against the time to compute it again.

Host memory keeps caches of requests that rest (a conversation that waits for its next turn). It does not enlarge the
pool on the GPU: as many requests generate at once as without it (sglang issue 11698).
"""

from __future__ import annotations

from dataclasses import dataclass

from kvcore.deployment import Deployment
from kvcore.engines.registry import engine, engine_names
from kvcore.errors import EngineError, UnitError
from kvcore.hardware.gpus import Link, link
from kvcore.model.model import Model
from kvcore.planning.people import layout_at
from kvcore.terms import Term
from kvcore.timing import Bound
from kvcore.timing.step import prefill_bound, seconds_text
from kvcore.units import check_tokens, format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """One request of `tokens` tokens moved to host memory and back.

    `rank_bytes` cross the link of the fullest GPU while the others move theirs, `request_bytes` is the most that all
    GPUs of a replica move together. `back_seconds` is exact for the link's rate, which is usable in practice or
    theoretical (`link.speed_knowledge`). `recompute` is a bound: no prefill is faster. `recompute_seconds` is an
    estimate with the share of the roofline that was stated, None where none was. `recompute` is None where the
    model's shape is not known.
    """

    tokens: int
    rank_bytes: int
    request_bytes: int
    gpus: int
    link: Link
    back_seconds: float
    recompute: Bound | None
    efficiency: float | None
    switch: str
    sentence: str
    pool_sentence: str
    terms: tuple[Term, ...]

    @property
    def recompute_seconds(self) -> float | None:
        """Seconds at the stated share of the roofline: an estimate."""
        if self.recompute is None or self.efficiency is None:
            return None
        return self.recompute.seconds_at_least / self.efficiency

    @property
    def times_faster_at_least(self) -> float | None:
        """How many times faster bringing back is than the fastest prefill there can be; below 1 nothing is certain."""
        if self.recompute is None or not self.back_seconds:
            return None
        return self.recompute.seconds_at_least / self.back_seconds

    def idle_requests(self, host_bytes: int) -> int:
        """Whole requests of this length that `host_bytes` of host memory hold; UnitError for less than none."""
        if host_bytes < 0:
            raise UnitError(f"host memory: {host_bytes:,} B is less than none")
        return host_bytes // self.request_bytes if self.request_bytes else 0


def offload(
    model: Model,
    deployment: Deployment,
    tokens: int | None = None,
    *,
    efficiency: float | None = None,
    host_link: str | None = None,
) -> Offload:
    """What moving one request of `tokens` tokens (the longest unless said) to host memory and back takes.

    Every GPU has a link of its own and all move their part at once. `efficiency` is a share of the roofline that a
    prefill is assumed to reach (0 … 1); without one only the bound is given. `host_link` replaces the accelerator's
    own link. EngineError for an engine without such a tier, a GPU that shares its memory with the host, or a layout
    that the engine refuses; UnitError for tokens or an efficiency out of range.
    """
    length = check_tokens(deployment.context if tokens is None else tokens)
    if efficiency is not None and not 0 < efficiency <= 1:
        raise UnitError(f"efficiency: {efficiency:g} is not within 0 … 1")
    switch = engine(deployment.engine).offload
    if not switch:
        others = ", ".join(name for name in engine_names() if engine(name).offload)
        raise EngineError(f"it keeps no caches of idle requests in host memory; {others} do", engine=deployment.engine)
    path = _host_link(deployment, host_link)
    layout = layout_at(model, deployment, length)
    ranks = deployment.replica_gpus
    each, whole = layout.bytes_per_request, ranks * layout.bytes_per_request
    back = each / path.bytes_per_s
    again = prefill_bound(model, deployment, length, layout.kv_dtype)
    return Offload(
        tokens=length,
        rank_bytes=each,
        request_bytes=whole,
        gpus=ranks,
        link=path,
        back_seconds=back,
        recompute=again,
        efficiency=efficiency,
        switch=switch,
        sentence=_sentence(length, back, path, again),
        pool_sentence=(
            "Host memory does not enlarge the pool on the GPU: as many requests generate at once as without it. "
            "What it keeps are the caches of requests that rest."
        ),
        terms=_terms(length, each, whole, ranks, path, back, again, efficiency),
    )


def _host_link(deployment: Deployment, named: str | None) -> Link:
    gpu = deployment.gpu
    if named is not None:
        return link(named)
    if gpu.unified_memory:
        raise EngineError(f"{gpu.name} shares its memory with the host: there is nowhere else to move a cache to")
    if gpu.host_link_id is None:
        raise EngineError(f"{gpu.name}: its link to the host is not known; name one, such as pcie5-x16")
    return link(gpu.host_link_id)


def _sentence(tokens: int, back: float, path: Link, again: Bound | None) -> str:
    text = f"Bringing {tokens:,} tokens back over {path.name} takes {seconds_text(back)}"
    if path.speed_knowledge == "theoretical":
        text += " at its theoretical rate, in practice more"
    if again is None:
        return f"{text}; how long it takes to compute them again is not known, since the model's shape is not."
    least = again.seconds_at_least
    text += f"; computing them again takes at least {seconds_text(least)}"
    if back and least >= back:
        return f"{text}, at least {least / back:.3g} times as long."
    return f"{text}: computing them again may be as fast."


def _terms(
    tokens: int,
    each: int,
    whole: int,
    ranks: int,
    path: Link,
    back: float,
    again: Bound | None,
    efficiency: float | None,
) -> tuple[Term, ...]:
    rate = f"{path.bytes_per_s:,} B/s ({path.name}, {path.speed_knowledge})"
    terms = [
        Term(name="one request on the fullest GPU", formula=f"{tokens:,} tokens = {each:,} B", value=each, unit="B"),
        Term(name="in host memory", formula=f"{ranks} GPUs × {each:,} B = {whole:,} B", value=whole, unit="B"),
        Term(
            name="bringing it back",
            formula=f"{each:,} B / {rate} = {back:.4g} s, every GPU over a link of its own",
            value=back,
            unit="s",
            knowledge="estimated",
        ),
    ]
    if again is not None:
        terms += again.terms
        if efficiency is not None:
            value = again.seconds_at_least / efficiency
            terms.append(
                Term(
                    name="computing it again, assumed",
                    formula=f"{again.seconds_at_least:.4g} s / {efficiency:g} of the roofline, assumed = {value:.4g} s",
                    value=value,
                    unit="s",
                    knowledge="estimated",
                )
            )
    return tuple(terms)


def host_memory_text(result: Offload, host_bytes: int) -> str:
    """`64 GiB of host memory hold 6 idle requests of 32,768 tokens.`"""
    many = result.idle_requests(host_bytes)
    noun = "request" if many == 1 else "requests"
    return f"{format_bytes(host_bytes)} of host memory hold {many:,} idle {noun} of {result.tokens:,} tokens."
