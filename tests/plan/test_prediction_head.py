"""Prediction layers against published counts of parameters, and what a configuration says of them."""

from __future__ import annotations

from typing import Any

import pytest

from kvcore.model import model_from_config
from kvcore.model.memories import Attention, Indexer, Latent
from kvcore.model.prediction import left_alone
from kvcore.ranks.parts import no_head, prediction_head
from kvcore.sources import catalogue
from tests.models import llama, model

# What a checkpoint holds beside the language model: the parameters that its repository's safetensors headers add up to
# (huggingface.co, `safetensors.total`), less fp8 scales and less the model that transformers builds from its
# configuration (data/models/weights_reference.csv). DeepSeek and GLM store the embedding and the head once more.
PUBLISHED = {
    "deepseek-ai/DeepSeek-V3": 684_531_386_000 - 41_555_600 - 671_026_404_352 - 2 * 129_280 * 7168,
    "zai-org/GLM-4.5": 358_337_791_296 - 352_797_814_784 - 2 * 151_552 * 5120,
    "zai-org/GLM-4.5-Air": 110_468_824_832 - 106_852_245_504 - 2 * 151_552 * 4096,
    "Qwen/Qwen3-Next-80B-A3B-Instruct": 81_324_862_720 - 79_674_391_296,
}


@pytest.mark.parametrize("model_id", PUBLISHED)
def test_parameters_are_those_of_the_published_checkpoint(model_id: str) -> None:
    head = prediction_head(catalogue.load(model_id))
    assert head is not None
    # Norms are not counted.
    assert head.total_parameters == pytest.approx(PUBLISHED[model_id], rel=3e-5)
    assert (head.total_parameters or 0) <= PUBLISHED[model_id]


def test_deepseek_states_its_own_module() -> None:
    """README_WEIGHTS.md of DeepSeek-V3: 11.5B unique parameters, without embedding and output head."""
    head = prediction_head(catalogue.load("deepseek-ai/DeepSeek-V3"))
    assert head is not None
    assert head.total_parameters == pytest.approx(11.5e9, rel=0.01)
    assert {part.name for part in head.weights}.isdisjoint({"embedding", "output head"})


def test_what_a_module_keeps() -> None:
    """vLLM 0.32: MiMo-V2's attends over the window (mimo_v2_mtp.py), DeepSeek-V4's too; those of sparse attention have
    an indexer of their own even where layers share one (deepseek_v2.py, is_mtp_layer)."""
    mimo = prediction_head(catalogue.load("XiaomiMiMo/MiMo-V2-Flash"))
    assert mimo is not None
    assert mimo.layers == ((Attention(num_kv_heads=8, head_dim=192, v_head_dim=128, limit=128, law="sliding"),),)
    deepseek = prediction_head(catalogue.load("deepseek-ai/DeepSeek-V4-Pro"))
    assert deepseek is not None
    ((window,),) = deepseek.layers
    assert isinstance(window, Latent)
    assert window.window == 128
    glm = prediction_head(catalogue.load("zai-org/GLM-5.2"))
    assert glm is not None
    assert [type(memory) for memory in glm.layers[0]] == [Latent, Indexer]
    nemotron = prediction_head(catalogue.load("nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16"))
    assert nemotron is not None
    assert [layer[0].kind for layer in nemotron.layers] == ["full", "none"]


def test_a_dense_module_beside_experts() -> None:
    """MiMo-V2: 64 query heads of 192 and values of 128, 8 KV heads, a feed-forward part of 16,384, by hand."""
    head = prediction_head(catalogue.load("XiaomiMiMo/MiMo-V2-Flash"))
    assert head is not None
    assert head.total_parameters == 4096 * (64 * 192 + 8 * (192 + 128) + 64 * 128 + 3 * 16_384 + 2 * 4096)


@pytest.mark.parametrize(
    ("model_id", "why"),
    [
        ("moonshotai/Kimi-K2-Instruct", "num_nextn_predict_layers is 0"),
        ("meta-llama/Llama-3.1-8B-Instruct", "has no prediction layers of its own"),
        ("stepfun-ai/Step-3.7-Flash", "'step3p7' are built is not known"),
        ("MiniMaxAI/MiniMax-M2.7", "'minimax_m2' are built is not known"),
    ],
)
def test_what_has_none_or_is_not_known_says_so(model_id: str, why: str) -> None:
    loaded = catalogue.load(model_id)
    assert why in no_head(loaded)
    assert prediction_head(loaded) is None


@pytest.mark.parametrize("stated", [True, -1, 1.5, "1", [1], 10**9, None])
def test_a_count_that_cannot_be_is_none(stated: Any) -> None:
    raw = llama(model_type="mimo", num_nextn_predict_layers=stated)
    assert model_from_config(raw).prediction.modules == 0


@pytest.mark.parametrize(
    ("model_id", "alone"),
    [
        # Their lists name the whole module; Qwen's fp8 names its joint and gates only, GLM's its norms and joint.
        ("nvidia/DeepSeek-V3.1-NVFP4", True),
        ("nvidia/GLM-5-NVFP4", True),
        ("nvidia/Qwen3.6-27B-NVFP4", True),
        ("nvidia/DeepSeek-V4-Pro-NVFP4", True),
        ("nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-NVFP4", True),
        ("Qwen/Qwen3.5-122B-A10B-FP8", False),
        ("zai-org/GLM-5.1-FP8", False),
        ("deepseek-ai/DeepSeek-V3", False),
    ],
)
def test_whether_a_quantiser_left_the_module_alone(model_id: str, alone: bool) -> None:
    assert catalogue.load(model_id).prediction.sixteen_bits is alone


@pytest.mark.parametrize(
    ("entry", "alone"),
    [("mtp*", True), ("mtp.*", True), ("re:^mtp.*", True), ("model.layers.61", True), ("model.layers.61.*", True),
     ("model.layers.61.eh_proj", False), ("model.layers.6*", False), ("mtp.fc", False), ("lm_head", False)],
)  # fmt: skip
def test_patterns_that_cover_a_module(entry: str, alone: bool) -> None:
    assert left_alone({"ignore": [entry]}, 61) is alone


def test_a_model_read_again_is_the_same_model() -> None:
    assert model("deepseek-ai/DeepSeek-V3").prediction == catalogue.load("deepseek-ai/DeepSeek-V3").prediction
