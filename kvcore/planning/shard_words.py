"""A split over GPUs in words, and what it costs."""

from __future__ import annotations

from kvcore.deployment import Deployment


def split_name(deployment: Deployment) -> str:
    """`TP 4 × DP 2`, `TP 8 with DCP 2`, `TP 1`."""
    sizes = (("TP", deployment.tp), ("PP", deployment.pp), ("DP", deployment.dp))
    name = " × ".join(f"{word} {size}" for word, size in sizes if size > 1) or "TP 1"
    extras = [f"DCP {deployment.dcp}"] if deployment.dcp > 1 else []
    extras += ["expert parallel"] if deployment.expert_parallel else []
    extras += ["DP attention"] if deployment.dp_attention else []
    return f"{name} with {', '.join(extras)}" if extras else name


def split_price(before: Deployment, after: Deployment) -> tuple[str, ...]:
    """What the second split asks for that the first does not, a sentence each without its full stop."""
    words = []
    if after.tp > before.tp:
        words.append("in every layer the GPUs of a replica wait for each other's sums, which cross the link")
    if after.pp > before.pp:
        words.append(
            f"a token passes {after.pp} stages one after another, so that one request is no faster than on one stage's "
            "GPUs"
        )
    if after.dp > before.dp and not after.dp_attention:
        words.append("each replica loads all weights, and a prefix cached in one is not in the others")
    if after.replica_gpus > before.replica_gpus and after.gpus == before.gpus:
        words.append("there are fewer replicas: one that fails takes more of the service with it")
    if after.dcp > before.dcp:
        words.append("ranks exchange their parts of the attention in every decoding step")
    if after.expert_parallel and not before.expert_parallel:
        words.append("experts that are asked for most often load some GPUs more than others")
    if after.dp_attention and not before.dp_attention:
        words.append("each request's cache lies on one group of ranks, which requests must be spread over evenly")
    return tuple(words)
