"""The longest context that a configuration states, by the rules that vLLM uses (0.33, config/model.py)."""

from __future__ import annotations

from collections.abc import Mapping

from kvcore.model.keys import Keys

_NAMES = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length", "max_sequence_length",
    "max_target_positions", "n_ctx", "max_context_length",
)  # fmt: skip
# Kinds of rotary scaling whose stated limit already includes the stretch.
_INCLUDED = ("su", "longrope", "llama3", "yarn", "default", "mrope", "proportional")
# Relative positions: `n_positions` is what they were trained with, not a limit.
_NO_LIMIT = ("t5", "mt5", "umt5", "longt5", "switch_transformers")
_GEMMA = ("gemma3", "gemma3_text", "gemma3n_text")


def context_limit(keys: Keys, model_type: str) -> int | None:
    """Tokens, or None where nothing is stated (recurrent models, relative positions)."""
    if model_type in _NO_LIMIT:
        return None
    own = _number(keys, "model_max_length")
    if own is not None:
        # Cohere's files state both; vLLM takes this one wherever it is there.
        return own
    stated = [value for name in _NAMES if (value := _number(keys, name)) is not None]
    if not stated:
        return None
    limit = min(stated)
    scaling = keys.get("rope_scaling", "rope_parameters")
    if not isinstance(scaling, Mapping) or model_type in _GEMMA:
        return limit
    kind = str(scaling.get("rope_type") or scaling.get("type") or "default")
    factor = scaling.get("factor")
    if kind in _INCLUDED or isinstance(factor, bool) or not isinstance(factor, int | float) or not 1 <= factor <= 4096:
        return limit
    return int(limit * factor)


def _number(keys: Keys, name: str) -> int | None:
    value = keys.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= 2**40:
        return None
    return int(value)
