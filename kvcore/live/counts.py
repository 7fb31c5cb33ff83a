"""How many numbers a live decoder's weights are, and their bytes in each weight format. No torch."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from kvcore.errors import LiveError

if TYPE_CHECKING:
    from kvcore.live.shape import LiveShape

WEIGHT_FORMATS = ("bf16", "fp16", "fp32", "int8", "int4")
ELEMENT_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
# Numbers that share one scale and zero in the packed 4-bit format.
INT4_GROUP = 32


def matrices(shape: LiveShape) -> dict[str, tuple[int, int]]:
    """(rows, columns) of the matrices of one layer that every token multiplies with, by name."""
    out = shape.num_heads * shape.head_dim
    return {
        "qkv": (shape.qkv_width, shape.hidden_size),
        "o": (shape.hidden_size, out),
        "gate_up": (2 * shape.intermediate_size, shape.hidden_size),
        "down": (shape.hidden_size, shape.intermediate_size),
    }


def parameters(shape: LiveShape) -> int:
    """Every number of the model's weights, biases and norms included; a tied head is counted once."""
    embedding = shape.vocab_size * shape.hidden_size
    return embedding * (1 if shape.tied else 2) + shape.num_layers * _layer_parameters(shape) + shape.hidden_size


def weight_bytes(shape: LiveShape, weight_format: str) -> int:
    """Bytes that the engine holds for the weights in a format.

    int8 and int4 keep the 16-bit weights beside the packed ones: prefill multiplies with the former.
    """
    check_weight_format(weight_format)
    if weight_format in ELEMENT_BYTES:
        return parameters(shape) * ELEMENT_BYTES[weight_format]
    packed = [(pair, shape.num_layers) for pair in matrices(shape).values()]
    packed.append(((shape.vocab_size, shape.hidden_size), 1))
    return 2 * parameters(shape) + sum(
        count * packed_bytes(weight_format, rows, columns) for (rows, columns), count in packed
    )


def step_weight_bytes(shape: LiveShape, weight_format: str) -> int:
    """Bytes of weights that one decode step reads: all but the embedding table, of which it reads one row a request.

    A tied head is read in full.
    """
    check_weight_format(weight_format)
    read = parameters(shape) - (0 if shape.tied else shape.vocab_size * shape.hidden_size)
    if weight_format in ELEMENT_BYTES:
        return read * ELEMENT_BYTES[weight_format]
    pairs = [(pair, shape.num_layers) for pair in matrices(shape).values()]
    pairs.append(((shape.vocab_size, shape.hidden_size), 1))
    total = 2 * read
    for (rows, columns), count in pairs:
        packed = packed_bytes(weight_format, rows, columns)
        total += count * (packed - 2 * rows * columns) if packed else 0
    return total


def packed_bytes(weight_format: str, rows: int, columns: int) -> int:
    """Bytes of a packed matrix, 0 where its sides do not suit the kernel and it stays in 16 bits.

    int8: one bf16 scale a row. int4: two numbers a byte, a bf16 scale and zero for every 32 numbers of a row.
    """
    if not packs(weight_format, rows, columns):
        return 0
    if weight_format == "int8":
        return rows * columns + 2 * rows
    return ceil(rows * columns / 2) + rows * (columns // INT4_GROUP) * 2 * 2


def packs(weight_format: str, rows: int, columns: int) -> bool:
    """Whether torch's CPU kernel of that format takes a matrix of these sides."""
    if weight_format == "int8":
        return rows % 16 == 0 and columns % 16 == 0
    return weight_format == "int4" and rows % 16 == 0 and columns % INT4_GROUP == 0


def check_weight_format(name: str) -> None:
    """LiveError names the known formats where `name` is none of them."""
    if name not in WEIGHT_FORMATS:
        raise LiveError(f"weight format {name[:40]!r} is not known here; known are {', '.join(WEIGHT_FORMATS)}")


def _layer_parameters(shape: LiveShape) -> int:
    total = sum(rows * columns for rows, columns in matrices(shape).values()) + 2 * shape.hidden_size
    if shape.is_latent:
        total += shape.kv_lora_rank * (2 * shape.num_heads * shape.head_dim + 1)
    total += 2 * shape.head_dim if shape.qk_norm and not shape.is_latent else 0
    total += shape.qkv_width if shape.qkv_bias else 0
    total += shape.hidden_size if shape.o_bias else 0
    return total + (2 * shape.intermediate_size + shape.hidden_size if shape.mlp_bias else 0)
