"""One slot of recurrent states on a rank.

Source: SGLang 0.5.23, srt/configs/mamba_utils.py and the configurations that use it.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from kvcore.engines.sglang.settings import SSM_DTYPES, SglangSettings
from kvcore.errors import EngineError
from kvcore.model.memories import State, StatePart
from kvcore.model.model import Model

STATE_DESIGNS = (
    "Mamba 1", "Mamba 2", "Gated delta net", "Kimi delta attention", "Short convolution", "Linear attention",
)  # fmt: skip
_BF16 = 2


def ssm_element_bytes(model: Model, state: State, settings: SglangSettings) -> int:
    """Bytes of one number of a recurrent state: the flag's dtype, else the configuration's, else fp32."""
    if settings.mamba_ssm_dtype is not None:
        return SSM_DTYPES[settings.mamba_ssm_dtype]
    if state.design in ("Kimi delta attention", "Linear attention"):
        return 4
    used = {name.rpartition(".")[2]: value for name, value in model.reading.keys_used}
    return SSM_DTYPES.get(used.get("mamba_ssm_dtype", "").strip("'\""), 4)


def state_parts(model: Model, state: State, settings: SglangSettings) -> tuple[int, int]:
    """(convolution, recurrent) bytes of one layer's state on one rank; convolutions are always bf16."""
    conv = ssm = 0
    for part in state.parts:
        if part.name == "convolution":
            conv += _split(part, state, settings, _BF16)
        else:
            ssm += _split(part, state, settings, ssm_element_bytes(model, state, settings))
    return conv, ssm


def _split(part: StatePart, state: State, settings: SglangSettings, element: int) -> int:
    ranks, shape = settings.attention_tp, part.shape
    if part.name == "convolution" and state.design in ("Mamba 2", "Gated delta net"):
        shape = (_channels(state, shape[0], ranks), *shape[1:])
    if shape[0] % ranks:
        raise EngineError(f"sglang: a {state.design} state of {shape[0]} cannot be split over {ranks} ranks")
    return replace(part, shape=(shape[0] // ranks, *shape[1:]), element_bytes=element).bytes


def _channels(state: State, channels: int, ranks: int) -> int:
    """Convolution channels, with a group of B and C for every rank where the groups do not divide."""
    # A GGUF file states heads × head_dim as one number.
    *heads, size = next(part.shape for part in state.parts if part.name == "state")
    inner = prod(heads)
    groups = (channels - inner) // (2 * size)
    return channels if groups % ranks == 0 else inner + 2 * ranks * size
