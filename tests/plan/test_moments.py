"""People at the same moment: small cases counted by hand, and tables of the Poisson distribution."""

from __future__ import annotations

from math import comb

import pytest

from kvcore.planning.people import chance_at_most, most_at_once, most_people


def test_two_coins() -> None:
    """Of two people who each wait half of the time: none ¼, one ½, both ¼."""
    assert chance_at_most(0, 2, 0.5, by_rate=False) == pytest.approx(0.25)
    assert chance_at_most(1, 2, 0.5, by_rate=False) == pytest.approx(0.75)
    assert chance_at_most(2, 2, 0.5, by_rate=False) == 1.0
    assert chance_at_most(-1, 2, 0.5, by_rate=False) == 0.0


def test_a_poisson_number_of_mean_one() -> None:
    """e⁻¹ = 0.367879, (1 + 1) e⁻¹ = 0.735759, (1 + 1 + ½) e⁻¹ = 0.919699."""
    for requests, chance in ((0, 0.367879), (1, 0.735759), (2, 0.919699)):
        assert chance_at_most(requests, 10, 0.1, by_rate=True) == pytest.approx(chance, abs=1e-6)


def test_everybody_always() -> None:
    assert chance_at_most(9, 10, 1.0, by_rate=False) == 0.0
    assert most_at_once(10, 1.0, by_rate=False) == 10
    assert most_people(10, 1.0, by_rate=False) == 10


def test_the_99th_of_100_moments() -> None:
    """A Poisson number of mean 10 is at most 18 with 0.9928 and at most 17 with 0.9857 (printed tables)."""
    assert most_at_once(100, 0.1, by_rate=True) == 18
    assert chance_at_most(17, 100, 0.1, by_rate=True) == pytest.approx(0.9857, abs=5e-5)


def test_people_and_requests_are_each_others_inverse() -> None:
    for each in (0.05, 0.3, 1.0):
        for by_rate in (False, True):
            people = most_people(12, each, by_rate=by_rate)
            assert most_at_once(people, each, by_rate=by_rate) <= 12
            assert most_at_once(people + 1, each, by_rate=by_rate) > 12
    assert most_people(0, 0.5, by_rate=False) == 0


def test_the_curve_takes_over_smoothly() -> None:
    """Beyond 1,000 the normal curve stands in: mean 1,000 ± 31.6, half of it below the mean."""
    assert chance_at_most(1001, 10_000, 0.1, by_rate=True) == pytest.approx(0.517, abs=0.005)
    assert most_at_once(100_000, 0.1, by_rate=True) == pytest.approx(10_000 + 2.326 * 100, abs=2)


def test_sums_from_the_top_hold_far_from_the_mean() -> None:
    """A thousand places for ten requests are always enough; ten places for a thousand never are."""
    assert chance_at_most(1000, 100, 0.1, by_rate=True) == pytest.approx(1.0, abs=1e-12)
    assert chance_at_most(10, 10_000, 0.1, by_rate=False) == pytest.approx(0.0, abs=1e-12)
    # Of 400 coins at most 200 fall heads: a half, and half of the chance of exactly 200, C(400, 200) / 2⁴⁰⁰.
    exactly = comb(400, 200) / 2**400
    assert chance_at_most(200, 400, 0.5, by_rate=False) == pytest.approx(0.5 + exactly / 2, rel=1e-9)


@pytest.mark.parametrize("requests", [1, 2, 7, 37, 170, 999])
@pytest.mark.parametrize("each", [0.001, 0.1, 0.6])
def test_one_person_more_is_too_many(requests: int, each: float) -> None:
    for by_rate in (False, True):
        people = most_people(requests, each, by_rate=by_rate)
        assert chance_at_most(requests, people, each, by_rate=by_rate) >= 0.99
        assert chance_at_most(requests, people + 1, each, by_rate=by_rate) < 0.99
