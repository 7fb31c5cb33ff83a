"""The lines that SGLang logs about its pools.

Sources: SGLang 0.5.23, srt/mem_cache/memory_pool.py, srt/mem_cache/swa_memory_pool.py, srt/managers/scheduler.py,
srt/model_executor/pool_configurator.py. SGLang writes GB and divides by 2³⁰.
"""

from __future__ import annotations

from kvcore.engines.releases import release
from kvcore.engines.sglang.cells import Cell, Stage, resolve_dtype
from kvcore.engines.sglang.pools import Sizes
from kvcore.engines.sglang.settings import SglangSettings
from kvcore.model.model import Model
from kvcore.units import GIB

_TORCH = {
    "bf16": "torch.bfloat16", "fp16": "torch.float16", "fp8": "torch.float8_e4m3fn", "mxfp8": "torch.float8_e4m3fn",
    "nvfp4": "torch.float4_e2m1fn_x2", "fp4_mx_block16": "torch.float4_e2m1fn_x2",
}  # fmt: skip
_MAX_PREFILL_TOKENS = 16_384


def log_lines(
    model: Model, settings: SglangSettings, stage: Stage, sizes: Sizes, page: int, tokens: int
) -> tuple[str, ...]:
    """What the first stage's rank prints, in order, without timestamps; the last line's free memory is not known."""
    lines = []
    if stage.swa is not None and not sizes.capped:
        lines.append(_sliding_line(stage, sizes))
    if stage.state_bytes:
        conv, ssm = ((sizes.state_slots + 1) * size for size in (stage.conv_bytes, stage.ssm_bytes))
        lines.append(
            f"Mamba Cache is allocated. max_mamba_cache_size: {sizes.state_slots}, "
            f"conv_state size: {_gb(conv)}GB, ssm_state size: {_gb(ssm)}GB"
        )
    lines += _cache_lines(model, settings, stage, sizes, page)
    lines.append(
        f"max_total_num_tokens={tokens}, chunked_prefill_size={settings.prefill_chunk}, "
        f"max_prefill_tokens={_MAX_PREFILL_TOKENS}, max_running_requests={sizes.running}, "
        f"context_len={settings.context_length}"
    )
    return tuple(lines)


def _sliding_line(stage: Stage, sizes: Sizes) -> str:
    if stage.full is None:
        return f"Use sliding window memory pool (all SWA). swa_layer_tokens={sizes.swa}"
    return f"Use sliding window memory pool. full_layer_tokens={sizes.full}, swa_layer_tokens={sizes.swa}"


def _cache_lines(model: Model, settings: SglangSettings, stage: Stage, sizes: Sizes, page: int) -> list[str]:
    dtype = f"dtype: {_torch(model, settings)}, " if _prints_dtype(settings.version) else ""
    if stage.swa is None:
        return [_cache_line("KV Cache", dtype, stage.full, sizes.full, page)] if stage.full else []
    full_bytes = (sizes.full + page) * stage.full.bytes if stage.full else 0
    total = full_bytes + (sizes.swa + page) * stage.swa.bytes
    lines = [_cache_line("Full KV Cache", dtype, stage.full, sizes.full, page)] if stage.full else []
    lines.append(_cache_line("SWA KV Cache", dtype, stage.swa, sizes.swa, page))
    lines.append(f"SWAKVPool mem usage: {_gb(total)} GB, swa size: {sizes.swa}, full size: {sizes.full}")
    return lines


def _cache_line(name: str, dtype: str, cell: Cell, tokens: int, page: int) -> str:
    rows = tokens + page
    if cell.v_bytes is None:
        size = f"KV size: {_gb(rows * cell.bytes)} GB"
    else:
        size = f"K size: {_gb(rows * cell.k_bytes)} GB, V size: {_gb(rows * cell.v_bytes)} GB"
    return f"{name} is allocated. {dtype}#tokens: {tokens}, {size}"


def _torch(model: Model, settings: SglangSettings) -> str:
    if settings.kv_cache_dtype.strip().lower() == "fp8_e5m2":
        return "torch.float8_e5m2"
    return _TORCH[resolve_dtype(model, settings)]


def _prints_dtype(version: str) -> bool:
    """Logs of early 2026 (0.5.9) have no dtype in this line; from about 0.5.10 on they do."""
    return release(version) >= (0, 5, 10)


def _gb(size: int) -> str:
    return f"{size / GIB:.2f}"
