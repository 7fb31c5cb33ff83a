"""Where a model comes from: the catalogue, a file, a folder, pasted text, an upload, or the Hugging Face Hub.

The only module that reads a user's files or touches the network. It reads configurations, indexes, and the headers of
safetensors and GGUF files: never a tensor, a pickle or code. A request is only made by `from_hub`, or by `load` with
`hub=True`, and it asks for nothing but config.json, model.safetensors.index.json or the header of model.safetensors.
"""

from __future__ import annotations

import errno
import io
import json
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import IO, Any, BinaryIO, Literal, TypeVar

from kvcore import catalogue
from kvcore.errors import ConfigError, ModelError, SourceError
from kvcore.model import Model, model_from_config, parse_config
from kvcore.model.safetensors import header_bytes, index_bytes

MAX_CONFIG_BYTES = 2_000_000
MAX_INDEX_BYTES = 64_000_000
# What is asked of a single weights file on the Hub: headers of single-file models take tens of kilobytes.
MAX_REMOTE_HEADER_BYTES = 2**20
HUB_SECONDS = 15.0

Origin = Literal["catalogue", "file", "folder", "pasted", "upload", "hub", "gguf"]
T = TypeVar("T")

_CONFIG, _INDEX, _SINGLE = "config.json", "model.safetensors.index.json", "model.safetensors"
_NEVER_OPENED = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".py", ".safetensors", ".zip", ".h5", ".npz")
_SHARD = re.compile(r".+-(\d+)-of-(\d+)\.safetensors")
_FIRST_BYTES = (
    (b"version https://git-lfs", "a Git LFS pointer and not the file itself; fetch it with `git lfs pull`"),
    (b"PK\x03\x04", "an archive or a pickled checkpoint, which is never opened; give the model's config.json"),
    (b"\x80", "a pickle, which is never opened; give the model's config.json"),
    (b"<", "a web page; save the raw config.json instead"),
)
_REASONS = {
    errno.ENOENT: "there is no such file; check the path",
    errno.ENOTDIR: "there is no such file; a part of the path is not a folder",
    errno.EACCES: "permission denied; make it readable for this user",
    errno.EPERM: "permission denied; make it readable for this user",
    errno.ELOOP: "a link that leads back to itself; give the file it should point to",
    errno.ENAMETOOLONG: "the path is too long to be one; give a config.json, a folder or a .gguf file",
    errno.ENXIO: "not a regular file; give a config.json, a folder with one or a .gguf file",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A model and where it came from; `detail` adds to that (revision, how the weights are known).

    `raw` is the configuration as it was read, None for a GGUF file.
    """

    model: Model
    origin: Origin
    detail: str = ""
    raw: Mapping[str, Any] | None = field(default=None, compare=False)


def load(
    reference: str, *, hub: bool = False, upper_bound: bool = False, stdin: IO[str] | IO[bytes] | None = None
) -> Loaded:
    """The model that a command line or a text field names.

    A path, if there is a file or a folder with a config.json; `-` reads a config.json from `stdin`; else an id of the
    catalogue; else, only with `hub`, an id on the Hub. Raises ModelError where it is none of these, and what the
    functions below raise.
    """
    if reference == "-":
        return _from_stream(stdin, upper_bound)
    path, wanted = Path(reference), _without_url(reference)[0]
    mode = _mode(path) if reference.strip() else 0
    if mode and not stat.S_ISDIR(mode):
        return from_path(reference, upper_bound=upper_bound)
    if mode and _mode(path / _CONFIG):
        return from_path(reference, upper_bound=upper_bound)
    if catalogue.find(wanted) is not None:
        return from_catalogue(wanted)
    if hub and _HUB_ID.fullmatch(wanted):
        return from_hub(reference, upper_bound=upper_bound)
    if mode:
        return from_path(reference, upper_bound=upper_bound)
    raise ModelError(_unknown(reference, wanted, hub))


def from_catalogue(model_id: str) -> Loaded:
    """A model of the catalogue; ModelError, naming the nearest ids, where there is none."""
    model = catalogue.load(model_id)
    entry = catalogue.find(model_id)
    detail = entry.provenance if entry else ""
    return Loaded(model=model, origin="catalogue", detail=detail, raw=catalogue.raw_config(model_id))


def from_json(text: str, name: str = "pasted configuration", *, upper_bound: bool = False) -> Loaded:
    """The model that a config.json's text describes; ConfigError where it is broken or not understood."""
    model, raw = _understand(text, name, upper_bound)
    return Loaded(model=model, origin="pasted", raw=raw)


def from_path(path: str | Path, *, upper_bound: bool = False) -> Loaded:
    """The model of a config.json, of a folder with one, or of a .gguf file.

    Exact bytes of the weights come from a safetensors index or headers beside the config.json, where there are any.
    Raises SourceError for what cannot be read and ConfigError for what is not a configuration; either names the path
    as it was given.
    """
    shown, target = str(path), Path(path)
    mode = _mode(target)
    if stat.S_ISDIR(mode):
        return _from_folder(target, shown, upper_bound)
    if target.suffix.lower() in _NEVER_OPENED:
        raise SourceError(_refusal(shown))
    with _open(target, shown) as stream:
        if _is_gguf(stream, target.name, shown):
            return _from_gguf(stream, target.name)
        text = _decode(_read(stream, MAX_CONFIG_BYTES, shown), shown)
    if target.name == _CONFIG:
        model, raw = _understand(text, _folder_name(target.parent), upper_bound)
        model, detail = _with_weights(model, target.parent)
        return Loaded(model=model, origin="file", detail=detail, raw=raw)
    model, raw = _understand(text, target.stem, upper_bound)
    return Loaded(model=model, origin="file", raw=raw)


def from_upload(filename: str, data: bytes, *, upper_bound: bool = False) -> Loaded:
    """The model of an uploaded config.json, or of the first megabytes of a .gguf file; raises as `from_path` does."""
    name = "".join(letter for letter in PurePath(filename.replace("\\", "/")).name if letter.isprintable())[:80]
    name = name or "upload"
    if PurePath(name).suffix.lower() in _NEVER_OPENED:
        raise SourceError(_refusal(name))
    stream = io.BytesIO(data)
    if _is_gguf(stream, name, name):
        return _from_gguf(stream, name)
    text = _decode(_read(stream, MAX_CONFIG_BYTES, name), name)
    model, raw = _understand(text, PurePath(name).stem if name != _CONFIG else "", upper_bound)
    return Loaded(model=model, origin="upload", detail=name, raw=raw)


def from_hub(
    repo_id: str,
    *,
    revision: str | None = None,
    endpoint: str | None = None,
    timeout: float = HUB_SECONDS,
    upper_bound: bool = False,
) -> Loaded:
    """A model on the Hugging Face Hub, `org/name` or the address of its page; `detail` shows the resolved commit.

    `timeout` is in seconds, for everything together. `endpoint` replaces HF_ENDPOINT. The token is the one that
    huggingface_hub finds (HF_TOKEN), and goes to the configured endpoint only. With HF_HUB_OFFLINE the library's
    cache is read and nothing is requested. Nothing is written. Raises SourceError, one sentence for each way to fail,
    and ConfigError for a configuration that is not understood.
    """
    wanted, in_url = _without_url(repo_id)
    if not _HUB_ID.fullmatch(wanted):
        raise SourceError(f"{repo_id[:120]!r} is not the id of a model on the Hub; write it as organisation/name")
    revision = revision or in_url or "main"
    if not _REVISION.fullmatch(revision) or ".." in revision:
        raise SourceError(f"revision {revision[:120]!r} is not a branch, a tag or a commit")
    from huggingface_hub import constants

    if constants.is_offline_mode():
        return _from_hub_cache(wanted, revision, upper_bound)
    base = (endpoint or constants.ENDPOINT).rstrip("/")
    if not _ENDPOINT.fullmatch(base):
        raise SourceError("the Hub's endpoint (HF_ENDPOINT) is not an address such as https://huggingface.co")
    repository = _Repository(
        repo_id=wanted,
        revision=revision,
        endpoint=base,
        trusted=base == constants.ENDPOINT.rstrip("/"),
        deadline=time.monotonic() + timeout,
    )
    config, total, commit, weights = _within(timeout, repository.fetch, wanted)
    model, raw = _understand(_decode(config, f"{wanted}'s config.json"), wanted, upper_bound)
    detail = f"revision {commit or revision}; {weights}"
    return Loaded(model=replace(model, checkpoint_bytes=total), origin="hub", detail=detail, raw=raw)


# Reading what was given.


def _understand(text: str, name: str, upper_bound: bool) -> tuple[Model, dict[str, Any]]:
    if len(text) > MAX_CONFIG_BYTES:
        raise ConfigError(f"config.json: longer than {MAX_CONFIG_BYTES:,} bytes, which no model's configuration is")
    if not text.strip():
        raise ConfigError("config.json: empty; give the model's whole config.json")
    raw = parse_config(text.removeprefix("\ufeff"))
    try:
        return model_from_config(raw, name, upper_bound=upper_bound), raw
    except RecursionError:
        raise ConfigError("config.json: nested too deeply to be a model's configuration") from None


def _decode(data: bytes, shown: str) -> str:
    """UTF-8, -16 or -32, with or without a byte order mark; ConfigError for anything else, saying what it looks like."""
    for start, what in _FIRST_BYTES:
        if data.lstrip()[: len(start)].lower() == start.lower():
            raise ConfigError(f"{shown}: this is {what}")
    try:
        text = data.decode(json.detect_encoding(data))
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise ConfigError(f"{shown}: not text; give a config.json (JSON in UTF-8) or a .gguf file")
    return text


def _from_stream(stdin: IO[str] | IO[bytes] | None, upper_bound: bool) -> Loaded:
    import sys

    stream: Any = sys.stdin if stdin is None else stdin
    found = getattr(stream, "buffer", stream).read(MAX_CONFIG_BYTES + 1)
    text = found if isinstance(found, str) else _decode(found, "standard input")
    model, raw = _understand(text, "standard input", upper_bound)
    return Loaded(model=model, origin="pasted", detail="standard input", raw=raw)


def _from_gguf(stream: BinaryIO, name: str) -> Loaded:
    from kvcore.model.gguf import model_from_gguf

    return Loaded(model=model_from_gguf(stream, name), origin="gguf", detail=name)


def _is_gguf(stream: BinaryIO, name: str, shown: str) -> bool:
    """By its first bytes: Ollama's files have no ending. SourceError where only the name says so."""
    is_one = stream.read(4) == b"GGUF"
    stream.seek(0)
    if not is_one and name.lower().endswith(".gguf"):
        raise SourceError(f"{shown}: does not begin as a GGUF file does; download it again or give a config.json")
    return is_one


def _refusal(shown: str) -> str:
    return f"{shown}: weights, pickles and code are never opened; give the model's config.json, its folder or a .gguf"


def _mode(path: Path) -> int:
    """The kind of file there, links followed; a link that leads nowhere counts as a link; 0 where nothing is."""
    try:
        return path.stat().st_mode
    except PermissionError:
        return stat.S_IFREG  # Something may be there: opening it says what is wrong.
    except (OSError, ValueError):
        pass
    try:
        return path.lstat().st_mode
    except (OSError, ValueError):
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


def _read(stream: BinaryIO, limit: int, shown: str) -> bytes:
    try:
        data = stream.read(limit + 1)
    except OSError:
        raise SourceError(f"{shown}: it cannot be read to its end; copy it to a local disk first") from None
    if len(data) > limit:
        raise SourceError(f"{shown}: larger than {limit:,} bytes, which no such file is; give the model's config.json")
    return data


# Folders, and the weights beside a configuration.


def _from_folder(folder: Path, shown: str, upper_bound: bool) -> Loaded:
    if not _mode(folder / _CONFIG):
        raise SourceError(
            f"{shown}: this folder has no config.json; give a folder of a model, its config.json or a .gguf"
        )
    with _open(folder / _CONFIG, f"config.json in {shown}") as stream:
        text = _decode(_read(stream, MAX_CONFIG_BYTES, f"config.json in {shown}"), f"config.json in {shown}")
    model, raw = _understand(text, _folder_name(folder), upper_bound)
    model, detail = _with_weights(model, folder)
    return Loaded(model=model, origin="folder", detail=detail, raw=raw)


def _folder_name(folder: Path) -> str:
    """The folder's own name; `org/name` inside a Hugging Face cache, whose folders are named by commit."""
    for part in reversed(folder.parts):
        if part.startswith("models--"):
            return part.removeprefix("models--").replace("--", "/", 1)
    return folder.name if folder.name not in ("", ".", "..") else ""


def _with_weights(model: Model, folder: Path) -> tuple[Model, str]:
    """The model with the exact bytes of the weights in `folder`, and how they are known.

    What a cache costs does not depend on them, so weights that cannot be measured are a note and not an error.
    """
    names = _weight_files(folder)
    detail = f"weights measured from {names[0] if len(names) == 1 else f'{len(names)} safetensors headers'}"
    total = 0
    for name in names:
        try:
            with _open(folder / name, name) as stream:
                total += index_bytes(_read(stream, MAX_INDEX_BYTES, name)) if name == _INDEX else header_bytes(stream)
        except (SourceError, OSError) as problem:
            reason = f"{name} was not used: {str(problem).removeprefix(f'{name}: ')}"
            note = f"Weights are estimated from the configuration; {reason}."
            reading = replace(model.reading, notes=(*model.reading.notes, note))
            return replace(model, reading=reading), f"weights estimated; {reason}"
    return (replace(model, checkpoint_bytes=total), detail) if names else (model, "weights estimated")


def _weight_files(folder: Path) -> list[str]:
    """The index, or the single file, or a whole set of shards; none where that is not certain."""
    try:
        found = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith((".safetensors", _INDEX)))
    except OSError:
        return []
    for name in (_INDEX, _SINGLE):
        if name in found:
            return [name]
    files = [name for name in found if not name.startswith("adapter")]
    shards = [match for name in files if (match := _SHARD.fullmatch(name))]
    is_whole = len(shards) == len(files) and len({match[2] for match in shards}) == 1
    if is_whole and len(files) == int(shards[0][2]):
        return files
    return files if len(files) == 1 and not shards else []


# The Hub.

_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9_]|[-.](?![-.])){0,94}(?<![-.])"
_HUB_ID = re.compile(rf"{_NAME}/{_NAME}")
_REVISION = re.compile(r"[A-Za-z0-9][\w./+-]{0,199}", re.ASCII)
_ENDPOINT = re.compile(r"https?://[A-Za-z0-9.-]+(:\d{1,5})?(/[\w.~-]+)*", re.ASCII)
_PAGE = re.compile(
    r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/([^/?#]+/[^/?#]+)(?:/(?:tree|blob|resolve|raw)/([^/?#]+))?"
    r"(?:[/?#].*)?",
    re.IGNORECASE,
)
_COMMIT = re.compile(r"[0-9a-f]{7,64}")
# By the Hub's own X-Error-Code, else by the status.
_HUB_ANSWERS = {
    "GatedRepo": "is gated: accept its terms on its page, then set HF_TOKEN to a token of that account",
    "RepoNotFound": "is not on the Hub, or is private: check its spelling, or set HF_TOKEN to a token that may read it",
    "RevisionNotFound": "has no such revision; leave it out for the newest",
    "EntryNotFound": "has no config.json; it may hold only GGUF files or an adapter: give the model it was made from",
    "401": "is private, gated, or the token in HF_TOKEN is not valid; check the token",
    "403": "may not be read with this token; check that HF_TOKEN may read it",
    "404": "was not found on the Hub; check its spelling",
    "429": "was not fetched: the Hub's rate limit is reached; wait a few minutes or set HF_TOKEN",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Repository:
    """One repository at one revision, to be read before `deadline` (of time.monotonic)."""

    repo_id: str
    revision: str
    endpoint: str
    trusted: bool
    deadline: float

    def fetch(self) -> tuple[bytes, int | None, str, str]:
        """config.json, exact bytes of the weights or None, the commit, and how the weights are known."""
        config, commit = self._get(_CONFIG, MAX_CONFIG_BYTES)
        # The same commit for the rest, whatever is pushed meanwhile.
        pinned = replace(self, revision=commit or self.revision)
        for name, limit in ((_INDEX, MAX_INDEX_BYTES), (_SINGLE, MAX_REMOTE_HEADER_BYTES)):
            try:
                data, _ = pinned._get(name, limit, only_start=name == _SINGLE)
                total = index_bytes(data) if name == _INDEX else header_bytes(io.BytesIO(data))
            except SourceError:
                continue
            return config, total, commit, f"weights measured from {name}"
        return config, None, commit, "weights estimated from the configuration"

    def _get(self, filename: str, limit: int, only_start: bool = False) -> tuple[bytes, str]:
        """A file's bytes, or its first `limit` ones, and the commit that the Hub says it is of."""
        import httpx2
        from huggingface_hub import get_session, hf_hub_url

        url = hf_hub_url(self.repo_id, filename, revision=self.revision, endpoint=self.endpoint)
        left = max(self.deadline - time.monotonic(), 0.1)
        limits = httpx2.Timeout(min(left, 10.0), connect=min(left, 5.0))
        try:
            with get_session().stream("GET", url, headers=self._headers(only_start, limit), timeout=limits) as answer:
                if answer.status_code not in (200, 206):
                    raise SourceError(self._problem(answer.headers.get("x-error-code"), answer.status_code))
                commits = [one.headers.get("x-repo-commit", "") for one in (*answer.history, answer)]
                data = bytearray()
                for chunk in answer.iter_bytes(2**16):
                    data += chunk
                    if time.monotonic() > self.deadline:
                        raise httpx2.ReadTimeout("")
                    if len(data) > limit and not only_start:
                        raise SourceError(f"{self.repo_id}: its {filename} is larger than {limit:,} bytes")
                    if len(data) >= limit and only_start:
                        break
        except httpx2.TimeoutException:
            raise SourceError(_too_slow(self.repo_id)) from None
        except httpx2.ConnectError:
            raise SourceError(
                f"{self.repo_id}: the Hub cannot be reached; check the network, the proxy and HF_ENDPOINT, "
                "or give the model's config.json"
            ) from None
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError):
            raise SourceError(f"{self.repo_id}: the connection to the Hub broke off; try again") from None
        return bytes(data), next((commit for commit in reversed(commits) if _COMMIT.fullmatch(commit)), "")

    def _headers(self, only_start: bool, limit: int) -> dict[str, str]:
        from huggingface_hub import constants, get_token

        headers = {"user-agent": "kv-cache-explorer", "accept-encoding": "identity"}
        if only_start:
            headers["range"] = f"bytes=0-{limit - 1}"
        if self.trusted and not constants.HF_HUB_DISABLE_IMPLICIT_TOKEN and (token := get_token()):
            headers["authorization"] = f"Bearer {token}"
        return headers

    def _problem(self, code: str | None, status: int) -> str:
        known = _HUB_ANSWERS.get(code or "") or _HUB_ANSWERS.get(str(status))
        return f"{self.repo_id}: {known or f'the Hub answered with status {status}; try again later'}"


def _within(seconds: float, work: Callable[[], T], repo_id: str) -> T:
    """What `work` returns, or SourceError after `seconds`: looking up a host's name heeds no other time limit."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as problem:
            future.set_exception(problem)

    threading.Thread(target=run, daemon=True, name="hub").start()
    try:
        return future.result(seconds + 0.5)
    except TimeoutError:
        raise SourceError(_too_slow(repo_id)) from None


def _too_slow(repo_id: str) -> str:
    return f"{repo_id}: the Hub did not answer in time; try again, or give the model's config.json"


def _from_hub_cache(repo_id: str, revision: str, upper_bound: bool) -> Loaded:
    """A model that another program has already downloaded into the library's cache."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(repo_id, _CONFIG, revision=revision)
    if not isinstance(found, str):
        raise SourceError(
            f"{repo_id}: offline mode is on (HF_HUB_OFFLINE) and it is not in the Hub's cache; "
            "unset that, or give the model's config.json"
        )
    folder = Path(found).parent
    loaded = _from_folder(folder, f"the cached {repo_id}", upper_bound)
    model = replace(loaded.model, name=repo_id)
    return replace(loaded, model=model, origin="hub", detail=f"cached revision {folder.name}; {loaded.detail}")


def _without_url(text: str) -> tuple[str, str | None]:
    """`org/name`, and the revision if one is stated, from the address of a model's page; other text as it is."""
    found = _PAGE.fullmatch(text.strip())
    return (found[1], found[2]) if found and found[1].split("/")[0] not in _NOT_MODELS else (text.strip(), None)


_NOT_MODELS = ("datasets", "spaces", "models", "collections", "papers", "docs", "blog")


def _unknown(reference: str, wanted: str, hub: bool) -> str:
    shown = repr(reference[:120])
    if not wanted:
        return "no model was named; give a config.json, its folder, a .gguf file or an id such as Qwen/Qwen3-8B"
    if reference.startswith(("/", "./", "../", "~")) or reference.endswith((".json", ".gguf")):
        return f"{shown}: there is no such file or folder; give the path of a config.json, a folder with one or a .gguf"
    like = catalogue.nearest(wanted)
    nearest = f"; nearest: {', '.join(like)}" if like else ""
    if not _HUB_ID.fullmatch(wanted):
        how = "; on the Hub, ids are organisation/name" if hub else ""
    else:
        how = "; to fetch it from the Hugging Face Hub, ask for that (--hub)"
    return f"{shown} is neither a file or folder here nor in the catalogue{nearest}{how}"
