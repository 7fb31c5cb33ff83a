"""What kvcore says each layer keeps, against the pages and states that vLLM's own planning gives it.

tests/reference/vllm.jsonl holds one record for a configuration and setting: what vLLM 0.33.0 planned for it on a
pretended 80 GB H100, without weights.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from kvcore.formats import KVFormat, kv_format
from kvcore.model import Model, model_from_config
from kvcore.paths import DATA
from kvcore.sizing import bytes_per_token

_LINES = (Path(__file__).parent / "reference" / "vllm.jsonl").read_text("utf-8").splitlines()
RECORDS: list[dict[str, Any]] = [json.loads(line) for line in _LINES[1:]]

# A law of growth: the kind, bytes an entry, tokens an entry, the most entries, bytes that never change.
Law: TypeAlias = tuple[str, int, int, int | None, int]

# Records that say nothing about what one unsharded model remembers, and why.
NOT_COMPARED = {
    "tp8": "one rank of eight: heads are divided or repeated by the engine's rules, which are tested with the engine",
}
# Settings of the same memories; only the first also says how long a context the configuration allows.
COMPARED = ("tp1", "fp8", "len32k")


def _model(record: dict[str, Any]) -> Model:
    raw = json.loads((DATA / "models" / "configs" / record["file"]).read_text("utf-8"))
    return model_from_config(raw)


def records(*tags: str) -> list[dict[str, Any]]:
    return [record for record in RECORDS if record["tag"] in tags]


def _format(model: Model, record: dict[str, Any]) -> KVFormat:
    # fp8_ds_mla is vLLM's layout, not the checkpoint's; everything else is what `auto` or the flag means.
    asked = record["kv_dtype"]
    return kv_format(asked) if record["tag"] == "fp8" or asked == "fp8_ds_mla" else model.resolve_format("auto")


def ours(model: Model, kv: KVFormat) -> Counter[Law]:
    """How many memories follow each law, of those that keep something."""
    laws: Counter[Law] = Counter()
    for memory, count in model.groups:
        law = memory.growth(kv)
        if law.bytes_per_entry or law.constant_bytes:
            key = (memory.kind, law.bytes_per_entry, law.tokens_per_entry, law.max_entries, law.constant_bytes)
            laws[key] += count
    return laws


def theirs(record: dict[str, Any]) -> Counter[Law]:
    """The same from vLLM's specs, whose pages hold `block_size` tokens."""
    laws: Counter[Law] = Counter()
    for spec in record["layer_specs"]:
        laws[_law(spec)] += spec["n"]
    return laws


def _law(spec: dict[str, Any]) -> Law:
    page = spec["unpadded_page_bytes"]
    if spec["kind"] == "MambaSpec":
        return "state", 0, 1, None, page
    shared = spec.get("tokens_per_state", 1)
    row, left = divmod(page * shared, spec["block_size"])
    assert not left, "a page is a whole number of rows"
    window = spec.get("sliding_window")
    if spec["dtype"] == "torch.float32":
        # The rolling rows of a DeepSeek-V4 compressor.
        return "state", 0, 1, None, row * window
    if spec["kind"] == "MLAAttentionSpec":
        kind = "compressed" if shared > 1 else "latent"
        return (kind if "cache_dtype_str" in spec else "indexer"), row, shared, None, 0
    kinds = {"FullAttentionSpec": "full", "ChunkedLocalAttentionSpec": "chunked"}
    return kinds.get(spec["kind"], "sliding"), row, 1, window or spec.get("attention_chunk_size"), 0


def test_every_layer_keeps_what_vllm_plans(subtests: pytest.Subtests) -> None:
    for record in records(*COMPARED):
        with subtests.test(file=record["file"], tag=record["tag"]):
            model = _model(record)
            assert ours(model, _format(model, record)) == theirs(record)


def test_context_limit_is_vllms(subtests: pytest.Subtests) -> None:
    for record in records("tp1"):
        with subtests.test(file=record["file"]):
            assert _model(record).context_limit == record["max_model_len"]


def test_bytes_a_token_of_growing_layers(subtests: pytest.Subtests) -> None:
    for record in records("tp1"):
        with subtests.test(file=record["file"]):
            model = _model(record)
            # Far beyond every window, only the layers that grow for ever add to a request.
            if record["bytes_per_token"] is not None:
                assert bytes_per_token(model, 2**40, _format(model, record)) == record["bytes_per_token"]


def test_every_record_is_compared_or_says_why_not() -> None:
    tags = {record["tag"] for record in RECORDS}
    assert tags == {*COMPARED, *NOT_COMPARED}
    assert len(RECORDS) == 218
