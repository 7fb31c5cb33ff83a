"""GGUF: the header of any size, and the same cache from it as from config.json and as a real llama.cpp logged."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from typing import Any

import gguf
import pytest

from kvcore.deployment import Request
from kvcore.engines.registry import engine, engine_names
from kvcore.engines.sglang.settings import SglangSettings
from kvcore.engines.sglang.states import state_parts
from kvcore.engines.vllm.settings import VllmSettings
from kvcore.engines.vllm.specs import state_bytes as vllm_state_bytes
from kvcore.errors import ConfigError, EngineError, UnknownLayoutError
from kvcore.formats import kv_format
from kvcore.model import Indexer, Latent, Model, NoMemory, SharedCache, State
from kvcore.model.gguf import model_from_gguf
from kvcore.model.gguf_layers import ARCHITECTURES
from kvcore.sizing import resident_bytes, size, state_bytes
from tests.gguf_writer import CONVERTED, LLAMA, TENSORS, base, jamba, rwkv7, write
from tests.models import config, model

F16 = kv_format("fp16")
# Gemma 3 leaves to its defaults what a GGUF file states (data/architectures.json).
GEMMA3 = {"max_position_embeddings": 131072}


def read(architecture: str, keys: Mapping[str, Any], **more: Any) -> Model:
    bound = more.pop("upper_bound", False)
    return model_from_gguf(BytesIO(write(architecture, keys, **more)), "test", upper_bound=bound)


def growing(found: Model, tokens: int) -> int:
    """Bytes of everything but recurrent state and indexers, in 16 bits."""
    kept = [(memory, count) for memory, count in found.groups if not isinstance(memory, State | Indexer)]
    return sum(count * memory.growth(F16).at(tokens) for memory, count in kept)


def state_numbers(found: Model) -> int:
    states = [(memory, count) for memory, count in found.groups if isinstance(memory, State)]
    return sum(count * part.bytes // part.element_bytes for memory, count in states for part in memory.parts)


def index_widths(found: Model) -> list[tuple[int, int]]:
    return [(count, memory.index_head_dim) for memory, count in found.groups if isinstance(memory, Indexer)]


@pytest.mark.parametrize(("model_id", "architecture", "mapping"), CONVERTED, ids=[row[0] for row in CONVERTED])
def test_a_gguf_keeps_what_its_config_keeps(model_id: str, architecture: str, mapping: Any) -> None:
    raw = config(model_id)
    found = read(architecture, mapping(GEMMA3 | raw.get("text_config", raw)))
    expected = model(model_id)
    for tokens in (0, 1, 127, 600, 5000, 20_000, 131_072):
        assert growing(found, tokens) == growing(expected, tokens), tokens
    assert [memories[0].kind for memories in found.layers] == [memories[0].kind for memories in expected.layers]
    assert index_widths(found) == index_widths(expected)
    # llama.cpp keeps states in 32-bit floats, whatever dtype the configuration states: the numbers are the same.
    assert state_numbers(found) == state_numbers(expected)
    assert state_bytes(found, F16) - growing(found, 0) == 4 * state_numbers(expected)
    assert found.knowledge == "exact"


# A real llama.cpp on a CPU (xllamacpp 2026.10.11549), its log lines "llama_kv_cache: size = …": for each cache of a
# model (cells, layers, K MiB, V MiB). Gemma 2 and 3, gpt-oss and DeepSeek-V2-Lite were files with the published
# layers, heads and windows, and small weights; SmolLM2 was the published one.
SMOL = {
    "block_count": 30, "embedding_length": 576, "context_length": 8192, "attention.head_count": 9,
    "attention.head_count_kv": 3,
}  # fmt: skip
LOGGED: tuple[tuple[str, str, Any, str, tuple[tuple[int, int, float, float], ...]], ...] = (
    ("smollm2-135m", "llama", SMOL, "fp16", ((8192, 30, 90.0, 90.0),)),
    ("smollm2-135m", "llama", SMOL, "fp16/q4_0", ((4096, 30, 45.0, 12.66),)),
    ("smollm2-135m", "llama", SMOL, "bf16", ((4096, 30, 45.0, 45.0),)),
    ("smollm2-135m", "llama", SMOL, "fp16", ((16384, 30, 180.0, 180.0),)),
    ("google/gemma-2-2b", "gemma2", None, "fp16", ((8192, 13, 208.0, 208.0), (4608, 13, 117.0, 117.0))),
    ("google/gemma-2-2b", "gemma2", None, "fp16", ((8192, 13, 208.0, 208.0), (8192, 13, 208.0, 208.0))),
    ("google/gemma-3-27b-it", "gemma3", None, "fp16", ((16384, 10, 640.0, 640.0), (1536, 52, 312.0, 312.0))),
    ("google/gemma-3-27b-it", "gemma3", None, "fp16", ((16384, 10, 640.0, 640.0), (16384, 52, 3328.0, 3328.0))),
    ("google/gemma-3-27b-it", "gemma3", None, "q4_0", ((16384, 10, 180.0, 180.0), (1536, 52, 87.75, 87.75))),
    ("openai/gpt-oss-20b", "gpt-oss", None, "fp16", ((32768, 12, 384.0, 384.0), (768, 12, 9.0, 9.0))),
    ("openai/gpt-oss-20b", "gpt-oss", None, "fp16", ((32768, 12, 384.0, 384.0), (32768, 12, 384.0, 384.0))),
    ("deepseek-ai/DeepSeek-V2-Lite", "deepseek2", None, "fp16", ((8192, 27, 243.0, 0.0),)),
    ("deepseek-ai/DeepSeek-V2-Lite", "deepseek2", None, "q8_0", ((8192, 27, 129.09, 0.0),)),
)


@pytest.mark.parametrize(("model_id", "architecture", "keys", "dtype", "caches"), LOGGED)
def test_bytes_per_cell_are_what_llama_cpp_logged(
    model_id: str, architecture: str, keys: Any, dtype: str, caches: tuple[tuple[int, int, float, float], ...]
) -> None:
    found = read(architecture, keys or _published(model_id))
    rows = sorted(found.groups, key=lambda row: row[0].kind)
    assert len(rows) == len(caches)
    for (memory, count), (cells, layers, k_mib, v_mib) in zip(rows, caches, strict=True):
        row_bytes = memory.growth(kv_format(dtype)).bytes_per_entry
        assert count == layers
        assert count * row_bytes * cells / 2**20 == pytest.approx(k_mib + v_mib, abs=0.011)


def _published(model_id: str) -> dict[str, Any]:
    raw = config(model_id)
    text = GEMMA3 | raw.get("text_config", raw)
    if "kv_lora_rank" not in text:
        return base(text, attention__sliding_window=text["sliding_window"])
    mapping = next(row[2] for row in CONVERTED if row[1] == "deepseek2")
    return mapping(text)


def test_windows_of_recorded_models() -> None:
    # n_swa in the same logs: 4096, 1024 and 128.
    for model_id, architecture, window in (
        ("google/gemma-2-2b", "gemma2", 4096),
        ("google/gemma-3-27b-it", "gemma3", 1024),
        ("openai/gpt-oss-20b", "gpt-oss", 128),
    ):
        found = read(architecture, _published(model_id))
        assert {law.max_entries for law in (memory.growth(F16) for memory, _ in found.groups)} == {None, window}


def test_recurrent_states_by_hand() -> None:
    # Qwen3-Next-80B: 36 layers × 4 B × (3 × 8192 + 128 × 4096), worked by hand from llama-hparams.cpp.
    raw = config("Qwen/Qwen3-Next-80B-A3B-Instruct")
    mapping = next(row[2] for row in CONVERTED if row[1] == "qwen3next")
    assert state_bytes(read("qwen3next", mapping(raw)), F16) == 79_036_416
    # RWKV-7 of a width of 2048, 24 layers, heads of 64: two shifted tokens and a matrix of 64 × 64 a head.
    raw = {"num_hidden_layers": 24, "hidden_size": 2048, "head_dim": 64}
    found = read("rwkv7", rwkv7(raw))
    assert state_bytes(found, F16) == 24 * 4 * (2 * 2048 + 32 * 64 * 64)
    assert size(found, 100_000).resident_bytes == size(found, 0).resident_bytes
    assert any("32-bit" in note for note in found.reading.notes)
    one_shift = read("rwkv6qwen2", rwkv7(raw) | {"token_shift_count": 1})
    assert state_bytes(one_shift, F16) == 24 * 4 * (2048 + 32 * 64 * 64)
    # LFM2: the last two columns of a convolution over 2048 channels, in ten layers.
    raw = config("LiquidAI/LFM2-1.2B")
    mapping = next(row[2] for row in CONVERTED if row[1] == "lfm2")
    assert state_bytes(read("lfm2", mapping(raw)), F16) == 10 * 4 * 2048 * 2


@pytest.mark.parametrize(("ranks", "channels", "inner"), [(1, 6144, 4096), (8, 768, 512), (16, 512, 256)])
def test_engines_split_the_states_of_a_file(ranks: int, channels: int, inner: int) -> None:
    """Nemotron 3 Nano: 64 heads of 64, 8 groups of B and C of 128 numbers, which 16 ranks have a copy each of."""
    mapping = next(row[2] for row in CONVERTED if row[1] == "nemotron_h_moe")
    found = read("nemotron_h_moe", mapping(config("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16")))
    state = next(memory for memory, _ in found.groups if isinstance(memory, State))
    settings = VllmSettings(max_model_len=8192, tensor_parallel_size=ranks)
    assert vllm_state_bytes(state, settings) == 4 * (channels * 3 + inner * 128)
    conv, ssm = state_parts(found, state, SglangSettings(context_length=8192, tp_size=ranks))
    assert (conv, ssm) == (2 * channels * 3, 4 * inner * 128)


def test_deepseek_without_mla_keeps_all_heads() -> None:
    raw = config("deepseek-ai/DeepSeek-V3")
    old = base(raw, attention__key_length=192, attention__value_length=128, attention__kv_lora_rank=512)
    found = read("deepseek2", old)
    assert size(found, 1).bytes_per_token == 61 * 128 * (192 + 128) * 2
    assert any("MLA" in note for note in found.reading.notes)
    mapping = next(row[2] for row in CONVERTED if row[1] == "deepseek2")
    new = read("deepseek2", mapping(raw))
    assert size(new, 1).bytes_per_token == 70_272
    assert new.layers[0] == (Latent(kv_lora_rank=512, qk_rope_head_dim=64, packed_bytes=656),)
    assert (new.num_attention_heads, new.key_head_dim, new.head_dim) == (128, 192, 128)


def test_kv_heads_of_each_layer() -> None:
    found = read("deci", LLAMA | {"attention.head_count_kv": [2, 0, 8, 1]})
    assert [memories[0].kind for memories in found.layers] == ["full", "none", "full", "full"]
    assert resident_bytes(found, 10, F16) == 10 * 2 * 2 * 64 * (2 + 8 + 1)


def test_a_layer_without_kv_heads_is_recurrent_where_the_architecture_has_a_state() -> None:
    raw = config("ai21labs/Jamba-v0.1")
    found = read("jamba", jamba(raw))
    assert [index for index, memories in enumerate(found.layers) if memories[0].kind == "full"] == [4, 12, 20, 28]
    with pytest.raises(ConfigError, match=r"head_count_kv is missing"):
        read("jamba", {key: value for key, value in jamba(raw).items() if key != "attention.head_count_kv"})


def test_shared_caches_name_their_owner() -> None:
    keys = LLAMA | {
        "block_count": 10, "attention.sliding_window": 64, "attention.shared_kv_layers": 4,
        "attention.sliding_window_pattern": [True, True, True, True, True, False] + [True, False] * 2,
        "attention.key_length": 128, "attention.value_length": 128, "attention.key_length_swa": 64,
        "attention.value_length_swa": 64,
    }  # fmt: skip
    found = read("gemma4", keys)
    assert [memories[0] for memories in found.layers[6:]] == [SharedCache(owner=4), SharedCache(owner=5)] * 2
    assert resident_bytes(found, 100, F16) == 5 * 64 * 2 * 2 * 64 * 2 + 100 * 2 * 2 * 128 * 2


def test_llama4_chunks() -> None:
    assert read("llama4", LLAMA).layers[0][0].growth(F16).max_entries == 8192
    # Ollama's converter states the chunk; a window of 0 switches chunks off.
    assert read("llama4", LLAMA | {"attention.chunk_size": 4096}).layers[0][0].growth(F16).max_entries == 4096
    assert read("llama4", LLAMA | {"attention.sliding_window": 0}).kinds == (("full", 4),)


def test_windows_that_llama_cpp_does_not_apply_are_noted() -> None:
    for architecture in ("phi3", "exaone4"):
        found = read(architecture, LLAMA | {"attention.sliding_window": 64})
        assert found.kinds == (("full", 4),)
        assert any("keeps every token" in note for note in found.reading.notes)


def test_pattern_as_a_number_and_first_layer_full() -> None:
    found = read("cohere2", LLAMA | {"attention.sliding_window": 64, "attention.sliding_window_pattern": 2})
    assert [memories[0].kind for memories in found.layers] == ["sliding", "full", "sliding", "full"]
    found = read("cohere2moe", LLAMA | {"attention.sliding_window": 64})
    assert [memories[0].kind for memories in found.layers] == ["full", "sliding", "sliding", "sliding"]


def test_blocks_that_predict_further_tokens_keep_nothing() -> None:
    found = read("glm4moe", LLAMA | {"nextn_predict_layers": 1})
    assert len(found.layers) == 3
    assert any("predict further tokens" in note for note in found.reading.notes)


def test_encoders_and_diffusion_models_keep_nothing() -> None:
    for architecture in ("bert", "llada"):
        found = read(architecture, LLAMA)
        assert resident_bytes(found, 10_000, F16) == 0
        assert isinstance(found.layers[0][0], NoMemory)


def test_extra_layers() -> None:
    assert len(read("nanbeige", LLAMA | {"num_loops": 3}).layers) == 12
    router = read("graniteswitch", LLAMA)
    assert size(router, 1).bytes_per_token == (4 * 2 + 1) * 2 * 64 * 2


def test_unknown_architecture_and_unknown_keys_are_refused_by_name() -> None:
    with pytest.raises(UnknownLayoutError, match="'quux'") as refusal:
        read("quux", LLAMA)
    assert refusal.value.keys == ("general.architecture",)
    for key in ("attention.sliding_window", "attention.key_length_swa", "ssm.state_size", "attention.quux"):
        with pytest.raises(UnknownLayoutError, match=key) as refusal:
            read("llama", LLAMA | {key: 64})
        assert refusal.value.keys == (f"llama.{key}",)
        assert read("llama", LLAMA | {key: 0}).knowledge == "exact"
    # The message cuts a name that is too long; the keys are whole, whatever is in them.
    long = "attention.sliding_window = " + "x" * 90
    with pytest.raises(UnknownLayoutError) as refusal:
        read("llama", LLAMA | {long: 64})
    assert refusal.value.keys == (f"llama.{long}",)


def test_upper_bound_counts_every_query_head_in_every_layer() -> None:
    found = read("quux", LLAMA | {"attention.quux": 64, "attention.key_length": 96}, upper_bound=True)
    assert found.knowledge == "upper_bound"
    assert size(found, 1).bytes_per_token == 4 * 8 * 2 * 96 * 2
    with pytest.raises(UnknownLayoutError, match="No bound either"):
        read("quux", LLAMA | {"ssm.state_size": 16}, upper_bound=True)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"block_count": 0}, "block_count"),
        ({"block_count": 10**6}, "block_count"),
        ({"attention.head_count": 0}, "head_count"),
        ({"attention.head_count_kv": 3}, "does not divide"),
        ({"attention.head_count_kv": [2, 2]}, "one for 4 layers"),
        ({"attention.head_count": 7, "attention.head_count_kv": 7}, "not divisible"),
        ({"embedding_length": "wide"}, "whole number"),
        ({"nextn_predict_layers": 4}, "nextn_predict_layers"),
    ],
)
def test_what_cannot_be_is_named(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        read("llama", LLAMA | changes)


def test_missing_windows_and_halves_of_mla_are_named() -> None:
    with pytest.raises(ConfigError, match="sliding_window"):
        read("gpt-oss", LLAMA)
    with pytest.raises(ConfigError, match="sliding_window_pattern is missing"):
        read("gemma4", LLAMA | {"attention.sliding_window": 64})
    with pytest.raises(ConfigError, match="value_length_mla"):
        read("deepseek2", LLAMA | {"attention.key_length_mla": 64})


def test_files_that_hold_no_language_model() -> None:
    with pytest.raises(ConfigError, match="no language model"):
        read("clip", LLAMA)
    with pytest.raises(ConfigError, match="'adapter'"):
        read("llama", LLAMA, general={"general.type": "adapter"})


def test_weights_are_counted_from_the_table_of_tensors() -> None:
    keys = LLAMA | {"expert_count": 16, "expert_used_count": 4, "expert_shared_count": 1}
    found = read("llama", keys, tensors=TENSORS, general={"general.file_type": 15})
    parts = {part.name: (part.parameters, part.active_parameters) for part in found.weights}
    assert parts == {
        "embedding": (512_000, 512), "output head": (512_000, 512_000), "attention": (262_144, 262_144),
        "norms": (512, 512), "router": (8192, 8192), "experts": (2_097_152, 524_288),
        "shared experts": (131_072, 131_072), "recurrent layers": (32_768, 32_768),
    }  # fmt: skip
    f32 = 512_000 + 32 + 512 + 8192 + 32_768
    q4 = 512_000 + 262_144 + 2_097_152 + 131_072
    assert found.checkpoint_bytes == f32 * 4 + q4 // 256 * 144
    assert found.checkpoint_format == "Q4_K_M"
    assert found.experts is not None
    assert (found.experts.num_experts, found.experts.experts_per_token, found.experts.moe_layers) == (16, 4, 1)
    # A tied embedding is the head as well; without a stated type the most common one is named.
    tied = read("llama", keys, tensors=[row for row in TENSORS if row[0] != "output.weight"])
    assert next(part for part in tied.weights if part.name == "embedding").active_parameters == 512_000
    assert tied.checkpoint_format == "Q4_K"


def test_a_part_of_a_split_model_does_not_count_weights() -> None:
    found = read("llama", LLAMA, tensors=TENSORS, general={"split.count": 3})
    assert found.checkpoint_bytes is None
    assert found.weights == ()


def test_model_facts_and_the_account_of_keys() -> None:
    general = {"general.name": "Tiny", "tokenizer.ggml.tokens": ["a", "b"]}
    without = {key: value for key, value in LLAMA.items() if key != "vocab_size"}
    found = model_from_gguf(BytesIO(write("llama", without | {"rope.freq_base": 1e4}, general=general)), "")
    assert (found.name, found.model_type, found.vocab_size, found.context_limit) == ("Tiny", "llama", 2, 4096)
    assert found.resolve_format().name == "fp16"
    assert ("llama.attention.head_count_kv", "2") in found.reading.keys_used
    assert "llama.rope.freq_base" in found.reading.keys_ignored


def test_architectures_are_llama_cpps_names() -> None:
    # Names that the library, older than llama.cpp's source that the table follows, does not have yet.
    newer = {
        "deepseek32", "minimax-m3", "minimax-01", "kimi-k3", "bailingmoe3", "hy_v3", "hy_v4", "dots3note", "laguna",
        "mellum", "maple", "spark2_5", "muse-glimmer", "cohere2moe", "granite_swa", "graniteswitch", "nanbeige",
        "talkie", "hrm_text", "gptoss",
    }  # fmt: skip
    assert set(ARCHITECTURES) - newer <= set(gguf.MODEL_ARCH_NAMES.values())


@pytest.mark.parametrize(("model_id", "architecture", "mapping"), CONVERTED, ids=[row[0] for row in CONVERTED])
def test_every_engine_answers_or_refuses(model_id: str, architecture: str, mapping: Any) -> None:
    """States have two sides in a GGUF file (inner width, state size) and three in a config.json: both are split."""
    raw = config(model_id)
    found = read(architecture, mapping(GEMMA3 | raw.get("text_config", raw)))
    for name in engine_names():
        for ranks in (1, 2):
            chosen = engine(name)
            try:
                settings = chosen.settings(found, Request(context=2048, tp=ranks))
                assert chosen.layout(found, settings).bytes_per_request > 0
            except EngineError as refusal:
                assert str(refusal).partition(":")[0] in (name, "llama.cpp")
