"""What is missing and what closes the gap: by hand arithmetic on stated pools, and every remedy planned again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvcore.deployment import Deployment
from kvcore.hardware.gpus import accelerator
from kvcore.planning.answers import longest_context
from kvcore.planning.plan import make_plan
from kvcore.planning.splits import shards
from kvcore.planning.whatif import remedies, shortfall
from kvcore.units import GIB
from tests.models import model

LLAMA = model("meta-llama/Llama-3.3-70B-Instruct")
QWEN = model("Qwen/Qwen3-8B")
V3 = model("deepseek-ai/DeepSeek-V3")
# One KV head a rank: 80 layers × 2 × 128 × 2 B = 40,960 B a token, 655,360 B a block of 16.
EIGHT_3090 = Deployment(gpu=accelerator("rtx-3090"), context=47_184, tp=8, kv_bytes=int(0.35 * GIB), engine="vllm")
BLOCK = 655_360
ONE_4090 = Deployment(gpu=accelerator("rtx-4090"), context=32_768, engine="vllm")


def test_the_shortfall_of_a_log_that_says_needed_and_available() -> None:
    """1.8 GiB needed, 0.35 available (vllm-backport issue 15): 2,949 blocks, and the one that is never handed out."""
    found = shortfall(LLAMA, EIGHT_3090)
    assert found is not None
    assert found.needed_bytes == 2950 * BLOCK
    assert found.available_bytes == int(0.35 * GIB)
    assert found.missing_bytes == 2950 * BLOCK - int(0.35 * GIB)
    assert "1.8 GiB of cache on each GPU" in found.sentence
    assert "1.45 GiB are missing" in found.sentence


def test_the_longest_context_that_fits_a_stated_pool() -> None:
    """0.35 GiB are 573 blocks, 572 can be handed out: 9,152 tokens."""
    (found,) = remedies(LLAMA, EIGHT_3090)
    assert found.kind == "context"
    assert found.deployment.context == 572 * 16 == 9152
    assert make_plan(LLAMA, found.deployment).fits
    assert not make_plan(LLAMA, replace(found.deployment, context=9153)).fits


def test_a_smaller_format_closes_a_gap_of_half() -> None:
    """1 GiB is 1,638 blocks of 16 bits: short of 2,949 but more than half of it."""
    found = remedies(LLAMA, replace(EIGHT_3090, kv_bytes=GIB))
    assert [one.kind for one in found][:2] == ["context", "cache format"]
    assert found[1].deployment.kv_dtype == "fp8"


def test_fewer_users() -> None:
    """30 GiB a GPU hold 12 requests of 2.5 GiB, beside the block that is never handed out: 20 are 8 too many."""
    four = Deployment(gpu=accelerator("h100-sxm"), context=32_768, tp=4, kv_bytes=30 * GIB + 16 * 81_920, engine="vllm")
    found = {one.kind: one for one in remedies(LLAMA, four, 20)}
    assert found["users"].users == 12
    assert found["users"].gain_words == "20 → 12 requests of 32,768 tokens at once, which fit at the safe end"
    assert found["users"].deployment == four
    assert "queue" in found["users"].price
    assert found["context"].deployment.context == longest_context(LLAMA, four, 20).low
    missing = shortfall(LLAMA, four, 20)
    assert missing is not None
    # 20 × 2,048 blocks of 1,280 KiB.
    assert missing.needed_bytes // (2048 * 16 * 81_920) == 20


def test_one_is_one() -> None:
    """3 GiB a GPU hold one request of 2.5 GiB."""
    four = Deployment(gpu=accelerator("h100-sxm"), context=32_768, tp=4, kv_bytes=3 * GIB, engine="vllm")
    fewer = next(one for one in remedies(LLAMA, four, 2) if one.kind == "users")
    assert (fewer.name, fewer.change) == ("1 user", "Serve 1 request at once instead of 2")


def test_what_fits_needs_no_remedy() -> None:
    four = Deployment(gpu=accelerator("h100-sxm"), context=32_768, tp=4, engine="vllm")
    assert remedies(LLAMA, four) == ()
    assert shortfall(LLAMA, four) is None


@pytest.mark.parametrize(
    ("name", "deployment", "users"),
    [
        ("Qwen/Qwen3-8B", ONE_4090, None),
        ("Qwen/Qwen3-8B", ONE_4090, 4),
        ("Qwen/Qwen3-8B", replace(ONE_4090, engine="sglang"), 4),
        ("Qwen/Qwen3-8B", replace(ONE_4090, engine="llama.cpp"), 4),
        (
            "meta-llama/Llama-3.3-70B-Instruct",
            Deployment(gpu=accelerator("h100-sxm"), context=131_072, tp=2, engine="vllm"),
            None,
        ),
        (
            "meta-llama/Llama-3.3-70B-Instruct",
            Deployment(gpu=accelerator("h100-sxm"), context=8192, tp=3, engine="vllm"),
            None,
        ),
        ("deepseek-ai/DeepSeek-V3", Deployment(gpu=accelerator("h100-sxm"), context=32_768, tp=8, engine="vllm"), 8),
    ],
)
def test_every_remedy_fits(name: str, deployment: Deployment, users: int | None) -> None:
    one_model = model(name)
    found = remedies(one_model, deployment, users)
    assert found
    for one in found:
        wanted = one.users if one.kind == "users" else users
        assert make_plan(one_model, one.deployment, wanted).fits, one.name
        assert one.plan is not None
        assert one.plan.fits
        assert one.price
        assert one.change


def test_the_least_share_that_suffices_comes_first() -> None:
    """At 0.5 of an H200 the weights fit and no cache; the share that is offered is the least in hundredths."""
    low = Deployment(gpu=accelerator("h200-sxm"), context=32_768, tp=2, utilization=0.5, engine="vllm")
    assert not make_plan(LLAMA, low).fits
    first = remedies(LLAMA, low)[0]
    assert first.kind == "utilization"
    share = first.deployment.utilization
    assert share is not None
    assert 0.5 < share <= 0.95
    assert make_plan(LLAMA, first.deployment).fits
    assert not make_plan(LLAMA, replace(low, utilization=round(share - 0.01, 2))).fits


def test_two_changes_where_one_does_not_suffice() -> None:
    """Four requests of 32K are 18 GiB beside 15 GiB of weights on 24: with either halved 25 or 24 are still too many."""
    found = remedies(QWEN, ONE_4090, 4)
    assert not {one.name for one in found} & {"fp8 cache", "fp8 weights", "utilisation 0.95"}
    pairs = [one for one in found if " + " in one.name]
    assert pairs
    for one in pairs:
        changed = [
            name
            for name in ("kv_dtype", "weight_format", "utilization", "max_num_batched_tokens", "enforce_eager")
            if getattr(one.deployment, name) != getattr(ONE_4090, name)
        ]
        assert len(changed) == 2, one.name
        assert make_plan(QWEN, one.deployment, 4).fits


def test_more_gpus_are_the_fewest_that_suffice() -> None:
    """131.4 GiB of weights: one H100 has 79.6, and no split of fewer GPUs than are offered fits either."""
    one = Deployment(gpu=accelerator("h100-sxm"), context=8192, engine="vllm")
    found = {remedy.kind: remedy for remedy in remedies(LLAMA, one)}
    offered = found["more GPUs"].deployment.gpus
    assert offered in (2, 3, 4)
    tried = [shard.onto(one) for count in (1, 2) if count < offered for shard in shards(LLAMA, "vllm", count)]
    assert not any(make_plan(LLAMA, deployment).fits for deployment in tried)
    # The smallest larger GPU that holds the weights and 2.5 GiB more.
    assert found["GPU"].deployment.gpu.memory_bytes > 134 * GIB


def test_a_split_that_is_refused_is_replaced() -> None:
    """64 heads cannot be divided over 3 ranks."""
    three = Deployment(gpu=accelerator("h200-sxm"), context=8192, tp=3, engine="vllm")
    assert shortfall(LLAMA, three) is None
    kinds = {one.kind for one in remedies(LLAMA, three)}
    assert kinds & {"split", "more GPUs"}


def test_a_number_of_sequences_is_raised_where_it_binds() -> None:
    four = Deployment(
        gpu=accelerator("h100-sxm"), context=1024, tp=4, kv_bytes=30 * GIB, max_num_seqs=100, engine="vllm"
    )
    assert shortfall(LLAMA, four, 200) is None
    first = remedies(LLAMA, four, 200)[0]
    assert first.kind == "sequences"
    assert first.deployment.max_num_seqs == 200


def test_weights_that_do_not_fit_are_part_of_what_is_missing() -> None:
    """131.4 GiB of weights on 24 GB: what is missing is far more than the request."""
    found = shortfall(LLAMA, Deployment(gpu=accelerator("rtx-4090"), context=8192, engine="vllm"))
    assert found is not None
    assert found.available_bytes < -100 * GIB
    assert found.missing_bytes == found.needed_bytes - found.available_bytes
    assert "more than there is" in found.sentence
