"""llama.cpp's caches: every recorded start-up log, cases worked by hand, refusals, and what must always hold."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcore.deployment import Request, as_options
from kvcore.engines.llamacpp import LLAMACPP
from kvcore.engines.llamacpp.architectures import BY_MODEL_TYPE, architecture, held_layers
from kvcore.engines.llamacpp.devices import layer_devices
from kvcore.engines.llamacpp.settings import CACHE_TYPES, LlamaCppSettings, make_context
from kvcore.errors import EngineError
from kvcore.formats import kv_format
from kvcore.model import Model, model_from_config
from kvcore.model.families import FAMILIES
from kvcore.model.gguf_layers import ARCHITECTURES
from kvcore.paths import DATA
from kvcore.units import GIB, MIB
from tests.models import every_model, llama, model
from tests.plan.launch_cases import h100

RECORDS: list[dict[str, Any]] = [
    json.loads(line) for line in (DATA / "engines" / "llamacpp.jsonl").read_text("utf-8").splitlines()
]
# The recorded models by the first part of a record's name.
RECORDED = {
    "smol": "HuggingFaceTB/SmolLM2-135M-Instruct", "gemma2": "google/gemma-2-2b", "gemma3": "google/gemma-3-27b-it",
    "gptoss": "openai/gpt-oss-20b", "dsv2lite": "deepseek-ai/DeepSeek-V2-Lite",
}  # fmt: skip
_FLAGS = {"-c": "ctx_size", "-np": "parallel", "--k": "cache_type_k", "--v": "cache_type_v"}
_CACHE_LINE = re.compile(r"llama_kv_cache\w*: |llama_memory_recurrent: ")
CPU = Request(platform="cpu")


def settings_of(subject: Model, common: Request = CPU, **values: Any) -> LlamaCppSettings:
    return LLAMACPP.settings(subject, replace(common, options=as_options(values)))


def flags_of(args: list[str]) -> Mapping[str, Any]:
    """A record's flags as ours."""
    flags: dict[str, Any] = {"swa_full": "--swa-full" in args}
    for flag, value in pairwise(args):
        if flag in ("-c", "-np"):
            flags[_FLAGS[flag]] = int(value)
        elif flag in _FLAGS:
            flags[_FLAGS[flag]] = value.lower()
        elif flag == "--kvu":
            flags["kv_unified"] = value == "1"
        elif flag == "--fa":
            flags["flash_attn"] = {"DISABLED": "off"}[value]
    return flags


def recorded(record: dict[str, Any]) -> tuple[Model, LlamaCppSettings]:
    subject = model(RECORDED[record["name"].split("-")[0]])
    return subject, settings_of(subject, **flags_of(record["args"]))


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record["name"])
def test_a_real_server_logged_our_lines(record: dict[str, Any]) -> None:
    subject, settings = recorded(record)
    logged = tuple(line for line in record["log_lines"] if _CACHE_LINE.match(line))
    assert record["ready"]
    assert LLAMACPP.log_lines(subject, settings) == logged
    assert logged


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record["name"])
def test_a_real_server_made_our_context(record: dict[str, Any]) -> None:
    context = make_context(*recorded(record))
    stated = dict(
        re.findall(r"llama_context: (n_ctx|n_ctx_seq|n_seq_max|n_ubatch) += (\d+)", "\n".join(record["log_lines"]))
    )
    ours = {"n_ctx": context.n_ctx, "n_ctx_seq": context.n_ctx_seq, "n_seq_max": context.slots,
            "n_ubatch": context.n_ubatch}  # fmt: skip
    assert ours == {name: int(value) for name, value in stated.items()}
    assert f"n_slots = {context.slots}, n_ctx_slot = {context.n_ctx_slot}," in "\n".join(record["log_lines"])


def test_all_records_are_compared() -> None:
    assert len(RECORDS) == 16
    assert {record["version"] for record in RECORDS} == {f"xllamacpp {settings_of(model(RECORDED['smol'])).version}"}


def mib(subject: Model, **values: Any) -> list[float]:
    """MiB of each cache, as logged."""
    lines = LLAMACPP.log_lines(subject, settings_of(subject, **values))
    return [float(found[1]) for line in lines if (found := re.search(r": size = +([0-9.]+) MiB", line))]


@pytest.mark.parametrize(("kind", "expected"), [("f16", 2560.0), ("q8_0", 1360.0), ("q4_0", 720.0)])
def test_llama_70b_by_hand(kind: str, expected: float) -> None:
    subject = model("meta-llama/Llama-3.1-70B-Instruct")
    assert mib(subject, ctx_size=8192, cache_type_k=kind, cache_type_v=kind) == [expected]


def test_gemma_3_27b_by_hand() -> None:
    subject = model("google/gemma-3-27b-it")
    assert mib(subject, ctx_size=131072, parallel=1) == [10240.0, 624.0]
    assert mib(subject, ctx_size=131072) == [10240.0, 1872.0]


def test_deepseek_v3_by_hand() -> None:
    subject = model("deepseek-ai/DeepSeek-V3")
    layout = LLAMACPP.layout(subject, settings_of(subject, ctx_size=2560, parallel=1))
    assert layout.bytes_per_request == 2560 * 70_272


def test_qwen3_next_by_hand() -> None:
    subject = model("Qwen/Qwen3-Next-80B-A3B-Instruct")
    layout = LLAMACPP.layout(subject, settings_of(subject, ctx_size=1024, parallel=3))
    state = next(term for term in layout.terms if term.name == "state cache")
    assert state.value == 3 * 79_036_416


def test_rollback_states_only_where_the_architecture_has_them() -> None:
    for name, copies in (("Qwen/Qwen3-Next-80B-A3B-Instruct", 1), ("Qwen/Qwen3.5-9B", 4)):
        subject = model(name)
        one, more = (
            LLAMACPP.layout(subject, settings_of(subject, ctx_size=1024, parallel=1, spec_draft_n_max=n))
            for n in (0, 3)
        )
        states = [next(t.value for t in layout.terms if t.name == "state cache") for layout in (one, more)]
        assert states[1] == copies * states[0]


def test_indexer_of_deepseek_has_keys_only_and_that_of_minimax_values_too() -> None:
    assert mib(model("deepseek-ai/DeepSeek-V3.2"), ctx_size=8192) == [549.0, 61 * 8192 * 256 / MIB]
    subject = model("MiniMaxAI/MiniMax-M3")
    assert mib(subject, ctx_size=8192) == [960.0, 57 * 8192 * 512 / MIB]
    lines = LLAMACPP.log_lines(subject, settings_of(subject, ctx_size=8192))
    assert [line for line in lines if "creating" in line] == [
        "llama_kv_cache_msa: creating main KV cache, size = 8192 cells",
        "llama_kv_cache_msa: creating indexer KV cache, size = 8192 cells",
    ]


@pytest.mark.parametrize("name", ["microsoft/Phi-3-mini-4k-instruct", "mistralai/Mistral-7B-v0.1"])
def test_windows_that_llama_cpp_does_not_apply(name: str) -> None:
    subject = model(name)
    assert any(kind == "sliding" for kind, _ in subject.kinds)
    assert len(mib(subject, ctx_size=8192, parallel=1)) == 1


def test_latents_that_llama_cpp_decompresses() -> None:
    subject = model("openbmb/MiniCPM3-4B")
    # 62 layers × 40 heads × (96 + 64) numbers of 2 bytes.
    assert mib(subject, ctx_size=1024, parallel=1) == [1024 * 62 * 40 * 160 * 2 / MIB]


def test_shared_layers_have_no_tensors() -> None:
    subject = model("google/gemma-3n-E4B-it")
    lines = LLAMACPP.log_lines(subject, settings_of(subject, ctx_size=8192, parallel=1))
    assert sum(int(n) for line in lines for n in re.findall(r"(\d+) layers", line)) == 20


def test_the_library_has_other_defaults() -> None:
    subject = model("google/gemma-3-27b-it")
    context = make_context(subject, settings := settings_of(subject, tool="library", ctx_size=16384))
    assert (context.slots, context.unified, settings.whole_windows) == (1, False, True)
    assert mib(subject, tool="library", ctx_size=16384) == [1280.0, 6656.0]
    context = make_context(subject, settings := settings_of(subject, ctx_size=16384))
    assert (context.slots, context.unified, settings.whole_windows) == (4, True, False)


def test_the_least_context_for_a_length() -> None:
    subject = model("meta-llama/Llama-3.1-70B-Instruct")
    asked = replace(CPU, context=5000)
    shared = settings_of(subject, asked)
    assert (shared.ctx_size, LLAMACPP.layout(subject, shared).max_model_len) == (5000, 5000)
    apart = settings_of(subject, asked, parallel=3)
    layout = LLAMACPP.layout(subject, apart)
    assert (apart.ctx_size, layout.bytes_per_request) == (15000, 5120 * 327_680)
    capacity = LLAMACPP.capacity(subject, apart, 8 * GIB)
    assert (capacity.kv_cache_size_tokens, capacity.max_concurrency) == (3 * 5120, 3)


def test_requests_share_a_unified_cache() -> None:
    subject = model("meta-llama/Llama-3.1-70B-Instruct")
    settings = settings_of(subject, replace(CPU, context=3000), ctx_size=8192)
    assert LLAMACPP.capacity(subject, settings, 8 * GIB).max_concurrency == 2
    assert LLAMACPP.layout(subject, settings).bytes_per_request == 8192 * 327_680 // 2


def test_a_cache_that_does_not_fit() -> None:
    subject = model("meta-llama/Llama-3.1-70B-Instruct")
    settings = settings_of(subject, ctx_size=8192, parallel=1)
    held = LLAMACPP.layout(subject, settings).bytes_per_request
    capacity = LLAMACPP.capacity(subject, settings, held - 1)
    assert (capacity.max_concurrency, capacity.kv_cache_size_tokens, capacity.log_lines) == (Fraction(0), 0, ())
    values = {term.name: term.value for term in capacity.terms}
    assert (values["shortfall"], values["largest context"]) == (1, 8192 - 256)
    assert LLAMACPP.capacity(subject, settings, held).log_lines


def test_layers_are_divided_over_devices() -> None:
    settings = LlamaCppSettings(devices=2)
    # The output is one layer more, on the last device: 17 of 33 on the first.
    assert layer_devices(32, settings) == ("CUDA0",) * 17 + ("CUDA1",) * 15
    assert layer_devices(32, replace(settings, tensor_split=(3.0, 1.0))) == ("CUDA0",) * 25 + ("CUDA1",) * 7
    assert layer_devices(32, replace(settings, n_gpu_layers=10))[:23] == ("CPU",) * 23
    assert set(layer_devices(32, replace(settings, split_mode="none"))) == {"CUDA0"}
    assert set(layer_devices(32, replace(settings, no_kv_offload=True))) == {"CPU"}


def test_the_fullest_device_counts() -> None:
    subject = model("meta-llama/Llama-3.1-8B-Instruct")
    settings = settings_of(subject, Request(pp=2), ctx_size=8192, parallel=1)
    assert LLAMACPP.layout(subject, settings).bytes_per_request == 17 * 8192 * 4096
    lines = LLAMACPP.log_lines(subject, settings)
    assert lines[:2] == (
        "llama_kv_cache:      CUDA0 KV buffer size =   544.00 MiB",
        "llama_kv_cache:      CUDA1 KV buffer size =   480.00 MiB",
    )


def test_cuda_pads_the_last_quantised_row() -> None:
    # One KV head of 64: 8 blocks of 32 numbers are missing to 512, in each of 4 layers' K and V.
    subject = model_from_config(llama(num_attention_heads=8, num_key_value_heads=4, hidden_size=512))
    gpu = settings_of(subject, Request(), ctx_size=256, parallel=1, cache_type_k="q8_0")
    from kvcore.engines.llamacpp.caches import make_caches

    (cache,) = make_caches(subject, gpu, make_context(subject, gpu))
    row = cache.rows[0]
    assert row.k_bytes == 256 * 8 * 34
    assert row.buffer_bytes == row.k_bytes + 8 * 34 + (-8 * 34 % 128) + row.v_bytes


REFUSALS: list[tuple[str, dict[str, Any], Request, str]] = [
    ("meta-llama/Llama-3.1-70B-Instruct", {}, replace(CPU, tp=2), "tp 2"),
    ("meta-llama/Llama-3.1-70B-Instruct", {}, replace(CPU, dcp=2), "dcp 2"),
    ("meta-llama/Llama-3.1-70B-Instruct", {}, replace(CPU, engine_version="b1"), "version 'b1' are not followed"),
    ("meta-llama/Llama-3.1-70B-Instruct", {}, replace(CPU, kv_dtype="fp8"), "unsupported cache type"),
    ("meta-llama/Llama-3.1-70B-Instruct", {"cache_type_v": "q8_0", "flash_attn": "off"}, CPU, "requires flash_attn"),
    ("meta-llama/Llama-3.1-70B-Instruct", {"split_mode": "tensor"}, CPU, "--split-mode tensor"),
    ("meta-llama/Llama-3.1-70B-Instruct", {"tensor_split": "x"}, CPU, "list of shares"),
    ("meta-llama/Llama-3.1-70B-Instruct", {"tensor_split": "1,1,1"}, replace(CPU, pp=2), "names 3 GPUs"),
    ("meta-llama/Llama-3.1-70B-Instruct", {"cache_type_k": "q4_0"}, replace(CPU, kv_dtype="f16"), "different things"),
    ("meta-llama/Llama-3.1-70B-Instruct", {"cache_type_k": "q2_k"}, CPU, "is not one of"),
    ("meta-llama/Llama-3.1-70B-Instruct", {"parallel": 257}, CPU, "expected 1 … 256"),
    ("meta-llama/Llama-3.1-70B-Instruct", {"block_size": 16}, CPU, "no option of it"),
    (
        "meta-llama/Llama-3.1-70B-Instruct",
        {"ctx_size": 300},
        replace(CPU, context=600),
        "does not fit in a slot of 512",
    ),
    ("deepseek-ai/DeepSeek-V3", {"cache_type_k": "q8_0"}, CPU, "does not support different K"),
    ("microsoft/Phi-3-mini-4k-instruct", {"cache_type_k": "iq4_nl"}, replace(CPU, kv_dtype="iq4_nl/f16"), "nothing"),
    ("deepseek-ai/DeepSeek-V4-Flash", {}, CPU, "deepseek_v4"),
    ("Zyphra/Zamba2-7B", {}, CPU, "'zamba2' has no architecture"),
    ("openai/whisper-large-v3", {}, CPU, "'whisper' has no architecture"),
]


@pytest.mark.parametrize(("name", "values", "common", "why"), REFUSALS)
def test_what_is_refused(name: str, values: dict[str, Any], common: Request, why: str) -> None:
    subject = model(name)
    if why == "nothing":
        # A head of 96 is three blocks of 32.
        assert LLAMACPP.layout(subject, settings_of(subject, common, **values)).kv_dtype == "iq4_nl/fp16"
        return
    with pytest.raises(EngineError, match=why):
        LLAMACPP.layout(subject, settings_of(subject, common, **values))


def test_a_head_that_blocks_do_not_divide() -> None:
    subject = model_from_config(llama(head_dim=80))
    with pytest.raises(EngineError, match="does not divide a head of 80"):
        LLAMACPP.layout(subject, settings_of(subject, cache_type_k="q8_0"))
    # Without flash attention the row of both heads must be made of blocks, and it is.
    assert LLAMACPP.layout(subject, settings_of(subject, cache_type_k="q8_0", flash_attn="off"))


def test_a_model_without_a_context_limit_or_a_cache() -> None:
    endless = replace(model_from_config(llama()), context_limit=None)
    with pytest.raises(EngineError, match="does not state its training context"):
        LLAMACPP.layout(endless, settings_of(endless))
    encoder = model_from_config({
        "model_type": "bert", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2,
        "intermediate_size": 128, "vocab_size": 100, "max_position_embeddings": 512,
    })  # fmt: skip
    layout = LLAMACPP.layout(encoder, settings_of(encoder))
    assert (layout.bytes_per_request, layout.groups) == (0, ())
    with pytest.raises(EngineError, match="keeps no cache"):
        LLAMACPP.capacity(encoder, settings_of(encoder), GIB)


def test_the_table_of_architectures() -> None:
    assert set(BY_MODEL_TYPE) <= set(FAMILIES)
    assert set(BY_MODEL_TYPE.values()) <= set(ARCHITECTURES)


# Catalogued models whose figures differ from what the model must remember in 16 bits, by llama.cpp's own rules.
WINDOWLESS = ("none", "ignored")


def test_every_catalogued_model_is_laid_out_or_refused_by_name(subtests: pytest.Subtests) -> None:
    for model_id in every_model():
        with subtests.test(model=model_id):
            subject = model(model_id)
            if subject.model_type not in BY_MODEL_TYPE:
                with pytest.raises(EngineError, match=re.escape(subject.model_type)):
                    LLAMACPP.layout(subject, settings_of(subject, ctx_size=512))
                continue
            layout = LLAMACPP.layout(
                subject, settings_of(subject, ctx_size=512, parallel=1, batch_size=512, swa_full=True)
            )
            kv = kv_format("fp16")
            # With every window whole and one slot, it is what the held layers keep of 512 tokens.
            expected = sum(
                memory.growth(kv).constant_bytes + memory.growth(kv).bytes_per_entry * 512
                for layer in held_layers(subject, architecture(subject)) for memory in layer if memory.kind != "indexer"
            )  # fmt: skip
            without_indexer = sum(
                term.value for term in layout.terms if term.name.endswith(" cache") and "index" not in term.name
            )
            assert without_indexer == expected


@given(
    ctx=st.integers(1, 200_000), slots=st.integers(1, 16), unified=st.booleans(), batch=st.integers(1, 4096),
    full=st.booleans(), k=st.sampled_from(sorted(CACHE_TYPES)), v=st.sampled_from(sorted(CACHE_TYPES)),
)  # fmt: skip
def test_what_always_holds(ctx: int, slots: int, unified: bool, batch: int, full: bool, k: str, v: str) -> None:
    subject = model("google/gemma-3-27b-it")
    settings = settings_of(
        subject, ctx_size=ctx, parallel=slots, kv_unified=unified, ubatch_size=batch, swa_full=full, cache_type_k=k,
        cache_type_v=v,
    )  # fmt: skip
    context = make_context(subject, settings)
    assert context.n_ctx_seq % 256 == 0
    assert context.n_ctx == context.n_ctx_seq * context.streams
    assert context.n_ctx >= min(ctx, context.n_ctx_slot)
    layout = LLAMACPP.layout(subject, settings)
    whole = sum(term.value for term in layout.terms if term.name.endswith(" cache"))
    requests = LLAMACPP.capacity(subject, settings, 2**50).max_concurrency
    assert 1 <= requests <= slots
    assert whole <= layout.bytes_per_request * requests < whole + requests
    if not full:
        # Whole windows never take less, and neither does more context.
        wider = LLAMACPP.layout(subject, replace(settings, swa_full=True))
        assert sum(t.value for t in wider.terms if t.name.endswith(" cache")) >= whole


@given(kv_bytes=st.integers(10**8, 10**11), slots=st.integers(1, 8), unified=st.booleans())
def test_the_largest_context_fits_and_the_next_does_not(kv_bytes: int, slots: int, unified: bool) -> None:
    subject = model("google/gemma-3-27b-it")
    settings = settings_of(subject, parallel=slots, kv_unified=unified)
    terms = LLAMACPP.capacity(subject, settings, kv_bytes).terms
    largest = int(next(term.value for term in terms if term.name == "largest context"))
    step = 256 if unified else 256 * slots
    if largest:
        assert LLAMACPP.capacity(subject, replace(settings, ctx_size=largest), kv_bytes).log_lines
    assert not LLAMACPP.capacity(subject, replace(settings, ctx_size=largest + step), kv_bytes).log_lines


def test_the_command_asks_for_it_again() -> None:
    subject = model("google/gemma-3-27b-it")
    settings = settings_of(subject, Request(), ctx_size=8192, parallel=2, swa_full=True,
                           cache_type_k="q8_0", tensor_split="3,1")  # fmt: skip
    assert LLAMACPP.launch(subject, h100(engine="llama.cpp"), settings).words == (
        "llama-server", "--model", "./gemma-3-27b-it-BF16.gguf", "--ctx-size", "8192", "--parallel", "2",
        "--cache-type-k", "q8_0", "--swa-full", "--tensor-split", "3,1",
    )  # fmt: skip
