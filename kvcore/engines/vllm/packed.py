"""DeepSeek-V4 in vLLM: pages of several sizes packed side by side in one block.

Sources: vLLM 0.33, models/deepseek_v4 (attention.py, compressor.py) and v1/core/kv_cache_planning.py
(_get_packed_kv_cache_groups).
"""

from __future__ import annotations

from collections import Counter

from kvcore.engines.vllm.groups import BlockGroup, Member
from kvcore.engines.vllm.settings import VllmSettings
from kvcore.engines.vllm.specs import Spec, block_size, resolve_format
from kvcore.formats import KVFormat
from kvcore.model.memories import Indexer, Latent, Memory, State
from kvcore.model.model import Model

# Pages are padded to whole token rows of the indexed cache; the window's cache has blocks of its own.
_ROW = 576
_WINDOW_BLOCK = 64


def is_packed(model: Model) -> bool:
    """Whether the model keeps windows of latents or compressed latents, as DeepSeek-V4 does."""
    return any(isinstance(memory, Latent) and memory.kind != "latent" for memory, _ in model.kept)


def packed_groups(model: Model, settings: VllmSettings) -> tuple[BlockGroup, ...]:
    """The groups of a packed model; EngineError where its format is not the packed one."""
    kv = resolve_format(model, settings)
    block = block_size(model, settings, kv)
    buckets: dict[object, list[Member]] = {}
    for layer, memories in enumerate(model.layers):
        overlapping = any(isinstance(memory, Indexer) for memory in memories)
        for memory in memories:
            spec = _spec(memory, kv, block, overlapping)
            buckets.setdefault((spec.family, spec.block_size), []).append(Member(layer=layer, spec=spec))
    repeats = _repeats([bucket for bucket in buckets.values() if _balanced(bucket)])
    return tuple(group for bucket in buckets.values() for group in _split(bucket, repeats))


def _spec(memory: Memory, kv: KVFormat, block: int, overlapping: bool) -> Spec:
    if isinstance(memory, State):
        rows, pair, width = memory.parts[0].shape
        # The compressor of four tokens overlaps its windows and has blocks of 4 rows, the other one blocks of 8.
        size = 4 if overlapping else 8
        page = size * pair * width * memory.parts[0].element_bytes
        return _padded(Spec(kind="sliding", block_size=size, page_bytes=page, unpadded_bytes=page, reach=rows))
    if isinstance(memory, Latent) and memory.window is not None:
        page = _WINDOW_BLOCK * memory.entry_bytes(kv)
        return _padded(
            Spec(kind="sliding", block_size=_WINDOW_BLOCK, page_bytes=page, unpadded_bytes=page, reach=memory.window)
        )
    law = memory.growth(kv)
    page = block // law.tokens_per_entry * law.bytes_per_entry
    kind = "indexer" if isinstance(memory, Indexer) else "latent"
    return _padded(Spec(kind=kind, block_size=block, page_bytes=page, unpadded_bytes=page))  # type: ignore[arg-type]


def _padded(spec: Spec) -> Spec:
    from dataclasses import replace

    return replace(spec, page_bytes=-(-spec.page_bytes // _ROW) * _ROW)


def _page_counts(bucket: list[Member]) -> Counter[int]:
    return Counter(member.spec.page_bytes for member in bucket)


def _balanced(bucket: list[Member]) -> bool:
    """Every page size has as many layers as the others: a pattern that can be split."""
    return len(set(_page_counts(bucket).values())) == 1


def _repeats(balanced: list[list[Member]]) -> int | None:
    """Pattern repeats a group, chosen to pad least, not below what the largest mixed pattern needs; None: no split."""
    mixed = [max(_page_counts(bucket).values()) for bucket in balanced if len(_page_counts(bucket)) > 1]
    if not mixed:
        return None
    counts = [max(_page_counts(bucket).values()) for bucket in balanced]
    candidates = range(max(mixed), max(max(counts), max(mixed)) + 1)
    return min(candidates, key=lambda d: (sum(-count % d for count in counts), -d))


def _split(bucket: list[Member], repeats: int | None) -> list[BlockGroup]:
    counts = _page_counts(bucket)
    number = -(-max(counts.values()) // repeats) if repeats and _balanced(bucket) else 1
    by_page = [[member for member in bucket if member.spec.page_bytes == page] for page in counts]
    return [
        BlockGroup(members=tuple(member for one in by_page for member in one[first::number])) for first in range(number)
    ]
