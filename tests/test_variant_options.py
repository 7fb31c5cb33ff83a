"""The Variants screen's part of the address: a round trip for everything, a sentence for anything else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcore.formats import KV_FORMATS
from kvcore.model.weight_formats import WEIGHT_FORMATS
from kvcore.scenario.fields import choices
from kvcore.scenario.scenario import Scenario
from kvcore.scenario.variants import TRENDS, VariantOptions
from kvcore.variants.ladder import MAX_DESIGNS

_names = st.one_of(
    st.sampled_from(["mha", "mqa", "mla", "linear"]),
    st.integers(1, 64).map("gqa:{}".format),
    st.tuples(st.integers(1, 4096), st.integers(0, 512)).map(lambda pair: f"mla:{pair[0]}+{pair[1]}"),
    st.tuples(st.integers(1, 10**6), st.integers(1, 64)).map(lambda pair: f"sliding:{pair[0]}/{pair[1]}"),
    st.tuples(st.integers(1, 64), st.sampled_from(["mamba2", "gdn", "kda"])).map(lambda p: f"hybrid:{p[0]}:{p[1]}"),
).filter(lambda name: name != "mla:512+64")
_designs = st.one_of(_names, st.tuples(_names, st.sampled_from(sorted(KV_FORMATS))).map("@".join))
_options = st.builds(
    VariantOptions,
    designs=st.lists(_designs, max_size=MAX_DESIGNS, unique=True).map(tuple),
    design=_designs,
    weights=st.sampled_from(["auto", *WEIGHT_FORMATS]),
    gpus=st.integers(0, 4096),
    other=st.sampled_from(["same", "auto", *KV_FORMATS]),
    trend=st.sampled_from(TRENDS),
)


@given(_options)
def test_round_trip(options: VariantOptions) -> None:
    assert VariantOptions.from_query(options.to_query()) == (options, ())


def test_defaults_are_left_out() -> None:
    assert VariantOptions().to_query() == {}


@given(st.dictionaries(st.sampled_from(sorted(choices(VariantOptions))), st.text(max_size=120)))
def test_whatever_the_address_holds_there_are_options(query: dict[str, str]) -> None:
    options, problems = VariantOptions.from_query(query)
    assert isinstance(options, VariantOptions)
    assert len(problems) <= len(query)


@pytest.mark.parametrize(
    ("name", "text"),
    [("designs", "mha,zzz"), ("designs", ",".join(f"gqa:{n}" for n in range(1, 40))), ("design", "gqa:x"),
     ("weights", "q9"), ("gpus", "-1"), ("gpus", "5000"), ("gpus", "٣"), ("other", "w"), ("trend", "up")],
)  # fmt: skip
def test_what_cannot_be_read_is_named(name: str, text: str) -> None:
    options, problems = VariantOptions.from_query({name: text})
    assert options == VariantOptions()
    assert len(problems) == 1
    assert problems[0].startswith(f"The address's {name} was not taken: ")


def test_its_parameters_are_not_the_scenarios() -> None:
    """Both stand in one address."""
    assert not set(choices(VariantOptions)) & set(choices(Scenario))
