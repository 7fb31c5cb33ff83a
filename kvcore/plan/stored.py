"""What a published checkpoint holds that its language model's shape does not say."""

from __future__ import annotations

from dataclasses import dataclass

from kvcore.model.model import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """`tower_parameters`: of the parts that read pictures and sound; `block`: the side of the blocks that share an fp8
    scale, 0 where there are none."""

    tower_parameters: int = 0
    block: int = 0


def stored(model: Model) -> Stored:
    """What the model's own configuration says."""
    return Stored(tower_parameters=model.tower_parameters, block=model.scale_block)
