"""How the few numbers of the overhead rule are fitted on logged memory, and how far off it is.

All coefficients are fitted together, by least squares in which far outliers count less, with the values that follow
from reading the engine's code as a weak prior; a coefficient that no report speaks of stays there. The ends are
conformal: as many spreads off as held a share of the starts that a fit had not seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from math import ceil, sqrt

from kvcore.engines.vllm.memory import (
    SPREAD,
    Coefficients,
    OverheadFit,
    Profile,
    graph_terms,
    parts_gib,
    spread_gib,
    tower_peak_gib,
)

# Relative and absolute error that an equation is expected to have, in the least squares.
_EQUATION_SHARE, _EQUATION_GIB = 0.05, 0.1
_PRIOR_SHARE = 0.5
# The share of sources that each end of the range shall hold with all their starts.
HELD_SAFE, HELD_HOPEFUL = 0.97, 0.97
_ROUNDS, _SETTLED = 25, 1e-4
_HUBER = 2.0

# By reading: 2 (16-bit logits) + 9 × 4 B while sorting values and 64-bit places; 2 + 2 × 4 B without. Graphs: some ten
# kernels a layer, twice as many where experts are chosen and gathered, each a node of some 8 KiB with its arguments.
PRIOR = Coefficients(
    forward=1.0, sorting=38.0, sampling=10.0, context=0.15, collective=0.25, linked=0.7, graph_pool=0.1,
    expert_pool=0.2, graph_nodes=0.12, expert_nodes=0.12, graphs=20.0, encoder=12.0, unified=3.0, driver=0.3,
    driver_share=0.003,
)  # fmt: skip
NAMES = tuple(field.name for field in fields(Coefficients))


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One logged start: what is left for parts of it, in GiB. None where the log does not say.

    `overhead`: share of the memory − weights − cache, None where only parts are known; `with_driver` where the share is
    of what nvidia-smi reports.
    """

    id: str
    group: str
    profile: Profile
    utilization: float
    weights: float
    weights_estimated: bool
    overhead: float | None
    with_driver: bool
    activation: float | None = None
    non_torch: float | None = None
    graphs: float | None = None
    driver: float | None = None


def score(rule: Coefficients, case: Case) -> float:
    """How many spreads a case lies above (below: negative) the best guess, beyond what open settings explain."""
    if case.overhead is None:
        return 0.0
    parts = parts_gib(rule, case.profile, case.utilization, case.with_driver)
    spread = spread_gib(parts, case.profile, case.weights if case.weights_estimated else 0.0)
    off = case.overhead - parts.total
    explained = parts.higher_peak - parts.activation if off > 0 else parts.activation - parts.lower_peak
    beyond = sqrt(max(0.0, off * off - explained * explained)) / spread
    return beyond if off > 0 else -beyond


# Fits by the sources that they saw: without one of two and then the other is the same fit as the other way round.
_Known = dict[frozenset[str], Coefficients]


def fit(cases: Sequence[Case], safe: float = HELD_SAFE, hopeful: float = HELD_HOPEFUL) -> OverheadFit:
    """Coefficients fitted on all cases, and ends that hold these shares of their sources (conformal quantiles).

    The scores are those of a fit that did not see the case's source: the ends are not flattered by the fit. A source
    counts once, with its worst start on that side: many starts of one writer are no many kinds of starts.
    """
    return _fit(cases, safe, hopeful, {})


def _fit(cases: Sequence[Case], safe: float, hopeful: float, known: _Known) -> OverheadFit:
    sources = [
        [score(rule, case) for case in held if case.overhead is not None] or [0.0]
        for rule, held in _folds(cases, known)
    ]
    return OverheadFit(
        coefficients=coefficients(cases),
        low=_quantile([-min(scores) for scores in sources], hopeful),
        high=_quantile([max(scores) for scores in sources], safe),
    )


def cross_validate(cases: Sequence[Case]) -> Mapping[str, OverheadFit]:
    """For each group, a fit that saw none of it: neither its coefficients nor its ends."""
    groups = sorted({case.group for case in cases})
    known: _Known = {}
    return {
        group: _fit([case for case in cases if case.group != group], HELD_SAFE, HELD_HOPEFUL, known) for group in groups
    }


def _folds(cases: Sequence[Case], known: _Known) -> list[tuple[Coefficients, list[Case]]]:
    groups = frozenset(case.group for case in cases)
    found = []
    for group in sorted(groups):
        seen = groups - {group}
        if seen not in known:
            known[seen] = coefficients([case for case in cases if case.group != group])
        found.append((known[seen], [case for case in cases if case.group == group]))
    return found


def _quantile(values: Sequence[float], share: float) -> float:
    """The conformal quantile: one more than there are values, so that few values give a wide end; at least 1."""
    ordered = sorted(values)
    place = min(len(ordered), ceil((len(ordered) + 1) * share))
    return max(1.0, ordered[place - 1]) if ordered else 2.0


def coefficients(cases: Sequence[Case]) -> Coefficients:
    """All coefficients by reweighted least squares; none is negative."""
    import numpy as np

    rule = PRIOR
    prior = np.array([getattr(PRIOR, name) for name in NAMES])
    for _ in range(_ROUNDS):
        equations = [equation for case in cases for equation in _equations(case, rule)]
        if not equations:
            return PRIOR
        matrix = np.array([row for row, _, _ in equations])
        target = np.array([value for _, value, _ in equations])
        doubt = np.array([more for _, _, more in equations])
        now = np.array([getattr(rule, name) for name in NAMES])
        scale = _EQUATION_GIB + _EQUATION_SHARE * np.abs(target) + doubt
        off = np.abs(matrix @ now - target) / scale
        weight = np.minimum(1.0, _HUBER / np.maximum(off, 1e-9)) / scale
        rows = np.vstack([matrix * weight[:, None], np.diag(1 / (_PRIOR_SHARE * prior))])
        right = np.concatenate([target * weight, np.full(len(NAMES), 1 / _PRIOR_SHARE)])
        found = np.clip(np.linalg.lstsq(rows, right, rcond=None)[0], 0, None)
        rule = Coefficients(**{name: float(value) for name, value in zip(NAMES, found, strict=True)})
        if np.allclose(found, now, rtol=_SETTLED, atol=_SETTLED):
            break
    return rule


def _equations(case: Case, rule: Coefficients) -> list[tuple[list[float], float, float]]:
    """Linear equations of one case, with the branch of the peak that the present coefficients choose, and how much
    further off an unfamiliar kind may be."""
    profile = case.profile
    peak: dict[str, float]
    per_logit = "sorting" if profile.sorts else "sampling"
    sampler = getattr(rule, per_logit) * profile.logits_gib + profile.hidden_gib
    known = profile.workspace_gib
    made = profile.tower
    layer = profile.forward_gib + profile.unpacked_gib
    if made and tower_peak_gib(rule, profile) >= max(rule.forward * layer, sampler):
        peak = {"encoder": profile.tower_gib}
        known += made.outputs * profile.tower_gib
    elif rule.forward * layer >= sampler:
        peak = {"forward": layer}
        known += profile.pictures_gib
    else:
        peak = {per_logit: profile.logits_gib}
        known += profile.hidden_gib + profile.pictures_gib
    outside = {"context": 1.0, "collective": float(profile.groups), "linked": float(profile.linked)}
    graphs = graph_terms(profile)
    rest = {"unified": 1.0} if profile.unified else {}
    if case.with_driver and not profile.unified:
        rest |= {"driver": case.utilization, "driver_share": case.utilization * profile.total_gib}
    found = []
    if case.overhead is not None:
        found.append((peak | outside | graphs | rest, case.overhead - known))
    if case.activation is not None:
        found.append((peak, case.activation - known))
    if case.non_torch is not None:
        found.append((outside, case.non_torch))
    if case.graphs is not None and graphs:
        found.append((graphs, case.graphs))
    if case.driver is not None:
        found.append(({"driver": 1.0, "driver_share": profile.total_gib}, case.driver))
    doubt = 0.0 if profile.familiar else SPREAD["unfamiliar"] * profile.total_gib
    return [([terms.get(name, 0.0) for name in NAMES], value, doubt) for terms, value in found]
