"""The cache of the live engine: storage that grows in blocks of tokens, measured on its tensors (imports torch)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kvcore.errors import LiveError
from kvcore.live.shape import LiveShape, block_rows, cache_format_name
from kvcore.live.weights import DTYPES

_CACHE_DTYPES = DTYPES | {"int8": torch.int8}
_INT8_MAX = 127.0


class BlockCache:
    """What a batch of requests has left behind in every layer.

    `kv[layer]` is (parts, B, KV, rows, D), with a key part and a value part, or one part that holds the latent. In int8
    `scales[layer]` is (parts, B, KV, rows) in fp32: number = int8 × scale. Row i of a request
    holds its token i; in a layer with a window W it holds the last token whose position is i modulo W. Storage is
    made anew, and the rows copied, when the longest request needs another block.
    """

    def __init__(
        self, shape: LiveShape, batch: int, kv_format: str, device: str = "cpu", block_tokens: int = 256
    ) -> None:
        """An empty cache; LiveError for a batch, a block or a format that cannot be."""
        if not 1 <= batch <= 4096:
            raise LiveError(f"a batch of {batch:,} requests cannot run live; 1 … 4,096 can")
        if not 1 <= block_tokens <= 65_536:
            raise LiveError(f"a block of {block_tokens:,} tokens is not usable; 1 … 65,536 are")
        self.shape = shape
        self.batch = batch
        self.kv_format = cache_format_name(kv_format)
        self.device = device
        self.block_tokens = block_tokens
        self.dtype = _CACHE_DTYPES[self.kv_format]
        self.quantised = self.dtype is torch.int8
        self.lengths: list[int] = [0] * batch
        # Counts how often storage was made: whoever keeps addresses of it (a CUDA graph) sees that they are stale.
        self.generation = 0
        self.kv: list[Tensor] = []
        self.scales: list[Tensor] = []
        # Which rows hold a token, one mask for all layers of a window; bookkeeping of the measurement, on the CPU.
        self.filled: dict[int | None, Tensor] = {}
        self._scratch: Tensor | None = None
        self.reset()

    @torch.inference_mode()
    def reset(self) -> None:
        """Forget everything and give the storage back."""
        self.lengths = [0] * self.batch
        parts, heads, width = self.shape.cache_parts, self.shape.cache_heads, self.shape.cache_width
        self.kv = [self._zeros((parts, self.batch, heads, 0, width), self.dtype) for _ in self.shape.windows]
        self.scales = []
        if self.quantised:
            self.scales = [self._zeros((parts, self.batch, heads, 0), torch.float32) for _ in self.shape.windows]
        self.filled = {window: torch.zeros(self.batch, 0, dtype=torch.bool) for window in self.shape.windows}
        self._scratch = None
        self.generation += 1

    @torch.inference_mode()
    def reserve(self, longest: int) -> None:
        """Make room for `longest` tokens in each request, in whole blocks."""
        wanted = {window: block_rows(longest, window, self.block_tokens) for window in self.filled}
        if any(rows > self.filled[window].shape[1] for window, rows in wanted.items()):
            self._resize({window: max(rows, self.filled[window].shape[1]) for window, rows in wanted.items()})

    @torch.inference_mode()
    def truncate(self, tokens: int) -> None:
        """Keep the first `tokens` tokens of each request and no more blocks than they need.

        LiveError where a window has already overwritten what would have to be kept.
        """
        kept = [min(length, max(0, tokens)) for length in self.lengths]
        for window in self.filled:
            if window is not None and any(a < b and b > window for a, b in zip(kept, self.lengths, strict=True)):
                raise LiveError(f"a window of {window:,} tokens has already left out tokens before {tokens:,}")
        for window, mask in self.filled.items():
            for request, length in enumerate(kept):
                mask[request, length if window is None else min(length, window) :] = False
        self.lengths = kept
        self.trim()

    @torch.inference_mode()
    def trim(self) -> None:
        """Give back blocks that hold no token."""
        longest = max(self.lengths)
        wanted = {window: block_rows(longest, window, self.block_tokens) for window in self.filled}
        if any(rows < self.filled[window].shape[1] for window, rows in wanted.items()):
            self._resize(wanted)

    @torch.inference_mode()
    def advance(self, counts: Sequence[int]) -> None:
        """Note that so many tokens of each request have been written to every layer."""
        for window, mask in self.filled.items():
            for request, (length, count) in enumerate(zip(self.lengths, counts, strict=True)):
                if window is None or length + count <= window:
                    mask[request, length : length + count] = True
                else:
                    first = length + max(0, count - window)
                    mask[request, torch.arange(first, length + count) % window] = True
        self.lengths = [length + count for length, count in zip(self.lengths, counts, strict=True)]

    def reserved_bytes(self) -> int:
        """Bytes of the storage behind the cache's tensors, as torch reports them."""
        return sum(tensor.untyped_storage().nbytes() for tensor in (*self.kv, *self.scales))

    def resident_bytes(self) -> int:
        """Bytes of those rows of the tensors that hold a token: rows counted by mask, their bytes on the tensors."""
        rows = {window: int(mask.sum()) for window, mask in self.filled.items()}
        total = 0
        for layer, window in enumerate(self.shape.windows):
            tensors = (self.kv[layer], self.scales[layer]) if self.quantised else (self.kv[layer],)
            total += rows[window] * sum(row_bytes(tensor) for tensor in tensors)
        return total

    def rows(self, window: int | None) -> int:
        """Rows that each request has in a layer with that window."""
        return int(self.filled[window].shape[1])

    def encode(self, values: Tensor) -> tuple[Tensor, Tensor | None]:
        """Vectors (…, D) as they are stored, and their scales (…) in int8: a vector's largest magnitude becomes 127."""
        if not self.quantised:
            return values.to(self.dtype), None
        exact = values.float()
        scale = exact.abs().amax(-1).div_(_INT8_MAX)
        # A vector of zeros has no scale; 1 keeps it zero.
        scale.masked_fill_(scale == 0, 1.0)
        return (exact / scale.unsqueeze(-1)).round_().to(torch.int8), scale

    def decode(self, stored: Tensor, scale: Tensor | None, dtype: torch.dtype) -> Tensor:
        """Stored vectors (…, D) as numbers to compute with: themselves for floats, int8 × scale (…) in `dtype`."""
        return stored if scale is None else (stored.float() * scale.unsqueeze(-1)).to(dtype)

    def scratch(self, layer: int, rows: int) -> Tensor:
        """The first rows of an int8 layer (parts, B, KV, rows, D), in fp32 without scales, in memory that all share."""
        stored = self.kv[layer][:, :, :, :rows]
        needed = stored.numel()
        if self._scratch is None or self._scratch.numel() < needed:
            # As large as the layer's storage: it is made anew only when the cache grows.
            self._scratch = torch.empty(max(self.kv[layer].numel(), needed), dtype=torch.float32, device=self.device)
        return self._scratch[:needed].view(stored.shape).copy_(stored)

    def _zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        # Zeros and not whatever was there: masked rows are still multiplied, and 0 × NaN is NaN.
        return torch.zeros(shape, dtype=dtype, device=self.device)

    def _resize(self, wanted: dict[int | None, int]) -> None:
        for layer, window in enumerate(self.shape.windows):
            self.kv[layer] = self._copied(self.kv[layer], wanted[window])
            if self.quantised:
                self.scales[layer] = self._copied(self.scales[layer], wanted[window])
        for window, mask in self.filled.items():
            rows = min(wanted[window], mask.shape[1])
            grown = torch.zeros(self.batch, wanted[window], dtype=torch.bool)
            grown[:, :rows] = mask[:, :rows]
            self.filled[window] = grown
        self.generation += 1

    def _copied(self, old: Tensor, rows: int) -> Tensor:
        if old.shape[3] == rows:
            return old
        new = self._zeros((*old.shape[:3], rows, *old.shape[4:]), old.dtype)
        kept = min(rows, old.shape[3])
        new[:, :, :, :kept] = old[:, :, :, :kept]
        return new


def row_bytes(tensor: Tensor) -> int:
    """Bytes that one row (a token of a request) takes in a (parts, B, KV, rows, …) tensor."""
    parts, _, heads = tensor.shape[:3]
    width = tensor.shape[4] if tensor.dim() > 4 else 1
    return int(parts * heads * width * tensor.element_size())
