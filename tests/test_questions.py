"""Questions that people asked: each is answered at its address and by its command, with the figure that it must have."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import numpy as np
import pytest

from kvcore.cli.main import main
from kvcore.deployment import Deployment
from kvcore.evidence.questions import Figure, Question, page, questions
from kvcore.hardware.gpus import accelerator
from kvcore.model import Model
from kvcore.planning.answers import least_utilization
from kvcore.planning.people import Traffic, expected
from kvcore.planning.plan import Plan, make_plan
from kvcore.planning.result import plan_result
from kvcore.planning.sweep import grid
from kvcore.scenario.concurrency import ConcurrencyOptions
from kvcore.scenario.scenario import Scenario
from kvcore.scenario.variants import VariantOptions
from kvcore.sources import catalogue
from pages.ui.concurrency.case import case
from tests.commands import answer

ROOT = Path(__file__).resolve().parent.parent
GIB = 2**30
NUMBERS = [str(one.number) for one in questions()]


def test_all_thirty_are_there() -> None:
    assert [one.number for one in questions()] == list(range(1, 31))
    for one in questions():
        assert re.fullmatch(r"20\d\d(-\d\d)?", one.date)
        assert re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", one.source)
        assert all(figure.how for figure in one.figures)
    assert len({one.short for one in questions()}) == 30
    # Those that came with numbers of their own.
    assert {one.number for one in questions() if one.figures} >= {1, 2, 4, 5, 6, 7, 8, 9, 12, 17, 21, 22, 23, 24, 30}


@pytest.mark.parametrize("one", questions(), ids=NUMBERS)
def test_the_command_has_the_figures(capsys: pytest.CaptureFixture[str], one: Question) -> None:
    found = answer(capsys, *one.command.split())
    for figure in one.figures:
        value: Any = found
        for key in figure.key.split("."):
            value = value[key]
        assert figure.holds(value), (figure, value)


@pytest.mark.parametrize("one", questions(), ids=NUMBERS)
def test_the_address_is_one_that_its_screen_reads(one: Question) -> None:
    parts = urlsplit(one.address)
    query = dict(parse_qsl(parts.query, strict_parsing=True))
    kinds: dict[str, Any] = {"/concurrency": ConcurrencyOptions, "/variants": VariantOptions, "/size": Scenario}
    scenario, problems = Scenario.from_query(query)
    options, more = kinds[parts.path].from_query(query)
    assert (*problems, *more) == ()
    catalogue.load(scenario.model)
    # Nothing in an address is lost: writing it again gives every parameter that is no default.
    written = scenario.to_query() | options.to_query()
    assert set(written) <= set(query)
    assert {name for name in query if name not in written} <= {"model", "tokens", "gpu", "count", "engine"}


PLANS = [one for one in questions() if one.address.startswith("/concurrency")]


def asked_by_the_link(one: Question) -> tuple[Model, Deployment, int]:
    """What the Concurrency screen plans for a question's address: the model, the deployment and the users."""
    query = dict(parse_qsl(urlsplit(one.address).query))
    scenario, _ = Scenario.from_query(query)
    options, _ = ConcurrencyOptions.from_query(query)
    found = case(catalogue.load(scenario.model), scenario, options)
    assert not found.problem
    return found.plan.model, found.deployment, found.users


def asked_by_the_command(one: Question) -> tuple[Model, Deployment, int | None]:
    """What `kvcore plan` hands to the planner for a question's command."""
    asked: list[tuple[Model, Deployment, int | None]] = []

    def planned(model: Model, deployment: Deployment, users: int | None = None) -> Plan:
        asked.append((model, deployment, users))
        return make_plan(model, deployment, users)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kvcore.planning.plan.make_plan", planned)
        assert main([*one.command.split(), "--json"]) == 0
    return asked[0]


@pytest.mark.parametrize("one", PLANS, ids=lambda one: str(one.number))
def test_link_and_command_ask_the_same_and_have_the_figures(capsys: pytest.CaptureFixture[str], one: Question) -> None:
    model, deployment, users = asked_by_the_link(one)
    assert one.command.startswith("plan ")
    assert asked_by_the_command(one)[:2] == (model, deployment)
    capsys.readouterr()
    found = plan_result(make_plan(model, deployment, users)).to_dict()
    for figure in one.figures:
        value: Any = found
        for key in figure.key.split("."):
            value = value[key]
        assert figure.holds(value), (figure, value)
    if any(figure.key == "fits" for figure in one.figures):
        assert users == (asked_by_the_command(one)[2] or 1)


def test_every_plan_is_for_the_users_of_its_question() -> None:
    """Nobody asked for the number that the screen begins with."""
    for one in PLANS:
        assert "users" in dict(parse_qsl(urlsplit(one.address).query)), one.number


def test_expected_lengths_beside_the_worst_case() -> None:
    """Question 3: (9,441 − 1) blocks // 160 a request of 2,560 tokens."""
    one = next(one for one in questions() if one.number == 3)
    model, deployment, _ = asked_by_the_link(one)
    query = dict(parse_qsl(urlsplit(one.address).query))
    options, _ = ConcurrencyOptions.from_query(query)
    found = expected(model, deployment, Traffic(prompt_tokens=options.prompt, answer_tokens=options.answer))
    assert (found.worst.requests.low, found.peak.requests.low) == (4, (9441 - 1) // 160) == (4, 59)


def test_a_stated_pool_beside_weights_that_leave_no_room_for_it_is_noted() -> None:
    """Question 9: 12.57 GiB beside all of MiniMax M2.5 on one A40, which answers and says that it cannot be."""
    for number, noted in ((5, True), (9, True), (2, False), (14, False)):
        model, deployment, users = asked_by_the_link(next(one for one in questions() if one.number == number))
        plan = make_plan(model, deployment, users)
        assert plan.requests is not None
        assert any("stated pool does not go" in note for note in plan.notes) is noted


def test_the_page_of_questions_is_the_data_s() -> None:
    """`python -m kvcore.evidence.questions > docs/questions.md` writes it."""
    assert page("http://localhost:8501") == (ROOT / "docs" / "questions.md").read_text("utf-8")


def test_glm_streams_at_three_lengths(capsys: pytest.CaptureFixture[str]) -> None:
    """206 GiB // (tokens × 92,628 B): 78 latents of 576 × 2 B and 21 index keys of 132 B."""
    for context, streams in ((4096, 582), (8192, 291), (16_384, 145)):
        assert 206 * GIB // (context * (78 * 576 * 2 + 21 * 132)) == streams
        found = answer(capsys, "plan", "zai-org/GLM-5.2", "--gpu", "b300", "--context", str(context), "--kv-gib", "206")
        assert found["requests"]["low"] == streams


def test_the_spec_sheet_of_kimi() -> None:
    """Users × context from 715,072 tokens in blocks of 64 on each rank, and eight times as many with DCP 8."""
    model = catalogue.load("moonshotai/Kimi-K2-Instruct")
    box = Deployment(
        gpu=accelerator("h200-sxm"),
        context=131_072,
        tp=8,
        kv_bytes=int(46.8 * GIB),
        options=(("block_size", 64),),
        engine="vllm",
    )
    contexts, users = (8192, 32_768, 131_072), (1, 5, 6, 21, 22, 87, 88)
    sheet = grid(model, box, contexts, users)
    assert [most.low for most in sheet.most] == [715_072 // context for context in contexts] == [87, 21, 5]
    expected = [[2 if count <= 715_072 // context else 0 for context in contexts] for count in users]
    assert np.array_equal(sheet.fits, np.array(expected))
    spread = make_plan(model, replace(box, dcp=8))
    assert spread.tokens is not None
    assert spread.tokens.low == 8 * 715_072


def test_more_users_need_a_larger_share() -> None:
    """Qwen2.5-7B: 50 requests of 8,192 tokens take 50 × 8,192 × 57,344 B = 21.9 GiB beside 14.2 GiB of weights."""
    model = catalogue.load("Qwen/Qwen2.5-7B-Instruct")
    deployment = Deployment(gpu=accelerator("a100-sxm-80gb"), context=8192, engine="vllm")
    shares = [least_utilization(model, deployment, users) for users in (5, 20, 50)]
    assert all(share is not None for share in shares)
    five, twenty, fifty = (share or 0.0 for share in shares)
    assert five < twenty < fifty
    need = 50 * 8192 * 57_344 + 7_615_616_512 * 2
    assert need / deployment.gpu.memory_bytes < fifty < need / deployment.gpu.memory_bytes + 0.15


def test_20k_yes_29k_no_35k_yes(capsys: pytest.CaptureFixture[str]) -> None:
    """vllm-project/vllm#10517: whole prompts in one step up to 32,768 tokens, then in chunks of 512 (vLLM 0.6)."""
    base = (
        "plan",
        "meta-llama/Llama-3.1-8B-Instruct",
        "--gpu",
        "rtx-3090",
        "--utilization",
        "0.9",
        "--engine-version",
        "0.6.4",
    )
    for context, batched, fits, logged in (
        (20_000, 20_000, True, 3.81),
        (29_000, 29_000, False, 2.89),
        (35_000, 512, True, None),
    ):
        found = answer(capsys, *base, "--context", str(context), "--max-num-batched-tokens", str(batched))
        # A log tells what one machine did, which the best guess is about; the safe end is on the safe side of it.
        assert (found["requests"]["best"] >= 1) is fits
        if logged is not None:
            assert found["kv_bytes_range"]["low"] <= logged * GIB <= found["kv_bytes_range"]["high"]


def test_deepseek_v4_has_no_one_rate(capsys: pytest.CaptureFixture[str]) -> None:
    """The same memory is 6.2 times the tokens at ten times the length in the report: a fixed part, and one that grows."""
    base = ("plan", "deepseek-ai/DeepSeek-V4-Flash-0731", "--gpu", "dgx-spark-gb10", "--gpus", "2", "--kv-gib", "24.5")
    short, long = (answer(capsys, *base, "--context", context) for context in ("50000", "500000"))
    assert long["kv_bytes"] == short["kv_bytes"]
    assert 4 < long["kv_cache_size_tokens"] / short["kv_cache_size_tokens"] < 10


def test_an_upgrade_changes_the_words_and_not_the_capacity(capsys: pytest.CaptureFixture[str]) -> None:
    base = (
        "engine",
        "vllm",
        "nvidia/Gemma-4-31B-IT-NVFP4",
        "--max-model-len",
        "262144",
        "--kv-dtype",
        "bf16",
        "--kv-gib",
        "50",
    )
    old, new = (answer(capsys, *base, "--engine-version", version) for version in ("0.20.0", "0.21.0"))
    assert old["max_concurrency"] == new["max_concurrency"]
    assert new["kv_cache_size_tokens"] > 5 * old["kv_cache_size_tokens"]


def test_a_shortfall_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(
        capsys,
        "plan",
        "MiniMaxAI/MiniMax-M2.7",
        "--gpu",
        "dgx-spark-gb10",
        "--gpus",
        "2",
        "--context",
        "196608",
        "--kv-gib",
        "22.5",
    )
    assert "23.25 GiB" in found["binding"]
    assert "22.5 GiB" in found["binding"]
    assert any("max_model_len" in remedy["change"] for remedy in found["remedies"])


def test_figures_can_fail() -> None:
    assert Figure(key="x", value=10, within=0.1, how="").holds(11)
    assert not Figure(key="x", value=10, within=0.1, how="").holds(11.1)
    assert not Figure(key="x", value=10, within=0, how="").holds(11)
    assert not Figure(key="x", value=10, within="least", how="").holds(9)
