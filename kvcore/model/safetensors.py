"""Exact bytes of a checkpoint's weights, from what safetensors files say about themselves; no tensor is ever read.

A repository of several files has an index with the total; a single file begins with a header that names every tensor
and where it lies: a little-endian unsigned 64-bit length, then that many bytes of JSON
(https://huggingface.co/docs/safetensors, "Format").
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, BinaryIO

from kvcore.errors import SourceError

# The largest header that huggingface_hub 2.4.0 reads (SAFETENSORS_MAX_HEADER_LENGTH).
MAX_HEADER_BYTES = 25_000_000
MAX_INDEX_BYTES = 64_000_000
INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
_SHARD = re.compile(r".+-(\d+)-of-(\d+)\.safetensors")


def weight_files(names: Iterable[str]) -> list[str]:
    """The files that say how many bytes a folder's weights take: its index, its single file, or a whole set of shards.

    None where that is not certain: shards are missing, or there are several files without an index.
    """
    found = sorted(name for name in names if name.endswith((".safetensors", INDEX)))
    for name in (INDEX, SINGLE):
        if name in found:
            return [name]
    files = [name for name in found if not name.startswith("adapter")]
    shards = [match for name in files if (match := _SHARD.fullmatch(name))]
    if not shards:
        return files if len(files) == 1 else []
    is_whole = len(shards) == len(files) and {int(match[2]) for match in shards} == {len(files)}
    return files if is_whole else []


def measure(names: Iterable[str], opened: Callable[[str], BinaryIO]) -> tuple[int, str] | None:
    """Bytes of the weights among the files of these names, and what they were measured from; None where no file tells.

    `opened` gives a file by its name. Raises SourceError, beginning with the file's name, where one is not usable.
    """
    files = weight_files(names)
    total = 0
    for name in files:
        with opened(name) as stream:
            try:
                total += index_bytes(stream) if name == INDEX else header_bytes(stream)
            except SourceError as problem:
                raise SourceError(f"{name}: {problem}") from None
    return (total, files[0] if len(files) == 1 else f"{len(files)} safetensors headers") if files else None


def index_bytes(stream: BinaryIO) -> int:
    """Bytes of all tensors, the `metadata.total_size` of a model.safetensors.index.json.

    Raises SourceError where the file is not such an index, states no total, or is of absurd length.
    """
    data = stream.read(MAX_INDEX_BYTES + 1)
    if len(data) > MAX_INDEX_BYTES:
        raise SourceError(f"the index is larger than {MAX_INDEX_BYTES:,} bytes")
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
