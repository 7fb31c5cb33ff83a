"""Weights of published checkpoints against their published sizes, and what quantised ones say of their parts."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import replace

import pytest

from kvcore.deployment import Deployment
from kvcore.hardware.gpus import accelerator
from kvcore.model import Model, model_from_config
from kvcore.model.stored_bits import Named
from kvcore.model.weight_formats import weights_bytes
from kvcore.paths import DATA
from kvcore.sources import catalogue
from kvcore.units import GIB
from tests.models import LLAMA, llama, rank_weights

# transformers loads a checkpoint as it is: nothing is padded, split or copied.
PLAIN = Deployment(gpu=accelerator("h100-sxm"), context=8192, engine="transformers")


def published() -> dict[str, float]:
    """Bytes by model, where its own checkpoint's size is known: the catalogue's rows, then the reference's."""
    found: dict[str, float] = {}
    for entry in catalogue.entries():
        size = entry.checkpoint_bytes or (entry.checkpoint_gib_rounded or 0) * GIB
        if size:
            found[entry.model_id] = size
    with (DATA / "models" / "weights_reference.csv").open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            size = float(row["checkpoint_bytes"] or 0) or float(row["checkpoint_gib_rounded"] or 0) * GIB
            if size and row["model_id"] == row["of"]:
                found.setdefault(row["model_id"], size)
    return found


PUBLISHED = published()
# GiB that a checkpoint holds and engines do not load as part of the model, by hand from its configuration.
SPECULATES = {
    # A layer for multi-token prediction: 256 experts and a shared one of 3 × 7168 × 2048 in fp8 with 58 more MiB of
    # attention, and its own embedding and head of 129,280 × 7168 in 16 bits.
    "deepseek-ai/DeepSeek-V3.2": (257 * 3 * 7168 * 2048 + 4 * 129_280 * 7168) / GIB,
    # Three draft layers (dspark), 256 experts of 3 × 4096 × 2048 in 4.25 bits.
    "deepseek-ai/DeepSeek-V4-Flash-0731": 3 * 256 * 3 * 4096 * 2048 * 4.25 / 8 / GIB,
    "deepseek-ai/DeepSeek-V4-Pro": 384 * 3 * 7168 * 3072 * 4.25 / 8 / GIB,
    "zai-org/GLM-5.2-FP8": 257 * 3 * 6144 * 2048 / GIB,
    # One layer with attention (queries and their gate, keys and values, output), feed-forward, and the joint of
    # 2 × hidden × hidden, in 16 bits.
    "Qwen/Qwen3.5-4B": 2 * 2560 * (8192 + 2 * 1024 + 4096 + 3 * 9216 + 2 * 2560) / GIB,
    "Qwen/Qwen3.5-9B": 2 * 4096 * (8192 + 2 * 1024 + 4096 + 3 * 12_288 + 2 * 4096) / GIB,
    "Qwen/Qwen3.5-122B-A10B": 2 * 256 * 3 * 3072 * 1024 / GIB,
    # One of 512 experts in the latent width of 2048, in 16 bits.
    "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-NVFP4": 2 * 512 * 2 * 2048 * 5120 / GIB,
}
# The repository holds its weights twice (a second copy in the publisher's own layout).
TWICE = {"openai/gpt-oss-20b", "openai/gpt-oss-120b"}


def counted(model: Model) -> int:
    """Bytes from the configuration, towers included, as if no index had been read."""
    (found,) = rank_weights(replace(model, checkpoint_bytes=None), PLAIN)
    return found.bytes


COUNTED = [model_id for model_id in PUBLISHED if catalogue.load(model_id).weights]


def test_enough_checkpoints_are_compared() -> None:
    assert len(COUNTED) >= 25
    assert set(SPECULATES) | TWICE <= set(COUNTED)


@pytest.mark.parametrize("model_id", COUNTED)
def test_published_sizes_are_met_within_two_percent(model_id: str) -> None:
    size = PUBLISHED[model_id] / (2 if model_id in TWICE else 1) - SPECULATES.get(model_id, 0) * GIB
    assert counted(catalogue.load(model_id)) == pytest.approx(size, rel=0.02)


@pytest.mark.parametrize(
    ("model_id", "gib", "tolerance"),
    [
        # In 4.5 bits 58 × 257 experts of 3 × 7,168 × 2,048, 3 dense layers of 3 × 7,168 × 18,432 and 61 output
        # projections of 16,384 × 7,168: 664.8 G × 0.5625 B. In 16 bits embedding and head (1.85 G), the other
        # projections of attention (61 × 69.7 M) and routers (0.11 G): 6.21 G × 2 B. Together 386.4 GB.
        ("nvidia/DeepSeek-V3.1-NVFP4", 386.4e9 / GIB, 0.005),
        ("nvidia/Qwen3-235B-A22B-NVFP4", 125, 0.01),
        # nvidia's documentation: 331 GB measured.
        ("nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-NVFP4", 331e9 / GIB, 0.02),
        # Not checked against a publisher's figure: a copy of this name was reported to leave room for 21 to 22 GiB of
        # weights, with a tower and a layer that speculates, which are not in this figure.
        ("nvidia/Qwen3.6-35B-A3B-NVFP4", 20.2, 0.05),
    ],
)
def test_mixed_precision(model_id: str, gib: float, tolerance: float) -> None:
    assert counted(catalogue.load(model_id)) / GIB == pytest.approx(gib, rel=tolerance)


def test_no_quantised_row_is_counted_in_16_bits() -> None:
    for entry in catalogue.entries():
        if "quantized variant" in entry.notes or entry.quantiser_source:
            model = catalogue.load(entry.model_id)
            assert model.stored_bits, entry.model_id
            found, plain = weights_bytes(model), weights_bytes(model, "bf16")
            assert found is not None
            assert plain is not None
            assert found.bytes < 0.75 * plain.bytes, entry.model_id


def test_attention_of_llama_405b_stays_in_16_bits() -> None:
    # 126 layers, hidden 16,384, 8 KV heads of 128; feed-forward 53,248 wide, in 16 bits in two layers.
    model = catalogue.load("meta-llama/Llama-3.1-405B-Instruct-FP8")
    bits = dict(model.stored_bits)
    assert bits["attention"] == 16
    assert bits["feed-forward"] == pytest.approx((124 * 8 + 2 * 16) / 126)
    (eighth,) = rank_weights(model, replace(PLAIN, engine="vllm", tp=8))
    attention = 126 * 2 * (2 * 16_384**2 + 2 * 16_384 * 1024)
    forward = (124 + 2 * 2) * 3 * 16_384 * 53_248
    ends = 2 * 2 * 128_256 * 16_384
    assert eighth.bytes / GIB == pytest.approx((attention + forward + ends) / 8 / GIB, rel=0.001)
    assert eighth.bytes / GIB == pytest.approx(56.7, rel=0.01)


LAYERS = LLAMA["num_hidden_layers"]


def quantised(**config: object) -> Model:
    return model_from_config(llama(quantization_config=config), "x")


def bits(model: Model) -> Mapping[str, float]:
    return dict(model.stored_bits)


def test_groups_name_their_modules() -> None:
    groups = {
        "group_0": {"targets": ["re:.*self_attn.*"], "weights": {"num_bits": 8, "type": "float"}},
        "group_1": {"targets": ["re:.*mlp.*"], "weights": {"num_bits": 4, "type": "float", "group_size": 16}},
    }
    model = quantised(quant_method="compressed-tensors", config_groups=groups)
    assert bits(model)["attention"] == 8
    assert bits(model)["feed-forward"] == 4.5
    assert bits(model)["embedding"] == bits(model)["norms"] == bits(model)["output head"] == 16
    # Most of its weights are in 4 bits.
    assert model.checkpoint_format == "nvfp4"


def test_what_is_not_named_by_mixed_precision_is_in_16_bits() -> None:
    layers = {f"model.layers.{layer}.mlp.down_proj": {"quant_algo": "FP8"} for layer in range(LAYERS)}
    model = quantised(quant_method="modelopt", quant_algo="MIXED_PRECISION", quantized_layers=layers)
    # One of three matrices of the feed-forward part.
    assert bits(model)["feed-forward"] == pytest.approx((2 * 16 + 8) / 3)
    assert bits(model)["attention"] == 16


def test_exceptions_count_by_layer_and_matrix() -> None:
    left = [f"model.layers.{layer}.mlp" for layer in range(2)] + ["model.layers.*.self_attn.o_proj"]
    model = quantised(quant_method="fp8", modules_to_not_convert=left)
    assert bits(model)["feed-forward"] == pytest.approx((2 * 16 + (LAYERS - 2) * 8) / LAYERS)
    assert 8 < bits(model)["attention"] < 16


def test_integers_have_a_scale_a_group() -> None:
    weights = {"num_bits": 4, "type": "int", "group_size": 128, "symmetric": True}
    model = quantised(config_groups={"group_0": {"targets": ["Linear"], "weights": weights}}, ignore=["lm_head"])
    assert bits(model)["feed-forward"] == 4 + 16 / 128


def test_a_quantisation_that_is_not_understood_is_told() -> None:
    model = quantised(quant_method="squeezellm-next")
    assert model.stored_bits == ()
    assert any("squeezellm-next" in note and "16 bits" in note for note in model.reading.notes)


def test_names_and_patterns_of_modules() -> None:
    named = Named({
        "model.layers.3.mlp": 1, "language_model.model.layers.4.self_attn*": 2, "re:.*shared_experts.*": 3, "gate": 4,
        "model.layers.61*": 5, "*.attn.*": 6,
    })  # fmt: skip
    assert named.of(3, ["mlp.down_proj"]) == 1
    assert named.of(5, ["mlp.down_proj", "self_attn.o_proj", "mlp.gate_proj"]) is None
    assert named.of(4, ["self_attn.o_proj"]) == 2
    assert named.of(5, ["mlp.shared_experts.down_proj"]) == 3
    assert named.of(5, ["mlp.gate"]) == 4
    assert named.of(61, ["mlp.down_proj"]) == 5
    assert named.of(6, ["attn.wo_b"]) == 6


def test_expressions_that_would_never_end_are_not_tried() -> None:
    assert Named({"re:(a+)+$": 1, "re:.*" * 9: 2}).of(3, ["a" * 60]) is None
