"""Launch commands: what they say, that the engines' own parsers take them, and that a hostile name does nothing."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import llamacpp_parser
from kvcore.deployment import OWN_HEAD, Deployment, Draft
from kvcore.engines.registry import engine_names
from kvcore.errors import KVCoreError
from kvcore.hardware.gpus import accelerator
from kvcore.planning.launch import Command, launch
from kvcore.planning.launch_words import PLACEHOLDER
from kvcore.sources import catalogue
from tests.plan import engine_parsers, transformers_script
from tests.plan.bash import assert_seen_as_words
from tests.plan.engine_parsers import parsed
from tests.plan.launch_cases import DEEPSEEK, DRAFT, GEMMA, HOSTILE, LLAMA, UNPRINTABLE, V32, Case, cases, h100, named


def made(name: str, deployment: Deployment, users: int | None = None) -> Command:
    return launch(catalogue.load(name), deployment, users)


def test_vllm_says_what_differs_from_its_defaults() -> None:
    assert made(LLAMA, h100(tp=4)).text == (
        "vllm serve meta-llama/Llama-3.3-70B-Instruct --max-model-len 32768 --tensor-parallel-size 4"
    )


def test_vllm_says_the_whole_deployment() -> None:
    deployment = h100(
        tp=8, pp=2, dp=2, dcp=2, expert_parallel=True, dp_attention=True, kv_dtype="fp8", utilization=0.85,
        max_num_batched_tokens=4096, max_num_seqs=64, enforce_eager=True, prefix_caching=False, speculative_tokens=3,
        options=(("block_size", 64), ("mtp_layers", 1), ("no_async_scheduling", True)),
    )  # fmt: skip
    command = made(DEEPSEEK, deployment)
    assert parsed("vllm", command.words) == {
        "model": DEEPSEEK, "--max-model-len": 32_768, "--tensor-parallel-size": 8, "--pipeline-parallel-size": 2,
        "--data-parallel-size": 2, "--decode-context-parallel-size": 2, "--enable-expert-parallel": True,
        "--kv-cache-dtype": "fp8", "--gpu-memory-utilization": 0.85, "--max-num-batched-tokens": 4096,
        "--max-num-seqs": 64, "--enforce-eager": True, "--no-enable-prefix-caching": True, "--block-size": 64,
        "--no-async-scheduling": True, "--speculative-config": {"method": "mtp", "num_speculative_tokens": 3},
    }  # fmt: skip
    # 8 × 2 × 2 GPUs are four hosts of eight.
    assert any("32 GPUs are 4 hosts" in note and "--nnodes" in note and "ray" in note for note in command.notes)


def test_vllm_bytes_stand_in_place_of_a_share() -> None:
    command = made(LLAMA, h100(tp=4, kv_bytes=40 * 2**30, utilization=0.9))
    found = parsed("vllm", command.words)
    assert found["--kv-cache-memory-bytes"] == 42_949_672_960
    assert "--gpu-memory-utilization" not in found


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("bf16", "bfloat16"), ("fp16", "float16"), ("fp8", "fp8"), ("fp8_e5m2", "fp8"), ("nvfp4", "nvfp4"),
        ("tq_k8v4", "turboquant_k8v4"), ("int4_per_token_head", "int4_per_token_head"),
    ],
)  # fmt: skip
def test_vllm_cache_formats_have_its_own_words(ours: str, theirs: str) -> None:
    assert parsed("vllm", made(LLAMA, h100(tp=4, kv_dtype=ours)).words)["--kv-cache-dtype"] == theirs


def test_weights_are_an_option_only_where_the_engine_makes_them() -> None:
    fp8 = made(LLAMA, h100(tp=4, weight_format="fp8"))
    assert parsed("vllm", fp8.words)["--quantization"] == "fp8"
    awq = made(LLAMA, h100(tp=4, weight_format="awq"))
    assert "--quantization" not in awq.words
    assert any("awq weights are no option" in note for note in awq.notes)
    # Its own format is not said, and fp8 of a checkpoint that is fp8 is its own.
    assert made(LLAMA, h100(tp=4, weight_format="bf16")).words == made(LLAMA, h100(tp=4)).words
    assert "--quantization" not in made(DEEPSEEK, h100(tp=8, weight_format="fp8")).words
    assert (
        parsed("sglang", made(LLAMA, h100(engine="sglang", tp=4, weight_format="fp16")).words)["--dtype"] == "float16"
    )


def _argparse(engine: str, case: Case) -> None:
    found = parsed(engine, case.command.words)
    taken = (found.get("model", found.get("--model-path")), found.get("--max-model-len", found.get("--context-length")))
    assert taken == (case.reference, case.deployment.context)
    assert "--trust-remote-code" not in found


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_commands_parse_as_the_engine_s_own_parser_does(engine: str) -> None:
    """The catalogue, every option and hostile names, by what was recorded of the parser: kinds, choices and all."""
    made, _ = cases(engine)
    assert len(made) > 300
    for case in made:
        _argparse(engine, case)


def test_trtllm_serve_takes_the_commands_and_their_files() -> None:
    made, _ = cases("tensorrt-llm")
    assert len(made) > 300
    read = [engine_parsers.tensorrt_llm(case) for case in made]
    kinds = {kind for found in read for kind in found.get("file", {})}
    assert kinds == {"kv_cache_config", "enable_attention_dp", "cuda_graph_config", "speculative_config"}


def test_ollama_takes_the_variables_and_the_modelfile() -> None:
    made, _ = cases("ollama")
    assert len(made) > 200
    read = [engine_parsers.ollama(case) for case in made]
    assert {"OLLAMA_KV_CACHE_TYPE", "OLLAMA_FLASH_ATTENTION", "num_batch", "num_gpu"} <= set().union(*read)


def test_llama_cpp_takes_the_commands_as_meant() -> None:
    """llama.cpp's own parser, in the library that is installed."""
    made, _ = cases("llama.cpp")
    assert len(made) > 300
    for case, found in zip(made, llamacpp_parser.parse([list(case.command.words[1:]) for case in made]), strict=True):
        assert "error" not in found, (case.command.text, found)
        words = case.command.words
        assert found["model"] == words[words.index("--model") + 1]
        assert found["n_ctx"] == int(words[words.index("--ctx-size") + 1])
        proposes = bool(case.deployment.speculative_tokens) and case.deployment.draft is None
        assert ("COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE" in found["spec_types"]) == proposes, case.command.text
        assert not proposes or found["ngram_size_m"] == case.deployment.speculative_tokens


def test_llama_cpp_s_parser_refuses_what_is_wrong() -> None:
    """The check of commands can fail: an unknown option, a value of another kind, a choice that is none."""
    wrong = [["--tensor-parallel-size", "2"], ["--ctx-size", "x"], ["--cache-type-k", "fp9"], ["--flash-attn"]]
    found = llamacpp_parser.parse([*wrong, ["--help"], ["--ctx-size", "4096"]])
    assert all("error" in one for one in found[:5])
    assert found[5]["n_ctx"] == 4096


def test_the_recorded_parsers_refuse_what_is_wrong() -> None:
    for words in (("--max-model-len", "x"), ("--kv-cache-dtype", "q8_0"), ("--bogus", "1"), ("second",)):
        with pytest.raises(ValueError, match="invalid|unrecognized"):
            parsed("vllm", ("vllm", "serve", "m", *words))
    for name in ("serve", "disaggregated"):
        with pytest.raises(ValueError, match="required|a command of its own"):
            parsed("tensorrt-llm", ("trtllm-serve", name, "--max_seq_len", "8"))
    for text in ("kv_cache_config: {tokens: 1}", "kv_cache_config: {max_tokens: a}", "tp: 1", "cuda_graph_config: 1",
                 "speculative_config: {decoding_type: NGram, max_draft_len: 3}"):  # fmt: skip
        with pytest.raises(ValueError, match="field|is no|has to be given"):
            engine_parsers.tensorrt_llm_file(text)
    for text in ("PARAMETER num_ctx 8", "FROM a\nPARAMETER ctx 8", "FROM a\nPARAMETER num_ctx x", "FROM a\nRUN x"):
        with pytest.raises(ValueError, match="FROM|parameter|invalid|instruction"):
            engine_parsers.modelfile(text)
    with pytest.raises(ValueError, match="no variable"):
        engine_parsers.ollama_environment(("OLLAMA_CTX=1",))


def test_sglang_counts_attention_ranks_as_its_tensor_parallel_ranks() -> None:
    found = parsed("sglang", made(*_sglang(V32, dp=8, dp_attention=True, expert_parallel=True)).words)
    assert (found["--tp-size"], found["--dp-size"], found["--ep-size"]) == (8, 8, 8)
    assert found["--enable-dp-attention"] is True
    # Replicas that share nothing are SGLang's dp beside its tp.
    found = parsed("sglang", made(*_sglang(LLAMA, tp=4, dp=2)).words)
    assert (found["--tp-size"], found["--dp-size"]) == (4, 2)


def _sglang(name: str, **more: Any) -> tuple[str, Deployment]:
    return name, h100(engine="sglang", **more)


def test_sglang_bytes_are_said_in_tokens() -> None:
    # Llama 3.3 70B over 4 ranks: 80 layers × 2 heads × 2 × 128 × 2 B = 81,920 B a token; 40 GiB are 524,288 of them.
    command = made(*_sglang(LLAMA, tp=4, kv_bytes=40 * 2**30))
    assert parsed("sglang", command.words)["--max-total-tokens"] == 524_288


def test_tensorrt_llm_has_a_file_for_what_no_option_says() -> None:
    more: dict[str, Any] = {
        "kv_dtype": "fp8",
        "kv_bytes": 10**10,
        "utilization": 0.8,
        "enforce_eager": True,
        "prefix_caching": False,
    }
    command = made(LLAMA, h100(engine="tensorrt-llm", tp=4, **more))
    ((name, text),) = command.files
    assert command.words[-2:] == ("--extra_llm_api_options", name)
    assert text == (
        "kv_cache_config:\n  dtype: fp8\n  enable_block_reuse: false\n  max_gpu_total_bytes: 10000000000\n"
        "  free_gpu_memory_fraction: 0.8\ncuda_graph_config: null\n"
    )
    attention = made(DEEPSEEK, h100(engine="tensorrt-llm", dp=8, dp_attention=True, expert_parallel=True))
    found = parsed("tensorrt-llm", attention.words)
    assert (found["--tp_size"], found["--ep_size"]) == (8, 8)
    assert attention.files[0][1] == "enable_attention_dp: true\n"


def test_tensorrt_llm_names_that_are_its_commands_stand_behind_serve() -> None:
    model = named(catalogue.load(LLAMA), "disaggregated")
    assert launch(model, h100(engine="tensorrt-llm")).words[:3] == ("trtllm-serve", "serve", "disaggregated")
    assert made(LLAMA, h100(engine="tensorrt-llm")).words[:2] == ("trtllm-serve", LLAMA)


def test_tensorrt_llm_proposals_say_how_much_they_look_up() -> None:
    """Without it the length is 0, which its LlmArgs refuse."""
    text = made(LLAMA, h100(engine="tensorrt-llm", speculative_tokens=3)).files[0][1]
    assert text == ("speculative_config:\n  decoding_type: NGram\n  max_draft_len: 3\n  max_matching_ngram_size: 4\n")


@pytest.mark.parametrize("kv", ["q8_0", "q4_0/q8_0", "mxfp8", "fp4_mx_block16"])
def test_a_cache_format_that_vllm_has_no_word_for_is_refused(kv: str) -> None:
    with pytest.raises(KVCoreError):
        made(LLAMA, h100(kv_dtype=kv))


def test_llama_cpp_options_say_the_deployment() -> None:
    deployment = Deployment(
        gpu=accelerator("rtx-4090"), context=8192, pp=2, engine="llama.cpp", kv_dtype="q8_0/q4_0", weight_format="q4_k",
        max_num_batched_tokens=4096, prefix_caching=False, speculative_tokens=2,
        options=(("flash_attn", "on"), ("n_gpu_layers", 40), ("split_mode", "layer"), ("tensor_split", "3,1")),
    )  # fmt: skip
    command = made(GEMMA, deployment, users=4)
    text = " " + command.text + " "
    # Slots share the context: four of 8,192 tokens.
    for part in ("--ctx-size 32768", "--parallel 4", "--cache-type-k q8_0", "--cache-type-v q4_0", "--batch-size 4096",
                 "--ubatch-size 4096", "--no-cache-prompt", "--tensor-split 3,1", "--spec-type ngram-simple",
                 "--spec-ngram-simple-size-m 2"):  # fmt: skip
        assert f" {part} " in text
    assert command.words[:3] == ("llama-server", "--model", "./gemma-3-27b-it-Q4_K.gguf")


def test_llama_cpp_slots_are_what_was_asked_for() -> None:
    """A server that is told its context and slots is started so, whatever the users are."""
    options = (("ctx_size", 16_384), ("parallel", 2))
    words = made(LLAMA, h100(engine="llama.cpp", options=options, context=8192), users=9).words
    assert words[words.index("--ctx-size") + 1 : words.index("--ctx-size") + 4] == ("16384", "--parallel", "2")


def test_ollama_has_its_environment_and_a_modelfile() -> None:
    deployment = Deployment(
        gpu=accelerator("rtx-4090"), context=8192, pp=2, engine="ollama", kv_dtype="q8_0", weight_format="q4_k",
        options=(("num_gpu", 40),),
    )  # fmt: skip
    command = made(GEMMA, deployment, users=3)
    assert command.text.splitlines() == [
        "OLLAMA_CONTEXT_LENGTH=8192 OLLAMA_NUM_PARALLEL=3 OLLAMA_KV_CACHE_TYPE=q8_0 ollama serve",
        "ollama create kv-plan -f Modelfile",
        "ollama run kv-plan",
    ]
    assert command.files == (
        ("Modelfile", "FROM ./gemma-3-27b-it-Q4_K.gguf\nPARAMETER num_ctx 8192\nPARAMETER num_gpu 40\n"),
    )


def test_transformers_takes_the_script() -> None:
    """The file is run with the real library, on a tiny model."""
    made, _ = cases("transformers")
    assert len(made) > 200
    for case in made:
        transformers_script.check(case)


def test_transformers_is_a_few_lines_of_python() -> None:
    command = made(LLAMA, h100(engine="transformers", weight_format="fp8"), users=3)
    ((name, text),) = command.files
    assert command.words == ("python", name)
    assert "max_length=32768" in text
    assert "* 3\n" in text


@pytest.mark.parametrize(
    ("engine", "how"), [("vllm", '{"method": "mtp"'), ("sglang", "NEXTN"), ("tensorrt-llm", "decoding_type: MTP")]
)
def test_a_prediction_head_is_not_assumed(engine: str, how: str) -> None:
    """Proposals from the prompt start whatever the checkpoint has; the note says how its head is used."""
    command = made(DEEPSEEK, h100(engine=engine, tp=8, speculative_tokens=2))
    assert any(how in note and "num_nextn_predict_layers" in note for note in command.notes)
    words = " ".join(command.words) + "".join(text for _, text in command.files)
    assert "ngram" in words.lower()
    assert "mtp" not in words.lower()


def test_one_replica_at_a_time_is_said() -> None:
    for engine, more in (("tensorrt-llm", {}), ("llama.cpp", {}), ("ollama", {}), ("transformers", {})):
        notes = made(LLAMA, h100(engine=engine, dp=3, **more)).notes
        assert any("3 times" in note for note in notes), engine


@pytest.mark.parametrize("engine", engine_names())
def test_hostile_names_are_one_word_to_bash(engine: str, tmp_path: Path) -> None:
    """bash that is given the text sees exactly our words, and nothing in a name is run or read as an option."""
    commands = [launch(named(catalogue.load(LLAMA), name), h100(engine=engine)) for name in HOSTILE]
    assert_seen_as_words(commands, tmp_path)
    assert not Path("/tmp/owned").exists()


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_draft_arrives_as_itself(name: str) -> None:
    draft = Draft(name=name, model=catalogue.load(DRAFT))
    reference = f"./{name}" if name.startswith("-") else name
    found = parsed("vllm", made(LLAMA, h100(speculative_tokens=3, draft=draft)).words)
    assert found["--speculative-config"]["model"] == reference
    found = parsed("sglang", made(LLAMA, h100(engine="sglang", speculative_tokens=3, draft=draft)).words)
    assert found["--speculative-draft-model-path"] == reference
    ((_, text),) = made(LLAMA, h100(engine="tensorrt-llm", speculative_tokens=3, draft=draft)).files
    assert engine_parsers.tensorrt_llm_file(text)["speculative_config"]["speculative_model"] == reference
    words = made(LLAMA, h100(engine="llama.cpp", speculative_tokens=3, draft=draft)).words
    (read,) = llamacpp_parser.parse([list(words[1:])])
    assert re.fullmatch(r"\./[A-Za-z0-9][A-Za-z0-9._-]*\.gguf", read["draft_model"])
    assert "COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE" in read["spec_types"]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_written_in_files_as_itself_or_not_at_all(name: str) -> None:
    model = named(catalogue.load(LLAMA), name)
    for engine in ("llama.cpp", "ollama"):
        command = launch(model, h100(engine=engine))
        file = command.words[2] if engine == "llama.cpp" else command.files[0][1].split()[1]
        assert re.fullmatch(r"\./[A-Za-z0-9][A-Za-z0-9._-]*\.gguf", file)
    script = launch(model, h100(engine="transformers")).files[0][1]
    assigned = [node for node in ast.parse(script).body if isinstance(node, ast.Assign)]
    assert ast.literal_eval(assigned[0].value) == (f"./{name}" if name.startswith("-") else name)


@pytest.mark.parametrize("engine", engine_names())
@pytest.mark.parametrize("name", UNPRINTABLE)
def test_a_name_that_a_terminal_would_act_upon_is_not_shown(engine: str, name: str) -> None:
    command = launch(named(catalogue.load(LLAMA), name), h100(engine=engine))
    shown = command.text + "".join(text for _, text in command.files)
    assert shown.replace("\n", "").isprintable()
    assert PLACEHOLDER in shown
    assert any(PLACEHOLDER in note for note in command.notes)


@pytest.mark.parametrize("kv", ["; id", "--trust-remote-code", "fp8\n", "$(id)"])
@pytest.mark.parametrize("engine", engine_names())
def test_a_format_that_is_none_is_refused(engine: str, kv: str) -> None:
    if kv == "fp8\n" and engine in ("vllm", "sglang", "tensorrt-llm"):
        assert "\n" not in made(LLAMA, h100(engine=engine, kv_dtype=kv)).text
        return
    with pytest.raises(KVCoreError):
        made(LLAMA, h100(engine=engine, kv_dtype=kv))


def test_recorded_options_say_where_they_are_from() -> None:
    for path in sorted((Path(__file__).parent / "data").glob("options_*.json")):
        recorded = json.loads(path.read_text("utf-8"))
        assert recorded["version"]
        assert recorded["how"]
        assert len(recorded["options"]) >= 20


def test_every_engine_has_a_command() -> None:
    for engine in engine_names():
        plain = replace(h100(), engine=engine)
        assert made(LLAMA, plain).words


def test_what_a_command_needs_beside_itself_is_said() -> None:
    """Packages that the library imports only when the script runs."""
    plain = made(LLAMA, h100(engine="transformers"))
    quantised = made(LLAMA, h100(engine="transformers", options=(("cache_implementation", "quantized"),)))
    assert "accelerate" in " ".join(plain.notes)
    assert "optimum-quanto" not in " ".join(plain.notes)
    assert "optimum-quanto" in " ".join(quantised.notes)


def test_ollama_is_asked_for_tokens_ahead_only_where_it_can_be() -> None:
    """draft_num_predict is a parameter of its Modelfile; it has none for proposals from the prompt."""
    deployment = h100(engine="ollama", pp=4, speculative_tokens=2)
    prompt, own = (
        made("zai-org/GLM-4.5-Air", deployment),
        made("zai-org/GLM-4.5-Air", replace(deployment, draft=OWN_HEAD)),
    )
    assert "PARAMETER draft_num_predict 2\n" in own.files[0][1]
    assert "draft_num_predict" not in prompt.files[0][1]
    assert any("2 tokens ahead are not asked for" in note for note in prompt.notes)
    assert not any("not asked for" in note for note in own.notes)
