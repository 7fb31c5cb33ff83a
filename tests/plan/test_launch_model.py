"""What stands for a model of a user's own in a launch command: the path as typed, or a word and a note."""

from __future__ import annotations

import ast
import json
import os
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from kvcore.deployment import Draft
from kvcore.engines.registry import engine_names
from kvcore.errors import EngineError
from kvcore.model.model import Files, Model
from kvcore.planning.launch import Command, launch
from kvcore.planning.launch_words import PLACEHOLDER
from kvcore.sources import catalogue
from kvcore.sources import files as sources
from kvcore.variants.variants import variant
from tests.gguf_writer import LLAMA as GGUF_KEYS
from tests.gguf_writer import TENSORS, write
from tests.models import LLAMA as CONFIG
from tests.plan import engine_parsers
from tests.plan.bash import assert_seen_as_words
from tests.plan.engine_parsers import parsed
from tests.plan.launch_cases import DRAFT, HOSTILE, LLAMA, h100

# Engines that load a folder of Hugging Face's format.
LOADERS = ("vllm", "sglang", "tensorrt-llm", "transformers")


def given(engine: str, command: Command) -> str:
    """What the engine is told to load."""
    if engine == "transformers":
        assigned = [node for node in ast.parse(command.files[0][1]).body if isinstance(node, ast.Assign)]
        return str(ast.literal_eval(assigned[0].value))
    if engine == "ollama":
        return str(engine_parsers.modelfile(command.files[0][1])["model"])
    if engine == "llama.cpp":
        return command.words[command.words.index("--model") + 1]
    found = parsed(engine, command.words)
    return str(found["--model-path" if engine == "sglang" else "model"])


def placed(path: str, kind: str) -> Model:
    return replace(catalogue.load(LLAMA), name="m", files=Files(path=path, kind=kind))  # type: ignore[arg-type]


def made(model: Model, engine: str) -> Command:
    return launch(model, replace(h100(context=4096), engine=engine))


@pytest.mark.parametrize("engine", engine_names())
def test_a_folder_is_given_as_it_was_typed(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "models" / "my model"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG), "utf-8")
    monkeypatch.chdir(tmp_path)
    for typed in (str(folder), "models/my model", "./models/my model/"):
        command = made(sources.load(typed).model, engine)
        # Without a GGUF file beside it a name stands for one, as for every other model.
        assert given(engine, command) == (typed if engine in LOADERS else "./my-model-BF16.gguf")
        if engine in ("vllm", "sglang", "tensorrt-llm"):
            assert shlex.quote(typed) in command.text
    # The configuration itself is no checkpoint: its folder is, where the weights lie there.
    command = made(sources.load(str(folder / "config.json")).model, engine)
    assert given(engine, command) == (str(folder) if engine in LOADERS else "./my-model-BF16.gguf")
    assert any("the weights have to lie there" in note for note in command.notes) == (engine in LOADERS)
    monkeypatch.chdir(folder)
    if engine in LOADERS:
        assert given(engine, made(sources.load("config.json").model, engine)) == "."


@pytest.mark.parametrize("engine", engine_names())
def test_a_configuration_alone_is_no_checkpoint(engine: str, tmp_path: Path) -> None:
    path = tmp_path / "q15.json"
    path.write_text(json.dumps(CONFIG), "utf-8")
    command = made(sources.load(str(path)).model, engine)
    assert given(engine, command) == (PLACEHOLDER if engine in LOADERS else "./q15-BF16.gguf")
    meant = "in place of MODEL: a configuration alone (q15.json)" if engine in LOADERS else "stands for a GGUF file"
    assert any(meant in note for note in command.notes)


@pytest.mark.parametrize("engine", engine_names())
@pytest.mark.parametrize("name", ["my model.gguf", "-x.gguf", "sha256-0123"])
def test_a_gguf_file_is_given_as_it_was_typed(
    engine: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).write_bytes(write("llama", GGUF_KEYS, TENSORS))
    monkeypatch.chdir(tmp_path)
    for typed, safe in ((str(tmp_path / name), str(tmp_path / name)), (name, f"./{name}"), (f"./{name}", f"./{name}")):
        model = sources.load(typed).model
        command = made(model, engine)
        if engine in LOADERS:
            assert given(engine, command) == PLACEHOLDER
            assert any("in place of MODEL" in note and "GGUF" in note for note in command.notes)
        else:
            assert given(engine, command) == safe
            assert not any("stands for" in note for note in command.notes)
    # In another format it is another file.
    if engine not in LOADERS:
        other = launch(model, replace(h100(context=4096, weight_format="q8_0"), engine=engine))
        assert given(engine, other).endswith("-Q8_0.gguf")
        assert any("stands for" in note for note in other.notes)


@pytest.mark.parametrize("kind", ["folder", "config", "gguf"])
@pytest.mark.parametrize("engine", engine_names())
def test_hostile_paths_are_one_word_to_bash(engine: str, kind: str, tmp_path: Path) -> None:
    commands = []
    for name in HOSTILE:
        path = {"folder": name, "config": f"{name}/config.json", "gguf": f"{name}.gguf"}[kind]
        command = made(placed(path, kind), engine)
        commands.append(command)
        told = given(engine, command)
        assert not told.startswith("-")
        if engine in LOADERS and kind != "gguf":
            assert os.path.normpath(told) == os.path.normpath(name)
        elif engine in LOADERS:
            assert told == PLACEHOLDER
        elif kind == "gguf":
            assert told == f"./{path}"
    assert_seen_as_words(commands, tmp_path)


@pytest.mark.parametrize("kind", ["folder", "config", "gguf"])
@pytest.mark.parametrize("engine", engine_names())
@pytest.mark.parametrize(
    "path", ["/a\nrm -rf ~", "/a\x1b[201~\nid", "/a\tb", "/\u202eabc", "/a\udcff", f"/{'x' * 4096}"]
)
def test_a_path_that_a_terminal_would_act_upon_is_not_shown(engine: str, kind: str, path: str) -> None:
    command = made(placed(f"{path}/config.json" if kind == "config" else path, kind), engine)
    shown = command.text + "".join(text for _, text in command.files) + "".join(command.notes)
    assert shown.replace("\n", "").isprintable()
    assert len(shown) < 4096
    assert given(engine, command) == (PLACEHOLDER if engine in LOADERS else "./m-BF16.gguf")
    assert any(PLACEHOLDER in note or "stands for" in note for note in command.notes)


def test_a_draft_is_given_as_it_was_typed() -> None:
    base, draft = catalogue.load(LLAMA), catalogue.load(DRAFT)

    def proposed(path: str, kind: str, engine: str) -> Command:
        files = Files(path=path, kind=kind)  # type: ignore[arg-type]
        chosen = Draft(name="d", model=replace(draft, name="d", files=files))
        return launch(base, h100(engine=engine, speculative_tokens=3, draft=chosen))

    for path, kind, reference in (("/m/my draft", "folder", "/m/my draft"), ("/m/d.json", "config", "DRAFT_MODEL")):
        found = parsed("vllm", proposed(path, kind, "vllm").words)
        assert found["--speculative-config"]["model"] == reference
        assert parsed("sglang", proposed(path, kind, "sglang").words)["--speculative-draft-model-path"] == reference
        ((_, text),) = proposed(path, kind, "tensorrt-llm").files
        assert engine_parsers.tensorrt_llm_file(text)["speculative_config"]["speculative_model"] == reference
        for engine in ("vllm", "sglang", "tensorrt-llm"):
            said = any("in place of DRAFT_MODEL" in note for note in proposed(path, kind, engine).notes)
            assert said == (kind == "config")
    words = proposed("/m/my draft.gguf", "gguf", "llama.cpp").words
    assert words[words.index("--model-draft") + 1] == "/m/my draft.gguf"


@pytest.mark.parametrize("engine", engine_names())
@pytest.mark.parametrize("text", ["mha", "mla", "sliding:4096/6", "hybrid:4"])
def test_a_counterfactual_has_no_command(engine: str, text: str) -> None:
    """Whatever screen or command asks: nobody has such weights."""
    model = catalogue.load(LLAMA)
    with pytest.raises(EngineError, match="nobody has weights of"):
        made(variant(model, text), engine)
    assert made(variant(model, "gqa:8"), engine).words == made(model, engine).words
