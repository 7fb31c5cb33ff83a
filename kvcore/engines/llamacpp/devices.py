"""Which device's memory holds a layer's cache, and what a tensor takes in that device's buffer.

Sources: llama.cpp, src/llama-model.cpp (load_tensors), ggml/src/ggml-cuda/ggml-cuda.cu and ggml-backend.cpp (padding,
alignment).
"""

from __future__ import annotations

import struct
from bisect import bisect_right

from kvcore.engines.llamacpp.settings import LlamaCppSettings
from kvcore.formats import Format

HOST = "CPU"


def single(value: float) -> float:
    """The nearest 32-bit float, in which llama.cpp computes split points and prints sizes."""
    nearest: float = struct.unpack("f", struct.pack("f", value))[0]
    return nearest


def layer_devices(layers: int, settings: LlamaCppSettings) -> tuple[str, ...]:
    """The device whose memory holds each layer's cache: the last layers are on GPUs, divided by their shares."""
    devices = 1 if settings.split_mode == "none" else settings.devices
    # The output counts as one layer more, on the last device.
    on_gpu = layers + 1 if settings.n_gpu_layers is None else min(settings.n_gpu_layers, layers + 1)
    if settings.no_kv_offload or not settings.devices or not on_gpu:
        return (HOST,) * layers
    first = layers + 1 - on_gpu
    if devices == 1:
        return (HOST,) * first + ("CUDA0",) * (layers - first)
    total, points = 0.0, []
    for share in settings.tensor_split or (1.0,) * devices:
        total = single(total + single(share))
        points.append(total)
    points = [single(point / total) for point in points]
    places = [bisect_right(points, single((layer - first) / on_gpu)) for layer in range(first, layers)]
    return (HOST,) * first + tuple(f"CUDA{place}" for place in places)


def in_buffer(size: int, form: Format, width: int, device: str) -> int:
    """A tensor's bytes in its buffer: CUDA pads the last quantised row to 512 numbers; then alignment."""
    if size and form.block > 1 and device != HOST and width % 512:
        size += form.row_bytes(1, 512 - width % 512)
    return aligned(size, device)


def aligned(size: int, device: str) -> int:
    """A tensor's bytes up to where the next one starts."""
    step = 32 if device == HOST else 128
    return -(-size // step) * step
