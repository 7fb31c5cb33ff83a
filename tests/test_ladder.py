"""The ladder: the shipped model beside its variants, each with its bytes and factors."""

from __future__ import annotations

from fractions import Fraction

import pytest

from kvcore.errors import UnitError
from kvcore.units import GIB
from kvcore.variants.ladder import DEFAULT_DESIGNS, MAX_DESIGNS, SHIPPED, Ladder, build, ladder, parse_design
from tests.models import every_model, model

LLAMA = "meta-llama/Llama-3.3-70B-Instruct"


def held(found: Ladder) -> dict[str, int]:
    return {rung.design: rung.resident_bytes for rung in found.rungs}


def test_llama_at_8k() -> None:
    found = ladder(model(LLAMA), ("mha", "mqa", "mla", "shipped@fp8"), tokens=8192)
    assert held(found) == {
        "mha": 20 * GIB, SHIPPED: 5 * GIB // 2, "shipped@fp8": 5 * GIB // 4, "mla": 8192 * 80 * 576 * 2,
        "mqa": 5 * GIB // 16,
    }  # fmt: skip
    assert [rung.design for rung in found.rungs] == ["mha", SHIPPED, "shipped@fp8", "mla", "mqa"]
    assert {rung.design: rung.factor_mha for rung in found.rungs}["mqa"] == 64
    assert found.shipped.factor_mha == 8
    assert found.shipped.factor_shipped == 1
    assert found.rung("mla") is not None
    assert found.rung("mla").factor_shipped == Fraction(2 * 8 * 128, 576)


def test_a_design_that_is_the_model_is_its_rung() -> None:
    found = ladder(model(LLAMA), ("gqa:8", "mha", "gqa:64", "shipped@bf16"), tokens=100)
    assert [(rung.design, rung.shipped) for rung in found.rungs] == [("mha", False), (SHIPPED, True)]


@pytest.mark.parametrize(
    ("design", "rung"), [("gqa:8@fp8", "shipped@fp8"), ("share:1", "shipped"), ("gqa:1", "mqa"), ("gqa:64", "mha")]
)
def test_a_design_that_comes_out_as_another_is_found_under_both_names(design: str, rung: str) -> None:
    found = ladder(model(LLAMA), ("shipped@fp8", "mqa", "mha", design), tokens=100)
    assert found.rung(design) is found.rung(rung) is not None
    assert len(found.rungs) == 4


def test_one_design_more_than_are_listed_is_still_built() -> None:
    """The one that is looked at closely stands beside the longest list."""
    listed = [f"mla:{rank}+64" for rank in range(100, 100 + MAX_DESIGNS)]
    assert ladder(model(LLAMA), (*listed, "mqa"), tokens=100).rung("mqa") is not None


def test_the_batch_multiplies_and_a_token_does_not() -> None:
    one, many = (ladder(model(LLAMA), tokens=4096, batch=batch) for batch in (1, 7))
    assert held(many) == {design: 7 * size for design, size in held(one).items()}
    assert [rung.bytes_per_token for rung in many.rungs] == [rung.bytes_per_token for rung in one.rungs]


def test_what_cannot_be_built_is_named() -> None:
    found = ladder(model(LLAMA), ("gqa:7", "shipped@fp8_ds_mla", "mla@fp8_ds_mla", "mqa"), tokens=8192)
    assert [design for design, _ in found.refused] == ["gqa:7", "shipped@fp8_ds_mla"]
    assert "must divide the 64 query heads" in found.refused[0][1]
    assert held(found)["mla@fp8_ds_mla"] == 8192 * 80 * 656


def test_a_format_for_latents_only_is_measured_against_16_bits() -> None:
    found = ladder(model("deepseek-ai/DeepSeek-V3"), ("mha",), tokens=1000, kv_dtype="fp8_ds_mla")
    assert found.mha_format == "bf16"
    assert found.shipped.factor_mha == Fraction(128 * (192 + 128) * 2, 656)
    assert [design for design, _ in found.refused] == ["mha"]


def test_a_model_without_heads_has_no_yardstick() -> None:
    found = ladder(model("state-spaces/mamba-2.8b-hf"), tokens=1000)
    assert found.mha_bytes is None
    assert found.shipped.factor_mha is None
    # A state has no cache format: what is stored in fp8 is the same rung.
    assert [rung.design for rung in found.rungs] == ["linear:mamba2", SHIPPED]


def test_nothing_held_has_no_factor() -> None:
    found = ladder(model(LLAMA), ("mqa",), tokens=0)
    assert {rung.resident_bytes for rung in found.rungs} == {0}
    assert {rung.factor_mha for rung in found.rungs} == {None}


def test_every_catalogued_model_has_a_ladder(subtests: pytest.Subtests) -> None:
    for model_id in every_model():
        with subtests.test(model=model_id):
            own = model(model_id)
            found = ladder(own, tokens=32_768)
            assert sum(rung.shipped for rung in found.rungs) == 1
            assert found.shipped.model is own
            sizes = [rung.resident_bytes for rung in found.rungs]
            assert sizes == sorted(sizes, reverse=True)
            for rung in found.rungs:
                assert all(part.parameters > 0 for part in rung.model.weights)
                if rung.factor_mha is not None:
                    assert rung.factor_mha * rung.resident_bytes == found.mha_bytes
            if own.num_attention_heads:
                reasons = {why for _, why in found.refused}
                assert all("must divide" in why or "pairs K with V" in why for why in reasons), reasons


@pytest.mark.parametrize(
    ("text", "plain"),
    [(" MQA ", "mqa"), ("mla:512+64@FP8", "mla@fp8"), ("shipped@kivi", "shipped@kivi2"), ("Shipped", "shipped"),
     ("sliding:8K/4@q8_0/q4_0", "sliding:8192/4@q8_0/q4_0")],
)  # fmt: skip
def test_designs_have_one_spelling(text: str, plain: str) -> None:
    assert parse_design(text) == plain == parse_design(plain)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "@fp8",
        "shipped@auto",
        "mla:512",
        "mqa@",
        "mqa@x",
        "mqa@fp8@fp8",
        "shipped:2",
        "x" * 200,
        "mha\n,mqa",
        "ｍha",
    ],
)
def test_what_is_no_design_is_refused(text: str) -> None:
    with pytest.raises(UnitError):
        parse_design(text)


def test_building_says_which_format_it_is_stored_in() -> None:
    made, kv = build(model(LLAMA), "mla", "auto")
    assert (made.name, kv.name) == (f"{LLAMA} as mla", "bf16")
    assert build(model(LLAMA), "shipped@q8_0/q4_0", "fp8")[1].name == "q8_0/q4_0"
    assert build(model(LLAMA), "shipped", "fp8")[1].name == "fp8"


def test_the_usual_designs_are_in_their_one_spelling() -> None:
    assert tuple(parse_design(design) for design in DEFAULT_DESIGNS) == DEFAULT_DESIGNS
