"""Reading a configuration while keeping account: which keys were used, which defaults were taken, what was noted.

Everything irregular about config.json is absorbed behind this class: renamed keys, nulls, numbers written as floats.
Nothing downstream looks at a raw dictionary.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from kvcore.errors import CONFIG, ConfigError

MAX_LAYERS = 2048
# Far above every published model, far below what would make a result absurd.
MAX_SIDE = 2**24
Raw = Mapping[str, Any]


class Keys:
    """A configuration's keys, read with validation; `used`, `defaulted` and `notes` say what was done."""

    # What an error calls the file.
    file = CONFIG

    def __init__(self, raw: Raw, defaults: Raw | None = None, path: str = "") -> None:
        self.raw = raw
        self.path = path
        self._defaults = defaults or {}
        self.used: dict[str, str] = {}
        self.defaulted: dict[str, str] = {}
        self.notes: list[str] = []
        self.children: list[Keys] = []

    def get(self, *names: str) -> Any:
        """The value of the first of these names that is present and not null, or the architecture's default, or None.

        All of the names that are present count as used: they are known to mean the same.
        """
        found = None
        for name in names:
            if name in self.raw:
                self.used[name] = _show(self.raw[name])
                if found is None:
                    found = self.raw[name]
        if found is not None:
            return found
        for name in names:
            if self._defaults.get(name) is not None and name not in self.raw:
                self.defaulted[name] = _show(self._defaults[name])
                return self._defaults[name]
        return None

    def peek(self, name: str) -> Any:
        """The value of a key or the architecture's default, taking no account: for facts beside the cache."""
        return self.raw[name] if name in self.raw else self._defaults.get(name)

    def stated(self, *names: str) -> bool:
        """Whether one of these names is present with a value that is not null; reading nothing."""
        return any(self.raw.get(name) is not None for name in names)

    def know(self, *names: str) -> None:
        """Mark keys as understood: they were weighed and do not change the cache."""
        for name in names:
            if name in self.raw:
                self.used.setdefault(name, _show(self.raw[name]))

    def integer(self, *names: str, default: int | None = None, low: int = 1, high: int = MAX_SIDE) -> int:
        """A whole number within low … high; ConfigError when it is missing (and has no default) or is not one."""
        value = self.get(*names)
        if value is None:
            if default is None:
                raise ConfigError(f"{self._where(names[0])} is missing; expected a whole number", file=self.file)
            return default
        return self.check(value, names, low, high)

    def optional(self, *names: str, low: int = 1, high: int = MAX_SIDE) -> int | None:
        """A whole number, or None where it is absent or null."""
        value = self.get(*names)
        return None if value is None else self.check(value, names, low, high)

    def flag(self, name: str, default: bool = False) -> bool:
        """A true/false key; ConfigError when it is something else."""
        value = self.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or value in (0, 1):
            return bool(value)
        raise ConfigError(f"{self._where(name)} is {_show(value)}; expected true or false", file=self.file)

    def text(self, *names: str) -> str | None:
        """A string key, or None; ConfigError when it is something else."""
        value = self.get(*names)
        if value is None or isinstance(value, str):
            return value
        raise ConfigError(f"{self._where(names[0])} is {_show(value)}; expected text", file=self.file)

    def items(self, *names: str) -> list[Any] | None:
        """A list key, or None; ConfigError when it is something else."""
        value = self.get(*names)
        if value is None:
            return None
        if isinstance(value, Sequence) and not isinstance(value, str) and len(value) <= 4 * MAX_LAYERS:
            return list(value)
        raise ConfigError(f"{self._where(names[0])} is {_show(value)}; expected a list", file=self.file)

    def per_layer(self, name: str, layers: int) -> list[Any] | None:
        """A list with one entry a layer, or None; longer lists belong to extra (MTP) layers and are cut.

        ConfigError when it is shorter than the model.
        """
        values = self.items(name)
        if values is None:
            return None
        if len(values) < layers:
            raise ConfigError(f"{self._where(name)} has {len(values)} entries for {layers} layers", file=self.file)
        if len(values) > layers:
            self.notes.append(f"{name} has {len(values)} entries for {layers} layers; the first {layers} are used.")
        return values[:layers]

    def child(self, name: str, defaults: Raw | None = None) -> Keys | None:
        """The nested object of that name as Keys, or None; ConfigError when it is not an object."""
        for child in self.children:
            if child.path == f"{self.path}{name}.":
                return child
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise ConfigError(f"{self._where(name)} is {_show(value)}; expected an object", file=self.file)
        keys = Keys(value, defaults, f"{self.path}{name}.")
        self.children.append(keys)
        self.used.pop(name, None)
        return keys

    def check(self, value: Any, names: Sequence[str], low: int, high: int) -> int:
        """`value` as a whole number within low … high, or ConfigError that names the key."""
        if isinstance(value, float) and value.is_integer() and abs(value) <= 2**53:
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ConfigError(f"{self._where(names[0])} is {_show(value)}; expected a whole number", file=self.file)
        if not low <= value <= high:
            raise ConfigError(f"{self._where(names[0])} is {_show(value)}; expected {low:,} … {high:,}", file=self.file)
        return value

    def unused(self) -> tuple[str, ...]:
        """Names of the keys that were read by nobody, nested ones with their path."""
        child_names = {child.path.removeprefix(self.path).rstrip(".") for child in self.children}
        own = [self.path + name for name in self.raw if name not in self.used and name not in child_names]
        return tuple(own) + tuple(name for child in self.children for name in child.unused())

    def all_used(self) -> list[tuple[str, str]]:
        """(name, value) of every key that was used, nested ones with their path."""
        own = [(self.path + name, value) for name, value in self.used.items()]
        return own + [pair for child in self.children for pair in child.all_used()]

    def all_defaulted(self) -> list[tuple[str, str]]:
        """(name, value) of every default that was taken because the file does not state the key."""
        own = [(self.path + name, value) for name, value in self.defaulted.items()]
        return own + [pair for child in self.children for pair in child.all_defaulted()]

    def all_notes(self) -> list[str]:
        """Everything noted while reading."""
        return self.notes + [note for child in self.children for note in child.all_notes()]

    def _where(self, name: str) -> str:
        return f"{self.path}{name}"


def _show(value: Any) -> str:
    """A value in at most 60 characters, for messages and the audit of keys."""
    if isinstance(value, list | tuple) and len(value) > 8:
        return f"list of {len(value)}"
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "…"


_NAMES = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length", "max_sequence_length",
    "max_target_positions", "n_ctx", "max_context_length",
)  # fmt: skip
# Kinds of rotary scaling whose stated limit already includes the stretch.
_INCLUDED = ("su", "longrope", "llama3", "yarn", "default", "mrope", "proportional")
# Relative positions: `n_positions` is what they were trained with, not a limit.
_NO_LIMIT = ("t5", "mt5", "umt5", "longt5", "switch_transformers")
_GEMMA = ("gemma3", "gemma3_text", "gemma3n_text")


def context_limit(keys: Keys, model_type: str) -> int | None:
    """Tokens, or None where nothing is stated (recurrent models, relative positions)."""
    if model_type in _NO_LIMIT:
        return None
    own = _number(keys, "model_max_length")
    if own is not None:
        # Cohere's files state both; vLLM takes this one wherever it is there.
        return own
    stated = [value for name in _NAMES if (value := _number(keys, name)) is not None]
    if not stated:
        return None
    limit = min(stated)
    scaling = keys.get("rope_scaling", "rope_parameters")
    if not isinstance(scaling, Mapping) or model_type in _GEMMA:
        return limit
    kind = str(scaling.get("rope_type") or scaling.get("type") or "default")
    factor = scaling.get("factor")
    if kind in _INCLUDED or isinstance(factor, bool) or not isinstance(factor, int | float) or not 1 <= factor <= 4096:
        return limit
    return int(limit * factor)


def _number(keys: Keys, name: str) -> int | None:
    value = keys.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= 2**40:
        return None
    return int(value)


def model_dtype(keys: Keys) -> str:
    """The 16-bit dtype that the model is served in; a float32 checkpoint is served in bf16."""
    stated = str(keys.raw.get("dtype") or keys.raw.get("torch_dtype") or "bfloat16").removeprefix("torch.")
    return "fp16" if stated in ("float16", "fp16", "half") else "bf16"
