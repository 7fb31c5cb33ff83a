"""Shapes: read from configurations, varied, cut, counted; what cannot run is refused by name."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from kvcore.errors import LiveError
from kvcore.live.shape import (
    FAMILIES,
    as_variant,
    cut,
    model_of,
    parameters,
    shape_from_config,
    shape_of_catalogue,
    step_weight_bytes,
    weight_bytes,
)
from kvcore.sources import catalogue
from kvcore.variants.variants import variant
from tests.models import llama

CATALOGUED = [one.entry.model_id for one in catalogue.summaries() if one.family in FAMILIES]
SMOLLM2 = "HuggingFaceTB/SmolLM2-135M-Instruct"
# Embedding models of the catalogue have no output head; the engine gives them one.
HEADLESS = {"intfloat/e5-mistral-7b-instruct", "Qwen/Qwen3-Embedding-8B", "Skywork/Skywork-Reward-Llama-3.1-8B-v0.2"}


def test_smollm2_as_published() -> None:
    shape = shape_of_catalogue(SMOLLM2)
    assert (shape.num_layers, shape.hidden_size, shape.intermediate_size) == (30, 576, 1536)
    assert (shape.num_heads, shape.num_kv_heads, shape.head_dim, shape.vocab_size) == (9, 3, 64, 49_152)
    assert (shape.rope_theta, shape.rms_norm_eps, shape.tied, shape.context_limit) == (100_000.0, 1e-5, True, 8192)
    assert shape.windows == (None,) * 30
    assert shape.attention == "GQA"
    # The published safetensors hold 134,515,008 numbers.
    assert parameters(shape) == 134_515_008
    assert weight_bytes(shape, "bf16") == step_weight_bytes(shape, "bf16") == 269_030_016
    assert weight_bytes(shape, "fp32") == 538_060_032


def test_bytes_of_packed_weights_by_hand() -> None:
    """SmolLM2, one layer: qkv 960 × 576, o 576 × 576, gate and up 3072 × 576, down 576 × 1536; the head 49152 × 576.

    int8 takes a byte a number and 2 a row; int4 half a byte a number and 4 for every 32. The step reads the packed
    matrices and, in 16 bits, 30 × 2 + 1 norms of 576; the whole keeps the 16-bit weights too.
    """
    shape = shape_of_catalogue(SMOLLM2)
    layer, head = 960 * 576 + 576 * 576 + 3072 * 576 + 576 * 1536, 49_152 * 576
    rows = 30 * (960 + 576 + 3072 + 576) + 49_152
    norms = 2 * 61 * 576
    numbers = 30 * layer + head
    assert step_weight_bytes(shape, "int8") == numbers + 2 * rows + norms
    assert step_weight_bytes(shape, "int4") == numbers // 2 + numbers // 32 * 4 + norms
    assert weight_bytes(shape, "int8") == 269_030_016 + numbers + 2 * rows
    with pytest.raises(LiveError, match="weight format 'q4_0' is not known here"):
        weight_bytes(shape, "q4_0")


@pytest.mark.parametrize("model_id", CATALOGUED)
def test_every_catalogued_model_of_a_family(model_id: str) -> None:
    model = catalogue.load(model_id)
    raw = catalogue.raw_config(model_id)
    if raw.get("model_type") not in FAMILIES:
        with pytest.raises(LiveError, match="cannot run live"):
            shape_of_catalogue(model_id)
        return
    shape = shape_of_catalogue(model_id)
    own = model_of(shape)
    assert own.layers == model.layers
    assert (own.hidden_size, own.num_attention_heads, own.vocab_size) == (
        model.hidden_size,
        model.num_attention_heads,
        model.vocab_size,
    )
    if model_id not in HEADLESS:
        assert own.weights == model.weights
        # kvcore leaves biases and the norms of heads out.
        assert model.total_parameters is not None
        assert 0 <= parameters(shape) - model.total_parameters <= 0.001 * model.total_parameters


@pytest.mark.parametrize("text", ["mha", "gqa:3", "mqa", "mla", "MLA:128+32", "sliding:256", "sliding:1k/5"])
def test_variants_keep_what_the_size_screen_says(text: str) -> None:
    shape = shape_of_catalogue(SMOLLM2)
    varied = as_variant(shape, text)
    expected = variant(catalogue.load(SMOLLM2), text)
    assert model_of(varied).layers == expected.layers
    assert model_of(varied).weights == expected.weights
    assert as_variant(shape, "shipped") is shape


def test_a_variant_of_a_window_sees_everything() -> None:
    windowed = shape_of_catalogue("mistralai/Mistral-7B-v0.1")
    assert windowed.attention == "GQA, window 4,096"
    assert as_variant(windowed, "mqa").windows == (None,) * 32
    assert as_variant(windowed, "sliding:128/2").windows == (128, None) * 16


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gqa:4", "must divide the 9 query heads"),
        ("hybrid:4", "variant hybrid:4:mamba2 cannot run live; those that can are shipped, mha"),
        ("share:2", "cannot run live"),
        ("sparse", "is not known"),
        ("mla:64+0", "takes pairs"),
        ("mla:64+7", "takes pairs"),
    ],
)
def test_variants_that_cannot_run(text: str, words: str) -> None:
    with pytest.raises(LiveError, match=words):
        as_variant(shape_of_catalogue(SMOLLM2), text)


def test_cut() -> None:
    shape = shape_of_catalogue("meta-llama/Llama-3.1-8B-Instruct")
    short = cut(shape, 4)
    assert (short.num_layers, short.windows, short.cut_from) == (4, (None,) * 4, 32)
    assert cut(short, 2).cut_from == 32
    assert cut(shape, 32) is shape
    # One layer of Llama 3.1 8B is 218,112,000 numbers: 4096 × (4096 + 2 × 1024 + 4096) + 3 × 4096 × 14336 + 2 × 4096.
    assert parameters(shape) - parameters(cut(shape, 31)) == 218_112_000
    for layers in (0, 33):
        with pytest.raises(LiveError, match=f"cannot keep {layers} of 32 layers"):
            cut(shape, layers)


def test_rope_in_either_place() -> None:
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    old = shape_from_config(llama(rope_theta=500000, rope_scaling=scaling | {"rope_type": "llama3"}))
    new = shape_from_config(llama(rope_parameters=scaling | {"rope_type": "llama3", "rope_theta": 500000}))
    assert old == new
    assert old.rope_theta == 500_000.0
    assert dict(old.rope_scaling) == scaling | {"rope_type": "llama3"}
    older = shape_from_config(llama(rope_scaling={"type": "linear", "factor": 2}))
    assert older.rope_scaling == (("rope_type", "linear"), ("factor", 2.0))
    assert shape_from_config(llama()).rope_theta == 10_000.0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "gemma2"}, "models of type 'gemma2' cannot run live; those that can are llama"),
        ({"model_type": "nonsense"}, "nonsense"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' cannot run live"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "rope scaling 'longrope' cannot run live"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "llama3 does not state low_freq_factor"),
        ({"rope_scaling": {"rope_type": "linear", "factor": "many"}}, "factor is many; expected a positive number"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "truncate": 1}}, "expected true or false"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "a rotary part of each head"),
        ({"rope_theta": -1}, "rope_theta is -1"),
        ({"rms_norm_eps": True}, "rms_norm_eps is True"),
        ({"intermediate_size": ...}, "intermediate_size is missing"),
        ({"attention_bias": "yes"}, "attention_bias"),
        ({"num_attention_heads": 7}, "7"),
        ({"head_dim": 63}, "takes pairs"),
    ],
)
def test_what_cannot_run_is_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(LiveError, match=words):
        shape_from_config(llama(**changes), "a model")


@pytest.mark.parametrize("raw", [[], None, "llama", {}, {"model_type": ["llama"]}])
def test_anything_else_is_refused(raw: Any) -> None:
    with pytest.raises(LiveError):
        shape_from_config(raw)


def test_a_latent_with_a_window_is_counted_alike() -> None:
    shape = replace(as_variant(shape_of_catalogue(SMOLLM2), "mla:128+32"), windows=(64,) * 30)
    assert {memory.kind for memory, _ in model_of(shape).groups} == {"sliding"}


def test_no_torch() -> None:
    code = "import sys, kvcore.live.shape; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
