"""The limits of the live engine, which the one who starts the dashboard sets in the environment.

KV_LIVE_OFF=1              no engine here: the screen replays a recording and every job is refused
KV_LIVE_MAX_SECONDS        the longest that one job may hold the machine, in seconds (600)
KV_LIVE_MAX_TOKENS         the most tokens of one request, prompt and new ones together (8192)
KV_LIVE_MAX_MEMORY         the most memory that the engine may hold: `8 GiB` (three quarters of the machine's)
KV_LIVE_MAX_WAITING        the most jobs that wait; the next one is refused (16)
KV_LIVE_LEASE_SECONDS      a job that no page asks about for so long is abandoned (10)
KV_LIVE_FOLDERS            folders whose models visitors may name by path, separated like PATH (none)
KV_LIVE_HUB=0              visitors may not have models downloaded from the Hub (1)
KV_LIVE_IDLE_SECONDS       an engine that has nothing to do for so long ends and frees its memory (900)

A limit on the address space (RLIMIT_AS) would refuse what torch merely maps: gigabytes that it never touches, and on
CUDA far more. The queue therefore watches what the engine really holds, resident and swapped out where the system tells
of it, and ends it when that passes the limit. Memory on an accelerator is not part of it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kvcore.errors import LiveError, UnitError
from kvcore.live.memory import machine_bytes
from kvcore.units import GIB, parse_bytes

PROGRAM = "kv-cache-explorer"
# Longer than a background tab, whose timers browsers slow to one a second, needs between two polls.
LEASE_SECONDS = 10.0

_YES = {"1", "true", "yes", "on"}
_NO = {"", "0", "false", "no", "off"}
_SHARE_OF_MEMORY = 0.75


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the environment allows the live engine; seconds are wall clock, `max_memory_bytes` is of the engine alone.

    `off` is whether there is no engine at all.
    """

    off: bool = False
    max_seconds: float = 600.0
    max_tokens: int = 8192
    max_memory_bytes: int = 4 * GIB
    max_waiting: int = 16
    lease_s: float = LEASE_SECONDS
    idle_s: float = 900.0
    hub: bool = True
    folders: tuple[Path, ...] = ()

    @property
    def max_events(self) -> int:
        """The most events of one job: each token with and without the cache, twice over, and the rest."""
        return 4 * self.max_tokens + 4_000


def read_limits(environment: Mapping[str, str] | None = None) -> Limits:
    """The limits that the environment sets, with the defaults above; LiveError names a variable that cannot be read."""
    env = os.environ if environment is None else environment
    return Limits(
        off=_switch(env, "KV_LIVE_OFF"),
        max_seconds=_seconds(env, "KV_LIVE_MAX_SECONDS", 600.0),
        max_tokens=_count(env, "KV_LIVE_MAX_TOKENS", 8192, 10**6),
        max_memory_bytes=_memory(env, "KV_LIVE_MAX_MEMORY"),
        max_waiting=_count(env, "KV_LIVE_MAX_WAITING", 16, 10_000),
        lease_s=_seconds(env, "KV_LIVE_LEASE_SECONDS", LEASE_SECONDS),
        idle_s=_seconds(env, "KV_LIVE_IDLE_SECONDS", 900.0),
        hub=_switch(env, "KV_LIVE_HUB", default="1"),
        folders=tuple(Path(one).resolve() for one in env.get("KV_LIVE_FOLDERS", "").split(os.pathsep) if one.strip()),
    )


def check_source(limits: Limits, model: object, download: bool = False) -> None:
    """LiveError where a visitor names a model that lies outside the folders offered, or a download that is not.

    The command line is its user's own and does not ask.
    """
    if not limits.hub and (download or (isinstance(model, str) and model.strip().startswith("hub:"))):
        raise LiveError("models are not downloaded on this server (KV_LIVE_HUB=0)")
    if not isinstance(model, str) or model.strip().startswith("hub:"):
        return
    try:
        place = Path(model.strip()).resolve()
        offered = not place.exists() or any(place.is_relative_to(root) for root in limits.folders)
    except (OSError, ValueError, RuntimeError):
        offered = True  # No path at all: the engine says what it is.
    if model.strip() and not offered:
        raise LiveError("folders of this server are offered only where KV_LIVE_FOLDERS names them")


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


def _switch(env: Mapping[str, str], name: str, default: str = "") -> bool:
    text = env.get(name, default).strip().lower()
    if text not in _YES | _NO:
        raise LiveError(f"{name}={text[:40]!r} is neither on nor off; write 1 or 0")
    return text in _YES


def _seconds(env: Mapping[str, str], name: str, default: float) -> float:
    text = env.get(name, "").strip()
    try:
        value = float(text) if text else default
    except ValueError:
        value = -1.0
    if not 0.1 <= value <= 1e6:
        raise LiveError(f"{name}={text[:40]!r} is not a number of seconds between 0.1 and 1,000,000")
    return value


def _count(env: Mapping[str, str], name: str, default: int, most: int) -> int:
    text = env.get(name, "").strip()
    value = int(text) if text.isdecimal() and len(text) < 20 else (-1 if text else default)
    if not 1 <= value <= most:
        raise LiveError(f"{name}={text[:40]!r} is not a whole number between 1 and {most:,}")
    return value


def _memory(env: Mapping[str, str], name: str) -> int:
    text = env.get(name, "").strip()
    if not text:
        return int(machine_bytes() * _SHARE_OF_MEMORY)
    try:
        value = parse_bytes(text)
    except UnitError as error:
        raise LiveError(f"{name}: {error}") from None
    if value <= 0:
        raise LiveError(f"{name}={text[:40]!r} leaves the engine no memory; write for example 8 GiB")
    return value
