"""What llama.cpp's own server logs about its caches, started here from its wheel, against our lines.

Every model is a GGUF file with weights of zeros, written by the `gguf` library for the test. Without the wheel
(xllamacpp, in requirements-dev.txt) every test here fails: none is skipped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvcore.deployment import Request, as_options
from kvcore.engines.llamacpp import LLAMACPP
from kvcore.engines.llamacpp.settings import LlamaCppSettings
from kvcore.errors import EngineError
from kvcore.model.gguf import model_from_gguf
from kvcore.model.model import Model
from tests.engines.llamacpp_server import attention, feed_forward, started, write_model

WIDTH = 64
BASE = {
    "embedding_length": WIDTH, "feed_forward_length": 32, "attention.layer_norm_rms_epsilon": 1e-6,
    "rope.dimension_count": 64,
}  # fmt: skip


def _llama(path: Path) -> Path:
    keys = BASE | {
        "block_count": 6, "context_length": 4000, "attention.head_count": 6, "attention.head_count_kv": 3,
        "attention.key_length": 80, "attention.value_length": 80, "rope.dimension_count": 80,
    }  # fmt: skip
    return write_model(path, "llama", keys, lambda _: {**attention(WIDTH, 6, 3, 80), **feed_forward(WIDTH)})


def _gemma3(path: Path) -> Path:
    """The layers, heads and window of Gemma 3 1B."""
    keys = BASE | {
        "block_count": 26, "context_length": 32768, "attention.head_count": 4, "attention.head_count_kv": 1,
        "attention.key_length": 256, "attention.value_length": 256, "attention.sliding_window": 512,
    }  # fmt: skip
    norms = {
        "attn_q_norm.weight": (256,), "attn_k_norm.weight": (256,), "post_attention_norm.weight": (WIDTH,),
        "post_ffw_norm.weight": (WIDTH,),
    }  # fmt: skip
    return write_model(path, "gemma3", keys, lambda _: {**attention(WIDTH, 4, 1, 256), **feed_forward(WIDTH), **norms})


def _jamba(path: Path) -> Path:
    """Attention in each fourth layer, Mamba in the others."""
    kv_heads = [2 if layer % 4 == 3 else 0 for layer in range(8)]
    keys = BASE | {
        "block_count": 8, "context_length": 8192, "attention.head_count": 4, "attention.head_count_kv": kv_heads,
        "ssm.conv_kernel": 4, "ssm.inner_size": 2 * WIDTH, "ssm.state_size": 16, "ssm.time_step_rank": 8,
        "rope.dimension_count": 16,
    }  # fmt: skip
    mamba = {
        "ssm_in.weight": (WIDTH, 4 * WIDTH), "ssm_conv1d.weight": (4, 2 * WIDTH), "ssm_conv1d.bias": (2 * WIDTH,),
        "ssm_x.weight": (2 * WIDTH, 40), "ssm_dt_norm.weight": (8,), "ssm_dt.weight": (8, 2 * WIDTH),
        "ssm_dt.bias": (2 * WIDTH,), "ssm_b_norm.weight": (16,), "ssm_c_norm.weight": (16,),
        "ssm_a": (16, 2 * WIDTH), "ssm_d": (2 * WIDTH,), "ssm_out.weight": (2 * WIDTH, WIDTH),
    }  # fmt: skip
    attends = attention(WIDTH, 4, 2, 16)
    return write_model(
        path, "jamba", keys, lambda layer: {**(attends if kv_heads[layer] else mamba), **feed_forward(WIDTH)}
    )


def _deci(path: Path) -> Path:
    """Layers of two widths, and one without attention."""
    kv_heads = [4, 2, 0, 2]
    keys = BASE | {
        "block_count": 4, "context_length": 8192, "attention.head_count": [4, 4, 0, 4], "attention.head_count_kv":
        kv_heads, "attention.key_length": 64, "attention.value_length": 64,
    }  # fmt: skip

    def layer(number: int) -> dict[str, tuple[int, ...]]:
        attends = attention(WIDTH, 4, kv_heads[number], 64) if kv_heads[number] else {}
        norms = feed_forward(WIDTH)
        return {**attends, **{name: shape for name, shape in norms.items() if attends or name != "attn_norm.weight"}}

    return write_model(path, "deci", keys, layer)


def _deepseek2(path: Path) -> Path:
    """The latent of DeepSeek-V2-Lite, in 27 dense layers."""
    keys = BASE | {
        "block_count": 27, "context_length": 163840, "leading_dense_block_count": 27, "attention.head_count": 4,
        "attention.head_count_kv": 1, "attention.kv_lora_rank": 512, "attention.key_length": 576,
        "attention.value_length": 512, "attention.key_length_mla": 192, "attention.value_length_mla": 128,
        "expert_feed_forward_length": 32, "expert_shared_count": 1,
    }  # fmt: skip
    tensors = {
        "attn_kv_a_norm.weight": (512,), "attn_q.weight": (WIDTH, 4 * 192), "attn_kv_a_mqa.weight": (WIDTH, 576),
        "attn_k_b.weight": (128, 512, 4), "attn_v_b.weight": (512, 128, 4), "attn_output.weight": (4 * 128, WIDTH),
    }  # fmt: skip
    return write_model(path, "deepseek2", keys, lambda _: {**tensors, **feed_forward(WIDTH)})


WRITERS = {"llama": _llama, "gemma3": _gemma3, "jamba": _jamba, "deci": _deci, "deepseek2": _deepseek2}
# What their parameter is called here and in the flags; the rest have one name.
_NAMES = {"n_ctx": "ctx_size", "n_parallel": "parallel", "n_ubatch": "ubatch_size", "n_batch": "batch_size"}
_FLASH = {"enabled": "on", "disabled": "off"}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "train context": ("llama", {"n_ctx": 0, "n_parallel": 1}),
    "streams that do not divide": ("llama", {"n_ctx": 5000, "n_parallel": 3, "kv_unified": False}),
    "unified": ("llama", {"n_ctx": 5000, "n_parallel": 3, "kv_unified": True, "cache_type_k": "bf16"}),
    "32-bit keys": ("llama", {"n_ctx": 300, "n_parallel": 2, "cache_type_k": "f32", "cache_type_v": "f16"}),
    "window": ("gemma3", {"n_ctx": 8192, "n_parallel": 1}),
    "windows of three streams": ("gemma3", {"n_ctx": 9000, "n_parallel": 3, "n_ubatch": 128}),
    "windows of one stream": ("gemma3", {"n_ctx": 9000, "n_parallel": 4, "kv_unified": True, "cache_type_k": "q8_0",
                                         "cache_type_v": "q5_1"}),
    "whole windows": ("gemma3", {"n_ctx": 6000, "n_parallel": 2, "swa_full": True, "cache_type_v": "iq4_nl"}),
    "window of a small batch": ("gemma3", {"n_ctx": 4096, "n_parallel": 1, "n_batch": 100, "n_ubatch": 512}),
    "states of slots": ("jamba", {"n_ctx": 4096, "n_parallel": 3, "kv_unified": True}),
    "states of streams": ("jamba", {"n_ctx": 4096, "n_parallel": 2, "cache_type_k": "f32"}),
    "layers of two widths": ("deci", {"n_ctx": 2048, "n_parallel": 1, "cache_type_k": "q4_0", "cache_type_v": "q8_0"}),
    "transposed values": ("deci", {"n_ctx": 2048, "n_parallel": 1, "flash_attn_type": "disabled"}),
    "latent": ("deepseek2", {"n_ctx": 2000, "n_parallel": 2}),
    "latent in 8 bits": ("deepseek2", {"n_ctx": 2000, "n_parallel": 1, "cache_type_k": "q8_0", "cache_type_v": "q8_0"}),
}  # fmt: skip
# What is refused, in our words and in the server's.
REFUSED: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "head that blocks do not divide": (
        "llama", {"n_ctx": 1024, "n_parallel": 1, "cache_type_k": "q8_0"}, "does not divide a head of 80",
        "K cache type q8_0 with block size 32 does not divide n_embd_head_k=80"),
    "quantised values without flash attention": (
        "gemma3", {"n_ctx": 1024, "n_parallel": 1, "cache_type_v": "q8_0", "flash_attn_type": "disabled"},
        "requires flash_attn", "quantized V cache requires flash_attn to be enabled"),
    "latents of two types": (
        "deepseek2", {"n_ctx": 1024, "n_parallel": 1, "cache_type_k": "q8_0", "cache_type_v": "f16"},
        "does not support different K", "model does not support different K (q8_0) and V (f16) cache types"),
}  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {name: write(folder / f"{name}.gguf") for name, write in WRITERS.items()}


def ours(path: Path, settings: Mapping[str, Any]) -> tuple[Model, LlamaCppSettings]:
    with path.open("rb") as file:
        model = model_from_gguf(file, path.stem)
    flags = {_NAMES.get(name, name): value for name, value in settings.items()}
    if "flash_attn_type" in flags:
        flags["flash_attn"] = _FLASH[flags.pop("flash_attn_type")]
    common = Request(platform="cpu")
    return model, LLAMACPP.settings(model, replace(common, options=as_options(flags)))


@pytest.mark.parametrize("name", CASES)
def test_the_server_logs_our_lines(name: str, files: dict[str, Path]) -> None:
    file, settings = CASES[name]
    model, flags = ours(files[file], settings)
    start = started(files[file], settings)
    assert start.ready, start.text[-2000:]
    assert start.cache_lines == LLAMACPP.log_lines(model, flags)
    assert start.cache_lines == LLAMACPP.capacity(model, flags, 2**40).log_lines


@pytest.mark.parametrize("name", REFUSED)
def test_the_server_refuses_what_we_refuse(name: str, files: dict[str, Path]) -> None:
    file, settings, why, words = REFUSED[name]
    model, flags = ours(files[file], settings)
    with pytest.raises(EngineError, match=why):
        LLAMACPP.layout(model, flags)
    start = started(files[file], settings)
    assert words in start.text
    assert (start.ready, start.cache_lines) == (False, ())
