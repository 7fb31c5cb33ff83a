"""Formats of stored weights, and what a model's weights take in one of them.

Quantised checkpoints leave some tensors in 16 bits: the embedding, the output head, norms and routers in most, and
everything but the experts in gpt-oss's mxfp4. So bytes are summed over the kinds of parameters, each in its format.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from kvcore.errors import UnitError
from kvcore.model.model import Model

# What stays in 16 bits.
_USUAL = frozenset({"embedding", "output head", "norms", "router"})
_ALL_BUT_EXPERTS = frozenset(
    {"embedding", "output head", "norms", "router", "attention", "cross-attention", "indexer", "recurrent layers",
     "compressors", "feed-forward", "shared experts", "per-layer embeddings", "per-layer projections", "encoder",
     "latent projections"}
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFormat:
    """Effective bits of one weight, scales included, and the kinds of parameters that stay in 16 bits.

    `by_kind` are the bits of kinds that a checkpoint's own configuration speaks of; they come first.
    """

    name: str
    bits: float
    kept_16_bit: frozenset[str] = frozenset()
    label: str = ""
    by_kind: tuple[tuple[str, float], ...] = ()

    def bits_of(self, kind: str) -> float:
        """Bits of one weight of that kind of parameters."""
        for name, bits in self.by_kind:
            if name == kind:
                return bits
        return 16 if kind in self.kept_16_bit else self.bits


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightBytes:
    """What weights take: `exact` from a checkpoint's own index, or `estimated` from the configuration."""

    bytes: int
    format: str
    knowledge: Literal["exact", "estimated"]
    formula: str


def _w(name: str, bits: float, label: str, kept: frozenset[str] = frozenset()) -> WeightFormat:
    return WeightFormat(name=name, bits=bits, kept_16_bit=kept, label=label)


# Bits: llama.cpp's from block sizes in ggml-common.h (K-quants: one type for all tensors; the published _M mixtures
# hold some tensors in a wider type and come out 0.2 to 0.6 bits higher). Group formats: bits + scale and zero a group.
_FORMATS = (
    _w("fp32", 32, "32-bit float"),
    _w("bf16", 16, "16-bit bfloat"),
    _w("fp16", 16, "16-bit float"),
    _w("fp8", 8, "8-bit float, fp32 scale per 128 × 128 block", _USUAL),
    _w("int8", 8, "8-bit integer, a scale a channel", _USUAL),
    _w("int4", 4.5, "4-bit integer, 16-bit scale per 32", _USUAL),
    _w("awq", 4 + (16 + 4) / 128, "AWQ 4-bit, scale and zero per 128", _USUAL),
    _w("gptq", 4 + (16 + 4) / 128, "GPTQ 4-bit, scale and zero per 128", _USUAL),
    _w("gptq8", 8 + (16 + 8) / 128, "GPTQ 8-bit, scale and zero per 128", _USUAL),
    _w("awq8", 8 + (16 + 8) / 128, "AWQ 8-bit, scale and zero per 128", _USUAL),
    _w("bnb4", 4 + 8 / 64 + 32 / 16384, "bitsandbytes NF4, 8-bit scale per 64, 32-bit scale per 256 scales", _USUAL),
    _w("nvfp4", 4.5, "4-bit float, fp8 scale per 16", _USUAL),
    _w("mxfp4", 4.25, "4-bit float, exponent per 32, experts only", _ALL_BUT_EXPERTS),
    _w("q8_0", 8.5, "GGUF Q8_0"),
    _w("q6_k", 6.5625, "GGUF Q6_K"),
    _w("q5_k", 5.5, "GGUF Q5_K"),
    _w("q4_k", 4.5, "GGUF Q4_K"),
    _w("q3_k", 3.4375, "GGUF Q3_K"),
    _w("q2_k", 2.625, "GGUF Q2_K"),
    _w("q5_1", 6, "GGUF Q5_1"),
    _w("q5_0", 5.5, "GGUF Q5_0"),
    _w("q4_1", 5, "GGUF Q4_1"),
    _w("q4_0", 4.5, "GGUF Q4_0"),
    _w("iq4_nl", 4.5, "GGUF IQ4_NL"),
    _w("iq4_xs", 4.25, "GGUF IQ4_XS"),
)
WEIGHT_FORMATS: dict[str, WeightFormat] = {entry.name: entry for entry in _FORMATS}


def weight_format(name: str) -> WeightFormat:
    """The weight format of that name; UnitError names the known ones."""
    found = WEIGHT_FORMATS.get(name.strip().lower())
    if found is None:
        raise UnitError(f"weight format {name[:40]!r} is not known; known are {', '.join(WEIGHT_FORMATS)}")
    return found


def stored_weight_format(model: Model) -> WeightFormat:
    """The format in which the checkpoint is stored, kind by kind where its configuration says so."""
    name = model.checkpoint_format or model.model_dtype
    found = WEIGHT_FORMATS.get(name, WEIGHT_FORMATS["bf16"])
    return replace(found, by_kind=model.stored_bits) if model.stored_bits else found


def chosen_weight_format(model: Model, name: str | None = None) -> WeightFormat:
    """The format of that name; as the checkpoint is stored for None and for the stored format's own name."""
    if name is None or name.strip().lower() == (model.checkpoint_format or model.model_dtype):
        return stored_weight_format(model)
    return weight_format(name)


def weights_bytes(model: Model, name: str | None = None) -> WeightBytes | None:
    """Bytes of the model's weights in a format, by default the one that is stored; None where nothing is known.

    Exact when the checkpoint's own index or tensor table was read and no other format is asked for.
    """
    stored = model.checkpoint_format or model.model_dtype
    if model.checkpoint_bytes is not None and name in (None, stored):
        text = f"sum of the checkpoint's tensors = {model.checkpoint_bytes:,} B"
        return WeightBytes(bytes=model.checkpoint_bytes, format=stored, knowledge="exact", formula=text)
    if not model.weights:
        return None
    wanted = chosen_weight_format(model, name)
    counts: dict[float, int] = {}
    for part in model.weights:
        bits = wanted.bits_of(part.name)
        counts[bits] = counts.get(bits, 0) + part.parameters
    total = sum(count * bits for bits, count in counts.items()) / 8
    quantised = [f"{count:,} parameters × {bits:.4g} bits" for bits, count in counts.items() if bits != 16]
    sixteen = counts.get(16, 0)
    if quantised and sixteen:
        quantised.append(f"{sixteen:,} kept in 16 bits")
    text = " + ".join(quantised) or f"{sixteen:,} parameters × 16 bits"
    return WeightBytes(
        bytes=int(total), format=wanted.name, knowledge="estimated", formula=f"{text} = {int(total):,} B"
    )
