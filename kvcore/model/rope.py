"""How a configuration stretches rotary positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvcore.model.keys import Keys
from kvcore.model.model import RopeScaling

_NAMES = ("rope_scaling", "rope_parameters")


def rope_scalings(keys: Keys) -> tuple[RopeScaling, ...]:
    """The different scalings that a language model's configuration states: for all layers, or for each type of layer.

    One without a factor above 0 stretches nothing and is left out.
    """
    positions = keys.peek("max_position_embeddings")
    found = set()
    for stated in (keys.peek(name) for name in _NAMES):
        if isinstance(stated, Mapping):
            # Newer files hold one object for each type of layer.
            each = (one for one in (stated, *stated.values()) if isinstance(one, Mapping))
            found |= {_scaling(one.get("rope_type") or one.get("type"), one.get("factor"), positions) for one in each}
    return tuple(sorted((one for one in found if one), key=lambda one: (one.kind, one.factor)))


def gguf_rope_scalings(keys: Keys) -> tuple[RopeScaling, ...]:
    """The same of a GGUF file, which states one for all layers."""
    kind, factor, positions = (
        keys.peek(name) for name in ("rope.scaling.type", "rope.scaling.factor", "context_length")
    )
    found = _scaling(kind, factor, positions)
    return (found,) if found else ()


def _scaling(kind: Any, factor: Any, positions: Any) -> RopeScaling | None:
    if not isinstance(kind, str) or isinstance(factor, bool) or not isinstance(factor, int | float):
        return None
    stated = positions if type(positions) is int and 0 < positions < 2**40 else 0
    return RopeScaling(kind=kind, factor=float(factor), positions=stated) if 0 < factor < 2**24 else None
