"""The Live screen's part of the address: a round trip for everything, a sentence for anything else."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcore.live.options import KV_FORMATS, WEIGHT_FORMATS
from kvcore.scenario.fields import choices
from kvcore.scenario.live import (
    BATCHES,
    BUDGETS,
    LENGTHS,
    NEW_TOKENS,
    PROBE_CHOICES,
    RACE_CHOICES,
    LiveOptions,
)
from kvcore.scenario.scenario import Scenario
from kvcore.scenario.variants import VariantOptions

_attentions = st.sampled_from(["shipped", "mha", "gqa:3", "mla:256+32", "sliding:256"])
_options = st.builds(
    LiveOptions,
    live_prompt=st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), max_size=60),
    live_model=st.sampled_from(["Qwen/Qwen3-0.6B", "hub:Qwen/Qwen3-1.7B", "shape:meta-llama/Llama-3.3-70B-Instruct"]),
    live_length=st.sampled_from(LENGTHS),
    live_new=st.sampled_from(NEW_TOKENS),
    live_batch=st.sampled_from(BATCHES),
    live_attention=_attentions,
    live_kv=st.sampled_from(KV_FORMATS),
    live_weights=st.sampled_from(WEIGHT_FORMATS),
    live_again=st.booleans(),
    live_probe_too=st.booleans(),
    live_layers=st.none() | st.integers(1, 1000),
    live_heat=st.integers(0, 200).map(lambda n: n / 100),
    live_top_p=st.integers(10, 100).map(lambda n: n / 100),
    live_seed=st.integers(0, 2**31),
    live_chat=st.booleans(),
    live_seconds=st.sampled_from(BUDGETS),
    live_contexts=st.sets(st.sampled_from(PROBE_CHOICES)).map(lambda found: tuple(sorted(found))),
    live_variants=st.lists(_attentions, unique=True).map(tuple),
    live_race_contexts=st.sets(st.sampled_from(RACE_CHOICES)).map(lambda found: tuple(sorted(found))),
)


def from_controls(held: dict[str, Any]) -> LiveOptions:
    return LiveOptions(**{name: row.read_control(held.get(name)) for name, row in choices(LiveOptions).items()})


@given(_options)
def test_round_trip(options: LiveOptions) -> None:
    assert LiveOptions.from_query(options.to_query()) == (options, ())
    assert from_controls(options.controls()) == options


def test_the_default_view_needs_no_parameter_and_another_one_says_what_differs() -> None:
    assert LiveOptions().to_query() == {}
    options = LiveOptions(
        live_heat=0.7, live_top_p=0.95, live_seed=42, live_layers=4, live_chat=False, live_seconds=30,
        live_contexts=(16, 4096), live_variants=("mha", "gqa:4"), live_race_contexts=(), live_probe_too=False,
    )  # fmt: skip
    assert options.to_query() == {
        "live_heat": "0.7", "live_top_p": "0.95", "live_seed": "42", "live_layers": "4", "live_chat": "0",
        "live_seconds": "30", "live_contexts": "16,4096", "live_variants": "mha,gqa:4", "live_race_contexts": "none",
        "live_probe_too": "0",
    }  # fmt: skip


def test_a_control_that_is_missing_or_holds_nothing_is_the_default() -> None:
    assert from_controls({}) == LiveOptions()
    held = {"live_kv": None, "live_layers": None, "live_contexts": [1024, 16], "other": 1}
    assert from_controls(held) == LiveOptions(live_contexts=(16, 1024))


def test_a_link_never_allows_a_download() -> None:
    assert not {name for name in choices(LiveOptions) if "hub" in name}


@given(st.dictionaries(st.sampled_from(sorted(choices(LiveOptions))), st.text(max_size=100)))
def test_whatever_the_address_holds_there_are_options(query: dict[str, str]) -> None:
    options, problems = LiveOptions.from_query(query)
    assert isinstance(options, LiveOptions)
    assert len(problems) <= len(query)


@pytest.mark.parametrize(
    ("name", "text"),
    [("live_prompt", "x" * 5000), ("live_prompt", "\0"), ("live_model", "m" * 300), ("live_length", "17"),
     ("live_new", "7"), ("live_new", "-8"), ("live_batch", "3"), ("live_attention", "gqa:x"), ("live_kv", "fp8"),
     ("live_weights", "q4"), ("live_again", "yes"), ("live_probe_too", "2"), ("live_layers", "0"),
     ("live_layers", "1001"), ("live_layers", "9" * 5000), ("live_heat", "2.01"), ("live_heat", "-1"),
     ("live_heat", "nan"), ("live_heat", "1e0"), ("live_top_p", "0"), ("live_top_p", "0.123"), ("live_seed", "-1"),
     ("live_seed", "2147483649"), ("live_seed", "٣"), ("live_chat", ""), ("live_seconds", "7"),
     ("live_contexts", "17"), ("live_contexts", "16,,64"), ("live_contexts", ""), ("live_contexts", "16;64"),
     ("live_variants", "mha,<b>"), ("live_variants", ""), ("live_variants", ",".join(f"sliding:{n}" for n in range(16, 33))),
     ("live_race_contexts", "16"), ("live_race_contexts", "131072")],
)  # fmt: skip
def test_what_cannot_be_read_is_named(name: str, text: str) -> None:
    options, problems = LiveOptions.from_query({name: text})
    assert options == LiveOptions()
    assert len(problems) == 1
    assert problems[0].startswith(f"The address's {name} was not taken: ")


def test_its_parameters_are_nobody_elses() -> None:
    assert not set(choices(LiveOptions)) & (set(choices(Scenario)) | set(choices(VariantOptions)))
