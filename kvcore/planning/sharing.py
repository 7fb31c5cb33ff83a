"""What requests share and what a prefill in flight adds, in the engine's own blocks."""

from __future__ import annotations

from functools import lru_cache

from kvcore.deployment import Deployment
from kvcore.engines.base import Layout
from kvcore.engines.registry import engine
from kvcore.engines.tensorrt_llm.settings import MAX_NUM_TOKENS
from kvcore.model.memories import State
from kvcore.model.model import Model
from kvcore.planning.basis import basis
from kvcore.planning.fill import filler

# The fields of settings that say how many tokens are taken in at once, by engine.
_CHUNKS = ("batched_tokens", "prefill_chunk", "ubatch_size")
# Engines that give each request a cache of its own, whatever it holds.
SLOTS = ("llama.cpp", "ollama")
_COPIES = {
    "llama.cpp": "Every slot of llama.cpp has a copy of the prompt: a shared beginning is not counted once.",
    "ollama": "Every slot of Ollama has a copy of the prompt: a shared beginning is not counted once.",
    "transformers": "transformers keeps a cache for each request: a shared beginning is not counted once.",
}


def layout_at(model: Model, deployment: Deployment, tokens: int) -> Layout:
    """How the engine stores a request of `tokens` tokens on the fullest GPU; EngineError for what it refuses."""
    return _layout_at(model, deployment, max(1, tokens))


@lru_cache(maxsize=256)
def _layout_at(model: Model, deployment: Deployment, tokens: int) -> Layout:
    base = basis(model, deployment)
    made = base.filler if base.allows(deployment.context) else None
    return (made or filler(model, deployment, deployment.context)).layout(tokens, 1)


def batched_tokens(model: Model, deployment: Deployment) -> int:
    """Tokens that are taken in at once at most: what was asked for, else the engine's own default."""
    if deployment.max_num_batched_tokens is not None:
        return deployment.max_num_batched_tokens
    settings = engine(deployment.engine).settings(model, deployment)
    stated = (getattr(getattr(settings, "server", settings), name, None) for name in _CHUNKS)
    return next((tokens for tokens in stated if tokens), MAX_NUM_TOKENS)


def shared_tokens(model: Model, deployment: Deployment, prefix_tokens: int, tokens: int) -> tuple[int, tuple[str, ...]]:
    """Tokens of a common prefix that requests of `tokens` tokens hold once a replica, and why not all of them.

    Whole blocks only, the largest block that any layer has. 0 where the engine shares nothing.
    """
    if not prefix_tokens:
        return 0, ()
    if deployment.engine in _COPIES:
        return 0, (_COPIES[deployment.engine],)
    if not deployment.prefix_caching:
        return 0, ("Prefix caching is switched off: a shared beginning is not counted once.",)
    if deployment.engine == "tensorrt-llm" and any(isinstance(memory, State) for memory, _ in model.kept):
        return 0, ("TensorRT-LLM reuses no blocks of models with recurrent states: nothing is counted once.",)
    layout = layout_at(model, deployment, tokens)
    block = max([layout.block_size or 1, *(group.block_size or 1 for group in layout.groups)])
    # At least one token of a request is its own.
    whole = min(prefix_tokens, tokens - 1) // block * block
    if whole == prefix_tokens:
        return whole, ()
    return whole, (f"Of the shared {prefix_tokens:,} tokens {whole:,} are whole blocks of {block:,} and held once.",)
