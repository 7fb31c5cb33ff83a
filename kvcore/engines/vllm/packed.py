"""DeepSeek-V4 in vLLM: pages of several sizes packed side by side in one block.

Sources: vLLM 0.33, models/deepseek_v4 (attention.py, compressor.py) and v1/core/kv_cache_planning.py
(_get_packed_kv_cache_groups). Before 0.27 (v1/core/kv_cache_utils.py of 0.20 … 0.26) the pages of windows were padded
to sizes that the indexed layers have, and a block had a slot for every layer of the widest group: of every size up to
0.22, of its own size from 0.23.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from kvcore.engines.releases import release
from kvcore.engines.vllm.blocks import BlockGroup, Placed, Spec, SpecKind, block_size, memory_layers, resolve_format
from kvcore.engines.vllm.settings import PACKED_DENSELY, SLOTS_BY_SIZE, VllmSettings
from kvcore.errors import EngineError
from kvcore.formats import KVFormat
from kvcore.model.memories import Indexer, Latent, Memory, State
from kvcore.model.model import Model

# Pages are padded to whole token rows of the indexed cache; the window's cache has blocks of its own.
_ROW = 576
_WINDOW_BLOCK = 64


def is_packed(model: Model) -> bool:
    """Whether the model keeps windows of latents or compressed latents, as DeepSeek-V4 does."""
    return any(latent.kind != "latent" for latent in model.latents)


def packed_groups(model: Model, settings: VllmSettings) -> tuple[BlockGroup, ...]:
    """The groups of a packed model; EngineError where its format is not the packed one."""
    kv = resolve_format(model, settings)
    block = block_size(model, settings, kv)
    buckets: dict[object, list[Placed]] = {}
    for memory, layers in memory_layers(model):
        overlapping = any(beside.kind == "indexer" for beside in model.layers[layers[0]])
        spec = _spec(memory, kv, block, overlapping)
        buckets.setdefault((spec.family, spec.block_size), []).append((spec, tuple(layers)))
    if is_slotted(settings):
        return _slotted_groups(list(buckets.values()))
    repeats = _repeats([bucket for bucket in buckets.values() if _balanced(bucket)])
    return tuple(group for bucket in buckets.values() for group in _split(bucket, repeats))


def is_slotted(settings: VllmSettings) -> bool:
    """Whether this version gives the padded pages slots of a block, where newer ones pack them densely."""
    return release(settings.version) < PACKED_DENSELY


def _slotted_groups(buckets: list[list[Placed]]) -> tuple[BlockGroup, ...]:
    """Every bucket but the indexed one padded to its page sizes, and split so that the fewest slots stay empty."""
    indexed = next(bucket for bucket in buckets if bucket[0][0].family == ("full",))
    sizes = sorted(_page_layers(indexed))
    padded = [bucket if bucket is indexed else [_at_least(sizes, one) for one in bucket] for bucket in buckets]
    counts = [max(_page_layers(bucket).values()) for bucket in padded]
    floor = max(_page_layers(indexed).values())
    repeats = min(range(floor, max(counts) + 1), key=lambda d: (sum(-count % d for count in counts), -d))
    return tuple(group for bucket in padded for group in _split(bucket, repeats))


def _at_least(sizes: list[int], placed: Placed) -> Placed:
    """The pages padded to the next of these sizes; they stay as they are where all are smaller."""
    spec, layers = placed
    return replace(spec, page_bytes=next((size for size in sizes if size >= spec.page_bytes), spec.page_bytes)), layers


def slotted_bytes(groups: tuple[BlockGroup, ...], stage: range, settings: VllmSettings) -> int:
    """Bytes of one block on a pipeline stage where pages have slots: 0 where the stage has no layers."""
    counts = [Counter[int]() for _ in groups]
    for count, group in zip(counts, groups, strict=True):
        for spec, layers in group.parts:
            count[spec.page_bytes] += sum(map(stage.__contains__, layers))
    sizes = {size for count in counts for size in count}
    slots = {size: max(count[size] for count in counts) for size in sizes}
    if release(settings.version) < SLOTS_BY_SIZE:
        return sum(sizes) * max(slots.values(), default=0)
    return sum(size * many for size, many in slots.items())


def counted_blocks(groups: tuple[BlockGroup, ...], settings: VllmSettings) -> int:
    """Blocks of one request as the concurrency line counts them where pages have slots.

    All bytes that it may hold, in pages as large as those of the indexed layers together; fewer than it reserves.
    """
    pages = {group: sum(spec.page_bytes * len(layers) for spec, layers in group.parts) for group in groups}
    whole = next(pages[group] for group in groups if group.parts[0][0].family == ("full",))
    return -(-sum(group.pages(settings) * held for group, held in pages.items()) // whole)


def _spec(memory: Memory, kv: KVFormat, block: int, overlapping: bool) -> Spec:
    match memory:
        case State():
            rows, pair, width = memory.parts[0].shape
            # The compressor of four tokens overlaps its windows and has blocks of 4 rows, the other one blocks of 8.
            size = 4 if overlapping else 8
            page = size * pair * width * memory.parts[0].element_bytes
            return _padded(Spec(kind="sliding", block_size=size, page_bytes=page, unpadded_bytes=page, reach=rows))
        case Latent() if memory.window is not None:
            page = _WINDOW_BLOCK * memory.entry_bytes(kv)
            return _padded(
                Spec(
                    kind="sliding", block_size=_WINDOW_BLOCK, page_bytes=page, unpadded_bytes=page, reach=memory.window
                )
            )
        case Latent() | Indexer():
            law = memory.growth(kv)
            page = block // law.tokens_per_entry * law.bytes_per_entry
            kind: SpecKind = "indexer" if memory.kind == "indexer" else "latent"
            return _padded(Spec(kind=kind, block_size=block, page_bytes=page, unpadded_bytes=page))
        case _:
            raise EngineError(f"a {memory.kind} memory is not laid out beside windows of latents", engine="vllm")


def _padded(spec: Spec) -> Spec:
    return replace(spec, page_bytes=-(-spec.page_bytes // _ROW) * _ROW)


def _page_layers(bucket: list[Placed]) -> dict[int, int]:
    """How many layers have each page size."""
    counts: Counter[int] = Counter()
    for spec, layers in bucket:
        counts[spec.page_bytes] += len(layers)
    return counts


def _balanced(bucket: list[Placed]) -> bool:
    """Every page size has as many layers as the others: a pattern that can be split."""
    return len(set(_page_layers(bucket).values())) == 1


def _repeats(balanced: list[list[Placed]]) -> int | None:
    """Pattern repeats a group, chosen to pad least, not below what the largest mixed pattern needs; None: no split."""
    mixed = [max(_page_layers(bucket).values()) for bucket in balanced if len(_page_layers(bucket)) > 1]
    if not mixed:
        return None
    counts = [max(_page_layers(bucket).values()) for bucket in balanced]
    candidates = range(max(mixed), max(*counts, *mixed) + 1)
    return min(candidates, key=lambda d: (sum(-count % d for count in counts), -d))


def _split(bucket: list[Placed], repeats: int | None) -> list[BlockGroup]:
    number = -(-max(_page_layers(bucket).values()) // repeats) if repeats and _balanced(bucket) else 1
    return [
        BlockGroup(parts=tuple((spec, layers[first::number]) for spec, layers in bucket)) for first in range(number)
    ]
