"""Run the real model classes of transformers without weights, and measure every tensor that they keep.

Models are built on torch's `meta` device: shapes and dtypes are exact, nothing is stored or computed, so layers keep
their real widths, heads and windows. Only the number of layers is cut, to whole patterns.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx.experimental import _config as fx_config
from transformers import DynamicCache, EncoderDecoderCache, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import MoEModelOutput
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_MAPPING

LAYER_NAMES = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
TEXT_NAMES = ("text_config", "llm_config", "language_config", "thinker_config", "language_model_config")
# Attributes of a cache layer, as the parts of a memory that they hold.
PART_OF = {
    "keys": "kv", "values": "kv", "indexer_keys": "indexer", "idx_keys": "indexer", "conv_states": "convolution",
    "recurrent_states": "state", "_sliding_window_tensor": "counter",
    # DeepSeek-V4's caches hold these by compressor.
    "compressed_kv.compressor": "compressed", "compressed_kv.indexer": "indexer",
    **{f"{name}.{owner}": part
       for name in ("buffer_kv", "buffer_gate", "overlap_kv", "overlap_gate")
       for owner, part in (("compressor", "compressor"), ("indexer", "indexer compressor"))},
}  # fmt: skip
SOURCE_TOKENS = 7
Parts = dict[str, int]


@dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    """One configuration to run: a published file or the defaults of a model_type, cut to `layers` layers.

    `change` replaces keys of the language model's configuration, for transformers and for kvcore alike (None: takes
    the key away); `theirs` does so for transformers only, where a class that stands in has other names for them.
    `as_given`: kvcore reads these defaults with the changes, not what transformers writes after reading them.
    `as_type` is the transformers model_type that stands in where the file's own is not implemented. `stub` names
    modules without a cache (experts whose routing needs real numbers) that are replaced by zeros. `keeps` says where
    the model keeps what it remembers. `attention` is the implementation to ask for, where the usual one looks at the
    mask's values.
    """

    layers: int = 0
    file: str = ""
    default_of: str = ""
    as_type: str = ""
    change: Mapping[str, Any] = field(default_factory=dict)
    theirs: Mapping[str, Any] = field(default_factory=dict)
    stub: tuple[str, ...] = ()
    keeps: str = "cache"
    attention: str | None = None
    as_given: bool = False

    @property
    def name(self) -> str:
        name = self.file.removesuffix(".json") or self.default_of
        return name + (f" as {self.as_type}" if self.as_type else "") + (" as given" if self.as_given else "")


def text_of(raw: dict[str, Any]) -> dict[str, Any]:
    """The language model's own part of a configuration."""
    nested = next((raw[name] for name in TEXT_NAMES if isinstance(raw.get(name), dict) and raw[name]), None)
    return raw if nested is None else text_of(nested)


def cut(raw: Mapping[str, Any], case: Case) -> dict[str, Any]:
    """A copy of a configuration with `case.layers` layers, per-layer lists to match, and without weight formats."""
    whole = copy.deepcopy(dict(raw))
    text = text_of(whole)
    for part in (whole, text):
        part.pop("quantization_config", None)
    old = next((text[name] for name in LAYER_NAMES if isinstance(text.get(name), int)), 0)
    if case.layers and case.layers < old:
        _cut_lists(text, old, case.layers)
    replace_keys(text, case.change)
    return whole


def replace_keys(text: dict[str, Any], change: Mapping[str, Any]) -> None:
    """Put these keys in place of others of the same name; None takes a key away."""
    for name, value in change.items():
        if value is None:
            text.pop(name, None)
        else:
            text[name] = value


def _cut_lists(text: dict[str, Any], old: int, new: int) -> None:
    for name in LAYER_NAMES:
        if text.get(name) == old:
            text[name] = new
    for name, value in text.items():
        if name == "per_layer_config" and isinstance(value, dict):
            text[name] = {index: own for index, own in value.items() if int(index) < new}
        elif isinstance(value, list) and name in ("cross_attention_layers", "hybrid_layer_ids"):
            text[name] = [index for index in value if index < new]
        elif (isinstance(value, list) and len(value) >= old) or name == "hybrid_override_pattern":
            text[name] = value[:new]
        elif isinstance(value, dict) and name in ("linear_attn_config", "sparse_attention_config"):
            text[name] = _cut_nested(value, old, new)


def _cut_nested(nested: dict[str, Any], old: int, new: int) -> dict[str, Any]:
    kept = dict(nested)
    for name, value in nested.items():
        if name in ("kda_layers", "full_attn_layers"):
            kept[name] = [index for index in value if index <= new]
        elif isinstance(value, list) and len(value) >= old:
            kept[name] = value[:new]
    return kept


def text_config(raw: Mapping[str, Any], case: Case) -> PreTrainedConfig:
    """transformers' own reading of a configuration: the configuration of its language model."""
    part = copy.deepcopy(dict(raw))
    replace_keys(text_of(part), case.theirs)
    part = text_of(part) if case.as_type else part
    model_type = case.as_type or part["model_type"]
    part.pop("model_type", None)
    config = CONFIG_MAPPING[model_type].from_dict(part)
    return config if config.is_encoder_decoder else config.get_text_config(decoder=True)


def model_class(config: PreTrainedConfig) -> type[PreTrainedModel]:
    """The class without a head that transformers has for a configuration."""
    if type(config) in MODEL_MAPPING:
        found: Any = MODEL_MAPPING[type(config)]
        return found[0] if isinstance(found, tuple) else found  # type: ignore[no-any-return]
    module = importlib.import_module(type(config).__module__.replace("configuration_", "modeling_"))
    base = type(config).__name__.removesuffix("Config")
    for name in (f"{base}Model", f"{base.removesuffix('Text')}ThinkerTextModel"):
        if hasattr(module, name):
            return getattr(module, name)  # type: ignore[no-any-return]
    raise LookupError(f"transformers has no model class for {type(config).__name__}")


class Zeros(torch.nn.Module):
    """Stands in for a module that keeps nothing: its output is as wide as its input."""

    def forward(self, hidden: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        return torch.zeros_like(hidden)


@contextmanager
def without_numbers() -> Iterator[None]:
    """The meta device, and the assumption that lets a routing mask be indexed there."""
    before = fx_config.meta_nonzero_assume_all_nonzero
    fx_config.meta_nonzero_assume_all_nonzero = True
    try:
        with torch.device("meta"), torch.no_grad():
            yield
    finally:
        fx_config.meta_nonzero_assume_all_nonzero = before


def observe(case: Case, config: PreTrainedConfig, steps: Sequence[int]) -> Iterator[tuple[int, list[Parts]]]:
    """(tokens so far, the bytes that each layer keeps, by part) after every forward pass of `steps` tokens."""
    with without_numbers():
        found: Any = model_class(config)
        model = found._from_config(config, dtype=torch.bfloat16, attn_implementation=case.attention).eval()
        for module in list(model.modules()):
            for child in case.stub:
                if isinstance(getattr(module, child, None), torch.nn.Module):
                    setattr(module, child, Zeros())
        tokens = 0
        for length, layers in KEEPS[case.keeps](model, config, steps):
            tokens += length
            yield tokens, layers


def _ids(length: int) -> torch.Tensor:
    return torch.zeros((1, length), dtype=torch.long)


def _in_cache(model: Any, config: PreTrainedConfig, steps: Sequence[int]) -> Iterator[tuple[int, list[Parts]]]:
    cache = DynamicCache(config=config)
    for length in steps:
        model(input_ids=_ids(length), cache=cache, use_cache=True)
        yield length, [parts(vars(layer)) for layer in cache.layers]


def _in_two_caches(model: Any, config: PreTrainedConfig, steps: Sequence[int]) -> Iterator[tuple[int, list[Parts]]]:
    """An encoder-decoder: what the decoder keeps of itself, and of SOURCE_TOKENS tokens of the encoder's output."""
    own, across = DynamicCache(config=config), DynamicCache(config=config)
    cache = EncoderDecoderCache(own, across)
    source = MoEModelOutput(torch.zeros((1, SOURCE_TOKENS, config.hidden_size), dtype=torch.bfloat16))
    for length in steps:
        model(encoder_outputs=source, decoder_input_ids=_ids(length), cache=cache, use_cache=True)
        yield (
            length,
            [
                parts(vars(mine)) | {"cross": sum(parts(vars(theirs)).values())}
                for mine, theirs in zip(own.layers, across.layers, strict=True)
            ],
        )


def _in_cache_across(model: Any, config: PreTrainedConfig, steps: Sequence[int]) -> Iterator[tuple[int, list[Parts]]]:
    """Llama 3.2 Vision: the layers that attend to image tokens keep those in the same cache."""
    cache = DynamicCache(config=config)
    image = torch.zeros((1, SOURCE_TOKENS, config.hidden_size), dtype=torch.bfloat16)
    for length in steps:
        seen = {} if cache.get_seq_length() else {"cross_attention_states": image}
        model(input_ids=_ids(length), cache=cache, use_cache=True, **seen)
        layers = [parts(vars(layer)) for layer in cache.layers]
        yield (
            length,
            [
                {"cross": sum(layer.values())} if index in config.cross_attention_layers else layer
                for index, layer in enumerate(layers)
            ],
        )


def _pairs(model: Any, config: PreTrainedConfig, steps: Sequence[int]) -> Iterator[tuple[int, list[Parts]]]:
    """LongCat-Flash: two cache layers for each layer."""
    for length, layers in _in_cache(model, config, steps):
        yield (
            length,
            [
                {name: first.get(name, 0) + second.get(name, 0) for name in first}
                for first, second in zip(layers[::2], layers[1::2], strict=True)
            ],
        )


def _beside_cache(model: Any, config: PreTrainedConfig, steps: Sequence[int]) -> Iterator[tuple[int, list[Parts]]]:
    """MiniMax: linear layers keep their state in a list of the model's own cache class."""
    cache = None
    for length in steps:
        cache = model(input_ids=_ids(length), cache=cache, use_cache=True).cache
        layers = [parts(vars(layer)) for layer in cache.layers]
        layers += [{}] * (len(cache) - len(layers))
        states = [*cache.linear_cache, *[[]] * (len(cache) - len(cache.linear_cache))]
        yield (
            length,
            [
                layer | ({"state": _bytes(state)} if isinstance(state, torch.Tensor) else {})
                for layer, state in zip(layers, states, strict=True)
            ],
        )


def _in_modules(model: Any, config: PreTrainedConfig, steps: Sequence[int]) -> Iterator[tuple[int, list[Parts]]]:
    """RecurrentGemma: recurrent blocks keep their state on themselves."""
    for length, layers in _in_cache(model, config, steps):
        blocks = [layer.temporal_block for layer in model.layers]
        for block, kept in zip(blocks, layers, strict=True):
            if hasattr(block, "rg_lru"):
                kept["convolution"] = _bytes(block.conv1d_state)
                kept["state"] = _bytes(block.rg_lru.recurrent_states)
        yield length, layers


def _returned(model: Any, config: PreTrainedConfig, steps: Sequence[int]) -> Iterator[tuple[int, list[Parts]]]:
    """RWKV-4: five tensors over all layers, returned and handed in again."""
    state = None
    for length in steps:
        state = model(input_ids=_ids(length), state=state, use_cache=True).state
        layers = state[0].shape[-1]
        each = {"shifted tokens": sum(map(_bytes, state[:2])), "wkv": sum(map(_bytes, state[2:]))}
        yield length, [{name: total // layers for name, total in each.items()}] * layers


def _nowhere(model: Any, config: PreTrainedConfig, steps: Sequence[int]) -> Iterator[tuple[int, list[Parts]]]:
    """A model that returns no cache when asked for nothing but its output: an encoder."""
    # Without a padding token there is no warning about padding, which would look at the input's values.
    model.config.__dict__["pad_token_id"] = None
    for length in steps:
        if model(input_ids=_ids(length)).get("cache") is not None:
            raise AssertionError(f"{type(model).__name__} keeps a cache")
        yield length, [{}] * config.num_hidden_layers


KEEPS = {
    "cache": _in_cache, "two caches": _in_two_caches, "cache and image": _in_cache_across, "pairs": _pairs,
    "beside the cache": _beside_cache, "modules": _in_modules, "returned": _returned, "nowhere": _nowhere,
}  # fmt: skip


def parts(attributes: Mapping[str, Any]) -> Parts:
    """Bytes of every tensor that a cache layer holds, by part; two names of one tensor count once."""
    found: Parts = {}
    seen: set[int] = set()
    for name, value in attributes.items():
        for label, tensor in _tensors(name, value):
            if id(tensor) not in seen and tensor.numel():
                seen.add(id(tensor))
                part = PART_OF.get(label) or PART_OF.get(name, label)
                found[part] = found.get(part, 0) + _bytes(tensor)
    return found


def _tensors(label: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield label, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _tensors(f"{label}.{key}", inner)
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from _tensors(f"{label}.{index}", inner)


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
