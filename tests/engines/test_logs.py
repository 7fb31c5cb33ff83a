"""Start-up logs: every recorded line, every version's format strings, and whatever else a text may hold."""

import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcore.errors import ModelError
from kvcore.evidence.runs import recordings
from kvcore.logs import Amount, Decimals, LogError, LogReading, explain, log_result, read_log
from kvcore.logs import reading as reading_module
from kvcore.logs.command import model_of
from kvcore.logs.patterns import FLAGS, KINDS, PATTERNS
from kvcore.logs.values import read_amount, read_decimals
from kvcore.model import model_from_config
from kvcore.sources import catalogue
from kvcore.units import GIB, MIB

CORPUS = Path(__file__).parent / "corpus"
LLAMACPP = [json.loads(line) for line in (CORPUS / "real_llamacpp.jsonl").read_text("utf-8").splitlines()]

GEMMA3 = (CORPUS / "vllm_gemma3.log").read_text("utf-8")
KIMI = (CORPUS / "sglang_kimi.log").read_text("utf-8")
# (line, engine, facts): the engines' own format strings with numbers filled in.
LINES = [tuple(json.loads(line)) for line in (CORPUS / "lines.jsonl").read_text("utf-8").splitlines()]


def only(text: str) -> LogReading:
    (found,) = read_log(text)
    return found


@pytest.mark.parametrize("record", recordings(), ids=lambda record: record.name)
def test_recorded_vllm_lines_give_the_records_figures(record) -> None:  # type: ignore[no-untyped-def]
    found = only("\n".join(record.log_lines))
    assert found.engine == "vllm"
    assert found.text("platform") == "cpu"
    assert found.whole("kv_cache_size_tokens") == record.kv_tokens
    concurrency = found.number("max_concurrency")
    assert concurrency == (None if record.concurrency is None else pytest.approx(record.concurrency))
    if record.max_model_len is not None:
        assert found.whole("max_model_len") == record.max_model_len
    available = found.amount("available_kv")
    assert available is not None
    one_block = record.kv_memory_bytes * 0.1
    assert abs(available.nearest_bytes - record.kv_memory_bytes) <= one_block


@pytest.mark.parametrize("record", recordings(), ids=lambda record: record.name)
def test_recorded_vllm_lines_are_explained(record) -> None:  # type: ignore[no-untyped-def]
    found = explain(only("\n".join(record.log_lines)), record.model())
    assert not found.refused
    for figure in found.figures:
        # What a flag asked for and no line repeats is named as the setting with which all comes out.
        assert figure.agrees or "would come out exactly" in figure.why or "numblocks" in record.name, figure


@pytest.mark.parametrize("record", LLAMACPP, ids=lambda record: record["name"])
def test_recorded_llamacpp_lines_give_the_records_figures(record) -> None:  # type: ignore[no-untyped-def]
    found = only("\n".join(record["log_lines"]))
    assert found.engine == "llama.cpp"
    assert len(found.caches) == len(record["sizes"])
    for cache, stated in zip(found.caches, record["sizes"], strict=True):
        assert cache.size.text == f"{stated['mib']:.2f} MiB"
        assert (cache.cells, cache.layers) == (stated["cells"], stated["layers"])
        assert f"{cache.sequences}/{cache.streams}" == stated["seqs"]
        assert cache.types == (stated["kt"], stated["vt"])
        assert [half.text for half in cache.halves] == [f"{stated['k']:.2f} MiB", f"{stated['v']:.2f} MiB"]
    asked = record["args"][record["args"].index("-c") + 1]
    assert found.whole("n_ctx") == (int(asked) or 8192)


CATALOGUED = {
    "smol": "HuggingFaceTB/SmolLM2-135M-Instruct", "gemma2-2b": "google/gemma-2-2b", "gemma3-27b":
    "google/gemma-3-27b-it", "gptoss-20b": "openai/gpt-oss-20b", "dsv2lite": "deepseek-ai/DeepSeek-V2-Lite",
}  # fmt: skip


@pytest.mark.parametrize("record", LLAMACPP, ids=lambda record: record["name"])
def test_recorded_llamacpp_lines_agree_with_the_prediction(record) -> None:  # type: ignore[no-untyped-def]
    model = catalogue.load(next(model for name, model in CATALOGUED.items() if record["name"].startswith(name)))
    found = explain(only("\n".join(record["log_lines"])), model)
    assert not found.refused
    assert len(found.figures) == 2 * len(record["sizes"])
    assert all(figure.agrees and figure.difference == 0 for figure in found.figures)
    assert "cells" in found.figures[0].why


@pytest.mark.parametrize(("line", "engine", "facts"), LINES, ids=lambda value: str(value)[:40])
def test_lines_of_each_version(line: str, engine: str, facts: dict[str, object]) -> None:
    found = only(line)
    assert found.engine == engine
    for name, expected in facts.items():
        value = found.facts[name]
        if isinstance(value, Amount):
            assert value == read_amount(str(expected))
        elif isinstance(value, Decimals):
            assert float(value.value) == pytest.approx(expected)
        else:
            assert value == expected, name


def test_old_and_new_cache_lines_of_llamacpp() -> None:
    old = only("llama_new_context_with_model: KV self size  =    9.00 MiB, K (f16):    4.50 MiB, V (f16):    4.50 MiB")
    assert (old.caches[0].size.nearest_bytes, old.caches[0].types) == (9 * MIB, ("f16", "f16"))
    latent = only("KV self size  = 1166.62 MiB, c^KV (q8_0): 1166.62 MiB, kv^T: not used")
    assert (latent.caches[0].size.text, latent.caches[0].types) == ("1166.62 MiB", ("q8_0",))
    state = only(
        "llama_memory_recurrent: size =   50.25 MiB (     1 cells,  32 layers,  1 seqs  0 rs_seq), R (f32):    2.25 "
        "MiB, S (f32):   48.00 MiB"
    )
    assert (state.caches[0].kind, state.caches[0].cells, state.caches[0].layers) == ("state", 1, 32)


def test_a_whole_vllm_log_agrees_figure_by_figure() -> None:
    answer = log_result(GEMMA3).to_dict()
    assert answer["recognised"]["model"] == "/google/gemma-3-27b-it"
    assert answer["recognised"]["tp"] == 1
    figures = {figure["name"]: figure for figure in answer["figures"]}
    assert set(figures) == {"blocks", "kv_cache_size_tokens", "max_concurrency"}
    assert all(figure["agrees"] for figure in figures.values())
    why = figures["kv_cache_size_tokens"]["why"]
    assert "205,696 lies inside" in why
    assert "8 padding layers" in why
    assert "blocks // 7" in why
    assert answer["scenario"] == {"model": "google/gemma-3-27b-it", "tokens": "4096"}
    assert answer["unread_lines"] == 0
    assert json.loads(json.dumps(answer)) == answer


def test_a_wrong_model_is_said_in_numbers() -> None:
    figures = {figure["name"]: figure for figure in log_result(GEMMA3, "google/gemma-3-4b-it").to_dict()["figures"]}
    tokens = figures["kv_cache_size_tokens"]
    assert not tokens["agrees"]
    assert tokens["difference"] == tokens["predicted"] - tokens["reported"] != 0
    assert "205,696 lies outside" in tokens["why"]


def test_a_setting_that_the_log_left_out_is_named() -> None:
    text = GEMMA3.replace("max_num_batched_tokens=8192", "max_num_batched_tokens=8192").replace("205,696", "102,848")
    text = text.replace("50.05x", "25.02x").replace("89994", "44996").replace("109.86", "109.86")
    # The same memory holds half as many tokens: nothing but a cache of four bytes would do, so nothing is claimed.
    assert all("would come out" not in figure["why"] for figure in log_result(text).to_dict()["figures"])
    fp8 = GEMMA3.replace("205,696", "411,408").replace("50.05x", "100.11x").replace("89994", "179994")
    for figure in log_result(fp8).to_dict()["figures"]:
        assert not figure["agrees"]
        assert "with a cache in fp8" in figure["why"]


def test_ollamas_own_lines_are_added_up_over_devices() -> None:
    text = (
        'time=2026-02-21 msg="starting runner" cmd="/bin/ollama runner --ollama-engine --port 1"\n'
        'msg=load request="{Operation:commit Parallel:1 BatchSize:512 KvSize:4096 KvCacheType:}"\n'
        'msg="model weights" device=CPU size="10.1 GiB"\n'
        'msg="kv cache" device=CUDA0 size="288.0 MiB"\nmsg="kv cache" device=CPU size="96.0 MiB"\n'
    )
    answer = log_result(text, "Qwen/Qwen3-30B-A3B").to_dict()
    assert answer["recognised"]["n_ctx"] == 4096
    (figure,) = answer["figures"]
    assert (figure["reported"], figure["predicted"], figure["agrees"]) == (384 * MIB, 384 * MIB, True)
    assert "288.0 MiB on CUDA0 + 96.0 MiB on CPU" in figure["why"]


def test_tensorrt_llm_is_compared_for_a_model_that_is_named() -> None:
    text = (
        "[TensorRT-LLM][INFO] Number of tokens per block: 32.\n"
        "[TensorRT-LLM][INFO] [MemUsageChange] Allocated 1.56 GiB for max tokens in paged KV cache (12800)."
    )
    figures = {one["name"]: one for one in log_result(text, "meta-llama/Llama-3.1-8B-Instruct").to_dict()["figures"]}
    assert figures["kv_cache_size_tokens"]["agrees"]
    assert figures["block_size"]["predicted"] == 32


def test_a_whole_sglang_log_agrees() -> None:
    answer = log_result(KIMI).to_dict()
    assert answer["recognised"]["tp"] == 8
    assert answer["recognised"]["free_now_bytes"] == 44 * GIB
    assert [figure["agrees"] for figure in answer["figures"]] == [True] * 3
    assert set(answer["recognised"]["ranks"]) == {"TP0", "TP1"}


def test_several_engines_and_models_in_one_text() -> None:
    mixed = "\n".join(line for pair in zip(GEMMA3.splitlines(), KIMI.splitlines(), strict=False) for line in pair)
    rest = "\n".join(GEMMA3.splitlines()[len(KIMI.splitlines()) :])
    found = read_log(f"{mixed}\n{rest}")
    assert [(one.engine, one.whole("kv_cache_size_tokens")) for one in found] == [("vllm", 205696), ("sglang", 2454421)]
    twice = read_log(GEMMA3 + GEMMA3.replace("gemma-3-27b-it", "gemma-3-4b-it").replace("205,696", "7"))
    assert [one.whole("kv_cache_size_tokens") for one in twice] == [205696, 7]
    assert [one.model for one in twice] == ["/google/gemma-3-27b-it", "/google/gemma-3-4b-it"]
    assert len(log_result(GEMMA3 + KIMI).to_dict()["readings"]) == 2


def test_runs_that_begin_again_are_apart() -> None:
    runs = "".join(
        f"Loading model weights took 14.9888 GB\n# GPU blocks: {blocks}, # CPU blocks: 2048\n"
        f"Maximum concurrency for {length} tokens per request: 1.5x\n"
        for blocks, length in ((1952, 20000), (1478, 29000))
    )
    assert [one.whole("blocks") for one in read_log(runs)] == [1952, 1478]


def test_ranks_keep_their_own_figures_and_the_tightest_decides() -> None:
    text = "\n".join(
        f"(Worker_TP{rank} pid={90 + rank}) INFO [gpu_worker.py:298] Available KV cache memory: {memory} GiB"
        for rank, memory in ((0, "8.69"), (1, "7.47"), (2, "8.11"))
    )
    found = only(text)
    assert str(found.amount("available_kv")) == "7.47 GiB"
    assert {rank: str(facts["available_kv"]) for rank, facts in found.ranks.items()} == {
        "TP0": "8.69 GiB", "TP1": "7.47 GiB", "TP2": "8.11 GiB",
    }  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.replace("INFO", "\x1b[32mINFO\x1b[0m").replace("GPU KV", "\x1b[1;36mGPU KV"),
        lambda text: "\n".join("[pod/vllm-7d9f/server] " + line[10:] for line in text.splitlines()),
        lambda text: "\n".join("2025-09-25T13:40:28.123456789Z stdout F " + line[10:] for line in text.splitlines()),
        lambda text: "\n".join(line[10:] for line in text.splitlines()),
        lambda text: text.replace("13:40", "\x00\x07 13:40\t"),
    ],
    ids=["crlf", "ansi", "kubernetes", "containerd", "plain", "control"],
)
def test_what_surrounds_a_line_changes_nothing(change) -> None:  # type: ignore[no-untyped-def]
    found = only(change(GEMMA3))
    assert (found.whole("kv_cache_size_tokens"), found.whole("blocks")) == (205696, 89994)
    assert found.whole("max_model_len") == 4096


def test_lines_that_say_nothing_are_counted_and_shown() -> None:
    found = only("hello\n" + GEMMA3 + "\n".join(f"GET /health {number}" for number in range(9)))
    assert found.unread_lines == 10
    assert found.unread_samples[0] == "hello"
    assert len(found.unread_samples) == 5


def test_a_text_without_an_engine_is_refused() -> None:
    assert read_log("nothing here\nneither here") == ()
    with pytest.raises(LogError) as problem:
        log_result("nothing here").to_dict()
    assert problem.value.kind == "log"


def test_an_unknown_model_leaves_the_figures_standing() -> None:
    answer = log_result(GEMMA3.replace("/google/gemma-3-27b-it", "acme/Secret-9B")).to_dict()
    assert answer["scenario"] is None
    assert "acme/Secret-9B is not known here" in answer["refused"]
    assert {figure["predicted"] for figure in answer["figures"]} == {None}
    with pytest.raises(ModelError):
        log_result(GEMMA3, "acme/Secret-9B").to_dict()


@pytest.mark.parametrize(
    ("stated", "known"),
    [
        ("google/gemma-3-27b-it", True),
        ("/models/google/gemma-3-27b-it/", True),
        ("/root/.cache/huggingface/hub/models--google--gemma-3-27b-it/snapshots/abc", True),
        ("C:\\models\\gemma-3-27b-it", True),
        ("other/gemma-3-27b-it", False),
        ("google/gemma-3-27b-it-AWQ", False),
    ],
)
def test_models_are_taken_by_name_only_where_they_are_named_in_full(stated: str, known: bool) -> None:
    reading = only(f"Initializing an LLM engine (v0.6.0) with config: model='{stated}', seed=0")
    assert (model_of(reading)[0] is not None) == known


def test_the_budget_is_checked_from_the_logs_own_parts() -> None:
    text = (
        "INFO total_gpu_memory (23.63GiB) x gpu_memory_utilization (0.59) = 13.94GiB\n"
        "model weights take 4.04GiB; non_torch_memory takes 0.08GiB; PyTorch activation peak memory takes 0.28GiB; "
        "the rest of the memory reserved for KV Cache is 9.53GiB."
    )
    config = {"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
              "num_key_value_heads": 8, "max_position_embeddings": 1024}  # fmt: skip
    figures = explain(only(text), model_from_config(config)).figures
    (budget,) = [figure for figure in figures if figure.name == "available_kv"]
    assert budget.agrees
    assert "23.63GiB × 0.59 − 4.04GiB − 0.28GiB − 0.08GiB" in budget.why


def test_rounded_numbers_are_intervals() -> None:
    amount = read_amount("10.31 GiB")
    assert amount.holds(round(10.3051 * GIB))
    assert amount.holds(round(10.3149 * GIB))
    assert not amount.holds(round(10.3160 * GIB))
    assert read_amount("1,024 MiB").nearest_bytes == GIB
    assert read_amount("2 GB").nearest_bytes == 2 * GIB
    assert read_decimals("2.84").holds(read_decimals("2.84375").value)


def test_a_damaged_unit_is_left_out() -> None:
    found = only("Memory profiling results: total_gpu_memory=23.58GiB non_torch_memory=0.357iB kv_cache_size=3.81GiB")
    assert found.amount("non_torch") is None
    assert str(found.amount("available_kv")) == "3.81GiB"


def test_the_table_is_complete() -> None:
    named = {name for pattern in PATTERNS for name in pattern.regex.groupindex}
    assert all(pattern.source for pattern in PATTERNS)
    assert set(FLAGS) <= named
    for pattern in PATTERNS:
        # A repeat without a bound could take forever; every one of them has one.
        bare = pattern.regex.pattern.replace(r"\+", "").replace(r"\*", "").replace("[\\w.+-]", "w")
        assert "*" not in bare, pattern.regex.pattern
        assert "+" not in bare, pattern.regex.pattern
    assert set(KINDS) & named


TEXTS = [GEMMA3, KIMI, *("\n".join(record["log_lines"]) for record in LLAMACPP), *(line for line, _, _ in LINES)]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_cut_reordered_and_mixed_logs_are_answered(data: st.DataObject) -> None:
    lines = [line for text in data.draw(st.lists(st.sampled_from(TEXTS), min_size=1, max_size=3)) for line in
             text.splitlines()]  # fmt: skip
    random.Random(data.draw(st.integers(0, 10**6))).shuffle(lines)
    cuts = data.draw(st.lists(st.integers(0, 200), max_size=20))
    for place, cut in enumerate(cuts):
        lines[place % len(lines)] = lines[place % len(lines)][:cut]
    noise = data.draw(st.text(max_size=200))
    _check("\n".join(lines) + noise)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=2000))
def test_any_text_is_answered(text: str) -> None:
    _check(text)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from([pattern.needle for pattern in PATTERNS] + list("0123456789,.=:'\"{}()[] GMKiBx\n")),
                max_size=60))  # fmt: skip
def test_needles_and_fragments_are_answered(parts: list[str]) -> None:
    _check("".join(parts))


SMALL = (
    model_from_config({"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2,
                       "max_position_embeddings": 64}),
    model_from_config({"model_type": "gemma3_text", "num_hidden_layers": 6, "hidden_size": 64, "num_attention_heads": 2,
                       "num_key_value_heads": 1, "head_dim": 32, "sliding_window": 32, "sliding_window_pattern": 6,
                       "max_position_embeddings": 4096}),
)  # fmt: skip


def _check(text: str) -> None:
    for reading in read_log(text):
        for model in (None, *SMALL):
            assert isinstance(explain(reading, model, guess=False).refused, str)
        assert reading.read_lines + reading.unread_lines <= text.count("\n") + text.count("\r") + 1
    try:
        json.dumps(log_result(text).to_dict())
    except LogError:
        assert not read_log(text)


HOSTILE = {
    "newlines": "\n" * 3_000_000,
    "one line": "x" * 10_100_000,
    "needles": ("1".join(pattern.needle for pattern in PATTERNS) + "\n") * 300,
    "digits": ("GPU KV cache size: " + "9," * 4000 + "\n") * 50,
    "pairs": ("Initializing an LLM engine (v0.4.1) with config: " + "model='" * 1300 + "\n") * 50,
    "escapes": ("\x1b[" + "0;" * 4000 + "\n") * 50,
    "control": "".join(map(chr, range(1, 32))) * 30_000,
    "begins": "Loading model weights took 1.0 GB\n# GPU blocks: 7\n" * 20_000,
    "zeros": "size = 9.99 MiB ( 0 cells, 0 layers, 0/0 seqs)\nMaximum concurrency for 0 tokens per request: 0x\n" * 9,
    "huge": "GPU KV cache size: 9999999999999999999 tokens\nUsing max model len 9999999999999999999\n",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_texts_are_answered_within_bounds(name: str) -> None:
    found = read_log(HOSTILE[name])
    assert len(found) <= reading_module.MAX_READINGS
    assert sum(one.read_lines + one.unread_lines for one in found) <= reading_module.MAX_LINES
    for one in found:
        explain(one, SMALL[0])


def test_no_more_than_the_limits_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_module, "MAX_LINES", 3)
    found = only("# GPU blocks: 9\n\na\nb\n# GPU blocks: 5\n")
    assert (found.whole("blocks"), found.read_lines, found.unread_lines) == (9, 1, 2)
    monkeypatch.setattr(reading_module, "MAX_CHARACTERS", 15)
    assert only("# GPU blocks: 9\n# GPU blocks: 5").whole("blocks") == 9
    monkeypatch.setattr(reading_module, "MAX_LINE", 10)
    assert read_log("# GPU blocks: 9") == ()
