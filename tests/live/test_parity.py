"""The live engine against transformers in fp32, every family and mode, on tiny random models."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
import transformers

from kvcore.live.decoder import Decoder
from kvcore.live.shape import LiveShape, as_variant, parameters, shape_from_config
from kvcore.live.weights import random_weights, weights_from
from tests.live import tiny

LIMIT = 1e-4
SIDES: dict[str, Any] = {
    "num_hidden_layers": 3, "hidden_size": 48, "intermediate_size": 80, "num_attention_heads": 6,
    "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 160, "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
    "initializer_range": 0.3, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-gqa": ("llama", {}),
    "llama-mha-tied": ("llama", {"num_key_value_heads": 6, "tie_word_embeddings": True}),
    "llama-mqa": ("llama", {"num_key_value_heads": 1}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-llama3-rope": ("llama", {"rope_theta": 5e5, "rope_scaling": LLAMA3}),
    "llama-linear-rope": ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
    "llama-dynamic-rope": ("llama", {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}),
    "qwen2": ("qwen2", {"head_dim": ..., "num_key_value_heads": 3}),
    "qwen2-yarn-tied": ("qwen2", {"head_dim": ..., "rope_scaling": YARN, "tie_word_embeddings": True}),
    "qwen2-window": ("qwen2", {"head_dim": ..., "use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}),
    "qwen3": ("qwen3", {"head_dim": 16, "rope_theta": 1e6}),
    "qwen3-biases-tied": ("qwen3", {"attention_bias": True, "tie_word_embeddings": True}),
    "mistral-window": ("mistral", {"sliding_window": 7, "head_dim": 16}),
    "mistral-full": ("mistral", {"sliding_window": None}),
}  # fmt: skip


@cache
def pair(case: str) -> tuple[Any, Decoder]:
    """transformers' model and ours with the same weights, every tensor of them random (biases and norms too)."""
    family, changes = CASES[case]
    raw = {key: value for key, value in (SIDES | changes).items() if value is not ...}
    torch.manual_seed(len(case))
    config = transformers.AutoConfig.for_model(family, attn_implementation="eager", **raw)
    theirs = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, tensor in theirs.named_parameters():
            if tensor.dim() == 1:
                tensor.normal_(mean=0.0 if name.endswith("bias") else 1.0, std=0.3)
    shape = shape_from_config(raw | {"model_type": family}, case)
    assert parameters(shape) == sum(tensor.numel() for tensor in theirs.parameters())
    state = theirs.state_dict()
    return theirs, Decoder(
        shape, weights_from(shape, set(state), state.__getitem__, "fp32", "cpu"), weight_format="fp32"
    )


def reference(case: str, ids: list[int]) -> torch.Tensor:
    """transformers' logits [T, vocab] of one request in one pass."""
    with torch.inference_mode():
        logits: torch.Tensor = pair(case)[0](torch.tensor([ids]), use_cache=False).logits[0]
    # A scale that makes 1e-4 a strict limit, and not logits that are all alike.
    assert logits.std() > 0.5
    return logits


def check(found: torch.Tensor, expected: torch.Tensor, limit: float = LIMIT) -> None:
    assert (found - expected).abs().max().item() <= limit


@pytest.mark.parametrize("case", CASES)
def test_full_and_recomputed(case: str) -> None:
    ours, ids = pair(case)[1], tiny.tokens(40, 1, 160)
    expected = reference(case, ids)
    check(ours.full_logits([ids])[0], expected)
    check(ours.recompute([ids, ids[:9]]), expected[[39, 8]])


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("chunk", [1, 5, 512])
def test_prefill_in_chunks_then_cached_steps(case: str, chunk: int) -> None:
    """Blocks of 4 tokens, so that the cache is made anew often, and steps across several of them."""
    ours, ids = pair(case)[1], tiny.tokens(40, 2, 160)
    expected = reference(case, ids)
    held = ours.new_cache(1, "fp32", block_tokens=4)
    check(ours.prefill([ids[:17]], held, chunk=chunk)[0], expected[16])
    for at in range(17, 40):
        check(ours.step([ids[at]], held)[0], expected[at])


@pytest.mark.parametrize("case", CASES)
def test_a_second_turn_prefills_only_what_is_new(case: str) -> None:
    ours, ids = pair(case)[1], tiny.tokens(60, 3, 160)
    expected = reference(case, ids)
    held = ours.new_cache(1, "fp32", block_tokens=16)
    ours.prefill([ids[:20]], held)
    for token in ids[20:25]:
        ours.step([token], held)
    check(ours.prefill([ids[25:60]], held, chunk=11)[0], expected[59])
    assert held.lengths == [60]


@pytest.mark.parametrize("case", CASES)
def test_a_batch_of_unequal_requests(case: str) -> None:
    ours = pair(case)[1]
    ids = [tiny.tokens(count, count, 160) for count in (40, 26, 33)]
    expected = [reference(case, one) for one in ids]
    lengths = [20, 2, 9]
    held = ours.new_cache(3, "fp32", block_tokens=8)
    found = ours.prefill([one[:count] for one, count in zip(ids, lengths, strict=True)], held, chunk=6)
    for request, count in enumerate(lengths):
        check(found[request], expected[request][count - 1])
    for _ in range(20):
        found = ours.step([one[count] for one, count in zip(ids, lengths, strict=True)], held)
        for request, count in enumerate(lengths):
            check(found[request], expected[request][count])
        lengths = [count + 1 for count in lengths]
    # A second prefill over requests that stand at different places, two of them with a single token.
    found = ours.prefill([ids[0][40:] or [5], ids[1][22:26], ids[2][29:33]], held, chunk=3)
    check(found[1], expected[1][25])
    check(found[2], expected[2][32])


@pytest.mark.parametrize("case", ["llama-gqa", "qwen3", "mistral-window"])
def test_equal_requests_in_a_batch(case: str) -> None:
    ours = pair(case)[1]
    ids = [tiny.tokens(30, seed, 160) for seed in (7, 8)]
    expected = [reference(case, one) for one in ids]
    held = ours.new_cache(2, "fp32", block_tokens=8)
    found = ours.prefill([one[:12] for one in ids], held)
    for at in range(12, 30):
        for request in (0, 1):
            check(found[request], expected[request][at - 1])
        found = ours.step([one[at] for one in ids], held)


def test_what_transformers_would_generate() -> None:
    theirs, ours = pair("qwen3")
    ids = tiny.tokens(11, 4, 160)
    expected = theirs.generate(
        torch.tensor([ids]), max_new_tokens=24, min_new_tokens=24, do_sample=False, eos_token_id=None, pad_token_id=0
    )[0, 11:].tolist()
    held, found = ours.new_cache(1, "fp32"), []
    logits = ours.prefill([ids], held)
    for _ in range(24):
        found.append(int(logits[0].argmax()))
        logits = ours.step(found[-1:], held)
    assert found == expected


@pytest.mark.parametrize("variant", ["mha", "gqa:2", "mqa", "mla:32+8", "sliding:7", "sliding:5/2"])
def test_variants_agree_with_themselves(variant: str) -> None:
    """Cached, chunked and batched with unequal lengths against one pass without a cache."""
    ours = tiny.decoder(tiny.shape(variant))
    ids = [tiny.tokens(40, 1), tiny.tokens(31, 2)]
    expected = [ours.full_logits([one])[0] for one in ids]
    held = ours.new_cache(2, "fp32", block_tokens=4)
    found = ours.prefill([ids[0][:20], ids[1][:11]], held, chunk=6)
    for step in range(20):
        check(found[0], expected[0][19 + step])
        check(found[1], expected[1][10 + step])
        found = ours.step([ids[0][20 + step], ids[1][11 + step]], held)


def by_hand_latent(shape: LiveShape, ours: Decoder, ids: list[int]) -> torch.Tensor:
    """Latent attention as DeepSeek-V2 writes it (section 2.1): keys and values of every head made of the latent."""
    heads, width, rank, rope = shape.num_heads, shape.head_dim, shape.kv_lora_rank, shape.qk_rope_head_dim
    angles = torch.outer(torch.arange(len(ids)).float(), 10_000.0 ** (-torch.arange(0, rope, 2).float() / rope))

    def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight

    def turn(x: torch.Tensor) -> torch.Tensor:
        a, b = x[..., : rope // 2], x[..., rope // 2 :]
        return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), -1)

    x = ours.weights.embedding[ids]
    for layer in ours.weights.layers:
        fused = norm(x, layer.attention_norm) @ layer.qkv.weight.T
        query = fused[:, : heads * (width + rope)].view(-1, heads, width + rope).transpose(0, 1)
        latent = norm(fused[:, -(rank + rope) : -rope], layer.latent_norm)
        shared = turn(fused[:, -rope:])
        keys = torch.einsum("tr,hdr->htd", latent, layer.key_up)
        values = torch.einsum("tr,hrd->htd", latent, layer.value_up)
        scores = query[..., :width] @ keys.mT + turn(query[..., width:]) @ shared.T
        scores = scores / (width + rope) ** 0.5 + torch.full(scores.shape[-2:], float("-inf")).triu(1)
        x = x + (scores.softmax(-1) @ values).transpose(0, 1).flatten(1) @ layer.o.weight.T
        gate, up = (norm(x, layer.mlp_norm) @ layer.gate_up.weight.T).chunk(2, -1)
        x = x + (gate / (1 + (-gate).exp()) * up) @ layer.down.weight.T
    return norm(x, ours.weights.norm) @ ours.weights.head.weight.T


def test_absorbed_latent_equals_the_written_out_one() -> None:
    shape = as_variant(tiny.shape(), "mla:32+8")
    ours = Decoder(shape, random_weights(shape, "fp32"), weight_format="fp32")
    ids = tiny.tokens(24, 5)
    check(ours.full_logits([ids])[0], by_hand_latent(shape, ours, ids))


@pytest.mark.parametrize("variant", ["shipped", "mla:32+8", "sliding:5/2"])
@pytest.mark.parametrize("kv_format", ["fp32", "int8"])
def test_the_step_of_fixed_shapes(variant: str, kv_format: str) -> None:
    """What CUDA graphs would record, run here without recording.

    Masked rows change the order of sums; in int8 the last bit of a sum can move a stored number by one step.
    """
    limit = LIMIT if kv_format == "fp32" else 0.05
    ours = tiny.decoder(tiny.shape(variant))
    free, fixed = (ours.new_cache(2, kv_format, block_tokens=4) for _ in range(2))
    for held in (free, fixed):
        ours.prefill([tiny.tokens(9, 1), tiny.tokens(4, 2)], held)
    for token in range(14):
        ours.graphs = False
        expected = ours.step([token, token + 1], free)
        ours.graphs = True
        check(ours.step([token, token + 1], fixed), expected, limit)
    assert fixed.lengths == free.lengths
    assert fixed.resident_bytes() == free.resident_bytes()


@pytest.mark.parametrize(("kv_format", "limit"), [("bf16", 0.06), ("fp16", 0.01), ("int8", 0.15)])
@pytest.mark.parametrize("variant", ["shipped", "mqa", "mla:32+8", "sliding:7"])
def test_cache_formats_change_little(variant: str, kv_format: str, limit: float) -> None:
    """Rounding is 2^-9 for bf16, 2^-12 for fp16 and about 2^-8 of a vector's largest number for int8."""
    ours = tiny.decoder(tiny.shape(variant))
    ids = tiny.tokens(40, 6)
    expected = ours.full_logits([ids])[0]
    held = ours.new_cache(1, kv_format, block_tokens=8)
    worst = (ours.prefill([ids[:20]], held, chunk=7)[0] - expected[19]).abs().max().item()
    for at in range(20, 40):
        worst = max(worst, (ours.step([ids[at]], held)[0] - expected[at]).abs().max().item())
    assert 1e-5 < worst < limit
