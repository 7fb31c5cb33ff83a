"""The header of a GGUF file: its metadata and its table of tensors, read without touching the weights.

Format: ggml docs/gguf.md and llama.cpp ggml/src/gguf.cpp. Every count and length is checked before anything is made
of it, and nothing is kept that a model's shape does not need: a vocabulary is stepped over, whatever its size.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import BinaryIO, NoReturn, TypeAlias

from kvcore.errors import GGUF, ConfigError, SourceError
from kvcore.units import format_bytes


class HeaderCutOffError(SourceError):
    """The header goes on beyond the bytes that were given; `needed_bytes` of the file, or more, hold it."""

    def __init__(self, given_bytes: int, needed_bytes: int) -> None:
        super().__init__(
            f"GGUF: the header goes on beyond the {format_bytes(given_bytes)} that were given, by "
            f"{needed_bytes - given_bytes:,} bytes or more; give at least the first {needed_bytes:,} bytes of the file"
        )
        self.needed_bytes = needed_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LongArray:
    """An array whose length is known and whose elements were not kept."""

    element: str
    length: int

    def __str__(self) -> str:
        return f"{self.length:,} × {self.element}"


Scalar: TypeAlias = int | float | bool | str
Value: TypeAlias = Scalar | tuple[Scalar, ...] | LongArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One row of the table of tensors: `shape` is in GGUF's order, the contiguous side first."""

    name: str
    shape: tuple[int, ...]
    type_name: str
    bytes: int
    offset: int

    @property
    def parameters(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class GGUFHeader:
    """What a GGUF file says before its weights; `header_bytes` is where the table of tensors ends."""

    version: int
    metadata: Mapping[str, Value]
    tensors: tuple[Tensor, ...]
    header_bytes: int

    @property
    def weight_bytes(self) -> int:
        """Bytes of all tensors, padding between them not counted."""
        return sum(tensor.bytes for tensor in self.tensors)

    @property
    def quantisation(self) -> str | None:
        """The file's own name for its weights (`Q4_K_M`), else the type that most parameters have; None if empty."""
        stated = self.metadata.get("general.file_type")
        # 1024 marks a type that llama.cpp guessed (llama.h, LLAMA_FTYPE_GUESSED).
        if isinstance(stated, int) and not isinstance(stated, bool) and stated & ~1024 in FILE_TYPES:
            return FILE_TYPES[stated & ~1024]
        counts: dict[str, int] = {}
        for tensor in self.tensors:
            counts[tensor.type_name] = counts.get(tensor.type_name, 0) + tensor.parameters
        return max(counts, key=counts.__getitem__) if counts else None


# id: (name, numbers a block, bytes a block). llama.cpp, ggml/include/ggml.h and ggml/src/ggml-common.h.
TENSOR_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 40), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17), 40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18), 42: ("Q2_0", 64, 18),
}  # fmt: skip
# Types that GGUF files once had; llama.cpp reads them no longer.
_REMOVED = {4: "Q4_2", 5: "Q4_3", 31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8", 36: "IQ4_NL_4_4", 37: "IQ4_NL_4_8",
            38: "IQ4_NL_8_8"}  # fmt: skip

# general.file_type. llama.cpp, include/llama.h, enum llama_ftype.
FILE_TYPES: dict[int, str] = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S",
    12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS",
    20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M",
    28: "IQ2_S", 29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4",
    39: "NVFP4", 40: "Q1_0", 41: "Q2_0",
}  # fmt: skip

# Value types of metadata: id → (name, struct format); strings and arrays have none.
_VALUES: dict[int, tuple[str, str]] = {
    0: ("uint8", "B"), 1: ("int8", "b"), 2: ("uint16", "H"), 3: ("int16", "h"), 4: ("uint32", "I"), 5: ("int32", "i"),
    6: ("float32", "f"), 7: ("bool", "?"), 8: ("string", ""), 9: ("array", ""), 10: ("uint64", "Q"),
    11: ("int64", "q"), 12: ("float64", "d"),
}  # fmt: skip
_STRING, _ARRAY = 8, 9
_U32, _U64, _START = struct.Struct("<I"), struct.Struct("<Q"), struct.Struct("<4sIQQ")

# Far above every published file, and far below what would cost memory or minutes.
_MAX_KEYS, _MAX_TENSORS, _MAX_NAME = 2**16, 2**17, 1024
_MAX_LENGTH = 2**30  # of a string in bytes or an array in elements, as in llama.cpp
_MAX_WALKED = 2**22  # elements without a fixed size, all arrays together
_NESTED_COSTS = 64  # an array within an array, in such elements
_MAX_DEPTH = 4
_KEEP_ELEMENTS, _KEEP_ALTOGETHER, _KEEP_TEXT = 8192, 2**20, 1024
_CHUNK = 2**20


class _Cursor:
    """Reads forward through a seekable file in large pieces, and knows where the given bytes end."""

    def __init__(self, data: BinaryIO) -> None:
        self._data = data
        self.size = data.seek(0, 2)
        self.position = 0
        self._buffer = b""
        self._start = 0
        self.walked = 0
        self.kept = 0

    def take(self, count: int) -> bytes:
        """The next `count` bytes."""
        offset = self._window(count)
        self.position += count
        return self._buffer[offset : offset + count]

    def skip(self, count: int) -> None:
        """Step over `count` bytes without reading them; HeaderCutOffError where the file does not have them."""
        self.require(count)
        self.position += count

    def require(self, count: int) -> None:
        """HeaderCutOffError where fewer than `count` bytes are left."""
        if self.position + count > self.size:
            raise HeaderCutOffError(self.size, self.position + count)

    def u32(self) -> int:
        return int(_U32.unpack(self.take(4))[0])

    def u64(self) -> int:
        return int(_U64.unpack(self.take(8))[0])

    def name(self, what: str) -> str:
        """A short string: the name of a key or a tensor."""
        length = self.u64()
        if length > _MAX_NAME:
            _malformed(f"{what} has a name of {length:,} bytes; expected at most {_MAX_NAME:,}")
        return self.take(length).decode("utf-8", "replace")

    def text(self, what: str) -> str:
        """A string value, cut to what is ever shown."""
        length = _length(self.u64(), what)
        self.require(length)
        kept = self.take(min(length, _KEEP_TEXT)).decode("utf-8", "replace")
        self.skip(max(0, length - _KEEP_TEXT))
        return kept

    def skip_strings(self, count: int, what: str) -> None:
        """Step over `count` strings, one length after the other."""
        self.spend(count, what)
        unpack = _U64.unpack_from
        while count:
            offset = self._window(8)
            buffer, last = self._buffer, len(self._buffer) - 8
            while count and offset <= last:
                length = unpack(buffer, offset)[0]
                if length > _MAX_LENGTH:
                    _length(length, what)
                offset += 8 + length
                count -= 1
            self.skip(self._start + offset - self.position)

    def spend(self, elements: int, what: str) -> None:
        """Count elements that must be walked one by one; ConfigError beyond any vocabulary's size."""
        self.walked += elements
        if self.walked > _MAX_WALKED:
            _malformed(f"{what} brings strings and nested arrays to {self.walked:,}; expected at most {_MAX_WALKED:,}")

    def _window(self, count: int) -> int:
        """Where `count` bytes from the position on lie in the buffer."""
        offset = self.position - self._start
        if offset >= 0 and offset + count <= len(self._buffer):
            return offset
        self.require(count)
        self._data.seek(self.position)
        pieces, missing = [], min(max(count, _CHUNK), self.size - self.position)
        while missing:
            piece = self._data.read(missing)
            if not piece:
                raise SourceError(f"GGUF: the file ended while it was being read, at byte {self.position:,}")
            pieces.append(piece)
            missing -= len(piece)
        self._buffer, self._start = b"".join(pieces), self.position
        return 0


def gguf_metadata(data: BinaryIO) -> GGUFHeader:
    """The header of a GGUF file, from the seekable file or from its first megabytes.

    Raises ConfigError for what is no GGUF or malformed, HeaderCutOffError (a SourceError) where the header goes on
    beyond the given bytes, and SourceError where reading fails.
    """
    try:
        return _header(_Cursor(data))
    except OSError as problem:
        raise SourceError(f"GGUF: the file could not be read ({problem})") from None


def _header(cursor: _Cursor) -> GGUFHeader:
    if cursor.size >= 4 and (magic := cursor.take(4)) != b"GGUF":
        _malformed(f"starts with {magic!r}; expected b'GGUF'")
    cursor.position = 0
    _, version, tensor_count, key_count = _START.unpack(cursor.take(_START.size))
    if version not in (2, 3):
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        if swapped in (1, 2, 3):
            _malformed("is big-endian; only little-endian files are read, convert it with gguf-convert-endian")
        _malformed(f"has version {version:,}; versions 2 and 3 are read")
    if tensor_count > _MAX_TENSORS or key_count > _MAX_KEYS:
        _malformed(
            f"announces {tensor_count:,} tensors and {key_count:,} keys; expected at most {_MAX_TENSORS:,} and "
            f"{_MAX_KEYS:,}"
        )
    # The least that they can take: 13 bytes a key (length, type, one byte), 24 a tensor.
    cursor.require(13 * key_count + 24 * tensor_count)
    metadata: dict[str, Value] = {}
    for index in range(key_count):
        key = cursor.name(f"key {index:,}")
        if not key or key in metadata:
            _malformed(f"key {index:,} is {'empty' if not key else f'{key!r} a second time'}")
        metadata[key] = _value(cursor, cursor.u32(), key, 0)
    _check_alignment(metadata)
    tensors = _tensors(cursor, tensor_count)
    return GGUFHeader(version=version, metadata=metadata, tensors=tensors, header_bytes=cursor.position)


def _value(cursor: _Cursor, kind: int, key: str, depth: int) -> Value:
    name, code = _value_type(kind, key)
    if kind == _STRING:
        return cursor.text(key)
    if kind != _ARRAY:
        scalar: Scalar = struct.unpack("<" + code, cursor.take(struct.calcsize("<" + code)))[0]
        return scalar
    if depth >= _MAX_DEPTH:
        _malformed(f"{key} nests arrays more than {_MAX_DEPTH} deep")
    element = cursor.u32()
    name, code = _value_type(element, key)
    count = _length(cursor.u64(), key)
    if element == _STRING:
        cursor.skip_strings(count, key)
    elif element == _ARRAY:
        cursor.spend(_NESTED_COSTS * count, key)
        for _ in range(count):
            _value(cursor, _ARRAY, key, depth + 1)
    elif depth == 0 and count <= _KEEP_ELEMENTS and cursor.kept + count <= _KEEP_ALTOGETHER:
        cursor.kept += count
        return tuple(struct.unpack(f"<{count}{code}", cursor.take(count * struct.calcsize("<" + code))))
    else:
        cursor.skip(count * struct.calcsize("<" + code))
    return LongArray(element=name, length=count)


def _value_type(kind: int, key: str) -> tuple[str, str]:
    if kind not in _VALUES:
        _malformed(f"{key} has value type {kind:,}; expected 0 … 12")
    return _VALUES[kind]


def _check_alignment(metadata: Mapping[str, Value]) -> None:
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        _malformed(f"general.alignment is {str(alignment)[:40]}; expected a power of two")


def _tensors(cursor: _Cursor, count: int) -> tuple[Tensor, ...]:
    rows: dict[str, Tensor] = {}
    unknown: dict[str, str] = {}
    for index in range(count):
        name = cursor.name(f"tensor {index:,}")
        if name in rows:
            _malformed(f"tensor {name!r} is there a second time")
        sides = cursor.u32()
        if sides > 4:
            _malformed(f"tensor {name!r} has {sides:,} dimensions; expected at most 4")
        shape: tuple[int, ...] = struct.unpack(f"<{sides}Q", cursor.take(8 * sides))
        if math.prod(shape) >= 2**63:
            _malformed(f"tensor {name!r} has {' × '.join(map(str, shape))} numbers, more than any file holds")
        kind, offset = cursor.u32(), cursor.u64()
        if kind not in TENSOR_TYPES:
            unknown.setdefault(f"{kind} ({_REMOVED[kind]})" if kind in _REMOVED else f"{kind}", name)
            continue
        rows[name] = _tensor(name, shape, kind, offset)
    if unknown:
        listed = ", ".join(f"{kind} of {name!r}" for kind, name in list(unknown.items())[:6])
        _malformed(f"has tensor types that are not known, so its weights cannot be counted: {listed}")
    return tuple(rows.values())


def _tensor(name: str, shape: tuple[int, ...], kind: int, offset: int) -> Tensor:
    type_name, block, block_bytes = TENSOR_TYPES[kind]
    row = shape[0] if shape else 1
    if row % block:
        _malformed(f"tensor {name!r} has rows of {row:,} numbers; {type_name} needs a multiple of {block}")
    return Tensor(
        name=name,
        shape=shape,
        type_name=type_name,
        bytes=math.prod(shape) // block * block_bytes,
        offset=offset,
    )


def _length(length: int, what: str) -> int:
    if length > _MAX_LENGTH:
        _malformed(f"{what} has a length of {length:,}; expected at most {_MAX_LENGTH:,}")
    return length


def _malformed(problem: str) -> NoReturn:
    raise ConfigError(problem, file=GGUF)
