"""Reading configurations: the irregular ones, and the refusals."""

from __future__ import annotations

from typing import Any

import pytest

from kvcore.errors import ConfigError, KVCoreError, UnknownLayoutError
from kvcore.model import Attention, Latent, NoMemory, SharedCache, State, model_from_config, parse_config
from kvcore.sizing import size
from tests.models import LLAMA, config, every_model, llama, model


def test_every_catalogued_model_is_understood(subtests: pytest.Subtests) -> None:
    for model_id in every_model():
        with subtests.test(model=model_id):
            entry = model(model_id)
            result = size(entry, 8192)
            assert entry.knowledge == "exact"
            assert result.resident_bytes > 0 or {kind for kind, _ in entry.kinds} == {"none"}
            assert sum(layer.resident_bytes for layer in result.layers) == result.resident_bytes
            assert entry.reading.keys_used


def kinds(raw: dict[str, Any]) -> list[str]:
    return [memories[0].kind for memories in model_from_config(raw).layers]


def test_layers_without_layer_types_follow_the_family() -> None:
    base = llama(num_hidden_layers=12, sliding_window=64)
    assert kinds(base | {"model_type": "gemma2"}) == ["sliding", "full"] * 6
    assert kinds(base | {"model_type": "gemma3_text"}) == (["sliding"] * 5 + ["full"]) * 2
    assert kinds(base | {"model_type": "cohere2"}) == (["sliding"] * 3 + ["full"]) * 3
    assert kinds(base | {"model_type": "mistral"}) == ["sliding"] * 12
    assert kinds(base | {"model_type": "mistral", "sliding_window": None}) == ["full"] * 12
    assert kinds(base | {"model_type": "exaone4", "sliding_window_pattern": "LLLG"}) == (["sliding"] * 3 + ["full"]) * 3
    assert kinds(base | {"model_type": "exaone4", "sliding_window": None}) == ["full"] * 12


def test_qwen_slides_only_where_it_is_told_to() -> None:
    base = llama(model_type="qwen2", num_hidden_layers=6, sliding_window=64, max_window_layers=4)
    assert kinds(base | {"use_sliding_window": False}) == ["full"] * 6
    assert kinds(base) == ["full"] * 6
    assert kinds(base | {"use_sliding_window": True}) == ["full"] * 4 + ["sliding"] * 2


def test_llama_4_is_full_in_every_fourth_layer() -> None:
    base = llama(model_type="llama4_text", num_hidden_layers=8, attention_chunk_size=128)
    assert kinds(base) == (["chunked"] * 3 + ["full"]) * 2
    assert kinds(base | {"no_rope_layers": []}) == (["chunked"] * 3 + ["full"]) * 2
    assert kinds(base | {"no_rope_layers": [1, 0] * 4}) == ["chunked", "full"] * 4
    assert kinds(base | {"attention_chunk_size": None}) == ["full"] * 8


def test_kv_heads_by_family() -> None:
    def heads(**changes: Any) -> int:
        memory = model_from_config(llama(num_key_value_heads=..., **changes)).layers[0][0]
        assert isinstance(memory, Attention)
        return memory.num_kv_heads

    assert heads() == 8
    assert heads(model_type="falcon") == 1
    assert heads(model_type="falcon", multi_query=False) == 8
    assert heads(model_type="falcon", new_decoder_architecture=True, num_kv_heads=4) == 4
    assert heads(model_type="gpt_bigcode") == 1
    assert heads(model_type="gpt_bigcode", multi_query=False) == 8
    assert heads(model_type="chatglm", multi_query_attention=True, multi_query_group_num=2) == 2
    assert heads(model_type="chatglm", multi_query_attention=False, multi_query_group_num=2) == 8
    assert heads(model_type="mpt", attn_config={"attn_type": "multiquery_attention"}) == 1
    assert heads(model_type="dbrx", attn_config={"kv_n_heads": 4}) == 4


def test_head_dim_is_read_before_it_is_divided() -> None:
    memory = model_from_config(llama(head_dim=128)).layers[0][0]
    assert isinstance(memory, Attention)
    assert memory.head_dim == 128


def test_a_latent_ignores_kv_heads_and_head_dim() -> None:
    """GLM-5 states head_dim 64 and 64 KV heads; neither sizes its 512 + 64 latent."""
    memory = model("zai-org/GLM-5").layers[0][0]
    assert memory == Latent(kv_lora_rank=512, qk_rope_head_dim=64, packed_bytes=656)


def test_a_null_rank_switches_the_latent_off() -> None:
    memory = model("deepseek-ai/deepseek-vl2-tiny").layers[0][0]
    assert memory == Attention(num_kv_heads=10, head_dim=128, v_head_dim=128)


def test_shared_layers_read_the_last_cache_of_their_own_law() -> None:
    layers = model("google/gemma-4-E2B-it").layers
    assert [isinstance(memories[0], SharedCache) for memories in layers] == [False] * 15 + [True] * 20
    owners = {memories[0].owner for memories in layers[15:] if isinstance(memories[0], SharedCache)}
    assert owners == {13, 14}


def test_cross_layer_attention_is_off_unless_it_is_on() -> None:
    off = llama(model_type="hunyuan", cla_share_factor=2, use_cla=False)
    on = off | {"use_cla": True}
    assert kinds(off) == ["full"] * 4
    assert kinds(on) == ["full", "shared"] * 2


def test_blocks_without_attention_keep_nothing() -> None:
    layers = model("nvidia/Llama-3_3-Nemotron-Super-49B-v1").layers
    assert sum(isinstance(memories[0], NoMemory) for memories in layers) == 31


def test_heads_may_differ_by_layer() -> None:
    layers = model("XiaomiMiMo/MiMo-V2-Flash").layers
    full, sliding = layers[0][0], layers[1][0]
    assert full == Attention(num_kv_heads=4, head_dim=192, v_head_dim=128)
    assert sliding == Attention(num_kv_heads=8, head_dim=192, v_head_dim=128, limit=128, law="sliding")


@pytest.mark.parametrize(
    ("model_id", "state"),
    [
        # Unpadded state pages of vLLM 0.33 (MambaSpec), bytes a layer.
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", 1_097_728),
        ("Qwen/Qwen3.5-27B", 3_207_168),
        # 8,192 channels × 3 × 2 B, and 32 heads × 128 × 128 in 32 bits.
        ("Qwen/Qwen3.5-4B", 2_146_304),
        ("ai21labs/AI21-Jamba-1.5-Mini", 311_296),
        ("nvidia/Nemotron-H-56B-Base-8K", 16_900_096),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4", 2_134_016),
        ("LiquidAI/LFM2.5-VL-1.6B", 8_192),
    ],
)
def test_states_equal_vllm(model_id: str, state: int) -> None:
    states = {memory.bytes for memory, _ in model(model_id).groups if isinstance(memory, State)}
    assert states == {state}


def test_a_declared_cache_format_is_auto() -> None:
    assert model("nvidia/Qwen3.6-27B-NVFP4").resolve_format().name == "fp8"
    assert model("nvidia/DeepSeek-V3.1-NVFP4").resolve_format().name in ("bf16", "fp8")
    scheme = {"kv_cache_scheme": {"num_bits": 8, "type": "float"}}
    assert model_from_config(llama(quantization_config=scheme)).resolve_format().name == "fp8"
    assert model_from_config(llama(quantization_config={"quant_method": "fp8"})).resolve_format().name == "bf16"
    assert model_from_config(llama(torch_dtype="float32")).resolve_format().name == "bf16"
    assert model_from_config(llama(torch_dtype="float16")).resolve_format().name == "fp16"


def test_an_unknown_model_type_is_refused_by_name_and_bounded_on_request() -> None:
    raw = llama(model_type="brand_new")
    with pytest.raises(UnknownLayoutError, match="brand_new"):
        model_from_config(raw)
    bound = model_from_config(raw, upper_bound=True)
    assert bound.knowledge == "upper_bound"
    assert size(bound, 1000).resident_bytes >= size(model_from_config(LLAMA), 1000).resident_bytes
    assert any("upper bound" in note.lower() for note in size(bound, 10).notes)


def test_no_bound_where_a_state_is_not_understood() -> None:
    with pytest.raises(UnknownLayoutError, match="state_size"):
        model_from_config(llama(model_type="brand_new", state_size=16), upper_bound=True)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("sliding_window", 128),
        ("kv_share_every", 2),
        ("num_kv_shared_layers_v2", 2),
        ("compress_ratios_new", [4, 4, 4, 4]),
        ("mamba_d_state", 16),
        ("swa_num_key_value_heads", 4),
        ("kv_lora_rank", 512),
        ("index_head_dim", 128),
        ("hybrid_override_pattern", "M*M*"),
    ],
)
def test_a_key_that_changes_the_cache_and_is_not_understood_is_refused_by_name(key: str, value: object) -> None:
    with pytest.raises(UnknownLayoutError, match=key) as refusal:
        model_from_config(llama(**{key: value}))
    assert refusal.value.keys == (key,)
    bound_or_refusal = "exact"
    try:
        bound_or_refusal = model_from_config(llama(**{key: value}), upper_bound=True).knowledge
    except UnknownLayoutError:
        bound_or_refusal = "refused"
    assert bound_or_refusal in ("upper_bound", "refused")


@pytest.mark.parametrize("value", [None, False, 0, [], {}])
def test_a_key_that_is_switched_off_is_ignored(value: object) -> None:
    entry = model_from_config(llama(sliding_window_of_a_new_kind=value))
    assert "sliding_window_of_a_new_kind" in entry.reading.keys_ignored


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"num_hidden_layers": ...}, "num_hidden_layers"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_hidden_layers": -3}, "num_hidden_layers"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"num_hidden_layers": "80"}, "num_hidden_layers"),
        ({"num_hidden_layers": True}, "num_hidden_layers"),
        ({"num_hidden_layers": 3.5}, "num_hidden_layers"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"num_key_value_heads": 16}, "num_key_value_heads"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"hidden_size": 513}, "hidden_size"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"layer_types": ["full_attention", "mystery", "full_attention", "full_attention"]}, "mystery"),
        ({"layer_types": ["sliding_attention"] * 4}, "sliding_window"),
    ],
)
def test_a_malformed_key_is_named(changes: dict[str, Any], names: str) -> None:
    with pytest.raises(ConfigError, match=names):
        model_from_config(llama(**changes))


@pytest.mark.parametrize("raw", [None, [], "x", 3, {1: 2}, {}, {"text_config": {}}, {"text_config": {"model_type": 3}}])
def test_what_is_no_configuration_is_refused(raw: object) -> None:
    with pytest.raises(KVCoreError):
        model_from_config(raw)


@pytest.mark.parametrize("text", ["", "{", "[]", "nul", '{"a": }', "[" * 100_000, "\x00"])
def test_broken_json_says_where(text: str) -> None:
    with pytest.raises(ConfigError, match=r"config\.json"):
        parse_config(text)


def test_the_audit_names_what_was_used_ignored_and_assumed() -> None:
    entry = model_from_config(config("google/gemma-3-4b-it"))
    used = dict(entry.reading.keys_used)
    assert used["text_config.num_hidden_layers"] == "34"
    assert dict(entry.reading.defaults_used)["text_config.num_attention_heads"] == "8"
    assert any("defaults" in note for note in entry.reading.notes)
    assert "vision_config" in entry.reading.keys_ignored


def test_lists_that_go_on_belong_to_extra_layers() -> None:
    entry = model("deepseek-ai/DeepSeek-V4-Flash")
    assert len(entry.layers) == 43
    assert any("compress_ratios has 44 entries" in note for note in entry.reading.notes)


@pytest.mark.parametrize(
    ("text", "read"),
    [('{"_name_or_path": "\\ud800"}', {"_name_or_path": "?"}), ('{"\\udfff": 1}', {"?": 1}),
     ('{"a": ["\\uDC00x"]}', {"a": ["?x"]})],
)  # fmt: skip
def test_half_a_character_becomes_a_question_mark(text: str, read: dict[str, Any]) -> None:
    """It is valid JSON, but nothing that shows or stores it could write it."""
    assert parse_config(text) == read


def test_whole_characters_are_read_however_they_are_written() -> None:
    assert parse_config('{"a": "\\ud83d\\ude00"}') == {"a": "\N{GRINNING FACE}"}


def test_a_key_with_a_dot_is_a_key() -> None:
    with pytest.raises(UnknownLayoutError, match="sliding_window_pattern"):
        model_from_config({**LLAMA, "x.sliding_window_pattern": 6})


@pytest.mark.parametrize("name", ["²", "9" * 5000, "99", "first"])
def test_a_layer_that_is_no_layer_is_refused(name: str) -> None:
    with pytest.raises(UnknownLayoutError, match="per_layer_config.* is not understood"):
        model_from_config(LLAMA | {"per_layer_config": {name: {"num_key_value_heads": 2}}})
