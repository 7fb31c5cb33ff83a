"""What a checkpoint says about its number formats: that of its weights, and the one it declares for its cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvcore.model.keys import Keys, Raw

_CACHE_ALGORITHMS = {"fp8": "fp8", "fp8_e4m3": "fp8", "nvfp4": "nvfp4", "int8": "int8", "none": None}


def cache_format(raw: Raw, keys: Keys) -> tuple[str | None, list[str]]:
    """The declared cache format (None: not declared), and notes on a declaration that is not understood."""
    config = _quantization(raw, keys)
    scheme = config.get("kv_cache_scheme")
    if isinstance(scheme, Mapping):
        bits, kind = scheme.get("num_bits"), scheme.get("type")
        known = {"8 float": "fp8", "8 int": "int8", "4 float": "nvfp4"}.get(f"{bits} {kind}")
        if known:
            return known, [f"The checkpoint declares its cache as {known} (kv_cache_scheme)."]
        return None, [f"kv_cache_scheme ({bits} bits, {kind}) is not understood; 16 bits are assumed."]
    algorithm = config.get("kv_cache_quant_algo") or config.get("kv_cache_quant_algorithm")
    if isinstance(algorithm, str):
        known = _CACHE_ALGORITHMS.get(algorithm.lower(), "")
        if known == "":
            return None, [f"kv_cache_quant_algo {algorithm[:40]!r} is not understood; 16 bits are assumed."]
        return known, [f"The checkpoint declares its cache as {known} (kv_cache_quant_algo)."] if known else []
    return None, []


def weight_format(raw: Raw, keys: Keys) -> str | None:
    """The format of the stored weights: the quantisation's, else the dtype; None where nothing is said."""
    config = _quantization(raw, keys)
    method = str(config.get("quant_method") or "").lower()
    algorithm = str(config.get("quant_algo") or "").lower()
    bits = config.get("bits") or config.get("weight_bits") or _group_bits(config)
    if "nvfp4" in algorithm or "nvfp4" in str(config.get("format") or ""):
        return "nvfp4"
    if method in ("fp8", "mxfp4", "fbgemm_fp8") or algorithm == "fp8":
        return "mxfp4" if method == "mxfp4" else "fp8"
    if method in ("awq", "gptq") and bits in (4, 8):
        return f"{method}{'' if bits == 4 else '8'}"
    if bits in (4, 8):
        return "int4" if bits == 4 else "fp8" if "float" in str(config.get("format") or "") else "int8"
    stated = str(keys.raw.get("dtype") or keys.raw.get("torch_dtype") or "").removeprefix("torch.")
    return {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}.get(stated)


def _group_bits(config: Mapping[str, Any]) -> int | None:
    groups = config.get("config_groups")
    first = next(iter(groups.values()), None) if isinstance(groups, Mapping) else None
    weights = first.get("weights") if isinstance(first, Mapping) else None
    bits = weights.get("num_bits") if isinstance(weights, Mapping) else None
    return bits if isinstance(bits, int) else None


def _quantization(raw: Raw, keys: Keys) -> Mapping[str, Any]:
    """The quantisation's own object, by its present name or an older one; a nested `quantization` is laid over it."""
    for holder in (keys.raw, raw):
        for name in ("quantization_config", "compression_config"):
            config = holder.get(name)
            if isinstance(config, Mapping):
                nested = config.get("quantization")
                return {**config, **nested} if isinstance(nested, Mapping) else config
    return {}
