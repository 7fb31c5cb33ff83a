"""A model is what its configuration says: not its file's name, not the order of its keys, not keys that nobody knows."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from io import BytesIO
from typing import Any

import pytest

from kvcore.deployment import Deployment, Request
from kvcore.engines.registry import engine, engine_names
from kvcore.errors import KVCoreError
from kvcore.hardware.gpus import accelerator
from kvcore.model import Model, Reading, model_from_config, parse_config
from kvcore.model.gguf import model_from_gguf
from kvcore.paths import DATA
from kvcore.planning.plan import make_plan
from kvcore.sizing import size
from kvcore.sources import catalogue
from kvcore.units import GIB
from tests.gguf_writer import CONVERTED, write

IDS = [entry.model_id for entry in catalogue.entries()]
OTHER = "another-publisher/another-name"
UNKNOWN = {"zz_note": "nothing", "aa_object": {"b": [1, 2], "a": None}, "mm_count_of_nothing": 7}
# Objects whose keys are names of layers or of modules: a further one would say something.
NAMED = ("per_layer_config", "quantized_layers", "config_groups")


def shuffled(value: Any, key: str, source: random.Random) -> Any:
    """The same JSON value with the keys of every object in another order."""
    if isinstance(value, Mapping):
        pairs = [(name, shuffled(one, name, source)) for name, one in value.items()]
        source.shuffle(pairs)
        return dict(pairs)
    return [shuffled(one, key, source) for one in value] if isinstance(value, list) else value


def with_unknown_keys(value: Any, key: str = "") -> Any:
    """The same with keys in every object that no reader knows, some before and some after its own."""
    if not isinstance(value, Mapping) or key in NAMED:
        return value
    first, *others = UNKNOWN.items()
    return dict([first, *((name, with_unknown_keys(one, name)) for name, one in value.items()), *others])


@cache
def published(model_id: str) -> Mapping[str, Any]:
    """The configuration as published, with what a quantiser wrote beside it."""
    raw, entry = catalogue.raw_config(model_id), catalogue.find(model_id)
    beside = DATA / "models" / "quantisers" / (entry.file if entry else "")
    if beside.is_file() and not raw.get("quantization_config"):
        raw["quantization_config"] = parse_config(beside.read_text("utf-8"))
    return raw


def plain(model: Model) -> Model:
    """All that is ever computed from: without its name and without what people are shown."""
    return replace(model, name="", reading=Reading(notes=model.notes))


def test_the_order_of_keys_changes_nothing() -> None:
    source = random.Random(11)
    for model_id in IDS:
        raw = published(model_id)
        assert plain(model_from_config(shuffled(raw, "", source))) == plain(model_from_config(raw)), model_id


def test_keys_that_nobody_knows_change_nothing() -> None:
    for model_id in IDS:
        raw = published(model_id)
        assert plain(model_from_config(with_unknown_keys(raw))) == plain(model_from_config(raw)), model_id


def answers(model: Model) -> Iterator[tuple[str, str]]:
    """What each question is called, and its answer, with the model's name left out."""
    for tokens, kv_dtype in ((40_000, "auto"), (1000, "fp8")):
        yield f"size {tokens} {kv_dtype}", answer(model, lambda t=tokens, kv=kv_dtype: size(model, t, kv, 3))
    for name in engine_names():
        yield f"engine {name}", answer(model, lambda n=name: engine_answer(model, n))
    for gpu, chosen in (
        ("h100-sxm", {"tp": 1}),
        ("h200-sxm", {"tp": 8, "kv_dtype": "fp8"}),
        ("b200", {"tp": 8, "engine": "sglang"}),
        ("rtx-4090", {"pp": 2, "engine": "llama.cpp"}),
        ("mi300x", {"tp": 2, "weight_format": "fp8"}),
    ):
        deployment = Deployment(**({"engine": "vllm"} | chosen), gpu=accelerator(gpu), context=16_384)
        yield f"plan {gpu}", answer(model, lambda d=deployment: replace(make_plan(model, d), model=None))


def engine_answer(model: Model, name: str) -> object:
    chosen = engine(name)
    settings = chosen.settings(model, Request(context=8192, gpu=accelerator("h100-sxm")))
    return chosen.layout(model, settings), chosen.capacity(model, settings, 20 * GIB)


def answer(model: Model, ask: Any) -> str:
    try:
        text = repr(ask())
    except KVCoreError as problem:
        text = f"{type(problem).__name__}: {problem}"
    return text.replace(model.name, "NAME")


def check(model_id: str) -> None:
    raw = published(model_id)
    other = with_unknown_keys(shuffled(raw, "", random.Random(7)))
    known, unknown = catalogue.load(model_id), model_from_config(other, OTHER)
    # What the catalogue's row adds to the file: its exact bytes and remarks.
    unknown = replace(unknown, checkpoint_bytes=known.checkpoint_bytes, reading=known.reading)
    for (question, mine), (_, theirs) in zip(answers(known), answers(unknown), strict=True):
        assert mine == theirs, (model_id, question)


def varied() -> list[str]:
    """One model of each kind of layers."""
    found: dict[object, str] = {}
    for model_id in IDS:
        model = catalogue.load(model_id)
        found.setdefault((tuple(kind for kind, _ in model.kinds), model.tower is None, model.experts is None), model_id)
    return list(found.values())


def test_a_model_answers_alike_whatever_its_file_looks_like() -> None:
    ids = varied()
    assert len(ids) > 20
    for model_id in ids:
        check(model_id)


@pytest.mark.slow
def test_every_model_answers_alike_whatever_its_file_looks_like() -> None:
    for model_id in IDS:
        check(model_id)


@pytest.mark.parametrize(("model_id", "architecture", "mapping"), CONVERTED, ids=[row[0] for row in CONVERTED])
def test_a_gguf_file_is_read_alike_in_every_order(model_id: str, architecture: str, mapping: Any) -> None:
    raw = published(model_id)
    keys = mapping({"max_position_embeddings": 131072} | raw.get("text_config", raw))
    other = dict(reversed(keys.items())) | {"zz_unknown": 7, "aa_unknown": "text"}
    mine, theirs = (
        model_from_gguf(BytesIO(write(architecture, one)), name) for one, name in ((keys, "mine"), (other, OTHER))
    )
    assert plain(theirs) == plain(mine)
