"""Number formats: how many bytes a vector of numbers takes in a cache or a checkpoint.

A format is data: bits for each number, and what scales cost. Scales are charged where the engine puts them:
`tensor` (parameters of the model, 0 bytes in the cache), `head` (a fixed number of bytes for each head's vector),
`block` (for every `block` numbers of one head's vector) or `row` (llama.cpp: for every `block` numbers of a whole
row, all heads together).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kvcore.errors import UnitError

ScaleScope = Literal["tensor", "head", "block", "row"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """How one number is stored: `bits`, and `scale_bytes` for every `block` numbers (or every head's vector)."""

    name: str
    bits: float
    scope: ScaleScope = "tensor"
    block: int = 1
    scale_bytes: int = 0
    label: str = ""
    source: str = ""

    def row_bytes(self, heads: int, width: int) -> int:
        """Bytes of one token's row: `heads` vectors of `width` numbers, scales included."""
        if self.scope == "row":
            blocks = -(-heads * width // self.block)
            return blocks * self.block_bytes
        payload = heads * _ceil(width * self.bits / 8)
        if self.scope == "head":
            return payload + heads * self.scale_bytes
        if self.scope == "block":
            return payload + heads * -(-width // self.block) * self.scale_bytes
        return payload

    @property
    def block_bytes(self) -> int:
        """Bytes of one block with its scales."""
        return _ceil(self.block * self.bits / 8) + self.scale_bytes

    @property
    def bits_per_number(self) -> float:
        """Effective bits a number where scales belong to blocks; scales per head depend on the head's width."""
        return self.bits if self.scope in ("tensor", "head") else self.block_bytes * 8 / self.block

    def describe(self) -> str:
        """The format in words for a formula: `2 B` or `34 B per 32`."""
        if self.scope in ("block", "row"):
            return f"{self.block_bytes} B per {self.block}"
        size = f"{self.bits / 8:g} B"
        return f"({size} + {self.scale_bytes} B a head)" if self.scope == "head" else size


@dataclass(frozen=True, slots=True, kw_only=True)
class KVFormat:
    """The format of a cache: one for keys, one for values, and what a layout packs together.

    `packed_latent` names a layout that exists for latent caches only (fp8_ds_mla); `even_slot` rounds the slot of one
    head's K and V up to an even number of bytes, as vLLM's TurboQuant layout does.
    """

    name: str
    k: Format
    v: Format
    packed_latent: bool = False
    even_slot: bool = False
    note: str = ""

    def kv_bytes(self, heads: int, k_width: int, v_width: int) -> int:
        """Bytes of one token's K and V rows for `heads` KV heads; UnitError where the layout is for latents only."""
        if self.packed_latent:
            raise UnitError(f"format {self.name!r} packs a latent (MLA) cache; this layer keeps keys and values")
        if self.even_slot:
            slot = self.k.row_bytes(1, k_width) + self.v.row_bytes(1, v_width)
            return heads * (slot + slot % 2)
        return self.k.row_bytes(heads, k_width) + self.v.row_bytes(heads, v_width)

    def latent_bytes(self, width: int, packed_bytes: int | None) -> int:
        """Bytes of one latent of `width` numbers; `packed_bytes` is what a packed layout takes, where one exists."""
        if self.even_slot:
            raise UnitError(f"format {self.name!r} pairs K with V; a latent (MLA) cache has neither")
        if not self.packed_latent:
            return self.k.row_bytes(1, width)
        if packed_bytes is None:
            raise UnitError(f"format {self.name!r} is defined for a latent of 512 + 64; this one is {width} wide")
        return packed_bytes


def _ceil(value: float) -> int:
    whole = int(value)
    return whole if whole == value else whole + 1


_VLLM = "vLLM 0.33, v1/kv_cache_interface.py and the backends' cache layouts"
_GGML = "llama.cpp, ggml/src/ggml-common.h"


def _f(name: str, bits: float, label: str, source: str = "IEEE 754 / OCP", **more: object) -> Format:
    return Format(name=name, bits=bits, label=label, source=source, **more)  # type: ignore[arg-type]


# Formats a cache's numbers can have. Order is the order in which a screen offers them.
_ELEMENTS: tuple[Format, ...] = (
    _f("fp32", 32, "32-bit float"),
    _f("bf16", 16, "16-bit bfloat"),
    _f("fp16", 16, "16-bit float"),
    _f("fp8", 8, "8-bit float, one scale a tensor", _VLLM),
    _f("fp8_per_token_head", 8, "8-bit float, a scale a token and head", _VLLM, scope="head", scale_bytes=4),
    _f("int8_per_token_head", 8, "8-bit integer, a scale a token and head", _VLLM, scope="head", scale_bytes=4),
    _f("int4_per_token_head", 4, "4-bit integer, a scale a token and head", _VLLM, scope="head", scale_bytes=4),
    _f("int8", 8, "8-bit integer, one scale a tensor"),
    _f("int6", 6, "6 bits a number, scales not counted", "DeepSeek-V2 paper, section 3.2.3: average of 6 bits"),
    _f("int4", 4, "4 bits a number, scales not counted"),
    _f("nvfp4", 4, "4-bit float, an fp8 scale per 16", _VLLM, scope="block", block=16, scale_bytes=1),
    _f("mxfp4", 4, "4-bit float, an 8-bit exponent per 32", "OCP MX 1.0", scope="block", block=32, scale_bytes=1),
    _f("mxfp8", 8, "8-bit float, an 8-bit exponent per 32", "OCP MX 1.0", scope="block", block=32, scale_bytes=1),
    _f("kivi2", 2, "2-bit, fp16 scale and zero per 32", "KIVI paper, group size 32", scope="block", block=32,
       scale_bytes=4),
    _f("q8_0", 8, "llama.cpp q8_0", _GGML, scope="row", block=32, scale_bytes=2),
    _f("q5_1", 5, "llama.cpp q5_1", _GGML, scope="row", block=32, scale_bytes=4),
    _f("q5_0", 5, "llama.cpp q5_0", _GGML, scope="row", block=32, scale_bytes=2),
    _f("q4_1", 4, "llama.cpp q4_1", _GGML, scope="row", block=32, scale_bytes=4),
    _f("q4_0", 4, "llama.cpp q4_0", _GGML, scope="row", block=32, scale_bytes=2),
    _f("iq4_nl", 4, "llama.cpp iq4_nl", _GGML, scope="row", block=32, scale_bytes=2),
)  # fmt: skip
ELEMENT_FORMATS: dict[str, Format] = {f.name: f for f in _ELEMENTS}

_ALIASES = {
    "float32": "fp32", "f32": "fp32", "float": "fp32", "float16": "fp16", "f16": "fp16", "half": "fp16",
    "bfloat16": "bf16", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "float8_e4m3fn": "fp8", "float8_e5m2": "fp8",
    "fp4": "nvfp4", "tq_k8v4": "turboquant_k8v4", "tq_4bit_nc": "turboquant_4bit_nc",
    "tq_k3v4_nc": "turboquant_k3v4_nc", "tq_3bit_nc": "turboquant_3bit_nc", "kivi": "kivi2", "2bit": "kivi2",
}  # fmt: skip
_KIVI_NOTE = "KIVI keeps the most recent tokens (up to 128) in 16 bits; that residual window is not counted here."
_NOTES = {
    "kivi2": _KIVI_NOTE,
    "int6": "6 bits are the average that the DeepSeek-V2 paper used; it states no scales, so none are counted.",
    "int4": "Plain 4 bits without scales: a lower bound on what an engine stores.",
}


def _turboquant(name: str, k: Format, v_bits: int) -> KVFormat:
    # K: 2 bytes of norm for a quantised key, none for fp8 keys; V: 4 bytes of scale and zero (turboquant/config.py).
    v = Format(name=f"tq_v{v_bits}", bits=v_bits, scope="head", scale_bytes=4, source=_VLLM)
    return KVFormat(name=name, k=k, v=v, even_slot=True)


def _tq_key(bits: int) -> Format:
    return Format(name=f"tq_k{bits}", bits=bits, scope="head", scale_bytes=2, source=_VLLM)


KV_FORMATS: dict[str, KVFormat] = {
    f.name: KVFormat(name=f.name, k=f, v=f, note=_NOTES.get(f.name, "")) for f in _ELEMENTS
} | {
    f.name: f
    for f in (
        _turboquant("turboquant_k8v4", ELEMENT_FORMATS["fp8"], 4),
        _turboquant("turboquant_4bit_nc", _tq_key(4), 4),
        _turboquant("turboquant_k3v4_nc", _tq_key(3), 4),
        _turboquant("turboquant_3bit_nc", _tq_key(3), 3),
        KVFormat(
            name="fp8_ds_mla",
            k=ELEMENT_FORMATS["fp8"],
            v=ELEMENT_FORMATS["fp8"],
            packed_latent=True,
            note="fp8_ds_mla: the latent in fp8 with its scales, the rotary part in bf16, packed in one entry.",
        ),
    )
}


def kv_format(name: str) -> KVFormat:
    """The cache format of a name such as `bf16`, `fp8`, `q8_0/q4_0` (K/V); UnitError names the known ones."""
    key = _canonical(name)
    if key in KV_FORMATS:
        return KV_FORMATS[key]
    parts = [_canonical(part) for part in key.split("/")]
    if len(parts) == 2 and all(part in ELEMENT_FORMATS for part in parts):
        k, v = ELEMENT_FORMATS[parts[0]], ELEMENT_FORMATS[parts[1]]
        if k == v:
            return KV_FORMATS[k.name]
        note = " ".join(dict.fromkeys(_NOTES[p] for p in parts if p in _NOTES))
        return KVFormat(name=f"{k.name}/{v.name}", k=k, v=v, note=note)
    raise UnitError(f"cache format {name[:40]!r} is not known; known are auto, {', '.join(KV_FORMATS)}, or K/V of two")


def _canonical(name: str) -> str:
    key = name.strip().lower()
    return _ALIASES.get(key, key)


def element_format(name: str) -> Format:
    """The format of one number by name (`bfloat16`, `fp8`, `q8_0`); UnitError names the known ones."""
    key = _canonical(name.removeprefix("torch."))
    if key not in ELEMENT_FORMATS:
        raise UnitError(f"number format {name[:40]!r} is not known; known are {', '.join(ELEMENT_FORMATS)}")
    return ELEMENT_FORMATS[key]
