"""How vLLM's layers share blocks: groups of layers, padding, and the block that the widest group needs.

Source: vLLM 0.33, v1/core/kv_cache_planning.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvcore.engines.vllm.settings import VllmSettings
from kvcore.engines.vllm.specs import Spec
from kvcore.errors import EngineError


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One layer's cache in a group: the layer's index and its spec."""

    layer: int
    spec: Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockGroup:
    """Layers that share one table of blocks."""

    members: tuple[Member, ...]

    def pages(self, settings: VllmSettings) -> int:
        """Blocks that one request claims from the pool for this group."""
        return max(member.spec.pages(settings) for member in self.members)

    def bytes_on(self, layers: range) -> int:
        """Page bytes of the group's members among `layers` (a pipeline stage)."""
        return sum(member.spec.page_bytes for member in self.members if member.layer in layers)


def block_groups(specs: tuple[tuple[Spec, ...], ...], settings: VllmSettings) -> tuple[BlockGroup, ...]:
    """The groups of all layers of a model; EngineError where vLLM cannot bring their pages to one size."""
    members = [Member(layer=layer, spec=spec) for layer, own in enumerate(specs) for spec in own]
    if not members:
        return ()
    if settings.disable_hybrid_kv_cache_manager:
        members = _promote(members)
    if len({(member.spec.family, member.spec.block_size) for member in members}) == 1:
        return (BlockGroup(members=tuple(members)),)
    return _uniform_pages(_unify(members))


def _promote(members: list[Member]) -> list[Member]:
    """Without the hybrid manager, windows beside full attention are given blocks for every token."""
    if not any(member.spec.kind in ("full", "latent") for member in members):
        return members
    return [
        replace(member, spec=replace(member.spec, kind="full", reach=None))
        if member.spec.kind in ("sliding", "chunked")
        else member
        for member in members
    ]


def _unify(members: list[Member]) -> list[Member]:
    """One page size for all: smaller pages get larger blocks where that divides, else they are padded."""
    largest = max(member.spec.page_bytes for member in members)
    unified = {spec: _unified(spec, largest) for spec in {member.spec for member in members}}
    return [replace(member, spec=unified[member.spec]) for member in members]


def _unified(spec: Spec, largest: int) -> Spec:
    if spec.page_bytes == largest:
        return spec
    if spec.kind == "state":
        return replace(spec, page_bytes=largest)
    if largest % spec.page_bytes == 0:
        ratio = largest // spec.page_bytes
        return replace(spec, block_size=spec.block_size * ratio, page_bytes=largest, unpadded_bytes=largest)
    if spec.kind in ("latent", "indexer"):
        raise EngineError(
            f"vllm: a latent page of {spec.page_bytes:,} bytes can be neither grown nor padded to {largest:,}"
        )
    return replace(spec, page_bytes=largest)


def _uniform_pages(members: list[Member]) -> tuple[BlockGroup, ...]:
    """Buckets of equal specs, split so that groups have (nearly) equal numbers of layers."""
    buckets: dict[object, list[Member]] = {}
    for member in members:
        buckets.setdefault(member.spec, []).append(member)
    counts = [len(bucket) for bucket in buckets.values()]
    size = max(counts) if max(counts) < 1.5 * min(counts) else min(counts)
    groups = []
    for bucket in buckets.values():
        number = -(-len(bucket) // size)
        groups += [BlockGroup(members=tuple(bucket[first::number])) for first in range(number)]
    return tuple(groups)
