"""What must hold of every plan: more memory or a smaller format never holds less, and fewer users fit where more do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcore.deployment import Deployment
from kvcore.engines.registry import engine_names
from kvcore.hardware.gpus import Accelerator, accelerator
from kvcore.planning.answers import longest_context, most_users
from kvcore.planning.plan import make_plan
from kvcore.sources.catalogue import entries, load
from kvcore.terms import Range
from kvcore.units import GIB, KIB

ALL = [entry.model_id for entry in entries()]
models, engines = st.sampled_from(ALL), st.sampled_from(engine_names())
contexts = st.integers(1, 200_000)
# Kernels for smaller formats may have larger blocks (64 instead of 16 tokens), so requests of less than one take more.
whole_blocks = st.integers(1, 200).map(lambda count: 1024 * count)
gib = st.floats(1, 300, allow_nan=False)
# Orders of cache formats by bytes, smaller last, among names that engines take.
SMALLER = (("bf16", "fp8"), ("bf16", "q8_0"), ("q8_0", "q4_0"), ("fp8", "nvfp4"))


def gpu_of(size: int) -> Accelerator:
    return replace(accelerator("h100-sxm"), reported_bytes=size)


def plain(name: str, **changes: Any) -> Deployment:
    """Everything stated that engines choose by the class of a GPU: their defaults step up with its memory."""
    stated = Deployment(
        gpu=gpu_of(80 * GIB), context=8192, engine=name, max_num_batched_tokens=2048, max_num_seqs=256, utilization=0.9
    )
    return replace(stated, **changes)


def held(model_id: str, deployment: Deployment) -> Range[int]:
    return most_users(load(model_id), deployment, deployment.context)


@settings(max_examples=150, deadline=None)
@given(model_id=models, name=engines, context=contexts, size=gib, more=gib)
def test_more_memory_never_fits_fewer(model_id: str, name: str, context: int, size: float, more: float) -> None:
    small = held(model_id, plain(name, context=context, gpu=gpu_of(int(size * GIB))))
    large = held(model_id, plain(name, context=context, gpu=gpu_of(int((size + more) * GIB))))
    assert (small.low, small.best, small.high) <= (large.low, large.best, large.high)
    assert small.low <= large.low
    assert small.high <= large.high


@settings(max_examples=150, deadline=None)
@given(model_id=models, name=engines, context=contexts, size=gib, more=gib)
def test_a_larger_stated_pool_never_fits_fewer(
    model_id: str, name: str, context: int, size: float, more: float
) -> None:
    small = held(model_id, plain(name, context=context, kv_bytes=int(size * GIB)))
    large = held(model_id, plain(name, context=context, kv_bytes=int((size + more) * GIB)))
    assert small.low <= large.low


@settings(max_examples=150, deadline=None)
@given(model_id=models, name=engines, context=whole_blocks, formats=st.sampled_from(SMALLER), size=gib)
def test_a_smaller_format_never_fits_fewer(
    model_id: str, name: str, context: int, formats: tuple[str, str], size: float
) -> None:
    model = load(model_id)
    wide, narrow = (
        make_plan(model, plain(name, context=context, kv_bytes=int(size * GIB), kv_dtype=form)) for form in formats
    )
    if wide.requests is None or narrow.requests is None:
        return
    assert wide.requests.low <= narrow.requests.low


@settings(max_examples=100, deadline=None)
@given(model_id=models, name=engines, context=contexts, longer=contexts)
def test_a_longer_context_never_fits_more(model_id: str, name: str, context: int, longer: int) -> None:
    first, second = sorted((context, longer))
    assert held(model_id, plain(name, context=first)).low >= held(model_id, plain(name, context=second)).low


@settings(max_examples=150, deadline=None)
@given(model_id=models, name=engines, context=contexts, size=gib, users=st.integers(2, 400))
def test_what_fits_fits_with_one_user_fewer(model_id: str, name: str, context: int, size: float, users: int) -> None:
    model, deployment = load(model_id), plain(name, context=context, gpu=gpu_of(int(size * GIB)))
    if make_plan(model, deployment, users).fits:
        assert make_plan(model, deployment, users - 1).fits


@settings(max_examples=100, deadline=None)
@given(model_id=models, name=engines, size=gib, users=st.integers(1, 60))
def test_the_longest_context_is_where_fitting_ends(model_id: str, name: str, size: float, users: int) -> None:
    model, deployment = load(model_id), plain(name, gpu=gpu_of(int(size * GIB)))
    longest = longest_context(model, deployment, users)
    assert longest.low <= longest.best <= longest.high
    if longest.low:
        assert make_plan(model, replace(deployment, context=longest.low), users).fits
    if longest.low < (model.context_limit or 10**9):
        assert not make_plan(model, replace(deployment, context=longest.low + 1), users).fits


@settings(max_examples=100, deadline=None)
@given(model_id=models, name=engines, context=contexts, size=gib, replicas=st.integers(2, 9))
def test_replicas_hold_as_many_times_as_much(
    model_id: str, name: str, context: int, size: float, replicas: int
) -> None:
    model, deployment = load(model_id), plain(name, context=context, kv_bytes=int(size * GIB))
    together = make_plan(model, replace(deployment, dp=replicas)).requests
    # Replicas of a mixture share its experts in some engines, which not every number of them can.
    if together is not None:
        assert together.low == replicas * held(model_id, deployment).low


def test_every_engine_answers_or_refuses_with_words(subtests: pytest.Subtests) -> None:
    for name in engine_names():
        for model_id in ALL[::5]:
            with subtests.test(engine=name, model=model_id):
                plan = make_plan(
                    load(model_id), Deployment(gpu=accelerator("h200-sxm"), context=8 * KIB, engine=name), 3
                )
                assert plan.binding.sentence.endswith((".", "!", "?"))
                assert plan.fits is (plan.requests is not None and plan.requests.low >= 3)
                if plan.refused:
                    assert plan.binding.kind in ("engine", "split", "weights")
                else:
                    assert plan.terms
                    assert plan.longest is not None
