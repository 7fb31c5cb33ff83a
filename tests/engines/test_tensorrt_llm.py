"""TensorRT-LLM 1.4: pools worked out by hand, capacities that logs reported, and what must always hold."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcore.deployment import Request, as_options
from kvcore.engines.base import Capacity, Layout
from kvcore.engines.tensorrt_llm import TENSORRT_LLM, TensorRtLlmSettings
from kvcore.engines.tensorrt_llm.pools import split_stages
from kvcore.errors import EngineError, UnitError
from kvcore.model import Model, model_from_config
from kvcore.model.memories import Attention
from kvcore.units import GIB, MIB
from tests.models import llama, model


def chosen(found: Model, *, length: int | None = None, kv: str = "auto", tp: int = 1, pp: int = 1,
           version: str | None = None, **values: Any) -> TensorRtLlmSettings:  # fmt: skip
    common = Request(context=length, kv_dtype=kv, tp=tp, pp=pp, engine_version=version)
    return TENSORRT_LLM.settings(found, replace(common, options=as_options(values)))


def layout(found: Model, **asked: Any) -> Layout:
    return TENSORRT_LLM.layout(found, chosen(found, **asked))


def capacity(found: Model, kv_bytes: int, **asked: Any) -> Capacity:
    return TENSORRT_LLM.capacity(found, chosen(found, **asked), kv_bytes)


def small(**changes: Any) -> Model:
    return model_from_config(llama(**changes))


def plain(layers: int, heads: int, width: int) -> Model:
    """A model of equal attention layers, as a log describes it."""
    own = Attention(num_kv_heads=heads, head_dim=width, v_head_dim=width)
    return Model(name="plain", model_type="plain", layers=((own,),) * layers, hidden_size=heads * width,
                 num_attention_heads=heads, head_dim=width, context_limit=4096)  # fmt: skip


# --- what a block and a request take ----------------------------------------------------------------------------------


def test_block_of_keys_and_values() -> None:
    found = layout(model("meta-llama/Llama-3.1-70B-Instruct"), length=1000, tp=8)
    assert found.block_size == 32
    assert found.bytes_per_block == 32 * 80 * 2 * 1 * 128 * 2
    assert found.blocks_per_request == 32
    assert found.bytes_per_request == 32 * (found.bytes_per_block or 0)


def test_ranks_round_their_heads_up() -> None:
    found = small(num_attention_heads=12, num_key_value_heads=6, head_dim=64)
    assert [layout(found, tp=tp).bytes_per_block for tp in (1, 4, 12)] == [32 * 4 * 2 * n * 64 * 2 for n in (6, 2, 1)]


def test_attention_dp_divides_nothing() -> None:
    assert layout(small(), tp=2).bytes_per_block == 32 * 4 * 2 * 64 * 2
    assert layout(small(), tp=2, enable_attention_dp=True).bytes_per_block == 32 * 4 * 2 * 2 * 64 * 2


def test_latents_have_one_tensor_on_every_rank() -> None:
    for tp in (1, 8):
        assert layout(model("deepseek-ai/DeepSeek-V3"), length=64, tp=tp).bytes_per_block == 32 * 61 * 576 * 2


def test_sparse_latents_add_their_indexer() -> None:
    found = model("deepseek-ai/DeepSeek-V3.2")
    assert layout(found, length=64).bytes_per_block == 32 * 61 * (576 * 2 + 132)
    assert layout(found, length=64, kv="fp8").bytes_per_block == 32 * 61 * (576 + 132)


def test_formats() -> None:
    numbers = 4 * 2 * 2 * 64
    sizes = {"auto": 2 * numbers, "bf16": 2 * numbers, "fp8": numbers, "nvfp4": numbers // 2 + numbers // 16}
    assert {kv: layout(small(), kv=kv).bytes_per_block for kv in sizes} == {kv: 32 * n for kv, n in sizes.items()}
    assert layout(small(), kv="int8", backend="tensorrt").bytes_per_block == 32 * numbers


def test_layers_without_attention_and_of_other_heads_count_their_own() -> None:
    found = model("nvidia/Llama-3_3-Nemotron-Super-49B-v1")
    heads = sum(count * memory.num_kv_heads for memory, count in found.kept if isinstance(memory, Attention))
    assert heads < 8 * len(found.layers)
    assert layout(found, length=64).bytes_per_block == 32 * 2 * heads * 128 * 2


def test_pipeline_stages_give_the_remainder_to_the_first() -> None:
    assert [len(stage) for stage in split_stages(80, 3)] == [27, 27, 26]
    assert [list(stage) for stage in split_stages(5, 3)] == [[0, 1], [2, 3], [4]]
    assert layout(small(), pp=3).bytes_per_block == 32 * 2 * 2 * 2 * 64 * 2


# --- capacity ---------------------------------------------------------------------------------------------------------


def test_budget_is_a_share_of_free_memory() -> None:
    assert TENSORRT_LLM.budget_bytes(chosen(small()), 100 * GIB) == 90 * GIB
    assert TENSORRT_LLM.budget_bytes(chosen(small(), free_gpu_memory_fraction=0.5), 100 * GIB) == 50 * GIB


def test_blocks_are_rounded_down_and_by_the_older_backend_up() -> None:
    found = small()
    token = 4 * 2 * 2 * 64 * 2
    kv_bytes = token * (10 * 32 + 5)
    assert capacity(found, kv_bytes).blocks == 10
    assert capacity(found, kv_bytes, backend="tensorrt").blocks == 11


def test_max_tokens_caps_the_pool() -> None:
    assert capacity(small(), GIB, max_tokens=100).kv_cache_size_tokens == 96
    assert capacity(small(), 2048 * 50, max_tokens=10**6).kv_cache_size_tokens == 32


def test_windows_have_pools_of_equal_shares() -> None:
    found = model("openai/gpt-oss-20b")  # 24 layers of 8 heads of 64, windows of 128 and everything in turn
    token = 12 * 2 * 8 * 64 * 2
    asked = {"length": 4096, "max_attention_window": "128,131072"}
    planned = layout(found, **asked)
    assert [(group.kind, group.layers, group.blocks_per_request) for group in planned.groups] == [
        ("sliding", 12, 128 // 32 + 1), ("full", 12, 4096 // 32)
    ]  # fmt: skip
    assert planned.bytes_per_request == (5 + 128) * 32 * token
    assert planned.bytes_per_block is None
    got = capacity(found, 8 * GIB, **asked)
    each = 4 * GIB // token // 32
    assert got.kv_cache_size_tokens == each * 32
    assert got.max_concurrency == Fraction(each, 128)
    assert got.log_lines == (
        f"Window size = 128, primary_blocks: {each}, secondary_blocks: 0",
        f"Window size = 4096, primary_blocks: {each}, secondary_blocks: 0",
        "Number of tokens per block: 32.",
        f"[MemUsageChange] Allocated 8.00 GiB for max tokens in paged KV cache ({2 * each * 32}).",
    )


def test_older_backend_shares_by_window_and_bytes() -> None:
    found = model("openai/gpt-oss-20b")
    token = 12 * 2 * 8 * 64 * 2
    got = capacity(found, 8 * GIB, length=3968, max_attention_window="128,3968", backend="tensorrt")
    short, full = (-(-int(8 * GIB * Fraction(window, 4096) / token) // 32) for window in (128, 3968))
    assert got.log_lines[:3] == (
        "Blocks per window size:",
        f"[windowSize=128] {{.primaryBlocks={short}, .secondayBlocks=0}}",
        f"[windowSize=3968] {{.primaryBlocks={full}, .secondayBlocks=0}}",
    )


def test_windows_are_named_where_they_are_not_used() -> None:
    found = layout(model("openai/gpt-oss-20b"), length=4096)
    assert [group.kind for group in found.groups] == ["full"]
    assert any(note.endswith("here that is 128,4096.") for note in found.notes)


def test_too_long_a_request_is_shortened_as_the_engine_does() -> None:
    got = capacity(small(), 2048 * 100, length=4096)
    assert got.max_concurrency < 1
    assert got.terms[-1].name == "reduced"
    assert got.log_lines[0] == (
        "Max KV cache blocks per sequence: 3 [window size=96], tokens per block=32, primary blocks=3, "
        "secondary blocks=0, max sequence length=96"
    )


def test_tightest_stage_decides() -> None:
    # Four layers over three stages: the first has two, of 1,024 B a token.
    assert capacity(small(), 32 * 3 * 1024, pp=3).blocks == 3


# --- published logs ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Report:
    """Tokens that a log gives for so many GiB, of two digits, or for so many bytes."""

    id: str
    source: str
    model: Model
    tokens: int
    low: int
    high: int
    block: int
    backend: str = "pytorch"


def gib(value: float, half_digit: float = 0.005) -> dict[str, int]:
    return {"low": int((value - half_digit) * GIB), "high": int((value + half_digit) * GIB)}


REPORTS = (
    Report(id="trt-fs-70957398956", source="public file 70957398956: nemotron_llm, 32 layers of 8 KV heads of 128",
           model=plain(32, 8, 128), tokens=12_800, block=32, **gib(1.56)),
    # The two models below were inferred from their bytes a token: they test rounding to blocks, not the architecture.
    Report(id="trt-1400", source="NVIDIA/TensorRT-LLM#1400 (0.8): 69,524,783,104 bytes", model=plain(32, 32, 128),
           tokens=132_608, block=64, backend="tensorrt", low=69_524_783_104, high=69_524_783_104),
    Report(id="trt-tutorials-150", source="triton-inference-server/tutorials#150", model=plain(22, 4, 64),
           tokens=3_731_744, block=32, **gib(78.3)),
)  # fmt: skip


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: report.id)
def test_reported_capacity(report: Report) -> None:
    asked = {"length": 4096, "tokens_per_block": report.block, "backend": report.backend}
    least, most = (capacity(report.model, size, **asked).kv_cache_size_tokens for size in (report.low, report.high))
    assert least <= report.tokens <= most
    assert most - least <= 0.005 * report.tokens + 2 * report.block


def test_reported_blocks_are_nine_tenths_of_free_memory() -> None:
    """NVIDIA/TensorRT-LLM#2268 (0.13, Qwen1.5-7B): 21.89 GiB free made 631 blocks of 64 tokens."""
    found = model("Qwen/Qwen1.5-7B-Chat")
    asked = chosen(found, length=2048, backend="tensorrt", tokens_per_block=64)
    kv_bytes = TENSORRT_LLM.budget_bytes(asked, int(21.89 * GIB))
    assert TENSORRT_LLM.capacity(found, asked, kv_bytes).blocks == 631


def test_documented_example() -> None:
    """TensorRT-LLM's documentation (reference/memory): 70.48 GiB free, 4,060 blocks of 64, 63.44 GiB.

    63.44 GiB for 259,840 tokens are 262,144 B a token.
    """
    found = plain(16, 32, 128)
    asked = chosen(found, length=2048, backend="tensorrt", tokens_per_block=64)
    got = TENSORRT_LLM.capacity(found, asked, TENSORRT_LLM.budget_bytes(asked, int(70.48 * GIB)))
    assert got.blocks == 4060
    assert got.log_lines[-2:] == (
        "Number of tokens per block: 64.",
        "[MemUsageChange] Allocated 63.44 GiB for max tokens in paged KV cache (259840).",
    )


# --- refusals and the command -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "asked", "words"),
    [
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", {}, "recurrent states"),
        ("openai/whisper-large-v3", {}, "cross attention"),
        ("google/gemma-4-26B-A4B", {}, "256 and 512"),
        ("google/gemma-3n-E4B-it", {}, "share a cache"),
        ("XiaomiMiMo/MiMo-V2-Flash", {}, "different widths"),
        ("deepseek-ai/DeepSeek-V4-Flash", {}, "not followed"),
        ("deepseek-ai/DeepSeek-V3", {"max_attention_window": "128,4096"}, "one window size"),
        ("openai/gpt-oss-20b", {"kv": "mxfp4"}, "cache dtype"),
        ("openai/gpt-oss-20b", {"kv": "nvfp4", "backend": "tensorrt"}, "cache dtype"),
        ("openai/gpt-oss-20b", {"tokens_per_block": 48}, "power of two"),
        ("openai/gpt-oss-20b", {"free_gpu_memory_fraction": 1.0}, "free_gpu_memory_fraction"),
        ("openai/gpt-oss-20b", {"backend": "onnx"}, "backend"),
        ("openai/gpt-oss-20b", {"max_attention_window": " , "}, "max_attention_window"),
        ("openai/gpt-oss-20b", {"max_attention_window": "0"}, "below 1"),
        ("openai/gpt-oss-20b", {"version": "0.5.0"}, "not followed"),
        ("openai/gpt-oss-20b", {"version": "new"}, "not followed"),
        ("openai/gpt-oss-20b", {"pp": 25}, "more than the 24 layers"),
        ("openai/gpt-oss-20b", {"max_tokens": 0}, "--max-tokens is 0"),
    ],
)
def test_what_is_not_supported_is_refused(name: str, asked: dict[str, Any], words: str) -> None:
    with pytest.raises(EngineError, match=words):
        layout(model(name), **asked)


@pytest.mark.parametrize("common", [Request(context=1, platform="cpu"), Request(context=1, dcp=2)])
def test_other_machines_are_refused(common: Request) -> None:
    with pytest.raises(EngineError):
        TENSORRT_LLM.settings(small(), common)


def test_unreadable_windows_are_refused() -> None:
    with pytest.raises(UnitError, match="wide"):
        chosen(small(), max_attention_window="128,wide")


def test_memory_for_no_block_is_refused() -> None:
    with pytest.raises(EngineError, match="impossible to fit"):
        capacity(small(), 1000)


def test_stages_of_different_windows_are_refused() -> None:
    with pytest.raises(EngineError, match="different windows"):
        capacity(small(), GIB, length=4096, pp=3, max_attention_window="64,4096")


def test_command() -> None:
    asked = chosen(small(), length=2048, kv="fp8", tp=4, tokens_per_block=64, max_attention_window="512,2048")
    assert TENSORRT_LLM.flags(small(), asked) == (
        "trtllm-serve", small().name, "--max_seq_len", "2048", "--tp_size", "4", "--extra_llm_api_options",
        "config.yaml",
    )  # fmt: skip
    text = "config.yaml: kv_cache_config: {dtype: fp8, tokens_per_block: 64, max_attention_window: [512, 2048]}"
    assert text in TENSORRT_LLM.layout(small(), asked).notes
    assert TENSORRT_LLM.flags(small(), chosen(small(), length=8)) == (
        "trtllm-serve",
        small().name,
        "--max_seq_len",
        "8",
    )


# --- what must always hold --------------------------------------------------------------------------------------------

MODELS = ("meta-llama/Llama-3.1-8B-Instruct", "deepseek-ai/DeepSeek-V3", "openai/gpt-oss-20b", "google/gemma-3-27b-it")
WINDOWS = st.sampled_from([None, "1024,8192", "64,512,8192"])


@settings(deadline=None)
@given(st.sampled_from(MODELS), st.integers(1024, 80 * 1024), st.integers(0, 4096), WINDOWS, st.sampled_from([32, 64]))
def test_more_memory_never_holds_less(name: str, mib: int, more: int, windows: str | None, block: int) -> None:
    found = model(name)
    asked = {"length": 8192, "max_attention_window": None if "DeepSeek" in name else windows, "tokens_per_block": block}
    less, most = (capacity(found, size * MIB, **asked) for size in (mib, mib + more))
    assert less.kv_cache_size_tokens <= most.kv_cache_size_tokens
    assert less.max_concurrency <= most.max_concurrency
    assert less.kv_cache_size_tokens % block == 0


@settings(deadline=None)
@given(st.sampled_from(MODELS), st.integers(1, 100_000), st.sampled_from([1, 2, 4, 8, 16]))
def test_ranks_together_never_hold_less_than_one(name: str, length: int, tp: int) -> None:
    alone, ranked = (layout(model(name), length=length, tp=size).bytes_per_request for size in (1, tp))
    assert ranked <= alone <= ranked * tp


@settings(deadline=None)
@given(st.sampled_from(MODELS), st.integers(1024, 60 * 1024), WINDOWS)
def test_pools_never_exceed_the_budget(name: str, mib: int, windows: str | None) -> None:
    asked = {"length": 8192, "max_attention_window": None if "DeepSeek" in name else windows}
    got, planned = capacity(model(name), mib * MIB, **asked), layout(model(name), **asked)
    assert got.max_concurrency * planned.bytes_per_request <= mib * MIB
