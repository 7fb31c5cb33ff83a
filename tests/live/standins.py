"""A decoder without a network, on a clock of its own: what the loops of the live engine are tested with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from kvcore.errors import LiveError

VOCAB = 97
LAYERS = 4


class Clock:
    """Stands in for the module time: it moves only when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now


class Cache:
    """Knows its tokens; 10 bytes a token, reserved for 4 tokens at once."""

    def __init__(self, batch: int) -> None:
        self.rows: list[list[int]] = [[] for _ in range(batch)]

    @property
    def lengths(self) -> list[int]:
        return [len(row) for row in self.rows]

    def resident_bytes(self) -> int:
        return sum(10 * length for length in self.lengths)

    def reserved_bytes(self) -> int:
        return len(self.rows) * 40 * -(-max(self.lengths) // 4)


def follower(row: Sequence[int]) -> int:
    """The token after a prefix: any change of the prefix changes it."""
    return (7 * sum((place + 1) * token for place, token in enumerate(row)) + 3) % VOCAB


class Decoder:
    """Answers by `follower`; a prefilled token takes 1 ms, a step 10 ms, a recomputed token 2 ms."""

    def __init__(self, clock: Clock, context_limit: int | None = None, chunk: int = 512) -> None:
        self.clock, self.chunk = clock, chunk
        self.shape: Any = SimpleNamespace(
            vocab_size=VOCAB, context_limit=context_limit, windows=(None,), name="stand-in"
        )
        self.shape.attention = "MHA"
        self.log: list[str] = []

    def new_cache(self, batch: int = 1, kv_format: str = "bf16", block_tokens: int = 256) -> Cache:
        return Cache(batch)

    def prefill(
        self,
        ids: Sequence[Sequence[int]],
        cache: Cache,
        progress: Callable[[int, int], bool] | None = None,
    ) -> torch.Tensor:
        self.log.append(f"prefill {[len(row) for row in ids]}")
        longest = max(len(row) for row in ids)
        for begin in range(0, longest, self.chunk):
            for row, new in zip(cache.rows, ids, strict=True):
                row += new[begin : begin + self.chunk]
            done = min(begin + self.chunk, longest)
            self.clock.now += 0.001 * (done - begin)
            if progress is not None and not progress(done, longest) and done < longest:
                raise LiveError("cancelled")
        return self._logits(cache.rows)

    def step(self, ids: Sequence[int], cache: Cache) -> torch.Tensor:
        self.log.append("step")
        self.clock.now += 0.010
        for row, token in zip(cache.rows, ids, strict=True):
            row.append(token)
        return self._logits(cache.rows)

    def recompute(
        self, ids: Sequence[Sequence[int]], progress: Callable[[int, int], bool] | None = None
    ) -> torch.Tensor:
        self.log.append(f"recompute {[len(row) for row in ids]}")
        for layer in range(1, LAYERS + 1):
            self.clock.now += 0.002 / LAYERS * max(len(row) for row in ids)
            if progress is not None and not progress(layer, LAYERS) and layer < LAYERS:
                raise LiveError("cancelled")
        return self._logits(ids)

    def synchronise(self) -> None:
        self.log.append("synchronise")

    def _logits(self, rows: Sequence[Sequence[int]]) -> torch.Tensor:
        logits = torch.zeros(len(rows), VOCAB)
        for at, row in enumerate(rows):
            logits[at, follower(row)] = 5.0
        return logits


class Letters:
    """A tokenizer of one letter a token; 90 ends a reply."""

    stop_ids = frozenset({90})
    vocab_size = VOCAB

    def encode(self, text: str) -> list[int]:
        return [ord(one) % VOCAB for one in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(chr(0x4E00 + one) for one in ids)

    def stream(self) -> Any:
        return SimpleNamespace(push=lambda token: chr(0x4E00 + token), end=lambda: "")

    def chat(self, messages: Sequence[tuple[str, str]]) -> list[int]:
        return [1, *(token for _, text in messages for token in [*self.encode(text), 90]), 2]

    def follow_up(self, text: str) -> list[int]:
        return [90, *self.encode(text), 90, 2]
