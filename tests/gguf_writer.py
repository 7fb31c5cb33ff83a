"""GGUF headers for tests, written by the `gguf` library: from keys, and from a config.json as the converter maps it.

The mappings state which keys llama.cpp's converter writes (conversion/*.py as vendored in llama-cpp-python 0.3.36).
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter

logging.getLogger("gguf.gguf_writer").setLevel(logging.ERROR)
F32, Q4_K = GGMLQuantizationType.F32, GGMLQuantizationType.Q4_K
TensorRow = tuple[str, tuple[int, ...], GGMLQuantizationType]


# A small model, and tensors of each kind.
LLAMA = {
    "block_count": 4, "embedding_length": 512, "context_length": 4096, "attention.head_count": 8,
    "attention.head_count_kv": 2, "vocab_size": 1000,
}  # fmt: skip
TENSORS = (
    ("token_embd.weight", (1000, 512), F32),
    ("output.weight", (1000, 512), Q4_K),
    ("rope_freqs.weight", (32,), F32),
    ("blk.0.attn_q.weight", (512, 512), Q4_K),
    ("blk.0.attn_norm.weight", (512,), F32),
    ("blk.0.ffn_gate_inp.weight", (16, 512), F32),
    ("blk.0.ffn_up_exps.weight", (16, 256, 512), Q4_K),
    ("blk.0.ffn_up_shexp.weight", (256, 512), Q4_K),
    ("blk.1.ssm_in.weight", (64, 512), F32),
)


def write(
    architecture: str, keys: Mapping[str, Any], tensors: Sequence[TensorRow] = (), general: Mapping[str, Any] = {}
) -> bytes:
    """A GGUF header: keys without the architecture's prefix, `general` keys in full, tensors in NumPy's order."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        writer = GGUFWriter(path, architecture)
        for key, value in (*((f"{architecture}.{key}", value) for key, value in keys.items()), *general.items()):
            add_key(writer, key, value)
        for name, shape, kind in tensors:
            writer.add_tensor_info(name, shape, np.dtype(np.float16), 0, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        writer.close()
        return path.read_bytes()


def add_key(writer: GGUFWriter, key: str, value: Any) -> None:
    """A key of the type that its value has."""
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def base(c: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """What the converter writes for every model; `more` adds to it, dots written as two underscores."""
    keys = {
        "block_count": c["num_hidden_layers"],
        "embedding_length": c["hidden_size"],
        "context_length": c.get("max_position_embeddings", 2**20),
        "feed_forward_length": c.get("intermediate_size") or 1024,
        "attention.head_count": c.get("num_attention_heads", 0),
        "attention.layer_norm_rms_epsilon": 1e-6,
    }
    if "num_key_value_heads" in c:
        keys["attention.head_count_kv"] = c["num_key_value_heads"]
    if c.get("head_dim"):
        keys |= {"attention.key_length": c["head_dim"], "attention.value_length": c["head_dim"]}
    return keys | {key.replace("__", "."): value for key, value in more.items()}


def _ssm(inner: int, state: int, conv: int, groups: int | None, rank: int = 1) -> dict[str, Any]:
    keys = {"ssm__inner_size": inner, "ssm__state_size": state, "ssm__conv_kernel": conv, "ssm__time_step_rank": rank}
    return keys if groups is None else keys | {"ssm__group_count": groups}


def _latent(c: Mapping[str, Any]) -> dict[str, Any]:
    rank, rope = c["kv_lora_rank"], c["qk_rope_head_dim"]
    return {
        "attention__head_count_kv": 1, "attention__kv_lora_rank": rank, "attention__key_length": rank + rope,
        "attention__value_length": rank, "attention__key_length_mla": c["qk_nope_head_dim"] + rope,
        "attention__value_length_mla": c["v_head_dim"],
    }  # fmt: skip


def _window(c: Mapping[str, Any], listed: bool = False) -> dict[str, Any]:
    keys = {"attention__sliding_window": c["sliding_window"]}
    if listed:
        keys["attention__sliding_window_pattern"] = [kind == "sliding_attention" for kind in c["layer_types"]]
    return keys


def _kv_where(c: Mapping[str, Any], attends: Sequence[bool]) -> dict[str, Any]:
    return {"attention__head_count_kv": [c["num_key_value_heads"] if one else 0 for one in attends]}


def plain(c: Mapping[str, Any]) -> dict[str, Any]:
    return base(c)


def windowed(c: Mapping[str, Any]) -> dict[str, Any]:
    return base(c, **_window(c))


def listed(c: Mapping[str, Any]) -> dict[str, Any]:
    return base(c, **_window(c, listed=True))


def gemma3n(c: Mapping[str, Any]) -> dict[str, Any]:
    return base(c, **_window(c, listed=True), attention__shared_kv_layers=c["num_kv_shared_layers"])


def gemma4(c: Mapping[str, Any]) -> dict[str, Any]:
    keys = gemma3n(c) | {
        "attention.key_length": c["global_head_dim"], "attention.value_length": c["global_head_dim"],
        "attention.key_length_swa": c["head_dim"], "attention.value_length_swa": c["head_dim"],
    }  # fmt: skip
    full = c.get("num_global_key_value_heads") or c["num_key_value_heads"]
    slides = keys["attention.sliding_window_pattern"]
    return keys | {"attention.head_count_kv": [c["num_key_value_heads"] if one else full for one in slides]}


def mimo(c: Mapping[str, Any]) -> dict[str, Any]:
    pattern = c["hybrid_layer_pattern"]
    heads = [c["swa_num_key_value_heads"] if one else c["num_key_value_heads"] for one in pattern]
    return base(c, attention__head_count_kv=heads, attention__sliding_window_pattern=pattern, **_window(c)) | {
        "attention.value_length": c["v_head_dim"]
    }


def step(c: Mapping[str, Any]) -> dict[str, Any]:
    """Three more blocks predict further tokens: each list has an entry for them as well."""
    predicted = c["num_nextn_predict_layers"]
    layers = [*c["layer_types"], *["full_attention"] * predicted]
    return base(c, **_window(dict(c, layer_types=layers), listed=True)) | {
        "block_count": c["num_hidden_layers"] + predicted,
        "nextn_predict_layers": predicted,
        "attention.head_count": [c["num_attention_heads"]] * len(layers),
        "attention.head_count_kv": [c["num_key_value_heads"]] * len(layers),
    }


def latent(c: Mapping[str, Any]) -> dict[str, Any]:
    return base(c, **_latent(c))


def indexed(c: Mapping[str, Any]) -> dict[str, Any]:
    index = {"key_length": c["index_head_dim"], "head_count": c["index_n_heads"], "top_k": c["index_topk"]}
    return base(c, **_latent(c)) | {f"attention.indexer.{key}": value for key, value in index.items()}


def minimax_m3(c: Mapping[str, Any]) -> dict[str, Any]:
    sparse = c["sparse_attention_config"]
    return base(c, leading_dense_block_count=3, attention__indexer__key_length=sparse["sparse_index_dim"],
                attention__indexer__head_count=4, attention__indexer__top_k=16, attention__indexer__block_size=128,
                attention__indexer__local_blocks=1)  # fmt: skip


def mamba(c: Mapping[str, Any]) -> dict[str, Any]:
    inner = c["hidden_size"] * c["expand"]
    return base(c, **_ssm(inner, c["state_size"], c["conv_kernel"], None), attention__head_count=0)


def mamba2(c: Mapping[str, Any]) -> dict[str, Any]:
    inner = c["num_heads"] * c["head_dim"]
    plain_keys = base({key: value for key, value in c.items() if key != "head_dim"}, attention__head_count=0)
    ssm = _ssm(inner, c["state_size"], c["conv_kernel"], c["n_groups"])
    return plain_keys | {key.replace("__", "."): value for key, value in ssm.items()}


def jamba(c: Mapping[str, Any]) -> dict[str, Any]:
    layers, period, offset = c["num_hidden_layers"], c["attn_layer_period"], c["attn_layer_offset"]
    heads = _kv_where(c, [layer % period == offset for layer in range(layers)])
    return base(c, **_ssm(c["hidden_size"] * c["mamba_expand"], c["mamba_d_state"], c["mamba_d_conv"], None), **heads)


def falcon_h1(c: Mapping[str, Any]) -> dict[str, Any]:
    return base(c, **_ssm(c["mamba_d_ssm"], c["mamba_d_state"], c["mamba_d_conv"], c["mamba_n_groups"]))


def granite_hybrid(c: Mapping[str, Any]) -> dict[str, Any]:
    ssm = _ssm(c["hidden_size"] * c["mamba_expand"], c["mamba_d_state"], c["mamba_d_conv"], c["mamba_n_groups"])
    return base(c, **ssm, **_kv_where(c, [kind == "attention" for kind in c["layer_types"]]))


def nemotron_h(c: Mapping[str, Any]) -> dict[str, Any]:
    letters = c["hybrid_override_pattern"]
    inner = c["mamba_num_heads"] * c["mamba_head_dim"]
    width = c.get("attention_head_dim") or c["head_dim"]
    return base(
        c,
        **_ssm(inner, c["ssm_state_size"], c["conv_kernel"], c["n_groups"]),
        **_kv_where(c, [letter == "*" for letter in letters]),
        feed_forward_length=[1024 if letter in "-E" else 0 for letter in letters],
        attention__key_length=width,
        attention__value_length=width,
    )


def delta_net(c: Mapping[str, Any]) -> dict[str, Any]:
    inner = c["linear_num_value_heads"] * c["linear_value_head_dim"]
    ssm = _ssm(inner, c["linear_key_head_dim"], c["linear_conv_kernel_dim"], c["linear_num_key_heads"])
    return base(c, **ssm, full_attention_interval=c["full_attention_interval"])


def lfm2(c: Mapping[str, Any]) -> dict[str, Any]:
    attends = [layer in c["full_attn_idxs"] for layer in range(c["num_hidden_layers"])]
    return base(c, **_kv_where(c, attends), shortconv__l_cache=c["conv_L_cache"])


def kimi(c: Mapping[str, Any]) -> dict[str, Any]:
    delta = c["linear_attn_config"]
    heads = [int(layer + 1 in delta["full_attn_layers"]) for layer in range(c["num_hidden_layers"])]
    return base(c, **_latent(c)) | {
        "attention.head_count_kv": heads, "kda.head_dim": delta["head_dim"],
        "ssm.conv_kernel": delta["short_conv_kernel_size"],
    }  # fmt: skip


def minimax_01(c: Mapping[str, Any]) -> dict[str, Any]:
    return base(c, attention__recurrent_layers=[kind == 0 for kind in c["attn_type_list"]])


def deci(c: Mapping[str, Any]) -> dict[str, Any]:
    """Each block's own KV heads; a block without attention has none, and no query heads either."""
    groups = [block["attention"].get("n_heads_in_group") for block in c["block_configs"]]
    heads = c["num_attention_heads"]
    return base({key: value for key, value in c.items() if key != "num_key_value_heads"}) | {
        "attention.head_count": [heads if group else 0 for group in groups],
        "attention.head_count_kv": [heads // group if group else 0 for group in groups],
        "attention.key_length": c["hidden_size"] // heads, "attention.value_length": c["hidden_size"] // heads,
    }  # fmt: skip


def rwkv7(c: Mapping[str, Any]) -> dict[str, Any]:
    return base(dict(c, head_dim=None), attention__head_count=0, wkv__head_size=c["head_dim"])


def t5(c: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "block_count": c["num_layers"], "embedding_length": c["d_model"], "context_length": 512,
        "attention.head_count": c["num_heads"], "attention.key_length": c["d_kv"], "attention.value_length": c["d_kv"],
        "attention.relative_buckets_count": 32, "decoder_block_count": c["num_decoder_layers"],
    }  # fmt: skip


# (catalogue id, architecture, mapping): the same model as config.json and as GGUF.
CONVERTED: tuple[tuple[str, str, Callable[[Mapping[str, Any]], dict[str, Any]]], ...] = (
    ("meta-llama/Llama-3.1-8B-Instruct", "llama", plain),
    ("Qwen/Qwen3-30B-A3B", "qwen3moe", plain),
    ("nvidia/Llama-3_3-Nemotron-Super-49B-v1", "deci", deci),
    ("google/gemma-2-9b", "gemma2", windowed),
    ("google/gemma-3-27b-it", "gemma3", windowed),
    ("google/gemma-3n-E4B-it", "gemma3n", gemma3n),
    ("google/gemma-4-E2B-it", "gemma4", gemma4),
    ("google/gemma-4-26B-A4B", "gemma4", gemma4),
    ("openai/gpt-oss-120b", "gpt-oss", windowed),
    ("meta-llama/Llama-4-Scout-17B-16E-Instruct", "llama4", plain),
    ("CohereForAI/c4ai-command-r7b-12-2024", "cohere2", windowed),
    ("LGAI-EXAONE/EXAONE-4.0-32B", "exaone4", windowed),
    ("allenai/Olmo-3.1-32B-Instruct", "olmo2", listed),
    ("XiaomiMiMo/MiMo-V2-Flash", "mimo2", mimo),
    ("stepfun-ai/Step-3.7-Flash", "step35", step),
    ("deepseek-ai/DeepSeek-V3", "deepseek2", latent),
    ("deepseek-ai/DeepSeek-V3.2", "deepseek32", indexed),
    ("zai-org/GLM-5.2", "glm-dsa", indexed),
    ("MiniMaxAI/MiniMax-M3", "minimax-m3", minimax_m3),
    ("state-spaces/mamba-2.8b-hf", "mamba", mamba),
    ("mistralai/Mamba-Codestral-7B-v0.1", "mamba2", mamba2),
    ("ai21labs/Jamba-v0.1", "jamba", jamba),
    ("tiiuae/Falcon-H1-7B-Instruct", "falcon-h1", falcon_h1),
    ("ibm-granite/granite-4.0-h-small", "granitehybrid", granite_hybrid),
    ("nvidia/Nemotron-H-56B-Base-8K", "nemotron_h", nemotron_h),
    ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "nemotron_h_moe", nemotron_h),
    ("Qwen/Qwen3-Next-80B-A3B-Instruct", "qwen3next", delta_net),
    ("Qwen/Qwen3.5-27B", "qwen35", delta_net),
    ("LiquidAI/LFM2-1.2B", "lfm2", lfm2),
    ("moonshotai/Kimi-Linear-48B-A3B-Instruct", "kimi-linear", kimi),
    ("MiniMaxAI/MiniMax-Text-01", "minimax-01", minimax_01),
    ("google-t5/t5-small", "t5", t5),
)
