"""The Python file for transformers, run: the real library, a tiny model in place of the one that is named."""

from __future__ import annotations

import contextlib
import io
from functools import cache
from typing import Any
from unittest import mock

import torch
import transformers
from transformers import BatchEncoding, GenerationConfig, LlamaConfig, LlamaForCausalLM

from tests.plan.launch_cases import Case

# Tokens that the tiny model really generates to, in place of the context that was planned.
SHORT = 12
_GENERATED: set[tuple[int, str | None]] = set()
DTYPES = ("auto", "bfloat16", "float16", "float32")


class Tokenizer:
    """Two words a prompt, and no word for padding, as many checkpoints have none."""

    pad_token: str | None = None
    eos_token = "</s>"

    def __call__(self, prompts: list[str], *, return_tensors: str, padding: bool) -> BatchEncoding:
        ids = torch.full((len(prompts), 2), 3)
        return BatchEncoding({"input_ids": ids, "attention_mask": torch.ones_like(ids)})

    def batch_decode(self, output: Any, *, skip_special_tokens: bool) -> list[str]:
        return [str(len(row)) for row in output]


@cache
def _model() -> Any:
    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=64, eos_token_id=None, bos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def check(case: Case) -> dict[str, Any]:
    """What the script asks of the library; ValueError or TypeError where that refuses it, or it asks another thing."""
    ((name, text),) = case.command.files
    if case.command.words != ("python", name):
        raise ValueError(f"{case.command.words} does not run {name}")
    asked: dict[str, Any] = {}

    def load(model: str, *, dtype: str, device_map: str, quantization_config: Any = None) -> Any:
        if dtype not in DTYPES:
            raise ValueError(f"no dtype: {dtype!r}")
        asked.update(model=model, dtype=dtype, quantised=quantization_config is not None)
        return _model()

    def generate(**words: Any) -> Any:
        own = {name: value for name, value in words.items() if name not in ("input_ids", "attention_mask")}
        unknown = set(own) - set(GenerationConfig().to_dict())
        if unknown:
            raise ValueError(f"generate takes no {unknown}")
        GenerationConfig(**own).validate(strict=True)
        asked.update(own, batch=len(words["input_ids"]))
        kind = (len(words["input_ids"]), own.get("cache_implementation"))
        if kind in _GENERATED or own.get("cache_implementation") == "quantized":
            # Once a kind is enough; the backends of quantised caches are packages of their own.
            return torch.full((len(words["input_ids"]), SHORT), 3)
        _GENERATED.add(kind)
        return type(_model()).generate(_model(), **words | {"max_length": SHORT})

    loaded = {"AutoModelForCausalLM": load, "AutoTokenizer": lambda model, *, padding_side: Tokenizer()}
    with contextlib.ExitStack() as patched, contextlib.redirect_stdout(io.StringIO()) as said:
        for auto, instead in loaded.items():
            patched.enter_context(mock.patch.object(getattr(transformers, auto), "from_pretrained", instead))
        patched.enter_context(mock.patch.object(_model(), "generate", generate))
        exec(compile(text, name, "exec"), {})
    wanted = {"model": case.reference, "max_length": case.deployment.context}
    if {key: asked[key] for key in wanted} != wanted:
        raise ValueError(f"asked for {asked}, not {wanted}")
    if f"'{SHORT}'" not in said.getvalue():
        raise ValueError(f"generated {said.getvalue()!r}")
    return asked
