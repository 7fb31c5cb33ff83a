"""One decode step with fixed shapes, so that CUDA can record it once and replay it (imports torch).

A step reads as many rows as the cache has room for and masks those that are empty: shapes change only when the cache
grows by a block, and a new graph is recorded then. The recording runs on CUDA only and has not been run: on a CPU the
same fixed step runs without being recorded, which is how its arithmetic is tested.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from kvcore.live.attention import RopeTable, StepPlan
from kvcore.live.cache import BlockCache

Run = Callable[[Tensor, Tensor, Tensor, BlockCache, dict[int | None, StepPlan]], Tensor]


class FixedStep:
    """The step of one cache at its present room: inputs that are overwritten in place, and logits that are too."""

    def __init__(self, run: Run, cache: BlockCache, rope: RopeTable, mask_dtype: torch.dtype, record: bool) -> None:
        self._run, self._cache, self._rope = run, cache, rope
        self.key = step_key(cache, rope)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._logits: Tensor | None = None
        self._record = record
        device, batch = cache.device, cache.batch
        self._tokens = torch.zeros(batch, dtype=torch.long, device=device)
        self._positions = torch.zeros(batch, dtype=torch.long, device=device)
        self._plans = {
            window: StepPlan(
                rows=rows,
                slot=None,
                slots=torch.zeros(batch, dtype=torch.long, device=device),
                mask=torch.zeros(batch, 1, 1, rows, dtype=mask_dtype, device=device),
            )
            for window, rows in ((window, cache.rows(window)) for window in cache.filled)
        }

    def __call__(self, ids: Sequence[int]) -> Tensor:
        """Logits (B, vocab) after these tokens; the cache must have room, and its lengths are not advanced here."""
        self._fill(ids)
        if not self._record:
            return self._forward()
        if self._graph is None:
            self._capture()
        if self._graph is not None:
            self._graph.replay()
        # The next replay overwrites what this one returned.
        return self._logits.clone() if self._logits is not None else self._forward()

    def _fill(self, ids: Sequence[int]) -> None:
        lengths = self._cache.lengths
        self._tokens.copy_(torch.tensor(ids))
        self._positions.copy_(torch.tensor(lengths))
        for window, plan in self._plans.items():
            slots = [length if window is None else length % window for length in lengths]
            seen = [length + 1 if window is None else min(length + 1, window) for length in lengths]
            empty = torch.arange(plan.rows) >= torch.tensor(seen).view(-1, 1, 1, 1)
            if plan.slots is not None and plan.mask is not None:
                plan.slots.copy_(torch.tensor(slots))
                plan.mask.copy_(torch.zeros(empty.shape).masked_fill_(empty, float("-inf")))

    def _forward(self) -> Tensor:
        cos = self._rope.cos[self._positions].unsqueeze(1)
        sin = self._rope.sin[self._positions].unsqueeze(1)
        return self._run(self._tokens, cos, sin, self._cache, self._plans)

    def _capture(self) -> None:
        """Run a few times on a side stream, as CUDA asks for, then record; the rows are only written over again."""
        side = torch.cuda.Stream(device=self._cache.device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self._forward()
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._logits = self._forward()


def step_key(cache: BlockCache, rope: RopeTable) -> tuple[int, int, int]:
    """What a recorded step depends on: the cache, the storage it has now, the table of positions."""
    return id(cache), cache.generation, rope.cos.data_ptr()
