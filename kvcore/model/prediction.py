"""A checkpoint's own prediction layers (multi-token prediction, "MTP" or "NextN"): how many, and what they are made of.

One module takes the embedding of a token and the hidden state before it, joins them (a matrix of 2 × hidden × hidden)
and runs them through a decoder layer. Its embedding and output head are the model's own: vLLM 0.32 shares them
(v1/spec_decode/llm_base_proposer.py, _maybe_share_embeddings and _maybe_share_lm_head).
Which layer it is, by family: vLLM 0.32, model_executor/models/*_mtp.py and models/*/nvidia/mtp.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Forward = Literal["experts", "feed-forward"]
# The joint of embedding and hidden state: whole on every rank, or split by columns.
JOINT, JOINT_BY_COLUMNS = "joint of embedding and hidden state", "joint of embedding and hidden state, by columns"
_MOST_MODULES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionLayers:
    """What a configuration says of its prediction layers.

    `modules` are those that the checkpoint has, and that engines load, by the key `key` ("" where the family has them
    without saying so). `layers` are the layers of one module: what attends in each ("" for none) and its feed-forward
    part. `unknown` says why they cannot be counted. `columns`: the joint is split over the tensor-parallel ranks.
    `sixteen_bits`: the quantiser left them alone.

    `eagle` is 1 or 3 of a configuration that is itself an EAGLE head for another model: it reads `features` hidden
    states of `target_hidden` numbers, and proposes out of `vocabulary` tokens (0: all of them).
    """

    modules: int = 0
    key: str = ""
    layers: tuple[tuple[str, str], ...] = ()
    columns: bool = False
    sixteen_bits: bool = False
    unknown: str = ""
    eagle: Literal[0, 1, 3] = 0
    features: int = 1
    target_hidden: int = 0
    vocabulary: int = 0


NO_PREDICTION = PredictionLayers()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    """How a family builds a module. `unstated` modules are there where no key says how many; `most` are loaded.

    `attends` "last": as the last layer that attends; "sliding": as one with a window; "first": as the first.
    """

    keys: tuple[str, ...] = ("num_nextn_predict_layers",)
    forward: Forward = "experts"
    attends: Literal["last", "sliding", "first"] = "last"
    columns: bool = False
    unstated: int = 0


_QWEN = ("mtp_num_hidden_layers",)
_RULES: dict[str, _Rule] = {
    **dict.fromkeys(("deepseek_v3", "deepseek_v32", "kimi_k2", "glm_moe_dsa", "glm4_moe", "glm4_moe_lite"), _Rule()),
    # Its module attends over the window alone, as the layers do whose entry in compress_ratios is 0.
    "deepseek_v4": _Rule(attends="sliding"),
    "mimo": _Rule(forward="feed-forward"),
    # vLLM loads one of the modules that are published (mimo_v2_mtp.py).
    "mimo_v2_flash": _Rule(keys=(), forward="feed-forward", attends="sliding", unstated=1),
    "ernie4_5_moe": _Rule(forward="feed-forward"),
    "qwen3_next": _Rule(keys=(*_QWEN, "num_nextn_predict_layers"), columns=True, unstated=1),
    "qwen3_5_text": _Rule(keys=_QWEN, forward="feed-forward", columns=True),
    "qwen3_5_moe_text": _Rule(keys=_QWEN, columns=True),
    "nemotron_h": _Rule(columns=True),
    "minimax_m3": _Rule(keys=("num_mtp_modules",)),
    "minimax_m3_vl_text": _Rule(keys=("num_mtp_modules",)),
}  # fmt: skip
# Keys by which a family without a rule says that it has modules.
_SAYS_SO = ("num_nextn_predict_layers", "num_mtp_modules", "mtp_num_hidden_layers", "mtp_num_layers")
_LISTS = ("ignore", "modules_to_not_convert", "exclude_modules")


def read_prediction(
    text: Mapping[str, Any], model_type: str, layers: int, quantization: Mapping[str, Any]
) -> PredictionLayers:
    """What the language model's configuration says; never an error, for it changes nothing of what is asked else."""
    if eagle := _eagle(text):
        return eagle
    rule = _RULES.get(model_type)
    names = _SAYS_SO if rule is None else rule.keys
    key, modules = next(((name, count) for name in names if (count := _count(text.get(name))) is not None), ("", None))
    if modules is None:
        modules = 0 if rule is None else rule.unstated
    if not modules:
        return PredictionLayers(key=key)
    alone = left_alone(quantization, layers)
    if rule is None:
        reason = f"how the prediction layers of model_type {model_type!r} are built is not known here"
        return PredictionLayers(modules=modules, key=key, unknown=reason, sixteen_bits=alone)
    built: tuple[tuple[str, str], ...] = ((rule.attends, rule.forward),)
    if model_type == "nemotron_h":
        found = _pattern(text)
        if found is None:
            reason = "its mtp_hybrid_override_pattern (or mtp_layers_block_type) is not understood"
            return PredictionLayers(modules=modules, key=key, unknown=reason, sixteen_bits=alone)
        built = found
    return PredictionLayers(modules=modules, key=key, layers=built, columns=rule.columns, sixteen_bits=alone)


def prediction_keys(names: Iterable[str]) -> tuple[str, ...]:
    """Those of a configuration's keys that speak of prediction layers, by their names, sorted."""
    return tuple(sorted({name for name in names if "nextn" in name or "mtp" in name}))


def _eagle(text: Mapping[str, Any]) -> PredictionLayers | None:
    """An EAGLE head by its class's name or its vocabulary (vLLM 0.32, llama_eagle3.py); None for every other model."""
    names = text.get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else ""
    third = "eagle3" in name.lower() or _size(text.get("draft_vocab_size")) > 0
    if not third and "eagle" not in name.lower():
        return None
    holder = text.get("eagle_config")
    listed = holder.get("eagle_aux_hidden_state_layer_ids") if isinstance(holder, Mapping) else None
    features = _size(text.get("num_aux_hidden_states")) or (len(listed) if isinstance(listed, list) else 0) or 3
    return PredictionLayers(
        eagle=3 if third else 1,
        features=min(features, _MOST_MODULES) if third else 1,
        target_hidden=_size(text.get("target_hidden_size")),
        vocabulary=_size(text.get("draft_vocab_size")),
    )


def _size(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**24 else 0


def left_alone(quantization: Mapping[str, Any], layers: int) -> bool:
    """Whether a quantiser left the prediction layers in 16 bits: by a pattern that is about all of them, or by
    naming each module that it converted and none of theirs."""
    if not quantization:
        return False
    named = quantization.get("quantized_layers")
    if isinstance(named, Mapping) and named:
        theirs = re.compile(rf"(^|\.)(mtp|layers\.{layers})\.")
        return not any(theirs.search(str(name)) for name in named)
    whole = re.compile(rf"(re:)?\^?(\.\*)?(model\.|language_model\.)*(mtp(\.layers\.0)?|layers\.{layers})\.?\*?")
    return any(whole.fullmatch(entry) for entry in _texts(quantization.get(name) for name in _LISTS))


def _texts(lists: Iterable[object]) -> list[str]:
    return [entry for one in lists if isinstance(one, list) for entry in one if isinstance(entry, str) and entry]


def _count(value: object) -> int | None:
    good = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_MODULES
    return value if good else None  # type: ignore[return-value]


def _pattern(text: Mapping[str, Any]) -> tuple[tuple[str, str], ...] | None:
    """Nemotron's module of several layers, each of which does one thing."""
    words = text.get("mtp_layers_block_type")
    marks = text.get("mtp_hybrid_override_pattern")
    if isinstance(marks, str):
        words = [{"*": "attention", "E": "moe"}.get(mark, mark) for mark in marks]
    known = {"attention": ("last", ""), "moe": ("", "experts")}
    if not isinstance(words, list) or not words or not all(word in known for word in words):
        return None
    return tuple(known[word] for word in words)
