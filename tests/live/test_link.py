"""The Live screen's part of the address: a round trip for everything, a sentence for anything else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcore.live.link import BATCHES, LENGTHS, NEW_TOKENS, READERS, LiveOptions
from kvcore.live.options import KV_FORMATS, WEIGHT_FORMATS
from kvcore.scenario import Scenario
from kvcore.variant_options import READERS as OF_VARIANTS

_options = st.builds(
    LiveOptions,
    live_prompt=st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), max_size=60),
    live_model=st.sampled_from(["Qwen/Qwen3-0.6B", "hub:Qwen/Qwen3-1.7B", "shape:meta-llama/Llama-3.3-70B-Instruct"]),
    live_length=st.sampled_from(LENGTHS),
    live_new=st.sampled_from(NEW_TOKENS),
    live_batch=st.sampled_from(BATCHES),
    live_attention=st.sampled_from(["shipped", "mha", "gqa:3", "mla:256+32", "sliding:256"]),
    live_kv=st.sampled_from(KV_FORMATS),
    live_weights=st.sampled_from(WEIGHT_FORMATS),
    live_again=st.booleans(),
)


@given(_options)
def test_round_trip(options: LiveOptions) -> None:
    assert LiveOptions.from_query(options.to_query()) == (options, ())


@given(st.dictionaries(st.sampled_from(sorted(READERS)), st.text(max_size=100)))
def test_whatever_the_address_holds_there_are_options(query: dict[str, str]) -> None:
    options, problems = LiveOptions.from_query(query)
    assert isinstance(options, LiveOptions)
    assert len(problems) <= len(query)


@pytest.mark.parametrize(
    ("name", "text"),
    [("live_prompt", "x" * 5000), ("live_prompt", "\0"), ("live_model", "m" * 300), ("live_length", "17"),
     ("live_new", "7"), ("live_new", "-8"), ("live_batch", "3"), ("live_attention", "gqa:x"), ("live_kv", "fp8"),
     ("live_weights", "q4"), ("live_again", "yes")],
)  # fmt: skip
def test_what_cannot_be_read_is_named(name: str, text: str) -> None:
    options, problems = LiveOptions.from_query({name: text})
    assert options == LiveOptions()
    assert len(problems) == 1
    assert problems[0].startswith(f"The address's {name} was not taken: ")


def test_its_parameters_are_nobody_elses() -> None:
    assert not set(READERS) & (set(Scenario.__dataclass_fields__) | set(OF_VARIANTS))
    assert set(READERS) == set(LiveOptions.__dataclass_fields__)
