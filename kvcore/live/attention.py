"""Attention over the block cache: rotary positions, which rows a query sees, and the sums (imports torch).

One plan holds what all layers of a window share in one forward pass: rows to write, rows to read, and a mask where
one is needed. Key and value heads are never repeated in memory.

In the shapes of the live engine B is the batch, T the tokens of a chunk, N tokens of all requests one after another, H
the query heads, KV the key and value heads and D the numbers of one head, or of a latent with its rotary part. `parts`
is 2 for keys and values, 1 for a latent.

Rotary positions: RoFormer (the rotation, halves as in transformers' Llama), and transformers 5.24,
modeling_rope_utils.py, for the scalings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kvcore.errors import LiveError
from kvcore.live.cache import BlockCache
from kvcore.live.shape import LiveShape


def frequencies(shape: LiveShape) -> tuple[Tensor, float]:
    """(radians that each position turns a pair by, (rope_width / 2) in fp32; factor on cosine and sine), as scaled."""
    scaling: dict[str, Any] = dict(shape.rope_scaling)
    kind = scaling.get("rope_type", "default")
    width = shape.rope_width
    powers = shape.rope_theta ** (torch.arange(0, width, 2, dtype=torch.float32) / width)
    plain = 1.0 / powers
    if kind == "linear":
        return plain / scaling["factor"], 1.0
    if kind == "llama3":
        return _llama3(plain, scaling), 1.0
    if kind == "yarn":
        return _yarn(powers, width, shape, scaling)
    return plain, 1.0


def _llama3(plain: Tensor, scaling: dict[str, Any]) -> Tensor:
    """Long waves are slowed by the factor, short ones stay, those between are blended."""
    original, low, high = (
        scaling["original_max_position_embeddings"], scaling["low_freq_factor"], scaling["high_freq_factor"],
    )  # fmt: skip
    waves = 2 * math.pi / plain
    blend = (original / waves - low) / (high - low)
    slowed = plain / scaling["factor"]
    between = (1 - blend) * slowed + blend * plain
    result = torch.where(waves > original / low, slowed, plain)
    return torch.where((waves <= original / low) & (waves >= original / high), between, result)


def _yarn(powers: Tensor, width: int, shape: LiveShape, scaling: dict[str, Any]) -> tuple[Tensor, float]:
    """Slow rotations are interpolated, fast ones kept, with a ramp between, and scores are scaled (YaRN, 2023)."""
    factor = scaling["factor"]
    original = scaling.get("original_max_position_embeddings") or shape.context_limit
    if not original:
        raise LiveError(f"{shape.name}: yarn needs original_max_position_embeddings")

    def magnitude(times: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * times * math.log(factor) + 1.0

    attention = scaling.get("attention_factor")
    if attention is None:
        both = scaling.get("mscale"), scaling.get("mscale_all_dim")
        attention = magnitude(both[0]) / magnitude(both[1]) if both[0] and both[1] else magnitude(1.0)

    def place(rotations: float) -> float:
        return width * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(shape.rope_theta))

    low, high = place(scaling.get("beta_fast", 32.0)), place(scaling.get("beta_slow", 1.0))
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    ramp = ((torch.arange(width // 2, dtype=torch.float32) - low) / max(high - low, 0.001)).clamp(0, 1)
    return (1 / (factor * powers)) * ramp + (1 / powers) * (1 - ramp), float(attention)


class RopeTable:
    """Cosines and signed sines, each (positions, rope_width) in the engine's format; it grows as needed."""

    def __init__(self, shape: LiveShape, dtype: torch.dtype, device: str) -> None:
        self._angles, self._factor = frequencies(shape)
        self._dtype, self._device = dtype, device
        dynamic = dict(shape.rope_scaling).get("rope_type") == "dynamic"
        self._limit = shape.context_limit if dynamic else None
        self.cos = torch.empty(0, shape.rope_width, dtype=dtype, device=device)
        self.sin = self.cos

    def reserve(self, positions: int) -> None:
        """Have at least that many positions; LiveError beyond the limit of a dynamic scaling."""
        if positions <= self.cos.shape[0]:
            return
        if self._limit is not None and positions > self._limit:
            raise LiveError(f"dynamic rope scaling changes beyond {self._limit:,} tokens, which cannot run live")
        rows = max(512, 1 << (positions - 1).bit_length())
        angles = torch.outer(torch.arange(rows, dtype=torch.float32), self._angles)
        cos, sin = angles.cos() * self._factor, angles.sin() * self._factor
        # The rotation adds sin × (−second half, first half): the sign is put in the table.
        self.cos = torch.cat((cos, cos), -1).to(self._device, self._dtype)
        self.sin = torch.cat((-sin, sin), -1).to(self._device, self._dtype)


def rotate_(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn vectors (…, rope_width) by their positions, in place; cos and sin broadcast against them."""
    # The second half, then the first.
    swapped = heads.roll(heads.shape[-1] // 2, -1)
    return heads.mul_(cos).addcmul_(swapped, sin)


@dataclass(slots=True, kw_only=True)
class ChunkPlan:
    """A chunk of tokens of each request. `mask` (B or 1, 1, T, keys) is added to the scores; None: causal in the chunk.

    `ring_rows` is None where keys are read from the cache after writing; otherwise the chunk does not fit beside what
    it must see, and keys are these many rows of the ring and then the chunk itself.
    """

    starts: tuple[int, ...]
    counts: tuple[int, ...]
    window: int | None
    rows: int
    ring_rows: int | None
    mask: Tensor | None


@dataclass(slots=True, kw_only=True)
class StepPlan:
    """One token of each request: the row to write, the rows to read.

    `slot` is set where all requests write the same row, else `slots` (B) holds one a request on the device; `mask`
    (B, 1, 1, rows) is added to the scores where requests differ in length or more rows are read than are filled.
    """

    rows: int
    slot: int | None
    slots: Tensor | None = None
    mask: Tensor | None = None


def chunk_plan(
    starts: Sequence[int], counts: Sequence[int], width: int, window: int | None, dtype: torch.dtype, device: str
) -> ChunkPlan:
    """How `counts` tokens of each request (padded to `width`) attend, `starts` tokens being in the cache."""
    ends = [start + count for start, count in zip(starts, counts, strict=True)]
    ring = window is not None and max(ends) > window
    first, alike = not any(starts), len(set(starts)) == 1
    held = min(max(starts), window) if ring and window is not None else None
    rows = max(ends)
    plan = ChunkPlan(
        starts=tuple(starts), counts=tuple(counts), window=window, rows=rows, ring_rows=held, mask=None
    )  # fmt: skip
    if first and not ring:
        # Padding stands after every request's tokens, so that causality already hides it.
        plan.rows = width
        plan.ring_rows = 0
        return plan
    begun = torch.tensor(starts[:1] if alike else starts).view(-1, 1, 1)
    queries = begun + torch.arange(width).view(1, -1, 1)
    if ring and window is not None and held is not None:
        # The last position before the chunk whose row this is; negative where the row is still empty.
        slots = torch.arange(held).view(1, 1, -1)
        old = begun - 1 - (begun - 1 - slots) % window
        keys = torch.cat((old, begun + torch.arange(width).view(1, 1, -1)), -1)
        seen = (keys >= 0) & (keys <= queries) & (keys > queries - window)
    else:
        seen = torch.arange(rows).view(1, 1, -1) <= queries
    plan.mask = _added(seen.unsqueeze(1), dtype, device)
    return plan


def step_plan(lengths: Sequence[int], window: int | None, dtype: torch.dtype, device: str) -> StepPlan:
    """How one more token of each request attends, `lengths` tokens being in the cache."""
    slots = [length if window is None else length % window for length in lengths]
    filled = [length + 1 if window is None else min(length + 1, window) for length in lengths]
    rows = max(filled)
    if len(set(lengths)) == 1:
        return StepPlan(rows=rows, slot=slots[0])
    mask = None
    if len(set(filled)) > 1:
        seen = torch.arange(rows).view(1, 1, 1, -1) < torch.tensor(filled).view(-1, 1, 1, 1)
        mask = _added(seen, dtype, device)
    return StepPlan(rows=rows, slot=None, slots=torch.tensor(slots, device=device), mask=mask)


def _added(seen: Tensor, dtype: torch.dtype, device: str) -> Tensor:
    return torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, float("-inf")).to(device)


def attend_chunk(
    query: Tensor,
    new: Tensor,
    cache: BlockCache | None,
    layer: int,
    plan: ChunkPlan,
    value_width: int,
    scale: float,
    wide: bool = False,
) -> Tensor:
    """Write a chunk's rows to the layer and attend.

    query (B, H, T, D), new (parts, B, KV, T, D) → (B, H, T, value_width). Without a cache nothing is written, and keys
    are those of the chunk. `wide` computes in fp32, whatever is stored.
    """
    keys = new
    if cache is not None:
        stored, scales = cache.encode(new)
        own = cache.decode(stored, scales, query.dtype)
        if plan.ring_rows is None:
            _write_chunk(cache, layer, stored, scales, plan)
            keys = _read(cache, layer, plan.rows, query.dtype)
        else:
            # What the ring holds is read before the chunk overwrites it.
            held = _read(cache, layer, plan.ring_rows, query.dtype)
            keys = torch.cat((held, own), 3) if plan.ring_rows else own
            _write_chunk(cache, layer, stored, scales, plan)
    wanted = query.dtype
    if wide and keys.dtype is not torch.float32:
        query, keys = query.float(), keys.float()
    return _sums(query, keys, plan.mask, plan.mask is None, value_width, scale).to(wanted)


def attend_step(
    query: Tensor, new: Tensor, cache: BlockCache, layer: int, plan: StepPlan, value_width: int, scale: float
) -> Tensor:
    """Write one token's row of each request and attend.

    query (B, H, D), new (B, parts, KV, D) → (B, H × value_width).
    """
    batch, heads, width = query.shape
    stored, scales = cache.encode(new)
    kv = cache.kv[layer]
    if plan.slot is not None:
        kv[:, :, :, plan.slot] = stored.transpose(0, 1)
        if scales is not None:
            cache.scales[layer][:, :, :, plan.slot] = scales.transpose(0, 1)
    else:
        requests = torch.arange(batch, device=query.device)
        kv[:, requests, :, plan.slots] = stored
        if scales is not None:
            cache.scales[layer][:, requests, :, plan.slots] = scales
    # Query heads of one KV head become rows of one small matrix: its keys and values are read once for all of them.
    grouped = query.view(batch, kv.shape[2], heads // kv.shape[2], width)
    if scales is None:
        keys = kv[:, :, :, : plan.rows]
        found = _sums(grouped, keys, plan.mask, False, value_width, scale)
    else:
        found = _scaled_sums(grouped, cache, layer, plan, value_width, scale)
    return found.reshape(batch, heads * value_width)


def _sums(query: Tensor, keys: Tensor, mask: Tensor | None, causal: bool, value_width: int, scale: float) -> Tensor:
    """softmax(query · keys) · values, computed in the cache's format where that is a float of another kind."""
    key, value = keys[0], keys[-1]
    wanted = query.dtype
    query = query.to(key.dtype)
    mask = mask if mask is None else mask.to(key.dtype)
    found = F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=query.shape[1] != key.shape[1]
    )
    # A latent is key and value at once; the part that carries the position is not part of the value.
    return found[..., :value_width].to(wanted)


def _scaled_sums(
    query: Tensor, cache: BlockCache, layer: int, plan: StepPlan, value_width: int, scale: float
) -> Tensor:
    """The same over int8 rows: scores are multiplied by the keys' scales and weights by the values', not the rows."""
    numbers = cache.scratch(layer, plan.rows)
    scales = cache.scales[layer][:, :, :, : plan.rows]
    batch, kv_heads, group, width = query.shape
    flat = (batch * kv_heads, -1)
    scores = torch.bmm(query.float().reshape(*flat, width), numbers[0].view(*flat, width).transpose(1, 2))
    scores = scores.view(batch, kv_heads, group, plan.rows).mul_(scales[0].mul(scale).unsqueeze(2))
    if plan.mask is not None:
        scores += plan.mask
    shares = torch.softmax(scores, -1).mul_(scales[-1].unsqueeze(2))
    found = torch.bmm(shares.view(*flat, plan.rows), numbers[-1].view(*flat, width)[..., :value_width])
    return found.to(query.dtype)


def _read(cache: BlockCache, layer: int, rows: int, dtype: torch.dtype) -> Tensor:
    """The first rows of a layer as numbers to compute with; a view where they are stored as floats."""
    scales = cache.scales[layer][:, :, :, :rows] if cache.quantised else None
    return cache.decode(cache.kv[layer][:, :, :, :rows], scales, dtype)


def _write_chunk(cache: BlockCache, layer: int, stored: Tensor, scales: Tensor | None, plan: ChunkPlan) -> None:
    pairs = [(cache.kv[layer], stored)]
    if scales is not None:
        pairs.append((cache.scales[layer], scales))
    for target, source in pairs:
        if len(set(zip(plan.starts, plan.counts, strict=True))) == 1:
            _write_rows(target, source, plan.starts[0], plan.counts[0], plan.window)
            continue
        for request, (start, count) in enumerate(zip(plan.starts, plan.counts, strict=True)):
            one = slice(request, request + 1)
            _write_rows(target[:, one], source[:, one], start, count, plan.window)


def _write_rows(target: Tensor, source: Tensor, start: int, count: int, window: int | None) -> None:
    """Rows of `count` tokens from position `start`; of a window only the last ones, each to its place in the ring."""
    if window is None or start + count <= window:
        target[:, :, :, start : start + count] = source[:, :, :, :count]
        return
    kept = min(count, window)
    slots = torch.arange(start + count - kept, start + count, device=target.device) % window
    target[:, :, :, slots] = source[:, :, :, count - kept : count]
