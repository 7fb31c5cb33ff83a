"""What kvcore says each layer keeps, against every tensor that transformers' own model of it keeps.

Models run without weights (tests/reference/run.py); the differences that are known and why are rows of
tests/reference/differences.py; what cannot be run and what stands in for it is in tests/reference/standins.py.
The fast tests run one case of each way to read a configuration, the slow ones all cases.
"""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.utils import logging

from kvcore.errors import KVCoreError
from kvcore.formats import kv_format
from kvcore.model import Model, model_from_config
from kvcore.model.families import FAMILIES, WRAPPED
from kvcore.paths import DATA
from kvcore.sizing import resident_bytes
from tests.reference.cases import NOT_RUN, NOT_RUN_ENCODERS, PUBLISHED, UNLISTED, UNUSUAL, WRITTEN
from tests.reference.differences import DIFFERENCES, expected
from tests.reference.run import Case, cut, observe, text_config, text_of
from tests.reference.standins import STAND_INS, Written

MODELS = DATA / "models"
STAND_IN_CASES = tuple(check for entry in STAND_INS for check in entry.checks if isinstance(check, Case))
WRITTEN_OUT = tuple(check for entry in STAND_INS for check in entry.checks if isinstance(check, Written))
ALL_CASES = (*PUBLISHED, *STAND_IN_CASES, *WRITTEN, *UNLISTED)


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    """transformers logs advice about kernels and rope at every start; it is not about what is tested."""
    before = logging.get_verbosity()
    logging.set_verbosity(40)  # errors only
    yield
    logging.set_verbosity(before)


def published(file: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((MODELS / "configs" / file).read_text("utf-8"))
    return loaded


def architecture(file: str) -> str:
    """The model_type at the top of a published file."""
    return str(published(file)["model_type"])


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a case came out: what differs, a line a layer and step, and the known differences that were needed."""

    differing: tuple[str, ...]
    needed: frozenset[str] = frozenset()
    model_type: str = ""


@cache
def outcome(case: Case) -> Outcome:
    """Read a configuration with kvcore, run it with transformers, and compare every layer at every step."""
    raw = published(case.file) if case.file else CONFIG_MAPPING[case.default_of]().to_dict()
    raw = cut(json.loads(json.dumps(raw)), case)
    config = text_config(raw, case)
    if case.default_of and not case.as_given:
        # What transformers writes, not what it was given.
        raw = json.loads(json.dumps(config.to_dict()))
    try:
        model = model_from_config(raw)
    except KVCoreError as refusal:
        return Outcome(differing=(f"kvcore refuses: {refusal}",))
    needed: set[str] = set()
    lines = []
    for tokens, layers in observe(case, config, steps(model)):
        if len(layers) != len(model.layers):
            lines.append(f"{len(layers)} layers keep something, kvcore has {len(model.layers)}")
        for index, (memories, kept) in enumerate(zip(model.layers, layers, strict=False)):
            wanted = expected(model, memories, tokens, needed)
            if wanted != kept:
                lines.append(f"layer {index} at {tokens} tokens: kvcore {wanted}, transformers {kept}")
    return Outcome(differing=tuple(lines), needed=frozenset(needed), model_type=model.model_type)


def steps(model: Model) -> tuple[int, ...]:
    """A prefill and one token; where a layer has a window, then a jump past it and one more token."""
    windows = [getattr(memory, "limit", None) or getattr(memory, "window", None) or 0 for memory, _ in model.groups]
    widest = max(windows, default=0)
    return (9, 1, widest - 8, 1) if widest else (9, 1)


def rules(case: Case) -> tuple[object, ...]:
    """How a case is read: the reader, its rules for windows, KV heads and states, and where the model keeps them."""
    stated = str(text_of(published(case.file)).get("model_type") or architecture(case.file)) if case.file else ""
    family = FAMILIES[case.default_of or case.as_type or WRAPPED.get(stated, stated)]
    states = family.options.get("design_of"), family.options.get("layout")
    return family.read, family.window, family.kv_heads, *states, case.as_given, case.keeps


ONE_OF_EACH = {rules(case): case for case in reversed(ALL_CASES)}


@pytest.mark.parametrize("case", ONE_OF_EACH.values(), ids=lambda case: case.name)
def test_every_layer_keeps_what_transformers_keeps(case: Case) -> None:
    lines = outcome(case).differing
    assert not lines, "\n".join(lines[:6])


@pytest.mark.slow
def test_every_layer_of_every_case(subtests: pytest.Subtests) -> None:
    for case in ALL_CASES:
        with subtests.test(case=case.name):
            lines = outcome(case).differing
            assert not lines, "\n".join(lines[:6])


@pytest.mark.parametrize("case", UNUSUAL, ids=lambda case: f"{case.name} with {', '.join(case.change)}")
def test_what_is_unusual_is_refused_or_right(case: Case) -> None:
    lines = outcome(case).differing
    assert not lines or lines[0].startswith("kvcore refuses"), "\n".join(lines[:6])


@pytest.mark.parametrize("check", WRITTEN_OUT, ids=lambda check: check.file.removesuffix(".json"))
def test_values_written_out_by_hand(check: Written) -> None:
    model = model_from_config(published(check.file))
    assert resident_bytes(model, check.tokens, kv_format("bf16")) == check.expected_bytes, check.arithmetic


@pytest.mark.slow
def test_no_known_difference_is_stale(subtests: pytest.Subtests) -> None:
    for row in DIFFERENCES:
        with subtests.test(difference=row.name):
            needed = {outcome(case).model_type for case in ALL_CASES if row.name in outcome(case).needed}
            assert needed
            assert row.families <= needed


def test_every_architecture_of_the_catalogue_is_run_or_has_a_stand_in() -> None:
    with (MODELS / "catalogue.csv").open(encoding="utf-8", newline="") as source:
        wanted = {architecture(row["file"]) for row in csv.DictReader(source)}
    run = {architecture(case.file) for case in PUBLISHED}
    stood_in = {entry.architecture for entry in STAND_INS}
    assert not run & stood_in
    assert run | stood_in == wanted


def test_stand_ins_are_for_what_transformers_lacks_or_cannot_run() -> None:
    for entry in STAND_INS:
        assert entry.checks
        for check in entry.checks:
            assert architecture(check.file) == entry.architecture, check.file


@pytest.mark.slow
def test_every_model_type_that_both_know_is_run() -> None:
    run = {name for case in ALL_CASES for name in (case.default_of, case.as_type, outcome(case).model_type)}
    run |= {architecture(case.file) for case in PUBLISHED}
    both = {name for name in FAMILIES if name in CONFIG_MAPPING}
    assert both - run == {*NOT_RUN, *NOT_RUN_ENCODERS}


@pytest.mark.parametrize("model_type", NOT_RUN_ENCODERS)
def test_encoders_that_look_at_their_input_keep_nothing_either(model_type: str) -> None:
    model = model_from_config(CONFIG_MAPPING[model_type]().to_dict())
    assert resident_bytes(model, 100, kv_format("bf16")) == 0


@pytest.mark.parametrize("model_type", ["bamba", "granitemoehybrid"])
def test_hybrids_without_any_attention_are_all_state(model_type: str) -> None:
    # transformers writes such defaults, and cannot run them: no layer of their cache knows its length.
    written = CONFIG_MAPPING[model_type]().to_dict()
    assert model_from_config(written).kinds == (("state", written["num_hidden_layers"]),)
