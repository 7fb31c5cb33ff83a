"""A scenario equals its address, and any address is answered."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcore.engines.registry import engine_names
from kvcore.errors import MAX_MESSAGE
from kvcore.formats import KV_FORMATS
from kvcore.scenario.fields import Choices, choice
from kvcore.scenario.scenario import (
    MAX_CONFIG_CHARACTERS,
    Scenario,
    decode_config,
    encode_config,
)
from tests.models import LLAMA, catalogue_rows, config

names = st.text(st.characters(codec="ascii", categories=("L", "N"), include_characters="-_./"), min_size=1, max_size=60)
scenarios = st.builds(
    Scenario,
    model=names,
    config=st.sampled_from(["", encode_config(LLAMA)]),
    tokens=st.integers(0, 10**9),
    batch=st.integers(1, 10**6),
    kv=st.sampled_from(["auto", "q8_0/q4_0", *KV_FORMATS]),
    compare=st.lists(names, max_size=5, unique=True).map(tuple),
    budget=st.sampled_from(["40 GiB", "80 GB", "512 MiB", "1.5TiB"]),
    source=st.integers(0, 10**6),
    bound=st.booleans(),
    engine=st.sampled_from(engine_names()),
    gpu=st.sampled_from(["h100-sxm", "rtx-4090", "mi300x"]),
    tp=st.integers(1, 4096),
)


@given(scenarios)
@settings(max_examples=500, deadline=None)
def test_round_trip(scenario: Scenario) -> None:
    back, problems = Scenario.from_query(scenario.to_query())
    assert problems == ()
    assert back == scenario


@dataclass(frozen=True, slots=True, kw_only=True)
class _Share(Choices):
    share: float = choice(0.0, float)


@pytest.mark.parametrize(("share", "text"), [(0.00001, "0.00001"), (0.92, "0.92"), (1e16, "10000000000000000")])
def test_numbers_travel_without_an_exponent(share: float, text: str) -> None:
    query = _Share(share=share).to_query()
    assert query == {"share": text}
    assert _Share.from_query(query) == (_Share(share=share), ())


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_number_reads_back(share: float) -> None:
    query = _Share(share=share).to_query()
    assert float(query.get("share", "0")) == share
    assert "e" not in query.get("share", "")


def test_defaults_leave_the_address_empty() -> None:
    assert Scenario().to_query() == {}


@given(st.dictionaries(st.sampled_from([*Scenario().__slots__, "other"]), st.text(max_size=300)))
@settings(max_examples=500, deadline=None)
def test_any_address_is_answered(query: dict[str, str]) -> None:
    scenario, problems = Scenario.from_query(query)
    assert isinstance(scenario, Scenario)
    assert all(len(problem) <= MAX_MESSAGE + 60 for problem in problems)
    again, none = Scenario.from_query(scenario.to_query())
    assert (again, none) == (scenario, ())


def test_what_was_not_taken_is_named() -> None:
    scenario, problems = Scenario.from_query({"tokens": "oops", "batch": "99999999", "kv": "int4.5", "model": "a/b"})
    assert scenario == Scenario(model="a/b")
    assert [problem.split()[2] for problem in problems] == ["tokens", "batch", "kv"]


def test_configurations_travel_while_they_are_small() -> None:
    small = 0
    for row in catalogue_rows():
        raw = config(row["model_id"])
        text = encode_config(raw)
        if text is not None:
            small += 1
            assert len(text) <= MAX_CONFIG_CHARACTERS
            assert decode_config(text) == raw or "Infinity" in str(raw) or "inf" in str(raw)
    assert small > 200


def test_a_compression_bomb_is_refused() -> None:
    import base64
    import zlib

    packed = base64.urlsafe_b64encode(zlib.compress(b'{"a": "' + b" " * 5_000_000 + b'"}', 9)).decode()
    _, problems = Scenario.from_query({"config": packed})
    assert len(problems) == 1
