"""What a tower costs vLLM beside its profiling run: weights that no file states, and room for its tokens."""

from __future__ import annotations

from kvcore.model.towers import Tower
from kvcore.ranks.weights import RankWeights
from kvcore.terms import Range

# Before this version Qwen3-VL's largest video counted, and room for all its tokens was kept, however long the one that
# the tower was profiled with (gpu_model_runner.py, profile_run: outputs are scattered onto the encoder's budget; logs
# of 0.11 and 0.12: "a budget of 153600 tokens, and profiled with 1 video items").
_VIDEO_TOKENS, _VIDEOS_BEFORE = 153_600, (0, 13)
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
    return not made.stated and not weights.lists_towers and weights.knowledge == "estimated"
