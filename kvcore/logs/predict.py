"""From a reading to an engine's settings, and from a printed memory to what the engine would have printed about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from kvcore.deployment import Request, as_options
from kvcore.engines.base import Capacity, Engine, Layout
from kvcore.engines.releases import release
from kvcore.engines.vllm.settings import ALL_GROUPS_LOGGED, CPU_VERSION, VERSION
from kvcore.errors import EngineError
from kvcore.logs.reading import LogReading, read_log
from kvcore.logs.values import Amount, Decimals
from kvcore.model.model import Model

# The version whose line counts one group's share, and the one that counts requests (vLLM changed it in 0.21).
OLD_VLLM, NEW_VLLM = "0.20", VERSION
_UNLIMITED = 2**60
# One step of llama.cpp's own default; a log that states another is followed.
_SWITCHES = {"true": True, "enabled": True, "false": False, "disabled": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What an engine would have said: for the least, the nearest and the most memory that prints as the log does.

    `readings` are of the lines that our engine prints for them; `blocks` and `concurrency` are exact.
    """

    engine: Engine
    model: Model
    settings: Any
    layout: Layout
    capacities: tuple[Capacity, ...]
    readings: tuple[LogReading | None, ...]
    memory: Amount | None
    notes: tuple[str, ...] = ()

    @property
    def nearest(self) -> int:
        """The place of the nearest memory among `capacities`."""
        return len(self.capacities) // 2


def predict(reading: LogReading, model: Model, changes: Mapping[str, Any] | None = None) -> Prediction:
    """What the reading's engine would have printed for this model; `changes` replace single facts of the log.

    Raises EngineError for what the engine does not support, or a log without a memory or a size to start from.
    """
    from kvcore.engines.registry import engine

    chosen = engine(reading.engine)
    facts = {**reading.facts, **(changes or {})}
    version, notes = _version(reading.engine, facts)
    settings = _settings(chosen, model, facts, version, reading)
    layout = chosen.layout(model, settings)
    sizes, memory = _memories(facts, layout, reading.engine)
    capacities = tuple(chosen.capacity(model, settings, size) for size in sizes)
    readings = tuple(next(iter(read_log("\n".join(capacity.log_lines))), None) for capacity in capacities)
    return Prediction(
        engine=chosen, model=model, settings=settings, layout=layout, capacities=capacities, readings=readings,
        memory=memory, notes=notes,
    )  # fmt: skip


def interval(chosen: Engine, model: Model, settings: Any, memory: Amount) -> tuple[Capacity, Capacity, Capacity]:
    """Capacity for the least, the nearest and the most memory that prints like this."""
    sizes = (memory.low_bytes, memory.nearest_bytes, memory.high_bytes)
    low, near, high = (chosen.capacity(model, settings, size) for size in sizes)
    return low, near, high


def is_old(version: str | None) -> bool:
    """Whether a vLLM of this version counts one group in its token line."""
    try:
        return version is not None and release(version) < ALL_GROUPS_LOGGED
    except EngineError:
        return False


def _version(engine: str, facts: Mapping[str, Any]) -> tuple[str | None, tuple[str, ...]]:
    """The version whose rules are used, and a note where the log does not state one that can be used."""
    stated = facts.get("engine_version")
    if engine == "vllm":
        if isinstance(stated, str) and not stated.startswith("0.1.dev"):
            return stated.partition("+")[0], ()
        version = NEW_VLLM if _counts_requests(facts) else OLD_VLLM
        if facts.get("platform") == "cpu" and version == NEW_VLLM:
            version = CPU_VERSION
        return version, (f"The log states no release; its lines are read as those of {version}.",)
    if engine in ("sglang", "tensorrt-llm") and isinstance(stated, str):
        return stated, ()
    return None, ()


def _counts_requests(facts: Mapping[str, Any]) -> bool:
    """Whether the token line is concurrency × length; where both are not printed, the newest meaning is taken."""
    if "blocks" in facts and "kv_cache_size_tokens" not in facts:
        return False
    tokens, concurrency, length = (
        facts.get(name) for name in ("kv_cache_size_tokens", "max_concurrency", "concurrency_length")
    )
    if not isinstance(concurrency, Decimals) or tokens is None or length is None:
        return True
    return bool(abs(tokens - concurrency.value * length) <= concurrency.half_step * length + 1)


def _settings(chosen: Engine, model: Model, facts: Mapping[str, Any], version: str | None, reading: LogReading) -> Any:
    known = _candidates(facts, version, reading)
    fields = {option.field for option in chosen.options}
    values = {name: value for name, value in known.items() if name in fields and value is not None}
    length = facts.get("concurrency_length") or facts.get("max_model_len")
    if reading.engine in ("llama.cpp", "ollama"):
        length = None
    asked = Request(
        context=length,
        kv_dtype="auto" if known["cache_type_k"] else _kv_dtype(facts),
        tp=facts.get("tensor_parallel_size") or 1,
        pp=facts.get("pipeline_parallel_size") or 1,
        dcp=facts.get("decode_context_parallel_size") or 1,
        platform="cpu" if facts.get("platform") == "cpu" else "cuda",
        engine_version=version,
        options=as_options(values),
    )
    settings = chosen.settings(model, asked)
    total = facts.get("total")
    if reading.engine == "vllm" and isinstance(total, Amount):
        # vLLM's default of batched tokens depends on the device's memory.
        settings = replace(settings, gpu_bytes=total.nearest_bytes)
    return settings


def _kv_dtype(facts: Mapping[str, Any]) -> str:
    stated = facts.get("kv_dtype")
    if isinstance(stated, str) and stated != "auto":
        return stated
    return "fp32" if facts.get("dtype") in ("float32", "float") else "auto"


def _candidates(facts: Mapping[str, Any], version: str | None, reading: LogReading) -> dict[str, Any]:
    """Every fact under the names that engines' options have; an engine takes those that it knows."""
    get = facts.get
    cache = next((one for one in reading.caches if one.kind == "kv" and one.types), None)
    types = cache.types if cache else ()
    return {
        "block_size": get("block_size") or _kernel_block(facts),
        "page_size": get("block_size"), "tokens_per_block": get("block_size"),
        "max_num_batched_tokens": get("max_num_batched_tokens"),
        "no_prefix_caching": True if get("enable_prefix_caching") is False or _whole_requests(facts) else None,
        "disable_hybrid_kv_cache_manager": get("disable_hybrid_kv_cache_manager"),
        "no_async_scheduling": True if get("async_scheduling") == "disabled" else None,
        "num_gpu_blocks_override": get("blocks_override"), "mtp_layers": get("mtp_layers"),
        "num_speculative_tokens": get("num_speculative_tokens"),
        "max_total_tokens": get("kv_cache_size_tokens") or get("max_total_num_tokens"),
        "max_mamba_cache_size": get("state_slots"), "max_running_requests": get("max_running_requests"),
        "mem_fraction_static": _plain(get("mem_fraction_static")),
        "chunked_prefill_size": get("chunked_prefill_size"),
        "swa_full_tokens_ratio": _plain(get("swa_full_tokens_ratio")),
        "mamba_full_memory_ratio": _plain(get("mamba_full_memory_ratio")),
        "enable_dp_attention": get("enable_dp_attention"), "dp_size": get("data_parallel_size"),
        "disable_radix_cache": get("disable_radix_cache"),
        "ctx_size": get("n_ctx") or (cache.cells if cache else None),
        "num_ctx": get("n_ctx_seq") or _share(get("n_ctx"), get("n_seq_max")),
        "parallel": get("n_seq_max") or get("slots"), "num_parallel": get("n_seq_max"),
        "ubatch_size": get("n_ubatch"), "batch_size": get("n_batch"), "num_batch": get("n_ubatch") or get("n_batch"),
        "kv_unified": _SWITCHES.get(get("kv_unified", "")), "swa_full": get("swa_full"),
        "cache_type_k": types[0] if types else get("type_k"), "cache_type_v": types[-1] if types else get("type_v"),
        "kv_cache_type": types[0] if types else get("type_k"),
        "flash_attn": {"enabled": "on", "disabled": "off"}.get(get("flash_attn", "")),
    }  # fmt: skip


def _share(tokens: int | None, slots: int | None) -> int | None:
    """One slot's part of a context: Ollama starts its server with num_ctx × slots."""
    return None if tokens is None else tokens // max(1, slots or 1)


def _group_sizes(facts: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(int(word) for word in str(facts.get("group_block_sizes", "")).replace(",", " ").split()[:64])


def _kernel_block(facts: Mapping[str, Any]) -> int | None:
    """The block size that was chosen, where the log lists those of the groups and none has grown to hold a state."""
    sizes = _group_sizes(facts)
    return min(sizes) if sizes and "attention_block_size" not in facts else None


def _whole_requests(facts: Mapping[str, Any]) -> bool:
    """Whether a group's block is a whole request: states have such blocks where no prefixes are cached."""
    return "attention_block_size" in facts and facts.get("max_model_len") in _group_sizes(facts)


def _plain(value: Any) -> float | None:
    return float(value.value) if isinstance(value, Decimals) else None


def _memories(facts: Mapping[str, Any], layout: Layout, engine: str) -> tuple[tuple[int, ...], Amount | None]:
    """The memories to ask for, and the printed one that they come from (None: from a count, or without a limit)."""
    exact = facts.get("kv_cache_memory_bytes")
    if isinstance(exact, int):
        return (exact,), None
    if engine in ("sglang", "llama.cpp", "ollama"):
        # These say what they made; the pool is asked for by its own count.
        return (_UNLIMITED,), None
    memory = facts.get("available_kv") or facts.get("kv_size")
    if isinstance(memory, Amount):
        return (memory.low_bytes, memory.nearest_bytes, memory.high_bytes), memory
    blocks, tokens = facts.get("blocks"), facts.get("kv_cache_size_tokens")
    if layout.bytes_per_block and isinstance(blocks, int):
        return (blocks * layout.bytes_per_block,), None
    if layout.bytes_per_block and isinstance(tokens, int) and len(layout.groups) == 1 and layout.block_size:
        return (tokens // layout.block_size * layout.bytes_per_block,), None
    raise EngineError(f"{engine}: the log states no memory for the cache, so nothing can be predicted from it")


def printed(prediction: Prediction, name: str, place: int) -> Any:
    """The fact that our engine would print for the memory at this place; None where it prints none."""
    capacity, reading = prediction.capacities[place], prediction.readings[place]
    exact: dict[str, int | Fraction | None] = {
        "blocks": capacity.blocks,
        "kv_cache_size_tokens": capacity.kv_cache_size_tokens,
        "max_concurrency": capacity.max_concurrency,
        "needed_kv": prediction.layout.bytes_per_request,
    }
    if name == "attention_block_size":
        return prediction.layout.block_size
    if name in exact:
        return exact[name]
    return reading.facts.get(name) if reading else None
