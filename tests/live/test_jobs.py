"""The engine's jobs, on a real decoder of a tiny shape: their events, their limits, and conversations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from kvcore.errors import LiveError
from kvcore.live import jobs, models
from kvcore.live import session as session_module
from kvcore.live.host import Host
from kvcore.live.jobs import RUNNERS
from kvcore.live.options import Setup, read_probe, read_race, read_run
from kvcore.live.session import FoundModel, Session, find
from kvcore.live.settings import Limits
from kvcore.live.shape import shape_from_config
from tests.live.standins import VOCAB, Letters

torch.set_num_threads(1)

CONFIG = {
    "model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": VOCAB, "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0, "max_position_embeddings": 2048, "hidden_act": "silu",
}  # fmt: skip
HOST = Host(
    device="cpu", device_name="a processor", memory_bytes=8 << 30, available_bytes=4 << 30, threads=1,
    read_bandwidth_bytes_per_s=2e10, gemv_bytes_per_s={"bf16": 8e9, "fp32": 1.6e10},
    matrix_flops_per_s={"bf16": 1e11, "fp32": 5e10}, measured_at="2026-11-29T12:00:00Z", torch_version="2.13.0",
)  # fmt: skip
Events = list[dict[str, Any]]


class Engine:
    """Runs jobs in this process; `stop_at` names the event after which the job is cancelled."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def __call__(self, kind: str, *, stop_at: Callable[[dict[str, Any]], bool] = lambda _: False, **job: Any) -> Events:
        events: Events = []

        def emit(event: dict[str, Any]) -> bool:
            events.append(event)
            return not any(stop_at(one) for one in events)

        RUNNERS[kind]({"job": kind, "id": 1, "block_tokens": 16, **job}, emit)
        return events


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    limits = Limits(max_seconds=60.0, max_tokens=400, max_memory_bytes=64 << 30)
    session = Session(limits)
    monkeypatch.setattr(jobs, "_SESSION", [session])
    monkeypatch.setattr(session_module, "measure", lambda progress, **more: HOST)

    def found(setup: Setup, progress: Any) -> FoundModel:
        from kvcore.live.shape import as_variant, cut

        shape = as_variant(shape_from_config(CONFIG, "tiny"), setup.attention)
        shape = shape if setup.layers is None else cut(shape, setup.layers)
        return FoundModel(shape=shape, tokenizer=Letters(), title="Tiny", origin="random weights", folder=None)

    monkeypatch.setattr(session_module, "find", found)
    monkeypatch.setattr(jobs, "find", found)
    yield Engine(session)
    session.forget()


def of(events: Events, kind: str, **values: Any) -> Events:
    return [e for e in events if e["event"] == kind and all(e.get(name) == value for name, value in values.items())]


def test_a_run_tells_everything_in_order(engine: Engine) -> None:
    events = engine("run", prompt="hello there", new_tokens=6, ignore_stop=True)
    kinds = list(dict.fromkeys(e["event"] for e in events if e["event"] != "progress"))
    assert kinds == ["host", "ready", "calibration", "prefill", "token", "done"]
    ready = of(events, "ready")[0]
    # 2 layers of 32×(64+32+96)+48×32+64, an embedding and a head of 97 × 32, a norm of 32.
    layer = 32 * (32 + 2 * 16) + 32 * 32 + 3 * 32 * 48 + 2 * 32
    assert ready["parameters"] == 2 * layer + 2 * VOCAB * 32 + 32
    assert (ready["weights"], ready["layers"], ready["cut_from"], ready["threads"]) == ("random", 2, None, 1)
    assert ready["weight_bytes"] == 2 * ready["parameters"]
    assert len(of(events, "token")) == 6
    assert events[-1] == {"event": "done", "reason": "length"}
    # "hello there" has 11 letters, 1 mark before and two after it.
    assert of(events, "prefill")[0]["tokens"] == 14


def test_measured_bytes_are_the_predicted_ones(engine: Engine) -> None:
    """K and V of 2 heads × 8 in 2 layers, bf16: 128 B a token; blocks of 16 tokens; the 4th step opens the third."""
    events = engine("run", prompt_tokens=30, new_tokens=5, batch=3, ignore_stop=True, calibrate=False)
    held = [e for e in events if e["event"] in ("prefill", "token")]
    assert [e["resident_bytes"] for e in held] == [3 * 128 * n for n in (30, 30, 31, 32, 33, 34)]
    assert [e["reserved_bytes"] for e in held] == [3 * 128 * n for n in (32, 32, 32, 32, 48, 48)]
    for event in held:
        assert event["reserved_bytes"] == event["predicted_reserved_bytes"]
        assert event["resident_bytes"] == event["predicted_resident_bytes"]


def test_recomputing_gives_the_same_tokens(engine: Engine) -> None:
    events = engine("run", prompt_tokens=40, new_tokens=12, also_recompute=True, weight_format="fp32", kv_format="fp32")
    cached, again = (of(events, "token", mode=mode) for mode in ("cache", "recompute"))
    assert [e["token_id"] for e in cached] == [e["token_id"] for e in again]
    assert [e["context"] for e in cached] == [e["context"] for e in again]
    assert {e["reserved_bytes"] for e in again} == {0}
    assert len(of(events, "done")) == 1


def test_it_is_loaded_and_calibrated_once(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    built = []
    original = Session.build
    monkeypatch.setattr(Session, "build", lambda self, *a, **k: built.append(1) or original(self, *a, **k))
    engine("run", prompt_tokens=8, new_tokens=2)
    decoder = engine.session.load(Setup(), session_module.Reporter(lambda event: True)).decoder
    steps = []
    monkeypatch.setattr(decoder, "step", lambda *a, real=decoder.step: steps.append(1) or real(*a))
    events = engine("run", prompt_tokens=8, new_tokens=3, kv_format="bf16")
    assert built == [1]
    assert len(steps) == 2
    assert of(events, "calibration") != []
    engine("run", prompt_tokens=8, new_tokens=2, weight_format="fp32")
    assert built == [1, 1]


def test_calibrating_leaves_nothing_behind(engine: Engine) -> None:
    run = {"prompt_tokens": 30, "new_tokens": 12, "ignore_stop": True}
    before = engine("run", **run, calibrate=False)
    after = engine("run", **run)
    assert of(after, "calibration")
    assert [e["token_id"] for e in of(before, "token")] == [e["token_id"] for e in of(after, "token")]


def test_another_batch_is_calibrated_beside_the_first(engine: Engine) -> None:
    engine("calibrate")
    events = engine("calibrate", batches=[1, 2])
    lines = of(events, "calibration")[0]["calibration"]["decode"]
    assert [line["batch"] for line in lines] == [1, 2]


def test_a_second_turn_reads_only_what_is_new(engine: Engine) -> None:
    first = engine("run", prompt="hello", new_tokens=5, session="s", ignore_stop=True, calibrate=False)
    last = of(first, "token")[-1]
    # 1 mark, 5 letters, 2 marks and 4 of the 5 new tokens are in the cache; the fifth never went in.
    assert last["resident_bytes"] == 128 * 12
    again = engine("run", prompt="more", new_tokens=3, session="s", continue_of="s", ignore_stop=True, calibrate=False)
    prefill = of(again, "prefill")[0]
    # The fifth token (unless it ended the reply), the end of the reply, 4 letters, 2 marks.
    ended = last["token_id"] == 90
    assert (prefill["reused"], prefill["tokens"]) == (12, 7 + (not ended))
    assert prefill["resident_bytes"] == prefill["predicted_resident_bytes"] == 128 * (19 + (not ended))


def test_a_continued_cache_holds_what_a_fresh_one_would(engine: Engine) -> None:
    """fp32: the answer to the second turn is that of the whole conversation read at once."""
    exact = {"weight_format": "fp32", "kv_format": "fp32", "calibrate": False, "ignore_stop": True}
    engine("run", prompt="hello", new_tokens=5, session="s", **exact)
    kept = engine.session.conversations["s"]
    ids = list(kept.ids)
    events = engine("run", prompt="more", new_tokens=8, continue_of="s", also_recompute=True, **exact)
    assert len(ids) == 13
    cached, again = (of(events, "token", mode=mode) for mode in ("cache", "recompute"))
    assert [e["token_id"] for e in cached] == [e["token_id"] for e in again]
    assert of(events, "prefill", mode="recompute")[0]["tokens"] == sum(
        of(events, "prefill", mode="cache")[0][name] for name in ("tokens", "reused")
    )


def test_a_conversation_that_is_gone_is_read_afresh(engine: Engine) -> None:
    messages = [["user", "hello"], ["assistant", "yes"], ["user", "more"]]
    events = engine("run", messages=messages, continue_of="gone", new_tokens=2, calibrate=False)
    assert "whole conversation is read" in of(events, "note")[0]["text"]
    # 5 + 3 + 4 letters, an end each, a mark before and after.
    assert (of(events, "prefill")[0]["tokens"], of(events, "prefill")[0]["reused"]) == (17, 0)
    # Another cache format cannot go on with what is held.
    engine("run", prompt="hello", new_tokens=2, session="s", calibrate=False)
    events = engine("run", prompt="more", new_tokens=2, continue_of="s", kv_format="int8", calibrate=False)
    assert of(events, "prefill")[0]["reused"] == 0


def test_only_the_last_conversations_are_kept(engine: Engine) -> None:
    for number in range(6):
        engine("run", prompt="hi", new_tokens=2, session=f"s{number}", calibrate=False)
    assert list(engine.session.conversations) == ["s2", "s3", "s4", "s5"]


def test_a_stopped_reply_can_be_gone_on_with(engine: Engine) -> None:
    events = engine(
        "run", prompt="hello", new_tokens=50, session="s", ignore_stop=True, calibrate=False,
        stop_at=lambda e: e["event"] == "token" and e["index"] == 3,
    )  # fmt: skip
    assert events[-1] == {"event": "done", "reason": "cancelled"}
    assert len(of(events, "token")) == 4
    kept = engine.session.conversations["s"]
    assert (len(kept.ids), kept.cache.lengths) == (12, [11])


@pytest.mark.parametrize("kind", ["host", "load", "calibrate", "run", "probe", "race"])
@pytest.mark.parametrize("place", [0, 2, 6])
def test_every_job_obeys_a_cancellation(engine: Engine, kind: str, place: int) -> None:
    told: Events = []

    def stop(event: dict[str, Any]) -> bool:
        told.append(event)
        return len({id(one) for one in told}) > place

    events = engine(kind, stop_at=stop)
    if len(events) > place + 1:
        assert events[-1] == {"event": "done", "reason": "cancelled"}
        assert len(events) <= place + 3
    else:
        assert events[-1]["event"] == "done"


def test_a_probe_measures_each_context_both_ways(engine: Engine) -> None:
    events = engine("probe", contexts=[64, 16, 32])
    probes = of(events, "probe")
    assert [(e["context"], e["mode"]) for e in probes] == [
        (context, mode) for context in (16, 32, 64) for mode in ("cache", "recompute")
    ]
    assert all(e["seconds"] > 0 and e["predicted_s"] > 0 for e in probes)
    # Five steps with the cache; a prefix of up to 64 tokens is computed three times.
    assert {(e["mode"], e["repeats"]) for e in probes} == {("cache", 5), ("recompute", 3)}
    assert all(0 < e["low_s"] <= e["seconds"] <= e["high_s"] for e in probes)
    # 5 steps, the first of them at the context.
    assert [e["resident_bytes"] for e in probes if e["mode"] == "cache"] == [128 * (n + 4) for n in (16, 32, 64)]
    assert all(e["reserved_bytes"] == e["predicted_reserved_bytes"] for e in probes if e["mode"] == "cache")


def test_close_contexts_are_measured_at_their_own_place(engine: Engine) -> None:
    """The steps at 10 leave 14 tokens behind: the cache of the next context starts afresh."""
    events = engine("probe", contexts=[10, 11, 12], modes=["cache"], calibrate=False)
    assert [e["resident_bytes"] for e in of(events, "probe")] == [128 * (n + 4) for n in (10, 11, 12)]


def test_a_probe_says_where_time_ended(engine: Engine) -> None:
    events = engine("probe", contexts=[16, 64, 256], calibrate=False, max_seconds=1e-9)
    assert of(events, "probe") == []
    assert [(e["mode"], e["why"], e["at"]) for e in of(events, "truncated")] == [
        ("cache", "time", 16), ("recompute", "time", 16),
    ]  # fmt: skip


def test_a_probe_says_where_memory_ended(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """128 B a token in blocks of 16: 80 tokens, 10,240 B, are what fits."""
    engine("load")
    monkeypatch.setattr(Session, "available_bytes", lambda self, device: 80 * 128)
    events = engine("probe", contexts=[16, 64, 128], calibrate=False)
    assert [e["context"] for e in of(events, "probe", mode="cache")] == [16, 64]
    assert [(e["mode"], e["why"], e["at"]) for e in of(events, "truncated")] == [("cache", "memory", 128)]
    assert [e["context"] for e in of(events, "probe", mode="recompute")] == [16, 64, 128]
    with pytest.raises(LiveError, match=r"cache would take 12 KiB, and 10 KiB are free"):
        engine("run", prompt_tokens=80, new_tokens=3, calibrate=False)


def test_a_race_has_every_variant_at_every_context(engine: Engine) -> None:
    events = engine("race", contexts=[16, 40], variants=["mha", "mqa", "mla:16+8", "sliding:16"])
    assert [(e["context"], e["variant"]) for e in of(events, "probe")] == [
        (context, variant) for context in (16, 40) for variant in ("mha", "mqa", "mla:16+8", "sliding:16")
    ]
    # At 44 tokens held, in 2 layers of bf16: 2×4×8, 2×1×8 and 24 numbers a token; the window holds 16 of 2×2×8.
    held = {e["variant"]: e["resident_bytes"] for e in of(events, "probe", context=40)}
    assert held == {"mha": 44 * 256, "mqa": 44 * 64, "mla:16+8": 44 * 96, "sliding:16": 16 * 128}
    assert {e["attention"] for e in of(events, "ready")} == {"mha", "mqa", "mla:16+8", "sliding:16"}
    assert {e["weights"] for e in of(events, "ready")} == {"random"}


def test_a_race_chooses_its_own_variants_and_runs_one_by_one_where_memory_is_short(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Session, "available_bytes", lambda self, device: 150_000)
    events = engine("race", contexts=[16, 40])
    variants = ["mha", "shipped", "mqa", "mla:32+4", "sliding:256"]
    assert [(e["variant"], e["context"]) for e in of(events, "probe")] == [
        (variant, context) for variant in variants for context in (16, 40)
    ]


def test_a_variant_that_cannot_be_built_is_named(engine: Engine) -> None:
    events = engine("race", contexts=[16], variants=["gqa:3", "mqa"])
    assert "gqa:3 does not take part" in of(events, "note")[0]["text"]
    assert [e["variant"] for e in of(events, "probe")] == ["mqa"]


def test_token_limits(engine: Engine) -> None:
    events = engine("run", prompt_tokens=390, new_tokens=50, ignore_stop=True, calibrate=False)
    assert len(of(events, "token")) == 10
    assert of(events, "truncated") == [{"event": "truncated", "mode": "cache", "why": "tokens", "at": 400}]
    with pytest.raises(LiveError, match="400 tokens are allowed"):
        engine("run", prompt_tokens=400, new_tokens=1)
    events = engine("probe", contexts=[16, 395, 396], modes=["cache"], calibrate=False)
    assert [e["context"] for e in of(events, "probe")] == [16, 395]
    assert [(e["why"], e["at"]) for e in of(events, "truncated")] == [("tokens", 396)]


def test_a_run_is_cut_by_its_time(engine: Engine) -> None:
    events = engine("run", prompt_tokens=8, new_tokens=300, max_seconds=1e-6, calibrate=False)
    assert of(events, "truncated")[0]["why"] == "time"
    assert events[-1] == {"event": "done", "reason": "time"}


def test_an_engine_that_is_off_refuses(engine: Engine) -> None:
    engine.session.limits = Limits(off=True)
    with pytest.raises(LiveError, match="KV_LIVE_OFF"):
        engine("load")


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ({"prompt": " "}, "prompt is empty"),
        ({"prompt": 3}, "prompt: a text"),
        ({"prompt": "a", "prompt_tokens": 3}, "one of prompt, messages and prompt_tokens"),
        ({"new_tokens": 0}, "new_tokens: '0' is not a whole number from 1"),
        ({"new_tokens": True}, "new_tokens"),
        ({"batch": 65}, "batch: '65'"),
        ({"kv_format": "fp8"}, "kv_format: 'fp8' is not one of bf16"),
        ({"weight_format": "q4"}, "weight_format"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": "0.9"}, "top_p"),
        ({"messages": [["user"]]}, "role, text"),
        ({"messages": [["tool", "x"]]}, "'tool' is not one of"),
        ({"messages": [["user", "x"], ["assistant", "y"]]}, "last one must be the user's"),
        ({"session": "s", "batch": 2}, "one request"),
        ({"surprise": 1}, "unknown keys surprise"),
        ({"device": "tpu"}, "device"),
    ],
)  # fmt: skip
def test_refused_runs(job: dict[str, Any], message: str) -> None:
    with pytest.raises(LiveError, match=message):
        read_run({"job": "run", "id": 1, **job})


def test_contexts_are_sorted_and_checked() -> None:
    assert read_probe({"contexts": [64, 16, 64]}).contexts == (16, 64)
    assert read_probe({}).contexts == (16, 64, 256, 1024)
    with pytest.raises(LiveError, match="contexts: '3'"):
        read_probe({"contexts": [3]})
    with pytest.raises(LiveError, match="modes"):
        read_probe({"modes": ["slow"]})
    assert read_race({"variants": ["mqa", "mqa", "mha"]}).variants == ("mqa", "mha")


def no_progress(what: str, done: int, of: int) -> bool:
    return True


def test_what_needs_random_weights(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Real weights for the shipped attention and windows; random for what nobody trained."""
    (tmp_path / "config.json").write_text("{}")
    ready = models.PreparedModel(folder=tmp_path, config=CONFIG, tokenizer=Letters(), origin="here")
    monkeypatch.setattr(models, "prepare", lambda name, progress, **more: ready)
    where = str(tmp_path)
    for attention, folder in (("shipped", tmp_path), ("sliding:16", tmp_path), ("mqa", None), ("mla:16+8", None)):
        assert find(Setup(model=where, attention=attention), no_progress).folder == folder
    assert find(Setup(model=where, layers=1), no_progress).shape.cut_from == 2
    assert find(Setup(model=where, weights="random"), no_progress).folder is None
    with pytest.raises(LiveError, match="mqa and fewer layers have no trained weights"):
        find(Setup(model=where, attention="mqa", weights="real"), no_progress)


def test_the_shape_of_a_catalogued_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "listed", tuple)
    found = find(Setup(model="META-llama/llama-3.1-8b-instruct", weights="random", layers=2), no_progress)
    assert (found.shape.num_layers, found.shape.cut_from, found.shape.hidden_size) == (2, 32, 4096)
    assert found.tokenizer is None
