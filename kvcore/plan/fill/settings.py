"""A deployment in an engine's own settings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvcore.deployment import Deployment
from kvcore.engines.registry import engine
from kvcore.errors import EngineError
from kvcore.model.model import Model


def engine_settings(model: Model, deployment: Deployment, context: int, values: dict[str, Any] | None = None) -> Any:
    """The engine's settings for requests of `context` tokens; the deployment's own options win over `values`.

    Where attention is data-parallel inside the tensor-parallel ranks (SGLang, TensorRT-LLM), the engines count all
    GPUs as tensor-parallel ranks, and a deployment counts them as replicas. Raises EngineError as the engine does.
    """
    chosen = engine(deployment.engine)
    known = {option.field for option in chosen.options}
    if unknown := sorted(name for name, _ in deployment.options if name not in known):
        raise EngineError(
            f"{chosen.name}: {unknown[0][:40]!r} is no option of it here; it has {', '.join(sorted(known))}"
        )
    given = _common_values(deployment) | (values or {}) | dict(deployment.options)
    options = tuple(sorted((name, value) for name, value in given.items() if name in known and value is not None))
    if deployment.dp_attention and deployment.tp > 1 and chosen.name == "tensorrt-llm":
        raise EngineError(
            f"tensorrt-llm: attention is data-parallel over all ranks or none: tp {deployment.tp} beside it cannot be"
        )
    ranks = deployment
    if deployment.dp_attention and chosen.name in ("sglang", "tensorrt-llm"):
        ranks = replace(deployment, tp=deployment.tp * deployment.dp, dp=1)
    return replace(ranks, options=options, max_num_batched_tokens=None).settings(model, context)


def _common_values(deployment: Deployment) -> dict[str, Any]:
    """What a deployment says in words of its own, under the names that engines have for it."""
    apart = deployment.dp_attention and deployment.dp > 1
    return {
        "max_num_batched_tokens": deployment.max_num_batched_tokens,
        "chunked_prefill_size": deployment.max_num_batched_tokens,
        "max_running_requests": deployment.max_num_seqs,
        "mem_fraction_static": deployment.utilization,
        "free_gpu_memory_fraction": deployment.utilization,
        "disable_cuda_graph": deployment.enforce_eager or None,
        "disable_radix_cache": None if deployment.prefix_caching else True,
        "enable_dp_attention": True if apart else None,
        "dp_size": deployment.dp if apart else None,
        "enable_attention_dp": True if apart else None,
    }
