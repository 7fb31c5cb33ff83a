"""Releases of engines: what somebody wrote, read by one rule (PEP 440, as pip reads it)."""

from __future__ import annotations

from functools import lru_cache

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from kvcore.errors import EngineError

Release = tuple[int, int, int]
# No release has a longer name; int() reads no more than 4,300 digits.
_LONGEST = 64


@lru_cache(maxsize=512)
def release(text: str) -> Release:
    """The first three numbers of a release: (0, 33, 0) of `0.33`, `v0.33.0`, `0.33.0rc1` and `0.33.0.post1+cu130`.

    A candidate is read as the release that it is for. EngineError for anything that is not a version of at least two
    numbers.
    """
    try:
        found = Version(text) if len(text) <= _LONGEST else None
    except InvalidVersion:
        found = None
    if found is None or found.epoch or len(found.release) < 2 or text != text.strip():
        raise EngineError(f"{text[:40]!r} is not a version such as 0.33.0 or 1.4.0rc4")
    numbers = (*found.release, 0, 0)
    return numbers[0], numbers[1], numbers[2]


def followed(engine: str, text: str, known: str, first: tuple[int, ...], before: tuple[int, ...] = ()) -> str:
    """The release without its `v`, where its rules are followed: from `first` on, `before` another where there is one.

    EngineError with `known`, which says the same in words, for any other and for what is no version.
    """
    try:
        found = release(text)
    except EngineError:
        found = None
    if found is None or found < first or (before and found >= before):
        raise not_followed(engine, text, known)
    return text.lstrip("vV")


def not_followed(engine: str, text: str, known: str) -> EngineError:
    """What is said of a release whose rules are not followed."""
    return EngineError(f"{engine}: the rules of version {text[:40]!r} are not followed; known are {known}")


@lru_cache(maxsize=512)
def is_among(found: Release, specifiers: str) -> bool:
    """Whether a release is one of those that `specifiers` name: `<0.8.5;>=0.9`, of which one has to hold."""
    name = ".".join(map(str, found))
    return any(SpecifierSet(part).contains(name) for part in specifiers.split(";") if part)
