"""Everything kvcore refuses, as one tree.

KVCoreError
├── ConfigError      a configuration file is not what it should be, or is not understood
│   └── UnknownLayoutError   its architecture or a key that changes the cache is not understood
├── ModelError       a model was named that is not there
├── UnitError        a number, unit or format that was typed cannot be read
├── EngineError      an engine does not support what was asked
├── LogError         nothing in a text is an engine's log
├── HardwareError    an accelerator or link that is not known
├── PlanError        a plan cannot be made of what is known: a model without weights, say
├── SourceError      a file, folder or hub could not be read
│   └── HeaderCutOffError    a GGUF header goes on after the bytes that are here (kvcore.model.gguf_file)
├── LiveError        the live engine cannot do what was asked on this machine
└── PackageError     a part of the project was asked for whose packages are not installed

`kind` is the word that the command line prints with `--json`. Two kinds have no class, since no input causes them:
`internal` is a fault of kvcore itself or of the system it runs on, `stopped` is Ctrl-C.
"""

from __future__ import annotations

MAX_MESSAGE = 600
INTERNAL, STOPPED = "internal", "stopped"
# What a configuration is called in a message as long as nobody says which file it was read from.
CONFIG, GGUF = "config.json", "GGUF"


class KVCoreError(ValueError):
    """Base of every error that a user's input can cause; its text is one sentence fit to be shown.

    `reason` is that text without what it is about, where a class keeps the two apart.
    """

    kind = INTERNAL
    reason: str

    def __init__(self, message: str) -> None:
        # A name or a value out of somebody's file can be of any length; a message is one readable sentence.
        super().__init__(message if len(message) <= MAX_MESSAGE else message[: MAX_MESSAGE - 1] + "…")
        self.reason = str(self)


class ConfigError(KVCoreError):
    """A configuration is malformed: the text names the key, the value and what was expected.

    `file` is what the text begins with, "" where it begins with none, and `reason` the message without it.
    """

    kind = "config"

    def __init__(self, reason: str, *, file: str = "") -> None:
        named = f"{file}: " if file else ""
        super().__init__(named + reason)
        self.file = file
        self.reason = str(self)[len(named) :]

    def in_file(self, file: str) -> ConfigError:
        """The same error of a file by that name; `self` where it names none."""
        return ConfigError(self.reason, file=file) if self.file else self


class UnknownLayoutError(ConfigError):
    """A configuration is well formed, but its cache layout is not understood.

    `keys` holds the names of the keys (or the model_type) that were not understood.
    """

    def __init__(self, reason: str, *, file: str = "", keys: tuple[str, ...] = ()) -> None:
        super().__init__(reason, file=file)
        self.keys = keys

    def in_file(self, file: str) -> UnknownLayoutError:
        """The same error of a file by that name; `self` where it names none."""
        return UnknownLayoutError(self.reason, file=file, keys=self.keys) if self.file else self


class ModelError(KVCoreError):
    """No model of that name is known here."""

    kind = "model"


class UnitError(KVCoreError):
    """A number, a unit or a format name that was typed cannot be read."""

    kind = "unit"


class EngineError(KVCoreError):
    """An engine does not support what was asked of it.

    `engine` is its name, "" where no engine is meant, and `reason` the message without it.
    """

    kind = "engine"

    def __init__(self, reason: str, *, engine: str = "") -> None:
        named = f"{engine}: " if engine else ""
        super().__init__(named + reason)
        self.engine = engine
        self.reason = str(self)[len(named) :]


class HardwareError(KVCoreError):
    """An accelerator or a link is not known, or a typed-in one is not usable."""

    kind = "hardware"


class PlanError(KVCoreError):
    """A plan cannot be made of what is known of the model and the hardware."""

    # The word that programs which read the answers know for it.
    kind = "hardware"


class LogError(KVCoreError):
    """Nothing in a text was recognised as an engine's log."""

    kind = "log"


class SourceError(KVCoreError):
    """A file, a folder or a hub could not be read."""

    kind = "source"


class LiveError(KVCoreError):
    """The live engine cannot do what was asked of it on this machine."""

    kind = "live"


class PackageError(KVCoreError):
    """A part of the project needs packages that are not installed; the text says what to install."""

    kind = "package"
