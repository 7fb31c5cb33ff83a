"""What a user of llama.cpp may set, and what the engine makes of it for one model.

Sources: llama.cpp, common/arg.cpp and tools/server/server.cpp (flags and defaults of llama-server),
src/llama-context.cpp (the context: padding to 256, streams, batch sizes, what is refused).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvcore.deployment import Request
from kvcore.engines.base import Option, check_whole, own_values
from kvcore.engines.llamacpp.architectures import refuse_parallel
from kvcore.engines.releases import not_followed
from kvcore.errors import EngineError
from kvcore.formats import ELEMENT_FORMATS, Format, kv_format
from kvcore.model.model import Model

VERSION = "2026.10.11549"
# Builds whose rules were read and whose logs were recorded; the caches of both are laid out by the same code.
VERSIONS = {
    VERSION: f"llama.cpp as built in xllamacpp {VERSION}",
    "0.3.36": "llama.cpp as vendored in llama-cpp-python 0.3.36",
}
# ggml's names of the types that --cache-type-k and -v take, with ours (common/arg.cpp, kv_cache_types).
CACHE_TYPES: dict[str, str] = {
    "f32": "fp32", "f16": "fp16", "bf16": "bf16", "q8_0": "q8_0", "q4_0": "q4_0", "q4_1": "q4_1", "iq4_nl": "iq4_nl",
    "q5_0": "q5_0", "q5_1": "q5_1",
}  # fmt: skip
_GGML_NAMES = {ours: theirs for theirs, ours in CACHE_TYPES.items()}
CELL_PADDING = 256
MAX_SLOTS = 256
# --batch-size, --ubatch-size, and --parallel of llama-server (common/common.h, common/arg.cpp).
BATCH_SIZE, UBATCH_SIZE, SLOTS = 2048, 512, 4
_TYPES = tuple(CACHE_TYPES)
# Options that say what the slots share, llama.cpp's and Ollama's.
FIXED = frozenset({"ctx_size", "kv_unified", "kv_unified_per_slot", "parallel", "num_parallel", "num_ctx", "tool"})

OPTIONS = (
    Option(flag="--ctx-size", field="ctx_size", kind="integer", help="tokens of the context that all slots share; "
           "0: the model's training context"),
    Option(flag="--parallel", field="parallel", kind="integer", help="slots; unset: 4, sharing one cache"),
    Option(flag="--kv-unified", field="kv_unified", kind="switch", help="one cache that all slots share"),
    Option(flag="--kv-unified-per-slot", field="kv_unified_per_slot", kind="integer", help="most tokens of a slot"),
    Option(flag="--batch-size", field="batch_size", kind="integer", help="most tokens a call"),
    Option(flag="--ubatch-size", field="ubatch_size", kind="integer", help="most tokens computed at once"),
    Option(flag="--cache-type-k", field="cache_type_k", kind="text", help="number format of keys", choices=_TYPES),
    Option(flag="--cache-type-v", field="cache_type_v", kind="text", help="number format of values", choices=_TYPES),
    Option(flag="--swa-full", field="swa_full", kind="switch", help="give sliding layers a cell for every token"),
    Option(flag="--flash-attn", field="flash_attn", kind="text", help="flash attention", choices=("on", "off", "auto")),
    Option(flag="--no-kv-offload", field="no_kv_offload", kind="switch", help="keep the cache in host memory"),
    Option(flag="--n-gpu-layers", field="n_gpu_layers", kind="integer", help="layers on GPUs, the output as one; "
           "unset: all"),
    Option(flag="--split-mode", field="split_mode", kind="text", help="how a model is divided over GPUs",
           choices=("none", "layer", "row", "tensor")),
    Option(flag="--tensor-split", field="tensor_split", kind="text", help="share of each GPU, such as 3,1"),
    Option(flag="--spec-draft-n-max", field="spec_draft_n_max", kind="integer",
           help="tokens that a draft head proposes: as many more recurrent states to roll back to"),
    Option(flag="--tool", field="tool", kind="text", help="whose defaults: llama-server, or the C library",
           choices=("llama-server", "library")),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaCppSettings:
    """llama.cpp's own flags under their own names. None means the default of the tool.

    `devices` counts GPUs (0: a machine without one); `n_gpu_layers` None puts every layer on them. `tensor_split` is
    empty for equal shares: by default llama.cpp divides by free memory, which is equal on equal idle GPUs.
    """

    ctx_size: int = 0
    parallel: int | None = None
    kv_unified: bool | None = None
    kv_unified_per_slot: int | None = None
    batch_size: int = BATCH_SIZE
    ubatch_size: int = UBATCH_SIZE
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    swa_full: bool | None = None
    flash_attn: str = "auto"
    no_kv_offload: bool = False
    n_gpu_layers: int | None = None
    split_mode: str = "layer"
    tensor_split: tuple[float, ...] = ()
    spec_draft_n_max: int = 0
    tool: str = "llama-server"
    devices: int = 1
    max_model_len: int | None = None
    version: str = VERSION

    def __post_init__(self) -> None:
        check_whole("llama.cpp", self, _BOUNDS)
        for option in OPTIONS:
            value = getattr(self, option.field)
            if option.choices and value not in option.choices:
                raise EngineError(
                    f"llama.cpp: {option.flag} {str(value)[:20]!r} is not one of {', '.join(option.choices)}"
                )
        if self.split_mode == "tensor":
            raise EngineError("llama.cpp: --split-mode tensor divides heads over GPUs and is not laid out here")

    @property
    def slots(self) -> int:
        """n_seq_max: --parallel, else 4 in llama-server and 1 in the library."""
        if self.parallel is not None:
            return self.parallel
        return SLOTS if self.tool == "llama-server" else 1

    @property
    def unified(self) -> bool:
        """Whether all slots share one stream of cells; llama-server says so itself where --parallel is unset."""
        if self.tool == "llama-server" and self.parallel is None:
            return True
        return bool(self.kv_unified)

    @property
    def whole_windows(self) -> bool:
        """swa_full: off in llama-server, on in llama_context_default_params."""
        return self.tool == "library" if self.swa_full is None else self.swa_full

    @property
    def formats(self) -> tuple[Format, Format]:
        """The formats of keys and of values."""
        return ELEMENT_FORMATS[CACHE_TYPES[self.cache_type_k]], ELEMENT_FORMATS[CACHE_TYPES[self.cache_type_v]]


_BOUNDS = {
    "ctx_size": (0, 2**31 - 1), "parallel": (1, MAX_SLOTS), "kv_unified_per_slot": (1, 2**31 - 1),
    "batch_size": (1, 2**31 - 1), "ubatch_size": (0, 2**31 - 1), "n_gpu_layers": (0, 2**31 - 1),
    "spec_draft_n_max": (0, 1024), "devices": (0, 128), "max_model_len": (1, 2**31 - 1),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The context that llama.cpp makes: cells of a stream, streams, batch size, and the tokens a slot may hold."""

    n_ctx: int
    n_ctx_seq: int
    streams: int
    slots: int
    unified: bool
    n_ubatch: int
    n_ctx_slot: int


def make_settings(model: Model, asked: Request) -> LlamaCppSettings:
    """Settings from a request and llama.cpp's own flags in it; EngineError for what is not supported."""
    refuse_parallel(asked)
    version = _version(asked.engine_version)
    given = own_values("llama.cpp", OPTIONS, asked)
    if asked.draft is not None:
        given = {"spec_draft_n_max": asked.speculative_tokens} | given
    given["tensor_split"] = shares = _shares(given.get("tensor_split", ()))
    if shares and asked.pp not in (1, len(shares)):
        raise EngineError(f"llama.cpp: --tensor-split names {len(shares)} GPUs, and pp is {asked.pp}")
    k, v = _cache_types(asked.kv_dtype, given)
    given |= {"cache_type_k": k, "cache_type_v": v, "max_model_len": asked.context, "version": version}
    given["devices"] = 0 if asked.platform == "cpu" else max(asked.pp, len(shares))
    if "ctx_size" not in given:
        given["ctx_size"] = _ctx_size(LlamaCppSettings(**given))
    return LlamaCppSettings(**given)


def _ctx_size(settings: LlamaCppSettings) -> int:
    """--ctx-size where it is not given: the least with which a slot holds max_model_len; 0 where that is not given."""
    if settings.kv_unified_per_slot and settings.tool == "llama-server":
        return settings.slots * settings.kv_unified_per_slot
    wanted = settings.max_model_len or 0
    return wanted if settings.unified else wanted * settings.slots


def _version(version: str | None) -> str:
    if version is None:
        return VERSION
    name = version.strip().lower().removeprefix("xllamacpp").removeprefix("llama-cpp-python").strip(" =")
    if name not in VERSIONS:
        raise not_followed("llama.cpp", version, f"{', '.join(VERSIONS)} (xllamacpp, llama-cpp-python)")
    return name


def _shares(text: Any) -> tuple[float, ...]:
    """--tensor-split as numbers: `3,1` (or 3/1), or a sequence of them."""
    words = text.replace("/", ",").split(",") if isinstance(text, str) else list(text or ())
    try:
        shares = tuple(float(word) for word in words)
    except (TypeError, ValueError):
        shares = (-1.0,)
    if any(not 0 <= share < 1e9 for share in shares) or (shares and not any(shares)):
        raise EngineError(f"llama.cpp: --tensor-split {str(text)[:40]!r} is not a list of shares such as 3,1")
    return shares


def _cache_types(kv_dtype: str, given: Mapping[str, Any]) -> tuple[str, str]:
    """ggml's names for the keys' and the values' format: the flags, else kv_dtype, else f16."""
    stated = [given.get("cache_type_k"), given.get("cache_type_v")]
    if kv_dtype.strip().lower() == "auto":
        return stated[0] or "f16", stated[1] or "f16"
    kv = kv_format(kv_dtype)
    if kv.k.name not in _GGML_NAMES or kv.v.name not in _GGML_NAMES:
        raise EngineError(f"llama.cpp: cache format {kv.name!r}: unsupported cache type; known are {', '.join(_TYPES)}")
    asked = [_GGML_NAMES[kv.k.name], _GGML_NAMES[kv.v.name]]
    if any(flag is not None and flag != name for flag, name in zip(stated, asked, strict=True)):
        raise EngineError(f"llama.cpp: --kv-dtype {kv_dtype[:40]} and --cache-type-k/-v say different things")
    return asked[0], asked[1]


def make_context(model: Model, settings: LlamaCppSettings, ctx_size: int | None = None) -> Context:
    """The context for a model, of `ctx_size` tokens where given; EngineError where llama.cpp cannot make one."""
    asked = ctx_size or settings.ctx_size or model.context_limit
    if not asked:
        raise EngineError(f"llama.cpp: {model.name} does not state its training context; give --ctx-size")
    slots, unified = settings.slots, settings.unified
    n_ctx = _padded(asked)
    n_ctx_seq = n_ctx if unified else _padded(n_ctx // slots)
    if n_ctx_seq == 0:
        raise EngineError(f"llama.cpp: --ctx-size {asked:,} leaves no token for each of {slots} slots (n_ctx_seq == 0)")
    if not unified:
        n_ctx = n_ctx_seq * slots
    n_ctx_slot = n_ctx_seq
    if settings.tool == "llama-server":
        limits = (settings.kv_unified_per_slot, model.context_limit)
        n_ctx_slot = min([n_ctx_seq, *(limit for limit in limits if limit)])
    return Context(
        n_ctx=n_ctx, n_ctx_seq=n_ctx_seq, streams=1 if unified else slots, slots=slots, unified=unified,
        n_ubatch=micro_batch(settings, asked), n_ctx_slot=n_ctx_slot,
    )  # fmt: skip


def micro_batch(settings: LlamaCppSettings, ctx_size: int) -> int:
    """Tokens that are computed at once (n_ubatch) in a context of so many."""
    return min(ctx_size, settings.batch_size, settings.ubatch_size or settings.batch_size)


def window_cells(window: int, context: Context, settings: LlamaCppSettings) -> int:
    """Cells of a stream for sliding layers (src/llama-kv-cache-iswa.cpp): windows of all slots, and one batch."""
    if settings.whole_windows:
        return context.n_ctx_seq
    windows = window * (context.slots if context.unified else 1)
    return _padded(min(context.n_ctx_seq, windows + context.n_ubatch))


def _padded(cells: int) -> int:
    return -(-cells // CELL_PADDING) * CELL_PADDING


def slot_length(settings: LlamaCppSettings, context: Context) -> int:
    """Tokens of one request: max_model_len, which a slot must hold, else all that a slot holds."""
    length = settings.max_model_len or context.n_ctx_slot
    if length > context.n_ctx_slot:
        raise EngineError(
            f"llama.cpp: max_model_len {length:,} does not fit in a slot of {context.n_ctx_slot:,} tokens (n_ctx_slot: "
            f"--ctx-size {settings.ctx_size:,} over {context.streams} streams, at most the training context)"
        )
    return length


def requests_at_once(model: Model, settings: LlamaCppSettings) -> int:
    """Requests of max_model_len that the context holds at once; EngineError where a slot is too short for one."""
    context = make_context(model, settings)
    return requests_in(context, slot_length(settings, context))


def requests_in(context: Context, length: int) -> int:
    """Requests of `length` tokens held at once: one a slot, and in a unified cache no more than its cells allow."""
    return min(context.slots, context.n_ctx_seq // length) if context.unified else context.slots
