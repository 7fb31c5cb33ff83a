"""SGLang 0.5.23: pools worked out by hand, the capacities that people's logs reported, and what must always hold."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcore.deployment import Request, as_options
from kvcore.engines.layout import Capacity, Layout
from kvcore.engines.sglang import SGLANG, SglangSettings
from kvcore.engines.sglang.cells import page_size, split_stages
from kvcore.engines.sglang.memory import budget, mem_fraction_static, reserved_mib
from kvcore.errors import EngineError, UnitError
from kvcore.hardware.gpus import accelerator
from kvcore.model import Model, model_from_config
from kvcore.model.memories import Attention, Latent, Memory, State, StatePart
from kvcore.units import GIB, MIB
from tests.models import llama, model
from tests.plan.launch_cases import h100


def chosen(found: Model, *, length: int | None = None, kv: str = "auto", tp: int = 1, pp: int = 1, dcp: int = 1,
           gpu: str | None = None, version: str | None = None, **values: Any) -> SglangSettings:  # fmt: skip
    device = accelerator(gpu) if gpu else None
    common = Request(context=length, kv_dtype=kv, tp=tp, pp=pp, dcp=dcp, gpu=device, engine_version=version)
    return SGLANG.settings(found, replace(common, options=as_options(values)))


def layout(found: Model, **asked: Any) -> Layout:
    return SGLANG.layout(found, chosen(found, **asked))


def capacity(found: Model, kv_bytes: int, **asked: Any) -> Capacity:
    return SGLANG.capacity(found, chosen(found, **asked), kv_bytes)


def small(**changes: Any) -> Model:
    return model_from_config(llama(**changes))


def made(model_type: str, *layers: tuple[Memory, ...], heads: int = 64) -> Model:
    """A model that is not catalogued, from the layers that its report states."""
    return Model(name=model_type, model_type=model_type, layers=layers, hidden_size=4096, num_attention_heads=heads,
                 head_dim=128, context_limit=32_768)  # fmt: skip


def delta(heads: int, k_heads: int, width: int) -> State:
    parts = (
        StatePart(name="convolution", shape=(2 * k_heads * width + heads * width, 3), element_bytes=2),
        StatePart(name="state", shape=(heads, width, width), element_bytes=4),
    )
    return State(design="Gated delta net", parts=parts)


# --- what a slot and a request take -----------------------------------------------------------------------------------


def test_a_cell_is_heads_widths_layers_and_element() -> None:
    found = layout(model("Qwen/Qwen3-235B-A22B"), length=4096, tp=4)
    assert found.bytes_per_block == 94 * 1 * (128 + 128) * 2 == 48_128
    assert found.block_size == 1
    assert found.bytes_per_request == 4096 * 48_128
    assert found.fixed_bytes == 48_128


def test_heads_are_replicated_when_ranks_are_more() -> None:
    one, sixteen = layout(small(), length=64), layout(small(), length=64, tp=8)
    assert one.bytes_per_block == 4 * 2 * 128 * 2
    assert sixteen.bytes_per_block == 4 * 1 * 128 * 2


def test_latents_are_not_divided() -> None:
    for tp in (1, 8):
        assert layout(model("deepseek-ai/DeepSeek-V3"), length=64, tp=tp).bytes_per_block == 61 * 576 * 2


@pytest.mark.parametrize(
    ("kv", "gpu", "values", "row", "name"),
    [
        ("auto", "h100-sxm", {}, 1152, "bf16"),
        ("fp8", "h100-sxm", {}, 656, "fp8_ds_mla"),
        ("fp8", "h100-sxm", {"dsa_decode_backend": "tilelang"}, 576, "fp8"),
        ("auto", "b200", {}, 576, "fp8"),
        ("fp8", "b200", {"dsa_decode_backend": "flashmla_kv"}, 656, "fp8_ds_mla"),
    ],
)
def test_sparse_latents(kv: str, gpu: str, values: dict[str, Any], row: int, name: str) -> None:
    found = layout(model("deepseek-ai/DeepSeek-V3.2"), length=100, kv=kv, gpu=gpu, **values)
    assert found.kv_dtype == name
    assert found.block_size == 64
    assert found.bytes_per_block == 64 * 61 * (row + 132)
    assert found.blocks_per_request == 2


def test_quantized_cells_carry_their_scales() -> None:
    found = small()  # 4 layers, 2 heads of 64
    numbers = 4 * 2 * 64 * 2
    assert layout(found, kv="fp8").bytes_per_block == numbers
    assert layout(found, kv="mxfp8").bytes_per_block == numbers + numbers // 32
    assert layout(found, kv="fp4_mx_block16").bytes_per_block == numbers // 2 + numbers // 16
    assert layout(found, kv="nvfp4", gpu="b200", page_size=1).bytes_per_block == numbers // 2 + numbers // 16
    # SM120 also keeps an fp8 workspace of one layer.
    workspace = 2 * 64 * 2
    assert layout(found, kv="nvfp4", gpu="rtx-5090").bytes_per_block == numbers // 2 + numbers // 16 + workspace


def test_decode_context_parallel_shards_tokens_and_gathers_heads() -> None:
    found = model("deepseek-ai/DeepSeek-V3")
    assert layout(found, length=8192, tp=8, dcp=8).bytes_per_request == 1024 * 61 * 1152
    plain, shared = (capacity(found, 10 * GIB, length=8192, tp=8, dcp=dcp) for dcp in (1, 8))
    assert shared.kv_cache_size_tokens == 8 * plain.kv_cache_size_tokens
    # Two of eight heads a rank: groups of four ranks hold all heads, and each token is on one of two ranks.
    assert layout(small(num_key_value_heads=8), length=64, tp=4, dcp=2).bytes_per_block == 4 * 4 * 128 * 2


def test_indexer_is_kept_by_every_rank_that_shares_tokens() -> None:
    found = layout(model("deepseek-ai/DeepSeek-V3.2"), length=1024, tp=8, dcp=2)
    assert found.bytes_per_block == 64 * 61 * (1152 + 2 * 132)


def test_pipeline_stages_give_the_remainder_to_the_last() -> None:
    assert [len(stage) for stage in split_stages(80, 3)] == [26, 27, 27]
    assert [list(stage) for stage in split_stages(5, 3)] == [[0], [1, 2], [3, 4]]
    assert layout(model("meta-llama/Llama-3.1-70B-Instruct"), length=16, pp=3).bytes_per_block == 27 * 8 * 256 * 2
    with pytest.raises(EngineError, match="more than the 4 layers"):
        layout(small(), pp=5)


def test_layers_that_share_a_cache_have_slots_all_the_same() -> None:
    # SGLang's pool has a layer for every layer of Gemma 3n, of which vLLM keeps 20.
    assert layout(model("google/gemma-3n-E4B-it"), length=16).groups[0].layers == 35


def test_pages_by_kernel() -> None:
    def pages(found: Model, **asked: Any) -> int:
        return page_size(found, chosen(found, **asked))

    assert pages(small()) == 1
    assert pages(small(), gpu="b200") == 64
    assert pages(small(), gpu="rtx-5090") == 1
    assert pages(small(), gpu="b200", page_size=16) == 16
    assert pages(model("deepseek-ai/DeepSeek-V3"), gpu="b200") == 64
    assert pages(model("XiaomiMiMo/MiMo-V2-Flash"), gpu="b200") == 128


# --- sliding pools ----------------------------------------------------------------------------------------------------


def test_sliding_pool_is_a_ratio_not_a_window() -> None:
    found = model("openai/gpt-oss-20b")  # 12 full and 12 sliding layers of 8 heads of 64
    cell = 12 * 8 * 128 * 2
    for ratio in (0.8, 0.1):
        got = capacity(found, 10 * GIB, swa_full_tokens_ratio=ratio)
        exact = Fraction(str(ratio))
        full = int(10 * GIB // (cell * (1 + exact)))
        assert got.kv_cache_size_tokens == full
        assert got.log_lines[0] == (
            f"Use sliding window memory pool. full_layer_tokens={full}, swa_layer_tokens={int(full * exact)}"
        )


def test_sliding_request_needs_its_window_and_a_page() -> None:
    found = layout(model("openai/gpt-oss-20b"), length=4096, page_size=16)
    assert [group.blocks_per_request for group in found.groups] == [4096 // 16, (128 + 16) // 16]
    assert found.bytes_per_request == (4096 + 144) * 12 * 8 * 128 * 2
    assert found.bytes_per_block is None


def test_short_requests_need_less_than_a_window() -> None:
    found = layout(model("openai/gpt-oss-20b"), length=50)
    assert found.groups[1].blocks_per_request == 51


def test_sliding_pool_is_sized_by_requests_when_no_prefixes_are_kept() -> None:
    found, page = model("openai/gpt-oss-20b"), 16
    asked = {"disable_radix_cache": True, "max_running_requests": 8, "page_size": page}
    cap = 8 * (127 + 128 + 2 * page) + 2 * 8192 + page
    swa = -(-cap // page) * page
    cell = 12 * 8 * 128 * 2
    full = (10 * GIB - swa * cell) // cell // page * page
    lines = capacity(found, 10 * GIB, **asked).log_lines
    assert lines[0].startswith(f"Full KV Cache is allocated. dtype: torch.bfloat16, #tokens: {full},")
    assert lines[1].startswith(f"SWA KV Cache is allocated. dtype: torch.bfloat16, #tokens: {swa},")
    assert capacity(found, swa * cell, **asked).log_lines == ()


def test_architectures_without_a_sliding_pool_hold_every_token() -> None:
    for name in ("google/gemma-3-27b-it", "mistralai/Mistral-7B-v0.1"):
        found = layout(model(name), length=4096)
        assert [group.kind for group in found.groups] == ["full"]
        assert found.groups[0].layers == len(model(name).layers)
        assert any("no sliding pool" in note for note in found.notes)
    plain = layout(model("openai/gpt-oss-20b"), length=4096, disable_hybrid_swa_memory=True)
    assert plain.bytes_per_request == 4096 * 24 * 8 * 128 * 2


def test_model_of_sliding_layers_only_has_one_pool_without_a_ratio() -> None:
    window = Attention(num_kv_heads=8, head_dim=64, v_head_dim=64, limit=128, law="sliding")
    got = capacity(made("gpt_oss", *[(window,)] * 4), GIB)
    assert got.kv_cache_size_tokens == GIB // (4 * 8 * 128 * 2)
    assert got.log_lines[0].startswith("Use sliding window memory pool (all SWA). swa_layer_tokens=")


def test_pool_that_cannot_hold_a_window_refuses_to_start() -> None:
    found = model("openai/gpt-oss-20b")
    cell = 12 * 8 * 128 * 2
    small_pool = capacity(found, int(cell * 1.8 * 160), length=100)
    assert small_pool.log_lines == ()
    assert small_pool.max_concurrency == 0
    assert small_pool.terms[-1].name == "not enough memory"
    assert capacity(found, int(cell * 1.8 * 1000), length=100).log_lines


# --- states -----------------------------------------------------------------------------------------------------------


def test_states_take_their_ratio_of_the_budget() -> None:
    found = model("Qwen/Qwen3-Next-80B-A3B-Instruct")  # 36 states, 12 layers of 2 heads of 256
    slot = 36 * (8192 * 3 * 2 + 32 * 128 * 128 * 4)
    kv_bytes = 20 * GIB
    got = capacity(found, kv_bytes)
    slots = int((Fraction(9, 19) * kv_bytes - slot) // slot)
    assert got.kv_cache_size_tokens == (kv_bytes - (slots + 1) * slot) // (12 * 2 * 512 * 2)
    assert f"max_mamba_cache_size: {slots}," in got.log_lines[0]
    explicit = capacity(found, kv_bytes, max_mamba_cache_size=10)
    assert explicit.kv_cache_size_tokens == (kv_bytes - 11 * slot) // (12 * 2 * 512 * 2)


def test_state_dtype_is_fp32_unless_said() -> None:
    found = model("Qwen/Qwen3-Next-80B-A3B-Instruct")
    conv = 8192 * 3 * 2
    for asked, size in (({}, 4), ({"mamba_ssm_dtype": "bfloat16"}, 2)):
        states = layout(found, length=16, **asked).groups[-1]
        assert (states.kind, states.layers) == ("state", 36)
        assert states.page_bytes == conv + 32 * 128 * 128 * size


def test_requests_keep_several_states_when_prefixes_are_kept() -> None:
    gdn, conv = model("Qwen/Qwen3-Next-80B-A3B-Instruct"), model("LiquidAI/LFM2-1.2B")
    assert layout(gdn).groups[-1].blocks_per_request == 5
    assert layout(conv).groups[-1].blocks_per_request == 3
    assert layout(gdn, disable_radix_cache=True).groups[-1].blocks_per_request == 1


def test_states_are_split_with_groups_for_every_rank() -> None:
    # Falcon-H1-3B: 32 heads of 128 with a state of 256, one group of B and C; SGLang gives each rank a group.
    found = model("tiiuae/Falcon-H1-3B-Instruct")
    state = next(memory for memory, _ in found.kept if isinstance(memory, State))
    heads, width, size = next(part.shape for part in state.parts if part.name == "state")
    states = layout(found, length=16, tp=2).groups[-1]
    channels = heads * width + 2 * 2 * size
    assert states.page_bytes == channels // 2 * 3 * 2 + heads // 2 * width * size * 4


def test_model_of_states_alone_has_no_token_limit() -> None:
    got = capacity(model("state-spaces/mamba-2.8b-hf"), 10 * GIB, length=2048)
    assert got.kv_cache_size_tokens == 2048
    assert got.log_lines[0].startswith("Mamba Cache is allocated. max_mamba_cache_size: ")


# --- the budget -------------------------------------------------------------------------------------------------------


def test_automatic_share_of_an_80_gb_gpu() -> None:
    asked = replace(chosen(small(), length=4096), gpu_mib=81_559)
    # 512 + 1.5 × 8192 + tp 1 × 128 + decode graphs 2 × 256 + 58 prefill graphs × 8.
    assert reserved_mib(small(), asked) == 512 + 12_288 + 128 + 512 + 464
    assert mem_fraction_static(small(), asked) == 0.83
    assert reserved_mib(small(), asked, post_capture=True) == 1536 + 128
    assert mem_fraction_static(small(), replace(asked, mem_fraction_static=0.7)) == 0.7


def test_large_gpus_keep_at_least_10_gib() -> None:
    asked = replace(chosen(small(), length=4096), gpu_mib=81_559, chunked_prefill_size=2048, disable_cuda_graph=True)
    assert reserved_mib(small(), asked) == 10_240
    assert reserved_mib(small(), replace(asked, gpu_mib=24_564)) == 512 + 3072 + 128


def test_latents_and_dp_attention_reserve_more_for_graphs() -> None:
    found = model("deepseek-ai/DeepSeek-V3")
    asked = replace(chosen(found, length=4096, tp=8), gpu_mib=81_559)
    plain = 512 + 12_288 + 1024 + 2 * 512 + 1536
    assert reserved_mib(found, asked) == plain
    spread = replace(asked, dp_size=8, enable_dp_attention=True)
    assert reserved_mib(found, spread) == plain + 512 * 8 * 3 + 512 * 8 * 1.5


def test_budget_is_what_is_free_less_the_slack() -> None:
    asked = replace(chosen(small(), length=4096), mem_fraction_static=0.9)
    got = budget(small(), asked, free_before_weights_bytes=80 * GIB, free_now_bytes=60 * GIB)
    assert got.kv_bytes == 52 * GIB
    with pytest.raises(EngineError, match="no memory for the pools"):
        budget(small(), asked, free_before_weights_bytes=80 * GIB, free_now_bytes=8 * GIB)


# --- published logs ---------------------------------------------------------------------------------------------------

FULL_QWEN4 = Attention(num_kv_heads=2, head_dim=256, v_head_dim=256)
BAILING_LATENT = Latent(kv_lora_rank=512, qk_rope_head_dim=64)


@dataclass(frozen=True, kw_only=True)
class Report:
    """Tokens that somebody's SGLang logged for so many GiB (two digits) of pools, and where that was written."""

    id: str
    source: str
    model: Model | str
    tokens: int
    gib: float
    digits: float = 0.005
    """Half of the last digit, for each figure that went into `gib`."""
    asked: dict[str, Any] = field(default_factory=dict)
    why: str = ""


REPORTS = (
    Report(id="vllm-21348-sglang", source="vllm-project/vllm#21348", model="Qwen/Qwen3-235B-A22B", tokens=367_404,
           gib=8.23 + 8.23, digits=0.01, asked={"tp": 4}),
    Report(id="sgl-11309-before", source="sgl-project/sglang#11309", model="deepseek-ai/DeepSeek-V3.2-Exp",
           tokens=1_462_784, gib=65.49,
           asked={"tp": 8, "kv": "fp8", "dp_size": 8, "enable_dp_attention": True},
           why="the log of that day left the indexer out (54.52); 65.49 GB is the corrected figure of the same report"),
    Report(id="sgl-fs-1272019175", source="public file 1272019175", model="moonshotai/Kimi-K2.5", tokens=2_454_421,
           gib=160.63, asked={"tp": 8}),
    Report(id="sgl-fs-53259568910", source="public file 53259568910", model="Qwen/Qwen2.5-0.5B", tokens=20_480,
           gib=0.12 + 0.12, digits=0.01, why="0.117 GiB a side, which two digits show as 0.12: 2.4 % more"),
    Report(id="sgl-fs-65830671609", source="public file 65830671609", model="Qwen/Qwen3.5-27B", tokens=330_323,
           gib=0.34 + 17.58 + 10.08 + 10.08, digits=0.02, why="with the pool of states (124 slots and one of padding)"),
    Report(id="sgl-fs-70070562203", source="public file 70070562203",
           model=made("bailing_moe_v3", *[(BAILING_LATENT,)] * 7), tokens=1_226_984, gib=9.21,
           why="7 latent layers, as many as its bytes a token say; its states are not stated and left out"),
    Report(id="sgl-fs-62820719480", source="public file 62820719480", model=made("qwen4_exp", *[(FULL_QWEN4,)] * 12),
           tokens=484_032, gib=2.77 + 2.77, digits=0.01, asked={"tp": 2},
           why="12 attention layers as stated; its states and sparse index are logged apart"),
    Report(id="sgl-18039", source="sgl-project/sglang#18039", model="XiaomiMiMo/MiMo-V2-Flash", tokens=375_360,
           # The log gives the sliding pool; the full pool is 375,360 slots of 9 layers × 1 head × (192 + 128) × 2 B.
           gib=13.97 + 375_360 * 5760 / GIB, digits=0.01, asked={"tp": 4, "page_size": 64}),
)  # fmt: skip


def of(report: Report) -> Model:
    return model(report.model) if isinstance(report.model, str) else report.model


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: report.id)
def test_reported_capacity(report: Report) -> None:
    found = of(report)
    least, most = (
        capacity(found, int((report.gib + side * report.digits) * GIB), **report.asked).kv_cache_size_tokens
        for side in (-1, 1)
    )
    # Within what the digits allow; and the middle of it within 0.5 % where the digits allow so much.
    assert least <= report.tokens <= most
    middle = capacity(found, int(report.gib * GIB), **report.asked).kv_cache_size_tokens
    assert abs(middle - report.tokens) <= max(0.005 * report.tokens, most - least)


def test_reported_pools_of_states_and_windows() -> None:
    """The figures beside the tokens: slots of states, sizes of both kinds of states, tokens of the sliding pool."""
    states = capacity(model("Qwen/Qwen3.5-27B"), int(38.08 * GIB)).log_lines[0]
    assert states == (
        "Mamba Cache is allocated. max_mamba_cache_size: 124, conv_state size: 0.34GB, ssm_state size: 17.58GB"
    )
    mimo = model("XiaomiMiMo/MiMo-V2-Flash")
    lines = capacity(mimo, (375_360 * 5760 + 300_288 * 49_920), tp=4, page_size=64).log_lines
    assert lines[0] == "Use sliding window memory pool. full_layer_tokens=375360, swa_layer_tokens=300288"
    assert lines[2].endswith("#tokens: 300288, K size: 8.38 GB, V size: 5.59 GB")


def test_log_lines() -> None:
    lines = capacity(small(), GIB, length=4096, version="0.5.23").log_lines
    cell = 4 * 2 * 128 * 2
    tokens = GIB // cell
    assert (
        lines[0] == f"KV Cache is allocated. dtype: torch.bfloat16, #tokens: {tokens}, K size: 0.50 GB, V size: 0.50 GB"
    )
    assert lines[1] == (
        f"max_total_num_tokens={tokens}, chunked_prefill_size=8192, max_prefill_tokens=16384, "
        "max_running_requests=4096, context_len=4096"
    )
    assert "dtype" not in capacity(small(), GIB, length=4096, version="0.4.6").log_lines[0]
    latent = capacity(model("deepseek-ai/DeepSeek-V3"), 10 * GIB).log_lines[0]
    assert latent == "KV Cache is allocated. dtype: torch.bfloat16, #tokens: 152797, KV size: 10.00 GB"


# --- refusals and the command -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "asked", "words"),
    [
        ("ai21labs/Jamba-v0.1", {}, "no model class"),
        ("deepseek-ai/DeepSeek-V4-Flash", {}, "DeepSeek-V4"),
        ("openai/whisper-large-v3", {}, "encoder-decoder"),
        ("openai/gpt-oss-20b", {"tp": 2, "dcp": 2}, "decode context parallel"),
        ("openai/gpt-oss-20b", {"kv": "int8"}, "kv_cache_dtype"),
        ("openai/gpt-oss-20b", {"kv": "nvfp4", "gpu": "h100-sxm"}, "Blackwell"),
        ("deepseek-ai/DeepSeek-V3.2", {"kv": "mxfp8"}, "bf16 or fp8"),
        ("openai/gpt-oss-20b", {"tp": 3}, "cannot be split"),
        ("google/gemma-4-26B-A4B", {"disable_hybrid_swa_memory": True}, "one shape of heads"),
        ("openai/gpt-oss-20b", {"version": "0.3.6"}, "not followed"),
        ("openai/gpt-oss-20b", {"gpu": "mi300x"}, "NVIDIA"),
        ("openai/gpt-oss-20b", {"swa_full_tokens_ratio": 0.0}, "swa_full_tokens_ratio"),
        ("openai/gpt-oss-20b", {"page_size": 0}, "--page-size is 0; expected 1 … 65,536"),
        ("openai/gpt-oss-20b", {"mem_fraction_static": 1.5}, "mem_fraction_static"),
        ("openai/gpt-oss-20b", {"mamba_ssm_dtype": "int4"}, "mamba_ssm_dtype"),
        ("openai/gpt-oss-20b", {"dsa_decode_backend": "fast"}, "dsa_decode_backend"),
        ("openai/gpt-oss-20b", {"tp": 4, "dp_size": 3, "enable_dp_attention": True}, "dp_size"),
        ("openai/gpt-oss-20b", {"tp": 4, "dcp": 3}, "dcp_size"),
    ],
)
def test_what_is_not_supported_is_refused(name: str, asked: dict[str, Any], words: str) -> None:
    with pytest.raises(EngineError, match=words):
        layout(model(name), **asked)


def test_unknown_formats_are_refused() -> None:
    with pytest.raises(UnitError, match="fp7"):
        layout(small(), kv="fp7")


def test_cpu_is_refused() -> None:
    with pytest.raises(EngineError, match="cpu"):
        SGLANG.settings(small(), Request(context=1, platform="cpu"))


def test_command() -> None:
    found = small()
    asked = chosen(found, length=2048, kv="fp8", tp=4, page_size=16, disable_radix_cache=True)
    assert SGLANG.launch(found, h100(engine="sglang"), asked).words == (
        "python", "-m", "sglang.launch_server", "--model-path", found.name, "--context-length", "2048",
        "--tp-size", "4", "--kv-cache-dtype", "fp8_e4m3", "--page-size", "16", "--disable-radix-cache",
    )  # fmt: skip


# --- what must always hold --------------------------------------------------------------------------------------------

MODELS = (
    "meta-llama/Llama-3.1-8B-Instruct", "deepseek-ai/DeepSeek-V3", "deepseek-ai/DeepSeek-V3.2", "openai/gpt-oss-20b",
    "Qwen/Qwen3-Next-80B-A3B-Instruct", "google/gemma-3-27b-it",
)  # fmt: skip


@settings(deadline=None)
@given(st.sampled_from(MODELS), st.integers(1, 80 * 1024), st.integers(0, 4096), st.sampled_from([None, 16, 64]),
       st.sampled_from([1, 2]))  # fmt: skip
def test_more_memory_never_holds_less(name: str, mib: int, more: int, page: int | None, tp: int) -> None:
    found = model(name)
    less, most = (capacity(found, size * MIB, length=8192, page_size=page, tp=tp) for size in (mib, mib + more))
    # States come in whole slots, and token slots get the rest: where one more state fits, tokens give way to it.
    planned = layout(found, length=8192, page_size=page, tp=tp)
    state = sum(group.layers * group.page_bytes for group in planned.groups if group.kind == "state")
    dip = -(-state // (planned.bytes_per_block or 1)) * (planned.block_size or 1) if state else 0
    assert less.kv_cache_size_tokens <= most.kv_cache_size_tokens + dip
    assert less.max_concurrency <= most.max_concurrency + Fraction(dip, 8192)
    step = page_size(found, chosen(found, length=8192, page_size=page, tp=tp))
    assert less.kv_cache_size_tokens % step == 0


@settings(deadline=None)
@given(st.sampled_from(MODELS), st.integers(1, 100_000), st.sampled_from([1, 2, 4, 8]))
def test_ranks_together_never_hold_less_than_one(name: str, length: int, tp: int) -> None:
    found = model(name)
    alone, ranked = (layout(found, length=length, tp=size).bytes_per_request for size in (1, tp))
    assert ranked <= alone <= ranked * tp


@settings(deadline=None)
@given(st.sampled_from(MODELS), st.integers(1, 60 * 1024))
def test_pools_never_exceed_the_budget(name: str, mib: int) -> None:
    found = model(name)
    asked = chosen(found, length=8192)
    got, planned = SGLANG.capacity(found, asked, mib * MIB), SGLANG.layout(found, asked)
    # All requests that are counted fit together, slots of states for padding apart.
    assert int(got.max_concurrency) * planned.bytes_per_request <= mib * MIB
