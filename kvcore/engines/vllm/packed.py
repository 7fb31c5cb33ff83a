"""DeepSeek-V4 in vLLM: pages of several sizes packed side by side in one block.

Sources: vLLM 0.33, models/deepseek_v4 (attention.py, compressor.py) and v1/core/kv_cache_planning.py
(_get_packed_kv_cache_groups).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from kvcore.engines.vllm.groups import BlockGroup
from kvcore.engines.vllm.settings import VllmSettings
from kvcore.engines.vllm.specs import Placed, Spec, block_size, memory_layers, resolve_format
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
    buckets: dict[object, list[Placed]] = {}
    for memory, layers in memory_layers(model):
        overlapping = any(isinstance(beside, Indexer) for beside in model.layers[layers[0]])
        spec = _spec(memory, kv, block, overlapping)
        buckets.setdefault((spec.family, spec.block_size), []).append((spec, tuple(layers)))
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
