"""Which configurations are run through transformers: published files, and the defaults of further model types.

Layers are cut to whole patterns, so that every kind of layer of a model appears.
"""

from __future__ import annotations

from typing import Any

from tests.reference.run import Case


def _files(layers: int, *files: str) -> tuple[Case, ...]:
    return tuple(Case(file=f"{name}.json", layers=layers) for name in files)


def _defaults(layers: int, *model_types: str, **more: Any) -> tuple[Case, ...]:
    return tuple(Case(default_of=name, layers=layers, **more) for name in model_types)


# Published configurations whose model class transformers has: at least one of every architecture.
PUBLISHED: tuple[Case, ...] = (
    *_files(
        2, "01-ai__Yi-34B", "HuggingFaceTB__SmolLM2-135M-Instruct", "mistralai__Mistral-Nemo-Instruct-2407",
        "mistralai__Mixtral-8x22B-v0.1", "microsoft__phi-4", "CohereForAI__c4ai-command-r-v01", "EleutherAI__gpt-j-6b",
        "EleutherAI__gpt-neox-20b", "HuggingFaceTB__SmolLM3-3B", "LGAI-EXAONE__EXAONE-3.5-7.8B-Instruct",
        "MiniMaxAI__MiniMax-M2.5", "Qwen__Qwen2.5-7B-Instruct", "Qwen__Qwen1.5-MoE-A2.7B", "Qwen__Qwen3-30B-A3B",
        "Qwen__Qwen3-0.6B", "Qwen__Qwen3-VL-2B-Instruct", "Qwen__Qwen3-VL-30B-A3B-Instruct",
        "Qwen__Qwen2.5-VL-3B-Instruct", "Qwen__Qwen2-VL-7B-Instruct", "Qwen__Qwen2.5-Omni-7B",
        "WizardLM__WizardCoder-15B-V1.0", "allenai__OLMo-2-1124-7B", "baidu__ERNIE-4.5-21B-A3B-PT",
        "bigcode__starcoder2-7b", "bigscience__bloom-7b1", "deepseek-ai__DeepSeek-R1", "deepseek-ai__DeepSeek-V2-Lite",
        "deepseek-ai__DeepSeek-V3.2", "facebook__opt-125m", "google__gemma-7b", "ibm-granite__granite-4-8b-dense",
        "ibm-granite__granite-4-8b-dense-hybrid", "microsoft__Phi-3-mini-4k-instruct", "mistralai__Mistral-7B-v0.1",
        "mistralai__Voxtral-Mini-3B-2507", "moonshotai__Kimi-K2.5", "mosaicml__mpt-7b", "openai-community__gpt2",
        "openbmb__MiniCPM3-4B", "stabilityai__stablelm-3b-4e1t", "state-spaces__mamba-2.8b-hf",
        "mistralai__Mamba-Codestral-7B-v0.1", "tencent__Hunyuan-7B-Instruct", "tiiuae__falcon-40b",
        "tiiuae__falcon-mamba-7b", "tiiuae__Falcon-H1-3B-Instruct", "zai-org__GLM-4.5-Air", "zai-org__GLM-5",
        "google__gemma-2-9b", "openai__gpt-oss-20b",
    ),
    *_files(
        4, "Qwen__Qwen3-Next-80B-A3B-Instruct", "Qwen__Qwen3.5-9B", "Qwen__Qwen3.5-122B-A10B",
        "CohereForAI__c4ai-command-r7b-12-2024", "LGAI-EXAONE__EXAONE-4.0-32B", "allenai__Olmo-3.1-32B-Instruct",
        "meta-llama__Llama-4-Scout-17B-16E-Instruct", "LiquidAI__LFM2-1.2B", "LiquidAI__LFM2.5-VL-1.6B",
        "moonshotai__Kimi-Linear-48B-A3B-Instruct",
    ),
    *_files(
        6, "google__gemma-3-1b-it", "google__gemma-3-27b-it", "google__gemma-4-26B-A4B", "nvidia__MiniMax-M3-NVFP4",
        "XiaomiMiMo__MiMo-V2-Flash", "ibm-granite__granite-4.0-h-tiny", "zai-org__GLM-5.2",
    ),
    *_files(4, "deepseek-ai__DeepSeek-V4-Flash"),
    *_files(3, "deepseek-ai__DeepSeek-V4-Pro"),
    *_files(8, "ai21labs__Jamba-v0.1", "nvidia__Nemotron-H-56B-Base-8K", "Zyphra__Zamba2-7B"),
    *_files(7, "nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"),
    *_files(10, "ibm-ai-platform__Bamba-9B-v1"),
    # The last layers share: as many of ten as of the whole.
    Case(file="google__gemma-4-E2B-it.json", layers=10, change={"num_kv_shared_layers": 5}),
    Case(
        file="google__gemma-3n-E4B-it.json", layers=10,
        # Sparsity by a normal distribution needs real numbers; it is of activations and keeps nothing.
        change={"num_kv_shared_layers": 5, "activation_sparsity_pattern": [0.0] * 10},
    ),
    Case(file="Qwen__Qwen2-Audio-7B-Instruct.json", change={"num_hidden_layers": 2}),
    Case(file="EleutherAI__gpt-neo-1.3B.json", layers=4, change={"attention_types": [[["global", "local"], 2]]}),
    Case(file="databricks__dbrx-base.json", layers=2, stub=("ffn",)),
    Case(file="microsoft__Phi-3.5-MoE-instruct.json", layers=2, change={"rope_scaling": None}),
    Case(file="meituan-longcat__LongCat-Flash-Chat.json", layers=2, keeps="pairs", stub=("mlp",)),
    Case(file="google__recurrentgemma-2b.json", layers=3, keeps="modules", change={"attention_window_size": 64}),
    Case(file="RWKV__rwkv-4-7b-pile.json", layers=2, keeps="returned"),
    Case(file="google-t5__t5-small.json", keeps="two caches"),
    Case(file="facebook__bart-large.json", keeps="two caches", change={"decoder_layers": 2}, attention="eager"),
    Case(file="openai__whisper-large-v3.json", keeps="two caches", change={"decoder_layers": 2}),
    Case(file="meta-llama__Llama-3.2-11B-Vision-Instruct.json", layers=6, keeps="cache and image"),
)  # fmt: skip

_DOTS = {"n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2}
_DECODER: dict[str, Any] = {"keeps": "two caches", "attention": "eager"}

# What transformers itself writes (to_dict) for the defaults of model types that kvcore reads and no file above has, or
# that it writes otherwise than the publishers did. `change` makes defaults run that contradict themselves.
WRITTEN: tuple[Case, ...] = (
    *_defaults(
        2, "granitemoe", "granitemoeshared", "olmo", "olmoe", "flex_olmo", "internlm3", "ernie4_5", "glm", "glm4",
        "seed_oss", "helium", "aria_text", "diffllama", "bitnet", "solar_open", "hy_v3", "sarvam_moe", "jais2",
        "iquestcoder", "cohere", "phi", "persimmon", "arcee", "apertus", "nanochat", "falcon", "gpt-sw3", "codegen",
        "xglm", "ctrl", "openai-gpt", "gpt_neox_japanese", "ministral3", "qwen2_vl_text", "qwen2_5_vl_text", "minicpm3",
        "glm4_moe_lite", "youtu", "sarvam_mla", "axk1", "mistral4", "qwen2", "qwen3", "mistral", "phi3",
    ),
    *_defaults(2, "glm4_moe", "glm4v_moe_text", "qwen3_omni_moe_text", "hunyuan_v1_moe", "ministral",
               change={"head_dim": 128}),
    *_defaults(2, "nemotron", change={"num_key_value_heads": 8}),
    *_defaults(2, "biogpt", attention="eager"),
    *_defaults(2, "deepseek_v2", change={"num_experts_per_tok": 2, "moe_intermediate_size": 1408}),
    *_defaults(
        2, "glm4v_text",
        change={"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [16, 24, 24]}},
    ),
    *_defaults(4, "dots1", change=_DOTS),
    *_defaults(2, "longcat_flash", keeps="pairs", stub=("mlp",)),
    *_defaults(
        4, "deepseek_v4", "granite_swa", "granitemoe_swa", "mellum", "laguna", "vaultgemma", "cohere2",
        "cohere2_moe", "exaone4", "exaone_moe", "olmo3", "afmoe", "cwm", "olmo_hybrid", "qwen3_next", "qwen3_5_text",
        "qwen3_5_moe_text", "llama4_text",
    ),
    *_defaults(
        4, "step3p5", stub=("mlp", "moe"),
        change={"layer_types": ["full_attention", *["sliding_attention"] * 3], "sliding_window": 512},
    ),
    *_defaults(
        6, "gemma2", "gemma3_text", "gemma4_text", "gemma4_unified_text", "mimo_v2_flash", "glm_moe_dsa",
        "minimax_m3_vl_text", "kimi_linear", "gpt_oss",
    ),
    *_defaults(
        10, "gemma3n_text", change={"num_kv_shared_layers": 5, "activation_sparsity_pattern": [0.0] * 10}
    ),
    *_defaults(8, "zamba", "zamba2", "nemotron_h", "lfm2", "jamba"),
    *_defaults(4, "bamba", change={"attn_layer_indices": [2]}),
    *_defaults(4, "granitemoehybrid", change={"layer_types": [*["linear_attention"] * 3, "full_attention"]}),
    *_defaults(2, "mamba", "mamba2", "falcon_mamba", "falcon_h1", "deepseek_v3", "deepseek_v32"),
    *_defaults(4, "lfm2_moe", change={"layer_types": ["conv", "conv", "full_attention", "conv"]}),
    *_defaults(8, "minimax", keeps="beside the cache"),
    *_defaults(6, "mllama_text_model", keeps="cache and image"),
    *_defaults(0, "mt5", "umt5", "longt5", **_DECODER),
    *_defaults(0, "switch_transformers", stub=("mlp",), **_DECODER),
    *_defaults(
        0, "mbart", "m2m_100", "marian", "pegasus", "pegasus_x", "blenderbot", "blenderbot-small", "led", "plbart",
        "mvp", "bigbird_pegasus", "speech_to_text", change={"decoder_layers": 2}, **_DECODER,
    ),
    *_defaults(
        2, "bert", "roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "electra", "albert", "distilbert",
        "deberta-v2", "mpnet", "modernbert", "nomic_bert", "funnel", "ernie",
        "data2vec-text", "mobilebert", keeps="nowhere", attention="eager",
    ),
    *_defaults(2, "esm", keeps="nowhere", attention="eager", change={"vocab_size": 33, "pad_token_id": 1}),
)  # fmt: skip


# The same without `layer_types`, as files are that were written before it: which layers slide or recur follows from
# the family's own rule.
def _unlisted(layers: int, *model_types: str, **change: Any) -> tuple[Case, ...]:
    return tuple(
        Case(default_of=name, layers=layers, as_given=True, change={"layer_types": None} | change)
        for name in model_types
    )


UNLISTED: tuple[Case, ...] = (
    *_unlisted(4, "gemma2", "vaultgemma", "cohere2", "exaone4", "exaone_moe", "olmo3", "gpt_oss", "mistral"),
    *_unlisted(4, "cohere2_moe", "afmoe", "cwm", "olmo_hybrid", "qwen3_next", "qwen3_5_text", "llama4_text"),
    *_unlisted(12, "gemma3_text", "gemma4_text"),
    *_unlisted(4, "qwen2", "qwen3", "qwen2_moe", "qwen3_moe", use_sliding_window=True, sliding_window=64,
               max_window_layers=2),
    *_unlisted(4, "qwen2_vl_text", use_sliding_window=True, sliding_window=64, max_window_layers=2),
    *_unlisted(4, "dots1", sliding_window=64, max_window_layers=2, **_DOTS),
    *_unlisted(4, "phi3", "mixtral", "starcoder2", sliding_window=64),
    *_unlisted(6, "lfm2", full_attn_idxs=[2, 5]),
    *_unlisted(6, "bamba", attn_layer_indices=[2, 5]),
    *_unlisted(10, "gemma3n_text", num_kv_shared_layers=5, activation_sparsity_pattern=[0.0] * 10),
)  # fmt: skip

# What may be refused, and must never be answered as if it were not there.
UNUSUAL: tuple[Case, ...] = (
    Case(
        default_of="gemma4_text",
        layers=6,
        change={"per_layer_config": {str(layer): {"num_key_value_heads": 2} for layer in range(5)}},
    ),
    Case(default_of="bert", layers=2, change={"is_decoder": True}, attention="eager"),
    Case(default_of="bert", layers=2, change={"is_decoder": True, "add_cross_attention": True}, attention="eager"),
)

# Model types that kvcore reads and transformers implements, and why they are not run. Each is read by the same rule as
# one that is.
NOT_RUN: dict[str, str] = {
    "chameleon": "maps images to tokens by numbers; its language model is laid out as llama, which is run",
    "ernie4_5_vl_moe": "the wrapper of the next row",
    "ernie4_5_vl_moe_text": "routes image and text tokens by numbers; its attention is that of ernie4_5_moe, which is run",
    "jetmoe": "routes its attention through experts by numbers that a run without weights has none of",
    "nllb-moe": "routes by numbers, in a feed-forward part inside which its experts cannot be taken out",
}
NOT_RUN_ENCODERS = (
    "deberta", "big_bird", "roformer", "squeezebert", "longformer", "convbert", "nystromformer",
)  # fmt: skip
