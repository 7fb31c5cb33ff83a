"""How many independent people want an answer at the same moment: a binomial or a Poisson number."""

from __future__ import annotations

from math import erf, exp, lgamma, log, log1p, sqrt

# Up to here chances are summed term by term; beyond, a normal curve stands in, with an error below a thousandth.
_SUMMED = 1_000


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
    if requests > _SUMMED:
        deviation = sqrt(mean if by_rate else mean * (1 - each))
        return 0.5 * (1 + erf((requests + 0.5 - mean) / (deviation * sqrt(2))))
    if by_rate:
        return sum(exp(count * log(mean) - mean - lgamma(count + 1)) for count in range(requests + 1))
    return sum(exp(_log_binomial(people, count, each)) for count in range(requests + 1))


def _log_binomial(people: int, count: int, share: float) -> float:
    ways = lgamma(people + 1) - lgamma(count + 1) - lgamma(people - count + 1)
    return ways + count * log(share) + (people - count) * log1p(-share)


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
    low, high = 0, int(max(requests, 0) / each) + 2
    while high - low > 1:
        middle = (low + high) // 2
        if chance_at_most(requests, middle, each, by_rate=by_rate) >= chance:
            low = middle
        else:
            high = middle
    return low
