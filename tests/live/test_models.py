"""Which models there are, where, and what a folder must hold; nothing here asks the network."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from kvcore.errors import LiveError
from kvcore.live import models
from kvcore.live.shape import parameters, shape_from_config
from kvcore.sources import catalogue
from tests.live.real import TINY_CONFIG, smollm_cache, tiny_folder

COMMIT = "0123456789abcdef0123456789abcdef01234567"
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Empty caches, and no package."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(models, "packaged_gguf", lambda: None)


def go_on(what: str, done: int, of: int) -> bool:
    return True


def in_hub_cache(tmp_path: Path, name: str, commit: str = COMMIT) -> Path:
    kept = tmp_path / "hub" / f"models--{name.replace('/', '--')}"
    (kept / "refs").mkdir(parents=True, exist_ok=True)
    (kept / "refs" / "main").write_text(COMMIT)
    return tiny_folder(kept / "snapshots" / commit)


def test_the_default_comes_first_and_nothing_is_here() -> None:
    found = models.listed()
    assert found[0].id == models.DEFAULT
    assert {one.where for one in found} == {"hub"}
    assert len({one.id for one in found}) == len(found) == 9


# Layer shapes as the publishers' configurations state them: hidden, inner, layers, heads, KV heads, head width,
# vocabulary, biases of Q, K and V, norms of Q and K, tied head.
WIDTHS = {
    "HuggingFaceTB/SmolLM2-135M-Instruct": (576, 1536, 30, 9, 3, 64, 49152, 0, 0, 1),
    "HuggingFaceTB/SmolLM2-360M-Instruct": (960, 2560, 32, 15, 5, 64, 49152, 0, 0, 1),
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": (2048, 8192, 24, 32, 32, 64, 49152, 0, 0, 1),
    "Qwen/Qwen2.5-0.5B-Instruct": (896, 4864, 24, 14, 2, 64, 151936, 1, 0, 1),
    "Qwen/Qwen2.5-1.5B-Instruct": (1536, 8960, 28, 12, 2, 128, 151936, 1, 0, 1),
    "Qwen/Qwen3-0.6B": (1024, 3072, 28, 16, 8, 128, 151936, 0, 1, 1),
    "Qwen/Qwen3-1.7B": (2048, 6144, 28, 16, 8, 128, 151936, 0, 1, 1),
    "meta-llama/Llama-3.2-1B-Instruct": (2048, 8192, 16, 32, 8, 64, 128256, 0, 0, 1),
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": (2048, 5632, 22, 32, 4, 64, 32000, 0, 0, 0),
}


def test_parameters_are_counted_right() -> None:
    for one in models.listed():
        hidden, inner, layers, heads, kv, width, words, bias, norm, tied = WIDTHS[one.id]
        rows = (heads + 2 * kv) * width
        layer = (
            rows * hidden + bias * rows + heads * width * hidden + 3 * hidden * inner + 2 * hidden + norm * 2 * width
        )
        assert one.parameters == words * hidden * (2 - tied) + layers * layer + hidden, one.id
        assert one.bytes == 2 * one.parameters
        # Where the catalogue has its configuration, the engine counts the same.
        if catalogue.find(one.id) is not None:
            assert parameters(shape_from_config(catalogue.raw_config(one.id))) == one.parameters


def test_listing_is_quick_and_light() -> None:
    code = (
        "import sys, time; from kvcore.live import models; models.listed(); begin = time.perf_counter(); models.listed();"
        "print(time.perf_counter() - begin < 0.5, sorted({'torch', 'numpy', 'gguf', 'tokenizers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "True []"


def test_a_local_folder(tmp_path: Path) -> None:
    found = models.prepare(str(tiny_folder(tmp_path / "mine")), go_on)
    assert (found.folder, found.origin) == (tmp_path / "mine", "local folder mine")
    assert found.config["hidden_size"] == 16
    assert found.tokenizer.encode("ab") == [97, 98]
    assert found.tokenizer.stop_ids == {261}


def test_the_hubs_local_cache_comes_first_and_its_main_branch_in_it(tmp_path: Path) -> None:
    older = in_hub_cache(tmp_path, models.DEFAULT, "f" * 40)
    main = in_hub_cache(tmp_path, models.DEFAULT)
    os.utime(older, (time.time() + 9, time.time() + 9))
    assert models.listed()[0].where == "hub cache"
    found = models.prepare(models.DEFAULT.lower(), go_on)
    assert found.folder == main
    assert found.origin == f"{models.DEFAULT} at 0123456789ab, from the Hub's local cache"
    (main / "model.safetensors").unlink()  # A snapshot that is not whole is passed over.
    assert models.prepare(models.DEFAULT, go_on).folder == older
    (older / "tokenizer.json").unlink()
    assert models.listed()[0].where == "hub"


def test_the_package_then_the_folder_made_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "packaged_gguf", lambda: Path("there"))
    assert models.listed()[0].where == "package"
    monkeypatch.setenv("XDG_CACHE_HOME", str(smollm_cache()))
    assert models.listed()[0].where == "ready"
    found = models.prepare(models.DEFAULT, go_on)
    assert (found.origin, found.tokenizer.vocab_size) == (models.PACKAGED_ORIGIN, 49152)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (
            models.DEFAULT,
            "are not on this machine; allow the download (hub:HuggingFaceTB/SmolLM2-135M-Instruct), or run `pip",
        ),
        (
            "Qwen/Qwen3-0.6B",
            "are not on this machine; allow the download (hub:Qwen/Qwen3-0.6B), or choose random weights",
        ),
        ("https://huggingface.co/some-org/some", "the weights of some-org/some are not on this machine"),
        ("", "neither a folder"),
        ("no such thing", "neither a folder"),
        ("../../no-such", "neither a folder"),
        ("a/b\x00c", "neither a folder"),
        ("hub:../x", "neither a folder"),
        ("x" * 5000, "neither a folder"),
    ],
)
def test_names_that_give_nothing(name: str, reason: str) -> None:
    with pytest.raises(LiveError) as refusal:
        models.prepare(name, go_on)
    assert reason in str(refusal.value)


def without(*names: str) -> Callable[[Path], object]:
    return lambda folder: [(folder / name).unlink() for name in names]


def config(**changed: Any) -> Callable[[Path], object]:
    return lambda folder: (folder / "config.json").write_text(json.dumps(TINY_CONFIG | changed))


def file(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content)


def instead(name: str, content: bytes = b"x") -> Callable[[Path], object]:
    return lambda folder: (folder / "model.safetensors").unlink() or (folder / name).write_bytes(content)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (without("config.json"), "has no config.json"),
        (without("tokenizer.json"), "has no tokenizer.json"),
        (without("model.safetensors"), "has no model.safetensors and no model.safetensors.index.json"),
        (instead("pytorch_model.bin"), "only in pickled files, which are never opened"),
        (instead("model.gguf"), "only as GGUF"),
        (file("config.json", b"{"), "config"),
        (file("config.json", b"\xff\xfe"), "config"),
        (file("tokenizer.json", b"{}"), "not understood by the tokenizers library"),
        (file("model.safetensors", b"version https://git-lfs.github.com/spec/v1\n"), "Git LFS pointer"),
        (file("model.safetensors", b""), "does not begin with a safetensors header"),
        (file("model.safetensors", b"\xff" * 100), "does not begin with a safetensors header"),
        (lambda folder: os.truncate(folder / "model.safetensors", 5000), "is cut off or damaged"),
        (config(quantization_config={"quant_method": "gptq"}), "its weights are quantised (gptq)"),
        (config(auto_map={"AutoModel": "modeling.Mine"}), "needs code from its repository"),
        (config(model_type="strange_net"), "strange_net"),
        (instead("model.safetensors.index.json", b'{"weight_map": {"a": "../../x.safetensors"}}'), "names files that are not"),
        (instead("model.safetensors.index.json", b'{"weight_map": {"a": "x.bin"}}'), "names files that are not"),
        (instead("model.safetensors.index.json", b'{"weight_map": {}}'), "names files that are not"),
        (instead("model.safetensors.index.json", b"[]"), "no usable weight_map"),
        (instead("model.safetensors.index.json", b'{"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}'), "lacks 2 of its 2 weight files, first one.safetensors"),
    ],
)  # fmt: skip
def test_folders_that_are_refused(tmp_path: Path, change: Callable[[Path], object], reason: str) -> None:
    folder = tiny_folder(tmp_path / "mine")
    change(folder)
    with pytest.raises(LiveError) as refusal:
        models.prepare(str(folder), go_on)
    assert reason in str(refusal.value)
    assert str(tmp_path) not in str(refusal.value)


def test_an_index_and_its_shards(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "mine")
    whole = (folder / "model.safetensors").stat().st_size
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-00001-of-00001.safetensors"}}')
    found = models.check_folder(folder)
    assert [one.name for one in found.weights] == ["model-00001-of-00001.safetensors"]
    # 262·16 + 16·16·2 + 8·16·2 + 32·16·3 + 3·16 = 6,544 numbers of four bytes.
    assert found.weight_bytes == 4 * 6544 < whole


def test_what_does_not_fit_is_refused_with_the_numbers() -> None:
    shape = shape_from_config(TINY_CONFIG, "tiny")
    models.check_fits(shape, "bf16", 100, 2 * 6544 + 100)  # Just fits.
    with pytest.raises(LiveError) as refusal:
        models.check_fits(shape, "bf16", 100, 2 * 6544 + 99)
    # 13,088 bytes are 12.78 KiB, 13,187 are 12.88 KiB.
    assert "tiny needs 12.78 KiB of weights in bf16 and 100 B of cache, and 12.88 KiB are free" in str(refusal.value)


def test_cancelling_while_preparing(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "mine")
    with pytest.raises(LiveError, match="^cancelled$"):
        models.prepare(str(folder), lambda *_: False)


def test_a_cache_folder_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(LiveError, match="set XDG_CACHE_HOME"):
        models.user_cache()
    assert models.listed()[0].where == "hub"  # The list is given all the same.
    with pytest.raises(LiveError, match="set XDG_CACHE_HOME"):
        models.prepare("some-org/some", go_on)
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # Not absolute: the specification says to ignore it.
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert models.user_cache().is_relative_to(tmp_path / "home")


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "models" / "one"
    with suppress(ZeroDivisionError), models.published(target) as making:
        (making / "half").write_text("x")
        raise ZeroDivisionError
    assert list(target.parent.iterdir()) == []
    with models.published(target) as slow, models.published(target) as fast:
        (fast / "by").write_text("fast")
        (slow / "by").write_text("slow")
        assert not target.exists()
    assert (target / "by").read_text() == "fast"
    assert [one.name for one in target.parent.iterdir()] == ["one"]


def test_several_processes_at_once_leave_one_whole_folder(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from kvcore.live.models import published\n"
        "go, target = Path(sys.argv[1]), Path(sys.argv[2])\n"
        "while not go.exists(): time.sleep(0.005)\n"
        "with published(target) as making:\n"
        "    for at in range(50): (making / str(at)).write_text(sys.argv[3])\n"
    )
    target, go = tmp_path / "models" / "one", tmp_path / "go"
    started = [
        subprocess.Popen([sys.executable, "-c", code, str(go), str(target), str(at)], cwd=ROOT) for at in range(3)
    ]
    go.touch()
    assert [one.wait(120) for one in started] == [0, 0, 0]
    assert len({(target / str(at)).read_text() for at in range(50)}) == 1
    assert [one.name for one in target.parent.iterdir()] == ["one"]


def test_what_a_killed_process_left_is_swept_after_a_while(tmp_path: Path) -> None:
    old, new, partial = (tmp_path / name for name in (".making-old-1", ".making-new-2", ".partial-x"))
    for one in (old, new, partial):
        one.mkdir()
    long_ago = time.time() - 24 * 3600
    os.utime(old, (long_ago, long_ago))
    os.utime(partial, (long_ago, long_ago))
    with models.published(tmp_path / "one"):
        pass
    assert {one.name for one in tmp_path.iterdir()} == {".making-new-2", ".partial-x", "one"}
