"""Weights and the roofline, by hand."""

from __future__ import annotations

from math import inf

import pytest

from kvcore.errors import HardwareError, UnitError
from kvcore.formats import kv_format
from kvcore.hardware.gpus import accelerator, accelerators, custom_accelerator
from kvcore.model import model_from_config
from kvcore.timing import Work, bound, decode_cache_work, weight_work
from tests.models import every_model, llama, model

BF16 = kv_format("bf16")
LLAMA = "meta-llama/Llama-3.3-70B-Instruct"
# tests.models.llama: 4 layers, width 512, 8 query and 2 KV heads of 64, feed-forward 1,024, vocabulary 1,000.
ATTENTION = 512 * (8 * 64 + 2 * 64 + 2 * 64 + 8 * 64)
LAYERS = 4 * (ATTENTION + 3 * 512 * 1024 + 2 * 512)
TABLE = 1000 * 512


def test_work_adds_up_and_repeats() -> None:
    work = Work(read_bytes=6, written_bytes=2, operations=16)
    assert work + Work(read_bytes=1, operations=4) == Work(read_bytes=7, written_bytes=2, operations=20)
    assert work.times(3) == work + work + work
    assert (work.bytes, work.operations_per_byte) == (8, 2.0)
    assert Work(operations=1).operations_per_byte == inf


def test_weights_of_a_small_model() -> None:
    """Of the input embedding each token reads its row; all else is read once, whatever the batch."""
    built = model_from_config(llama(tie_word_embeddings=False))
    for batch in (1, 16):
        found = weight_work(built, batch)
        assert found is not None
        assert found.work.read_bytes == 2 * (LAYERS + TABLE + batch * 512)
        assert found.work.operations == 2 * batch * (LAYERS + TABLE)
    prompt = weight_work(built, 100, logits=1)
    assert prompt is not None
    assert prompt.work.operations == 2 * 100 * LAYERS + 2 * TABLE
    assert prompt.work.read_bytes == 2 * (LAYERS + TABLE + 100 * 512)
    unasked = weight_work(built, 100, logits=0)
    assert unasked is not None
    assert unasked.work.read_bytes == 2 * (LAYERS + 100 * 512)


def test_a_tied_embedding_is_the_head_and_read_whole() -> None:
    found = weight_work(model_from_config(llama(tie_word_embeddings=True)))
    assert found is not None
    assert found.work == Work(read_bytes=2 * (LAYERS + TABLE), operations=2 * (LAYERS + TABLE))


def test_formats_keep_what_they_keep_in_16_bits() -> None:
    """fp8 leaves embedding, head and norms in 16 bits."""
    found = weight_work(model_from_config(llama(tie_word_embeddings=False)), 1, "fp8")
    assert found is not None
    norms = 4 * 2 * 512
    assert found.work.read_bytes == LAYERS - norms + 2 * (norms + TABLE + 512)


def test_experts_that_a_batch_reads() -> None:
    """Mixtral 8x7B: 32 layers, 8 experts of 3 × 4,096 × 14,336, 2 a token; of 2 tokens 8 (1 − (3/4)²) = 3.5."""
    one = 3 * 4096 * 14_336
    mixtral = model("mistralai/Mixtral-8x7B-v0.1")
    for batch, experts in ((1, 2), (2, 3.5), (3, 8 * (1 - 0.75**3)), (1000, 8)):
        found = weight_work(mixtral, batch)
        assert found is not None
        (part,) = (part for part in found.parts if part.name == "experts")
        assert part.work.read_bytes == pytest.approx(2 * 32 * experts * one, rel=1e-9)
        assert part.work.operations == 2 * batch * 32 * 2 * one
        assert bool(found.notes) == (batch > 1)


def test_the_encoder_is_not_read_by_a_decoded_token() -> None:
    """Whisper large-v3: 32 layers of 1,280: q, k, v, o of self-attention, q and o across, 2 × 5,120."""
    found = weight_work(model("openai/whisper-large-v3"))
    assert found is not None
    read = {part.name: part.numbers_read for part in found.parts}
    assert "encoder" not in read
    assert read["attention"] == 32 * 4 * 1280**2
    assert read["cross-attention"] == 32 * 2 * 1280**2
    assert read["feed-forward"] == 32 * 2 * 1280 * 5120
    assert "once for a source" in found.notes[0]


def test_every_catalogued_model_has_weights_or_none(subtests: pytest.Subtests) -> None:
    for model_id in every_model():
        with subtests.test(model=model_id):
            built = model(model_id)
            found, large = weight_work(built), weight_work(built, 64)
            assert (found is None) == (not built.weights)
            if found is None or large is None:
                continue
            assert 0 < found.work.read_bytes <= large.work.read_bytes
            assert large.work.operations == 64 * found.work.operations
            assert found.terms[-2].value == found.work.read_bytes
            # The least of all formats is 4 bits and the most 32; a token uses no parameter twice.
            assert built.active_parameters is not None
            assert found.work.operations <= 2 * built.active_parameters
            assert found.work.read_bytes <= 4 * built.active_parameters


def test_weights_that_cannot_be() -> None:
    with pytest.raises(UnitError, match="logits"):
        weight_work(model(LLAMA), 2, logits=3)
    with pytest.raises(UnitError, match="weight format"):
        weight_work(model(LLAMA), 1, "magic")
    with pytest.raises(UnitError, match="tokens"):
        weight_work(model(LLAMA), -1)


def test_decode_of_llama_on_h100() -> None:
    """10 GiB of cache and about 139 GB of weights at 3.35 TB/s: the bandwidth binds; 989.5e12 / 3.35e12 = 295."""
    cache = decode_cache_work(model(LLAMA), 32_768, BF16).work
    weights = weight_work(model(LLAMA))
    assert weights is not None
    alone = bound(cache, accelerator("h100-sxm"))
    assert alone.binds == "bandwidth"
    assert alone.seconds_at_least == pytest.approx((10 * 2**30 + 327_680) / 3.35e12)
    assert alone.ridge_operations_per_byte == pytest.approx(295.4, abs=0.2)
    assert alone.tokens_per_s_at_most() == pytest.approx(312, abs=0.5)
    # 80 layers: 8,192 × (2 × 8,192 + 2 × 1,024) + 3 × 8,192 × 28,672 + 2 × 8,192; a head of 128,256 × 8,192.
    layer = 8192 * (2 * 8192 + 2 * 1024) + 3 * 8192 * 28_672 + 2 * 8192
    assert weights.work.read_bytes == pytest.approx(2 * (80 * layer + 128_256 * 8192 + 8192), rel=1e-6)
    four = bound(cache + weights.work, accelerator("h100-sxm"), count=4)
    assert four.seconds_at_least == pytest.approx((cache.bytes + weights.work.read_bytes) / (4 * 3.35e12))
    assert "communication" in four.notes[0]


def test_which_limit_binds() -> None:
    """100 GB/s and 10 TFLOPS: the ridge is 100 operations a byte."""
    device = custom_accelerator(memory="80 GB", bandwidth_gb_per_s=100, dense_tflops={"bf16": 10, "fp8": 20})
    below, above = Work(read_bytes=10**9, operations=99 * 10**9), Work(written_bytes=10**9, operations=101 * 10**9)
    assert bound(below, device).ridge_operations_per_byte == 100
    assert (bound(below, device).binds, bound(below, device).seconds_at_least) == ("bandwidth", 0.01)
    assert bound(above, device).binds == "arithmetic"
    assert bound(above, device).seconds_at_least == pytest.approx(0.0101)
    assert bound(above, device, count=2).seconds_at_least == pytest.approx(0.00505)
    assert bound(above, device, arithmetic="fp8").binds == "bandwidth"
    assert bound(below, device).tokens_per_s_at_most(32) == pytest.approx(3200)
    nothing = bound(Work(), device)
    assert (nothing.seconds_at_least, nothing.tokens_per_s_at_most()) == (0.0, None)


def test_rates_that_are_not_known() -> None:
    """T4 has an fp16 rate and none in bf16; an accelerator typed in without rates is bound by its bandwidth alone."""
    work = Work(read_bytes=10**9, operations=10**15)
    t4 = bound(work, accelerator("t4"))
    assert (t4.rate_format, t4.binds) == ("fp16", "arithmetic")
    assert t4.seconds_at_least == pytest.approx(10**15 / 65e12)
    assert "stands in" in t4.notes[0]
    bare = bound(work, custom_accelerator(memory="80 GB", bandwidth_gb_per_s=100))
    assert (bare.rate_format, bare.arithmetic_seconds, bare.ridge_operations_per_byte) == (None, None, None)
    assert (bare.binds, bare.seconds_at_least) == ("bandwidth", 0.01)
    assert "only its bandwidth" in bare.notes[0]
    assert [term.name for term in bare.terms] == ["moving the bytes", "cannot be faster than"]


def test_every_accelerator_bounds(subtests: pytest.Subtests) -> None:
    for device in accelerators():
        with subtests.test(gpu=device.id):
            found = bound(Work(read_bytes=10**9, operations=10**9), device)  # type: ignore[arg-type]
            assert found.seconds_at_least > 0
            assert found.terms[0].value == found.bandwidth_seconds


@pytest.mark.parametrize("count", [0, -1, True, 1.5])
def test_counts_that_cannot_be(count: object) -> None:
    with pytest.raises(HardwareError, match="count of h100-sxm"):
        bound(Work(), accelerator("h100-sxm"), count=count)  # type: ignore[arg-type]


def test_a_format_that_nothing_computes_in() -> None:
    with pytest.raises(HardwareError, match="q8_0"):
        bound(Work(), accelerator("h100-sxm"), arithmetic="q8_0")
