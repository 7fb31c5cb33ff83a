"""Which models the live engine offers, where each is now, and how its folder is found or made.

Nothing is downloaded unless it was asked for (`hub:` before the id, or allow_hub). A download is pinned to the commit
that the repository's main branch is at its start, takes only safetensors, tokenizer and configuration, and is kept in
the user's cache folder. Code of a repository is never run.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from kvcore.errors import ConfigError, LiveError, SourceError
from kvcore.live import folders, smollm
from kvcore.live.folders import Contents, Progress, check, told, user_cache
from kvcore.live.settings import read_limits
from kvcore.live.shape import LiveShape, shape_from_config, weight_bytes
from kvcore.live.tokenizer import TOKENIZER, FolderTokenizer, Tokenizer
from kvcore.model import parse_config
from kvcore.model.safetensors import INDEX, MAX_INDEX_BYTES, SINGLE
from kvcore.sources import hub
from kvcore.units import format_bytes

DEFAULT = "HuggingFaceTB/SmolLM2-135M-Instruct"
HUB_PREFIX = "hub:"
Where = Literal["ready", "package", "hub cache", "folder", "hub", "shape"]
_SMALL_FILES = ("tokenizer_config.json", "generation_config.json", "chat_template.jinja")
_MAX_SMALL_BYTES = 80_000_000
_COMMIT_SHOWN = 12
# A download tells how far it is, and can be stopped, so often.
_TELL_SECONDS = 0.1
# id, title, parameters as counted from its matrices, norms and biases (a tied head once), what is to be known.
_KNOWN: tuple[tuple[str, str, int, str], ...] = (
    (DEFAULT, "SmolLM2 135M Instruct", 134_515_008, "Apache-2.0"),
    ("HuggingFaceTB/SmolLM2-360M-Instruct", "SmolLM2 360M Instruct", 361_821_120, "Apache-2.0"),
    ("HuggingFaceTB/SmolLM2-1.7B-Instruct", "SmolLM2 1.7B Instruct", 1_711_376_384, "Apache-2.0"),
    ("Qwen/Qwen2.5-0.5B-Instruct", "Qwen2.5 0.5B Instruct", 494_032_768, "Apache-2.0"),
    ("Qwen/Qwen2.5-1.5B-Instruct", "Qwen2.5 1.5B Instruct", 1_543_714_304, "Apache-2.0"),
    ("Qwen/Qwen3-0.6B", "Qwen3 0.6B", 596_049_920, "Apache-2.0"),
    ("Qwen/Qwen3-1.7B", "Qwen3 1.7B", 1_720_574_976, "Apache-2.0"),
    (
        "meta-llama/Llama-3.2-1B-Instruct",
        "Llama 3.2 1B Instruct",
        1_235_814_400,
        "gated: accept its terms on its page and set HF_TOKEN",
    ),
    ("TinyLlama/TinyLlama-1.1B-Chat-v1.0", "TinyLlama 1.1B Chat", 1_100_048_384, "Apache-2.0"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveModel:
    """A model that can be chosen: `bytes` of its weights in 16 bits, and where they are.

    `where`: "ready" in the user's cache folder, "package" installed and to be unpacked once, "hub cache" downloaded by
    another program, "folder" a local one, "hub" to be downloaded on request, "shape" random weights only.
    """

    id: str
    title: str
    parameters: int | None
    bytes: int | None
    where: Where
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A model folder that can be loaded; `origin` says where its weights come from, without a path of this machine."""

    folder: Path
    config: dict[str, Any]
    tokenizer: Tokenizer
    origin: str


def listed() -> tuple[LiveModel, ...]:
    """The models that are offered, the default first, each with where its weights are now; nothing is fetched."""
    return tuple(
        LiveModel(id=name, title=title, parameters=count, bytes=2 * count, where=_where(name), note=note)
        for name, title, count, note in _KNOWN
    )


def prepare(model_id: str, progress: Callable[[str, int, int], bool], *, allow_hub: bool = False) -> Prepared:
    """The folder of a model, found or made; `progress(what, done, of)` is told and stops it by answering False.

    `model_id` is a local folder or an id: looked for in the Hub's local cache, in the user's cache folder, in the
    package (the default model) and, only with `hub:` before the id or `allow_hub`, on the Hub. Raises LiveError with
    the reason, "cancelled" where it was stopped.
    """
    name = model_id.removeprefix(HUB_PREFIX).strip()
    try:
        if name != model_id or not _is_folder(name):
            found, origin = _by_id(hub.without_url(name), progress, allow_hub or name != model_id)
        else:
            name = Path(name).resolve().name
            found, origin = check(Path(model_id.strip())), f"local folder {name}"
        shape_from_config(found.config, name)  # Refuses families that are not understood, before anything is loaded.
        told(progress, "reading the tokenizer", 0, 1)
        tokenizer = FolderTokenizer(found.folder)
        told(progress, "reading the tokenizer", 1, 1)
    except SourceError as problem:
        raise LiveError(str(problem)) from None
    return Prepared(folder=found.folder, config=found.config, tokenizer=tokenizer, origin=origin)


def check_fits(shape: LiveShape, weight_format: str, kv_bytes: int, available_bytes: int) -> None:
    """LiveError with the numbers where weights of that format and a cache of `kv_bytes` exceed what is available."""
    weights = weight_bytes(shape, weight_format)
    if weights + kv_bytes > available_bytes:
        cache = f" and {format_bytes(kv_bytes)} of cache" if kv_bytes else ""
        raise LiveError(
            f"{shape.name or 'the model'} needs {format_bytes(weights)} of weights in {weight_format}{cache}, and "
            f"{format_bytes(max(available_bytes, 0))} are free; choose a smaller model, fewer layers or less context"
        )


def _by_id(name: str, progress: Progress, allow_hub: bool) -> tuple[Contents, str]:
    known = next((one[0] for one in _KNOWN if one[0].casefold() == name.casefold()), name)
    if found := _in_hub_cache(known):
        return found, f"{known} at {found.folder.name[:_COMMIT_SHOWN]}, from the Hub's local cache"
    if found := _downloaded(known):
        return found, _from_hub(known, found.folder)
    if known == DEFAULT and (smollm.is_made() or smollm.packaged()):
        return check(smollm.make(progress)), smollm.ORIGIN
    if not hub.HUB_ID.fullmatch(known):
        raise LiveError(f"{name[:120]!r} is neither a folder with a config.json nor an id written as organisation/name")
    if allow_hub:
        folder = _download(known, progress)
        return check(folder), _from_hub(known, folder)
    package = f", or run `{smollm.INSTALL}`" if known == DEFAULT else ""
    raise LiveError(
        f"the weights of {known} are not on this machine; allow the download ({HUB_PREFIX}{known}){package}, "
        "or choose random weights in its shape"
    )


def _where(name: str) -> Where:
    if _in_hub_cache(name):
        return "hub cache"
    with suppress(LiveError):  # The user's cache cannot be written: then nothing is in it.
        if _downloaded(name) or (name == DEFAULT and smollm.is_made()):
            return "ready"
    return "package" if name == DEFAULT and smollm.packaged() else "hub"


def _is_folder(name: str) -> bool:
    try:
        return bool(name) and Path(name).is_dir()
    except (OSError, ValueError):
        return False


def _in_hub_cache(name: str) -> Contents | None:
    return _first_usable(hub.cached_snapshots(name))


def _downloads(name: str) -> Path:
    return user_cache() / "models" / name.replace("/", "--")


def _downloaded(name: str) -> Contents | None:
    if not hub.HUB_ID.fullmatch(name):
        return None
    try:
        places = sorted(_downloads(name).glob("[0-9a-f]*"), key=lambda one: one.stat().st_mtime, reverse=True)
    except OSError:
        return None
    return _first_usable(places)


def _first_usable(places: list[Path]) -> Contents | None:
    for place in places:
        with suppress(LiveError):
            return check(place)
    return None


def _from_hub(name: str, folder: Path) -> str:
    return f"{name} at {folder.name[:_COMMIT_SHOWN]}, from the Hub"


def _download(name: str, progress: Progress) -> Path:
    """The folder with what the Hub has of a model now; a download that was stopped goes on where it was."""
    if hub.is_offline():
        raise LiveError(f"{name} is not on this machine, and HF_HUB_OFFLINE forbids to download it")
    told(progress, f"asking the Hub for {name}", 0, 1)
    found = hub.listing(name)
    target = _downloads(name) / found.commit
    if target.is_dir():
        folders.discard(target)  # It was not usable, else it would have been found.
    with folders.resumed(target, progress) as making:
        if making is not None:
            _fetch(found, making, progress)
            check(making)
    return target


def _fetch(found: hub.Listing, making: Path, progress: Progress) -> None:
    """Configuration first, then, where the model is one that can be loaded here, the rest."""
    _check_small(found, (hub.CONFIG, TOKENIZER))
    done = _Sum(progress, f"downloading {found.repo_id}", _size(found, (hub.CONFIG,)))
    done.get(found, hub.CONFIG, making)
    _check_config((making / hub.CONFIG).read_bytes(), found.repo_id)
    small = [TOKENIZER, *(one for one in _SMALL_FILES if one in found.files)]
    if SINGLE in found.files:
        weights: tuple[str, ...] = (SINGLE,)
    elif INDEX in found.files and found.files[INDEX].size <= MAX_INDEX_BYTES:
        done.of += _size(found, (INDEX,))
        done.get(found, INDEX, making)
        weights = folders.shards((making / INDEX).read_bytes())
    else:
        raise LiveError(f"{found.repo_id} has no safetensors files; pickles and GGUF are not loaded from the Hub")
    missing = [one for one in (*small, *weights) if one not in found.files]
    if missing:
        raise LiveError(f"{found.repo_id} lacks {missing[0]}, which its index names")
    _check_small(found, small)
    done.of += _size(found, (*small, *weights))
    _check_disk(making, done.of, found.repo_id)
    for one in (*small, *weights):
        done.get(found, one, making)


class _Sum:
    """The progress of several files as one; `of` grows as their number becomes known."""

    def __init__(self, progress: Progress, what: str, of: int) -> None:
        self.progress, self.what, self.of, self.before = progress, what, of, 0
        self.told_at = 0.0

    def get(self, found: hub.Listing, name: str, making: Path) -> None:
        """One file of a listing into a folder; LiveError where it was stopped."""
        file = found.files[name]
        told(self.progress, self.what, self.before, self.of)
        if not hub.download(found.repo_id, found.commit, file, making / name, self._is_wanted):
            raise LiveError("cancelled")
        self.before += file.size
        told(self.progress, self.what, self.before, self.of)

    def _is_wanted(self, here: int) -> bool:
        now = time.monotonic()
        if now - self.told_at < _TELL_SECONDS:
            return True
        self.told_at = now
        return self.progress(self.what, self.before + here, self.of)


def _check_small(found: hub.Listing, names: tuple[str, ...] | list[str]) -> None:
    for name in names:
        if name not in found.files:
            raise LiveError(f"{found.repo_id} has no {name}, which the live engine needs")
        if found.files[name].size > _MAX_SMALL_BYTES:
            raise LiveError(f"{found.repo_id}: its {name} is larger than {_MAX_SMALL_BYTES:,} bytes")


def _check_config(data: bytes, name: str) -> None:
    """LiveError where a model cannot be loaded here, whatever its weights."""
    try:
        config: Mapping[str, Any] = parse_config(data.decode("utf-8-sig", "replace"))
    except ConfigError as problem:
        raise LiveError(f"{name}: {problem}") from None
    folders.check_config(config)
    check_fits(shape_from_config(config, name), "bf16", 0, read_limits().max_memory_bytes)


def _check_disk(place: Path, needed: int, name: str) -> None:
    there = sum(one.stat().st_size for one in place.iterdir() if one.is_file())
    free = shutil.disk_usage(place).free
    if needed - there > free:
        raise LiveError(f"{name} takes {format_bytes(needed)} on disk, and {format_bytes(free)} are free there")


def _size(found: hub.Listing, names: tuple[str, ...]) -> int:
    return sum(found.files[name].size for name in names)
