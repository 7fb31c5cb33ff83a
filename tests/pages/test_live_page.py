"""The Live screen without a browser and without an engine: what it shows of a job's events, and what it asks for."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from kvcore.live import runs
from kvcore.scenario.live import PROMPT
from pages.ui import theme
from pages.ui.live import charts, compare, controls, jobs, plot, replay, words
from pages.ui.live import runs as kept_runs
from pages.ui.live.progress import JobProgress, progress_of
from pages.ui.live.words import duration, times
from tests.pages.live_fake import HOST, TOKEN_BYTES, FakeQueue, events_of
from tests.pages.rendered import html_bodies, rendered

APP = str(Path(__file__).parents[2] / "app.py")


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> FakeQueue:
    """A queue whose jobs go on only when the test says so."""
    fake = FakeQueue()
    monkeypatch.setattr(jobs, "queue", lambda: fake)
    monkeypatch.setattr(jobs, "why_off", lambda: "")
    return fake


@pytest.fixture(autouse=True)
def recordings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three recordings of scripted jobs, whatever is shipped."""
    recorded = (
        {"job": "run", "new_tokens": 48, "also_recompute": True},
        {"job": "probe", "contexts": [16, 64, 256, 1024]},
        {"job": "race", "variants": ["mha", "shipped", "mqa"], "contexts": [128, 1024]},
    )
    made = tuple(
        runs.from_events(
            [event for _, event in events_of(job)], name=str(job["job"]), kind=str(job["job"]),
            prompt="Why?" if job["job"] == "run" else "", made_at="2026-11-29T20:00:00Z",
        )
        for job in recorded
    )  # fmt: skip
    monkeypatch.setattr(replay, "shipped", lambda: made)


def open_page(**query: str) -> AppTest:
    at = AppTest.from_file(APP, default_timeout=60)
    for name, value in query.items():
        at.query_params[name] = value
    at.run()
    return ran(at.switch_page("pages/live.py").run())


def open_link(**query: str) -> AppTest:
    """The screen after its address was changed from outside."""
    at = open_page()
    for name, value in query.items():
        at.query_params[name] = value
    return ran(at.run())


def ran(at: AppTest) -> AppTest:
    assert not at.exception, at.exception[0].value
    return at


def click(at: AppTest, key: str) -> AppTest:
    return ran(at.button(key=key).click().run())


def texts(at: AppTest) -> str:
    found = [
        rendered(one.value)
        for one in (*at.title, *at.markdown, *at.caption, *at.subheader, *at.error, *at.info, *at.success)
    ]
    return "\n".join([*found, *html_bodies(at)])


def cards(at: AppTest) -> list[str]:
    return [metric.value for metric in at.metric]


def alternatives(at: AppTest) -> list[str]:
    """The text alternatives of the charts on the page: those that move, and those that are finished."""
    moving = re.findall(r"class='kv-(?:plot|lanes)(?: low)?' role='img' aria-label='([^']*)'", texts(at))
    return [*map(unescape, moving), *(chart.proto.alt for chart in at.get("plotly_chart"))]


def drawn_by_plotly(at: AppTest) -> list[str]:
    """The keys of the finished charts."""
    return [chart.proto.id.rpartition("-")[2] for chart in at.get("plotly_chart")]


def spec(chart: plot.Plot | plot.BarChart) -> dict[str, Any]:
    """What plotly is given of a finished chart, after plotly's own check of every key in it."""
    made: dict[str, Any] = chart.figure().checked.to_dict()
    return made


def written(chart: plot.Plot | plot.BarChart) -> list[str]:
    """The texts in a finished chart: its notes, and names beside its lines."""
    made = spec(chart)
    names = [text for trace in made["data"] if trace.get("mode") == "markers+text" for text in trace["text"]]
    return [*(one["text"] for one in made["layout"].get("annotations", ())), *names]


def told(**job: object) -> JobProgress:
    return progress_of(event for _, event in events_of({"job": "run", **job}))


# --- opening -----------------------------------------------------------------------------------------------------


def test_opens_on_a_recording_and_runs_nothing(queue: FakeQueue) -> None:
    at = open_page()
    assert queue.tickets == []
    assert "**A recording**: made on AMD EPYC, 1 thread, 2026-11-29" in texts(at)
    # 44 tokens: 1.02 × (30 ms + 44 × 1.4 ms + 44² × 0.12 µs) = 93.7 ms, and 2 × 30 layers × 3 heads × 64 × 2 B a token.
    assert cards(at)[0] == "94 ms"
    assert cards(at)[1] == "39 ms"
    assert cards(at)[3] == f"{91 * TOKEN_BYTES / 2**20:.2f}".rstrip("0").rstrip(".") + " MiB"
    assert len(alternatives(at)) == 5
    assert not at.error
    assert not at.warning


def test_without_an_engine_it_says_so_and_still_replays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KV_LIVE_OFF", "1")
    at = open_page()
    assert "KV_LIVE_OFF" in texts(at)
    assert at.button(key="live_run").disabled
    assert at.button(key="live_probe_go").disabled
    assert at.button(key="live_race_go").disabled
    assert not at.button(key="live_replay").disabled
    click(at, "live_replay")
    assert "A recording, at its true speed" in texts(at)


def test_without_torch_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KV_LIVE_OFF", raising=False)
    real = jobs.importlib.util.find_spec
    monkeypatch.setattr(jobs.importlib.util, "find_spec", lambda name: None if name == "torch" else real(name))
    assert "torch is not installed" in jobs.why_off()


def test_settings_that_cannot_be_read_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KV_LIVE_MAX_TOKENS", "many")
    assert "KV_LIVE_MAX_TOKENS" in jobs.why_off()


# --- a run -------------------------------------------------------------------------------------------------------


def test_run_asks_for_the_default_and_shows_it_token_by_token(queue: FakeQueue) -> None:
    at = click(open_page(), "live_run")
    job = queue.last.job
    assert job["job"] == "run"
    assert job["prompt"] == PROMPT
    assert job["also_recompute"] is True
    assert job["session"].startswith("page-")
    assert cards(at) == ["…"] * 4
    queue.last.step(1)
    ran(at.run())
    assert "Reading the weights" in texts(at)
    assert "width:40%" in texts(at)
    queue.last.step(3)
    ran(at.run())
    assert cards(at)[0] == "94 ms"
    assert cards(at)[1] == "…"
    queue.last.step(6)
    ran(at.run())
    assert cards(at)[1] == "39 ms"
    assert "With the cache: token 6" in texts(at)
    assert "The sky looks blue because of" in texts(at)
    assert queue.last.touched >= 3
    assert at.button(key="live_stop")
    queue.last.step()
    ran(at.run())
    assert "Done: all tokens made" in texts(at)
    assert at.title[0].value.startswith(
        "The first token took **94 ms**, each one after it **39 ms**; without the cache"
    )


def test_the_probe_follows_the_first_run_only(queue: FakeQueue) -> None:
    at = click(open_page(), "live_run")
    queue.last.step()
    ran(at.run())
    assert [ticket.job["job"] for ticket in queue.tickets] == ["run", "probe"]
    assert queue.last.job["contexts"] == [16, 64, 256, 1024]
    queue.last.step()
    ran(at.run())
    # (38.9 + 6.3) ms with the cache, (30 + 1,433.6 + 125.8) ms without: both with the same noise.
    assert "At 16 tokens the cache is worth 1.3×, at 1,024 it is worth 35×" in texts(at)
    click(at, "live_run")
    queue.last.step()
    ran(at.run())
    assert [ticket.job["job"] for ticket in queue.tickets] == ["run", "probe", "run"]


def test_stop_cancels_and_nothing_follows(queue: FakeQueue) -> None:
    at = click(open_page(), "live_run")
    queue.last.step(8)
    click(at, "live_stop")
    ran(at.run())
    assert queue.last.state == "cancelled"
    assert len(queue.tickets) == 1
    assert "Cancelled." in texts(at)
    assert at.button(key="live_run")
    assert "The sky looks" in texts(at)


def test_a_click_on_stop_waits_for_the_engine_and_not_for_long(
    queue: FakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine in the middle of a long step: the page says what it waits for and goes on asking."""
    at = click(open_page(), "live_run")
    queue.last.step(8)
    monkeypatch.setattr(controls, "_STOP_WAIT_S", 0.05)
    monkeypatch.setattr(queue.last, "cancel", lambda: None)
    click(at, "live_stop")
    assert at.button(key="live_stop").label == "Stopping"
    assert at.button(key="live_stop").disabled
    assert "Stopping: the step that is being computed ends first" in texts(at)
    queue.last.fail("")
    queue.last._forced = "cancelled"
    ran(at.run())
    assert at.button(key="live_run")
    assert not [one for one in at.button if one.key == "live_stop"]


def test_a_job_that_ends_within_the_wait_is_seen_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ending:
        """Runs on at the first two glances."""

        glances = 0

        @property
        def state(self) -> str:
            self.glances += 1
            return "running" if self.glances < 3 else "cancelled"

    ending = Ending()
    watch = jobs.WatchedJob(ticket=ending, result=jobs.JobResult(kind="run"))  # type: ignore[arg-type]
    monkeypatch.setattr(jobs, "watched", lambda: watch)
    assert jobs.settled(60)
    assert ending.glances == 3
    monkeypatch.setattr(Ending, "state", "running")
    assert not jobs.settled(0.05)
    monkeypatch.setattr(jobs, "watched", lambda: None)
    assert jobs.settled(60)


def test_each_event_is_taken_in_once() -> None:
    events = [event for _, event in events_of({"job": "run", "new_tokens": 9})]
    result = jobs.JobResult(kind="run", events=events[:7])
    assert result.progress is result.progress
    middle = len(result.progress.cache.tokens)
    result.events += events[7:]
    assert (middle, len(result.progress.cache.tokens)) == (2, 8)
    assert result.progress == progress_of(events)


def test_a_killed_engine_gives_its_message_and_the_next_job_works(queue: FakeQueue) -> None:
    at = click(open_page(), "live_run")
    queue.last.step(8)
    queue.last.fail("The engine was killed (signal 9). The next job starts a new one.")
    ran(at.run())
    assert [rendered(one.value) for one in at.error] == [
        "The engine was killed (signal 9). The next job starts a new one."
    ]
    assert len(queue.tickets) == 1
    click(at, "live_run")
    queue.last.step()
    ran(at.run())
    assert not at.error


def test_a_refused_job_gives_its_sentence(queue: FakeQueue) -> None:
    queue.refuse = "16 jobs are waiting already; try again when some have finished"
    at = click(open_page(), "live_run")
    assert [rendered(one.value) for one in at.error] == [f"{queue.refuse}."]
    assert at.button(key="live_run")


def test_the_place_in_the_queue_is_shown(queue: FakeQueue) -> None:
    queue.ahead = 2
    at = click(open_page(), "live_run")
    assert "In the queue: 2 jobs before yours" in texts(at)


def test_an_empty_prompt_runs_nothing(queue: FakeQueue) -> None:
    at = open_page()
    at.text_area(key="live_prompt").set_value("  ")
    click(at, "live_run")
    assert queue.tickets == []
    assert "The prompt is empty" in at.error[0].value


def test_two_sessions_do_not_see_each_other(queue: FakeQueue) -> None:
    one, two = click(open_page(), "live_run"), open_page()
    assert two.button(key="live_run")
    click(two, "live_run")
    names = [ticket.job["session"] for ticket in queue.tickets]
    assert len(set(names)) == 2
    queue.tickets[0].step()
    ran(one.run())
    assert cards(two) == ["…"] * 4


def test_what_the_prompt_says_is_text_and_never_markup(queue: FakeQueue) -> None:
    at = open_page()
    at.text_area(key="live_prompt").set_value("<img src=x onerror=alert(1)>'\"")
    click(at, "live_run")
    assert "<img" not in texts(at)
    assert "&lt;img src=x" in texts(at)


# --- settings ----------------------------------------------------------------------------------------------------


def test_lengths_and_formats_reach_the_job(queue: FakeQueue) -> None:
    at = open_page()
    at.select_slider(key="live_length").set_value("1,024")
    at.slider(key="live_new").set_value(64)
    at.select_slider(key="live_batch").set_value(4)
    ran(at.run())
    at.checkbox(key="live_again").set_value(False)
    click(at, "live_run")
    job = queue.last.job
    assert job["prompt_tokens"] == 1024
    assert job["new_tokens"] == 64
    assert job["batch"] == 4
    assert job["also_recompute"] is False
    assert job["ignore_stop"] is True
    assert "prompt" not in job
    assert "session" not in job


def test_of_the_scenario_only_the_model_is_asked_for_and_the_rest_stays(queue: FakeQueue) -> None:
    at = open_page(tokens="64K", batch="4", kv="fp8")
    assert [one.label for one in at.selectbox if one.key in ("model", "tokens", "batch", "k_format", "v_format")] == [
        "Model"
    ]
    assert "The model of the other screens, which keep their tokens, requests and formats." in texts(at)
    at.selectbox(key="model").set_value("meta-llama/Llama-3.1-8B-Instruct")
    ran(at.run())
    assert "Llama 3.1 8B: shape only, random weights" in "".join(at.selectbox(key="live_model").options)
    ran(at.switch_page("pages/size.py").run())
    held = [at.selectbox(key=key).value for key in ("model", "tokens", "batch", "k_format")]
    assert held == ["meta-llama/Llama-3.1-8B-Instruct", "64K", "4", "fp8"]


def test_settings_survive_another_page(queue: FakeQueue) -> None:
    at = open_page()
    at.slider(key="live_new").set_value(128)
    ran(at.run())
    ran(at.switch_page("pages/size.py").run())
    ran(at.switch_page("pages/live.py").run())
    assert at.slider(key="live_new").value == 128


def test_a_link_opens_exactly_the_view_and_says_what_it_left_out(queue: FakeQueue) -> None:
    at = open_link(
        live_heat="0.7", live_top_p="0.9", live_seed="42", live_chat="0", live_contexts="16,4096", live_seconds="30",
        live_variants="mha,gqa:4,sliding:512", live_race_contexts="128,2048", live_probe_too="0", live_new="9",
    )  # fmt: skip
    assert [rendered(one.value) for one in at.warning] == [
        "The address's live_new was not taken: new tokens: '9' is not one of 8, 16, …, 512."
    ]
    # Nine heads cannot share four; a window of 512 is not offered but can be had.
    assert "because it cannot be run with this model: GQA, 4 KV heads." in texts(at)
    click(at, "live_run")
    job = queue.last.job
    assert (job["temperature"], job["top_p"], job["seed"], job["chat"]) == (0.7, 0.9, 42, False)
    assert (job["new_tokens"], job["max_seconds"]) == (48, 30)
    queue.last.step()
    ran(at.run())
    assert len(queue.tickets) == 1
    click(at, "live_probe_go")
    assert queue.last.job["contexts"] == [16, 4096]
    queue.last.step()
    ran(at.run())
    click(at, "live_race_go")
    assert (queue.last.job["variants"], queue.last.job["contexts"]) == (["mha", "sliding:512"], [128, 2048])


def test_the_address_follows_every_control(queue: FakeQueue) -> None:
    at = open_page()
    at.slider(key="live_heat").set_value(0.7)
    ran(at.run())
    at.button_group(key="live_contexts").set_value([16, 4096])
    ran(at.run())
    expected = {"live_heat": "0.7", "live_contexts": "16,4096"}
    assert dict(at.query_params) == expected
    # Elsewhere it is nobody's business, and back here it is there again.
    ran(at.switch_page("pages/size.py").run())
    assert "live_heat" not in at.query_params
    ran(at.switch_page("pages/live.py").run())
    assert dict(at.query_params) == expected


def test_layers_beyond_the_models_are_all_of_them(queue: FakeQueue) -> None:
    at = open_link(
        model="meta-llama/Llama-3.1-8B-Instruct", live_model="shape:meta-llama/Llama-3.1-8B-Instruct", live_layers="99"
    )
    assert at.number_input(key="live_layers").value == 32


def test_shape_only_of_the_scenarios_model_is_cut_to_what_fits(queue: FakeQueue) -> None:
    at = open_page(model="meta-llama/Llama-3.1-8B-Instruct")
    at.selectbox(key="live_model").set_value("shape:meta-llama/Llama-3.1-8B-Instruct")
    ran(at.run())
    click(at, "live_run")
    job = queue.last.job
    assert job["model"] == "meta-llama/Llama-3.1-8B-Instruct"
    assert job["weights"] == "random"
    # Embedding and head: 2 × 128,256 × 4,096 × 2 B = 1.96 GiB; a layer: 218.1 M parameters, 416 MiB; three GiB hold two.
    assert job["layers"] == 2


def test_the_variants_of_a_race_divide_the_heads(queue: FakeQueue) -> None:
    at = open_page()
    # 9 query heads with 3 KV heads: nothing else divides 9.
    (offered,) = [one.options for one in at.button_group if one.key == "live_variants"]
    assert offered == ["MHA", "as shipped", "MQA", "MLA", "window 256", "window 1,024"]
    click(at, "live_race_go")
    job = queue.last.job
    assert job["variants"] == ["mha", "shipped", "mqa", "mla:256+32", "sliding:256"]
    assert "attention" not in job
    queue.last.step()
    ran(at.run())
    assert "At 1,024 tokens window 256 takes" in texts(at)
    assert len(alternatives(at)) == 5


# --- a second turn -----------------------------------------------------------------------------------------------


def test_a_second_turn_goes_on_from_the_cache(queue: FakeQueue) -> None:
    at = open_page()
    at.checkbox(key="live_probe_too").set_value(False)
    click(at, "live_run")
    queue.last.step()
    ran(at.run())
    at.text_input(key="live_on").set_value("Say it in one sentence.")
    click(at, "live_on_go")
    job = queue.last.job
    assert job["continue_of"] == job["session"] == queue.tickets[0].job["session"]
    assert [role for role, _ in job["messages"]] == ["user", "assistant", "user"]
    assert job["messages"][2] == ["user", "Say it in one sentence."]
    assert job["messages"][1][1].startswith("The sky looks blue")
    assert "prompt" not in job
    queue.last.step()
    ran(at.run())
    assert "**90 of 108 tokens were in the cache already**: only 18 tokens had to be read" in texts(at)
    assert "Say it in one sentence." in texts(at)
    at.text_input(key="live_keep_name").set_value("two turns")
    click(at, "live_keep")
    (record,) = at.session_state["live_kept"]
    assert (record.prompt, record.later_prompts) == (PROMPT, ("Say it in one sentence.",))
    # 44 tokens of the first prompt, 18 of the second; 48 answers each; 90 stood in the cache.
    assert "2 turns: 44 + 18 prompt tokens and 96 new; 90 not read again" in texts(at)
    click(at, "live_kept_show")
    bubbles = re.findall(r"<p class='(\w)'>([^<]{1,23})", texts(at))
    assert bubbles == [
        ("u", PROMPT[:23]), ("m", "The sky looks blue beca"), ("u", "Say it in one sentence."),
        ("m", "The sky looks blue beca"),
    ]  # fmt: skip


# --- recordings and kept runs ------------------------------------------------------------------------------------


def test_a_recording_plays_at_its_true_speed() -> None:
    record = replay.shipped()[0]
    now = [100.0]
    ticket, _ = replay.playing(record, lambda: now[0])
    assert ticket.state == "waiting"
    ticket.touch()
    assert all(event["t"] == 0 for event in ticket.events(0))
    now[0] += 1.0
    early = progress_of(ticket.events(0))
    # 94 ms of prefill, then steps of 39 ms: after a second about 23 of them, and nothing without the cache.
    assert 20 <= len(early.cache.tokens) <= 24
    assert early.recompute.prefill is None
    assert ticket.state == "running"
    now[0] += record.duration_s
    assert ticket.state == "done"
    assert len(progress_of(ticket.events(0)).recompute.tokens) == 47


def test_keep_name_export_and_load(queue: FakeQueue) -> None:
    at = open_page()
    at.checkbox(key="live_probe_too").set_value(False)
    click(at, "live_run")
    queue.last.step()
    ran(at.run())
    at.text_input(key="live_keep_name").set_value("first <b>")
    click(at, "live_keep")
    (record,) = at.session_state["live_kept"]
    assert record.name == "first <b>"
    assert record.prompt == PROMPT
    assert "first &lt;b&gt;" in texts(at)
    again = runs.from_json(runs.to_json(record))
    assert (again.name, again.text, len(again.events)) == (record.name, record.text, len(record.events))
    assert json.loads(runs.to_json(record))["summary"]["new_tokens"] == 48
    click(at, "live_kept_play")
    assert "A recording, at its true speed" in texts(at)
    assert len(queue.tickets) == 1


def keep(at: AppTest, name: str, queue: FakeQueue) -> None:
    """Run once more and keep it."""
    click(at, "live_run")
    queue.last.step()
    ran(at.run())
    at.text_input(key="live_keep_name").set_value(name)
    click(at, "live_keep")


def test_a_name_that_is_taken_gets_a_number_and_can_be_taken_over(queue: FakeQueue) -> None:
    at = open_link(live_probe_too="0")
    for name in ("<b>first</b>", "<b>first</b>", "other", "<b>first</b>"):
        keep(at, name, queue)
    named = [one.name for one in at.session_state["live_kept"]]
    assert named == ["<b>first</b>", "<b>first</b> (2)", "other", "<b>first</b> (3)"]
    assert "A run called <b>first</b> is kept already, so this one is called <b>first</b> (3)." in [
        rendered(one.value) for one in at.info
    ]
    third = at.session_state["live_kept"][3]
    click(at, "live_replace")
    assert [one.name for one in at.session_state["live_kept"]] == ["<b>first</b>", "<b>first</b> (2)", "other"]
    assert at.session_state["live_kept"][0].events is third.events
    assert not at.info


@pytest.mark.parametrize(
    ("name", "taken", "made"),
    [("a", {"a"}, "a (2)"), ("a (2)", {"a", "a (2)"}, "a (3)"), ("a (b)", {"a (b)"}, "a (b) (2)"),
     ("x" * 200, {"x" * 200}, "x" * 192 + " (2)")],
)  # fmt: skip
def test_names_that_are_taken(name: str, taken: set[str], made: str) -> None:
    assert kept_runs.unlike(name, taken) == made


def test_a_run_that_has_to_go_is_named(queue: FakeQueue) -> None:
    at = open_link(live_probe_too="0", live_again="0", live_new="8")
    for number in range(13):
        keep(at, f"run {number}", queue)
    assert [one.name for one in at.session_state["live_kept"]] == [f"run {number}" for number in range(1, 13)]
    assert [rendered(one.value) for one in at.info] == ["12 runs are kept at most: run 0 had to go."]


def test_kept_runs_are_compared_in_two_charts(queue: FakeQueue) -> None:
    at = open_link(live_probe_too="0")
    keep(at, "short", queue)
    assert "Keep or load another run to see both side by side." in texts(at)
    assert len(alternatives(at)) == 5
    at.select_slider(key="live_length").set_value("1,024")
    ran(at.run())
    keep(at, "long <i>", queue)
    assert at.multiselect(key="live_compared").value == ["short", "long <i>"]
    # 1.02 × (30 + 44 × 1.4 + 44² × 0.00012) = 93.7 ms; 1.02 × (30 + 1,433.6 + 125.8) = 1,621 ms; 17.3 times as long.
    assert "First token: short 94 ms, long <i> 1.62 s: 17×" in texts(at)
    (bars,) = [one for one in alternatives(at) if one.startswith("Time to the first token")]
    assert bars == "Time to the first token. short: 94 ms; long <i>: 1.62 s."
    (curves,) = [one for one in alternatives(at) if one.startswith("Time of a token over the tokens before it. short")]
    assert "short: 47 times from" in curves
    assert "long <i>: 47 times from" in curves
    at.multiselect(key="live_compared").set_value(["short"])
    ran(at.run())
    assert len(alternatives(at)) == 7
    at.multiselect(key="live_compared").set_value([])
    ran(at.run())
    assert len(alternatives(at)) == 5


@pytest.mark.parametrize("colours", [theme.LIGHT, theme.DARK])
def test_compared_runs_differ_in_colour_and_mark(colours: theme.Palette) -> None:
    def made(name: str, **job: object) -> runs.RunRecord:
        kind = {"job": "run", "new_tokens": 9, **job}
        return runs.from_events([event for _, event in events_of(kind)], name=name)

    records = [
        made(EVIL.replace("\ud800", "")),
        made("x" * 60),
        made("x" * 60),
        made("p", job="probe", contexts=[16, 64]),
    ]
    assert len(set(compare.names(records))) == 4
    curves, bars = compare.tokens(records, colours), compare.first_tokens(records, colours)
    assert curves is not None
    assert bars is not None
    assert len(set(compare.looks(6, colours))) == 6
    # A probe has no first token.
    assert len(bars.rows) == 3
    assert len(curves.legend) == 4
    for text in (json.dumps(spec(curves)), json.dumps(spec(bars)), curves.html, bars.html):
        assert "<script" not in text
    assert compare.first_tokens([], colours) is None
    assert compare.tokens([records[3]], colours) is not None


def test_a_race_is_not_compared_with_runs() -> None:
    job = {"job": "race", "variants": ["mha"], "contexts": [128]}
    record = runs.from_events([event for _, event in events_of(job)], name="race", kind="race")
    assert not compare.comparable(record)


def test_a_damaged_recording_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(replay, "FOLDER", tmp_path)
    replay.shipped.cache_clear()
    (tmp_path / "run.json").write_text("{")
    assert replay.shipped() == ()
    replay.shipped.cache_clear()


# --- words and charts --------------------------------------------------------------------------------------------


def test_the_story_leaves_out_what_it_does_not_understand() -> None:
    progress = progress_of(
        [{"event": "token"}, {"event": "prefill", "mode": "other"}, {}, {"event": "new"}, {"event": "host"}]
    )
    assert not progress.began


def test_the_first_token_belongs_to_the_prefill() -> None:
    progress = told(new_tokens=3)
    assert len(progress.cache.tokens) == 2
    assert progress.text == "The sky looks "


def test_slower_is_the_median_of_the_last_five_places() -> None:
    bytes_held = dict.fromkeys(("reserved_bytes", "resident_bytes", "predicted_reserved_bytes"), 0)
    progress = progress_of(
        {"event": "token", "mode": mode, "index": at, "context": 10 + at, "seconds": seconds, "text": "", **bytes_held}
        for mode, row in (("cache", (9, 1, 1, 1, 1, 0.1)), ("recompute", (1, 2, 3, 4, 5, 6)))
        for at, seconds in enumerate(row, start=1)
    )
    # 1/9 is out of the last five; 2, 3, 4, 5 and, from a noisy moment, 60: the middle is 4.
    assert progress.slower() == 4


@pytest.mark.parametrize("colours", [theme.LIGHT, theme.DARK])
def test_charts_of_half_a_story(colours: theme.Palette) -> None:
    """Every moment of a run has charts, or none, and never an error."""
    events = [event for _, event in events_of({"job": "run", "new_tokens": 6, "also_recompute": True})]
    for count in range(len(events) + 1):
        progress = progress_of(events[:count])
        made = (charts.latency(progress, colours), charts.held(progress, colours), charts.timeline(progress, colours))
        for chart in made:
            assert chart is None or "NaN" not in chart.html + json.dumps(spec(chart))
        words.cards(progress, False)
        for title in (words.timeline_title, words.latency_title, words.held_title):
            assert title(progress)


def test_many_tokens_are_drawn_as_few_marks() -> None:
    drawn = charts.latency(told(new_tokens=2000), theme.LIGHT)
    assert drawn is not None
    assert drawn.html.count("<i ") <= charts.MOST_MARKS + 2
    assert sum(len(one["x"]) for one in spec(drawn)["data"] if one["mode"] == "markers") <= charts.MOST_MARKS + 1
    bars = charts.timeline(told(new_tokens=2000), theme.LIGHT)
    assert bars is not None
    assert bars.html.count("<i ") <= charts.MOST_MARKS + 1
    assert sum(len(one["x"]) for one in spec(bars)["data"]) <= charts.MOST_MARKS + 1


def test_a_truncated_curve_is_marked() -> None:
    events = [event for _, event in events_of({"job": "run", "new_tokens": 20, "also_recompute": True})]
    cut = {"event": "truncated", "mode": "recompute", "why": "time", "at": 50}
    drawn = charts.latency(progress_of([*events, cut]), theme.LIGHT)
    assert drawn is not None
    assert "stopped here: time budget" in drawn.html
    assert "stopped here: time budget" in written(drawn)
    (upright,) = spec(drawn)["layout"]["shapes"]
    # The last of 20 tokens takes in 44 + 19.
    assert (upright["x0"], upright["x1"]) == (63, 63)


def test_a_probe_and_a_race_that_the_time_cut_off_say_where() -> None:
    """Also in a recording, which does not say what was wanted: the axis reaches to the place of the cut."""
    events = [event for _, event in events_of({"job": "probe", "contexts": [16, 256]})]
    cut = {"event": "truncated", "mode": "recompute", "variant": "shipped", "why": "time", "at": 4096}
    drawn = charts.probe(progress_of([*events[:-1], cut]), (), theme.LIGHT)
    assert drawn is not None
    assert "without it, recomputed stopped: time budget" in drawn.html
    assert "without it, recomputed stopped: time budget" in written(drawn)
    assert list(spec(drawn)["layout"]["xaxis"]["ticktext"]) == ["16", "256", "4K"]
    assert [text for _, text in drawn.x.ticks] == ["16", "256", "4K"]
    events = [event for _, event in events_of({"job": "race", "variants": ["mha", "mqa", "mla"], "contexts": [128]})]
    cuts = [{**cut, "mode": "cache", "variant": name, "why": why} for name, why in (("mha", "time"), ("mqa", "time"))]
    drawn = charts.race(progress_of([*events[:-1], *cuts]), (), theme.LIGHT, "")
    assert drawn is not None
    assert "MHA and MQA stopped: time budget" in drawn.html
    assert "MHA and MQA stopped: time budget" in written(drawn)
    more = {**cuts[0], "variant": "mla", "why": "memory", "at": 512}
    assert words.cut_words(progress_of([*cuts, more]), race=True) == (
        "Cut off early: MHA and MQA, at 4,096 tokens (time budget); MLA, at 512 tokens (memory limit)."
    )
    assert words.cut_words(progress_of([cut]), race=False) == (
        "Cut off early: without it, recomputed, at 4,096 tokens (time budget)."
    )
    assert words.cut_words(progress_of([]), race=True) == ""


def timed(**job: object) -> list[dict[str, object]]:
    """Points that were timed five times, from a tenth less to a half more than their median."""
    points = [event for _, event in events_of(job) if event["event"] == "probe"]
    return [one | {"repeats": 5, "low_s": 0.9 * one["seconds"], "high_s": 1.5 * one["seconds"]} for one in points]


def test_few_timings_show_their_spread_and_say_how_many() -> None:
    progress = progress_of(timed(job="race", variants=["mha", "mqa"], contexts=[128, 1024]))
    drawn = charts.race(progress, (), theme.LIGHT, "")
    assert drawn is not None
    assert drawn.html.count("<div class='w'") == 2
    assert drawn.html.count(" tokens, median of 5 from ") == 4
    uprights = [one for one in spec(drawn)["data"] if "error_y" in one]
    assert len(uprights) == 2
    said = [text for one in spec(drawn)["data"] if one["mode"] == "markers" for text in one.get("text", ())]
    assert sum(" tokens, median of 5 from " in text for text in said) == 4
    assert "median of 5 timings" in words.repeats(progress.probes)
    mixed = [*progress.probes, progress_of(timed(job="probe", contexts=[16])).probes[0]]
    assert words.repeats([dataclasses.replace(mixed[-1], repeats=1), *mixed]).startswith(
        "Each point is the median of 1 to 5 timings"
    )
    # What was recorded before that was kept says nothing, and shows nothing.
    old = progress_of(event for _, event in events_of({"job": "race", "variants": ["mha"], "contexts": [128]}))
    assert words.repeats(old.probes) == ""
    assert "class='w'" not in charts.race(old, (), theme.LIGHT, "").html  # type: ignore[union-attr]


def test_an_upright_stands_where_its_times_are() -> None:
    scale = plot.Scale(low=0, high=10, ticks=())
    uprights = plot.SpreadsMark(ranges=[(5, 2, 8), (5, 1, 12)], colour="#0072B2")
    drawn = plot.Plot(x=scale, y=scale, x_title="", marks=[uprights], legend=[], alt="", colours=theme.LIGHT)
    # From 8 down to 2 of 10, and beyond the top from 10 down to 1.
    assert re.findall(r"class='(\w*)' style='left:50.00%;top:([\d.]+)%;height:([\d.]+)%", drawn.html) == [
        ("", "20.00", "60.00"), ("open", "0.00", "90.00"),
    ]  # fmt: skip
    (trace,) = spec(drawn)["data"]
    assert list(trace["y"]) == [2, 1]
    assert list(trace["error_y"]["array"]) == [6, 11]
    assert list(trace["error_y"]["arrayminus"]) == [0, 0]


@pytest.mark.parametrize("colours", [theme.LIGHT, theme.DARK])
def test_a_legend_has_the_marks_of_its_chart(colours: theme.Palette) -> None:
    names = ["mha", "shipped", "gqa:3", "gqa:5", "mqa", "mla:8+4", "sliding:256", "sliding:1024"]
    events = [{"event": "probe", "mode": "cache", "variant": one, "context": 64, "seconds": 0.04} for one in names]
    race = charts.race(progress_of(events), (), colours, "")
    probe = charts.probe(
        progress_of(event for _, event in events_of({"job": "probe", "contexts": [16, 64]})), (), colours
    )
    tokens = charts.latency(told(new_tokens=4, also_recompute=True), colours)
    for drawn in (race, probe, tokens):
        assert drawn is not None
        chart = drawn.html.partition("class='kv-plot'")[2]
        marks = set(re.findall(r"class='d (\w+)' style='color:(#\w+)'", chart))
        listed = re.findall(r"<i class='m (?:line )?(\w+)' style='color:(#\w+)'", drawn.html)
        assert set(listed) == marks
        assert len(listed) == len(marks)
        # The same of plotly's: what its legend shows has the symbol and the colours of what is drawn.
        traces = spec(drawn)["data"]
        shown = [looks_of(one) for one in traces if one["showlegend"] and "marker" in one]
        assert set(shown) == {looks_of(one) for one in traces if one["mode"] == "markers" and not one["showlegend"]}
        assert len(shown) == len(set(shown)) == len(marks)
    # A line in the chart is a line in the legend; tokens are marks alone.
    assert race is not None
    assert tokens is not None
    assert race.html.count("'m line ") == 8
    assert "'m line " not in tokens.html
    assert [one["mode"] for one in spec(race)["data"] if one["showlegend"]] == ["lines+markers"] * 8
    assert [one["mode"] for one in spec(tokens)["data"] if one["showlegend"]] == ["markers", "markers", "lines"]
    # Two windows have one colour and two marks.
    looks = charts.variant_looks(names, colours)
    assert looks["sliding:256"][0] == looks["sliding:1024"][0]
    assert len(set(looks.values())) == len(names)


def looks_of(trace: dict[str, Any]) -> tuple[str, str, str]:
    marker = trace["marker"]
    return marker["symbol"], marker["color"], marker["line"]["color"]


# --- finished charts ---------------------------------------------------------------------------------------------


EVIL = "<script>alert(1)</script>\x00\ud800 'a' & \"b\" ]]> %{x}"


def test_what_a_stranger_wrote_is_text_in_every_finished_chart() -> None:
    cut = {"event": "truncated", "mode": "cache", "variant": EVIL, "why": EVIL, "at": 512}
    named = [{**one, "variant": EVIL} for one in timed(job="race", variants=["mha"], contexts=[128, 1024])]
    for drawn in (charts.race(progress_of([*named, cut]), (), theme.DARK, EVIL),):
        assert drawn is not None
        text = json.dumps(spec(drawn))
        assert "alert(1)" in text.lower()
        assert "<script" not in text.lower()
        assert "%{x}" not in text.lower()


def test_a_finished_chart_has_the_figures_of_the_moving_one() -> None:
    drawn = charts.probe(progress_of(timed(job="probe", contexts=[16, 1024])), (), theme.LIGHT)
    assert drawn is not None
    data = spec(drawn)["data"]
    points = {one["marker"]["symbol"]: (list(one["x"]), list(one["y"])) for one in data if one.get("text")}
    # (38.9 + 0.1) ms at 16 and (38.9 + 6.3) ms at 1,024; (30 + 22.4 + 0.03) ms and (30 + 1,433.6 + 125.8) ms: the
    # second of each 0.5 % more, by the noise of its place.
    assert points["circle"] == ([16, 1024], pytest.approx([0.0390, 0.0452 * 1.005], rel=1e-3))
    assert points["square"] == ([16, 1024], pytest.approx([0.05243, 1.5894 * 1.005], rel=1e-3))
    dashed = [one for one in data if one.get("line", {}).get("dash") == "9px 6px" and not one["showlegend"]]
    assert len(dashed) == 2
    assert sum("error_y" in one for one in data) == 2
    assert written(drawn) == ["1.6 s", "45 ms"]
    assert [one["name"] for one in data if one["showlegend"]] == [
        "with the cache",
        "without it, recomputed",
        "predicted",
    ]
    layout = spec(drawn)["layout"]
    assert layout["xaxis"]["title"]["text"] == "tokens before the one that is made"
    assert (layout["xaxis"]["type"], layout["yaxis"]["type"]) == ("log", "log")


def test_what_was_reserved_is_hatched_over_what_is_filled() -> None:
    drawn = charts.held(told(new_tokens=30), theme.LIGHT)
    assert drawn is not None
    areas = [one for one in spec(drawn)["data"] if one.get("fill") == "tozeroy" and not one["showlegend"]]
    # One block of 256 tokens, and the 44 prompt tokens to the last but one of 30.
    assert list(areas[0]["y"]) == [256 * TOKEN_BYTES] * len(areas[0]["y"])
    assert (areas[1]["y"][0], areas[1]["y"][-1]) == (44 * TOKEN_BYTES, 73 * TOKEN_BYTES)
    assert ["fillpattern" in one for one in areas] == [True, False]


def test_the_bars_of_a_finished_chart_are_to_scale() -> None:
    progress = told(new_tokens=3)
    bars = charts.timeline(progress, theme.LIGHT)
    assert bars is not None
    (row,) = spec(bars)["data"]
    wanted = [progress.cache.prefill.seconds, *(one.seconds for one in progress.cache.tokens)]  # type: ignore[union-attr]
    assert list(row["x"]) == pytest.approx(wanted)
    assert list(row["base"]) == pytest.approx([0, wanted[0], wanted[0] + wanted[1]])
    assert list(spec(bars)["layout"]["xaxis"]["range"]) == [0, bars.span]


def test_a_finished_chart_is_plotlys_and_can_be_had_as_a_file(queue: FakeQueue) -> None:
    at = open_page()
    keys = ["live_timeline_bars", *(f"live_{name}_plot" for name in ("latency", "held", "probe", "race"))]
    assert drawn_by_plotly(at) == keys
    saved = [json.loads(chart.proto.config)["toImageButtonOptions"] for chart in at.get("plotly_chart")]
    assert {one["format"] for one in saved} == {"svg"}
    assert [one["filename"] for one in saved] == [
        f"kv-live-{name}" for name in ("timeline", "latency", "held", "probe", "race")
    ]
    click(at, "live_run")
    queue.last.step(8)
    ran(at.run())
    # While it runs a chart changes four times a second.
    assert drawn_by_plotly(at) == keys[3:]
    assert len(alternatives(at)) == 5
    queue.last.step()
    ran(at.run())
    assert set(drawn_by_plotly(at)) >= set(keys[:3])


def test_bytes_that_differ_from_the_prediction_are_said() -> None:
    events = [event for _, event in events_of({"job": "run", "new_tokens": 5})]
    events[-2] = {**events[-2], "resident_bytes": events[-2]["resident_bytes"] + 64}
    assert words.held_title(progress_of(events)) == "The cache is not what was predicted: off by up to 64 B"
    assert "as predicted" not in words.cards(progress_of(events), True)[3].line


def test_random_weights_are_marked_everywhere() -> None:
    progress = told(attention="mqa", new_tokens=4)
    assert progress.random
    assert "**random weights**" in words.model_line(progress)


def test_the_timeline_is_to_scale() -> None:
    progress = told(new_tokens=5)
    drawn = charts.timeline(progress, theme.LIGHT)
    assert drawn is not None
    widths = [float(one) for one in re.findall(r"width:([\d.]+)%", drawn.html)]
    span = plot.span_above(progress.cache.seconds)
    wanted = [progress.cache.prefill.seconds, *(one.seconds for one in progress.cache.tokens)]  # type: ignore[union-attr]
    assert widths == pytest.approx([100 * one / span for one in wanted], abs=0.01)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0412, "41 ms"), (2.034, "2.03 s"), (0.0074, "7.4 ms"), (0.000085, "85 µs"), (0.9996, "1 s"), (120.4, "120 s")],
)
def test_durations(value: float, text: str) -> None:
    assert duration(value) == text


def test_factors_and_axes() -> None:
    assert [times(one) for one in (1.04, 5.26, 9.96, 42.4)] == ["1.0×", "5.3×", "10×", "42×"]
    assert [plot.nice_above(one) for one in (0.03, 1, 1.1, 2.2, 26)] == pytest.approx([0.05, 1, 2, 2.5, 50])
    assert plot.steps(8, 5) == [0, 2, 4, 6, 8]
    scale = plot.Scale(low=16, high=1024, ticks=(), logarithmic=True)
    # 16, 128, 1,024: three powers of two apart each.
    assert scale.at(128) == pytest.approx(50)
    assert scale.at(5000) == 100


def test_the_host_is_told_without_its_owner() -> None:
    progress = progress_of([{"event": "host", "host": HOST}, {"event": "ready", "device": "cpu", "threads": 1}])
    assert "18.9 GB/s" in rendered(words.device_words(progress))


def test_the_page_never_loads_torch() -> None:
    code = "import sys; from pages.ui.live import parts, runs; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(APP).parent, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


def test_what_ships_is_a_recording_of_a_machine() -> None:
    """One of each kind, made by `python -m benchmarks.live_recording`, not by the script of these tests."""
    found = [runs.from_json(path.read_bytes()) for path in sorted(replay.FOLDER.glob("*.json"))]
    assert sorted(one.kind for one in found) == ["probe", "race", "run"]
    assert all(one.machine is not None and "script" not in one.machine.device_name for one in found)
