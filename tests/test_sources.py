"""Sources: catalogue, files, folders, uploads and pasted text, and every way in which a file is refused."""

from __future__ import annotations

import errno
import io
import json
import os
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvcore.errors import ConfigError, KVCoreError, ModelError, SourceError, UnknownLayoutError
from kvcore.model import Attention
from kvcore.model.model import Files
from kvcore.model.safetensors import MAX_HEADER_BYTES, MAX_INDEX_BYTES
from kvcore.sources import files as sources

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 100,
    "max_position_embeddings": 128,
    "torch_dtype": "bfloat16",
}
TEXT = json.dumps(CONFIG)
LAYER = (Attention(num_kv_heads=2, head_dim=16, v_head_dim=16),)
STRANGE = json.dumps(CONFIG | {"model_type": "nobody_knows"})


def header(*sizes: int) -> bytes:
    """A safetensors file without its tensors: one tensor of each size."""
    tensors: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    begin = 0
    for number, size in enumerate(sizes):
        tensors[f"t{number}"] = {"dtype": "U8", "shape": [size], "data_offsets": [begin, begin + size]}
        begin += size
    text = json.dumps(tensors).encode()
    return struct.pack("<Q", len(text)) + text


def gguf() -> bytes:
    """The smallest GGUF of a llama that says what its layers keep; no tensors."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    numbers = {
        "block_count": 2, "embedding_length": 64, "attention.head_count": 4, "attention.head_count_kv": 2,
        "context_length": 128, "feed_forward_length": 128,
    }  # fmt: skip
    pairs = text("general.architecture") + struct.pack("<I", 8) + text("llama")
    for key, value in numbers.items():
        pairs += text(f"llama.{key}") + struct.pack("<II", 4, value)
    return b"GGUF" + struct.pack("<IQQ", 3, 0, 1 + len(numbers)) + pairs


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "my-model"
    made.mkdir()
    (made / "config.json").write_text(TEXT, "utf-8")
    return made


def refused(path: Path | str, kind: type[KVCoreError] = SourceError) -> str:
    """The message with which a path is refused; it is one sentence and names nothing that was not typed."""
    with pytest.raises(kind) as refusal:
        sources.from_path(path)
    message = str(refusal.value)
    assert "\n" not in message
    assert "Errno" not in message
    return message


# Where the model is from.


def test_a_catalogue_model_says_where_it_is_from() -> None:
    loaded = sources.from_catalogue("META-LLAMA/llama-3.1-70b-instruct")
    assert (loaded.origin, loaded.model.name) == ("catalogue", "meta-llama/Llama-3.1-70B-Instruct")
    assert "retrieved 20" in loaded.detail
    assert loaded.raw is not None
    assert loaded.raw["num_hidden_layers"] == 80
    with pytest.raises(ModelError, match="not in the catalogue"):
        sources.from_catalogue("nobody/nothing")


def test_pasted_text() -> None:
    loaded = sources.from_json("\ufeff" + TEXT, "mine")
    assert (loaded.origin, loaded.model.name, loaded.model.layers, loaded.raw) == (
        "pasted",
        "mine",
        (LAYER,) * 2,
        CONFIG,
    )
    with pytest.raises(ConfigError, match="empty"):
        sources.from_json(" \n")
    with pytest.raises(ConfigError, match="not valid JSON"):
        sources.from_json(TEXT[:-1])
    with pytest.raises(ConfigError, match="expected an object"):
        sources.from_json("[1]")
    with pytest.raises(ConfigError, match="longer than 2,000,000 bytes"):
        sources.from_json(" " * 2_000_001)


@pytest.mark.parametrize(
    "nested", ['{"a":' * 100_000, '{"model_type": "llama", "rope_scaling": ' + "[" * 900 + "]" * 900 + "}"]
)
def test_deep_json_is_refused_and_not_a_crash(nested: str) -> None:
    with pytest.raises(ConfigError):
        sources.from_json(nested)


def test_a_reader_that_recurses_too_deeply_is_an_error_of_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def recurse(*_: object, **__: object) -> None:
        raise RecursionError

    monkeypatch.setattr(sources, "model_from_config", recurse)
    with pytest.raises(ConfigError, match="nested too deeply"):
        sources.from_json(TEXT)


def test_a_bound_is_only_given_when_asked_for(folder: Path) -> None:
    (folder / "config.json").write_text(STRANGE, "utf-8")
    for give in (
        lambda **more: sources.from_json(STRANGE, **more),
        lambda **more: sources.from_path(folder, **more),
        lambda **more: sources.from_upload("config.json", STRANGE.encode(), **more),
        lambda **more: sources.load("-", stdin=io.StringIO(STRANGE), **more),
    ):
        with pytest.raises(UnknownLayoutError):
            give()
        assert give(upper_bound=True).model.knowledge == "upper_bound"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_encodings(folder: Path, encoding: str) -> None:
    (folder / "config.json").write_bytes(TEXT.encode(encoding))
    assert sources.from_path(folder / "config.json").model.layers == (LAYER,) * 2
    assert sources.from_upload("config.json", TEXT.encode(encoding)).model.layers == (LAYER,) * 2


# Files and folders.


def test_a_file_and_its_folder_give_the_same_model(folder: Path, tmp_path: Path) -> None:
    file, whole = sources.from_path(folder / "config.json"), sources.from_path(str(folder))
    assert (file.origin, whole.origin) == ("file", "folder")
    assert replace(file.model, files=None) == replace(whole.model, files=None)
    # Where it lies is as typed: an engine loads the folder.
    assert file.model.files == Files(path=str(folder / "config.json"), kind="config")
    assert whole.model.files == Files(path=str(folder), kind="folder")
    assert file.model.name == "my-model"
    assert file.raw == CONFIG
    assert file.model.checkpoint_bytes is None
    assert file.detail == "weights estimated"
    other = tmp_path / "tiny.json"
    other.write_text(TEXT, "utf-8")
    assert sources.from_path(other).model.name == "tiny"


def test_a_folder_of_the_hubs_cache_has_the_repositorys_name(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--some-org--some--name" / "snapshots" / "0123abc"
    snapshot.mkdir(parents=True)
    blob = tmp_path / "blob"
    blob.write_text(TEXT, "utf-8")
    (snapshot / "config.json").symlink_to(blob)
    assert sources.from_path(snapshot).model.name == "some-org/some--name"


@pytest.mark.parametrize(
    ("files", "expected", "detail"),
    [
        ({"model.safetensors.index.json": b'{"metadata": {"total_size": 1000}}'}, 1000, "model.safetensors.index.json"),
        ({"model.safetensors.index.json": b'{"metadata": {"total_size": 1000.0}}'}, 1000, "index.json"),
        ({"model.safetensors.index.json": b'{"metadata": {"total_size": 9}}', "model.safetensors": b""}, 9, ".json"),
        ({"model.safetensors": header(10, 20), "consolidated.safetensors": header(30)}, 30, "model.safetensors"),
        ({"weights.safetensors": header(7), "adapter_model.safetensors": header(1)}, 7, "weights.safetensors"),
        ({"m-1-of-2.safetensors": header(7), "m-2-of-2.safetensors": header(8)}, 15, "2 safetensors headers"),
        ({"m-00001-of-00002.safetensors": header(7)}, None, "estimated"),
        ({"a.safetensors": header(7), "b.safetensors": header(8)}, None, "estimated"),
        ({"pytorch_model.bin": b"\x80\x04."}, None, "estimated"),
    ],
)  # fmt: skip
def test_exact_weights(folder: Path, files: dict[str, bytes], expected: int | None, detail: str) -> None:
    for name, data in files.items():
        (folder / name).write_bytes(data)
    for path in (folder, folder / "config.json"):
        loaded = sources.from_path(path)
        assert loaded.model.checkpoint_bytes == expected
        assert loaded.detail.endswith(detail)
        assert not any("Weights" in note for note in loaded.model.reading.notes)


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("model.safetensors.index.json", b"{", "not valid JSON"),
        ("model.safetensors.index.json", b"[" * 100_000, "not valid JSON"),
        ("model.safetensors.index.json", b"[]", "not a JSON object"),
        ("model.safetensors.index.json", b"{}", "no metadata.total_size"),
        ("model.safetensors.index.json", b'{"metadata": {"total_size": true}}', "no metadata.total_size"),
        ("model.safetensors.index.json", b'{"metadata": {"total_size": -5}}', "no metadata.total_size"),
        ("model.safetensors", b"version https://git-lfs.github.com/spec/v1", "does not begin with a"),
        ("model.safetensors", b"\0\0", "does not begin with a safetensors header"),
        ("model.safetensors", struct.pack("<Q", MAX_HEADER_BYTES + 1), "does not begin with a safetensors header"),
        ("model.safetensors", struct.pack("<Q", 1000) + b"{}", "cut off"),
        ("model.safetensors", struct.pack("<Q", 2) + b"{}", "names no tensor"),
        ("model.safetensors", header(5).replace(b"[0, 5]", b"[5, 0]"), "without usable data_offsets"),
        ("model.safetensors", header(5).replace(b"[0, 5]", b"[0,.5]"), "not valid JSON"),
    ],
)  # fmt: skip
def test_unusable_weights_are_a_note(folder: Path, name: str, data: bytes, reason: str) -> None:
    (folder / name).write_bytes(data)
    loaded = sources.from_path(folder)
    assert loaded.model.layers == (LAYER,) * 2
    assert loaded.model.checkpoint_bytes is None
    assert f"{name}: " in loaded.detail
    note = loaded.model.reading.notes[-1]
    assert note.startswith("Weights are estimated")
    assert reason in note
    assert str(folder) not in note


def test_a_huge_index_is_not_read_to_its_end(folder: Path) -> None:
    with (folder / "model.safetensors.index.json").open("wb") as stream:
        stream.truncate(MAX_INDEX_BYTES + 1)
    assert "larger than 64,000,000 bytes" in sources.from_path(folder).detail


def test_gguf_by_its_first_bytes_whatever_its_name(tmp_path: Path) -> None:
    for name in ("tiny.gguf", "sha256-0123"):
        (tmp_path / name).write_bytes(gguf())
        loaded = sources.from_path(tmp_path / name)
        assert (loaded.origin, loaded.detail, loaded.raw) == ("gguf", name, None)
        assert loaded.model.layers == (LAYER,) * 2
    assert sources.from_upload("C:\\models\\tiny.gguf", gguf()).detail == "tiny.gguf"
    with pytest.raises(KVCoreError):
        sources.from_upload("tiny.gguf", gguf()[:60])
    (tmp_path / "no.gguf").write_text(TEXT, "utf-8")
    assert "does not begin as a GGUF" in refused(tmp_path / "no.gguf")


def test_uploads_have_a_plain_name(folder: Path) -> None:
    loaded = sources.from_upload("../../etc/\x1b[31mtiny.json", TEXT.encode())
    assert (loaded.origin, loaded.detail, loaded.model.name) == ("upload", "[31mtiny.json", "[31mtiny")
    assert sources.from_upload("config.json", TEXT.encode()).model.name == "llama"
    with pytest.raises(SourceError, match="larger than 2,000,000 bytes"):
        sources.from_upload("config.json", b" " * 2_000_001)
    with pytest.raises(ConfigError, match="empty"):
        sources.from_upload("config.json", b"")


# What is refused.


@pytest.mark.parametrize("name", ["pytorch_model.bin", "modeling.py", "model.PT", "x.pkl", "model.safetensors"])
def test_weights_pickles_and_code_are_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (tmp_path / name).write_text(TEXT, "utf-8")
    with pytest.raises(SourceError, match="not opened"):
        sources.from_upload(name, TEXT.encode())
    monkeypatch.setattr(os, "open", lambda *_: pytest.fail("it was opened"))
    assert "give a config.json" in refused(tmp_path / name)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\xff\xfe\xfa\xfb\xfc", "not text"),
        (bytes(range(1, 256)), "not text"),
        (b"\0" * 64, "not text"),
        (b"\x80\x04\x95", "a pickle"),
        (b"PK\x03\x04abc", "an archive"),
        (b"<!DOCTYPE html>", "a web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "git lfs pull"),
        (b"", "empty"),
        (b"hello", "not valid JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", "thousands of digits"),
    ],
)
def test_what_is_no_configuration(folder: Path, data: bytes, reason: str) -> None:
    (folder / "config.json").write_bytes(data)
    assert reason in refused(folder, ConfigError)
    assert reason in refused(folder / "config.json", ConfigError)


def test_a_refusal_keeps_the_file_that_it_is_about_apart_from_its_reason(folder: Path) -> None:
    (folder / "config.json").write_text(STRANGE, "utf-8")
    with pytest.raises(UnknownLayoutError) as caught:
        sources.from_path(folder)
    problem = caught.value
    assert problem.file == f"config.json in {folder}"
    assert str(problem) == f"{problem.file}: {problem.reason}"
    assert problem.reason.startswith("model_type 'nobody_knows' is not understood")
    assert problem.keys == ("model_type",)
    renamed = problem.in_file("mine.json")
    assert (renamed.file, renamed.reason, renamed.keys) == ("mine.json", problem.reason, problem.keys)
    # One that names no file of its own is about something else, and stays as it is.
    other = ConfigError("config.json: is a word of this sentence")
    assert (other.file, other.reason, other.in_file("mine.json")) == ("", str(other), other)


def test_a_large_file_is_not_read_to_its_end(folder: Path) -> None:
    with (folder / "config.json").open("r+b") as stream:
        stream.truncate(10**12)
    assert "larger than 2,000,000 bytes" in refused(folder / "config.json")


def test_what_is_not_a_regular_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe.json")
    Path("loop.json").symlink_to("loop.json")
    Path("nowhere.json").symlink_to("missing.json")
    Path("empty").mkdir()
    Path("odd/config.json").mkdir(parents=True)
    for path, message in {
        "pipe.json": "pipe.json: not a regular file; give",
        "/dev/zero": "/dev/zero: not a regular file; give",
        "odd": "config.json in odd: not a regular file; give",
        "loop.json": "loop.json: a link that leads back to itself; give",
        "nowhere.json": "nowhere.json: there is no such file; give",
        "missing.json": "missing.json: there is no such file; give",
        "empty": "config.json in empty: there is no such file; give",
        "nul\0.json": "nul.json: it cannot be opened; check",
        "x" * 5000: "x: it cannot be opened; check",
    }.items():
        found = refused(path)
        assert message in found
        assert str(tmp_path) not in found
        assert len(found) < 300


def test_permission_denied(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def deny(*_: object, **__: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "/a/secret/path")

    monkeypatch.setattr(os, "open", deny)
    assert refused(folder) == f"config.json in {folder}: permission denied; make it readable for this user"
    with pytest.raises(SourceError, match="permission denied"):
        sources.load(str(folder))


def test_a_disk_that_fails_while_reading(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if size == 4:
                return b"{   "
            raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(sources, "_open", lambda *_: Broken())
    assert "cannot be read to its end" in refused(folder)


# What a command line names.


def test_load_follows_the_order_path_stdin_catalogue(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    assert sources.load("my-model").origin == "folder"
    assert sources.load("my-model/config.json").origin == "file"
    assert sources.load("-", stdin=io.StringIO(TEXT)).model.layers == (LAYER,) * 2
    assert sources.load("-", stdin=io.BytesIO(TEXT.encode("utf-16"))).model.name == "standard input"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(TEXT.encode())))
    assert sources.load("-").origin == "pasted"
    name = "Qwen/Qwen3-8B"
    assert sources.load(name.lower()).origin == "catalogue"
    assert sources.load(f"https://huggingface.co/{name}").model.name == name
    # A folder of that name without a config.json is no path to one; with a config.json it comes first.
    Path(name).mkdir(parents=True)
    assert sources.load(name).origin == "catalogue"
    Path(name, "config.json").write_text(TEXT, "utf-8")
    assert sources.load(name).origin == "folder"


def test_a_stream_is_not_read_without_end() -> None:
    with pytest.raises(ConfigError, match="longer than"):
        sources.load("-", stdin=io.BytesIO(b" " * 2_000_100))


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("", "no model was named"),
        ("  ", "no model was named"),
        ("Qwen/Qwen3-8", r"neither a file here nor in the catalogue; nearest: .*Qwen/Qwen3-8B.*; to fetch .*--hub"),
        ("./nothing", "there is no such file or folder; give"),
        ("nothing.gguf", "there is no such file or folder; give"),
        ("no\0thing", "neither a file here nor in the catalogue"),
        ("x" * 5000, "neither a file here nor in the catalogue"),
    ],
)
def test_what_is_nowhere(reference: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sources, "from_hub", lambda *_, **__: pytest.fail("a request was made without being asked"))
    with pytest.raises(ModelError, match=message) as refusal:
        sources.load(reference)
    assert len(str(refusal.value)) < 400


def test_the_hub_is_asked_last_and_only_on_request(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.chdir(folder.parent)
    monkeypatch.setattr(sources, "from_hub", lambda name, **more: asked.append((name, more)))
    sources.load("my-model", hub=True)
    sources.load("Qwen/Qwen3-8B", hub=True)
    assert asked == []
    sources.load("some-org/some-name", hub=True, upper_bound=True)
    assert asked == [("some-org/some-name", {"upper_bound": True})]
    with pytest.raises(ModelError):
        sources.load("some-name", hub=True)


def test_importing_the_module_imports_no_network_library() -> None:
    code = "import sys, kvcore.sources.files; print([m for m in ('huggingface_hub', 'httpx2', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
