"""Rotary positions: frequencies by kind of scaling, tables that grow, and the rotation (imports torch).

Formulas: RoFormer (the rotation, halves as in transformers' Llama), and transformers 5.24, modeling_rope_utils.py, for
the scalings.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from kvcore.errors import LiveError
from kvcore.live.shape import LiveShape


def frequencies(shape: LiveShape) -> tuple[Tensor, float]:
    """(angle a position for each pair, in fp32; factor on cosine and sine) of the shape's rotary scaling."""
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
    """Cosines and signed sines of positions, [positions, width] in the engine's format; it grows as needed."""

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
    """Turn the vectors in the last dimension by their positions, in place."""
    # The second half, then the first.
    swapped = heads.roll(heads.shape[-1] // 2, -1)
    return heads.mul_(cos).addcmul_(swapped, sin)
