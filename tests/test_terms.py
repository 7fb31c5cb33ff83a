"""Ranges: their order holds through every operation."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvcore.terms import ENDS, Range

WHOLE = st.integers(-(2**40), 2**40)


@st.composite
def ranges(draw: st.DrawFn) -> Range[int]:
    low, best, high = sorted((draw(WHOLE), draw(WHOLE), draw(WHOLE)))
    return Range(low=low, best=best, high=high)


def is_ordered(found: Range[int]) -> bool:
    return found.low <= found.best <= found.high


def test_by_hand() -> None:
    used = Range(low=1, best=2, high=4)
    assert used + 10 == 10 + used == Range(low=11, best=12, high=14)
    assert used + used == sum((used, used), Range.exactly(0)) == used * 2 == 2 * used
    # Least is left where most is used, of a figure that is known and of one that is not.
    assert 10 - used == Range(low=6, best=8, high=9)
    assert Range(low=10, best=12, high=20) - used == Range(low=6, best=10, high=19)
    assert used - 1 == Range(low=0, best=1, high=3)
    assert used.map(float) == Range(low=1.0, best=2.0, high=4.0)
    assert used.zip(Range(low=3, best=1, high=5), max) == Range(low=3, best=2, high=5)
    assert tuple(used) == (1, 2, 4)
    assert ENDS.map(used.at) == used
    assert Range.exactly(3).is_one
    assert not used.is_one


@given(ranges(), ranges(), WHOLE, st.integers(0, 1000))
def test_the_order_holds(one: Range[int], other: Range[int], known: int, factor: int) -> None:
    for found in (one + other, one + known, one - other, one - known, known - one, one * factor, one.zip(other, max)):
        assert is_ordered(found)
    assert (one + other) - other == Range(
        low=one.low + other.low - other.high, best=one.best, high=one.high + other.high - other.low
    )


def test_equal_figures_are_changed_once() -> None:
    asked: list[int] = []

    def change(value: int) -> int:
        asked.append(value)
        return -value

    assert Range(low=1, best=1, high=2).map(change) == Range(low=-1, best=-1, high=-2)
    assert asked == [1, 2]
