"""The facts that a Model carries, read once from its configuration."""

from __future__ import annotations

import ast
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest

import kvcore
from kvcore.deployment import Deployment
from kvcore.hardware.gpus import accelerator
from kvcore.model import model_from_config
from kvcore.model.gguf import model_from_gguf
from kvcore.model.model import RopeScaling, Widths
from kvcore.model.towers import Tower
from kvcore.planning.plan import make_plan
from kvcore.sources import catalogue
from tests.gguf_writer import windowed, write
from tests.models import config, llama, model


@pytest.mark.parametrize(
    ("model_id", "widths"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", Widths(feed_forward=14_336)),
        # 128 experts of 8,192 columns and one shared; dense layers of intermediate_size_mlp.
        (
            "meta-llama/Llama-4-Maverick-17B-128E-Instruct",
            Widths(feed_forward=16_384, experts=8_192, shared_experts=8_192),
        ),
        ("MiniMaxAI/MiniMax-M3", Widths(feed_forward=12_288, experts=3_072, shared_experts=3_072)),
        # shared_intermediate_size is not the width of an expert.
        ("ibm-granite/granite-4.0-h-small", Widths(feed_forward=768, experts=768, shared_experts=1_536)),
        # The stated 22,016 is gate and up together.
        ("Qwen/Qwen-7B-Chat", Widths(feed_forward=11_008)),
        # Not stated: four times the model's width.
        ("bigscience/bloom-7b1", Widths(feed_forward=16_384)),
    ],
)
def test_widths(model_id: str, widths: Widths) -> None:
    assert model(model_id).widths == widths


def test_a_linear_scaling_is_read_whatever_else_its_object_holds() -> None:
    raw = config("google/gemma-3-4b-it")
    stated = raw["text_config"]["rope_scaling"]
    linear = (RopeScaling(kind="linear", factor=8.0, positions=131_072),)
    assert model_from_config(raw).rope == linear
    raw["text_config"]["rope_scaling"] = {"original_max_position_embeddings": 8192, "rope_theta": 1_000_000.0, **stated}
    assert model_from_config(raw).rope == linear
    raw["text_config"]["rope_scaling"] = None
    raw["text_config"]["rope_parameters"] = {
        "sliding_attention": {"rope_theta": 10_000.0, "rope_type": "default"},
        "full_attention": {"rope_theta": 1_000_000.0, **stated},
    }
    assert model_from_config(raw).rope == linear
    for broken in ({"rope_type": "linear"}, {"rope_type": "linear", "factor": "8"}, {"factor": 10**400}, [8], "linear"):
        raw["text_config"]["rope_parameters"] = broken
        assert model_from_config(raw).rope == ()


def test_a_gguf_file_states_the_same_scaling() -> None:
    keys = windowed({"max_position_embeddings": 131_072} | config("google/gemma-3-27b-it")["text_config"])
    keys |= {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0}
    found = model_from_gguf(BytesIO(write("gemma3", keys)), "mine")
    assert found.rope == model("google/gemma-3-27b-it").rope
    assert found.tower is None


def test_a_tower_is_that_of_the_configuration() -> None:
    # 896 / 14 = 64 patches a side; mm_tokens_per_image.
    gemma = Tower(hidden=1152, rows=64 * 64, tokens=256)
    raw = config("google/gemma-3-27b-it")
    assert model_from_config(raw, "mine").tower == model_from_config(raw).tower == gemma
    raw["vision_config"]["image_size"] = 448
    assert model_from_config(raw).tower == Tower(hidden=1152, rows=32 * 32, tokens=256)
    del raw["vision_config"]
    usual = model_from_config(raw).tower
    assert usual is not None
    assert not usual.stated
    raw["architectures"] = ["Gemma3ForCausalLM"]
    assert model_from_config(raw).tower is None
    assert model("meta-llama/Llama-3.1-8B-Instruct").tower is None


def test_a_tower_of_a_part_of_the_model() -> None:
    # Qwen2.5-Omni holds its towers in thinker_config: 1,280 columns, the largest picture of Qwen's processors.
    assert model("Qwen/Qwen2.5-Omni-7B").tower == Tower(hidden=1280, rows=65_536, tokens=16_384)


def test_a_model_is_planned_alike_under_every_name() -> None:
    known = catalogue.load("google/gemma-3-27b-it")
    chosen = Deployment(engine="vllm", gpu=accelerator("h100-sxm"), context=8192, weight_format="fp8")
    for name in ("mine", "meta-llama/Llama-3.1-8B-Instruct"):
        mine = model_from_config(catalogue.raw_config("google/gemma-3-27b-it"), name)
        found = make_plan(replace(mine, checkpoint_bytes=known.checkpoint_bytes), chosen)
        assert found.kv_bytes == make_plan(known, chosen).kv_bytes
        assert found.kv_bytes is not None
        assert found.kv_bytes.low / 1e9 == pytest.approx(36.90, abs=0.05)


def test_what_only_one_engine_or_one_count_needs() -> None:
    assert model("Qwen/Qwen3.5-4B").state_dtype == "float32"
    assert model("nvidia/Nemotron-H-56B-Base-8K").state_dtype is None
    flash = model("XiaomiMiMo/MiMo-V2-Flash")
    assert flash.window_of_past
    named = config("XiaomiMiMo/MiMo-V2-Flash")
    del named["sliding_window_size"]
    assert not model_from_config(named).window_of_past
    assert model("zai-org/GLM-5.2").prediction_keys == ("index_share_for_mtp_iteration", "num_nextn_predict_layers")
    assert model("meta-llama/Llama-3.1-8B-Instruct").prediction_keys == ()


def test_query_heads_of_some_layers() -> None:
    elm = {"model_type": "openelm", "num_transformer_layers": 3, "model_dim": 512, "head_dim": 64}
    own = model_from_config(elm | {"num_query_heads": [4, 8, 8], "num_kv_heads": [2, 2, 2]})
    assert own.other_query_heads == ("num_query_heads",)
    same = model_from_config(elm | {"num_query_heads": [8, 8, 8], "num_kv_heads": [2, 2, 2]})
    assert same.other_query_heads == ()
    flash = config("XiaomiMiMo/MiMo-V2-Flash")
    assert model_from_config(flash).other_query_heads == ()
    flash["swa_num_attention_heads"] //= 2
    assert model_from_config({"text_config": flash}).other_query_heads == ("text_config.swa_num_attention_heads",)
    step = {"attention_other_setting": {"num_attention_heads": 16, "num_attention_groups": 2}}
    step |= {"layer_types": ["full_attention", "sliding_attention"] * 2, "sliding_window": 64}
    found = model_from_config(llama(model_type="step3p5", **step))
    assert found.other_query_heads == ("attention_other_setting.num_attention_heads",)


def _reads_the_audit(node: ast.AST) -> bool:
    """`….keys_used` and its like, or `….reading` of something that is called a model."""
    if not isinstance(node, ast.Attribute):
        return False
    owner = node.value
    name = owner.attr if isinstance(owner, ast.Attribute) else owner.id if isinstance(owner, ast.Name) else ""
    return node.attr in ("keys_used", "keys_ignored", "defaults_used") or (node.attr == "reading" and "model" in name)


def test_nothing_is_computed_from_what_people_are_shown() -> None:
    """The audit of keys is text for people: outside the readers only an answer's JSON and the screens show it."""
    folder = Path(kvcore.__file__).parent
    found = [
        f"{path.relative_to(folder)}:{node.lineno}"
        for path in folder.rglob("*.py")
        # A size lists the keys in its JSON form, which is for people.
        if path.relative_to(folder).parts[0] not in ("model", "sizing.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if _reads_the_audit(node)
    ]
    assert found == []
    (seen,) = (node for node in ast.walk(ast.parse("x = entry.model.reading.notes")) if _reads_the_audit(node))
    assert seen.lineno == 1
