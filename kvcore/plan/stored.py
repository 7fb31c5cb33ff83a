"""What a published checkpoint holds that its language model's shape does not say.

Which kinds of matrices a quantised checkpoint leaves in 16 bits, and the towers that read pictures and sound: engines
load both. They are read from the catalogue's copy of the configuration; a model that is not in it has neither.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

from kvcore import catalogue
from kvcore.model.model import Model

# A matrix of each kind, as published checkpoints name them; {layer} is one in the middle of the model.
_MATRICES = {
    "attention": ("model.layers.{layer}.self_attn.o_proj", "model.layers.{layer}.attn.o_proj"),
    "recurrent layers": ("model.layers.{layer}.linear_attn.out_proj", "model.layers.{layer}.mixer.out_proj"),
    "feed-forward": ("model.layers.{layer}.mlp.down_proj",),
    "experts": ("model.layers.{layer}.mlp.experts.0.down_proj",),
    "shared experts": (
        "model.layers.{layer}.mlp.shared_experts.down_proj",
        "model.layers.{layer}.mlp.shared_expert.down_proj",
        "model.layers.{layer}.ffn.shared_experts.down_proj",
    ),
}
_TOWERS = ("vision_config", "audio_config")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """`kept_16_bit`: kinds of parameters that are not quantised, by the checkpoint's own list; `tower_parameters`;
    `block`: the side of the blocks that share an fp8 scale, 0 where there are none.

    Towers are counted from their configurations: attention, feed-forward, patch embedding, positions and the projection
    into the language model, no biases; an estimate.
    """

    kept_16_bit: frozenset[str] = frozenset()
    tower_parameters: int = 0
    block: int = 0


def stored(model: Model) -> Stored:
    """What the catalogue's configuration of that name says, where it is of the same size; nothing of other models."""
    entry = catalogue.find(model.name)
    if entry is None:
        return Stored()
    known = catalogue.load(entry.model_id)
    same = (known.hidden_size, len(known.layers)) == (model.hidden_size, len(model.layers))
    return _stored(entry.model_id) if same else Stored()


@cache
def _stored(model_id: str) -> Stored:
    raw, model = catalogue.raw_config(model_id), catalogue.load(model_id)
    towers = [config for name in _TOWERS if isinstance(config := raw.get(name), Mapping)]
    return Stored(
        kept_16_bit=_kept(raw, model),
        tower_parameters=sum(_tower(config, model.hidden_size) for config in towers),
        block=max(_blocks(raw), default=0),
    )


def _kept(raw: Mapping[str, Any], model: Model) -> frozenset[str]:
    """Kinds whose matrices are excepted; one that is so in some layers only counts by the layer in the middle."""
    listed, found = _exceptions(raw), set()
    for kind, names in _MATRICES.items():
        # In a model with experts the feed-forward layers that are dense are the first ones.
        layer = 0 if kind == "feed-forward" and model.experts else len(model.layers) // 2
        if any(_is_named(name.format(layer=layer), pattern) for name in names for pattern in listed):
            found.add(kind)
    return frozenset(found)


def _quantisations(raw: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for holder in (raw, raw.get("text_config")):
        config = holder.get("quantization_config") if isinstance(holder, Mapping) else None
        if isinstance(config, Mapping):
            yield config


def _blocks(raw: Mapping[str, Any]) -> Iterator[int]:
    for config in _quantisations(raw):
        sides = config.get("weight_block_size")
        yield from (side for side in sides if isinstance(side, int)) if isinstance(sides, list) else ()


def _exceptions(raw: Mapping[str, Any]) -> tuple[str, ...]:
    """The names and patterns of modules that are not quantised; `re:` starts a regular expression."""
    found: list[Any] = []
    for config in _quantisations(raw):
        for key in ("ignore", "modules_to_not_convert", "exclude_modules"):
            value = config.get(key)
            found += value if isinstance(value, list) else []
    # Heads that speculate are no part of the model.
    return tuple(entry for entry in found if isinstance(entry, str) and not entry.startswith("mtp"))


def _is_named(name: str, pattern: str) -> bool:
    """Whether a module or one that it is in is meant: whole parts of its name, wherever the pattern starts."""
    if pattern.startswith("re:"):
        return re.match(pattern[3:], name) is not None
    parts = name.split(".")
    # Language models of multimodal checkpoints have a longer way to their layers.
    wanted = pattern[pattern.find("layers.") :].split(".") if "layers." in pattern else pattern.split(".")
    return any(
        all(fnmatchcase(part, want) for part, want in zip(parts[start:], wanted, strict=False))
        for start in range(len(parts) - len(wanted) + 1)
    ) and wanted != ["*"]


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
    side = _size(config, "spatial_merge_size") or (stated[0] if isinstance(stated, list) and stated else 0)
    if not side:
        yield hidden * text_hidden
        return
    merged = hidden * side * side
    out = _size(config, "out_hidden_size", "text_hidden_size") or text_hidden
    copies = 1 + len(config.get("deepstack_visual_indexes") or ())
    yield copies * (merged * merged + merged * out)


def _size(config: Mapping[str, Any], *names: str) -> int:
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**24:
            return value
    return 0
