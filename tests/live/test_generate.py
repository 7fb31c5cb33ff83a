"""Generating: the tokens, their times and bytes, and every way in which it ends."""

from __future__ import annotations

import random
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kvcore.live import generate as module
from kvcore.live.generate import Cancelled, Generation, GenerationRequest, Sampling, generate, pick
from tests.live.standins import Cache, Clock, Decoder, Letters, follower

torch.set_num_threads(1)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """One clock for the loop and the decoder; predicted bytes are 10 a token, reserved for 4 tokens at once."""
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)

    def predicted(shape: Any, kv: str, lengths: list[int], block: int) -> Any:
        return SimpleNamespace(reserved=len(lengths) * 40 * -(-max(lengths) // 4), resident=10 * sum(lengths))

    monkeypatch.setattr(module, "predicted_bytes", predicted)
    return clock


def greedy(prompt: list[int], count: int) -> list[int]:
    row = list(prompt)
    for _ in range(count):
        row.append(follower(row))
    return row[len(prompt) :]


def go(
    clock: Clock, prompts: list[list[int]], count: int, **more: Any
) -> tuple[Generation, list[dict[str, Any]], Decoder]:
    events: list[dict[str, Any]] = []
    decoder = more.pop("decoder", None) or Decoder(clock)
    emit = more.pop("emit", lambda event: not events.append(event))  # type: ignore[func-returns-value]
    tokenizer, cache, predictor = (more.pop(name, None) for name in ("tokenizer", "cache", "predictor"))
    request = GenerationRequest(prompt_ids=prompts, new_tokens=count, **more)
    made = generate(decoder, tokenizer, request, emit=emit, cache=cache, predictor=predictor)
    return made, events, decoder


@pytest.mark.parametrize("use_cache", [True, False])
def test_tokens_are_those_of_the_whole_prefix(clock: Clock, use_cache: bool) -> None:
    prompts = [[5, 6, 7], [1, 2, 3, 4, 9]]
    made, events, _ = go(clock, prompts, 6, use_cache=use_cache)
    assert made.ids == [greedy(prompts[0], 6), greedy(prompts[1], 6)]
    assert made.reason == "length"
    assert [event["event"] for event in events] == ["prefill"] + ["token"] * 6
    assert [event["token_id"] for event in events[1:]] == made.ids[0]
    assert [event["index"] for event in events[1:]] == [0, 1, 2, 3, 4, 5]


def test_times_with_the_cache(clock: Clock) -> None:
    """20 tokens at 1 ms, then 10 ms a step; the first token is picked, not computed."""
    made, events, _ = go(clock, [list(range(20))], 4)
    assert made.prefill_s == pytest.approx(0.020)
    assert made.decode_s == pytest.approx([0.010] * 3)
    assert [event["seconds"] for event in events] == pytest.approx([0.020, 0.0, 0.010, 0.010, 0.010])
    # The first step takes in token 21.
    assert [event["context"] for event in events[1:]] == [20, 21, 22, 23]


def test_times_without_the_cache_grow(clock: Clock) -> None:
    made, events, decoder = go(clock, [list(range(20))], 4, use_cache=False)
    assert made.prefill_s == pytest.approx(0.040)
    assert made.decode_s == pytest.approx([0.042, 0.044, 0.046])
    assert [line for line in decoder.log if line != "synchronise"] == [f"recompute [{n}]" for n in (20, 21, 22, 23)]
    assert {event["reserved_bytes"] for event in events} == {0}
    assert {event["mode"] for event in events} == {"recompute"}


def test_bytes_are_the_caches_own_and_the_prediction_beside_them(clock: Clock) -> None:
    """After the prefill 3 tokens, 30 B in one block of 40 B; the 5th token opens a second block."""
    _, events, _ = go(clock, [[5, 6, 7]], 4)
    assert [event["resident_bytes"] for event in events] == [30, 30, 40, 50, 60]
    assert [event["reserved_bytes"] for event in events] == [40, 40, 40, 80, 80]
    for event in events:
        assert event["resident_bytes"] == event["predicted_resident_bytes"]
        assert event["reserved_bytes"] == event["predicted_reserved_bytes"]


def test_the_prediction_does_not_ask_the_cache(clock: Clock) -> None:
    """A cache that lost a token is caught: the prediction counts what went in."""

    class Forgetful(Cache):
        def resident_bytes(self) -> int:
            return super().resident_bytes() - 10

    _, events, _ = go(clock, [[5, 6, 7]], 2, cache=Forgetful(1))
    assert all(event["predicted_resident_bytes"] - event["resident_bytes"] == 10 for event in events)


def test_going_on_with_a_cache(clock: Clock) -> None:
    cache = Cache(1)
    cache.rows[0] = [5, 6, 7, 8]
    made, events, decoder = go(clock, [[9, 10]], 3, cache=cache)
    assert made.ids[0] == greedy([5, 6, 7, 8, 9, 10], 3)
    assert (events[0]["tokens"], events[0]["reused"]) == (2, 4)
    assert events[0]["predicted_resident_bytes"] == 60
    assert decoder.log.count("prefill [2]") == 1


def test_a_stop_token_ends_it_and_is_no_text(clock: Clock) -> None:
    prompt = next([n, m] for n in range(97) for m in range(97) if 90 in greedy([n, m], 4)[1:3])
    wanted = greedy(prompt, 4)
    made, events, _ = go(clock, [prompt], 30, tokenizer=Letters())
    assert made.reason == "stop"
    assert made.ids[0] == wanted[: wanted.index(90) + 1]
    assert made.text == Letters().decode(made.ids[0][:-1]) == "".join(event.get("text", "") for event in events)
    longer, _, _ = go(clock, [prompt], 30, tokenizer=Letters(), ignore_stop=True)
    assert (longer.reason, len(longer.ids[0])) == ("length", 30)


def test_a_batch_ends_when_all_have_stopped(clock: Clock) -> None:
    stopping = next([n, m] for n in range(97) for m in range(97) if greedy([n, m], 2)[1] == 90)
    other = next([n, m] for n in range(97) for m in range(97) if greedy([n, m], 6).count(90) == 0)
    made, _, _ = go(clock, [stopping, other], 6, tokenizer=Letters())
    assert [len(row) for row in made.ids] == [6, 6]
    # What comes after the end of the first request is not shown.
    assert made.text == Letters().decode(made.ids[0][:1])


def test_a_step_that_would_end_too_late_is_not_begun(clock: Clock) -> None:
    """30 ms of prefill and steps of 10 ms within 65 ms: the fourth step would end at 70."""
    made, events, _ = go(clock, [list(range(30))], 50, time_budget_s=0.065)
    assert made.reason == "time"
    assert len(made.decode_s) == 3
    assert events[-1] == {"event": "truncated", "mode": "cache", "why": "time", "at": 33}


def test_recompute_is_cut_by_time(clock: Clock) -> None:
    """10 tokens 20 ms, then 22, 24: at 66 ms the next, taking 24 or more, would pass 80."""
    made, events, _ = go(clock, [list(range(10))], 50, use_cache=False, time_budget_s=0.080)
    assert made.decode_s == pytest.approx([0.022, 0.024])
    assert events[-1] == {"event": "truncated", "mode": "recompute", "why": "time", "at": 12}


def test_a_prefill_is_cut_by_time(clock: Clock) -> None:
    made, events, _ = go(clock, [list(range(80))], 5, time_budget_s=0.020, decoder=Decoder(clock, chunk=8))
    assert (made.reason, made.ids) == ("time", [[]])
    assert events[-1] == {"event": "truncated", "mode": "cache", "why": "time", "at": 24}
    assert [event["event"] for event in events] == ["progress"] * 3 + ["truncated"]


@pytest.mark.parametrize("after", [1, 2, 5])
def test_cancelling(clock: Clock, after: int) -> None:
    """Wherever emit says no, that event is the last; what was generated comes along."""
    told: list[dict[str, Any]] = []

    def emit(event: dict[str, Any]) -> bool:
        told.append(event)
        return len(told) < after

    with pytest.raises(Cancelled) as stopped:
        go(clock, [[1, 2, 3]], 50, emit=emit)
    assert len(told) == after
    assert stopped.value.result is not None
    assert (stopped.value.result.reason, len(stopped.value.result.ids[0])) == ("cancelled", after - 1)


def test_cancelling_a_prefill(clock: Clock) -> None:
    decoder = Decoder(clock, chunk=8)
    with pytest.raises(Cancelled):
        go(clock, [list(range(80))], 5, decoder=decoder, emit=lambda event: False)
    assert decoder.clock.now == pytest.approx(100.008)


@pytest.mark.parametrize(("tokens_before", "seconds"), [(0, 0.4), (1, 0.8 + 0.401)])
def test_cancelling_in_the_middle_of_recomputing(clock: Clock, tokens_before: int, seconds: float) -> None:
    """400 tokens take 4 layers of 200 ms: every quarter of a second it is asked whether to go on, after two layers."""
    told: list[str] = []

    def emit(event: dict[str, Any]) -> bool:
        told.append(event["event"])
        return event["event"] != "progress" or told.count("token") < tokens_before

    begun = clock.now
    with pytest.raises(Cancelled) as stopped:
        go(clock, [[1] * 400], 5, use_cache=False, emit=emit)
    assert clock.now - begun == pytest.approx(seconds)
    assert stopped.value.result is not None
    assert len(stopped.value.result.ids[0]) == tokens_before


def test_a_decoders_own_refusal_is_not_taken_for_a_cancellation(clock: Clock) -> None:
    from kvcore.errors import LiveError

    class Refusing(Decoder):
        def prefill(self, *given: Any, **more: Any) -> torch.Tensor:
            raise LiveError("no")

    with pytest.raises(LiveError, match="^no$"):
        go(clock, [[1]], 5, decoder=Refusing(clock))


def test_every_time_is_taken_on_a_device_that_is_done(clock: Clock) -> None:
    _, _, decoder = go(clock, [[1, 2]], 3)
    assert decoder.log == ["synchronise", "prefill [2]", "synchronise"] + ["synchronise", "step", "synchronise"] * 2


def test_predictions_are_asked_for_what_is_measured(clock: Clock) -> None:
    class Predictor:
        def decode(self, context: int, batch: int) -> float | None:
            return context + batch / 10

        def prefill(self, tokens: int, batch: int, reused: int = 0) -> float | None:
            return 1000 * tokens + batch / 10 + reused

    cache = Cache(2)
    cache.rows = [[1, 2], [3]]
    made, events, _ = go(clock, [[1, 2, 3], [4]], 3, cache=cache, predictor=Predictor())
    assert (made.predicted_prefill_s, made.predicted_decode_s) == (3002.2, [6.2, 7.2])
    assert [event["predicted_s"] for event in events] == [3002.2, None, 6.2, 7.2]
    made, _, _ = go(clock, [[1, 2, 3]], 3, use_cache=False, predictor=Predictor())
    assert (made.predicted_prefill_s, made.predicted_decode_s) == (3000.1, [4000.1, 5000.1])


def test_greedy_picks_the_likeliest() -> None:
    logits = torch.tensor([[0.0, 3.0, 2.0], [1.0, 0.0, -1.0]])
    assert pick(logits, Sampling(), random.Random(0)) == [1, 0]


def test_sampling_follows_the_masses() -> None:
    """Masses 0.6, 0.3, 0.1: in 4,000 draws each within 4 standard deviations (at most 0.031)."""
    logits = torch.tensor([[0.3, 0.6, 0.1]]).log()
    draw = random.Random(1)
    counts = Counter(pick(logits, Sampling(temperature=1.0), draw)[0] for _ in range(4000))
    for token, mass in ((0, 0.3), (1, 0.6), (2, 0.1)):
        assert counts[token] / 4000 == pytest.approx(mass, abs=0.031)


def test_the_nucleus_leaves_the_tail_out() -> None:
    """The smallest set of mass 0.7 is the first two of 0.6, 0.3, 0.1; they keep their proportion of 2 to 1."""
    logits = torch.tensor([[0.3, 0.6, 0.1]]).log()
    draw = random.Random(2)
    counts = Counter(pick(logits, Sampling(temperature=1.0, top_p=0.7), draw)[0] for _ in range(3000))
    assert set(counts) == {0, 1}
    assert counts[1] / 3000 == pytest.approx(2 / 3, abs=0.035)
    assert {pick(logits, Sampling(temperature=1.0, top_p=0.0), draw)[0] for _ in range(50)} == {1}


def test_temperature_sharpens_and_flattens() -> None:
    """At temperature ½ masses go with their squares: 0.36, 0.09, 0.01 of 0.46."""
    logits = torch.tensor([[0.3, 0.6, 0.1]]).log()
    draw = random.Random(3)
    counts = Counter(pick(logits, Sampling(temperature=0.5), draw)[0] for _ in range(4000))
    assert counts[1] / 4000 == pytest.approx(0.36 / 0.46, abs=0.027)


def test_a_seed_gives_the_same_again(clock: Clock) -> None:
    class Flat(Decoder):
        def _logits(self, rows: Any) -> torch.Tensor:
            return torch.zeros(len(rows), 97)

    def once(seed: int) -> list[int]:
        sampling = Sampling(temperature=1.0, seed=seed)
        return go(clock, [[1]], 20, decoder=Flat(clock), sampling=sampling)[0].ids[0]

    assert once(4) == once(4) != once(5)
