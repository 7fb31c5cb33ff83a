"""The bundled catalogue of model configurations: every row is complete, every file is accounted for."""

import csv
import json
import re
from collections import Counter
from pathlib import Path

import pytest

MODELS = Path(__file__).resolve().parent.parent / "data" / "models"
CONFIGS = MODELS / "configs"
COLUMNS = [
    "model_id",
    "display_name",
    "popular",
    "file",
    "fidelity",
    "edited",
    "source",
    "path_in_source",
    "revision",
    "retrieved",
    "released",
    "released_source",
    "total_parameters",
    "active_parameters",
    "parameters_statement",
    "parameters_source",
    "checkpoint_bytes",
    "checkpoint_gib_rounded",
    "checkpoint_source",
    "quantiser_source",
    "notes",
]
REFERENCE_COLUMNS = [
    "model_id",
    "total_parameters",
    "active_parameters",
    "checkpoint_bytes",
    "checkpoint_gib_rounded",
    "precision",
    "of",
    "source",
]
LABEL = re.compile(r"\d+(\.\d+)?[BMT]")

# What the two introductory texts name, and one model for each kind of memory that they describe.
NAMED_BY_THE_TEXTS = [
    "meta-llama/Llama-3.3-70B-Instruct",
    "meta-llama/Llama-2-7b-hf",
    "meta-llama/Llama-2-13b-hf",
    "meta-llama/Llama-2-70b-hf",
    "mistralai/Mistral-7B-v0.1",
    "Qwen/Qwen2-7B",
    "deepseek-ai/deepseek-llm-67b-base",
    "deepseek-ai/DeepSeek-V2",
    "deepseek-ai/DeepSeek-V3",
    "moonshotai/Kimi-K2-Instruct",
    "allenai/longformer-base-4096",
    "allenai/longformer-large-4096",
    "state-spaces/mamba-2.8b-hf",
    "tiiuae/falcon-mamba-7b",
    "mistralai/Mamba-Codestral-7B-v0.1",
]


def read_rows(name: str) -> list[dict[str, str]]:
    with (MODELS / name).open(encoding="utf-8", newline="") as handle:
        return list(csv.DictReader(handle))


ROWS = read_rows("catalogue.csv")
BY_ID = {row["model_id"]: row for row in ROWS}


def load(model_id: str) -> dict[str, object]:
    return json.loads((CONFIGS / BY_ID[model_id]["file"]).read_text(encoding="utf-8"))


def broken(rule: "re.Pattern[str]", column: str) -> list[str]:
    """Model ids whose non-empty cell in `column` does not match `rule`."""
    return [row["model_id"] for row in ROWS if row[column] and not rule.fullmatch(row[column])]


def test_columns_are_the_documented_ones() -> None:
    assert list(ROWS[0]) == COLUMNS
    readme = (MODELS / "README.md").read_text(encoding="utf-8")
    assert [name for name in COLUMNS if f"`{name}`" not in readme] == []


def test_no_row_has_a_missing_or_surplus_cell() -> None:
    assert [row["model_id"] for row in ROWS if None in row or None in row.values()] == []


def test_there_are_enough_models_to_choose_from() -> None:
    assert len(ROWS) >= 150


@pytest.mark.parametrize("column", ["model_id", "display_name", "file"])
def test_names_are_unique_without_regard_to_case(column: str) -> None:
    counts = Counter(row[column].lower() for row in ROWS)
    assert [name for name, count in counts.items() if count > 1] == []


def test_a_file_is_named_after_its_model() -> None:
    assert [row["file"] for row in ROWS if row["file"] != row["model_id"].replace("/", "__", 1) + ".json"] == []


def test_every_row_has_a_file_and_every_file_has_a_row() -> None:
    assert {row["file"] for row in ROWS} == {path.name for path in CONFIGS.iterdir()}


def test_every_quantisers_file_has_a_row_that_says_where_it_is_from() -> None:
    named = {row["file"] for row in ROWS if row["quantiser_source"]}
    assert named == {path.name for path in (MODELS / "quantisers").iterdir()}
    assert [name for name in named if (MODELS / "quantisers" / name).stat().st_size > 100_000] == []


def test_a_file_is_a_small_json_object_that_names_its_architecture(subtests: pytest.Subtests) -> None:
    for row in ROWS:
        with subtests.test(model=row["model_id"]):
            path = CONFIGS / row["file"]
            assert path.stat().st_size < 300_000
            config = json.loads(path.read_text(encoding="utf-8"))
            assert isinstance(config, dict)
            assert "model_type" in config or "architectures" in config


def test_every_row_says_where_and_when_it_was_found() -> None:
    assert [row["model_id"] for row in ROWS if not row["source"] or not row["retrieved"]] == []
    assert broken(re.compile(r"\d{4}-\d{2}-\d{2}"), "retrieved") == []


def test_fidelity_is_one_of_the_documented_words() -> None:
    geometry = re.compile(r"published|transcribed|same geometry as (.+)")
    assert broken(geometry, "fidelity") == []
    assert [row["model_id"] for row in ROWS if not row["fidelity"]] == []
    twins = {row["model_id"]: geometry.fullmatch(row["fidelity"]) for row in ROWS}
    named = {model: match[1] for model, match in twins.items() if match and match[1]}
    assert named
    for model, twin in named.items():
        assert load(model) == load(twin)


def test_a_published_file_has_a_revision_and_the_rest_a_note() -> None:
    published = [row for row in ROWS if row["fidelity"] == "published"]
    unpinned = [row["model_id"] for row in published if not row["revision"] and "public file id" not in row["source"]]
    assert unpinned == []
    assert [row["model_id"] for row in ROWS if row["fidelity"] != "published" and not row["notes"]] == []


def test_release_dates_are_dates_with_a_source() -> None:
    assert broken(re.compile(r"(19|20)\d{2}-(0[1-9]|1[0-2])(-(0[1-9]|[12]\d|3[01]))?"), "released") == []
    assert [row["model_id"] for row in ROWS if bool(row["released"]) != bool(row["released_source"])] == []
    dated = [row for row in ROWS if row["released"]]
    assert len(dated) >= 0.9 * len(ROWS)
    assert [row["model_id"] for row in dated if row["released"] > row["retrieved"]] == []


def test_parameters_are_a_count_or_a_label_and_say_which() -> None:
    for row in ROWS:
        stated = row["total_parameters"]
        assert bool(stated) == bool(row["parameters_statement"]) == bool(row["parameters_source"]), row["model_id"]
        if stated:
            expected = "exact count" if stated.isdigit() else "label"
            assert row["parameters_statement"] == expected, row["model_id"]
            assert stated.isdigit() or LABEL.fullmatch(stated), row["model_id"]
    assert broken(re.compile(rf"\d+|{LABEL.pattern}"), "active_parameters") == []


def test_checkpoint_sizes_are_integers_or_marked_as_rounded() -> None:
    assert broken(re.compile(r"[1-9]\d*"), "checkpoint_bytes") == []
    assert broken(re.compile(r"\d+\.\d+"), "checkpoint_gib_rounded") == []
    sized = [row for row in ROWS if row["checkpoint_bytes"] or row["checkpoint_gib_rounded"]]
    assert sized
    assert [row["model_id"] for row in sized if not row["checkpoint_source"]] == []


def test_some_models_are_suggested_first() -> None:
    assert broken(re.compile("1"), "popular") == []
    assert 20 <= sum(row["popular"] == "1" for row in ROWS) <= 30


@pytest.mark.parametrize("model_id", NAMED_BY_THE_TEXTS)
def test_models_of_the_introductory_texts_are_here(model_id: str) -> None:
    assert model_id in BY_ID


@pytest.mark.parametrize(
    ("model_id", "facts"),
    [
        (
            "meta-llama/Llama-3.3-70B-Instruct",
            {
                "num_hidden_layers": 80,
                "num_attention_heads": 64,
                "num_key_value_heads": 8,
                "max_position_embeddings": 131072,
                "torch_dtype": "bfloat16",
            },
        ),
        ("deepseek-ai/DeepSeek-V3", {"num_hidden_layers": 61, "kv_lora_rank": 512, "qk_rope_head_dim": 64}),
        ("moonshotai/Kimi-K2-Instruct", {"kv_lora_rank": 512}),
        ("meta-llama/Llama-2-13b-hf", {"num_hidden_layers": 40, "num_key_value_heads": 40, "hidden_size": 5120}),
        ("meta-llama/Llama-2-70b-hf", {"num_hidden_layers": 80, "num_key_value_heads": 8}),
        ("mistralai/Mistral-7B-v0.1", {"sliding_window": 4096, "num_key_value_heads": 8}),
        ("deepseek-ai/deepseek-llm-67b-base", {"num_hidden_layers": 95, "num_key_value_heads": 8}),
        ("deepseek-ai/DeepSeek-V2", {"num_hidden_layers": 60, "kv_lora_rank": 512}),
        ("allenai/longformer-base-4096", {"attention_window": [512] * 12}),
        ("microsoft/Phi-3-mini-4k-instruct", {"sliding_window": 2047}),
    ],
)
def test_files_hold_the_facts_that_the_texts_quote(model_id: str, facts: dict[str, object]) -> None:
    config = load(model_id)
    assert {key: config[key] for key in facts} == facts


def test_a_cut_file_keeps_what_decides_sizes() -> None:
    edited = [row["model_id"] for row in ROWS if row["edited"]]
    assert edited == ["meta-llama/Llama-3.1-405B-Instruct-FP8", "nvidia/MiniMax-M3-NVFP4"]
    completed = load(edited[0])["quantization_config"]
    assert isinstance(completed, dict)
    # Four projections of attention in each of 126 layers, and three of the feed-forward parts of two.
    assert len(set(completed["modules_to_not_convert"])) == 4 * 126 + 3 * 2
    quantization = load(edited[1])["quantization_config"]
    assert isinstance(quantization, dict)
    assert {"quant_method", "quant_algo", "kv_cache_quant_algo", "exclude_modules"} <= set(quantization)
    kinds = Counter(entry["quant_algo"] for entry in quantization["quantized_layers"].values())
    # 57 layers with three matrices of expert 0 each; the 8-bit modules are complete.
    assert kinds == {"NVFP4": 57 * 3, "MXFP8": 534}


def test_reference_weights_belong_to_the_catalogue_and_carry_a_figure() -> None:
    rows = read_rows("weights_reference.csv")
    assert list(rows[0]) == REFERENCE_COLUMNS
    figures = ("total_parameters", "checkpoint_bytes", "checkpoint_gib_rounded")
    assert [row["model_id"] for row in rows if row["model_id"] not in BY_ID] == []
    assert [row["model_id"] for row in rows if not any(row[name] for name in figures) or not row["source"]] == []
    integers = [row[name] for row in rows for name in figures[:2] if row[name]]
    assert [value for value in integers if not value.isdigit()] == []
    assert {row["precision"] for row in rows} == {"exact", "rounded", "stated", "repackaged", "built"}
