"""Exact bytes of a checkpoint's weights, from what safetensors files say about themselves; no tensor is ever read.

A repository of several files has an index with the total; a single file begins with a header that names every tensor
and where it lies: a little-endian unsigned 64-bit length, then that many bytes of JSON
(https://huggingface.co/docs/safetensors, "Format").
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, BinaryIO

from kvcore.errors import SourceError

# The largest header that huggingface_hub 2.4.0 reads (SAFETENSORS_MAX_HEADER_LENGTH).
MAX_HEADER_BYTES = 25_000_000


def index_bytes(data: bytes) -> int:
    """Bytes of all tensors, the `metadata.total_size` of a model.safetensors.index.json.

    Raises SourceError where the file is not such an index or states no total.
    """
    index = _object(data, "the index")
    metadata = index.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, Mapping) else None
    if isinstance(total, float) and total.is_integer():
        total = int(total)
    if isinstance(total, bool) or not isinstance(total, int) or total <= 0:
        raise SourceError("the index states no metadata.total_size")
    return total


def header_bytes(stream: BinaryIO) -> int:
    """Bytes of all tensors of one .safetensors file, from its header; only the header is read.

    Raises SourceError where the file does not begin with such a header, or with one of absurd length.
    """
    start = stream.read(8)
    length = int.from_bytes(start, "little")
    if len(start) < 8 or not 2 <= length <= MAX_HEADER_BYTES:
        raise SourceError(f"it does not begin with a safetensors header of 2 … {MAX_HEADER_BYTES:,} bytes")
    data = stream.read(length)
    if len(data) < length:
        raise SourceError(f"its safetensors header of {length:,} bytes is cut off")
    tensors = _object(data, "its safetensors header")
    total = sum(_tensor_bytes(entry) for name, entry in tensors.items() if name != "__metadata__")
    if not total:
        raise SourceError("its safetensors header names no tensor")
    return total


def _tensor_bytes(entry: Any) -> int:
    offsets = entry.get("data_offsets") if isinstance(entry, Mapping) else None
    if isinstance(offsets, list) and len(offsets) == 2 and all(type(offset) is int for offset in offsets):
        begin, end = offsets
        if 0 <= begin <= end:
            return int(end - begin)
    raise SourceError("its safetensors header has a tensor without usable data_offsets")


def _object(data: bytes, what: str) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise SourceError(f"{what} is not valid JSON") from None
    if not isinstance(found, dict):
        raise SourceError(f"{what} is not a JSON object")
    return found
