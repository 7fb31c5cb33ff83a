"""What the launch commands of all engines are made of: safe names, words, notes about hosts and weights."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import PurePosixPath

from kvcore.deployment import Deployment
from kvcore.formats import kv_format
from kvcore.hardware.systems import HOST_GPUS
from kvcore.model.model import Model
from kvcore.model.weight_formats import weight_format

# What stands for a model whose name cannot be shown safely.
PLACEHOLDER = "MODEL"
MAX_NAME = 300
SIXTEEN_BITS = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A launch command as words, further commands that follow it, and files that it reads (name, content).

    `text` is what a person copies: quoted for a POSIX shell, one command a line.
    """

    words: tuple[str, ...]
    after: tuple[tuple[str, ...], ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """All commands, shell-quoted: nothing in a name is run, expanded or taken for an option."""
        return "\n".join(shlex.join(words) for words in (self.words, *self.after))


def model_reference(name: str) -> tuple[str, tuple[str, ...]]:
    """(what stands for the model in a command, notes): never an option, and nothing that a terminal acts upon.

    A name that begins with a dash can only be a path, and is written as one. A name with control characters could end
    a terminal's paste mode whatever the quoting; a placeholder stands for it.
    """
    if not name.strip() or not name.isprintable() or len(name) > MAX_NAME:
        note = f"Put the model's id or path in place of {PLACEHOLDER}: its name has characters that no id has."
        return PLACEHOLDER, (note,)
    return (f"./{name}" if name.startswith("-") else name), ()


def stem(reference: str) -> str:
    """The last part of an id or a path, without what a file name or a tag cannot hold."""
    last = PurePosixPath(reference).name.removesuffix(".gguf")
    safe = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "-" for letter in last)
    return safe.strip("-.") or PLACEHOLDER


def pairs(words: list[str], flags: tuple[tuple[str, object, object], ...]) -> None:
    """Append each (flag, value, default) whose value is not the default."""
    for flag, value, default in flags:
        if value != default:
            words += [flag, str(value)]


def put(words: list[str], flag: str, value: str | None) -> None:
    """Replace the value that follows a flag, or take flag and value away where it is None."""
    if flag in words:
        at = words.index(flag)
        words[at : at + 2] = [] if value is None else [flag, value]


def cache_word(kv_dtype: str, names: dict[str, str]) -> str | None:
    """The engine's own word for a cache format, None for `auto`; UnitError for a format that is not known here."""
    if kv_dtype.strip().lower() == "auto":
        return None
    name = kv_format(kv_dtype).name
    return names.get(name, name)


def stored_format(model: Model) -> str:
    """The format of the weights as published."""
    return model.checkpoint_format or model.model_dtype


def other_weights(model: Model, deployment: Deployment) -> str | None:
    """The weight format that was asked for where it is not the stored one; UnitError for one that is not known."""
    if deployment.weight_format is None:
        return None
    wanted = weight_format(deployment.weight_format).name
    return None if wanted == stored_format(model) else wanted


def requantised_note(wanted: str) -> str:
    """That a format is a property of the checkpoint and no option."""
    return (
        f"{wanted} weights are no option at the start: name a checkpoint that is stored so in place of the model's id."
    )


def head_note(model: Model, how: str) -> str:
    """How a multi-token-prediction head is used instead of proposals from the prompt.

    Whether a checkpoint has one is the value of a key that the model layer does not read, so it is not assumed.
    """
    named = {name for name in model.reading.keys_ignored if "nextn" in name or "mtp" in name}
    where = "Where the checkpoint has a multi-token-prediction head"
    if named:
        where += f" ({', '.join(sorted(named))} in its configuration is not 0)"
    return f"Proposals from the prompt (n-gram) have no weights and no cache of their own. {where}: {how}."


def host_note(gpus: int, how: str) -> tuple[str, ...]:
    """A note where one engine spans more GPUs than a usual host has."""
    if gpus <= HOST_GPUS:
        return ()
    hosts = -(-gpus // HOST_GPUS)
    return (f"{gpus} GPUs are {hosts} hosts of {HOST_GPUS}: {how}",)
