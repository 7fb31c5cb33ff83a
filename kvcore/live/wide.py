"""16-bit matrices multiplied in fp32, for CPUs that cannot multiply 16-bit numbers (imports torch).

Without such instructions (AVX512 on x86) torch multiplies 16-bit matrices one number at a time: seven times slower
than in fp32 for a prompt on an AVX2 machine. Here a slab of the matrix that fits in the processor's cache is widened
and multiplied, then the next one, so that memory still delivers 16 bits a number and no fp32 copy is kept.
"""

from __future__ import annotations

import torch
from torch import Tensor

# With fewer tokens than this, widening costs more than it saves (measured on AVX2: equal at two).
WIDE_TOKENS = 3
_SLAB_NUMBERS = 2**20


def is_native(dtype: torch.dtype, device: str) -> bool:
    """Whether matrices of that format are multiplied at full speed: on a CPU, where oneDNN has kernels for it."""
    if torch.device(device).type != "cpu" or dtype is torch.float32:
        return True
    if dtype is torch.float16:
        return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


class Widener:
    """x · weightᵀ + bias in fp32, rounded to x's format; its scratch memory is one slab, shared by all matrices."""

    def __init__(self) -> None:
        self._slab = torch.empty(_SLAB_NUMBERS, dtype=torch.float32)

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """x [tokens, columns] → [tokens, rows]."""
        rows, columns = weight.shape
        step = max(1, _SLAB_NUMBERS // columns)
        exact = x.float()
        found = torch.empty(x.shape[0], rows, dtype=x.dtype)
        for begin in range(0, rows, step):
            part = weight[begin : begin + step]
            if part.numel() > self._slab.numel():
                self._slab = torch.empty(part.numel(), dtype=torch.float32)
            wide = self._slab[: part.numel()].view(part.shape).copy_(part)
            product = torch.mm(exact, wide.t())
            if bias is not None:
                product += bias[begin : begin + step]
            found[:, begin : begin + step] = product
        return found
