"""What requests share and what a prefill in flight adds, in the engine's own blocks."""

from __future__ import annotations

from functools import lru_cache

from kvcore.deployment import Deployment
from kvcore.engines.base import Layout
from kvcore.engines.registry import engine
from kvcore.model.model import Model
from kvcore.planning.basis import basis


def layout_at(model: Model, deployment: Deployment, tokens: int) -> Layout:
    """How the engine stores a request of `tokens` tokens on the fullest GPU; EngineError for what it refuses."""
    return _layout_at(model, deployment, max(1, tokens))


@lru_cache(maxsize=256)
def _layout_at(model: Model, deployment: Deployment, tokens: int) -> Layout:
    base = basis(model, deployment)
    made = base.cache if base.allows(deployment.context) else None
    return (made or engine(deployment.engine).pool(model, deployment, deployment.context)).layout(tokens, 1)


def batched_tokens(model: Model, deployment: Deployment) -> int:
    """Tokens that are taken in at once at most: what was asked for, else the engine's own default."""
    if deployment.max_num_batched_tokens is not None:
        return deployment.max_num_batched_tokens
    chosen = engine(deployment.engine)
    return chosen.batched_tokens(chosen.settings(model, deployment))


def shared_tokens(model: Model, deployment: Deployment, prefix_tokens: int, tokens: int) -> tuple[int, tuple[str, ...]]:
    """Tokens of a common prefix that requests of `tokens` tokens hold once a replica, and why not all of them.

    Whole blocks only, the largest block that any layer has. 0 where the engine shares nothing.
    """
    if not prefix_tokens:
        return 0, ()
    if reason := engine(deployment.engine).no_sharing(model, deployment):
        return 0, (reason,)
    if not deployment.prefix_caching:
        return 0, ("Prefix caching is switched off: a shared beginning is not counted once.",)
    layout = layout_at(model, deployment, tokens)
    block = max([layout.block_size or 1, *(group.block_size or 1 for group in layout.groups)])
    # At least one token of a request is its own.
    whole = min(prefix_tokens, tokens - 1) // block * block
    if whole == prefix_tokens:
        return whole, ()
    return whole, (f"Of the shared {prefix_tokens:,} tokens {whole:,} are whole blocks of {block:,} and held once.",)
