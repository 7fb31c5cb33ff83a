"""Folders of models: what one must hold to be loaded, and the user's cache folder in which they are made.

A folder is config.json, safetensors files and tokenizer.json. Pickles are never opened and code is never run; a folder
that needs either is refused with the reason.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvcore.errors import ConfigError, LiveError, SourceError
from kvcore.live.tokenizer import TOKENIZER
from kvcore.model import parse_config
from kvcore.model.safetensors import INDEX, MAX_INDEX_BYTES, SINGLE, header_bytes
from kvcore.sources.hub import CONFIG, MAX_CONFIG_BYTES

PROGRAM = "kv-cache-explorer"
_SAFE_FILE = re.compile(r"[\w][\w.-]{0,200}\.safetensors", re.ASCII)
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
# An unfinished folder that nobody has touched for so long was left by a process that ended; a download that was
# stopped can be taken up again for longer.
_ABANDONED_SECONDS = {".making-*": 6 * 3600.0, ".partial-*": 7 * 24 * 3600.0}
_LOCK_POLL_SECONDS = 0.2
Progress = Callable[[str, int, int], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """A usable folder: its configuration, its weight files, and the bytes of their tensors."""

    folder: Path
    config: dict[str, Any]
    weights: tuple[Path, ...]
    weight_bytes: int


def user_cache() -> Path:
    """This program's folder in the user's cache: XDG_CACHE_HOME, else where the platform keeps caches.

    It is made where it is missing; LiveError where it cannot be written.
    """
    stated = os.environ.get("XDG_CACHE_HOME", "")
    usual = Path("~/Library/Caches" if sys.platform == "darwin" else "~/.cache")
    try:
        base = Path(stated) if Path(stated).is_absolute() else usual.expanduser()
        folder = base / PROGRAM
        folder.mkdir(parents=True, exist_ok=True)
        is_writable = os.access(folder, os.W_OK | os.X_OK)
    except (OSError, RuntimeError):  # RuntimeError: there is no home.
        is_writable = False
    if not is_writable:
        raise LiveError("the user's cache folder cannot be written; set XDG_CACHE_HOME to a folder that can")
    return folder


def told(progress: Progress, what: str, done: int, of: int) -> None:
    """Report progress; LiveError where the answer is to stop."""
    if not progress(what, done, of):
        raise LiveError("cancelled")


@contextmanager
def published(target: Path) -> Iterator[Path]:
    """A new folder beside `target` that takes its name at the end, whole or not at all.

    Where another process was faster, its folder stays and this one goes. LiveError where the disk is full or the place
    cannot be written.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _sweep(target.parent)
        making = Path(tempfile.mkdtemp(prefix=f".making-{target.name}-", dir=target.parent))
    except OSError as problem:
        raise LiveError(f"the user's cache folder cannot be written: {problem.strerror}") from None
    try:
        yield making
        making.chmod(0o755)
        if not target.exists():
            # Another process may still be faster; its folder is then as good as this one.
            with suppress(FileExistsError):
                _rename(making, target)
    except OSError as problem:
        raise LiveError(f"a model cannot be kept in the user's cache folder: {problem.strerror}") from None
    finally:
        shutil.rmtree(making, ignore_errors=True)


@contextmanager
def resumed(target: Path, progress: Progress) -> Iterator[Path | None]:
    """The unfinished folder of `target`, with what an earlier try left in it; None where `target` is there by now.

    It takes the name `target` at the end, and is kept where the block ends with an error. One process at a time: others
    wait, and are told so. LiveError where it was stopped meanwhile, or where the place cannot be written.
    """
    import fcntl

    making = target.with_name(f".partial-{target.name}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _sweep(target.parent)
        with (target.parent / ".lock").open("wb") as lock:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    told(progress, "waiting for another download of this model", 0, 1)
                    time.sleep(_LOCK_POLL_SECONDS)
            if target.is_dir():
                yield None
                return
            making.mkdir(exist_ok=True)
            yield making
            making.rename(target)
    except OSError as problem:
        raise LiveError(f"a model cannot be kept in the user's cache folder: {problem.strerror}") from None


def discard(damaged: Path) -> None:
    """Take a damaged folder out of the way, whichever of several processes does it first."""
    aside = damaged.with_name(f".making-damaged-{os.getpid()}-{damaged.name}")
    with suppress(OSError):
        damaged.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)


def check(folder: Path) -> Contents:
    """What is in a folder, or LiveError with the reason why it cannot be loaded."""
    try:
        names = sorted(one.name for one in folder.iterdir())
    except OSError as problem:
        raise LiveError(f"the folder {folder.name} cannot be read: {problem.strerror}") from None
    config = _config(folder)
    weights = _weights(folder, names)
    if TOKENIZER not in names:
        raise LiveError(f"{folder.name} has no {TOKENIZER}; save the model's fast tokenizer there")
    return Contents(
        folder=folder, config=config, weights=weights, weight_bytes=sum(_tensor_bytes(path) for path in weights)
    )


def check_config(config: Mapping[str, Any]) -> None:
    """LiveError where a configuration asks for what the engine does not do, whatever its family."""
    quantised = config.get("quantization_config")
    if quantised:
        method = quantised.get("quant_method") if isinstance(quantised, Mapping) else None
        raise LiveError(f"its weights are quantised ({method or 'unknown method'}); give a model in 16 or 32 bits")
    if config.get("auto_map"):
        raise LiveError("it needs code from its repository (auto_map), which is never run")


def shards(index: bytes) -> tuple[str, ...]:
    """The names of the files that an index names, each the name of a safetensors file; LiveError otherwise."""
    try:
        placed = json.loads(index)["weight_map"]
        names = sorted({str(name) for name in placed.values()})
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise LiveError(f"{INDEX} has no usable weight_map") from None
    if not names or not all(_SAFE_FILE.fullmatch(name) for name in names):
        raise LiveError(f"{INDEX} names files that are not safetensors files beside it")
    return tuple(names)


def _config(folder: Path) -> dict[str, Any]:
    text = _bytes(folder / CONFIG, MAX_CONFIG_BYTES, "give a folder with the model's config.json")
    try:
        config = parse_config(text.decode("utf-8-sig", "replace"))
    except ConfigError as problem:
        raise LiveError(str(problem)) from None
    check_config(config)
    return config


def _weights(folder: Path, names: list[str]) -> tuple[Path, ...]:
    if SINGLE in names:
        return (folder / SINGLE,)
    if INDEX in names:
        wanted = shards(_bytes(folder / INDEX, MAX_INDEX_BYTES, "fetch it again"))
        if missing := [name for name in wanted if name not in names]:
            raise LiveError(f"{folder.name} lacks {len(missing)} of its {len(wanted)} weight files, first {missing[0]}")
        return tuple(folder / name for name in wanted)
    if any(name.endswith(_PICKLES) for name in names):
        raise LiveError(f"{folder.name} has its weights only in pickled files, which are never opened; use safetensors")
    if any(name.endswith(".gguf") for name in names):
        raise LiveError(f"{folder.name} has its weights only as GGUF; the live engine loads safetensors")
    raise LiveError(f"{folder.name} has no {SINGLE} and no {INDEX}")


def _tensor_bytes(path: Path) -> int:
    """Bytes of a file's tensors; LiveError where it is not a whole safetensors file."""
    try:
        with path.open("rb") as stream:
            if stream.read(7) == b"version":
                raise LiveError(
                    f"{path.name} is a Git LFS pointer and not the file itself; fetch it with `git lfs pull`"
                )
            stream.seek(0)
            length = int.from_bytes(stream.read(8), "little")
            stream.seek(0)
            total = header_bytes(stream)
        if path.stat().st_size != 8 + length + total:
            raise LiveError(f"{path.name} is cut off or damaged; fetch it again")
    except SourceError as problem:
        raise LiveError(f"{path.name}: {problem}") from None
    except OSError as problem:
        raise LiveError(f"{path.name} cannot be read: {problem.strerror}") from None
    return total


def _bytes(path: Path, limit: int, remedy: str) -> bytes:
    try:
        with path.open("rb") as stream:
            data = stream.read(limit + 1)
    except FileNotFoundError:
        raise LiveError(f"{path.parent.name} has no {path.name}; {remedy}") from None
    except OSError as problem:
        raise LiveError(f"{path.name} cannot be read: {problem.strerror}") from None
    if len(data) > limit:
        raise LiveError(f"{path.name} is larger than {limit:,} bytes")
    return data


def _rename(made: Path, target: Path) -> None:
    try:
        made.rename(target)
    except OSError:
        if not target.is_dir():
            raise
        raise FileExistsError from None


def _sweep(parent: Path) -> None:
    """Remove what processes that were killed left behind."""
    for pattern, seconds in _ABANDONED_SECONDS.items():
        for left in parent.glob(pattern):
            with suppress(OSError):
                if time.time() - left.stat().st_mtime > seconds:
                    shutil.rmtree(left, ignore_errors=True)
