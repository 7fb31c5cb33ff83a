"""What SGLang leaves for its pools, and the share of memory that it chooses by itself.

Sources: SGLang 0.5.23, srt/arg_groups/memory_hook.py (the automatic share), srt/mem_cache/kv_cache_configurator.py
(the budget), srt/model_executor/model_runner_components/kv_pool_runtime.py (sized after graph capture).
"""

from __future__ import annotations

from dataclasses import dataclass

from kvcore.engines.sglang.settings import SglangSettings
from kvcore.errors import EngineError
from kvcore.model.memories import Latent, State
from kvcore.model.model import Model
from kvcore.terms import Term

# Token counts at which prefill graphs are captured: (first, last, step); from 4,608 on in steps of 512.
_PREFILL_SIZES = ((4, 32, 4), (48, 256, 16), (288, 512, 32), (576, 1024, 64), (1280, 4096, 256))
_LARGE_GPU_MIB = 60 * 1024
_FLOOR_MIB = 10 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Memory for all pools on one rank, in bytes, and how it came about."""

    kv_bytes: int
    terms: tuple[Term, ...]


def reserved_mib(model: Model, settings: SglangSettings, *, post_capture: bool = False) -> float:
    """MiB that the automatic share keeps off weights and pools; `post_capture`: pools are sized after the graphs.

    An estimate of SGLang's own, for a text model; for images it keeps more.
    """
    parallel = settings.tp_size * settings.pp_size / 8 * 1024
    if post_capture:
        return 1536 + parallel
    reserved = 512 + 1.5 * max(settings.prefill_chunk, 2048) + parallel + _graph_mib(model, settings)
    return max(reserved, _FLOOR_MIB) if settings.gpu_mib > _LARGE_GPU_MIB else reserved


def _graph_mib(model: Model, settings: SglangSettings) -> float:
    reserved = 0.0
    if not settings.disable_cuda_graph:
        reserved += 2 * settings.graph_batch
    if settings.enable_dp_attention and settings.dp_size > 1:
        reserved += 3 * settings.graph_batch * settings.dp_size
        if settings.graph_batch > 300:
            reserved += 1.5 * settings.graph_batch * settings.dp_size
    if _prefill_graphs(model, settings):
        latent = any(isinstance(memory, Latent) for memory, _ in model.kept)
        reserved += 1.5 * 1024 if latent else 8 * _prefill_sizes(settings.prefill_chunk)
    return reserved


def _prefill_graphs(model: Model, settings: SglangSettings) -> bool:
    delta = any(isinstance(memory, State) and memory.design == "Kimi delta attention" for memory, _ in model.kept)
    return not (settings.disable_cuda_graph or settings.pp_size > 1 or settings.dcp_size > 1 or delta)


def _prefill_sizes(largest: int) -> int:
    sizes = [size for first, last, step in _PREFILL_SIZES for size in range(first, last + 1, step)]
    return sum(size <= largest for size in sizes) + max(0, (largest - 4608) // 512 + 1)


def mem_fraction_static(model: Model, settings: SglangSettings, *, post_capture: bool = False) -> float:
    """The share that was asked for, else SGLang's own: (GPU − reserved) / GPU, three digits."""
    if settings.mem_fraction_static is not None:
        return settings.mem_fraction_static
    share = round((settings.gpu_mib - reserved_mib(model, settings, post_capture=post_capture)) / settings.gpu_mib, 3)
    if share <= 0:
        raise EngineError(f"sglang: a GPU of {settings.gpu_mib:,} MiB has less than SGLang keeps free")
    return share


def budget(
    model: Model,
    settings: SglangSettings,
    *,
    free_before_weights_bytes: int,
    free_now_bytes: int,
    post_capture: bool = False,
) -> Budget:
    """Memory for the pools: what is free now, less the share of what was free before the weights came.

    `free_now_bytes` is measured after the weights, or after graph capture (`post_capture`). Raises EngineError when
    nothing is left, as SGLang does.
    """
    share = mem_fraction_static(model, settings, post_capture=post_capture)
    slack = round(free_before_weights_bytes * (1 - share))
    left = free_now_bytes - slack
    if left <= 0:
        raise EngineError(
            f"sglang: the weights leave no memory for the pools at mem_fraction_static {share:g}; raise it"
        )
    terms = (
        Term(name="free now", formula=f"{free_now_bytes:,} B", value=free_now_bytes, unit="B"),
        Term(
            name="kept free",
            formula=f"{free_before_weights_bytes:,} B × (1 − {share:g}) = {slack:,} B",
            value=slack,
            unit="B",
        ),
        Term(name="pools", formula=f"{free_now_bytes:,} − {slack:,} = {left:,} B", value=left, unit="B"),
    )
    return Budget(kv_bytes=left, terms=terms)
