"""Weights of the live engine: fused matrices, random or from safetensors, packed for decoding (imports torch).

On CPUs that cannot multiply 16-bit numbers (x86 without AVX512) torch multiplies 16-bit matrices one number at a time:
seven times slower than in fp32 for a prompt on an AVX2 machine. `Widener` widens a slab of the matrix that fits in the
processor's cache, multiplies it in fp32 and takes the next one, so that memory still delivers 16 bits a number and no
fp32 copy is kept.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from torch import Tensor

from kvcore.errors import LiveError
from kvcore.live.shape import ELEMENT_BYTES, INT4_GROUP, LiveShape, check_weight_format, packs
from kvcore.units import is_whole

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
_LOADABLE = (torch.bfloat16, torch.float16, torch.float32)
# Pseudo-random numbers are drawn once and repeated: drawing a billion takes half a minute, and a prime period keeps
# rows of a matrix apart.
_POOL = 1_048_573
_MAX_INDEX_BYTES = 64 * 2**20
# A packed matrix is multiplied with at most this many tokens at a time: beyond, the 16-bit one is faster.
_PACKED_TOKENS = 8
# With fewer tokens than this, widening costs more than it saves (measured on AVX2: equal at two).
WIDE_TOKENS = 3
_SLAB_NUMBERS = 2**20


def is_native(dtype: torch.dtype, device: str) -> bool:
    """Whether matrices of that format are multiplied at full speed: on a CPU, where oneDNN has kernels for it."""
    if torch.device(device).type != "cpu" or dtype is torch.float32:
        return True
    if dtype is torch.float16:
        return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


class Widener:
    """x · weightᵀ + bias in fp32, rounded to x's format; its scratch memory is one slab, shared by all matrices."""

    def __init__(self) -> None:
        self._slab = torch.empty(_SLAB_NUMBERS, dtype=torch.float32)

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """x (T, columns), weight (rows, columns), bias (rows) → (T, rows)."""
        rows, columns = weight.shape
        step = max(1, _SLAB_NUMBERS // columns)
        exact = x.float()
        found = torch.empty(x.shape[0], rows, dtype=x.dtype)
        for begin in range(0, rows, step):
            part = weight[begin : begin + step]
            if part.numel() > self._slab.numel():
                self._slab = torch.empty(part.numel(), dtype=torch.float32)
            wide = self._slab[: part.numel()].view(part.shape).copy_(part)
            product = torch.mm(exact, wide.t())
            if bias is not None:
                product += bias[begin : begin + step]
            found[:, begin : begin + step] = product
        return found


@dataclass(slots=True, kw_only=True)
class Linear:
    """One matrix (rows, columns), its bias if it has one, and its packed form if it was packed.

    `packed` is used for at most `_PACKED_TOKENS` tokens at a time: beyond, the 16-bit matrix is faster. `widener` is
    set where the processor multiplies 16-bit matrices slowly.
    """

    weight: Tensor
    bias: Tensor | None = None
    packed: Tensor | None = None
    packed_scales: Tensor | None = None
    packed_as: str = ""
    widener: Widener | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """x (T, columns) → (T, rows)."""
        if self.packed is None or self.packed_scales is None or x.shape[0] > _PACKED_TOKENS:
            if self.widener is not None and x.shape[0] >= WIDE_TOKENS:
                return self.widener(x, self.weight, self.bias)
            return F.linear(x, self.weight, self.bias)
        y: Tensor
        if self.packed_as == "int8":
            y = torch._weight_int8pack_mm(x, self.packed, self.packed_scales)
        else:
            y = torch.ops.aten._weight_int4pack_mm_for_cpu(x, self.packed, INT4_GROUP, self.packed_scales)
        return y if self.bias is None else y.add_(self.bias)


@dataclass(slots=True, kw_only=True)
class LayerWeights:
    """One layer: `qk_norm` is (2, D); `latent_norm` (rank), `key_up` (H, D, rank) and `value_up` (H, rank, D) are of a
    latent layer only."""

    attention_norm: Tensor
    qkv: Linear
    o: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear
    qk_norm: Tensor | None = None
    latent_norm: Tensor | None = None
    key_up: Tensor | None = None
    value_up: Tensor | None = None


@dataclass(slots=True, kw_only=True)
class Weights:
    """Everything a decoder multiplies with; `embedding` is (vocab, hidden). A tied head shares its storage."""

    embedding: Tensor
    layers: list[LayerWeights]
    norm: Tensor
    head: Linear
    origin: str = "random"
    weight_format: str = field(default="")

    def tensors(self) -> Iterator[Tensor]:
        """Every tensor, a shared one as often as it is used."""
        yield from (self.embedding, self.norm)
        yield from _tensors_of(self.head)
        for layer in self.layers:
            yield from _tensors_of(layer)

    def linears(self) -> Iterator[Linear]:
        """Every matrix that tokens are multiplied with."""
        for layer in self.layers:
            yield from (layer.qkv, layer.o, layer.gate_up, layer.down)
        yield self.head

    def bytes(self) -> int:
        """Bytes of the storage behind all tensors, each storage once."""
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in self.tensors() if t.numel()}
        return sum(storages.values())

    @property
    def dtype(self) -> torch.dtype:
        """The format of the unpacked weights, in which activations are computed."""
        return self.embedding.dtype


def _tensors_of(part: Any) -> Iterator[Tensor]:
    for one in fields(part):
        value = getattr(part, one.name)
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, Linear):
            yield from _tensors_of(value)


def dtype_of(name: str | torch.dtype) -> torch.dtype:
    """The torch format behind bf16, fp16 or fp32 (or int8 and int4, which pack 16-bit weights)."""
    if isinstance(name, torch.dtype):
        return name
    check_weight_format(name)
    return DTYPES[name] if name in ELEMENT_BYTES else torch.bfloat16


def random_weights(shape: LiveShape, dtype: str | torch.dtype = "bf16", device: str = "cpu", seed: int = 0) -> Weights:
    """Weights of the right shapes that mean nothing: the same ones for the same seed, logits of an ordinary scale."""
    kind = dtype_of(dtype)
    generator = torch.Generator().manual_seed(seed)
    pool = torch.randn(_POOL, generator=generator).to(device, kind)
    offset = 0

    def draw(*sides: int, scale: float) -> Tensor:
        nonlocal offset
        flat = torch.empty(sides, dtype=kind, device=device).view(-1)
        done = 0
        while done < flat.numel():
            length = min(flat.numel() - done, _POOL - offset)
            torch.mul(pool[offset : offset + length], scale, out=flat[done : done + length])
            done += length
            offset = (offset + length) % _POOL
        return flat.view(sides)

    def matrix(rows: int, columns: int, bias: bool) -> Linear:
        weight = draw(rows, columns, scale=columns**-0.5)
        return Linear(weight=weight, bias=draw(rows, scale=0.1) if bias else None)

    def ones(*sides: int) -> Tensor:
        return draw(*sides, scale=0.1).add_(1.0)

    def layer() -> LayerWeights:
        heads, width, rank = shape.num_heads, shape.head_dim, shape.kv_lora_rank
        return LayerWeights(
            attention_norm=ones(shape.hidden_size),
            qkv=matrix(shape.qkv_width, shape.hidden_size, shape.qkv_bias),
            o=matrix(shape.hidden_size, heads * width, shape.o_bias),
            mlp_norm=ones(shape.hidden_size),
            gate_up=matrix(2 * shape.intermediate_size, shape.hidden_size, shape.mlp_bias),
            down=matrix(shape.hidden_size, shape.intermediate_size, shape.mlp_bias),
            qk_norm=ones(2, width) if shape.qk_norm and not rank else None,
            latent_norm=ones(rank) if rank else None,
            key_up=draw(heads, width, rank, scale=rank**-0.5) if rank else None,
            value_up=draw(heads, rank, width, scale=rank**-0.5) if rank else None,
        )

    embedding = draw(shape.vocab_size, shape.hidden_size, scale=1.0 if not shape.tied else shape.hidden_size**-0.5)
    head = Linear(weight=embedding) if shape.tied else matrix(shape.vocab_size, shape.hidden_size, False)
    return Weights(
        embedding=embedding, layers=[layer() for _ in range(shape.num_layers)], norm=ones(shape.hidden_size), head=head
    )


def weights_from(
    shape: LiveShape, names: set[str], get: Callable[[str], Tensor], dtype: str | torch.dtype, device: str
) -> Weights:
    """Weights from named tensors as transformers names them; LiveError names one that is missing, odd or extra."""
    if shape.is_latent:
        raise LiveError(f"{shape.name}: latent attention runs with random weights only")
    kind = dtype_of(dtype)
    prefix = "model." if "model.embed_tokens.weight" in names else ""
    used = {"lm_head.weight"}

    def take(name: str, *sides: int, into: Tensor | None = None) -> Tensor:
        full = name if name == "lm_head.weight" else prefix + name
        if full not in names:
            raise LiveError(f"weights: tensor {full} is missing")
        used.add(full)
        tensor = get(full)
        if tuple(tensor.shape) != sides:
            raise LiveError(f"weights: tensor {full} is {list(tensor.shape)}; expected {list(sides)}")
        if tensor.dtype not in _LOADABLE:
            raise LiveError(f"weights: tensor {full} is {str(tensor.dtype)[6:]}; only bf16, fp16 and fp32 can be read")
        if into is not None:
            return into.copy_(tensor)
        return tensor.to(device, kind, copy=True)

    def fused(stems: tuple[str, ...], heights: tuple[int, ...], columns: int, bias: bool) -> Linear:
        made = torch.empty(sum(heights), columns, dtype=kind, device=device)
        biases = torch.empty(sum(heights), dtype=kind, device=device) if bias else None
        row = 0
        for stem, height in zip(stems, heights, strict=True):
            take(f"{stem}.weight", height, columns, into=made[row : row + height])
            if biases is not None:
                take(f"{stem}.bias", height, into=biases[row : row + height])
            row += height
        return Linear(weight=made, bias=biases)

    def layer(index: int) -> LayerWeights:
        at = f"layers.{index}."
        attention, mlp = f"{at}self_attn.", f"{at}mlp."
        hidden, out, kv = shape.hidden_size, shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
        qkv_names = tuple(f"{attention}{letter}_proj" for letter in "qkv")
        qk_norm = None
        if shape.qk_norm:
            qk_norm = torch.stack([take(f"{attention}{one}_norm.weight", shape.head_dim) for one in "qk"])
        wide = shape.intermediate_size
        return LayerWeights(
            attention_norm=take(f"{at}input_layernorm.weight", hidden),
            qkv=fused(qkv_names, (out, kv, kv), hidden, shape.qkv_bias),
            o=fused((f"{attention}o_proj",), (hidden,), out, shape.o_bias),
            mlp_norm=take(f"{at}post_attention_layernorm.weight", hidden),
            gate_up=fused((f"{mlp}gate_proj", f"{mlp}up_proj"), (wide, wide), hidden, shape.mlp_bias),
            down=fused((f"{mlp}down_proj",), (hidden,), wide, shape.mlp_bias),
            qk_norm=qk_norm,
        )

    embedding = take("embed_tokens.weight", shape.vocab_size, shape.hidden_size)
    head = embedding if shape.tied else take("lm_head.weight", shape.vocab_size, shape.hidden_size)
    weights = Weights(
        embedding=embedding,
        layers=[layer(index) for index in range(shape.num_layers)],
        norm=take("norm.weight", shape.hidden_size),
        head=Linear(weight=head),
        origin="real",
    )
    extra = sorted(name for name in names - used if not _harmless(name.removeprefix(prefix), shape.num_layers))
    if extra:
        raise LiveError(f"weights: tensor {extra[0]} is not part of a {shape.family} model as its configuration says")
    return weights


def _harmless(name: str, layers: int) -> bool:
    """Whether a tensor may be left alone: a table of angles, or a layer beyond those that are kept."""
    parts = name.split(".")
    if name.endswith("rotary_emb.inv_freq"):
        return True
    return parts[0] == "layers" and len(parts) > 1 and is_whole(parts[1]) and int(parts[1]) >= layers


def load_safetensors(folder: Path, shape: LiveShape, dtype: str | torch.dtype = "bf16", device: str = "cpu") -> Weights:
    """Weights from a folder's safetensors, by its index or its single file, mapped and copied once.

    Never pickle. LiveError for a file that is missing or broken and for a tensor that is missing, odd or extra.
    """
    with ExitStack() as stack:
        where: dict[str, Any] = {}
        try:
            for path in _files(folder):
                opened = stack.enter_context(safe_open(path, framework="pt", device="cpu"))
                where |= dict.fromkeys(opened.keys(), opened)
            return weights_from(shape, set(where), lambda name: where[name].get_tensor(name), dtype, device)
        except (SafetensorError, OSError) as problem:
            raise LiveError(f"weights: the safetensors of this model cannot be read ({problem})") from None


def _files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        single = folder / "model.safetensors"
        if not single.is_file():
            raise LiveError("weights: there is no model.safetensors and no index of several in that folder")
        return [single]
    try:
        if index.stat().st_size > _MAX_INDEX_BYTES:
            raise ValueError("it is larger than 64 MiB")
        names = sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
        if not all(isinstance(name, str) and name == Path(name).name for name in names):
            raise ValueError("it names files outside the folder")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
        raise LiveError(f"weights: model.safetensors.index.json is not usable ({problem})") from None
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise LiveError(f"weights: the index names {missing[0][:80]}, which is not in the folder")
    return [folder / name for name in names]


def pack(weights: Weights, weight_format: str) -> Weights:
    """The same weights with packed matrices beside them for decoding; themselves for a format of 16 or 32 bits.

    int8: one bf16 scale a row. int4: 32 numbers share a scale and a zero. LiveError away from the CPU, where these
    kernels are, and for weights that are not bf16.
    """
    check_weight_format(weight_format)
    if weight_format in ELEMENT_BYTES:
        return weights
    if weights.embedding.device.type != "cpu":
        raise LiveError(f"weight format {weight_format} runs on the CPU only; its kernels are not used elsewhere")
    if weights.dtype is not torch.bfloat16:
        raise LiveError(f"weight format {weight_format} packs bf16 weights, not {str(weights.dtype)[6:]}")
    make = _packed_int8 if weight_format == "int8" else _packed_int4

    def packed(linear: Linear) -> Linear:
        rows, columns = linear.weight.shape
        if not packs(weight_format, rows, columns):
            return linear
        numbers, scales = make(linear.weight)
        return replace(linear, packed=numbers, packed_scales=scales, packed_as=weight_format)

    layers = [
        replace(
            layer,
            qkv=packed(layer.qkv),
            o=packed(layer.o),
            gate_up=packed(layer.gate_up),
            down=packed(layer.down),
        )
        for layer in weights.layers
    ]
    return replace(weights, layers=layers, head=packed(weights.head), weight_format=weight_format)


def _packed_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    exact = weight.float()
    scales = (exact.abs().amax(1) / 127.0).clamp_(min=1e-12).to(torch.bfloat16)
    numbers = (exact / scales.float().unsqueeze(1)).round_().clamp_(-127, 127).to(torch.int8)
    return numbers, scales


def _packed_int4(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Asymmetric: number = (q − 8) × scale + zero with q in 0 … 15, zero the middle of the group's range."""
    rows, columns = weight.shape
    grouped = weight.float().view(rows, columns // INT4_GROUP, INT4_GROUP)
    low, high = grouped.amin(-1), grouped.amax(-1)
    scale = ((high - low) / 15.0).clamp_(min=1e-6).to(torch.bfloat16)
    zero = (low + scale.float() * 8.0).to(torch.bfloat16)
    steps = (grouped - zero.float().unsqueeze(-1)) / scale.float().unsqueeze(-1)
    numbers = (steps.round_() + 8).clamp_(0, 15).to(torch.int32).view(rows, columns)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(numbers.contiguous(), 1)
    return packed, torch.stack((scale, zero), -1).transpose(0, 1).contiguous()
