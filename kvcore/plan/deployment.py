"""How a model is served: which GPUs, split in which way, by which engine with which options."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kvcore.engines.base import Common
from kvcore.engines.registry import engine
from kvcore.errors import UnitError
from kvcore.hardware.gpus import Accelerator
from kvcore.model.model import Model
from kvcore.plan.draft import Draft
from kvcore.plan.prediction_head import prediction_head
from kvcore.units import check_tokens

MAX_GPUS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """One deployment of one model: `dp` replicas, each of `tp` × `pp` GPUs of one kind.

    `context` is the longest request that the engine is started for (max_model_len). `dcp` splits the tokens of a
    request over ranks of the tensor-parallel group. None means the engine's own default. `utilization` is
    gpu_memory_utilization, mem_fraction_static or free_gpu_memory_fraction, whichever the engine has. `kv_bytes` is a
    cache pool for each GPU that somebody read off a log: nothing about memory is estimated then. `draft` proposes
    `speculative_tokens` a step; where it is None they are taken from the prompt (n-gram), which has no weights.
    `options` are further options of the engine, by the field of its settings, sorted.
    """

    gpu: Accelerator
    context: int
    tp: int = 1
    pp: int = 1
    dp: int = 1
    dcp: int = 1
    expert_parallel: bool = False
    dp_attention: bool = False
    engine: str = "vllm"
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
    kv_bytes: int | None = None
    options: tuple[tuple[str, Any], ...] = field(default=())

    def __post_init__(self) -> None:
        """UnitError for what cannot be, whatever the model."""
        check_tokens(self.context)
        for name in ("tp", "pp", "dp", "dcp"):
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

    @property
    def gpus(self) -> int:
        """All GPUs of all replicas."""
        return self.tp * self.pp * self.dp

    @property
    def replica_gpus(self) -> int:
        """GPUs of one replica."""
        return self.tp * self.pp

    def _own_layers(self, model: Model) -> int | None:
        """Layers with a cache of the model's own prediction modules, where those propose."""
        head = prediction_head(model) if self.draft is not None and self.draft.own else None
        return sum(any(memory.kind != "none" for memory in layer) for layer in head.layers) if head else None

    def common(self, context: int | None = None) -> Common:
        """What every engine is asked in the same words, for a request of `context` tokens (the longest unless said)."""
        return Common(
            max_model_len=self.context if context is None else context,
            kv_dtype=self.kv_dtype,
            tp=self.tp,
            pp=self.pp,
            dcp=self.dcp,
            gpu=self.gpu,
            version=self.engine_version,
        )

    def settings(self, model: Model, context: int | None = None) -> Any:
        """The engine's own settings; raises EngineError for what the engine does not support."""
        chosen = engine(self.engine)
        known = {option.field for option in chosen.options}
        own = {
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "no_prefix_caching": None if self.prefix_caching else True,
            "num_speculative_tokens": self.speculative_tokens or None,
            "spec_draft_n_max": None if self.draft is None else self.speculative_tokens,
            "mtp_layers": self._own_layers(model),
        }
        values = {name: value for name, value in own.items() if name in known and value is not None}
        return chosen.settings(model, self.common(context), values | dict(self.options))
