"""How GPUs are shared out, in one word: `tp8`, `tp4-dp2`."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any

from kvcore.errors import UnitError
from kvcore.plan.deployment import MAX_GPUS

_SPLIT = re.compile(r"(tp|pp|dp|dcp)([0-9]{1,4})")
_SWITCHES = {"ep": "expert_parallel", "dpa": "dp_attention"}
_SIDES = ("tp", "pp", "dp", "dcp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """How GPUs are shared out: `tp` × `pp` in each of `dp` replicas, and what is switched on beside that."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    dcp: int = 1
    expert_parallel: bool = False
    dp_attention: bool = False

    @property
    def gpus(self) -> int:
        """All GPUs of all replicas."""
        return self.tp * self.pp * self.dp

    @property
    def text(self) -> str:
        """Its one spelling: `tp8`, `tp4-dp2`, `tp8-dcp8`, `tp1-dp8-ep-dpa`."""
        parts = [f"{name}{getattr(self, name)}" for name in _SIDES if name == "tp" or getattr(self, name) > 1]
        return "-".join(parts + [word for word, name in _SWITCHES.items() if getattr(self, name)])


def split_of(shard: Any) -> Split:
    """The split of a Shard or a Deployment."""
    return Split(**{field.name: getattr(shard, field.name) for field in fields(Split)})


def read_split(text: str) -> Split:
    """A split as `Split.text` spells it, in any order; UnitError for anything else."""
    values: dict[str, Any] = {}
    for part in text.strip().lower().split("-"):
        found = _SPLIT.fullmatch(part)
        name = _SWITCHES.get(part) if found is None else found[1]
        if name is None or name in values:
            raise UnitError(f"split: {text[:40]!r} is not a split; write for example tp8, tp4-dp2 or tp8-ep")
        values[name] = True if found is None else int(found[2])
    split = Split(**values)
    if not all(1 <= getattr(split, name) <= MAX_GPUS for name in _SIDES) or split.gpus > MAX_GPUS:
        raise UnitError(f"split: {text[:40]!r} is not within 1 … {MAX_GPUS:,} GPUs")
    return split
