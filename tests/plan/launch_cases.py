"""Deployments of every kind, whose launch commands the tests and benchmarks.check_launch parse."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from kvcore.deployment import OWN_HEAD, Deployment, Draft
from kvcore.engines.base import Option
from kvcore.engines.registry import engine as engine_of
from kvcore.errors import KVCoreError
from kvcore.hardware.gpus import accelerator
from kvcore.model.model import Model
from kvcore.planning.launch import Command, launch
from kvcore.planning.launch_words import model_reference
from kvcore.sources import catalogue

LLAMA = "meta-llama/Llama-3.3-70B-Instruct"
DEEPSEEK = "deepseek-ai/DeepSeek-V3"
V32 = "deepseek-ai/DeepSeek-V3.2"
GEMMA = "google/gemma-3-27b-it"
DRAFT = "meta-llama/Llama-3.2-1B-Instruct"

# What a shell, an option parser or a terminal would act upon if it were let.
HOSTILE = (
    "; rm -rf ~", "$(touch /tmp/owned)", "`id`", "a'b", 'a"b', "a && b", "-h", "--trust-remote-code", "--model=x", "~/m",
    "a b", "!!", "a\\", "é/模型", "#x", "*", "a|b>c", "%PATH%", "{a,b}", "x=y", "-", "--", "--flag value", "$HOME", "${x}",
    "'; id; '", "a;b", "&", "<x", "(a)", "[a]", "?", "~", "^x", "%s", "\\n", "@file", "a:b", "[]", "{}", "null", "- x",
    # Words that trtllm-serve has for something else than a model.
    "serve", "disaggregated", "disaggregated_mpi_worker", "mm_embedding_serve",
)  # fmt: skip
# Control characters could end a terminal's paste whatever the quoting.
UNPRINTABLE = ("a\nrm -rf ~", "a\x1b[201~\nid", "", "   ", "a\tb", "a\0b", "\u202eabc", "x" * 301)

# Each choice of a deployment alone, those that belong together, and many at once.
VARIATIONS: tuple[dict[str, Any], ...] = (
    {},
    {"tp": 2},
    {"pp": 2},
    {"dp": 2},
    {"tp": 8, "dcp": 2},
    {"dp": 2, "dp_attention": True, "expert_parallel": True},
    {"kv_dtype": "fp8", "weight_format": "fp8"},
    {"kv_dtype": "bf16", "weight_format": "bf16"},
    {"kv_dtype": "fp16", "weight_format": "fp16"},
    {"kv_dtype": "nvfp4", "weight_format": "awq"},
    {"kv_dtype": "q8_0", "weight_format": "q4_k"},
    {"utilization": 0.85, "max_num_seqs": 64},
    {"kv_bytes": 40 * 2**30},
    {"max_num_batched_tokens": 4096, "enforce_eager": True, "prefix_caching": False},
    {"speculative_tokens": 3},
    {"speculative_tokens": 3, "draft": OWN_HEAD},
    {"tp": 2, "pp": 2, "dp": 2, "kv_dtype": "fp8", "weight_format": "fp8", "utilization": 0.85, "max_num_seqs": 64,
     "max_num_batched_tokens": 4096, "enforce_eager": True, "prefix_caching": False, "speculative_tokens": 2},
)  # fmt: skip
# A value that is allowed for each kind of option, where one has no list of choices.
_VALUES: dict[str, Any] = {"integer": 64, "fraction": 0.5, "switch": True}
_TEXTS = {"tensor_split": "3,1", "max_attention_window": "1024,32768"}


def h100(**more: Any) -> Deployment:
    return Deployment(gpu=accelerator("h100-sxm"), **({"engine": "vllm", "context": 32_768} | more))


def named(model: Model, name: str) -> Model:
    """The same model under another name."""
    return replace(model, name=name)


@dataclass(frozen=True, slots=True)
class Case:
    """A model under a name, how it is served, and the command for it."""

    name: str
    deployment: Deployment
    command: Command

    @property
    def reference(self) -> str:
        """What has to arrive as the model."""
        return model_reference(self.name)[0]


@cache
def cases(engine: str, everything: bool = False) -> tuple[tuple[Case, ...], int]:
    """(cases of an engine, how many deployments it refused): the catalogue, its options, and hostile names.

    Every model in every variation where `everything` is asked for, else each variation with every so many models.
    """
    made, refused = [], 0
    for model, deployment in _deployments(engine, everything):
        try:
            made.append(Case(model.name, deployment, launch(model, deployment, 3)))
        except KVCoreError:
            refused += 1
    return tuple(made), refused


def _deployments(engine: str, everything: bool) -> Iterator[tuple[Model, Deployment]]:
    models = [catalogue.load(entry.model_id) for entry in catalogue.entries()]
    for at, model in enumerate(models):
        for variation in VARIATIONS if everything else (VARIATIONS[at % len(VARIATIONS)],):
            yield model, h100(engine=engine, **({"context": 2048} | variation))
    chosen = models if everything else [catalogue.load(name) for name in (LLAMA, DEEPSEEK, V32, GEMMA)]
    for option in engine_of(engine).options:
        for value in _values(option):
            for model in chosen if not everything else chosen[::8]:
                yield model, h100(engine=engine, options=((option.field, value),))
    for variation in VARIATIONS:
        yield catalogue.load(LLAMA), h100(engine=engine, **variation)
        yield catalogue.load(DEEPSEEK), h100(engine=engine, **variation)
    for name in (*HOSTILE, *UNPRINTABLE):
        yield named(catalogue.load(LLAMA), name), h100(engine=engine)
        proposed = Draft(name=name, model=catalogue.load(DRAFT))
        yield catalogue.load(LLAMA), h100(engine=engine, speculative_tokens=3, draft=proposed)


def _values(option: Option) -> Iterable[Any]:
    return option.choices or (_TEXTS.get(option.field, _VALUES.get(option.kind, "64")),)
