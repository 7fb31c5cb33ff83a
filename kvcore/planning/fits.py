"""Requests of a length in the pools of a deployment, and the people whose requests these are."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import floor

from kvcore.engines.registry import engine
from kvcore.planning.basis import NONE, Basis
from kvcore.planning.moments import most_people
from kvcore.planning.sharing import layout_at
from kvcore.terms import ENDS, End, Range, Term


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What fits when a request is counted as `tokens` tokens, `own_tokens` of them beside the shared prefix.

    `requests` at once over all replicas, `people` whose requests these are on average, and `people_nearly_always`
    whose requests they are in 99 of 100 moments; low is the safe end. `fits`: the traffic's own people, at the safe
    end, in 99 of 100 moments.
    """

    name: str
    tokens: int
    own_tokens: int
    requests: Range[int]
    people: Range[int]
    people_nearly_always: Range[int]
    fits: bool
    sentence: str
    terms: tuple[Term, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Filling:
    """The pools of one deployment, to be filled with requests of several lengths.

    `each` are requests that one of `people` has at once on average, `by_rate` whether they come at random.
    """

    base: Basis
    each: Fraction
    by_rate: bool
    people: int

    def fit(self, name: str, tokens: int, shared: int, chunk: int, when: str, least: Range[int] = NONE) -> Fit:
        """Requests of `tokens` tokens, `shared` of them held once, beside a chunk in prefill; no fewer than `least`."""
        own = tokens - shared
        if engine(self.base.deployment.engine).slots:
            # A slot has cells for the longest request, whatever is in it.
            own, shared, chunk = self.base.deployment.context, 0, 0
        beside = sum(self._bytes(part) for part in (shared, chunk) if part)
        held = ENDS.map(lambda end: self._requests(own, beside, end))
        requests = held.zip(least, max)
        people = requests.map(lambda count: floor(count / self.each))
        nearly = requests.map(lambda count: most_people(count, float(self.each), by_rate=self.by_rate))
        sentence = (
            f"{when} ({tokens:,} tokens), {requests.low:,} fit at once: {people.low:,} people on average, "
            f"{nearly.low:,} in 99 of 100 moments."
        )
        return Fit(
            name=name,
            tokens=tokens,
            own_tokens=own,
            requests=requests,
            people=people,
            people_nearly_always=nearly,
            fits=nearly.low >= self.people,
            sentence=sentence,
            terms=self._terms(own, shared, chunk, beside, held.low, requests, people),
        )

    def _bytes(self, tokens: int) -> int:
        return layout_at(self.base.model, self.base.deployment, tokens).bytes_per_request

    def _requests(self, tokens: int, beside: int, end: End) -> int:
        """Requests over all replicas, beside so many bytes on each GPU."""
        if self.base.cache is None or not self.base.cache.keeps_cache:
            return self.base.requests(tokens).at(end)
        room = tuple(max(0, pool.kv_bytes.at(end) - beside) for pool in self.base.pools)
        return self.base.whole(self.base.cache.fill(tokens, room))

    def _terms(
        self, own: int, shared: int, chunk: int, beside: int, held: int, requests: Range[int], people: Range[int]
    ) -> tuple[Term, ...]:
        each, size = self._bytes(own), min(pool.kv_bytes.low for pool in self.base.pools)
        terms = [_term("pool on each GPU", f"{size:,} B at the safe end", size, "B")]
        for what, tokens in (("shared prefix, once a replica", shared), ("a chunk in prefill", chunk)):
            if tokens:
                value = self._bytes(tokens)
                terms.append(_term(what, f"{tokens:,} tokens = {value:,} B", value, "B"))
        terms.append(_term("a request's own", f"{own:,} tokens = {each:,} B on the fullest GPU", each, "B"))
        text = f"({size:,} − {beside:,}) B / {each:,} B, on {self.base.deployment.dp} replicas: {held:,}"
        if held < requests.low:
            text += f", and no fewer than hold when all are at their expected end: {requests.low:,}"
        terms.append(_term("requests at once", text, requests.low, "requests"))
        text = f"{requests.low:,} / {float(self.each):.4g} requests a person = {people.low:,}"
        terms.append(_term("people", text, people.low, "people"))
        return tuple(terms)


def _term(name: str, formula: str, value: int, unit: str) -> Term:
    return Term(name=name, formula=formula, value=value, unit=unit, knowledge="estimated")
