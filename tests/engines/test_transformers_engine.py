"""transformers 5.24: what its caches really allocate, on the meta device or in memory, against what kvcore says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import DynamicCache, QuantizedCache, StaticCache
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.utils import logging

from kvcore.deployment import Request, as_options
from kvcore.engines.layout import Capacity, Layout
from kvcore.engines.transformers import TRANSFORMERS, TransformersSettings
from kvcore.engines.transformers.layers import OWN_CODE, quantized_bytes
from kvcore.errors import EngineError
from kvcore.model import Model, model_from_config
from kvcore.model.families import FAMILIES
from kvcore.model.memories import CrossAttention
from kvcore.paths import DATA
from kvcore.units import GIB
from tests.models import llama, model
from tests.plan.launch_cases import h100
from tests.reference.run import SOURCE_TOKENS, Case, cut, observe, parts, text_config, without_numbers


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """transformers logs advice about kernels and rope at every start; it is not about what is tested."""
    before = logging.get_verbosity()
    logging.set_verbosity(50)
    yield
    logging.set_verbosity(before)


def chosen(found: Model, *, length: int | None = None, kv: str = "auto", tp: int = 1, pp: int = 1, dcp: int = 1,
           version: str | None = None, **values: Any) -> TransformersSettings:  # fmt: skip
    common = Request(context=length, kv_dtype=kv, tp=tp, pp=pp, dcp=dcp, engine_version=version)
    return TRANSFORMERS.settings(found, replace(common, options=as_options(values)))


def layout(found: Model, **asked: Any) -> Layout:
    return TRANSFORMERS.layout(found, chosen(found, **asked))


def capacity(found: Model, kv_bytes: int, **asked: Any) -> Capacity:
    return TRANSFORMERS.capacity(found, chosen(found, **asked), kv_bytes)


def small(**changes: Any) -> Model:
    return model_from_config(llama(**changes))


def total(found: Layout) -> int:
    """A batch of one: what it holds and the counters and scales beside it."""
    return found.bytes_per_request + found.fixed_bytes


# --- what is really allocated -----------------------------------------------------------------------------------------


def files(layers: int, *names: str) -> tuple[Case, ...]:
    return tuple(Case(file=f"{name}.json", layers=layers) for name in names)


# One of every kind of cache: full, sliding, chunked, latent, indexed, shared, recurrent, both at once, across.
CASES: tuple[Case, ...] = (
    *files(2, "Qwen__Qwen2.5-7B-Instruct", "mistralai__Mistral-7B-v0.1", "deepseek-ai__DeepSeek-R1",
           "deepseek-ai__DeepSeek-V3.2", "tiiuae__falcon-40b", "state-spaces__mamba-2.8b-hf",
           "tiiuae__Falcon-H1-3B-Instruct", "openai__gpt-oss-20b"),
    *files(4, "Qwen__Qwen3-Next-80B-A3B-Instruct", "meta-llama__Llama-4-Scout-17B-16E-Instruct",
           "LiquidAI__LFM2-1.2B", "moonshotai__Kimi-Linear-48B-A3B-Instruct", "deepseek-ai__DeepSeek-V4-Flash"),
    *files(6, "google__gemma-3-27b-it", "XiaomiMiMo__MiMo-V2-Flash", "nvidia__MiniMax-M3-NVFP4"),
    *files(8, "ai21labs__Jamba-v0.1", "nvidia__Nemotron-H-56B-Base-8K"),
    Case(file="google__gemma-3n-E4B-it.json", layers=10,
         change={"num_kv_shared_layers": 5, "activation_sparsity_pattern": [0.0] * 10}),
    Case(file="google__recurrentgemma-2b.json", layers=3, keeps="modules", change={"attention_window_size": 64}),
    Case(file="EleutherAI__gpt-neo-1.3B.json", layers=4, change={"attention_types": [[["global", "local"], 2]]}),
    Case(file="openai__whisper-large-v3.json", keeps="two caches", change={"decoder_layers": 2}),
)  # fmt: skip


def read(case: Case) -> tuple[Model, Any]:
    """kvcore's model of a case, with the run's source tokens, and transformers' configuration."""
    raw = cut(json.loads((DATA / "models" / "configs" / case.file).read_text("utf-8")), case)
    config = text_config(raw, case)
    found = model_from_config(raw)
    layers = tuple(
        tuple(replace(own, source_tokens=SOURCE_TOKENS) if isinstance(own, CrossAttention) else own for own in layer)
        for layer in found.layers
    )
    return replace(found, layers=layers), config


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_growing_caches_hold_what_models_leave_in_them(case: Case) -> None:
    found, config = read(case)
    windows = [getattr(own, "limit", None) or getattr(own, "window", None) or 0 for own, _ in found.groups]
    widest = max(windows, default=0)
    for tokens, layers in observe(case, config, (9, 1, widest - 8, 1) if widest else (9, 1)):
        kept = sum(sum(layer.values()) for layer in layers)
        assert total(layout(found, length=tokens)) == kept, tokens


STATIC = (
    "Qwen__Qwen2.5-7B-Instruct", "openai__gpt-oss-20b", "google__gemma-3-27b-it", "XiaomiMiMo__MiMo-V2-Flash",
    "meta-llama__Llama-4-Scout-17B-16E-Instruct",
)  # fmt: skip


@pytest.mark.parametrize("name", STATIC)
@pytest.mark.parametrize("tokens", [100, 9000])
def test_static_caches_are_allocated_whole(name: str, tokens: int) -> None:
    case = Case(file=f"{name}.json", layers=6)
    found, config = read(case)
    layers = [next(own for own in layer) for layer in found.layers]
    with without_numbers():
        cache = StaticCache(config, max_cache_len=tokens)
        for index, own in enumerate(layers):
            keys = torch.zeros((1, own.num_kv_heads, 1, own.head_dim), dtype=torch.bfloat16)
            values = torch.zeros((1, own.num_kv_heads, 1, own.v_head_dim), dtype=torch.bfloat16)
            cache.layers[index].lazy_initialization(keys, values)
        kept = sum(sum(parts(vars(layer)).values()) for layer in cache.layers)
    assert total(layout(found, length=tokens, cache_implementation="static")) == kept


def test_fp8_caches_hold_a_byte_a_number_and_two_scales() -> None:
    config = CONFIG_MAPPING["llama"](**{k: v for k, v in llama().items() if k not in ("model_type", "torch_dtype")})
    cache = QuantizedCache(backend="fp8", config=config)
    for length in (9, 1, 1):
        for index in range(4):
            new = torch.ones((1, 2, length, 64), dtype=torch.bfloat16)
            cache.update(new, new, index)
    kept = sum(
        tensor.numel() * tensor.element_size()
        for layer in cache.layers
        for pair in (layer._quantized_keys, layer._quantized_values)
        for tensor in pair
    )
    found = layout(small(), length=11, cache_implementation="quantized", cache_backend="fp8")
    assert found.kv_dtype == "fp8"
    assert total(found) == kept == 4 * (2 * 2 * 64 * 11 + 8)


def test_windows_of_a_prompt_stay_in_memory_until_the_next_token() -> None:
    found = small(model_type="mistral", sliding_window=16)
    config = CONFIG_MAPPING["mistral"](num_hidden_layers=4, sliding_window=16, num_key_value_heads=2, head_dim=64)
    cache = DynamicCache(config=config)
    held = []
    for length in (100, 1):
        for index in range(4):
            new = torch.ones((1, 2, length, 64), dtype=torch.bfloat16)
            cache.update(new, new, index)
        held.append(
            sum(tensor.untyped_storage().nbytes() for layer in cache.layers for tensor in (layer.keys, layer.values))
        )
    planned = layout(found, length=100)
    row = 2 * 2 * 64 * 2
    assert planned.bytes_per_request == 4 * 15 * row
    assert planned.terms[-1].name == "after the prompt"
    assert planned.terms[-1].value == held[0] == 4 * 100 * row
    assert held[1] == 4 * 16 * row


# --- values written out -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "token_bytes"),
    [("deepseek-ai/DeepSeek-V3", 70_272), ("deepseek-ai/DeepSeek-V3.2", 85_888), ("Qwen/Qwen2.5-7B-Instruct", 57_344)],
)
def test_bytes_a_token(name: str, token_bytes: int) -> None:
    assert layout(model(name), length=1000).bytes_per_request == 1000 * token_bytes


@pytest.mark.parametrize(
    ("name", "state_bytes"),
    [("Qwen/Qwen3-Next-80B-A3B-Instruct", 77_856_768), ("moonshotai/Kimi-Linear-48B-A3B-Instruct", 43_909_120)],
)
def test_states(name: str, state_bytes: int) -> None:
    states = [term.value for term in layout(model(name), length=1).terms if term.name == "state layers"]
    assert states == [state_bytes]


def test_windows_keep_one_less_and_a_counter() -> None:
    found = layout(model("mistralai/Mistral-7B-v0.1"), length=32_768)
    assert found.bytes_per_request == 32 * 4095 * 4096
    assert found.fixed_bytes == 32 * 8


def test_group_wise_quantization() -> None:
    found = small()  # K and V of 2 heads of 64: 128 numbers a token each
    asked = chosen(found, length=1000, cache_implementation="quantized")
    # 873 tokens in 4 bits with two 16-bit numbers for each 64, and 127 that wait in 16 bits.
    side = 873 * 128 // 2 + 873 * 2 * 2 * 2
    assert quantized_bytes(873 * 128, asked, found) == side
    got = TRANSFORMERS.layout(found, asked)
    assert got.bytes_per_request == 4 * (2 * side + 127 * 2 * 128 * 2)
    assert got.kv_dtype == "quanto_int4"
    assert {term.knowledge for term in got.terms} == {"estimated"}
    first = layout(found, length=1, cache_implementation="quantized")
    assert first.bytes_per_request == 4 * 2 * (64 + 8)


@pytest.mark.parametrize(
    ("backend", "nbits", "group_bytes"),
    [
        ("quanto", 2, 16),
        ("quanto", 4, 32),
        ("hqq", 1, 8),
        ("hqq", 2, 16),
        ("hqq", 3, 28),
        ("hqq", 4, 32),
        ("hqq", 8, 64),
    ],
)
def test_packed_groups(backend: str, nbits: int, group_bytes: int) -> None:
    asked = chosen(small(), length=1, cache_implementation="quantized", cache_backend=backend, nbits=nbits)
    assert quantized_bytes(64 * 8, asked, small()) == 8 * (group_bytes + 4)


def test_batches_multiply_and_counters_do_not() -> None:
    found = model("mistralai/Mistral-7B-v0.1")
    whole = layout(found, length=100, batch_size=8).terms[-1]
    assert whole.name == "whole batch"
    assert whole.value == 8 * 32 * 100 * 4096 + 32 * 8


def test_dtype_is_the_models() -> None:
    assert layout(small(), length=10, kv="fp32").bytes_per_request == 2 * layout(small(), length=10).bytes_per_request
    assert layout(small(), length=10).kv_dtype == "bf16"


# --- capacity ---------------------------------------------------------------------------------------------------------


def test_capacity_is_the_longest_batch() -> None:
    token = 4 * 2 * 128 * 2
    got = capacity(small(), token * 1000 + 5, length=100, batch_size=3)
    assert got.kv_cache_size_tokens == 999
    assert got.max_concurrency == Fraction(token * 1000 + 5, token * 100)
    assert got.blocks is None
    assert got.log_lines == ()


def test_caches_that_never_fill_hold_what_was_asked_for() -> None:
    assert capacity(model("state-spaces/mamba-2.8b-hf"), GIB, length=5000).kv_cache_size_tokens == 5000


def test_too_little_memory_is_refused() -> None:
    with pytest.raises(EngineError, match="not one token"):
        capacity(small(), 100, length=10)


# --- refusals and the call --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "asked", "words"),
    [
        ("openai/gpt-oss-20b", {"tp": 2}, "not split"),
        ("openai/gpt-oss-20b", {"pp": 2}, "not split"),
        ("openai/gpt-oss-20b", {"dcp": 2}, "not split"),
        ("openai/gpt-oss-20b", {"cache_implementation": "quantized"}, "sliding layers"),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", {"cache_implementation": "quantized"}, "state layers"),
        ("deepseek-ai/DeepSeek-V3.2", {"cache_implementation": "quantized"}, "indexer layers"),
        ("deepseek-ai/DeepSeek-V4-Flash", {"cache_implementation": "static"}, "dynamic cache only"),
        ("openai/gpt-oss-20b", {"kv": "fp8"}, "--cache-implementation quantized"),
        ("openai/gpt-oss-20b", {"cache_implementation": "paged"}, "cache_implementation"),
        ("openai/gpt-oss-20b", {"cache_backend": "awq"}, "cache_backend"),
        ("openai/gpt-oss-20b", {"nbits": 3}, "nbits 3"),
        ("openai/gpt-oss-20b", {"cache_backend": "fp8", "nbits": 4}, "nbits 4"),
        ("openai/gpt-oss-20b", {"q_group_size": 12}, "multiple of 8"),
        ("openai/gpt-oss-20b", {"residual_length": 0}, "--residual-length is 0"),
        ("openai/gpt-oss-20b", {"version": "4.57.0"}, "not followed"),
    ],
)
def test_what_is_not_supported_is_refused(name: str, asked: dict[str, Any], words: str) -> None:
    with pytest.raises(EngineError, match=words):
        layout(model(name), **({"length": 100} | asked))


def test_numbers_that_do_not_divide_into_groups_are_refused() -> None:
    with pytest.raises(EngineError, match="groups of 96"):
        layout(small(), length=1, cache_implementation="quantized", q_group_size=96)


def test_models_without_a_cache_are_refused() -> None:
    found = model_from_config({"model_type": "openai-gpt", "n_layer": 2, "n_embd": 64, "n_head": 2, "vocab_size": 10,
                               "n_positions": 64})  # fmt: skip
    with pytest.raises(EngineError, match="keeps no cache"):
        layout(found, length=10)


def test_models_with_code_of_their_own_are_named() -> None:
    assert {name for name in FAMILIES if name not in CONFIG_MAPPING} <= OWN_CODE
    assert not {name for name in OWN_CODE if name in CONFIG_MAPPING}
    found = layout(model("baichuan-inc/Baichuan2-7B-Chat"), length=10)
    assert any("code of its own" in note for note in found.notes)
    assert {term.knowledge for term in found.terms} == {"estimated"}


def test_call() -> None:
    def call(**more: Any) -> str:
        asked = chosen(small(), length=64, **more)
        ((_, script),) = TRANSFORMERS.launch(small(), h100(engine="transformers"), asked).files
        return next(line for line in script.splitlines() if "generate" in line)

    head = "output = model.generate(**inputs, max_length=64, "
    assert call(cache_implementation="static") == head + 'cache_implementation="static")'
    quantized = 'cache_config={"backend": "hqq", "nbits": 2, "q_group_size": 64, "residual_length": 128}, '
    assert call(cache_implementation="quantized", cache_backend="hqq", nbits=2) == (
        head + quantized + 'cache_implementation="quantized")'
    )
    fp8 = head + 'cache_config={"backend": "fp8"}, cache_implementation="quantized")'
    assert call(cache_implementation="quantized", cache_backend="fp8") == fp8


# --- what must always hold --------------------------------------------------------------------------------------------

MODELS = ("meta-llama/Llama-3.1-8B-Instruct", "deepseek-ai/DeepSeek-V3", "openai/gpt-oss-20b",
          "Qwen/Qwen3-Next-80B-A3B-Instruct")  # fmt: skip
KINDS = st.sampled_from([("dynamic", "quanto"), ("static", "quanto"), ("quantized", "hqq"), ("quantized", "fp8")])


def kind_of(name: str, kind: tuple[str, str]) -> dict[str, Any]:
    quantizes = "Llama" in name or name.endswith("V3")
    return {"cache_implementation": kind[0] if quantizes or kind[0] != "quantized" else "dynamic",
            "cache_backend": kind[1]}  # fmt: skip


@settings(deadline=None)
@given(st.sampled_from(MODELS), st.integers(1, 100_000), st.integers(0, 5000), KINDS)
def test_longer_requests_never_hold_less(name: str, length: int, more: int, kind: tuple[str, str]) -> None:
    asked = kind_of(name, kind)
    less, most = (layout(model(name), length=size, **asked).bytes_per_request for size in (length, length + more))
    assert less <= most


@settings(deadline=None)
@given(st.sampled_from(MODELS), st.integers(2**28, 2**36), st.integers(0, 2**32), KINDS, st.integers(1, 3))
def test_more_memory_never_holds_less(name: str, size: int, more: int, kind: tuple[str, str], batch: int) -> None:
    asked = kind_of(name, kind) | {"length": 4096, "batch_size": batch}
    less, most = (capacity(model(name), memory, **asked) for memory in (size, size + more))
    assert less.kv_cache_size_tokens <= most.kv_cache_size_tokens
    assert less.max_concurrency <= most.max_concurrency
    # The longest batch fits, and one token more of each request does not.
    longest = less.kv_cache_size_tokens // batch
    fits, too_long = (layout(model(name), **(asked | {"length": longest + step})) for step in (0, 1))
    assert batch * fits.bytes_per_request + fits.fixed_bytes <= size
    assert batch * too_long.bytes_per_request + too_long.fixed_bytes > size
