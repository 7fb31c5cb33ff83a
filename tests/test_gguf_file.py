"""The header of a GGUF file: every value type, any size, cut off, and hostile."""

from __future__ import annotations

import math
import struct
from contextlib import suppress
from io import BytesIO
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcore.errors import ConfigError, KVCoreError, SourceError
from kvcore.model.gguf import HeaderCutOffError, gguf_metadata, model_from_gguf
from kvcore.model.gguf_file import FILE_TYPES, TENSOR_TYPES, LongArray
from kvcore.sizing import size
from tests.gguf_writer import LLAMA, TENSORS, jamba, mamba, write
from tests.models import config


def test_tables_agree_with_the_gguf_library() -> None:
    for kind, (block, block_bytes) in gguf.GGML_QUANT_SIZES.items():
        assert TENSOR_TYPES[kind.value] == (kind.name, block, block_bytes)
    for stated in gguf.LlamaFileType:
        if stated.name != "GUESSED":
            name = stated.name.removeprefix("ALL_").removeprefix("MOSTLY_").removesuffix("_MOE")
            assert FILE_TYPES[stated.value] == name


def test_every_value_type_and_array_is_read(tmp_path: Path) -> None:
    path = tmp_path / "values.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    scalars = {
        "uint8": 200, "int8": -3, "uint16": 60_000, "int16": -300, "uint32": 4_000_000_000, "int32": -70_000,
        "uint64": 2**63, "int64": -(2**40), "float64": 0.1, "bool": True, "string": "ä",
    }  # fmt: skip
    for kind, value in scalars.items():
        getattr(writer, f"add_{kind}")(f"x.{kind}", value)
    writer.add_array("x.numbers", [1, 2, 3])
    writer.add_array("x.flags", [True, False])
    writer.add_array("x.words", ["a", "bc", ""])
    writer.add_array("x.nested", [[1, 2], [3, 4]])
    writer.add_array("x.many", list(range(20_000)))
    writer.add_tensor("blk.0.attn_q.weight", np.zeros((4, 64), np.float16))
    writer.add_tensor("token_embd.weight", np.zeros((7, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with path.open("rb") as file:
        header = gguf_metadata(file)
    assert {kind: header.metadata[f"x.{kind}"] for kind in scalars} == scalars
    assert header.metadata["x.numbers"] == (1, 2, 3)
    assert header.metadata["x.flags"] == (True, False)
    assert header.metadata["x.words"] == LongArray(element="string", length=3)
    assert header.metadata["x.nested"] == LongArray(element="array", length=2)
    assert header.metadata["x.many"] == LongArray(element="int32", length=20_000)
    assert [(tensor.name, tensor.shape, tensor.bytes) for tensor in header.tensors] == [
        ("blk.0.attn_q.weight", (64, 4), 512), ("token_embd.weight", (32, 7), 896),
    ]  # fmt: skip
    reference = gguf.GGUFReader(path)
    assert header.weight_bytes == sum(tensor.n_bytes for tensor in reference.tensors)
    assert math.ceil(header.header_bytes / 32) * 32 == reference.data_offset


class CountingFile(BytesIO):
    """Counts the bytes that were really read."""

    taken = 0

    def read(self, size: int | None = -1) -> bytes:
        found = super().read(size)
        self.taken += len(found)
        return found


def vocabulary(words: int) -> bytes:
    tokens = {"tokenizer.ggml.tokens": [f"token{index}" for index in range(words)],
              "tokenizer.ggml.scores": [0.5] * words}  # fmt: skip
    return write("llama", LLAMA, tensors=TENSORS, general=tokens)


def test_a_vocabulary_is_stepped_over() -> None:
    data = vocabulary(150_000)
    header = gguf_metadata(BytesIO(data))
    assert header.metadata["tokenizer.ggml.tokens"] == LongArray(element="string", length=150_000)
    assert header.metadata["tokenizer.ggml.scores"] == LongArray(element="float32", length=150_000)
    assert header.header_bytes == len(data)


def test_only_the_header_of_a_large_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "large.gguf"
    path.write_bytes(vocabulary(1000))
    with path.open("r+b") as file:
        file.truncate(40 * 10**9)
    with path.open("rb") as file:
        assert model_from_gguf(file, "large").kinds == (("full", 4),)
        assert file.tell() < 2**22
    counted = CountingFile(vocabulary(1000) + bytes(10**7))
    gguf_metadata(counted)
    assert counted.taken < 3 * 2**20


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_header_that_is_cut_off_says_what_is_missing(share: float) -> None:
    data = vocabulary(2000)
    given_bytes = int(len(data) * share)
    with pytest.raises(HeaderCutOffError, match="the header goes on beyond the") as cut:
        gguf_metadata(BytesIO(data[:given_bytes]))
    assert given_bytes < cut.value.needed_bytes <= len(data)
    assert isinstance(cut.value, SourceError)


def needed(data: bytes) -> int | None:
    """How many bytes a header that is cut off asks for, None where it is whole."""
    try:
        gguf_metadata(BytesIO(data))
    except HeaderCutOffError as cut:
        return cut.needed_bytes
    return None


def test_fetching_what_is_missing_ends() -> None:
    data = vocabulary(3000)
    given_bytes = 64
    for _ in range(20):
        asked = needed(data[:given_bytes])
        if asked is None:
            break
        assert asked > given_bytes
        given_bytes = max(asked, 2 * given_bytes)
    assert needed(data[:given_bytes]) is None


def start(version: int = 3, tensors: int = 0, keys: int = 0, magic: bytes = b"GGUF") -> bytes:
    return struct.pack("<4sIQQ", magic, version, tensors, keys)


def key(name: bytes, kind: int, value: bytes) -> bytes:
    return struct.pack("<Q", len(name)) + name + struct.pack("<I", kind) + value


def tensor(name: bytes, shape: tuple[int, ...], kind: int) -> bytes:
    return struct.pack(f"<Q{len(name)}sI{len(shape)}QIQ", len(name), name, len(shape), *shape, kind, 0)


ROOM = bytes(4096)
U64 = struct.Struct("<Q").pack


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"PK\x03\x04" + ROOM, "expected b'GGUF'"),
        (start(version=1) + ROOM, "version 1"),
        (start(version=9) + ROOM, "version 9"),
        (struct.pack(">4sIQQ", b"GGUF", 3, 0, 0), "big-endian"),
        (start(keys=2**40) + ROOM, "announces"),
        (start(tensors=2**63) + ROOM, "announces"),
        (start(keys=1) + U64(2**50) + ROOM, "name of"),
        (start(keys=1) + key(b"k", 99, ROOM), "value type 99"),
        (start(keys=1) + key(b"k", 8, U64(2**60) + ROOM), "length"),
        (start(keys=1) + key(b"k", 9, struct.pack("<IQ", 4, 2**60) + ROOM), "length"),
        (start(keys=1) + key(b"k", 9, struct.pack("<IQ", 8, 2**29) + ROOM), "strings"),
        (start(keys=1) + key(b"k", 9, struct.pack("<IQ", 9, 1) * 64 + ROOM), "nests arrays"),
        (start(keys=1) + key(b"k", 9, struct.pack("<IQ", 9, 2**29) + ROOM), "strings"),
        (start(keys=2) + key(b"k", 0, b"a") * 2 + ROOM, "second time"),
        (start(keys=1) + key(b"", 0, b"a") + ROOM, "empty"),
        (start(keys=1) + key(b"general.alignment", 4, struct.pack("<I", 24)) + ROOM, "power of two"),
        (start(tensors=2) + tensor(b"t", (4,), 0) * 2 + ROOM, "second time"),
        (start(tensors=1) + tensor(b"t", (1,) * 5, 0) + ROOM, "5 dimensions"),
        (start(tensors=1) + tensor(b"t", (2**40, 2**40), 0) + ROOM, "more than any file"),
        (start(tensors=1) + tensor(b"t", (100,), 12) + ROOM, "multiple of 256"),
        (start(tensors=1) + tensor(b"t", (64,), 31) + ROOM, r"31 \(Q4_0_4_4\) of 't'"),
        (start(tensors=1) + tensor(b"t", (64,), 4000) + ROOM, "4000 of 't'"),
        (start() + ROOM, "general.architecture is missing"),
        (start(keys=1) + key(b"split.no", 2, b"\x01\x00") + ROOM, "part 2 of a split"),
    ],
)
def test_hostile_headers_are_refused_in_a_sentence(data: bytes, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        model_from_gguf(BytesIO(data), "hostile")


def test_an_empty_and_an_unreadable_file() -> None:
    with pytest.raises(SourceError, match="goes on beyond"):
        gguf_metadata(BytesIO(b""))

    class Broken(BytesIO):
        def seek(self, offset: int, whence: int = 0) -> int:
            raise OSError("disk on fire")

    with pytest.raises(SourceError, match="disk on fire"):
        gguf_metadata(Broken(b"GGUF"))


VALID = {
    "llama": write("llama", LLAMA, tensors=TENSORS),
    "gemma3": write("gemma3", LLAMA | {"attention.sliding_window": 64, "attention.sliding_window_pattern": [True] * 4}),
    "mamba": write("mamba", mamba(config("state-spaces/mamba-2.8b-hf"))),
    "jamba": write("jamba", jamba(config("ai21labs/Jamba-v0.1"))),
}


def answers_or_refuses(data: bytes) -> None:
    """Nothing but a Model or a KVCoreError may come back; any other exception fails the test."""
    for bound in (False, True):
        with suppress(KVCoreError):
            assert size(model_from_gguf(BytesIO(data), "fuzz", upper_bound=bound), 1000).resident_bytes >= 0


@given(st.binary(max_size=400), st.booleans())
@settings(max_examples=300, deadline=None)
def test_random_bytes(data: bytes, with_start: bool) -> None:
    answers_or_refuses(start(keys=3, tensors=1) + data if with_start else data)


@given(st.sampled_from(sorted(VALID)), st.data())
@settings(max_examples=400, deadline=None)
def test_flipped_bits_and_cuts(which: str, draw: st.DataObject) -> None:
    data = bytearray(VALID[which])
    for _ in range(draw.draw(st.integers(1, 4))):
        data[draw.draw(st.integers(0, len(data) - 1))] ^= 1 << draw.draw(st.integers(0, 7))
    cut = draw.draw(st.one_of(st.none(), st.integers(0, len(data))))
    answers_or_refuses(bytes(data[:cut]))
