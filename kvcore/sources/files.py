"""Where a model comes from: the catalogue, a file, a folder, pasted text, an upload, or the Hugging Face Hub.

The only module that reads a user's files, and the only caller of the Hub's module, which alone touches the network. It
reads configurations, indexes, and the headers of safetensors and GGUF files: never a tensor, a pickle or code. Only
`from_hub`, or `load` with `hub=True`, makes requests.
"""

from __future__ import annotations

import errno
import io
import json
import os
import re
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import IO, Any, BinaryIO, Literal

from kvcore.errors import ConfigError, ModelError, SourceError
from kvcore.extras import require
from kvcore.model import Model, model_from_config, parse_config
from kvcore.model.model import Files
from kvcore.model.safetensors import measure
from kvcore.sources import catalogue
from kvcore.sources import hub as the_hub
from kvcore.sources.hub import CONFIG, MAX_CONFIG_BYTES

Origin = Literal["catalogue", "file", "folder", "pasted", "upload", "hub", "gguf"]
_QUANTISER = "hf_quant_config.json"
_NEVER_OPENED = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".py", ".safetensors", ".zip", ".h5", ".npz")
_FIRST_BYTES = (
    (b"version https://git-lfs", "a Git LFS pointer and not the file itself; fetch it with `git lfs pull`"),
    (b"PK\x03\x04", "an archive or a pickled checkpoint, which is never opened; give the model's config.json"),
    (b"\x80", "a pickle, which is never opened; give the model's config.json"),
    (b"<", "a web page; save the raw config.json instead"),
)
_WANTED = "give a config.json, a folder with one or a .gguf file"
_REASONS = {
    errno.ENOENT: f"there is no such file; {_WANTED}",
    errno.EACCES: "permission denied; make it readable for this user",
    errno.ELOOP: f"a link that leads back to itself; {_WANTED}",
    errno.ENXIO: f"not a regular file; {_WANTED}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A model, where it came from, what is known beside (revision, weights), and its configuration (None for GGUF)."""

    model: Model
    origin: Origin
    detail: str = ""
    raw: Mapping[str, Any] | None = field(default=None, compare=False)


def load(
    reference: str, *, hub: bool = False, upper_bound: bool = False, stdin: IO[str] | IO[bytes] | None = None
) -> Loaded:
    """The model that a command line or a text field names.

    A path, if there is a file or a folder with a config.json; `-` reads a config.json from `stdin`; else an id of the
    catalogue; else, only with `hub`, an id on the Hub. Raises ModelError where it is none of these.
    """
    if reference == "-":
        stream: Any = sys.stdin if stdin is None else stdin
        if stream is None:
            raise SourceError("standard input is closed; pipe a config.json into it")
        found = getattr(stream, "buffer", stream).read(MAX_CONFIG_BYTES + 1)
        text = found if isinstance(found, str) else _decode(found, "standard input")
        model, raw = _understand(text, "standard input", upper_bound, "standard input")
        return Loaded(model=replace(model, files=Files(path="standard input", kind="config")), origin="pasted", raw=raw)
    wanted = the_hub.without_url(reference)
    mode = _mode(Path(reference)) if wanted else 0
    if stat.S_ISREG(mode) or (stat.S_ISDIR(mode) and _mode(Path(reference, CONFIG))):
        return from_path(reference, upper_bound=upper_bound)
    if catalogue.find(wanted) is not None:
        return from_catalogue(wanted)
    if hub and the_hub.HUB_ID.fullmatch(wanted):
        return from_hub(reference, upper_bound=upper_bound)
    if mode:
        return from_path(reference, upper_bound=upper_bound)
    raise ModelError(_unknown(reference, wanted))


def from_catalogue(model_id: str) -> Loaded:
    """A model of the catalogue; ModelError, naming the nearest ids, where there is none."""
    model, entry = catalogue.load(model_id), catalogue.find(model_id)
    detail = entry.provenance if entry else ""
    return Loaded(model=model, origin="catalogue", detail=detail, raw=catalogue.raw_config(model_id))


def from_json(text: str, name: str = "pasted configuration", *, upper_bound: bool = False) -> Loaded:
    """The model that a config.json's text describes; ConfigError where it is broken or not understood."""
    model, raw = _understand(text, name, upper_bound)
    return Loaded(model=model, origin="pasted", raw=raw)


def from_path(path: str | Path, *, upper_bound: bool = False) -> Loaded:
    """The model of a config.json, of a folder with one, or of a .gguf file.

    The weights are measured from a safetensors index or headers beside the config.json, where there are any. Raises
    SourceError for what cannot be read, ConfigError for what is no configuration; either names the path as given.
    """
    shown, target = "".join(filter(str.isprintable, str(path)))[-200:], Path(path)
    origin: Origin = "file"
    if stat.S_ISDIR(_mode(target)):
        shown, target, origin = f"config.json in {shown}", target / CONFIG, "folder"
    _refuse_ending(target.name, shown)
    with _open(target, shown) as stream:
        if (gguf := _from_gguf(stream, target.name, shown, upper_bound)) is not None:
            return replace(gguf, model=replace(gguf.model, files=Files(path=str(path), kind="gguf")))
        text = _decode(_read(stream, MAX_CONFIG_BYTES, shown), shown)
    is_config = target.name == CONFIG
    beside = _quantiser_note(target.parent) if is_config else None
    name = _folder_name(target.parent) if is_config else target.stem
    model, raw = _understand(text, name, upper_bound, shown, beside)
    model, detail = _with_weights(model, target.parent) if is_config else (model, "")
    model = replace(model, files=Files(path=str(path), kind="folder" if origin == "folder" else "config"))
    return Loaded(model=model, origin=origin, detail=detail, raw=raw)


def from_upload(filename: str, data: bytes, *, upper_bound: bool = False) -> Loaded:
    """The model of an uploaded config.json, or of the first megabytes of a .gguf file; raises as `from_path` does."""
    name = "".join(filter(str.isprintable, PurePath(filename.replace("\\", "/")).name))[:80] or "upload"
    _refuse_ending(name, name)
    stream = io.BytesIO(data)
    if (gguf := _from_gguf(stream, name, name, upper_bound)) is not None:
        return gguf
    text = _decode(_read(stream, MAX_CONFIG_BYTES, name), name)
    model, raw = _understand(text, "" if name == CONFIG else PurePath(name).stem, upper_bound, name)
    return Loaded(model=model, origin="upload", detail=name, raw=raw)


def from_hub(
    repo_id: str, *, revision: str | None = None, endpoint: str | None = None, timeout: float = 15.0,
    upper_bound: bool = False,
) -> Loaded:  # fmt: skip
    """A model on the Hugging Face Hub, `org/name` or the address of its page; `detail` shows the resolved commit.

    `timeout` is in seconds, for everything together. `endpoint` replaces HF_ENDPOINT. The token is the one that
    huggingface_hub finds (HF_TOKEN), and goes to the configured endpoint only. With HF_HUB_OFFLINE the library's
    cache is read and nothing is requested. Nothing is written. Raises SourceError, one sentence for each way to fail,
    and ConfigError for a configuration that is not understood.
    """
    wanted, revision = the_hub.without_url(repo_id), revision or "main"
    if not the_hub.HUB_ID.fullmatch(wanted):
        raise SourceError(f"{repo_id[:120]!r} is not the id of a model on the Hub; write it as organisation/name")
    require("huggingface_hub", "hub", "the Hugging Face Hub")
    if the_hub.is_offline():
        folder = the_hub.cached_folder(wanted, revision)
        loaded = from_path(folder, upper_bound=upper_bound)
        # It has an id, which engines find in the same cache.
        model = replace(loaded.model, files=None)
        return replace(loaded, model=model, origin="hub", detail=f"cached revision {folder.name}; {loaded.detail}")
    found = the_hub.fetch(wanted, revision, endpoint, timeout)
    whose = f"{wanted}'s config.json"
    model, raw = _understand(_decode(found.config, whose), wanted, upper_bound, whose)
    model = replace(model, checkpoint_bytes=found.checkpoint_bytes)
    detail = f"revision {found.commit or revision}; weights {found.weights}"
    return Loaded(model=model, origin="hub", detail=detail, raw=raw)


def _understand(
    text: str, name: str, upper_bound: bool, shown: str = CONFIG, beside: Mapping[str, Any] | None = None
) -> tuple[Model, dict[str, Any]]:
    """The model that a file's text describes, and its keys; errors name the file as `shown`.

    `beside` is what a quantiser wrote next to it (hf_quant_config.json), used where the file itself says nothing.
    """
    try:
        if len(text) > MAX_CONFIG_BYTES:
            raise ConfigError(f"longer than {MAX_CONFIG_BYTES:,} bytes, which no model's configuration is", file=CONFIG)
        if not text.strip():
            raise ConfigError("empty; give the model's whole config.json", file=CONFIG)
        raw = parse_config(text.removeprefix("\ufeff"))
        if beside and not raw.get("quantization_config"):
            raw["quantization_config"] = dict(beside)
        return model_from_config(raw, name, upper_bound=upper_bound), raw
    except RecursionError:
        raise ConfigError("nested too deeply to be a model's configuration", file=shown) from None
    except ConfigError as problem:
        raise problem.in_file(shown) from None


def _quantiser_note(folder: Path) -> Mapping[str, Any] | None:
    """What ModelOpt's hf_quant_config.json says, in older checkpoints the only place of the cache's format."""
    if not stat.S_ISREG(_mode(folder / _QUANTISER)):
        return None
    try:
        with _open(folder / _QUANTISER, _QUANTISER) as stream:
            raw = parse_config(_decode(_read(stream, MAX_CONFIG_BYTES, _QUANTISER), _QUANTISER))
    except (SourceError, ConfigError):
        return None
    return raw


def _decode(data: bytes, shown: str) -> str:
    """UTF-8, -16 or -32, with or without a byte order mark; ConfigError, saying what it looks like, otherwise."""
    for start, what in _FIRST_BYTES:
        if data.lstrip()[: len(start)].lower() == start.lower():
            raise ConfigError(f"this is {what}", file=shown)
    try:
        text = data.decode(json.detect_encoding(data))
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise ConfigError("not text; give a config.json (JSON in UTF-8) or a .gguf file", file=shown)
    return text


def _from_gguf(stream: BinaryIO, name: str, shown: str, upper_bound: bool) -> Loaded | None:
    """None for a file that does not begin as GGUF, which is what tells: Ollama's files have no ending."""
    is_one = _read(stream, 4, shown, whole=False) == b"GGUF"
    stream.seek(0)
    if is_one:
        from kvcore.model.gguf import model_from_gguf

        return Loaded(model=model_from_gguf(stream, name, upper_bound=upper_bound), origin="gguf", detail=name)
    if name.lower().endswith(".gguf"):
        raise SourceError(f"{shown}: does not begin as a GGUF file does; download it again or give a config.json")
    return None


def _refuse_ending(name: str, shown: str) -> None:
    if name.lower().endswith(_NEVER_OPENED):
        raise SourceError(f"{shown}: weights, pickles and code are not opened; {_WANTED}")


def _mode(path: Path) -> int:
    """The kind of file there, links followed; a link that leads nowhere counts as a link; 0 where nothing is."""
    for look in (path.stat, path.lstat):
        try:
            return look().st_mode
        except PermissionError:
            return 1  # No kind of file: something may be there, and opening it says what is wrong.
        except (OSError, ValueError):
            continue
    return 0


def _open(path: Path, shown: str) -> BinaryIO:
    """The regular file at `path`, opened without waiting, so that a pipe or a device is refused unread."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except (OSError, ValueError) as problem:
        reason = _REASONS.get(getattr(problem, "errno", None) or 0, "it cannot be opened; check the path")
        raise SourceError(f"{shown}: {reason}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise SourceError(f"{shown}: {_REASONS[errno.ENXIO]}")
    return os.fdopen(descriptor, "rb")


def _read(stream: BinaryIO, limit: int, shown: str, whole: bool = True) -> bytes:
    """The file, or with `whole` false its first `limit` bytes."""
    try:
        data = stream.read(limit + whole)
    except OSError:
        raise SourceError(f"{shown}: it cannot be read to its end; copy it to a local disk first") from None
    if len(data) > limit:
        raise SourceError(f"{shown}: larger than {limit:,} bytes, which no such file is; give the model's config.json")
    return data


def _folder_name(folder: Path) -> str:
    """The folder's own name; `org/name` inside a Hugging Face cache, whose folders are named by commit."""
    cached = re.search(r"models--(.+?)--([^/\\]+)", str(folder))
    return "/".join(cached.groups()) if cached else folder.name.strip(".")


def _with_weights(model: Model, folder: Path) -> tuple[Model, str]:
    """The model with the exact bytes of the weights in `folder`, and how they are known.

    What a cache costs does not depend on them, so weights that cannot be measured are a note and not an error.
    """
    try:
        names = [entry.name for entry in folder.iterdir()]
        found = measure(names, lambda name: _open(folder / name, name))
    except (SourceError, OSError) as problem:
        reason = str(problem) if isinstance(problem, SourceError) else "the folder cannot be read to its end"
        note = f"Weights are estimated from the configuration, not measured: {reason}."
        return model.with_notes(note), f"weights estimated; {reason}"
    if found is None:
        return model, "weights estimated"
    return replace(model, checkpoint_bytes=found[0]), f"weights measured from {found[1]}"


def _unknown(reference: str, wanted: str) -> str:
    if not wanted:
        return f"no model was named; {_WANTED}, or an id such as Qwen/Qwen3-8B"
    if reference.startswith(("/", ".", "~")) or reference.endswith((".json", ".gguf")):
        return f"{reference[:120]!r}: there is no such file or folder; {_WANTED}"
    how = "; to fetch it from the Hugging Face Hub, ask for that (--hub)" if the_hub.HUB_ID.fullmatch(wanted) else ""
    return f"{reference[:120]!r} is neither a file here nor in the catalogue{catalogue.hint(wanted)}{how}"
