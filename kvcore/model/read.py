"""From a config.json to a Model: find the language model in it, read it by family, refuse what is not understood."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from kvcore.errors import CONFIG, ConfigError, UnknownLayoutError
from kvcore.model.families import ARCHITECTURES, FAMILIES, TEXT_KEYS, WRAPPED
from kvcore.model.keys import Keys, Raw, context_limit, model_dtype
from kvcore.model.memories import Attention
from kvcore.model.model import Model, Reading
from kvcore.model.prediction import prediction_keys, read_prediction
from kvcore.model.quantization import cache_format, quantization, with_weights
from kvcore.model.readers.encoders import read_encoder
from kvcore.model.readers.shape import (
    HEAD_DIM_NAMES,
    HEAD_NAMES,
    HIDDEN_NAMES,
    LAYER_NAMES,
    Family,
    Shape,
    other_query_heads,
)
from kvcore.model.rope import rope_scalings
from kvcore.model.towers import read_tower, tower_parameters
from kvcore.paths import DATA

# Keys whose names say that they shape the cache. One that is set and that no reader took is not understood.
_SHAPES_THE_CACHE = re.compile(
    r"sliding|window|swa|chunk_size$|num_kv|kv_heads|kv_share|kv_lora|key_value|n_head_kv|head_dim|head_size|latent|"
    r"layer_types|layers_block|block_types?$|block_configs|hybrid|attn_type|attention_types|attn_layer|full_attn|"
    r"layer_pattern|_pattern$|attention_interval|cla_|share_factor|compress|^index_|indexer|ssm|mamba|conv_kernel|"
    r"conv1d|d_conv|conv_L|linear_(attn|conv|key|value|num|head)|recurrent|cross_attention_layers|state_size|"
    r"sparse_attention|kda|global_(head|attn)|attn_config|lru_|d_state|memory_size|cache_layers|kv_source|per_layer_config|^sparse_config|cache_quantization",
    re.IGNORECASE,
)
# Keys that match the above and change nothing of what a request makes a model remember.
_HARMLESS = re.compile(
    r"^(use_cache|compression_config|cache_implementation|max_window_layers|chunk_size_feed_forward|mamba_chunk_size|mamba_conv_bias|"
    r"mamba_proj_bias|mamba_hidden_act|mamba_norm_before_gate|mamba_rms_norm|mamba_use_mlp|use_mamba_kernels|"
    r"use_mambapy|chunk_size|mtp_.*|.*_sparsity_pattern|cross_attention_hidden_size|mm_.*|hidden_mamba_act|"
    r"ssm_(multipliers|in_multiplier|out_multiplier)|compress_rope_theta|rope_.*|.*_rope_theta|use_conv_bias|"
    r"linear_attn_(alpha|beta)_factor|layernorm_.*|mlp_layer_types|block_(auto_adjust_ff_dim|use_.*|.*_init_scale)|"
    r"indexer_rope_interleave|swa_rope_theta|add_swa_attention_sink_bias|hybrid_(attention_window|cache).*|"
    r"blocksparse_homo_head_pattern|ep_size|sparse_attention_type|context_window_size|prefill_chunk_size|attention_sink_size|index_topk|index_block_size|.*_multiplier)$"
)
# What makes any bound impossible where it is not understood: a state's size does not follow from heads and layers.
_HAS_STATE = re.compile(
    r"ssm|mamba|conv_kernel|conv1d|d_conv|recurrent|state_size|linear_|lightning|kda|lru_|rwkv|d_state|delta|"
    r"layer_group_size|group_norm_size|attn_type_list|retention",
    re.IGNORECASE,
)
_ESSENTIAL = {*LAYER_NAMES, *HIDDEN_NAMES, *HEAD_NAMES}


def model_from_config(raw: Any, name: str = "", *, upper_bound: bool = False) -> Model:
    """The Model that a parsed config.json describes.

    Raises ConfigError for a file that is malformed and UnknownLayoutError, naming the model_type or the keys, for one
    that is not understood; with `upper_bound` the latter is answered by full attention in every layer, labelled so.
    """
    if not isinstance(raw, Mapping) or not all(isinstance(key, str) for key in raw):
        raise ConfigError(f"expected an object with keys, found {type(raw).__name__}", file=CONFIG)
    text, model_type, path = _text_config(raw)
    try:
        return _understood(raw, text, model_type, path, name)
    except UnknownLayoutError as refusal:
        if not upper_bound:
            raise
        return _bound(raw, text, model_type, name, refusal)


_HALF = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")


def parse_config(text: str) -> dict[str, Any]:
    """The object in a config.json's text; ConfigError says where it is broken."""
    try:
        raw = json.loads(text)
    except RecursionError:
        raise ConfigError("nested too deeply to be a model's configuration", file=CONFIG) from None
    except json.JSONDecodeError as problem:
        raise ConfigError(f"not valid JSON ({problem})", file=CONFIG) from None
    except ValueError:
        raise ConfigError("a number in it has thousands of digits, which no key has", file=CONFIG) from None
    if not isinstance(raw, dict):
        raise ConfigError(f"expected an object {{…}}, found {type(raw).__name__}", file=CONFIG)
    if _HALF.search(text):
        # Half a character can be written nowhere, neither to a file nor to a page: a question mark stands for it.
        whole: dict[str, Any] = json.loads(json.dumps(raw, ensure_ascii=False).encode("utf-8", "replace"))
        return whole
    return raw


def _text_config(raw: Raw) -> tuple[Raw, str, str]:
    """The language model's own configuration inside `raw`, its model_type, and the path to it."""
    current, path = raw, ""
    model_type = _type_of(raw)
    for _ in range(4):
        nested = next((key for key in TEXT_KEYS if isinstance(current.get(key), Mapping) and current[key]), None)
        if nested is None or current.get(nested, {}).get("model_type") == "":
            break
        current, path = current[nested], f"{path}{nested}."
        own = _type_of(current)
        model_type = own if own in FAMILIES else WRAPPED.get(own or model_type, own or model_type)
    if model_type not in FAMILIES:
        model_type = WRAPPED.get(model_type) or _by_architecture(current) or _by_architecture(raw) or model_type
    return current, model_type, path


def _type_of(raw: Raw) -> str:
    stated = raw.get("model_type")
    if stated is None and isinstance(raw.get("ssm_cfg"), Mapping) and "d_model" in raw:
        return "mamba_ssm"
    return stated if isinstance(stated, str) else ""


def _by_architecture(raw: Raw) -> str | None:
    names = raw.get("architectures")
    for entry in names if isinstance(names, list) else []:
        if isinstance(entry, str) and entry in ARCHITECTURES:
            return ARCHITECTURES[entry]
    return None


@cache
def _defaults() -> dict[str, dict[str, Any]]:
    """Values that transformers gives to keys which a file leaves out, by model_type."""
    loaded: dict[str, dict[str, Any]] = json.loads((DATA / "architectures.json").read_text("utf-8"))["defaults"]
    return loaded


def _keys(raw: Raw, text: Raw, model_type: str, path: str) -> Keys:
    merged = dict(text)
    for shared in ("dtype", "torch_dtype", "tie_word_embeddings", "quantization_config", "compression_config"):
        if merged.get(shared) is None and raw.get(shared) is not None:
            merged[shared] = raw[shared]
    defaults = _defaults().get(model_type, {})
    if not path:
        # A file of its own states its layers, width and heads; only nested configurations leave them out.
        defaults = {key: value for key, value in defaults.items() if key not in _ESSENTIAL}
    return Keys(merged, defaults, path)


def _understood(raw: Raw, text: Raw, model_type: str, path: str, name: str) -> Model:
    family = FAMILIES.get(model_type)
    if family is None:
        shown = model_type[:80] or "(none)"
        raise UnknownLayoutError(
            f"model_type {shown!r} is not understood, so its cache cannot be sized; "
            "ask for an upper bound to count every layer as full attention",
            file=CONFIG,
            keys=("model_type",),
        )
    keys = _keys(raw, text, model_type, path)
    keys.know("model_type", "architectures", *family.harmless)
    reason = _reads_at_once(raw, text)
    if reason:
        family = replace(FAMILIES["bert"], read=read_encoder, notes=(reason,))
    shape = family.read(keys, family)
    if reason:
        # What its layers would keep does not matter: they keep nothing.
        keys.know(*keys.raw)
    _refuse_unknown_keys(keys, model_type)
    return _model(keys, raw, shape, model_type, family, name)


_ENCODER_CLASS = re.compile(r"^(T5|MT5|UMT5|LongT5)EncoderModel$|^Whisper.*ForAudioClassification$")


def _reads_at_once(raw: Raw, text: Raw) -> str:
    """Why this configuration of a decoder's family keeps no cache: it is used as an encoder; empty where it is not."""
    names = raw.get("architectures")
    first = str(names[0]) if isinstance(names, list) and names else ""
    if _ENCODER_CLASS.search(first):
        return f"{first} is the encoder alone."
    if text.get("use_bidirectional_attention") is True:
        return "use_bidirectional_attention: every token sees the whole input at once, as in an encoder."
    if text.get("is_causal") is False:
        return "is_causal is false: every token sees the whole input at once, as in an encoder."
    return ""


def _refuse_unknown_keys(keys: Keys, model_type: str) -> None:
    """UnknownLayoutError where a key is set that shapes the cache and that nothing took into account."""
    unknown = []
    for full_name in keys.unused():
        leaf = full_name.rsplit(".", 1)[-1]
        value = _value_at(keys, full_name)
        if value in (None, False, 0, -1, "", 1.0) or (isinstance(value, list | dict) and not value):
            continue
        if _SHAPES_THE_CACHE.search(leaf) and not _HARMLESS.match(leaf):
            unknown.append(full_name)
    if unknown:
        listed = ", ".join(f"{name} = {_short(_value_at(keys, name))}" for name in unknown[:6])
        raise UnknownLayoutError(
            f"{listed}: not understood for model_type {model_type!r}, and it may change the cache; "
            "remove it if it does nothing, or ask for an upper bound",
            file=CONFIG,
            keys=tuple(unknown),
        )


def _value_at(keys: Keys, full_name: str) -> Any:
    owner, leaf = keys, full_name.removeprefix(keys.path)
    # A key may hold a dot itself, which is no nesting then.
    while "." in leaf and leaf not in owner.raw:
        head, leaf = leaf.split(".", 1)
        match = [child for child in owner.children if child.path == f"{owner.path}{head}."]
        if not match:
            return None
        owner = match[0]
    return owner.raw.get(leaf)


def _short(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 40 else text[:37] + "…"


def _model(keys: Keys, raw: Raw, shape: Shape, model_type: str, family: Family, name: str) -> Model:
    limit = context_limit(keys, model_type)
    declared, notes = cache_format(raw, keys)
    keys.know("dtype", "torch_dtype", "vocab_size", "quantization_config", "compression_config")
    defaulted = tuple(keys.all_defaulted())
    if defaulted:
        stated = ", ".join(f"{key} = {value}" for key, value in defaulted)
        notes.append(f"Not stated in the file, taken from the architecture's defaults: {stated}.")
    nested = {key.split(".", 1)[0] for key, _ in keys.all_used()}
    ignored = tuple(
        dict.fromkeys([*keys.unused(), *(key for key in raw if key not in nested and key not in keys.used)])
    )
    unknown_weights = family.options.get("weights_unknown")
    model = Model(
        name=name or str(raw.get("_name_or_path") or "") or model_type,
        model_type=model_type,
        layers=shape.layers,
        hidden_size=shape.hidden_size,
        num_attention_heads=shape.num_attention_heads,
        head_dim=shape.head_dim,
        key_head_dim=shape.key_head_dim,
        vocab_size=shape.vocab_size,
        context_limit=limit,
        model_dtype=model_dtype(keys),
        cache_format=declared,
        experts=shape.experts,
        widths=shape.widths,
        rope=rope_scalings(keys),
        weights=() if shape.tally is None or unknown_weights else shape.tally.parts(),
        tower=read_tower(raw),
        tower_parameters=tower_parameters(raw, shape.hidden_size),
        state_dtype=state_dtype if isinstance(state_dtype := keys.peek("mamba_ssm_dtype"), str) else None,
        other_query_heads=other_query_heads(keys, shape.num_attention_heads),
        window_of_past=shape.window_of_past,
        prediction=read_prediction(keys.raw, model_type, len(shape.layers), quantization(raw, keys)),
        prediction_keys=prediction_keys(ignored),
        reading=Reading(
            keys_used=tuple(keys.all_used()),
            keys_ignored=ignored,
            defaults_used=defaulted,
            notes=(*family.notes, *keys.all_notes(), *notes),
        ),
    )
    return with_weights(model, raw, keys)


def _bound(raw: Raw, text: Raw, model_type: str, name: str, refusal: UnknownLayoutError) -> Model:
    """Full attention with the widest heads in every layer; refuses where a state makes that no bound."""
    stateful = [key for key in text if _HAS_STATE.search(key) and text[key] not in (None, False, 0)]
    if stateful:
        raise UnknownLayoutError(
            f"{refusal.reason}. No bound either: {', '.join(stateful[:4])} may keep a state whose size is not known",
            file=refusal.file,
            keys=refusal.keys,
        ) from None
    keys = _keys(raw, text, "", "")
    layers = max(keys.integer(*LAYER_NAMES, high=2048), keys.optional("num_decoder_layers", high=2048) or 0)
    hidden, heads = keys.integer(*HIDDEN_NAMES), keys.integer(*HEAD_NAMES, high=2**14)
    widths = [
        keys.optional(key, high=2**16) for key in (*HEAD_DIM_NAMES, "v_head_dim", "global_head_dim", "swa_head_dim")
    ]
    nope, rope = (keys.optional(key, low=0, high=2**16) or 0 for key in ("qk_nope_head_dim", "qk_rope_head_dim"))
    head_dim = max([width for width in widths if width] + [-(-hidden // heads), nope + rope])
    # KV heads may differ by layer in what was not understood, so every query head is given its own.
    memory = Attention(num_kv_heads=heads, head_dim=head_dim, v_head_dim=head_dim)
    shape = Shape(layers=((memory,),) * layers, hidden_size=hidden, num_attention_heads=heads, head_dim=head_dim)
    family = Family(read=lambda *_: shape, notes=(f"Upper bound. Not understood: {refusal}.",))
    model = _model(keys, raw, shape, model_type or "unknown", family, name)
    return replace(model, knowledge="upper_bound")
