"""What a rank holds, and how many requests fit beside the weights."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvcore.errors import UnitError
from kvcore.formats import kv_format
from kvcore.hardware.gpus import accelerator
from kvcore.planning.bound import gpus_for, room
from kvcore.ranks.memories import rank_bytes
from kvcore.units import GIB
from kvcore.variants.variants import variant
from tests.models import model

BF16 = kv_format("bf16")
LLAMA = "meta-llama/Llama-3.3-70B-Instruct"
H100 = replace(accelerator("h100-sxm"), reported_bytes=80 * GIB)


@pytest.mark.parametrize(("ranks", "heads"), [(1, 8), (2, 4), (3, 3), (8, 1), (16, 1)])
def test_heads_are_split_and_one_stays(ranks: int, heads: int) -> None:
    assert rank_bytes(model(LLAMA), 1000, BF16, ranks) == 1000 * 80 * 2 * heads * 128 * 2


def test_a_latent_is_on_every_rank_and_a_state_is_split() -> None:
    v3 = model("deepseek-ai/DeepSeek-V3")
    assert rank_bytes(v3, 1000, BF16, 8) == rank_bytes(v3, 1000, BF16, 1) == 1000 * 70_272
    # DeepSeek-V4's unfinished groups belong to all heads, as its latents do: vLLM's pages are the same on every rank.
    v4, packed = model("deepseek-ai/DeepSeek-V4-Flash"), kv_format("fp8_ds_mla")
    assert rank_bytes(v4, 32_768, packed, 8) == rank_bytes(v4, 32_768, packed, 1) == 141_585_408
    mamba = model("state-spaces/mamba-2.8b-hf")
    assert rank_bytes(mamba, 1000, BF16, 2) * 2 == rank_bytes(mamba, 1000, BF16, 1)
    # 64 heads of 128 × 128 in 32 bits and their convolution of 3 × 64 × 128 channels: a rank has a whole head.
    kda = variant(model(LLAMA), "linear:kda")
    head = 128 * 128 * 4 + 3 * 128 * 3 * 2
    assert rank_bytes(kda, 1000, BF16, 64) == 80 * head
    assert rank_bytes(kda, 1000, BF16, 128) == 80 * (128 * 128 * 4 + 3 * 64 * 3 * 2)
    with pytest.raises(UnitError, match="ranks"):
        rank_bytes(v3, 1000, BF16, 0)


def test_requests_beside_the_weights_of_a_70b() -> None:
    """Four cards of 80 GiB, 141,107,396,608 B of weights, a quarter of 10 GiB a request on each."""
    found = room(model(LLAMA), 32_768, BF16, H100, 4, weights="bf16")
    assert found is not None
    assert found.weights_bytes == 70_553_698_304 * 2
    assert found.free_bytes == 80 * GIB - 70_553_698_304 * 2 // 4
    assert found.request_bytes == 10 * GIB // 4
    assert found.requests == (80 * GIB - 70_553_698_304 // 2) // (10 * GIB // 4) == 18


def test_weights_that_do_not_fit_leave_no_room() -> None:
    found = room(model(LLAMA), 1, BF16, H100, 1, weights="bf16")
    assert found is not None
    assert found.free_bytes < 0
    assert found.requests == 0


def test_a_request_that_takes_nothing_has_no_bound() -> None:
    found = room(model(LLAMA), 0, BF16, H100, 4)
    assert found is not None
    assert found.requests is None


def test_unknown_weights_leave_the_question_open() -> None:
    assert room(replace(model(LLAMA), weights=(), checkpoint_bytes=None), 100, BF16, H100, 4) is None
    assert gpus_for(replace(model(LLAMA), weights=(), checkpoint_bytes=None), H100) == 1


@pytest.mark.parametrize("gpus", [0, -1, 5000])
def test_a_number_of_gpus_that_cannot_be_is_refused(gpus: int) -> None:
    with pytest.raises(UnitError, match="GPUs"):
        room(model(LLAMA), 100, BF16, H100, gpus)


def test_gpus_that_the_weights_fill_by_half() -> None:
    """131.4 GiB: 2 × 80 are more than half full, 4 × 80 are not."""
    assert gpus_for(model(LLAMA), H100, "bf16") == 4
    assert gpus_for(model(LLAMA), H100, "fp8") == 2
    assert gpus_for(model("Qwen/Qwen3-8B"), H100, "bf16") == 1


def test_more_gpus_and_less_cache_never_fit_fewer() -> None:
    llama = model(LLAMA)
    by_gpus = [room(llama, 8192, BF16, H100, count, weights="fp8").requests for count in (1, 2, 4, 8, 16)]
    assert by_gpus == sorted(by_gpus)
    by_heads = [
        room(variant(llama, f"gqa:{heads}"), 8192, BF16, H100, 4, weights="fp8").requests for heads in (64, 32, 16, 8)
    ]
    assert by_heads == sorted(by_heads)
