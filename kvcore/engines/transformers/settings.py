"""What a user of transformers may set about the cache (generate's arguments and the cache classes' own)."""

from __future__ import annotations

from dataclasses import dataclass

from kvcore.deployment import Request
from kvcore.engines.base import Option, check_whole, longest_request, own_values
from kvcore.engines.releases import followed
from kvcore.errors import EngineError
from kvcore.formats import kv_format
from kvcore.model.model import Model
from kvcore.units import MAX_BATCH, MAX_TOKENS, check_tokens

VERSION = "5.24.0"
IMPLEMENTATIONS = ("dynamic", "static", "quantized")
# Bits that each backend of QuantizedCache takes (cache_utils.py).
BACKENDS: dict[str, tuple[int, ...]] = {"quanto": (2, 4), "hqq": (1, 2, 3, 4, 8), "fp8": (8,)}
_BOUNDS = {
    "nbits": (1, 8), "q_group_size": (8, 2**20), "residual_length": (1, MAX_TOKENS), "batch_size": (1, MAX_BATCH),
}  # fmt: skip
_DTYPES = {"fp32": 4, "bf16": 2, "fp16": 2}

OPTIONS = (
    Option(flag="--cache-implementation", field="cache_implementation", kind="text", help="the class of the cache",
           choices=IMPLEMENTATIONS),
    Option(flag="--cache-backend", field="cache_backend", kind="text", help="what quantizes a quantized cache",
           choices=tuple(BACKENDS)),
    Option(flag="--nbits", field="nbits", kind="integer", help="bits of a quantized number"),
    Option(flag="--q-group-size", field="q_group_size", kind="integer", help="numbers that share a scale"),
    Option(flag="--residual-length", field="residual_length", kind="integer", help="newest tokens kept unquantized"),
    Option(flag="--batch-size", field="batch_size", kind="integer", help="requests of one batch"),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformersSettings:
    """Settings under transformers' names; `dtype` is the one that the model runs in, and so that of its cache."""

    max_length: int
    dtype: str = "auto"
    cache_implementation: str = "dynamic"
    cache_backend: str = "quanto"
    nbits: int | None = None
    q_group_size: int = 64
    residual_length: int = 128
    batch_size: int = 1
    version: str = VERSION

    def __post_init__(self) -> None:
        check_tokens(self.max_length)
        check_whole("transformers", self, _BOUNDS)
        if self.max_length < 1:
            raise EngineError("transformers: max_length is 0; a request has at least one token")
        if self.cache_implementation not in IMPLEMENTATIONS:
            raise EngineError(
                f"transformers: cache_implementation {self.cache_implementation[:20]!r} is not "
                f"{', '.join(IMPLEMENTATIONS)}"
            )
        if self.cache_backend not in BACKENDS:
            raise EngineError(f"transformers: cache_backend {self.cache_backend[:20]!r} is not {', '.join(BACKENDS)}")
        if self.bits not in BACKENDS[self.cache_backend]:
            listed = ", ".join(map(str, BACKENDS[self.cache_backend]))
            raise EngineError(f"transformers: nbits {self.bits} is not one of {self.cache_backend}'s: {listed}")
        if self.q_group_size % 8:
            raise EngineError(f"transformers: --q-group-size is {self.q_group_size:,}; expected a multiple of 8")

    @property
    def bits(self) -> int:
        """Bits of a quantized number: as asked for, else 4, and 8 in fp8."""
        return self.nbits if self.nbits is not None else 8 if self.cache_backend == "fp8" else 4

    def element_bytes(self, model: Model) -> int:
        """Bytes of one number that is not quantized; EngineError for a dtype that a model does not run in."""
        name = model.model_dtype if self.dtype.strip().lower() == "auto" else kv_format(self.dtype).name
        if name not in _DTYPES:
            raise EngineError(
                f"transformers: its cache has the model's dtype ({', '.join(_DTYPES)}), not {name}; a smaller one is "
                "--cache-implementation quantized"
            )
        return _DTYPES[name]


def make_settings(model: Model, asked: Request) -> TransformersSettings:
    """Settings for a request; EngineError for a value or version that is not followed, or for parallelism."""
    for name in ("tp", "pp", "dcp"):
        if getattr(asked, name) != 1:
            raise EngineError(f"transformers: {name} {getattr(asked, name)}: its cache is not split over ranks")
    return TransformersSettings(
        max_length=longest_request("transformers", model, asked),
        dtype=asked.kv_dtype,
        # Older releases kept keys and values of latents.
        version=followed("transformers", asked.engine_version or VERSION, "5", first=(5,), before=(6,)),
        **own_values("transformers", OPTIONS, asked),
    )
