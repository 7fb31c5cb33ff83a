"""The start-up log of Ollama, which starts llama.cpp's server: its own lines, and those of the server."""

from __future__ import annotations

from typing import Any

from kvcore.engines.llamacpp.log import PAIRS as SERVER_PAIRS
from kvcore.engines.llamacpp.log import LlamaCppLog, stated_types
from kvcore.engines.log import Kind, LogReading, N, Pattern, amount, pattern


def _oll(needle: str, rest: str, source: str, **more: Any) -> Pattern:
    return pattern("ollama", needle, rest, f"Ollama {source}", **more)


PATTERNS = (
    _oll('msg="Listening on ', r"\S{1,100} \(version (?P<engine_version>[0-9][\w.+-]{0,40})\)", "server/routes.go",
         begins=True),
    _oll('msg="server config" env="map[', "", "server/routes.go", pairs=True),
    _oll('msg="starting llama server" cmd="', "", "llm/server.go, until 0.11", begins=True, pairs=True),
    _oll('msg="starting runner" cmd="', "", "llm/server.go, 0.11 and newer", begins=True, pairs=True),
    _oll("KvSize:", rf"(?P<n_ctx>{N})", "runner/ollamarunner/runner.go, load request"),
    _oll("Parallel:", rf"(?P<n_seq_max>{N})", "runner/ollamarunner/runner.go, load request"),
    _oll("KvCacheType:", r"(?P<kv_dtype>\w{1,12})", "runner/ollamarunner/runner.go, load request"),
    _oll('msg="model weights" device=', rf'(?P<weights_device>[\w:.-]{{1,40}}) size="{amount("device_weights")}"',
         "ml/device.go"),
    _oll('msg="kv cache" device=', rf'(?P<kv_device>[\w:.-]{{1,40}}) size="{amount("device_kv")}"', "ml/device.go",
         closes=True),
    _oll('msg="compute graph" device=', rf'(?P<graph_device>[\w:.-]{{1,40}}) size="{amount("device_graph")}"',
         "ml/device.go"),
    _oll('msg="total memory" size="', amount("total_used"), "ml/device.go"),
    _oll('memory.required.kv="', amount("kv_size"), "llm/memory.go, until 0.11", closes=True),
    _oll("layers.requested=", rf"-?{N} layers\.model=(?P<model_layers>{N})", "llm/memory.go, until 0.11"),
)  # fmt: skip
PAIRS: dict[str, tuple[str, Kind]] = {
    **SERVER_PAIRS, "model": ("model", "text"), "ctx-size": ("n_ctx", "count"), "parallel": ("n_seq_max", "count"),
    "batch-size": ("n_batch", "count"), "kv-cache-type": ("kv_dtype", "text"), "cache-type-k": ("type_k", "text"),
    "cache-type-v": ("type_v", "text"), "OLLAMA_NUM_PARALLEL": ("n_seq_max", "count"),
    "OLLAMA_KV_CACHE_TYPE": ("kv_dtype", "text"), "OLLAMA_CONTEXT_LENGTH": ("context_default", "count"),
}  # fmt: skip


class OllamaLog(LlamaCppLog):
    """See kvcore.engines.log.LogRules."""

    patterns = PATTERNS
    pairs = PAIRS
    starts = "llama.cpp"
    caches_by_device = True
    context_option = "num_ctx"

    def options(self, reading: LogReading) -> dict[str, Any]:
        """See LogRules.options."""
        get = reading.facts.get
        return {
            # Ollama starts its server with num_ctx × slots.
            "num_ctx": get("n_ctx_seq") or _share(get("n_ctx"), get("n_seq_max")),
            "num_parallel": get("n_seq_max"),
            "num_batch": get("n_ubatch") or get("n_batch"),
            "kv_cache_type": stated_types(reading)[0],
        }


LOG = OllamaLog()


def _share(tokens: int | None, slots: int | None) -> int | None:
    """One slot's part of a context."""
    return None if tokens is None else tokens // max(1, slots or 1)
