"""What a checkpoint says about its number formats: that of its weights, and the one it declares for its cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kvcore.model.keys import Keys, Raw
from kvcore.model.model import Model
from kvcore.model.stored_bits import StoredFormat, algorithm, group_format, numbers, stored_bits

_CACHE_ALGORITHMS = {"fp8": "fp8", "fp8_e4m3": "fp8", "nvfp4": "nvfp4", "int8": "int8", "none": None}


def cache_format(raw: Raw, keys: Keys) -> tuple[str | None, list[str]]:
    """The declared cache format (None: not declared), and notes on a declaration that is not understood."""
    config = quantization(raw, keys)
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


def weight_format(raw: Raw, keys: Keys) -> StoredFormat | None:
    """The format of the stored weights: the quantisation's, else the dtype; None where nothing is said."""
    config = quantization(raw, keys)
    return _quantised(config) or _stated(keys)


def with_weights(model: Model, raw: Raw, keys: Keys) -> Model:
    """The model with the format of its stored weights, kind by kind where a quantiser left some of them alone.

    A quantisation that is not understood is told in a note: its weights are then counted in the stated dtype.
    """
    config = quantization(raw, keys)
    block = max((side for side in _sides(config) if 0 < side < 2**16), default=0)
    found, stated = _quantised(config), _stated(keys)
    if found is None:
        model = replace(model, checkpoint_format=stated.name if stated else None)
        return _with_note(model, config) if config and not _says_nothing(config) else model
    expert_dtype = keys.raw.get("expert_dtype") or raw.get("expert_dtype")
    kinds = stored_bits(model, config, found, expert_dtype)
    sizes: dict[str, int] = {}
    for part in model.weights:
        if part.name in kinds and kinds[part.name].bits < 16:
            name = kinds[part.name].name
            sizes[name] = sizes.get(name, 0) + part.parameters
    return replace(
        model,
        # A mixture goes by the name of what most of its weights are in.
        checkpoint_format=max(sizes, key=lambda name: sizes[name]) if sizes else found.name,
        stored_bits=tuple((name, one.bits) for name, one in kinds.items()),
        scale_block=block,
    )


def _quantised(config: Mapping[str, Any]) -> StoredFormat | None:
    """The format of most of what is quantised; None where nothing is, or it is not understood."""
    method = str(config.get("quant_method") or "").lower()
    stated = str(config.get("quant_algo") or "")
    if method == "mxfp4":
        return StoredFormat("mxfp4", 4.25)
    if method in ("fp8", "fbgemm_fp8"):
        return StoredFormat("fp8", 8)
    if method == "bitsandbytes":
        four, eight = config.get("load_in_4bit") is True, config.get("load_in_8bit") is True
        return StoredFormat("bnb4", 4 + 8 / 64 + 32 / 16384) if four else StoredFormat("int8", 8) if eight else None
    group = config.get("group_size") or config.get("q_group_size")
    found = algorithm(stated, group) or algorithm(str(config.get("format") or "")) or _first_group(config)
    if found is not None:
        return found
    bits = config.get("bits") or config.get("weight_bits") or config.get("w_bit")
    made = numbers(bits, "int", group or 128, zero_point=True)
    if made is not None and method in ("awq", "gptq"):
        return StoredFormat(f"{method}{'' if bits == 4 else '8'}", made.bits)
    return numbers(bits, "int", group)


def _stated(keys: Keys) -> StoredFormat | None:
    stated = str(keys.raw.get("dtype") or keys.raw.get("torch_dtype") or "").removeprefix("torch.")
    names = {"bfloat16": ("bf16", 16), "float16": ("fp16", 16), "float32": ("fp32", 32)}
    return StoredFormat(*names[stated]) if stated in names else None


def _first_group(config: Mapping[str, Any]) -> StoredFormat | None:
    """The first group that is understood, or the first named module's algorithm."""
    for name in ("config_groups", "quantized_layers"):
        groups = config.get(name)
        for group in groups.values() if isinstance(groups, Mapping) else ():
            algo = str(group.get("quant_algo") or "") if isinstance(group, Mapping) else ""
            found = group_format(group, config) or algorithm(algo, group.get("group_size") if algo else None)
            if found is not None:
                return found
    return None


def _sides(config: Mapping[str, Any]) -> list[int]:
    sides = config.get("weight_block_size")
    return [side for side in sides if type(side) is int] if isinstance(sides, list) else []


def _says_nothing(config: Mapping[str, Any]) -> bool:
    """A configuration of the cache alone, or one that quantises nothing."""
    named = ("quant_method", "quant_algo", "config_groups", "quantized_layers", "bits", "weight_bits")
    return not any(config.get(name) for name in named)


def _with_note(model: Model, config: Mapping[str, Any]) -> Model:
    method = str(config.get("quant_method") or config.get("quant_algo") or "")[:40]
    note = f"Its quantization_config ({method or 'no method'}) is not understood: weights are counted in 16 bits."
    return model.with_notes(note)


def quantization(raw: Raw, keys: Keys) -> Mapping[str, Any]:
    """The quantisation's own object, by its present name or an older one; a nested `quantization` is laid over it."""
    for holder in (keys.raw, raw):
        for name in ("quantization_config", "compression_config"):
            config = holder.get(name)
            if isinstance(config, Mapping):
                nested = config.get("quantization")
                return {**config, **nested} if isinstance(nested, Mapping) else config
    return {}
