"""What vLLM leaves for its cache: a share of the device's memory, less everything that is already there.

Source: vLLM 0.33, v1/worker/utils.py, v1/worker/gpu_worker.py (determine_available_memory).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from kvcore.engines.releases import release
from kvcore.engines.vllm.flags import check_version
from kvcore.engines.vllm.settings import VERSION, default_utilization
from kvcore.errors import EngineError
from kvcore.terms import Term

# From this version the estimated CUDA-graph pool is taken off before the cache is sized. vLLM's own line says "default
# since v0.21.0", but releases 0.20.0 and 0.20.2 print that line too (data/field/memory.jsonl), 0.19 does not.
GRAPHS_DEDUCTED = (0, 20)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """The memory that is left for the cache on one device, in bytes, and how it came about."""

    kv_bytes: int
    terms: tuple[Term, ...]


def pool(
    *,
    total_bytes: int,
    weights_bytes: int,
    non_torch_bytes: int,
    activation_peak_bytes: int,
    cuda_graph_bytes: int = 0,
    utilization: float | None = None,
    version: str = VERSION,
) -> Pool:
    """What `gpu_memory_utilization` leaves: the share of the total (not of what is free), less what is used.

    No share is the release's own. Versions before 0.20 did not deduct the CUDA graphs. Raises EngineError when nothing
    is left, as vLLM does.
    """
    utilization = default_utilization(version) if utilization is None else utilization
    if not 0 < utilization <= 1:
        raise EngineError(f"vllm: gpu_memory_utilization {utilization} is not within 0 … 1")
    share = ceil(total_bytes * utilization)
    graphs = cuda_graph_bytes if release(check_version(version)) >= GRAPHS_DEDUCTED else 0
    left = share - weights_bytes - non_torch_bytes - activation_peak_bytes - graphs
    terms = [
        Term(name="share of the device", formula=f"{total_bytes:,} B × {utilization:g}", value=share, unit="B"),
        Term(name="weights", formula=f"− {weights_bytes:,} B", value=weights_bytes, unit="B"),
        Term(name="outside torch", formula=f"− {non_torch_bytes:,} B", value=non_torch_bytes, unit="B"),
        Term(name="activation peak", formula=f"− {activation_peak_bytes:,} B", value=activation_peak_bytes, unit="B"),
    ]
    if graphs:
        terms.append(Term(name="CUDA graphs", formula=f"− {graphs:,} B, estimated", value=graphs, unit="B"))
    if left <= 0:
        raise EngineError(
            "vllm: no available memory for the cache blocks; raise gpu_memory_utilization or use more GPUs"
        )
    terms.append(Term(name="left for the cache", formula=f"{left:,} B", value=left, unit="B"))
    return Pool(kv_bytes=left, terms=tuple(terms))
