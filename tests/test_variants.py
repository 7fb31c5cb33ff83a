"""Counterfactuals are models made of the same memories."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvcore.engines.reserve import Reservation, reserve
from kvcore.errors import UnitError
from kvcore.formats import KV_FORMATS, kv_format
from kvcore.hardware.gpus import accelerator
from kvcore.model import CrossAttention, Latent, Model, NoMemory, model_from_config
from kvcore.sizing import bytes_per_token, resident_bytes, size
from kvcore.variants.variants import STATES, canonical, variant
from tests.models import model

BF16 = kv_format("bf16")
LLAMA = "meta-llama/Llama-3.3-70B-Instruct"


@pytest.mark.parametrize("groups", [1, 2, 4, 8, 16, 32, 64])
def test_the_factor_is_heads_over_kv_heads(groups: int) -> None:
    mha, gqa = variant(model(LLAMA), "mha"), variant(model(LLAMA), f"gqa:{groups}")
    assert bytes_per_token(mha, 0, BF16) * groups == bytes_per_token(gqa, 0, BF16) * 64


@pytest.mark.parametrize(
    ("model_id", "text"),
    [
        (LLAMA, "gqa:8"),
        ("google/gemma-3-27b-it", "sliding:1024/6"),
        ("deepseek-ai/DeepSeek-V3", "mla"),
        ("deepseek-ai/DeepSeek-V3", "mla:512+64"),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", "hybrid:4:gdn"),
        ("mistralai/Mistral-7B-v0.1", "sliding:4096"),
        ("meta-llama/Llama-2-7b-chat-hf", "mha"),
        ("nvidia/Llama-3_3-Nemotron-Super-49B-v1", "gqa:8"),
    ],
)
def test_a_model_as_what_it_is_keeps_its_size(model_id: str, text: str) -> None:
    """The shipped design, asked for as a variant, comes back byte for byte."""
    for tokens in (0, 1000, 100_000):
        assert resident_bytes(variant(model(model_id), text), tokens, BF16) == resident_bytes(
            model(model_id), tokens, BF16
        )


def test_multi_head_of_a_latent_model_uses_its_own_widths() -> None:
    """DeepSeek-V3: 128 heads with keys of 128 + 64 and values of 128."""
    assert bytes_per_token(variant(model("deepseek-ai/DeepSeek-V3"), "mha"), 0, BF16) == 61 * 128 * (192 + 128) * 2


def test_sharing_and_interpolation() -> None:
    llama = model(LLAMA)
    full = resident_bytes(llama, 8192, BF16)
    assert resident_bytes(variant(llama, "share:2"), 8192, BF16) * 2 == full
    assert resident_bytes(variant(llama, "share:3"), 8192, BF16) == full * 27 // 80
    assert resident_bytes(variant(llama, "hybrid:1"), 8192, BF16) == full
    assert resident_bytes(variant(llama, "sliding:128/1"), 8192, BF16) == full
    steps = [resident_bytes(variant(llama, f"sliding:128/{n}"), 8192, BF16) for n in (1, 2, 4, 8, 80, 2048)]
    assert steps == sorted(steps, reverse=True)
    assert steps[-1] == resident_bytes(variant(llama, "sliding:128"), 8192, BF16)


@pytest.mark.parametrize("design", ["mamba2", "gdn", "kda", "linear"])
def test_linear_attention_never_grows(design: str) -> None:
    linear = variant(model(LLAMA), f"linear:{design}")
    assert resident_bytes(linear, 0, BF16) == resident_bytes(linear, 10**6, BF16) == size(linear, 5).state_bytes > 0


@pytest.mark.parametrize(
    "text",
    ["", "gqa", "gqa:", "gqa:3", "gqa:0", "gqa:128", "gqa:x", "mha:2", "mla:0", "mla:512+", "sliding", "sliding:0",
     "sliding:5/0", "share:0", "hybrid", "hybrid:4:magic", "linear:magic", "x" * 100, "gqa:８", "sliding:-5"],
)  # fmt: skip
def test_what_is_no_variant_is_refused(text: str) -> None:
    with pytest.raises(UnitError, match="variant|state"):
        variant(model(LLAMA), text)


def test_a_model_without_heads_has_no_attention_variant() -> None:
    with pytest.raises(UnitError, match="no attention heads"):
        variant(model("state-spaces/mamba-2.8b-hf"), "mha")


# What Llama 3.3 70B would be with a latent, written out as a configuration of DeepSeek-V2's family.
LLAMA_AS_MLA = {
    "model_type": "deepseek_v2", "architectures": ["DeepseekV2ForCausalLM"], "num_hidden_layers": 80,
    "hidden_size": 8192, "num_attention_heads": 64, "num_key_value_heads": 64, "kv_lora_rank": 512,
    "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "q_lora_rank": None,
    "intermediate_size": 28672, "vocab_size": 128256, "max_position_embeddings": 131072, "torch_dtype": "bfloat16",
    "tie_word_embeddings": False, "first_k_dense_replace": 80, "n_routed_experts": None,
}  # fmt: skip


@pytest.mark.parametrize("ranks", [1, 8])
@pytest.mark.parametrize("stored", ["auto", "fp8", "fp8_ds_mla"])
@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm", "llama.cpp", "transformers"])
def test_engines_store_a_variant_as_the_configuration_written_by_hand(engine: str, stored: str, ranks: int) -> None:
    by_hand, made = model_from_config(LLAMA_AS_MLA), variant(model(LLAMA), "mla")

    def answer(of: Model) -> Reservation:
        return reserve(of, engine, length=131_072, kv_dtype=stored, tp=ranks, gpu=accelerator("h100-sxm"),
                       kv_bytes=20 * 2**30)  # fmt: skip

    one, other = answer(by_hand), answer(made)
    assert bool(one.layout) == bool(other.layout)
    if one.layout and other.layout and one.capacity and other.capacity:
        for field in ("bytes_per_request", "block_size", "bytes_per_block", "blocks_per_request", "groups"):
            assert getattr(one.layout, field) == getattr(other.layout, field), field
        assert one.capacity.kv_cache_size_tokens == other.capacity.kv_cache_size_tokens


def test_vllm_reserves_a_latent_on_every_rank() -> None:
    """131,072 tokens × 80 layers × 576 numbers × 2 bytes, whatever the ranks."""
    for ranks in (1, 8):
        layout = reserve(variant(model(LLAMA), "mla"), "vllm", length=131_072, tp=ranks).layout
        assert layout is not None
        assert layout.bytes_per_request == 131_072 * 80 * 576 * 2


@pytest.mark.parametrize("model_id", [LLAMA, "Qwen/Qwen2.5-0.5B", "deepseek-ai/DeepSeek-V3", "google/gemma-3-27b-it"])
def test_fewer_heads_never_hold_more(model_id: str) -> None:
    own = model(model_id)
    heads = own.num_attention_heads
    divisors = [count for count in range(1, heads + 1) if heads % count == 0]
    held = [resident_bytes(variant(own, f"gqa:{count}"), 8192, BF16) for count in divisors]
    assert held == sorted(held)
    assert held[0] == resident_bytes(variant(own, "mqa"), 8192, BF16)
    assert held[-1] == resident_bytes(variant(own, "mha"), 8192, BF16)
    assert [size * heads for size in held] == [held[-1] * count for count in divisors]


@pytest.mark.parametrize("text", ["mha", "gqa:8", "mqa", "sliding:4096", "sliding:1024/6", "share:2", "hybrid:4:gdn"])
@pytest.mark.parametrize(("name", "numerator", "denominator"), [("fp8", 1, 2), ("fp32", 2, 1), ("q8_0", 34, 64)])
def test_formats_compose_with_variants(text: str, name: str, numerator: int, denominator: int) -> None:
    """What grows scales with the format's bytes; states do not change."""
    made = variant(model(LLAMA), text)
    states = size(made, 0).state_bytes
    wide, other = (resident_bytes(made, 32_768, kv_format(one)) - states for one in ("bf16", name))
    assert other * denominator == wide * numerator


@pytest.mark.parametrize("text", ["mha", "mla", "sliding:128/3", "share:2", "hybrid:8:kda", "linear"])
def test_every_format_either_suits_a_variant_or_says_why(text: str) -> None:
    made = variant(model(LLAMA), text)
    for kv in KV_FORMATS.values():
        try:
            assert resident_bytes(made, 1000, kv) > 0
        except UnitError as problem:
            assert kv.name in str(problem)


@pytest.mark.parametrize("design", STATES)
def test_one_in_n_lies_between_all_and_none(design: str) -> None:
    llama = model(LLAMA)
    all_full, none = (resident_bytes(variant(llama, text), 32_768, BF16) for text in ("gqa:8", f"linear:{design}"))
    for every in (2, 4, 5, 8, 80):
        mixed = resident_bytes(variant(llama, f"hybrid:{every}:{design}"), 32_768, BF16)
        # 80 layers: 80/N attend and hold 128 MiB each at this length, the rest hold a state.
        assert mixed * 80 == all_full * (80 // every) + none * (80 - 80 // every)
        assert none < mixed < all_full


@pytest.mark.parametrize(
    ("model_id", "remembering"),
    [
        ("nvidia/Nemotron-H-56B-Base-8K", 64),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", 29),
        ("nvidia/Llama-3_3-Nemotron-Super-49B-v1", 49),
        ("meta-llama/Llama-3.2-11B-Vision-Instruct", 32),
    ],
)
def test_one_in_n_counts_the_layers_that_remember(model_id: str, remembering: int) -> None:
    """Feed-forward layers and layers that read images only are none of the N, wherever they stand."""
    own = model(model_id)
    for text in ("sliding:64/{}", "hybrid:{}:gdn"):
        held = []
        for every in range(1, remembering + 2):
            made = variant(own, text.format(every))
            assert dict(made.kinds).get("full", 0) == remembering // every
            held.append(resident_bytes(made, 131_072, BF16))
        assert held == sorted(held, reverse=True)


def test_named_states_have_the_published_shapes() -> None:
    """Nemotron-H 8B's Mamba-2, Qwen3-Next's delta net and Kimi Linear's KDA, rebuilt from their widths."""
    for model_id, text in (
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", "linear:gdn"),
        ("moonshotai/Kimi-Linear-48B-A3B-Instruct", "linear:kda"),
    ):
        own = model(model_id)
        shipped = {memory for memory, _ in own.groups if memory.kind == "state"}
        made = {memory for memory, _ in variant(own, text).groups}
        assert {memory.parts for memory in made} == {memory.parts for memory in shipped}, model_id


def test_states_of_an_odd_width_can_be_built() -> None:
    """gpt-oss is 2,880 wide: 90 Mamba-2 heads take 2 groups, not 8; 22 key heads have 44 value heads, not 45."""
    own = model("openai/gpt-oss-120b")
    parts = {text: variant(own, text).layers[0][0].parts for text in ("linear:mamba2", "linear:gdn")}
    assert [part.shape for part in parts["linear:mamba2"]] == [(5760 + 2 * 2 * 128, 3), (90, 64, 128)]
    assert [part.shape for part in parts["linear:gdn"]] == [(128 * (2 * 22 + 44), 3), (44, 128, 128)]


def test_what_is_kept_of_a_source_stays() -> None:
    """Whisper's decoder reads its encoder whatever its own attention is; Llama 3.2 Vision reads its images."""
    for model_id in ("openai/whisper-large-v3", "meta-llama/Llama-3.2-11B-Vision-Instruct"):
        own = model(model_id)
        for text in ("mha", "mqa", "mla", "sliding:64", "hybrid:2:kda"):
            made = variant(own, text)
            for before, after in zip(own.layers, made.layers, strict=True):
                cross = [one for one in before if isinstance(one, CrossAttention)]
                assert [one for one in after if isinstance(one, CrossAttention)] == cross
                assert len(after) == len(cross) + (len(before) > len(cross))


def test_layers_that_remember_nothing_stay_so_and_own_no_shared_cache() -> None:
    own = model("nvidia/Nemotron-H-56B-Base-8K")
    shared = variant(own, "share:2")
    # 64 of 118 layers remember: every second of them keeps a cache and the next one reads it.
    assert dict(shared.kinds) == {"full": 32, "shared": 32, "none": 54}
    for index, layer in enumerate(shared.layers):
        assert isinstance(layer[0], NoMemory) == isinstance(own.layers[index][0], NoMemory)
        if layer[0].kind == "shared":
            assert shared.layers[layer[0].owner][0].kind == "full"


def test_a_latent_model_slides_shares_and_mixes_with_its_own_latent() -> None:
    own = model("deepseek-ai/DeepSeek-V3")
    assert resident_bytes(variant(own, "sliding:4096"), 32_768, BF16) * 8 == resident_bytes(own, 32_768, BF16)
    assert isinstance(variant(own, "share:2").layers[0][0], Latent)
    assert isinstance(variant(own, "hybrid:4:kda").layers[3][0], Latent)


def test_each_layer_keeps_its_own_widths() -> None:
    """Gemma 4 26B: 25 windows with 8 KV heads of 256, 5 full layers with 2 of 512, 16 query heads."""
    own = model("google/gemma-4-26B-A4B")
    assert bytes_per_token(variant(own, "mha"), 0, BF16) == 2 * 16 * (25 * 256 + 5 * 512) * 2
    assert variant(own, "sliding:1024/6") is own
    assert bytes_per_token(variant(own, "share:1"), 0, BF16) == 2 * (25 * 8 * 256 + 5 * 2 * 512) * 2


def test_a_layer_that_reads_another_gets_that_ones_widths() -> None:
    """Gemma 4 E2B: 15 of 35 layers keep a cache, 16 read a window of 256, 4 a full one of 512; 8 query heads."""
    own = model("google/gemma-4-E2B-it")
    assert bytes_per_token(variant(own, "mha"), 0, BF16) == 2 * 8 * (28 * 256 + 7 * 512) * 2


@pytest.mark.parametrize(
    ("text", "parameters"),
    [
        # K and V of 56 more heads in 80 layers: 2 × 80 × 8,192 × 56 × 128.
        ("mha", 70_553_698_304 + 2 * 80 * 8192 * 56 * 128),
        ("mqa", 70_553_698_304 - 2 * 80 * 8192 * 7 * 128),
        ("sliding:4096/6", 70_553_698_304),
        # 40 layers have no K and V projections.
        ("share:2", 70_553_698_304 - 2 * 40 * 8192 * 8 * 128),
    ],
)
def test_parameters_follow_the_projections(text: str, parameters: int) -> None:
    made = variant(model(LLAMA), text)
    assert made.total_parameters == made.active_parameters + 128_256 * 8192 - 8192 == parameters


def test_parameters_of_a_latent_equal_those_of_the_configuration_written_by_hand() -> None:
    assert variant(model(LLAMA), "mla").total_parameters == model_from_config(LLAMA_AS_MLA).total_parameters


def test_the_checkpoints_bytes_stay_only_where_no_projection_changes() -> None:
    own = model(LLAMA)
    stored = own.checkpoint_bytes or 141_107_412_992
    own = replace(own, checkpoint_bytes=stored)
    assert variant(own, "sliding:4096").checkpoint_bytes == stored
    assert variant(own, "mqa").checkpoint_bytes is None
    assert variant(own, "gqa:8") is own


@pytest.mark.parametrize(
    ("text", "plain"),
    [("MHA", "mha"), (" mla:512+64 ", "mla"), ("mla:256+0", "mla:256+0"), ("sliding:4K/6", "sliding:4096/6"),
     ("hybrid:4", "hybrid:4:mamba2"), ("linear:linear", "linear"), ("gqa:08", "gqa:8")],
)  # fmt: skip
def test_one_spelling(text: str, plain: str) -> None:
    assert canonical(text) == plain == canonical(plain)


def test_removed_states_index_keys_and_compressors_lose_their_parameters() -> None:
    """Falcon-H1 attends and keeps a state in every layer; DeepSeek-V3.2 has an indexer, V4 compressors too."""
    for model_id, text, gone in (
        ("tiiuae/Falcon-H1-7B-Instruct", "mqa", "recurrent layers"),
        ("deepseek-ai/DeepSeek-V3.2", "sliding:4096", "indexer"),
        ("deepseek-ai/DeepSeek-V4-Flash", "mla", "compressors"),
    ):
        own = replace(model(model_id), checkpoint_bytes=10**12)
        made = variant(own, text)
        assert gone in {part.name for part in own.weights}
        assert gone not in {part.name for part in made.weights}
        assert made.checkpoint_bytes is None


def test_layers_that_share_a_latent_lose_what_makes_it() -> None:
    """Every second of 61 layers: 30 × (7,168 × 576 + 512 × 128 × (128 + 128)) parameters fewer."""
    own = model("deepseek-ai/DeepSeek-V3")
    fewer = own.total_parameters - variant(own, "share:2").total_parameters
    assert fewer == 30 * (7168 * 576 + 512 * 128 * (128 + 128))


def test_a_layer_that_stays_keeps_its_parameters() -> None:
    """A hybrid of DeepSeek-V3 that attends in 15 of 61 layers keeps 15/61 of its attention's parameters."""
    own = model("deepseek-ai/DeepSeek-V3")
    attention = next(part.parameters for part in own.weights if part.name == "attention")
    made = next(part.parameters for part in variant(own, "hybrid:4:kda").weights if part.name == "attention")
    state = next(part.parameters for part in variant(own, "linear:kda").weights if part.name == "attention")
    assert made == attention // 61 * 15 + state // 61 * 46


def test_a_state_for_another_keeps_the_weights_known() -> None:
    assert variant(model("state-spaces/mamba-2.8b-hf"), "linear:gdn").total_parameters > 10**9
