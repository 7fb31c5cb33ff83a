"""A real llama.cpp server, started from its wheel for a test, and tiny GGUF files with true cache metadata for it.

Run as a program it is the server: `python llamacpp_server.py MODEL SETTINGS` with settings as JSON, until killed.
"""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

# The lines that a start ends with: the slots are there, or something was refused.
_READY = re.compile(r"initializing, n_slots = ")
_FAILED = re.compile(r"failed to (initialize the context|create context|load model)|GGML_ASSERT|Unsupported")
_CACHE_LINE = re.compile(r"(llama_kv_cache\w*|llama_memory_recurrent): .*(size =|full-size SWA).*$")


def serve(model: str, settings: Mapping[str, Any]) -> None:
    """Start the server in this process on a port of its own choosing and wait to be killed."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = model
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.verbosity = 4
    # No host prompt cache, no warm-up, one thread: only the start is of interest.
    params.cache_ram_mib = 0
    params.warmup = False
    params.cpuparams.n_threads = 1
    params.fit_params = False
    for name, value in settings.items():
        kind = {"cache_type_k": "ggml_type", "cache_type_v": "ggml_type", "flash_attn_type": "llama_flash_attn_type"}
        if name in kind:
            known = getattr(xllamacpp, kind[name])
            value = next(getattr(known, entry) for entry in dir(known) if entry.lower().endswith(f"_{value}".lower()))
        setattr(params, name, value)
    try:
        server = xllamacpp.Server(params)
    except RuntimeError:
        # What was logged is written by a thread of its own, which ends with the process.
        time.sleep(5)
        raise
    time.sleep(60)
    del server


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """How a start went: whether there are slots, the lines about caches, and everything that was logged."""

    ready: bool
    cache_lines: tuple[str, ...]
    text: str


def started(model: Path, settings: Mapping[str, Any], timeout_s: float = 30) -> Start:
    """A server for the settings, started until it has its slots or refuses.

    The process is killed by its own id, whatever happens; one that says nothing until `timeout_s` has not started.
    """
    command = [sys.executable, __file__, str(model), json.dumps(dict(settings))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        try:
            text, ready = _read(process, time.monotonic() + timeout_s)
        finally:
            process.kill()
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    found = (_CACHE_LINE.search(line) for line in text.splitlines())
    return Start(ready=ready, cache_lines=tuple(line[0].rstrip() for line in found if line), text=text)


def _read(process: subprocess.Popen[bytes], deadline: float) -> tuple[str, bool]:
    assert process.stdout is not None
    output = process.stdout.fileno()
    text = b""
    while (left := deadline - time.monotonic()) > 0:
        if not select.select([output], [], [], left)[0]:
            break
        chunk = os.read(output, 65536)
        text += chunk
        shown = text.decode("utf-8", "replace")
        if _READY.search(shown):
            return shown, True
        if not chunk or _FAILED.search(shown):
            return shown, False
    return text.decode("utf-8", "replace"), False


Shapes = Mapping[str, tuple[int, ...]]
# Sizes that the caches do not depend on, unless a state does.
VOCABULARY, FEED_FORWARD = 259, 32


def write_model(path: Path, architecture: str, keys: Mapping[str, Any], layer: Callable[[int], Shapes]) -> Path:
    """A GGUF file with weights of zeros: `keys` without the architecture's prefix, `layer(i)` the tensors of layer i.

    Shapes are in ggml's order, the row first.
    """
    from gguf import GGUFWriter, TokenType

    from tests.gguf_writer import add_key

    width = keys["embedding_length"]
    writer = GGUFWriter(path, architecture)
    for key, value in keys.items():
        add_key(writer, f"{architecture}.{key}", value)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))])
    writer.add_token_scores([0.0] * VOCABULARY)
    writer.add_token_types([TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL, *[TokenType.BYTE] * 256])
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (width, VOCABULARY), "output_norm.weight": (width,)}
    for number in range(keys["block_count"]):
        shapes |= {f"blk.{number}.{name}": shape for name, shape in layer(number).items()}
    for name, shape in shapes.items():
        writer.add_tensor(name, np.zeros(shape[::-1], dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def attention(width: int, heads: int, kv_heads: int, head: int) -> Shapes:
    """The projections of an attention layer."""
    return {
        "attn_q.weight": (width, heads * head), "attn_k.weight": (width, kv_heads * head),
        "attn_v.weight": (width, kv_heads * head), "attn_output.weight": (heads * head, width),
    }  # fmt: skip


def feed_forward(width: int, inner: int = FEED_FORWARD) -> Shapes:
    """The norms and the gated feed-forward part of a layer."""
    return {
        "attn_norm.weight": (width,), "ffn_norm.weight": (width,), "ffn_gate.weight": (width, inner),
        "ffn_up.weight": (width, inner), "ffn_down.weight": (inner, width),
    }  # fmt: skip


if __name__ == "__main__":
    serve(sys.argv[1], json.loads(sys.argv[2]))
