"""What llama.cpp makes of each general.architecture of a GGUF file: one table.

Source of every row: llama.cpp as vendored in llama-cpp-python 0.3.36: src/models/*.cpp (load_arch_hparams),
src/llama-model.cpp (load_hparams, create_memory) and src/llama-hparams.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """What llama.cpp makes of one general.architecture.

    `window` says how `attention.sliding_window` is read: not at all, it must be stated, layers slide only where it is
    stated, they slide unless it is 0, or it is stated and not applied. `period`: layers N, 2N, … are full (0, N, 2N, …
    with `first_full`), 0: all slide, None: the file lists them. `fixed` is a window that no key changes. `recurrent`
    says which layers keep the `state`: all, all beside attention, those without KV heads (of which `no_kv_no_ff` also
    have no feed-forward part), or all but each N-th.
    """

    window: Literal["none", "stated", "optional", "unless_zero", "ignored"] = "none"
    period: int | None = None
    first_full: bool = False
    fixed: int | None = None
    default: int | None = None
    only_with_layers: int | None = None
    law: Literal["sliding", "chunked"] = "sliding"
    shares: Literal["", "stated", "from_20"] = ""
    state: Literal["", "mamba1", "mamba2", "delta", "kda", "linear", "conv", "rwkv"] = ""
    recurrent: Literal["", "all", "both", "no_kv", "no_kv_no_ff", "interval"] = ""
    interval: int = 4
    latent: Literal["", "mla", "either", "decompressed"] = ""
    indexer: Literal["", "all", "listed", "listed_or_glm", "after_dense"] = ""
    extra: Literal["", "cross", "router", "loops"] = ""
    nothing: str = ""


_PLAIN = Architecture()
_ENCODER = Architecture(window="ignored", nothing="encoder layer")
_DIFFUSION = Architecture(nothing="diffusion model: every token is computed anew at each step")
_MLA = Architecture(latent="mla")
_KDA = Architecture(state="kda", recurrent="no_kv", latent="mla")
_LISTED = Architecture(window="stated")
_DELTA = Architecture(state="delta", recurrent="interval")
_RWKV = Architecture(state="rwkv", recurrent="all")

# What each general.architecture needs. An architecture that is not here is refused by name.
ARCHITECTURES: dict[str, Architecture] = {
    **dict.fromkeys((
        "llama", "deci", "falcon", "grok", "gpt2", "gptneox", "mpt", "baichuan", "starcoder", "refact", "bloom",
        "stablelm", "qwen", "qwen2", "qwen2moe", "qwen2vl", "qwen3", "qwen3moe", "qwen3vl", "qwen3vlmoe", "phi2",
        "phimoe", "plamo", "codeshell", "orion", "internlm2", "minicpm", "gemma", "starcoder2", "xverse", "command-r",
        "dbrx", "olmo", "olmoe", "openelm", "arctic", "deepseek", "chatglm", "glm4", "glm4moe", "bitnet", "jais",
        "jais2", "nemotron", "exaone", "granite", "granitemoe", "chameleon", "bailingmoe", "bailingmoe2", "dots1",
        "arcee", "ernie4_5", "ernie4_5-moe", "hunyuan-moe", "hunyuan-dense", "hunyuan_vl", "hy_v3", "smollm3",
        "seed_oss", "grovemoe", "apertus", "minimax-m2", "cogvlm", "pangu-embedded", "mistral3", "paddleocr",
        "llama-embed", "maincoder", "talkie", "hrm_text",
    ), _PLAIN),
    # Windows.
    **dict.fromkeys(("phi3", "deepseek2-ocr"), Architecture(window="ignored")),
    "gemma2": Architecture(window="stated", period=2, default=4096),
    "gemma3": Architecture(window="optional", period=6),
    "gemma3n": Architecture(window="stated", period=5, shares="from_20"),
    "gemma4": Architecture(window="stated", shares="stated"),
    **dict.fromkeys(("gpt-oss", "gptoss"), Architecture(window="stated", period=2)),  # gptoss: Ollama's own files
    "llama4": Architecture(window="unless_zero", period=4, fixed=8192, law="chunked"),
    **dict.fromkeys(("cohere2", "muse-glimmer", "exaone-moe"), Architecture(window="stated", period=4)),
    "cohere2moe": Architecture(window="stated", period=4, first_full=True),
    "exaone4": Architecture(window="stated", period=4, default=4096, only_with_layers=64),
    **dict.fromkeys(("olmo2", "afmoe", "mellum"), Architecture(window="optional", period=4)),
    "laguna": Architecture(window="optional", period=4, first_full=True),
    "smallthinker": Architecture(window="optional", period=4, first_full=True, fixed=4096),
    "plamo3": Architecture(window="optional", period=8),
    **dict.fromkeys(("granite_swa", "maple", "mimo2", "spark2_5", "step35"), _LISTED),
    # Latents and indexers.
    **dict.fromkeys(("deepseek2", "mistral4"), Architecture(latent="either")),
    **dict.fromkeys(("minicpm3", "plm"), Architecture(latent="decompressed")),
    "deepseek32": replace(_MLA, indexer="all"),
    "glm-dsa": replace(_MLA, indexer="listed_or_glm"),
    "hy_v4": replace(_MLA, indexer="listed"),
    "dots3note": replace(_MLA, window="stated", indexer="listed"),
    "minimax-m3": Architecture(indexer="after_dense"),
    # Recurrent states.
    "mamba": Architecture(state="mamba1", recurrent="all"),
    "mamba2": Architecture(state="mamba2", recurrent="all"),
    "jamba": Architecture(state="mamba1", recurrent="no_kv"),
    "falcon-h1": Architecture(state="mamba2", recurrent="both"),
    **dict.fromkeys(("granitehybrid", "plamo2"), Architecture(state="mamba2", recurrent="no_kv")),
    **dict.fromkeys(("nemotron_h", "nemotron_h_moe"), Architecture(state="mamba2", recurrent="no_kv_no_ff")),
    **dict.fromkeys(("qwen3next", "qwen35", "qwen35moe"), _DELTA),
    "minimax-01": Architecture(state="linear", recurrent="interval", interval=8),
    "lfm2": Architecture(state="conv", recurrent="no_kv", window="optional", period=0),
    "lfm2moe": Architecture(state="conv", recurrent="no_kv"),
    **dict.fromkeys(("kimi-linear", "kimi-k3", "bailingmoe3"), _KDA),
    **dict.fromkeys(("rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"), _RWKV),
    # Others.
    "t5": Architecture(extra="cross"),
    "graniteswitch": Architecture(extra="router"),
    "nanbeige": Architecture(extra="loops"),
    **dict.fromkeys(("bert", "modern-bert", "nomic-bert", "nomic-bert-moe", "neo-bert", "jina-bert-v2", "jina-bert-v3",
                     "eurobert", "gemma-embedding", "t5encoder"), _ENCODER),
    **dict.fromkeys(("dream", "llada", "llada-moe", "rnd1"), _DIFFUSION),
}  # fmt: skip
