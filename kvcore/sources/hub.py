"""The Hugging Face Hub: the only module that touches the network, and only when `fetch` or `download` is called.

`fetch` asks for config.json, model.safetensors.index.json and the header of model.safetensors, and for nothing else.
The live engine alone asks for the list of a repository's files (`listing`) and for whole files (`download`).
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from kvcore.errors import SourceError
from kvcore.model.safetensors import INDEX, MAX_INDEX_BYTES, SINGLE, header_bytes, index_bytes

Answer = TypeVar("Answer")

CONFIG = "config.json"
MAX_CONFIG_BYTES = 2_000_000
# What is asked of a single weights file on the Hub: headers of single-file models take tens of kilobytes.
MAX_REMOTE_HEADER_BYTES = 2**20
_MAX_LISTING_BYTES = 20_000_000
# A download that stops is taken up where it stopped, so often in a row without a byte in between.
_DOWNLOAD_TRIES = 4

_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9_]|[-.](?![-.])){0,94}(?<![-.])"
HUB_ID = re.compile(rf"{_NAME}/{_NAME}")
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
class Fetched:
    """A repository's config.json, the exact bytes of its weights (None: not known), the commit, how they are known."""

    config: bytes
    checkpoint_bytes: int | None = None
    commit: str = ""
    weights: str = "estimated from the configuration"


def fetch(repo_id: str, revision: str, endpoint: str | None, timeout: float) -> Fetched:
    """What the Hub has of a repository, within `timeout` seconds altogether; SourceError says why it has not."""
    return _within(timeout, _repository(repo_id, revision, endpoint, timeout).fetch, repo_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFile:
    """One file of a repository: its size in bytes, and its SHA-256 where the Hub states it (large files), else ""."""

    name: str
    size: int
    sha256: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The files at the top of a repository at one commit, by name."""

    repo_id: str
    commit: str
    files: Mapping[str, RemoteFile]


def listing(repo_id: str, revision: str = "main", timeout: float = 20.0) -> Listing:
    """What files a repository has, pinned to the commit that `revision` is now; SourceError says why not."""
    repository = _repository(repo_id, revision, None, timeout)
    return _within(timeout, repository.listing, repo_id)


def download(
    repo_id: str, commit: str, file: RemoteFile, target: Path, progress: Callable[[int], bool], timeout: float = 20.0
) -> bool:
    """Write one file to `target`, going on with what is there of it; False where `progress` stopped it.

    `progress` gets the bytes that are there. `timeout` is the longest silence of the Hub, in seconds. Size and SHA-256
    are compared with what the Hub states: SourceError where they differ (the file is then removed), where the Hub
    cannot be reached, or where the disk is full.
    """
    target.touch()
    tries = 0
    while (here := target.stat().st_size) != file.size:
        if here > file.size:
            target.unlink()
            target.touch()
            continue
        if tries == _DOWNLOAD_TRIES:
            raise SourceError(f"{repo_id}: {_NO_CONNECTION}")
        time.sleep(0.3 * tries)
        with suppress(_InterruptedError):
            if not _repository(repo_id, commit, None, timeout).append(file, target, here, timeout, progress):
                return False
        tries = 0 if target.stat().st_size > here else tries + 1
    if file.sha256 and _sha256(target) != file.sha256:
        target.unlink()
        raise SourceError(
            f"{repo_id}: {file.name} arrived damaged (its SHA-256 is not the one that the Hub states); try again"
        )
    return True


def cached_snapshots(repo_id: str) -> list[Path]:
    """Folders of a repository in the library's cache, the one of its main branch first, then the newest."""
    from huggingface_hub import constants

    if not HUB_ID.fullmatch(repo_id):
        return []
    folder = Path(constants.HF_HUB_CACHE, f"models--{repo_id.replace('/', '--')}")
    try:
        main = (folder / "refs" / "main").read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        main = ""
    try:
        found = [one for one in (folder / "snapshots").iterdir() if one.is_dir()]
        return sorted(found, key=lambda one: (one.name == main, one.stat().st_mtime), reverse=True)
    except OSError:
        return []


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


class _InterruptedError(Exception):
    """A download broke off; what arrived is kept."""


def _repository(repo_id: str, revision: str, endpoint: str | None, timeout: float) -> _Repository:
    if not HUB_ID.fullmatch(repo_id):
        raise SourceError(f"{repo_id[:120]!r} is not the id of a model on the Hub; write it as organisation/name")
    from huggingface_hub import constants

    base = (endpoint or constants.ENDPOINT).rstrip("/")
    if not _ENDPOINT.fullmatch(base):
        raise SourceError("the Hub's endpoint (HF_ENDPOINT) is not an address such as https://huggingface.co")
    deadline = time.monotonic() + timeout
    return _Repository(repo_id=repo_id, revision=check_revision(revision), endpoint=base, deadline=deadline)


def check_revision(revision: str) -> str:
    """The same revision, or SourceError when it is not the name of a branch, a tag or a commit."""
    if not _REVISION.fullmatch(revision) or ".." in revision:
        raise SourceError(f"revision {revision[:120]!r} is not a branch, a tag or a commit")
    return revision


def is_offline() -> bool:
    """Whether HF_HUB_OFFLINE forbids requests."""
    from huggingface_hub import constants

    return bool(constants.is_offline_mode())


def cached_folder(repo_id: str, revision: str) -> Path:
    """The folder of a repository that another program downloaded into the library's cache; SourceError: not there."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(repo_id, CONFIG, revision=check_revision(revision))
    if not isinstance(found, str):
        raise SourceError(f"{repo_id}: not in the Hub's cache, and offline mode is on; unset HF_HUB_OFFLINE")
    return Path(found).parent


def without_url(text: str) -> str:
    """`org/name` from the address of a model's page; other text as it is."""
    found = _PAGE.fullmatch(text.strip())
    return found[1] if found else text.strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Repository:
    """One repository at one revision, to be read before `deadline` (of time.monotonic)."""

    repo_id: str
    revision: str
    endpoint: str
    deadline: float

    def fetch(self) -> Fetched:
        """What there is at this revision; SourceError where it cannot be had."""
        config, commit = self._get(CONFIG, MAX_CONFIG_BYTES)
        # The same commit for the rest, whatever is pushed meanwhile.
        pinned = replace(self, revision=commit or self.revision)
        for name, limit in ((INDEX, MAX_INDEX_BYTES), (SINGLE, MAX_REMOTE_HEADER_BYTES)):
            try:
                data, _ = pinned._get(name, limit, only_start=name == SINGLE)
                total = (index_bytes if name == INDEX else header_bytes)(io.BytesIO(data))
            except SourceError:
                continue  # It has no such file, or one that does not say.
            return Fetched(config=config, checkpoint_bytes=total, commit=commit, weights=f"measured from {name}")
        return Fetched(config=config, commit=commit)

    def listing(self) -> Listing:
        """The files at the top of the repository, and the commit."""
        url = f"{self.endpoint}/api/models/{self.repo_id}/revision/{quote(self.revision, safe='')}?blobs=true"
        data, _ = self._read(url, "list of files", _MAX_LISTING_BYTES)
        try:
            answer = json.loads(data)
            commit = str(answer["sha"])
            entries = [one for one in answer["siblings"] if "/" not in one["rfilename"] and one.get("size") is not None]
            files = [
                RemoteFile(
                    name=str(one["rfilename"]),
                    size=int(one["size"]),
                    sha256=str((one.get("lfs") or {}).get("sha256", "")),
                )
                for one in entries
            ]
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise SourceError(f"{self.repo_id}: the Hub's list of its files is not understood") from None
        if not _COMMIT.fullmatch(commit) or any(file.size < 0 for file in files):
            raise SourceError(f"{self.repo_id}: the Hub's list of its files is not understood")
        return Listing(repo_id=self.repo_id, commit=commit, files={file.name: file for file in files})

    def append(
        self, file: RemoteFile, target: Path, start: int, timeout: float, progress: Callable[[int], bool]
    ) -> bool:
        """Add to `target` what comes of a file from byte `start` on; False where `progress` stopped it."""
        import httpx2

        url = f"{self.endpoint}/{self.repo_id}/resolve/{quote(self.revision, safe='')}/{quote(file.name)}"
        headers = self._headers() | ({"range": f"bytes={start}-"} if start else {})
        with self._asked(url, headers, httpx2.Timeout(timeout), httpx2.TransportError) as answer:
            # A server that gives the whole file instead of the rest is taken at its word.
            here = start if answer.status_code == 206 else 0
            with target.open("ab" if here else "wb") as out:
                for chunk in answer.iter_bytes():
                    try:
                        out.write(chunk)
                    except OSError as problem:
                        raise SourceError(f"{file.name} cannot be written: {problem.strerror}") from None
                    here += len(chunk)
                    if here > file.size:
                        raise SourceError(f"{self.repo_id}: {file.name} is larger than the Hub said; try again")
                    if not progress(here):
                        return False
        return True

    def _get(self, filename: str, limit: int, only_start: bool = False) -> tuple[bytes, str]:
        """A file's bytes, or its first `limit` ones, and the commit that the Hub says it is of."""
        url = f"{self.endpoint}/{self.repo_id}/resolve/{quote(self.revision, safe='')}/{filename}"
        return self._read(url, filename, limit, only_start)

    def _read(self, url: str, what: str, limit: int, only_start: bool = False) -> tuple[bytes, str]:
        import httpx2

        left = max(self.deadline - time.monotonic(), 0.1)
        limits = httpx2.Timeout(min(left, 10.0), connect=min(left, 5.0))
        headers = self._headers() | ({"range": f"bytes=0-{limit - 1}"} if only_start else {})
        with self._asked(url, headers, limits) as answer:
            commits = [one.headers.get("x-repo-commit", "") for one in (*answer.history, answer)]
            data = bytearray()
            for chunk in answer.iter_bytes():
                data += chunk
                if time.monotonic() > self.deadline:
                    raise httpx2.ReadTimeout("")
                if len(data) > limit:
                    break
            if len(data) > limit and not only_start:
                raise SourceError(f"{self.repo_id}: its {what} is larger than {limit:,} bytes")
        return bytes(data), next((commit for commit in reversed(commits) if _COMMIT.fullmatch(commit)), "")

    @contextmanager
    def _asked(
        self, url: str, headers: dict[str, str], limits: Any, interrupts: type[Exception] | tuple[()] = ()
    ) -> Iterator[Any]:
        """The Hub's good answer to a request; SourceError for any other, _InterruptedError for errors to try again."""
        import httpx2
        from huggingface_hub import get_session

        try:
            with get_session().stream("GET", url, headers=headers, timeout=limits) as answer:
                if answer.status_code not in (200, 206):
                    status = str(answer.status_code)
                    known = _HUB_ANSWERS.get(answer.headers.get("x-error-code", "")) or _HUB_ANSWERS.get(status)
                    raise SourceError(f"{self.repo_id}: {known or f'the Hub answered with {status}; try again later'}")
                yield answer
        except interrupts:
            raise _InterruptedError from None
        except UnicodeError:
            raise SourceError(f"{self.repo_id}: HF_TOKEN holds a character that no token has; set it anew") from None
        except httpx2.TimeoutException:
            raise SourceError(f"{self.repo_id}: {_TOO_SLOW}") from None
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError):
            raise SourceError(f"{self.repo_id}: {_NO_CONNECTION}") from None

    def _headers(self) -> dict[str, str]:
        from huggingface_hub import constants, get_token

        headers = {"user-agent": "kv-cache-explorer", "accept-encoding": "identity"}
        # Another address, which a page's visitor may have typed, is not given the operator's token.
        is_own = self.endpoint == constants.ENDPOINT.rstrip("/")
        if is_own and not constants.HF_HUB_DISABLE_IMPLICIT_TOKEN and (token := get_token()):
            headers["authorization"] = f"Bearer {token}"
        return headers


def _within(seconds: float, work: Callable[[], Answer], repo_id: str) -> Answer:
    """What `work` returns, or SourceError after `seconds`: looking up a host's name heeds no other time limit."""
    future: Future[Answer] = Future()

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
