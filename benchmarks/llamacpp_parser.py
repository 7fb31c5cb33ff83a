"""llama.cpp's own parser, as the installed xllamacpp has it; it imports nothing of this project.

It reads a JSON list of word lists on standard input, each without `llama-server`, and prints what each parses to, or
why it does not. The library exports llama.cpp's C++ function
`common_params_parse(int, char **, common_params &, llama_example, void (*)(int, char **))` (common/arg.h), and a
CommonParams of xllamacpp holds its `common_params` behind the two words of every Python object's head.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import xllamacpp

VERSION = xllamacpp.__version__
# LLAMA_EXAMPLE_SERVER (common/common.h): the options of llama-server.
SERVER = 12
_HEAD_BYTES = 2 * ctypes.sizeof(ctypes.c_void_p)
_SYMBOL = "_Z19common_params_parseiPPcR13common_params13llama_examplePFviS0_E"
# What is read back from a command that was taken: fields of common_params, by name.
FIELDS = (
    "n_ctx", "n_batch", "n_ubatch", "n_parallel", "n_gpu_layers", "n_keep", "kv_unified", "swa_full", "cache_prompt",
    "no_kv_offload", "ctx_shift", "cache_ram_mib", "n_ctx_checkpoints", "main_gpu",
)  # fmt: skip
WORDS = ("cache_type_k", "cache_type_v", "flash_attn_type", "split_mode")


def _library() -> Any:
    (path,) = Path(xllamacpp.__file__).parent.glob("*.so")
    call = getattr(ctypes.CDLL(str(path)), _SYMBOL)
    call.restype = ctypes.c_bool
    call.argtypes = (ctypes.c_int, ctypes.POINTER(ctypes.c_char_p), ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
    return call


_PARSE = _library()


def _taken(words: list[str]) -> dict[str, Any] | None:
    """What the words parse to, None where the parser refuses them; it says why on standard error."""
    params = xllamacpp.CommonParams()
    given = [word.encode() for word in ("llama-server", *words)]
    array = (ctypes.c_char_p * (len(given) + 1))(*given, None)
    if not _PARSE(len(given), array, id(params) + _HEAD_BYTES, SERVER, None):
        return None
    found: dict[str, Any] = {name: getattr(params, name) for name in FIELDS}
    shares = list(params.tensor_split)
    found["tensor_split"] = shares[: max((at + 1 for at, share in enumerate(shares) if share), default=0)]
    found |= {name: getattr(params, name).name for name in WORDS}
    speculative = params.speculative
    return found | {
        "model": params.model.path,
        "spec_types": [kind.name for kind in speculative.types],
        "draft_model": speculative.draft.mparams.path,
        "draft_n_max": speculative.draft.n_max,
        "ngram_size_m": speculative.ngram_simple.size_m,
    }


def parse(commands: list[list[str]]) -> list[dict[str, Any]]:
    """What each command parses to, or `error`; the words are those after `llama-server`.

    They are read in a process of its own, as some options end the one they are read in: the next goes on behind it.
    """
    results: list[dict[str, Any]] = []
    while len(results) < len(commands):
        results += _some(commands[len(results) :])
    return results


def _some(commands: list[list[str]]) -> list[dict[str, Any]]:
    """The results of the first commands, up to one that ended the process: at least one."""
    with tempfile.TemporaryFile() as answers, tempfile.TemporaryFile() as said:
        child = os.fork()
        if child == 0:
            _answer(commands, answers.fileno(), said.fileno())
            os._exit(0)
        os.waitpid(child, 0)
        answers.seek(0)
        results = [json.loads(line) for line in answers.read().splitlines()]
        if len(results) < len(commands):
            said.seek(0)
            results.append({"error": _first(said.read()) or "ended the process"})
        return results


def _answer(commands: list[list[str]], answers: int, said: int) -> None:
    """One line of JSON a command; what the parser says about one stands in `said` until the next."""
    os.dup2(said, 1)
    os.dup2(said, 2)
    for words in commands:
        os.ftruncate(said, 0)
        os.lseek(said, 0, os.SEEK_SET)
        found = _taken(words)
        if found is None:
            found = {"error": _first(os.pread(said, 4096, 0)) or "refused"}
        os.write(answers, json.dumps(found, default=list).encode() + b"\n")


def _first(said: bytes) -> str:
    return "".join(said.decode(errors="replace").strip().splitlines()[:1])


if __name__ == "__main__":
    print(json.dumps({"version": VERSION, "answer": parse(json.load(sys.stdin))}))
