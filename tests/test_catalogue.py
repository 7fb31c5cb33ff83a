"""The catalogue: every entry loads, is found and is described; what a row says reaches the model."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from kvcore.errors import ConfigError, ModelError
from kvcore.model import model_from_config
from kvcore.paths import DATA
from kvcore.sources import catalogue

IDS = [entry.model_id for entry in catalogue.entries()]


def label(model_id: str) -> str:
    return catalogue.attention_label(catalogue.load(model_id))


def test_every_entry_loads(subtests: pytest.Subtests) -> None:
    for model_id in IDS:
        with subtests.test(model=model_id):
            model = catalogue.load(model_id)
            entry = catalogue.find(model_id)
            assert entry is not None
            assert model.name == model_id
            assert model.knowledge == "exact"
            assert model.layers
            assert model.checkpoint_bytes == entry.checkpoint_bytes
            assert catalogue.load(model_id.upper()) is model


def test_the_table_and_the_summaries_are_complete() -> None:
    with (DATA / "models" / "catalogue.csv").open(encoding="utf-8", newline="") as stream:
        ids = [row["model_id"] for row in csv.DictReader(stream)]
    assert ids == IDS
    assert {one.entry.model_id for one in catalogue.summaries()} == set(ids)
    files = {path.name for path in (DATA / "models" / "configs").iterdir()}
    assert {entry.file for entry in catalogue.entries()} <= files


def test_find_disregards_case_and_unknown_ids_name_the_nearest() -> None:
    assert catalogue.find(" META-llama/llama-3.1-70b-INSTRUCT ") == catalogue.find("meta-llama/Llama-3.1-70B-Instruct")
    assert catalogue.find("nobody/nothing") is None
    with pytest.raises(ModelError, match=r"'Qwen/Qwen3-8' is not in the catalogue; nearest: .*Qwen/Qwen3-8B"):
        catalogue.load("Qwen/Qwen3-8")
    with pytest.raises(ModelError, match=r"meta-llama/Llama-3\.1-70B-Instruct"):
        catalogue.raw_config("Llama-3.1-70B")
    with pytest.raises(ModelError) as refusal:
        catalogue.load("§" * 500)
    assert len(str(refusal.value)) < 200


def test_a_raw_configuration_is_a_fresh_copy() -> None:
    raw = catalogue.raw_config("meta-llama/Llama-3.1-70B-Instruct")
    raw["num_hidden_layers"] = 1
    assert catalogue.raw_config("meta-llama/Llama-3.1-70B-Instruct")["num_hidden_layers"] == 80
    assert len(catalogue.load("meta-llama/Llama-3.1-70B-Instruct").layers) == 80


@pytest.mark.parametrize(
    ("model_id", "expected"),
    [
        ("meta-llama/Llama-3.1-70B-Instruct", "GQA"),
        ("meta-llama/Llama-2-7b-hf", "MHA"),
        ("WizardLM/WizardCoder-15B-V1.0", "MQA"),
        ("deepseek-ai/DeepSeek-V3", "MLA"),
        ("deepseek-ai/DeepSeek-V3.2", "MLA + indexer"),
        ("mistralai/Mistral-7B-v0.1", "sliding"),
        ("google/gemma-3-27b-it", "sliding 5:1 + full"),
        ("google/gemma-2-27b", "sliding 1:1 + full"),
        # 39 of 48 layers slide, 4 + 7 × 5 of them: the first group of the pattern is cut short.
        ("XiaomiMiMo/MiMo-V2-Flash", "sliding 5:1 + full"),
        ("google/gemma-3n-E4B-it", "sliding 4:1 + full + 15 shared"),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", "chunked 3:1 + full"),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", "hybrid: 36 state + 12 full"),
        ("moonshotai/Kimi-Linear-48B-A3B-Instruct", "hybrid: 20 state + 7 latent"),
        ("tiiuae/falcon-mamba-7b", "recurrent"),
        ("openai/whisper-large-v3", "MHA + cross-attention"),
        ("deepseek-ai/DeepSeek-V4-Pro", "compressed MLA + sliding + indexer"),
        ("allenai/longformer-base-4096", "encoder"),
    ],
)
def test_kinds_of_attention(model_id: str, expected: str) -> None:
    assert label(model_id) == expected


def test_a_pattern_without_a_rhythm_is_shown_by_its_counts() -> None:
    model = catalogue.load("google/gemma-2-27b")
    sliding, full = model.layers[0], model.layers[1]
    irregular = (full, sliding, full, sliding, sliding, full, sliding, sliding, sliding, full)
    assert catalogue.attention_label(replace(model, layers=irregular)) == "sliding 6:4 + full"
    assert catalogue.attention_label(replace(model, layers=(sliding, full, full))) == "sliding 1:2 + full"
    assert catalogue.attention_label(replace(model, layers=(sliding, sliding, full))) == "sliding 2:1 + full"


def test_the_rows_facts_reach_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    by_fidelity = {entry.fidelity: entry for entry in catalogue.entries() if not entry.notes or "mirror" in entry.notes}
    published = catalogue.load(by_fidelity["published"].model_id)
    assert not any("transcribed" in note for note in published.reading.notes)
    entry = replace(
        by_fidelity["published"],
        fidelity="transcribed",
        edited="one key",
        notes="mirror; the context limit may have been edited",
        checkpoint_bytes=123,
    )
    model = catalogue._load(entry)
    plain = model_from_config(catalogue.raw_config(entry.model_id), entry.model_id)
    assert model.checkpoint_bytes == 123
    assert model.reading.notes == (
        *plain.reading.notes,
        "Catalogue: transcribed, not a copy of the published file.",
        "Catalogue: edited: one key.",
        "Catalogue: the context limit may have been edited.",
    )


def test_exact_checkpoint_bytes_are_taken_over() -> None:
    stated = [entry for entry in catalogue.entries() if entry.checkpoint_bytes is not None]
    assert stated
    assert all(catalogue.load(entry.model_id).checkpoint_bytes == entry.checkpoint_bytes for entry in stated)


def test_search_matches_every_word_and_puts_popular_models_first() -> None:
    found = catalogue.search("LLAMA 70b")
    assert found
    assert all("llama" in one.entry.model_id.lower() and "70b" in one.entry.model_id.lower() for one in found)
    everything = [one.entry.popular for one in catalogue.search()]
    assert everything == sorted(everything, reverse=True)
    assert len(everything) == len(IDS)
    assert any(everything)
    assert not all(everything)
    assert catalogue.search("llama nosuchword") == ()


def test_search_filters_by_family_attention_and_size() -> None:
    assert {one.family for one in catalogue.search(family="DeepSeek_V3")} == {"deepseek_v3"}
    assert all("MLA" in one.attention for one in catalogue.search(attention="mla"))
    assert catalogue.search("indexer") == catalogue.search(attention="indexer")
    small = catalogue.search(max_parameters=2 * 10**9)
    large = catalogue.search(min_parameters=2 * 10**9 + 1)
    known = [one for one in catalogue.summaries() if one.total_parameters is not None]
    assert small
    assert {one.entry.model_id for one in small + large} == {one.entry.model_id for one in known}


def test_parameters_are_counted_or_stated_or_unknown() -> None:
    by_id = {one.entry.model_id: one for one in catalogue.summaries()}
    counted = by_id["meta-llama/Llama-3.1-70B-Instruct"]
    assert counted.parameters_counted
    assert counted.total_parameters == counted.model.total_parameters
    stated = by_id["Zyphra/Zamba2-7B"]
    assert (stated.total_parameters, stated.parameters_counted) == (7 * 10**9, False)
    encoder = by_id["allenai/longformer-base-4096"]
    assert (encoder.total_parameters, encoder.parameters_counted) == (None, False)


GOOD = {"model_id": "a/b", "file": "a__b.json", "checkpoint_bytes": "12", "new_column": "x"}


def test_rows_are_checked_and_unknown_columns_left_alone() -> None:
    entry = catalogue._entry(GOOD, 2)
    assert (entry.model_id, entry.display_name, entry.checkpoint_bytes, entry.popular) == ("a/b", "b", 12, False)
    assert catalogue._entry(GOOD | {"popular": "1"}, 2).popular
    assert catalogue._entry(GOOD | {"checkpoint_gib_rounded": "7.5"}, 2).checkpoint_gib_rounded == 7.5
    # A short row leaves None, a long one a list under None, as csv.DictReader does.
    assert catalogue._entry({**GOOD, "notes": None, None: ["extra"]}, 2).notes == ""  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_id": ""}, "line 7: model_id is missing"),
        ({"file": ""}, "line 7: file is missing"),
        ({"file": "../secret.json"}, "line 7: file is '../secret.json'"),
        ({"checkpoint_bytes": "many"}, "line 7: checkpoint_bytes is 'many'"),
        ({"checkpoint_bytes": "-1"}, "line 7: checkpoint_bytes is '-1'"),
        ({"checkpoint_gib_rounded": "nan"}, "line 7: checkpoint_gib_rounded is 'nan'"),
    ],
)
def test_unusable_rows_name_the_line_and_the_column(change: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        catalogue._entry(GOOD | change, 7)


def test_an_id_listed_twice_is_refused(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "catalogue.csv").write_text("model_id,file\na/b,a.json\nA/B,b.json\n", "utf-8")
    monkeypatch.setattr(catalogue, "_FOLDER", tmp_path)
    with pytest.raises(ConfigError, match="A/B is listed twice"):
        catalogue.entries.__wrapped__()


def family(entry: catalogue.Entry) -> str:
    return catalogue.load(entry.model_id).model_type


def language(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """The keys of the part that remembers."""
    inner = (raw[name] for name in ("text_config", "llm_config", "language_config") if isinstance(raw.get(name), dict))
    return next(inner, raw)


def remembers(raw: Mapping[str, Any]) -> object:
    """What a configuration says of the cache, the prediction layers' too; None where it cannot be read."""
    try:
        model = model_from_config(raw)
    except ConfigError:
        return None
    return model.layers, model.cache_format, model.prediction


def without(raw: Mapping[str, Any], key: str) -> dict[str, Any]:
    inner = language(raw)
    less = {name: value for name, value in inner.items() if name != key}
    return less if inner is raw else {name: less if value is inner else value for name, value in raw.items()}


# Other spellings of a key, and what no source states: Kimi K3 says that it has no prediction layers, Kimi Linear's class
# leaves it open.
SPELLINGS = {"layer_types": "full_attn_idxs"}
NOT_STATED = {"moonshotai/Kimi-Linear-48B-A3B-Instruct": {"num_nextn_predict_layers"}}


def lacks(raw: Mapping[str, Any], siblings: list[Mapping[str, Any]]) -> set[str]:
    """Keys that every sibling states and this file does not, and that change what one of them says of the cache."""
    common = set.intersection(*(set(language(sibling)) for sibling in siblings))
    return {
        key
        for key in common - set(language(raw))
        if SPELLINGS.get(key) not in language(raw)
        and any(remembers(without(sibling, key)) != remembers(sibling) for sibling in siblings)
    }


def test_no_transcription_lacks_a_key_that_its_published_siblings_have() -> None:
    """A program keeps the keys that it reads: Qwen3.5 4B's once lacked mamba_ssm_dtype, and its states were halved."""
    families: dict[str, dict[bool, list[str]]] = {}
    for entry in catalogue.entries():
        by = families.setdefault(family(entry), {True: [], False: []})
        by[entry.fidelity == "published"].append(entry.model_id)
    compared, lacking = set(), {}
    for found in families.values():
        siblings = [catalogue.raw_config(model_id) for model_id in found[True]]
        for model_id in found[False] if siblings else ():
            compared.add(model_id)
            missing = lacks(catalogue.raw_config(model_id), siblings) - NOT_STATED.get(model_id, set())
            if missing:
                lacking[model_id] = missing
    assert "Qwen/Qwen3.5-4B" in compared
    assert len(compared) >= 25
    assert lacking == {}


def test_a_key_that_is_lacking_is_found() -> None:
    whole = catalogue.raw_config("Qwen/Qwen3.5-4B")
    siblings = [catalogue.raw_config(f"Qwen/Qwen3.5-{size}") for size in ("9B", "27B")]
    for key in ("mamba_ssm_dtype", "mtp_num_hidden_layers"):
        assert lacks(without(whole, key), siblings) == {key}
    assert lacks(without(whole, "attn_output_gate"), siblings) == set()
