"""The start-up log of llama.cpp, which states every cache that it makes."""

from __future__ import annotations

from typing import Any

from kvcore.engines.log import SWITCHES, F, Kind, LogReading, LogRules, N, Pattern, amount, pattern


def _ggml(needle: str, rest: str, source: str, **more: Any) -> Pattern:
    return pattern("llama.cpp", needle, rest, f"llama.cpp {source}", **more)


_EQUALS = r" {0,30}= "
PATTERNS = (
    _ggml("general.name", rf"(?: str)?{_EQUALS}(?P<model>[^|]{{1,200}})", "llama-model.cpp, print_info"),
    _ggml("general.architecture", rf" str{_EQUALS}(?P<architecture>[\w.-]{{1,60}})", "llama-model-loader.cpp"),
    _ggml("arch ", rf"{_EQUALS}(?P<architecture>[\w.-]{{1,60}})", "llama-model.cpp, print_info", begins=True),
    _ggml("print_info: file type", rf"{_EQUALS}(?P<quantization>[^(]{{1,60}})", "llama-model.cpp"),
    *(_ggml(f"{name} ", rf"{_EQUALS}(?P<{name}>{N})", "llama-model.cpp and llama-context.cpp")
      for name in ("n_ctx_train", "n_layer", "n_swa", "n_seq_max", "n_ctx", "n_ctx_per_seq", "n_ctx_seq", "n_batch",
                   "n_ubatch")),
    _ggml("kv_unified ", rf"{_EQUALS}(?P<kv_unified>true|false)", "b6100 and newer, llama-context.cpp"),
    _ggml("flash_attn ", rf"{_EQUALS}(?P<flash_attn>\w{{1,12}})", "llama-context.cpp"),
    _ggml("using full-size SWA cache", "(?P<swa_full>)", "b5500 and newer, llama-kv-cache-iswa.cpp"),
    _ggml("creating non-SWA KV cache, size = ", rf"(?P<cells>{N}) cells", "llama-kv-cache-iswa.cpp"),
    _ggml("creating     SWA KV cache, size = ", rf"(?P<swa_cells>{N}) cells", "llama-kv-cache-iswa.cpp"),
    _ggml(" KV buffer size = ", rf" {{0,12}}{amount('buffer')}", "llama-kv-cache.cpp", word_before="buffer_device"),
    _ggml(" RS buffer size = ", rf" {{0,12}}{amount('state_buffer')}", "llama-memory-recurrent.cpp",
          word_before="state_device"),
    _ggml("size = ", rf" {{0,8}}(?P<cache_size>{F}) MiB \( {{0,8}}(?P<cache_cells>{N}) cells, {{1,4}}"
          rf"(?P<cache_layers>{N}) layers(?:, {{1,4}}(?P<cache_seqs>[0-9]{{1,6}}(?:/[0-9]{{1,6}})?) seqs?"
          rf"(?: {{1,4}}[0-9]{{1,6}} rs_seq)?)?\)(?:, (?P<first_name>[KR]) \((?P<first_type>\w{{1,12}})\): {{0,8}}"
          rf"(?P<first_size>{F}) MiB, (?P<second_name>[VS]) \((?P<second_type>\w{{1,12}})\): {{0,8}}"
          rf"(?P<second_size>{F}) MiB)?", "llama-kv-cache.cpp and llama-memory-recurrent.cpp", closes=True),
    _ggml("KV self size  = ", rf" {{0,8}}(?P<cache_size>{F}) MiB(?:, (?:c\^)?(?P<first_name>KV?) "
          rf"\((?P<first_type>\w{{1,12}})\): {{0,8}}(?P<first_size>{F}) MiB(?:, (?:V|kv\^T) "
          rf"\((?P<second_type>\w{{1,12}})\): {{0,8}}(?P<second_size>{F}) MiB)?)?",
          "until b5500, llama-context.cpp; ik_llama.cpp", closes=True),
    _ggml("kv self size  = ", rf" {{0,8}}(?P<cache_size>{F}) MB", "2023, llama.cpp (MB are MiB)", closes=True),
    _ggml("kv_size = ", rf"(?P<cells>{N})", "until b6000, llama-kv-cache.cpp", pairs=True),
    _ggml(" compute buffer size = ", rf" {{0,12}}{amount('compute')}", "llama-context.cpp",
          word_before="compute_device"),
    _ggml("initializing, n_slots = ", rf"(?P<slots>{N}), n_ctx_slot = (?P<slot_tokens>{N}), kv_unified = "
          r"'(?P<kv_unified>true|false)'", "b6900 and newer, tools/server"),
    _ggml("build: ", rf"(?P<engine_version>{N} \([0-9a-f]{{4,12}}\))", "common/common.cpp", begins=True),
    _ggml("requires flash_attn", "(?P<flash_attn_required>)", "llama-context.cpp", closes=True),
    _ggml("enabling flash_attn since it is required for quantized V cache", "(?P<flash_attn_forced>)",
          "llama-context.cpp"),
)  # fmt: skip
PAIRS: dict[str, tuple[str, Kind]] = {
    "type_k": ("type_k", "text"), "type_v": ("type_v", "text"), "n_layer": ("n_layer", "count"),
}  # fmt: skip


class LlamaCppLog(LogRules):
    """See kvcore.engines.log.LogRules."""

    patterns = PATTERNS
    pairs = PAIRS
    states = "caches"
    context_option: str | None = "ctx_size"

    def length(self, reading: LogReading) -> int | None:
        """None: requests are as long as a slot allows, and the context says how long that is."""
        return None

    def kv_dtype(self, reading: LogReading) -> str:
        """`auto` where the log states the types of keys and values, which are options."""
        return "auto" if stated_types(reading)[0] else super().kv_dtype(reading)

    def options(self, reading: LogReading) -> dict[str, Any]:
        """See LogRules.options."""
        get, (keys, values) = reading.facts.get, stated_types(reading)
        cells = next((cache.cells for cache in reading.caches if cache.kind == "kv" and cache.types), None)
        return {
            "ctx_size": get("n_ctx") or cells,
            "parallel": get("n_seq_max") or get("slots"),
            "ubatch_size": get("n_ubatch"),
            "batch_size": get("n_batch"),
            "kv_unified": SWITCHES.get(get("kv_unified", "")),
            "swa_full": get("swa_full"),
            "cache_type_k": keys,
            "cache_type_v": values,
            "flash_attn": {"enabled": "on", "disabled": "off"}.get(get("flash_attn", "")),
        }


LLAMACPP_LOG = LlamaCppLog()


def stated_types(reading: LogReading) -> tuple[str | None, str | None]:
    """The types of keys and of values: of the first cache that has them, else as they were asked for."""
    cache = next((one for one in reading.caches if one.kind == "kv" and one.types), None)
    return (reading.text("type_k"), reading.text("type_v")) if cache is None else (cache.types[0], cache.types[-1])
