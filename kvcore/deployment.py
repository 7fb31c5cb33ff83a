"""How a model is served: which GPUs, split in which way, by which engine with which options. Data only.

A `Split` says how GPUs are shared out, a `Request` is what every engine can be asked in the same words, and a
`Deployment` is a request to one engine on GPUs that are there. What an engine makes of it is for the engine to say.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from kvcore.errors import UnitError
from kvcore.hardware.gpus import Accelerator
from kvcore.hardware.systems import MAX_GPUS
from kvcore.model.model import Model
from kvcore.units import check_tokens

# How the model's own prediction layers are spelled.
OWN = "mtp"
_SPLIT = re.compile(r"(tp|pp|dp|dcp)([0-9]{1,4})")
_SWITCHES = {"ep": "expert_parallel", "dpa": "dp_attention"}
_SIDES = ("tp", "pp", "dp", "dcp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A proposer with weights: `model` is None for the model's own prediction layers.

    `name` is the draft model's id. `weight_format` is that of the draft's weights, None for the stored one.
    """

    name: str = OWN
    # Not hashed: a model has hundreds of layers, and a deployment is often a key.
    model: Model | None = field(default=None, hash=False, repr=False)
    weight_format: str | None = None

    @property
    def own(self) -> bool:
        """Whether it is the model's own prediction layers."""
        return self.model is None

    @property
    def standalone(self) -> bool:
        """Whether it is a model that could serve by itself, and no head."""
        return self.model is not None and not self.model.prediction.eagle

    @property
    def text(self) -> str:
        """Its one spelling: `mtp`, `Qwen/Qwen3-0.6B`, `Qwen/Qwen3-0.6B@fp8`."""
        return self.name if self.weight_format is None else f"{self.name}@{self.weight_format}"


OWN_HEAD = Draft()


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """How GPUs are shared out: `tp` × `pp` in each of `dp` replicas, and what is switched on beside that.

    `dcp` splits the tokens of a request over ranks of the tensor-parallel group.
    """

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
    def replica_gpus(self) -> int:
        """GPUs of one replica."""
        return self.tp * self.pp

    @property
    def split(self) -> Split:
        """The split alone, of what has one."""
        return Split(**{one.name: getattr(self, one.name) for one in fields(Split)})

    @property
    def text(self) -> str:
        """The split's one spelling: `tp8`, `tp4-dp2`, `tp8-dcp8`, `tp1-dp8-ep-dpa`."""
        parts = [f"{name}{getattr(self, name)}" for name in _SIDES if name == "tp" or getattr(self, name) > 1]
        return "-".join(parts + [word for word, name in _SWITCHES.items() if getattr(self, name)])


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


# An engine's own options: (field of its settings, value), sorted by field.
Options = tuple[tuple[str, Any], ...]


def as_options(values: Mapping[str, Any]) -> Options:
    """Values by field as the options of a request; those that are None are left to the engine."""
    return tuple(
        sorted(
            (name, tuple(value) if isinstance(value, list) else value)
            for name, value in values.items()
            if value is not None
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(Split):
    """What can be asked of every engine in the same words. None, and `auto`, leave it to the engine.

    `context` is the longest request that the engine is started for (max_model_len). `weight_format` is None for the
    stored one. `utilization` is gpu_memory_utilization, mem_fraction_static or free_gpu_memory_fraction, whichever the
    engine has. `draft` proposes `speculative_tokens` a step; where it is None they are taken from the prompt (n-gram),
    which has no weights. `options` are further options of the engine; they win over what is said in common words.
    """

    gpu: Accelerator | None = None
    context: int | None = None
    platform: Literal["cuda", "cpu"] = "cuda"
    engine_version: str | None = None
    kv_dtype: str = "auto"
    weight_format: str | None = None
    utilization: float | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    enforce_eager: bool = False
    prefix_caching: bool = True
    speculative_tokens: int = 0
    draft: Draft | None = None
    options: Options = ()

    def __post_init__(self) -> None:
        """UnitError for options that cannot be: a request is often a key."""
        try:
            hash(self.options)
        except TypeError:
            raise UnitError(f"options: {str(self.options)[:80]} are not plain values") from None

    def option(self, name: str) -> Any:
        """The value of one of the engine's own options; None where it is not stated."""
        return next((value for field, value in self.options if field == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment(Request):
    """A request to one engine for one model on GPUs of one kind: `dp` replicas, each of `tp` × `pp` of them.

    `kv_bytes` is a cache pool for each GPU that somebody read off a log: nothing about memory is estimated then.
    """

    gpu: Accelerator
    context: int
    engine: str
    kv_bytes: int | None = None

    def __post_init__(self) -> None:
        """UnitError for what cannot be, whatever the model."""
        Request.__post_init__(self)
        check_tokens(self.context)
        for name in _SIDES:
            if not 1 <= getattr(self, name) <= MAX_GPUS:
                raise UnitError(f"{name}: {getattr(self, name):,} is not within 1 … {MAX_GPUS:,}")
        if self.gpus > MAX_GPUS:
            raise UnitError(f"tp × pp × dp: {self.gpus:,} GPUs are not within 1 … {MAX_GPUS:,}")
        if self.utilization is not None and not 0 < self.utilization <= 1:
            raise UnitError(f"utilization: {self.utilization:g} is not within 0 … 1")
        for name in ("max_num_batched_tokens", "max_num_seqs"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UnitError(f"{name}: {value:,} is less than 1")
        if self.draft is not None and self.speculative_tokens < 1:
            raise UnitError(f"speculative tokens: {self.draft.text} proposes at least one a step; say how many")
        if self.kv_bytes is not None and self.kv_bytes < 0:
            raise UnitError(f"memory for the cache: {self.kv_bytes:,} B is less than none")

    def at(self, context: int) -> Deployment:
        """The same for a longest request of `context` tokens."""
        return self if context == self.context else replace(self, context=context)

    def on(self, split: Split) -> Deployment:
        """The same in another split."""
        return replace(self, **{one.name: getattr(split, one.name) for one in fields(Split)})

    def unless_stated(self, values: Mapping[str, Any]) -> Deployment:
        """The same with further options of the engine, where its own do not say otherwise."""
        return replace(self, options=as_options({**values, **dict(self.options)})) if values else self
