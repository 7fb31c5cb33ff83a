"""TensorRT-LLM's answers: what a request claims, how many fit, what is logged, and the command for it."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from kvcore.deployment import Deployment, Request
from kvcore.engines.base import Capacity, Engine, Group, Layout
from kvcore.engines.tensorrt_llm.pools import WindowPool, blocks, resolve_dtype, split_stages, stage_pools
from kvcore.engines.tensorrt_llm.settings import (
    FREE_GPU_MEMORY_FRACTION,
    OPTIONS,
    TOKENS_PER_BLOCK,
    VERSION,
    TensorRtLlmSettings,
    make_settings,
)
from kvcore.errors import EngineError
from kvcore.model.memories import Attention, Indexer, Latent
from kvcore.model.model import Model
from kvcore.model.weight_formats import WeightFormat
from kvcore.ranks.rules import RankRules, Ways
from kvcore.terms import Term
from kvcore.units import GIB


class TensorRtLlm(Engine):
    """TensorRT-LLM 1.4 with its V1 cache manager; see kvcore.engines.base.Engine."""

    name = "tensorrt-llm"
    label = "TensorRT-LLM"
    versions = f"TensorRT-LLM {VERSION} (public documentation and sources), pytorch backend; tensorrt backend from 0.8"
    release = VERSION
    vendors = ("NVIDIA",)
    options = OPTIONS
    cache_formats = ("fp8", "nvfp4")
    weight_formats = ("fp8", "awq", "nvfp4")
    rules = RankRules(dp_attention="all")

    def settings(self, model: Model, asked: Request) -> TensorRtLlmSettings:
        """See Engine.settings; the longest request is the model's own limit unless said."""
        return make_settings(model, asked)

    def stages(self, model: Model, deployment: Deployment) -> tuple[range, ...]:
        """See Ranked.stages."""
        return split_stages(len(model.layers), deployment.pp)

    def ways(self, model: Model, deployment: Deployment, wanted: WeightFormat | None = None) -> Ways:
        """See Ranked.ways.

        With data-parallel attention replicas share experts. Of latents' up-projections there is a transposed copy
        (_torch/modules/attention.py, k_b_proj_trans).
        """
        found = super().ways(model, deployment, wanted)
        experts = deployment.tp * deployment.dp if deployment.dp_attention else deployment.tp
        return replace(found, experts=experts, copies_latent=True)

    def layout(self, model: Model, settings: TensorRtLlmSettings) -> Layout:
        """What one request of max_seq_len tokens claims on the fullest rank; EngineError for what is refused."""
        pools = max(stage_pools(model, settings), key=lambda stage: _request_bytes(stage, settings))
        size, single = settings.tokens_per_block, pools[0] if len(pools) == 1 else None
        return Layout(
            engine=self.name,
            engine_version=settings.version,
            model=model.name,
            kv_dtype=resolve_dtype(model, settings),
            max_model_len=settings.max_seq_len,
            block_size=size,
            bytes_per_block=size * single.token_bytes if single else None,
            blocks_per_request=single.blocks_needed(settings) if single else None,
            bytes_per_request=_request_bytes(pools, settings),
            groups=tuple(_group(model, pool, settings) for pool in pools),
            terms=_layout_terms(pools, settings),
            notes=_notes(model, settings),
        )

    def capacity(self, model: Model, settings: TensorRtLlmSettings, kv_bytes: int) -> Capacity:
        """Blocks that `kv_bytes` on every rank make (the fraction already taken), the tightest stage deciding.

        `kv_cache_size_tokens` is that of the longest window's pool. Raises EngineError when not one block fits.
        """
        stages = stage_pools(model, settings)
        if len({tuple(pool.window for pool in pools) for pools in stages}) > 1:
            raise EngineError("tensorrt-llm: the pipeline stages have different windows, which it refuses")
        counts = tuple(map(min, zip(*(blocks(pools, settings, kv_bytes) for pools in stages), strict=True)))
        if not all(counts):
            raise EngineError(f"tensorrt-llm: impossible to fit any sequence in a cache of {kv_bytes:,} B")
        pools = stages[0]
        needs = [pool.blocks_needed(settings) for pool in pools]
        concurrency = min(Fraction(count, need) for count, need in zip(counts, needs, strict=True))
        return Capacity(
            kv_bytes=kv_bytes,
            kv_cache_size_tokens=counts[-1] * settings.tokens_per_block,
            max_concurrency=concurrency,
            blocks=counts[0] if len(counts) == 1 else None,
            log_lines=_log_lines(pools, counts, settings),
            terms=_capacity_terms(pools, counts, needs, kv_bytes, settings),
        )

    def budget_bytes(self, settings: TensorRtLlmSettings, free_bytes: int) -> int:
        """Memory for the cache: a share of what is free after the weights and the activation profiling run."""
        return int(free_bytes * Fraction(str(settings.free_gpu_memory_fraction)))

    def flags(self, model: Model, settings: TensorRtLlmSettings) -> tuple[str, ...]:
        """The launch command; what only KvCacheConfig has is in config.yaml, whose text the layout's notes give."""
        words = ["trtllm-serve", model.name, "--max_seq_len", str(settings.max_seq_len)]
        pairs: tuple[tuple[str, object, object], ...] = (
            ("--backend", settings.backend, "pytorch"),
            ("--tp_size", settings.tp_size, 1),
            ("--pp_size", settings.pp_size, 1),
            ("--kv_cache_free_gpu_memory_fraction", settings.free_gpu_memory_fraction, FREE_GPU_MEMORY_FRACTION),
        )
        for flag, value, default in pairs:
            if value != default:
                words += [flag, str(value)]
        if _yaml(settings):
            words += ["--extra_llm_api_options", "config.yaml"]
        return tuple(words)


TENSORRT_LLM = TensorRtLlm()


def _request_bytes(pools: tuple[WindowPool, ...], settings: TensorRtLlmSettings) -> int:
    return sum(pool.blocks_needed(settings) * settings.tokens_per_block * pool.token_bytes for pool in pools)


def _group(model: Model, pool: WindowPool, settings: TensorRtLlmSettings) -> Group:
    latent = any(isinstance(memory, Latent) for memory, _ in model.kept)
    return Group(
        kind="latent" if latent else "sliding" if pool.window < settings.max_seq_len else "full",
        layers=pool.layers,
        page_bytes=settings.tokens_per_block * pool.token_bytes // pool.layers,
        block_size=settings.tokens_per_block,
        blocks_per_request=pool.blocks_needed(settings),
    )


def _layout_terms(pools: tuple[WindowPool, ...], settings: TensorRtLlmSettings) -> tuple[Term, ...]:
    terms = []
    size = settings.tokens_per_block
    for pool in pools:
        need = pool.blocks_needed(settings)
        value = need * size * pool.token_bytes
        text = f"{need:,} blocks × {size} tokens × {pool.token_bytes:,} B in {pool.layers} layers = {value:,} B"
        terms.append(Term(name=f"window of {pool.window:,}", formula=text, value=value, unit="B"))
    total = _request_bytes(pools, settings)
    together = " + ".join(f"{term.value:,}" for term in terms)
    terms.append(Term(name="one request", formula=f"{together} = {total:,} B", value=total, unit="B"))
    return tuple(terms)


def _capacity_terms(
    pools: tuple[WindowPool, ...],
    counts: tuple[int, ...],
    needs: list[int],
    kv_bytes: int,
    settings: TensorRtLlmSettings,
) -> tuple[Term, ...]:
    size = settings.tokens_per_block
    part = f"{kv_bytes:,} B" if len(pools) == 1 else f"its part of {kv_bytes:,} B"
    terms = []
    for pool, count, need in zip(pools, counts, needs, strict=True):
        text = f"{part} / {pool.token_bytes:,} B a token / {size} tokens: {count:,} blocks, {need:,} a request"
        terms.append(Term(name=f"blocks of window {pool.window:,}", formula=text, value=count, unit="blocks"))
        if count < need:
            fits = count * size
            text = f"max_seq_len and the window of {pool.window:,} are reduced to {fits:,} tokens"
            terms.append(Term(name="reduced", formula=text, value=fits, unit="tokens"))
    return tuple(terms)


def _log_lines(
    pools: tuple[WindowPool, ...], counts: tuple[int, ...], settings: TensorRtLlmSettings
) -> tuple[str, ...]:
    """Messages without their prefixes; the counter of tokens sums all windows (kvCacheManager.cpp, allocatePools)."""
    size, length = settings.tokens_per_block, settings.max_seq_len
    rows = list(zip(pools, counts, strict=True))
    if settings.backend == "tensorrt":
        lines = ["Blocks per window size:"]
        lines += [f"[windowSize={pool.window}] {{.primaryBlocks={n}, .secondayBlocks=0}}" for pool, n in rows]
    elif len(rows) > 1:
        lines = [f"Window size = {pool.window}, primary_blocks: {n}, secondary_blocks: 0" for pool, n in rows]
    else:
        most = min(length, counts[0] * size)
        lines = [
            f"Max KV cache blocks per sequence: {-(-most // size)} [window size={most}], tokens per block={size}, "
            f"primary blocks={counts[0]}, secondary blocks=0, max sequence length={most}"
        ]
    total = sum(n * size * pool.token_bytes for pool, n in rows)
    lines.append(f"Number of tokens per block: {size}.")
    lines.append(
        f"[MemUsageChange] Allocated {total / GIB:.2f} GiB for max tokens in paged KV cache ({sum(counts) * size})."
    )
    return tuple(lines)


def _yaml(settings: TensorRtLlmSettings) -> str:
    """The text of config.yaml, empty where nothing differs from the defaults."""
    cache: list[str] = []
    if settings.dtype != "auto":
        cache.append(f"dtype: {settings.dtype if settings.dtype in ('fp8', 'nvfp4', 'int8') else 'auto'}")
    if settings.tokens_per_block != TOKENS_PER_BLOCK:
        cache.append(f"tokens_per_block: {settings.tokens_per_block}")
    if settings.max_tokens is not None:
        cache.append(f"max_tokens: {settings.max_tokens}")
    if settings.max_attention_window:
        cache.append(f"max_attention_window: [{', '.join(map(str, settings.max_attention_window))}]")
    lines = [f"kv_cache_config: {{{', '.join(cache)}}}"] if cache else []
    lines += ["enable_attention_dp: true"] if settings.enable_attention_dp else []
    return "; ".join(lines)


def _notes(model: Model, settings: TensorRtLlmSettings) -> tuple[str, ...]:
    notes = [f"The rules of TensorRT-LLM {VERSION} and its V1 cache manager, without speculation."]
    if text := _yaml(settings):
        notes.append(f"config.yaml: {text}")
    sliding = [memory for memory, _ in model.kept if isinstance(memory, Attention) and memory.limit is not None]
    if sliding and not settings.max_attention_window:
        notes.append(
            "Sliding layers keep every token unless max_attention_window names their windows; here that is "
            f"{_pattern(model, settings)}."
        )
    if len(settings.windows) > 1 and len(set(settings.windows)) > 1:
        notes.append("Memory is divided between the windows once, at the start; the pool that is full first decides.")
    if resolve_dtype(model, settings) == "nvfp4" or any(isinstance(memory, Indexer) for memory, _ in model.kept):
        notes.append("The GiB that is logged leaves out or rounds scales and indexer keys; ours counts all bytes.")
    return tuple(notes)


def _pattern(model: Model, settings: TensorRtLlmSettings) -> str:
    """The shortest pattern that repeats to the windows of the model's layers."""
    windows = [_layer_window(layer, settings) for layer in model.layers]
    for length in range(1, len(windows) + 1):
        if all(window == windows[index % length] for index, window in enumerate(windows)):
            return ",".join(map(str, windows[:length]))
    return ""


def _layer_window(layer: tuple[object, ...], settings: TensorRtLlmSettings) -> int:
    limits = [memory.limit for memory in layer if isinstance(memory, Attention) and memory.limit is not None]
    return min([settings.max_seq_len, *limits])
