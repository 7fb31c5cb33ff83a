"""Launch commands: what those of all engines are made of, from quoting to notes about hosts and weights.

Each engine writes its own (`launch` of its class). A model is named by its id, by the folder or the file of it that the
user has, or by a word in place of what cannot be loaded: engines that read Hugging Face's format load an id or a folder
with config.json and weights, llama.cpp and Ollama a GGUF file. Anything else would be a command that nobody can run.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import PurePath, PurePosixPath

from kvcore.deployment import Deployment, Draft
from kvcore.formats import kv_format
from kvcore.hardware.systems import HOST_GPUS
from kvcore.model.model import Files, Model
from kvcore.model.weight_formats import weight_format
from kvcore.sources.hub import CONFIG

# What stands for a model whose name cannot be shown safely.
PLACEHOLDER = "MODEL"
MAX_NAME = 300
# The longest path that Linux opens (PATH_MAX).
MAX_PATH = 4096
SIXTEEN_BITS = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}

# What an engine is told to load, and notes about it.
Reference = tuple[str, tuple[str, ...]]


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


def model_reference(name: str) -> Reference:
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


def checkpoint(model: Model) -> Reference:
    """What an engine is told that loads Hugging Face's format: an id, a folder as typed, or a placeholder."""
    return model_reference(model.name) if model.files is None else _folder(model.files, PLACEHOLDER)


def draft_checkpoint(draft: Draft) -> Reference:
    """The same for a draft; the format of its weights is that of its checkpoint, which a note says where it matters."""
    files = None if draft.model is None else draft.model.files
    name, notes = model_reference(draft.name) if files is None else _folder(files, f"DRAFT_{PLACEHOLDER}")
    if draft.weight_format is not None:
        notes += (f"The draft was planned with {draft.weight_format} weights: name a checkpoint that is stored so.",)
    return name, notes


def gguf_file(model: Model | None) -> str | None:
    """The path of the GGUF file that a model was read from, never an option; None without one, or an unsafe path."""
    files = None if model is None else model.files
    if files is None or files.kind != "gguf" or not _shown(files.path) or files.path != files.path.strip():
        return None
    return files.path if files.path.startswith(("/", "./", "../")) else f"./{files.path}"


def _folder(files: Files, word: str) -> Reference:
    if files.kind == "folder":
        return _path(files.path, word)
    path = PurePath(files.path)
    if files.kind == "config" and path.name == CONFIG:
        reference, notes = _path(str(path.parent), word)
        return reference, notes or (f"The command names the folder of {CONFIG}: the weights have to lie there too.",)
    shown = f" ({stem(files.path)[:80]})"
    if files.kind == "gguf":
        made_from = f"the id or the folder of the checkpoint that the GGUF file{shown} was made from"
        return word, (f"Put {made_from} in place of {word}: llama.cpp and Ollama load the file itself.",)
    return word, (f"Put the model's id or folder in place of {word}: a configuration alone{shown} is no checkpoint.",)


def _path(path: str, word: str) -> Reference:
    if not _shown(path):
        return word, (f"Put the folder's path in place of {word}: it has characters that a terminal acts upon.",)
    return (f"./{path}" if path.startswith("-") else path), ()


def _shown(path: str) -> bool:
    return bool(path.strip()) and path.isprintable() and len(path) <= MAX_PATH


def pairs(*flags: tuple[str, object, object]) -> list[str]:
    """The words of each (flag, value, default) whose value is not the default."""
    return [word for flag, value, default in flags if value != default for word in (flag, str(value))]


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


def weight_words(model: Model, deployment: Deployment, quantised: str) -> tuple[list[str], tuple[str, ...]]:
    """(options, notes) for the weight format, of an engine with `--dtype` that makes fp8 of 16 bits while it loads.

    `quantised` is the note about that. Every other format is a property of the checkpoint and no option.
    """
    wanted = other_weights(model, deployment)
    if wanted is None:
        return [], ()
    if stored_format(model) in SIXTEEN_BITS:
        if wanted in SIXTEEN_BITS:
            return ["--dtype", SIXTEEN_BITS[wanted]], ()
        if wanted == "fp8":
            return ["--quantization", "fp8"], (quantised,)
    return [], (requantised_note(wanted),)


def requantised_note(wanted: str) -> str:
    """That a format is a property of the checkpoint and no option."""
    return (
        f"{wanted} weights are no option at the start: name a checkpoint that is stored so in place of the model's id."
    )


def head_note(model: Model, how: str) -> str:
    """How a multi-token-prediction head is used instead of proposals from the prompt.

    Whether a checkpoint has one is the value of a key that the model layer does not read, so it is not assumed.
    """
    where = "Where the checkpoint has a multi-token-prediction head"
    if model.prediction_keys:
        where += f" ({', '.join(model.prediction_keys)} in its configuration is not 0)"
    return f"Proposals from the prompt (n-gram) have no weights and no cache of their own. {where}: {how}."


def host_note(gpus: int, how: str) -> tuple[str, ...]:
    """A note where one engine spans more GPUs than a usual host has."""
    if gpus <= HOST_GPUS:
        return ()
    hosts = -(-gpus // HOST_GPUS)
    return (f"{gpus} GPUs are {hosts} hosts of {HOST_GPUS}: {how}",)
