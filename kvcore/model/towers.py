"""The towers that read pictures and sound, from their own configurations: their shape and their parameters, estimates.

Counted are attention, feed-forward, patch embedding, positions and the projection into the language model; no biases.
The largest picture is what engines profile; a configuration mostly does not state its size. Where it does not, the
family's published processor does (`_LARGEST`), or a usual size stands in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_TOWERS = ("vision_config", "audio_config")
# Where a multimodal model's parts are one level down.
_HOLDERS = ("thinker_config",)
# A language model inside a larger one.
_INSIDE = ("text_config", "thinker_config", "llm_config", "language_config")
_GATED = ("qwen2_5_vl", "qwen2_5_omni_vision_encoder", "gemma4_vision", "pixtral")
# Towers of 400 million parameters (SigLIP) are the usual ones; 4 patches make a token; a picture of 2,048² in patches
# of 16 has 16,384 of them.
_USUAL_HIDDEN, _USUAL_MERGE, _USUAL_ROWS = 1152, 4, 16_384
# Patches of the largest item by the start of `model_type`: 16,384 tokens × 4 (12,845,056 pixels) in Qwen's processors
# (vLLM logs "a budget of 16384 tokens, and profiled with 1 image items"); a video of 32 frames × 70 tokens × 9 in
# Gemma 4's ("a budget of 8192 tokens, and profiled with 3 video items").
_LARGEST = (("qwen", 65_536), ("gemma4", 20_160))
# The family whose largest video once counted.
_VIDEOS = "qwen3_vl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tower:
    """`hidden`: columns of the tower; `rows`: patches of the largest picture; `tokens`: what these become in the model.

    `outputs`: copies of its rows that are kept until the end (outputs of several layers side by side). `crosses`: the
    model reads pictures by cross attention, so that they take no place among the tokens. `stated`: by a configuration.
    `depth`: hidden states that one token of a picture becomes (one, and one more for each layer that is fed on the
    way: deepstack). `videos`: of the family whose largest video once counted.
    """

    hidden: int
    rows: int
    tokens: int
    outputs: int = 0
    crosses: bool = False
    stated: bool = True
    depth: int = 1
    videos: bool = False


def read_tower(raw: Mapping[str, Any]) -> Tower | None:
    """The tower of a configuration; a usual one where it is made for more than text and describes none, else None."""
    for holder in _holders(raw):
        stated = next((holder[name] for name in _TOWERS if isinstance(holder.get(name), Mapping)), None)
        if stated is not None:
            return _described(raw, stated)
    # A transcription that has the language model's part only, of a model that is made for more than text.
    return _usual(str(raw.get("model_type", ""))) if _is_multimodal(raw) else None


def _is_multimodal(raw: Mapping[str, Any]) -> bool:
    """`…ForConditionalGeneration` around a text_config of its own (the same class name without one is a translator)."""
    names = raw.get("architectures")
    generates = isinstance(names, list) and any("ForConditionalGeneration" in str(name) for name in names)
    return generates and any(key in raw for key in _INSIDE)


def _usual(model_type: str) -> Tower:
    rows = next((rows for start, rows in _LARGEST if model_type.startswith(start)), _USUAL_ROWS)
    return Tower(hidden=_USUAL_HIDDEN, rows=rows, tokens=rows // _USUAL_MERGE, stated=False)


def _described(raw: Mapping[str, Any], config: Mapping[str, Any]) -> Tower:
    family = str(raw.get("model_type", ""))
    # Qwen2-VL calls its tower's columns `embed_dim`; its `hidden_size` is the language model's.
    hidden = _size(config, "embed_dim", "vt_hidden_size", "hidden_size", "d_model") or _USUAL_HIDDEN
    crosses = family.startswith("mllama")
    patch, side = _size(config, "patch_size"), _size(config, "image_size")
    rows = next((rows for start, rows in _LARGEST if family.startswith(start)), 0)
    if not rows and patch and side >= patch:
        # One row of its own for the picture as a whole where tiles are read; as many tiles as the processor cuts.
        tiles = _size(config, "max_num_tiles")
        rows = (side // patch) ** 2 * max(1, tiles) + tiles
    rows = rows or _USUAL_ROWS
    merge = (_size(config, "spatial_merge_size") or _size(config, "pooling_kernel_size")) ** 2
    tokens = _size(raw, "mm_tokens_per_image") or rows // (1 if crosses else merge or _USUAL_MERGE)
    wide = _size(config, "vision_output_dim")
    deep = config.get("deepstack_visual_indexes")
    return Tower(
        hidden=hidden,
        rows=rows,
        tokens=max(1, tokens),
        outputs=wide // hidden if crosses else 0,
        crosses=crosses,
        depth=1 + (len(deep) if isinstance(deep, list) and len(deep) < 100 else 0),
        videos=family.startswith(_VIDEOS),
    )


def tower_parameters(raw: Mapping[str, Any], text_hidden: int) -> int:
    """All towers of a configuration together; 0 where there is none, or its size is not stated."""
    return sum(
        _tower(config, str(config.get("model_type") or holder.get("model_type") or ""), text_hidden)
        for holder in _holders(raw)
        for name in _TOWERS
        if isinstance(config := holder.get(name), Mapping)
    )


def _holders(raw: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The objects that may have a tower: the file's own, and those of its parts."""
    return [raw, *(held for name in _HOLDERS if isinstance(held := raw.get(name), Mapping))]


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
