"""Tiny shapes and decoders for tests of the live engine."""

from __future__ import annotations

from typing import Any

import torch

from kvcore.live.decoder import Decoder
from kvcore.live.shape import LiveShape, as_variant
from kvcore.live.weights import random_weights

torch.set_num_threads(1)


def shape(variant: str = "shipped", **changes: Any) -> LiveShape:
    """Three layers of 4 query and 2 KV heads of 16, and a vocabulary of 320."""
    base: dict[str, Any] = {
        "name": "tiny", "family": "llama", "num_layers": 3, "hidden_size": 64, "intermediate_size": 96, "num_heads": 4,
        "num_kv_heads": 2, "head_dim": 16, "vocab_size": 320, "rms_norm_eps": 1e-5, "rope_theta": 10_000.0,
        "windows": (None, None, None), "context_limit": 2048,
    }  # fmt: skip
    return as_variant(LiveShape(**(base | changes)), variant)


def decoder(of: LiveShape, weight_format: str = "fp32", seed: int = 0) -> Decoder:
    return Decoder(of, random_weights(of, weight_format, seed=seed), weight_format=weight_format)


def tokens(count: int, seed: int = 0, vocabulary: int = 320) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocabulary, (count,), generator=generator).tolist()
