"""Parameters counted from configurations, against counts that others made."""

from __future__ import annotations

import csv

import pytest

from kvcore.errors import UnitError
from kvcore.model import model_from_config
from kvcore.model.weight_formats import WEIGHT_FORMATS, weights_bytes
from kvcore.paths import DATA
from tests.models import config, llama, model

with (DATA / "models" / "weights_reference.csv").open(encoding="utf-8", newline="") as file:
    REFERENCE = tuple(csv.DictReader(file))
BUILT = {row["model_id"]: int(row["total_parameters"]) for row in REFERENCE if row["precision"] == "built"}
# Families whose parameters are not counted here: the product says that it does not know.
NOT_COUNTED = {"rwkv", "zamba2", "zamba", "longcat_flash", "jetmoe", "openelm"}
# Towers for images and sound are not counted, so the language model alone is smaller; the note on the page says so.
TOWERS = ("vision_config", "audio_config", "thinker_config", "vision_encoder", "visual")


def has_towers(model_id: str) -> bool:
    raw = config(model_id)
    return any(key in raw for key in TOWERS) or "ConditionalGeneration" in str(raw.get("architectures"))


def test_text_models_within_one_and_a_half_percent(subtests: pytest.Subtests) -> None:
    """transformers' own count of the same file; biases and learned positions are what is left out here."""
    for model_id in (name for name in BUILT if not has_towers(name)):
        with subtests.test(model=model_id):
            entry = model(model_id)
            if entry.model_type in NOT_COUNTED:
                assert entry.total_parameters is None
                continue
            assert entry.total_parameters is not None
            assert entry.total_parameters == pytest.approx(BUILT[model_id], rel=0.015)


def test_the_median_error_is_under_a_tenth_of_a_percent() -> None:
    errors = sorted(
        abs(entry.total_parameters / count - 1)
        for name, count in BUILT.items()
        if not has_towers(name) and (entry := model(name)).total_parameters is not None
    )
    assert len(errors) > 120
    assert errors[len(errors) // 2] < 0.001


def test_multimodal_models_are_never_counted_larger(subtests: pytest.Subtests) -> None:
    for model_id in (name for name in BUILT if has_towers(name)):
        with subtests.test(model=model_id):
            entry = model(model_id)
            assert entry.total_parameters is not None
            assert 0.6 * BUILT[model_id] < entry.total_parameters <= 1.001 * BUILT[model_id]


@pytest.mark.parametrize(
    ("model_id", "total", "active"),
    [
        ("deepseek-ai/DeepSeek-V3", 671, 37),
        ("deepseek-ai/DeepSeek-V2", 236, 21),
        ("moonshotai/Kimi-K2-Instruct", 1026, 32),
        ("Qwen/Qwen3-235B-A22B", 235, 22),
        ("openai/gpt-oss-120b", 117, 5),
        ("openai/gpt-oss-20b", 20.9, 3.6),
        ("zai-org/GLM-5", 744, 40),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", 108, 17),
        ("XiaomiMiMo/MiMo-V2-Flash", 309, 15),
        ("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4", 121, 12),
        ("databricks/dbrx-base", 132, 36),
        ("ai21labs/AI21-Jamba-1.5-Mini", 52, 12),
    ],
)
def test_published_total_and_active(model_id: str, total: float, active: float) -> None:
    """Billions as the publishers state them."""
    entry = model(model_id)
    assert entry.total_parameters is not None
    assert entry.active_parameters is not None
    assert entry.total_parameters / 1e9 == pytest.approx(total, rel=0.01)
    assert entry.active_parameters / 1e9 == pytest.approx(active, rel=0.08)


@pytest.mark.parametrize(
    ("model_id", "fmt", "gib"),
    [
        # Checkpoint sizes in GiB, rounded, from a public model catalogue (kaito-project/kaito @056b8280b1a8).
        ("meta-llama/Llama-3.3-70B-Instruct", "bf16", 131.42),
        ("meta-llama/Llama-3.1-8B-Instruct", "bf16", 14.96),
        ("mistralai/Mistral-7B-Instruct-v0.3", "bf16", 13.50),
        ("microsoft/phi-4", "bf16", 27.31),
        ("deepseek-ai/DeepSeek-V3", "fp8", 641.30 - 13.0),
        ("Qwen/Qwen3.5-122B-A10B", "bf16", 227.4),
    ],
)
def test_bytes_of_checkpoints(model_id: str, fmt: str, gib: float) -> None:
    """DeepSeek-V3's 641.30 GiB holds one more layer for multi-token prediction (about 13 GiB), which is not counted."""
    found = weights_bytes(model(model_id), fmt)
    assert found is not None
    assert found.knowledge == "estimated"
    assert found.bytes / 2**30 == pytest.approx(gib, rel=0.02)


def test_gpt_oss_keeps_all_but_its_experts_in_16_bits() -> None:
    found = weights_bytes(model("openai/gpt-oss-20b"))
    assert found is not None
    assert found.format == "mxfp4"
    # 13.76 GB: the published model.safetensors.index.json total_size, 13,761,264,768.
    assert found.bytes == pytest.approx(13_761_264_768, rel=0.01)


def test_formats_order_and_unknown_ones_are_refused() -> None:
    entry = model_from_config(llama())
    sizes = {name: weights_bytes(entry, name) for name in WEIGHT_FORMATS}
    assert all(found is not None and found.bytes > 0 for found in sizes.values())
    assert sizes["fp32"].bytes == 2 * sizes["bf16"].bytes  # type: ignore[union-attr]
    with pytest.raises(UnitError, match="known are"):
        weights_bytes(entry, "int3")
