"""Parameters of the towers that read pictures and sound, from their own configurations: an estimate.

Counted are attention, feed-forward, patch embedding, positions and the projection into the language model; no biases.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_TOWERS = ("vision_config", "audio_config")
# Where a multimodal model's parts are one level down.
_HOLDERS = ("thinker_config",)
_GATED = ("qwen2_5_vl", "qwen2_5_omni_vision_encoder", "gemma4_vision", "pixtral")


def tower_parameters(raw: Mapping[str, Any], text_hidden: int) -> int:
    """All towers of a configuration together; 0 where there is none, or its size is not stated."""
    holders = [raw, *(held for name in _HOLDERS if isinstance(held := raw.get(name), Mapping))]
    return sum(
        _tower(config, str(config.get("model_type") or holder.get("model_type") or ""), text_hidden)
        for holder in holders
        for name in _TOWERS
        if isinstance(config := holder.get(name), Mapping)
    )


def _tower(config: Mapping[str, Any], kind: str, text_hidden: int) -> int:
    # Where both are stated, `hidden_size` is the language model's.
    hidden = _size(config, "embed_dim", "hidden_size", "vt_hidden_size", "d_model")
    layers = _size(config, "num_hidden_layers", "vt_num_hidden_layers", "depth", "encoder_layers")
    if not hidden or not layers:
        return 0
    if kind == "gemma4_audio":
        return _conformer(config, hidden, layers, text_hidden)
    layers += _size(config, "num_global_layers")
    width = _size(config, "intermediate_size", "vt_intermediate_size", "encoder_ffn_dim")
    width = width or 4 * hidden
    patch = _size(config, "patch_size", "spatial_patch_size")
    total = layers * (4 * hidden * hidden + (3 if kind in _GATED else 2) * hidden * width)
    total += 3 * patch * patch * max(1, _size(config, "temporal_patch_size")) * hidden
    # Gemma 4 has a table of positions for each of the two axes.
    axes = 2 if kind == "gemma4_vision" else 1
    total += hidden * axes * _size(config, "num_position_embeddings", "position_embedding_size")
    total += hidden * _tile_positions(config, patch)
    return total + sum(_projection(config, hidden, text_hidden))


def _conformer(config: Mapping[str, Any], hidden: int, layers: int, text_hidden: int) -> int:
    """Gemma 4's audio layers: two feed-forward parts of four times the width, attention with relative positions, and a
    gated convolution (modeling_gemma4.py)."""
    out = _size(config, "output_proj_dims") or hidden
    return layers * (2 * 8 + 5 + 3) * hidden * hidden + hidden * out + out * text_hidden


def _tile_positions(config: Mapping[str, Any], patch: int) -> int:
    """Rows of Llama 3.2 Vision's positions: one for every patch of every tile, for every shape of a picture."""
    tiles, side = _size(config, "max_num_tiles"), _size(config, "image_size")
    shapes = config.get("supported_aspect_ratios")
    if not tiles or not patch or not isinstance(shapes, list):
        return 0
    return (min(len(shapes), 64) + 1) * min(tiles, 64) * ((side // patch) ** 2 + 1)


def _projection(config: Mapping[str, Any], hidden: int, text_hidden: int) -> Iterator[int]:
    """From the tower's rows to the language model's: merged patches through a hidden layer, or one matrix."""
    stated = config.get("merge_kernel_size")
    first = stated[0] if isinstance(stated, list) and stated else 0
    side = _size(config, "spatial_merge_size") or (first if type(first) is int and 0 < first < 64 else 0)
    if not side:
        yield (_size(config, "vision_output_dim") or hidden) * text_hidden
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
