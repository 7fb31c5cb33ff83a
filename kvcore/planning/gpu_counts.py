"""Which numbers of GPUs are tried: every number of a host of eight, then whole hosts."""

from __future__ import annotations

from kvcore.hardware.systems import HOST_GPUS


def gpu_counts(most: int) -> tuple[int, ...]:
    """1 … 8, then multiples of 8 up to `most`, beyond 128 in steps of 128.

    What fits on fewer GPUs may not fit on more, where those divide the model worse: none of them can be skipped.
    """
    within = range(1, min(HOST_GPUS, most) + 1)
    hosts = range(2 * HOST_GPUS, min(128, most) + 1, HOST_GPUS)
    return (*within, *hosts, *range(256, most + 1, 128))
