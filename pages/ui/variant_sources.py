"""The sources of what is said about levers, as short names with addresses."""

from __future__ import annotations

import re

_ARXIV = re.compile(r"arXiv:(\d{4}\.\d{5})")
_PULL = re.compile(r"^([\w.-]+/[\w.-]+) pull request (\d+)$")
_VLLM = "https://github.com/vllm-project/vllm/blob/"
_TRT = "https://nvidia.github.io/TensorRT-LLM/1.4.0rc4/features/kvcache.html"
# Short name and address by how a source begins; None where the text itself is the answer.
_KNOWN: tuple[tuple[str, str, str | None], ...] = (
    ("by definition", "by definition", None),
    ("no published measurement", "no measurement found", None),
    ("our rules", "our rules for engines", None),
    ("vLLM documentation, Quantized KV Cache", "vLLM docs",
     _VLLM + "0609ba15df1dc858647954fefd6512b394bdb283/docs/features/quantization/quantized_kvcache.md"),
    ("vLLM documentation, Automatic Prefix Caching", "vLLM docs",
     "https://docs.vllm.ai/en/latest/features/automatic_prefix_caching/"),
    ("vLLM documentation, Attention Backend", "vLLM docs", "https://docs.vllm.ai/en/latest/design/attention_backends/"),
    ("vLLM, quantization/turboquant", "vLLM source",
     _VLLM + "1471680b24719d9d3b2fe1235878196142af89cc/vllm/model_executor/layers/quantization/turboquant/config.py"),
    ("vLLM blog", "vLLM blog", None),
    ("SGLang documentation, Quantized KV Cache", "SGLang docs",
     "https://github.com/sgl-project/sglang/blob/03cd2ec4af85b66be8ef025238bc73c165416bdb/docs/advanced_features/"
     "quantized_kv_cache.md"),
    ("SGLang documentation, Attention Backend", "SGLang docs",
     "https://docs.sglang.io/advanced_features/attention_backend.html"),
    ("TensorRT-LLM documentation, KV Cache System", "TensorRT-LLM docs", _TRT),
    ("TensorRT-LLM documentation, gpt_attention", "TensorRT-LLM docs",
     "https://raw.githubusercontent.com/NVIDIA/TensorRT-LLM/release/0.5.0/docs/source/gpt_attention.md"),
    ("transformers documentation, Attention backends", "transformers docs",
     "https://huggingface.co/docs/transformers/v5.12.0/attention_interface.md"),
    ("DeepSeek-V3.2-Exp, README", "DeepSeek-V3.2-Exp",
     "https://github.com/deepseek-ai/DeepSeek-V3.2-Exp/blob/3b99a5350d260b7c2a357e82362305509e2d0724/README.md"),
    ("docs/long_bench.md of jy-yuan/KIVI", "KIVI results",
     "https://github.com/jy-yuan/KIVI/blob/876b4d2d08e3b1d5f70d0969c299d8c7c42ddfb6/docs/long_bench.md"),
)  # fmt: skip
# Titles that are long beside a cell, by how they begin.
_SHORT = {
    "Efficient Streaming Language Models": "Attention sinks",
    "An Empirical Study of Mamba": "Mamba study",
    "Gemma 3 Technical Report": "Gemma 3",
    "Fast Transformer Decoding": "Shazeer 2019",
}


def links(source: str) -> tuple[tuple[str, str], ...]:
    """(short name, address) of every publication that a source names, each once; the address is empty without one."""
    return tuple(dict.fromkeys(_link(one.strip()) for one in source.split(";") if one.strip()))


def _link(one: str) -> tuple[str, str]:
    for begins, name, address in _KNOWN:
        if one.startswith(begins):
            return name, address or ""
    pull = _PULL.match(one)
    if pull:
        return f"{pull[1].rpartition('/')[2]} #{pull[2]}", f"https://github.com/{pull[1]}/pull/{pull[2]}"
    name = next((short for begins, short in _SHORT.items() if one.startswith(begins)), one.partition(",")[0])
    paper = _ARXIV.search(one)
    return name, f"https://arxiv.org/abs/{paper[1]}" if paper else ""
