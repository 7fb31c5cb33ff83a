"""What one token slot, and one slot of recurrent states, takes on a rank.

Sources: SGLang 0.5.23, srt/model_executor/pool_configurator.py (cells), srt/mem_cache/kv_cache_configurator.py (the
width of a latent row), srt/configs/model_config.py (which architectures have a pool of their own for sliding layers),
srt/configs/mamba_utils.py and the configurations that use it (states).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from kvcore.engines.sglang.settings import SSM_DTYPES, SglangSettings
from kvcore.errors import EngineError
from kvcore.formats import kv_format
from kvcore.model.memories import (
    Indexer,
    Latent,
    Memory,
    State,
    StateDesign,
    StatePart,
    StateTensor,
)
from kvcore.model.model import Model

STATE_DESIGNS = (
    StateDesign.MAMBA_1,
    StateDesign.MAMBA_2,
    StateDesign.GATED_DELTA_NET,
    StateDesign.KIMI_DELTA,
    StateDesign.SHORT_CONVOLUTION,
    StateDesign.LINEAR,
)
_BF16 = 2


def ssm_element_bytes(model: Model, state: State, settings: SglangSettings) -> int:
    """Bytes of one number of a recurrent state: the flag's dtype, else the configuration's, else fp32."""
    if settings.mamba_ssm_dtype is not None:
        return SSM_DTYPES[settings.mamba_ssm_dtype]
    if state.design in (StateDesign.KIMI_DELTA, StateDesign.LINEAR):
        return 4
    return SSM_DTYPES.get(model.state_dtype or "", 4)


def state_parts(model: Model, state: State, settings: SglangSettings) -> tuple[int, int]:
    """(convolution, recurrent) bytes of one layer's state on one rank; convolutions are always bf16."""
    conv = ssm = 0
    for part in state.parts:
        if part.name == StateTensor.CONVOLUTION:
            conv += _split(part, state, settings, _BF16)
        else:
            ssm += _split(part, state, settings, ssm_element_bytes(model, state, settings))
    return conv, ssm


def _split(part: StatePart, state: State, settings: SglangSettings, element: int) -> int:
    ranks, shape = settings.attention_tp, part.shape
    if part.name == StateTensor.CONVOLUTION and state.design in (StateDesign.MAMBA_2, StateDesign.GATED_DELTA_NET):
        shape = (state.channels(ranks), *shape[1:])
    if shape[0] % ranks:
        raise EngineError(f"a {state.design} state of {shape[0]} cannot be split over {ranks} ranks", engine="sglang")
    return replace(part, shape=(shape[0] // ranks, *shape[1:]), element_bytes=element).bytes


# Architectures whose sliding (or chunked) layers get a pool of their own; all others hold every token in them.
SLIDING_POOL = frozenset({
    "gpt_oss", "granite_swa", "granitemoe_swa", "llama4_text", "mimo_v2_flash", "step3p5", "step3p7", "step3p7_text",
    "gemma4_text", "gemma4_unified_text", "laguna", "mellum",
})  # fmt: skip
# Architectures whose states can be saved while batches overlap (extra_buffer), which takes two more slots a request.
EXTRA_BUFFER = frozenset({
    "kimi_linear", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "falcon_h1", "granitemoehybrid", "nemotron_h",
})  # fmt: skip
# Latent and recurrent architectures that SGLang has no model class for.
_MISSING = frozenset({
    "youtu", "axk1", "mistral4", "pangu_ultra_moe", "jamba", "bamba", "zamba", "zamba2", "olmo_hybrid", "minimax",
    "minimax_text_01", "minimax_m1", "recurrent_gemma", "rwkv", "rwkv5", "rwkv6", "rwkv6qwen2", "rwkv7",
})  # fmt: skip
_SCALE_BLOCK = {"nvfp4": 16, "fp4_mx_block16": 16, "mxfp8": 32}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Bytes of one token slot of a pool, all its layers on one rank together.

    `v_bytes` is None where one buffer holds a latent; `index_bytes` are indexer keys. `replicas` is how often an
    indexer's slot is kept, once for each decode-context-parallel rank.
    """

    layers: int
    k_bytes: int
    v_bytes: int | None
    index_bytes: int = 0
    replicas: int = 1

    @property
    def bytes(self) -> int:
        return self.k_bytes + (self.v_bytes or 0) + self.index_bytes * self.replicas


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The pools of one pipeline stage: full slots, sliding slots, and one slot of states, in bytes of one rank."""

    full: Cell | None
    swa: Cell | None
    state_layers: int = 0
    conv_bytes: int = 0
    ssm_bytes: int = 0

    @property
    def state_bytes(self) -> int:
        return self.conv_bytes + self.ssm_bytes


def check_model(model: Model, settings: SglangSettings) -> None:
    """EngineError for what SGLang does not serve or what is not followed here."""
    if model.model_type in _MISSING:
        raise EngineError(f"it has no model class for {model.model_type}", engine="sglang")
    kept = [memory for memory, _ in model.kept]
    if not kept:
        raise EngineError(f"{model.name} keeps no cache", engine="sglang")
    if any(latent.kind != "latent" for latent in model.latents):
        raise EngineError("the pools of compressed latents (DeepSeek-V4) are not followed here", engine="sglang")
    for state in model.states:
        if state.design not in STATE_DESIGNS:
            raise EngineError(f"it has no pool for a {state.design} state", engine="sglang")
    for layer in model.layers:
        if any(memory.kind == "cross" for memory in layer) and len(layer) > 1:
            raise EngineError("the pool of an encoder-decoder is not followed here", engine="sglang")
    heads, ranks = model.num_attention_heads, settings.attention_tp
    if heads and heads % ranks:
        raise EngineError(f"{heads} attention heads cannot be split over {ranks} ranks", engine="sglang")
    if settings.dcp_size > 1 and has_sliding_pool(model, settings):
        raise EngineError("decode context parallel does not work with a pool for sliding layers", engine="sglang")


def has_sliding_pool(model: Model, settings: SglangSettings) -> bool:
    """Whether sliding layers have a pool of their own: the architecture's class says so, not its windows."""
    return model.has_windows and model.model_type in SLIDING_POOL and not settings.disable_hybrid_swa_memory


def has_sparse_latents(model: Model) -> bool:
    """DeepSeek sparse attention: a latent with an indexer beside it."""
    return bool(model.latents and model.indexers)


def resolve_dtype(model: Model, settings: SglangSettings) -> str:
    """The cache's dtype: bf16, fp16, fp8, mxfp8, nvfp4 or fp4_mx_block16; EngineError for others.

    `auto` is the model's dtype, or fp8 where a checkpoint declares it; sparse latents on Blackwell are fp8.
    """
    wanted = settings.kv_cache_dtype.strip().lower()
    if wanted == "auto":
        if has_sparse_latents(model):
            return "fp8" if settings.compute_capability >= 10 else "bf16"
        declared = model.cache_format
        return "fp8" if declared == "fp8" else model.model_dtype
    name = wanted if wanted == "fp4_mx_block16" else kv_format(wanted).name
    known = ("bf16", "fp8", "mxfp8", "nvfp4", "fp4_mx_block16")
    if name not in known and not (name == "fp16" and model.model_dtype == "fp16"):
        raise EngineError(f"kv_cache_dtype {wanted[:20]!r} is not auto, {', '.join(known)}", engine="sglang")
    if has_sparse_latents(model) and name not in ("bf16", "fp8"):
        raise EngineError(f"sparse latent attention takes bf16 or fp8, not {name}", engine="sglang")
    if name == "nvfp4" and settings.compute_capability < 10:
        raise EngineError("nvfp4 needs a Blackwell GPU (compute capability 10 or 12)", engine="sglang")
    return name


def latent_is_packed(model: Model, settings: SglangSettings, dtype: str) -> bool:
    """fp8 rows of sparse latents hold scales and a bf16 rotary part, unless the kernels read them raw."""
    if dtype != "fp8" or not has_sparse_latents(model):
        return False
    backend = settings.dsa_decode_backend or ("trtllm" if settings.compute_capability >= 10 else "flashmla_kv")
    if model.model_type == "glm_moe_dsa" and settings.compute_capability >= 12 and settings.dsa_decode_backend is None:
        return True
    return backend not in ("trtllm", "tilelang")


def page_size(model: Model, settings: SglangSettings) -> int:
    """Tokens a page: what was asked for, else what the default kernels of the model and GPU take."""
    if has_sparse_latents(model):
        return 64
    if model.indexers:
        return 128
    if settings.page_size is not None:
        return settings.page_size
    if not settings.is_blackwell:
        return 1
    if model.latents:
        return 64 if model.model_type in ("deepseek_v2", "deepseek_v3", "kimi_k2") else 1
    attention = model.attentions
    if not attention or (model.states and (model.model_type not in EXTRA_BUFFER or settings.disable_radix_cache)):
        return 1
    return 128 if any(memory.head_dim != memory.v_head_dim for memory in attention) else 64


def split_stages(layers: int, stages: int) -> tuple[range, ...]:
    """Layers of each pipeline stage as SGLang splits them: the last stages take the remainder.

    80 over 3 is 26, 27, 27 (0.5.23, distributed/utils.py). EngineError for more stages than layers.
    """
    if stages > layers:
        raise EngineError(f"pipeline parallel {stages} is more than the {layers} layers", engine="sglang")
    base, more = divmod(layers, stages)
    starts = [stage * base + max(0, stage - (stages - more)) for stage in range(stages + 1)]
    return tuple(range(first, last) for first, last in pairwise(starts))


def stages(model: Model, settings: SglangSettings) -> tuple[Stage, ...]:
    """The pools of every pipeline stage on one rank; EngineError for what is refused."""
    check_model(model, settings)
    dtype = resolve_dtype(model, settings)
    return tuple(_stage(model, settings, dtype, layers) for layers in split_stages(len(model.layers), settings.pp_size))


def _stage(model: Model, settings: SglangSettings, dtype: str, layers: range) -> Stage:
    full: list[Memory] = []
    swa: list[Memory] = []
    states: list[State] = []
    apart = has_sliding_pool(model, settings)
    recurrent = bool(model.states)
    for index in layers:
        for memory in model.layers[index]:
            owner = _owner(model, memory, recurrent)
            if isinstance(owner, State):
                states.append(owner)
            elif owner is not None:
                sliding = apart and bool(owner.kv_heads) and owner.window is not None
                (swa if sliding else full).append(owner)
    parts = [state_parts(model, state, settings) for state in states]
    return Stage(
        full=_cell(model, settings, dtype, full) if full else None,
        swa=_cell(model, settings, dtype, swa) if swa else None,
        state_layers=len(states),
        conv_bytes=sum(conv for conv, _ in parts),
        ssm_bytes=sum(ssm for _, ssm in parts),
    )


def _owner(model: Model, memory: Memory, recurrent: bool) -> Memory | None:
    """What a layer's slots are sized by: layers that share a cache, or attend to nothing, have slots all the same."""
    if not memory.is_empty:
        return memory
    if memory.reads_layer is not None:
        return next(own for own in model.layers[memory.reads_layer] if own.attends)
    return None if recurrent else next(own for own, _ in model.kept if own.attends)


def _cell(model: Model, settings: SglangSettings, dtype: str, memories: list[Memory]) -> Cell:
    indexers = [memory for memory in memories if isinstance(memory, Indexer)]
    latents = [memory for memory in memories if isinstance(memory, Latent)]
    if latents:
        if len(latents) + len(indexers) < len(memories):
            raise EngineError(
                "layers with latents beside layers with keys and values are not followed here", engine="sglang"
            )
        row = _latent_bytes(latents[0], latent_is_packed(model, settings, dtype), dtype)
        index = sum(indexer.entry_bytes() for indexer in indexers)
        return Cell(
            layers=len(latents), k_bytes=row * len(latents), v_bytes=None, index_bytes=index, replicas=settings.dcp_size
        )
    distinct = {id(memory): memory for memory in memories}.values()
    shapes = {_shape(memory) for memory in distinct if memory.kind != "indexer"}
    if len(shapes) > 1:
        listed = ", ".join(f"{heads} × ({k} + {v})" for heads, k, v in sorted(shapes))
        raise EngineError(f"one pool has one shape of heads, and this model has {listed}", engine="sglang")
    heads, k_width, v_width = shapes.pop()
    layers = len(memories) - len(indexers)
    ranked = max(1, heads // (settings.attention_tp // settings.dcp_size))
    index_bytes = 1 if dtype == "fp8" and int(settings.compute_capability) == 9 else _BF16
    return Cell(
        layers=layers,
        k_bytes=_rows(ranked, k_width, layers, dtype, settings),
        v_bytes=_rows(ranked, v_width, layers, dtype, settings),
        index_bytes=sum(indexer.index_head_dim * index_bytes for indexer in indexers),
    )


def _shape(memory: Memory) -> tuple[int, int, int]:
    if not memory.kv_heads:
        raise EngineError(f"a {memory.kind} memory has no pool", engine="sglang")
    return memory.kv_heads, memory.key_width, memory.value_width


def _rows(heads: int, width: int, layers: int, dtype: str, settings: SglangSettings) -> int:
    """One side (K or V) of one slot in all layers, its scales included."""
    numbers = heads * width * layers
    block = _SCALE_BLOCK.get(dtype)
    if dtype in ("nvfp4", "fp4_mx_block16") and block is not None:
        # SM120 reads nvfp4 through an fp8 workspace of one layer's slots, shared by all layers.
        workspace = heads * width if dtype == "nvfp4" and not settings.is_blackwell else 0
        return numbers // 2 + numbers // block + workspace
    if block is not None:
        return numbers + numbers // block
    return numbers * (1 if dtype == "fp8" else _BF16)


def _latent_bytes(latent: Latent, packed: bool, dtype: str) -> int:
    if packed:
        rank = latent.kv_lora_rank
        return rank + rank // 128 * 4 + latent.qk_rope_head_dim * _BF16
    if dtype in ("nvfp4", "fp4_mx_block16"):
        return latent.width // 2 + latent.width // 16
    return latent.width * (1 if dtype in ("fp8", "mxfp8") else _BF16)


def stages_with_draft(parts: tuple[Stage, ...], draft: Model, dcp: int, settings: SglangSettings) -> tuple[Stage, ...]:
    """The stages with the cells by which SGLang sizes its pool: larger by the draft's layers, or by what its own
    slots take where that is more. One pipeline stage; every decode-context-parallel rank has all of the draft's.

    The cells are larger by draft layers / layers, whatever shape the draft's are of, and the draft's own pool has as
    many slots (pool_configurator.py, eagle_draft_num_layers). EngineError for what is not followed.
    """
    (own,) = stages(draft, settings)
    if own.state_layers:
        raise EngineError(f"the states of a draft such as {draft.name} are not followed here", engine="sglang")
    slots = sum(cell.bytes for cell in (own.full, own.swa) if cell is not None) * dcp
    count = sum(cell.layers for cell in (own.full, own.swa) if cell is not None) * dcp
    found = []
    for part in parts:
        if part.full is None:
            raise EngineError("a draft beside a model that keeps no full cache is not followed here", engine="sglang")
        reserved = part.full.bytes * count // part.full.layers
        found.append(replace(part, full=_larger(part.full, max(reserved, slots))))
    return tuple(found)


def _larger(cell: Cell, more: int) -> Cell:
    return replace(cell, k_bytes=cell.k_bytes + more)
