"""Where a model comes from: the catalogue, a file, a folder, pasted text, an upload, or the Hugging Face Hub.

The only module that reads a user's files or touches the network. It reads configurations, indexes, and the headers of
safetensors and GGUF files: never a tensor, a pickle or code. Only `from_hub`, or `load` with `hub=True`, makes
requests, and for nothing but config.json, model.safetensors.index.json and the header of model.safetensors.
"""

from __future__ import annotations

import errno
import io
import json
import os
import re
import stat
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import IO, Any, BinaryIO, Literal
from urllib.parse import quote

from kvcore import catalogue
from kvcore.errors import ConfigError, ModelError, SourceError
from kvcore.model import Model, model_from_config, parse_config
from kvcore.model.safetensors import INDEX, MAX_INDEX_BYTES, SINGLE, header_bytes, index_bytes, measure

MAX_CONFIG_BYTES = 2_000_000
# What is asked of a single weights file on the Hub: headers of single-file models take tens of kilobytes.
MAX_REMOTE_HEADER_BYTES = 2**20

Origin = Literal["catalogue", "file", "folder", "pasted", "upload", "hub", "gguf"]
_Fetched = tuple[bytes, int | None, str, str]
_CONFIG = "config.json"
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
        found = getattr(stream, "buffer", stream).read(MAX_CONFIG_BYTES + 1)
        text = found if isinstance(found, str) else _decode(found, "standard input")
        return from_json(text, "standard input", upper_bound=upper_bound)
    wanted = _without_url(reference)
    mode = _mode(Path(reference)) if wanted else 0
    if stat.S_ISREG(mode) or (stat.S_ISDIR(mode) and _mode(Path(reference, _CONFIG))):
        return from_path(reference, upper_bound=upper_bound)
    if catalogue.find(wanted) is not None:
        return from_catalogue(wanted)
    if hub and _HUB_ID.fullmatch(wanted):
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
        shown, target, origin = f"config.json in {shown}", target / _CONFIG, "folder"
    _refuse_ending(target.name, shown)
    with _open(target, shown) as stream:
        if (gguf := _from_gguf(stream, target.name, shown, upper_bound)) is not None:
            return gguf
        text = _decode(_read(stream, MAX_CONFIG_BYTES, shown), shown)
    is_config = target.name == _CONFIG
    model, raw = _understand(text, _folder_name(target.parent) if is_config else target.stem, upper_bound)
    model, detail = _with_weights(model, target.parent) if is_config else (model, "")
    return Loaded(model=model, origin=origin, detail=detail, raw=raw)


def from_upload(filename: str, data: bytes, *, upper_bound: bool = False) -> Loaded:
    """The model of an uploaded config.json, or of the first megabytes of a .gguf file; raises as `from_path` does."""
    name = "".join(filter(str.isprintable, PurePath(filename.replace("\\", "/")).name))[:80] or "upload"
    _refuse_ending(name, name)
    stream = io.BytesIO(data)
    if (gguf := _from_gguf(stream, name, name, upper_bound)) is not None:
        return gguf
    text = _decode(_read(stream, MAX_CONFIG_BYTES, name), name)
    model, raw = _understand(text, "" if name == _CONFIG else PurePath(name).stem, upper_bound)
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
    wanted, revision = _without_url(repo_id), revision or "main"
    if not _HUB_ID.fullmatch(wanted):
        raise SourceError(f"{repo_id[:120]!r} is not the id of a model on the Hub; write it as organisation/name")
    if not _REVISION.fullmatch(revision) or ".." in revision:
        raise SourceError(f"revision {revision[:120]!r} is not a branch, a tag or a commit")
    from huggingface_hub import constants

    if constants.is_offline_mode():
        return _from_hub_cache(wanted, revision, upper_bound)
    base = (endpoint or constants.ENDPOINT).rstrip("/")
    if not _ENDPOINT.fullmatch(base):
        raise SourceError("the Hub's endpoint (HF_ENDPOINT) is not an address such as https://huggingface.co")
    deadline = time.monotonic() + timeout
    repository = _Repository(repo_id=wanted, revision=revision, endpoint=base, deadline=deadline)
    config, total, commit, weights = _within(timeout, repository.fetch, wanted)
    model, raw = _understand(_decode(config, f"{wanted}'s config.json"), wanted, upper_bound)
    model = replace(model, checkpoint_bytes=total)
    return Loaded(model=model, origin="hub", detail=f"revision {commit or revision}; {weights}", raw=raw)


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
    """UTF-8, -16 or -32, with or without a byte order mark; ConfigError, saying what it looks like, otherwise."""
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


def _from_gguf(stream: BinaryIO, name: str, shown: str, upper_bound: bool) -> Loaded | None:
    """None for a file that does not begin as GGUF, which is what tells: Ollama's files have no ending."""
    is_one = stream.read(4) == b"GGUF"
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


def _read(stream: BinaryIO, limit: int, shown: str) -> bytes:
    try:
        data = stream.read(limit + 1)
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
        reading = replace(model.reading, notes=(*model.reading.notes, note))
        return replace(model, reading=reading), f"weights estimated; {reason}"
    if found is None:
        return model, "weights estimated"
    return replace(model, checkpoint_bytes=found[0]), f"weights measured from {found[1]}"


_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9_]|[-.](?![-.])){0,94}(?<![-.])"
_HUB_ID = re.compile(rf"{_NAME}/{_NAME}")
_REVISION = re.compile(r"[A-Za-z0-9][\w./+-]{0,199}", re.ASCII)
_ENDPOINT = re.compile(r"https?://[A-Za-z0-9.-]+(:\d{1,5})?(/[\w.~-]+)*", re.ASCII)
# The address of a model's page, unless it is of another revision than the newest.
_PAGE = re.compile(
    r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/([^/?#]+/[^/?#]+)(?:/(?:tree|blob|resolve)/main.*)?/?(?:[?#].*)?"
)
_COMMIT = re.compile(r"[0-9a-f]{7,64}")
_TOO_SLOW = "the Hub did not answer in time; try again, or give the model's config.json"
_NO_CONNECTION = "the Hub cannot be reached; check the network, the proxy and HF_ENDPOINT, or give a config.json"
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
    deadline: float

    def fetch(self) -> _Fetched:
        """config.json, exact bytes of the weights or None, the commit, and how the weights are known."""
        config, commit = self._get(_CONFIG, MAX_CONFIG_BYTES)
        # The same commit for the rest, whatever is pushed meanwhile.
        pinned = replace(self, revision=commit or self.revision)
        for name, limit in ((INDEX, MAX_INDEX_BYTES), (SINGLE, MAX_REMOTE_HEADER_BYTES)):
            try:
                data, _ = pinned._get(name, limit, only_start=name == SINGLE)
                total = (index_bytes if name == INDEX else header_bytes)(io.BytesIO(data))
            except SourceError:
                continue  # It has no such file, or one that does not say.
            return config, total, commit, f"weights measured from {name}"
        return config, None, commit, "weights estimated from the configuration"

    def _get(self, filename: str, limit: int, only_start: bool = False) -> tuple[bytes, str]:
        """A file's bytes, or its first `limit` ones, and the commit that the Hub says it is of."""
        import httpx2
        from huggingface_hub import get_session

        url = f"{self.endpoint}/{self.repo_id}/resolve/{quote(self.revision, safe='')}/{filename}"
        left = max(self.deadline - time.monotonic(), 0.1)
        limits = httpx2.Timeout(min(left, 10.0), connect=min(left, 5.0))
        try:
            with get_session().stream("GET", url, headers=self._headers(only_start, limit), timeout=limits) as answer:
                if answer.status_code not in (200, 206):
                    status = str(answer.status_code)
                    known = _HUB_ANSWERS.get(answer.headers.get("x-error-code", "")) or _HUB_ANSWERS.get(status)
                    raise SourceError(f"{self.repo_id}: {known or f'the Hub answered with {status}; try again later'}")
                commits = [one.headers.get("x-repo-commit", "") for one in (*answer.history, answer)]
                data = bytearray()
                for chunk in answer.iter_bytes():
                    data += chunk
                    if time.monotonic() > self.deadline:
                        raise httpx2.ReadTimeout("")
                    if len(data) > limit:
                        break
                if len(data) > limit and not only_start:
                    raise SourceError(f"{self.repo_id}: its {filename} is larger than {limit:,} bytes")
        except httpx2.TimeoutException:
            raise SourceError(f"{self.repo_id}: {_TOO_SLOW}") from None
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError):
            raise SourceError(f"{self.repo_id}: {_NO_CONNECTION}") from None
        return bytes(data), next((commit for commit in reversed(commits) if _COMMIT.fullmatch(commit)), "")

    def _headers(self, only_start: bool, limit: int) -> dict[str, str]:
        from huggingface_hub import constants, get_token

        headers = {"user-agent": "kv-cache-explorer", "accept-encoding": "identity"}
        if only_start:
            headers["range"] = f"bytes=0-{limit - 1}"
        # Another address, which a page's visitor may have typed, is not given the operator's token.
        is_own = self.endpoint == constants.ENDPOINT.rstrip("/")
        if is_own and not constants.HF_HUB_DISABLE_IMPLICIT_TOKEN and (token := get_token()):
            headers["authorization"] = f"Bearer {token}"
        return headers


def _within(seconds: float, work: Callable[[], _Fetched], repo_id: str) -> _Fetched:
    """What `work` returns, or SourceError after `seconds`: looking up a host's name heeds no other time limit."""
    future: Future[_Fetched] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as problem:
            future.set_exception(problem)

    threading.Thread(target=run, daemon=True, name="hub").start()
    try:
        return future.result(seconds + 0.5)
    except TimeoutError:
        raise SourceError(f"{repo_id}: {_TOO_SLOW}") from None


def _from_hub_cache(repo_id: str, revision: str, upper_bound: bool) -> Loaded:
    """A model that another program has already downloaded into the library's cache."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(repo_id, _CONFIG, revision=revision)
    if not isinstance(found, str):
        raise SourceError(f"{repo_id}: not in the Hub's cache, and offline mode is on; unset HF_HUB_OFFLINE")
    loaded = from_path(Path(found).parent, upper_bound=upper_bound)
    return replace(loaded, origin="hub", detail=f"cached revision {Path(found).parent.name}; {loaded.detail}")


def _without_url(text: str) -> str:
    """`org/name` from the address of a model's page; other text as it is."""
    found = _PAGE.fullmatch(text.strip())
    return found[1] if found else text.strip()


def _unknown(reference: str, wanted: str) -> str:
    if not wanted:
        return f"no model was named; {_WANTED}, or an id such as Qwen/Qwen3-8B"
    if reference.startswith(("/", ".", "~")) or reference.endswith((".json", ".gguf")):
        return f"{reference[:120]!r}: there is no such file or folder; {_WANTED}"
    how = "; to fetch it from the Hugging Face Hub, ask for that (--hub)" if _HUB_ID.fullmatch(wanted) else ""
    return f"{reference[:120]!r} is neither a file here nor in the catalogue{catalogue.hint(wanted)}{how}"
