"""The block cache: bytes measured on its tensors against bytes predicted, growth, truncation, what is refused."""

from __future__ import annotations

import pytest
import torch

from kvcore.errors import LiveError
from kvcore.live.cache import BlockCache
from kvcore.live.shape import predicted_bytes
from tests.live import tiny

FORMATS = ("bf16", "fp16", "fp32", "int8")
VARIANTS = ("shipped", "mha", "mqa", "mla:32+8", "sliding:7", "sliding:5/2", "sliding:300")
SHAPES = {
    "llama": tiny.shape(),
    "qwen2": tiny.shape(family="qwen2", qkv_bias=True, tied=True, num_kv_heads=4),
    "qwen3": tiny.shape(family="qwen3", qk_norm=True, head_dim=32),
    "mistral": tiny.shape(family="mistral", windows=(9, 9, 9)),
} | {variant: tiny.shape(variant) for variant in VARIANTS[1:]}


def rows_with_numbers(held: BlockCache) -> int:
    """Resident bytes from the stored numbers themselves: rows of a request in which any number is not zero."""
    total = 0
    for layer, kv in enumerate(held.kv):
        rows = (kv != 0).flatten(4).any(-1)
        # Every part and head of a request must hold the same rows.
        assert bool((rows == rows[:1, :, :1]).all())
        width = kv.shape[4] * kv.element_size() + (held.scales[layer].element_size() if held.quantised else 0)
        total += int(rows.sum()) * width
    return total


@pytest.mark.parametrize("kv_format", FORMATS)
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("lengths", [(1,), (4,), (5,), (13,), (3, 3), (13, 2, 6)])
def test_measured_is_predicted(name: str, kv_format: str, lengths: tuple[int, ...]) -> None:
    shape = SHAPES[name]
    ours = tiny.decoder(shape)
    held = ours.new_cache(len(lengths), kv_format, block_tokens=4)
    ours.prefill([tiny.tokens(count, count) for count in lengths], held, chunk=5)
    for step in range(6):
        now = [count + step for count in lengths]
        assert held.lengths == now
        expected = predicted_bytes(shape, kv_format, now, 4)
        assert held.reserved_bytes() == expected.reserved
        assert held.resident_bytes() == expected.resident == rows_with_numbers(held)
        ours.step([7] * len(lengths), held)


def test_bytes_by_hand() -> None:
    """13 and 6 tokens in blocks of 4, three layers of 2 heads of 16: 16 rows reserved for each request.

    bf16: a row of keys and values is 2 × 2 × 16 × 2 = 128 B; int8: 2 × 2 × (16 + 4) = 80 B; a window of 5 has 8 rows.
    """
    ours = tiny.decoder(tiny.shape("sliding:5/3"))
    for kv_format, row in (("bf16", 128), ("int8", 80)):
        held = ours.new_cache(2, kv_format, block_tokens=4)
        ours.prefill([tiny.tokens(13), tiny.tokens(6)], held)
        # Two layers with the window, one without.
        assert held.reserved_bytes() == 2 * (2 * 8 + 16) * row
        assert held.resident_bytes() == (2 * (5 + 5) + 13 + 6) * row


def test_storage_grows_only_at_a_block() -> None:
    ours = tiny.decoder(tiny.shape())
    held = ours.new_cache(1, "fp32", block_tokens=8)
    assert held.reserved_bytes() == held.resident_bytes() == 0
    ours.prefill([tiny.tokens(6)], held)
    addresses = [[tensor.data_ptr() for tensor in held.kv]]
    for token in range(4):
        ours.step([token], held)
        addresses.append([tensor.data_ptr() for tensor in held.kv])
    # 6, 7 and 8 tokens fit in the first block; the ninth needs another.
    assert addresses[0] == addresses[1] == addresses[2] != addresses[3] == addresses[4]


def test_a_window_stops_growing() -> None:
    ours = tiny.decoder(tiny.shape("sliding:6"))
    held = ours.new_cache(1, "bf16", block_tokens=4)
    ours.prefill([tiny.tokens(3)], held)
    sizes = []
    for token in range(12):
        ours.step([token], held)
        sizes.append((held.reserved_bytes() // (3 * 128), held.resident_bytes() // (3 * 128)))
    assert sizes == [(4, 4), (8, 5)] + [(8, 6)] * 10


def test_truncated_and_continued() -> None:
    ours = tiny.decoder(tiny.shape())
    ids = tiny.tokens(30)
    held = ours.new_cache(1, "fp32", block_tokens=4)
    ours.prefill([ids], held)
    held.truncate(10)
    assert held.lengths == [10]
    expected = predicted_bytes(ours.shape, "fp32", [10], 4)
    assert (held.reserved_bytes(), held.resident_bytes()) == (expected.reserved, expected.resident)
    found = ours.prefill([ids[10:]], held)
    assert torch.allclose(found, ours.recompute([ids]), atol=1e-4)
    held.reset()
    assert (held.lengths, held.reserved_bytes(), held.resident_bytes()) == ([0], 0, 0)


def test_a_window_cannot_be_turned_back() -> None:
    ours = tiny.decoder(tiny.shape("sliding:6"))
    held = ours.new_cache(1, "fp32", block_tokens=4)
    ours.prefill([tiny.tokens(6)], held)
    held.truncate(4)
    ours.prefill([tiny.tokens(6)], held)
    with pytest.raises(LiveError, match="window of 6 tokens has already left out tokens before 8"):
        held.truncate(8)
    held.truncate(10)
    assert held.lengths == [10]


def test_cancelled_prefill_keeps_whole_chunks() -> None:
    ours = tiny.decoder(tiny.shape())
    held = ours.new_cache(1, "bf16", block_tokens=4)
    seen: list[tuple[int, int]] = []

    def progress(done: int, of: int) -> bool:
        seen.append((done, of))
        return done < 10

    with pytest.raises(LiveError, match="cancelled"):
        ours.prefill([tiny.tokens(30)], held, chunk=5, progress=progress)
    assert seen == [(5, 30), (10, 30)]
    assert held.lengths == [10]
    assert held.reserved_bytes() == predicted_bytes(ours.shape, "bf16", [10], 4).reserved
    with pytest.raises(LiveError, match="cancelled"):
        ours.recompute([tiny.tokens(5)], progress=lambda done, of: done < 2)


@pytest.mark.parametrize(
    ("batch", "kv_format", "block", "words"),
    [
        (0, "bf16", 256, "a batch of 0"),
        (1, "fp8", 256, "cache format 'fp8' cannot run live; those that can are bf16, fp16, fp32, int8"),
        (1, "bf16", 0, "a block of 0"),
    ],
)
def test_refused(batch: int, kv_format: str, block: int, words: str) -> None:
    with pytest.raises(LiveError, match=words):
        tiny.decoder(tiny.shape()).new_cache(batch, kv_format, block)


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ([[]], "without tokens"),
        ([[1], [2]], "2 requests"),
        ([[320]], "outside the vocabulary of 320"),
        ([[-1]], "outside"),
    ],
)
def test_ids_that_cannot_be(ids: list[list[int]], words: str) -> None:
    ours = tiny.decoder(tiny.shape())
    held = ours.new_cache()
    with pytest.raises(LiveError, match=words):
        ours.prefill(ids, held)
    assert held.lengths == [0]
