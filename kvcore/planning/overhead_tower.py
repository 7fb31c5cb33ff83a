"""What reads a model's pictures or sound, as far as the memory of its profiling run goes: an estimate.

vLLM profiles with pictures of the largest size that the processor allows; a configuration mostly does not state that
size. Where it does not, the family's published processor does (`_LARGEST`), or a usual size stands in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from kvcore.model.model import Model
from kvcore.ranks.weights import TOWERS, RankWeights
from kvcore.sources import catalogue
from kvcore.terms import Range

_CONFIGS = ("vision_config", "audio_config")
_INSIDE = ("text_config.", "thinker_config.", "llm_config.", "language_config.")
# Towers of 400 million parameters (SigLIP) are the usual ones; 4 patches make a token; a picture of 2,048² in patches
# of 16 has 16,384 of them.
_USUAL_HIDDEN, _USUAL_MERGE, _USUAL_ROWS = 1152, 4, 16_384
# Patches of the largest item by the start of `model_type`: 16,384 tokens × 4 (12,845,056 pixels) in Qwen's processors
# (vLLM logs "a budget of 16384 tokens, and profiled with 1 image items"); a video of 32 frames × 70 tokens × 9 in
# Gemma 4's ("a budget of 8192 tokens, and profiled with 3 video items").
_LARGEST = (("qwen", 65_536), ("gemma4", 20_160))
# Before this version Qwen3-VL's largest video counted, and room for all its tokens was kept, however long the one that
# the tower was profiled with (gpu_model_runner.py, profile_run: outputs are scattered onto the encoder's budget; logs
# of 0.11 and 0.12: "a budget of 153600 tokens, and profiled with 1 video items").
_VIDEOS, _VIDEO_TOKENS, _VIDEOS_BEFORE = "qwen3_vl", 153_600, (0, 13)


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


# GiB that a tower weighs where no configuration says: 300 to 600 million parameters in 16 bits (Qwen3.5-4B loads 0.78
# GiB more than its language model, data/field/memory.jsonl).
UNSTATED_WEIGHTS = Range(low=0.3, best=0.8, high=1.2)
QWEN_VL = Tower(hidden=1280, rows=65_536, tokens=16_384)


def kept_tokens(made: Tower, items: int, version: tuple[int, ...]) -> int:
    """Tokens of pictures that this version of vLLM keeps room for while the language model runs."""
    fewest = _VIDEO_TOKENS if made.videos and version < _VIDEOS_BEFORE else 0
    return max(items * made.tokens, fewest)


def lacks_tower(made: Tower, weights: RankWeights) -> bool:
    """Whether a tower that nobody described is missing from estimated weights; a checkpoint's own bytes have it."""
    listed = any(name == TOWERS for name, _ in weights.parts)
    return not made.stated and not listed and weights.knowledge == "estimated"


def tower(model: Model) -> Tower | None:
    """The tower of a model; None of a model that reads text only. By its configuration in the catalogue, else usual."""
    entry = catalogue.find(model.name)
    if entry is not None:
        known = catalogue.load(entry.model_id)
        if (known.hidden_size, len(known.layers)) == (model.hidden_size, len(model.layers)):
            return _of_entry(entry.model_id)
    # Of a configuration from elsewhere only the names are known: a tower's, or those of a language model inside it.
    towers = any(name.endswith(_CONFIGS) for name in model.reading.keys_ignored)
    inside = any(name.startswith(_INSIDE) for name, _ in model.reading.keys_used)
    return _usual(model.model_type) if towers or inside else None


@cache
def _of_entry(model_id: str) -> Tower | None:
    raw = catalogue.raw_config(model_id)
    stated = next((raw[name] for name in _CONFIGS if isinstance(raw.get(name), Mapping)), None)
    if stated is not None:
        return _from_config(raw, stated)
    # A transcription that has the language model's part only, of a model that is made for more than text.
    return _usual(str(raw.get("model_type", ""))) if _is_multimodal(raw) else None


def _is_multimodal(raw: Mapping[str, Any]) -> bool:
    """`…ForConditionalGeneration` around a text_config of its own (the same class name without one is a translator)."""
    names = raw.get("architectures")
    generates = isinstance(names, list) and any("ForConditionalGeneration" in str(name) for name in names)
    return generates and any(f"{key}." in _INSIDE for key in raw)


def _usual(model_type: str) -> Tower:
    rows = next((rows for start, rows in _LARGEST if model_type.startswith(start)), _USUAL_ROWS)
    return Tower(hidden=_USUAL_HIDDEN, rows=rows, tokens=rows // _USUAL_MERGE, stated=False)


def _from_config(raw: Mapping[str, Any], config: Mapping[str, Any]) -> Tower:
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
        depth=1 + len(deep) if isinstance(deep, list) else 1,
        videos=family.startswith(_VIDEOS),
    )


def _size(config: Mapping[str, Any], *names: str) -> int:
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**24:
            return value
    return 0
