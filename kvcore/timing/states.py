"""Arithmetic of recurrent layers: operations a token for each number of a state, by design.

Counted in the recurrent form, one token after another, which is the least; kernels that take in a prompt in chunks do
more. Exponentials, gates and norms of single channels are left out: they are few beside the state.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvcore.model.memories import State, StatePart


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRule:
    """Operations a token on each number of one tensor of a state, and what they are.

    `rows` says that a token touches one row of the tensor and leaves the others as they are.
    """

    operations: int
    reason: str
    rows: bool = False


def _rule(operations: int, reason: str, rows: bool = False) -> StateRule:
    return StateRule(operations=operations, reason=reason, rows=rows)


_DECAYED = "decay 1, outer-product update 2, read-out 2"
_DELTA = "decay 1, product with the key 2, outer-product update 2, read-out 2"

# The recurrent tensor of each design.
_DESIGNS: dict[str, StateRule] = {
    # S += k vᵀ; o = q S. A decay of the whole head, as in lightning attention, is not counted.
    "Linear attention": _rule(4, "outer-product update 2, read-out 2"),
    # h = a h + (Δ x) Bᵀ; y = h C, with one decay a head (Mamba-2 paper, section 6).
    "Mamba 2": _rule(5, _DECAYED),
    # The same with a decay for each number, exp(Δ A), whose product is one more; the exponential is not counted.
    "Mamba 1": _rule(6, f"decay's exponent 1, {_DECAYED}"),
    # S = a S; S += β k (v − Sᵀ k)ᵀ; o = q S (gated delta net paper, equation 10; Kimi Linear: a decay a channel).
    "Gated delta net": _rule(7, _DELTA),
    "Kimi delta attention": _rule(7, _DELTA),
    # S = diag(w) S + k vᵀ and its read-out; RWKV-7 adds a delta rule, which is not counted.
    "RWKV": _rule(5, _DECAYED),
    # Numerator, denominator and maximum: 19 operations a channel on three numbers, exponentials not counted.
    "RWKV-4": _rule(6, "19 operations a channel over its three numbers"),
    # h = a h + x: one number a channel.
    "RG-LRU": _rule(3, "decay 1, update 2"),
}
# Tensors that mean the same in every design.
_PARTS: dict[str, StateRule] = {
    "convolution": _rule(2, "convolution 2"),
    "shifted tokens": _rule(2, "mix with the token before 2"),
    "hidden states": _rule(2, "filter 2"),
    # A compressor fills one row a token and pools each row once, by its gate.
    "rows": _rule(2, "pooling 2", rows=True),
}
_UNKNOWN = _rule(4, "design without a count of its own: update 2, read-out 2")


def state_rule(design: str, part: str) -> StateRule:
    """What one token does to each number of a state's tensor; 4 operations for a design that is not listed."""
    return _PARTS.get(part) or _DESIGNS.get(design) or _UNKNOWN


def is_counted(state: State) -> bool:
    """Whether every tensor of this state has a count of its own."""
    return all(state_rule(state.design, part.name) is not _UNKNOWN for part in state.parts)


def touched_bytes(state: State, new_tokens: int) -> int:
    """Bytes that `new_tokens` read, and write again, once: whole tensors, or as many rows as there are tokens."""
    return sum(_touched(state, part, new_tokens) for part in state.parts) if new_tokens else 0


def operations_per_token(state: State) -> int:
    """Operations that one token makes on the whole state."""
    return sum(state_rule(state.design, part.name).operations * _numbers(state, part) for part in state.parts)


def arithmetic_text(state: State) -> str:
    """The same as a formula: operations for each number, numbers of each tensor, and what the operations are."""
    terms = []
    for part in state.parts:
        rule = state_rule(state.design, part.name)
        terms.append(f"{rule.operations} × {_numbers(state, part):,} ({part.name}: {rule.reason})")
    return f"({' + '.join(terms)})" if len(terms) > 1 else terms[0]


def _numbers(state: State, part: StatePart) -> int:
    numbers = part.bytes // part.element_bytes
    return numbers // part.shape[0] if state_rule(state.design, part.name).rows else numbers


def _touched(state: State, part: StatePart, new_tokens: int) -> int:
    if not state_rule(state.design, part.name).rows:
        return part.bytes
    return part.bytes // part.shape[0] * min(part.shape[0], new_tokens)
