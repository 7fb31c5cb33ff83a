"""Every model_type that is understood, and how it is read. A new family is a row here, and a reader if it is new.

The rules were checked against transformers 5.24 (configuration and cache of each family) and vLLM 0.33; the tests
compare them with what those engines allocate.
"""

from __future__ import annotations

from kvcore.model.readers.attention import (
    read_attention,
    read_gemma3n,
    read_gemma4,
    read_mimo_v2,
    read_nemotron_nas,
    read_openelm,
    read_step,
    read_yuan,
)
from kvcore.model.readers.encoders import read_bart, read_encoder, read_mllama, read_t5
from kvcore.model.readers.latent import read_deepseek_v4, read_kimi, read_latent, read_minimax_m3
from kvcore.model.readers.recurrent import read_recurrent
from kvcore.model.readers.shape import Family

_PLAIN = Family(read=read_attention)
_OLD = Family(read=read_attention, kv_heads="heads", gated=False, width_factor=4, tied=True)
_QWEN = Family(read=read_attention, window="qwen")
_SLIDING = Family(read=read_attention, window="all")
_LATENT = Family(read=read_latent)
_DELTA = {"design_of": "gdn", "layout": "interval", "gated_attention": True}


def _pattern(period: int, **more: object) -> Family:
    return Family(read=read_attention, window="every_nth_full", pattern=period, **more)  # type: ignore[arg-type]


def _recurrent(design: str, layout: str, **more: object) -> Family:
    options = {"design_of": design, "layout": layout} | dict(more.pop("options", {}))  # type: ignore[call-overload]
    return Family(read=read_recurrent, options=options, **more)  # type: ignore[arg-type]


FAMILIES: dict[str, Family] = {
    # Keys and values in every layer.
    **dict.fromkeys(
        ("llama", "granite", "granitemoe", "granitemoeshared", "olmo", "olmo2", "olmoe", "flex_olmo", "stablelm",
         "internlm", "internlm2", "internlm3", "baichuan", "xverse", "aquila", "minicpm", "ernie4_5",
         "ernie4_5_moe", "glm", "glm4", "glm4_moe", "bailing_moe", "bailing_moe_v2", "hunyuan", "hunyuan_v1_dense",
         "hunyuan_v1_moe", "seed_oss", "helium", "phi3small", "deepseek", "aria_text",
         "diffllama", "bitnet", "solar_open", "hy_v3", "sarvam_moe", "jais2", "iquestcoder", "orion", "skywork",
         "telechat2", "smollm3", "exaone", "stablelm_epoch", "chameleon", "aria_moe_lm", "grok-1",
         "ernie4_5_moe_vl", "ernie4_5_vl_moe", "ernie4_5_vl_moe_text", "solar", "glm4v_text", "glm4v_moe_text", ), _PLAIN),
    **dict.fromkeys(("cohere", "gemma"), Family(read=read_attention, tied=True)),
    **dict.fromkeys(("phi", "nemotron", "persimmon", "arcee", "apertus", "nanochat"),
                    Family(read=read_attention, gated=False)),
    "starcoder2": Family(read=read_attention, window="all", gated=False, tied=True),
    "falcon": Family(read=read_attention, kv_heads="falcon", gated=False, width_factor=4, tied=True),
    "gpt_bigcode": Family(read=read_attention, kv_heads="multi_query", gated=False, width_factor=4, tied=True),
    "mpt": Family(read=read_attention, kv_heads="attn_config", gated=False, width_factor=4, tied=True),
    "dbrx": Family(read=read_attention, kv_heads="attn_config"),
    "chatglm": Family(read=read_attention, kv_heads="chatglm"),
    "qwen": Family(read=read_attention, kv_heads="heads", stated_width_is=2),
    "telechat": Family(read=read_attention, kv_heads="standard", tied=True),
    **dict.fromkeys(("opt", "bloom", "gpt2", "gpt-sw3", "gptj", "codegen", "biogpt", "xglm", "ctrl", "openai-gpt"), _OLD),
    **dict.fromkeys(("gpt_neox", "gpt_neox_japanese"),
                    Family(read=read_attention, kv_heads="heads", gated=False, width_factor=4)),
    "gpt_neo": Family(read=read_attention, kv_heads="heads", gated=False, width_factor=4, tied=True, window="gpt_neo"),
    "minimax_m2": Family(read=read_attention, window="softmax_only"),
    "yuan": Family(read=read_yuan),
    **dict.fromkeys(("refinedwebmodel", "refinedweb"),
                    Family(read=read_attention, kv_heads="refined_web", gated=False, width_factor=4, tied=True)),
    "plamo": Family(read=read_attention, kv_heads="shared_heads"),
    "deci": Family(read=read_nemotron_nas),
    "phi-msft": Family(read=read_attention, gated=False, width_factor=4),
    "jais": _OLD,
    # Keys and values as in any other model; how their parameters are laid out is not counted here.
    **dict.fromkeys(("arctic", "molmo", "hf_olmo"), Family(read=read_attention, options={"weights_unknown": True})),
    "jetmoe": Family(read=read_attention, options={"weights_unknown": True}),
    "openelm": Family(read=read_openelm),
    "nemotron-nas": Family(read=read_nemotron_nas),
    "step3_text": Family(read=read_attention, kv_heads="groups", harmless=("share_q_dim",)),
    **dict.fromkeys(("step3p5", "step3p7", "step3p7_text"), Family(read=read_step, kv_heads="groups", window="listed_only")),
    **dict.fromkeys(("granite_swa", "granitemoe_swa", "mellum", "laguna"),
                    Family(read=read_attention, window="listed_only")),
    # A window in every layer, or from one layer on, where a flag says so.
    **dict.fromkeys(("mistral", "mixtral", "phi3", "phi3_v", "phimoe", "phi4mm", "ministral", "ministral3"), _SLIDING),
    **dict.fromkeys(("qwen2", "qwen3", "qwen2_vl", "qwen2_5_vl", "qwen2_vl_text",
                     "qwen2_5_vl_text", "qwen3_vl_text", "qwen3_vl_moe_text", "minicpmv", "minicpmo", "qwen2_5_omni_text",
                     "qwen3_omni_moe_text"), _QWEN),
    "mimo": _QWEN,
    "qwen2_moe": Family(read=read_attention, window="qwen", options={"slides": "even_below"}),
    "qwen3_moe": Family(read=read_attention, window="qwen", options={"slides": "all"}),
    "dots1": Family(read=read_attention, window="qwen", options={"slides_unless_told": True}),
    # A window in most layers and everything in the rest.
    "gemma2": _pattern(2, tied=True),
    "vaultgemma": _pattern(2, tied=True),
    "gpt_oss": _pattern(2),
    **dict.fromkeys(("gemma3", "gemma3_text"), _pattern(6, tied=True)),
    "gemma3n_text": Family(read=read_gemma3n, window="every_nth_full", pattern=5, tied=True),
    **dict.fromkeys(("gemma4_text", "gemma4_unified_text"),
                    Family(read=read_gemma4, window="every_nth_full", pattern=6, tied=True,
                           options={"last_is_full": True})),
    **dict.fromkeys(("cohere2", "cohere2_moe"), _pattern(4, tied=True)),
    **dict.fromkeys(("exaone4", "exaone_moe", "olmo3", "afmoe"), _pattern(4)),
    "cwm": Family(read=read_attention, window="first_of_n_full", pattern=4),
    "llama4_text": Family(read=read_attention, window="llama4", shared_experts=1),
    "mimo_v2_flash": Family(read=read_mimo_v2, window="listed_pattern"),
    # Latents.
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "minicpm3", "glm4_moe_lite",
                     "glm_moe_dsa", "youtu", "sarvam_mla", "axk1", "mistral4", "pangu_ultra_moe"), _LATENT),
    "longcat_flash": Family(read=read_latent, options={"attentions_a_layer": 2, "weights_unknown": True}),
    "deepseek_v4": Family(read=read_deepseek_v4),
    **dict.fromkeys(("minimax_m3", "minimax_m3_vl_text"), Family(read=read_minimax_m3)),
    "kimi_linear": Family(read=read_kimi, state_dtype="fp32"),
    # Recurrent states.
    "mamba": _recurrent("mamba1", "all_state", tied=True,
                        options={"no_feed_forward": True, "inner_is_stated": True}),
    "falcon_mamba": _recurrent("mamba1", "all_state", options={"no_feed_forward": True, "inner_is_stated": True}),
    "mamba2": _recurrent("mamba2", "all_state", options={"no_feed_forward": True}),
    "mamba_ssm": _recurrent("mamba_ssm", "all_state", tied=True, options={"no_feed_forward": True}),
    "jamba": _recurrent("mamba1", "period"),
    **dict.fromkeys(("bamba", "granitemoehybrid"), _recurrent("mamba2", "listed")),
    "falcon_h1": _recurrent("mamba2", "all_both"),
    "zamba2": _recurrent("mamba2", "zamba_period",
                         options={"double_width_attention": True, "weights_unknown": True}),
    "zamba": _recurrent("mamba1", "zamba_period", options={"double_width_attention": True, "weights_unknown": True}),
    "nemotron_h": _recurrent("mamba2", "listed", gated=False, state_dtype="fp32",
                             options={"one_thing_a_layer": True}),
    **dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"), _recurrent("gdn", "interval", options=_DELTA)),
    "olmo_hybrid": _recurrent("gdn", "interval"),
    **dict.fromkeys(("lfm2", "lfm2_moe"), _recurrent("conv", "listed", tied=True)),
    **dict.fromkeys(("minimax", "minimax_text_01", "minimax_m1"), _recurrent("lightning", "type_list")),
    "recurrent_gemma": _recurrent("rg_lru", "cycle", tied=True, state_dtype="fp32", stated_width_is=2),
    "rwkv": _recurrent("rwkv4", "all_state", options={"weights_unknown": True}),
    **dict.fromkeys(("rwkv5", "rwkv6", "rwkv6qwen2", "rwkv7"),
                    _recurrent("rwkv_matrix", "all_state", options={"weights_unknown": True})),
    # Encoders and decoders that look across.
    **dict.fromkeys(("t5", "mt5", "umt5", "longt5", "switch_transformers"), Family(read=read_t5)),
    **dict.fromkeys(("bart", "mbart", "m2m_100", "nllb-moe", "marian", "pegasus", "pegasus_x", "blenderbot",
                     "blenderbot-small", "led", "plbart", "mvp", "bigbird_pegasus", "whisper", "speech_to_text"),
                    Family(read=read_bart)),
    "mllama_text_model": Family(read=read_mllama),
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "electra", "albert",
                     "distilbert", "deberta", "deberta-v2", "longformer", "big_bird", "mpnet", "modernbert",
                     "nomic_bert", "funnel", "ernie", "esm", "convbert", "roformer", "nystromformer", "squeezebert",
                     "data2vec-text", "mobilebert"), Family(read=read_encoder)),
}  # fmt: skip

# Where the language model sits in a multimodal configuration, in the order in which it is looked for.
TEXT_KEYS = ("text_config", "llm_config", "language_config", "thinker_config", "language_model_config")

# The text model of a wrapper whose nested configuration does not say its own type.
WRAPPED: dict[str, str] = {
    "gemma3": "gemma3_text", "gemma3n": "gemma3n_text", "gemma4": "gemma4_text", "llama4": "llama4_text",
    "mllama": "mllama_text_model", "qwen3_5": "qwen3_5_text", "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen3_vl": "qwen3_vl_text", "qwen3_vl_moe": "qwen3_vl_moe_text", "minimax_m3_vl": "minimax_m3_vl_text",
    "llava": "llama", "llava_next": "llama", "llava_llama": "llama", "vipllava": "llama", "idefics3": "llama",
    "paligemma": "gemma", "mistral3": "mistral", "qwen2_audio": "qwen2", "qwen2_5_vl": "qwen2_5_vl",
    "qwen2_vl": "qwen2_vl", "kimi_k3": "kimi_linear", "kimi_k25": "deepseek_v3", "deepseek_vl_v2": "deepseek_v2",
    "qwen2_5_omni_thinker": "qwen2_5_omni_text", "qwen3_omni_moe_thinker": "qwen3_omni_moe_text",
    "glm4v": "glm4v_text", "glm4v_moe": "glm4v_moe_text", "RefinedWebModel": "refinedwebmodel",
    "RefinedWeb": "refinedweb", "step3_vl": "step3_text", "lfm2_vl": "lfm2", "voxtral": "llama", "aya_vision": "cohere2", "smolvlm": "llama",
}  # fmt: skip

# Configurations that name only a class: the type that the class stands for.
ARCHITECTURES: dict[str, str] = {
    "DeepseekV4ForCausalLM": "deepseek_v4", "DeepseekV3ForCausalLM": "deepseek_v3",
    "DeepseekV32ForCausalLM": "deepseek_v32", "MiniMaxM3SparseForCausalLM": "minimax_m3_vl_text",
    "MiniMaxText01ForCausalLM": "minimax_text_01", "MiniMaxM1ForCausalLM": "minimax_m1",
    "DeciLMForCausalLM": "nemotron-nas", "LlamaForCausalLM": "llama", "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2", "Qwen3ForCausalLM": "qwen3", "RwkvForCausalLM": "rwkv",
    "Grok1ForCausalLM": "grok-1", "Grok1ModelForCausalLM": "grok-1", "Rwkv5ForCausalLM": "rwkv5", "Rwkv6ForCausalLM": "rwkv6", "Step3TextForCausalLM": "step3_text",
}  # fmt: skip
