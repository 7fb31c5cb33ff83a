"""A Llama-family decoder: prefill, one step, or everything recomputed (imports torch).

CPU is what it was built and measured on. CUDA (with graphs, see graphs.py) and MPS are written and have not been run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor

from kvcore.errors import LiveError
from kvcore.live.attention import (
    ChunkPlan,
    RopeTable,
    StepPlan,
    attend_chunk,
    attend_step,
    chunk_plan,
    rotate_,
    step_plan,
)
from kvcore.live.cache import BlockCache
from kvcore.live.graphs import FixedStep, step_key
from kvcore.live.shape import LiveShape, check_weight_format
from kvcore.live.weights import LayerWeights, Weights, Widener, dtype_of, is_native, pack

# Takes (tokens or layers done, in all); False where the computation should stop.
OnChunk = Callable[[int, int], bool]


class Decoder:
    """A model that turns token ids into logits (fp32), with a cache or without one.

    `weights` must be in the format that `weight_format` computes in: itself for bf16, fp16 and fp32, bf16 for int8 and
    int4, which are packed here and used for decoding only.
    """

    def __init__(self, shape: LiveShape, weights: Weights, *, device: str = "cpu", weight_format: str = "bf16") -> None:
        """LiveError where weights and format do not go together or the device has no kernels for the format."""
        check_weight_format(weight_format)
        if weights.dtype is not dtype_of(weight_format):
            raise LiveError(f"weights are {str(weights.dtype)[6:]}; format {weight_format} needs another")
        if len(weights.layers) != shape.num_layers:
            raise LiveError(f"weights have {len(weights.layers)} layers; the shape has {shape.num_layers}")
        self.shape = shape
        self.device = device
        self.weight_format = weight_format
        self.weights = weights if weights.weight_format == weight_format else pack(weights, weight_format)
        self._dtype = weights.dtype
        self._rope = RopeTable(shape, self._dtype, device)
        self._scale = shape.key_width**-0.5
        self._value_width = shape.kv_lora_rank or shape.head_dim
        # Steps of fixed shapes, recorded and replayed where the device is CUDA.
        self.graphs = torch.device(device).type == "cuda"
        self._fixed: FixedStep | None = None
        self._windows = tuple(dict.fromkeys(shape.windows))
        self._wide = not is_native(self._dtype, device)
        if self._wide:
            widener = Widener()
            for linear in self.weights.linears():
                linear.widener = widener
        heads = shape.num_heads, shape.num_kv_heads
        # A norm of heads, one row for each query and key head: one multiplication for both.
        self._qk_norms = [
            None
            if one.qk_norm is None
            else torch.cat([row.expand(n, -1) for row, n in zip(one.qk_norm, heads, strict=True)])
            for one in weights.layers
        ]

    def new_cache(self, batch: int = 1, kv_format: str = "bf16", block_tokens: int = 256) -> BlockCache:
        """An empty cache for that many requests; LiveError for a format that is not known."""
        return BlockCache(self.shape, batch, kv_format, self.device, block_tokens)

    @torch.inference_mode()
    def prefill(
        self, ids: Sequence[Sequence[int]], cache: BlockCache, chunk: int = 512, progress: OnChunk | None = None
    ) -> Tensor:
        """Append the tokens of each request to the cache; logits (B, vocab) after each request's last token.

        Requests may be of unequal length and continue what the cache holds. `progress(done, of)` is called after each
        chunk, in tokens of the longest request; when it returns False, LiveError("cancelled") is raised and the cache
        keeps the chunks that were done. Raises LiveError for an empty request or an id outside the vocabulary.
        """
        counts = self._check(ids, cache.batch)
        if chunk < 1:
            raise LiveError(f"a chunk of {chunk} tokens cannot be; at least 1 can")
        longest = max(counts)
        cache.reserve(max(length + count for length, count in zip(cache.lengths, counts, strict=True)))
        last: list[Tensor | None] = [None] * cache.batch
        for begin in range(0, longest, chunk):
            part = [list(one[begin : begin + chunk]) for one in ids]
            hidden = self._chunk(part, cache)
            cache.advance([len(one) for one in part])
            for request, count in enumerate(counts):
                if begin < count <= begin + chunk:
                    last[request] = hidden[request, count - begin - 1]
            done = min(begin + chunk, longest)
            if progress is not None and not progress(done, longest) and done < longest:
                self._cancelled(cache)
        return self._logits(torch.stack([one for one in last if one is not None]))

    @torch.inference_mode()
    def step(self, ids: Sequence[int], cache: BlockCache) -> Tensor:
        """Append one token to each request; logits (B, vocab) after it."""
        self._check([[one] for one in ids], cache.batch)
        longest = max(cache.lengths) + 1
        cache.reserve(longest)
        self._rope.reserve(longest)
        if self.graphs:
            if self._fixed is None or self._fixed.key != step_key(cache, self._rope):
                record = torch.device(self.device).type == "cuda"
                self._fixed = FixedStep(self._step, cache, self._rope, self._mask_dtype(cache), record)
            logits = self._fixed(ids)
            cache.advance([1] * cache.batch)
            return logits
        plans = {one: step_plan(cache.lengths, one, self._mask_dtype(cache), self.device) for one in self._windows}
        tokens = torch.tensor(ids, device=self.device)
        if len(set(cache.lengths)) == 1:
            cos, sin = self._rope.cos[longest - 1], self._rope.sin[longest - 1]
        else:
            positions = torch.tensor(cache.lengths, device=self.device)
            cos, sin = self._rope.cos[positions].unsqueeze(1), self._rope.sin[positions].unsqueeze(1)
        logits = self._step(tokens, cos, sin, cache, plans)
        cache.advance([1] * cache.batch)
        return logits

    @torch.inference_mode()
    def recompute(self, ids: Sequence[Sequence[int]], progress: OnChunk | None = None) -> Tensor:
        """Logits (B, vocab) after each request's last token, from its whole prefix and no cache.

        `progress(done, of)` is called after each layer; when it returns False, LiveError("cancelled") is raised.
        """
        counts = self._check(ids, len(ids))
        hidden = self._chunk([list(one) for one in ids], None, progress)
        requests = torch.arange(len(ids), device=self.device)
        return self._logits(hidden[requests, torch.tensor(counts, device=self.device) - 1])

    @torch.inference_mode()
    def full_logits(self, ids: Sequence[Sequence[int]]) -> Tensor:
        """Logits (B, T, vocab) after every token, without a cache; those after a shorter request's end mean nothing."""
        self._check(ids, len(ids))
        hidden = self._chunk([list(one) for one in ids], None)
        return self._logits(hidden.flatten(0, 1)).view(len(ids), hidden.shape[1], -1)

    def synchronise(self) -> None:
        """Wait until the device has done what was asked of it; nothing on a CPU. CUDA and MPS have not been run."""
        kind = torch.device(self.device).type
        if kind == "cuda":
            torch.cuda.synchronize(self.device)
        elif kind == "mps":
            torch.mps.synchronize()

    def _chunk(self, part: list[list[int]], cache: BlockCache | None, progress: OnChunk | None = None) -> Tensor:
        """Hidden states (B, T, hidden) of a chunk of each request, padded on the right to the longest."""
        batch, counts = len(part), [len(one) for one in part]
        width = max(counts)
        starts = [0] * batch if cache is None else cache.lengths
        self._rope.reserve(max(starts) + width)
        dtype = self._dtype if cache is None else self._mask_dtype(cache, chunk=True)
        plans = {one: chunk_plan(starts, counts, width, one, dtype, self.device) for one in self._windows}
        tokens = torch.tensor([one + [0] * (width - len(one)) for one in part], device=self.device)
        positions = torch.tensor(starts, device=self.device).unsqueeze(1) + torch.arange(width, device=self.device)
        cos = self._rope.cos[positions].flatten(0, 1).unsqueeze(1)
        sin = self._rope.sin[positions].flatten(0, 1).unsqueeze(1)
        x = F.embedding(tokens.flatten(), self.weights.embedding)
        for index, (layer, window) in enumerate(zip(self.weights.layers, self.shape.windows, strict=True)):
            query, new = self._project(index, layer, x, cos, sin)
            found = self._attend_chunk(query, new, cache, index, plans[window], batch, width)
            x = self._finish(layer, x, found)
            done, of = index + 1, self.shape.num_layers
            if progress is not None and not progress(done, of) and done < of:
                raise LiveError("cancelled")
        return x.view(batch, width, -1)

    def _attend_chunk(
        self, query: Tensor, new: Tensor, cache: BlockCache | None, index: int, plan: ChunkPlan, batch: int, width: int
    ) -> Tensor:
        query = query.view(batch, width, *query.shape[1:]).transpose(1, 2)
        new = new.view(batch, width, *new.shape[1:]).permute(2, 0, 3, 1, 4)
        found = attend_chunk(query, new, cache, index, plan, self._value_width, self._scale, self._wide)
        return found.transpose(1, 2).reshape(batch * width, -1)

    def _step(
        self, tokens: Tensor, cos: Tensor, sin: Tensor, cache: BlockCache, plans: dict[int | None, StepPlan]
    ) -> Tensor:
        """Logits (B, vocab) after one token of each request."""
        x = F.embedding(tokens, self.weights.embedding)
        for index, (layer, window) in enumerate(zip(self.weights.layers, self.shape.windows, strict=True)):
            query, new = self._project(index, layer, x, cos, sin)
            found = attend_step(query, new, cache, index, plans[window], self._value_width, self._scale)
            x = self._finish(layer, x, found)
        return self._logits(x)

    def _project(self, index: int, layer: LayerWeights, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Queries (N, H, D) and what the cache keeps (N, parts, KV, D) of x (N, hidden), positions applied."""
        shape = self.shape
        fused = layer.qkv(F.rms_norm(x, (shape.hidden_size,), layer.attention_norm, shape.rms_norm_eps))
        if shape.is_latent:
            return self._project_latent(layer, fused, cos, sin)
        heads = fused.view(x.shape[0], -1, shape.head_dim)
        turned = heads[:, : shape.num_heads + shape.num_kv_heads]
        norm = self._qk_norms[index]
        if norm is not None:
            turned.copy_(F.rms_norm(turned, (shape.head_dim,), None, shape.rms_norm_eps).mul_(norm))
        rotate_(turned, cos, sin)
        return heads[:, : shape.num_heads], heads[:, shape.num_heads :].view(x.shape[0], 2, shape.num_kv_heads, -1)

    def _project_latent(self, layer: LayerWeights, fused: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Queries are carried into the latent, so that the cached latent itself is the key of all heads."""
        shape, count = self.shape, fused.shape[0]
        query = fused[:, : -shape.cache_width].view(count, shape.num_heads, shape.key_width)
        latent = fused[:, -shape.cache_width :].unsqueeze(1)
        plain, turned = query[..., : shape.head_dim], rotate_(query[..., shape.head_dim :], cos, sin)
        if layer.key_up is None or layer.latent_norm is None:
            raise LiveError(f"{shape.name}: these weights have no latent attention")
        kept = F.rms_norm(
            latent[..., : shape.kv_lora_rank], (shape.kv_lora_rank,), layer.latent_norm, shape.rms_norm_eps
        )
        new = torch.cat((kept, rotate_(latent[..., shape.kv_lora_rank :], cos, sin)), -1)
        carried = torch.bmm(plain.transpose(0, 1), layer.key_up).transpose(0, 1)
        return torch.cat((carried, turned), -1), new.unsqueeze(1)

    def _finish(self, layer: LayerWeights, x: Tensor, found: Tensor) -> Tensor:
        """The rest of a layer after its attention: output projection, feed-forward, both added to the stream."""
        shape = self.shape
        if layer.value_up is not None:
            heads = found.view(-1, shape.num_heads, shape.kv_lora_rank).transpose(0, 1)
            found = torch.bmm(heads, layer.value_up).transpose(0, 1).flatten(1)
        x = layer.o(found).add_(x)
        gate, up = layer.gate_up(F.rms_norm(x, (shape.hidden_size,), layer.mlp_norm, shape.rms_norm_eps)).chunk(2, -1)
        return layer.down(F.silu(gate).mul_(up)).add_(x)

    def _logits(self, hidden: Tensor) -> Tensor:
        shape = self.shape
        return self.weights.head(
            F.rms_norm(hidden, (shape.hidden_size,), self.weights.norm, shape.rms_norm_eps)
        ).float()

    def _mask_dtype(self, cache: BlockCache, chunk: bool = False) -> torch.dtype:
        """The format that scores are computed in: the cache's, or fp32 over int8 rows (prefill: the weights')."""
        if not cache.quantised:
            return cache.dtype
        return self._dtype if chunk else torch.float32

    def _check(self, ids: Sequence[Sequence[int]], batch: int) -> list[int]:
        if len(ids) != batch or not ids:
            raise LiveError(f"{len(ids)} requests were given; the cache holds {batch}")
        for one in ids:
            if len(one) == 0:
                raise LiveError("a request without tokens cannot run: there is nothing to predict from")
            if min(one) < 0 or max(one) >= self.shape.vocab_size:
                raise LiveError(f"a token id is outside the vocabulary of {self.shape.vocab_size:,}")
        return [len(one) for one in ids]

    def _cancelled(self, cache: BlockCache) -> NoReturn:
        cache.trim()
        raise LiveError("cancelled")
