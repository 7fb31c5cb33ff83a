"""The Concurrency screen's part of the address: a round trip for everything, a sentence for anything else."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcore.deployment import OWN_HEAD, Deployment, Split, read_split
from kvcore.errors import UnitError
from kvcore.hardware.gpus import accelerator
from kvcore.model.weight_formats import WEIGHT_FORMATS
from kvcore.scenario.concurrency import ConcurrencyOptions, deployment, keep, kept, read_draft, taken
from kvcore.scenario.fields import choices
from kvcore.scenario.live import LiveOptions
from kvcore.scenario.scenario import Scenario
from kvcore.units import GIB

_small = st.integers(1, 8)
_splits = st.builds(
    Split, tp=_small, pp=_small, dp=_small, dcp=_small, expert_parallel=st.booleans(), dp_attention=st.booleans()
)


@st.composite
def _made(draw: st.DrawFn) -> ConcurrencyOptions:
    split = draw(st.none() | _splits)
    return ConcurrencyOptions(
        users=draw(st.integers(0, 10**6)),
        count=draw(st.integers(1, 4096)) if split is None else split.gpus,
        split="auto" if split is None else split.text,
        weights=draw(st.sampled_from(["auto", *WEIGHT_FORMATS])),
        have=draw(st.sampled_from(["", "40 GiB", "12.5 GiB", "80 GB"])),
        util=draw(st.sampled_from([0.0, 0.5, 0.92, 0.985, 1.0])),
        batched=draw(st.integers(0, 10**6)),
        seqs=draw(st.integers(0, 10**5)),
        eager=draw(st.booleans()),
        prefix=draw(st.booleans()),
        spec=draw(st.integers(0, 16)),
        draft=draw(st.sampled_from(["", "mtp", "Qwen/Qwen3-0.6B", "meta-llama/Llama-3.2-1B-Instruct@fp8"])),
        version=draw(st.sampled_from(["", "0.7.3", "v0.11.0", "b6000", "0.6.4.post1"])),
        more=draw(st.sampled_from([(), ("swa_full=1",), ("page_size=64", "tool=llama-server")])),
        prompt=draw(st.integers(0, 10**6)),
        answer=draw(st.integers(0, 10**6)),
        thinking=draw(st.integers(0, 10**6)),
        shared=draw(st.integers(0, 10**6)),
        people=draw(st.integers(1, 10**6)),
        active=draw(st.integers(1, 100)),
        minute=draw(st.sampled_from([0.0, 0.25, 12.0])),
        seconds=draw(st.integers(0, 10**5)),
        host=draw(st.integers(0, 10**5)),
        curves=draw(st.sampled_from([(), ("fp8-cache",), ("fp8-cache", "16-gpus-tp-4-×-pp-2")])),
        kept=draw(st.sampled_from(["", "as-is", "users=12&count=4&model=google/gemma-3-27b-it"])),
    )


@given(_made())
def test_round_trip(options: ConcurrencyOptions) -> None:
    assert ConcurrencyOptions.from_query(options.to_query()) == (options, ())


def test_defaults_are_left_out() -> None:
    assert ConcurrencyOptions().to_query() == {}


@given(st.dictionaries(st.sampled_from(sorted(choices(ConcurrencyOptions))), st.text(max_size=120)))
def test_whatever_the_address_holds_there_are_options(query: dict[str, str]) -> None:
    options, problems = ConcurrencyOptions.from_query(query)
    assert isinstance(options, ConcurrencyOptions)
    assert len(problems) <= len(query) + 1


@pytest.mark.parametrize(
    ("name", "text"),
    [("users", "-1"), ("users", "٣"), ("count", "0"), ("count", "5000"), ("split", "tp"), ("split", "tp8-tp4"),
     ("split", "tp0"), ("split", "tp4096-pp2"), ("weights", "q9"), ("have", "x"), ("have", "0 GiB"), ("util", "1.01"), ("util", "92%"),
     ("eager", "yes"), ("more", "rm -rf"), ("version", "0.7;ls"), ("version", "9" * 41), ("draft", "/etc/hostname"), ("draft", "no/such-model"), ("draft", "Qwen/Qwen3-0.6B@q99"), ("prompt", "many"), ("active", "200"), ("curves", "a,b,c,d,e,f"),
     ("kept", "x" * 20_000), ("kept", "users=many"), ("kept", "other=1"), ("kept", "users"), ("kept", "kept=users%3D1"), ("seconds", "1.5"), ("host", "-3"), ("minute", "1e3")],
)  # fmt: skip
def test_what_cannot_be_read_is_named(name: str, text: str) -> None:
    options, problems = ConcurrencyOptions.from_query({name: text})
    assert options == ConcurrencyOptions()
    assert len(problems) == 1
    assert problems[0].startswith(f"The address's {name} was not taken: ")


def test_a_draft_of_the_address_is_the_catalogues() -> None:
    scenario, options = Scenario(engine="vllm"), ConcurrencyOptions(spec=3, draft="Qwen/Qwen3-0.6B@fp8")
    found = deployment(scenario, options, Split()).draft
    assert found is not None
    assert found.model is not None
    assert (found.text, found.model.hidden_size, found.weight_format) == ("Qwen/Qwen3-0.6B@fp8", 1024, "fp8")
    assert deployment(scenario, replace(options, draft="mtp"), Split()).draft == OWN_HEAD
    assert deployment(scenario, replace(options, spec=0), Split()).draft is None
    assert ConcurrencyOptions.from_query({"draft": "qwen/qwen3-0.6b"})[0].draft == "Qwen/Qwen3-0.6B"


def test_a_split_of_other_gpus_is_named() -> None:
    options, problems = ConcurrencyOptions.from_query({"split": "tp4", "users": "7"})
    assert (options.split, options.users) == ("auto", 7)
    assert problems == ("The address's split was not taken: tp4 is 4 GPUs, not 8.",)
    assert ConcurrencyOptions.from_query({"split": "dp2-tp4"})[0].split == "tp4-dp2"


def test_gpus_is_a_number_of_gpus_here_too() -> None:
    """The command and another screen call it so; what is named in this screen's own word comes first."""
    assert ConcurrencyOptions.from_query({"gpus": "4"}) == (ConcurrencyOptions(count=4), ())
    assert ConcurrencyOptions.from_query({"gpus": "4", "count": "2"})[0].count == 2
    for text in ("auto", "0", "", "many", "²", "9" * 5000):
        assert ConcurrencyOptions.from_query({"gpus": text})[0].count == 8
    assert "within 1 … 4,096" in ConcurrencyOptions.from_query({"gpus": "5000"})[1][0]


def test_its_parameters_are_nobody_elses() -> None:
    """All stand in one address; the format of the weights is the same choice on two screens."""
    assert not set(choices(ConcurrencyOptions)) & set(choices(Scenario))
    assert not set(choices(ConcurrencyOptions)) & set(choices(LiveOptions))


@given(_splits)
def test_splits_have_one_spelling(split: Split) -> None:
    assert read_split(split.text) == split
    assert read_split(split.text.upper()) == split


def test_a_bare_number_for_the_cache_is_gib_as_logs_write_it() -> None:
    assert ConcurrencyOptions.from_query({"have": "12.5"})[0].have == "12.5 GiB"


def test_users_follow_the_scenario_where_none_are_named() -> None:
    assert ConcurrencyOptions().requests(Scenario()) == 30
    assert ConcurrencyOptions().requests(Scenario(batch=64)) == 64
    assert ConcurrencyOptions(users=1).requests(Scenario(batch=64)) == 1


def test_what_the_planner_is_asked() -> None:
    options = ConcurrencyOptions(weights="fp8", util=0.95, seqs=128, have="40 GiB", more=("page_size=64", "swa_full=1"))
    made = deployment(Scenario(engine="sglang", kv="fp8", tokens=8192), options, Split(tp=4, dp=2))
    assert (made.tp, made.dp, made.gpus, made.context, made.kv_dtype) == (4, 2, 8, 8192, "fp8")
    assert (made.weight_format, made.utilization, made.max_num_seqs) == ("fp8", 0.95, 128)
    assert made.kv_bytes == 40 * GIB
    # SGLang has pages; swa_full is llama.cpp's.
    assert made.options == (("page_size", 64),)
    with pytest.raises(UnitError, match="page_size: 'x' is not a whole number"):
        deployment(Scenario(engine="sglang"), ConcurrencyOptions(more=("page_size=x",)), Split())


_deployments = st.builds(
    lambda split, **more: Deployment(
        **{name: getattr(split, name) for name in ("tp", "pp", "dp", "dcp", "expert_parallel", "dp_attention")},
        **{"engine": "vllm"} | more | ({} if more["speculative_tokens"] else {"draft": None}),
    ),
    _splits,
    draft=st.sampled_from([None, OWN_HEAD, read_draft("Qwen/Qwen3-0.6B"), read_draft("Qwen/Qwen3-0.6B@fp8")]),
    gpu=st.sampled_from([accelerator("h100-sxm"), accelerator("mi300x")]),
    context=st.integers(1, 10**6),
    engine=st.just("llama.cpp"),
    kv_dtype=st.sampled_from(["auto", "fp8", "q8_0/q4_0"]),
    weight_format=st.sampled_from([None, "fp8", "q4_k"]),
    utilization=st.sampled_from([None, 0.5, 0.875, 0.92]),
    max_num_batched_tokens=st.none() | st.integers(1, 10**5),
    max_num_seqs=st.none() | st.integers(1, 1000),
    engine_version=st.sampled_from([None, "0.7.3", "b6000"]),
    enforce_eager=st.booleans(),
    prefix_caching=st.booleans(),
    speculative_tokens=st.integers(0, 8),
    kv_bytes=st.none() | st.integers(1, 10**12),
    options=st.sampled_from([(), (("parallel", 4), ("swa_full", True))]),
)


@given(_deployments)
def test_a_deployment_can_be_chosen(wanted: Deployment) -> None:
    """What a lever or a remedy proposes can be applied: the choices that it gives make the same deployment."""
    scenario, options = taken(Scenario(), ConcurrencyOptions(), wanted, users=12)
    assert options.users == 12
    assert deployment(scenario, options, read_split(options.split)) == wanted
    assert wanted.split.text == options.split
    assert Scenario.from_query(scenario.to_query()) == (scenario, ())
    assert ConcurrencyOptions.from_query(options.to_query()) == (options, ())


@given(_made())
def test_a_kept_plan_comes_back(options: ConcurrencyOptions) -> None:
    scenario = Scenario(model="google/gemma-3-27b-it", tokens=4096, gpu="mi300x")
    assert kept(keep(scenario, options)) == (scenario, replace(options, kept="", curves=()))
    assert kept(keep(Scenario(), ConcurrencyOptions())) == (Scenario(), ConcurrencyOptions())
