"""How many independent people want an answer at the same moment: a binomial or a Poisson number."""

from __future__ import annotations

from functools import lru_cache
from math import erf, exp, lgamma, log, log1p, sqrt

# Up to here chances are summed term by term; beyond, a normal curve stands in, with an error below a thousandth.
_SUMMED = 1_000
# Deviations above the mean beyond which nothing is left, and the share of a sum below which a term adds nothing.
_NEVER, _NOTHING = 40, 1e-17


@lru_cache(maxsize=4096)
def chance_at_most(requests: int, people: int, each: float, *, by_rate: bool) -> float:
    """The chance that no more than `requests` requests of `people` people are alive at a moment.

    Binomial where each person waits for one answer or for none, `each` being the share of the time that they wait.
    With `by_rate` requests arrive at random, `each` alive at a time on average for each person: then their number is
    Poisson whatever their lengths (the queue M/G/∞).
    """
    mean = people * each
    if requests < 0:
        return 0.0
    if mean == 0 or (not by_rate and requests >= people):
        return 1.0
    if not by_rate and each >= 1:
        return 0.0
    deviation = sqrt(mean if by_rate else mean * (1 - each))
    if requests > _SUMMED:
        return 0.5 * (1 + erf((requests + 0.5 - mean) / (deviation * sqrt(2))))
    return _sum_down(min(requests, int(mean + _NEVER * (deviation + 1))), people, each, mean, by_rate)


def _sum_down(top: int, people: int, each: float, mean: float, by_rate: bool) -> float:
    """Chances of `top`, one less, and so on, each from the one before, until nothing more is added."""
    if by_rate:
        term = exp(top * log(mean) - mean - lgamma(top + 1))
    else:
        ways = lgamma(people + 1) - lgamma(top + 1) - lgamma(people - top + 1)
        term = exp(ways + top * log(each) + (people - top) * log1p(-each))
    against = (1 - each) / each if not by_rate else 0.0
    total = 0.0
    for count in range(top, -1, -1):
        total += term
        if term <= total * _NOTHING and count < mean:
            break
        term *= count / mean if by_rate else against * count / (people - count + 1)
    return min(total, 1.0)


def most_at_once(people: int, each: float, *, by_rate: bool, chance: float = 0.99) -> int:
    """The least number of requests that is not exceeded with that chance."""
    low, high = -1, 1
    while chance_at_most(high, people, each, by_rate=by_rate) < chance:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        if chance_at_most(middle, people, each, by_rate=by_rate) < chance:
            low = middle
        else:
            high = middle
    return high


def most_people(requests: int, each: float, *, by_rate: bool, chance: float = 0.99) -> int:
    """The most people whose requests are no more than `requests` at once with that chance (above a half)."""
    most = int(max(requests, 0) / each) + 2
    # So many deviations below the mean lie about 99 of 100 moments; the search widens from there.
    guess = int(max(0.0, requests - 2.4 * sqrt(max(requests, 0))) / each)
    low, high, step = 0, most, max(1, most // 64)
    if guess and chance_at_most(requests, guess, each, by_rate=by_rate) >= chance:
        low = guess
        while low + step < high and chance_at_most(requests, low + step, each, by_rate=by_rate) >= chance:
            low += step
        high = min(high, low + step)
    elif guess:
        high = guess
    while high - low > 1:
        middle = (low + high) // 2
        if chance_at_most(requests, middle, each, by_rate=by_rate) >= chance:
            low = middle
        else:
            high = middle
    return low
