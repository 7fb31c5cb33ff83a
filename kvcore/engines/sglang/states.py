"""One slot of recurrent states on a rank.

Source: SGLang 0.5.23, srt/configs/mamba_utils.py and the configurations that use it.
"""

from __future__ import annotations

from dataclasses import replace

from kvcore.engines.sglang.settings import SSM_DTYPES, SglangSettings
from kvcore.errors import EngineError
from kvcore.model.memories import State, StateDesign, StatePart, StateTensor
from kvcore.model.model import Model

STATE_DESIGNS = (
    StateDesign.MAMBA_1,
    StateDesign.MAMBA_2,
    StateDesign.GATED_DELTA_NET,
    StateDesign.KIMI_DELTA,
    StateDesign.SHORT_CONVOLUTION,
    StateDesign.LINEAR,
)
_BF16 = 2


def ssm_element_bytes(model: Model, state: State, settings: SglangSettings) -> int:
    """Bytes of one number of a recurrent state: the flag's dtype, else the configuration's, else fp32."""
    if settings.mamba_ssm_dtype is not None:
        return SSM_DTYPES[settings.mamba_ssm_dtype]
    if state.design in (StateDesign.KIMI_DELTA, StateDesign.LINEAR):
        return 4
    return SSM_DTYPES.get(model.state_dtype or "", 4)


def state_parts(model: Model, state: State, settings: SglangSettings) -> tuple[int, int]:
    """(convolution, recurrent) bytes of one layer's state on one rank; convolutions are always bf16."""
    conv = ssm = 0
    for part in state.parts:
        if part.name == StateTensor.CONVOLUTION:
            conv += _split(part, state, settings, _BF16)
        else:
            ssm += _split(part, state, settings, ssm_element_bytes(model, state, settings))
    return conv, ssm


def _split(part: StatePart, state: State, settings: SglangSettings, element: int) -> int:
    ranks, shape = settings.attention_tp, part.shape
    if part.name == StateTensor.CONVOLUTION and state.design in (StateDesign.MAMBA_2, StateDesign.GATED_DELTA_NET):
        shape = (state.channels(ranks), *shape[1:])
    if shape[0] % ranks:
        raise EngineError(f"a {state.design} state of {shape[0]} cannot be split over {ranks} ranks", engine="sglang")
    return replace(part, shape=(shape[0] // ranks, *shape[1:]), element_bytes=element).bytes
