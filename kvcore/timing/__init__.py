"""How fast a step can be at most: bytes and arithmetic of cache and weights, against an accelerator's rates.

step = decode_cache_work(model, 32_768, kv).work.times(batch) + weight_work(model, batch).work
bound(step, accelerator("h100-sxm")).seconds_at_least
"""

from kvcore.model.memories import MemoryWork
from kvcore.timing.cache import (
    CachePart,
    CacheWork,
    cache_work,
    decode_cache_work,
    layer_work,
    prefill_cache_work,
)
from kvcore.timing.roofline import Bound, bound
from kvcore.timing.weights import WeightWork, weight_work
from kvcore.work import Step, Work, decode_step, prefill_step

__all__ = [
    "Bound",
    "CachePart",
    "CacheWork",
    "MemoryWork",
    "Step",
    "WeightWork",
    "Work",
    "bound",
    "cache_work",
    "decode_cache_work",
    "decode_step",
    "layer_work",
    "prefill_cache_work",
    "prefill_step",
    "weight_work",
]
