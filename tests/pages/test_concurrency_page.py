"""The Concurrency screen without a browser: answers by hand, what its controls do, refusals, hostile addresses."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from kvcore.deployment import Deployment, Draft, Split
from kvcore.hardware.gpus import accelerator
from kvcore.hardware.systems import HOST_GPUS
from kvcore.planning.plan import make_plan
from kvcore.planning.sweep import LEVERS, Grid, grid
from kvcore.scenario.concurrency import ConcurrencyOptions
from kvcore.scenario.fields import choices
from kvcore.scenario.scenario import Scenario
from kvcore.sources import catalogue
from kvcore.terms import Range
from kvcore.units import GIB
from pages.ui import screens, theme
from pages.ui.concurrency import address, curves, examples, levers, memory, sweep_chart, words
from pages.ui.concurrency import grid as plan_grid
from tests.models import every_model, one_of_each_kind
from tests.pages.rendered import html_bodies
from tests.pages.rendered import rendered as read
from tests.pages.screens import open_screen

LLAMA = "meta-llama/Llama-3.3-70B-Instruct"
# A pool that nobody estimates: what follows from it is arithmetic.
STATED = {"have": "51 GiB"}


def open_page(**query: str) -> AppTest:
    """The Concurrency screen at an address, after a run without an exception."""
    return open_screen("concurrency", **query)


def rerun(at: AppTest) -> AppTest:
    at.run()
    assert not at.exception, at.exception[0].stack_trace
    return at


def numbers(at: AppTest) -> list[str]:
    return [metric.value for metric in at.metric][:4]


def title(at: AppTest) -> str:
    return read(at.title[0].value)


def subheaders(at: AppTest) -> str:
    return " | ".join(read(one.value) for one in at.subheader)


def captions(at: AppTest) -> str:
    return read(" ".join(caption.value for caption in at.caption))


def tables(at: AppTest) -> str:
    return "".join(body for body in html_bodies(at) if "kv-table" in body)


def alts(at: AppTest) -> list[str]:
    return [chart.proto.alt for chart in at.get("plotly_chart")]


def test_it_opens_on_an_answer_that_fits() -> None:
    at = open_page()
    assert title(at).startswith("30 users fit: Llama 3.3 70B on 8 × H100 SXM5 80GB holds **")
    assert numbers(at)[1] == "131,072"
    # 2 × 80 layers × 8 heads × 128 × 2 B × 32,768 = 10 GiB, an eighth on each GPU, 30 times.
    assert "30 requests take 37.5 GiB of each GPU" in subheaders(at)
    assert all(len(alt.split()) > 10 for alt in alts(at))
    assert len(alts(at)) == 3
    assert "vllm serve meta-llama/Llama-3.3-70B-Instruct" in " ".join(code.value for code in at.code)


def test_a_pool_that_was_read_off_a_log() -> None:
    """12.5 GiB for Llama 3.1 8B: 8,192 × 2 × 32 × 8 × 128 × 2 B = 1 GiB a request, so twelve are whole."""
    at = open_page(model="meta-llama/Llama-3.1-8B-Instruct", tokens="8192", count="1", have="12.5", users="12")
    assert numbers(at)[0] == "12"
    assert numbers(at)[2] == "12.5 GiB"
    assert title(at).startswith("12 users fit: ")
    at.query_params["users"] = "13"
    rerun(at)
    assert title(at).startswith("13 requests of 8K do not fit: ")
    assert "12.5 GiB are surely there" in subheaders(at)


def test_ten_users_at_32k_take_100_gib() -> None:
    at = open_page(users="10", count="8", have="12.49 GiB", split="tp8")
    # 100 GiB over 8 GPUs are 12.5 GiB on each; vLLM keeps one block of 16 tokens back.
    assert numbers(at)[0] == "9"
    at.query_params["have"] = "12.51 GiB"
    rerun(at)
    assert numbers(at)[0] == "10"


def test_what_does_not_fit_has_remedies_and_one_click_applies_them() -> None:
    at = open_page(tokens="131072", count="4", users="30")
    # 40 GiB a request, a quarter on each GPU: 300 GiB of each for 30.
    assert "30 requests would take 300 GiB of each GPU" in subheaders(at)
    assert "each of these makes it fit" in subheaders(at)
    buttons = [one for one in at.button if str(one.key).startswith("mend_")]
    assert buttons
    buttons[0].click()
    rerun(at)
    assert " fit: " in title(at), title(at)
    assert "do not fit" not in title(at)


def test_a_lever_is_applied_with_a_click() -> None:
    at = open_page(**STATED)
    before = int(numbers(at)[0])
    next(one for one in at.button if one.key == "lever_0").click()
    rerun(at)
    assert int(numbers(at)[0].split("–")[0].replace(",", "")) > before


def test_half_the_bits_hold_twice_as_many() -> None:
    """51 GiB hold 40 requests of 1.25 GiB in 16 bits, 81 of half that in 8 bits."""
    at = open_page(**STATED)
    assert numbers(at)[0] == "40"
    at.selectbox(key="k_format").set_value("fp8")
    rerun(at)
    assert numbers(at)[0] == "81"


def test_a_system_sets_gpu_and_count_and_forgets_the_split() -> None:
    at = open_page(split="tp4-dp2")
    assert at.selectbox(key="plan_split").value == "tp4-dp2"
    assert at.selectbox(key="plan_system").value == "8x-h100-sxm"
    at.selectbox(key="plan_system").set_value("4x-mi300x")
    rerun(at)
    assert at.selectbox(key="gpu").value == "mi300x"
    assert at.selectbox(key="plan_count").value == "4"
    assert at.selectbox(key="plan_split").value == "auto"
    assert "4 × Instinct MI300X" in title(at)


def test_splits_that_do_not_work_are_named_with_their_reason() -> None:
    at = open_page(count="3", split="tp3")
    assert "cannot share Llama 3.3 70B as TP 3" in title(at)
    assert numbers(at)[:3] == ["no figure"] * 3
    assert "64 attention heads cannot be divided over 3 ranks" in read(at.error[0].value)
    assert "What people ask" in subheaders(at)


def test_the_first_split_that_starts_is_taken() -> None:
    """Qwen3 14B has 29.5 GB of weights in 16 bits: no replica of it starts on one 24 GB card, halves of it do."""
    at = open_page(model="Qwen/Qwen3-14B", gpu="rtx-4090", count="2", engine="ollama", users="1", tokens="8192")
    assert int(numbers(at)[0].split("–")[0]) >= 1
    assert "2 replicas" not in captions(at).split(" · ")[0]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"engine": "transformers", "kv": "q8_0"}, "does not serve Llama 3.3 70B this way"),
        ({"model": "allenai/longformer-base-4096"}, "weights take is not known: say what is left for the cache"),
        ({"count": "1"}, "does not start on H100 SXM5 80GB: its weights alone are too large"),
        ({"tokens": "262144"}, "takes requests of at most **131,072 tokens**, not 262,144"),
        (
            {"model": "allenai/longformer-base-4096", "have": "1 GiB", "tokens": "4096"},
            "then the engine lets no more in",
        ),
        ({"users": "100000"}, "100,000 requests of 32K do not fit"),
        ({"users": "1"}, "One user fits"),
    ],
)
def test_titles_answer(query: dict[str, str], said: str) -> None:
    at = open_page(**query)
    assert said in title(at)
    assert len(numbers(at)) == 4
    # Whatever is refused, the rest of the page is there.
    assert at.selectbox(key="plan_system")
    assert "What people ask" in subheaders(at)


def test_users_follow_the_other_screens_until_they_are_named() -> None:
    at = open_page(batch="64")
    assert at.selectbox(key="plan_users").value == "64"
    at.selectbox(key="plan_users").set_value("10")
    rerun(at)
    at.switch_page("pages/size.py")
    rerun(at)
    at.selectbox(key="batch").set_value("128")
    rerun(at)
    at.switch_page("pages/concurrency.py")
    rerun(at)
    assert at.selectbox(key="plan_users").value == "10"


def test_two_plans_side_by_side() -> None:
    at = open_page(**STATED)
    at.button(key="keep_plan").click()
    rerun(at)
    assert "holds as much as plan A" in subheaders(at)
    at.selectbox(key="k_format").set_value("fp8")
    rerun(at)
    assert "40 requests before, 81 now" in subheaders(at)
    assert "plan A, kept" in tables(at)
    at.button(key="swap_plan").click()
    rerun(at)
    assert numbers(at)[0] == "40"
    assert "81 requests before, 40 now" in subheaders(at)
    at.button(key="forget_plan").click()
    rerun(at)
    assert "plan A, kept" not in tables(at)


def test_people_and_lengths() -> None:
    """300 people of whom a tenth wait are 30 requests; 7,168 of 32,768 tokens are 4.57 times as many."""
    at = open_page(**STATED)
    assert "300 people keep 30 requests busy" in subheaders(at)
    assert ">32,768<" in tables(at)
    assert ">7,168<" in tables(at)
    at.selectbox(key="plan_shared").set_value("8K")
    rerun(at)
    assert any("shared prefix" in read(one.value) for one in at.warning)
    assert numbers(at)[0] == "40"


def test_bringing_back_against_computing_again() -> None:
    at = open_page(host="100")
    shown = {metric.label: metric.value for metric in at.metric}
    # 10 GiB each in host memory: 100 GiB hold ten.
    assert shown["Kept in CPU memory"] == "10 requests"
    assert shown["Bring it back"].endswith("ms")


def test_every_engine_has_a_command_or_a_reason() -> None:
    at = open_page()
    words = {
        "vLLM": "vllm serve", "SGLang": "sglang", "TensorRT-LLM": "trtllm-serve", "llama.cpp": "llama-server",
        "Ollama": "ollama",
    }  # fmt: skip
    assert {*words, "transformers"} <= {tab.label for tab in at.tabs}
    for engine, word in words.items():
        at.session_state["launch_vllm"] = engine
        rerun(at)
        # Only the tab that is open is worked out.
        said = [any(other in code.value for code in at.code) for other in words.values()]
        assert sum(said) == 1, engine
        assert any(word in code.value for code in at.code), engine


def test_a_wrong_address_is_named_and_nothing_of_it_is_understood() -> None:
    wrong = {
        "users": "-3", "count": "9999", "split": "tp0", "weights": "q9", "have": "![x](//evil.org)", "util": "2",
        "prompt": "many", "active": "500", "curves": "a,b,c,d,e,f,g", "kept": "x" * 20_000, "more": "$(rm -rf /)",
    }  # fmt: skip
    at = open_page(**wrong)
    for name in wrong:
        assert f"The address's {name} was not taken" in read(at.warning[0].value), name
    assert "![x]" not in at.warning[0].value
    assert "30 users fit" in title(at)


def test_a_plan_that_was_kept_by_a_stranger_does_no_harm() -> None:
    at = open_page(kept="model=![x](//evil.org)&count=zz&kept=kept&have=x")
    assert "Llama 3.3 70B" in title(at)
    assert not any("![x]" in caption.value for caption in at.caption)


@pytest.mark.parametrize("name", list(examples.EXAMPLES))
def test_every_example_opens(name: str) -> None:
    one = examples.EXAMPLES[name]
    at = open_page(**(one.scenario.to_query() | one.options.to_query()))
    assert not at.warning
    assert numbers(at)[0] != "no figure"


def test_who_proposes_tokens_is_chosen_and_travels() -> None:
    """A draft is a choice once tokens are proposed; it is in the address, in the bar and in the command."""
    at = open_page(model="Qwen/Qwen3-32B", spec="3")
    assert not at.selectbox(key="plan_draft").disabled
    assert "n-gram" in " ".join(captions(at).split())
    at.selectbox(key="plan_draft").set_value("Qwen/Qwen3-0.6B")
    rerun(at)
    assert at.query_params["draft"] == "Qwen/Qwen3-0.6B"
    shown = " ".join(html_bodies(at))
    assert "draft model or prediction layers" in shown
    assert "draft_model" in " ".join(code.value for code in at.code)
    at = open_page(model="deepseek-ai/DeepSeek-V3", gpu="h200-sxm", spec="1", draft="mtp")
    assert at.selectbox(key="plan_draft").value == "mtp"
    assert open_page(spec="0").selectbox(key="plan_draft").disabled


@pytest.mark.parametrize("models", [one_of_each_kind, pytest.param(every_model, marks=pytest.mark.slow)])
def test_every_catalogued_model_has_an_answer(models: Callable[[], tuple[str, ...]], subtests: pytest.Subtests) -> None:
    at = open_page()
    for model_id in models():
        with subtests.test(model=model_id):
            at.selectbox(key="model").set_value(model_id)
            rerun(at)
            assert len(numbers(at)) == 4
            said = " ".join([title(at), subheaders(at), captions(at), *numbers(at)])
            wrong = re.search(r"\bnan\b|\binf\b|None|\b1 (requests|users|tokens|GPUs)\b", said)
            assert wrong is None, said[max(0, wrong.start() - 60) : wrong.end() + 60]


def test_the_machine_is_the_same_on_every_screen() -> None:
    at = open_page()
    assert at.selectbox(key="gpu").value == "h100-sxm"
    assert at.selectbox(key="plan_count").value == str(HOST_GPUS)
    # The pool that Size begins with lies within what this plan leaves on each GPU.
    low, high = (float(one) for one in numbers(at)[2].removesuffix(" GiB").split("–"))
    assert low <= float(Scenario().budget.removesuffix(" GiB")) <= high
    for page in ("size", "variants"):
        at.switch_page(f"pages/{page}.py")
        rerun(at)
        assert at.selectbox(key="gpu").value == "h100-sxm"
    assert "8 × H100 SXM5" in captions(at)


def test_the_machine_travels_from_screen_to_screen() -> None:
    at = open_page()
    at.selectbox(key="plan_count").set_value("4")
    at.selectbox(key="gpu").set_value("h200-sxm")
    rerun(at)
    at.switch_page("pages/variants.py")
    rerun(at)
    assert at.selectbox(key="gpus").value == "4"
    assert at.selectbox(key="gpu").value == "h200-sxm"
    at.selectbox(key="gpus").set_value("2")
    at.selectbox(key="gpu").set_value("mi300x")
    rerun(at)
    at.switch_page("pages/size.py")
    rerun(at)
    assert at.selectbox(key="gpu").value == "mi300x"
    at.switch_page("pages/concurrency.py")
    rerun(at)
    assert at.selectbox(key="plan_count").value == "2"
    assert "2 × Instinct MI300X" in title(at)
    at.selectbox(key="plan_count").set_value("8")
    rerun(at)
    at.switch_page("pages/variants.py")
    rerun(at)
    assert at.selectbox(key="gpus").value == "auto"


# What the charts are made of.


def plan_of(users: int = 30, pool: int | None = 50 * GIB, **more: int):  # type: ignore[no-untyped-def]
    deployment = Deployment(
        gpu=accelerator("h100-sxm"), context=32_768, tp=8, kv_bytes=pool, **{"engine": "vllm", **more}
    )
    return make_plan(catalogue.load(LLAMA), deployment, users)


@pytest.mark.parametrize("name", ["light", "dark"])
def test_the_bar_adds_up_to_the_memory_of_the_gpu(name: str) -> None:
    plan = plan_of(pool=None)
    share = memory.shares(plan)[0]
    assert share.missing == 0
    total = plan.pools[0].total_bytes
    assert sum(value for _, value in share.parts) == total
    assert share.used == 30 * 1.25 * GIB
    chart, alt = memory.memory_chart([share], total, theme.PALETTES[name])
    assert chart.checked.data
    assert "cache in use 37.5 GiB" in alt


def test_what_proposes_is_a_part_of_the_bar() -> None:
    """Llama 3.2 1B in 16 bits, 2,471,628,800 bytes over 8 ranks, beside the model's own weights."""
    draft = Draft(name="draft", model=catalogue.load("meta-llama/Llama-3.2-1B-Instruct"))
    plain, drafted = (
        memory.shares(make_plan(catalogue.load(LLAMA), deployment, 1))[0]
        for deployment in (
            Deployment(gpu=accelerator("h100-sxm"), context=32_768, tp=8, engine="vllm"),
            Deployment(
                gpu=accelerator("h100-sxm"), context=32_768, tp=8, speculative_tokens=2, draft=draft, engine="vllm"
            ),
        )
    )
    assert drafted.weights == plain.weights
    assert plain.draft == 0
    assert drafted.draft == pytest.approx(2_471_628_800 / 8, rel=0.01)
    total = accelerator("h100-sxm").memory_bytes
    assert sum(value for _, value in drafted.parts) == total
    _, alt = memory.memory_chart([drafted], total, theme.PALETTES["light"])
    assert "draft model or prediction layers 294.8 MiB" in alt


def test_what_lacks_is_drawn_beyond_the_memory() -> None:
    share = memory.shares(plan_of(users=100))[0]
    # 100 × 1.25 GiB are wanted of 50.
    assert share.used == 50 * GIB
    assert share.missing == 75 * GIB
    assert share.free == 0


def test_replicas_share_the_users() -> None:
    share = memory.shares(plan_of(users=31, dp=2))[0]
    assert share.used == 16 * 1.25 * GIB


def test_cells_and_edges_of_the_heat_map() -> None:
    columns = plan_grid.contexts(32_768, 131_072)
    assert columns[0] == 1024
    assert columns[-1] == 131_072
    assert {2**n for n in range(10, 18)} <= set(columns)
    assert plan_grid.contexts(100, 128)[-1] == 128
    assert max(plan_grid.users(30, 40)) >= 60
    assert len(plan_grid.contexts(10**6, 10**7)) <= 45
    assert len(plan_grid.users(10**6, 10**6)) <= 45
    assert plan_grid.edges((1, 2, 4)) == [-0.5, 0.5, 1.5, 2.5]


@pytest.mark.parametrize("name", ["light", "dark"])
def test_the_heat_map_says_what_the_grid_says(name: str) -> None:
    found = Grid(
        contexts=(1024, 2048), users=(1, 2, 4), most=(Range(low=2, best=3, high=4), Range.exactly(1)),
        fits=np.array([[2, 2], [2, 0], [1, 0]], dtype=np.int8), limits=(),
    )  # fmt: skip
    chart, alt = plan_grid.grid_chart(
        found, tokens=2048, wanted=2, limit=2048, sequences=4, colours=theme.PALETTES[name]
    )
    full, safe, hopeful, cells, here = chart.checked.data
    assert [list(row) for row in full.z] == [[0.5, 1.0], [1.0, None], [None, None]]
    # Edges at the counts themselves: 2 and 1 at the safe end, 4 and 1 at the hopeful one; the band lies between them.
    assert list(safe.x) == [9.5, 10, 11, 11.5]
    assert list(safe.y) == [1, 1, 0, 0]
    assert list(hopeful.y) == [2, 2, 0, 0]
    assert hopeful.fill == "tonexty"
    assert [list(one) for one in cells.customdata] == [[1024, 1], [2048, 1], [1024, 2], [2048, 2], [1024, 4], [2048, 4]]
    assert (here.x[0], here.y[0]) == (11, 1)
    assert "2 to 4" in alt
    assert "at most 4 at once" in alt


def test_the_grid_of_the_screen_is_the_plans() -> None:
    model, wanted = catalogue.load(LLAMA), plan_of(pool=51 * GIB).deployment
    columns = plan_grid.contexts(32_768, model.context_limit)
    found = grid(model, wanted, columns, plan_grid.users(30, 100))
    assert found.most[columns.index(32_768)].low == 40


def test_names_of_curves_have_room_beside_them_and_stand_apart() -> None:
    many = ["as planned", "TP 8 with DCP 8", "H200 SXM 141GB", "turboquant_4bit_nc cache", "turboquant_k3v4_nc cache"]
    same = [Range.exactly(8), Range.exactly(4)]
    lines = [curves.PlanCurve(name=name, most=same, main=not at) for at, name in enumerate(many)]
    made = curves.curves_chart(lines, (4096, 8192), tokens=4096, users=2, colours=theme.LIGHT)
    assert made is not None
    layout = made[0].to_dict()["layout"]
    notes = layout["annotations"]
    parts = [part for note in notes for part in re.sub("</?b>", "", note["text"]).split("<br>")]
    # In the margin, which is as wide as the longest line of a name: 8 pixels a character are more than it takes.
    assert all(note["xref"] == "paper" and note["x"] == 1 for note in notes)
    assert layout["margin"]["r"] >= 4 + 8 * max(len(part) for part in parts)
    assert max(len(part) for part in parts) <= 14
    assert len({note["text"] for note in notes}) == len(many)
    # On 360 pixels of height each has the two lines that it may take, 17 pixels high.
    low, high = layout["yaxis"]["range"]
    places = [360 * note["y"] / (high - low) for note in notes]
    assert all(after - before >= 2 * 17 - 1e-6 for before, after in itertools.pairwise(places))


@pytest.mark.parametrize("name", ["light", "dark"])
def test_curves_are_drawn_and_said(name: str) -> None:
    lines = [
        curves.PlanCurve(name="as planned", most=[Range.exactly(8), Range.exactly(4)], main=True),
        curves.PlanCurve(name="<b>fp8</b>", most=[Range.exactly(16), Range.exactly(0)]),
    ]
    made = curves.curves_chart(lines, (4096, 8192), tokens=4096, users=2, colours=theme.PALETTES[name])
    assert made is not None
    chart, alt = made
    assert list(chart.checked.data[1].y) == [16]
    assert "&lt;b&gt;fp8" in str(chart.to_dict())
    assert "as planned: 8 at 4K" in alt
    nothing = [curves.PlanCurve(name="x", most=[Range.exactly(0)])]
    assert curves.curves_chart(nothing, (4096,), tokens=1, users=1, colours=theme.LIGHT) is None


@pytest.mark.parametrize(
    ("split", "said"),
    [
        (Split(), "one GPU"), (Split(tp=8), "TP 8"), (Split(tp=4, dp=2), "TP 4 × 2 replicas"),
        (Split(tp=8, dcp=8), "TP 8 · DCP 8"), (Split(dp=8, expert_parallel=True), "DP 8 · expert parallel"),
        (Split(tp=2, pp=4), "TP 2 × PP 4"),
    ],
)  # fmt: skip
def test_splits_in_words(split: Split, said: str) -> None:
    assert words.split_words(split) == said


def test_ranges_in_words() -> None:
    assert words.span(Range(low=41, best=42, high=43)) == "41–43"
    assert words.span(Range.exactly(5)) == "5"
    assert words.span_bytes(Range(low=51 * GIB, best=52 * GIB, high=54 * GIB)) == "51.0–54.0 GiB"
    assert words.span_bytes(Range(low=-GIB, best=0, high=GIB)) == "0.0–1.0 GiB"
    assert words.factor(2) == "2.0×"
    assert words.factor(1.1) == "+10%"
    assert words.factor(None) == "–"
    assert words.seconds(0.0254) == "25.4 ms"


def test_every_choice_has_a_key_and_a_way_there_and_back() -> None:
    options = ConcurrencyOptions(users=7, count=16, util=0.9, seqs=64, curves=("fp8-cache",), eager=True, minute=0.25)
    held = options.controls()
    assert set(map(address.key, held)) == set(screens.screen("concurrency").keys)
    for name, row in choices(ConcurrencyOptions).items():
        assert row.read_control(held[name]) == getattr(options, name)
        assert row.read_control(row.control(row.default)) == row.default


def test_slots_are_made_for_the_users() -> None:
    """12 requests of 8,192 tokens: 12 × 8,192 = 98,304 cells, in 12 slots."""
    at = open_page(**STATED, engine="llama.cpp", tokens="8192", users="12", count="1")
    command = next(one.value for one in at.code if "llama-server" in one.value)
    assert "--parallel 12" in command
    assert "--ctx-size 98304" in command


def test_what_was_asked_in_public_is_answered_with_a_link() -> None:
    at = open_page()
    asked = next(one.value for one in at.markdown if "MiniMax" in one.value and "Show it" in one.value)
    assert asked.count("[Show it](") == 30
    assert "(concurrency?model=" in asked
    assert "(size?model=" in asked


def test_hardware_is_compared_when_asked_and_one_of_it_can_be_used() -> None:
    """Every answer holds the users: what the table says is planned again."""
    at = open_page(users="12")
    asked = next(one for one in at.subheader if "for the least money" in one.value)
    assert "12 requests of 32K" in asked.value
    at.button(key="hardware_go").click()
    rerun(at)
    offered = list(at.selectbox(key="hardware_any").options)
    assert len(offered) > 5
    at.selectbox(key="hardware_any").select(offered[1])
    rerun(at)
    at.button(key="hardware_use").click()
    rerun(at)
    gpus, _, name = offered[1].partition(" × ")
    assert at.title[0].value.startswith("12 users fit")
    assert name in read(at.title[0].value)
    assert at.query_params.get("count", "8") == gpus


def test_the_log_to_expect_stands_under_the_command() -> None:
    """51 GiB on each of 8 GPUs, 40 KiB a token on each: 1,336,934 tokens in blocks of 16, 1,336,928; ÷ 32,768 = 40.80."""
    at = open_page(**STATED)
    lines = "\n".join(one.value for one in at.code)
    assert "GPU KV cache size: 1,336,928 tokens" in lines
    assert "Maximum concurrency for 32,768 tokens per request: 40.80x" in lines


def test_the_longest_context_of_all_users_and_the_least_share_are_told() -> None:
    """51 GiB in blocks of 16 × 40 KiB: 83,558, one never handed out: 83,557 // 30 = 2,785 blocks, 44,560 tokens each."""
    at = open_page(**STATED)
    assert any("44,560 for each of 30 at once" in one.value for one in (*at.caption, *at.markdown))
    at = open_page(users="30")
    said = [
        found for one in (*at.caption, *at.markdown) if (found := re.search(r"need a share of 0\.(\d\d)", one.value))
    ]
    share = int(said[0][1]) / 100
    model, wanted = catalogue.load(LLAMA), Deployment(gpu=accelerator("h100-sxm"), context=32_768, tp=8, engine="vllm")
    assert make_plan(model, replace(wanted, utilization=share), 30).fits
    assert not make_plan(model, replace(wanted, utilization=share - 0.01), 30).fits


def toasts(at: AppTest) -> str:
    return read(" ".join(one.value for one in at.toast))


def test_short_words_of_a_split_are_explained_where_they_stand() -> None:
    at = open_page(split="tp4-pp2")
    assert "TP 4, tensor parallel: each layer is split over 4 GPUs." in captions(at)
    assert "PP 2, pipeline parallel" in captions(at)
    at = open_page(model="deepseek-ai/DeepSeek-V3", gpu="h200-sxm")
    # Once, and in what else stands there only what was not said before.
    assert captions(at).count("tensor parallel:") == 1
    at = open_page(model="deepseek-ai/DeepSeek-V3", gpu="h200-sxm", split="tp8")
    assert any("with DCP" in read(one.value) for one in at.markdown)
    assert "Decode context parallel (DCP): the tokens of a request" in captions(at)


def test_the_words_of_a_split() -> None:
    assert words.split_explained(Split()) == ""
    every = words.split_explained(Split(tp=2, pp=2, dp=2, dcp=2, expert_parallel=True))
    for meaning in ("tensor parallel", "pipeline parallel", "data parallel", "decode context", "expert parallel"):
        assert meaning in every
    assert "2 replicas" in words.split_explained(Split(dp=2))
    assert "DP attention: 4 groups" in words.split_explained(Split(tp=2, dp=4, dp_attention=True))
    said = words.glossary(["Split the same GPUs as TP 2 × PP 4", "2 replicas"], but="TP 8")
    assert "Pipeline parallel (PP)" in said
    assert "Data parallel (DP)" in said
    assert "Tensor" not in said
    assert words.glossary(["Keep the cache in fp8"]) == ""


def test_what_is_left_to_the_engine_is_an_empty_field_with_the_engines_own_value() -> None:
    at = open_page()
    shown = {"plan_util": "auto: 0.92", "plan_batched": "auto: 8,192", "plan_seqs": "auto: 1,024",
             "plan_minute": "not set", "plan_seconds": "not set"}  # fmt: skip
    for key, own in shown.items():
        assert at.number_input(key=key).value is None
        assert at.number_input(key=key).proto.placeholder == own
    at.number_input(key="plan_seqs").set_value(5)
    rerun(at)
    assert numbers(at)[0] == "5"
    # What it would take is not what was named.
    assert at.number_input(key="plan_seqs").proto.placeholder == "auto: 1,024"
    at.number_input(key="plan_seqs").set_value(None)
    rerun(at)
    assert numbers(at)[0] != "5"


@pytest.mark.parametrize("nothing", ["0", "auto"])
def test_links_that_leave_settings_to_the_engine_open(nothing: str) -> None:
    at = open_page(util=nothing, batched=nothing, seqs=nothing, minute="0", seconds="0")
    assert not at.warning
    assert title(at) == title(open_page())
    assert at.number_input(key="plan_util").value is None
    assert all("util" not in one.value.partition("?")[2] for one in at.code if "concurrency" in one.value)


@pytest.mark.parametrize("share", ["0.005", "0.0049", "1"])
def test_the_least_and_the_largest_share_of_a_link_do_no_harm(share: str) -> None:
    at = open_page(util=share, minute="0.001")
    assert len(numbers(at)) == 4


def test_a_button_says_what_it_changed_and_the_new_answer() -> None:
    at = open_page()
    assert not at.toast
    at.button(key="example_deepseek").click()
    rerun(at)
    assert "**DeepSeek V3 on 8 × H200** → " in toasts(at)
    assert re.search(r"\d+–\d+ of 32K at once, 30 fit", toasts(at))
    assert "(#answer)" in at.toast[0].value
    rerun(at)
    assert not at.toast
    at.button(key="lever_0").click()
    rerun(at)
    assert "** → " in toasts(at)


def test_what_cannot_be_read_is_said_at_once_and_not_after_it_was_mended() -> None:
    at = open_page()
    at.text_input(key="plan_have").set_value("much")
    rerun(at)
    assert "'much' is not" in read(at.warning[0].value)
    at.text_input(key="plan_have").set_value("20 GiB")
    rerun(at)
    assert not at.warning
    assert numbers(at)[2] == "20 GiB"


def test_the_plan_is_moved_without_a_mouse_and_the_grid_is_a_table() -> None:
    at = open_page(**STATED)
    assert any("30 requests of 32K tokens fit: 75% of the 40 that surely do" in read(one.value) for one in at.markdown)
    assert "<th scope='row' role='rowheader' class=''>32,768</th>" in tables(at)
    at.number_input(key="cell_users").set_value(41)
    rerun(at)
    assert at.selectbox(key="plan_users").value == "41"
    assert any("41 requests of 32K tokens do not fit: 40 do" in read(one.value) for one in at.markdown)
    at.number_input(key="cell_tokens").set_value(4096)
    rerun(at)
    assert at.selectbox(key="tokens").value == "4K"
    # 51 GiB / (4,096 × 40 KiB) = 326.
    assert numbers(at)[0] == "326"
    assert "**41 requests of 4K tokens** → 326 of 4K at once, 41 fit" in toasts(at)


def test_nothing_is_drawn_where_nothing_fits() -> None:
    at = open_page(count="1")
    assert "No request of any length fits" in subheaders(at)
    # 131.4 GiB of weights are on a GPU of 79.6 GiB: what lacks is not what the requests take.
    assert "Weights and overheads are" in subheaders(at)
    assert "30 requests would take 300 GiB beside them" in subheaders(at)
    assert len(alts(at)) == 1


@pytest.mark.parametrize("lever", list(LEVERS))
def test_every_lever_has_a_curve_with_its_answer_and_its_price(lever: str) -> None:
    at = open_page(lever=lever, shared="1024")
    alt = next(one for one in alts(at) if "as planned" in one and "safe to hopeful end" in one)
    heading = next(read(one.value) for one in at.markdown if one.value.startswith("#### "))
    assert LEVERS[lever].name[1:] in heading
    assert "as planned" in heading
    assert LEVERS[lever].price[:40] in captions(at)
    assert len(alt.split(";")) >= 2
    # The choice is in the link.
    assert any(f"lever={lever}" in one.value for one in at.code)


def test_a_lever_that_the_engine_does_not_have_says_so() -> None:
    for query, said in (
        ({"engine": "llama.cpp", "lever": "batched"}, "llama.cpp has no such setting"),
        ({"engine": "ollama", "lever": "host"}, "keeps no caches of idle requests in CPU memory"),
        ({"lever": "share", **STATED}, "a share of the memory changes nothing"),
        ({"lever": "prefix", "prompt": "1024", "shared": "4096"}, "cannot be planned with"),
    ):
        at = open_page(**query)
        assert said in captions(at), query
    at = open_page(lever="colour")
    assert "The address's lever was not taken" in read(at.warning[0].value)


BARS = [
    sweep_chart.Bar(name="<b>x</b>", most=Range(low=10, best=11, high=12), now=True),
    sweep_chart.Bar(name="a name that is longer than one line", most=Range.exactly(200), now=False),
]


@pytest.mark.parametrize("name", ["light", "dark"])
def test_levers_are_drawn_and_said(name: str) -> None:
    colours = theme.PALETTES[name]
    for chart, alt in (
        sweep_chart.curve_chart(BARS, unit="GPUs", counted="requests at once", users=30, colours=colours),
        sweep_chart.bars_chart(BARS, counted="requests at once", users=30, colours=colours),
    ):
        assert chart.checked.data
        assert "<b>x</b>, as planned: 10 to 12" in alt
        assert ": 200" in alt
        assert "&lt;b&gt;x" in str(chart.to_dict())
    bars, _ = sweep_chart.bars_chart(BARS, counted="requests at once", users=None, colours=colours)
    layout = bars.to_dict()["layout"]
    # Figures stand in the margin, which has room for the longest.
    assert layout["margin"]["r"] >= 8 * len("10–12")
    assert [note["x"] for note in layout["annotations"]] == [1, 1]


def test_what_a_lever_would_hold_in_a_sentence() -> None:
    assert levers.title("gpus", BARS) == (
        "Number of GPUs: 10 to 12 with <b>x</b> as planned, 200 with a name that is longer than one line GPUs"
    )
    assert "none holds more than <b>x</b> as planned" in levers.title("cache", BARS[:1])


def test_a_preset_is_the_same_after_another_and_the_cards_stay() -> None:
    at = open_page()
    cards = [metric.value for metric in at.metric if metric.label in ("For latency", "Balanced", "For throughput")]
    at.button(key="way_throughput").click()
    rerun(at)
    assert {"util": "0.95", "batched": "16384"}.items() <= at.query_params.items()
    # Whose requests the figure counts is said, because the answer beside it counts longer ones.
    most = cards[2].removesuffix(" at once")
    assert re.search(rf"\*\*For throughput: {most} of 6,656 tokens\*\* → \d+–\d+ of 32K at once, 30 fit", toasts(at))
    again = [metric.value for metric in at.metric if metric.label in ("For latency", "Balanced", "For throughput")]
    assert again == cards
    at.button(key="way_latency").click()
    rerun(at)
    fresh = open_page()
    fresh.button(key="way_latency").click()
    rerun(fresh)
    assert at.query_params["batched"] == fresh.query_params["batched"] == "2048"
    assert at.query_params["seqs"] == fresh.query_params["seqs"] == cards[0].removesuffix(" at once")
    assert "util" not in at.query_params


def test_the_heading_of_the_presets_has_the_numbers_of_their_cards() -> None:
    at = open_page()
    first, last = (
        next(one.value for one in at.metric if one.label == label).removesuffix(" at once")
        for label in ("For latency", "For throughput")
    )
    said = f"Filling the pool lets {last} in at once, keeping every cache resident {first}"
    assert any(said in read(one.value) for one in at.markdown)


@pytest.mark.parametrize(
    ("users", "one", "said"),
    [(2, "fit", "fit"), (1, "fits", "fits"), (4, "may fit, or not", "may"), (6, "do not fit", "not")],
)
def test_users_are_said_to_fit_in_three_ways(users: int, one: str, said: str) -> None:
    assert words.verdict(users, Range(low=2, best=4, high=5)) == one, said


def test_what_may_fit_is_said_alike_everywhere() -> None:
    """Between the safe and the hopeful end: in the title, on the card, beside the grid and in the comparison."""
    model = catalogue.load(LLAMA)
    most = make_plan(model, Deployment(gpu=accelerator("h100-sxm"), context=32_768, tp=8, engine="vllm")).requests
    assert most is not None
    assert most.low < most.best < most.high
    for users, why in ((most.best, "at best guess"), (most.high, "at the hopeful end only")):
        at = open_page(users=str(users), kept="as-is", split="tp8")
        assert title(at).startswith(f"{users} users may fit, or not: ")
        cards_html = " ".join(html_bodies(at)) + captions(at)
        assert f"{users} users may fit, or not: {why}" in read(cards_html)
        assert any(f"{users} requests of 32K tokens may fit, or not: " in read(one.value) for one in at.markdown)
        assert f"{users}: may fit, or not" in tables(at)


def test_the_fewest_gpus_that_make_it_fit_are_three_hosts() -> None:
    at = open_page(tokens="131072", count="4")
    shown = " ".join(read(one.value) for one in at.markdown)
    assert "24 GPUs instead of 4" in shown
    assert "32 GPUs instead of 4" not in shown


def test_a_number_of_gpus_by_another_name_is_taken_and_an_unknown_parameter_is_said() -> None:
    at = open_page(gpus="4", modell="x")
    assert at.selectbox(key="plan_count").value == "4"
    said = " ".join(read(one.value) for one in at.warning)
    assert "The address's modell was not taken: no screen has such a setting; did you mean model?" in said
    assert not open_page(gpus="4").warning


def test_a_stated_cache_that_the_weights_leave_no_room_for_is_warned_of() -> None:
    """GLM-5.2 in one GPU of 288 GB beside 206 GiB of cache: the answer is about the pool alone."""
    at = open_page(model="zai-org/GLM-5.2", tokens="4096", gpu="b300", count="1", have="206 GiB", users="1")
    assert any("stated pool does not go with these weights" in read(one.value) for one in at.warning)
    assert not open_page(**STATED).warning


def test_levers_that_gain_nothing_are_named() -> None:
    said = captions(open_page())
    for words_of_it in (
        "offloading to CPU memory (it keeps the caches of those who wait",
        "more requests by the engine's own limit (the cache is full before",
        "prefix sharing (no shared prefix is named",
    ):
        assert words_of_it in said


def test_the_heading_of_the_levers_says_which_of_them_it_means() -> None:
    at = open_page()
    heading = next(read(one.value) for one in at.subheader if one.value.startswith("Without buying anything"))
    assert re.search(r"fp8 cache lets in 2\.\d× as many, of all changes .* the most: \d\.\d×", heading)


def test_a_comparison_has_the_settings_of_a_step() -> None:
    at = open_page(batched="4096", kept="as-is")
    table = tables(at)
    assert "tokens a step" in table
    assert "4,096" in table
    assert "most requests at once" in table
    assert "Compare this plan with another" in subheaders(open_page())


def test_names_break_behind_underscores_and_not_within_words() -> None:
    assert words.wrapped("turboquant_k8v4 cache", 14) == ["turboquant_", "k8v4 cache"]
    assert words.wrapped("fp8 cache", 14) == ["fp8 cache"]
    assert words.wrapped("abcdefgh", 3) == ["abc", "def", "gh"]
    assert words.wrapped("", 3) == []
