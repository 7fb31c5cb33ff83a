"""Sentences that say, with the numbers filled in, how the engine comes from memory to the figures of its log."""

from __future__ import annotations

from collections.abc import Iterator

from kvcore.engines.logs.predict import Prediction, is_old
from kvcore.engines.logs.reading import LogReading
from kvcore.engines.releases import release
from kvcore.engines.vllm.budget import GRAPHS_DEDUCTED
from kvcore.model.memories import Attention, Indexer, Latent


def reasons(reading: LogReading, prediction: Prediction) -> tuple[str, ...]:
    """What holds for every figure of this reading, each a whole sentence."""
    if reading.engine == "vllm":
        return tuple(_vllm(reading, prediction))
    if reading.engine == "sglang":
        return tuple(_sglang(reading, prediction))
    if reading.engine == "tensorrt-llm":
        terms = prediction.capacities[prediction.nearest].terms
        return tuple(f"{term.formula}." for term in terms[:3])
    return tuple(f"{term.name}: {term.formula}." for term in prediction.layout.terms[: len(reading.caches)])


def _vllm(reading: LogReading, prediction: Prediction) -> Iterator[str]:
    layout = prediction.layout
    groups = layout.groups
    if layout.bytes_per_block and layout.block_size:
        yield f"One block of the pool is {layout.bytes_per_block:,} B."
    if len(groups) > 1:
        needs = " + ".join(f"{group.blocks_per_request:,}" for group in groups)
        total = layout.blocks_per_request
        yield f"{len(groups)} groups of layers share it; a request needs {needs} = {total:,} blocks."
        widest = max(group.layers for group in groups)
        padding = sum(widest - group.layers for group in groups)
        # A packed pool has pages of several sizes and no padding.
        if padding and len({group.page_bytes for group in groups}) == 1:
            yield f"Groups are padded to {widest} layers: {padding} padding layers hold nothing."
    elif layout.blocks_per_request:
        yield f"A request of {layout.max_model_len:,} tokens needs {layout.blocks_per_request:,} blocks."
    if len(groups) > 1 and "kv_cache_size_tokens" in reading.facts:
        yield _meaning(layout.engine_version, len(groups))
    yield from _ranks(reading, prediction)
    if (graph := reading.amount("graph_estimate")) and release(layout.engine_version) >= GRAPHS_DEDUCTED:
        yield f"The estimated CUDA-graph pool of {graph.text} was taken off before the cache was sized."


def _meaning(version: str, groups: int) -> str:
    if is_old(version):
        return f"vLLM {version} prints the tokens of one group's share: blocks // {groups} × the block size."
    return f"vLLM {version} prints concurrency × max_model_len as tokens, so the number depends on the length."


def _ranks(reading: LogReading, prediction: Prediction) -> Iterator[str]:
    stated = {rank: facts["available_kv"] for rank, facts in reading.ranks.items() if "available_kv" in facts}
    if len({amount.text for amount in stated.values()}) > 1:
        rank = min(stated, key=lambda name: stated[name].nearest_bytes)
        yield f"The ranks have different memory; the tightest, {rank} with {stated[rank].text}, decides for all."
    tp = reading.whole("tensor_parallel_size") or 1
    if tp == 1:
        return
    kept = [memory for memory, _ in prediction.model.kept]
    if any(isinstance(memory, Latent | Indexer) for memory in kept):
        yield f"The latent cache is copied to each of the {tp} tensor-parallel ranks, not divided."
    heads = {memory.num_kv_heads for memory in kept if isinstance(memory, Attention)}
    if heads and max(heads) < tp:
        yield f"{max(heads)} KV heads on {tp} ranks: each rank keeps one head, so heads are copied."


def _sglang(reading: LogReading, prediction: Prediction) -> Iterator[str]:
    for group in prediction.layout.groups:
        if group.block_size:
            per_token = group.page_bytes // group.block_size
            yield f"{group.layers} {group.kind} layers × {per_token:,} B a token and layer; SGLang's GB are GiB."
    tokens = reading.whole("kv_cache_size_tokens")
    if tokens:
        yield f"Buffers hold one padding page beside the {tokens:,} tokens."
