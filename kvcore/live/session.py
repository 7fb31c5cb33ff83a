"""What the engine keeps from one job to the next: the host, the last decoder, its calibrations, and conversations."""

from __future__ import annotations

import gc
import sys
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvcore.errors import LiveError
from kvcore.live import memory, models
from kvcore.live.generate import Cancelled
from kvcore.live.host import Host, device_memory, measure
from kvcore.live.options import Setup
from kvcore.live.protocol import Emit, OnProgress
from kvcore.live.roofline import Calibration
from kvcore.live.settings import Limits, read_limits
from kvcore.live.shape import (
    LiveShape,
    as_variant,
    cut,
    parameters,
    predicted_bytes,
    shape_from_config,
    shape_of_catalogue,
)
from kvcore.live.tokenizer import ByteTokenizer, Tokenizer
from kvcore.sources import catalogue
from kvcore.units import format_bytes

# Caches of conversations that are kept; the one that was used longest ago goes first.
MAX_CONVERSATIONS = 4
# Seconds between two reports of one progress.
_PROGRESS_S = 0.1
# Where a model's files are on this machine already.
_HERE = ("ready", "package", "hub cache", "folder")


@dataclass(slots=True, kw_only=True)
class Conversation:
    """A cache that is kept for a next turn, and all token ids so far; the last of them is not in the cache yet."""

    cache: Any
    ids: list[int]
    kv_format: str
    block_tokens: int


@dataclass(slots=True, kw_only=True)
class LoadedModel:
    """A decoder that is ready, and what is known of it; `calibrations` by cache format."""

    setup: Setup
    shape: LiveShape
    decoder: Any
    tokenizer: Tokenizer
    model: str
    title: str
    weights: str
    origin: str
    weight_bytes: int
    device: str
    threads: int
    calibrations: dict[str, Calibration] = field(default_factory=dict)

    def ready(self, setup: Setup) -> dict[str, Any]:
        """The event that says what runs."""
        return {
            "event": "ready",
            "model": self.model,
            "title": self.title,
            "weights": self.weights,
            "cut_from": self.shape.cut_from,
            "layers": self.shape.num_layers,
            "parameters": parameters(self.shape),
            "weight_bytes": self.weight_bytes,
            "device": self.device,
            "threads": self.threads,
            "attention": setup.attention,
            "attention_name": self.shape.attention,
            "weight_format": setup.weight_format,
            "kv_format": setup.kv_format,
            "context_limit": self.shape.context_limit,
            "origin": self.origin,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundModel:
    """A model before its weights are read; `folder` None: random weights."""

    shape: LiveShape
    tokenizer: Tokenizer | None
    title: str
    origin: str
    folder: Path | None


class Reporter:
    """emit for one job: raises Cancelled as soon as it returns False, and tells progress not too often."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self.cancelled = False
        self._told = ("", 0.0)

    def __call__(self, event: dict[str, Any]) -> bool:
        """As emit: whether to go on."""
        if not self._emit(event):
            self.cancelled = True
        return not self.cancelled

    def send(self, event: dict[str, Any]) -> None:
        if not self(event):
            raise Cancelled

    def note(self, text: str) -> None:
        self.send({"event": "note", "text": text})

    def progress(self, what: str, done: int, of: int) -> bool:
        """Tell a step of something long; False where it should stop."""
        now = time.monotonic()
        if done < of and self._told[0] == what and now - self._told[1] < _PROGRESS_S:
            return not self.cancelled
        self._told = (what, now)
        return self({"event": "progress", "what": what, "done": int(done), "of": int(of)})


class Session:
    """The engine of one process."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or read_limits()
        self.conversations: OrderedDict[str, Conversation] = OrderedDict()
        self._hosts: dict[str, Host] = {}
        self._loaded: LoadedModel | None = None

    def host(self, reporter: Reporter, device: str = "auto", *, remeasure: bool = False) -> Host:
        """The machine as measured; the first time ever, or again with `remeasure`, this takes seconds."""
        if device not in self._hosts or remeasure:
            self._hosts[device] = measure(reporter.progress, remeasure=remeasure, device=device)
        if reporter.cancelled:
            raise Cancelled
        return self._hosts[device]

    def load(self, setup: Setup, reporter: Reporter) -> LoadedModel:
        """The decoder that a job asks for: the one that is there, or a new one in its place.

        Emits `host` and `ready`. LiveError says why it cannot be had.
        """
        if self.limits.off:
            raise LiveError("the live engine is turned off on this machine (KV_LIVE_OFF)")
        host = self.host(reporter, setup.device)
        reporter.send({"event": "host", "host": host.to_dict()})
        if self._loaded is None or _decides(self._loaded.setup) != _decides(setup):
            self.forget()
            self._loaded = self.build(setup, host, reporter)
        reporter.send(self._loaded.ready(setup))
        return self._loaded

    def forget(self) -> None:
        """Free the decoder and all that depends on it."""
        self._loaded = None
        self.conversations.clear()
        _free()

    def build(self, setup: Setup, host: Host, reporter: Reporter, found: FoundModel | None = None) -> LoadedModel:
        """A new decoder, beside what is loaded already."""
        import torch

        from kvcore.live.decoder import Decoder
        from kvcore.live.weights import dtype_of, load_safetensors, random_weights

        device = host.device
        threads = setup.threads or host.threads
        torch.set_num_threads(threads)
        found = found or find(setup, reporter.progress)
        if reporter.cancelled:
            raise Cancelled
        self.check_fits(found.shape, setup.weight_format, 0, device)
        dtype = dtype_of(setup.weight_format)
        reporter.progress("Weights", 0, 1)
        if found.folder is None:
            weights = random_weights(found.shape, dtype, device)
        else:
            weights = load_safetensors(found.folder, found.shape, dtype, device)
        decoder = Decoder(found.shape, weights, device=device, weight_format=setup.weight_format)
        reporter.progress("Weights", 1, 1)
        return LoadedModel(
            setup=setup,
            shape=found.shape,
            decoder=decoder,
            tokenizer=found.tokenizer or ByteTokenizer(found.shape.vocab_size),
            model=setup.model or models.DEFAULT,
            title=found.title,
            weights="random" if found.folder is None else "real",
            origin=found.origin,
            weight_bytes=int(decoder.weights.bytes()),
            device=device,
            threads=threads,
        )

    def check_fits(self, shape: LiveShape, weight_format: str, kv_bytes: int, device: str, held: bool = False) -> None:
        """LiveError with the numbers where weights (unless they are `held` already) and cache do not fit."""
        available = self.available_bytes(device)
        if held and kv_bytes > available:
            raise LiveError(
                f"the cache would take {format_bytes(kv_bytes)}, and {format_bytes(available)} are free; "
                "choose a shorter context, fewer requests or a smaller cache format"
            )
        if held:
            return
        models.check_fits(shape, weight_format, kv_bytes, available)

    def available_bytes(self, device: str) -> int:
        """Memory that may still be taken: what is free on the device, within the limit of the settings."""
        if device != "cpu":
            found = device_memory(device)
            return found[1] if found else memory.available_bytes()
        held = memory.process_bytes() or 0
        return max(0, min(memory.available_bytes(), self.limits.max_memory_bytes - held))

    def cache_bytes(self, loaded: LoadedModel, setup: Setup, lengths: Sequence[int]) -> int:
        """Bytes that a cache of these lengths reserves; LiveError where they do not fit."""
        needed = predicted_bytes(loaded.shape, setup.kv_format, lengths, setup.block_tokens).reserved
        self.check_fits(loaded.shape, setup.weight_format, needed, loaded.device, held=True)
        return needed

    def keep(self, name: str, conversation: Conversation) -> None:
        """Keep a conversation under a name."""
        self.conversations[name] = conversation
        self.conversations.move_to_end(name)
        while len(self.conversations) > MAX_CONVERSATIONS:
            self.conversations.popitem(last=False)


def find(setup: Setup, progress: OnProgress) -> FoundModel:
    """The model's shape, and its weights where they are wanted; LiveError says what cannot be had.

    Random weights wherever they are asked for, layers are left out, or the attention is one that the model's own
    weights do not fit; a window fits any of them.
    """
    name = setup.model or models.DEFAULT
    attention = setup.attention.strip().lower()
    keeps = setup.layers is None and (attention in ("", "shipped") or attention.startswith("sliding"))
    if setup.weights == "real" and not keeps:
        raise LiveError(f"{setup.attention} and fewer layers have no trained weights; choose weights random")
    prepared: models.PreparedModel | None = None
    if keeps and setup.weights != "random":
        prepared = models.prepare(name, progress, allow_hub=setup.allow_hub)
        shape, origin, folder = shape_from_config(prepared.config, _plain(name)), prepared.origin, prepared.folder
    else:
        shape, prepared = _shape_only(name, progress)
        origin, folder = "random weights in the model's shape", None
    shape = as_variant(shape, setup.attention)
    if setup.layers is not None:
        shape = cut(shape, setup.layers)
    return FoundModel(
        shape=shape,
        tokenizer=prepared.tokenizer if prepared else None,
        title=_title(name),
        origin=origin,
        folder=folder,
    )


def _shape_only(name: str, progress: OnProgress) -> tuple[LiveShape, models.PreparedModel | None]:
    """The shape, and the tokenizer's files where they are on this machine: text means nothing then, but counts do."""
    known = {one.id.lower(): one.where for one in models.listed()}
    if known.get(name.lower()) in _HERE or Path(name).is_dir():
        prepared = models.prepare(name, progress)
        return shape_from_config(prepared.config, _plain(name)), prepared
    entry = catalogue.find(name)
    return shape_of_catalogue(entry.model_id if entry else name), None


def _plain(name: str) -> str:
    """The name without what tells whose machine it is on."""
    return Path(name).name if Path(name).is_dir() else name.removeprefix("hub:")


def _title(name: str) -> str:
    listed = {one.id.lower(): one.title for one in models.listed()}
    return listed.get(name.removeprefix("hub:").lower()) or _plain(name).rsplit("/", 1)[-1]


def _decides(setup: Setup) -> tuple[object, ...]:
    """What two jobs must share to share a decoder."""
    name = (setup.model or models.DEFAULT).removeprefix("hub:").lower()
    return (name, setup.weights, setup.layers, setup.attention, setup.weight_format, setup.device, setup.threads)


def _free() -> None:
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()
