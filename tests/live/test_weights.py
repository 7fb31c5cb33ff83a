"""Weights: random and from safetensors, packed, measured; and every way in which a folder can be wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from kvcore.errors import LiveError
from kvcore.live.decoder import Decoder
from kvcore.live.shape import LiveShape, cut, step_weight_bytes, weight_bytes
from kvcore.live.weights import Linear, Widener, load_safetensors, pack, random_weights
from tests.live import tiny

SHAPE = tiny.shape(qkv_bias=True, tied=True, family="qwen2")
SHAPES = {
    "llama": tiny.shape(),
    "qwen2-tied": SHAPE,
    "qwen3": tiny.shape(family="qwen3", qk_norm=True, head_dim=32),
    "biases": tiny.shape(qkv_bias=True, o_bias=True, mlp_bias=True),
    "mla": tiny.shape("mla:32+16"),
    # 100 is no multiple of 16 or 32: its matrices stay in 16 bits.
    "odd": tiny.shape(intermediate_size=100),
}


def state(shape: LiveShape) -> dict[str, torch.Tensor]:
    """Tensors as transformers names them, random."""
    generator = torch.Generator().manual_seed(1)

    def draw(*sides: int) -> torch.Tensor:
        return torch.randn(sides, generator=generator) * 0.1

    hidden, wide, out = shape.hidden_size, shape.intermediate_size, shape.num_heads * shape.head_dim
    kv = shape.num_kv_heads * shape.head_dim
    found = {"model.embed_tokens.weight": draw(shape.vocab_size, hidden), "model.norm.weight": draw(hidden)}
    if not shape.tied:
        found["lm_head.weight"] = draw(shape.vocab_size, hidden)
    for index in range(shape.num_layers):
        at = f"model.layers.{index}."
        sides = {"q": (out, hidden), "k": (kv, hidden), "v": (kv, hidden), "o": (hidden, out)}
        for letter, pair in sides.items():
            found[f"{at}self_attn.{letter}_proj.weight"] = draw(*pair)
            if shape.qkv_bias and letter != "o":
                found[f"{at}self_attn.{letter}_proj.bias"] = draw(pair[0])
        for name in ("gate", "up"):
            found[f"{at}mlp.{name}_proj.weight"] = draw(wide, hidden)
        found[f"{at}mlp.down_proj.weight"] = draw(hidden, wide)
        for name in ("input_layernorm", "post_attention_layernorm"):
            found[f"{at}{name}.weight"] = 1 + draw(hidden)
    return found


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("weight_format", ["fp32", "bf16", "fp16", "int8", "int4"])
def test_measured_bytes_are_the_predicted(name: str, weight_format: str) -> None:
    shape = SHAPES[name]
    ours = tiny.decoder(shape, weight_format)
    assert ours.weights.bytes() == weight_bytes(shape, weight_format)
    # What a step reads: packed matrices where there are any, all other numbers in 16 or 32 bits, of the embedding
    # table one row.
    matrices = [m for layer in ours.weights.layers for m in (layer.qkv, layer.o, layer.gate_up, layer.down)]
    unread = sum(m.weight.nbytes for m in [*matrices, ours.weights.head] if m.packed is not None)
    if not shape.tied or ours.weights.head.packed is not None:
        unread += 0 if shape.tied else ours.weights.embedding.nbytes
    assert step_weight_bytes(shape, weight_format) == ours.weights.bytes() - unread


def test_random_weights_are_repeatable() -> None:
    shape = tiny.shape()
    one, same, other = (random_weights(shape, "fp32", seed=seed) for seed in (3, 3, 4))
    assert torch.equal(one.layers[2].down.weight, same.layers[2].down.weight)
    assert not torch.equal(one.layers[2].down.weight, other.layers[2].down.weight)
    assert not torch.equal(one.layers[0].qkv.weight, one.layers[1].qkv.weight)
    logits = Decoder(shape, one, weight_format="fp32").full_logits([tiny.tokens(30)])
    assert 0.3 < logits.std() < 5


@pytest.mark.parametrize("weight_format", ["int8", "int4"])
@pytest.mark.parametrize("rows", [1, 5])
def test_a_packed_matrix_is_nearly_the_matrix(weight_format: str, rows: int) -> None:
    """Half a step is 1/254 of a row's largest number in int8 and 1/30 of a group's range in int4; 512 of them average."""
    weights = pack(random_weights(tiny.shape(hidden_size=512, num_heads=32), "bf16"), weight_format)
    x = torch.randn(rows, 512, generator=torch.Generator().manual_seed(0)).bfloat16()
    for linear in (weights.layers[0].gate_up, weights.head):
        assert linear.packed is not None
        exact = x.float() @ linear.weight.float().T
        error = (linear(x).float() - exact).std() / exact.std()
        assert 1e-4 < error < {"int8": 0.02, "int4": 0.15}[weight_format]


def test_packed_biases_are_added() -> None:
    shape = SHAPES["biases"]
    plain, packed = tiny.decoder(shape, "bf16"), tiny.decoder(shape, "int8")
    linear = packed.weights.layers[0].qkv
    x = torch.randn(1, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    assert linear.packed is not None
    assert linear.bias is not None
    assert torch.allclose(linear(x), plain.weights.layers[0].qkv(x), atol=0.06)
    assert not torch.allclose(linear(x) - linear.bias, plain.weights.layers[0].qkv(x), atol=0.06)


def test_many_tokens_use_the_matrix_itself() -> None:
    linear = pack(random_weights(tiny.shape(), "bf16"), "int4").layers[0].o
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    assert torch.equal(linear(x), Linear(weight=linear.weight)(x))


@pytest.mark.parametrize("rows", [7, 3000])
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_widened_is_the_same_product(rows: int, kind: torch.dtype) -> None:
    """3000 × 576 numbers are two slabs; the exact product is only rounded once, to 2^-8 or 2^-11 of a number."""
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(sides, generator=generator).to(kind) for sides in ((5, 576), (rows, 576), (rows,)))
    exact = x.double() @ weight.double().T + bias.double()
    found = Widener()(x, weight, bias)
    assert found.dtype is kind
    assert torch.allclose(found.double(), exact, rtol=2**-8 if kind is torch.bfloat16 else 2**-11, atol=1e-4)


@pytest.mark.parametrize("native", [True, False])
def test_a_decoder_on_either_kind_of_processor(monkeypatch: pytest.MonkeyPatch, native: bool) -> None:
    monkeypatch.setattr("kvcore.live.decoder.is_native", lambda *_: native)
    shape, ids = tiny.shape(), tiny.tokens(20)
    ours, exact = tiny.decoder(shape, "bf16"), random_weights(shape, "bf16")
    assert all((linear.widener is None) is native for linear in ours.weights.linears())
    reference = Decoder(shape, random_weights(shape, "fp32"), weight_format="fp32").full_logits([ids])[0]
    held = ours.new_cache(1, "bf16", 8)
    found = ours.prefill([ids], held, chunk=7)[0]
    assert (found - reference[19]).abs().max() < 0.2
    assert ours.weights.bytes() == exact.bytes()


def test_packing_is_refused() -> None:
    weights = random_weights(tiny.shape(), "fp32")
    assert pack(weights, "fp32") is weights
    with pytest.raises(LiveError, match="packs bf16 weights, not float32"):
        pack(weights, "int8")
    with pytest.raises(LiveError, match="runs on the CPU only"):
        pack(random_weights(tiny.shape(), "bf16", "meta"), "int4")
    with pytest.raises(LiveError, match="weights are float32; format bf16 needs another"):
        Decoder(tiny.shape(), weights, weight_format="bf16")
    with pytest.raises(LiveError, match="weights have 3 layers; the shape has 2"):
        Decoder(cut(tiny.shape(), 2), weights, weight_format="fp32")
    with pytest.raises(LiveError, match="'q8_0' is not known here"):
        random_weights(tiny.shape(), "q8_0")


def written(folder: Path, tensors: dict[str, torch.Tensor]) -> Path:
    save_file(tensors, folder / "model.safetensors")
    return folder


def test_single_file_and_index(tmp_path: Path) -> None:
    tensors = state(SHAPE)
    (tmp_path / "one").mkdir()
    single = load_safetensors(written(tmp_path / "one", tensors), SHAPE, "fp32")
    several = tmp_path / "several"
    several.mkdir()
    names = sorted(tensors)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, held in parts.items():
        save_file({name: tensors[name] for name in held}, several / file)
    index = {"weight_map": {name: file for file, held in parts.items() for name in held}}
    (several / "model.safetensors.index.json").write_text(json.dumps(index))
    split = load_safetensors(several, SHAPE, "fp32")
    for one, other in zip(single.tensors(), split.tensors(), strict=True):
        assert torch.equal(one, other)
    q, k, v = (tensors[f"model.layers.1.self_attn.{letter}_proj.weight"] for letter in "qkv")
    assert torch.equal(single.layers[1].qkv.weight, torch.cat((q, k, v)))
    assert single.head.weight is single.embedding
    assert single.origin == "real"


def test_loaded_in_bf16_and_cut(tmp_path: Path) -> None:
    tensors = {name: tensor.bfloat16() for name, tensor in state(SHAPE).items()}
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
    short = cut(SHAPE, 2)
    weights = load_safetensors(written(tmp_path, tensors), short, "bf16")
    assert weights.bytes() == weight_bytes(short, "bf16")
    Decoder(short, weights).full_logits([[1, 2, 3]])


def test_without_the_prefix(tmp_path: Path) -> None:
    tensors = {name.removeprefix("model."): tensor for name, tensor in state(SHAPE).items()}
    load_safetensors(written(tmp_path, tensors), SHAPE, "fp32")


Change = dict[str, torch.Tensor | None]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model.norm.weight": None}, "tensor model.norm.weight is missing"),
        ({"model.layers.2.mlp.up_proj.weight": None}, "tensor model.layers.2.mlp.up_proj.weight is missing"),
        ({"model.embed_tokens.weight": None}, "embed_tokens.weight is missing"),
        ({"model.layers.0.self_attn.q_proj.bias": None}, "q_proj.bias is missing"),
        ({"model.norm.weight": torch.zeros(63)}, r"tensor model.norm.weight is \[63\]; expected \[64\]"),
        ({"model.norm.weight": torch.zeros(64, dtype=torch.int8)}, "is int8; only bf16, fp16 and fp32 can be read"),
        ({"model.layers.1.self_attn.o_proj.bias": torch.zeros(64)}, "o_proj.bias is not part of a qwen2 model"),
        ({"model.layers.1.block_sparse_moe.gate.weight": torch.zeros(2)}, "gate.weight is not part of"),
    ],
)
def test_a_tensor_is_missing_or_odd(tmp_path: Path, change: Change, words: str) -> None:
    tensors: dict[str, Any] = {name: one for name, one in (state(SHAPE) | change).items() if one is not None}
    with pytest.raises(LiveError, match=words):
        load_safetensors(written(tmp_path, tensors), SHAPE, "fp32")


def test_an_untied_head_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(LiveError, match=r"tensor lm_head.weight is missing"):
        load_safetensors(written(tmp_path, state(SHAPE)), tiny.shape(qkv_bias=True, family="qwen2"), "fp32")
    with pytest.raises(LiveError, match="random weights only"):
        load_safetensors(tmp_path, SHAPES["mla"], "fp32")


@pytest.mark.parametrize(
    ("index", "words"),
    [
        ("{", "is not usable"),
        ("[]", "is not usable"),
        ('{"weight_map": {"a": 1}}', "names files outside"),
        ('{"weight_map": {"a": "../model.safetensors"}}', "names files outside"),
        ('{"weight_map": {"a": "/etc/passwd"}}', "names files outside"),
        ('{"weight_map": {"a": "other.safetensors"}}', r"names other.safetensors, which is not in the folder"),
    ],
)
def test_an_index_that_is_not_usable(tmp_path: Path, index: str, words: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(LiveError, match=words):
        load_safetensors(tmp_path, SHAPE)


def test_folders_without_usable_weights(tmp_path: Path) -> None:
    with pytest.raises(LiveError, match=r"no model.safetensors and no index"):
        load_safetensors(tmp_path, SHAPE)
    # A pickle is never looked at, whatever it is called.
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(LiveError, match=r"no model.safetensors"):
        load_safetensors(tmp_path, SHAPE)
    for content in (b"", b"\x80\x04.", b"\xff" * 64, (10**6).to_bytes(8, "little") + b"{}"):
        (tmp_path / "model.safetensors").write_bytes(content)
        with pytest.raises(LiveError, match="cannot be read"):
            load_safetensors(tmp_path, SHAPE)
