"""What stands for the model in a launch command: its id, the folder or the file of it that the user has, or a word.

Engines that read Hugging Face's format load an id or a folder with config.json and weights; llama.cpp and Ollama load
a GGUF file. Anything else would be a command that nobody can run, so a word stands for it and a note says what for.
"""

from __future__ import annotations

from pathlib import PurePath

from kvcore.deployment import Draft
from kvcore.errors import EngineError
from kvcore.model.model import Files, Model
from kvcore.planning.launch_words import PLACEHOLDER, model_reference, stem
from kvcore.sources.hub import CONFIG

# The longest path that Linux opens (PATH_MAX).
MAX_PATH = 4096
# Engines that are given a GGUF file.
GGUF_ENGINES = ("llama.cpp", "ollama")

Reference = tuple[str, tuple[str, ...]]


def refuse_counterfactual(model: Model) -> None:
    """EngineError for a model as it might have been built: no checkpoint of it is anywhere."""
    if model.built_as:
        raise EngineError(f"nobody has weights of {model.name}, a counterfactual")


def reference(model: Model, engine: str) -> Reference:
    """(what an engine is told to load, notes): an id, a folder as typed, or a word in place of what cannot be loaded.

    For llama.cpp and Ollama it is a name, of which they make that of a GGUF file; see `gguf_file` for one that is
    there.
    """
    if engine in GGUF_ENGINES or model.files is None:
        return model_reference(model.name)
    return _folder(model.files, PLACEHOLDER)


def draft_reference(draft: Draft) -> Reference:
    """The same for a draft, for engines that load Hugging Face's format."""
    files = None if draft.model is None else draft.model.files
    return model_reference(draft.name) if files is None else _folder(files, f"DRAFT_{PLACEHOLDER}")


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
