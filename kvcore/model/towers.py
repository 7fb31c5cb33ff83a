"""Parameters of the towers that read pictures and sound, from their own configurations: an estimate.

Counted are attention, feed-forward, patch embedding, positions and the projection into the language model; no biases.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_TOWERS = ("vision_config", "audio_config")


def tower_parameters(raw: Mapping[str, Any], text_hidden: int) -> int:
    """All towers of a configuration together; 0 where there is none, or its size is not stated."""
    return sum(_tower(config, text_hidden) for name in _TOWERS if isinstance(config := raw.get(name), Mapping))


def _tower(config: Mapping[str, Any], text_hidden: int) -> int:
    # Where both are stated, `hidden_size` is the language model's.
    hidden = _size(config, "embed_dim", "hidden_size", "vt_hidden_size", "d_model")
    layers = _size(config, "num_hidden_layers", "vt_num_hidden_layers", "depth", "encoder_layers")
    if not hidden or not layers:
        return 0
    width = _size(config, "intermediate_size", "vt_intermediate_size", "encoder_ffn_dim")
    width = width or 4 * hidden
    gated = str(config.get("model_type", "")) in ("qwen2_5_vl", "gemma4_vision", "pixtral")
    patch = _size(config, "patch_size", "spatial_patch_size")
    total = layers * (4 * hidden * hidden + (3 if gated else 2) * hidden * width)
    total += 3 * patch * patch * max(1, _size(config, "temporal_patch_size")) * hidden
    total += hidden * _size(config, "num_position_embeddings", "position_embedding_size")
    return total + sum(_projection(config, hidden, text_hidden))


def _projection(config: Mapping[str, Any], hidden: int, text_hidden: int) -> Iterator[int]:
    """From the tower's rows to the language model's: merged patches through a hidden layer, or one matrix."""
    stated = config.get("merge_kernel_size")
    first = stated[0] if isinstance(stated, list) and stated else 0
    side = _size(config, "spatial_merge_size") or (first if type(first) is int and 0 < first < 64 else 0)
    if not side:
        yield hidden * text_hidden
        return
    merged = hidden * side * side
    out = _size(config, "out_hidden_size", "text_hidden_size") or text_hidden
    stacked = config.get("deepstack_visual_indexes")
    copies = 1 + (len(stacked) if isinstance(stacked, list) and len(stacked) < 100 else 0)
    yield copies * (merged * merged + merged * out)


def _size(config: Mapping[str, Any], *names: str) -> int:
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**24:
            return value
    return 0
