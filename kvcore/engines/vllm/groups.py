"""How vLLM's layers share blocks: groups of layers, padding, and the block that the widest group needs.

Source: vLLM 0.33, v1/core/kv_cache_planning.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvcore.engines.vllm.settings import VllmSettings
from kvcore.engines.vllm.specs import Placed, Spec
from kvcore.errors import EngineError


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockGroup:
    """Layers that share one table of blocks: their distinct specs, each with the layers that have it."""

    parts: tuple[Placed, ...]

    @property
    def layers(self) -> int:
        """How many caches the group has."""
        return sum(len(layers) for _, layers in self.parts)

    def pages(self, settings: VllmSettings) -> int:
        """Blocks that one request claims from the pool for this group."""
        return max(spec.pages(settings) for spec, _ in self.parts)

    def bytes_on(self, stage: range) -> int:
        """Page bytes of the group's layers on a pipeline stage."""
        return sum(spec.page_bytes * sum(map(stage.__contains__, layers)) for spec, layers in self.parts)


def block_groups(placed: tuple[Placed, ...], settings: VllmSettings) -> tuple[BlockGroup, ...]:
    """The groups of all layers of a model; EngineError where vLLM cannot bring their pages to one size."""
    if not placed:
        return ()
    if settings.windows_are_whole:
        placed = _promote(placed)
    if len({(spec.family, spec.block_size) for spec, _ in placed}) == 1:
        return (BlockGroup(parts=placed),)
    return _uniform_pages(_unify(placed))


def _promote(placed: tuple[Placed, ...]) -> tuple[Placed, ...]:
    """Without the hybrid manager, windows beside full attention are given blocks for every token."""
    if not any(spec.kind in ("full", "latent") for spec, _ in placed):
        return placed
    return tuple(
        (replace(spec, kind="full", reach=None) if spec.kind in ("sliding", "chunked") else spec, layers)
        for spec, layers in placed
    )


def _unify(placed: tuple[Placed, ...]) -> list[Placed]:
    """One page size for all: smaller pages get larger blocks where that divides, else they are padded."""
    largest = max(spec.page_bytes for spec, _ in placed)
    return [(_unified(spec, largest), layers) for spec, layers in placed]


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


def _uniform_pages(placed: list[Placed]) -> tuple[BlockGroup, ...]:
    """Buckets of equal specs, split so that groups have (nearly) equal numbers of layers.

    Layers are dealt out in turn, so that pipeline stages get equal shares of each group.
    """
    buckets: dict[Spec, list[int]] = {}
    for spec, layers in placed:
        buckets.setdefault(spec, []).extend(layers)
    counts = [len(layers) for layers in buckets.values()]
    size = max(counts) if max(counts) < 1.5 * min(counts) else min(counts)
    groups = []
    for spec, unsorted in buckets.items():
        in_order, number = sorted(unsorted), -(-len(unsorted) // size)
        groups += [BlockGroup(parts=((spec, tuple(in_order[first::number])),)) for first in range(number)]
    return tuple(groups)
