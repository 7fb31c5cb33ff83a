"""Which architecture of llama.cpp a model becomes, and what llama.cpp keeps of its layers.

A model read from a GGUF file already has llama.cpp's memories. One read from a config.json has those of the
checkpoint, and llama.cpp may drop a window, decompress a latent or widen a state.
Sources: llama.cpp, conversion/*.py (which class becomes which architecture), src/llama-arch.cpp, and
kvcore.model.gguf_layers for what each architecture does.
"""

from __future__ import annotations

from dataclasses import replace

from kvcore.deployment import Request
from kvcore.errors import EngineError
from kvcore.model.gguf_layers import ARCHITECTURES, Architecture
from kvcore.model.memories import Attention, CrossAttention, Latent, Memory, State
from kvcore.model.model import Model

# model_types of config.json whose name in llama.cpp is the same.
_SAME = (
    "llama", "qwen", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "baichuan", "starcoder2", "bloom", "gpt2",
    "stablelm", "internlm2", "minicpm", "minicpm3", "xverse", "dbrx", "olmo", "olmo2", "olmoe", "openelm", "deepseek",
    "chatglm", "glm4", "bitnet", "nemotron", "nemotron_h", "exaone", "exaone4", "granite", "granitemoe", "granite_swa",
    "orion", "mpt", "falcon", "phi3", "phimoe", "dots1", "arcee", "ernie4_5", "hy_v3", "smollm3", "seed_oss",
    "apertus", "jais2", "cohere2", "afmoe", "mellum", "laguna", "mamba", "mamba2", "jamba", "lfm2", "t5", "bert",
    "rwkv6", "rwkv7",
)  # fmt: skip
# The others. A model_type that is in neither has no converter in this version, and is refused.
_RENAMED = {
    "mistral": "llama", "mixtral": "llama", "iquestcoder": "llama", "internlm3": "llama", "granitemoeshared":
    "granitemoe", "granitemoe_swa": "granite_swa", "glm": "chatglm", "glm4v_text": "glm4", "glm4_moe": "glm4moe",
    "glm4v_moe_text": "glm4moe", "solar_open": "glm4moe", "sarvam_moe": "bailingmoe2", "bailing_moe": "bailingmoe",
    "bailing_moe_v2": "bailingmoe2", "ernie4_5_moe": "ernie4_5-moe", "hunyuan_v1_dense": "hunyuan-dense",
    "hunyuan_v1_moe": "hunyuan-moe", "cohere": "command-r", "phi": "phi2", "gpt_bigcode": "starcoder", "gpt-sw3":
    "gpt2", "gpt_neox": "gptneox", "minimax_m2": "minimax-m2", "nemotron-nas": "deci", "step3p5": "step35",
    "step3p7": "step35", "step3p7_text": "step35", "ministral3": "mistral3", "qwen2_moe": "qwen2moe", "qwen2_vl":
    "qwen2vl", "qwen2_5_vl": "qwen2vl", "qwen2_vl_text": "qwen2vl", "qwen2_5_vl_text": "qwen2vl",
    "qwen2_5_omni_text": "qwen2vl", "qwen3_moe": "qwen3moe", "qwen3_vl_text": "qwen3vl", "qwen3_vl_moe_text":
    "qwen3vlmoe", "qwen3_omni_moe_text": "qwen3vlmoe", "gpt_oss": "gpt-oss", "gemma3_text": "gemma3",
    "gemma3n_text": "gemma3n", "gemma4_text": "gemma4", "gemma4_unified_text": "gemma4", "cohere2_moe": "cohere2moe",
    "exaone_moe": "exaone-moe", "olmo3": "olmo2", "llama4_text": "llama4", "mimo_v2_flash": "mimo2", "deepseek_v2":
    "deepseek2", "deepseek_v3": "deepseek2", "kimi_k2": "deepseek2", "glm4_moe_lite": "deepseek2", "youtu":
    "deepseek2", "deepseek_v32": "deepseek32", "glm_moe_dsa": "glm-dsa", "minimax_m3": "minimax-m3",
    "minimax_m3_vl_text": "minimax-m3", "kimi_linear": "kimi-linear", "falcon_mamba": "mamba", "bamba":
    "granitehybrid", "granitemoehybrid": "granitehybrid", "falcon_h1": "falcon-h1", "qwen3_next": "qwen3next",
    "qwen3_5_text": "qwen35", "qwen3_5_moe_text": "qwen35moe", "lfm2_moe": "lfm2moe", "minimax_text_01": "minimax-01",
    "minimax_m1": "minimax-01", "mt5": "t5", "umt5": "t5", "roberta": "bert", "xlm-roberta": "bert", "camembert":
    "bert", "distilbert": "bert", "nomic_bert": "nomic-bert", "modernbert": "modern-bert",
}  # fmt: skip
BY_MODEL_TYPE: dict[str, str] = {name: name for name in _SAME} | _RENAMED
# Architectures whose recurrent states can be rolled back after a rejected draft (src/llama-arch.cpp).
ROLLS_BACK = frozenset(
    ("kimi-k3", "qwen35", "qwen35moe", "nemotron_h", "nemotron_h_moe", "lfm2", "lfm2moe", "bailingmoe3")
)
# Flash attention is forced off (src/llama-context.cpp).
NO_FLASH_ATTENTION = frozenset(("grok",))


def is_gguf(model: Model) -> bool:
    """Whether the model was read from a GGUF file, so that its model_type is llama.cpp's own name."""
    return any(key == "general.architecture" for key, _ in model.reading.keys_used)


def architecture(model: Model) -> str:
    """llama.cpp's name for the model's architecture; EngineError names one that it does not have, or we do not."""
    name = model.model_type if is_gguf(model) else BY_MODEL_TYPE.get(model.model_type, "")
    if model.model_type == "deepseek_v4":
        raise EngineError("llama.cpp: deepseek_v4 becomes deepseek4, whose compressed caches are not laid out here")
    if name not in ARCHITECTURES:
        raise EngineError(
            f"llama.cpp: model_type {model.model_type[:60]!r} has no architecture here; its converter knows "
            "llama, qwen3, gemma3, deepseek_v3 and others"
        )
    return name


def held_layers(model: Model, name: str) -> tuple[tuple[Memory, ...], ...]:
    """The memories of each layer as llama.cpp keeps them for the architecture of that name."""
    rule = ARCHITECTURES[name]
    known: dict[Memory, Memory | None] = {}
    # Layers that keep the same share one object in most models: hashing it again for each costs more than this.
    seen: dict[int, Memory | None] = {}
    result = []
    for layer in model.layers:
        kept = []
        for memory in layer:
            if id(memory) not in seen:
                if memory not in known:
                    known[memory] = _held(memory, rule, model)
                seen[id(memory)] = known[memory]
            if (held := seen[id(memory)]) is not None:
                kept.append(held)
        result.append(tuple(kept))
    return tuple(result)


def _held(memory: Memory, rule: Architecture, model: Model) -> Memory | None:
    if isinstance(memory, CrossAttention):
        return None  # An encoder's output is looked at anew at each step.
    if isinstance(memory, State):
        return replace(memory, parts=tuple(replace(part, element_bytes=4) for part in memory.parts))
    if isinstance(memory, Latent):
        return _latent(memory, rule, model)
    if not isinstance(memory, Attention) or memory.limit is None:
        return memory
    if rule.window in ("none", "ignored") or rule.only_with_layers not in (None, len(model.layers)):
        return replace(memory, limit=None, law="full")
    return replace(memory, limit=rule.fixed or memory.limit)


def _latent(memory: Latent, rule: Architecture, model: Model) -> Memory:
    if memory.tokens_per_entry > 1:
        raise EngineError(f"llama.cpp: {model.name} compresses tokens into entries, which is not laid out here")
    if rule.latent == "decompressed":
        heads, value = model.num_attention_heads, model.head_dim
        return Attention(num_kv_heads=heads, head_dim=model.key_head_dim or value, v_head_dim=value)
    return memory


def refuse_parallel(asked: Request) -> None:
    """EngineError for ways to divide a model over devices that llama.cpp has not, or that are not laid out here."""
    if asked.tp > 1:
        raise EngineError(
            f"llama.cpp: tp {asked.tp}: only --split-mode tensor divides heads, and it is not laid out here; "
            "layers are divided over devices with pp"
        )
    if asked.dcp > 1:
        raise EngineError(f"llama.cpp: dcp {asked.dcp}: there is no decode context parallel")
