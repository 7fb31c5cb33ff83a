"""Formats against the bytes that engines lay out; reference values are not ours."""

from __future__ import annotations

import pytest

from kvcore.errors import UnitError
from kvcore.formats import ELEMENT_FORMATS, KV_FORMATS, element_format, kv_format

# Bytes a token for one KV head, K and V together: vLLM 0.33, from its backends' own page sizes.
VLLM = {
    "bf16": (256, 512, 1024),
    "fp8": (128, 256, 512),
    "fp8_per_token_head": (136, 264, 520),
    "int8_per_token_head": (136, 264, 520),
    "int4_per_token_head": (72, 136, 264),
    "nvfp4": (72, 144, 288),
    "turboquant_k8v4": (100, 196, 388),
    "turboquant_4bit_nc": (70, 134, 262),
    "turboquant_k3v4_nc": (62, 118, 230),
    "turboquant_3bit_nc": (54, 102, 198),
}
# Bytes of 32 numbers: llama.cpp, ggml/src/ggml-common.h.
GGML = {"fp32": 128, "fp16": 64, "bf16": 64, "q8_0": 34, "q5_1": 24, "q5_0": 22, "q4_1": 20, "q4_0": 18, "iq4_nl": 18}


@pytest.mark.parametrize("name", VLLM)
def test_vllm_bytes(name: str) -> None:
    assert tuple(kv_format(name).kv_bytes(1, width, width) for width in (64, 128, 256)) == VLLM[name]


@pytest.mark.parametrize("name", GGML)
def test_llama_cpp_rows(name: str) -> None:
    assert element_format(name).row_bytes(1, 32) == GGML[name]
    assert element_format(name).row_bytes(8, 128) == 32 * GGML[name]


def test_llama_cpp_blocks_span_heads() -> None:
    """A row of 40 heads of 80 is 3,200 numbers, 100 blocks; per head it would be 2.5 blocks."""
    assert element_format("q8_0").row_bytes(40, 80) == 100 * 34


def test_packed_latents() -> None:
    assert kv_format("fp8_ds_mla").latent_bytes(576, 656) == 656
    assert kv_format("bf16").latent_bytes(576, 656) == 1152
    assert kv_format("fp8").latent_bytes(576, 656) == 576
    with pytest.raises(UnitError, match="512 \\+ 64"):
        kv_format("fp8_ds_mla").latent_bytes(288, None)
    with pytest.raises(UnitError, match="latent"):
        kv_format("fp8_ds_mla").kv_bytes(8, 128, 128)
    with pytest.raises(UnitError, match="pairs K with V"):
        kv_format("turboquant_4bit_nc").latent_bytes(576, 656)


def test_keys_and_values_may_differ() -> None:
    mixed = kv_format("q8_0/q4_0")
    assert mixed.kv_bytes(8, 128, 128) == 32 * 34 + 32 * 18
    assert kv_format("F16/f16") == kv_format("fp16")
    assert kv_format("bf16/fp8").name == "bf16/fp8"


@pytest.mark.parametrize(
    "text", ["", "fp7", "bf16/", "/", "a/b/c", "turboquant_k8v4/bf16", "x" * 500, "fp8_ds_mla/fp8"]
)
def test_unknown_formats_name_the_known_ones(text: str) -> None:
    with pytest.raises(UnitError, match="known are"):
        kv_format(text)


def test_every_format_has_a_label_and_a_source() -> None:
    for entry in ELEMENT_FORMATS.values():
        assert entry.label, entry.name
        assert entry.source, entry.name
    assert set(ELEMENT_FORMATS) < set(KV_FORMATS)


def test_formats_order_by_size() -> None:
    order = [
        "fp32",
        "bf16",
        "q8_0",
        "int8_per_token_head",
        "fp8",
        "int6",
        "q5_0",
        "int4_per_token_head",
        "q4_0",
        "kivi2",
    ]
    sizes = [kv_format(name).kv_bytes(8, 128, 128) for name in order]
    assert sizes[:2] == [16384 // 2, 4096]
    assert sizes[-1] == min(sizes)
    assert kv_format("q8_0").kv_bytes(8, 128, 128) > kv_format("fp8").kv_bytes(8, 128, 128)
    assert kv_format("kivi2").kv_bytes(8, 128, 128) == 2 * 8 * (32 + 4 * 4)
